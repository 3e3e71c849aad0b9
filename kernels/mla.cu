/* mla.cu - attention over latents where a sequence begins: keys are put together from their two parts,
 * values and outputs made as wide as keys (what is added is zero, and zero comes out), and the kernels
 * of attn.cu do the rest. */
#include "attn.cuh"
#include "mla.cuh"
#include <stdlib.h>

/* One side of a copy between heads of W columns, OFF columns into every STRIDE of a row, and heads of
 * HD whose other columns are zero. Stride 0: all heads have the same. */
struct heads {
    void *p;
    int64_t ld;
    int32_t stride, off, w;
};

/* wide[t, h * hd + at + c] of columns c < w, for all heads; with BACK the other way. Where ZERO, the
 * columns [at + w, hd) become zero. */
template <typename A, int V> static __global__ void spread_k(A *wide, const __grid_constant__ heads x,
        int nh, int hd, int at, bool zero, bool back)
{
    int64_t t = blockIdx.x;
    int n = zero ? hd - at : x.w;

    for (int i = threadIdx.x * V; i < nh * n; i += blockDim.x * V) {
        int h = i / n, c = i % n;
        A *to = wide + (t * nh + h) * hd + at + c, *from = (A *)x.p + t * x.ld + h * x.stride + x.off + c;
        float v[V] = {};

        if (back) {
            ldv<V>(v, to);
            stv<V>(from, v);
        } else {
            if (c < x.w)
                ldv<V>(v, from);
            stv<V>(to, v);
        }
    }
}

/* dpe[t] = the sum over heads, ascending, of their columns [at, at + dr). */
template <typename A> static __global__ void heads_sum_k(A *dpe, int64_t ld, const A *wide, int nh,
        int hd, int at, int dr)
{
    int64_t t = blockIdx.x;

    for (int c = threadIdx.x; c < dr; c += blockDim.x) {
        float sum = 0;

        for (int h = 0; h < nh; h++)
            sum += ld1(wide + (t * nh + h) * hd + at + c);
        st1(dpe + t * ld + c, sum);
    }
}

/* A call: heads of hd, and what they are in. */
struct call {
    struct cu_dev *d;
    const struct tw_mla *a;
    int64_t T, hd, used;        /* used: bytes of the scratch */
    enum tw_dtype t;
    char *room;
};

static struct tw_tensor wide(struct call *c)
{
    int64_t n = c->a->nh * c->hd;
    struct tw_tensor x = { c->room + c->used, c->t, c->T, n, n };

    c->used += (c->T * n * lat_size(c->t) + 255) / 256 * 256;
    return x;
}

/* Heads of keys and values alike; tensors of such heads that attn and attn_bwd make. */
static int64_t width(const struct tw_mla *a)
{
    int64_t dk = a->dn + a->dr;

    return ((dk > a->dv ? dk : a->dv) + 7) / 8 * 8;
}
enum { FORWARD = 4, BACKWARD = 8 };

static size_t m_wide(const struct tw_mla *a, int64_t T, enum tw_dtype act, bool bwd)
{
    int64_t one = (T * a->nh * width(a) * lat_size(act) + 255) / 256 * 256;

    return (size_t)(one * (bwd ? BACKWARD : FORWARD));
}

/* The shapes that attn_wg.cu takes without copies. */
static bool direct(const struct cu_dev *d, const struct tw_mla *a, enum tw_dtype t)
{
    return d->major == 9 && t == TW_BF16 && a->dn == 128 && a->dr == 64 && a->dv == 128;
}

static size_t m_scratch(const struct tw_dev *d, const struct tw_mla *a, int64_t T, enum tw_dtype act, bool bwd)
{
    if (direct((const struct cu_dev *)d, a, act))
        return bwd ? (size_t)(T * a->nh * a->dr) * 2 : 0;
    return m_wide(a, T, act, bwd);
}

static bool begin(struct call *c, struct cu_dev *d, const struct tw_mla *a, const struct tw_tensor *q,
        bool bwd)
{
    *c = { d, a, q->rows, width(a), 0, q->dtype, NULL };
    c->room = (char *)cu_scratch(d, CU_S_HEAD, m_wide(a, q->rows, q->dtype, bwd));
    return c->room != NULL;
}

