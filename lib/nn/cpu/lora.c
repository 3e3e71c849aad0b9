/* lora.c - low-rank updates, run by run: A and B are small and row-major, so the products pack
 * their panels as they go. Dropout masks are functions of (token key, module, feature). */
#include "base/rng.h"
#include "nn/cpu/cpu_priv.h"

struct drop_job {
    const struct tw_lora_ctx *c;
    const struct tw_lora_run *run;
    const float *x;             /* [n, in], row stride ldx */
    int64_t ldx, in;
    float *y;                   /* y = drop(x), or y += drop(x) */
    int64_t ldy;
    bool add;
};

static void drop_row(void *arg, int64_t i, int thread)
{
    struct drop_job *j = arg;
    uint64_t key = j->c->drop_key[j->run->t0 + i];
    uint32_t k2[2] = { (uint32_t)key, (uint32_t)(key >> 32) };
    const float *x = j->x + i * j->ldx;
    float *y = j->y + i * j->ldy, scale = 1 / (1 - j->run->drop);

    for (int64_t k = 0; k < j->in; k += 4) {
        uint32_t ctr[4] = { (uint32_t)(k / 4), j->c->module, 0, 0 }, out[4];

        tw_philox(out, ctr, k2);
        for (int64_t l = 0; l < tw_min(4, j->in - k); l++) {
            float v = (float)(out[l] >> 8) * 0x1p-24f < j->run->drop ? 0 : x[k + l] * scale;

            y[k + l] = j->add ? y[k + l] + v : v;
        }
    }
}

static bool dropped(const struct tw_lora_ctx *c, const struct tw_lora_run *r)
{
    return r->drop > 0 && c->drop_key;
}

/* The run's rows of drop(x): x itself, or a copy in scratch; NULL: no memory. */
static const float *drop_x(struct tw_cpu *d, const struct tw_tensor *x, const struct tw_lora_ctx *c,
        const struct tw_lora_run *r, int64_t *ld)
{
    int64_t n = r->t1 - r->t0;
    struct drop_job j = { .c = c, .run = r, .x = tw_row(x, r->t0), .ldx = x->ld, .in = x->cols,
        .ldy = x->cols };

    *ld = x->ld;
    if (!dropped(c, r))
        return tw_at(x, r->t0);
    *ld = x->cols;
    j.y = tw_cpu_scratch(d, TW_SLOT_X, (size_t)n * (size_t)x->cols * 4);
    if (j.y)
        tw_cpu_run(d, n, drop_row, &j);
    return j.y;
}

static enum tw_bkind kind_of(const struct tw_mat *w)
{
    return w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16;
}

/* Room for what the runs of a call add to its product. */
struct extra {
    struct tw_side *side;
    struct tw_factors *more;
};

static bool extra_open(struct tw_cpu *d, struct extra *e, int64_t n)
{
    e->side = tw_cpu_scratch(d, TW_SLOT_MORE,
            (size_t)(n + 1) * (sizeof *e->side + sizeof *e->more));
    e->more = (struct tw_factors *)(e->side + n + 1);
    return e->side != NULL;
}

/* h = scale drop(x) A^T of a run with dropout. False: no memory. */
static bool hidden(struct tw_cpu *d, struct tw_tensor *h, const struct tw_tensor *x,
        const struct tw_lora_ctx *c, const struct tw_lora_run *r)
{
    int64_t ld;
    const float *dx = drop_x(d, x, c, r, &ld);
    struct tw_gemm g = { .m = r->t1 - r->t0, .n = r->r, .f = { .s = x->cols, .a = dx,
            .lda = ld, .bkind = TW_B_COLS, .b = r->a, .ldb = x->cols }, .low = d->low,
        .c = tw_row(h, r->t0), .ldc = h->ld, .scale = r->scale };

    if (dx)
        tw_cpu_gemm(d, &g);
    return dx != NULL;
}

/* y = x W^T and what the runs without dropout add to it; what those with it add is there, in h. E is
 * moved behind what is used of it. */
