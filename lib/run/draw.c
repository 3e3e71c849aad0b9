/* draw.c - one token of a running sample: what is to be drawn, here or on the device, and what the
 * token does to the sample */
#include "base/rng.h"
#include "run/completion.h"
#include "run/sampler_priv.h"
#include <math.h>
#include <stdlib.h>

static bool is_in(const int32_t *list, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* What is to be drawn for run I. SEEN (the caller frees) holds what the penalties look at. */
void tw_run_choice(struct tw_sampler *s, int64_t i, struct tw_choice *c, int32_t **seen)
{
    struct run *r = &s->run[i];
    const struct tw_sampling *o = &r->g->sampling;
    struct tw_completion *out = &r->g->out[r->sample];
    int64_t number = r->g->first + r->sample;
    uint64_t stream = tw_hash64(&number, sizeof(number), r->g->stream);

    tw_completion_room(out);
    *c = (struct tw_choice){ .temperature = o->temperature, .top_p = o->top_p, .min_p = o->min_p,
        .repetition = o->repetition, .presence = o->presence, .frequency = o->frequency,
        .top_k = o->top_k, .top_n = out->top_n, .u = tw_rand01(r->g->seed, stream, out->n) };
    if (c->top_n) {
        c->top_id = out->top_id + out->n * c->top_n;
        c->top_logp = out->top_logp + out->n * c->top_n;
    }
    *seen = NULL;
    if (!tw_sampling_penalises(o) || !r->counts.n)
        return;
    *seen = tw_xreallocarray(NULL, r->counts.n, 2 * sizeof(**seen));
    for (int64_t k = 0; k < r->counts.cap; k++)
        if (r->counts.slot[k].n) {
            (*seen)[2 * c->nseen] = r->counts.slot[k].id;
            (*seen)[2 * c->nseen++ + 1] = r->counts.slot[k].n;
        }
    c->seen = *seen;
}

/* Makes the choice of run I here, from its logits. */
static int draw_here(struct tw_sampler *s, int64_t i, const float *z, struct tw_choice *c,
        struct tw_err *err)
{
    struct run *r = &s->run[i];
    float temp = c->temperature > 0 ? (float)c->temperature : 1;
    struct tw_drawn d;
    int64_t got;

    if (tw_sampling_draw(&s->draw, &r->g->sampling, z, s->allowed, &r->counts, c->u, &d, err))
        return -1;
    c->id = d.id;
    c->logp = s->ops->pick(s->dev, z, s->V, temp, d.id);
    c->sampled_logp = d.sampled_logp;
    got = c->top_n ? tw_sampling_top(&s->draw, z, s->allowed, c->top_n, c->top_id) : 0;
    for (int64_t k = 0; k < c->top_n; k++) {
        c->top_id[k] = k < got ? c->top_id[k] : -1;
        c->top_logp[k] = k < got ? s->ops->pick(s->dev, z, s->V, temp, c->top_id[k]) : -INFINITY;
    }
    return 0;
}

/* Run I goes on by the token that was drawn; the sample may end. Returns 1 when it did. */
int tw_run_take(struct tw_sampler *s, int64_t i, const struct tw_choice *d, struct tw_err *err)
{
    struct run *r = &s->run[i];
    struct tw_gen *g = r->g;
    struct tw_completion *c = &g->out[r->sample];
    size_t from = c->text.n;

    if (d->id < 0)
        return tw_fail(err, NULL, 0, "the model gave no finite logit");
    if (!c->sampled_logp && tw_sampling_processed(&g->sampling, s->V))
        c->sampled_logp = tw_xreallocarray(NULL, c->cap, sizeof(float));
    c->token[c->n] = d->id;
    if (c->sampled_logp)
        c->sampled_logp[c->n] = d->sampled_logp;
    c->logp[c->n++] = d->logp;
    r->last = d->id;
    tw_counts_add(&r->counts, d->id);
    if ((!g->ignore_eos && is_in(s->end, s->nend, d->id)) || is_in(g->stop_token, g->nstop_token, d->id)) {
        c->stop_token = d->id;
        tw_run_end(s, i, TW_STOP_STOP);
        return 1;
    }
    if (s->tok) {
        tw_buf_clear(&r->piece);
        tw_tok_stream_put(&r->stream, d->id, &r->piece);
        tw_buf_add(&c->text, r->piece.p, r->piece.n);
        if (c->text.n > from && tw_completion_stop(g, c, from)) {
            tw_run_end(s, i, TW_STOP_STOP);
            return 1;
        }
        tw_run_show(r, c->text.n - tw_completion_held(g, tw_buf_str(&c->text)));
    }
    if (c->n >= g->max_tokens || g->nprompt + c->n >= s->window) {
        tw_run_end(s, i, TW_STOP_LENGTH);
        return 1;
    }
    return 0;
}

/* Draws the next token of run I from its logits here. Returns 1 when the sample ended. */
int tw_run_draw(struct tw_sampler *s, int64_t i, const float *z, struct tw_err *err)
{
    struct tw_choice c;
    int32_t *seen;
    int ret;

    tw_run_choice(s, i, &c, &seen);
    ret = draw_here(s, i, z, &c, err);
    free(seen);
    return ret ? -1 : tw_run_take(s, i, &c, err);
}
