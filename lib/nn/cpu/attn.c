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

struct att {
    struct tw_cpu *d;
    const struct tw_heads *a;
    const struct tw_tensor *q;
    struct tw_tensor *o;
    float *lse;
    float *kv;                  /* blocks of the packed sequences */
    const struct att_seq *seq;
    bool low;                   /* bf16 products */
    int mr, pr;                 /* of their block */
    int64_t align;              /* keys that are taken together: a panel, in bf16 also a tile */
    int64_t group, dvp;         /* query heads of a kv head; dv in whole panels */
    int64_t dkw;                /* words of dk components */
    int64_t own, lds;           /* words of a thread's scratch and of a row of scores */
};

struct att_seq {
    int64_t item;               /* the first of its work items */
    int64_t bk;                 /* keys of a block */
    size_t kv;                  /* where its block begins, words into att.kv */
};

#define MOST_ROWS 32            /* of a product's block */
#define HALF 16                 /* rows whose scores are in L1 at a time */

static int64_t head_words(bool low, int64_t bk, int64_t dk, int64_t dv)
{
    if (low)
        return bk * (tw_up(dk, 32) + tw_up(dv, 16)) / 2;
    return bk * (dk + tw_up(dv, 16));
}

size_t tw_cpu_kv_bytes(const struct tw_dev *d, int64_t nkv, int64_t hd, enum tw_dtype act)
{
    return (size_t)(nkv * tw_max(head_words(false, TW_KV_BLOCK, hd, hd),
            head_words(true, TW_KV_BLOCK, hd, hd))) * 4;
}

const float *tw_cpu_key_rows(const struct tw_heads *a, int64_t row, int64_t h, int64_t n,
        float *room, int64_t *ld)
{
    const float *k = a->in.k + row * a->in.ldk + h * a->in.sk, *pe;

    *ld = a->in.ldk;
    if (a->nk == a->dk)
        return k;
    *ld = a->dk;
    pe = a->in.pe + row * a->in.ldpe;
    for (int64_t i = 0; i < n; i++) {
        memcpy(room + i * a->dk, k + i * a->in.ldk, (size_t)a->nk * 4);
        memcpy(room + i * a->dk + a->nk, pe + i * a->in.ldpe, (size_t)(a->dk - a->nk) * 4);
    }
    return room;
}

/* N keys and values that fall into one panel, from key J of a block on. */
struct put {
    float *kp, *vp;
    int64_t bk, j, n;
    const float *k, *v;
    int64_t ldk;
};

static void put_f32(const struct att *t, const struct put *p)
{
    int64_t dk = t->a->dk, dv = t->a->dv;
    const float *k = p->k, *v = p->v;

    for (int64_t i = 0; i < p->n; i++, k += p->ldk, v += t->a->in.ldv) {
        if (p->n < 16)
            for (int64_t d = 0; d < dk; d++)
                p->kp[d * 16 + (p->j + i) % 16] = k[d];
        for (int64_t d = 0; d < dv; d += 16) {
            float *to = p->vp + (d / 16 * p->bk + p->j + i) * 16;

            if (dv - d >= 16) {
                memcpy(to, v + d, 64);
            } else {
                memset(to, 0, 64);
                memcpy(to, v + d, (size_t)(dv - d) * 4);
            }
        }
    }
}

/* One key: its components go into every pair's place, the value into one half of pairs of keys. */
static void put_half(const struct att *t, const struct put *p, int64_t i)
{
    int64_t dk = t->a->dk, j = p->j + i;
    uint32_t *kp = (uint32_t *)p->kp, *vp = (uint32_t *)p->vp;
    const float *k = p->k + i * p->ldk, *v = p->v + i * t->a->in.ldv;
    uint16_t x[2];

    for (int64_t d = 0; d < t->dkw; d++) {
        x[0] = 2 * d < dk ? tw_f32_to_bf16(k[2 * d]) : 0;
        x[1] = 2 * d + 1 < dk ? tw_f32_to_bf16(k[2 * d + 1]) : 0;
        kp[d * 16 + j % 16] = x[0] | (uint32_t)x[1] << 16;
    }
    for (int64_t d = 0; d < t->a->dv; d++) {
        uint16_t *to = (uint16_t *)(vp + (d / 16 * p->bk + j) / 2 * 16);

        to[d % 16 * 2 + j % 2] = tw_f32_to_bf16(v[d]);
    }
}

