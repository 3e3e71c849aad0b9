/* gemm.c - every product of the CPU. Blocks of the sum are added in order to what lies in the
 * thread's own memory, so cutting the sum for the caches does not change the chain. Inputs are
 * packed by the thread that uses them: A interleaved by block of rows, B (unless it already lies in
 * panels) as panels. A product is cut in one of two ways:
 *
 * Strips, where B lies in panels: a work item packs some rows of A once, for the narrow side
 * products (LoRA) as well, and goes through its columns by the panels of one block; the sums of a
 * strip stay in L1 or L2 and are finished into C before the next strip.
 *
 * Tiles, where B must be packed: up to TW_MC_RAW rows and TW_TILE / rows panels, so that what is
 * packed is used often.
 *
 * What bounds it: a block of 8 rows and 3 panels does 24 multiply-adds per 11 loads; B's panels (up
 * to 3 * TW_KC * 64 bytes) stay in L2 while all rows pass, A's block in L1. Few rows (decoding) are
 * bound by reading B once. */
#include "nn/cpu/cpu_priv.h"

struct job {
    struct tw_cpu *d;
    const struct tw_gemm *g;
    bool bf;
    int64_t mc, nc, nj;         /* rows and panels of a tile, tiles per row of tiles */
    int64_t s, kc;              /* length of the sum and of a block, in words */
    int mr, pr;
    bool strips, sides;         /* the way of strips; its items do side products as well */
};

struct tile {
    float *c, *a, *more, *b;    /* sums; packed A, A of further products, B */
    int64_t r0, r1, p0, p1, ld;
};

/* Words [s0, s0 + n) of the sum of rows [r0, r1), in blocks of mr rows. */
static void pack_a(const struct job *j, float *to, const struct tw_factors *f, int64_t r0,
        int64_t r1, int64_t s0, int64_t n)
{
    const struct tw_kern *k = j->d->k;

    for (int64_t r = r0; r < r1; r += j->mr) {
        float *dst = to + (r - r0) * n;
        int rows = (int)tw_min(j->mr, r1 - r);

        if (j->bf)
            k->pack16((uint32_t *)dst, f->a + r * f->lda + 2 * s0, f->lda, rows, n, f->s - 2 * s0);
        else
            k->pack(dst, f->a + r * f->lda + s0, f->lda, rows, n);
    }
}

/* Words of the sum of F. */
static int64_t words_of(const struct job *j, const struct tw_factors *f)
{
    if (!j->bf)
        return f->s;
    return f->bkind == TW_B_PANEL16 ? tw_up(f->s, 32) / 2 : tw_up(f->s, 2 * j->d->k->unit16) / 2;
}

/* Panels [p, p + np) of B, which has N columns, for words [s0, s0 + n): where they lie, packed if
 * need be. */
static const float *pack_b(const struct job *j, const struct tile *t, const struct tw_factors *f,
        int64_t N, int64_t p, int64_t np, int64_t s0, int64_t n, int64_t *bp)
{
    const struct tw_kern *k = j->d->k;
    const float *b = f->b;

    if (f->bkind == TW_B_PANEL || f->bkind == TW_B_PANEL16) {
        *bp = words_of(j, f) * 16;
        return b + p * *bp + s0 * 16;
    }
    *bp = n * 16;
    for (int64_t q = 0; q < np; q++) {
        float *dst = t->b + q * n * 16;
        int64_t c = (p + q) * 16, w = tw_min(16, N - c);

        if (f->bkind == TW_B_COLS && j->bf)
            k->panel16((uint32_t *)dst, b + c * f->ldb + 2 * s0, f->ldb, w, n, f->s - 2 * s0);
        else if (f->bkind == TW_B_COLS)
            k->panel(dst, b + c * f->ldb + s0, f->ldb, w, n);
        else if (j->bf)
            k->pairs((uint32_t *)dst, 16, b + 2 * s0 * f->ldb + c, f->ldb, (int)w, n,
                    f->s - 2 * s0, false, 0);
        else
            k->packc(dst, 16, b + s0 * f->ldb + c, f->ldb, (int)w, n);
    }
    return t->b;
}

