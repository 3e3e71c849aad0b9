/* gemm.c - every product of the CPU: tiles of up to TW_MC rows and TW_NC panels are work items; a
 * tile lies in the thread's own memory while blocks of the sum are added to it in order, so cutting
 * the sum for the caches does not change the chain. Inputs are packed per tile: A interleaved by
 * block of rows, B (unless it already lies in panels) as panels.
 *
 * What bounds it: a block of 8 rows and 3 panels does 24 multiply-adds per 11 loads; B's panels (up
 * to 3 * TW_KC * 64 bytes) stay in L2 while all rows of the tile pass, A's block in L1. Few rows
 * (decoding) are bound by reading B once. */
#include "nn/cpu/cpu_priv.h"

struct job {
    struct tw_cpu *d;
    const struct tw_gemm *g;
    bool bf;
    int64_t mc, nc, nj;         /* rows and panels of a tile, tiles per row of tiles */
    int64_t s, kc;              /* length of the sum and of a block, in words */
    int mr, pr;
};

struct tile {
    float *c, *a, *b;
    int64_t r0, r1, p0, p1, ld;
};

/* Between the tile and C in panels, panel by panel as C lies. */
static void tile_panels(const struct job *j, const struct tile *t, bool store)
{
    for (int64_t p = t->p0; p < t->p1; p++) {
        float *c = j->g->c + (p * j->g->m + t->r0) * 16, *x = t->c + (p - t->p0) * 16;

        for (int64_t r = t->r0; r < t->r1; r++, c += 16, x += t->ld) {
            if (store)
                memcpy(c, x, 64);
            else
                memcpy(x, c, 64);
        }
    }
}

/* A tile goes on from what C holds (STORE false), or is finished into C. */
static void tile_move(const struct job *j, const struct tile *t, bool store)
{
    const struct tw_gemm *g = j->g;
    int64_t n0 = t->p0 * 16, n = tw_min(g->n, t->p1 * 16) - n0;

    if (g->c_panel) {
        tile_panels(j, t, store);
        return;
    }
    for (int64_t r = t->r0; r < t->r1; r++) {
        float *x = t->c + (r - t->r0) * t->ld;

        if (store) {
            j->d->k->epi(g->c + r * g->ldc + n0, x, n, g->scale, g->bias ? g->bias + n0 : NULL,
                    g->res ? g->res + r * g->ldres + n0 : NULL);
        } else {
            memcpy(x, g->c + r * g->ldc + n0, (size_t)n * 4);
            memset(x + n, 0, (size_t)(t->ld - n) * 4);
        }
    }
}

/* Words [s0, s0 + n) of the sum of all rows of the tile, in blocks of mr rows. */
static void pack_a(const struct job *j, const struct tile *t, int64_t s0, int64_t n)
{
    const struct tw_gemm *g = j->g;

    for (int64_t r = t->r0; r < t->r1; r += j->mr) {
        float *dst = t->a + (r - t->r0) * n;
        int rows = (int)tw_min(j->mr, t->r1 - r);

        if (j->bf) {
            j->d->k->pack16((uint32_t *)dst, g->a + r * g->lda + 2 * s0, g->lda, rows, n,
                    g->s - 2 * s0);
        } else if (!g->a_cols) {
            j->d->k->pack(dst, g->a + r * g->lda + s0, g->lda, rows, n);
        } else {
            j->d->k->packc(dst, rows, g->a + s0 * g->lda + r, g->lda, rows, n);
        }
    }
}

/* Panels [p, p + np) of B for words [s0, s0 + n): where they lie, packed if need be. */
static const float *pack_b(const struct job *j, const struct tile *t, int64_t p, int64_t np,
        int64_t s0, int64_t n, int64_t *bp)
{
    const struct tw_gemm *g = j->g;
    const float *b = g->b;

    if (g->bkind == TW_B_PANEL || g->bkind == TW_B_PANEL16) {
        *bp = j->s * 16;
        return b + (p * j->s + s0) * 16;
    }
    *bp = n * 16;
    for (int64_t q = 0; q < np; q++) {
        float *dst = t->b + q * n * 16;
        int64_t c = (p + q) * 16, w = tw_min(16, g->n - c);

        if (g->bkind == TW_B_COLS)
            j->d->k->panel(dst, b + c * g->ldb + s0, g->ldb, w, n);
        else
            j->d->k->packc(dst, 16, b + s0 * g->ldb + c, g->ldb, (int)w, n);
    }
    return t->b;
}

static void tile_block(const struct job *j, const struct tile *t, int64_t s0, int64_t n)
{
    pack_a(j, t, s0, n);
    for (int64_t p = t->p0; p < t->p1; p += j->pr) {
        int np = (int)tw_min(j->pr, t->p1 - p);
        int64_t bp;
        const float *b = pack_b(j, t, p, np, s0, n, &bp);

        for (int64_t r = t->r0; r < t->r1; r += j->mr) {
            int rows = (int)tw_min(j->mr, t->r1 - r);
            float *c = t->c + (r - t->r0) * t->ld + (p - t->p0) * 16;
            float *a = t->a + (r - t->r0) * n;

            if (j->bf)
                j->d->k->mm16(c, t->ld, (uint32_t *)a, (const uint32_t *)b, bp, n, rows, np);
            else
                j->d->k->mm(c, t->ld, a, rows, b, bp, n, rows, np);
        }
    }
}

