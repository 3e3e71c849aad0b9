/* engine_embed.c - passes without the head: states of sequences, and the way back from their derivatives */
#include "run/engine.h"

struct embed {
    struct tw_engine *e;
    struct tw_engine_sample *s;         /* of the pass at hand */
    int64_t n, D;
    float *state, *grad;                /* [n, D] */
    int (*fn)(void *arg, struct tw_err *err);
    void *arg;
};

static void take(const struct embed *x)
{
    for (int64_t i = 0; i < x->n; i++)
        memcpy(x->s[i].state, x->state + i * x->D, (size_t)x->D * sizeof(float));
}

static void give(const struct embed *x)
{
    for (int64_t i = 0; i < x->n; i++)
        memcpy(x->grad + i * x->D, x->s[i].dstate, (size_t)x->D * sizeof(float));
}

/* All samples are in one pass: the loss is made in the middle of it. */
static int between(void *arg, struct tw_err *err)
{
    struct embed *x = arg;

    take(x);
    if (x->fn(x->arg, err))
        return -1;
    give(x);
    return 0;
}

static int pass(struct embed *x, bool whole, unsigned flags, struct tw_err *err)
{
    struct tw_arena *a = &x->e->arena;
    bool back = flags & TW_BACKWARD;
    size_t bytes = (size_t)(x->n * x->D) * sizeof(float);
    struct tw_seq *seq;

    if (x->e->go_on && x->e->go_on(x->e->arg, err))
        return -1;
    tw_arena_reset(a);
    seq = tw_arena_alloc(a, (size_t)x->n * sizeof *seq);
    x->state = tw_arena_alloc(a, bytes);
    x->grad = tw_arena_alloc(a, bytes);
    for (int64_t i = 0; i < x->n; i++) {
        struct tw_engine_sample *s = &x->s[i];

        seq[i] = (struct tw_seq){ .token = s->token, .n = s->n, .adapter = s->adapter, .key = s->key };
        if (back && s->aux != 0) {
            seq[i].aux = s->aux;
            seq[i].balance = &s->balance;
        }
    }
    if (back && !whole)
        give(x);
    if (tw_model_embed(x->e->model, seq, x->n, x->state, x->grad, flags, whole ? between : NULL, x, err))
        return -1;
    if (!back)
        take(x);
    return 0;
}

static int passes(struct embed *x, struct tw_engine_sample *s, int64_t n, unsigned flags, struct tw_err *err)
{
    while (n > 0) {
        x->s = s;
        x->n = tw_engine_cut(x->e, s, n);
        if (pass(x, false, flags, err))
            return -1;
        s += x->n;
        n -= x->n;
    }
    return 0;
}

int tw_engine_embed(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        int (*fn)(void *arg, struct tw_err *err), void *arg, struct tw_err *err)
{
    struct embed x = { .e = e, .s = s, .n = n, .D = tw_model_info(e->model)->D, .fn = fn, .arg = arg };
    unsigned drop = flags & TW_DROPOUT, back = drop | TW_BACKWARD | (flags & TW_LATER) | e->recompute;

    if (fn && n > 0 && tw_engine_cut(e, s, n) == n)
        return pass(&x, true, back, err);
    if (passes(&x, s, n, drop, err) || (fn && fn(arg, err)))
        return -1;
    return fn ? passes(&x, s, n, back, err) : 0;
}