static void block(const struct job *j, float *c, int64_t ldc, const float *a, const float *b,
        int64_t bp, int64_t n, bool first, int rows, int np)
{
    const struct tw_kern *k = j->d->k;

    if (j->bf)
        k->mm16(c, ldc, (const uint32_t *)a, (const uint32_t *)b, bp, n, first, rows, np);
    else
        k->mm(c, ldc, a, rows, b, bp, n, first, rows, np);
}

/* Adds words [s0, s0 + n) of F's product to rows [r0, r1) of the tile; A is packed. */
static void tile_block(const struct job *j, const struct tile *t, const struct tw_factors *f,
        const float *a, int64_t r0, int64_t r1, int64_t s0, int64_t n, bool first)
{
    for (int64_t p = t->p0; p < t->p1; p += j->pr) {
        int np = (int)tw_min(j->pr, t->p1 - p);
        int64_t bp;
        const float *b = pack_b(j, t, f, j->g->n, p, np, s0, n, &bp);

        for (int64_t r = r0; r < r1; r += j->mr)
            block(j, t->c + (r - t->r0) * t->ld + (p - t->p0) * 16, t->ld, a + (r - r0) * n, b,
                    bp, n, first, (int)tw_min(j->mr, r1 - r), np);
    }
}

static void tile_more(const struct job *j, const struct tile *t, const struct tw_factors *f)
{
    int64_t r0 = tw_max(t->r0, f->r0), r1 = tw_min(t->r1, f->r1), words = words_of(j, f);

    for (int64_t s = 0; r0 < r1 && s < words; s += TW_KC) {
        int64_t n = tw_min(TW_KC, words - s);

        pack_a(j, t->more, f, r0, r1, s, n);
        tile_block(j, t, f, t->more, r0, r1, s, n, false);
    }
}

static struct tile tile_at(const struct job *j, int thread, int64_t r0)
{
    struct tile t = { .r0 = r0, .r1 = tw_min(j->g->m, r0 + j->mc) };

    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_OWN_WORDS - 3 * 16 * TW_KC;
    t.more = t.b - TW_MC * TW_KC;
    t.a = t.c + (j->strips ? TW_STRIP_WORDS : TW_TILE_WORDS);
    return t;
}

static void tile_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    struct tile t = tile_at(j, thread, i / j->nj * j->mc);
    int64_t c0;

    t.p0 = i % j->nj * j->nc;
    t.p1 = tw_min((g->n + 15) / 16, t.p0 + j->nc);
    t.ld = (t.p1 - t.p0) * 16 + 16;     /* no power of two: rows on different sets of the cache */
    if (!j->s)
        memset(t.c, 0, (size_t)((t.r1 - t.r0) * t.ld) * 4);
    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);

        pack_a(j, t.a, &g->f, t.r0, t.r1, s, n);
        tile_block(j, &t, &g->f, t.a, t.r0, t.r1, s, n, !s);
    }
    for (int64_t m = 0; m < g->nmore; m++)
        tile_more(j, &t, &g->more[m]);
    c0 = t.p0 * 16;
    j->d->k->epis(g->c + t.r0 * g->ldc + c0, g->ldc, t.c, t.ld, t.r1 - t.r0,
            tw_min(g->n, t.p1 * 16) - c0, g->scale, g->bias ? g->bias + c0 : NULL,
            g->res ? g->res + t.r0 * g->ldres + c0 : NULL, g->ldres);
}

/* Strips: all sums of the rows for the panels of one block, finished into C before the next. */

/* A side product, A being packed; panel by panel. */
static void strip_side(const struct job *j, const struct tile *t, const struct tw_side *e)
{
    int64_t r0 = tw_max(t->r0, e->f.r0), r1 = tw_min(t->r1, e->f.r1), rows = t->r1 - t->r0;
    int64_t from = (r0 - t->r0) / j->mr * j->mr + t->r0;

    for (int64_t p = 0; r0 < r1 && p * 16 < e->n; p++) {
        for (int64_t s = 0; s < j->s; s += j->kc) {
            int64_t n = tw_min(j->kc, j->s - s), bp;
            const float *b = pack_b(j, t, &e->f, e->n, p, 1, s, n, &bp);

            for (int64_t r = from; r < r1; r += j->mr)
                block(j, t->c + (r - t->r0) * 16, 16, t->a + s * rows + (r - t->r0) * n, b, bp, n,
                        !s, (int)tw_min(j->mr, t->r1 - r), 1);
        }
        j->d->k->epis(e->out + (r0 - e->f.r0) * e->ldo + p * 16, e->ldo,
                t->c + (r0 - t->r0) * 16, 16, r1 - r0, tw_min(16, e->n - p * 16), e->scale, NULL,
                NULL, 0);
    }
}

