/* attn_bwd.c - the backward of packed attention. One work item is one kv head of one sequence, so
 * its sums have one owner: for every head of the group, tiles of TILE queries in order,
 *   P = e^(scale Q K^T - lse), dP = dO V^T, dS = P (dP - rowsum(dO O)) scale,
 *   dQ = dS K (a chain over keys), dV += P^T dO and dK += dS^T Q (chains over heads, then
 * queries).
 * In bf16 mode all five products round their inputs, and what lies by keys or by queries below lies
 * in pairs of them; on a tile unit numbers of f32 lie there in three parts (amx_f32.c). */
#include "nn/cpu/attn_priv.h"

#define TILE 64                 /* the most queries: fewer loads and stores of split numbers' sums */

struct bwd {
    struct tw_cpu *d;
    const struct tw_heads *a;
    const struct tw_tensor *q, *o, *dout;
    struct tw_tensor *dq;
    const struct tw_keys *out;
    int64_t spe;
    const float *lse;
    bool low, split;            /* bf16 products; f32 on tiles */
    int mr, pr;                 /* of their block */
    int64_t align;              /* keys that are taken together */
    int64_t tile;               /* queries at a time, up to TILE */
    int64_t group, dkp, dvp;    /* dk and dv in whole panels */
    int64_t dkw, dvw;           /* and in words */
    int64_t own, most;          /* words of a thread's scratch; keys of the longest sequence */
};

#define MOST_ROWS 32            /* of a product's block */

/* Words of N numbers that are summed over. */
static int64_t words(const struct bwd *t, int64_t n)
{
    return t->split ? tw_up(n, 32) / 32 * TW_STEP32 : t->low ? tw_up(n, 32) / 2 : n;
}

/* One item's scratch, n16 keys in whole panels. */
struct item {
    const struct tw_attn_seq *q;
    int64_t kvh, n, n16, lds;
    float *kt, *vt;             /* [n16 / 16][dkw][16], [..][dvw][16]: panels of keys */
    float *kd;                  /* [dkp / 16][n16 in words][16]: panels of dk */
    float *dk, *dv;             /* [n16][dkp], [n16][dvp] */
    float *s, *dp;              /* [tile][lds] */
    float *qd, *od;             /* the tile's Q and dO, [dkp / 16][tile in words][16], [dvp / 16].. */
    float *pack, *dq;           /* packed rows, [mr][dkp] */
};

static int64_t pack_words(const struct bwd *t, int64_t lds)
{
    return MOST_ROWS * tw_max(tw_max(t->dkw, t->dvw), t->align > 16 ? words(t, lds) : 0);
}

static int64_t item_words(const struct bwd *t, int64_t n)
{
    int64_t n16 = tw_up(n, t->align), lds = tw_up(n16, 32) + 16;

    return n16 * (t->dkw + t->dvw + t->dkp + t->dvp) + words(t, n16) * t->dkp + t->tile * 2 * lds +
           words(t, t->tile) * (t->dkp + t->dvp) + pack_words(t, lds) + MOST_ROWS * t->dkp;
}

static void item_open(const struct bwd *t, struct item *m, float *w)
{
    m->n = m->q->nq;
    m->n16 = tw_up(m->n, t->align);
    m->lds = tw_up(m->n16, 32) + 16;
    m->kt = w;
    m->vt = m->kt + m->n16 * t->dkw;
    m->kd = m->vt + m->n16 * t->dvw;
    m->dk = m->kd + words(t, m->n16) * t->dkp;
    m->dv = m->dk + m->n16 * t->dkp;
    m->s = m->dv + m->n16 * t->dvp;
    m->dp = m->s + t->tile * m->lds;
    m->qd = m->dp + t->tile * m->lds;
    m->od = m->qd + words(t, t->tile) * t->dkp;
    m->pack = m->od + words(t, t->tile) * t->dvp;
    m->dq = m->pack + pack_words(t, m->lds);
}

/* dst[p][i][16] = columns [16 p, 16 p + 16) of row i, zero past HD; P panels of ROWS rows (or their
 * words). */
