/* ops_seq.c - attention, decode states, LoRA and the head of every device against ref.c, and what
 * ops.h promises of them to the bit: packed, prefilled and decoded calls, threads, instruction sets
 * and cuts agree. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)

static void drop(struct tw_dev *d, void *p)
{
    tw_ops(d)->free(d, p);
}

struct shape {
    int64_t nh, nkv, hd, window, nseq, n[4];
};
static const struct shape shapes[] = {
    { 1, 1, 8, 0, 1, { 1 } },
    { 4, 2, 16, 0, 3, { 5, 33, 1 } },
    { 9, 3, 64, 0, 2, { 70, 17 } },
    { 2, 1, 20, 7, 2, { 40, 3 } },
    { 6, 2, 33, 40, 2, { 90, 41 } },
    { 2, 2, 128, 0, 1, { 37 } },
    { 14, 2, 24, 1, 1, { 35 } },
    { 6, 2, 96, 60, 2, { 95, 34 } },
    { 6, 2, 64, 100, 2, { 200, 129 } },
};
#define NSHAPE ((int)(sizeof shapes / sizeof *shapes))

struct run {
    const struct shape *s;
    int64_t T, nq, nk;          /* tokens; columns of q and of k */
    float *q, *k, *v, *dout;
    struct tw_tensor vq, vk, vv, vo, vd;
    float *lse;
    struct tw_attn_seq seq[4];
    struct tw_attn a;
};

static void run_open(struct run *r, const struct shape *s, struct tw_dev *d)
{
    *r = (struct run){ .s = s, .nq = s->nh * s->hd, .nk = s->nkv * s->hd };
    for (int64_t i = 0; i < s->nseq; i++) {
        r->seq[i] = (struct tw_attn_seq){ .q0 = r->T, .nq = s->n[i] };
        r->T += s->n[i];
    }
    r->q = help_rand(r->T * r->nq, 1, 1);
    r->k = help_rand(r->T * r->nk, 2, 1);
    r->v = help_rand(r->T * r->nk, 3, 1);
    r->dout = help_rand(r->T * r->nq, 4, 1);
    r->vq = help_tensor(d, r->q, r->T, r->nq, r->nq + 3);
    r->vk = help_tensor(d, r->k, r->T, r->nk, r->nk + 1);
    r->vv = help_tensor(d, r->v, r->T, r->nk, r->nk + 2);
    r->vo = help_tensor(d, NULL, r->T, r->nq, r->nq + 5);
    r->vd = help_tensor(d, r->dout, r->T, r->nq, r->nq + 1);
    r->lse = help_put(d, NULL, (size_t)(r->T * s->nh) * 4);
    r->a = (struct tw_attn){ .nh = s->nh, .nkv = s->nkv, .hd = s->hd, .scale = 0.3f,
        .window = s->window, .seq = r->seq, .nseq = s->nseq };
}

static void run_close(struct run *r, struct tw_dev *d)
{
    drop(d, r->vq.data), drop(d, r->vk.data), drop(d, r->vv.data), drop(d, r->vo.data);
    drop(d, r->vd.data), drop(d, r->lse);
    free(r->q), free(r->k), free(r->v), free(r->dout);
}

static struct ref_attn ref_of(const struct run *r, int64_t i)
{
    int64_t at = r->seq[i].q0;

    return (struct ref_attn){ r->seq[i].nq, r->s->nh, r->s->nkv, r->s->hd, r->s->window, 0.3f,
        r->q + at * r->nq, r->k + at * r->nk, r->v + at * r->nk };
}

static void attn_on(struct help_dev *h, const struct shape *s, int slot)
{
    struct run r;
    double *o, *lse;
    float *got, *gotl;

    run_open(&r, s, h->d);
    o = tw_xcalloc((size_t)(r.T * r.nq), 8);
    lse = tw_xcalloc((size_t)(r.T * s->nh), 8);
    for (int64_t i = 0; i < s->nseq; i++) {
        struct ref_attn a = ref_of(&r, i);

        ref_attn(o + r.seq[i].q0 * r.nq, lse + r.seq[i].q0 * s->nh, &a);
    }
    ON(attn, &r.vo, r.lse, &r.vq, &r.vk, &r.vv, &r.a);
    got = help_tensor_get(h->d, &r.vo);
    gotl = help_get(h->d, r.lse, r.T * s->nh);
    CHECK(help_near(got, o, r.T * r.nq, 2e-5, "attn"));
    CHECK(help_near(gotl, lse, r.T * s->nh, 1e-5, "lse"));
    CHECK(help_agree(slot, got, r.T * r.nq, "attn", h->name));
    CHECK(help_tensor_clean(h->d, &r.vo));
    free(got), free(gotl), free(o), free(lse);
    run_close(&r, h->d);
}

