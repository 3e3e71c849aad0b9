/* attn.cu - attention: the table of a call's sequences, the lists of work, and who does it */
#include "attn.cuh"
#include <new>
#include <stdlib.h>
#include <string.h>

/* Bytes of keys and values of the pairs (sequence, kv head) whose items are mixed: they share the
 * L2 cache. */
static const int64_t L2_SHARE = (int64_t)16 << 20;

enum list { ROWS, KEYS };

struct cu_attn {
    /* What the table on the device was made from. */
    struct tw_attn_seq *seq;
    int64_t nseq, nh, nkv, hd;
    void **ptr;                 /* all block pointers, in the order of seq */
    int64_t nptr;
    bool few;                   /* few-row sequences are kept apart */
    /* Room of the arrays above, and of the table here and there. */
    int64_t seq_room, ptr_room;
    char *host;
    struct cu_buf dev;
    size_t host_room;
    struct attn_view view;
    struct attn_count count;
    int64_t few0;
};

static int64_t blocks(const struct tw_attn_seq *s)
{
    return s->block ? cu_div(s->past + s->nq, BLK) : 0;
}

static bool is_few(const struct cu_attn *t, const struct tw_attn_seq *s)
{
    return t->few && s->block && s->nq * (t->nh / t->nkv) <= FEW_MAX;
}

/* Whether the table is of the same sequences; their offset alone may differ, all by the same. */
static bool same(const struct cu_attn *t, const struct tw_attn *a, bool few)
{
    void *const *ptr = t->ptr;

    if (!t->nseq || t->nseq != a->nseq || t->nh != a->nh || t->nkv != a->nkv || t->hd != a->hd ||
            t->few != few)
        return false;
    for (int64_t i = 0; i < a->nseq; i++) {
        const struct tw_attn_seq *x = &a->seq[i], *y = &t->seq[i];

        if (x->q0 != y->q0 || x->nq != y->nq || x->past != y->past || !x->block != !y->block ||
                (x->block && x->offset - a->seq[0].offset != y->offset - t->seq[0].offset))
            return false;
    }
    for (int64_t i = 0; i < a->nseq; i++) {
        int64_t n = blocks(&a->seq[i]);

        if (n && memcmp(ptr, a->seq[i].block, (size_t)n * sizeof *ptr))
            return false;
        ptr += n;
    }
    return true;
}

/* Rows of a work item: whole queries if they fit. */
static int64_t per(int64_t group)
{
    return group > ITEM ? ITEM : ITEM / group * group;
}

static int64_t tiles(const struct attn_seq *s, int64_t group, enum list kind)
{
    if (kind == ROWS)
        return cu_div(s->nq * group, per(group));
    return s->tab < 0 ? cu_div(s->nq, ITEM) : 0;    /* no backward through decode states */
}

/* Lists the items of N sequences: those of pairs that fit the L2 cache together, longest first. */
static int32_t list(struct attn_tile *to, const struct cu_attn *t, const struct attn_seq *seq,
        int64_t n, enum list kind)
{
    int64_t group = t->nh / t->nkv, step = kind == ROWS ? per(group) : ITEM, p1;
    int32_t items = 0;

    for (int64_t p0 = 0; p0 < n * t->nkv; p0 = p1) {
        int64_t most = 0, bytes = 0;

        for (p1 = p0; p1 < n * t->nkv; p1++) {
            const struct attn_seq *s = &seq[p1 / t->nkv];
            int64_t x = tiles(s, group, kind);

            bytes += ((int64_t)s->past + s->nq) * t->hd * 4;
            if (p1 > p0 && bytes > L2_SHARE)
                break;
            most = x > most ? x : most;
        }
        for (int64_t level = most; level-- > 0;)
            for (int64_t p = p0; p < p1; p++) {
                int64_t x = tiles(&seq[p / t->nkv], group, kind);

                if (x > level)
                    to[items++] = { (int32_t)(p / t->nkv), (int32_t)(p % t->nkv),
                            (int32_t)(step * (kind == KEYS ? x - 1 - level : level)), 0 };
            }
    }
    return items;
}

