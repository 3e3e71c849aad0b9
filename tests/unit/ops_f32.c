/* ops_f32.c - how near f32 products are to sums in double, whatever unit does them: tiles multiply bf16
 * alone and take numbers apart. Each check fails where one of the six products of parts is left out. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "test.h"

#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)

enum { N = 33, MOST = 70 };

/* y = x w^T of T rows, where w has as many as are given. To be freed. */
static float *product_of(struct help_dev *h, const float *x, const float *w, int64_t T, int64_t n, int64_t K)
{
    struct tw_tensor vx = help_tensor(h->d, x, T, K, K + 1), y = help_tensor(h->d, NULL, T, n, n);
    struct tw_mat m = help_mat(h->d, w, n, K, TW_F32);
    float *got;

    ON(linear, &y, &vx, &m, NULL, NULL);
    got = help_tensor_get(h->d, &y);
    tw_ops(h->d)->free(h->d, vx.data), tw_ops(h->d)->free(h->d, y.data);
    tw_ops(h->d)->free(h->d, m.data);
    return got;
}

static float *product(struct help_dev *h, const float *x, const float *w, int64_t T, int64_t K)
{
    return product_of(h, x, w, T, N, K);
}

/* |got - true| <= tol * (the sum of |x w|), and what it is to take a denormal for 0. */
static void near(struct help_dev *h, const float *x, const float *w, int64_t T, int64_t K, double tol,
        const char *what)
{
    float *got = product(h, x, w, T, K);
    int64_t bad = 0;

    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++) {
            double sum = 0, all = 0, none = 0;

            for (int64_t k = 0; k < K; k++) {
                double a = x[t * K + k], b = w[n * K + k];

                sum += a * b;
                all += fabs(a * b);
                none += 0x1p-126 * (1 + fabs(a) + fabs(b));
            }
            if (!(fabs(got[t * N + n] - sum) <= tol * all + none) && !bad++)
                printf("# %s on %s: row %lld: %.9g, want %.9g of %.3g\n", what, h->name, (long long)t,
                        got[t * N + n], sum, all);
        }
    CHECK(!bad);
    free(got);
}

static const int64_t rows[] = { 1, 2, 3, 16, MOST };
#define NROWS ((int)(sizeof rows / sizeof *rows))

static void random_data(void)
{
    enum { K = 576 };
    float *x = help_rand(MOST * K, 1, 1), *w = help_rand(N * K, 2, 1);

    DEVS(h)
        for (int i = 0; i < NROWS; i++)
            near(h, x, w, rows[i], K, 0x1p-22, "random");
    free(x), free(w);
}

/* Few rows read several panels side by side, one group of them behind the other: they have the bits that
 * all rows together have, wherever an item's columns and the sum end. */
static void few_rows(void)
{
    static const int64_t cols[] = { 40, 1500, 2230 }, sums[] = { 20, 64, 100 };
    float *x = help_rand(MOST * 100, 1, 1), *w = help_rand(2230 * 100, 2, 1);

    DEVS(h)
        for (int i = 0; i < 9; i++) {
            int64_t n = cols[i / 3], K = sums[i % 3];
            float *all = product_of(h, x, w, MOST, n, K);

            for (int64_t T = 1; T < 19; T += T < 3 ? 1 : 7) {
                float *got = product_of(h, x, w, T, n, K);

                CHECK(!memcmp(got, all, (size_t)(T * n) * 4));
                free(got);
            }
            free(all);
        }
    free(x), free(w);
}

/* y or, of T rows of sums that run over w's rows, dx: with what else is added to it. To be freed. */
static float *added(struct help_dev *h, bool dx, const float *in, const struct tw_mat *m, const float *bias,
        const float *res, int64_t T)
{
    int64_t n = dx ? m->cols : m->rows, K = dx ? m->rows : m->cols;
    struct tw_tensor x = help_tensor(h->d, in, T, K, K + 3), r = help_tensor(h->d, res, T, n, n);
    struct tw_tensor y = help_tensor(h->d, dx ? res : NULL, T, n, n + 1);
    float *got;

    if (dx)
        ON(linear_dx, &y, true, &x, m);
    else
        ON(linear, &y, &x, m, bias, &r);
    CHECK(help_tensor_clean(h->d, &y));
    got = help_tensor_get(h->d, &y);
    tw_ops(h->d)->free(h->d, x.data), tw_ops(h->d)->free(h->d, y.data), tw_ops(h->d)->free(h->d, r.data);
    return got;
}

