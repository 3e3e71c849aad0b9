/* gemm.c - every product of the CPU: tiles of up to TW_MC rows and TW_NC panels are work items; a
 * tile lies in the thread's own memory while blocks of the sum are added to it in order, so cutting
 * the sum for the caches does not change the chain. Inputs are packed per tile: A interleaved by
 * block of rows, B (unless it already lies in panels) as panels.
 *
 * Where there are many rows and not too many columns, a work item is all columns of some rows: A is
 * packed once, and for the narrow side products (LoRA) as well.
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
    bool whole;                 /* an item is all columns of its rows */
    const struct step *step;    /* NULL: pair i of the sum is 2i and 2i + 1 */
};

/* Sixteen pairs of a sum over tokens where their place decides how they are added: N tokens from T
 * on, in one sequence. */
struct step {
    int64_t t, n;
};

struct tile {
    float *c, *a, *more, *b;    /* sums; packed A, A of further products, B */
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

static void tile_cols(const struct job *j, const struct tile *t, bool store)
{
    const struct tw_gemm *g = j->g;
    int64_t n1 = tw_min(g->n, t->p1 * 16);

    for (int64_t n = t->p0 * 16; n < n1; n++) {
        float *c = g->c + n * g->ldc, *x = t->c + n - t->p0 * 16;

        for (int64_t r = t->r0; r < t->r1; r++) {
            if (store)
                c[r] = x[(r - t->r0) * t->ld];
            else
                x[(r - t->r0) * t->ld] = c[r];
        }
    }
}

/* A tile goes on from what C holds (STORE false), or is finished into C. */
static void tile_move(const struct job *j, const struct tile *t, bool store)
{
    const struct tw_gemm *g = j->g;
    int64_t n0 = t->p0 * 16, n = tw_min(g->n, t->p1 * 16) - n0;

    if (g->c_panel || g->c_cols) {
        (g->c_panel ? tile_panels : tile_cols)(j, t, store);
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

/* N pairs from S0 on of R columns of SRC, which lies token by token. The token that comes first is
 * added first, and what completes a pair is nothing at all (0 times -0 leaves even a -0 as it is):
 * where tokens are cut changes no bit. */
static void pack_tokens(const struct job *j, const struct tw_factors *f, uint32_t *dst, bool left,
        int R, const float *src, int64_t s0, int64_t n)
{
    const struct tw_kern *k = j->d->k;
    void (*pairs)(uint32_t *, int, const float *, int64_t, int, int64_t, int64_t, bool, uint32_t) =
            left ? k->pairs_a : k->pairs;
    int64_t ld = left ? f->lda : f->ldb;
    int W = left ? R : 16;
    uint32_t pad = left ? 0 : 0x8000;

    if (!j->step)
        pairs(dst, W, src + 2 * s0 * ld, ld, R, n, f->s - 2 * s0, true, pad);
    for (int64_t i = 0; j->step && i < n; i += 16) {
        struct step e = j->step[(s0 + i) / 16];

        pairs(dst + i * W, W, src + e.t * ld, ld, R, 16, e.n, true, pad);
    }
}

/* Words [s0, s0 + n) of the sum of rows [r0, r1), in blocks of mr rows. */
static void pack_a(const struct job *j, float *to, const struct tw_factors *f, int64_t r0,
        int64_t r1, int64_t s0, int64_t n)
{
    const struct tw_kern *k = j->d->k;

    for (int64_t r = r0; r < r1; r += j->mr) {
        float *dst = to + (r - r0) * n;
        int rows = (int)tw_min(j->mr, r1 - r);

        if (j->bf && f->a_cols)
            pack_tokens(j, f, (uint32_t *)dst, true, rows, f->a + r, s0, n);
        else if (j->bf)
            k->pack16((uint32_t *)dst, f->a + r * f->lda + 2 * s0, f->lda, rows, n, f->s - 2 * s0);
        else if (!f->a_cols)
            k->pack(dst, f->a + r * f->lda + s0, f->lda, rows, n);
        else
            k->packc(dst, rows, f->a + s0 * f->lda + r, f->lda, rows, n);
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
        else if (j->bf && f->a_cols)
            pack_tokens(j, f, (uint32_t *)dst, false, (int)w, b + c, s0, n);
        else if (j->bf)
            k->pairs((uint32_t *)dst, 16, b + 2 * s0 * f->ldb + c, f->ldb, (int)w, n,
                    f->s - 2 * s0, false, 0);
        else
            k->packc(dst, 16, b + s0 * f->ldb + c, f->ldb, (int)w, n);
    }
    return t->b;
}

static void block(const struct job *j, float *c, int64_t ldc, const float *a, const float *b,
        int64_t bp, int64_t n, int rows, int np)
{
    const struct tw_kern *k = j->d->k;

    if (j->bf)
        k->mm16(c, ldc, (const uint32_t *)a, (const uint32_t *)b, bp, n, rows, np);
    else
        k->mm(c, ldc, a, rows, b, bp, n, rows, np);
}

/* Adds words [s0, s0 + n) of F's product to rows [r0, r1) of the tile; A is packed. */
static void tile_block(const struct job *j, const struct tile *t, const struct tw_factors *f,
        const float *a, int64_t r0, int64_t r1, int64_t s0, int64_t n)
{
    for (int64_t p = t->p0; p < t->p1; p += j->pr) {
        int np = (int)tw_min(j->pr, t->p1 - p);
        int64_t bp;
        const float *b = pack_b(j, t, f, j->g->n, p, np, s0, n, &bp);

        for (int64_t r = r0; r < r1; r += j->mr)
            block(j, t->c + (r - t->r0) * t->ld + (p - t->p0) * 16, t->ld, a + (r - r0) * n, b,
                    bp, n, (int)tw_min(j->mr, r1 - r), np);
    }
}

static void tile_more(const struct job *j, const struct tile *t, const struct tw_factors *f)
{
    int64_t r0 = tw_max(t->r0, f->r0), r1 = tw_min(t->r1, f->r1), words = words_of(j, f);

    for (int64_t s = 0; r0 < r1 && s < words; s += TW_KC) {
        int64_t n = tw_min(TW_KC, words - s);

        pack_a(j, t->more, f, r0, r1, s, n);
        tile_block(j, t, f, t->more, r0, r1, s, n);
    }
}

/* A side product of the tile's rows, A being packed: panel by panel, in the place of the sums. */
static void tile_side(const struct job *j, const struct tile *t, const struct tw_side *e)
{
    int64_t r0 = tw_max(t->r0, e->f.r0), r1 = tw_min(t->r1, e->f.r1), rows = t->r1 - t->r0;
    int64_t from = (r0 - t->r0) / j->mr * j->mr + t->r0;

    for (int64_t p = 0; r0 < r1 && p * 16 < e->n; p++) {
        memset(t->c, 0, (size_t)rows * 64);
        for (int64_t s = 0; s < j->s; s += j->kc) {
            int64_t n = tw_min(j->kc, j->s - s), bp;
            const float *b = pack_b(j, t, &e->f, e->n, p, 1, s, n, &bp);

            for (int64_t r = from; r < r1; r += j->mr)
                block(j, t->c + (r - t->r0) * 16, 16, t->a + s * rows + (r - t->r0) * n, b, bp, n,
                        (int)tw_min(j->mr, t->r1 - r), 1);
        }
        for (int64_t r = r0; r < r1; r++)
            j->d->k->epi(e->out + (r - e->f.r0) * e->ldo + p * 16, t->c + (r - t->r0) * 16,
                    tw_min(16, e->n - p * 16), e->scale, NULL, NULL);
    }
}

static void tile_sums(const struct job *j, struct tile *t)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0;

    t->ld = (t->p1 - t->p0) * 16 + 16;  /* no power of two: rows on different sets of the cache */
    if (g->cont)
        tile_move(j, t, false);
    else
        memset(t->c, 0, (size_t)(rows * t->ld) * 4);
    for (int64_t s = 0; s < j->s; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s - s);
        float *a = j->whole ? t->a + s * rows : t->a;

        if (!j->whole)
            pack_a(j, a, &g->f, t->r0, t->r1, s, n);
        tile_block(j, t, &g->f, a, t->r0, t->r1, s, n);
    }
    for (int64_t m = 0; m < g->nmore; m++)
        tile_more(j, t, &g->more[m]);
    tile_move(j, t, true);
}

static struct tile tile_at(const struct job *j, int thread, int64_t r0)
{
    struct tile t = { .r0 = r0, .r1 = tw_min(j->g->m, r0 + j->mc) };

    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.a = t.c + TW_TILE_WORDS;
    t.more = t.a + TW_MC_RAW * TW_KC;
    t.b = t.more + TW_MC * TW_KC;
    return t;
}

static void tile_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    struct tile t = tile_at(j, thread, i / j->nj * j->mc);

