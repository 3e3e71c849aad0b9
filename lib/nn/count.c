/* count.c - the counting device: takes the layouts of another device, allocates nothing, computes
 * nothing, and adds up floating-point operations (a multiply-add is two). Addresses it is given are
 * never read. */
#include "nn/count_priv.h"
#include "base/mem.h"
#include <stdlib.h>

static void flops(struct tw_dev *d, double n)
{
    ((struct tw_dev_head *)d)->flops += n;
}

static void *c_alloc(struct tw_dev *d, size_t bytes, struct tw_err *err)
{
    return (void *)(uintptr_t)4096;
}

static void c_free(struct tw_dev *d, void *p)
{
}

static void c_put(struct tw_dev *d, void *dst, const void *host, size_t bytes)
{
}

static void c_get(struct tw_dev *d, void *host, const void *src, size_t bytes)
{
}

static void c_copy(struct tw_dev *d, void *dst, const void *src, size_t bytes)
{
}

static void c_zero(struct tw_dev *d, void *p, size_t bytes)
{
}

static int c_sync(struct tw_dev *d, struct tw_err *err)
{
    return 0;
}

static int64_t c_mat_elems(const struct tw_dev *d, int64_t rows, int64_t cols, enum tw_dtype t)
{
    return tw_ops(tw_count_like(d))->mat_elems(tw_count_like(d), rows, cols, t);
}

static void c_mat_put(struct tw_dev *d, struct tw_mat *m, const void *host, enum tw_dtype from,
        int64_t row, int64_t n)
{
}

static void c_mat_get(struct tw_dev *d, float *host, const struct tw_mat *m, int64_t row, int64_t n)
{
}

static void c_mat_cast(struct tw_dev *d, struct tw_mat *bf16, const struct tw_mat *f32)
{
}

static void c_embed(struct tw_dev *d, struct tw_tensor *y, const struct tw_mat *w,
        const int32_t *id)
{
}

static void c_embed_bwd(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
        const int32_t *id)
{
    flops(d, (double)dy->rows * (double)dy->cols);
}

static void c_rmsnorm(struct tw_dev *d, struct tw_tensor *y, float *rstd,
        const struct tw_tensor *x, const float *w, int64_t n, float eps, float off)
{
    flops(d, 4.0 * (double)x->rows * (double)x->cols);
}

static void c_rmsnorm_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off)
{
    flops(d, 8.0 * (double)x->rows * (double)x->cols);
}

static double product(const struct tw_tensor *t, int64_t out, int64_t in)
{
    return 2.0 * (double)t->rows * (double)out * (double)in;
}

static void c_linear(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res)
{
    flops(d, product(x, w->rows, w->cols));
}

static void c_linear_dx(struct tw_dev *d, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dy, const struct tw_mat *w)
{
    flops(d, product(dy, w->rows, w->cols));
}

static void c_linear_dw(struct tw_dev *d, struct tw_mat *dw, float *dbias,
        const struct tw_tensor *dy, const struct tw_tensor *x)
{
    flops(d, product(dy, dw->rows, dw->cols));
}

static double lora_flops(const struct tw_lora_ctx *c, int64_t in, int64_t out)
{
    double n = 0;

    for (int64_t i = 0; i < c->nrun; i++)
        n += 2.0 * (double)(c->run[i].t1 - c->run[i].t0) * (double)c->run[i].r *
             (double)(in + out);
    return n;
}

static void c_lora(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c)
{
    flops(d, lora_flops(c, x->cols, y->cols));
}

static void c_lora_bwd(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    flops(d, lora_flops(c, x->cols, dy->cols) + lora_flops(c, dx ? x->cols : 0, dy->cols));
}

static void c_lora_group(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    for (int i = 0; i < n; i++) {
        c_linear(d, one[i].y, x, one[i].w, one[i].bias, NULL);
        c_lora(d, one[i].y, one[i].h, x, one[i].c);
    }
}

static void c_lora_wide(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    for (int i = 0; i < n; i++)
        if (one[i].y)
            c_lora_group(d, &one[i], 1, x);
        else
            flops(d, lora_flops(one[i].c, x->cols, 0));
}

/* Counted by the backward. */
static void c_lora_wide_da(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
}

static void c_lora_group_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    for (int i = 0; i < n; i++) {
        if (dx)
            c_linear_dx(d, dx, add, one[i].y, one[i].w);
        c_lora_bwd(d, dx, one[i].scratch, one[i].y, x, one[i].h, one[i].c);
    }
}

static void c_rope(struct tw_dev *d, struct tw_tensor *x, int64_t nheads, int64_t hd,
        const struct tw_rope *r, int sign)
{
    flops(d, 3.0 * (double)x->rows * (double)(nheads * r->rot));
}

