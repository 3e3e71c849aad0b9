/* moe.cu - the ops of experts: products of their rows, and those of adapters on them */
#include "moe.cuh"

void cu_moe_mm(struct cu_dev *d, enum moe_form form, const struct moe_mm *g, bool exact)
{
    if (!g->rows || !g->n || (form == MOE_TN ? !g->m : !g->k))
        return;
    if (exact || (!cu_moe_thin(d, form, g) && !cu_moe_wg(d, form, g) && !cu_moe_mma(d, form, g)))
        cu_moe_simt(d, form, g);
}

/* Routers: F32 numbers are sums of three BF16 ones, what rounding leaves each time, so that products with
 * them are BF16 products with F32 sums. Row r of X goes to rows
 * r + i BAND from column i COL on, i being 0, 1, 2. */
struct pieces_arg {
    const float *x;
    bf16 *to;
    int64_t ldx, ldt, cols, band, col;
    int which[3];               /* the piece that stands at each of the three places */
};

static __global__ void __launch_bounds__(128) pieces_k(const __grid_constant__ pieces_arg a)
{
    const int64_t r = blockIdx.x;

    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float left = a.x[r * a.ldx + c];
        bf16 p[3];

#pragma unroll
        for (int i = 0; i < 3; i++) {
            p[i] = __float2bfloat16_rn(left);
            left -= __bfloat162float(p[i]);
        }
#pragma unroll
        for (int i = 0; i < 3; i++) {
            int k = a.which[i];

            a.to[(r + i * a.band) * a.ldt + i * a.col + c] = !k ? p[0] : k == 1 ? p[1] : p[2];
        }
    }
}

/* logits = the sum of three columns, the smallest first. */
static __global__ void __launch_bounds__(128) pieces_sum_k(float *y, int64_t ld, const float *c, int E)
{
    const int64_t t = blockIdx.x;

    for (int e = threadIdx.x; e < E; e += blockDim.x)
        y[t * ld + e] = c[(t * 3 + 2) * E + e] + c[(t * 3 + 1) * E + e] + c[t * 3 * E + e];
}

static bool by_pieces(const struct tw_tensor *x, const struct tw_mat *w)
{
    return x->dtype == TW_BF16 && w->dtype == TW_F32 && w->rows % 8 == 0 && w->cols % 8 == 0 &&
            x->ld % 8 == 0 && (uintptr_t)x->data % 16 == 0 && x->rows;
}

static void logits_by_pieces(struct cu_dev *d, struct tw_tensor *logits, const struct tw_tensor *x,
        const struct tw_mat *w)
{
    int64_t E = w->rows, D = w->cols;
    bf16 *b = (bf16 *)cu_scratch(d, CU_S_PART, (size_t)(3 * E * D * 2 + x->rows * 3 * E * 4));
    float *c = (float *)(b + 3 * E * D);
    struct cu_mm p = {};

    if (!b)
        return;
    pieces_k<<<(unsigned)E, 128, 0, d->stream>>>({ (const float *)w->data, b, cu_ld(w), D, D, E, 0,
            { 0, 1, 2 } });
    p.m = x->rows, p.n = 3 * E, p.k = D;
    p.a = x->data, p.lda = x->ld, p.b = b, p.ldb = D, p.c = c, p.ldc = 3 * E;
    p.t = TW_BF16, p.ct = TW_F32, p.alpha = 1;
    cu_nt(d, &p);
    pieces_sum_k<<<(unsigned)x->rows, 128, 0, d->stream>>>((float *)logits->data, logits->ld, c, (int)E);
    CU_DONE(d, "a router's logits");
}

