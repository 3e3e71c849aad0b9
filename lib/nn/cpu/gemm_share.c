/* gemm_share.c - products whose A all threads pack and share, so that a panel of weights is read
 * once for up to SHARE_ROWS rows: for tiles, and where nothing else reads the packed rows. Those stay in
 * L2, and panels pass through what is left of it. There are as many parts of the rows as threads, if they
 * are not too few then: a thread begins with its own, whose lines are in its L2 from op to op. */
#include "nn/cpu/gemm_priv.h"

#define SHARE_ROWS 512
#define SHARE_LEAST 192         /* rows that a panel should be read for */
#define SHARE_WORDS ((int64_t)320 << 10)

struct share {
    struct tw_prod j[TW_GEMM_GROUP];
    struct tw_tile t;           /* the rows that are packed */
    int64_t part;               /* rows of a part of them */
    int64_t per, items[TW_GEMM_GROUP];  /* strips of an item, items of a product for a part */
    int64_t all;                /* items of a part */
};

/* The part that begins with row R of those packed. */
static struct tw_tile part_at(const struct share *h, int64_t r)
{
    struct tw_tile t = h->t;

    t.r0 += r;
    t.r1 = tw_min(t.r1, t.r0 + h->part);
    t.a += r * h->j->s;
    return t;
}

static void share_pack(void *arg, int64_t i, int thread)
{
    struct share *h = arg;
    const struct tw_prod *j = h->j;
    struct tw_tile t = part_at(h, i * j->mr / h->part * h->part);
    int64_t rows = t.r1 - t.r0, r0 = h->t.r0 + i * j->mr, r = r0 - t.r0;

    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);

        tw_prod_pack_a(j, t.a + s * rows + r * n, &j->g->f, r0, tw_min(t.r1, r0 + j->mr), s, n);
    }
}

static void share_item(void *arg, int64_t i, int thread)
{
    struct share *h = arg;
    struct tw_tile t = part_at(h, i / h->all * h->part);
    struct tw_strip e = { .packed = true, .fused = h->j->split || t.r1 - t.r0 >= h->j->mr };
    struct tw_prod *j = h->j;
    int64_t np;

    i %= h->all;
    while (i >= h->items[j - h->j])
        i -= h->items[j++ - h->j];
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_OWN_WORDS - TW_B_WORDS;
    np = tw_min((j->g->n + 15) / 16, (i + 1) * h->per * j->pr);
    e.p1 = np;
    for (e.p = i * h->per * j->pr; e.p < np; e.p += j->pr) {
        e.np = (int)tw_min(j->pr, np - e.p);
        e.c0 = e.p * 16;
        e.n = tw_min(j->g->n - e.c0, e.np * 16);
        tw_strip_run(j, &t, &e);
    }
}

static int64_t strips_of(const struct tw_prod *j)
{
    return (j->g->n + j->pr * 16 - 1) / (j->pr * 16);
}

/* What is split is done sooner by items that pack rows for themselves, as long as they have room for many
 * rows and the columns are not so many that each item reads them from memory. */
#define SPLIT_COLS 4096
#define SPLIT_WORDS 3456

static bool shares(const struct tw_prod *j, const struct tw_gemm *g)
{
    return j->tiles && tw_in_panels(&g->f) && !g->nside && !g->nmore && g->n > 0 && g->m >= 64 && j->s > 0 &&
            (!j->split || g->n > SPLIT_COLS || j->s > SPLIT_WORDS);
}

static bool share_open(struct share *h, struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    const struct tw_kern *k = d->k;

    for (int i = 0; i < n; i++) {
        h->j[i] = tw_prod_of(d, &g[i]);
        if (!shares(&h->j[i], &g[i]) || h->j[i].s != h->j->s || h->j[i].bf != h->j->bf)
            return false;
        h->j[i].kc = tw_prod_even(&h->j[i], h->j[i].split ? k->kc32 : k->kc16);
        h->j[i].strips = true;
    }
    return true;
}

bool tw_share_fits(struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    struct share h;

    return share_open(&h, d, g, n);
}

bool tw_share_run(struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    struct share h = { .all = 0 };
    int64_t rows, most, parts;

    if (!share_open(&h, d, g, n))
        return false;
    most = tw_max(64, tw_min(SHARE_ROWS, SHARE_WORDS / h.j->s));
    rows = (g->m + most * d->threads - 1) / (most * d->threads);
    rows = tw_up((g->m + rows - 1) / rows, h.j->mr);        /* at once */
    parts = tw_max((rows + most - 1) / most, tw_min(d->threads, rows / SHARE_LEAST));
    h.part = tw_up((rows + parts - 1) / parts, h.j->mr);
    parts = (rows + h.part - 1) / h.part;
    h.t = (struct tw_tile){ .ld = h.j->pr * 16,
        .a = tw_cpu_scratch(d, TW_SLOT_SHARE, (size_t)(rows * h.j->s) * 4) };
    if (!h.t.a)
        return true;
    h.per = tw_max(1, strips_of(h.j) * parts / (32 * d->threads));
    for (int i = 0; i < n; i++) {
        h.items[i] = (strips_of(&h.j[i]) + h.per - 1) / h.per;
        h.all += h.items[i];
    }
    for (h.t.r0 = 0; h.t.r0 < g->m; h.t.r0 = h.t.r1) {
        h.t.r1 = tw_min(g->m, h.t.r0 + rows);
        parts = (h.t.r1 - h.t.r0 + h.part - 1) / h.part;
        tw_cpu_run(d, (h.t.r1 - h.t.r0 + h.j->mr - 1) / h.j->mr, share_pack, &h);
        tw_cpu_run(d, parts * h.all, share_item, &h);
    }
    return true;
}
