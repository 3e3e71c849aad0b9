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
    RUN(alike);
    RUN(scales);
    RUN(ones);
    RUN(not_finite);
    help_close();
    return test_end();
}