/* Many rows of long sums, for which strips take turns: a row has the bits that it has among few, whatever its
 * sum goes on from and is added to. */
static void long_sums(void)
{
    enum { LONG = 1500, OUT = 87, T = 2100, FEW = 37 };
    static const int64_t at[] = { 0, 250, 511, 1040, T - FEW };
    float *x = help_rand(T * LONG, 1, 1), *w = help_rand(LONG * OUT, 2, 1), *b = help_rand(OUT, 3, 1);
    float *res = help_rand(T * OUT, 4, 1);

    DEVS(h) {
        float *bias = help_put(h->d, b, OUT * 4);

        for (int dx = 0; dx < 2; dx++) {
            struct tw_mat m = help_mat(h->d, w, dx ? LONG : OUT, dx ? OUT : LONG, TW_F32);
            float *all = added(h, dx, x, &m, bias, res, T);

            for (int i = 0; i < 5; i++) {
                float *few = added(h, dx, x + at[i] * LONG, &m, bias, res + at[i] * OUT, FEW);

                CHECK(help_same(few, all + at[i] * OUT, FEW * OUT * 4, dx ? "long dx" : "long sum"));
                free(few);
            }
            free(all);
            tw_ops(h->d)->free(h->d, m.data);
        }
        tw_ops(h->d)->free(h->d, bias);
    }
    free(x), free(w), free(b), free(res);
}

/* The gradient of a matrix [n, K], which goes on from WAS. To be freed. */
static float *gradient(struct help_dev *h, const float *x, const float *dy, const float *was, int64_t T,
        int64_t n, int64_t K)
{
    struct tw_mat g = help_mat(h->d, was, n, K, TW_F32);
    struct tw_tensor vx = help_tensor(h->d, x, T, K, K), vy = help_tensor(h->d, dy, T, n, n);
    float *got;

    ON(linear_dw, &g, NULL, &vy, &vx);
    got = help_mat_get(h->d, &g);
    tw_ops(h->d)->free(h->d, vx.data), tw_ops(h->d)->free(h->d, vy.data), tw_ops(h->d)->free(h->d, g.data);
    return got;
}

/* A matrix whose gradient is of several items in both directions: a number of it has the bits that it has
 * among few rows of the matrix. */
static void wide_gradients(void)
{
    enum { OUT = 1601, IN = 1100, T = 330, FEW = 9 };
    static const int64_t t0[] = { 0, 45, T }, at[] = { 0, 530, 800, OUT - FEW };
    float *x = help_rand(T * IN, 1, 1), *dy = help_rand((int64_t)T * OUT, 2, 1);
    float *was = help_rand((int64_t)OUT * IN, 3, 1), *part = tw_xcalloc(T * FEW, sizeof *part);

    DEVS(h) {
        float *all;

        ON(begin, TW_F32, t0, 2);
        all = gradient(h, x, dy, was, T, OUT, IN);
        for (int i = 0; i < 4; i++) {
            float *few;

            for (int64_t t = 0; t < T; t++)
                memcpy(part + t * FEW, dy + t * OUT + at[i], FEW * 4);
            few = gradient(h, x, part, was + at[i] * IN, T, FEW, IN);
            CHECK(help_same(few, all + at[i] * IN, FEW * IN * 4, "gradient"));
            free(few);
        }
        free(all);
        ON(begin, TW_F32, NULL, 0);
    }
    free(x), free(dy), free(was), free(part);
}

/* All terms are alike, so that what is missing in one is missing in the sum. */
static void alike(void)
{
    enum { K = 40 };
    float *x = help_rand(MOST * K, 1, 1), *w = help_rand(N * K, 2, 1);

    for (int64_t i = 0; i < MOST * K; i++)
        x[i] = i / K % 2 ? 0x1.008082p0f : 0x1.01fe06p0f;
    for (int64_t i = 0; i < N * K; i++)
        w[i] = i / K % 2 ? 0x1.008082p0f : 0x1.01fe06p0f;
    DEVS(h)
        for (int i = 0; i < NROWS; i++)
            near(h, x, w, rows[i], K, 0x1p-19, "alike");
    free(x), free(w);
}

