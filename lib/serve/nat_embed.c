/* nat_embed.c - task "embedding" on the engine thread: a request's sequences see each other, so all of it is
 * done in one turn, however many passes that takes */
#include "serve/worker_priv.h"
#include <math.h>
#include <stdlib.h>

struct call {
    const struct tw_work *w;
    struct tw_nat_embed *x;
    float **grad;               /* [n] of [D]; NULL: no gradient is wanted */
    struct tw_arena *a;
};

/* The loss, where there are labels for one; what is asked without a loss has metrics of it all the same. */
static int contrast(void *arg, struct tw_err *err)
{
    const struct call *c = arg;
    const struct tw_fb_args *f = &c->w->fb;
    struct tw_embeds in = { .n = f->n, .D = c->x->D, .h = (const float *const *)c->x->state,
        .begins = c->x->begins, .dh = c->grad };

    if (!in.begins)
        return 0;
    tw_infonce(&f->loss, &in, &c->x->sums, c->a);
    return isfinite(c->x->sums.loss) ? 0 : tw_fail_code(err, TW_EMISUSE, NULL, 0, "the loss is not finite: "
            "nothing of this request was added to the gradient");
}

int tw_nat_embed(struct tw_worker *k, struct tw_engine *e, struct tw_pupil *p, double *sum,
        struct tw_err *err)
{
    struct tw_work *w = p->head;
    struct tw_fb_args *f = &w->fb;
    struct call c = { w, f->nat->embed, NULL, &k->arena };
    struct tw_engine_sample *s = tw_arena_alloc(&k->arena, (size_t)(f->n + 1) * sizeof *s);
    bool back = !f->forward_only;
    size_t bytes;

    c.x->D = tw_model_info(e->model)->D;
    bytes = (size_t)c.x->D * sizeof(float);
    c.x->state = tw_arena_alloc(&w->arena, (size_t)(f->n + 1) * sizeof *c.x->state);
    if (back)
        c.grad = tw_arena_alloc(&k->arena, (size_t)(f->n + 1) * sizeof *c.grad);
    for (int64_t i = 0; i < f->n; i++) {
        c.x->state[i] = tw_arena_alloc(&w->arena, bytes);
        if (back)
            c.grad[i] = tw_arena_alloc(&k->arena, bytes);
        s[i] = (struct tw_engine_sample){ .token = f->d[i].token, .n = f->d[i].n,
            .adapter = f->base ? NULL : p->a, .state = c.x->state[i], .dstate = back ? c.grad[i] : NULL,
            .key = (uint64_t)w->seq << 24 ^ (uint64_t)i };
    }
    if (tw_engine_embed(e, s, f->n, back ? TW_DROPOUT : 0, back ? contrast : NULL, &c, err) ||
            (!back && contrast(&c, err)))
        return -1;
    *sum = c.x->sums.loss;
    return 0;
}

void tw_nat_embed_sums(struct tw_nat_sims *m, const struct tw_embed_sums *s)
{
    if (!s->groups)
        return;
    m->pos_min = m->groups > 0 ? fmin(m->pos_min, s->pos_min) : s->pos_min;
    m->pos_max = m->groups > 0 ? fmax(m->pos_max, s->pos_max) : s->pos_max;
    m->pos += s->pos;
    m->groups += (double)s->groups;
    m->neg += s->neg;
    m->negs += (double)s->negs;
}

void tw_nat_embed_put(struct tw_jw *j, const struct tw_work *w)
{
    const struct tw_nat_embed *x = w->fb.nat->embed;
    float *e = tw_xcalloc((size_t)x->D + 1, sizeof *e);

    tw_jw_key(j, "embeddings");
    tw_jw_arr(j);
    for (int64_t i = 0; i < w->fb.n; i++) {
        tw_embedding(e, x->state[i], x->D);
        tw_jw_arr(j);
        for (int64_t d = 0; d < x->D; d++)
            tw_jw_f32(j, e[d]);
        tw_jw_arr_end(j);
    }
    tw_jw_arr_end(j);
    free(e);
}
