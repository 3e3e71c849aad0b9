/* exact_ops.c - ops on a GPU of Hopper's kind when whole() asked for bits that do not depend on how many rows
 * there are: products of any number of rows, and attention over blocks beside packed sequences. Skipped where there
 * is none. */
#include <stdlib.h>
#include "base/rng.h"
#include "data/weights.h"
#include "nn/ops.h"
#include "test.h"

static struct tw_dev *dev;

/* Numbers of BF16 on the device. */
static void *low_numbers(uint64_t seed, int64_t n)
{
    struct tw_err err = { 0 };
    uint16_t *x = tw_xreallocarray(NULL, (size_t)n, sizeof *x);
    void *p = tw_ops(dev)->alloc(dev, (size_t)n * sizeof *x, &err);

    for (int64_t i = 0; i < n; i++)
        x[i] = tw_f32_to_bf16((float)tw_rand_normal(seed, 5, (uint64_t)i));
    CHECK_STR(err.msg, "");
    tw_ops(dev)->put(dev, p, x, (size_t)n * sizeof *x);
    free(x);
    return p;
}

static struct tw_tensor tensor(uint64_t seed, int64_t rows, int64_t cols)
{
    return (struct tw_tensor){ .data = low_numbers(seed, rows * cols), .dtype = TW_BF16, .rows = rows, .cols = cols,
        .ld = cols };
}

enum { BLOCKS = 40 };

static const struct shape {
    int64_t nh, nkv, hd, window, n;
} shapes[] = {
    { 4, 2, 64, 0, 300 }, { 16, 8, 128, 0, 700 }, { 6, 2, 64, 0, 391 }, { 7, 1, 128, 0, 517 }, { 8, 1, 80, 0, 260 },
    { 4, 4, 128, 0, 130 }, { 8, 2, 64, 40, 333 }, { 14, 2, 64, 100, 600 }, { 4, 1, 256, 0, 300 },
    { 4, 2, 256, 70, 260 }, { 10, 2, 128, 129, 640 }, { 64, 1, 64, 0, 200 },
    /* and little of each kind: more keys than a split, heads that are no power of two, large, many */
    { 4, 2, 64, 0, 300 }, { 7, 1, 128, 0, 270 }, { 2, 1, 80, 40, 110 }, { 4, 1, 256, 0, 110 }, { 64, 1, 64, 0, 110 },
};

/* Rows of X from row AT on. */
static struct tw_tensor from_row(const struct tw_tensor *x, int64_t at, int64_t n)
{
    struct tw_tensor t = *x;

    t.data = (char *)x->data + (size_t)(at * x->ld) * 2;
    t.rows = n;
    return t;
}

/* Pieces of a sequence over blocks: one of many rows, some of few, then one by one. */
static int64_t piece(int64_t at, int64_t n, int64_t first)
{
    int64_t want = !at ? first : at < first + 90 ? 45 : at < first + 99 ? 3 : 1;

    return want < n - at ? want : n - at;
}

static void one_attention(const struct shape *s, uint64_t seed)
{
    const struct tw_ops *o = tw_ops(dev);
    int64_t lead = 37, T = lead + s->n, dq = s->nh * s->hd, dk = s->nkv * s->hd, differ = 0;
    struct tw_tensor q = tensor(seed, T, dq), k = tensor(seed + 1, T, dk), v = tensor(seed + 2, T, dk);
    struct tw_tensor want = tensor(seed + 3, T, dq), got = tensor(seed + 4, T, dq);
    struct tw_attn_seq two[2] = { { .nq = lead }, { .q0 = lead, .nq = s->n } };
    struct tw_attn a = { s->nh, s->nkv, s->hd, 0.11f, s->window, two, 2, .whole = true };
    size_t bytes = (size_t)(s->n * dq) * 2, each = o->kv_bytes(dev, s->nkv, s->hd, TW_BF16);
    uint16_t *x = tw_xcalloc(1, bytes), *y = tw_xcalloc(1, bytes);
    void *block[BLOCKS];
    struct tw_err err = { 0 };

    for (int i = 0; i < BLOCKS; i++)
        block[i] = o->alloc(dev, each, &err);
    o->attn(dev, &want, NULL, &q, &k, &v, &a);
    for (int64_t first = test_quick() ? s->n - 104 : 1; first < s->n; first += test_quick() ? s->n : 70) {
        struct tw_attn_seq one = { .block = block };

        a.seq = &one;
        a.nseq = 1;
        for (int64_t at = 0; at < s->n; at += one.nq) {
            struct tw_tensor pq, pk, pv, po;

            one.past = at;
            one.nq = piece(at, s->n, first);
            pq = from_row(&q, lead + at, one.nq), pk = from_row(&k, lead + at, one.nq);
            pv = from_row(&v, lead + at, one.nq), po = from_row(&got, lead + at, one.nq);
            o->kv_put(dev, &pk, &pv, &a);
            o->attn(dev, &po, NULL, &pq, &pk, &pv, &a);
        }
        o->get(dev, x, (char *)want.data + (size_t)(lead * dq) * 2, bytes);
        o->get(dev, y, (char *)got.data + (size_t)(lead * dq) * 2, bytes);
        for (int64_t i = 0; i < s->n * dq; i++)
            if (x[i] != y[i] && !differ++)
                printf("# first of %lld, row %lld column %lld: %04x, %04x wanted\n", (long long)first,
                       (long long)(i / dq), (long long)(i % dq), y[i], x[i]);
    }
    if (differ)
        printf("# %lld heads of %lld, window %lld: %lld numbers differ\n", (long long)s->nh, (long long)s->hd,
               (long long)s->window, (long long)differ);
    CHECK_INT(differ, 0);
    CHECK(!o->sync(dev, &err));
    CHECK_STR(err.msg, "");
    for (int i = 0; i < BLOCKS; i++)
        o->free(dev, block[i]);
    o->free(dev, q.data), o->free(dev, k.data), o->free(dev, v.data), o->free(dev, want.data), o->free(dev, got.data);
    free(x);
    free(y);
}

