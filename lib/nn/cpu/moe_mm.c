/* moe_mm.c - products of experts: the rows of each one through its own matrix, by the kernels that
 * dense products go through. Rows that a product gathers are copied first: next to what is computed
 * with a row that is little. */
#include "nn/cpu/moe_priv.h"

static enum tw_bkind kind_of(const struct tw_mat *w)
{
    return w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16;
}

static void *matrix(const struct tw_mat *w, int64_t e)
{
    int64_t n = tw_cpu_mat_elems(NULL, w->rows, w->cols, w->dtype);

    return (char *)w->data + (size_t)(e * n) * tw_dtype_size(w->dtype);
}

static void router_logits(struct tw_dev *dev, struct tw_tensor *logits, const struct tw_tensor *x,
        const struct tw_mat *w)
{
    tw_cpu_linear(dev, logits, x, w, NULL, NULL);
}

static void router_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, struct tw_mat *dw,
        const struct tw_tensor *dlogits, const struct tw_tensor *x, const struct tw_mat *w)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    bool low = d->low;

    d->low = false;
    if (dw)
        tw_cpu_linear_dw(dev, dw, NULL, dlogits, x);
    d->low = low;
    tw_cpu_linear_dx(dev, dx, add, dlogits, w);
}

struct gather_job {
    const struct tw_dispatch *s;
    const struct tw_tensor *x;
    float *to;
};

static void gather_row(void *arg, int64_t p, int thread)
{
    const struct gather_job *j = arg;

    memcpy(j->to + p * j->x->cols, tw_row(j->x, j->s->pair[p] / j->s->K),
            (size_t)j->x->cols * sizeof(float));
}

/* x in the order of the sorted rows. False: no memory. */
static bool sorted_x(struct tw_cpu *d, struct tw_tensor *out, const struct tw_tensor *x,
        const struct tw_dispatch *s, bool gather)
{
    int64_t n = s->T * s->K;
    struct gather_job j = { s, x, NULL };

    *out = *x;
    if (!gather)
        return true;
    j.to = tw_cpu_scratch(d, TW_SLOT_X, (size_t)n * (size_t)x->cols * 4);
    *out = (struct tw_tensor){ .data = j.to, .dtype = TW_F32, .rows = n, .cols = x->cols,
        .ld = x->cols };
    if (j.to)
        tw_cpu_run(d, n, gather_row, &j);
    return j.to != NULL;
}

static void experts(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const struct tw_dispatch *s, bool gather)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_tensor in;

    if (!sorted_x(d, &in, x, s, gather))
        return;
    for (int64_t e = 0; e < s->E; e++) {
        int64_t p = s->start[e];
        struct tw_gemm g = { .m = s->start[e + 1] - p, .n = w->rows, .f = { .s = w->cols,
                .a = tw_row(&in, p), .lda = in.ld, .bkind = kind_of(w), .b = matrix(w, e) },
            .low = w->dtype == TW_BF16, .c = tw_row(y, p), .ldc = y->ld, .scale = 1 };

        tw_cpu_gemm(d, &g);
    }
}

static void experts_dx(struct tw_dev *dev, struct tw_tensor *dx, const struct tw_tensor *dy,
        const struct tw_mat *w, const struct tw_dispatch *s)
{
    struct tw_mat one = { .dtype = w->dtype, .rows = w->rows, .cols = w->cols };

    for (int64_t e = 0; e < s->E; e++) {
        int64_t p = s->start[e], n = s->start[e + 1] - p;
        struct tw_tensor to = { tw_row(dx, p), TW_F32, n, dx->cols, dx->ld, false };
        struct tw_tensor from = { tw_row(dy, p), TW_F32, n, dy->cols, dy->ld, false };

        one.data = matrix(w, e);
        if (n)
            tw_cpu_linear_dx(dev, &to, false, &from, &one);
    }
}

/* Where sequences begin among rows [p0, p1), counted from p0: *n + 1 borders. NULL: no memory. */
static const int64_t *cuts(struct tw_cpu *d, const struct tw_dispatch *s, int64_t p0, int64_t p1,
        int64_t *n)
{
    const int64_t *t0 = d->slot[TW_SLOT_CUT].p;
    int64_t *cut = tw_cpu_scratch(d, TW_SLOT_LIST, (size_t)(d->ncut + 2) * sizeof *cut), seq = 0;

    *n = 0;
    if (!cut)
        return NULL;
    cut[0] = 0;
    for (int64_t p = p0; p < p1; p++) {
        int64_t before = seq;

        while (seq + 1 < d->ncut && t0[seq + 1] <= s->pair[p] / s->K)
            seq++;
        if (seq > before && p > p0)
            cut[++*n] = p - p0;
    }
    cut[++*n] = p1 - p0;
    return cut;
}

