/* ops_group.c - products of one input that are taken at once give the bits of one after the other,
 * forward and back, whatever runs of adapters meet in a block of rows */
#include <stdlib.h>
#include "help_ops.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)
#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define T 800                   /* rows enough for a group on every device */
#define IN 70
#define MOST 200                /* columns of an output */

struct set {                    /* three products and two adapters, the second not everywhere */
    struct tw_tensor x, dx, y[3], dy[3], h[3], s[3];
    struct tw_mat w[3];
    float *a, *b, *da, *db;     /* (dev) [3][2][..] */
    struct tw_lora_run run[3][2];
    struct tw_lora_ctx c[3];
    uint64_t *key;              /* (dev) */
    struct tw_lora_one one[3];
};

static const int64_t cols[3] = { 200, 48, 97 }, ranks[2] = { 5, 16 };
/* Where the second adapter begins: within a block of rows. */
static const int64_t border = 500 + 3;

static void *put(struct help_dev *h, int64_t n, uint64_t seed, float scale)
{
    float *p = help_rand(n, seed, scale);
    void *d = help_put(h->d, p, (size_t)n * sizeof *p);

    free(p);
    return d;
}

static struct tw_tensor tensor(struct help_dev *h, int64_t n, uint64_t seed)
{
    return (struct tw_tensor){ .data = put(h, T * n, seed, seed ? 1 : 0), .dtype = TW_F32, .rows = T,
        .cols = n, .ld = n };
}

static void set_open(struct set *s, struct help_dev *h, enum tw_dtype t, float drop, bool both)
{
    *s = (struct set){ .x = tensor(h, IN, 1), .dx = tensor(h, IN, 2) };
    s->a = put(h, 6 * 16 * IN, 3, 0.2f);
    s->b = put(h, 6 * MOST * 16, 4, 0.2f);
    s->da = put(h, 6 * 16 * IN, 5, 1);
    s->db = put(h, 6 * MOST * 16, 6, 1);
    s->key = put(h, 2 * T, 7, 1);
    for (int i = 0; i < 3; i++) {
        float *w = help_rand(cols[i] * IN, 10 + (uint64_t)i, 0.2f);

        s->w[i] = help_mat(h->d, w, cols[i], IN, t);
        s->y[i] = tensor(h, cols[i], 0);
        s->dy[i] = tensor(h, cols[i], 20 + (uint64_t)i);
        s->h[i] = tensor(h, 16, 0);
        s->s[i] = tensor(h, 16, 0);
        for (int k = 0; k < 2; k++) {
            int64_t n = i * 2 + k;

            s->run[i][k] = (struct tw_lora_run){ .t0 = k ? border : 0, .t1 = k ? T : border,
                .a = s->a + n * 16 * IN, .b = s->b + n * MOST * 16, .da = s->da + n * 16 * IN,
                .db = s->db + n * MOST * 16, .r = ranks[k], .scale = 2, .drop = k ? drop : 0 };
        }
        s->c[i] = (struct tw_lora_ctx){ .run = s->run[i], .nrun = both || i != 1 ? 2 : 1,
            .drop_key = s->key, .module = (uint32_t)i };
        s->one[i] = (struct tw_lora_one){ .y = &s->y[i], .h = &s->h[i], .scratch = &s->s[i],
            .w = &s->w[i], .c = &s->c[i] };
        free(w);
    }
}

static void set_close(struct set *s, struct help_dev *h)
{
    void *p[] = { s->x.data, s->dx.data, s->a, s->b, s->da, s->db, s->key };

    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        tw_ops(h->d)->free(h->d, p[i]);
    for (int i = 0; i < 3; i++) {
        void *q[] = { s->y[i].data, s->dy[i].data, s->h[i].data, s->s[i].data, s->w[i].data };

        for (size_t k = 0; k < sizeof q / sizeof *q; k++)
            tw_ops(h->d)->free(h->d, q[k]);
    }
}

static void same(struct help_dev *h, const void *a, const void *b, int64_t n, const char *what)
{
    float *x = help_get(h->d, a, n), *y = help_get(h->d, b, n);

    bool ok = help_same(x, y, (size_t)n * sizeof *x, what);

    if (!ok)
        printf("# %s\n", h->name);
    CHECK(ok);
    free(x), free(y);
}

