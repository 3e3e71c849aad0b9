/* gemm_strip.c - products whose B lies in panels, strip by strip: a work item packs some rows of A
 * once, for the narrow side products (LoRA) and for further products of the same A as well, and goes
 * through its columns by the panels of one block. A block's sums stay in registers until they are
 * finished, where one chain holds for all its rows; else the sums of a strip stay in L1 or L2. F32 panels
 * that go to tiles are split into their parts on the way: the next block of the sum while the blocks of
 * rows go through this one. The strips of shared rows go the same way (gemm_share.c). */
#include "nn/cpu/gemm_priv.h"
#include <assert.h>

#define L2_WORDS ((int64_t)96 << 10)    /* of packed rows: what leaves room for panels of B */
#define TURN_WORDS ((int64_t)380 << 10) /* of 2 MiB: packed rows and their sums */

static struct tw_tile tile_at(const struct tw_prod *j, int thread, int64_t r0)
{
    struct tw_tile t = { .r0 = r0, .r1 = tw_min(j->g->m, r0 + j->mc), .ld = (j->few ? j->nc : j->pr) * 16 };

    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_OWN_WORDS - TW_B_WORDS;
    t.a = t.c + (j->turns ? (t.r1 - t.r0) * j->nc * 16 : TW_STRIP_WORDS);
    t.more = t.a + (t.r1 - t.r0) * j->s;
    return t;
}

/* B of F is packed into the thread's own memory. */
static bool packs_b(const struct tw_prod *j, const struct tw_factors *f)
{
    return j->split || !tw_in_panels(f);
}

/* The packed rows of a further product for the whole item; 0 words: it does not reach the rows, or
 * it is packed again for every strip. */
