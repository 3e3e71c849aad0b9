/* mla_decode.c - attention over latents where a sequence goes on. Latents lie in blocks of
 * TW_KV_BLOCK keys as two panels [2][dkw][16] of (c | pe), in bf16 mode pairs of components, and
 * nowhere else: as values they are turned on the way into a thread's own scratch, once for all rows
 * of an item.
 *
 * Tokens are taken in chunks (which change no bit: every number belongs to one token and head): the
 * key half of kv_b is applied to the queries, rows are (token, head) pairs that all read the same
 * latents, and the value half is applied to what comes out. */
#include <math.h>
#include "nn/cpu/mla_priv.h"

#define CHUNK 32                /* tokens */
#define ITEM_ROWS 64
#define MOST_ROWS 32            /* of a product's block */

/* Words of a key in its panel. */
static int64_t key_words(bool low, int64_t dk)
{
    return low ? tw_up(dk, 32) / 2 : tw_up(dk, 16);
}

size_t tw_cpu_mla_bytes(const struct tw_dev *d, int64_t rkv, int64_t dr, enum tw_dtype products)
{
    return (size_t)(TW_KV_BLOCK * key_words(products == TW_BF16, rkv + dr)) * 4;
}

struct put_job {
    struct tw_cpu *d;
    const struct tw_tensor *c, *pe;
    const struct tw_mla *a;
};

static void put_key(const struct put_job *j, uint32_t *panel, int64_t key, const float *x)
{
    int64_t dk = j->a->rkv + j->a->dr;

    for (int64_t i = 0; !j->d->low && i < dk; i++)
        ((float *)panel)[i * 16 + key] = x[i];
    for (int64_t i = 0; j->d->low && i < key_words(true, dk); i++) {
        uint32_t lo = 2 * i < dk ? tw_f32_to_bf16(x[2 * i]) : 0;

        panel[i * 16 + key] = lo |
                (2 * i + 1 < dk ? (uint32_t)tw_f32_to_bf16(x[2 * i + 1]) << 16 : 0);
    }
}

/* The first key of a block clears the block: products may read all of it. */
static void put_seq(void *arg, int64_t s, int thread)
{
    const struct put_job *j = arg;
    const struct tw_attn_seq *q = &j->a->seq[s];
    int64_t rkv = j->a->rkv, dr = j->a->dr, words = key_words(j->d->low, rkv + dr);
    float *x = (float *)j->d->slot[TW_SLOT_OWN].p + thread * (rkv + dr);

    for (int64_t i = 0; i < q->nq; i++) {
        int64_t pos = q->past + i, in = pos % TW_KV_BLOCK;
        uint32_t *b = (uint32_t *)((char *)q->block[pos / TW_KV_BLOCK] + q->offset);

        if (!in)
            memset(b, 0, (size_t)(TW_KV_BLOCK * words) * 4);
        memcpy(x, tw_row(j->c, q->q0 + i), (size_t)rkv * 4);
        memcpy(x + rkv, tw_row(j->pe, q->q0 + i), (size_t)dr * 4);
        put_key(j, b + in / 16 * words * 16, in % 16, x);
    }
}

void tw_cpu_mla_put(struct tw_dev *dev, const struct tw_tensor *c, const struct tw_tensor *pe,
        const struct tw_mla *a)
{
    struct put_job j = { (struct tw_cpu *)dev, c, pe, a };
    size_t own = (size_t)(a->rkv + a->dr) * (size_t)j.d->threads * 4;

    if (tw_cpu_scratch(j.d, TW_SLOT_OWN, own))
        tw_cpu_run(j.d, a->nseq, put_seq, &j);
}

/* Tokens of a chunk: sequence s's rows [i, i + n) of its new ones, at [at, at + n) of the chunk. */
struct piece {
    int64_t s, i, n, at, item;
};

struct lat {
    struct tw_cpu *d;
    const struct tw_mla *a;
    const struct tw_mat *w;
    const struct tw_lora_ctx *lora;
    const struct tw_tensor *q;
    struct tw_tensor *o;
    struct piece piece[CHUNK];
    int64_t npiece, n;          /* of this chunk; tokens */
    bool low;
    int mr, pr;
    int64_t align, dk, dkw, rp; /* rkv + dr; words of it; rkv in whole panels */
    int64_t lds, own;           /* words of a row of scores, of a thread's scratch */
    float *g, *u;               /* [CHUNK][nh][dk], [CHUNK][nh][rkv] */
    float *x, *y;               /* [CHUNK][cover]: a head's part of q, of o */
    float *wt;
    int64_t cover;              /* most rows of kv_b that a head's half lies in, whole panels */
};

