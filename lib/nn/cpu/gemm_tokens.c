/* gemm_tokens.c - products whose sums run over tokens, which the gradients of weights are: C goes on
 * from what it holds by A^T B, A and B being rows of activations. Both must be brought into the
 * order of the blocks. A is packed first, by all threads, A_WORDS of it at a time; then a work item
 * owns some panels of C's columns, packs those of B itself and goes through all rows: what lies in
 * memory is read once. Its sums stay in the thread's own memory.
 *
 * Split numbers take three words for two, so that it would take longer to read a packed A from L3 than
 * to pack it again: an item has up to SPLIT_PANELS panels of as many rows as stay in L2 with a block of A,
 * which it packs itself. Its sums stay in C where that lies in panels, and tiles hide the packing of B's
 * next two panels.
 *
 * Tiles add 32 tokens at a time, and bits must not depend on which: such steps are counted from where a
 * sequence begins and hold tokens of no other.
 *
 * What bounds it: B's panels of a block (up to 6 * KC * 64 bytes) stay in L2 while all rows of A
 * pass from L3, 8 words for every 24 products; of split numbers, what bounds the tiles (amx_f32.c). */
#include "nn/cpu/cpu_priv.h"

#define A_WORDS ((int64_t)2 << 20)
#define KC 512                  /* words of a block of the sum */
#define TILES_KC 144            /* of a bf16 sum of tiles */
#define MOST_PANELS 6           /* of an item */
#define SPLIT_KC 384
#define SPLIT_PANELS 48
#define SPLIT_WORDS ((int64_t)380 << 10)        /* of sums and a block of A: of 2 MiB */
#define SPLIT_B (2 * 16 * SPLIT_KC)     /* parts of two panels */
#define SPLIT_ROWS ((TW_OWN_WORDS - TW_TILE_WORDS - 2 * SPLIT_B) / SPLIT_KC)
#define THIN 64                 /* rows of A for which packing B does not pay */
#define THIN_KC 32              /* words of a block then */

/* A step of a sum where the place decides how pairs are added, sixteen of them or what 32 split numbers
 * are: N tokens from T on, in one sequence. */
struct step {
    int64_t t, n;
};

struct job {
    struct tw_cpu *d;
    const struct tw_gemm *g;
    bool bf, split;             /* neither: f32 */
    bool tiles;                 /* the tile unit does it, in steps of 32 tokens */
    int64_t unit;               /* words of a step */
    int64_t s, kc;              /* length of the sum and of a block, in words */
    int64_t s0, s1;             /* what is done now */
    int64_t mc, nc, nj;         /* rows and panels of an item, items in a row of them */
    int64_t parts;              /* split: of the rows, each as many blocks as others or one more */
    int mr, pr;
    bool thin;                  /* few rows: B is not packed, but read as it lies by a kernel that
                                 * adds token by token on all processors */
    float *a;                   /* packed: blocks of kc words, in each blocks of mr rows */
    const struct step *step;    /* NULL: pair i of the sum is 2i and 2i + 1 */
};

struct item {
    float *c, *b, *a;           /* sums, packed B; split: A */
    int64_t r0, r1, p0, p1, ld;
};

/* Panels of B for words [s, s + n), and where they are packed. */
struct pair {
    int64_t p0, p1, s, n;
    float *b;
};

/* The tokens of sixteen words from S on. */
static struct step step_at(const struct job *j, int64_t s)
{
    int64_t per = j->bf ? 2 : 1;

    if (j->step)
        return j->step[s / j->unit];
    return (struct step){ per * s, j->g->f.s - per * s };
}

/* Words [I, I + unit) of a block of N that begins at word S, of COLS columns of SRC. The token that
 * comes first is added first, and what completes a pair is nothing at all (0 times -0 leaves even a
 * -0 as it is): where tokens are cut changes no bit. */
static void pack_words(const struct job *j, bool left, float *dst, int64_t s, int64_t i, int64_t n,
        const void *src, int64_t ld, int64_t cols)
{
    const struct tw_kern *k = j->d->k;
    struct step e = step_at(j, s + i);
    int64_t width = left ? j->mr : 16, len = tw_min(j->unit, n - i);
    bool low = left ? j->g->f.a16 : j->g->f.b16;

    src = tw_elem(src, low, e.t * ld);
    for (int64_t c = 0; c < cols; c += width) {
        int R = (int)tw_min(width, cols - c), W = left ? R : 16;
        float *to = dst + c * n + i * W;
        const void *from = tw_elem(src, low, c);

        if (j->split)
            (left ? k->pairs32_a : k->pairs32)((uint32_t *)to, from, ld, R, len, e.n);
        else if (low)
            (left && !j->thin ? k->pairsw_a : k->pairsw)((uint32_t *)to, W, from, ld, R, len, e.n, true,
                    left ? 0 : 0x8000);
        else if (j->bf)
            (left && !j->thin ? k->pairs_a : k->pairs)((uint32_t *)to, W, from, ld, R, len, e.n, true,
                    left ? 0 : 0x8000);
        else
            k->packc(to, W, from, ld, R, len);
    }
}

