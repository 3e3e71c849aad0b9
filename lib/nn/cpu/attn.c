/* attn.c - causal attention. Keys and values of one kv head lie in blocks of bk keys: K as panels
 * [bk / 16][hd][16], so that sixteen scores are one vector, V as [hd / 16][bk][16]. A packed
 * sequence is one block that holds it all, built per call; a decode state has blocks of
 * TW_KV_BLOCK. Both run the same code, so prefill, decode and packed calls give the same bits: a
 * score is one chain over hd, a row's softmax is taken whole, an output is one chain over keys from
 * the first.
 *
 * Work items are groups of query rows of one kv head; a row is a (query, head of the group) pair,
 * so that heads that share keys share their loads. */
#include "nn/cpu/cpu_priv.h"

#define ITEM_ROWS 64

struct att {
    struct tw_cpu *d;
    const struct tw_attn *a;
    const struct tw_tensor *q, *k, *v;
    struct tw_tensor *o;
    float *lse;
    float *kv;                  /* blocks of the packed sequences */
    const struct att_seq *seq;
    int64_t group, hdp;         /* query heads of a kv head; hd in whole panels */
    int64_t own, lds;           /* words of a thread's scratch and of a row of scores */
};

struct att_seq {
    int64_t item;               /* the first of its work items */
    int64_t bk;                 /* keys of a block */
    size_t kv;                  /* where its block begins, words into att.kv */
};

static int64_t head_words(int64_t bk, int64_t hd)
{
    return bk * (hd + tw_up(hd, 16));
}

size_t tw_cpu_kv_bytes(const struct tw_dev *d, int64_t nkv, int64_t hd)
{
    return (size_t)(nkv * head_words(TW_KV_BLOCK, hd)) * 4;
}

/* Puts N keys and values that fall into one panel, from key J of a block on. */
static void put_keys(const struct att *t, float *blk, int64_t bk, int64_t j, int64_t n, int64_t row,
        int64_t kvh)
{
    int64_t hd = t->a->hd;
    float *kp = blk + j / 16 * hd * 16, *vp = blk + bk * hd;

    for (int64_t i = 0; i < n; i++) {
        const float *k = tw_row(t->k, row + i) + kvh * hd, *v = tw_row(t->v, row + i) + kvh * hd;

        if (n < 16)
            for (int64_t d = 0; d < hd; d++)
                kp[d * 16 + (j + i) % 16] = k[d];
        for (int64_t d = 0; d < hd; d += 16) {
            float *to = vp + (d / 16 * bk + j + i) * 16;

            if (hd - d >= 16) {
                memcpy(to, v + d, 64);
            } else {
                memset(to, 0, 64);
                memcpy(to, v + d, (size_t)(hd - d) * 4);
            }
        }
    }
    if (n == 16)
        t->d->k->panel(kp, tw_row(t->k, row) + kvh * hd, t->k->ld, 16, hd);
}

static float *block_of(const struct att *t, int64_t s, int64_t kvh, int64_t pos)
{
    const struct tw_attn_seq *q = &t->a->seq[s];
    int64_t words = head_words(t->seq[s].bk, t->a->hd);

    if (q->block)
        return (float *)((char *)q->block[pos / TW_KV_BLOCK] + q->offset) + kvh * words;
    return t->kv + t->seq[s].kv + kvh * words;
}

static void put_seq(void *arg, int64_t i, int thread)
{
    const struct att *t = arg;
    int64_t s = i / t->a->nkv, kvh = i % t->a->nkv, bk = t->seq[s].bk;
    const struct tw_attn_seq *q = &t->a->seq[s];

    for (int64_t x = 0, n; x < q->nq; x += n) {
        int64_t pos = q->past + x, j = pos % bk;

        n = tw_min(q->nq - x, 16 - pos % 16);
        put_keys(t, block_of(t, s, kvh, pos), bk, j, n, q->q0 + x, kvh);
    }
}

/* The scores of R rows: s[r * lds + j - kb] for keys [kb, end), whole panels. */
static void scores(const struct att *t, int64_t sq, int64_t kvh, float *s, const float *qp, int R,
        int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk, hd = t->a->hd;

    for (int r = 0; r < R; r++)
        memset(s + r * t->lds, 0, (size_t)(end - kb) * 4);
    for (int64_t j = kb, np; j < end; j += np * 16) {
        int64_t in = j % bk;

        np = tw_min(k->pr, tw_min(bk - in, end - j) / 16);
        k->mm(s + j - kb, t->lds, qp, R, block_of(t, sq, kvh, j) + in * hd, hd * 16, hd, R,
                (int)np);
    }
}

/* o[r][0, hdp) += sum over keys [lo, hi) of s[r * lds + j - kb] v[j] */
static void mix(const struct att *t, int64_t sq, int64_t kvh, float *o, const float *s, int R,
        int64_t kb, int64_t lo, int64_t hi)
{
    const struct tw_kern *k = t->d->k;
    int64_t bk = t->seq[sq].bk;

    for (int64_t j = lo, n; j < hi; j += n) {
        int64_t in = j % bk;
        const float *v = block_of(t, sq, kvh, j) + bk * t->a->hd + in * 16;

        n = tw_min(hi - j, bk - in);
        for (int64_t p = 0, np; p < t->hdp / 16; p += np) {
            np = tw_min(k->pr, t->hdp / 16 - p);
            k->mms(o + p * 16, t->hdp, s + j - kb, t->lds, v + p * bk * 16, bk * 16, n, R, (int)np);
        }
    }
}