static struct tw_gemm forward(struct tw_cpu *d, struct extra *e, const struct tw_lora_one *one,
        const struct tw_tensor *x)
{
    const struct tw_mat *w = one->w;
    const struct tw_lora_ctx *c = one->c;
    const struct tw_tensor *y = one->y, *h = one->h, *res = one->res;
    struct tw_gemm g = { .m = y->rows, .n = y->cols, .low = w ? w->dtype == TW_BF16 : d->low,
        .f = { .a = x->data, .lda = x->ld, .a16 = x->dtype == TW_BF16,
            .packed = x->packed },
        .side = e->side, .more = e->more, .c = y->data, .ldc = y->ld, .scale = 1,
        .bias = one->bias, .res = res ? res->data : NULL, .ldres = res ? res->ld : 0 };

    if (w) {
        g.f.s = w->cols;
        g.f.bkind = kind_of(w);
        g.f.b = w->data;
    }
    for (int64_t i = 0; c && i < c->nrun; i++) {
        const struct tw_lora_run *r = &c->run[i];

        if (!dropped(c, r))
            e->side[g.nside++] = (struct tw_side){ .f = { .s = x->cols, .bkind = TW_B_COLS,
                    .b = r->a, .ldb = x->cols, .r0 = r->t0, .r1 = r->t1 }, .n = r->r,
                .out = tw_row(h, r->t0), .ldo = h->ld, .scale = r->scale };
        e->more[g.nmore++] = (struct tw_factors){ .s = r->r, .a = h->data, .lda = h->ld,
            .bkind = TW_B_COLS, .b = r->b, .ldb = r->r, .r0 = r->t0, .r1 = r->t1 };
    }
    e->side += g.nside;
    e->more += g.nmore;
    return g;
}

void tw_cpu_lora_linear(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_mat *w, const float *bias,
        const struct tw_tensor *res, const struct tw_lora_ctx *c)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_lora_one one = { .y = y, .h = h, .w = w, .bias = bias, .res = res, .c = c };
    struct tw_gemm g;
    struct extra e;

    for (int64_t i = 0; c && i < c->nrun; i++)
        if (dropped(c, &c->run[i]) && !hidden(d, h, x, c, &c->run[i]))
            return;
    if (!extra_open(d, &e, c ? c->nrun : 0))
        return;
    g = forward(d, &e, &one, x);
    tw_cpu_gemm(d, &g);
}

/* Whether products of one input can be taken at once, and their runs, all together. */
static bool together(const struct tw_lora_one *one, int n, int64_t *runs)
{
    *runs = 0;
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < one[i].c->nrun; k++)
            if (dropped(one[i].c, &one[i].c->run[k]))
                return false;
        if (!one[i].w || one[i].w->dtype != one[0].w->dtype)
            return false;
        *runs += one[i].c->nrun;
    }
    return n <= TW_GEMM_GROUP;
}

void tw_cpu_lora_group(struct tw_dev *dev, struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_gemm g[TW_GEMM_GROUP];
    struct extra e;
    int64_t runs;
    bool all = together(one, n, &runs);

    if (all && !extra_open(d, &e, runs))
        return;
    for (int i = 0; all && i < n; i++)
        g[i] = forward(d, &e, &one[i], x);
    if (all && tw_cpu_gemm_fits(d, g, n)) {
        tw_cpu_gemm_group(d, g, n);
        return;
    }
    for (int i = 0; i < n; i++)
        tw_cpu_lora_linear(dev, one[i].y, one[i].h, x, one[i].w, one[i].bias, NULL, one[i].c);
}

void tw_cpu_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c)
{
    tw_cpu_lora_linear(dev, y, h, x, NULL, NULL, y, c);
}

/* A gradient that adds in a chain over the run's tokens: c[r, n] += a^T b, or the transposed of c; B
 * begins with the run. */