    t.p0 = i % j->nj * j->nc;
    t.p1 = tw_min((j->g->n + 15) / 16, t.p0 + j->nc);
    tile_sums(j, &t);
}

static void rows_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    struct tile t = tile_at(j, thread, i * j->mc);

    for (int64_t s = 0; s < j->s; s += j->kc)
        pack_a(j, t.a + s * (t.r1 - t.r0), &g->f, t.r0, t.r1, s, tw_min(j->kc, j->s - s));
    for (int64_t e = 0; e < g->nside; e++)
        tile_side(j, &t, &g->side[e]);
    for (t.p0 = 0; t.p0 * 16 < g->n; t.p0 = t.p1) {
        t.p1 = tw_min((g->n + 15) / 16, t.p0 + j->nc);
        tile_sums(j, &t);
    }
}

/* Lays out a sum over tokens in steps, none of which holds tokens of two sequences. */
static bool plan_steps(struct job *j)
{
    const struct tw_gemm *g = j->g;
    int64_t whole[2] = { 0, g->f.s }, n = g->ncut ? g->ncut : 1, at = 0;
    const int64_t *cut = g->ncut ? g->cut : whole;
    struct step *e = tw_cpu_scratch(j->d, TW_SLOT_STEP,
            (size_t)(g->f.s / 32 + n + 1) * sizeof *e);

    if (!e)
        return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = cut[i]; t < cut[i + 1]; t += 32)
            e[at++] = (struct step){ t, tw_min(32, cut[i + 1] - t) };
    j->step = e;
    j->s = at * 16;
    return true;
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