static void spread(const struct call *c, const struct tw_tensor *to, const struct heads *x, int64_t at,
        bool zero, bool back)
{
    bool eight = (uintptr_t)x->p % 16 == 0 && (x->ld | x->stride | x->off | x->w | at) % 8 == 0;

    if (c->T)
        CU_ACT(c->t, CU_VEC(eight, spread_k<A, V><<<(unsigned)c->T, 256, 0, c->d->stream>>>(
                (A *)to->data, *x, (int)c->a->nh, (int)c->hd, (int)at, zero, back)));
    CU_DONE(c->d, "heads of latents");
}

/* Heads as wide as the kernels want them; those that are come as they are. */
static struct tw_tensor queries(struct call *c, const struct tw_tensor *q)
{
    int32_t dk = (int32_t)(c->a->dn + c->a->dr);
    struct heads x = { q->data, q->ld, dk, 0, dk };
    struct tw_tensor to;

    if (c->hd == dk)
        return *q;
    to = wide(c);
    spread(c, &to, &x, 0, true, false);
    return to;
}

static struct tw_tensor keys(struct call *c, const struct tw_tensor *kv, const struct tw_tensor *pe)
{
    const struct tw_mla *a = c->a;
    struct heads x = { kv->data, kv->ld, (int32_t)(a->dn + a->dv), 0, (int32_t)a->dn };
    struct heads end = { pe->data, pe->ld, 0, 0, (int32_t)a->dr };
    struct tw_tensor to = wide(c);

    spread(c, &to, &x, 0, false, false);
    spread(c, &to, &end, a->dn, true, false);
    return to;
}

static struct heads values_in(const struct call *c, const struct tw_tensor *kv)
{
    return { kv->data, kv->ld, (int32_t)(c->a->dn + c->a->dv), (int32_t)c->a->dn, (int32_t)c->a->dv };
}

static struct heads outputs_in(const struct call *c, const struct tw_tensor *o)
{
    return { o->data, o->ld, (int32_t)c->a->dv, 0, (int32_t)c->a->dv };
}

static struct tw_tensor spread_new(struct call *c, struct heads x)
{
    struct tw_tensor to = wide(c);

    spread(c, &to, &x, 0, true, false);
    return to;
}

/* The sequences without their decode states; to be freed. NULL: no memory, noted. */
static struct tw_attn_seq *without_state(const struct call *c)
{
    struct tw_attn_seq *s = (struct tw_attn_seq *)calloc((size_t)c->a->nseq + 1, sizeof *s);

    for (int64_t i = 0; s && i < c->a->nseq; i++) {
        s[i].q0 = c->a->seq[i].q0;
        s[i].nq = c->a->seq[i].nq;
    }
    if (!s)
        cu_fail(c->d, "no memory for the sequences of a batch");
    return s;
}

static struct tw_attn attn_of(const struct call *c, const struct tw_attn_seq *s)
{
    return { c->a->nh, c->a->nh, c->hd, c->a->scale, 0, s, c->a->nseq };
}

static bool attn_direct(struct cu_dev *d, const struct attn_latent *l, const struct tw_mla *a)
{
    struct call c = { d, a, l->q->rows, a->dn + a->dr, 0, l->q->dtype, NULL };
    struct tw_attn_seq *s;
    bool done;

    if (!direct(d, a, c.t) || !(s = without_state(&c)))
        return false;
    struct tw_attn x = attn_of(&c, s);

    done = cu_attn_latent(d, l, &x);
    free(s);
    return done;
}

static void m_attn(struct tw_dev *dev, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *kv, const struct tw_tensor *pe, const struct tw_mla *a)
{
    struct attn_latent l = { o, q, kv, pe, NULL, NULL, NULL, lse, NULL };
    struct call c;
    struct tw_attn_seq *s;

    if (!q->rows || !a->nseq || attn_direct(cu(dev), &l, a) || !begin(&c, cu(dev), a, q, false) ||
            !(s = without_state(&c)))
        return;
    struct tw_attn x = attn_of(&c, s);
    struct tw_tensor wq = queries(&c, q), k = keys(&c, kv, pe), v = spread_new(&c, values_in(&c, kv));
    struct heads out = outputs_in(&c, o);
    /* Rows of no sequence come back as they are. */
    struct tw_tensor wo = a->dv == c.hd ? *o : spread_new(&c, out);

    tw_ops(dev)->attn(dev, &wo, lse, &wq, &k, &v, &x);
    if (a->dv != c.hd)
        spread(&c, &wo, &out, 0, false, true);
    free(s);
}

