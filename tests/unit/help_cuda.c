/* help_cuda.c - see help_cuda.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_cuda.h"

struct tw_dev *gpu, *cpu;
enum tw_dtype act;
static uint64_t seed;


float *numbers(int64_t n, float scale)
{
    float *x = tw_xcalloc((size_t)n + 1, sizeof *x);

    seed++;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)tw_rand_normal(seed, 1, (uint64_t)i) * scale;
        x[i] = tw_bf16_to_f32(tw_f32_to_bf16(x[i]));
    }
    return x;
}

void *put(struct tw_dev *d, const void *host, size_t bytes)
{
    struct tw_err err = { 0 };
    void *p = tw_ops(d)->alloc(d, bytes, &err);

    if (!p)
        printf("# %s\n", err.msg);
    if (p && host)
        tw_ops(d)->put(d, p, host, bytes);
    return p;
}

/* Rows of COLS inside rows of LD elements. */
static void fill(struct tw_dev *d, struct tw_tensor *t, const float *x, enum tw_dtype type,
        int64_t rows, int64_t cols, int64_t ld)
{
    int64_t n = rows * ld;
    float *wide = tw_xcalloc((size_t)n + 1, 4);
    uint16_t *low = tw_xcalloc((size_t)n + 1, 2);

    for (int64_t i = 0; i < n; i++) {
        wide[i] = i % ld >= cols ? 7 : x ? x[i / ld * cols + i % ld] : NAN;
        low[i] = tw_f32_to_bf16(wide[i]);
    }
    *t = (struct tw_tensor){ .dtype = type, .rows = rows, .cols = cols, .ld = ld };
    t->data = put(d, type == TW_F32 ? (void *)wide : (void *)low,
            (size_t)n * tw_dtype_size(type));
    free(wide);
    free(low);
}

struct both tensor(int64_t rows, int64_t cols, int64_t pad, bool empty, float scale)
{
    struct both b = { .n = rows * cols, .start = empty ? NULL : numbers(rows * cols, scale) };

    fill(cpu, &b.c, b.start, TW_F32, rows, cols, cols + pad);
    fill(gpu, &b.g, b.start, act, rows, cols, cols + pad);
    return b;
}

struct both vector(int64_t n, bool empty)        /* F32 on both */
{
    struct both b = { .n = n, .start = empty ? NULL : numbers(n, 1) };

    fill(cpu, &b.c, b.start, TW_F32, 1, n, n);
    fill(gpu, &b.g, b.start, TW_F32, 1, n, n);
    return b;
}

struct both matrix(int64_t rows, int64_t cols, enum tw_dtype t)
{
    return roomy_matrix(rows, cols, 0, t);
}

struct both roomy_matrix(int64_t rows, int64_t cols, int64_t ext, enum tw_dtype t)
{
    struct both b = { .n = rows * cols, .start = numbers(rows * cols, 0.5f) };

    b.mc = (struct tw_mat){ .dtype = TW_F32, .rows = rows, .cols = cols };
    b.mg = (struct tw_mat){ .dtype = t, .rows = rows, .cols = cols, .ext = ext };
    b.mc.data = put(cpu, NULL, (size_t)tw_ops(cpu)->mat_elems(cpu, rows, cols, TW_F32) * 4);
    b.mg.data = put(gpu, NULL, (size_t)tw_ops(gpu)->mat_elems(gpu, rows + ext, cols + ext, t) *
            tw_dtype_size(t));
    tw_ops(cpu)->mat_put(cpu, &b.mc, b.start, TW_F32, 0, rows);
    tw_ops(gpu)->mat_put(gpu, &b.mg, b.start, TW_F32, 0, rows);
    return b;
}

void done(struct both *b)
{
    if (b->c.data)
        tw_ops(cpu)->free(cpu, b->c.data), tw_ops(gpu)->free(gpu, b->g.data);
    if (b->mc.data)
        tw_ops(cpu)->free(cpu, b->mc.data), tw_ops(gpu)->free(gpu, b->mg.data);
    free(b->start);
}

static float *fetch(struct tw_dev *d, const struct tw_tensor *t, bool *clean)
{
    int64_t n = t->rows * t->ld;
    size_t size = tw_dtype_size(t->dtype);
    char *raw = tw_xcalloc((size_t)n + 1, size);
    float *x = tw_xcalloc((size_t)(t->rows * t->cols) + 1, 4);

    tw_ops(d)->get(d, raw, t->data, (size_t)n * size);
    for (int64_t i = 0; i < n; i++) {
        float v = size == 4 ? ((float *)raw)[i] : tw_bf16_to_f32(((uint16_t *)raw)[i]);

        if (i % t->ld < t->cols)
            x[i / t->ld * t->cols + i % t->ld] = v;
        else
            *clean &= v == 7;
    }
    free(raw);
    return x;
}

/* max |a - b| / max |b| */
bool near(const float *got, const float *want, int64_t n, double tol, const char *what)
{
    double top = 1e-2, worst = 0;   /* what should be zero need not be so to the last bit */
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);

        if (!(e <= worst)) {
            worst = isnan(e) ? INFINITY : e;
            at = i;
        }
    }
    if (worst <= tol * top)
        return true;
    printf("# %s (%s): [%lld of %lld] is %.7g, want %.7g; largest %.4g\n", what,
            tw_dtype_name(act), (long long)at, (long long)n, (double)got[at], (double)want[at], top);
    return false;
}

double tolerance(void)
{
    return act == TW_F32 ? 3e-5 : 1e-2;
}

bool same_as(const struct both *b, const char *what)
{
    bool clean = true;
    float *want = fetch(cpu, &b->c, &clean), *got = fetch(gpu, &b->g, &clean);

    bool ok = near(got, want, b->n, tolerance(), what) && clean;

    free(want);
    free(got);
    return ok;
}

float *seen(const struct both *b)
{
    bool clean = true;

    return fetch(gpu, &b->g, &clean);
}

void head_room(size_t n)
{
    enum { V = 16384 };
    int64_t rows = (int64_t)(n / (V * 4)) + 1;
    struct both h = tensor(rows, 16, 0, false, 1), w = matrix(V, 16, act);
    int32_t *row = tw_xcalloc((size_t)rows, 4);
    float *z = tw_xcalloc((size_t)(rows * V), 4);

    tw_ops(gpu)->logits(gpu, z, &h.g, row, rows, &w.mg);
    free(z);
    free(row);
    done(&h);
    done(&w);
}

bool same_mat_as(const struct both *b, const char *what)
{
    float *want = tw_xcalloc((size_t)b->n + 1, 4), *got = tw_xcalloc((size_t)b->n + 1, 4);

    tw_ops(cpu)->mat_get(cpu, want, &b->mc, 0, b->mc.rows);
    tw_ops(gpu)->mat_get(gpu, got, &b->mg, 0, b->mg.rows);
    bool ok = near(got, want, b->n, tolerance(), what);

    free(want);
    free(got);
    return ok;
}

bool is_healthy(void)
{
    struct tw_err err = { 0 };

    if (!tw_ops(gpu)->sync(gpu, &err))
        return true;
    printf("# %s\n", err.msg);
    return false;
}

bool help_cuda_open(void)
{
    struct tw_err err = { 0 };

    gpu = tw_dev_open("cuda", 0, &err);
    if (!gpu) {
        printf("1..0 # SKIP %s\n", err.msg);
        return false;
    }
    cpu = tw_cpu_open(0, "auto", &err);
    return true;
}

void help_cuda_close(void)
{
    tw_dev_close(cpu);
    tw_dev_close(gpu);
}
