/* block_fused.c - attention and feed-forward whose first products are one matrix in the checkpoint, and
 * so one module for adapters. Their parts are read and written in place. */
#include "nn/block_priv.h"
#include "nn/step.h"

static void gqa_fused(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    int64_t nq = c->nh * c->hd, nk = c->nkv * c->hd;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], c->D);
    struct tw_var *y = tw_t_linear(t, n, l->w[TW_S_QKV], NULL, NULL);
    struct tw_var *q = tw_var_cols(t, y, 0, nq), *k = tw_var_cols(t, y, nq, nk);
    struct tw_var *v = tw_var_cols(t, y, nq + nk, nk);

    q = tw_t_norm_rope(t, l, q, l->w[TW_S_QNORM], c->nh);
    k = tw_t_norm_rope(t, l, k, l->w[TW_S_KNORM], c->nkv);
    tw_block_into(t, tw_t_attn_in(t, l, q, k, v), l->w[TW_S_O], l->w[TW_S_POST1], x, out);
}

static void gqa_fused_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_config *c = &s->m->cfg;
    const struct tw_step_w in = tw_step_w(s, l->w[TW_S_QKV]);
    struct tw_step_attn a = tw_step_attn(s->m, l);
    struct tw_tensor qkv = tw_step_tensor(s, (c->nh + 2 * c->nkv) * c->hd);
    struct tw_tensor o = tw_step_tensor(s, c->nh * c->hd);

    s->ops->linear(s->m->dev, &qkv, &s->x, l->w[TW_S_NORM1]->w.data, a.eps, &in, 1, NULL);
    s->ops->attn(s->m->dev, &o, &qkv, &a);
    tw_step_into(s, &o, l->w[TW_S_O], l->w[TW_S_POST1]);
}

static void swiglu_fused(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    int64_t I = l->w[TW_S_DOWN]->w.cols;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM2], t->m->cfg.D);
    struct tw_var *y = tw_t_linear(t, n, l->w[TW_S_GATEUP], NULL, NULL);
    struct tw_var *h = tw_t_glu(t, tw_var_cols(t, y, 0, I), tw_var_cols(t, y, I, I));

    tw_block_into(t, h, l->w[TW_S_DOWN], l->w[TW_S_POST2], x, out);
}

/* Gate and up are one module of adapters, so their product is one, and the unit is made of its halves. */
static void swiglu_fused_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_step_w in = tw_step_w(s, l->w[TW_S_GATEUP]);
    int64_t I = l->w[TW_S_DOWN]->w.cols;
    struct tw_tensor y = tw_step_tensor(s, 2 * I), h = tw_step_tensor(s, I), gate = y, up = y;

    s->ops->linear(s->m->dev, &y, &s->x, l->w[TW_S_NORM2]->w.data, (float)s->m->cfg.eps, &in, 1, NULL);
    gate.cols = up.cols = I;
    up.data = (char *)y.data + (size_t)I * tw_dtype_size(y.dtype);
    s->m->ops->glu(s->m->dev, &h, &gate, &up, s->m->cfg.act);
    tw_step_into(s, &h, l->w[TW_S_DOWN], l->w[TW_S_POST2]);
}

const struct tw_block tw_block_gqa_fused = { .name = "gqa_fused", .forward = gqa_fused,
    .step = gqa_fused_step, .kv = true, .in_place = true };
const struct tw_block tw_block_swiglu_fused = { .name = "swiglu_fused", .forward = swiglu_fused,
    .step = swiglu_fused_step, .rows = true, .in_place = true };