/* The other way to cut, see above. Returns the items; 0: not for this shape. */
static int64_t plan_rows(struct job *j)
{
    const struct tw_gemm *g = j->g;
    bool panels = g->f.bkind == TW_B_PANEL || g->f.bkind == TW_B_PANEL16;
    int64_t threads = j->d->threads, most, blocks;

    if (!panels || g->n > 4096 || g->n < 1 || j->s < 1)
        return 0;
    most = tw_min(TW_MC, TW_MC_RAW * TW_KC / j->s) / 32 * 32;
    j->mc = tw_min(most, tw_up((g->m + 4 * threads - 1) / (4 * threads), 32));
    if (j->mc < 32 || g->m <= j->mc || (g->m + j->mc - 1) / j->mc < 2 * threads)
        return 0;
    j->whole = true;
    j->mr = j->bf ? j->d->k->mr16 : j->d->k->mr;
    j->pr = j->bf ? j->d->k->pr16 : j->d->k->pr;
    j->mc = j->mc / j->mr * j->mr;
    j->kc = j->bf ? j->d->k->kc16 : TW_KC;
    blocks = (j->s + j->kc - 1) / j->kc;
    j->kc = tw_up((j->s + blocks - 1) / blocks, 16);
    j->nc = tw_min(32 / j->pr * j->pr, TW_TILE / j->mc);
    return (g->m + j->mc - 1) / j->mc;
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
    j.s = words_of(&j, &g->f);
    if (j.bf && g->f.a_cols && d->k->unit16 > 1 && !plan_steps(&j))
        return;
    items = plan_rows(&j);
    if (items) {
        tw_cpu_run(d, items, rows_job, &j);
        return;
    }
    for (int64_t e = 0; e < g->nside; e++)
        side_gemm(d, g, &g->side[e]);
    if (g->n > 0)
        tw_cpu_run(d, plan_tiles(&j), tile_job, &j);
}

void tw_cpu_begin(struct tw_dev *dev, enum tw_dtype products, const int64_t *t0, int64_t nseq)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    int64_t *cut = tw_cpu_scratch(d, TW_SLOT_CUT, (size_t)(nseq + 1) * sizeof *cut);

    d->low = products == TW_BF16;
    d->ncut = cut ? nseq : 0;
    if (cut && nseq)
        memcpy(cut, t0, (size_t)(nseq + 1) * sizeof *cut);
}

void tw_cpu_linear(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res)
{
    tw_cpu_lora_linear(dev, y, NULL, x, w, bias, res, NULL);
}

void tw_cpu_linear_dx(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dy, const struct tw_mat *w)
{
    tw_cpu_lora_linear_bwd(dev, dx, add, NULL, dy, NULL, NULL, w, NULL);
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
    struct tw_gemm g = { .m = dw->cols, .n = dw->rows, .f = { .s = x->rows, .a = x->data,
            .lda = x->ld, .a_cols = true, .bkind = TW_B_ROWS, .b = dy->data, .ldb = dy->ld },
        .low = d->low, .cut = d->slot[TW_SLOT_CUT].p, .ncut = d->ncut, .c = dw->data,
        .c_panel = true, .cont = true, .scale = 1 };
    struct bias_job b = { d, dy, dbias };

    if (!x->rows)
        return;
    tw_cpu_gemm(d, &g);
    if (dbias)
        tw_cpu_run(d, (dw->rows + 63) / 64, bias_cols, &b);
}