static void group_on(struct help_dev *h, enum tw_dtype t, float drop, bool both, bool add)
{
    struct set g, s;
    int64_t t0[] = { 0, 300, border, T };

    if (!tw_ops(h->d)->lora_group)
        return;
    set_open(&g, h, t, drop, both);
    set_open(&s, h, t, drop, both);
    ON(begin, t, t0, 3);
    ON(lora_group, g.one, 3, &g.x);
    for (int i = 0; i < 3; i++)
        g.one[i].y = &g.dy[i];
    ON(lora_group_bwd, &g.dx, add, g.one, 3, &g.x);
    for (int i = 0; i < 3; i++)
        ON(lora_linear, &s.y[i], &s.h[i], &s.x, &s.w[i], NULL, NULL, &s.c[i]);
    for (int i = 2; i >= 0; i--)
        ON(lora_linear_bwd, &s.dx, add || i < 2, &s.s[i], &s.dy[i], &s.x, &s.h[i], &s.w[i], &s.c[i]);
    same(h, g.dx.data, s.dx.data, T * IN, "group dx");
    ON(lora_group_bwd, NULL, false, g.one, 3, &g.x);    /* nobody wants x's: no others change */
    for (int i = 2; i >= 0; i--)
        ON(lora_linear_bwd, &s.dx, true, &s.s[i], &s.dy[i], &s.x, &s.h[i], &s.w[i], &s.c[i]);
    ON(begin, TW_F32, NULL, 0);
    for (int i = 0; i < 3; i++)
        same(h, g.y[i].data, s.y[i].data, T * cols[i], "group y");
    same(h, g.da, s.da, 6 * 16 * IN, "group dA");
    same(h, g.db, s.db, 6 * MOST * 16, "group dB");
    set_close(&g, h);
    set_close(&s, h);
}

static void group(void)
{
    DEVS(h)
        for (int i = 0; i < 8; i++)
            group_on(h, i & 1 ? TW_BF16 : TW_F32, i & 2 ? 0.25f : 0, i < 4, i & 4);
}

/* A module with few outputs and an adapter: the rows of a long sum, alone and among others. */
static void narrow_on(struct help_dev *h, enum tw_dtype t, int64_t few)
{
    enum { MANY = 70, LONG = 3700, OUT = 20, R = 16 };
    float *w = help_rand(OUT * LONG, 1, 0.1f), *x = help_rand(MANY * LONG, 2, 1);
    struct tw_mat m = help_mat(h->d, w, OUT, LONG, t);
    struct tw_lora_run run = { .t1 = MANY, .a = put(h, R * LONG, 3, 0.1f), .b = put(h, OUT * R, 4, 0.2f),
        .r = R, .scale = 2 };
    struct tw_lora_ctx c = { .run = &run, .nrun = 1 };
    float *got[2];

    for (int i = 0; i < 2; i++) {
        int64_t n = i ? few : MANY, t0[2] = { 0, n };
        struct tw_tensor in = help_tensor(h->d, x, n, LONG, LONG), y = help_tensor(h->d, NULL, n, OUT, OUT);
        struct tw_tensor hid = help_tensor(h->d, NULL, n, R, R);

        run.t1 = n;
        ON(begin, t, t0, 1);
        ON(lora_linear, &y, &hid, &in, &m, NULL, NULL, &c);
        got[i] = help_tensor_get(h->d, &y);
        tw_ops(h->d)->free(h->d, in.data), tw_ops(h->d)->free(h->d, y.data);
        tw_ops(h->d)->free(h->d, hid.data);
    }
    ON(begin, TW_F32, NULL, 0);
    CHECK(help_same(got[0], got[1], (size_t)(few * OUT) * 4, h->name));
    tw_ops(h->d)->free(h->d, m.data), tw_ops(h->d)->free(h->d, (void *)run.a);
    tw_ops(h->d)->free(h->d, (void *)run.b);
    free(w), free(x), free(got[0]), free(got[1]);
}

static void narrow(void)
{
    DEVS(h)
        for (int64_t few = 1; few < 20; few += 5 + few) {
            narrow_on(h, TW_F32, few);
            narrow_on(h, TW_BF16, few);
        }
}

int main(void)
{
    help_open();
    RUN(group);
    RUN(narrow);
    help_close();
    return test_end();
}