static void chain(struct tw_cpu *d, const struct tw_lora_run *r, float *c, bool turned,
        const struct tw_tensor *a, const float *b, int64_t ldb, bool b16, int64_t n)
{
    struct tw_gemm g = { .m = r->r, .n = n, .f = { .s = r->t1 - r->t0, .a = tw_row(a, r->t0),
            .lda = a->ld, .a_cols = true, .bkind = TW_B_ROWS, .b = b, .ldb = ldb, .b16 = b16 },
        .low = d->low, .c = c, .ldc = turned ? r->r : n, .c_cols = turned };
    const int64_t *t0 = d->slot[TW_SLOT_CUT].p;
    int64_t *cut = tw_cpu_scratch(d, TW_SLOT_LIST, (size_t)(d->ncut + 2) * sizeof *cut);

    if (!cut)
        return;
    cut[0] = 0;
    for (int64_t s = 0; s < d->ncut; s++)
        if (t0[s] > r->t0 && t0[s] < r->t1)
            cut[++g.ncut] = t0[s] - r->t0;
    cut[++g.ncut] = r->t1 - r->t0;
    g.cut = cut;
    tw_cpu_gemm(d, &g);
}

/* dx += drop(dh A) of a run with dropout */
static void lora_dx(struct tw_cpu *d, struct tw_tensor *dx, const struct tw_tensor *dh,
        const struct tw_lora_ctx *c, const struct tw_lora_run *r)
{
    int64_t n = r->t1 - r->t0, in = dx->cols;
    float *out = tw_row(dx, r->t0);
    struct tw_gemm g = { .m = n, .n = in, .f = { .s = r->r, .a = tw_row(dh, r->t0),
            .lda = dh->ld, .bkind = TW_B_ROWS, .b = r->a, .ldb = in }, .low = d->low,
        .ldc = in, .scale = 1 };
    struct drop_job j = { .c = c, .run = r, .ldx = in, .in = in, .y = out, .ldy = dx->ld,
        .add = true };

    g.c = tw_cpu_scratch(d, TW_SLOT_X, (size_t)n * (size_t)in * 4);
    if (!g.c)
        return;
    tw_cpu_gemm(d, &g);
    j.x = g.c;
    tw_cpu_run(d, n, drop_row, &j);
}

/* The gradients of A and B of a run; dh is there. False: no memory. */
static bool run_back(struct tw_cpu *d, const struct tw_tensor *dh, const struct tw_tensor *dy,
        const struct tw_tensor *x, const struct tw_tensor *h, const struct tw_lora_ctx *c,
        const struct tw_lora_run *r)
{
    int64_t ld;
    const float *xd;

    if (r->db)
        chain(d, r, r->db, true, h, tw_at(dy, r->t0), dy->ld, dy->dtype == TW_BF16, dy->cols);
    if (!r->da)
        return true;
    xd = drop_x(d, x, c, r, &ld);
    if (xd)
        chain(d, r, r->da, false, dh, xd, ld, x->dtype == TW_BF16, x->cols);
    return xd != NULL;
}

/* The transposed weights of N products, to F[..]. False: no memory. */
static bool turn(struct tw_cpu *d, struct tw_factors *const *f, const struct tw_lora_one *one, int n)
{
    int64_t words = 0, at = 0;
    float *wt;

    for (int i = 0; i < n; i++)
        words += tw_up(one[i].w->cols, 16) / 16 * tw_panel_words(one[i].w->dtype, one[i].w->rows);
    wt = tw_cpu_scratch(d, TW_SLOT_WT, (size_t)words * 4);
    for (int i = 0; wt && i < n; i++) {
        const struct tw_mat *w = one[i].w;

        tw_cpu_transpose(d, wt + at, w, 0, w->rows);
        f[i]->b = wt + at;
        at += tw_up(w->cols, 16) / 16 * tw_panel_words(w->dtype, w->rows);
    }
    return wt != NULL;
}

/* dx of N products as one chain, the last one first, as a tape goes back through them one by one:
 * each base product, then its runs without dropout; and dh of all runs. F learns which of its factors
 * are base products, those of g itself apart. */
static struct tw_gemm backward(struct tw_cpu *d, struct extra *e, struct tw_factors **f,
        struct tw_tensor *dx, bool add, const struct tw_lora_one *one, int n)
{
    struct tw_gemm g = { .m = one->y->rows, .side = e->side, .more = e->more, .scale = 1,
        .low = one->w ? one->w->dtype == TW_BF16 : d->low, .cont = add };

