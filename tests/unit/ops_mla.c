/* ops_mla.c - attention over latents of every device against ref_mla.c: keys and values made, their
 * gradients, and the same from decode states; and that a decode depends neither on the pieces it
 * comes in, nor on its neighbours, threads or instruction set. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define ON(op, ...) tw_ops(h->d)->mla->op(h->d, __VA_ARGS__)
#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)
#define OFFSET 64

struct shape {
    int64_t nh, dn, dr, dv, rkv, nseq, n[3];
};
static const struct shape shapes[] = {
    { 1, 8, 4, 8, 12, 1, { 1 } },
    { 4, 12, 8, 12, 16, 3, { 5, 33, 1 } },
    { 3, 16, 8, 32, 48, 2, { 70, 17 } },
    { 5, 20, 6, 9, 33, 2, { 40, 66 } },
    { 16, 32, 16, 32, 64, 2, { 35, 3 } },
};
#define NSHAPE ((int)(sizeof shapes / sizeof *shapes))

struct run {
    const struct shape *s;
    int64_t T, wq, wkv, wo;     /* tokens; columns of q, kv, o */
    float *q, *c, *pe, *w, *kv, *dout;
    struct tw_tensor vq, vc, vpe, vkv, vo, vd;
    struct tw_mat mw;
    float *lse;
    struct tw_attn_seq seq[3];
    struct tw_mla a;
};

/* kv = c W^T, to begin with. */
static void make_kv(struct run *r)
{
    int64_t n = r->T * r->wkv;
    double *y = tw_xcalloc((size_t)n, sizeof *y);

    ref_linear(y, r->c, r->w, NULL, NULL, r->T, r->wkv, r->s->rkv);
    for (int64_t i = 0; i < n; i++)
        r->kv[i] = (float)y[i];
    free(y);
}

static void run_open(struct run *r, const struct shape *s, struct tw_dev *d, enum tw_dtype t)
{
    *r = (struct run){ .s = s, .wq = s->nh * (s->dn + s->dr), .wkv = s->nh * (s->dn + s->dv),
        .wo = s->nh * s->dv };
    for (int64_t i = 0; i < s->nseq; i++) {
        r->seq[i] = (struct tw_attn_seq){ .q0 = r->T, .nq = s->n[i] };
        r->T += s->n[i];
    }
    r->q = help_rand(r->T * r->wq, 1, 1);
    r->c = help_rand(r->T * s->rkv, 2, 1);
    r->pe = help_rand(r->T * s->dr, 3, 1);
    r->w = help_rand(r->wkv * s->rkv, 4, 0.3f);
    r->dout = help_rand(r->T * r->wo, 5, 1);
    r->kv = tw_xcalloc((size_t)(r->T * r->wkv), sizeof *r->kv);
    if (t == TW_BF16)
        help_round16(r->w, r->wkv * s->rkv);
    make_kv(r);
    r->vq = help_tensor(d, r->q, r->T, r->wq, r->wq + 3);
    r->vc = help_tensor(d, r->c, r->T, s->rkv, s->rkv + 1);
    r->vpe = help_tensor(d, r->pe, r->T, s->dr, s->dr + 2);
    r->vkv = help_tensor(d, r->kv, r->T, r->wkv, r->wkv + 5);
    r->vo = help_tensor(d, NULL, r->T, r->wo, r->wo + 1);
    r->vd = help_tensor(d, r->dout, r->T, r->wo, r->wo + 4);
    r->mw = help_mat(d, r->w, r->wkv, s->rkv, t);
    r->lse = help_put(d, NULL, (size_t)(r->T * s->nh) * 4);
    r->a = (struct tw_mla){ .nh = s->nh, .dn = s->dn, .dr = s->dr, .dv = s->dv, .rkv = s->rkv,
        .scale = 0.3f, .seq = r->seq, .nseq = s->nseq };
}

static void run_close(struct run *r, struct tw_dev *d)
{
    void *dev[] = { r->vq.data, r->vc.data, r->vpe.data, r->vkv.data, r->vo.data, r->vd.data,
        r->mw.data, r->lse };

    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++)
        tw_ops(d)->free(d, dev[i]);
    free(r->q), free(r->c), free(r->pe), free(r->w), free(r->kv), free(r->dout);
}

static struct ref_mla ref_of(const struct run *r, int64_t i)
{
    int64_t at = r->seq[i].q0;

    return (struct ref_mla){ r->seq[i].nq, r->s->nh, r->s->dn, r->s->dr, r->s->dv, 0.3f,
        r->q + at * r->wq, r->kv + at * r->wkv, r->pe + at * r->s->dr };
}

