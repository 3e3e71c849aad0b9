/* gemm_strip.c - products whose B lies in panels, in two ways. Strips: a work item packs some rows of A
 * once, for the narrow side products (LoRA) and for further products of the same A as well, and goes
 * through its columns by the panels of one block. A block's sums stay in registers until they are
 * finished, where one chain holds for all its rows; else the sums of a strip stay in L1 or L2.
 * Shared rows: all threads pack the rows of A that all of them then read (tw_share_run). */
#include "nn/cpu/gemm_priv.h"
#include <assert.h>

#define L2_WORDS ((int64_t)96 << 10)    /* of packed rows: what leaves room for panels of B */
#define PARTS (TW_WHOLE_PARTS - 1)

static struct tw_tile tile_at(const struct tw_prod *j, int thread, int64_t r0)
{
    struct tw_tile t = { .r0 = r0, .r1 = tw_min(j->g->m, r0 + j->mc), .ld = j->pr * 16 };

    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_OWN_WORDS - 3 * 16 * TW_KC;
    t.a = t.c + TW_STRIP_WORDS;
    t.more = t.a + (t.r1 - t.r0) * j->s;
    return t;
}

static bool in_panels(const struct tw_factors *f)
{
    return f->bkind == TW_B_PANEL || f->bkind == TW_B_PANEL16;
}

/* The packed rows of a further product for the whole item; 0 words: it does not reach the rows, or
 * it is packed again for every strip. */
static int64_t room_of(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f)
{
    int64_t rows = tw_min(t->r1, f->r1) - tw_max(t->r0, f->r0), words = tw_prod_words(j, f);

    return rows > 0 && (words <= TW_KC || in_panels(f)) ? rows * words : 0;
}

/* Words that further products take in all. */
static int64_t rooms(const struct tw_prod *j, const struct tw_tile *t)
{
    int64_t n = 0;

    for (int64_t m = 0; m < j->g->nmore; m++)
        n += room_of(j, t, &j->g->more[m]);
    return n;
}

/* A side product: panel by panel, of A's packed words in blocks of KC. */
static void side(const struct tw_prod *j, const struct tw_tile *t, const struct tw_side *e,
        const float *a, int64_t words, int64_t kc)
{
    int64_t r0 = tw_max(t->r0, e->f.r0), r1 = tw_min(t->r1, e->f.r1), rows = t->r1 - t->r0;
    int64_t from = (r0 - t->r0) / j->mr * j->mr + t->r0;

    for (int64_t p = 0; r0 < r1 && p * 16 < e->n; p++) {
        for (int64_t s = 0; s < words; s += kc) {
            int64_t n = tw_min(kc, words - s), bp;
            const float *b = tw_prod_pack_b(j, t, &e->f, e->n, p, 1, s, n, &bp);

            for (int64_t r = from; r < r1; r += j->mr)
                tw_prod_block(j, t->c + (r - t->r0) * 16, 16, a + s * rows + (r - t->r0) * n, b, bp,
                        n, !s, (int)tw_min(j->mr, t->r1 - r), 1);
        }
        j->d->k->epis(e->out + (r0 - e->f.r0) * e->ldo + p * 16, e->ldo,
                t->c + (r0 - t->r0) * 16, 16, r1 - r0, tw_min(16, e->n - p * 16), e->scale, NULL,
                NULL, 0);
    }
}

/* Packs the rows of further products of one kind: those in panels, whose A is there already, or
 * those that wait for side products. */
static void pack_more(const struct tw_prod *j, const struct tw_tile *t, bool panels)
{
    float *at = t->more;

    for (int64_t m = 0; m < j->g->nmore; m++) {
        const struct tw_factors *f = &j->g->more[m];
        int64_t n = room_of(j, t, f);

        if (n && in_panels(f) == panels)
            tw_prod_pack_a(j, at, f, tw_max(t->r0, f->r0), tw_min(t->r1, f->r1), 0,
                    tw_prod_words(j, f));
        at += n;
    }
}

