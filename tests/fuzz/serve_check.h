/* serve_check.h - what holds of each work that was read from a body and is not refused */
#ifndef SERVE_CHECK_H
#define SERVE_CHECK_H
#include "serve/work.h"
#include <math.h>
#include <stdlib.h>

static inline void must(bool ok)
{
    if (!ok)
        abort();
}

static inline void check_floats(const float *x, int64_t n)
{
    for (int64_t i = 0; x && i < n; i++)
        must(isfinite(x[i]));
}

static inline void check_fb(const struct tw_fb_args *f, const struct tw_limits *l)
{
    int64_t tokens = 0;

    must(f->loss.name && f->type);
    must(!l->max_tokens || f->tokens <= l->max_tokens);
    for (int64_t i = 0; i < f->n; i++) {
        const struct tw_datum_in *d = &f->d[i];

        must(d->n > 0 && d->n <= l->window && d->k > 0 && d->target);
        for (int64_t t = 0; t < d->n; t++)
            must(d->token[t] >= 0 && d->token[t] < l->V);
        for (int64_t t = 0; t < d->n * d->k; t++)
            must(d->target[t] >= 0 && d->target[t] < l->V);
        check_floats(d->weight, d->n * d->k);
        check_floats(d->old, d->n);
        check_floats(d->adv, d->n);
        check_floats(d->lo, d->n);
        check_floats(d->hi, d->n);
        check_floats(d->ratio_mask, d->n);
        tokens += d->n;
    }
    must(tokens == f->tokens);
}

static inline void check_sample(const struct tw_sample_args *s, const struct tw_limits *l)
{
    must(s->n > 0 && s->n <= l->max_samples && s->nprompt > 0 && s->max_tokens > 0);
    must(s->nprompt + s->max_tokens <= l->window);
    must(s->sampling.temperature >= 0 && s->sampling.top_p > 0 && s->sampling.top_k >= 0);
    for (int64_t i = 0; i < s->nprompt; i++)
        must(s->prompt[i] >= 0 && s->prompt[i] < l->V);
    for (int64_t i = 0; i < s->nstop; i++)
        must(*s->stop[i]);
    for (int64_t i = 0; i < s->nstop_token; i++)
        must(s->stop_token[i] >= 0 && s->stop_token[i] < l->V);
    for (int64_t i = 0; s->target && i < (s->nprompt - 1) * s->ntarget; i++)
        must(s->target[i] >= -1 && s->target[i] < l->V);
}

/* Takes W, which may be NULL: then ERR says why. */
static inline void check_work(struct tw_work *w, const struct tw_limits *l, const struct tw_err *err)
{
    must(w ? !err->code : err->code && *err->msg);
    if (w && !w->refused && w->verb == TW_FORWARD_BACKWARD)
        check_fb(&w->fb, l);
    if (w && !w->refused && w->verb == TW_SAMPLE)
        check_sample(&w->sample, l);
    if (w && !w->refused && w->verb == TW_CREATE)
        must(w->create.rank <= l->max_rank && (!w->create.rank || w->create.alpha > 0));
    tw_work_free(w);
}

#endif
