/* attn.c - causal attention. Keys and values of one kv head lie in blocks of bk keys: K as panels
 * [bk / 16][hd][16], so that sixteen scores are one vector, V as [hd / 16][bk][16]. A packed
 * sequence is one block that holds it all, built per call; a decode state has blocks of
 * TW_KV_BLOCK. Both run the same code, so prefill, decode and packed calls give the same bits: a
 * score is one chain over hd, a row's softmax is taken whole, an output is one chain over keys from
 * the first. In bf16 mode both products take pairs: of components for the scores, K lying as
 * [bk / 16][hd / 2][16], and of keys for the outputs, V as [hd / 16][bk / 2][16], counted from the
 * first key.
 *
 * Work items are groups of query rows of one kv head; a row is a (query, head of the group) pair,
 * so that heads that share keys share their loads. */
#include "nn/cpu/attn_priv.h"

#define ITEM_ROWS 64
#define MOST_ROWS 32            /* of a product's block */

/* The scores of R rows: s[r * lds + j - kb] for keys [kb, end), whole panels. */
static void scores(const struct tw_att *t, int64_t sq, int64_t kvh, float *s, const float *qp, int R,
        int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk, dkw = t->dkw;

    for (int64_t j = kb, np; j < end; j += np * 16) {
        int64_t in = j % bk;
        const float *b = tw_att_block(t, sq, kvh, j) + in * dkw;

        np = tw_panels(t->pr, tw_min(bk - in, end - j) / 16);
        if (t->low)
            k->mm16(s + j - kb, t->lds, (const uint32_t *)qp, (const uint32_t *)b, dkw * 16, dkw,
                    true, R, (int)np);
        else
            k->mm(s + j - kb, t->lds, qp, R, b, dkw * 16, dkw, true, R, (int)np);
    }
}

/* o[r][0, dvp) += sum over keys [lo, hi) of s[r * lds + j - kb] v[j] */
static void mix(const struct tw_att *t, int64_t sq, int64_t kvh, float *o, const float *s, int R,
        int64_t kb, int64_t lo, int64_t hi)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk;

    for (int64_t j = lo, n; j < hi; j += n) {
        int64_t in = j % bk;
        const float *v = tw_att_block(t, sq, kvh, j) + bk * t->a->dk + in * 16;

        n = tw_min(hi - j, bk - in);
        for (int64_t p = 0, np; p < t->dvp / 16; p += np) {
            np = tw_panels(k->pr, t->dvp / 16 - p);
            k->mms(o + p * 16, t->dvp, s + j - kb, t->lds, v + p * bk * 16, bk * 16, n, j == lo,
                    R, (int)np);
        }
    }
}

/* The same in pairs of keys, lo and hi multiples of 32; PP is room for the packed weights. */
static void mix16(const struct tw_att *t, int64_t sq, int64_t kvh, float *o, const float *s,
        uint32_t *pp, int R, int64_t lo, int64_t hi)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk;

    for (int64_t j = lo, n; j < hi; j += n) {
        int64_t in = j % bk;
        const uint32_t *v = (uint32_t *)(tw_att_block(t, sq, kvh, j) + bk * t->dkw + in / 2 * 16);

        n = tw_min(hi - j, bk - in);
        k->pack16(pp, s + j - lo, t->lds, R, n / 2, n);
        for (int64_t p = 0, np; p < t->dvp / 16; p += np) {
            np = tw_panels(t->pr, t->dvp / 16 - p);
            k->mm16(o + p * 16, t->dvp, pp, v + p * bk / 2 * 16, bk / 2 * 16, n / 2, j == lo, R,
                    (int)np);
        }
    }
}

/* A block of rows of one (sequence, kv head), and a thread's scratch for them. */
struct rows {
    int64_t sq, kvh, r0;
    int R;
    float *qp, *o, *s;
    uint32_t *pp;
};

static void pack_queries(const struct tw_att *t, const struct rows *w)
{
    int64_t dk = t->a->dk;
    struct tw_att_place p = tw_att_place(t, w->sq, w->kvh, w->r0);

    for (int r = 0; r < w->R; r++, tw_att_next(t, &p)) {
        const float *x = tw_row(t->q, p.q) + p.h * dk;

        if (t->low)
            memcpy(w->s + r * dk, x, (size_t)dk * 4);
        else
            for (int64_t d = 0; d < dk; d++)
                w->qp[d * w->R + r] = x[d];
    }
    if (t->low)
        t->d->k->pack16((uint32_t *)w->qp, w->s, dk, w->R, t->dkw, dk);
}

