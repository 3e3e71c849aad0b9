/* gemm_share.c - products whose A all threads pack and share, so that a panel of weights is read
 * once for up to SHARE_ROWS rows: for tiles, and where nothing else reads the packed rows. Those stay in
 * L2, and panels pass through what is left of it. There are as many parts of the rows as threads, if they
 * are not too few then: a thread begins with its own, whose lines are in its L2 from op to op. Of a gated
 * unit, whose weights are most of a layer's, threads rather take columns of all rows. */
#include "nn/cpu/gemm_priv.h"

#define SHARE_ROWS 512
#define SHARE_FROM 64           /* the least rows */
#define SHARE_LEAST 192         /* rows that a panel should be read for */
#define MADE_ROWS 64            /* the least of what is made of a product */
#define SHARE_STRIPS 6
#define SHARE_WORDS ((int64_t)320 << 10)
#define PART_WORDS ((int64_t)256 << 10)  /* of a part where threads have several */

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

static int64_t strips_of(const struct tw_prod *j)
{
    int64_t panels = j->g->made == TW_MADE_UNIT ? 1 : j->pr;

    return (j->g->n + panels * 16 - 1) / (panels * 16);
}

/* Where column COL of row R of a gated unit lies. */
static uint16_t *y_at(const struct tw_gemm *g, int64_t r, int64_t col)
{
    struct tw_tensor y = { .data = g->y, .rows = g->m, .cols = g->n };
    int64_t step;

    return g->y_packed ? (uint16_t *)tw_line(&y, r, col, &step) + col % 32 : g->y + r * g->ldy + col;
}

/* How many strips a block of rows goes through at once. */
static int64_t at_once(const struct tw_prod *j)
{
    return j->bf && j->s <= TW_L1_WORDS && !j->g->cont ? SHARE_STRIPS : 1;
}

/* What is made of a row's 32 sums, to Y. */
static void make_row(const struct tw_prod *j, const struct tw_whole *w, float *sum, int64_t r, uint16_t *y)
{
    const struct tw_kern *k = j->d->k;
    float unit[16];

    if (w->made == TW_MADE_UNIT) {
        tw_cpu_unit(k, true, unit, sum, sum + 16, 16, w->act);
        k->low(y, unit, 16);
    } else if (w->made == TW_MADE_HEADS) {
        int64_t c = w->pos[r] * w->half + w->at * 16;

        k->rope(sum, w->cos + c, w->sin + c, 16, 1);
        k->low(y, sum, 16);
        k->low(y + w->half, sum + 16, 16);
    } else {
        k->low(y, sum, 32);
    }
}

/* The rows that are no block, from row R of the tile on, by way of memory. */
static void make_rest(const struct tw_prod *j, const struct tw_tile *t, const struct tw_whole *w, int64_t r,
        int64_t s)
{
    int rows = (int)(t->r1 - t->r0 - r);
    float sum[32 * 32];

    for (int q = 0; q < w->parts; q++)
        j->d->k->mm16(sum, 32, (const uint32_t *)w->part[q].a + r * w->part[q].s, w->part[q].b, w->part[q].bp,
                w->part[q].s, !q, rows, 2);
    for (int i = 0; i < rows; i++)
        make_row(j, w, sum + i * 32, r + i, w->made == TW_MADE_UNIT ? y_at(j->g, t->r0 + r + i, s * 16) :
                w->y + (r + i) * w->ldy);
}