static void tile_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    struct tile t = { .r0 = i / j->nj * j->mc, .p0 = i % j->nj * j->nc };

    t.r1 = tw_min(g->m, t.r0 + j->mc);
    t.p1 = tw_min((g->n + 15) / 16, t.p0 + j->nc);
    t.ld = (t.p1 - t.p0) * 16 + 16;     /* no power of two: rows on different sets of the cache */
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.a = t.c + TW_TILE_WORDS;
    t.b = t.a + TW_MC_RAW * TW_KC;
    if (g->cont)
        tile_move(j, &t, false);
    else
        memset(t.c, 0, (size_t)((t.r1 - t.r0) * t.ld) * 4);
    for (int64_t s = 0; s < j->s; s += j->kc)
        tile_block(j, &t, s, tw_min(j->kc, j->s - s));
    tile_move(j, &t, true);
}

void tw_cpu_gemm(struct tw_cpu *d, const struct tw_gemm *g)
{
    struct job j = { .d = d, .g = g, .bf = g->bkind == TW_B_PANEL16 };
    bool raw = g->bkind == TW_B_ROWS || g->bkind == TW_B_COLS;
    int64_t np = (g->n + 15) / 16, most = raw ? TW_MC_RAW : TW_MC, rows = (g->m + most - 1) / most;
    int64_t cols, blocks, nc, unit;

    if (g->m <= 0 || g->n <= 0)
        return;
    j.mr = j.bf ? d->k->mr16 : d->k->mr;
    j.pr = j.bf ? d->k->pr16 : d->k->pr;
    j.s = j.bf ? tw_up(g->s, 32) / 2 : g->s;
    j.mc = tw_up((g->m + rows - 1) / rows, j.mr);
    j.mc = tw_min(j.mc, most / j.mr * j.mr);
    rows = (g->m + j.mc - 1) / j.mc;
    /* Few rows: the whole sum at once, so that a panel is read as one stream. */
    j.kc = raw ? TW_KC : TW_MC * TW_KC / j.mc / 16 * 16;
    if (j.bf && g->m > 32)
        j.kc = tw_min(j.kc, d->k->kc16);
    blocks = tw_max(1, (j.s + j.kc - 1) / j.kc);
    j.kc = tw_max(16, tw_up((j.s + blocks - 1) / blocks, 16));
    unit = j.pr > 1 ? j.pr : 3; /* panels that are taken together */
    nc = tw_min(64, TW_TILE / j.mc) / unit * unit;
    cols = (np + nc - 1) / nc;
    if (d->threads > 1 && rows * cols < 4 * d->threads)
        cols = tw_min((4 * d->threads + rows - 1) / rows, (np + unit - 1) / unit);
    cols = tw_max(cols, 1);
    j.nc = tw_min(tw_up((np + cols - 1) / cols, unit), nc);
    j.nj = (np + j.nc - 1) / j.nc;
    tw_cpu_run(d, rows * j.nj, tile_job, &j);
}

void tw_cpu_linear(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res)
{
    struct tw_gemm g = { .m = x->rows, .n = w->rows, .s = w->cols, .a = x->data, .lda = x->ld,
        .bkind = w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16, .b = w->data, .c = y->data,
        .ldc = y->ld, .scale = 1, .bias = bias, .res = res ? res->data : NULL,
        .ldres = res ? res->ld : 0 };

    tw_cpu_gemm((struct tw_cpu *)dev, &g);
}

void tw_cpu_linear_dx(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dy, const struct tw_mat *w)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_gemm g = { .m = dy->rows, .n = w->cols, .s = w->rows, .a = dy->data, .lda = dy->ld,
        .bkind = w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16, .c = dx->data, .ldc = dx->ld,
        .scale = 1, .res = add ? dx->data : NULL, .ldres = dx->ld };
    int64_t words = tw_up(w->cols, 16) / 16 * tw_panel_words(w->dtype, w->rows);
    void *wt = tw_cpu_scratch(d, TW_SLOT_WT, (size_t)words * 4);

    if (!wt)
        return;
    tw_cpu_transpose(d, wt, w, 0, w->rows);
    g.b = wt;
    tw_cpu_gemm(d, &g);
}

struct bias_job {
    struct tw_cpu *d;
    const struct tw_tensor *dy;
    float *dbias;
};

static void bias_cols(void *arg, int64_t i, int thread)
{
    struct bias_job *j = arg;
    int64_t c = i * 64, n = tw_min(64, j->dy->cols - c);

    for (int64_t t = 0; t < j->dy->rows; t++)
        j->d->k->add(j->dbias + c, tw_row(j->dy, t) + c, n);
}

void tw_cpu_linear_dw(struct tw_dev *dev, struct tw_mat *dw, float *dbias,
        const struct tw_tensor *dy, const struct tw_tensor *x)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_gemm g = { .m = dw->cols, .n = dw->rows, .s = x->rows, .a = x->data, .lda = x->ld,
        .a_cols = true, .bkind = TW_B_ROWS, .b = dy->data, .ldb = dy->ld, .c = dw->data,
        .c_panel = true, .cont = true, .scale = 1 };
    struct bias_job b = { d, dy, dbias };

    if (!x->rows)
        return;
    tw_cpu_gemm(d, &g);
    if (dbias)
        tw_cpu_run(d, (dw->rows + 63) / 64, bias_cols, &b);
}