/* The whole panels of kv_b that rows [row, row + n) lie in. */
static int64_t cover_of(int64_t row, int64_t n, int64_t *first)
{
    *first = row / 16 * 16;
    return tw_up(row + n, 16) - *first;
}

static int64_t token_row(const struct lat *t, const struct piece *p, int64_t i)
{
    return t->a->seq[p->s].q0 + p->i + i;
}

/* g[.., h, 0..rkv) = K_h^T q of the chunk's tokens. Rows of the panels that are not of K_h meet a
 * zero of x. */
static void absorb_keys(struct lat *t, int64_t h)
{
    const struct tw_mla *a = t->a;
    int64_t row = h * (a->dn + a->dv), first, n = cover_of(row, a->dn, &first);
    struct tw_gemm g = { .m = t->n, .n = a->rkv, .low = t->w->dtype == TW_BF16,
        .f = { .a = t->x, .lda = n, .s = n, .b = t->wt,
            .bkind = t->w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16 },
        .c = t->g + h * t->dk, .ldc = a->nh * t->dk, .scale = 1 };

    memset(t->x, 0, (size_t)(t->n * n) * 4);
    for (int64_t k = 0; k < t->npiece; k++)
        for (int64_t i = 0; i < t->piece[k].n; i++) {
            const float *q = tw_row(t->q, token_row(t, &t->piece[k], i)) + h * (a->dn + a->dr);
            int64_t at = t->piece[k].at + i;

            memcpy(t->x + at * n + row - first, q, (size_t)a->dn * 4);
            memcpy(t->g + (at * a->nh + h) * t->dk + a->rkv, q + a->dn, (size_t)a->dr * 4);
        }
    tw_cpu_transpose(t->d, t->wt, t->w, first, n);
    tw_cpu_gemm(t->d, &g);
}

/* o[.., h, ..] = V_h u */
static void apply_values(struct lat *t, int64_t h)
{
    const struct tw_mla *a = t->a;
    int64_t row = h * (a->dn + a->dv) + a->dn, first, n = cover_of(row, a->dv, &first);
    const float *panels = t->w->data;
    struct tw_gemm g = { .m = t->n, .n = n, .low = t->w->dtype == TW_BF16,
        .f = { .a = t->u + h * a->rkv, .lda = a->nh * a->rkv, .s = a->rkv,
            .b = panels + first / 16 * tw_panel_words(t->w->dtype, a->rkv),
            .bkind = t->w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16 },
        .c = t->y, .ldc = n, .scale = 1 };

    tw_cpu_gemm(t->d, &g);
    for (int64_t k = 0; k < t->npiece; k++)
        for (int64_t i = 0; i < t->piece[k].n; i++)
            memcpy(tw_row(t->o, token_row(t, &t->piece[k], i)) + h * a->dv,
                    t->y + (t->piece[k].at + i) * n + row - first, (size_t)a->dv * 4);
}

static const struct tw_lora_run *run_of(const struct tw_lora_ctx *c, int64_t row)
{
    for (int64_t i = 0; c && i < c->nrun; i++)
        if (row >= c->run[i].t0 && row < c->run[i].t1)
            return &c->run[i];
    return NULL;
}

/* The low-rank part of the keys' half, for all heads of one token: g += scale (B_h^T q) A. */
static void lora_keys(const struct lat *t, const struct tw_lora_run *r, int64_t at, const float *q)
{
    const struct tw_mla *a = t->a;

    for (int64_t h = 0; h < a->nh; h++, q += a->dn + a->dr)
        for (int64_t k = 0; k < r->r; k++) {
            const float *b = r->b + h * (a->dn + a->dv) * r->r + k;
            float s = 0;

            for (int64_t i = 0; i < a->dn; i++)
                s = fmaf(q[i], b[i * r->r], s);
            t->d->k->axpy(t->g + (at * a->nh + h) * t->dk, s * r->scale, r->a + k * a->rkv,
                    a->rkv);
        }
}

/* And of the values': o += scale B_h (A u). */
static void lora_values(const struct lat *t, const struct tw_lora_run *r, int64_t at, float *o)
{
    const struct tw_mla *a = t->a;

    for (int64_t h = 0; h < a->nh; h++, o += a->dv)
        for (int64_t k = 0; k < r->r; k++) {
            const float *b = r->b + (h * (a->dn + a->dv) + a->dn) * r->r + k;
            float s = r->scale * t->d->k->dot(r->a + k * a->rkv,
                    t->u + (at * a->nh + h) * a->rkv, a->rkv);

            for (int64_t i = 0; i < a->dv; i++)
                o[i] = fmaf(s, b[i * r->r], o[i]);
        }
}