    if (dx) {
        g.n = dx->cols;
        g.c = dx->data;
        g.ldc = dx->ld;
    }
    for (int i = n - 1; i >= 0; i--) {
        const struct tw_tensor *dy = one[i].y, *dh = one[i].scratch;
        const struct tw_lora_ctx *c = one[i].c;
        struct tw_factors base = { .a = dy->data, .lda = dy->ld, .a16 = dy->dtype == TW_BF16,
            .r1 = dy->rows };
        int64_t of = 0;

        if (one[i].w) {
            base.s = one[i].w->rows;
            base.bkind = kind_of(one[i].w);
        }
        if (i < n - 1) {
            e->more[g.nmore++] = base;
            of = g.nmore;
            f[i] = &e->more[of - 1];
        } else {
            g.f = base;
        }
        for (int64_t k = 0; c && k < c->nrun; k++) {
            const struct tw_lora_run *r = &c->run[k];

            e->side[g.nside++] = (struct tw_side){ .f = { .s = dy->cols, .bkind = TW_B_ROWS,
                    .b = r->b, .ldb = r->r, .r0 = r->t0, .r1 = r->t1 }, .n = r->r, .of = of,
                .out = tw_row(dh, r->t0), .ldo = dh->ld, .scale = r->scale };
            if (dx && !dropped(c, r))
                e->more[g.nmore++] = (struct tw_factors){ .s = r->r, .a = dh->data, .lda = dh->ld,
                    .bkind = TW_B_ROWS, .b = r->a, .ldb = dx->cols, .r0 = r->t0, .r1 = r->t1 };
        }
    }
    return g;
}

void tw_cpu_lora_linear_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_tensor *scratch, const struct tw_tensor *dy, const struct tw_tensor *x,
        const struct tw_tensor *h, const struct tw_mat *w, const struct tw_lora_ctx *c)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_lora_one one = { .y = (struct tw_tensor *)dy, .scratch = scratch, .w = w, .c = c };
    int64_t n = c ? c->nrun : 0;
    struct tw_factors *f[1];
    struct tw_gemm g;
    struct extra e;

    if (!extra_open(d, &e, n))
        return;
    g = backward(d, &e, f, dx, add, &one, 1);
    f[0] = &g.f;
    if (w && dx && !turn(d, f, &one, 1))
        return;
    tw_cpu_gemm(d, &g);
    for (int64_t i = 0; i < n; i++) {
        const struct tw_lora_run *r = &c->run[i];

        if (r->t1 > r->t0 && !run_back(d, scratch, dy, x, h, c, r))
            return;
        if (dx && r->t1 > r->t0 && dropped(c, r))
            lora_dx(d, dx, scratch, c, r);
    }
}

void tw_cpu_lora_group_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_factors *f[TW_GEMM_GROUP];
    struct tw_gemm g;
    struct extra e;
    int64_t runs;
    bool all = dx && together(one, n, &runs);

    if (all && !extra_open(d, &e, runs + n))
        return;
    if (all) {
        g = backward(d, &e, f, dx, add, one, n);
        f[n - 1] = &g.f;
    }
    if (!all || !tw_cpu_gemm_fits(d, &g, 1)) {
        for (int i = n - 1; i >= 0; i--)
            tw_cpu_lora_linear_bwd(dev, dx, i < n - 1 ? true : add, one[i].scratch, one[i].y, x,
                    one[i].h, one[i].w, one[i].c);
        return;
    }
    if (!turn(d, f, one, n))
        return;
    tw_cpu_gemm_group(d, &g, 1);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < one[i].c->nrun; k++) {
            const struct tw_lora_run *r = &one[i].c->run[k];

            if (r->t1 > r->t0 && !run_back(d, one[i].scratch, one[i].y, x, one[i].h, one[i].c, r))
                return;
        }
}

void tw_cpu_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    tw_cpu_lora_linear_bwd(dev, dx, true, scratch, dy, x, h, NULL, c);
}
