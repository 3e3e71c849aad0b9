/* attn_keys.c - keys and values into the blocks that attention reads (attn.c) */
#include "nn/cpu/attn_priv.h"

int64_t tw_att_words(bool low, int64_t bk, int64_t dk, int64_t dv)
{
    if (low)
        return bk * (tw_up(dk, 32) + tw_up(dv, 16)) / 2;
    return bk * (dk + tw_up(dv, 16));
}

size_t tw_cpu_kv_bytes(const struct tw_dev *d, int64_t nkv, int64_t hd, enum tw_dtype products)
{
    return (size_t)(nkv * tw_att_words(products == TW_BF16, TW_KV_BLOCK, hd, hd)) * 4;
}

const float *tw_cpu_key_rows(const struct tw_heads *a, int64_t row, int64_t h, int64_t n,
        float *room, int64_t *ld)
{
    const float *k = tw_elem(a->in.k, a->in.low, row * a->in.ldk + h * a->in.sk), *pe;

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
    const void *k, *v;          /* BF16 where their input is */
    int64_t ldk;
};

static void put_f32(const struct tw_att *t, const struct put *p)
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

static uint16_t half_of(const void *x, bool low, int64_t i)
{
    return low ? ((const uint16_t *)x)[i] : tw_f32_to_bf16(((const float *)x)[i]);
}

/* One key: its components go into every pair's place, the value into one half of pairs of keys. */
static void put_half(const struct tw_att *t, const struct put *p, int64_t i)
{
    int64_t dk = t->a->dk, j = p->j + i;
    uint32_t *kp = (uint32_t *)p->kp, *vp = (uint32_t *)p->vp;
    bool low = t->a->in.low;
    const void *k = tw_elem(p->k, low, i * p->ldk), *v = tw_elem(p->v, low, i * t->a->in.ldv);
    uint16_t x[2];

    for (int64_t d = 0; d < t->dkw; d++) {
        x[0] = 2 * d < dk ? half_of(k, low, 2 * d) : 0;
        x[1] = 2 * d + 1 < dk ? half_of(k, low, 2 * d + 1) : 0;
        kp[d * 16 + j % 16] = x[0] | (uint32_t)x[1] << 16;
    }
    for (int64_t d = 0; d < t->a->dv; d++) {
        uint16_t *to = (uint16_t *)(vp + (d / 16 * p->bk + j) / 2 * 16);

        to[d % 16 * 2 + j % 2] = half_of(v, low, d);
    }
}

/* The first key of 32 clears their values: a product may read all of them. */
static void put_low(const struct tw_att *t, const struct put *p)
{
    int64_t dv = t->a->dv, j = p->j, bk = p->bk;
    uint32_t *vp = (uint32_t *)p->vp;

    for (int64_t q = 0; q < t->dvp / 16 && j % 32 == 0; q++)
        memset(vp + (q * bk + j) / 2 * 16, 0, 16 * 64);
    for (int64_t q = 0; q < t->dvp / 16 && p->n == 16; q++) {
        uint32_t *to = vp + (q * bk + j) / 2 * 16;
        const void *v = tw_elem(p->v, t->a->in.low, q * 16);
        int w = (int)tw_min(16, dv - q * 16);

        if (t->a->in.low)
            t->d->k->pairsw(to, 16, v, t->a->in.ldv, w, 8, 16, false, 0);
        else
            t->d->k->pairs(to, 16, v, t->a->in.ldv, w, 8, 16, false, 0);
    }
    for (int64_t i = 0; i < p->n && p->n < 16; i++)
        put_half(t, p, i);
}

/* ROOM is for 16 keys. */
static void put_keys(const struct tw_att *t, float *blk, int64_t bk, int64_t j, int64_t n, int64_t row,
        int64_t kvh, float *room)
{
    struct put p = { .kp = blk + j / 16 * t->dkw * 16, .vp = blk + bk * t->dkw, .bk = bk, .j = j,
        .n = n, .v = tw_elem(t->a->in.v, t->a->in.low, row * t->a->in.ldv + kvh * t->a->in.sv) };

    p.k = tw_cpu_key_rows(t->a, row, kvh, n, room, &p.ldk);
    if (t->low)
        put_low(t, &p);
    else
        put_f32(t, &p);
    if (n == 16 && t->a->in.low)
        t->d->k->panel(p.kp, p.k, p.ldk / 2, 16, t->dkw);
    else if (n == 16 && t->low)
        t->d->k->panel16((uint32_t *)p.kp, p.k, p.ldk, 16, t->dkw, t->a->dk);
    else if (n == 16)
        t->d->k->panel(p.kp, p.k, p.ldk, 16, t->a->dk);
}

float *tw_att_block(const struct tw_att *t, int64_t s, int64_t kvh, int64_t pos)
{
    const struct tw_attn_seq *q = &t->a->seq[s];
    int64_t words = tw_att_words(t->low, t->seq[s].bk, t->a->dk, t->a->dv);

    if (q->block)
        return (float *)((char *)q->block[pos / TW_KV_BLOCK] + q->offset) + kvh * words;
    return t->kv + t->seq[s].kv + kvh * words;
}

/* What is put: pieces of LEN keys, counted from a multiple of 32 at or before a sequence's first. */
struct put_job {
    const struct tw_att *t;
    int64_t len, pieces;        /* of the longest sequence */
};

static void put_piece(void *arg, int64_t i, int thread)
{
    const struct put_job *j = arg;
    const struct tw_att *t = j->t;
    int64_t kvh = i % t->a->nkv, s = i / t->a->nkv / j->pieces, bk = t->seq[s].bk;
    const struct tw_attn_seq *q = &t->a->seq[s];
    int64_t lo = i / t->a->nkv % j->pieces * j->len - q->past % 32;
    int64_t end = tw_min(q->nq, lo + j->len);
    float *room = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own;

    for (int64_t x = tw_max(0, lo), n; x < end; x += n) {
        int64_t pos = q->past + x, at = pos % bk;

        n = tw_min(end - x, 16 - pos % 16);
        put_keys(t, tw_att_block(t, s, kvh, pos), bk, at, n, q->q0 + x, kvh, room);
    }
}

#define PIECE 128

void tw_att_put(struct tw_att *t)
{
    struct put_job j = { .t = t };

    for (int64_t s = 0; s < t->a->nseq; s++)
        j.len = tw_max(j.len, tw_up(t->a->seq[s].nq + 32, 32));
    if (t->a->nseq < 4 * t->d->threads)
        j.len = tw_min(j.len, PIECE);
    for (int64_t s = 0; s < t->a->nseq; s++)
        j.pieces = tw_max(j.pieces, (t->a->seq[s].past % 32 + t->a->seq[s].nq + j.len - 1) / j.len);
    tw_cpu_run(t->d, t->a->nseq * j.pieces * t->a->nkv, put_piece, &j);
}
