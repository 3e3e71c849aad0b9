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

/* Of every q head in turn: its q, k, v and z, or its b and a. */
static void delta_fused(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    struct tw_delta d = tw_delta_conf(&t->m->cfg);
    int64_t R = d.hv / d.hk, V = R * d.dv, all = 2 * d.dk + 2 * V;
    const struct tw_split qkvz[] = { { { d.hk, d.dk, all, 0 }, 0 }, { { d.hk, d.dk, all, d.dk }, 0 },
        { { d.hk, V, all, 2 * d.dk }, 0 }, { { d.hk, V, all, 2 * d.dk + V }, 1 } };
    const struct tw_split ba[] = { { { d.hk, R, 2 * R, 0 }, 0 }, { { d.hk, R, 2 * R, R }, 1 } };
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], t->m->cfg.D);
    struct tw_weight *w[] = { l->w[TW_S_INQKVZ], l->w[TW_S_INBA] };
    struct tw_var *y[2], *in[4];

    tw_t_linears(t, n, w, 2, y);
    tw_t_split(t, y[0], qkvz, 4, in, 2);
    tw_t_split(t, y[1], ba, 2, in + 2, 2);
    rule(t, l, in, x, out);
}

static const char *delta_lacks(const struct tw_ops *ops)
{
    return ops->delta && ops->cols ? NULL : "layers with a recurrent state (gated DeltaNet)";
}

const struct tw_block tw_block_gated = { .name = "gated attention", .forward = gated, .kv = true,
    .lacks = gated_lacks };
const struct tw_block tw_block_delta = { .name = "delta", .forward = delta, .rec = true,
    .lacks = delta_lacks };
const struct tw_block tw_block_delta_fused = { .name = "delta", .forward = delta_fused, .rec = true,
    .lacks = delta_lacks };
