/* embed.c - hidden states of the last tokens of sequences, and the way back from their gradients. Rows are
 * moved by put and get, which every device has. */
#include "nn/pass.h"

/* Row I of X, N numbers, between the device and F32 on the host. */
static void move(struct tw_tape *t, struct tw_tensor *x, int64_t row, float *host, bool back, uint16_t *low)
{
    size_t size = tw_dtype_size(x->dtype), bytes = (size_t)x->cols * size;
    char *at = (char *)x->data + (size_t)(row * x->ld) * size;
    void *p = x->dtype == TW_F32 ? (void *)host : low;

    for (int64_t i = 0; back && p == low && i < x->cols; i++)
        low[i] = tw_f32_to_bf16(host[i]);
    if (back)
        t->ops->put(t->dev, at, p, bytes);
    else
        t->ops->get(t->dev, p, at, bytes);
    for (int64_t i = 0; !back && p == low && i < x->cols; i++)
        host[i] = tw_bf16_to_f32(low[i]);
}

int tw_pass_embed(struct tw_pass *p, struct tw_tape *t, struct tw_var *h, bool counting, struct tw_err *err)
{
    const struct tw_batch *b = &p->b;
    int64_t D = h->v.cols;
    uint16_t *low = tw_arena_alloc(&p->arena, (size_t)D * sizeof *low);
    struct tw_tensor *dh;
    bool add;

    for (int64_t i = 0; !counting && i < b->nseq; i++)
        move(t, &h->v, b->t0[i + 1] - 1, p->state + i * D, false, low);
    if (!(p->flags & TW_BACKWARD))
        return 0;
    if (!counting && p->embed_fn && p->embed_fn(p->embed_arg, err))
        return -1;
    dh = tw_var_grad(t, h, &add);
    t->ops->zero(t->dev, dh->data, (size_t)(dh->rows * dh->ld) * tw_dtype_size(dh->dtype));
    for (int64_t i = 0; !counting && i < b->nseq; i++)
        move(t, dh, b->t0[i + 1] - 1, (float *)p->grad + i * D, true, low);
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
        p.flags &= ~(unsigned)(TW_RECOMPUTE | TW_SELECTIVE);
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