static void sides(const struct tw_prod *j, const struct tw_tile *t)
{
    const struct tw_gemm *g = j->g;

    for (int64_t e = 0; e < g->nside; e++) {
        const struct tw_side *x = &g->side[e];
        const float *a = t->more;
        int64_t words;

        if (!x->of) {
            side(j, t, x, t->a, j->s, j->kc);
            continue;
        }
        for (int64_t m = 0; m + 1 < x->of; m++)
            a += room_of(j, t, &g->more[m]);
        words = tw_prod_words(j, &g->more[x->of - 1]);
        side(j, t, x, a, words, words);
    }
}

/* A strip, and what its blocks go on with after their own sum. */
struct strip {
    int64_t p, c0, n;           /* its first panel; its columns */
    int np;
    bool packed;                /* further products are packed for the whole item */
    bool fused;                 /* and each holds for all rows: */
    int parts;
    const struct tw_factors *f[PARTS];
    const float *a[PARTS];
};

/* Packs what all strips need, and finds out what kind of item it is. */
static void strip_open(const struct tw_prod *j, const struct tw_tile *t, struct strip *e)
{
    const float *at = t->more;
    int64_t wide = 0;           /* words whose B is packed for a strip, all at once */

    e->packed = at + rooms(j, t) + (t->r1 - t->r0) * TW_KC <= t->b;
    e->fused = e->packed && t->r1 - t->r0 >= j->mr;
    if (e->packed)
        pack_more(j, t, true);
    if (j->sides)
        sides(j, t);
    if (e->packed)
        pack_more(j, t, false);
    for (int64_t m = 0; m < j->g->nmore; m++) {
        const struct tw_factors *f = &j->g->more[m];
        int64_t n = room_of(j, t, f);

        if (tw_min(t->r1, f->r1) <= tw_max(t->r0, f->r0))
            continue;
        wide += in_panels(f) ? 0 : tw_prod_words(j, f);
        if (!n || f->r0 > t->r0 || f->r1 < t->r1 || e->parts == PARTS || wide > TW_KC) {
            e->fused = false;
        } else if (e->fused) {
            e->f[e->parts] = f;
            e->a[e->parts++] = at;
        }
        at += n;
    }
}

/* A block whose rows are fewer, or for which there is no kernel: by way of the thread's memory. */
static void finish(const struct tw_prod *j, const struct tw_whole *w, float *c, int64_t ld, int R,
        int np)
{
    const struct tw_kern *k = j->d->k;

    if (w->from && w->from != c)
        k->epis(c, ld, w->from, w->ldf, R, w->n, 1, NULL, NULL, 0);
    for (int i = 0; i < w->parts; i++)
        tw_prod_block(j, c, ld, w->part[i].a, w->part[i].b, w->part[i].bp, w->part[i].s,
                !i && !w->from, R, np);
    k->epis(w->c, w->ldc, c, ld, R, w->n, w->scale, w->bias, w->res, w->ldres);
}

/* What BLOCKS blocks of words [s, s + n) of a strip's sum ask for: the panels of the words behind them.
 * Tiles are done sooner than weights come from memory. */
static struct tw_next next_of(const struct tw_prod *j, const struct strip *e, int64_t s, int64_t n,
        int64_t blocks)
{
    bool last = s + n == j->s;
    int64_t p = last ? e->p + j->pr : e->p, to = last ? 0 : s + n, left = (j->g->n + 15) / 16 - p;

    if (!j->bf || j->d->k->unit16 == 1 || blocks < 2 || left <= 0)
        return (struct tw_next){ .n = 0 };
    return (struct tw_next){ .at = (const char *)j->g->f.b + (p * j->s + to) * 64, .bp = j->s * 64,
        .panels = tw_min(left, e->np), .n = tw_min(j->kc, j->s - to) * 64 / blocks };
}

