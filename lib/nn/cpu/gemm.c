/* gemm.c - every product of the CPU. Blocks of the sum are added in order, in registers or in the
 * thread's own memory, so cutting the sum for the caches does not change the chain. Inputs are
 * packed: A interleaved by block of rows, B (unless it already lies in panels) as panels. A product
 * is cut in one of four ways:
 *   sums over tokens, which gradients of weights are (gemm_tokens.c);
 *   shared rows, where B lies in panels and a matrix unit does it, 64 rows are there at least and A
 *     has no further use: all threads pack rows of A, then each takes strips of C (gemm_share.c);
 *   strips, where B lies in panels otherwise: an item packs rows of A for itself (gemm_strip.c);
 *   tiles, for all else, here: up to TW_MC_RAW rows and TW_TILE / rows panels, packed by the thread
 *     that uses them, so that what is packed is used often.
 *
 * What bounds it: a block of 8 rows and 3 panels does 24 multiply-adds per 11 loads; B's panels (up
 * to 3 * TW_KC * 64 bytes) stay in L2 while all rows pass, A's block in L1. Few rows (decoding) are
 * bound by reading B once. */
#include "nn/cpu/gemm_priv.h"
#include <assert.h>

void tw_prod_pack_a(const struct tw_prod *j, float *to, const struct tw_factors *f, int64_t r0,
        int64_t r1, int64_t s0, int64_t n)
{
    const struct tw_kern *k = j->d->k;
    int64_t at = tw_prod_at(j, s0);

    for (int64_t r = r0; r < r1; r += j->mr) {
        float *dst = to + (r - r0) * n;
        int rows = (int)tw_min(j->mr, r1 - r);

        if (f->a16)
            k->packw(dst, tw_elem(f->a, true, r * f->lda + 2 * s0), f->lda / 2, rows, n);
        else if (j->split)
            k->pack32((uint32_t *)dst, f->a + r * f->lda + at, f->lda, rows, n, f->s - at);
        else if (j->bf)
            k->pack16((uint32_t *)dst, f->a + r * f->lda + 2 * s0, f->lda, rows, n, f->s - 2 * s0);
        else
            k->pack(dst, f->a + r * f->lda + s0, f->lda, rows, n);
    }
}

int64_t tw_prod_words(const struct tw_prod *j, const struct tw_factors *f)
{
    if (j->split)
        return tw_up(f->s, 32) / 32 * TW_STEP32;
    if (!j->bf)
        return f->s;
    return f->bkind == TW_B_PANEL16 ? tw_up(f->s, 32) / 2 : tw_up(f->s, 2 * j->d->k->unit16) / 2;
}

/* Three bf16 for each number of N words of panels [p, p + np). Columns that lie as rows are turned 32
 * numbers at a time. */
static void split_b(const struct tw_prod *j, float *to, const struct tw_factors *f, int64_t N,
        int64_t p, int64_t np, int64_t s0, int64_t n)
{
    const struct tw_kern *k = j->d->k;
    const float *b = f->b;
    int64_t at = tw_prod_at(j, s0), left = f->s - at;
    float turned[32 * 16];

    for (int64_t q = 0; q < np; q++) {
        uint32_t *dst = (uint32_t *)to + q * n * 16;
        int64_t c = (p + q) * 16, w = tw_min(16, N - c);

        if (f->bkind == TW_B_PANEL)
            k->pairs32(dst, b + c * f->s + at * 16, 16, 16, n, left);
        else if (f->bkind == TW_B_ROWS)
            k->pairs32(dst, b + at * f->ldb + c, f->ldb, (int)w, n, left);
        else
            for (int64_t i = 0; i < n; i += TW_STEP32) {
                int64_t e = tw_prod_at(j, i), m = tw_min(32, left - e);

                k->panel(turned, b + c * f->ldb + at + e, f->ldb, w, m);
                k->pairs32(dst + i * 16, turned, 16, 16, TW_STEP32, m);
            }
    }
}

