/* train_embed.c - losses of embeddings: all sequences of a step see each other, however they are cut into
 * passes. States of all come first, the loss is made of them at once, and its derivatives go back. */
#include "run/train_priv.h"
#include "base/json.h"

struct call {
    struct tw_trainer *t;
    struct tw_step_batch *b;
    struct tw_embed_sums *sums;
    bool back;
};

static int contrast(void *arg, struct tw_err *err)
{
    const struct call *c = arg;
    struct tw_arena *a = &c->t->arena;
    size_t n = (size_t)c->b->n;
    const float **h = tw_arena_alloc(a, n * sizeof *h);
    float **dh = tw_arena_alloc(a, n * sizeof *dh);
    bool *begins = tw_arena_alloc(a, n * sizeof *begins);
    struct tw_embeds in = { .n = c->b->n, .D = tw_model_info(c->t->model)->D, .h = h, .begins = begins,
        .loss = tw_arena_alloc(a, n * sizeof(double)), .dh = c->back ? dh : NULL };

    for (size_t i = 0; i < n; i++) {
        h[i] = c->b->s[i].state;
        dh[i] = c->b->s[i].dstate;
        begins[i] = c->b->s[i].label;
    }
    tw_infonce(&c->t->loss, &in, c->sums, a);
    for (size_t i = 0; i < n; i++)
        c->b->s[i].sum = in.loss[i];
    return 0;
}

int tw_step_embed(struct tw_trainer *t, struct tw_step_batch *b, bool back, struct tw_embed_sums *sums,
        struct tw_err *err)
{
    struct call c = { t, b, sums, back };
    size_t bytes = (size_t)tw_model_info(t->model)->D * sizeof(float);
    unsigned flags = back ? TW_DROPOUT | TW_LATER : 0;

    for (int64_t i = 0; i < b->n; i++) {
        b->s[i].state = tw_arena_alloc(&t->arena, bytes);
        b->s[i].dstate = back ? tw_arena_alloc(&t->arena, bytes) : NULL;
    }
    if (tw_engine_embed(&t->engine, b->s, b->n, flags, back ? contrast : NULL, &c, err))
        return -1;
    return back ? 0 : contrast(&c, err);
}

void tw_step_put_embed(struct tw_jw *w, const struct tw_embed_sums *s)
{
    double n = (double)s->groups;
    const struct { const char *key; double v; } pair[] = {
        { "pos_sim", s->pos / n }, { "pos_sim_min", s->pos_min }, { "pos_sim_max", s->pos_max },
        { "neg_sim", s->neg / (double)s->negs }, { "accuracy", (double)s->right / n },
    };

    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        if (!strcmp(pair[i].key, "neg_sim") && !s->negs)
            continue;               /* one group: there is nothing to compare with */
        tw_jw_key(w, pair[i].key);
        tw_jw_num(w, pair[i].v);
    }
}