/* Remembers the sequences of A and counts their pointers; false: no memory. */
static bool remember(struct cu_attn *t, const struct tw_attn *a, bool few)
{
    int64_t n = 0;

    for (int64_t i = 0; i < a->nseq; i++)
        n += blocks(&a->seq[i]);
    t->nseq = 0;                /* until the table is there */
    if (a->nseq > t->seq_room) {
        free(t->seq);
        t->seq_room = a->nseq * 2;
        t->seq = (struct tw_attn_seq *)malloc((size_t)t->seq_room * sizeof *t->seq);
    }
    if (n > t->ptr_room) {
        free(t->ptr);
        t->ptr_room = n * 2;
        t->ptr = (void **)malloc((size_t)t->ptr_room * sizeof *t->ptr);
    }
    if (!t->seq || (n && !t->ptr)) {
        t->seq_room = t->seq ? t->seq_room : 0;
        t->ptr_room = t->ptr ? t->ptr_room : 0;
        return false;
    }
    memcpy(t->seq, a->seq, (size_t)a->nseq * sizeof *t->seq);
    t->nptr = 0;
    for (int64_t i = 0; i < a->nseq; i++) {
        n = blocks(&a->seq[i]);
        if (n)
            memcpy(t->ptr + t->nptr, a->seq[i].block, (size_t)n * sizeof *t->ptr);
        t->nptr += n;
    }
    t->nh = a->nh;
    t->nkv = a->nkv;
    t->hd = a->hd;
    t->few = few;
    return true;
}

/* Descriptors into SEQ, few-row sequences last, and the pointers they name into PTR. */
static void describe(struct cu_attn *t, struct attn_seq *seq, char **ptr, int64_t nseq)
{
    int64_t at = 0, group = t->nh / t->nkv;

    for (int few = 0; few < 2; few++) {
        int64_t tab = 0;

        if (few)
            t->few0 = at;
        for (int64_t i = 0; i < nseq; i++) {
            const struct tw_attn_seq *s = &t->seq[i];
            int64_t n = blocks(s);

            if (is_few(t, s) == (few == 1)) {
                seq[at++] = { (int32_t)s->q0, (int32_t)s->nq, (int32_t)s->past,
                        s->block ? (int32_t)tab : -1, !s->block || !s->past, t->count.few_rows,
                        {} };
                for (int64_t b = 0; b < n; b++)
                    ptr[tab + b] = (char *)t->ptr[tab + b] + (s->offset - t->seq[0].offset);
                if (few) {
                    t->count.few++;
                    t->count.few_rows += (int32_t)s->nq;
                    t->count.few_most = max(t->count.few_most, (int32_t)(s->nq * group));
                    t->count.few_tiles = (int32_t)cu_div(t->count.few_most, FEW_ROWS);
                } else {
                    t->count.paged |= s->block && s->past && s->nq;
                    t->count.packed |= (!s->block || !s->past) && s->nq;
                }
                t->count.longest = max(t->count.longest, (int32_t)s->nq);
            }
            tab += n;
        }
    }
}

/* Brings the table up to date with A. */
static bool table(struct cu_dev *d, const struct tw_attn *a, bool few)
{
    struct cu_attn *t = d->attn;
    int64_t group = a->nh / a->nkv, items[2] = { 0, 0 }, all;
    size_t bytes;

    if (same(t, a, few))
        return true;
    if (!remember(t, a, few)) {
        cu_fail(d, "no memory for the sequences of a batch");
        return false;
    }
    for (int64_t i = 0; i < a->nseq; i++) {
        struct attn_seq s = { 0, (int32_t)a->seq[i].nq, 0, a->seq[i].block ? 0 : -1, 0, 0, {} };

        for (int k = 0; k < 2 && !is_few(t, &a->seq[i]); k++)
            items[k] += tiles(&s, group, (enum list)k) * a->nkv;
    }
    all = items[ROWS] + items[KEYS];
    bytes = (size_t)a->nseq * sizeof(struct attn_seq) + (size_t)all * sizeof(struct attn_tile) +
            (size_t)t->nptr * sizeof(char *);
    if (bytes > t->host_room) {
        free(t->host);
        t->host_room = bytes * 2;
        t->host = (char *)malloc(t->host_room);
        if (!t->host)
            t->host_room = 0;
        CU_TRY(d, cudaStreamSynchronize(d->stream));
        cudaFree(t->dev.p);
        t->dev.p = NULL;
        CU_TRY(d, cudaMalloc(&t->dev.p, bytes * 2));
        if (!t->host || !t->dev.p) {
            cu_fail(d, "no memory for the sequences of a batch");
            t->host_room = 0;
            return false;
        }
    }
    struct attn_seq *seq = (struct attn_seq *)t->host;
    struct attn_tile *tile = (struct attn_tile *)(seq + a->nseq);
    char **ptr = (char **)(tile + all);

    memset(&t->count, 0, sizeof t->count);
    describe(t, seq, ptr, a->nseq);
    t->count.rows = list(tile, t, seq, t->few0, ROWS);
    t->count.keys = list(tile + t->count.rows, t, seq, t->few0, KEYS);
    cu_upload(d, t->dev.p, t->host, bytes);
    t->view.seq = (const struct attn_seq *)t->dev.p;
    t->view.rows = (const struct attn_tile *)(t->view.seq + a->nseq);
    t->view.keys = t->view.rows + t->count.rows;
    t->view.blk = (char *const *)(t->view.rows + all);
    t->nseq = a->nseq;
    return true;
}