static int64_t room_of(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f)
{
    int64_t rows = tw_min(t->r1, f->r1) - tw_max(t->r0, f->r0), words = tw_prod_words(j, f);

    return rows > 0 && (words <= TW_KC || tw_in_panels(f)) ? rows * words : 0;
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
            int64_t n = tw_min(kc, words - s), len, bp;

            for (int64_t i = 0; i < n; i += len) {      /* few rows: their block is the whole sum */
                const float *b;

                len = tw_min(tw_prod_room(j, 1), n - i);
                b = tw_prod_pack_b(j, t, &e->f, e->n, p, 1, s + i, len, &bp);
                for (int64_t r = from; r < r1; r += j->mr) {
                    int R = (int)tw_min(j->mr, t->r1 - r);

                    tw_prod_block(j, t->c + (r - t->r0) * 16, 16, a + s * rows + (r - t->r0) * n + i * R,
                            b, bp, len, !s && !i, R, 1);
                }
            }
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

        if (n && tw_in_panels(f) == panels)
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

/* Blocks of the sum that are split lie in two places in turn: one is used while the next is split. */
static float *half_of(const struct tw_prod *j, const struct tw_tile *t, int half)
{
    return t->b + half * j->kc * 16 * j->pr;
}

/* Packs what all strips need, and finds out what kind of item it is. */
static void strip_open(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e)
{
    const float *at = t->more;
    int64_t wide = 0;           /* words whose B is packed for a strip, all at once */
    int64_t most = j->split ? tw_prod_room(j, j->pr) - 2 * j->kc : TW_KC;

    e->packed = !j->g->nmore || at + rooms(j, t) + (t->r1 - t->r0) * TW_KC <= t->b;
    e->fused = e->packed && !j->few && (j->split || t->r1 - t->r0 >= j->mr);
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
        wide += packs_b(j, f) ? tw_prod_words(j, f) : 0;
        if (!n || f->r0 > t->r0 || f->r1 < t->r1 || e->parts == TW_STRIP_PARTS || wide > most) {
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
static struct tw_next next_of(const struct tw_prod *j, const struct tw_strip *e, int64_t s, int64_t n,
        int64_t blocks)
{
    bool last = s + n == j->s;
    int64_t p = last ? e->p + j->pr : e->p, to = last ? 0 : s + n, left = (j->g->n + 15) / 16 - p;

    if (!j->tiles || j->split || blocks < 2 || left <= 0)
        return (struct tw_next){ .n = 0 };
    return (struct tw_next){ .at = (const char *)j->g->f.b + (p * j->s + to) * 64, .bp = j->s * 64,
        .panels = tw_min(left, e->np), .n = tw_min(j->kc, j->s - to) * 64 / blocks };
}

/* The panel and the number of the sum that come behind words [s, s + n) of a strip. */
static int64_t behind(const struct tw_prod *j, const struct tw_strip *e, int64_t s, int64_t n, int64_t *at)
{
    bool on = s + n < j->s, last = e->p + j->pr >= e->p1;

    if (j->turns) {
        *at = tw_prod_at(j, last ? s + n : s);
        return !last ? e->p + j->pr : on ? e->p0 : e->p1;
    }
    *at = on ? tw_prod_at(j, s + n) : 0;
    return on ? e->p : e->p + j->pr;
}

/* The split of words [s, s + n) of a strip's B, and what comes behind them to be split meanwhile, where
 * that is whole steps. */
static const float *split_of(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e,
        int64_t s, int64_t n, struct tw_split *next)
{
    const struct tw_factors *f = &j->g->f;
    int64_t at, bp, p = behind(j, e, s, n, &at), len = tw_min(tw_prod_at(j, j->kc), f->s - at);
    const float *here = (const float *)f->b + (e->p * f->s + tw_prod_at(j, s)) * 16;
    struct tw_tile to = { .b = half_of(j, t, e->half) };

    if (e->there != here)
        tw_prod_pack_b(j, &to, f, j->g->n, e->p, e->np, s, n, &bp);
    e->half = !e->half;
    e->there = NULL;
    /* Where further products come in between, they use both places. */
    if (p < e->p1 && len % 32 == 0 && (p == e->p || e->fused || j->turns)) {
        e->there = (const float *)f->b + (p * f->s + at) * 16;
        *next = (struct tw_split){ .src = e->there, .dst = (uint32_t *)half_of(j, t, e->half),
            .ld = 16, .left = len / 2, .pairs = len / 2, .panels = tw_min(j->pr, e->p1 - p),
            .skip = (f->s - len) * 16 };
    }
    return to.b;
}

/* The sums of few rows, in the thread's own memory. */
static void strip_few(const struct tw_prod *j, const struct tw_tile *t, const struct tw_strip *e)
{
    const struct tw_factors *f = &j->g->f;
    struct tw_few w = { .c = t->c, .ldc = t->ld, .first = !j->g->cont, .a = (const uint32_t *)t->a,
        .R = (int)(t->r1 - t->r0), .panels = e->np, .room = (uint32_t *)t->b };

    w.k = j->split ? f->s : j->s;
    w.bp = w.k * 16;
    w.b = (const float *)f->b + e->p * w.bp;
    (j->split ? j->d->k->few32 : j->d->k->few16)(&w);
}

/* Words of A from S on, of which those alone are packed whose turn it is. */
static const float *a_at(const struct tw_prod *j, const struct tw_tile *t, int64_t s)
{
    return t->a + (j->turns ? 0 : s * (t->r1 - t->r0));
}

/* Words [s, s + n) of a strip's sum in the thread's own memory. */
static void strip_split(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e, int64_t s,
        int64_t n)
{
    int64_t rows = t->r1 - t->r0;
    struct tw_whole w = { .part = { { .a = a_at(j, t, s), .s = n, .bp = n * 16 } }, .parts = 1,
        .from = s || j->g->cont ? t->c : NULL, .ldf = t->ld, .c = t->c, .ldc = t->ld,
        .n = e->np * 16, .scale = 1, .rows = rows };

    w.part[0].b = split_of(j, t, e, s, n, &w.split);
    j->d->k->whole32(&w, e->np);
}

/* The blocks of a strip for words [s, s + n) of the sum, the last: they are finished into C. */
static void strip_last(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e,
        int64_t s, int64_t n)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0;
    const struct tw_kern *k = j->d->k;
    void (*whole)(const struct tw_whole *, int) = j->bf ? k->whole16 : j->split ? k->whole32 : k->whole;
    struct tw_whole w = { .part = { { .a = a_at(j, t, s), .s = n } }, .parts = 1 + e->parts,
        .from = s ? t->c : NULL, .ldf = s ? t->ld : g->ldc, .c = g->c + t->r0 * g->ldc + e->c0,
        .ldc = g->ldc, .n = e->n, .scale = g->scale,
        .bias = g->bias ? g->bias + e->c0 : NULL,
        .res = g->res ? g->res + t->r0 * g->ldres + e->c0 : NULL, .ldres = g->ldres,
        .blocks = whole ? rows / j->mr : 0, .rows = rows, .ahead = rows > 32 && (!j->split || !e->asked),
        .follows = e->p + j->pr < e->p1 };
    struct tw_tile to = *t;

    if (j->split) {
        w.part[0].b = split_of(j, t, e, s, n, &w.split);
        w.part[0].bp = n * 16;
        to.b = half_of(j, t, 2);
    } else {
        w.part[0].b = tw_prod_pack_b(j, t, &g->f, g->n, e->p, e->np, s, n, &w.part[0].bp);
    }
    for (int i = 0; i < e->parts; i++) {
        w.part[i + 1].a = e->a[i];
        w.part[i + 1].s = tw_prod_words(j, e->f[i]);
        w.part[i + 1].b = tw_prod_pack_b(j, &to, e->f[i], g->n, e->p, e->np, 0, w.part[i + 1].s,
                &w.part[i + 1].bp);
        if (packs_b(j, e->f[i]))
            to.b += e->np * 16 * w.part[i + 1].s;
    }
    if (!s && g->cont)
        w.from = w.c;
    w.next = next_of(j, e, s, n, w.blocks);
    e->asked = true;
    if (j->split) {
        whole(&w, e->np);
        return;
    }
    if (w.blocks)
        whole(&w, e->np);
    tw_whole_next(&w, w.blocks * j->mr);
    for (int64_t r = w.blocks * j->mr; r < rows; r += j->mr) {
        finish(j, &w, t->c + r * t->ld, t->ld, (int)tw_min(j->mr, rows - r), e->np);
        tw_whole_next(&w, j->mr);
    }
}

/* Further products by way of the thread's memory. */
static void strip_more(const struct tw_prod *j, const struct tw_tile *t, const struct tw_strip *e)
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

void tw_strip_run(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0;

    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s), bp;
        struct tw_next next;
        const float *b;

        if (e->fused && s + n == j->s) {
            strip_last(j, t, e, s, n);
            return;
        }
        if (!s && g->cont)
            tw_prod_load(j, t, e->p, e->np);
        if (j->few || j->split) {
            if (j->few)
                strip_few(j, t, e);
            else
                strip_split(j, t, e, s, n);
            continue;
        }
        b = tw_prod_pack_b(j, t, &g->f, g->n, e->p, e->np, s, n, &bp);
        next = next_of(j, e, s, n, rows / j->mr);
        for (int64_t r = 0; r < rows; r += j->mr) {
            tw_ask(&next);
            tw_prod_block(j, t->c + r * t->ld, t->ld, t->a + s * rows + r * n, b, bp, n,
                    !s && !g->cont, (int)tw_min(j->mr, rows - r), e->np);
        }
    }
    if (g->nmore)
        strip_more(j, t, e);
    j->d->k->epis(g->c + t->r0 * g->ldc + e->c0, g->ldc, t->c, t->ld, rows, e->n, g->scale,
            g->bias ? g->bias + e->c0 : NULL,
            g->res ? g->res + t->r0 * g->ldres + e->c0 : NULL, g->ldres);
}