/* The packed rows of a further product for the whole item; 0 words: it does not reach the rows, or
 * there is no room and it is packed again for every strip. */
static int64_t strip_room(const struct job *j, const struct tile *t, const struct tw_factors *f)
{
    int64_t rows = tw_min(t->r1, f->r1) - tw_max(t->r0, f->r0), words = words_of(j, f);

    return rows > 0 && words <= TW_KC ? rows * words : 0;
}

static void strip_more(const struct job *j, struct tile *t, int64_t p, bool packed)
{
    float *at = t->more;

    t->p0 = p;
    t->p1 = tw_min((j->g->n + 15) / 16, p + j->pr);
    for (int64_t m = 0; m < j->g->nmore; m++) {
        const struct tw_factors *f = &j->g->more[m];

        if (packed && strip_room(j, t, f))
            tile_block(j, t, f, at, tw_max(t->r0, f->r0), tw_min(t->r1, f->r1), 0,
                    words_of(j, f), false);
        else
            tile_more(j, t, f);
        at += strip_room(j, t, f);
    }
}

/* Asks for the lines of C (and of what is added to it) that a strip will finish: a block of the sum
 * takes longer than they do, and stores would wait for each of them. */
static void strip_ahead(const struct tw_gemm *g, int64_t r, int64_t rows, int64_t c0, int64_t n)
{
    for (int64_t i = r; i < r + rows; i++)
        for (int64_t c = c0; c < c0 + n; c += 16) {
            __builtin_prefetch(g->c + i * g->ldc + c, 1);
            if (g->res && g->res != g->c)
                __builtin_prefetch(g->res + i * g->ldres + c, 0);
        }
}

/* Packs what all strips need. False: there was no room for the further products. */
static bool strip_open(const struct job *j, const struct tile *t)
{
    const struct tw_gemm *g = j->g;
    int64_t room = 0;
    float *at = t->more;

    for (int64_t s = 0; s < j->s; s += j->kc)
        pack_a(j, t->a + s * (t->r1 - t->r0), &g->f, t->r0, t->r1, s, tw_min(j->kc, j->s - s));
    for (int64_t e = 0; e < g->nside && j->sides; e++)
        strip_side(j, t, &g->side[e]);
    for (int64_t m = 0; m < g->nmore; m++)
        room += strip_room(j, t, &g->more[m]);
    for (int64_t m = 0; m < g->nmore && room <= TW_MC * TW_KC; m++) {
        const struct tw_factors *f = &g->more[m];
        int64_t n = strip_room(j, t, f);

        if (n)
            pack_a(j, at, f, tw_max(t->r0, f->r0), tw_min(t->r1, f->r1), 0, words_of(j, f));
        at += n;
    }
    return room <= TW_MC * TW_KC;
}

/* What a strip's blocks go on with after their own sum. */
struct strip {
    int64_t p, c0, n;           /* its first panel; its columns */
    int np;
    bool packed;                /* strip_open()'s answer */
    bool fused;                 /* one further product at most, in the same blocks: */
    const struct tw_factors *f; /* which, NULL: none reaches these rows */
    const float *a;             /* its rows, packed */
};

/* Looks for the further product that holds all rows of the item and is the only one. */
static void strip_fuse(const struct job *j, const struct tile *t, struct strip *e)
{
    const float *at = t->more;

    e->fused = true;
    for (int64_t m = 0; m < j->g->nmore; m++) {
        const struct tw_factors *f = &j->g->more[m];
        int64_t room = strip_room(j, t, f);

        if (tw_min(t->r1, f->r1) > tw_max(t->r0, f->r0)) {
            if (e->f || !room || !e->packed || f->r0 > t->r0 || f->r1 < t->r1)
                e->fused = false;
            e->f = f;
            e->a = at;
        }
        at += room;
    }
}