/* dx of the three largest products of pieces; the others are below what BF16 holds. */
static void logits_dx_by_pieces(struct cu_dev *d, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dlogits, const struct tw_mat *w)
{
    int64_t E = w->rows, D = w->cols, T = dx->rows;
    bf16 *b = (bf16 *)cu_scratch(d, CU_S_PART, (size_t)(3 * E * (D + T) * 2)), *a = b + 3 * E * D;
    struct cu_mm p = {};

    if (!b)
        return;
    pieces_k<<<(unsigned)E, 128, 0, d->stream>>>({ (const float *)w->data, b, cu_ld(w), D, D, E, 0,
            { 0, 0, 1 } });
    pieces_k<<<(unsigned)T, 128, 0, d->stream>>>({ (const float *)dlogits->data, a, dlogits->ld, 3 * E, E,
            0, E, { 0, 1, 0 } });
    p.m = T, p.n = D, p.k = 3 * E;
    p.a = a, p.lda = 3 * E, p.b = b, p.ldb = D, p.c = dx->data, p.ldc = dx->ld;
    p.t = TW_BF16, p.ct = dx->dtype, p.alpha = 1, p.beta = add ? 1 : 0;
    cu_nn(d, &p);
    CU_DONE(d, "gradient of what a router reads");
}

static void m_logits(struct tw_dev *dev, struct tw_tensor *logits, const struct tw_tensor *x,
        const struct tw_mat *w)
{
    struct moe_mm g = {};

    if (by_pieces(x, w)) {
        logits_by_pieces(cu(dev), logits, x, w);
        return;
    }
    g.a = x->data, g.ta = x->dtype, g.lda = x->ld;
    g.b = w->data, g.tb = w->dtype, g.ldb = cu_ld(w);
    g.c = logits->data, g.tc = TW_F32, g.ldc = logits->ld;
    g.rows = (int32_t)x->rows, g.n = (int32_t)w->rows, g.k = (int32_t)w->cols;
    g.E = 1, g.alpha = 1;
    g.whole = true;
    cu_moe_mm(cu(dev), MOE_NT, &g, x->dtype == TW_F32);
}

static void m_logits_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, struct tw_mat *dw,
        const struct tw_tensor *dlogits, const struct tw_tensor *x, const struct tw_mat *w)
{
    struct moe_mm g = {};

    g.a = dlogits->data, g.ta = TW_F32, g.lda = dlogits->ld;
    g.b = w->data, g.tb = w->dtype, g.ldb = cu_ld(w);
    g.c = dx->data, g.tc = dx->dtype, g.ldc = dx->ld;
    g.rows = (int32_t)x->rows, g.n = (int32_t)w->cols, g.k = (int32_t)w->rows;
    g.E = 1, g.alpha = 1;
    g.whole = true;
    g.add = add;
    if (by_pieces(x, w))
        logits_dx_by_pieces(cu(dev), dx, add, dlogits, w);
    else
        cu_moe_mm(cu(dev), MOE_NN, &g, x->dtype == TW_F32);
    if (!dw)
        return;
    g.b = x->data, g.tb = x->dtype, g.ldb = x->ld;
    g.c = dw->data, g.tc = TW_F32, g.ldc = cu_ld(dw);
    g.m = (int32_t)w->rows;
    g.add = true;
    cu_moe_mm(cu(dev), MOE_TN, &g, x->dtype == TW_F32);
}

/* All rows of S by their experts. */
static struct moe_mm all_of(const struct tw_dispatch *s)
{
    struct moe_mm g = {};

    g.lo = s->start, g.hi = s->start + 1;
    g.E = (int32_t)s->E, g.rows = (int32_t)(s->T * s->K);
    g.K = (int32_t)s->K;
    g.alpha = 1;
    return g;
}

/* Elements from an expert's matrix to the next. */
static int64_t step_of(const struct tw_mat *w)
{
    return (w->rows + w->ext) * cu_ld(w);
}

static struct moe_mm forward(const struct tw_tensor *y, const struct tw_tensor *x, const struct tw_mat *w,
        const struct tw_dispatch *s, bool gather)
{
    struct moe_mm g = all_of(s);

    g.a = x->data, g.ta = x->dtype, g.lda = x->ld;
    g.b = w->data, g.tb = w->dtype, g.ldb = cu_ld(w), g.step = step_of(w);
    g.c = y->data, g.tc = y->dtype, g.ldc = y->ld;
    g.n = (int32_t)w->rows, g.k = (int32_t)w->cols;
    g.pair = gather ? s->pair : NULL;
    return g;
}

