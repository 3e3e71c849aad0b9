/* attn.cu - attention: who does a call of it */
#include "attn.cuh"

/* Rows of whole 16-byte words, as the tensor-core kernels read them. */
static bool even(const struct tw_tensor *t)
{
    return t->dtype == TW_BF16 && t->ld % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

/* Whether sequences of few rows are kept apart in call A, for kernels that split their keys. */
static bool few_apart(const struct cu_dev *d, bool fast, const struct tw_attn *a)
{
    return fast && !a->whole && cu_attn_few_smem(a->hd) <= d->smem_max;
}

static void attn(struct tw_dev *dev, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a)
{
    struct cu_dev *d = cu(dev);
    bool fast = a->hd % 8 == 0 && even(o) && even(q) && even(k) && even(v);
    struct attn_arg x;
    struct attn_count n;

    if (!a->nseq || !q->rows || !cu_attn_begin(d, &x, &n, a, few_apart(d, fast, a)))
        return;
    x.q = q->data;
    x.k = k->data;
    x.v = v->data;
    x.o = o->data;
    x.ldq = q->ld;
    x.ldk = k->ld;
    x.ldv = v->ld;
    x.ldo = o->ld;
    x.lse = lse;
    if (!fast) {
        cu_attn_simt(d, &x, &n, q->dtype);
        return;
    }
    n.few_splits = cu_attn_splits(d, a);
    if (cu_attn_wg(d, &x, &n, q, k, v))
        n.packed = false;
    if (a->whole && cu_attn_paged(d, &x, &n))
        n.paged = false;
    cu_attn_mma(d, &x, &n);
    cu_attn_few(d, &x, &n);
}

/* Tiles of dS that what the head left of its scratch takes: the head is done when layers have their turn.
 * 0: not even those of one group of pairs; scores are made twice then, which gives the same bits. */
static int64_t kept(struct cu_dev *d, const struct attn_count *n, struct attn_arg *x)
{
    const struct cu_buf *b = &d->scratch[CU_S_HEAD];
    int64_t room = b->n > d->head_held ? (int64_t)((b->n - d->head_held) / KEPT_BYTES) : 0, most = 0;

    for (int32_t i = 0; i < n->parts; i++)
        most = max(most, n->part[i + 1].tiles - n->part[i].tiles);
    if (!most || most > room)
        return 0;
    x->ds = (char *)b->p + d->head_held;
    return room;
}

static void attn_bwd(struct tw_dev *dev, struct tw_tensor *dq, struct tw_tensor *dk,
        struct tw_tensor *dv, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *k,
        const struct tw_tensor *v, const struct tw_attn *a)
{
    struct cu_dev *d = cu(dev);
    bool fast = a->hd % 8 == 0 && even(q) && even(k) && even(v) && even(dout) && even(dq) &&
            even(dk) && even(dv) && even(o);
    struct attn_arg x;
    struct attn_count n;
    float *delta;

    if (!a->nseq || !q->rows || !cu_attn_begin(d, &x, &n, a, few_apart(d, fast, a)))
        return;
    delta = (float *)cu_scratch(d, CU_S_ATTN, (size_t)(q->rows * a->nh) * sizeof *delta);
    if (!delta)
        return;
    x.q = q->data;
    x.k = k->data;
    x.v = v->data;
    x.out = o->data;
    x.dout = dout->data;
    x.dq = dq->data;
    x.dk = dk->data;
    x.dv = dv->data;
    x.ldq = q->ld;
    x.ldk = k->ld;
    x.ldv = v->ld;
    x.ldo = o->ld;
    x.lddo = dout->ld;
    x.lddq = dq->ld;
    x.lddk = dk->ld;
    x.lddv = dv->ld;
    x.lse = (float *)lse;
    x.delta = delta;
    cu_attn_delta(d, &x, delta, q->rows, q->dtype, fast);
    n.room = kept(d, &n, &x);
    if (fast && cu_attn_wg_bwd(d, &x, &n, q, k, v, dout))
        return;
    if (fast && cu_attn_mma_bwd_smem(a->hd) <= d->smem_max)
        cu_attn_mma_bwd(d, &x, &n);
    else
        cu_attn_simt_bwd(d, &x, &n, q->dtype);
}

bool cu_attn_latent(struct cu_dev *d, const struct attn_latent *l, const struct tw_attn *a)
{
    struct attn_arg x;
    struct attn_count n;
    float *delta;

    if (!even(l->o) || !even(l->q) || !even(l->kv) || !even(l->pe) || !cu_attn_begin(d, &x, &n, a, false))
        return false;
    x.hd = 128;                 /* of outputs */
    x.o = l->o->data, x.ldo = l->o->ld;
    x.lse = l->lse;
    if (!l->dout)
        return cu_attn_wg_latent(d, &x, &n, l->q, l->kv, l->pe);
    if (!even(l->dout) || !even(l->dq) || !even(l->dkv))
        return false;
    delta = (float *)cu_scratch(d, CU_S_ATTN, (size_t)(l->q->rows * a->nh) * sizeof *delta);
    if (!delta)
        return false;
    x.out = l->o->data;
    x.dout = l->dout->data, x.lddo = l->dout->ld;
    x.delta = delta;
    x.dq = l->dq->data, x.lddq = l->dq->ld;
    x.dk = l->dkv->data, x.lddk = l->dkv->ld;
    x.dv = (bf16 *)l->dkv->data + 128, x.lddv = l->dkv->ld;
    cu_attn_delta(d, &x, delta, l->q->rows, TW_BF16, true);
    n.room = kept(d, &n, &x);
    x.hd = 192;                 /* of queries */
    return cu_attn_wg_latent_bwd(d, &x, &n, l->q, l->kv, l->pe, l->dout, l->dpe);
}

static size_t kv_bytes(const struct tw_dev *, int64_t nkv, int64_t hd, enum tw_dtype t)
{
    return (size_t)(nkv * 2 * BLK * hd) * (t == TW_BF16 ? 2 : 4);
}

static void kv_put(struct tw_dev *dev, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_attn *a)
{
    struct cu_dev *d = cu(dev);
    struct attn_arg x;
    struct attn_count n;

    if (!a->nseq || !k->rows || !cu_attn_begin(d, &x, &n, a,
            few_apart(d, k->dtype == TW_BF16 && a->hd % 8 == 0, a)))
        return;
    x.k = k->data;
    x.v = v->data;
    x.ldk = k->ld;
    x.ldv = v->ld;
    cu_kv_put(d, &x, a->nseq, n.longest, k->dtype);
}

void cu_attn_ops(struct tw_ops *o)
{
    o->attn = attn;
    o->attn_bwd = attn_bwd;
    o->kv_bytes = kv_bytes;
    o->kv_put = kv_put;
}