/* What W makes of strips from S0 on. */
static void made_of(const struct tw_prod *j, const struct tw_tile *t, int64_t s0, struct tw_whole *w)
{
    const struct tw_gemm *g = j->g;
    int64_t panel = j->s * 16, heads = g->hd / 32;

    w->made = g->made;
    w->ldy = g->ldy;
    w->yblock = 32 * g->ldy;
    w->ystep = 16;
    w->group = 2;
    w->at = s0 % 2;
    if (g->made == TW_MADE_UNIT) {
        w->y = y_at(g, t->r0, s0 * 16);
        if (g->y_packed) {
            w->yblock = 32 * g->n;
            w->yskip = 31 * 32;
            w->ldy = 32;
        }
    } else if (g->made == TW_MADE_HEADS) {
        w->group = heads;
        w->at = s0 % heads;
        w->y = g->y + t->r0 * g->ldy + s0 / heads * g->hd + w->at * 16;
        w->yskip = g->hd / 2;
        w->bs = panel;
        w->bskip = heads * panel;
        w->cos = g->turn->cos;
        w->sin = g->turn->sin;
        w->pos = g->turn->pos + t->r0;
        w->half = g->hd / 2;
        for (int q = 0; q < w->parts; q++) {
            w->part[q].b = (const float *)w->part[q].b - w->at * panel;
            w->part[q].bp = heads * panel;
        }
    } else {
        w->y = g->y + t->r0 * g->ldy + s0 * 32;
        w->ystep = 32;
    }
}

/* Strips [s0, s1), whose sum is in one piece and never leaves the tiles: of a gated unit, a panel of gate
 * and one of up each, else two panels. Where A's rows of a block fit into L1 they stay there for
 * SHARE_STRIPS strips. The rows that are no
 * block are the caller's. */
static struct tw_whole strips_whole(const struct tw_prod *j, const struct tw_tile *t, int64_t s0, int64_t s1)
{
    const struct tw_gemm *g = j->g;
    bool unit = g->made == TW_MADE_UNIT;
    int64_t rows = t->r1 - t->r0, panels = unit ? 1 : 2, step = panels * 16 * j->s;
    int64_t up = unit ? ((intptr_t)g->up - (intptr_t)g->f.b) / 4 : j->s * 16;
    const float *b = (const float *)g->f.b + s0 * step;
    struct tw_whole w = { .n = 32, .scale = g->scale, .act = g->act, .blocks = rows / 32, .ahead = true,
        .strips = s1 - s0, .bs = step, .ldc = g->ldc, .ldres = g->ldres };

    for (int64_t s = 0; s < j->s; s += j->kc, w.parts++) {
        w.part[w.parts].a = t->a + s * rows;
        w.part[w.parts].b = b + s * 16;
        w.part[w.parts].bp = up;
        w.part[w.parts].s = tw_min(j->kc, j->s - s);
    }
    if (g->made)
        made_of(j, t, s0, &w);
    else
        w.c = g->c + t->r0 * g->ldc + s0 * 32;
    w.bias = g->bias ? g->bias + s0 * 32 : NULL;
    w.res = g->res ? g->res + t->r0 * g->ldres + s0 * 32 : NULL;
    if (w.blocks && s1 < strips_of(j))
        w.next = (struct tw_next){ .at = (const char *)(b + (s1 - s0) * step), .bp = up * 4,
            .panels = unit ? 2 : 1, .n = tw_min(s1 - s0, strips_of(j) - s1) * step * 4 / w.blocks };
    return w;
}

static void make(const struct tw_prod *j, const struct tw_tile *t, int64_t s0, int64_t s1)
{
    for (int64_t per = at_once(j); s0 < s1; s0 += per) {
        struct tw_whole w = strips_whole(j, t, s0, tw_min(s1, s0 + per));

        j->d->k->low16(&w);
        for (int64_t s = s0; s < tw_min(s1, s0 + per) && w.blocks * 32 < t->r1 - t->r0; s++) {
            w = strips_whole(j, t, s, s + 1);
            make_rest(j, t, &w, w.blocks * 32, s);
        }
    }
}

