/* help_ops.c - see help_ops.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_ops.h"

struct help_dev help_devs[8];
int help_ndev;
static float *kept[64];

static void try_dev(const char *isa, int threads)
{
    struct tw_err err = { 0 };
    struct help_dev *h = &help_devs[help_ndev];

    h->d = tw_cpu_open(threads, isa, &err);
    if (!h->d) {
        printf("# %s: skipped, %s\n", isa, err.msg);
        return;
    }
    snprintf(h->name, sizeof h->name, "%s/%d", tw_cpu_isa(h->d), threads);
    h->bits = !strcmp(tw_cpu_isa(h->d), "amx");
    printf("# device %s\n", h->name);
    help_ndev++;
}

void help_open(void)
{
    try_dev("avx512", 1);
    try_dev("avx512", 2);
    try_dev("avx2", 1);
    try_dev("avx2", 3);
    try_dev("c", 2);
    try_dev("amx", 1);
    try_dev("amx", 3);
}

void help_close(void)
{
    while (help_ndev)
        tw_dev_close(help_devs[--help_ndev].d);
    help_forget();
}

float *help_rand(int64_t n, uint64_t seed, float scale)
{
    float *x = tw_xcalloc((size_t)n + 1, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        if (tw_rand_below(seed, 1, (uint64_t)i, 50))
            x[i] = (float)tw_rand_normal(seed, 2, (uint64_t)i) * scale;
    return x;
}

void help_round16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tw_bf16_to_f32(tw_f32_to_bf16(x[i]));
}

void *help_put(struct tw_dev *d, const void *host, size_t bytes)
{
    struct tw_err err = { 0 };
    void *p = tw_ops(d)->alloc(d, bytes, &err);

    if (p && host)
        tw_ops(d)->put(d, p, host, bytes);
    return p;
}

float *help_get(struct tw_dev *d, const void *p, int64_t n)
{
    float *x = tw_xcalloc((size_t)n + 1, sizeof *x);

    tw_ops(d)->get(d, x, p, (size_t)n * 4);
    return x;
}

struct tw_tensor help_tensor(struct tw_dev *d, const float *x, int64_t rows, int64_t cols,
        int64_t ld)
{
    float *host = tw_xcalloc((size_t)(rows * ld) + 1, sizeof *host);
    struct tw_tensor t = { .dtype = TW_F32, .rows = rows, .cols = cols, .ld = ld };

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < ld; c++)
            host[r * ld + c] = c >= cols ? 7 : x ? x[r * cols + c] : NAN;
    t.data = help_put(d, host, (size_t)(rows * ld) * 4);
    free(host);
    return t;
}

float *help_tensor_get(struct tw_dev *d, const struct tw_tensor *x)
{
    float *all = help_get(d, x->data, x->rows * x->ld);

    for (int64_t r = 0; r < x->rows; r++)
        memmove(all + r * x->cols, all + r * x->ld, (size_t)x->cols * 4);
    return all;
}

bool help_tensor_clean(struct tw_dev *d, const struct tw_tensor *x)
{
    float *all = help_get(d, x->data, x->rows * x->ld);
    bool ok = true;

    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = x->cols; c < x->ld; c++)
            ok &= all[r * x->ld + c] == 7;
    free(all);
    return ok;
}

struct tw_mat help_mat(struct tw_dev *d, const float *w, int64_t rows, int64_t cols,
        enum tw_dtype t)
{
    struct tw_mat m = { .dtype = t, .rows = rows, .cols = cols };
    int64_t n = tw_ops(d)->mat_elems(d, rows, cols, t), cut = rows / 3;

    m.data = help_put(d, NULL, (size_t)n * tw_dtype_size(t));
    if (w) {                    /* in two pieces, cut where no panel ends */
        tw_ops(d)->mat_put(d, &m, w, TW_F32, 0, cut);
        tw_ops(d)->mat_put(d, &m, w + cut * cols, TW_F32, cut, rows - cut);
    }
    return m;
}

float *help_mat_get(struct tw_dev *d, const struct tw_mat *m)
{
    float *x = tw_xcalloc((size_t)(m->rows * m->cols) + 1, sizeof *x);

    tw_ops(d)->mat_get(d, x, m, 0, m->rows);
    return x;
}

bool help_near(const float *got, const double *want, int64_t n, double tol, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tol * fmax(1, fabs(want[i])))) {
            printf("# %s[%lld]: %.9g, want %.9g\n", what, (long long)i, got[i], want[i]);
            return false;
        }
    return true;
}

bool help_same(const void *a, const void *b, size_t bytes, const char *what)
{
    const float *x = a, *y = b;

    for (size_t i = 0; i < bytes / 4; i++)
        if (memcmp(x + i, y + i, 4)) {
            printf("# %s[%zu]: bits differ: %.9g and %.9g\n", what, i, x[i], y[i]);
            return false;
        }
    return true;
}

bool help_agree(int slot, const float *x, int64_t n, const char *what, const char *dev)
{
    char name[96];

    if (!kept[slot]) {
        kept[slot] = tw_xcalloc((size_t)n + 1, sizeof *x);
        memcpy(kept[slot], x, (size_t)n * 4);
        return true;
    }
    snprintf(name, sizeof name, "%s on %s", what, dev);
    return help_same(x, kept[slot], (size_t)n * 4, name);
}

void help_forget(void)
{
    for (int i = 0; i < 64; i++) {
        free(kept[i]);
        kept[i] = NULL;
    }
}