/* The first key of 32 clears their values: a product may read all of them. */
static void put_low(const struct att *t, const struct put *p)
{
    int64_t dv = t->a->dv, j = p->j, bk = p->bk;
    uint32_t *vp = (uint32_t *)p->vp;

    for (int64_t q = 0; q < t->dvp / 16 && j % 32 == 0; q++)
        memset(vp + (q * bk + j) / 2 * 16, 0, 16 * 64);
    if (p->n == 16)
        for (int64_t q = 0; q < t->dvp / 16; q++)
            t->d->k->pairs(vp + (q * bk + j) / 2 * 16, 16, p->v + q * 16, t->a->in.ldv,
                    (int)tw_min(16, dv - q * 16), 8, 16, false, 0);
    for (int64_t i = 0; i < p->n && p->n < 16; i++)
        put_half(t, p, i);
}

/* ROOM is for 16 keys. */
static void put_keys(const struct att *t, float *blk, int64_t bk, int64_t j, int64_t n, int64_t row,
        int64_t kvh, float *room)
{
    struct put p = { .kp = blk + j / 16 * t->dkw * 16, .vp = blk + bk * t->dkw, .bk = bk, .j = j,
        .n = n, .v = t->a->in.v + row * t->a->in.ldv + kvh * t->a->in.sv };

    p.k = tw_cpu_key_rows(t->a, row, kvh, n, room, &p.ldk);
    if (t->low)
        put_low(t, &p);
    else
        put_f32(t, &p);
    if (n == 16 && t->low)
        t->d->k->panel16((uint32_t *)p.kp, p.k, p.ldk, 16, t->dkw, t->a->dk);
    else if (n == 16)
        t->d->k->panel(p.kp, p.k, p.ldk, 16, t->a->dk);
}

static float *block_of(const struct att *t, int64_t s, int64_t kvh, int64_t pos)
{
    const struct tw_attn_seq *q = &t->a->seq[s];
    int64_t words = head_words(t->low, t->seq[s].bk, t->a->dk, t->a->dv);

    if (q->block)
        return (float *)((char *)q->block[pos / TW_KV_BLOCK] + q->offset) + kvh * words;
    return t->kv + t->seq[s].kv + kvh * words;
}

static void put_seq(void *arg, int64_t i, int thread)
{
    const struct att *t = arg;
    int64_t s = i / t->a->nkv, kvh = i % t->a->nkv, bk = t->seq[s].bk;
    const struct tw_attn_seq *q = &t->a->seq[s];
    float *room = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own;

    for (int64_t x = 0, n; x < q->nq; x += n) {
        int64_t pos = q->past + x, j = pos % bk;

        n = tw_min(q->nq - x, 16 - pos % 16);
        put_keys(t, block_of(t, s, kvh, pos), bk, j, n, q->q0 + x, kvh, room);
    }
}

/* The scores of R rows: s[r * lds + j - kb] for keys [kb, end), whole panels. */
static void scores(const struct att *t, int64_t sq, int64_t kvh, float *s, const float *qp, int R,
        int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk, dkw = t->dkw;

    for (int64_t j = kb, np; j < end; j += np * 16) {
        int64_t in = j % bk;
        const float *b = block_of(t, sq, kvh, j) + in * dkw;

        np = tw_panels(t->pr, tw_min(bk - in, end - j) / 16);
        if (t->low)
            k->mm16(s + j - kb, t->lds, (const uint32_t *)qp, (const uint32_t *)b, dkw * 16, dkw,
                    true, R, (int)np);
        else
            k->mm(s + j - kb, t->lds, qp, R, b, dkw * 16, dkw, true, R, (int)np);
    }
}

/* o[r][0, dvp) += sum over keys [lo, hi) of s[r * lds + j - kb] v[j] */
static void mix(const struct att *t, int64_t sq, int64_t kvh, float *o, const float *s, int R,
        int64_t kb, int64_t lo, int64_t hi)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk;

    for (int64_t j = lo, n; j < hi; j += n) {
        int64_t in = j % bk;
        const float *v = block_of(t, sq, kvh, j) + bk * t->a->dk + in * 16;

        n = tw_min(hi - j, bk - in);
        for (int64_t p = 0, np; p < t->dvp / 16; p += np) {
            np = tw_panels(k->pr, t->dvp / 16 - p);
            k->mms(o + p * 16, t->dvp, s + j - kb, t->lds, v + p * bk * 16, bk * 16, n, j == lo,
                    R, (int)np);
        }
    }
}

/* The same in pairs of keys, lo and hi multiples of 32; PP is room for the packed weights. */
static void mix16(const struct att *t, int64_t sq, int64_t kvh, float *o, const float *s,
        uint32_t *pp, int R, int64_t lo, int64_t hi)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk;

    for (int64_t j = lo, n; j < hi; j += n) {
        int64_t in = j % bk;
        const uint32_t *v = (uint32_t *)(block_of(t, sq, kvh, j) + bk * t->dkw + in / 2 * 16);

        n = tw_min(hi - j, bk - in);
        k->pack16(pp, s + j - lo, t->lds, R, n / 2, n);
        for (int64_t p = 0, np; p < t->dvp / 16; p += np) {
            np = tw_panels(t->pr, t->dvp / 16 - p);
            k->mm16(o + p * 16, t->dvp, pp, v + p * bk / 2 * 16, bk / 2 * 16, n / 2, j == lo, R,
                    (int)np);
        }
    }
}