/* The blocks of a strip for words [s, s + n) of the sum, the last: they are finished into C. */
static void strip_last(const struct tw_prod *j, const struct tw_tile *t, const struct strip *e,
        int64_t s, int64_t n)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0;
    void (*whole)(const struct tw_whole *, int) = j->bf ? j->d->k->whole16 : j->d->k->whole;
    struct tw_whole w = { .part = { { t->a + s * rows,
            (const float *)g->f.b + (e->p * j->s + s) * 16, j->s * 16, n } },
        .parts = 1 + e->parts, .from = s ? t->c : NULL, .ldf = s ? t->ld : g->ldc,
        .c = g->c + t->r0 * g->ldc + e->c0, .ldc = g->ldc, .n = e->n, .scale = g->scale,
        .bias = g->bias ? g->bias + e->c0 : NULL,
        .res = g->res ? g->res + t->r0 * g->ldres + e->c0 : NULL, .ldres = g->ldres,
        .blocks = whole ? rows / j->mr : 0, .ahead = rows > 32 };
    struct tw_tile to = *t;

    for (int i = 0; i < e->parts; i++) {
        w.part[i + 1].a = e->a[i];
        w.part[i + 1].s = tw_prod_words(j, e->f[i]);
        w.part[i + 1].b = tw_prod_pack_b(j, &to, e->f[i], g->n, e->p, e->np, 0, w.part[i + 1].s,
                &w.part[i + 1].bp);
        if (!in_panels(e->f[i]))
            to.b += e->np * 16 * w.part[i + 1].s;
    }
    if (!s && g->cont)
        w.from = w.c;
    w.next = next_of(j, e, s, n, w.blocks);
    if (w.blocks)
        whole(&w, e->np);
    tw_whole_next(&w, w.blocks * j->mr);
    for (int64_t r = w.blocks * j->mr; r < rows; r += j->mr) {
        finish(j, &w, t->c + r * t->ld, t->ld, (int)tw_min(j->mr, rows - r), e->np);
        tw_whole_next(&w, j->mr);
    }
}

/* Further products by way of the thread's memory. */
static void strip_more(const struct tw_prod *j, const struct tw_tile *t, const struct strip *e)
{
    struct tw_tile to = *t;
    const float *at = t->more;

    to.p0 = e->p;
    to.p1 = e->p + e->np;
    to.more += e->packed ? rooms(j, t) : 0;
    for (int64_t m = 0; m < j->g->nmore; m++) {
        const struct tw_factors *f = &j->g->more[m];
        int64_t n = room_of(j, t, f);

        if (e->packed && n)
            tw_prod_add(j, &to, f, at, tw_max(t->r0, f->r0), tw_min(t->r1, f->r1), 0,
                    tw_prod_words(j, f), false);
        else
            tw_prod_more(j, &to, f);
        at += n;
    }
}

static void strip(const struct tw_prod *j, const struct tw_tile *t, const struct strip *e)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0;

    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);
        const float *b = (const float *)g->f.b + (e->p * j->s + s) * 16;
        struct tw_next next;

        if (e->fused && s + n == j->s) {
            strip_last(j, t, e, s, n);
            return;
        }
        if (!s && g->cont)
            tw_prod_load(j, t, e->p, e->np);
        next = next_of(j, e, s, n, rows / j->mr);
        for (int64_t r = 0; r < rows; r += j->mr) {
            tw_ask(&next);
            tw_prod_block(j, t->c + r * t->ld, t->ld, t->a + s * rows + r * n, b, j->s * 16, n,
                    !s && !g->cont, (int)tw_min(j->mr, rows - r), e->np);
        }
    }
    if (g->nmore)
        strip_more(j, t, e);
    j->d->k->epis(g->c + t->r0 * g->ldc + e->c0, g->ldc, t->c, t->ld, rows, e->n, g->scale,
            g->bias ? g->bias + e->c0 : NULL,
            g->res ? g->res + t->r0 * g->ldres + e->c0 : NULL, g->ldres);
}