/* The blocks of a strip for words [s, s + n) of the sum, the last: they are finished into C. */
static void strip_last(const struct job *j, const struct tile *t, const struct strip *e, int64_t s,
        int64_t n)
{
    const struct tw_gemm *g = j->g;
    const struct tw_kern *k = j->d->k;
    int64_t rows = t->r1 - t->r0, more = e->f ? words_of(j, e->f) : 0, bp = 0;
    const float *b = e->f ? pack_b(j, t, e->f, g->n, e->p, e->np, 0, more, &bp) : NULL;

    for (int64_t r = 0; r < rows; r += j->mr) {
        int R = (int)tw_min(j->mr, rows - r);
        struct tw_whole w = { .from = s ? t->c + r * t->ld : NULL, .ldf = t->ld,
            .part = { { t->a + s * rows + r * n, (const float *)g->f.b + (e->p * j->s + s) * 16,
                    j->s * 16, n }, { e->a + r * more, b, bp, more } }, .parts = e->f ? 2 : 1,
            .c = g->c + (t->r0 + r) * g->ldc + e->c0, .ldc = g->ldc, .n = e->n, .scale = g->scale,
            .bias = g->bias ? g->bias + e->c0 : NULL, .ldres = g->ldres,
            .res = g->res ? g->res + (t->r0 + r) * g->ldres + e->c0 : NULL };
        void (*whole)(const struct tw_whole *, int) = j->bf ? k->whole16 : k->whole;

        if (rows > 32)
            strip_ahead(g, t->r0 + r, R, e->c0, e->n);
        if (R == j->mr && whole) {
            whole(&w, e->np);
            continue;
        }
        for (int i = 0; i < w.parts; i++)
            block(j, t->c + r * t->ld, t->ld, w.part[i].a, w.part[i].b, w.part[i].bp, w.part[i].s,
                    !i && !s, R, e->np);
        k->epis(w.c, w.ldc, t->c + r * t->ld, t->ld, R, e->n, g->scale, w.bias, w.res, g->ldres);
    }
}

static void strip_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    struct tile t = tile_at(j, thread, i / j->nj * j->mc);
    int64_t p0 = i % j->nj * j->nc, p1 = tw_min((g->n + 15) / 16, p0 + j->nc);
    int64_t rows = t.r1 - t.r0;
    struct strip e = { .packed = strip_open(j, &t) };

    t.ld = j->pr * 16;
    strip_fuse(j, &t, &e);
    for (e.p = p0; e.p < p1; e.p += j->pr) {
        e.np = (int)tw_min(j->pr, p1 - e.p);
        e.c0 = e.p * 16;
        e.n = tw_min(g->n - e.c0, e.np * 16);
        for (int64_t s = 0; s < j->s; s += j->kc) {
            int64_t n = tw_min(j->kc, j->s - s);
            const float *b = (const float *)g->f.b + (e.p * j->s + s) * 16;

            if (e.fused && s + n == j->s) {
                strip_last(j, &t, &e, s, n);
                continue;
            }
            for (int64_t r = 0; r < rows; r += j->mr)
                block(j, t.c + r * t.ld, t.ld, t.a + s * rows + r * n, b, j->s * 16, n, !s,
                        (int)tw_min(j->mr, rows - r), e.np);
        }
        if (e.fused)
            continue;
        strip_more(j, &t, e.p, e.packed);
        j->d->k->epis(g->c + t.r0 * g->ldc + e.c0, g->ldc, t.c, t.ld, rows, e.n, g->scale,
                g->bias ? g->bias + e.c0 : NULL,
                g->res ? g->res + t.r0 * g->ldres + e.c0 : NULL, g->ldres);
    }
}