/* Pairs of a query and a key it sees. */
static double pairs_of(const struct tw_attn_seq *seq, int64_t nseq, int64_t window)
{
    double n = 0;

    for (int64_t s = 0; s < nseq; s++) {
        double nq = (double)seq[s].nq, past = (double)seq[s].past, w = (double)window;
        double full = nq * past + nq * (nq + 1) / 2;

        n += w > 0 && full > nq * w ? nq * w : full;
    }
    return n;
}

static double pairs(const struct tw_attn *a)
{
    return pairs_of(a->seq, a->nseq, a->window);
}

static void c_attn(struct tw_dev *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a)
{
    flops(d, 4 * (double)(a->nh * a->hd) * pairs(a));
}

static void c_attn_bwd(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dk,
        struct tw_tensor *dv, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *k,
        const struct tw_tensor *v, const struct tw_attn *a)
{
    flops(d, 10 * (double)(a->nh * a->hd) * pairs(a));
}

static size_t c_kv_bytes(const struct tw_dev *d, int64_t nkv, int64_t hd, enum tw_dtype act)
{
    return tw_ops(tw_count_like(d))->kv_bytes(tw_count_like(d), nkv, hd, act);
}

static void c_kv_put(struct tw_dev *d, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_attn *a)
{
}

static void c_mla_attn(struct tw_dev *d, struct tw_tensor *o, float *lse,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe,
        const struct tw_mla *a)
{
    flops(d, 2 * (double)(a->nh * (a->dn + a->dr + a->dv)) * pairs_of(a->seq, a->nseq, 0));
}

static void c_mla_attn_bwd(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dkv,
        struct tw_tensor *dpe, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *kv,
        const struct tw_tensor *pe, const struct tw_mla *a)
{
    flops(d, (double)(a->nh * (6 * (a->dn + a->dr) + 4 * a->dv)) * pairs_of(a->seq, a->nseq, 0));
}

static size_t c_mla_bytes(const struct tw_dev *d, int64_t rkv, int64_t dr, enum tw_dtype act)
{
    return tw_ops(tw_count_like(d))->mla->bytes(tw_count_like(d), rkv, dr, act);
}

static void c_mla_put(struct tw_dev *d, const struct tw_tensor *c, const struct tw_tensor *pe,
        const struct tw_mla *a)
{
}

static void c_mla_decode(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a)
{
    double tokens = 0;

    for (int64_t s = 0; s < a->nseq; s++)
        tokens += (double)a->seq[s].nq;
    flops(d, 2 * (double)(a->nh * (2 * a->rkv + a->dr)) * pairs_of(a->seq, a->nseq, 0) +
            2 * tokens * (double)(a->nh * a->rkv * (a->dn + a->dv)));
}

static const struct tw_mla_ops mla = { .attn = c_mla_attn, .attn_bwd = c_mla_attn_bwd,
    .bytes = c_mla_bytes, .put = c_mla_put, .decode = c_mla_decode };

static void c_glu(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act)
{
    flops(d, 4.0 * (double)y->rows * (double)y->cols);
}

static void c_glu_bwd(struct tw_dev *d, struct tw_tensor *dgate, struct tw_tensor *dup,
        struct tw_tensor *y, const struct tw_tensor *dy, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act)
{
    flops(d, 8.0 * (double)dy->rows * (double)dy->cols);
}

static bool c_packs(const struct tw_dev *d, int64_t rows, int64_t cols)
{
    return tw_ops(tw_count_like(d))->packs(tw_count_like(d), rows, cols);
}

static bool c_gated_fits(const struct tw_dev *d, const struct tw_tensor *x, const struct tw_mat *gate,
        const struct tw_mat *up)
{
    return tw_ops(tw_count_like(d))->gated_fits(tw_count_like(d), x, gate, up);
}

static void c_gated(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *gate, const struct tw_mat *up, enum tw_act act)
{
    c_linear(d, NULL, x, gate, NULL, NULL);
    c_linear(d, NULL, x, up, NULL, NULL);
    c_glu(d, y, NULL, NULL, act);
}

static bool c_heads_fit(const struct tw_dev *d, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r)
{
    return tw_ops(tw_count_like(d))->heads_fit(tw_count_like(d), x, w, n, hd, r);
}

static void c_heads(struct tw_dev *d, struct tw_tensor *const *y, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r)
{
    for (int i = 0; i < n; i++)
        c_linear(d, NULL, x, w[i], NULL, NULL);
}

static void c_cols(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *x,
        const struct tw_cols *c, bool back)
{
}

static void c_head(struct tw_dev *d, const struct tw_head *h)
{
    double n = 2.0 * (double)h->n * (double)h->w->rows * (double)h->w->cols;

    flops(d, n * (1 + (h->coef != NULL) + (h->coef && h->dw)));
}

static size_t c_head_scratch(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, int grads)
{
    return tw_ops(tw_count_like(d))->head_scratch(tw_count_like(d), n, V, D, grads);
}

static void c_logits(struct tw_dev *d, float *logits, const struct tw_tensor *h,
        const int32_t *row, int64_t n, const struct tw_mat *w)
{
    flops(d, 2.0 * (double)n * (double)w->rows * (double)w->cols);
}

