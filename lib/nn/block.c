/* block.c - the blocks that layers are made of. A tensor the family does not have is NULL. */
#include "nn/tape.h"

/* Grouped-query attention; q and k normalised per head where the family has the weights. */
static void gqa(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], c->D);
    struct tw_var *q = tw_t_linear(t, n, l->w[TW_S_Q], NULL, NULL);     // [T, nh * hd]
    struct tw_var *k = tw_t_linear(t, n, l->w[TW_S_K], NULL, NULL);     // [T, nkv * hd]
    struct tw_var *v = tw_t_linear(t, n, l->w[TW_S_V], NULL, NULL);

    q = tw_t_norm_rope(t, q, l->w[TW_S_QNORM], c->nh);
    k = tw_t_norm_rope(t, k, l->w[TW_S_KNORM], c->nkv);
    tw_t_linear(t, tw_t_attn(t, l, q, k, v), l->w[TW_S_O], x, out);
}

static void swiglu(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM2], t->m->cfg.D);
    struct tw_var *gate = tw_t_linear(t, n, l->w[TW_S_GATE], NULL, NULL);   // [T, I]
    struct tw_var *up = tw_t_linear(t, n, l->w[TW_S_UP], NULL, NULL);

    tw_t_linear(t, tw_t_glu(t, gate, up), l->w[TW_S_DOWN], x, out);
}

const struct tw_block tw_block_gqa = { .name = "gqa", .forward = gqa, .kv = true };
const struct tw_block tw_block_swiglu = { .name = "swiglu", .forward = swiglu };