/* The same on tiles: PP is packed, V room for where the values of each 32 keys begin. */
static void mix_tiles(const struct att *t, int64_t sq, int64_t kvh, float *o, const uint32_t *pp,
        const uint32_t **v, int R, int64_t lo, int64_t hi)
{
    int64_t bk = t->seq[sq].bk, np;

    for (int64_t j = lo; j < hi; j += 32)
        v[(j - lo) / 32] = (uint32_t *)(block_of(t, sq, kvh, j) + bk * t->dkw + j % bk / 2 * 16);
    for (int64_t p = 0; p < t->dvp / 16; p += np) {
        np = tw_panels(t->pr, t->dvp / 16 - p);
        t->d->k->mix16(o + p * 16, t->dvp, pp, v, bk / 2 * 16, (hi - lo) / 32, R, (int)np);
        for (int64_t i = 0; i < (hi - lo) / 32; i++)
            v[i] += np * bk / 2 * 16;
    }
}

/* A block of rows of one (sequence, kv head), and a thread's scratch for them. */
struct rows {
    int64_t sq, kvh, r0;
    int R;
    float *qp, *o, *s;
    uint32_t *pp;
    const uint32_t **v;
};

static const float *query(const struct att *t, const struct rows *w, int r)
{
    const struct tw_attn_seq *q = &t->a->seq[w->sq];

    return tw_row(t->q, q->q0 + (w->r0 + r) / t->group) +
           (w->kvh * t->group + (w->r0 + r) % t->group) * t->a->dk;
}

static void pack_queries(const struct att *t, const struct rows *w)
{
    int64_t dk = t->a->dk;

    for (int r = 0; r < w->R; r++) {
        const float *x = query(t, w, r);

        if (t->low)
            memcpy(w->s + r * dk, x, (size_t)dk * 4);
        else
            for (int64_t d = 0; d < dk; d++)
                w->qp[d * w->R + r] = x[d];
    }
    for (int r = 0; t->low && r < w->R; r += HALF)
        t->d->k->pack16((uint32_t *)w->qp + r * t->dkw, w->s + r * dk, dk, (int)tw_min(HALF, w->R - r),
                t->dkw, dk);
}

/* The weights of rows [r, r + n) for keys [kb, end), with the largest score of each and their sums; on
 * TILES rounded and packed, else where the scores were. */
static void weights(const struct att *t, const struct rows *w, int r, int n, int64_t kb, int64_t end,
        bool tiles, float *max, float *sum)
{
    float *s = w->s + (tiles ? 0 : r * t->lds);

    scores(t, w->sq, w->kvh, s, w->qp + r * (t->low ? t->dkw : t->a->dk), n, kb, end);
    for (; n-- > 0; r++, s += t->lds) {
        int64_t pos = t->a->seq[w->sq].past + (w->r0 + r) / t->group;
        int64_t from = t->a->window ? tw_max(0, pos + 1 - t->a->window) : 0;

        if (tiles)
            sum[r] = t->d->k->soft16(w->pp + r * 16, w->R * 16, s, from - kb, pos + 1 - kb, end - kb,
                    t->a->scale, &max[r]);
        else
            sum[r] = t->d->k->soft(s, from - kb, pos + 1 - kb, end - kb, t->a->scale, &max[r]);
    }
}

static void attn_rows(const struct att *t, const struct rows *w)
{
    const struct tw_heads *a = t->a;
    const struct tw_attn_seq *q = &a->seq[w->sq];
    int64_t first = q->past + w->r0 / t->group, last = q->past + (w->r0 + w->R - 1) / t->group;
    int64_t lo = a->window ? tw_max(0, first + 1 - a->window) : 0, kb = lo / t->align * t->align;
    int64_t end = tw_up(last + 1, t->align), dv = a->dv;
    float max[MOST_ROWS], sum[MOST_ROWS];
    bool tiles = t->low && t->d->k->mix16 && a->scale > 0;

    pack_queries(t, w);
    for (int r = 0; r < w->R; r += HALF)
        weights(t, w, r, (int)tw_min(HALF, w->R - r), kb, end, tiles, max, sum);
    if (tiles)
        mix_tiles(t, w->sq, w->kvh, w->o, w->pp, w->v, w->R, kb, end);
    else if (t->low)
        mix16(t, w->sq, w->kvh, w->o, w->s, w->pp, w->R, kb, end);
    else
        mix(t, w->sq, w->kvh, w->o, w->s, w->R, kb, lo, last + 1);
    for (int r = 0; r < w->R; r++) {
        int64_t row = q->q0 + (w->r0 + r) / t->group;
        int64_t h = w->kvh * t->group + (w->r0 + r) % t->group;

        t->d->k->epi(tw_row(t->o, row) + h * dv, w->o + r * t->dvp, dv, 1 / sum[r], NULL, NULL);
        if (t->lse)
            t->lse[row * a->nh + h] = tw_cpu_lse(max[r], sum[r]);
    }
}