static void pack_a(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    int64_t s = j->s0 + i * j->unit / j->kc * j->kc, n = tw_min(j->kc, j->s1 - s);

    pack_words(j, true, j->a + (s - j->s0) * g->m, s, i * j->unit % j->kc, n, g->f.a, g->f.lda, g->m);
}

/* Asks for COLS columns of the tokens of the step at word S: they lie far from each other. */
static void ahead(const struct job *j, int64_t s, const void *src, int64_t ld, int64_t cols)
{
    struct step e = step_at(j, s);
    bool low = j->g->f.b16;

    for (int64_t t = 0; t < tw_min(j->bf || j->split ? 32 : 16, e.n); t++)
        for (int64_t c = 0; c < cols; c += low ? 32 : 16)
            __builtin_prefetch(tw_elem(src, low, (e.t + t) * ld + c));
}

static void pack_b(const struct job *j, const struct pair *p)
{
    const struct tw_factors *f = &j->g->f;
    const void *src = tw_elem(f->b, f->b16, p->p0 * 16);
    int64_t cols = tw_min(p->p1 * 16, j->g->n) - p->p0 * 16;

    ahead(j, p->s, src, f->ldb, cols);
    for (int64_t i = 0; i < p->n; i += j->unit) {
        if (i + j->unit < p->n)
            ahead(j, p->s + i + j->unit, src, f->ldb, cols);
        pack_words(j, false, p->b, p->s, i, p->n, src, f->ldb, cols);
    }
}

/* Between the item and C in panels, panel by panel as C lies. */
static void move_panels(const struct job *j, const struct item *t, bool store)
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

static void move_cols(const struct job *j, const struct item *t, bool store)
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

static void move_rows(const struct job *j, const struct item *t, bool store)
{
    const struct tw_gemm *g = j->g;
    int64_t n0 = t->p0 * 16, n = tw_min(g->n, t->p1 * 16) - n0;

    for (int64_t r = t->r0; r < t->r1; r++) {
        float *x = t->c + (r - t->r0) * t->ld, *c = g->c + r * g->ldc + n0;

        if (store) {
            memcpy(c, x, (size_t)n * 4);
        } else {
            memcpy(x, c, (size_t)n * 4);
            memset(x + n, 0, (size_t)(t->ld - n) * 4);
        }
    }
}

static void move(const struct job *j, const struct item *t, bool store)
{
    (j->g->c_panel ? move_panels : j->g->c_cols ? move_cols : move_rows)(j, t, store);
}

static void block(const struct job *j, const struct item *t, int64_t r, int64_t p, const float *a,
        const float *b, int64_t n)
{
    const struct tw_kern *k = j->d->k;
    float *c = t->c + r * t->ld + p * 16;
    int R = (int)tw_min(j->mr, t->r1 - t->r0 - r), P = (int)tw_min(j->pr, t->p1 - t->p0 - p);

    if (j->bf)
        k->mm16(c, t->ld, (const uint32_t *)a, (const uint32_t *)b, n * 16, n, false, R, P);
    else
        k->mm(c, t->ld, a, R, b, n * 16, n, false, R, P);
}

/* What comes behind X in item T. False: nothing. */
static bool next_pair(const struct job *j, const struct item *t, struct pair *x)
{
    x->p0 = x->p1;
    if (x->p0 == t->p1) {
        x->p0 = t->p0;
        x->s += x->n;
        x->n = tw_min(j->kc, j->s1 - x->s);
    }
    x->p1 = tw_min(t->p1, x->p0 + j->pr);
    return x->s < j->s1;
}

/* How B of a pair is split, where it is whole panels and whole steps of successive tokens. */
static bool split_later(const struct job *j, const struct pair *p, struct tw_split *x)
{
    const struct tw_factors *f = &j->g->f;
    const struct step *e = &j->step[p->s / j->unit];
    int64_t steps = p->n / j->unit;

    if (p->p1 * 16 > j->g->n || e[steps - 1].n < 32 || e[steps - 1].t - e->t != 32 * (steps - 1))
        return false;
    *x = (struct tw_split){ .src = (const float *)f->b + e->t * f->ldb + p->p0 * 16, .ld = f->ldb,
        .dst = (uint32_t *)p->b, .left = steps * 16, .pairs = steps * 16, .panels = p->p1 - p->p0 };
    return true;
}

