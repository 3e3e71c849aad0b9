/* tape_mla.c - attention over latents on the tape */
#include "nn/tape_priv.h"
#include <assert.h>

static void mla_back(struct tw_tape *t, struct tw_op *op)
{
    bool add_q, add_kv, add_pe;
    struct tw_tensor *dq = tw_var_grad(t, op->x, &add_q), *dkv = tw_var_grad(t, op->x2, &add_kv);
    struct tw_tensor *dpe = tw_var_grad(t, op->x3, &add_pe);

    assert(!add_q && !add_kv && !add_pe);   /* the op overwrites */
    t->ops->mla->attn_bwd(t->dev, dq, dkv, dpe, &op->y->g, &op->y->v, op->save, &op->x->v,
            &op->x2->v, &op->x3->v, &op->mla);
}

/* Keys and values made from the latents, and the sequences of A over them. */
static void made(struct tw_tape *t, struct tw_var *y, struct tw_var *q, struct tw_var *c,
        struct tw_var *pe, struct tw_weight *w, const struct tw_mla *a)
{
    struct tw_var *kv = tw_t_linear(t, c, w, NULL, NULL);
    float *lse = NULL;
    struct tw_op *op;

    if (t->record)
        lse = tw_stack_take(t->st, (size_t)(q->v.rows * a->nh) * sizeof *lse);
    t->ops->mla->attn(t->dev, &y->v, lse, &q->v, &kv->v, &pe->v, a);
    op = tw_note(t, mla_back, y, q);
    if (op) {
        op->x2 = kv;
        op->x3 = pe;
        op->save = lse;
        op->mla = *a;
    }
}

/* The sequences of A that begin with several tokens in this batch (FRESH), or the others. Each has
 * one way, whatever stands beside it. */
static struct tw_mla some(struct tw_tape *t, const struct tw_mla *a, bool fresh)
{
    struct tw_attn_seq *s = tw_arena_alloc(t->host, (size_t)a->nseq * sizeof *s);
    struct tw_mla part = *a;

    part.seq = s;
    part.nseq = 0;
    for (int64_t i = 0; i < a->nseq; i++)
        if (fresh == (!a->seq[i].past && a->seq[i].nq > 1))
            s[part.nseq++] = a->seq[i];
    return part;
}

struct tw_var *tw_t_mla(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *c, struct tw_var *pe, struct tw_weight *w)
{
    const struct tw_config *g = &t->m->cfg;
    struct tw_mla a = { .nh = g->nh, .dn = g->mla.dn, .dr = g->mla.dr, .dv = g->mla.dv,
        .rkv = g->mla.rkv, .scale = (float)tw_attn_scale(g), .seq = t->b->attn,
        .nseq = t->b->nseq }, fresh, rest;
    struct tw_var *y = tw_var_new(t, q->v.rows, a.nh * a.dv);
    struct tw_lora_ctx lora = tw_lora_ctx_of(t, w->module);

    if (!t->b->states) {
        made(t, y, q, c, pe, w, &a);
        return y;
    }
    tw_batch_layer(t->b, l);
    t->ops->mla->put(t->dev, &c->v, &pe->v, &a);
    fresh = some(t, &a, true);
    rest = some(t, &a, false);
    if (fresh.nseq)
        made(t, y, q, c, pe, w, &fresh);
    if (rest.nseq)
        t->ops->mla->decode(t->dev, &y->v, &q->v, &w->w, lora.nrun ? &lora : NULL, &rest);
    return y;
}
