/* cuda_split.c - master weights that are split into a BF16 and what it lacks: on the GPU they are
 * the F32 values, bit for bit, and updates and sums are those of F32 values. Skipped where there is no
 * GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_cuda.h"
#include "test.h"

#define ROWS 37
#define COLS 56
#define N (ROWS * COLS)

/* Values of all sizes, halfway ones among them, and what is no number. */
static float *values(void)
{
    float *x = numbers(N, 1);

    for (int64_t i = 0; i < N; i++) {
        uint32_t bits;

        x[i] = x[i] * (1 + 1e-3f * (float)(i % 97)) * powf(10, (float)(i % 40 - 20));
        memcpy(&bits, &x[i], 4);
        if (i % 5 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u;
        memcpy(&x[i], &bits, 4);
    }
    x[3] = 0, x[4] = -0.0f, x[5] = INFINITY, x[6] = NAN, x[7] = -3.3e38f;
    return x;
}

static struct tw_mat split_of(const float *x)
{
    struct tw_mat m = { .dtype = TW_BF16, .rows = ROWS, .cols = COLS };

    m.data = put(gpu, NULL, N * 2);
    m.low = put(gpu, NULL, N * 2);
    G(mat_put, &m, x, TW_F32, 0, 20);
    G(mat_put, &m, x + 20 * COLS, TW_F32, 20, ROWS - 20);
    return m;
}

static bool equal(const struct tw_mat *m, const float *want)
{
    float *got = tw_xcalloc(N, sizeof *got);
    bool ok;

    G(mat_get, got, m, 0, ROWS);
    ok = !memcmp(got, want, N * sizeof *got);
    free(got);
    return ok;
}

static void free_split(struct tw_mat *m)
{
    G(free, m->data), G(free, m->low);
}

static void back_and_forth(void)
{
    float *x = values();
    uint16_t *hi = tw_xcalloc(N, sizeof *hi);
    struct tw_mat m = split_of(x);

    CHECK(equal(&m, x));
    G(get, hi, m.data, N * 2);
    for (int64_t i = 0; i < N; i++) {
        float near = tw_bf16_to_f32(hi[i]), to = tw_bf16_to_f32(tw_f32_to_bf16(x[i]));

        if (isfinite(x[i]) && isfinite(to))
            CHECK(fabs((double)near - x[i]) <= fabs((double)to - x[i]));
    }
    for (int64_t i = 0; i < N; i++) {   /* from BF16 nothing is lacking */
        hi[i] = tw_f32_to_bf16(x[i]);
        x[i] = tw_bf16_to_f32(hi[i]);
    }
    G(mat_put, &m, hi, TW_BF16, 0, ROWS);
    CHECK(equal(&m, x));
    free_split(&m);
    free(hi);
    free(x);
    healthy();
}

/* Five updates of split weights and of plain ones, on the GPU: the same, up to how a compiler fuses
 * sums; what is behind the N-th stays. */
static void update_case(bool sgd, float momentum, int64_t n)
{
    float *x = numbers(N, 1), one = 0.7f, *got = tw_xcalloc(N, sizeof *got);
    float *split = tw_xcalloc(N, sizeof *split);
    struct tw_mat m = split_of(x);
    struct both g = vector(N, false);
    float *w = put(gpu, x, N * 4), *a = put(gpu, NULL, N * 4), *b = put(gpu, NULL, N * 4);
    float *a2 = put(gpu, NULL, N * 4), *b2 = put(gpu, NULL, N * 4), *scale = put(gpu, &one, 4);
    double *sum = put(gpu, NULL, 16), both[2];

    for (int i = 1; i <= 5; i++) {
        struct tw_adamw p = { 1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1 - powf(0.9f, (float)i),
            1 - powf(0.99f, (float)i) };

        if (sgd) {
            G(sgd, w, g.g.data, momentum > 0 ? a : NULL, n, 1e-3f, momentum, 0.1f, scale);
            G(sgd_split, m.data, m.low, g.g.data, momentum > 0 ? a2 : NULL, n, 1e-3f, momentum, 0.1f,
                    scale);
        } else {
            G(adamw, w, g.g.data, a, b, n, &p, scale);
            G(adamw_split, m.data, m.low, g.g.data, a2, b2, n, &p, scale);
        }
    }
    G(get, got, w, N * 4), G(mat_get, split, &m, 0, ROWS);
    CHECK(near(split, got, n, 5e-7, "split"));
    CHECK(memcmp(split, x, (size_t)n * 4));
    CHECK(!memcmp(split + n, x + n, (size_t)(N - n) * 4));
    G(sumsq, sum, w, N), G(sumsq_split, sum + 1, m.data, m.low, N);
    G(get, both, sum, 16);
    CHECK(fabs(both[0] - both[1]) <= 1e-6 * both[0] && both[0] > 0);
    G(free, w), G(free, a), G(free, b), G(free, a2), G(free, b2), G(free, scale), G(free, sum);
    free_split(&m);
    done(&g);
    free(split);
    free(got);
    free(x);
}

static void updates(void)
{
    update_case(false, 0, N);
    update_case(false, 0, N - 5);       /* a tail */
    update_case(true, 0, N);
    update_case(true, 0.9f, N - 5);
    healthy();
}

/* Random weights made on the GPU are the host's but for a last bit now and then, in every form of a
 * matrix; rows before and after stay. */
static void normals(void)
{
    float *got = tw_xcalloc(N, sizeof *got);
    uint64_t first = ((uint64_t)1 << 33) + 11;
    double std = 0.02;

    for (int form = 0; form < 3; form++) {
        struct tw_mat m = { .dtype = form ? TW_BF16 : TW_F32, .rows = ROWS, .cols = COLS };
        int64_t off = 0;

        m.data = put(gpu, NULL, N * 4);
        m.low = form == 2 ? put(gpu, NULL, N * 2) : NULL;
        G(mat_normal, &m, 5, 7, first, std, 3, 20);
        G(mat_normal, &m, 5, 7, first + 20 * COLS, std, 23, ROWS - 24);
        G(mat_get, got, &m, 0, ROWS);
        for (int64_t i = 0; i < N; i++) {
            bool in = i >= 3 * COLS && i < (ROWS - 1) * COLS;
            float f = in ? (float)(std * tw_rand_normal(5, 7, first + (uint64_t)(i - 3 * COLS))) : 0;
            float w = form == 1 ? tw_bf16_to_f32(tw_f32_to_bf16(f)) : f;

            off += memcmp(&w, &got[i], 4) != 0;
            CHECK(fabsf(w - got[i]) <= 1e-6f * fabsf(f) + (form == 1 ? 0.008f * fabsf(f) : 0));
        }
        CHECK(off <= 2);
        free_split(&m);
    }
    free(got);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_BF16;
    RUN(normals);
    if (tw_ops(gpu)->adamw_split) {
        RUN(back_and_forth);
        RUN(updates);
    }
    help_cuda_close();
    return test_end();
}