static bool attn_bwd_direct(struct cu_dev *d, struct tw_tensor *dq, struct tw_tensor *dkv,
        struct tw_tensor *dpe, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *kv,
        const struct tw_tensor *pe, const struct tw_mla *a)
{
    size_t bytes = (size_t)(q->rows * a->nh * a->dr) * 2;
    struct attn_latent l = { o, q, kv, pe, dout, dq, dkv, (float *)lse, NULL };

    bool done;

    if (!direct(d, a, q->dtype) || !(l.dpe = cu_scratch(d, CU_S_HEAD, bytes)))
        return false;
    d->head_held = bytes;
    done = attn_direct(d, &l, a);
    d->head_held = 0;
    if (!done)
        return false;
    heads_sum_k<bf16><<<(unsigned)q->rows, 64, 0, d->stream>>>((bf16 *)dpe->data, dpe->ld,
            (const bf16 *)l.dpe, (int)a->nh, (int)a->dr, 0, (int)a->dr);
    CU_DONE(d, "gradient of the keys' shared part");
    return true;
}

static void m_attn_bwd(struct tw_dev *dev, struct tw_tensor *dq, struct tw_tensor *dkv,
        struct tw_tensor *dpe, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *kv,
        const struct tw_tensor *pe, const struct tw_mla *a)
{
    struct call c;
    struct tw_attn_seq *s;
    int32_t dk = (int32_t)(a->dn + a->dr);

    if (!q->rows || !a->nseq || attn_bwd_direct(cu(dev), dq, dkv, dpe, dout, o, lse, q, kv, pe, a) ||
            !begin(&c, cu(dev), a, q, true) || !(s = without_state(&c)))
        return;
    struct tw_attn x = attn_of(&c, s);
    struct tw_tensor wq = queries(&c, q), k = keys(&c, kv, pe), v = spread_new(&c, values_in(&c, kv));
    struct tw_tensor wo = a->dv == c.hd ? *o : spread_new(&c, outputs_in(&c, o));
    struct tw_tensor wd = a->dv == c.hd ? *dout : spread_new(&c, outputs_in(&c, dout));
    struct tw_tensor gq = c.hd == dk ? *dq : wide(&c), gk = wide(&c), gv = wide(&c);
    struct heads to_q = { dq->data, dq->ld, dk, 0, dk }, to_v = values_in(&c, dkv);
    struct heads to_k = { dkv->data, dkv->ld, (int32_t)(a->dn + a->dv), 0, (int32_t)a->dn };

    c.d->head_held = m_wide(a, q->rows, q->dtype, true);
    tw_ops(dev)->attn_bwd(dev, &gq, &gk, &gv, &wd, &wo, lse, &wq, &k, &v, &x);
    c.d->head_held = 0;
    if (c.hd != dk)
        spread(&c, &gq, &to_q, 0, false, true);
    spread(&c, &gk, &to_k, 0, false, true);
    spread(&c, &gv, &to_v, 0, false, true);
    CU_ACT(c.t, heads_sum_k<A><<<(unsigned)c.T, 64, 0, c.d->stream>>>((A *)dpe->data, dpe->ld,
            (const A *)gk.data, (int)a->nh, (int)c.hd, (int)a->dn, (int)a->dr));
    CU_DONE(c.d, "gradient of the keys' shared part");
    free(s);
}

static size_t m_bytes(const struct tw_dev *, int64_t rkv, int64_t dr, enum tw_dtype act)
{
    return (size_t)(TW_KV_BLOCK * (rkv + dr) * lat_size(act));
}

void cu_mla_ops(struct tw_ops *o)
{
    static const struct tw_mla_ops mla = { m_attn, m_attn_bwd, m_scratch, m_bytes, cu_mla_put, cu_mla_decode };

    o->mla = &mla;
}
