/* block.c - the blocks that layers are made of. A tensor the family does not have is NULL. */
#include "nn/block_priv.h"
#include "nn/step.h"

void tw_block_into(struct tw_tape *t, struct tw_var *h, struct tw_weight *w,
        struct tw_weight *post, struct tw_var *x, struct tw_var *out)
{
    if (post)
        tw_t_residual(t, x, tw_t_linear(t, h, w, NULL, NULL), post, out);
    else
        tw_t_linear(t, h, w, x, out);
}

/* Grouped-query attention; q and k normalised per head where the family has the weights. */
static void gqa(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *n = tw_t_norm_in(t, x, l->w[TW_S_NORM1]);
    struct tw_weight *w[] = { l->w[TW_S_Q], l->w[TW_S_K], l->w[TW_S_V] };
    struct tw_var *y[3];                // [T, nh * hd], [T, nkv * hd] twice

    if (!tw_t_heads(t, l, n, w, 3, y)) {
        tw_t_linears_joined(t, n, w, 3, y);
        y[0] = tw_t_norm_rope(t, l, y[0], l->w[TW_S_QNORM], c->nh);
        y[1] = tw_t_norm_rope(t, l, y[1], l->w[TW_S_KNORM], c->nkv);
    }
    tw_block_into(t, tw_t_attn_in(t, l, y[0], y[1], y[2]), l->w[TW_S_O], l->w[TW_S_POST1], x, out);
}

/* Keys and values of all rows, the rest of some. */
static void gqa_some(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, const struct tw_some *s,
        struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *n = tw_t_norm_in(t, x, l->w[TW_S_NORM1]), *in = tw_t_some(t, x, s);
    struct tw_weight *w[] = { l->w[TW_S_K], l->w[TW_S_V] };
    struct tw_var *y[2], *q;

    if (!tw_t_heads(t, l, n, w, 2, y)) {
        tw_t_linears_joined(t, n, w, 2, y);
        y[0] = tw_t_norm_rope(t, l, y[0], l->w[TW_S_KNORM], c->nkv);
    }
    q = tw_t_linear(t, tw_t_norm_in(t, in, l->w[TW_S_NORM1]), l->w[TW_S_Q], NULL, NULL);
    q = tw_t_some_rope(t, l, q, l->w[TW_S_QNORM], c->nh, s);
    tw_block_into(t, tw_t_some_attn(t, l, q, y[0], y[1], s), l->w[TW_S_O], l->w[TW_S_POST1], in, out);
}

static void gqa_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_config *c = &s->m->cfg;
    const struct tw_step_w in[3] = { tw_step_w(s, l->w[TW_S_Q]), tw_step_w(s, l->w[TW_S_K]),
        tw_step_w(s, l->w[TW_S_V]) };
    struct tw_step_attn a = tw_step_attn(s->m, l);
    struct tw_tensor qkv = tw_step_tensor(s, (c->nh + 2 * c->nkv) * c->hd);
    struct tw_tensor o = tw_step_tensor(s, c->nh * c->hd);

    s->ops->linear(s->m->dev, &qkv, &s->x, l->w[TW_S_NORM1]->w.data, a.eps, in, 3, NULL);
    s->ops->attn(s->m->dev, &o, &qkv, &a);
    tw_step_into(s, &o, l->w[TW_S_O], l->w[TW_S_POST1]);
}

static void swiglu(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    struct tw_var *n = tw_t_norm_in(t, x, l->w[TW_S_NORM2]);
    struct tw_weight *w[] = { l->w[TW_S_GATE], l->w[TW_S_UP] };
    struct tw_var *y[2], *h = tw_t_glu_of(t, n, w[0], w[1]);     // gate, up [T, I]

    if (!h) {
        tw_t_linears_joined(t, n, w, 2, y);
        h = w[0]->bias || w[1]->bias ? tw_t_glu(t, y[0], y[1]) : tw_t_glu_in(t, y[0], y[1]);
    }
    tw_block_into(t, h, l->w[TW_S_DOWN], l->w[TW_S_POST2], x, out);
}

static void swiglu_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_config *c = &s->m->cfg;
    const struct tw_step_w gate = tw_step_w(s, l->w[TW_S_GATE]), up = tw_step_w(s, l->w[TW_S_UP]);
    struct tw_tensor h = tw_step_tensor(s, c->I);

    s->ops->glu(s->m->dev, &h, &s->x, l->w[TW_S_NORM2]->w.data, (float)c->eps, &gate, &up,
            (int)c->act);
    tw_step_into(s, &h, l->w[TW_S_DOWN], l->w[TW_S_POST2]);
}

static void moe(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    tw_t_moe(t, l, tw_t_norm(t, x, l->w[TW_S_NORM2], t->m->cfg.D), x, out);
}

struct tw_step_moe tw_step_moe(const struct tw_model *m, const struct tw_layer *l)
{
    return (struct tw_step_moe){ .r = tw_route_of(l), .router = &l->w[TW_S_ROUTER]->w,
        .gate_up = &l->w[TW_S_XGATEUP]->w, .down = &l->w[TW_S_XDOWN]->w, .act = (int)m->cfg.act };
}

static void moe_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const float *norm = l->w[TW_S_NORM2]->w.data;
    const float eps = (float)s->m->cfg.eps;
    struct tw_step_moe m = tw_step_moe(s->m, l);
    struct tw_tensor shared, mix, h;

    if (l->w[TW_S_SGATE]) {
        const struct tw_step_w gate = tw_step_w(s, l->w[TW_S_SGATE]), up = tw_step_w(s, l->w[TW_S_SUP]);
        const struct tw_step_w down = tw_step_w(s, l->w[TW_S_SDOWN]);

        h = tw_step_tensor(s, down.w->cols);
        shared = tw_step_tensor(s, down.w->rows);
        s->ops->glu(s->m->dev, &h, &s->x, norm, eps, &gate, &up, m.act);
        s->ops->linear(s->m->dev, &shared, &h, NULL, 0, &down, 1, NULL);
    }
    if (l->w[TW_S_SMIX]) {
        const struct tw_step_w w = tw_step_w(s, l->w[TW_S_SMIX]);

        mix = tw_step_tensor(s, 1);
        s->ops->linear(s->m->dev, &mix, &s->x, norm, eps, &w, 1, NULL);
    }
    s->ops->moe(s->m->dev, &s->x, norm, eps, &m, l->w[TW_S_SGATE] ? &shared : NULL,
            l->w[TW_S_SMIX] ? &mix : NULL);
}

static const char *moe_lacks(const struct tw_ops *ops)
{
    return ops->moe ? NULL : "products of experts";
}

const struct tw_block tw_block_gqa = { .name = "gqa", .forward = gqa, .step = gqa_step,
    .some = gqa_some, .kv = true, .in_place = true };
const struct tw_block tw_block_swiglu = { .name = "swiglu", .forward = swiglu,
    .step = swiglu_step, .rows = true, .in_place = true };
const struct tw_block tw_block_moe = { .name = "moe", .forward = moe, .step = moe_step,
    .lacks = moe_lacks };