static void attn(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            attn_on(h, &shapes[i], i);
}

static void attn_bwd_on(struct help_dev *h, const struct shape *s, int slot)
{
    struct run r;
    double *want[3];
    struct tw_tensor out[3];

    run_open(&r, s, h->d);
    for (int i = 0; i < 3; i++) {
        int64_t n = i ? r.nk : r.nq;

        want[i] = tw_xcalloc((size_t)(r.T * n), 8);
        out[i] = help_tensor(h->d, NULL, r.T, n, n + i);
    }
    for (int64_t i = 0; i < s->nseq; i++) {
        struct ref_attn a = ref_of(&r, i);
        int64_t at = r.seq[i].q0;

        ref_attn_bwd(want[0] + at * r.nq, want[1] + at * r.nk, want[2] + at * r.nk,
                r.dout + at * r.nq, &a);
    }
    ON(attn, &r.vo, r.lse, &r.vq, &r.vk, &r.vv, &r.a);
    ON(attn_bwd, &out[0], &out[1], &out[2], &r.vd, &r.vo, r.lse, &r.vq, &r.vk, &r.vv, &r.a);
    for (int i = 0; i < 3; i++) {
        static const char *const name[] = { "dq", "dk", "dv" };
        float *got = help_tensor_get(h->d, &out[i]);

        CHECK(help_near(got, want[i], out[i].rows * out[i].cols, 5e-5, name[i]));
        CHECK(help_agree(slot + i, got, out[i].rows * out[i].cols, name[i], h->name));
        CHECK(help_tensor_clean(h->d, &out[i]));
        free(got), free(want[i]);
        drop(h->d, out[i].data);
    }
    run_close(&r, h->d);
}

static void attn_bwd(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            attn_bwd_on(h, &shapes[i], 3 * i + 32 * h->bits);
}

/* Tokens [from[i], to[i]) of every sequence through decode states; what it gives lies in r->vo. */
static void step(struct help_dev *h, struct run *r, void *const *block, const int64_t *from,
        const int64_t *to)
{
    struct tw_attn a = r->a;
    struct tw_attn_seq seq[4];
    int64_t n = 0;

    a.seq = seq;
    a.nseq = 0;
    for (int64_t i = 0; i < r->s->nseq; i++) {
        if (from[i] == to[i])
            continue;
        seq[a.nseq++] = (struct tw_attn_seq){ .q0 = r->seq[i].q0 + from[i], .nq = to[i] - from[i],
            .past = from[i], .block = block + i * 8, .offset = 64 };
        n += to[i] - from[i];
    }
    if (!n)
        return;
    ON(kv_put, &r->vk, &r->vv, &a);
    ON(attn, &r->vo, NULL, &r->vq, &r->vk, &r->vv, &a);
}

/* A decode state fed in pieces gives what the packed call gives; blocks begin full of rubbish. */
static void decode_on(struct help_dev *h, const struct shape *s, int64_t piece)
{
    struct run r;
    void *block[32] = { 0 };
    float *packed, *got;
    size_t bytes = ON(kv_bytes, s->nkv, s->hd, TW_F32) + 64;
    float *rubbish = tw_xcalloc(bytes, 1);

    memset(rubbish, 0xff, bytes);
    run_open(&r, s, h->d);
    ON(attn, &r.vo, NULL, &r.vq, &r.vk, &r.vv, &r.a);
    packed = help_tensor_get(h->d, &r.vo);
    for (int64_t i = 0; i < s->nseq; i++)
        for (int64_t b = 0; b * TW_KV_BLOCK < s->n[i]; b++)
            block[i * 8 + b] = help_put(h->d, rubbish, bytes);
    drop(h->d, r.vo.data);
    r.vo = help_tensor(h->d, NULL, r.T, r.nq, r.nq);
    for (int64_t at = 0; at < 200; at += piece) {
        int64_t from[4], to[4];

        for (int64_t i = 0; i < s->nseq; i++) {
            from[i] = at < s->n[i] ? at : s->n[i];
            to[i] = at + piece < s->n[i] ? at + piece : s->n[i];
        }
        step(h, &r, block, from, to);
    }
    got = help_tensor_get(h->d, &r.vo);
    CHECK(help_same(got, packed, (size_t)(r.T * r.nq) * 4, "decoded"));
    for (int i = 0; i < 32; i++)
        drop(h->d, block[i]);
    free(packed), free(got), free(rubbish);
    run_close(&r, h->d);
}