static struct moe_mm backward(const struct tw_tensor *dx, const struct tw_tensor *dy, const struct tw_mat *w,
        const struct tw_dispatch *s)
{
    struct moe_mm g = all_of(s);

    g.a = dy->data, g.ta = dy->dtype, g.lda = dy->ld;
    g.b = w->data, g.tb = w->dtype, g.ldb = cu_ld(w), g.step = step_of(w);
    g.c = dx->data, g.tc = dx->dtype, g.ldc = dx->ld;
    g.n = (int32_t)w->cols, g.k = (int32_t)w->rows;
    return g;
}

static void m_experts(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const struct tw_dispatch *s, bool gather)
{
    struct moe_mm g = forward(y, x, w, s, gather);

    cu_moe_mm(cu(dev), MOE_NT, &g, x->dtype == TW_F32);
}

static void m_experts_dx(struct tw_dev *dev, struct tw_tensor *dx, const struct tw_tensor *dy,
        const struct tw_mat *w, const struct tw_dispatch *s)
{
    struct moe_mm g = backward(dx, dy, w, s);

    cu_moe_mm(cu(dev), MOE_NN, &g, dy->dtype == TW_F32);
}

static void m_experts_dw(struct tw_dev *dev, struct tw_mat *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const struct tw_dispatch *s, bool gather)
{
    struct moe_mm g = all_of(s);

    g.a = dy->data, g.ta = dy->dtype, g.lda = dy->ld;
    g.b = x->data, g.tb = x->dtype, g.ldb = x->ld;
    g.c = dw->data, g.tc = TW_F32, g.ldc = cu_ld(dw), g.step = step_of(dw);
    g.m = (int32_t)dw->rows, g.n = (int32_t)dw->cols;
    g.pair = gather ? s->pair : NULL;
    g.add = true;
    cu_moe_mm(cu(dev), MOE_TN, &g, dy->dtype == TW_F32);
}

/* The rows of each expert whose tokens are in [t0, t1): they lie one behind the other. */
static __global__ void rows_k(int32_t *lo, int32_t *hi, const int32_t *start, const int32_t *pair,
        int K, int E, int t0, int t1)
{
    int e = blockIdx.x * blockDim.x + threadIdx.x;

    if (e >= E)
        return;
    for (int i = 0; i < 2; i++) {
        int a = start[e], b = start[e + 1], t = i ? t1 : t0;

        while (a < b) {
            int mid = (a + b) / 2;

            if (pair[mid] / K < t)
                a = mid + 1;
            else
                b = mid;
        }
        (i ? hi : lo)[e] = a;
    }
}

/* The rows of run R. False: no memory. */
static bool rows_of(struct cu_dev *d, struct moe_mm *g, const struct tw_dispatch *s,
        const struct tw_lora_run *r)
{
    int32_t *room;

    *g = all_of(s);
    if (r->t0 <= 0 && r->t1 >= s->T)
        return true;
    room = (int32_t *)cu_scratch(d, CU_S_SORT, (size_t)(2 * s->E) * 4);
    if (!room)
        return false;
    rows_k<<<(unsigned)cu_div(s->E, 128), 128, 0, d->stream>>>(room, room + s->E, s->start, s->pair,
            (int)s->K, (int)s->E, (int)r->t0, (int)r->t1);
    CU_DONE(d, "rows of an adapter");
    g->lo = room;
    g->hi = room + s->E;
    if ((r->t1 - r->t0) * s->K < g->rows)
        g->rows = (int32_t)((r->t1 - r->t0) * s->K);
    return true;
}

/* An operand, or a result. */
static void from(const void **p, enum tw_dtype *t, int64_t *ld, const struct tw_tensor *x)
{
    *p = x->data, *t = x->dtype, *ld = x->ld;
}
static void to(struct moe_mm *g, const struct tw_tensor *x)
{
    g->c = x->data, g->tc = x->dtype, g->ldc = x->ld;
}
static void factor(struct moe_mm *g, const float *b, int64_t rows, int64_t cols)
{
    g->b = b, g->tb = TW_F32, g->ldb = cols, g->step = rows * cols;
}