static void strips_run(const struct tw_prod *j, const struct tw_tile *t, int64_t p0, int64_t p1)
{
    struct tw_strip e = { .packed = true, .fused = j->split || t->r1 - t->r0 >= j->mr, .p1 = p1 };

    for (e.p = p0; e.p < p1; e.p += j->pr) {
        e.np = (int)tw_min(j->pr, p1 - e.p);
        e.c0 = e.p * 16;
        e.n = tw_min(j->g->n - e.c0, e.np * 16);
        tw_strip_run(j, t, &e);
    }
}

/* Whole strips from panel *P on, all of their rows. */
static void strips_at_once(const struct tw_prod *j, const struct tw_tile *t, int64_t *p, int64_t p1)
{
    int64_t per = at_once(j), most = tw_min(p1 / 2, j->g->n / 32), blocks = (t->r1 - t->r0) / 32 * 32;
    struct tw_tile rest = *t;

    rest.r0 += blocks;
    rest.a += blocks * j->s;
    for (int64_t s = *p / 2, end; s < most; s = end) {
        struct tw_whole w;

        end = tw_min(most, s + per);
        w = strips_whole(j, t, s, end);
        j->d->k->whole16(&w, 2);
        if (rest.r0 < rest.r1)
            strips_run(j, &rest, s * 2, end * 2);
        *p = end * 2;
    }
}

static void share_item(void *arg, int64_t i, int thread)
{
    struct share *h = arg;
    struct tw_tile t = part_at(h, i / h->all * h->part);
    struct tw_prod *j = h->j;
    int64_t p, p1;

    i %= h->all;
    while (i >= h->items[j - h->j])
        i -= h->items[j++ - h->j];
    if (j->g->made) {
        make(j, &t, i * h->per, tw_min(strips_of(j), (i + 1) * h->per));
        return;
    }
    t.c = (float *)j->d->own + (size_t)thread * TW_OWN_WORDS;
    t.b = t.c + TW_OWN_WORDS - TW_B_WORDS;
    p = i * h->per * j->pr;
    p1 = tw_min((j->g->n + 15) / 16, p + h->per * j->pr);
    if (at_once(j) > 1)
        strips_at_once(j, &t, &p, p1);
    strips_run(j, &t, p, p1);
}

/* What is split is done sooner by items that pack rows for themselves, as long as they have room for many
 * rows and the columns are not so many that each item reads them from memory. */
#define SPLIT_COLS 4096
#define SPLIT_WORDS 3456