/* Words of a block of a sum of S, all of about the same length, up to KC. */
static int64_t even_blocks(int64_t s, int64_t kc)
{
    int64_t blocks = (s + kc - 1) / kc;

    return tw_up((s + blocks - 1) / blocks, 16);
}

/* All strips of a product for the rows that are packed. */
static void strips(const struct tw_prod *j, const struct tw_tile *t, int64_t i)
{
    int64_t p0 = i % j->nj * j->nc, p1 = tw_min((j->g->n + 15) / 16, p0 + j->nc);
    struct strip e = { .parts = 0 };

    strip_open(j, t, &e);
    for (e.p = p0; e.p < p1; e.p += j->pr) {
        e.np = (int)tw_min(j->pr, p1 - e.p);
        e.c0 = e.p * 16;
        e.n = tw_min(j->g->n - e.c0, e.np * 16);
        strip(j, t, &e);
    }
}

void tw_strip_job(void *prod, int64_t i, int thread)
{
    const struct tw_prod *j = prod;
    struct tw_tile t = tile_at(j, thread, i / j->nj * j->mc);

    for (int64_t s = 0; s < j->s; s += j->kc)
        tw_prod_pack_a(j, t.a + s * (t.r1 - t.r0), &j->g->f, t.r0, t.r1, s,
                tw_min(j->kc, j->s - s));
    for (int q = 0; q < j->n; q++)
        strips(j + q, &t, i);
}

/* Words of packed rows that one row takes, further products included: a row is in one run of each
 * product in panels. */
static int64_t row_words(const struct tw_prod *j)
{
    int64_t panels = j->s, bases = 1, most = 0;

    for (int64_t m = 0; m < j->g->nmore; m++) {
        int64_t n = tw_prod_words(j, &j->g->more[m]);

        if (in_panels(&j->g->more[m])) {
            panels += n;
            bases++;
        } else {
            most = tw_max(most, n);
        }
    }
    return panels + (j->g->nmore ? bases * tw_min(most, TW_KC) + TW_KC : 0);
}

/* Products whose A all threads pack and share, so that one thread reads a panel of weights once for
 * up to SHARE_ROWS rows: for tiles, and where nothing else reads the packed rows. Those stay in L2, and
 * panels pass through what is left of it. */
#define SHARE_ROWS 512
#define SHARE_WORDS ((int64_t)320 << 10)

struct share {
    struct tw_prod j[TW_GEMM_GROUP];
    struct tw_tile t;           /* the rows that are packed */
    int64_t per, items[TW_GEMM_GROUP];  /* strips of an item, items of a product */
};

static void share_pack(void *arg, int64_t i, int thread)
{
    struct share *h = arg;
    const struct tw_prod *j = h->j;
    int64_t rows = h->t.r1 - h->t.r0, r = i * j->mr, r0 = h->t.r0 + r;

    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);

        tw_prod_pack_a(j, h->t.a + s * rows + r * n, &j->g->f, r0, tw_min(h->t.r1, r0 + j->mr), s, n);
    }
}

static void share_item(void *arg, int64_t i, int thread)
{
    struct share *h = arg;
    struct tw_tile t = h->t;
    struct strip e = { .packed = true, .fused = t.r1 - t.r0 >= h->j->mr };
    struct tw_prod *j = h->j;
    int64_t np;

    while (i >= h->items[j - h->j])
        i -= h->items[j++ - h->j];
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    np = tw_min((j->g->n + 15) / 16, (i + 1) * h->per * j->pr);
    for (e.p = i * h->per * j->pr; e.p < np; e.p += j->pr) {
        e.np = (int)tw_min(j->pr, np - e.p);
        e.c0 = e.p * 16;
        e.n = tw_min(j->g->n - e.c0, e.np * 16);
        strip(j, &t, &e);
    }
}