static float c_pick(const struct tw_dev *d, const float *z, int64_t V, float temp, int32_t target)
{
    return tw_ops(tw_count_like(d))->pick(tw_count_like(d), z, V, temp, target);
}

static void c_add(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x)
{
    flops(d, (double)y->rows * (double)y->cols);
}

static void c_scale(struct tw_dev *d, struct tw_tensor *y, float a)
{
    flops(d, (double)y->rows * (double)y->cols);
}

static void c_axpy(struct tw_dev *d, float *y, float a, const float *x, int64_t n)
{
    flops(d, 2.0 * (double)n);
}

static void c_sumsq(struct tw_dev *d, double *sum, const float *g, int64_t n)
{
    flops(d, 2.0 * (double)n);
}

static void c_clip(struct tw_dev *d, float *scale, const double *sum, float max,
        double by)
{
}

static void c_adamw(struct tw_dev *d, float *w, const float *g, float *m, float *v, int64_t n,
        const struct tw_adamw *p, const float *scale)
{
    flops(d, 16.0 * (double)n);
}

static void c_sgd(struct tw_dev *d, float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale)
{
    flops(d, 6.0 * (double)n);
}

static void c_adamw_split(struct tw_dev *d, uint16_t *hi, uint16_t *low, const float *g, float *m,
        float *v, int64_t n, const struct tw_adamw *p, const float *scale)
{
    flops(d, 16.0 * (double)n);
}

static void c_close(struct tw_dev *d)
{
    free(d);
}

static const struct tw_ops table = {
    .name = "count",
    .alloc = c_alloc,
    .free = c_free,
    .put = c_put,
    .get = c_get,
    .copy = c_copy,
    .zero = c_zero,
    .sync = c_sync,
    .mat_elems = c_mat_elems,
    .mat_put = c_mat_put,
    .mat_get = c_mat_get,
    .mat_cast = c_mat_cast,
    .embed = c_embed,
    .embed_bwd = c_embed_bwd,
    .rmsnorm = c_rmsnorm,
    .rmsnorm_bwd = c_rmsnorm_bwd,
    .linear = c_linear,
    .linear_dx = c_linear_dx,
    .linear_dw = c_linear_dw,
    .lora = c_lora,
    .lora_bwd = c_lora_bwd,
    .rope = c_rope,
    .attn = c_attn,
    .attn_bwd = c_attn_bwd,
    .kv_bytes = c_kv_bytes,
    .kv_put = c_kv_put,
    .glu = c_glu,
    .glu_bwd = c_glu_bwd,
    .cols = c_cols,
    .head = c_head,
    .head_scratch = c_head_scratch,
    .logits = c_logits,
    .pick = c_pick,
    .add = c_add,
    .scale = c_scale,
    .axpy = c_axpy,
    .sumsq = c_sumsq,
    .clip = c_clip,
    .adamw = c_adamw,
    .sgd = c_sgd,
    .close = c_close,
};

struct tw_dev *tw_count_open(const struct tw_dev *dev, struct tw_err *err)
{
    struct tw_count *c = tw_xcalloc(1, sizeof *c);

    c->ops = table;
    c->ops.low_act = tw_ops(dev)->low_act;
    c->ops.alone = tw_ops(dev)->alone;
    c->ops.in_place = tw_ops(dev)->in_place;
    c->ops.plain = tw_ops(dev)->plain;
    c->ops.one_grad = tw_ops(dev)->one_grad;
    c->ops.low_in = tw_ops(dev)->low_in;
    if (tw_ops(dev)->lora_group) {      /* what is kept at one time follows from it */
        c->ops.group_bare = tw_ops(dev)->group_bare;
        c->ops.lora_group = c_lora_group;
        c->ops.lora_group_bwd = c_lora_group_bwd;
    }
    if (tw_ops(dev)->packs)
        c->ops.packs = c_packs;
    if (tw_ops(dev)->gated) {
        c->ops.gated_fits = c_gated_fits;
        c->ops.gated = c_gated;
    }
    if (tw_ops(dev)->heads) {
        c->ops.heads_fit = c_heads_fit;
        c->ops.heads = c_heads;
    }
    if (tw_ops(dev)->delta)
        c->ops.delta = &tw_count_delta;
    if (tw_ops(dev)->mla)
        c->ops.mla = &mla;
    if (tw_ops(dev)->moe)
        c->ops.moe = &tw_count_moe;
    if (tw_ops(dev)->lora_wide) {
        c->ops.lora_wide = c_lora_wide;
        c->ops.lora_wide_bwd = c_lora_group_bwd;
        c->ops.lora_wide_da = c_lora_wide_da;
    }
    if (tw_ops(dev)->adamw_split)
        c->ops.adamw_split = c_adamw_split;
    c->head.ops = &c->ops;
    c->like = dev;
    return (struct tw_dev *)c;
}