static bool shares(const struct tw_prod *j, const struct tw_gemm *g)
{
    return j->tiles && tw_in_panels(&g->f) && !g->nside && !g->nmore && g->n > 0 && g->m >= SHARE_FROM &&
            j->s > 0 && (!j->split || g->n > SPLIT_COLS || j->s > SPLIT_WORDS);
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

bool tw_cpu_packs(const struct tw_dev *dev, int64_t rows, int64_t cols)
{
    const struct tw_kern *k = ((const struct tw_cpu *)dev)->k;

    return k->lines && k->unit16 > 1 && rows >= SHARE_FROM && cols % 32 == 0 && cols <= 2 * k->kc16;
}

bool tw_cpu_gated_fits(const struct tw_dev *dev, const struct tw_tensor *x, const struct tw_mat *gate,
        const struct tw_mat *up)
{
    const struct tw_kern *k = ((const struct tw_cpu *)dev)->k;

    return k->low16 && x->dtype == TW_BF16 && gate->dtype == TW_BF16 && up->dtype == TW_BF16 &&
            gate->rows == up->rows && gate->rows % 16 == 0 && x->rows >= MADE_ROWS &&
            gate->cols <= 2 * k->kc16 * TW_WHOLE_PARTS;
}

void tw_cpu_gated(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *gate, const struct tw_mat *up, enum tw_act act)
{
    struct tw_gemm g = { .m = x->rows, .n = gate->rows, .low = true, .scale = 1, .f = { .s = gate->cols,
            .a = x->data, .lda = x->ld, .a16 = true, .packed = x->packed, .bkind = TW_B_PANEL16,
            .b = gate->data }, .made = TW_MADE_UNIT, .up = up->data, .y = y->data, .ldy = y->ld,
        .y_packed = y->packed, .act = act };

    tw_share_run((struct tw_cpu *)dev, &g, 1);
}

bool tw_cpu_heads_fit(const struct tw_dev *dev, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r)
{
    const struct tw_kern *k = ((const struct tw_cpu *)dev)->k;
    bool fits = k->low16 && x->dtype == TW_BF16 && x->rows >= MADE_ROWS && hd % 32 == 0 && r->rot == hd &&
            !r->interleaved && x->cols <= 2 * k->kc16 * TW_WHOLE_PARTS;

    for (int i = 0; i < n; i++)
        fits = fits && w[i]->dtype == TW_BF16 && w[i]->rows % hd == 0;
    return fits;
}

void tw_cpu_turned(struct tw_dev *dev, struct tw_tensor *const *y, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r)
{
    struct tw_gemm g[TW_GEMM_GROUP];

    for (int i = 0; i < n; i++)
        g[i] = (struct tw_gemm){ .m = x->rows, .n = w[i]->rows, .low = true, .scale = 1,
            .f = { .s = w[i]->cols, .a = x->data, .lda = x->ld, .a16 = true, .packed = x->packed,
                .bkind = TW_B_PANEL16, .b = w[i]->data },
            .made = i < n - 1 ? TW_MADE_HEADS : TW_MADE_LOW, .y = y[i]->data, .ldy = y[i]->ld,
            .turn = r, .hd = hd };
    tw_share_run((struct tw_cpu *)dev, g, n);
}

bool tw_share_run(struct tw_cpu *d, const struct tw_gemm *g, int n)
{
    struct share h = { .all = 0 };
    int64_t rows, most, parts, all;

    if (!share_open(&h, d, g, n))
        return false;
    most = tw_max(64, tw_min(SHARE_ROWS, SHARE_WORDS / h.j->s));
    rows = (g->m + most * d->threads - 1) / (most * d->threads);
    rows = tw_up((g->m + rows - 1) / rows, h.j->mr);        /* at once */
    parts = (rows + most - 1) / most;
    if (!g->up)     /* whose weights are too many to be read by each thread */
        parts = tw_max(parts, tw_min(d->threads, rows / SHARE_LEAST));
    if (h.j->bf && rows / parts >= 256 && rows / parts * h.j->s >= 2 * PART_WORDS)
        parts *= tw_min(rows / parts / 128, rows / parts * h.j->s / PART_WORDS);
    h.part = tw_up((rows + parts - 1) / parts, h.j->mr);
    parts = (rows + h.part - 1) / h.part;
    h.t = (struct tw_tile){ .ld = h.j->pr * 16,
        .a = g->f.packed ? (float *)(uintptr_t)g->f.a :
                tw_cpu_scratch(d, TW_SLOT_SHARE, (size_t)(rows * h.j->s) * 4) };
    if (!h.t.a)
        return true;
    all = strips_of(h.j) * parts / d->threads;
    h.per = tw_max(1, tw_min(all / 3, tw_max(at_once(h.j), all / 32)));
    for (int i = 0; i < n; i++) {
        h.items[i] = (strips_of(&h.j[i]) + h.per - 1) / h.per;
        h.all += h.items[i];
    }
    for (h.t.r0 = 0; h.t.r0 < g->m; h.t.r0 = h.t.r1) {
        h.t.r1 = tw_min(g->m, h.t.r0 + rows);
        parts = (h.t.r1 - h.t.r0 + h.part - 1) / h.part;
        if (!g->f.packed)
            tw_cpu_run(d, (h.t.r1 - h.t.r0 + h.j->mr - 1) / h.j->mr, share_pack, &h);
        tw_cpu_run(d, parts * h.all, share_item, &h);
        if (g->f.packed)
            h.t.a += (h.t.r1 - h.t.r0) * h.j->s;
    }
    return true;
}