/* The strip of item E that begins with panel P. */
static void strip_at(const struct tw_prod *j, struct tw_strip *e, int64_t p, int64_t np)
{
    e->p = p;
    e->np = (int)tw_min(np, e->p1 - p);
    e->c0 = p * 16;
    e->n = tw_min(j->g->n - e->c0, e->np * 16);
}

/* All strips for each block of the sum in turn, whose sums stay in L2: few rows for many columns would have
 * each panel read and split for no more rows than have room for all of their sum. */
static void strips_in_turn(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e)
{
    int64_t rows = t->r1 - t->r0;
    struct tw_tile to = *t;

    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);

        tw_prod_pack_a(j, t->a, &j->g->f, t->r0, t->r1, s, n);
        for (int64_t p = e->p0; p < e->p1; p += j->pr) {
            strip_at(j, e, p, j->pr);
            to.c = t->c + (p - e->p0) * 16 * rows;
            if (!s && j->g->cont)
                tw_prod_load(j, &to, e->p, e->np);
            if (s + n < j->s)
                strip_split(j, &to, e, s, n);
            else
                strip_last(j, &to, e, s, n);
        }
    }
}

/* All strips of a product for the rows that are packed. */
static void strips(const struct tw_prod *j, const struct tw_tile *t, int64_t i)
{
    int64_t p0 = i % j->nj * j->nc, p1 = tw_min((j->g->n + 15) / 16, p0 + j->nc), np = t->ld / 16;
    struct tw_strip e = { .p0 = p0, .p1 = p1 };

    if (j->turns) {
        strips_in_turn(j, t, &e);
        return;
    }
    strip_open(j, t, &e);
    for (int64_t p = p0; p < p1; p += np) {
        strip_at(j, &e, p, np);
        tw_strip_run(j, t, &e);
    }
}