static double *want_o(const struct run *r, double *lse)
{
    double *o = tw_xcalloc((size_t)(r->T * r->wo), sizeof *o);

    for (int64_t i = 0; i < r->s->nseq; i++) {
        struct ref_mla a = ref_of(r, i);

        ref_mla(o + r->seq[i].q0 * r->wo, lse + r->seq[i].q0 * r->s->nh, &a);
    }
    return o;
}

static void attn_on(struct help_dev *h, const struct shape *s, int slot)
{
    struct run r;
    double *o, *lse;
    float *got, *gotl;

    run_open(&r, s, h->d, TW_F32);
    lse = tw_xcalloc((size_t)(r.T * s->nh), sizeof *lse);
    o = want_o(&r, lse);
    ON(attn, &r.vo, r.lse, &r.vq, &r.vkv, &r.vpe, &r.a);
    got = help_tensor_get(h->d, &r.vo);
    gotl = help_get(h->d, r.lse, r.T * s->nh);
    CHECK(help_near(got, o, r.T * r.wo, 2e-5, "attn"));
    CHECK(help_near(gotl, lse, r.T * s->nh, 1e-5, "lse"));
    CHECK(help_agree(slot, got, r.T * r.wo, "attn", h->name));
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
    static const char *const name[] = { "dq", "dkv", "dpe" };
    struct run r;
    double *want[3];
    struct tw_tensor out[3];

    run_open(&r, s, h->d, TW_F32);
    for (int i = 0; i < 3; i++) {
        int64_t n = i == 0 ? r.wq : i == 1 ? r.wkv : s->dr;

        want[i] = tw_xcalloc((size_t)(r.T * n), sizeof *want[i]);
        out[i] = help_tensor(h->d, NULL, r.T, n, n + i);
    }
    for (int64_t i = 0; i < s->nseq; i++) {
        struct ref_mla a = ref_of(&r, i);
        int64_t at = r.seq[i].q0;

        ref_mla_bwd(want[0] + at * r.wq, want[1] + at * r.wkv, want[2] + at * s->dr,
                r.dout + at * r.wo, &a);
    }
    ON(attn, &r.vo, r.lse, &r.vq, &r.vkv, &r.vpe, &r.a);
    ON(attn_bwd, &out[0], &out[1], &out[2], &r.vd, &r.vo, r.lse, &r.vq, &r.vkv, &r.vpe, &r.a);
    for (int i = 0; i < 3; i++) {
        float *got = help_tensor_get(h->d, &out[i]);

        CHECK(help_near(got, want[i], out[i].rows * out[i].cols, 1e-4, name[i]));
        CHECK(help_agree(slot + i, got, out[i].rows * out[i].cols, name[i], h->name));
        CHECK(help_tensor_clean(h->d, &out[i]));
        free(got), free(want[i]);
        tw_ops(h->d)->free(h->d, out[i].data);
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

/* Decode states of a run; blocks begin full of rubbish. */
struct states {
    void *block[3][8];
};

static void states_open(struct states *st, const struct run *r, struct tw_dev *d)
{
    size_t bytes = tw_ops(d)->mla->bytes(d, r->s->rkv, r->s->dr, TW_F32) + OFFSET;
    void *rubbish = tw_xcalloc(bytes, 1);

    memset(rubbish, 0xff, bytes);
    memset(st, 0, sizeof *st);
    for (int64_t i = 0; i < r->s->nseq; i++)
        for (int64_t b = 0; b * TW_KV_BLOCK < r->s->n[i]; b++)
            st->block[i][b] = help_put(d, rubbish, bytes);
    free(rubbish);
}

static void states_close(struct states *st, struct tw_dev *d)
{
    for (int i = 0; i < 24; i++)
        tw_ops(d)->free(d, st->block[i / 8][i % 8]);
}

/* All tokens through decode states, PIECE of each sequence at a time; o lies in r->vo. */
static void decode_all(struct help_dev *h, struct run *r, const struct tw_lora_ctx *lora,
        int64_t piece)
{
    struct states st;

    states_open(&st, r, h->d);
    for (int64_t at = 0; at < 96; at += piece) {
        struct tw_mla a = r->a;
        struct tw_attn_seq seq[3];

        a.seq = seq;
        a.nseq = 0;
        for (int64_t i = 0; i < r->s->nseq; i++) {
            int64_t n = r->s->n[i] - at < piece ? r->s->n[i] - at : piece;

            if (n > 0)
                seq[a.nseq++] = (struct tw_attn_seq){ .q0 = r->seq[i].q0 + at, .nq = n,
                    .past = at, .block = st.block[i], .offset = OFFSET };
        }
        ON(put, &r->vc, &r->vpe, &a);
        ON(decode, &r->vo, &r->vq, &r->mw, lora, &a);
    }
    states_close(&st, h->d);
}

static void decode_on(struct help_dev *h, const struct shape *s, enum tw_dtype t, int slot)
{
    static const int64_t pieces[] = { 1, 7, 32, 96 };
    struct run r;
    double *o, *lse;
    float *first = NULL, *got;

    run_open(&r, s, h->d, t);
    lse = tw_xcalloc((size_t)(r.T * s->nh), sizeof *lse);
    o = want_o(&r, lse);
    tw_ops(h->d)->begin(h->d, t, (int64_t[]){ 0, r.T }, 1);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        decode_all(h, &r, NULL, pieces[i]);
        got = help_tensor_get(h->d, &r.vo);
        CHECK(help_near(got, o, r.T * r.wo, t == TW_F32 ? 3e-5 : 0.2, "decode"));
        CHECK(!first || help_same(got, first, (size_t)(r.T * r.wo) * 4, "pieces"));
        CHECK(help_tensor_clean(h->d, &r.vo));
        free(first);
        first = got;
    }
    CHECK(help_agree(slot, first, r.T * r.wo, "decode", h->name));
    tw_ops(h->d)->begin(h->d, TW_F32, NULL, 0);
    free(first), free(o), free(lse);
    run_close(&r, h->d);
}

static void decode(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            decode_on(h, &shapes[i], TW_F32, i + NSHAPE * h->bits);
}

static void decode16(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            decode_on(h, &shapes[i], TW_BF16, i + NSHAPE * h->bits);
}

/* Runs of two adapters: what comes out is that of W + scale B A. */
static void adapted_on(struct help_dev *h, const struct shape *s)
{
    struct run r;
    int64_t rank[2] = { 3, 5 }, rkv = s->rkv;
    float *a[2], *b[2], *got, *w;
    struct tw_lora_run run[2];
    struct tw_lora_ctx c = { .run = run, .nrun = 2 };
    double *o, *lse;

    run_open(&r, s, h->d, TW_F32);
    w = r.w;
    lse = tw_xcalloc((size_t)(r.T * s->nh), sizeof *lse);
    for (int i = 0; i < 2; i++) {
        a[i] = help_rand(rank[i] * rkv, 10 + (uint64_t)i, 0.3f);
        b[i] = help_rand(rank[i] * r.wkv, 20 + (uint64_t)i, 0.3f);
        run[i] = (struct tw_lora_run){ .t0 = r.seq[i].q0, .t1 = r.seq[i].q0 + r.seq[i].nq,
            .r = rank[i], .scale = 0.5f + (float)i,
            .a = help_put(h->d, a[i], (size_t)(rank[i] * rkv) * 4),
            .b = help_put(h->d, b[i], (size_t)(rank[i] * r.wkv) * 4) };
    }
    decode_all(h, &r, &c, 7);
    got = help_tensor_get(h->d, &r.vo);
    for (int i = 0; i < 2; i++) {
        int64_t at = r.seq[i].q0;

        r.w = help_rand(r.wkv * rkv, 4, 0.3f);
        for (int64_t k = 0; k < r.wkv * rkv * rank[i]; k++) {
            int64_t j = k % rank[i], n = k / rank[i];

            r.w[n] += run[i].scale * b[i][n / rkv * rank[i] + j] * a[i][j * rkv + n % rkv];
        }
        make_kv(&r);
        o = want_o(&r, lse);
        CHECK(help_near(got + at * r.wo, o + at * r.wo, r.seq[i].nq * r.wo, 5e-5, "adapted"));
        free(r.w), free(o), free(a[i]), free(b[i]);
        tw_ops(h->d)->free(h->d, (void *)run[i].a), tw_ops(h->d)->free(h->d, (void *)run[i].b);
    }
    r.w = w;
    free(got), free(lse);
    run_close(&r, h->d);
}

static void adapted(void)
{
    DEVS(h)
        for (int i = 2; i < NSHAPE; i++)
            adapted_on(h, &shapes[i]);
}

int main(void)
{
    help_open();
    RUN(attn);
    RUN(attn_bwd);
    RUN(decode);
    RUN(decode16);
    RUN(adapted);
    help_close();
    return test_end();
}