/* The most splits that a few-row sequence of A has. */
static int32_t splits(const struct cu_attn *t, const struct tw_attn *a)
{
    int64_t most = 1;

    for (int64_t i = 0; i < a->nseq; i++) {
        const struct tw_attn_seq *s = &a->seq[i];
        int64_t from = a->window && s->past >= a->window ? s->past + 1 - a->window : 0;

        if (is_few(t, s))
            most = max(most, cu_div(s->past + s->nq, FEW_KEYS) - from / FEW_KEYS);
    }
    return (int32_t)most;
}

/* Fills ARG and the table for a call; false after noting why not. */
static bool begin(struct cu_dev *d, struct attn_arg *x, const struct tw_attn *a, bool few)
{
    int64_t group = a->nh / a->nkv;
    int near = a->window && a->seq[0].block;

    if (a->hd > 256) {
        cu_fail(d, "attention with heads of %lld: 256 is the most", (long long)a->hd);
        return false;
    }
    if (!d->attn_of[near])
        d->attn_of[near] = new (std::nothrow) cu_attn();
    d->attn = d->attn_of[near];
    if (!d->attn || !table(d, a, few))
        return false;
    *x = attn_arg();
    x->t = d->attn->view;
    x->off = a->seq[0].offset;
    x->nh = (int32_t)a->nh;
    x->nkv = (int32_t)a->nkv;
    x->group = (int32_t)group;
    x->per = (int32_t)per(group);
    x->hd = (int32_t)a->hd;
    x->window = a->window < INT32_MAX ? (int32_t)a->window : 0;
    x->div = (uint32_t)(((1ull << 32) + (uint64_t)group - 1) / (uint64_t)group);
    x->scale = a->scale;
    x->few0 = (int32_t)d->attn->few0;
    return true;
}

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

    if (!a->nseq || !q->rows || !begin(d, &x, a, few_apart(d, fast, a)))
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
    n = d->attn->count;
    if (!fast) {
        cu_attn_simt(d, &x, &n, q->dtype);
        return;
    }
    n.few_splits = splits(d->attn, a);
    if (cu_attn_wg(d, &x, &n, q, k, v))
        n.packed = false;
    if (a->whole && cu_attn_paged(d, &x, &n))
        n.paged = false;
    cu_attn_mma(d, &x, &n);
    cu_attn_few(d, &x, &n);
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
    float *delta;

    if (!a->nseq || !q->rows || !begin(d, &x, a, few_apart(d, fast, a)))
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
    if (fast && cu_attn_wg_bwd(d, &x, &d->attn->count, q, k, v, dout))
        return;
    cu_attn_delta(d, &x, delta, q->rows, q->dtype, fast);
    if (fast && cu_attn_mma_bwd_smem(a->hd) <= d->smem_max)
        cu_attn_mma_bwd(d, &x, &d->attn->count);
    else
        cu_attn_simt_bwd(d, &x, &d->attn->count, q->dtype);
}

bool cu_attn_latent(struct cu_dev *d, const struct attn_latent *l, const struct tw_attn *a)
{
    struct attn_arg x;
    float *delta;

    if (!even(l->o) || !even(l->q) || !even(l->kv) || !even(l->pe) || !begin(d, &x, a, false))
        return false;
    x.hd = 128;                 /* of outputs */
    x.o = l->o->data, x.ldo = l->o->ld;
    x.lse = l->lse;
    if (!l->dout)
        return cu_attn_wg_latent(d, &x, &d->attn->count, l->q, l->kv, l->pe);
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
    x.hd = 192;                 /* of queries */
    return cu_attn_wg_latent_bwd(d, &x, &d->attn->count, l->q, l->kv, l->pe, l->dout, l->dpe);
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

    if (!a->nseq || !k->rows || !begin(d, &x, a,
            few_apart(d, k->dtype == TW_BF16 && a->hd % 8 == 0, a)))
        return;
    x.k = k->data;
    x.v = v->data;
    x.ldk = k->ld;
    x.ldv = v->ld;
    cu_kv_put(d, &x, a->nseq, d->attn->count.longest, k->dtype);
}

void cu_attn_ops(struct tw_ops *o)
{
    o->attn = attn;
    o->attn_bwd = attn_bwd;
    o->kv_bytes = kv_bytes;
    o->kv_put = kv_put;
}

void cu_attn_close(struct cu_dev *d)
{
    for (struct cu_attn *t : d->attn_of) {
        if (!t)
            continue;
        cudaFree(t->dev.p);
        free(t->host);
        free(t->seq);
        free(t->ptr);
        delete t;
    }
    d->attn = d->attn_of[0] = d->attn_of[1] = NULL;
}