/* Cuts C into tiles and the sum into blocks. Returns the tiles. */
static int64_t plan_tiles(struct job *j)
{
    const struct tw_gemm *g = j->g;
    const struct tw_kern *k = j->d->k;
    bool raw = g->f.bkind == TW_B_ROWS || g->f.bkind == TW_B_COLS;
    int64_t np = (g->n + 15) / 16, most = raw ? TW_MC_RAW : TW_MC, rows = (g->m + most - 1) / most;
    int64_t cols, blocks, nc, unit, threads = j->d->threads;

    j->mr = j->bf ? k->mr16 : k->mr;
    j->pr = j->bf ? k->pr16 : k->pr;
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    j->mc = tw_min(j->mc, most / j->mr * j->mr);
    rows = (g->m + j->mc - 1) / j->mc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j->kc = raw ? TW_KC : TW_MC * TW_KC / j->mc / 16 * 16;
    if (j->bf && g->m > 32)
        j->kc = tw_min(j->kc, k->kc16);
    blocks = tw_max(1, (j->s + j->kc - 1) / j->kc);
    j->kc = tw_max(16, tw_up((j->s + blocks - 1) / blocks, 16));
    unit = j->pr > 1 ? j->pr : 3; /* panels that are taken together */
    nc = tw_min(64, TW_TILE / j->mc) / unit * unit;
    cols = (np + nc - 1) / nc;
    if (threads > 1 && rows * cols < 4 * threads)
        cols = tw_min((4 * threads + rows - 1) / rows, (np + unit - 1) / unit);
    cols = tw_max(cols, 1);
    j->nc = tw_min(tw_up((np + cols - 1) / cols, unit), nc);
    j->nj = (np + j->nc - 1) / j->nc;
    return rows * j->nj;
}

/* Cuts C for the way of strips. Returns the items; 0: it is not for this shape. */
static int64_t plan_strips(struct job *j)
{
    const struct tw_gemm *g = j->g;
    const struct tw_kern *k = j->d->k;
    bool panels = g->f.bkind == TW_B_PANEL || g->f.bkind == TW_B_PANEL16;
    int64_t items = 4 * j->d->threads, np = (g->n + 15) / 16, most, rows, cols, blocks;
    int64_t room = TW_OWN_WORDS - TW_STRIP_WORDS - 3 * 16 * TW_KC - TW_MC * TW_KC;

    if (!panels || g->n < 1 || j->s < 1)
        return 0;
    j->mr = j->bf ? k->mr16 : k->mr;
    j->pr = j->bf ? k->pr16 : k->pr;
    most = tw_min(j->bf ? k->mc16 : TW_MC, room / j->s) / j->mr * j->mr;
    if (most < j->mr)
        return 0;
    rows = (g->m + most - 1) / most;
    if (np <= 256 && rows < items && g->m >= 64 * j->d->threads)    /* rather rows than columns */
        rows = tw_min(items, (g->m + 63) / 64);
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    rows = (g->m + j->mc - 1) / j->mc;
    cols = rows < items ? (items + rows - 1) / rows : 1;
    j->nc = tw_up((np + cols - 1) / cols, j->pr > 1 ? j->pr : 3);
    j->nj = (np + j->nc - 1) / j->nc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j->kc = g->m <= 32 ? j->s : tw_min(j->s, j->bf ? k->kc16 : TW_KC);
    blocks = (j->s + j->kc - 1) / j->kc;
    j->kc = tw_up((j->s + blocks - 1) / blocks, 16);
    j->strips = true;
    j->sides = j->nj == 1;
    return rows * j->nj;
}

/* A side product alone. */
static void side_gemm(struct tw_cpu *d, const struct tw_gemm *g, const struct tw_side *e)
{
    struct tw_gemm one = { .m = e->f.r1 - e->f.r0, .n = e->n, .f = e->f, .low = g->low,
        .c = e->out, .ldc = e->ldo, .scale = e->scale };

    one.f.a = g->f.a + e->f.r0 * g->f.lda;
    one.f.lda = g->f.lda;
    tw_cpu_gemm(d, &one);
}

void tw_cpu_gemm(struct tw_cpu *d, const struct tw_gemm *g)
{
    struct job j = { .d = d, .g = g, .bf = g->low || g->f.bkind == TW_B_PANEL16 };
    int64_t items;

    if (g->m <= 0 || (g->n <= 0 && !g->nside))
        return;
    if (g->f.a_cols) {
        tw_cpu_gemm_tokens(d, g);
        return;
    }
    j.s = words_of(&j, &g->f);
    items = plan_strips(&j);
    for (int64_t e = 0; e < g->nside && !j.sides; e++)
        side_gemm(d, g, &g->side[e]);
    if (items)
        tw_cpu_run(d, items, strip_job, &j);
    else if (g->n > 0)
        tw_cpu_run(d, plan_tiles(&j), tile_job, &j);
}
