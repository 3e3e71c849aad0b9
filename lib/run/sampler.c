/* sampler.c - requests in and out. Three queues: requests that wait, one prompt job a request whose
 * prompt is being run or whose samples are not all forked yet, and running samples. */
#include "run/sampler_priv.h"
#include <stdio.h>
#include <stdlib.h>

/* Rows of logits here, or the list of allowed ids there. */
static int where_to_draw(struct tw_sampler *s, struct tw_err *err)
{
    if (!tw_model_draws(s->model)) {
        s->logits = tw_xreallocarray(NULL, 2 * s->max_batch * s->V, sizeof(float));
        tw_draw_init(&s->draw, s->V);
        return 0;
    }
    if (!s->allowed)
        return 0;
    s->allowed_dev = s->ops->alloc(s->dev, s->V, err);
    if (!s->allowed_dev)
        return -1;
    s->ops->put(s->dev, s->allowed_dev, s->allowed, s->V);
    return 0;
}

struct tw_sampler *tw_sampler_open(struct tw_model *m, const struct tw_tok *tok, const int32_t *end,
        int64_t nend, const struct tw_sampler_opts *o, struct tw_err *err)
{
    const struct tw_model_info *info = tw_model_info(m);
    struct tw_sampler *s = tw_xcalloc(1, sizeof(*s));

    s->model = m;
    s->tok = tok;
    s->dev = tw_model_dev(m);
    s->ops = tw_ops(s->dev);
    s->V = info->V;
    s->window = o->window ? o->window : info->max_positions;
    s->max_batch = o->max_batch;
    s->chunk = o->chunk;
    if (info->max_positions && s->window > info->max_positions) {
        tw_fail(err, "--max-model-len", 0, "%lld is more than the model's %lld positions",
                (long long)s->window, (long long)info->max_positions);
        free(s);
        return NULL;
    }
    s->end = tw_xreallocarray(NULL, nend ? nend : 1, sizeof(*s->end));
    if (nend)
        memcpy(s->end, end, nend * sizeof(*end));
    s->nend = nend;
    if (tok) {
        s->allowed = tw_xcalloc(s->V, 1);
        for (int64_t i = 0; i < s->V; i++)
            s->allowed[i] = tw_tok_has(tok, i);
    }
    s->job = tw_xcalloc(s->max_batch, sizeof(*s->job));
    s->run = tw_xcalloc(s->max_batch, sizeof(*s->run));
    s->seq = tw_xcalloc(2 * s->max_batch, sizeof(*s->seq));
    s->want = tw_xcalloc(2 * s->max_batch, sizeof(*s->want));
    s->choice = tw_xcalloc(s->max_batch, sizeof(*s->choice));
    s->prefix = tw_prefix_open(o->cache_tokens);
    s->cache = o->cache_tokens;
    if (where_to_draw(s, err)) {
        tw_sampler_close(s);
        return NULL;
    }
    return s;
}

void tw_sampler_add(struct tw_sampler *s, struct tw_gen *g)
{
    g->out = tw_xcalloc(g->n, sizeof(*g->out));
    for (int64_t i = 0; i < g->n; i++) {
        g->out[i].top_n = g->top_logprobs < s->V ? g->top_logprobs : s->V;
        g->out[i].stop_token = -1;
    }
    g->finished = 0;
    g->cached = 0;
    g->next = NULL;
    if (s->tail)
        s->tail->next = g;
    else
        s->head = g;
    s->tail = g;
}

void tw_job_drop(struct tw_sampler *s, int64_t i)
{
    tw_state_free(s->job[i].state);
    free(s->job[i].logits);
    memmove(&s->job[i], &s->job[i + 1], (s->njob - i - 1) * sizeof(*s->job));
    s->njob--;
}

/* Ends every sample of a request that has not entered, and hands it back. */
static void gen_refuse(struct tw_gen *g)
{
    for (int64_t i = 0; i < g->n; i++)
        g->out[i].stop = TW_STOP_ERROR;
    g->finished = g->n;
    g->done(g);
}

static bool gen_valid(const struct tw_sampler *s, struct tw_gen *g)
{
    if (!g->nprompt)
        snprintf(g->error, sizeof(g->error), "the prompt is empty");
    else if (g->nprompt > s->window)
        snprintf(g->error, sizeof(g->error), "the prompt has %lld tokens, the model's window is %lld",
                (long long)g->nprompt, (long long)s->window);
    for (int64_t i = 0; i < g->nprompt && !*g->error; i++)
        if (g->prompt[i] < 0 || g->prompt[i] >= s->V || (s->allowed && !s->allowed[g->prompt[i]]))
            snprintf(g->error, sizeof(g->error), "prompt token %d at position %lld is not in the vocabulary",
                    g->prompt[i], (long long)i);
    return !*g->error;
}

static struct tw_prefix_key key_of(const struct tw_gen *g)
{
    return (struct tw_prefix_key){ g->adapter, g->owner };
}

/* Whether most of G's prompt, from FED on, is in that of a job before job I that is not through. */
static bool behind(const struct tw_sampler *s, int64_t i)
{
    const struct tw_gen *g = s->job[i].g;

    for (int64_t k = 0; k < i; k++) {
        const struct tw_gen *o = s->job[k].g;
        int64_t n = 0;

        if (o->adapter != g->adapter || o->owner != g->owner || tw_job_ready(s, &s->job[k]))
            continue;
        while (n < g->nprompt && n < o->nprompt && g->prompt[n] == o->prompt[n])
            n++;
        if (n > g->nprompt / 2)
            return true;
    }
    return false;
}