/* Rows [r0, r0 + R) of (sequence, kv head), R at most the product's block. */
static void attn_rows(const struct att *t, int64_t sq, int64_t kvh, int64_t r0, int R, float *own)
{
    const struct tw_attn *a = t->a;
    const struct tw_attn_seq *q = &a->seq[sq];
    int64_t hd = a->hd, first = q->past + r0 / t->group, last = q->past + (r0 + R - 1) / t->group;
    int64_t lo = a->window ? tw_max(0, first + 1 - a->window) : 0, kb = lo / 16 * 16;
    int64_t end = tw_up(last + 1, 16);
    float *qp = own, *o = qp + 16 * hd, *s = o + 16 * t->hdp;

    for (int r = 0; r < R; r++) {
        int64_t row = q->q0 + (r0 + r) / t->group, h = kvh * t->group + (r0 + r) % t->group;
        const float *x = tw_row(t->q, row) + h * hd;

        for (int64_t d = 0; d < hd; d++)
            qp[d * R + r] = x[d];
    }
    memset(o, 0, (size_t)(R * t->hdp) * 4);
    scores(t, sq, kvh, s, qp, R, kb, end);
    float max[16], sum[16];
    for (int r = 0; r < R; r++) {
        int64_t pos = q->past + (r0 + r) / t->group;
        int64_t from = a->window ? tw_max(0, pos + 1 - a->window) : 0;

        sum[r] = t->d->k->soft(s + r * t->lds, from - kb, pos + 1 - kb, end - kb, a->scale,
                &max[r]);
    }
    mix(t, sq, kvh, o, s, R, kb, lo, last + 1);
    for (int r = 0; r < R; r++) {
        int64_t row = q->q0 + (r0 + r) / t->group, h = kvh * t->group + (r0 + r) % t->group;

        t->d->k->epi(tw_row(t->o, row) + h * hd, o + r * t->hdp, hd, 1 / sum[r], NULL, NULL);
        if (t->lse)
            t->lse[row * a->nh + h] = tw_cpu_lse(max[r], sum[r]);
    }
}

static void attn_item(void *arg, int64_t i, int thread)
{
    const struct att *t = arg;
    float *own = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own;
    int64_t lo = 0, hi = t->a->nseq, rows, per, kvh, r0, r1;

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
    kvh = i / per;
    r0 = i % per * ITEM_ROWS;
    r1 = tw_min(rows, r0 + ITEM_ROWS);
    for (; r0 < r1; r0 += t->d->k->mr)
        attn_rows(t, lo, kvh, r0, (int)tw_min(t->d->k->mr, r1 - r0), own);
}

/* Lays out the call: work items and packed blocks by sequence. Returns items, -1: no memory. */
static int64_t attn_plan(struct att *t)
{
    const struct tw_attn *a = t->a;
    int64_t items = 0, longest = 0;
    size_t words = 0;
    struct att_seq *seq = tw_cpu_scratch(t->d, TW_SLOT_LIST, (size_t)(a->nseq + 1) * sizeof *seq);

    if (!seq)
        return -1;
    t->seq = seq;
    t->group = a->nh / a->nkv;
    t->hdp = tw_up(a->hd, 16);
    for (int64_t s = 0; s < a->nseq; s++) {
        const struct tw_attn_seq *q = &a->seq[s];

        seq[s].item = items;
        seq[s].kv = words;
        seq[s].bk = q->block ? TW_KV_BLOCK : tw_max(16, tw_up(q->nq, 16));
        if (!q->block)
            words += (size_t)(a->nkv * head_words(seq[s].bk, a->hd));
        items += a->nkv * ((q->nq * t->group + ITEM_ROWS - 1) / ITEM_ROWS);
        longest = tw_max(longest, q->past + q->nq);
    }
    t->kv = tw_cpu_scratch(t->d, TW_SLOT_KV, words * 4);
    /* An odd number of cache lines a row: rows do not fall on the same sets. */
    t->lds = tw_up(longest, 32) + 16;
    t->own = 16 * a->hd + 16 * t->hdp + 16 * t->lds;
    if (!t->kv || !tw_cpu_scratch(t->d, TW_SLOT_OWN, (size_t)(t->own * t->d->threads) * 4))
        return -1;
    return items;
}

void tw_cpu_attn(struct tw_dev *dev, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a)
{
    struct att t = { .d = (struct tw_cpu *)dev, .a = a, .q = q, .k = k, .v = v, .o = o,
            .lse = lse };
    int64_t items = attn_plan(&t);
    bool packed = false;

    if (items <= 0)
        return;
    for (int64_t s = 0; s < a->nseq; s++)
        packed |= !a->seq[s].block;
    if (packed)     /* decode states have theirs already, and get them again */
        tw_cpu_run(t.d, a->nseq * a->nkv, put_seq, &t);
    tw_cpu_run(t.d, items, attn_item, &t);
}

void tw_cpu_kv_put(struct tw_dev *dev, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_attn *a)
{
    struct att t = { .d = (struct tw_cpu *)dev, .a = a, .k = k, .v = v };

    if (attn_plan(&t) > 0)
        tw_cpu_run(t.d, a->nseq * a->nkv, put_seq, &t);
}
