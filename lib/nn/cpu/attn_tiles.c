/* attn_tiles.c - attention where a tile unit does all of it (amx_attn.c): a kernel takes 32 rows through, and
 * here is where their keys, queries and outputs lie. */
#include "nn/cpu/attn_priv.h"

#define GROUP 32                /* rows */

/* Rows of one kv head of a sequence. */
struct head {
    const struct tw_att *t;
    int64_t sq, kvh;
    int64_t base;               /* the first key that is listed */
    const uint32_t **k, **v;    /* where each 32 keys begin, and their values */
};

static int64_t steps_of(int64_t keys)
{
    return (keys + 31) / 32;
}

int64_t tw_att_tiles_words(const struct tw_att *t, int64_t longest)
{
    int64_t n = steps_of(longest);

    return TW_ASK_WORDS + GROUP * (t->dkw + t->dvp) + TW_ATT_SCORES + n * GROUP * 16 + tw_up(4 * n, 16);
}

/* The first key that row R sees, or one before it that begins 32. */
static int64_t first_key(const struct head *h, int64_t r)
{
    const struct tw_att *t = h->t;
    int64_t pos = t->a->seq[h->sq].past + r / t->group;

    return t->a->window ? tw_max(0, pos + 1 - t->a->window) / 32 * 32 : 0;
}

static void find_keys(struct head *h, int64_t end)
{
    const struct tw_att *t = h->t;
    int64_t bk = t->seq[h->sq].bk;

    for (int64_t j = h->base, i = 0; j < end; j += 32, i++) {
        const uint32_t *b = (const uint32_t *)tw_att_block(t, h->sq, h->kvh, j);

        h->k[i] = b + j % bk * t->dkw;
        h->v[i] = b + bk * t->dkw + j % bk / 2 * 16;
    }
}

/* A row's query and output, which the kernel packs itself where they are whole groups of 32 numbers. */
static void row_open(const struct head *h, struct tw_att16 *w, int r, const struct tw_att_place *p)
{
    const struct tw_att *t = h->t;
    int64_t dk = t->a->dk;
    bool low = t->q->dtype == TW_BF16;
    const float *x = tw_elem(tw_at(t->q, p->q), low, p->h * dk);

    w->low = low;

    if (dk % 32 == 0)
        w->x[r] = x;
    for (int64_t d = 0; dk % 32 && d < dk; d += 32)
        t->d->k->pack16(w->q + d * GROUP / 2 + r * 16, x + d, dk, 1, 16, dk - d);
    if (t->o->packed)
        w->y[r] = tw_line(t->o, p->q, p->h * t->a->dv, &w->ystep[r]);
}

/* Rows [r, r1), of which there are up to 32, in ROOM. */
static void group(const struct head *h, int64_t r, int64_t r1, struct tw_ask *ask, float *room)
{
    const struct tw_att *t = h->t;
    int64_t kb = first_key(h, r), first = t->a->seq[h->sq].past - t->a->seq[h->sq].q0 + 1 - kb;
    struct tw_att_place p = tw_att_place(t, h->sq, h->kvh, r), q = p;
    struct tw_att16 w = { .R = (int)(r1 - r), .steps = t->dkw / 16, .panels = t->dvp / 16,
        .q = (uint32_t *)room, .o = room + GROUP * t->dkw, .s = room + GROUP * (t->dkw + t->dvp),
        .p = (uint32_t *)room + GROUP * (t->dkw + t->dvp) + TW_ATT_SCORES,
        .k = h->k + (kb - h->base) / 32, .v = h->v + (kb - h->base) / 32,
        .vp = t->seq[h->sq].bk / 2 * 16, .scale = t->a->scale, .ask = ask, .asks = t->asks };

    for (int i = 0; i < w.R; i++, tw_att_next(t, &p)) {
        w.hi[i] = (int)(first + p.q);
        w.lo[i] = t->a->window ? (int)tw_max(0, w.hi[i] - t->a->window) : 0;
        row_open(h, &w, i, &p);
    }
    w.n = steps_of(w.hi[w.R - 1]);
    t->d->k->att16(&w);
    for (int i = 0; i < w.R && (t->lse || !t->o->packed); i++, tw_att_next(t, &q))
        tw_att_out(t, &q, w.o + i * t->dvp, w.max[i], w.sum[i]);
}

void tw_att_tiles(const struct tw_att *t, int64_t s, int64_t kvh, int64_t r0, int64_t r1, float *room)
{
    struct head h = { .t = t, .sq = s, .kvh = kvh, .k = (const uint32_t **)(room + TW_ASK_WORDS) };
    int64_t end = t->a->seq[s].past + (r1 - 1) / t->group + 1, n;

    h.base = first_key(&h, r0);
    n = steps_of(end - h.base);
    h.v = h.k + n;
    find_keys(&h, end);
    for (; r0 < r1; r0 += GROUP)
        group(&h, r0, tw_min(r1, r0 + GROUP), (struct tw_ask *)room, room + TW_ASK_WORDS + tw_up(4 * n, 16));
}