/* The state of job I: what is known of its prompt, or nothing. */
static int begin(struct tw_sampler *s, int64_t i, struct tw_err *err)
{
    struct job *j = &s->job[i];

    if (s->cache && behind(s, i))
        return 0;
    j->state = tw_prefix_take(s->prefix, key_of(j->g), j->g->prompt, j->g->nprompt - 1, &j->fed, err);
    if (err->code || (!j->state && !(j->state = tw_state_new(s->model, err))))
        return -1;
    j->begun = true;
    j->g->cached = j->fed;
    tw_state_marks(j->state, j->g->nprompt <= s->cache);    /* longer ones are not kept */
    return 0;
}

int tw_sampler_admit(struct tw_sampler *s, struct tw_err *err)
{
    int64_t room = s->max_batch - s->nrun;

    for (int64_t i = 0; i < s->njob; i++)
        room -= s->job[i].g->n - s->job[i].forked;
    while (s->head && room > 0 && s->njob < s->max_batch) {
        struct tw_gen *g = s->head;
        struct job *j = &s->job[s->njob];

        s->head = g->next;
        if (!s->head)
            s->tail = NULL;
        g->error[0] = 0;
        if (!gen_valid(s, g)) {
            gen_refuse(g);
            continue;
        }
        *j = (struct job){ .g = g };
        s->njob++;
        room -= g->n;
    }
    for (int64_t i = 0; i < s->njob; i++)
        if (!s->job[i].begun && begin(s, i, err))
            return -1;
    return 0;
}

void tw_run_show(struct run *r, size_t upto)
{
    struct tw_completion *c = &r->g->out[r->sample];

    if (r->g->text && upto > r->shown)
        r->g->text(r->g, r->sample, (struct tw_str){ c->text.p + r->shown, upto - r->shown });
    if (upto > r->shown)
        r->shown = upto;
}

static void keep_experts(struct tw_sampler *s, struct tw_completion *c, const struct tw_state *state)
{
    const struct tw_model_info *i = tw_model_info(s->model);
    const int32_t *e = tw_state_experts(state);
    size_t n = (size_t)(tw_state_len(state) * i->routers * i->topk);

    if (!e)
        return;
    c->nexperts = tw_state_len(state);
    c->experts = tw_xreallocarray(NULL, n + 1, sizeof *c->experts);
    memcpy(c->experts, e, n * sizeof *e);
}

/* Takes a sample out of the batch; its state may serve later prompts that begin the same way. */
void tw_run_end(struct tw_sampler *s, int64_t i, enum tw_stop why)
{
    struct run r = s->run[i];
    struct tw_gen *g = r.g;
    struct tw_completion *c = &g->out[r.sample];

    if (s->tok && why != TW_STOP_ABORT && !c->stop_text) {
        tw_buf_clear(&r.piece);
        tw_tok_stream_end(&r.stream, &r.piece);
        tw_buf_add(&c->text, r.piece.p, r.piece.n);
    }
    tw_run_show(&r, c->text.n);
    c->stop = why;
    keep_experts(s, c, r.state);
    if (why != TW_STOP_ABORT && g->n == 1)
        tw_prefix_put(s->prefix, key_of(g), r.state, g->prompt, g->nprompt, c->token);
    else
        tw_state_free(r.state);
    tw_counts_free(&r.counts);
    tw_tok_stream_free(&r.stream);
    tw_buf_free(&r.piece);
    memmove(&s->run[i], &s->run[i + 1], (s->nrun - i - 1) * sizeof(*s->run));
    s->nrun--;
    if (++g->finished == g->n)
        g->done(g);
}

int64_t tw_sampler_load(const struct tw_sampler *s)
{
    int64_t n = s->nrun;

    for (int64_t i = 0; i < s->njob; i++)
        n += s->job[i].g->n - s->job[i].forked;
    for (const struct tw_gen *g = s->head; g; g = g->next)
        n += g->n;
    return n;
}

int64_t tw_sampler_prefilled(const struct tw_sampler *s)
{
    return s->prefilled;
}

void tw_sampler_abort(struct tw_sampler *s, struct tw_gen *g)
{
    struct tw_gen **at = &s->head, *prev = NULL;

    for (; *at && *at != g; at = &(*at)->next)
        prev = *at;
    if (*at) {
        *at = g->next;
        if (s->tail == g)
            s->tail = prev;
    }
    for (int64_t i = 0; i < s->njob; i++)
        if (s->job[i].g == g) {
            tw_job_drop(s, i);
            break;
        }
    for (int64_t i = 0; i < g->n; i++)
        if (g->out[i].stop == TW_STOP_NONE)
            g->out[i].stop = TW_STOP_ABORT;
    for (int64_t i = s->nrun; i-- > 0;)
        if (s->run[i].g == g) {
            g->finished = -1;       /* tw_run_end() must not call done() yet */
            tw_run_end(s, i, TW_STOP_ABORT);
        }
    g->finished = g->n;
    g->done(g);
}

void tw_sampler_forget(struct tw_sampler *s, const struct tw_adapter *a)
{
    tw_prefix_drop(s->prefix, a);
}

void tw_sampler_close(struct tw_sampler *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->nrun; i++) {
        tw_state_free(s->run[i].state);
        tw_counts_free(&s->run[i].counts);
        tw_tok_stream_free(&s->run[i].stream);
        tw_buf_free(&s->run[i].piece);
    }
    while (s->njob)
        tw_job_drop(s, s->njob - 1);
    tw_prefix_close(s->prefix);
    tw_draw_free(&s->draw);
    if (s->allowed_dev)
        s->ops->free(s->dev, s->allowed_dev);
    free(s->choice);
    free(s->end);
    free(s->allowed);
    free(s->job);
    free(s->run);
    free(s->seq);
    free(s->want);
    free(s->logits);
    free(s);
}