static void experts_dw(struct tw_dev *dev, struct tw_mat *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const struct tw_dispatch *s, bool gather)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_tensor in;

    if (!sorted_x(d, &in, x, s, gather))
        return;
    for (int64_t e = 0; e < s->E; e++) {
        int64_t p = s->start[e], n = s->start[e + 1] - p;
        struct tw_gemm g = { .m = dw->cols, .n = dw->rows, .f = { .s = n, .a = tw_row(&in, p),
                .lda = in.ld, .a_cols = true, .bkind = TW_B_ROWS, .b = tw_row(dy, p),
                .ldb = dy->ld }, .low = d->low, .c = matrix(dw, e), .c_panel = true };

        if (!n)
            continue;
        g.cut = cuts(d, s, p, p + n, &g.ncut);
        if (g.cut)
            tw_cpu_gemm(d, &g);
    }
}

/* The rows of expert E whose tokens are in R: they lie one behind the other. */
static void rows_of(const struct tw_dispatch *s, int64_t e, const struct tw_lora_run *r,
        int64_t *p0, int64_t *p1)
{
    *p0 = s->start[e];
    while (*p0 < s->start[e + 1] && s->pair[*p0] / s->K < r->t0)
        ++*p0;
    *p1 = *p0;
    while (*p1 < s->start[e + 1] && s->pair[*p1] / s->K < r->t1)
        ++*p1;
}

static void lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c, const struct tw_dispatch *s,
        bool gather)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_tensor in;
    int64_t p0, p1;

    if (!sorted_x(d, &in, x, s, gather))
        return;
    for (int64_t i = 0; i < c->nrun; i++)
        for (int64_t e = 0; e < s->E; e++) {
            const struct tw_lora_run *r = &c->run[i];
            struct tw_gemm g = { .n = r->r, .f = { .s = in.cols, .lda = in.ld,
                    .bkind = TW_B_COLS, .b = r->a + e * r->r * in.cols, .ldb = in.cols },
                .low = d->low, .ldc = h->ld, .scale = r->scale };

            rows_of(s, e, r, &p0, &p1);
            g.m = p1 - p0;
            g.f.a = tw_row(&in, p0);
            g.c = tw_row(h, p0);
            tw_cpu_gemm(d, &g);
            g.n = y->cols;
            g.f = (struct tw_factors){ .s = r->r, .a = g.c, .lda = h->ld, .bkind = TW_B_COLS,
                .b = r->b + e * y->cols * r->r, .ldb = r->r };
            g.c = tw_row(y, p0);
            g.ldc = g.ldres = y->ld;
            g.res = g.c;
            g.scale = 1;
            tw_cpu_gemm(d, &g);
        }
}

/* A gradient that adds in a chain over sorted rows [p0, p1). */
static void chain(struct tw_cpu *d, const struct tw_dispatch *s, int64_t p0, int64_t p1, float *c,
        bool turned, const struct tw_tensor *a, int64_t m, const struct tw_tensor *b)
{
    struct tw_gemm g = { .m = m, .n = b->cols, .f = { .s = p1 - p0, .a = tw_row(a, p0),
            .lda = a->ld, .a_cols = true, .bkind = TW_B_ROWS, .b = tw_row(b, p0),
            .ldb = b->ld }, .low = d->low, .c = c, .ldc = turned ? m : b->cols,
        .c_cols = turned };

    g.cut = cuts(d, s, p0, p1, &g.ncut);
    if (g.cut && p1 > p0)
        tw_cpu_gemm(d, &g);
}

static void lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c, const struct tw_dispatch *s, bool gather)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_tensor in;
    int64_t p0, p1;

    if (!sorted_x(d, &in, x, s, gather))
        return;
    for (int64_t i = 0; i < c->nrun; i++)
        for (int64_t e = 0; e < s->E; e++) {
            const struct tw_lora_run *r = &c->run[i];
            int64_t na = e * r->r * in.cols, nb = e * dy->cols * r->r;
            struct tw_gemm g = { .n = r->r, .f = { .s = dy->cols, .lda = dy->ld,
                    .bkind = TW_B_ROWS, .b = r->b + nb, .ldb = r->r }, .low = d->low,
                .ldc = scratch->ld, .scale = r->scale };

            rows_of(s, e, r, &p0, &p1);
            g.m = p1 - p0;
            g.f.a = tw_row(dy, p0);
            g.c = tw_row(scratch, p0);
            tw_cpu_gemm(d, &g);
            if (r->db)
                chain(d, s, p0, p1, r->db + nb, true, h, r->r, dy);
            if (r->da)
                chain(d, s, p0, p1, r->da + na, false, scratch, r->r, &in);
            g.n = in.cols;
            g.f = (struct tw_factors){ .s = r->r, .a = g.c, .lda = scratch->ld,
                .bkind = TW_B_ROWS, .b = r->a + na, .ldb = in.cols };
            g.c = tw_row(dx, p0);
            g.ldc = g.ldres = dx->ld;
            g.res = g.c;
            g.scale = 1;
            tw_cpu_gemm(d, &g);
        }
}

const struct tw_moe_ops tw_cpu_moe = {
    .logits = router_logits, .logits_bwd = router_bwd, .route = tw_cpu_route,
    .route_bwd = tw_cpu_route_bwd, .experts = experts, .experts_dx = experts_dx,
    .experts_dw = experts_dw, .collect = tw_cpu_collect, .lora = lora, .lora_bwd = lora_bwd,
    .combine = tw_cpu_combine, .combine_bwd = tw_cpu_combine_bwd,
};