static void m_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c, const struct tw_dispatch *s,
        bool gather)
{
    struct cu_dev *d = cu(dev);
    bool exact = x->dtype == TW_F32;

    for (int64_t i = 0; i < c->nrun; i++) {
        const struct tw_lora_run *r = &c->run[i];
        struct moe_mm g;

        if (r->t1 <= r->t0 || !rows_of(d, &g, s, r))
            continue;
        from(&g.a, &g.ta, &g.lda, x);
        factor(&g, r->a, r->r, x->cols);
        to(&g, h);
        g.n = (int32_t)r->r, g.k = (int32_t)x->cols;
        g.pair = gather ? s->pair : NULL;
        g.alpha = r->scale;
        cu_moe_mm(d, MOE_NT, &g, exact);
        from(&g.a, &g.ta, &g.lda, h);
        factor(&g, r->b, y->cols, r->r);
        to(&g, y);
        g.n = (int32_t)y->cols, g.k = (int32_t)r->r;
        g.pair = NULL;
        g.alpha = 1;
        g.add = true;
        cu_moe_mm(d, MOE_NT, &g, exact);
    }
}

/* A gradient of a factor: c [E, m, n] += a^T b. */
static struct moe_mm grad(struct moe_mm g, float *c, const struct tw_tensor *a, int64_t m,
        const struct tw_tensor *b, int64_t n, const int32_t *pair)
{
    from(&g.a, &g.ta, &g.lda, a);
    from(&g.b, &g.tb, &g.ldb, b);
    g.c = c, g.tc = TW_F32, g.ldc = n, g.step = m * n;
    g.m = (int32_t)m, g.n = (int32_t)n;
    g.pair = pair;
    g.alpha = 1;
    g.add = true;
    return g;
}

/* What run R has of dy, of the rows G: dh to SCRATCH, and the gradients of its factors. */
static void lora_back(struct cu_dev *d, struct moe_mm g, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_run *r, const int32_t *pair, bool exact)
{
    struct moe_mm p = g, db = grad(g, r->db, dy, dy->cols, h, r->r, NULL);

    from(&p.a, &p.ta, &p.lda, dy);
    factor(&p, r->b, dy->cols, r->r);
    to(&p, scratch);
    p.n = (int32_t)r->r, p.k = (int32_t)dy->cols;
    p.alpha = r->scale;
    if (!r->db || exact || !cu_moe_thin_back(d, &p, &db, dy->rows)) {
        cu_moe_mm(d, MOE_NN, &p, exact);
        if (r->db)
            cu_moe_mm(d, MOE_TN, &db, exact);
    }
    if (!r->da)
        return;
    g = grad(g, r->da, scratch, r->r, x, x->cols, pair);
    cu_moe_mm(d, MOE_TN, &g, exact);
}

static void m_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c, const struct tw_dispatch *s, bool gather)
{
    struct cu_dev *d = cu(dev);
    bool exact = x->dtype == TW_F32;

    for (int64_t i = 0; i < c->nrun; i++) {
        const struct tw_lora_run *r = &c->run[i];
        struct moe_mm g;

        if (r->t1 <= r->t0 || !rows_of(d, &g, s, r))
            continue;
        lora_back(d, g, scratch, dy, x, h, r, gather ? s->pair : NULL, exact);
        from(&g.a, &g.ta, &g.lda, scratch);
        factor(&g, r->a, r->r, x->cols);
        to(&g, dx);
        g.n = (int32_t)x->cols, g.k = (int32_t)r->r;
        g.alpha = 1;
        g.add = true;
        cu_moe_mm(d, MOE_NN, &g, exact);
    }
}

