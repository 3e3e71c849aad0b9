/* block_delta.c - the blocks of Qwen3-Next and Qwen3.5: attention whose output is gated, and the gated
 * delta rule with its projections apart or in one */
#include "nn/step.h"
#include "nn/tape.h"

/* q_proj gives every head's query and then its gate. */
static void gated(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], c->D);
    struct tw_weight *w[] = { l->w[TW_S_Q], l->w[TW_S_K], l->w[TW_S_V] };
    const struct tw_split s[] = { { { c->nh, c->hd, 2 * c->hd, 0 }, 0 },
        { { c->nh, c->hd, 2 * c->hd, c->hd }, 1 } };
    struct tw_var *y[3], *qg[2], *q, *k, *o;    // [T, nh * 2 hd], [T, nkv * hd] twice

    tw_t_linears(t, n, w, 3, y);
    tw_t_split(t, y[0], s, 2, qg, 2);
    q = tw_t_norm_rope(t, l, qg[0], l->w[TW_S_QNORM], c->nh);
    k = tw_t_norm_rope(t, l, y[1], l->w[TW_S_KNORM], c->nkv);
    o = tw_t_attn(t, l, q, k, y[2]);
    tw_t_linear(t, tw_t_gated(t, qg[1], o), l->w[TW_S_O], x, out);
}

static void gated_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_config *c = &s->m->cfg;
    const struct tw_step_w in[3] = { tw_step_w(s, l->w[TW_S_Q]), tw_step_w(s, l->w[TW_S_K]),
        tw_step_w(s, l->w[TW_S_V]) };
    const struct tw_step_w out = tw_step_w(s, l->w[TW_S_O]);
    struct tw_step_attn a = tw_step_attn(s->m, l);
    struct tw_tensor qkv = tw_step_tensor(s, 2 * (c->nh + c->nkv) * c->hd);
    struct tw_tensor o = tw_step_tensor(s, c->nh * c->hd);

    a.gated = true;
    s->ops->linear(s->m->dev, &qkv, &s->x, l->w[TW_S_NORM1]->w.data, a.eps, in, 3, NULL);
    s->ops->attn(s->m->dev, &o, &qkv, &a);
    s->ops->linear(s->m->dev, &s->x, &o, NULL, 0, &out, 1, &s->x);
}

static const char *gated_lacks(const struct tw_ops *ops)
{
    return ops->cols ? NULL : "attention with a gate";
}

/* in: qkv as the convolution takes it, z, b, a. */
static void rule(struct tw_tape *t, const struct tw_layer *l, struct tw_var *const *in,
        struct tw_var *x, struct tw_var *out)
{
    struct tw_var *y = tw_t_delta_step(t, l, in), *o;

    if (!y) {
        o = tw_t_delta(t, l, tw_t_conv(t, l, in[0]), in[3], in[2]);
        y = tw_t_gnorm(t, o, in[1], l->w[TW_S_GNORM]);
    }
    tw_t_linear(t, y, l->w[TW_S_OUT], x, out);
}

static void delta(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], t->m->cfg.D);
    struct tw_weight *w[] = { l->w[TW_S_INQKV], l->w[TW_S_INZ], l->w[TW_S_INB], l->w[TW_S_INA] };
    struct tw_var *in[4];

    tw_t_linears(t, n, w, 2, in);
    tw_t_linears(t, n, w + 2, 2, in + 2);
    rule(t, l, in, x, out);
}

static struct tw_tensor part(const struct tw_tensor *x, int64_t at, int64_t n)
{
    struct tw_tensor y = *x;

    y.data = (char *)x->data + (size_t)at * tw_dtype_size(x->dtype);
    y.cols = n;
    return y;
}

/* X as the rule takes it: qkv, z, b, a side by side. */
static void rule_step(struct tw_stepper *s, const struct tw_layer *l, const struct tw_tensor *in)
{
    const struct tw_step_w out = tw_step_w(s, l->w[TW_S_OUT]);
    const float eps = (float)s->m->cfg.eps;
    struct tw_delta d = tw_delta_conf(&s->m->cfg);
    int64_t C = tw_delta_cols(&d), V = d.hv * d.dv;
    struct tw_tensor x = *in, y = tw_step_tensor(s, V);
    struct tw_tensor qkv = part(&x, 0, C), z = part(&x, C, V), b = part(&x, C + V, d.hv);
    struct tw_tensor a = part(&x, C + V + d.hv, d.hv);
    struct tw_delta_step step = { .qkv = &qkv, .z = &z, .a = &a, .b = &b,
        .w = l->w[TW_S_CONV]->w.data, .alog = l->w[TW_S_ALOG]->w.data,
        .dt = l->w[TW_S_DTBIAS]->w.data, .norm = l->w[TW_S_GNORM]->w.data, .eps = eps };

    d.offset = l->kv_offset;
    s->ops->delta(s->m->dev, &y, &step, &d);
    s->ops->linear(s->m->dev, &s->x, &y, NULL, 0, &out, 1, &s->x);
}

