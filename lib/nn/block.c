/* block.c - the blocks that layers are made of. A tensor the family does not have is NULL. */
#include "nn/tape.h"

/* Grouped-query attention; q and k normalised per head where the family has the weights. */
static void gqa(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], c->D);
    struct tw_weight *w[] = { l->w[TW_S_Q], l->w[TW_S_K], l->w[TW_S_V] };
    struct tw_var *y[3], *q, *k;        // [T, nh * hd], [T, nkv * hd] twice

    tw_t_linears(t, n, w, 3, y);
    q = tw_t_norm_rope(t, y[0], l->w[TW_S_QNORM], c->nh);
    k = tw_t_norm_rope(t, y[1], l->w[TW_S_KNORM], c->nkv);
    tw_t_linear(t, tw_t_attn(t, l, q, k, y[2]), l->w[TW_S_O], x, out);
}

static void swiglu(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM2], t->m->cfg.D);
    struct tw_weight *w[] = { l->w[TW_S_GATE], l->w[TW_S_UP] };
    struct tw_var *y[2];                // gate, up [T, I]

    tw_t_linears(t, n, w, 2, y);
    tw_t_linear(t, tw_t_glu(t, y[0], y[1]), l->w[TW_S_DOWN], x, out);
}

const struct tw_block tw_block_gqa = { .name = "gqa", .forward = gqa, .kv = true };
const struct tw_block tw_block_swiglu = { .name = "swiglu", .forward = swiglu };