static void attention(void)
{
    CASES(i, shapes, 5)
        one_attention(&shapes[i], 10 * i);
}

static const struct product {
    int64_t n, k, ext;
    bool bias, res;
    enum tw_dtype out;
} products[] = {
    { 40, 64, 0, true, true, TW_BF16 }, { 3, 520, 0, false, false, TW_F32 }, { 2500, 72, 8, true, false, TW_BF16 },
    { 5004, 2048, 0, false, false, TW_F32 }, { 96, 8, 0, false, true, TW_BF16 },
    { 1024, 3072, 0, false, true, TW_BF16 }, { 512, 256, 0, false, false, TW_BF16 },
    { 1004, 1032, 56, false, true, TW_BF16 },
};
enum { ALL = 700 };             /* rows */

static double number(const void *from, int64_t i, enum tw_dtype t)
{
    return (double)(t == TW_BF16 ? tw_bf16_to_f32(((const uint16_t *)from)[i]) : ((const float *)from)[i]);
}

/* Of each number of rows the first ones are those of all rows. */
static void one_product(const struct product *p, uint64_t seed)
{
    static const int64_t rows[] = { 1, 2, 7, 16, 17, 33, 64, 65, 100, 128, 129, 256, 257, 511 };
    const struct tw_ops *o = tw_ops(dev);
    int64_t ld = p->k + p->ext, differ = 0;
    size_t size = tw_dtype_size(p->out), bytes = (size_t)(ALL * p->n) * size;
    struct tw_tensor x = tensor(seed, ALL, ld), res = tensor(seed + 3, 2 * ALL, p->n), y;
    struct tw_mat w = { .data = low_numbers(seed + 1, (p->n + p->ext) * ld), .dtype = TW_BF16, .rows = p->n,
        .cols = p->k, .ext = p->ext };
    float *bias = low_numbers(seed + 2, 2 * p->n);
    char *want = tw_xcalloc(1, bytes), *got = tw_xcalloc(1, bytes);
    struct tw_err err = { 0 };

    x.cols = p->k;
    res.dtype = p->out, res.rows = ALL;     /* two of BF16 are an F32, too */
    y = res;
    y.data = low_numbers(seed + 4, 2 * ALL * p->n);
    CHECK(o->whole(dev, true));
    o->linear(dev, &y, &x, &w, p->bias ? bias : NULL, p->res ? &res : NULL);
    o->get(dev, want, y.data, bytes);
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        bool alias = i % 2;             /* y is what is added, too */
        int64_t n = rows[i / 2] * p->n;

        if (alias && !p->res)
            continue;
        y.rows = x.rows = res.rows = rows[i / 2];
        if (alias)
            o->copy(dev, y.data, res.data, (size_t)n * size);
        o->linear(dev, &y, &x, &w, p->bias ? bias : NULL, alias ? &y : p->res ? &res : NULL);
        o->get(dev, got, y.data, bytes);
        for (int64_t j = 0; j < n; j++)
            if (memcmp(got + (size_t)j * size, want + (size_t)j * size, size) && !differ++)
                printf("# %lld outputs of %lld%s: of %lld rows, row %lld output %lld: %g, of all %g\n",
                       (long long)p->n, (long long)p->k, alias ? " added to y" : "", (long long)rows[i / 2],
                       (long long)(j / p->n), (long long)(j % p->n), number(got, j, p->out), number(want, j, p->out));
    }
    CHECK_INT(differ, 0);
    CHECK(!o->sync(dev, &err));
    CHECK_STR(err.msg, "");
    o->whole(dev, false);
    o->free(dev, x.data), o->free(dev, w.data), o->free(dev, bias), o->free(dev, res.data), o->free(dev, y.data);
    free(want);
    free(got);
}

static void products_of_any_rows(void)
{
    CASES(i, products, 3)
        one_product(&products[i], 100 + 10 * i);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_dev_open("cuda", 0, &err);
    if (!dev || !tw_ops(dev)->whole || !tw_ops(dev)->whole(dev, false)) {
        printf("1..0 # SKIP %s\n", dev ? "the GPU is none of Hopper's kind" : err.msg);
        tw_dev_close(dev);
        return 0;
    }
    RUN(products_of_any_rows);
    RUN(attention);
    tw_dev_close(dev);
    return test_end();
}