static void decode(void)
{
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++) {
            decode_on(h, &shapes[i], 1);
            decode_on(h, &shapes[i], 7);
            decode_on(h, &shapes[i], 32);
            decode_on(h, &shapes[i], 96);
        }
}

struct lora {
    int64_t T, in, out, r[3];
    float p;
    float *x, *y, *dy, *a[3], *b[3], *vec;
    uint64_t key[64];
    struct tw_lora_run run[3];
};

static void lora_open(struct lora *l, struct tw_dev *d)
{
    static const int64_t cut[6] = { 1, 12, 12, 13, 20, 41 };

    l->x = help_rand(l->T * l->in, 1, 1);
    l->y = help_rand(l->T * l->out, 2, 1);
    l->dy = help_rand(l->T * l->out, 3, 1);
    for (int64_t t = 0; t < l->T; t++)
        l->key[t] = 0x123456789abcdefu * (uint64_t)(t + 1);
    for (int i = 0; i < 3; i++) {
        int64_t na = l->r[i] * l->in, nb = l->r[i] * l->out;

        l->a[i] = help_rand(na, 10 + (uint64_t)i, 0.2f);
        l->b[i] = help_rand(nb, 20 + (uint64_t)i, 0.2f);
        l->run[i] = (struct tw_lora_run){ .t0 = cut[2 * i], .t1 = cut[2 * i + 1], .r = l->r[i],
            .scale = 0.5f + (float)i, .drop = i == 1 ? 0 : l->p,
            .a = help_put(d, l->a[i], (size_t)na * 4), .b = help_put(d, l->b[i], (size_t)nb * 4),
            .da = i == 1 ? NULL : help_put(d, l->a[i], (size_t)na * 4),
            .db = help_put(d, l->b[i], (size_t)nb * 4) };
    }
}

static void lora_close(struct lora *l, struct tw_dev *d)
{
    for (int i = 0; i < 3; i++) {
        drop(d, (void *)l->run[i].a), drop(d, (void *)l->run[i].b);
        drop(d, l->run[i].da), drop(d, l->run[i].db);
        free(l->a[i]), free(l->b[i]);
    }
    free(l->x), free(l->y), free(l->dy);
}

/* What feature k of token t is multiplied by. */
static double keep(const struct lora *l, int i, int64_t t, int64_t k)
{
    if (l->run[i].drop == 0)
        return 1;
    return ref_dropped(l->key[t], 5, k, l->p) ? 0 : 1 / (1 - (double)l->p);
}

/* Adds the reference's update to y, gradients to dx, da, db (which begin as copies of a and b). */
static void lora_ref(const struct lora *l, double *y, double *dx, double *da[3], double *db[3])
{
    for (int i = 0; i < 3; i++)
        for (int64_t t = l->run[i].t0; t < l->run[i].t1; t++)
            for (int64_t j = 0; j < l->r[i]; j++) {
                double hj = 0, dh = 0, sc = l->run[i].scale;

                for (int64_t k = 0; k < l->in; k++)
                    hj += l->x[t * l->in + k] * keep(l, i, t, k) * l->a[i][j * l->in + k];
                for (int64_t o = 0; o < l->out; o++) {
                    y[t * l->out + o] += sc * hj * l->b[i][o * l->r[i] + j];
                    db[i][o * l->r[i] + j] += sc * hj * l->dy[t * l->out + o];
                    dh += sc * l->dy[t * l->out + o] * l->b[i][o * l->r[i] + j];
                }
                for (int64_t k = 0; k < l->in; k++) {
                    da[i][j * l->in + k] += dh * l->x[t * l->in + k] * keep(l, i, t, k);
                    dx[t * l->in + k] += dh * keep(l, i, t, k) * l->a[i][j * l->in + k];
                }
            }
}