void tw_strip_job(void *prod, int64_t i, int thread)
{
    const struct tw_prod *j = prod;
    struct tw_tile t = tile_at(j, thread, i / j->nj * j->mc);

    for (int64_t s = 0; s < j->s && !j->turns; s += j->kc)
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

        if (tw_in_panels(&j->g->more[m])) {
            panels += n;
            bases++;
        } else {
            most = tw_max(most, n);
        }
    }
    return panels + (j->g->nmore ? bases * tw_min(most, TW_KC) + TW_KC : 0);
}

/* Takes turns where that gives a panel half as many rows again as the MOST that have room for their sum. */
static bool plan_turns(struct tw_prod *j, int64_t most)
{
    const struct tw_gemm *g = j->g;
    int64_t np = tw_up((g->n + 15) / 16, j->pr), threads = j->d->threads, rows;

    j->kc = tw_prod_even(j, j->d->k->kc32);
    rows = tw_min(TURN_WORDS, TW_OWN_WORDS - TW_B_WORDS) / (np * 16 + j->kc) / j->mr * j->mr;
    if (2 * rows < 3 * most || g->nside || g->nmore || j->s <= j->kc)
        return false;
    rows = tw_up((g->m + rows - 1) / rows, threads);
    if (rows < 2 * threads)
        return false;
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    j->nc = np;
    j->nj = 1;
    j->turns = j->strips = j->sides = true;
    return true;
}

int64_t tw_strip_plan(struct tw_prod *j, bool alone)
{
    const struct tw_gemm *g = j->g;
    const struct tw_kern *k = j->d->k;
    int64_t items = 4 * j->d->threads, np = (g->n + 15) / 16, most, rows, cols, words;
    int64_t room = TW_OWN_WORDS - TW_STRIP_WORDS - TW_B_WORDS;

    if (!tw_in_panels(&g->f) || g->n < 1 || j->s < 1)
        return 0;
    words = row_words(j);
    most = tw_min(j->bf || j->tiles ? k->mc16 : TW_MC, room / words);
    if (!j->tiles)              /* tiles have an L2 cache of twice the size */
        most = tw_min(most, tw_max(64, L2_WORDS / words));
    most = most / j->mr * j->mr;
    if (most < j->mr)
        return 0;
    j->n = 1;
    if (j->split && alone && plan_turns(j, most))
        return (g->m + j->mc - 1) / j->mc;
    rows = (g->m + most - 1) / most;
    if (np <= 256 && rows < items && g->m >= 64 * j->d->threads)    /* rather rows than columns */
        rows = tw_max(rows, tw_min(items, (g->m + 63) / 64));   /* no item gets more than it has room for */
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    assert(j->mc * words <= room);
    rows = (g->m + j->mc - 1) / j->mc;
    cols = rows < items ? (items + rows - 1) / rows : 1;
    j->nc = tw_up((np + cols - 1) / cols, j->pr > 1 ? j->pr : 3);
    j->few = (j->split || (j->bf && k->few16)) && g->m <= k->few;
    if (j->few)
        j->nc = tw_min(j->nc, TW_STRIP_WORDS / 16 / g->m);
    j->nj = (np + j->nc - 1) / j->nc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j->kc = tw_prod_even(j, !j->few && j->split ? k->kc32 : g->m <= 32 ? j->s : j->bf ? k->kc16 : TW_KC);
    j->strips = true;
    j->sides = j->nj == 1;
    return rows * j->nj;
}