static void attn_rows(const struct tw_att *t, const struct rows *w)
{
    const struct tw_heads *a = t->a;
    const struct tw_attn_seq *q = &a->seq[w->sq];
    int64_t first = q->past + w->r0 / t->group, last = q->past + (w->r0 + w->R - 1) / t->group;
    int64_t lo = a->window ? tw_max(0, first + 1 - a->window) : 0, kb = lo / t->align * t->align;
    int64_t end = tw_up(last + 1, t->align);
    float max[MOST_ROWS], sum[MOST_ROWS];
    struct tw_att_place p = tw_att_place(t, w->sq, w->kvh, w->r0), o = p;

    pack_queries(t, w);
    scores(t, w->sq, w->kvh, w->s, w->qp, w->R, kb, end);
    for (int r = 0; r < w->R; r++, tw_att_next(t, &p)) {
        int64_t pos = q->past + p.q - q->q0, from = a->window ? tw_max(0, pos + 1 - a->window) : 0;

        sum[r] = t->d->k->soft(w->s + r * t->lds, from - kb, pos + 1 - kb, end - kb, a->scale, &max[r]);
    }
    if (t->low)
        mix16(t, w->sq, w->kvh, w->o, w->s, w->pp, w->R, kb, end);
    else
        mix(t, w->sq, w->kvh, w->o, w->s, w->R, kb, lo, last + 1);
    for (int r = 0; r < w->R; r++, tw_att_next(t, &o))
        tw_att_out(t, &o, w->o + r * t->dvp, max[r], sum[r]);
}

/* Which of the PER groups of rows of a kv head item I of a sequence is. A thread's first items are of its
 * own rows, whose queries and outputs are in its cache from op to op, kv head by kv head. */
static int64_t item_at(const struct tw_att *t, int64_t per, int64_t i, int64_t *kvh)
{
    int64_t parts = t->a->nseq < t->d->threads ? tw_min(t->d->threads, per) : 1, p = 0;
    int64_t g0 = 0, g1 = per / parts;

    while (i >= (g1 - g0) * t->a->nkv) {
        i -= (g1 - g0) * t->a->nkv;
        g0 = g1;
        g1 = per * (++p + 1) / parts;
    }
    *kvh = i / (g1 - g0);
    return g0 + i % (g1 - g0);
}

static void attn_item(void *arg, int64_t i, int thread)
{
    const struct tw_att *t = arg;
    int64_t lo = 0, hi = t->a->nseq, rows, r1;
    struct rows w;

    w.qp = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own;
    w.o = w.qp + MOST_ROWS * tw_max(t->dkw, t->a->dk);
    w.s = w.o + MOST_ROWS * t->dvp;
    w.pp = (uint32_t *)(w.s + MOST_ROWS * tw_max(t->lds, t->a->dk));
    while (hi - lo > 1) {       /* the sequence whose items hold i */
        int64_t mid = (lo + hi) / 2;

        if (t->seq[mid].item <= i)
            lo = mid;
        else
            hi = mid;
    }
    i -= t->seq[lo].item;
    rows = t->a->seq[lo].nq * t->group;
    w.sq = lo;
    w.r0 = item_at(t, (rows + ITEM_ROWS - 1) / ITEM_ROWS, i, &w.kvh) * ITEM_ROWS;
    r1 = tw_min(rows, w.r0 + ITEM_ROWS);
    if (t->tiles) {
        tw_att_tiles(t, lo, w.kvh, w.r0, r1, w.qp);
        return;
    }
    for (; w.r0 < r1; w.r0 += t->mr) {
        w.R = (int)tw_min(t->mr, r1 - w.r0);
        attn_rows(t, &w);
    }
}