static void columns(const struct bwd *t, float *dst, const float *src, int64_t hd, int64_t ld,
        int64_t n, int64_t rows)
{
    for (int64_t p = 0; t->align > 16 && p * 16 < hd; p++) {
        uint32_t *to = (uint32_t *)dst + p * words(t, rows) * 16;
        int w = (int)tw_min(16, hd - p * 16);

        if (t->low)
            t->d->k->pairs(to, 16, src + p * 16, ld, w, rows / 2, n, false, 0);
        else
            t->d->k->pairs32(to, src + p * 16, ld, w, words(t, rows), n);
    }
    for (int64_t p = 0; t->align == 16 && p * 16 < hd; p++)
        for (int64_t i = 0; i < rows; i++) {
            float *to = dst + (p * rows + i) * 16;
            int64_t w = i < n ? tw_min(16, hd - p * 16) : 0;

            if (w < 16)
                memset(to, 0, 64);
            if (w)
                memcpy(to, src + i * ld + p * 16, (size_t)w * 4);
        }
}

static void panel(const struct bwd *t, float *dst, const float *src, int64_t hd, int64_t ld,
        int64_t n)
{
    const struct tw_kern *k = t->d->k;
    float turned[32 * 16];

    if (t->low)
        k->panel16((uint32_t *)dst, src, ld, n, tw_up(hd, 32) / 2, hd);
    else if (!t->split)
        k->panel(dst, src, ld, n, hd);
    for (int64_t d = 0; t->split && d < hd; d += 32, dst += TW_STEP32 * 16) {
        k->panel(turned, src + d, ld, n, tw_min(32, hd - d));
        k->pairs32((uint32_t *)dst, turned, 16, 16, TW_STEP32, tw_min(32, hd - d));
    }
}

/* The keys lie in the room for their gradients while they are packed, when they are in two parts. */
static void load_keys(const struct bwd *t, struct item *m)
{
    const struct tw_heads *a = t->a;
    const float *v = a->in.v + m->q->q0 * a->in.ldv + m->kvh * a->in.sv;
    int64_t ld;
    const float *k = tw_cpu_key_rows(a, m->q->q0, m->kvh, m->n, m->dk, &ld);

    for (int64_t j = 0; j < m->n; j += 16) {
        int64_t n = tw_min(16, m->n - j);

        panel(t, m->kt + j * t->dkw, k + j * ld, a->dk, ld, n);
        panel(t, m->vt + j * t->dvw, v + j * a->in.ldv, a->dv, a->in.ldv, n);
    }
    columns(t, m->kd, k, a->dk, ld, m->n, m->n16);
    memset(m->dk, 0, (size_t)(m->n16 * t->dkp) * 4);
    memset(m->dv, 0, (size_t)(m->n16 * t->dvp) * 4);
}

/* out[r][j - kb] = x[r] . panels[j] for R rows of x, HD wide, and keys [kb, end). */
static void scores(const struct bwd *t, struct item *m, float *out, const float *x, int64_t hd,
        int64_t ld, int R, const float *panels, int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;
    int64_t hdw = words(t, hd);

    if (t->low)
        k->pack16((uint32_t *)m->pack, x, ld, R, hdw, hd);
    else if (t->split)
        k->pack32((uint32_t *)m->pack, x, ld, R, hdw, hd);
    for (int r = 0; t->align == 16 && r < R; r++)
        for (int64_t d = 0; d < hdw; d++)
            m->pack[d * R + r] = x[r * ld + d];
    for (int64_t j = kb, np; j < end; j += np * 16) {
        np = tw_panels(t->pr, (end - j) / 16);
        if (t->low)
            k->mm16(out + j - kb, m->lds, (uint32_t *)m->pack, (uint32_t *)panels + j * hdw,
                    hdw * 16, hdw, true, R, (int)np);
        else if (t->split)
            k->mm32(out + j - kb, m->lds, 16, (uint32_t *)m->pack, (uint32_t *)panels + j * hdw,
                    hdw * 16, hdw, true, R, (int)np, NULL);
        else
            k->mm(out + j - kb, m->lds, m->pack, R, panels + j * hdw, hdw * 16, hdw, true, R,
                    (int)np);
    }
}