/* The one run that all tokens are of; NULL: it is not so. */
static const struct tw_lora_run *whole_run(const struct tw_lora_ctx *c, const struct tw_dispatch *s)
{
    return c->nrun == 1 && c->run->t0 <= 0 && c->run->t1 >= s->T ? c->run : NULL;
}

static bool m_experts_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_mat *w, const struct tw_lora_ctx *c,
        const struct tw_dispatch *s, bool gather)
{
    struct cu_dev *d = cu(dev);
    const struct tw_lora_run *r = whole_run(c, s);
    struct moe_mm g = forward(y, x, w, s, gather), p = g;

    if (!r || !s->T || y->cols != w->rows)
        return false;
    g.tail = { (const float *)h->data, r->b, h->ld, y->cols * r->r, (int32_t)r->r };
    if (!cu_moe_wg_fits(d, MOE_NT, &g))
        return false;
    factor(&p, r->a, r->r, x->cols);
    to(&p, h);
    p.n = (int32_t)r->r;
    p.alpha = r->scale;
    cu_moe_mm(d, MOE_NT, &p, false);
    cu_moe_wg(d, MOE_NT, &g);
    return true;
}

static bool m_experts_lora_dx(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_mat *w, const struct tw_lora_ctx *c, const struct tw_dispatch *s, bool gather)
{
    struct cu_dev *d = cu(dev);
    const struct tw_lora_run *r = whole_run(c, s);
    struct moe_mm g = backward(dx, dy, w, s);

    if (!r || !s->T || dy->cols != w->rows)
        return false;
    g.tail = { (const float *)scratch->data, r->a, scratch->ld, x->cols * r->r, (int32_t)r->r };
    if (!cu_moe_wg_fits(d, MOE_NN, &g))
        return false;
    lora_back(d, all_of(s), scratch, dy, x, h, r, gather ? s->pair : NULL, false);
    cu_moe_wg(d, MOE_NN, &g);
    return true;
}

static bool m_experts_sum_dx(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, struct tw_tensor *h, const struct tw_mat *w,
        const struct tw_lora_ctx *c, const struct tw_dispatch *s)
{
    struct cu_dev *d = cu(dev);
    const struct tw_lora_run *r = whole_run(c, s);
    struct moe_mm g = backward(dx, dy, w, s), p = all_of(s), db;

    p.pair = g.pair = s->pair;
    if (!s->T || dy->cols != w->rows || !c->nrun)
        return s->T && dy->cols == w->rows && cu_moe_wg(d, MOE_NN, &g);
    if (!r || !r->da || !r->db)
        return false;
    g.tail = { (const float *)scratch->data, r->a, scratch->ld, x->cols * r->r, (int32_t)r->r };
    from(&p.a, &p.ta, &p.lda, dy);
    factor(&p, r->b, dy->cols, r->r);
    to(&p, scratch);
    p.n = (int32_t)r->r, p.k = (int32_t)dy->cols;
    p.alpha = r->scale;
    db = grad(all_of(s), r->db, dy, dy->cols, h, r->r, NULL);
    if (!cu_moe_wg_fits(d, MOE_NN, &g) || !cu_moe_thin_back(d, &p, &db, 0))
        return false;
    cu_moe_weigh(d, h, r->r, s);
    cu_moe_thin_back(d, &p, &db, s->T * s->K);
    cu_moe_wg(d, MOE_NN, &g);
    cu_moe_weigh(d, scratch, r->r, s);
    g = grad(all_of(s), r->da, scratch, r->r, x, x->cols, NULL);
    cu_moe_mm(d, MOE_TN, &g, false);
    return true;
}

void cu_moe_ops(struct tw_ops *o)
{
    static const struct tw_moe_ops moe = {
        m_logits, m_logits_bwd, cu_moe_route, cu_moe_route_bwd, m_experts, m_experts_dx,
        m_experts_dw, cu_moe_collect, m_lora, m_lora_bwd, cu_moe_combine, cu_moe_combine_bwd,
        m_experts_lora, m_experts_lora_dx, m_experts_sum_dx, cu_moe_glu_bwd,
    };

    o->moe = &moe;
}