static void lora_piece(const struct lat *t, bool values)
{
    for (int64_t k = 0; k < t->npiece; k++)
        for (int64_t i = 0; i < t->piece[k].n; i++) {
            int64_t row = token_row(t, &t->piece[k], i);
            const struct tw_lora_run *r = run_of(t->lora, row);

            if (r && values)
                lora_values(t, r, t->piece[k].at + i, tw_row(t->o, row));
            else if (r)
                lora_keys(t, r, t->piece[k].at + i, tw_row(t->q, row));
        }
}

/* One item: rows [r0, r1) of a piece, row r being head r % nh of token r / nh. */
struct work {
    const struct piece *p;
    const struct tw_attn_seq *q;
    int64_t r0, r1;
    float *qp, *s, *o, *v;      /* packed rows; scores, outputs; 32 latents as values */
    uint32_t *pp;
    float sum[ITEM_ROWS];
};

static int64_t pos_of(const struct lat *t, const struct work *w, int64_t r)
{
    return w->q->past + w->p->i + r / t->a->nh;
}

static const float *latents(const struct work *w, int64_t j)
{
    return (const float *)((const char *)w->q->block[j / TW_KV_BLOCK] + w->q->offset);
}

/* Rows [r, r + R): their weights over keys [0, end) at s. */
static void weigh(const struct lat *t, struct work *w, int64_t r, int R)
{
    const struct tw_kern *k = t->d->k;
    float *s = w->s + (r - w->r0) * t->lds, max;
    const float *g = t->g + (w->p->at * t->a->nh + r) * t->dk;
    int64_t end = tw_up(pos_of(t, w, r + R - 1) + 1, t->align);

    if (t->low)
        k->pack16((uint32_t *)w->qp, g, t->dk, R, t->dkw, t->dk);
    else
        k->pack(w->qp, g, t->dk, R, t->dk);
    for (int64_t j = 0, np; j < end; j += np * 16) {
        const float *b = latents(w, j) + j % TW_KV_BLOCK / 16 * t->dkw * 16;

        np = tw_min(t->pr, tw_min(TW_KV_BLOCK - j % TW_KV_BLOCK, end - j) / 16);
        if (t->low)
            k->mm16(s + j, t->lds, (uint32_t *)w->qp, (const uint32_t *)b, t->dkw * 16, t->dkw,
                    true, R, (int)np);
        else
            k->mm(s + j, t->lds, w->qp, R, b, t->dkw * 16, t->dk, true, R, (int)np);
    }
    for (int i = 0; i < R; i++)
        w->sum[r - w->r0 + i] = k->soft(s + i * t->lds, 0, pos_of(t, w, r + i) + 1, end,
                t->a->scale, &max);
}

/* A block's latents as values: [rp / 16][32][16], or pairs of keys [rp / 16][16][16]. */
static void turn(const struct lat *t, struct work *w, int64_t j)
{
    const struct tw_kern *k = t->d->k;
    const float *b = latents(w, j);

    for (int64_t p = 0; p < t->rp / 16; p++)
        for (int64_t half = 0; half < 2; half++) {
            const float *from = b + half * t->dkw * 16;

            if (t->low)
                k->turn16((uint32_t *)w->v + p * 256 + half * 128, (const uint32_t *)from +
                        p * 128);
            else
                k->panel(w->v + p * 512 + half * 256, from + p * 256, 16, 16, 16);
        }
}

/* o of rows [r, r + R) += their weights times the N latents at v, which are those from J on. */
static void mix(const struct lat *t, struct work *w, int64_t r, int R, int64_t j, int64_t n)
{
    const struct tw_kern *k = t->d->k;
    const float *s = w->s + (r - w->r0) * t->lds + j;
    float *o = w->o + (r - w->r0) * t->rp;

    if (t->low)
        k->pack16(w->pp, s, t->lds, R, TW_KV_BLOCK / 2, TW_KV_BLOCK);
    for (int64_t p = 0, np; p < t->rp / 16; p += np) {
        np = tw_min(t->pr, t->rp / 16 - p);
        if (t->low)
            k->mm16(o + p * 16, t->rp, w->pp, (const uint32_t *)w->v + p * 256, 256,
                    TW_KV_BLOCK / 2, !j, R, (int)np);
        else
            k->mms(o + p * 16, t->rp, s, t->lds, w->v + p * 512, 512, n, !j, R, (int)np);
    }
}

static void mix_rows(const struct lat *t, struct work *w)
{
    int64_t keys = pos_of(t, w, w->r1 - 1) + 1;

    for (int64_t j = 0; j < keys; j += TW_KV_BLOCK) {
        turn(t, w, j);
        for (int64_t r = w->r0, R; r < w->r1; r += R) {
            R = tw_min(t->mr, w->r1 - r);
            int64_t n = tw_min(TW_KV_BLOCK, pos_of(t, w, r + R - 1) + 1 - j);

            if (n > 0)
                mix(t, w, r, (int)R, j, n);
        }
    }
}

