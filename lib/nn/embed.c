/* embed.c - hidden states of the last tokens of sequences, and the way back from their gradients. Rows are
 * moved by copies, which every device has. */
#include "nn/pass.h"

static void *row_of(const struct tw_tensor *x, int64_t row)
{
    return (char *)x->data + (size_t)(row * x->ld) * tw_dtype_size(x->dtype);
}

/* F32 on the host to a row of X; LOW has room for it in BF16. */
static void put_row(struct tw_tape *t, struct tw_tensor *x, int64_t row, const float *host, uint16_t *low)
{
    bool f32 = x->dtype == TW_F32;

    for (int64_t i = 0; !f32 && i < x->cols; i++)
        low[i] = tw_f32_to_bf16(host[i]);
    t->ops->put(t->dev, row_of(x, row), f32 ? (const void *)host : low,
            (size_t)x->cols * tw_dtype_size(x->dtype));
}

/* The last rows of all sequences, with one wait. */
static int get_states(struct tw_pass *p, struct tw_tape *t, const struct tw_tensor *x, struct tw_err *err)
{
    size_t bytes = (size_t)x->cols * tw_dtype_size(x->dtype);
    char *all = tw_late_take(p->m, (size_t)p->b.nseq * bytes);
    const int32_t *count;
    const float *sum;

    if (!all)
        return t->ops->sync(t->dev, err) ? -1 : tw_fail(err, NULL, 0, "no host memory for hidden states");
    for (int64_t s = 0; s < p->b.nseq; s++)
        t->ops->get_later(t->dev, all + (size_t)s * bytes, row_of(x, p->b.t0[s + 1] - 1), bytes);
    tw_routing_later(p, t, &count, &sum);
    if (t->ops->reach(t->dev, t->ops->mark(t->dev), err))
        return -1;
    tw_routing_out(p, count, sum);
    for (int64_t s = 0; s < p->b.nseq; s++)
        for (int64_t i = 0; i < x->cols; i++)
            p->state[s * x->cols + i] = x->dtype == TW_F32 ? ((float *)(all + (size_t)s * bytes))[i] :
                tw_bf16_to_f32(((uint16_t *)(all + (size_t)s * bytes))[i]);
    return tw_model_waits(p->m) ? 0 : tw_model_wait(p->m, err);
}

int tw_pass_embed(struct tw_pass *p, struct tw_tape *t, struct tw_var *h, bool counting, struct tw_err *err)
{
    const struct tw_batch *b = &p->b;
    int64_t D = h->v.cols;
    uint16_t *low = tw_arena_alloc(&p->arena, (size_t)D * sizeof *low);
    struct tw_tensor *dh;
    bool add;

    if (!counting && get_states(p, t, &h->v, err))
        return -1;
    if (!(p->flags & TW_BACKWARD))
        return 0;
    if (!counting && p->embed_fn && p->embed_fn(p->embed_arg, err))
        return -1;
    dh = tw_var_grad(t, h, &add);
    t->ops->zero(t->dev, dh->data, (size_t)(dh->rows * dh->ld) * tw_dtype_size(dh->dtype));
    for (int64_t i = 0; !counting && i < b->nseq; i++)
        put_row(t, dh, b->t0[i + 1] - 1, p->grad + i * D, low);
    return 0;
}

int tw_model_embed(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, float *state,
        const float *grad, unsigned flags, int (*fn)(void *arg, struct tw_err *err), void *arg,
        struct tw_err *err)
{
    struct tw_pass p = { .m = m, .flags = flags | TW_EMBED, .state = state, .grad = grad, .embed_fn = fn,
        .embed_arg = arg };
    int ret = 0;

    if (!(flags & TW_BACKWARD))
        p.flags &= ~(unsigned)(TW_RECOMPUTE | TW_SELECTIVE | TW_LATER);
    for (int64_t i = 0; !ret && i < nseq; i++)
        if (seq[i].state)
            ret = tw_fail(err, NULL, 0, "sequence %lld has a decode state: training has none",
                    (long long)i);
    if (!ret && nseq > 0 &&
        (tw_batch_pack(&p.b, m, seq, nseq, p.flags, &p.arena, err) || tw_pass_do(&p, err)))
        ret = -1;
    tw_arena_free(&p.arena);
    return ret;
}