static int64_t strips_of(const struct tw_prod *j)
{
    return (j->g->n + j->pr * 16 - 1) / (j->pr * 16);
}

static bool shares(const struct tw_prod *j, const struct tw_gemm *g)
{
    return j->bf && j->d->k->unit16 > 1 && in_panels(&g->f) && !g->nside && !g->nmore && g->n > 0 &&
            g->m >= 64 && j->s > 0;
}

static bool share_open(struct share *h, struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    const struct tw_kern *k = d->k;

    for (int i = 0; i < n; i++) {
        h->j[i] = tw_prod_of(d, &g[i]);
        if (!shares(&h->j[i], &g[i]) || h->j[i].s != h->j->s)
            return false;
        h->j[i].mr = k->mr16;
        h->j[i].pr = k->pr16;
        h->j[i].kc = even_blocks(h->j->s, k->kc16);
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
    struct share h;
    int64_t rows, most, items = 0;

    if (!share_open(&h, d, g, n))
        return false;
    most = tw_max(64, tw_min(SHARE_ROWS, SHARE_WORDS / h.j->s));
    rows = (g->m + most - 1) / most;
    rows = tw_up((g->m + rows - 1) / rows, h.j->mr);
    h.t = (struct tw_tile){ .ld = h.j->pr * 16,
        .a = tw_cpu_scratch(d, TW_SLOT_SHARE, (size_t)(rows * h.j->s) * 4) };
    if (!h.t.a)
        return true;
    h.per = tw_max(1, strips_of(h.j) / (8 * d->threads));
    for (int i = 0; i < n; i++) {
        h.items[i] = (strips_of(&h.j[i]) + h.per - 1) / h.per;
        items += h.items[i];
    }
    for (h.t.r0 = 0; h.t.r0 < g->m; h.t.r0 = h.t.r1) {
        h.t.r1 = tw_min(g->m, h.t.r0 + rows);
        tw_cpu_run(d, (h.t.r1 - h.t.r0 + h.j->mr - 1) / h.j->mr, share_pack, &h);
        tw_cpu_run(d, items, share_item, &h);
    }
    return true;
}

int64_t tw_strip_plan(struct tw_prod *j)
{
    const struct tw_gemm *g = j->g;
    const struct tw_kern *k = j->d->k;
    int64_t items = 4 * j->d->threads, np = (g->n + 15) / 16, most, rows, cols, words;
    int64_t room = TW_OWN_WORDS - TW_STRIP_WORDS - 3 * 16 * TW_KC;

    if (!in_panels(&g->f) || g->n < 1 || j->s < 1)
        return 0;
    j->mr = j->bf ? k->mr16 : k->mr;
    j->pr = j->bf ? k->pr16 : k->pr;
    words = row_words(j);
    most = tw_min(j->bf ? k->mc16 : TW_MC, room / words);
    if (!j->bf || k->unit16 == 1)               /* tiles have an L2 cache of twice the size */
        most = tw_min(most, tw_max(64, L2_WORDS / words));
    most = most / j->mr * j->mr;
    if (most < j->mr)
        return 0;
    rows = (g->m + most - 1) / most;
    if (np <= 256 && rows < items && g->m >= 64 * j->d->threads)    /* rather rows than columns */
        rows = tw_max(rows, tw_min(items, (g->m + 63) / 64));   /* no item gets more than it has room for */
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    assert(j->mc * words <= room);
    rows = (g->m + j->mc - 1) / j->mc;
    cols = rows < items ? (items + rows - 1) / rows : 1;
    j->nc = tw_up((np + cols - 1) / cols, j->pr > 1 ? j->pr : 3);
    j->nj = (np + j->nc - 1) / j->nc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j->kc = even_blocks(j->s, g->m <= 32 ? j->s : j->bf ? k->kc16 : TW_KC);
    j->strips = true;
    j->sides = j->nj == 1;
    j->n = 1;
    return rows * j->nj;
}