const float *tw_prod_pack_b(const struct tw_prod *j, const struct tw_tile *t,
        const struct tw_factors *f, int64_t N, int64_t p, int64_t np, int64_t s0, int64_t n,
        int64_t *bp)
{
    const struct tw_kern *k = j->d->k;
    const float *b = f->b;

    if (j->split) {
        *bp = n * 16;
        split_b(j, t->b, f, N, p, np, s0, n);
        return t->b;
    }
    if (f->bkind == TW_B_PANEL || f->bkind == TW_B_PANEL16) {
        *bp = tw_prod_words(j, f) * 16;
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

void tw_prod_block(const struct tw_prod *j, float *c, int64_t ldc, const float *a, const float *b,
        int64_t bp, int64_t n, bool first, int rows, int np)
{
    const struct tw_kern *k = j->d->k;

    if (j->split)
        k->mm32(c, ldc, 16, (const uint32_t *)a, (const uint32_t *)b, bp, n, first, rows, np, NULL);
    else if (j->bf)
        k->mm16(c, ldc, (const uint32_t *)a, (const uint32_t *)b, bp, n, first, rows, np);
    else
        k->mm(c, ldc, a, rows, b, bp, n, first, rows, np);
}

void tw_prod_add(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f,
        const float *a, int64_t r0, int64_t r1, int64_t s0, int64_t n, bool first)
{
    /* What is split does not fit for a sum of any length; a block of rows is whole in its words. */
    int64_t most = j->split ? tw_prod_room(j, j->pr) : tw_max(n, 1);

    for (int64_t p = t->p0; p < t->p1; p += j->pr) {
        int np = (int)tw_min(j->pr, t->p1 - p);

        for (int64_t s = 0; s < n; s += most) {
            int64_t len = tw_min(most, n - s), bp;
            const float *b = tw_prod_pack_b(j, t, f, j->g->n, p, np, s0 + s, len, &bp);

            for (int64_t r = r0; r < r1; r += j->mr) {
                int rows = (int)tw_min(j->mr, r1 - r);

                tw_prod_block(j, t->c + (r - t->r0) * t->ld + (p - t->p0) * 16, t->ld,
                        a + (r - r0) * n + s * rows, b, bp, len, first && !s, rows, np);
            }
        }
    }
}

void tw_prod_more(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f)
{
    int64_t r0 = tw_max(t->r0, f->r0), r1 = tw_min(t->r1, f->r1), words = tw_prod_words(j, f);

    for (int64_t s = 0; r0 < r1 && s < words; s += TW_KC) {
        int64_t n = tw_min(TW_KC, words - s);

        tw_prod_pack_a(j, t->more, f, r0, r1, s, n);
        tw_prod_add(j, t, f, t->more, r0, r1, s, n, false);
    }
}

void tw_prod_load(const struct tw_prod *j, const struct tw_tile *t, int64_t p, int64_t np)
{
    int64_t n = tw_min(j->g->n - p * 16, np * 16);

    j->d->k->epis(t->c, t->ld, j->g->c + t->r0 * j->g->ldc + p * 16, j->g->ldc, t->r1 - t->r0, n, 1,
            NULL, NULL, 0);
}

static void tile_job(void *arg, int64_t i, int thread)
{
    const struct tw_prod *j = arg;
    const struct tw_gemm *g = j->g;
    struct tw_tile t = { .r0 = i / j->nj * j->mc };
    int64_t c0;

    t.r1 = tw_min(g->m, t.r0 + j->mc);
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.a = t.c + TW_TILE_WORDS;
    t.b = t.c + TW_OWN_WORDS - TW_B_WORDS;
    t.more = t.b - TW_MC * TW_KC;
    t.p0 = i % j->nj * j->nc;
    t.p1 = tw_min((g->n + 15) / 16, t.p0 + j->nc);
    t.ld = (t.p1 - t.p0) * 16 + 16;     /* no power of two: rows on different sets of the cache */
    if (g->cont)
        tw_prod_load(j, &t, t.p0, t.p1 - t.p0);
    else if (!j->s)
        memset(t.c, 0, (size_t)((t.r1 - t.r0) * t.ld) * 4);
    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);

        tw_prod_pack_a(j, t.a, &g->f, t.r0, t.r1, s, n);
        tw_prod_add(j, &t, &g->f, t.a, t.r0, t.r1, s, n, !s && !g->cont);
    }
    for (int64_t m = 0; m < g->nmore; m++)
        tw_prod_more(j, &t, &g->more[m]);
    c0 = t.p0 * 16;
    j->d->k->epis(g->c + t.r0 * g->ldc + c0, g->ldc, t.c, t.ld, t.r1 - t.r0,
            tw_min(g->n, t.p1 * 16) - c0, g->scale, g->bias ? g->bias + c0 : NULL,
            g->res ? g->res + t.r0 * g->ldres + c0 : NULL, g->ldres);
}