/* Sums that cancel, numbers far from 1, and denormals. */
static void scales(void)
{
    enum { K = 96 };
    static const float scale[5][2] = { { 1e-30f, 1e30f }, { 1e30f, 1e-25f }, { 1e-30f, 1 }, { 1e-40f, 1e30f },
        { 1e-20f, 1e-20f } };
    float *x = tw_xcalloc(MOST * K, sizeof *x), *w = tw_xcalloc(N * K, sizeof *w);
    float *one = help_rand(MOST * K, 1, 1), *two = help_rand(N * K, 2, 1);

    for (int s = 0; s < 5; s++) {
        for (int64_t i = 0; i < MOST * K; i++)
            x[i] = one[i] * scale[s][0];
        for (int64_t i = 0; i < N * K; i++)
            w[i] = two[i] * scale[s][1];
        DEVS(h)
            for (int i = 0; i < NROWS; i++)
                near(h, x, w, rows[i], K, 0x1p-21, "scaled");
    }
    for (int64_t i = 0; i < MOST * K; i++)      /* large ones, and their opposites later */
        x[i] = i % K < 10 ? 1e6f : i % K >= 70 && i % K < 80 ? -1e6f : one[i];
    for (int64_t i = 0; i < N * K; i++)
        w[i] = i % K < 10 || (i % K >= 70 && i % K < 80) ? two[i / K * K] : two[i];
    DEVS(h)
        for (int i = 0; i < NROWS; i++)
            near(h, x, w, rows[i], K, 0x1p-21, "cancelled");
    free(x), free(w), free(one), free(two);
}

/* What is multiplied by one comes out as it is, the largest number as well. */
static void ones(void)
{
    float *x = help_rand(MOST * N, 1, 1), *w = tw_xcalloc(N * N, sizeof *w);

    x[0] = x[N * 40] = 0x1.fffffep127f;
    x[1] = -0x1.fffffep127f;
    x[2] = 0x1.234566p-100f;
    for (int64_t n = 0; n < N; n++)
        w[n * N + n] = 1;
    DEVS(h)
        for (int i = 0; i < NROWS; i++) {
            float *got = product(h, x, w, rows[i], N);

            for (int64_t k = 0; k < rows[i] * N; k++)
                if (got[k] != x[k]) {
                    printf("# %s: %.9g became %.9g\n", h->name, x[k], got[k]);
                    CHECK(got[k] == x[k]);
                    break;
                }
            free(got);
        }
    free(x), free(w);
}

/* Nothing finite comes of what is not; rows beside it are as they were. */
static void not_finite(void)
{
    enum { K = 70 };
    static const uint32_t odd[4] = { 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001 };
    float *x = help_rand(MOST * K, 1, 1), *w = help_rand(N * K, 2, 1);

    for (int64_t i = 0; i < N * K; i++)
        w[i] = w[i] == 0 ? 1 : w[i];
    DEVS(h)
        for (int i = 0; i < 4; i++) {
            float *was = product(h, x, w, MOST, K), *got, keep = x[3 * K + 50];
            bool ok = true;

            memcpy(&x[3 * K + 50], &odd[i], 4);
            got = product(h, x, w, MOST, K);
            for (int64_t k = 0; k < MOST * N; k++)
                ok &= k / N == 3 ? i > 1 ? isnan(got[k]) : !isfinite(got[k]) : got[k] == was[k];
            CHECK(ok);
            free(got);
            got = product(h, x + 3 * K, w, 1, K);
            for (int64_t k = 0; k < N; k++)
                CHECK(i > 1 ? isnan(got[k]) : !isfinite(got[k]));
            x[3 * K + 50] = keep;
            free(was), free(got);
        }
    free(x), free(w);
}

int main(void)
{
    help_open();
    RUN(random_data);
    RUN(few_rows);
    RUN(long_sums);
    RUN(wide_gradients);
    RUN(alike);
    RUN(scales);
    RUN(ones);
    RUN(not_finite);
    help_close();
    return test_end();
}