/* Lays out the call: work items and packed blocks by sequence. Returns items, -1: no memory. */
static int64_t attn_plan(struct tw_att *t)
{
    const struct tw_heads *a = t->a;
    int64_t items = 0, longest = 0;
    size_t words = 0;
    struct tw_att_seq *seq = tw_cpu_scratch(t->d, TW_SLOT_LIST, (size_t)(a->nseq + 1) * sizeof *seq);

    if (!seq)
        return -1;
    t->seq = seq;
    t->low = t->d->low;
    t->mr = t->low ? t->d->k->mr16 : t->d->k->mr;
    t->pr = t->low ? t->d->k->pr16 : t->d->k->pr;
    t->align = t->low ? 32 : 16;
    t->group = a->nh / a->nkv;
    t->dvp = tw_up(a->dv, 16);
    t->dkw = t->low ? tw_up(a->dk, 32) / 2 : a->dk;
    t->tiles = t->low && t->d->k->att16 && a->scale > 0;
    for (int64_t s = 0; s < a->nseq; s++)
        longest = tw_max(longest, a->seq[s].past + a->seq[s].nq);
    for (int64_t s = 0; s < a->nseq; s++) {
        const struct tw_attn_seq *q = &a->seq[s];

        seq[s].item = items;
        seq[s].kv = words;
        seq[s].bk = q->block ? TW_KV_BLOCK : tw_max(t->align, tw_up(q->nq, t->align));
        if (!q->block)
            words += (size_t)(a->nkv * tw_att_words(t->low, seq[s].bk, a->dk, a->dv));
        items += a->nkv * ((q->nq * t->group + ITEM_ROWS - 1) / ITEM_ROWS);
    }
    t->kv = tw_cpu_scratch(t->d, TW_SLOT_KV, words * 4);
    /* An odd number of cache lines a row: rows do not fall on the same sets. */
    t->lds = tw_up(longest, 32) + 16;
    t->own = t->tiles ? tw_att_tiles_words(t, longest) :
            MOST_ROWS * (tw_max(t->dkw, a->dk) + t->dvp + 2 * tw_max(t->lds, a->dk));
    if (!t->kv || !tw_cpu_scratch(t->d, TW_SLOT_OWN, (size_t)(t->own * t->d->threads) * 4))
        return -1;
    return items;
}

#define NEXT_ROWS 64            /* the least whose outputs are worth it */
#define NEXT_MOST ((int64_t)768 << 10)  /* bytes of L2 for what is multiplied next */
#define MOST_ASKS 16            /* lines of a step */

/* Each thread asks for the weights that are multiplied next, as evenly as it goes through keys. */
static void ask_next(struct tw_att *t)
{
    const struct tw_mat *w = t->a->next;
    const char *at = w ? w->data : NULL;
    int64_t bytes = w ? tw_min(NEXT_MOST, w->rows * w->cols * 2) : 0, rows = 0, steps = 0;

    for (int64_t s = 0; s < t->a->nseq; s++) {
        const struct tw_attn_seq *q = &t->a->seq[s];
        int64_t half = (q->nq * t->group + 15) / 16;

        rows += q->nq;
        steps += t->a->nkv * half * ((q->past + q->nq / 2) / 32 + 1);
    }
    if (rows >= NEXT_ROWS && bytes && w->dtype == TW_BF16)
        t->asks = (int)tw_min(MOST_ASKS, (bytes / 64 * t->d->threads + steps - 1) / steps);
    for (int i = 0; i < t->d->threads; i++)
        *(struct tw_ask *)((float *)t->d->slot[TW_SLOT_OWN].p + i * t->own) = (struct tw_ask){ at, at + bytes };
}

void tw_cpu_heads(struct tw_cpu *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_heads *a)
{
    struct tw_att t = { .d = d, .a = a, .q = q, .o = o, .lse = lse };
    int64_t items = attn_plan(&t);
    bool packed = false;

    if (items <= 0)
        return;
    for (int64_t s = 0; s < a->nseq; s++)
        packed |= !a->seq[s].block;
    if (packed)     /* decode states have theirs already, and get them again */
        tw_att_put(&t);
    if (t.tiles)
        ask_next(&t);
    tw_cpu_run(d, items, attn_item, &t);
}

static struct tw_heads heads_of(const struct tw_attn *a, const struct tw_tensor *k,
        const struct tw_tensor *v)
{
    return (struct tw_heads){ .nh = a->nh, .nkv = a->nkv, .dk = a->hd, .nk = a->hd, .dv = a->hd,
        .window = a->window, .scale = a->scale, .seq = a->seq, .nseq = a->nseq,
        .in = { .k = k->data, .ldk = k->ld, .sk = a->hd, .v = v->data, .ldv = v->ld,
            .sv = a->hd, .low = k->dtype == TW_BF16 }, .next = a->next };
}

void tw_cpu_attn(struct tw_dev *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a)
{
    struct tw_heads h = heads_of(a, k, v);

    tw_cpu_heads((struct tw_cpu *)d, o, lse, q, &h);
}

void tw_cpu_attn_bwd(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dk,
        struct tw_tensor *dv, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *k,
        const struct tw_tensor *v, const struct tw_attn *a)
{
    struct tw_heads h = heads_of(a, k, v), g = heads_of(a, dk, dv);

    tw_cpu_heads_bwd((struct tw_cpu *)d, dq, &g.in, 0, dout, o, lse, q, &h);
}

void tw_cpu_kv_put(struct tw_dev *dev, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_attn *a)
{
    struct tw_heads h = heads_of(a, k, v);
    struct tw_att t = { .d = (struct tw_cpu *)dev, .a = &h };

    if (attn_plan(&t) > 0)
        tw_att_put(&t);
}
