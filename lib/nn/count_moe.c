/* count_moe.c - FLOPs of experts. Where rows go is not known, how many there are is. */
#include "nn/count_priv.h"

static void flops(struct tw_dev *d, double n)
{
    ((struct tw_dev_head *)d)->flops += n;
}

static void c_logits(struct tw_dev *d, struct tw_tensor *logits, const struct tw_tensor *x,
        const struct tw_mat *w)
{
    flops(d, 2.0 * (double)x->rows * (double)w->rows * (double)w->cols);
}

static void c_logits_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add, struct tw_mat *dw,
        const struct tw_tensor *dlogits, const struct tw_tensor *x, const struct tw_mat *w)
{
    flops(d, (dw ? 4.0 : 2.0) * (double)x->rows * (double)w->rows * (double)w->cols);
}

static void c_route(struct tw_dev *d, struct tw_dispatch *s, struct tw_tensor *prob,
        const struct tw_route *r, const int32_t *given, const struct tw_balance *b)
{
    flops(d, 4.0 * (double)prob->rows * (double)prob->cols);
}

static void c_route_bwd(struct tw_dev *d, struct tw_tensor *dlogits, const float *dweight,
        const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
        const struct tw_balance *b)
{
    flops(d, 4.0 * (double)prob->rows * (double)prob->cols);
}

static double product(const struct tw_dispatch *s, const struct tw_mat *w)
{
    return 2.0 * (double)(s->T * s->K) * (double)w->rows * (double)w->cols;
}

static void c_experts(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const struct tw_dispatch *s, bool gather)
{
    flops(d, product(s, w));
}

static void c_experts_dx(struct tw_dev *d, struct tw_tensor *dx, const struct tw_tensor *dy,
        const struct tw_mat *w, const struct tw_dispatch *s)
{
    flops(d, product(s, w));
}

static void c_experts_dw(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const struct tw_dispatch *s, bool gather)
{
    flops(d, product(s, dw));
}

static void c_collect(struct tw_dev *d, struct tw_tensor *dx, bool add,
        const struct tw_tensor *sorted, const struct tw_dispatch *s)
{
    flops(d, (double)sorted->rows * (double)sorted->cols);
}

static double lora_flops(const struct tw_lora_ctx *c, const struct tw_dispatch *s, int64_t in,
        int64_t out)
{
    double n = 0;

    for (int64_t i = 0; i < c->nrun; i++)
        n += 2.0 * (double)((c->run[i].t1 - c->run[i].t0) * s->K) * (double)c->run[i].r *
             (double)(in + out);
    return n;
}

static void c_lora(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c, const struct tw_dispatch *s,
        bool gather)
{
    flops(d, lora_flops(c, s, x->cols, y->cols));
}

static void c_lora_bwd(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c, const struct tw_dispatch *s, bool gather)
{
    flops(d, 2 * lora_flops(c, s, x->cols, dy->cols));
}

static void c_combine(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    flops(d, 2.0 * (double)z->rows * (double)z->cols);
}

static void c_combine_bwd(struct tw_dev *d, struct tw_tensor *dz, float *dweight,
        struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    flops(d, 3.0 * (double)z->rows * (double)z->cols);
}

const struct tw_moe_ops tw_count_moe = {
    .logits = c_logits, .logits_bwd = c_logits_bwd, .route = c_route, .route_bwd = c_route_bwd,
    .experts = c_experts, .experts_dx = c_experts_dx, .experts_dw = c_experts_dw,
    .collect = c_collect, .lora = c_lora, .lora_bwd = c_lora_bwd, .combine = c_combine,
    .combine_bwd = c_combine_bwd,
};
