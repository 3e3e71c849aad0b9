/* tape_some.c - some rows of a batch alone, where nothing goes back: those whose logits are wanted */
#include "nn/tape_priv.h"

struct tw_var *tw_t_some(struct tw_tape *t, struct tw_var *x, const struct tw_some *s)
{
    struct tw_var *y = tw_var_new(t, s->n, x->v.cols);
    size_t size = tw_dtype_size(x->v.dtype), bytes = (size_t)x->v.cols * size;

    for (int64_t i = 0; i < s->n; i++)
        t->ops->copy(t->dev, (char *)y->v.data + (size_t)i * bytes,
                (const char *)x->v.data + (size_t)(s->row[i] * x->v.ld) * size, bytes);
    return y;
}

struct tw_var *tw_t_some_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *w, int64_t heads, const struct tw_some *s)
{
    struct tw_rope *r = &t->rope[l->conf->rope];
    const int32_t *all = r->pos;
    size_t bytes = (size_t)s->n * sizeof *all;
    int32_t *host = tw_arena_alloc(t->host, bytes), *pos = tw_stack_take(t->st, bytes);
    struct tw_var *y;

    for (int64_t i = 0; i < s->n; i++)
        host[i] = t->b->pos[s->row[i]];
    t->ops->put(t->dev, pos, host, bytes);
    r->pos = pos;
    y = tw_t_norm_rope(t, l, x, w, heads);
    r->pos = all;
    return y;
}

/* The sequence that a row belongs to. */
static const struct tw_attn_seq *seq_of(const struct tw_batch *b, int64_t row)
{
    int64_t s = 0;

    while (s + 1 < b->nseq && b->attn[s + 1].q0 <= row)
        s++;
    return &b->attn[s];
}

struct tw_var *tw_t_some_attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v, const struct tw_some *s)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *y = tw_var_new(t, q->v.rows, q->v.cols);
    struct tw_attn_seq *seq = tw_arena_alloc(t->host, (size_t)s->n * sizeof *seq);
    struct tw_attn a = { .nh = c->nh, .nkv = c->nkv, .hd = c->hd, .window = l->conf->window,
        .scale = (float)tw_attn_scale(c), .seq = t->b->attn, .nseq = t->b->nseq };

    tw_batch_layer(t->b, l);
    t->ops->kv_put(t->dev, &k->v, &v->v, &a);
    for (int64_t i = 0; i < s->n; i++) {
        const struct tw_attn_seq *of = seq_of(t->b, s->row[i]);

        seq[i] = *of;
        seq[i].q0 = i;
        seq[i].nq = 1;
        seq[i].past = of->past + s->row[i] - of->q0;
    }
    a.seq = seq;
    a.nseq = s->n;
    t->ops->attn(t->dev, &y->v, NULL, &q->v, &k->v, &v->v, &a);
    return y;
}
