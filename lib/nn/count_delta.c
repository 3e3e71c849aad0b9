/* count_delta.c - FLOPs of layers with a recurrent state */
#include "nn/count_priv.h"

static void flops(struct tw_dev *d, double n)
{
    ((struct tw_dev_head *)d)->flops += n;
}

static size_t c_state_bytes(const struct tw_dev *d, const struct tw_delta *s, enum tw_dtype act)
{
    return tw_ops(tw_count_like(d))->delta->state_bytes(tw_count_like(d), s, act);
}

static size_t c_save_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act)
{
    return tw_ops(tw_count_like(d))->delta->save_bytes(tw_count_like(d), s, T, act);
}

static size_t c_scratch_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act)
{
    return tw_ops(tw_count_like(d))->delta->scratch_bytes(tw_count_like(d), s, T, act);
}

static void c_conv(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *w,
        const struct tw_delta *s)
{
    flops(d, 2.0 * (double)s->taps * (double)x->rows * (double)x->cols);
}

static void c_conv_bwd(struct tw_dev *d, struct tw_tensor *dx, float *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const float *w, const struct tw_delta *s)
{
    flops(d, (dw ? 6.0 : 4.0) * (double)s->taps * (double)x->rows * (double)x->cols);
}

static void c_gates(struct tw_dev *d, struct tw_tensor *g, struct tw_tensor *beta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    flops(d, 8.0 * (double)a->rows * (double)a->cols);
}

static void c_gates_bwd(struct tw_dev *d, struct tw_tensor *da, struct tw_tensor *db, float *dalog,
        float *ddt, const struct tw_tensor *dg, const struct tw_tensor *dbeta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    flops(d, 12.0 * (double)a->rows * (double)a->cols);
}

/* Decay, prediction, write and read of every element of the state, a token. */
static double rule(const struct tw_tensor *g, const struct tw_delta *s)
{
    return 7.0 * (double)g->rows * (double)(s->hv * s->dk * s->dv);
}

static void c_delta(struct tw_dev *d, struct tw_tensor *o, void *save, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_tensor *beta, const struct tw_delta *s)
{
    flops(d, rule(g, s));
}

static void c_delta_bwd(struct tw_dev *d, struct tw_tensor *dqkv, struct tw_tensor *dg,
        struct tw_tensor *dbeta, const struct tw_tensor *dout, const void *save,
        const struct tw_tensor *qkv, const struct tw_tensor *g, const struct tw_tensor *beta,
        const struct tw_delta *s)
{
    flops(d, 2 * rule(g, s));
}

static void c_gnorm(struct tw_dev *d, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const struct tw_tensor *z, const float *w, int64_t n, float eps)
{
    flops(d, 8.0 * (double)x->rows * (double)x->cols);
}

static void c_gnorm_bwd(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *dz, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *z,
        const float *w, int64_t n, const float *rstd)
{
    flops(d, 16.0 * (double)x->rows * (double)x->cols);
}

const struct tw_delta_ops tw_count_delta = {
    .state_bytes = c_state_bytes, .save_bytes = c_save_bytes,
    .scratch_bytes = c_scratch_bytes, .conv = c_conv,
    .conv_bwd = c_conv_bwd, .gates = c_gates, .gates_bwd = c_gates_bwd, .delta = c_delta,
    .delta_bwd = c_delta_bwd, .gnorm = c_gnorm, .gnorm_bwd = c_gnorm_bwd,
};