/* dq of R rows whose dS is DP, keys [kb, end). */
static void dq_rows(const struct bwd *t, struct item *m, const float *dp, int R, int64_t kb,
        int64_t end)
{
    const struct tw_kern *k = t->d->k;

    if (t->low)
        k->pack16((uint32_t *)m->pack, dp, m->lds, R, (end - kb) / 2, end - kb);
    else if (t->split)
        k->pack32((uint32_t *)m->pack, dp, m->lds, R, words(t, end - kb), end - kb);
    for (int64_t p = 0, np; p < t->dkp / 16; p += np) {
        np = tw_panels(t->pr, t->dkp / 16 - p);
        if (t->low)
            k->mm16(m->dq + p * 16, t->dkp, (uint32_t *)m->pack,
                    (uint32_t *)m->kd + (p * m->n16 + kb) / 2 * 16, m->n16 / 2 * 16,
                    (end - kb) / 2, true, R, (int)np);
        else if (t->split)
            k->mm32(m->dq + p * 16, t->dkp, 16, (uint32_t *)m->pack,
                    (uint32_t *)m->kd + (p * words(t, m->n16) + words(t, kb)) * 16, words(t, m->n16) * 16,
                    words(t, end - kb), true, R, (int)np, NULL);
        else
            k->mms(m->dq + p * 16, t->dkp, dp, m->lds, m->kd + (p * m->n16 + kb) * 16,
                    m->n16 * 16, end - kb, true, R, (int)np);
    }
}

/* P and dS of query rows [i, i + R) of head h at rows [r, r + R) of the tile, and their dQ. */
static void query_rows(const struct bwd *t, struct item *m, int64_t h, int64_t i, int R, int r,
        int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;
    const struct tw_heads *a = t->a;
    int64_t dk = a->dk, dv = a->dv, row = m->q->q0 + i;
    float *s = m->s + r * m->lds, *dp = m->dp + r * m->lds;
    const float *dout = tw_row(t->dout, row) + h * dv;

    scores(t, m, s, tw_row(t->q, row) + h * dk, dk, t->q->ld, R, m->kt, kb, end);
    scores(t, m, dp, dout, dv, t->dout->ld, R, m->vt, kb, end);
    for (int x = 0; x < R; x++) {
        int64_t lo = a->window ? tw_max(0, i + x + 1 - a->window) : 0;
        float delta = k->dot(dout + x * t->dout->ld, tw_row(t->o, row + x) + h * dv, dv);

        k->dsoft(s + x * m->lds, dp + x * m->lds, lo - kb, i + x + 1 - kb, end - kb, a->scale,
                t->lse[(row + x) * a->nh + h], delta);
    }
    dq_rows(t, m, dp, R, kb, t->align > 16 ? tw_up(i + R, 32) : tw_min(end, i + R));
    for (int x = 0; x < R; x++)
        memcpy(tw_row(t->dq, row + x) + h * dk, m->dq + x * t->dkp, (size_t)dk * 4);
}

/* out[j][..] += sum over the tile's rows [0, n) of w[row][j - kb] x[row][..] for keys [kb, end). */
static void key_rows(const struct bwd *t, struct item *m, float *out, int64_t hdp, const float *w,
        const float *x, int64_t n, int64_t kb, int64_t end)
{
    const struct tw_kern *k = t->d->k;

    int64_t len = words(t, t->tile);

    for (int64_t j = kb, R; j < end; j += R) {
        R = tw_min(t->mr, end - j);
        if (t->low)
            k->pairs_a((uint32_t *)m->pack, (int)R, w + j - kb, m->lds, (int)R, len, n, false, 0);
        else if (t->split)
            k->pairs32_a((uint32_t *)m->pack, w + j - kb, m->lds, (int)R, len, n);
        for (int64_t p = 0, np; p < hdp / 16; p += np) {
            np = tw_panels(t->pr, hdp / 16 - p);
            if (t->low)
                k->mm16(out + j * hdp + p * 16, hdp, (uint32_t *)m->pack, (uint32_t *)x + p * len * 16,
                        len * 16, len, false, (int)R, (int)np);
            else if (t->split)
                k->mm32(out + j * hdp + p * 16, hdp, 16, (uint32_t *)m->pack, (uint32_t *)x + p * len * 16,
                        len * 16, len, false, (int)R, (int)np, NULL);
            else
                k->mm(out + j * hdp + p * 16, hdp, w + j - kb, m->lds, x + p * len * 16, len * 16, n,
                        false, (int)R, (int)np);
        }
    }
}