/* All blocks of a pair, in C itself where that lies in panels; X is split meanwhile. */
static void split_blocks(const struct job *j, const struct item *t, const struct pair *p, struct tw_split *x)
{
    const struct tw_gemm *g = j->g;
    int64_t rows = t->r1 - t->r0, ld = g->c_panel ? 16 : t->ld, cp = g->c_panel ? g->m * 16 : 16;
    float *c = g->c_panel ? g->c + (p->p0 * g->m + t->r0) * 16 : t->c + (p->p0 - t->p0) * 16;

    x->per = tw_split_per(x->left, (rows + j->mr - 1) / j->mr * (p->n / j->unit) * 6);
    for (int64_t r = 0; r < rows; r += j->mr)
        j->d->k->mm32(c + r * ld, ld, cp, (const uint32_t *)t->a + r * p->n, (const uint32_t *)p->b,
                p->n * 16, p->n, g->fresh && !p->s, (int)tw_min(j->mr, rows - r), (int)(p->p1 - p->p0), x);
}

/* An item of split numbers: two panels of B are split while those before them are used. */
static void split_item(const struct job *j, struct item *t)
{
    const struct tw_factors *f = &j->g->f;
    struct pair next = { .p0 = t->p0, .p1 = tw_min(t->p1, t->p0 + j->pr), .n = tw_min(j->kc, j->s1),
        .b = t->b };
    bool more = next.n > 0, there = false;

    t->a = t->b + 2 * SPLIT_B;
    for (int half = 1; more; half ^= 1) {
        struct tw_split x = { .left = 0 };
        struct pair now = next;

        for (int64_t i = 0; now.p0 == t->p0 && i < now.n; i += j->unit)
            pack_words(j, true, t->a, now.s, i, now.n, f->a + t->r0, f->lda, t->r1 - t->r0);
        if (!there)
            pack_b(j, &now);
        more = next_pair(j, t, &next);
        next.b = t->b + half * SPLIT_B;
        there = more && split_later(j, &next, &x);
        split_blocks(j, t, &now, &x);
    }
}

/* Words [S, S + N) of the sum, B's tokens in their rows. Each line is used once by all rows of A. */
static void thin_block(const struct job *j, const struct item *t, int64_t s, int64_t n,
        const float *a)
{
    const struct tw_factors *f = &j->g->f;
    struct tw_outer o = { .ldc = t->ld, .b = tw_elem(f->b, f->b16, 2 * s * f->ldb + t->p0 * 16),
        .b16 = f->b16, .n = tw_min(t->p1 * 16, j->g->n) - t->p0 * 16, .ldb = f->ldb, .s = n,
        .k = tw_min(2 * n, f->s - 2 * s), .ahead = f->b16 ? 128 : 64 };

    for (int64_t r = 0; r < t->r1 - t->r0; r += 16) {
        o.a = (const uint32_t *)a + r * n;
        o.c = t->c + r * t->ld;
        j->d->k->outer(&o, (int)tw_min(2, (t->r1 - t->r0 - r) / 8));
    }
}

static struct item item_at(const struct job *j, int64_t i, int thread)
{
    const struct tw_gemm *g = j->g;
    int64_t blocks = (g->m + j->mr - 1) / j->mr, at = i / j->nj;
    struct item t = { .r0 = at * j->mc, .r1 = (at + 1) * j->mc, .p0 = i % j->nj * j->nc };

    if (j->split) {
        t.r0 = at * blocks / j->parts * j->mr;
        t.r1 = (at + 1) * blocks / j->parts * j->mr;
    }
    t.r1 = tw_min(g->m, t.r1);
    t.p1 = tw_min((g->n + 15) / 16, t.p0 + j->nc);
    t.ld = (t.p1 - t.p0) * 16;
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_TILE_WORDS;
    return t;
}

static void item_job(void *arg, int64_t i, int thread)
{
    const struct job *j = arg;
    const struct tw_gemm *g = j->g;
    struct item t = item_at(j, i, thread);

    if (j->split && g->c_panel) {
        split_item(j, &t);
        return;
    }
    if (g->fresh && !j->s0)
        memset(t.c, 0, (size_t)((t.r1 - t.r0) * t.ld) * 4);
    else
        move(j, &t, false);
    if (j->split)
        split_item(j, &t);
    for (int64_t s = j->s0; s < j->s1 && !j->split; s += j->kc) {
        int64_t n = tw_min(j->kc, j->s1 - s);
        const float *a = j->a + (s - j->s0) * g->m + t.r0 * n;

        if (j->thin) {
            thin_block(j, &t, s, n, a);
            continue;
        }
        pack_b(j, &(struct pair){ t.p0, t.p1, s, n, t.b });
        for (int64_t p = 0; p < t.p1 - t.p0; p += j->pr)
            for (int64_t r = 0; r < t.r1 - t.r0; r += j->mr)
                block(j, &t, r, p, a + r * n, t.b + p * n * 16, n);
    }
    move(j, &t, true);
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
    j->s = at * j->unit;
    return true;
}