static void lat_item(void *arg, int64_t i, int thread)
{
    const struct lat *t = arg;
    const struct piece *p = t->piece + t->npiece - 1;
    struct work w = { .qp = (float *)t->d->slot[TW_SLOT_OWN].p + thread * t->own };

    while (p->item > i)
        p--;
    w.p = p;
    w.q = &t->a->seq[p->s];
    w.r0 = (i - p->item) * ITEM_ROWS;
    w.r1 = tw_min(w.r0 + ITEM_ROWS, p->n * t->a->nh);
    w.s = w.qp + MOST_ROWS * t->dk;
    w.o = w.s + ITEM_ROWS * t->lds;
    w.v = w.o + ITEM_ROWS * t->rp;
    w.pp = (uint32_t *)(w.v + TW_KV_BLOCK * t->rp);
    for (int64_t r = w.r0, R; r < w.r1; r += R) {
        R = tw_min(t->mr, w.r1 - r);
        weigh(t, &w, r, (int)R);
    }
    mix_rows(t, &w);
    for (int64_t r = w.r0; r < w.r1; r++)
        t->d->k->epi(t->u + (p->at * t->a->nh + r) * t->a->rkv, w.o + (r - w.r0) * t->rp,
                t->a->rkv, 1 / w.sum[r - w.r0], NULL, NULL);
}

/* False: no memory. */
static bool lat_open(struct lat *t)
{
    const struct tw_mla *a = t->a;
    int64_t longest = 0, rows = CHUNK * a->nh;

    t->low = t->d->low;
    t->mr = t->low ? t->d->k->mr16 : t->d->k->mr;
    t->pr = t->low ? t->d->k->pr16 : t->d->k->pr;
    t->align = t->low ? 32 : 16;
    t->dk = a->rkv + a->dr;
    t->dkw = key_words(t->low, t->dk);
    t->rp = tw_up(a->rkv, 16);
    for (int64_t s = 0; s < a->nseq; s++)
        longest = tw_max(longest, a->seq[s].past + a->seq[s].nq);
    t->lds = tw_up(longest, 32) + 16;
    t->own = MOST_ROWS * (t->dk + TW_KV_BLOCK) + ITEM_ROWS * (t->lds + t->rp) +
            TW_KV_BLOCK * t->rp;
    t->cover = tw_up(tw_max(a->dn, a->dv), 16) + 16;
    t->g = tw_cpu_scratch(t->d, TW_SLOT_X, (size_t)(rows * (t->dk + a->rkv)) * 4);
    t->u = t->g + rows * t->dk;
    t->x = tw_cpu_scratch(t->d, TW_SLOT_Y, (size_t)(2 * CHUNK * t->cover) * 4);
    t->y = t->x + CHUNK * t->cover;
    t->wt = tw_cpu_scratch(t->d, TW_SLOT_WT, (size_t)(t->rp * tw_up(t->cover, 32)) * 4);
    return t->g && t->x && t->wt &&
           tw_cpu_scratch(t->d, TW_SLOT_OWN, (size_t)(t->own * t->d->threads) * 4);
}

/* The chunk that begins with token *I of sequence *S; both move past it. */
static int64_t next_chunk(struct lat *t, int64_t *s, int64_t *i)
{
    int64_t items = 0;

    t->n = t->npiece = 0;
    while (*s < t->a->nseq && t->n < CHUNK) {
        int64_t n = tw_min(CHUNK - t->n, t->a->seq[*s].nq - *i);

        if (n > 0) {
            t->piece[t->npiece++] = (struct piece){ *s, *i, n, t->n, items };
            items += (n * t->a->nh + ITEM_ROWS - 1) / ITEM_ROWS;
            t->n += n;
            *i += n;
        }
        if (*i == t->a->seq[*s].nq) {
            ++*s;
            *i = 0;
        }
    }
    return items;
}

void tw_cpu_mla_decode(struct tw_dev *dev, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a)
{
    struct lat t = { .d = (struct tw_cpu *)dev, .a = a, .w = w, .lora = lora, .q = q, .o = o };
    int64_t s = 0, i = 0, items;

    if (!lat_open(&t))
        return;
    while ((items = next_chunk(&t, &s, &i))) {
        for (int64_t h = 0; h < a->nh; h++)
            absorb_keys(&t, h);
        lora_piece(&t, false);
        tw_cpu_run(t.d, items, lat_item, &t);
        for (int64_t h = 0; h < a->nh; h++)
            apply_values(&t, h);
        lora_piece(&t, true);
    }
}