static double *doubles(const float *x, int64_t n)
{
    double *y = tw_xcalloc((size_t)n + 1, 8);

    for (int64_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

/* The gradients of the three adapters; frees what was wanted. */
static void lora_grads(struct help_dev *h, const struct lora *l, double **wa, double **wb, double tol,
        int slot)
{
    float *got;

    for (int i = 0; i < 3; i++) {
        if (l->run[i].da) {
            got = help_get(h->d, l->run[i].da, l->r[i] * l->in);
            CHECK(help_near(got, wa[i], l->r[i] * l->in, tol, "lora da"));
            CHECK(help_agree(slot + 2 + i, got, l->r[i] * l->in, "lora da", h->name));
            free(got);
        }
        got = help_get(h->d, l->run[i].db, l->r[i] * l->out);
        CHECK(help_near(got, wb[i], l->r[i] * l->out, tol, "lora db"));
        CHECK(help_agree(slot + 5 + i, got, l->r[i] * l->out, "lora db", h->name));
        free(got), free(wa[i]), free(wb[i]);
    }
}

/* On its own or, with FUSED, together with the module's own product, in PRODUCTS. */
static void lora_on(struct help_dev *h, float p, bool fused, enum tw_dtype products, int slot)
{
    bool low = products == TW_BF16;
    double tol = low ? 0.15 : 2e-4;
    const int64_t t0[3] = { 0, 12, 43 };        /* one run begins and ends inside a sequence */
    struct lora l = { .T = 43, .in = 50, .out = 37, .r = { 8, 1, 19 }, .p = p };
    struct tw_tensor y, x, hh, dy, dx, sc;
    float *w = help_rand(l.out * l.in, 7, 0.3f);
    struct tw_mat m;
    struct tw_lora_ctx c = { .run = l.run, .nrun = 3, .module = 5 };
    double *wy, *wdx, *wa[3], *wb[3];
    float *got;

    lora_open(&l, h->d);
    y = help_tensor(h->d, l.y, l.T, l.out, l.out + 1);
    x = help_tensor(h->d, l.x, l.T, l.in, l.in + 2);
    dy = help_tensor(h->d, l.dy, l.T, l.out, l.out + 3);
    dx = help_tensor(h->d, l.x, l.T, l.in, l.in + 1);
    hh = help_tensor(h->d, NULL, l.T, 19, 19);
    sc = help_tensor(h->d, NULL, l.T, 19, 20);
    c.drop_key = p > 0 ? help_put(h->d, l.key, sizeof l.key) : NULL;
    wy = doubles(l.y, l.T * l.out);
    wdx = doubles(l.x, l.T * l.in);
    for (int i = 0; i < 3; i++) {
        wa[i] = doubles(l.a[i], l.r[i] * l.in);
        wb[i] = doubles(l.b[i], l.r[i] * l.out);
    }
    help_round16(w, l.out * l.in);
    m = help_mat(h->d, w, l.out, l.in, products);
    if (fused) {
        ref_linear(wy, l.x, w, NULL, l.y, l.T, l.out, l.in);
        ref_linear_dx(wdx, l.x, l.dy, w, l.T, l.out, l.in);
    }
    lora_ref(&l, wy, wdx, wa, wb);
    ON(begin, products, t0, 2);
    if (fused) {
        ON(lora_linear, &y, &hh, &x, &m, NULL, &y, &c);
        ON(lora_linear_bwd, &dx, true, &sc, &dy, &x, &hh, &m, &c);
    } else {
        ON(lora, &y, &hh, &x, &c);
        ON(lora_bwd, &dx, &sc, &dy, &x, &hh, &c);
    }
    ON(begin, TW_F32, NULL, 0);
    got = help_tensor_get(h->d, &y);
    CHECK(help_near(got, wy, l.T * l.out, low ? tol : 5e-5, "lora y"));
    CHECK(help_agree(slot, got, l.T * l.out, "lora y", h->name));
    free(got);
    got = help_tensor_get(h->d, &dx);
    CHECK(help_near(got, wdx, l.T * l.in, tol, "lora dx"));
    CHECK(help_agree(slot + 1, got, l.T * l.in, "lora dx", h->name));
    CHECK(help_tensor_clean(h->d, &dx));
    free(got);
    lora_grads(h, &l, wa, wb, tol, slot);
    lora_close(&l, h->d);
    drop(h->d, y.data), drop(h->d, x.data), drop(h->d, dy.data), drop(h->d, dx.data);
    drop(h->d, hh.data), drop(h->d, sc.data), drop(h->d, (void *)c.drop_key), drop(h->d, m.data);
    free(wy), free(wdx), free(w);
}

static void lora(void)
{
    help_forget();
    DEVS(h) {
        lora_on(h, 0, false, TW_F32, 32 * h->bits);
        lora_on(h, 0.25f, false, TW_F32, 8 + 32 * h->bits);
        lora_on(h, 0, true, TW_F32, 16 + 32 * h->bits);
        lora_on(h, 0.25f, true, TW_F32, 24 + 32 * h->bits);
    }
    help_forget();
    DEVS(h) {
        lora_on(h, 0, false, TW_BF16, 32 * h->bits);
        lora_on(h, 0.25f, false, TW_BF16, 8 + 32 * h->bits);
        lora_on(h, 0, true, TW_BF16, 16 + 32 * h->bits);
        lora_on(h, 0.25f, true, TW_BF16, 24 + 32 * h->bits);
    }
}

int main(void)
{
    help_open();
    RUN(attn);
    RUN(attn_bwd);
    RUN(decode);
    RUN(lora);
    help_close();
    return test_end();
}