/* Cuts C into tiles and the sum into blocks. Returns the tiles. */
static int64_t plan_tiles(struct tw_prod *j)
{
    const struct tw_gemm *g = j->g;
    bool raw = g->f.bkind == TW_B_ROWS || g->f.bkind == TW_B_COLS;
    int64_t np = (g->n + 15) / 16, most = raw ? TW_MC_RAW : TW_MC, rows = (g->m + most - 1) / most;
    int64_t cols, blocks, nc, unit, threads = j->d->threads;

    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    j->mc = tw_min(j->mc, most / j->mr * j->mr);
    rows = (g->m + j->mc - 1) / j->mc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j->kc = raw ? TW_KC : TW_MC * TW_KC / j->mc / j->unit * j->unit;
    if (j->bf && g->m > 32)
        j->kc = tw_min(j->kc, j->d->k->kc16);
    blocks = tw_max(1, (j->s + j->kc - 1) / j->kc);
    j->kc = tw_max(j->unit, tw_up((j->s + blocks - 1) / blocks, j->unit));
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

/* A side product alone. */
static void side_gemm(struct tw_cpu *d, const struct tw_gemm *g, const struct tw_side *e)
{
    struct tw_gemm one = { .m = e->f.r1 - e->f.r0, .n = e->n, .f = e->f, .low = g->low,
        .c = e->out, .ldc = e->ldo, .scale = e->scale };

    one.f.a = tw_elem(g->f.a, g->f.a16, e->f.r0 * g->f.lda);
    one.f.a16 = g->f.a16;
    one.f.lda = g->f.lda;
    tw_cpu_gemm(d, &one);
}

struct tw_prod tw_prod_of(struct tw_cpu *d, const struct tw_gemm *g)
{
    const struct tw_kern *k = d->k;
    struct tw_prod j = { .d = d, .g = g, .bf = g->low || g->f.bkind == TW_B_PANEL16 };

    j.split = !j.bf && k->split;
    j.tiles = j.split || (j.bf && k->unit16 > 1);
    j.unit = j.split ? TW_STEP32 : 16;
    j.mr = j.bf ? k->mr16 : j.split ? k->mr32 : k->mr;
    j.pr = j.bf ? k->pr16 : j.split ? k->pr32 : k->pr;
    j.s = tw_prod_words(&j, &g->f);
    return j;
}

void tw_cpu_gemm(struct tw_cpu *d, const struct tw_gemm *g)
{
    struct tw_prod j = tw_prod_of(d, g);
    int64_t items;

    if (g->m <= 0 || (g->n <= 0 && !g->nside))
        return;
    if (g->f.a_cols) {
        tw_cpu_gemm_tokens(d, g);
        return;
    }
    if (tw_share_run(d, g, 1))
        return;
    assert(!g->f.packed);
    items = tw_strip_plan(&j, true);
    for (int64_t e = 0; e < g->nside && !j.sides; e++)
        side_gemm(d, g, &g->side[e]);
    if (items)
        tw_cpu_run(d, items, tw_strip_job, &j);
    else if (g->n > 0)
        tw_cpu_run(d, plan_tiles(&j), tile_job, &j);
}

/* Plans N products of one A. Returns the items; 0: not for these shapes. */
static int64_t plan_group(struct tw_cpu *d, struct tw_prod *j, const struct tw_gemm *g, int n)
{
    int64_t items = 0;

    for (int i = 0; i < n; i++) {
        j[i] = tw_prod_of(d, &g[i]);
        items = g[i].m > 0 ? tw_strip_plan(&j[i], false) : 0;
        if (!items || !j[i].sides || j[i].mc != j[0].mc || j[i].s != j[0].s)
            return 0;
        for (int64_t m = 0; m < g[i].nmore; m++)        /* a side product's columns are packed whole */
            if (tw_prod_words(&j[i], &g[i].more[m]) > 3 * TW_KC)
                return 0;
    }
    j[0].n = n;
    return items;
}

bool tw_cpu_gemm_fits(struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    struct tw_prod j[TW_GEMM_GROUP];

    return tw_share_fits(d, g, n) || plan_group(d, j, g, n) > 0;
}

void tw_cpu_gemm_group(struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    struct tw_prod j[TW_GEMM_GROUP];

    if (!tw_share_run(d, g, n))
        tw_cpu_run(d, plan_group(d, j, g, n), tw_strip_job, j);
}