static int64_t rule_cols(const struct tw_delta *d)
{
    return tw_delta_cols(d) + d->hv * d->dv + 2 * d->hv;
}

static void delta_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_step_w in[4] = { tw_step_w(s, l->w[TW_S_INQKV]), tw_step_w(s, l->w[TW_S_INZ]),
        tw_step_w(s, l->w[TW_S_INB]), tw_step_w(s, l->w[TW_S_INA]) };
    struct tw_delta d = tw_delta_conf(&s->m->cfg);
    struct tw_tensor x = tw_step_tensor(s, rule_cols(&d));

    s->ops->linear(s->m->dev, &x, &s->x, l->w[TW_S_NORM1]->w.data, (float)s->m->cfg.eps, in, 4, NULL);
    rule_step(s, l, &x);
}

/* Of every q head in turn: its q, k, v and z, then its b and a, in two products. */
enum { QKVZ = 4, BA = 2 };
static void fused_split(struct tw_split *s, const struct tw_delta *d)
{
    int64_t R = d->hv / d->hk, V = R * d->dv, all = 2 * d->dk + 2 * V;
    const struct tw_split of[QKVZ + BA] = { { { d->hk, d->dk, all, 0 }, 0 },
        { { d->hk, d->dk, all, d->dk }, 0 },
        { { d->hk, V, all, 2 * d->dk }, 0 }, { { d->hk, V, all, 2 * d->dk + V }, 1 },
        { { d->hk, R, 2 * R, 0 }, 0 }, { { d->hk, R, 2 * R, R }, 1 } };

    memcpy(s, of, sizeof of);
}

static void delta_fused(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    struct tw_delta d = tw_delta_conf(&t->m->cfg);
    struct tw_split split[QKVZ + BA];
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], t->m->cfg.D);
    struct tw_weight *w[] = { l->w[TW_S_INQKVZ], l->w[TW_S_INBA] };
    struct tw_var *y[2], *in[4];

    fused_split(split, &d);
    tw_t_linears(t, n, w, 2, y);
    tw_t_split(t, y[0], split, QKVZ, in, 2);
    tw_t_split(t, y[1], split + QKVZ, BA, in + 2, 2);
    rule(t, l, in, x, out);
}

static void delta_fused_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_step_w in[2] = { tw_step_w(s, l->w[TW_S_INQKVZ]), tw_step_w(s, l->w[TW_S_INBA]) };
    struct tw_delta d = tw_delta_conf(&s->m->cfg);
    int64_t wide = in[0].w->rows, at = 0;
    struct tw_tensor y = tw_step_tensor(s, rule_cols(&d)), x = tw_step_tensor(s, rule_cols(&d));
    struct tw_split split[QKVZ + BA];

    fused_split(split, &d);
    s->ops->linear(s->m->dev, &y, &s->x, l->w[TW_S_NORM1]->w.data, (float)s->m->cfg.eps, in, 2, NULL);
    for (int i = 0; i < QKVZ + BA; i++) {
        const struct tw_cols *c = &split[i].c;
        struct tw_tensor to = part(&x, at, c->n * c->w);
        struct tw_tensor from = i < QKVZ ? part(&y, 0, wide) : part(&y, wide, in[1].w->rows);

        s->m->ops->cols(s->m->dev, &to, &from, c, false);
        at += c->n * c->w;
    }
    rule_step(s, l, &x);
}

static const char *delta_lacks(const struct tw_ops *ops)
{
    return ops->delta && ops->cols ? NULL : "layers with a recurrent state (gated DeltaNet)";
}

const struct tw_block tw_block_gated = { .name = "gated attention", .forward = gated, .step = gated_step,
    .kv = true, .lacks = gated_lacks };
const struct tw_block tw_block_delta = { .name = "delta", .forward = delta, .step = delta_step,
    .rec = true, .lacks = delta_lacks };
const struct tw_block tw_block_delta_fused = { .name = "delta", .forward = delta_fused,
    .step = delta_fused_step, .rec = true, .lacks = delta_lacks };