static void tile(const struct bwd *t, struct item *m, int64_t h, int64_t i0)
{
    const struct tw_heads *a = t->a;
    int64_t n = tw_min(t->tile, m->n - i0), end = tw_up(i0 + n, t->align), row = m->q->q0 + i0;
    int64_t kb = a->window ? tw_max(0, i0 + 1 - a->window) / t->align * t->align : 0;

    for (int r = 0, R; r < n; r += R) {
        R = (int)tw_min(t->mr, n - r);
        query_rows(t, m, h, i0 + r, R, r, kb, end);
    }
    columns(t, m->qd, tw_row(t->q, row) + h * a->dk, a->dk, t->q->ld, n, t->tile);
    columns(t, m->od, tw_row(t->dout, row) + h * a->dv, a->dv, t->dout->ld, n, t->tile);
    key_rows(t, m, m->dv, t->dvp, m->s, m->od, n, kb, end);
    key_rows(t, m, m->dk, t->dkp, m->dp, m->qd, n, kb, end);
}

static void bwd_item(void *arg, int64_t i, int thread)
{
    const struct bwd *t = arg;
    const struct tw_heads *a = t->a;
    const struct tw_keys *out = t->out;
    struct item m = { .q = &a->seq[i / a->nkv], .kvh = i % a->nkv };

    item_open(t, &m, (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own);
    load_keys(t, &m);
    for (int64_t g = 0; g < t->group; g++)
        for (int64_t q = 0; q < m.n; q += t->tile)
            tile(t, &m, m.kvh * t->group + g, q);
    for (int64_t j = 0; j < m.n; j++) {
        int64_t row = m.q->q0 + j;
        const float *dk = m.dk + j * t->dkp;

        memcpy(out->k + row * out->ldk + m.kvh * out->sk, dk, (size_t)a->nk * 4);
        memcpy(out->v + row * out->ldv + m.kvh * out->sv, m.dv + j * t->dvp, (size_t)a->dv * 4);
        if (a->nk < a->dk)
            memcpy(out->pe + row * out->ldpe + m.kvh * t->spe, dk + a->nk,
                    (size_t)(a->dk - a->nk) * 4);
    }
}

void tw_cpu_heads_bwd(struct tw_cpu *d, struct tw_tensor *dq, const struct tw_keys *out,
        int64_t spe, const struct tw_tensor *dout, const struct tw_tensor *o, const float *lse,
        const struct tw_tensor *q, const struct tw_heads *a)
{
    struct bwd t = { .d = d, .a = a, .q = q, .o = o, .dout = dout, .dq = dq, .out = out,
        .spe = spe, .lse = lse, .group = a->nh / a->nkv, .dkp = tw_up(a->dk, 16),
        .dvp = tw_up(a->dv, 16) };

    t.low = d->low;
    t.split = !d->low && d->k->split;
    t.mr = t.low ? d->k->mr16 : t.split ? d->k->mr32 : d->k->mr;
    t.pr = t.low ? d->k->pr16 : t.split ? d->k->pr32 : d->k->pr;
    t.align = t.low || t.split ? 32 : 16;
    t.tile = t.split ? TILE : 32;
    t.dkw = words(&t, a->dk);
    t.dvw = words(&t, a->dv);
    for (int64_t s = 0; s < a->nseq; s++)
        t.most = tw_max(t.most, a->seq[s].nq);
    t.own = item_words(&t, t.most);
    if (tw_cpu_scratch(d, TW_SLOT_OWN, (size_t)(t.own * d->threads) * 4))
        tw_cpu_run(d, a->nseq * a->nkv, bwd_item, &t);
}
