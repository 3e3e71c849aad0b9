/* cuda_muon.c - Muon on the GPU beside the CPU: many matrices of one shape in one call, in F32 and with
 * products of BF16, masters that are split, and none of it without a finite scale. Skipped where there is
 * no GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_cuda.h"
#include "test.h"

enum { MOST = 70 };             /* more than one batch */

struct shape {
    int64_t r, c, n;            /* N to a matrix, as experts are */
    int items;
};

static float *many(int64_t n, int key)
{
    float *x = tw_xcalloc((size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)tw_rand_normal((uint64_t)key + 1, 1, (uint64_t)i);
    return x;
}

/* Two steps on D with LOW masters (GPU); OUT [items n r c] are the weights, MOMENT the momenta. */
static void steps(struct tw_dev *d, const struct shape *s, const struct tw_muon *p, bool low, float *out,
        float *moment)
{
    int64_t each = s->r * s->c * s->n;
    struct tw_mat w[MOST];
    struct tw_muon_item item[MOST];
    float half = 0.5f, bad = NAN, *scale = put(d, &half, 4), *no = put(d, &bad, 4);

    for (int i = 0; i < s->items; i++) {
        float *x = many(each, i);

        w[i] = (struct tw_mat){ .dtype = low ? TW_BF16 : TW_F32, .rows = s->r, .cols = s->c, .n = s->n,
            .data = put(d, low ? NULL : x, (size_t)each * (low ? 2 : 4)) };
        if (low) {
            struct tw_mat all = { .dtype = TW_BF16, .rows = s->r * s->n, .cols = s->c, .data = w[i].data };

            w[i].low = all.low = put(d, NULL, (size_t)each * 2);
            tw_ops(d)->mat_put(d, &all, x, TW_F32, 0, all.rows);
        }
        item[i] = (struct tw_muon_item){ &w[i], NULL, put(d, NULL, (size_t)each * 4) };
        free(x);
    }
    for (int t = 0; t < (test_quick() ? 1 : 2); t++) {
        for (int i = 0; i < s->items; i++) {
            float *g = many(each, 100 * (t + 1) + i);

            item[i].g = put(d, g, (size_t)each * 4);
            free(g);
        }
        tw_ops(d)->optim->muon(d, item, s->items, true, p, no);
        tw_ops(d)->optim->muon(d, item, s->items, true, p, scale);
        for (int i = 0; i < s->items; i++)
            tw_ops(d)->free(d, (void *)item[i].g);
    }
    for (int i = 0; i < s->items; i++) {
        struct tw_mat all = w[i];

        all.rows *= s->n, all.n = 0;
        if (low)
            tw_ops(d)->mat_get(d, out + i * each, &all, 0, all.rows);
        else
            tw_ops(d)->get(d, out + i * each, w[i].data, (size_t)each * 4);
        tw_ops(d)->get(d, moment + i * each, item[i].m, (size_t)each * 4);
        tw_ops(d)->free(d, w[i].data), tw_ops(d)->free(d, item[i].m);
        if (low)
            tw_ops(d)->free(d, w[i].low);
    }
    tw_ops(d)->free(d, scale), tw_ops(d)->free(d, no);
}

static void check(const struct shape *s, const struct tw_muon *p)
{
    int64_t n = s->r * s->c * s->n * s->items;
    float *a = tw_xcalloc((size_t)n, 4), *b = tw_xcalloc((size_t)n, 4), *c = tw_xcalloc((size_t)n, 4);
    float *ma = tw_xcalloc((size_t)n, 4), *mb = tw_xcalloc((size_t)n, 4);
    double tol = p->products == TW_BF16 ? 3e-2 : 2e-5;

    steps(cpu, s, p, false, a, ma);
    steps(gpu, s, p, false, b, mb);
    CHECK(near(b, a, n, tol, "weights"));
    CHECK(near(mb, ma, n, 1e-6, "momentum"));
    steps(gpu, s, p, true, c, mb);
    CHECK(near(c, b, n, 1e-6, "split weights"));
    if (!test_quick()) {
        steps(gpu, s, p, false, c, mb);
        CHECK(!memcmp(b, c, (size_t)n * 4));    /* the same bytes twice */
    }
    free(a), free(b), free(c), free(ma), free(mb);
}

static void matrices(void)
{
    static const struct shape shape[] = { { 8, 12, 1, 1 }, { 33, 20, 1, 3 }, { 16, 70, 3, 2 }, { 1, 5, 1, 2 },
        { 16, 64, 1, MOST }, { 130, 150, 1, 2 }, { 256, 128, 1, 3 }, { 40, 3, 2, 1 }, { 64, 16, 1, MOST } };

    CASES(i, shape, 2)
        for (int low = 0; low < 2; low++) {
            struct tw_muon p = { .lr = 0.1f, .momentum = 0.95f, .decay = 0.2f, .move = 0.3f,
                .nesterov = i % 3 != 1, .steps = i == 2 ? 3 : 5, .products = low ? TW_BF16 : TW_F32 };

            check(&shape[i], &p);
        }
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_BF16;
    if (tw_ops(gpu)->optim && tw_ops(gpu)->optim->muon)
        RUN(matrices);
    help_cuda_close();
    return test_end();
}