/* Items of split numbers, as many for each thread. */
static int64_t plan_split(struct job *j, int64_t np)
{
    int64_t blocks = (j->g->m + j->mr - 1) / j->mr, threads = j->d->threads, most;

    j->nj = tw_min((np + j->pr - 1) / j->pr, threads / blocks);
    j->nj = tw_max((np + SPLIT_PANELS - 1) / SPLIT_PANELS, j->nj);
    j->nc = tw_up((np + j->nj - 1) / j->nj, j->pr);
    j->nj = (np + j->nc - 1) / j->nc;
    most = tw_min(SPLIT_WORDS / (j->nc * 16 + j->kc), SPLIT_ROWS);
    if (!j->g->c_panel)
        most = tw_min(most, TW_TILE_WORDS / (j->nc * 16));
    most = most / j->mr;
    j->parts = (blocks + most - 1) / most;
    while ((j->parts * j->nj % threads || j->parts * j->nj < 2 * threads) && j->parts < blocks)
        j->parts++;
    return j->parts * j->nj;
}

/* Cuts C into items. Returns how many. */
static int64_t plan(struct job *j)
{
    const struct tw_gemm *g = j->g;
    int64_t threads = j->d->threads, np = (g->n + 15) / 16, unit = j->pr > 1 ? j->pr : 3, rows;

    if (j->thin) {
        j->mc = g->m;
        j->nc = tw_min((np + 4 * threads - 1) / (4 * threads), TW_TILE_WORDS / (g->m * 16));
        j->nj = (np + j->nc - 1) / j->nc;
        return j->nj;
    }
    if (j->split)
        return plan_split(j, np);
    j->nc = MOST_PANELS / unit * unit;
    rows = (g->m * j->nc * 16 + TW_TILE_WORDS - 1) / TW_TILE_WORDS;
    if (j->tiles) {             /* A comes from L3: as many panels for it as leave work for all threads */
        j->nc = tw_min(j->nc, tw_max(unit, np * rows / (4 * threads) / unit * unit));
    } else if (rows > 1 || np < 4 * threads * j->nc) {
        j->nc = unit;
    }
    rows = (g->m * j->nc * 16 + TW_TILE_WORDS - 1) / TW_TILE_WORDS;
    j->nj = (np + j->nc - 1) / j->nc;
    if (threads > 1 && rows * j->nj < 2 * threads)
        rows = tw_min((2 * threads + j->nj - 1) / j->nj, (g->m + 63) / 64);
    j->mc = tw_up((g->m + rows - 1) / rows, j->mr);
    j->mc = tw_min(j->mc, TW_TILE_WORDS / (j->nc * 16) / j->mr * j->mr);
    return (g->m + j->mc - 1) / j->mc * j->nj;
}

void tw_cpu_gemm_tokens(struct tw_cpu *d, const struct tw_gemm *g)
{
    const struct tw_kern *k = d->k;
    struct job j = { .d = d, .g = g, .bf = g->low, .split = !g->low && k->split };
    int64_t items, round;

    j.thin = j.bf && k->outer && g->m % 8 == 0 && g->m <= THIN;
    j.unit = j.split ? TW_STEP32 : 16;
    j.s = j.bf ? tw_up(g->f.s, j.thin ? 2 : 2 * k->unit16) / 2 : g->f.s;
    j.mr = j.thin ? 8 : j.bf ? k->mr16 : j.split ? k->mr32 : k->mr;
    j.pr = j.bf ? k->pr16 : j.split ? k->pr32 : k->pr;
    j.kc = j.split ? SPLIT_KC : j.bf && k->unit16 > 1 ? TILES_KC : KC;
    if (j.thin)
        j.kc = THIN_KC;
    j.tiles = j.split || (j.bf && !j.thin && k->unit16 > 1);
    if (j.tiles && !plan_steps(&j))
        return;
    items = plan(&j);
    if (j.split) {
        j.s1 = j.s;
        tw_cpu_run(d, items, item_job, &j);
        return;
    }
    round = tw_min(j.s, tw_max(1, A_WORDS / g->m / j.kc) * j.kc);
    j.a = tw_cpu_scratch(d, TW_SLOT_WT, (size_t)(round * g->m) * 4);
    for (j.s0 = 0; j.a && j.s0 < j.s; j.s0 = j.s1) {
        j.s1 = tw_min(j.s, j.s0 + round);
        tw_cpu_run(d, (j.s1 - j.s0 + j.unit - 1) / j.unit, pack_a, &j);
        tw_cpu_run(d, items, item_job, &j);
    }
}