static void attn_item(void *arg, int64_t i, int thread)
{
    const struct att *t = arg;
    int64_t lo = 0, hi = t->a->nseq, rows, per, r1;
    struct rows w;

    w.qp = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own;
    w.o = w.qp + MOST_ROWS * tw_max(t->dkw, t->a->dk);
    w.s = w.o + MOST_ROWS * t->dvp;
    w.pp = (uint32_t *)(w.s + MOST_ROWS * tw_max(t->lds, t->a->dk));
    w.v = (const uint32_t **)(w.pp + MOST_ROWS * tw_max(t->lds, t->a->dk));
    while (hi - lo > 1) {       /* the sequence whose items hold i */
        int64_t mid = (lo + hi) / 2;

        if (t->seq[mid].item <= i)
            lo = mid;
        else
            hi = mid;
    }
    i -= t->seq[lo].item;
    rows = t->a->seq[lo].nq * t->group;
    per = (rows + ITEM_ROWS - 1) / ITEM_ROWS;
    w.sq = lo;
    w.kvh = i / per;
    w.r0 = i % per * ITEM_ROWS;
    r1 = tw_min(rows, w.r0 + ITEM_ROWS);
    for (; w.r0 < r1; w.r0 += t->mr) {
        w.R = (int)tw_min(t->mr, r1 - w.r0);
        attn_rows(t, &w);
    }
}

/* Lays out the call: work items and packed blocks by sequence. Returns items, -1: no memory. */
static int64_t attn_plan(struct att *t)
{
    const struct tw_heads *a = t->a;
    int64_t items = 0, longest = 0;
    size_t words = 0;
    struct att_seq *seq = tw_cpu_scratch(t->d, TW_SLOT_LIST, (size_t)(a->nseq + 1) * sizeof *seq);

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
    for (int64_t s = 0; s < a->nseq; s++) {
        const struct tw_attn_seq *q = &a->seq[s];

        seq[s].item = items;
        seq[s].kv = words;
        seq[s].bk = q->block ? TW_KV_BLOCK : tw_max(t->align, tw_up(q->nq, t->align));
        if (!q->block)
            words += (size_t)(a->nkv * head_words(t->low, seq[s].bk, a->dk, a->dv));
        items += a->nkv * ((q->nq * t->group + ITEM_ROWS - 1) / ITEM_ROWS);
        longest = tw_max(longest, q->past + q->nq);
    }
    t->kv = tw_cpu_scratch(t->d, TW_SLOT_KV, words * 4);
    /* An odd number of cache lines a row: rows do not fall on the same sets. */
    t->lds = tw_up(longest, 32) + 16;
    t->own = MOST_ROWS * (tw_max(t->dkw, a->dk) + t->dvp + 2 * tw_max(t->lds, a->dk)) +
            tw_up(t->lds / 16, 16);
    if (!t->kv || !tw_cpu_scratch(t->d, TW_SLOT_OWN, (size_t)(t->own * t->d->threads) * 4))
        return -1;
    return items;
}

void tw_cpu_heads(struct tw_cpu *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_heads *a)
{
    struct att t = { .d = d, .a = a, .q = q, .o = o, .lse = lse };
    int64_t items = attn_plan(&t);
    bool packed = false;

    if (items <= 0)
        return;
    for (int64_t s = 0; s < a->nseq; s++)
        packed |= !a->seq[s].block;
    if (packed)     /* decode states have theirs already, and get them again */
        tw_cpu_run(d, a->nseq * a->nkv, put_seq, &t);
    tw_cpu_run(d, items, attn_item, &t);
}

static struct tw_heads heads_of(const struct tw_attn *a, const struct tw_tensor *k,
        const struct tw_tensor *v)
{
    return (struct tw_heads){ .nh = a->nh, .nkv = a->nkv, .dk = a->hd, .nk = a->hd, .dv = a->hd,
        .window = a->window, .scale = a->scale, .seq = a->seq, .nseq = a->nseq,
        .in = { .k = k->data, .ldk = k->ld, .sk = a->hd, .v = v->data, .ldv = v->ld,
            .sv = a->hd } };
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
    struct att t = { .d = (struct tw_cpu *)dev, .a = &h };

    if (attn_plan(&t) > 0)
        tw_cpu_run(t.d, a->nseq * a->nkv, put_seq, &t);
}
