/* sampler.c - continuous batching. Three queues: requests that wait, one prompt job a request whose
 * prompt is being run or whose samples are not all forked yet, and running samples. */
#include "run/sampler.h"
#include "base/rng.h"
#include "run/completion.h"
#include "run/prefix.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK 512               /* prompt tokens beside a decode step unless the caller says */

struct job {                    /* a request whose prompt has entered */
    struct tw_gen *g;
    struct tw_state *state;
    int64_t fed;                /* prompt tokens in the state */
    int64_t forked;             /* samples started */
    float *logits;              /* [V] after the prompt; NULL until it is through */
};

struct run {                    /* a sample that decodes */
    struct tw_gen *g;
    int64_t sample;
    struct tw_state *state;
    struct tw_counts counts;
    struct tw_tok_stream stream;
    struct tw_buf piece;
    size_t shown;               /* bytes of text handed to text() */
    int32_t last;               /* drawn, not in the state yet */
};

struct tw_sampler {
    struct tw_model *model;
    const struct tw_tok *tok;
    const struct tw_ops *ops;
    struct tw_dev *dev;
    int64_t V, window, max_batch, chunk;
    int32_t *end;
    int64_t nend;
    uint8_t *allowed;           /* NULL: all */
    struct tw_gen *head, *tail; /* waiting */
    struct job *job;            /* [max_batch] */
    struct run *run;            /* [max_batch] */
    int64_t njob, nrun;
    struct tw_seq *seq;         /* the step's batch */
    int64_t *want;
    float *logits;              /* [max_batch + jobs, V] */
    struct tw_draw draw;
    struct tw_prefix *prefix;
};

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
    s->chunk = o->chunk ? o->chunk : CHUNK;
    if (info->max_positions && s->window > info->max_positions) {
        tw_fail(err, "--max-model-len", 0, "%lld is more than the model's %lld positions",
                (long long)s->window, (long long)info->max_positions);
        free(s);
        return NULL;
    }
    s->end = tw_xreallocarray(NULL, nend ? nend : 1, sizeof(*s->end));
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
    s->logits = tw_xreallocarray(NULL, 2 * s->max_batch * s->V, sizeof(float));
    tw_draw_init(&s->draw, s->V);
    s->prefix = tw_prefix_open(o->cache_tokens);
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
    g->next = NULL;
    if (s->tail)
        s->tail->next = g;
    else
        s->head = g;
    s->tail = g;
}

static void job_drop(struct tw_sampler *s, int64_t i)
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

/* Lets requests in while there is room for their samples. */
static int admit(struct tw_sampler *s, struct tw_err *err)
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
        j->state = tw_prefix_take(s->prefix, g->adapter, g->prompt, g->nprompt - 1, &j->fed, err);
        if (!j->state && !(err->code) && !(j->state = tw_state_new(s->model, err)))
            return -1;
        if (err->code)
            return -1;
        s->njob++;
        room -= g->n;
    }
    return 0;
}

static bool is_in(const int32_t *list, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

static void show(struct run *r, size_t upto)
{
    struct tw_completion *c = &r->g->out[r->sample];

    if (r->g->text && upto > r->shown)
        r->g->text(r->g, r->sample, (struct tw_str){ c->text.p + r->shown, upto - r->shown });
    if (upto > r->shown)
        r->shown = upto;
}

/* Takes a sample out of the batch; its state may serve later prompts that begin the same way. */
static void run_end(struct tw_sampler *s, int64_t i, enum tw_stop why)
{
    struct run r = s->run[i];
    struct tw_gen *g = r.g;
    struct tw_completion *c = &g->out[r.sample];

    if (s->tok && why != TW_STOP_ABORT && !c->stop_text) {
        tw_buf_clear(&r.piece);
        tw_tok_stream_end(&r.stream, &r.piece);
        tw_buf_add(&c->text, r.piece.p, r.piece.n);
    }
    show(&r, c->text.n);
    c->stop = why;
    if (why != TW_STOP_ABORT && g->n == 1)
        tw_prefix_put(s->prefix, g->adapter, r.state, g->prompt, g->nprompt, c->token);
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

/* Draws the next token of run I from its logits; the sample may end. Returns 1 when it did. */
static int run_draw(struct tw_sampler *s, int64_t i, const float *z, struct tw_err *err)
{
    struct run *r = &s->run[i];
    struct tw_gen *g = r->g;
    struct tw_completion *c = &g->out[r->sample];
    double u = tw_rand01(g->seed, tw_hash64(&r->sample, sizeof(r->sample), g->stream), c->n);
    float temp = g->sampling.temperature > 0 ? (float)g->sampling.temperature : 1;
    struct tw_drawn d;
    size_t from = c->text.n;

    if (tw_sampling_draw(&s->draw, &g->sampling, z, s->allowed, &r->counts, u, &d, err))
        return -1;
    if (d.processed && !c->sampled_logp)
        c->sampled_logp = tw_xreallocarray(NULL, c->cap ? c->cap : 32, sizeof(float));
    tw_completion_add(c, d.id, s->ops->pick(s->dev, z, s->V, temp, d.id));
    if (c->sampled_logp)
        c->sampled_logp[c->n - 1] = d.sampled_logp;
    if (c->top_n) {
        int32_t *id = c->top_id + (c->n - 1) * c->top_n;
        int64_t got = tw_sampling_top(&s->draw, z, s->allowed, c->top_n, id);

        for (int64_t k = 0; k < c->top_n; k++) {
            id[k] = k < got ? id[k] : -1;
            c->top_logp[(c->n - 1) * c->top_n + k] =
                    k < got ? s->ops->pick(s->dev, z, s->V, temp, id[k]) : -INFINITY;
        }
    }
    r->last = d.id;
    tw_counts_add(&r->counts, d.id);
    if ((!g->ignore_eos && is_in(s->end, s->nend, d.id)) || is_in(g->stop_token, g->nstop_token, d.id)) {
        c->stop_token = d.id;
        run_end(s, i, TW_STOP_STOP);
        return 1;
    }
    if (s->tok) {
        tw_buf_clear(&r->piece);
        tw_tok_stream_put(&r->stream, d.id, &r->piece);
        tw_buf_add(&c->text, r->piece.p, r->piece.n);
        if (c->text.n > from && tw_completion_stop(g, c, from)) {
            run_end(s, i, TW_STOP_STOP);
            return 1;
        }
        show(r, c->text.n - tw_completion_held(g, tw_buf_str(&c->text)));
    }
    if (c->n >= g->max_tokens || g->nprompt + c->n >= s->window) {
        run_end(s, i, TW_STOP_LENGTH);
        return 1;
    }
    return 0;
}

/* Starts samples of finished prompts while there is room; each draws its first token at once. */
static int fork_samples(struct tw_sampler *s, struct tw_err *err)
{
    for (int64_t i = 0; i < s->njob;) {
        struct job *j = &s->job[i];
        struct tw_gen *g = j->g;

        while (j->logits && j->forked < g->n && s->nrun < s->max_batch) {
            struct run *r = &s->run[s->nrun];
            bool last = j->forked + 1 == g->n;

            *r = (struct run){ .g = g, .sample = j->forked };
            r->state = last ? j->state : tw_state_fork(j->state, err);
            if (!r->state)
                return -1;
            if (last)
                j->state = NULL;
            for (int64_t t = 0; g->penalty_prompt && t < g->nprompt; t++)
                tw_counts_add(&r->counts, g->prompt[t]);
            if (s->tok)
                tw_tok_stream_start(&r->stream, s->tok, true);
            s->nrun++;
            j->forked++;
            if (g->max_tokens == 0 || g->nprompt >= s->window)
                run_end(s, s->nrun - 1, TW_STOP_LENGTH);
            else if (run_draw(s, s->nrun - 1, j->logits, err) < 0)
                return -1;
            if (last)           /* G may be gone */
                break;
        }
        if (j->logits && !j->state)
            job_drop(s, i);
        else
            i++;
    }
    return 0;
}

/* The batch of a step: the last token of every run, then chunks of prompts. */
static int64_t batch(struct tw_sampler *s, int64_t *nwant, int64_t *fed)
{
    int64_t n = 0, row = 0, left = s->chunk;

    *nwant = 0;
    for (int64_t i = 0; i < s->nrun; i++) {
        s->seq[n++] = (struct tw_seq){ .token = &s->run[i].last, .n = 1,
            .adapter = s->run[i].g->adapter, .state = s->run[i].state };
        s->want[(*nwant)++] = row++;
    }
    for (int64_t i = 0; i < s->njob; i++) {
        struct job *j = &s->job[i];
        int64_t take = j->g->nprompt - j->fed;

        fed[i] = 0;
        if (j->logits || !left)
            continue;
        if (take > left)
            take = left;
        s->seq[n++] = (struct tw_seq){ .token = j->g->prompt + j->fed, .n = take,
            .adapter = j->g->adapter, .state = j->state };
        row += take;
        left -= take;
        fed[i] = take;
        if (j->fed + take == j->g->nprompt)
            s->want[(*nwant)++] = row - 1;
    }
    return n;
}

int tw_sampler_step(struct tw_sampler *s, struct tw_err *err)
{
    int64_t nwant, w, nrun, n, *fed;

    if (admit(s, err) || fork_samples(s, err))
        return -1;
    fed = tw_xcalloc(s->max_batch, sizeof(*fed));
    n = batch(s, &nwant, fed);
    if (n && tw_model_decode(s->model, s->seq, n, s->want, nwant, s->logits, err)) {
        free(fed);
        return -1;
    }
    w = nrun = s->nrun;
    for (int64_t i = 0; i < s->njob; i++) {
        struct job *j = &s->job[i];

        if (!fed[i])
            continue;
        j->fed += fed[i];
        if (j->fed < j->g->nprompt)
            continue;
        j->logits = tw_xreallocarray(NULL, s->V, sizeof(float));
        memcpy(j->logits, s->logits + w++ * s->V, s->V * sizeof(float));
        tw_prefix_copy(s->prefix, j->g->adapter, j->state, j->g->prompt, j->g->nprompt);
    }
    free(fed);
    for (int64_t i = 0, k = 0; k < nrun; k++) {
        int ended = run_draw(s, i, s->logits + k * s->V, err);

        if (ended < 0)
            return -1;
        i += !ended;
    }
    if (fork_samples(s, err))
        return -1;
    return s->nrun || s->njob || s->head;
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
            job_drop(s, i);
            break;
        }
    for (int64_t i = 0; i < g->n; i++)
        if (g->out[i].stop == TW_STOP_NONE)
            g->out[i].stop = TW_STOP_ABORT;
    for (int64_t i = s->nrun; i-- > 0;)
        if (s->run[i].g == g) {
            g->finished = -1;       /* run_end() must not call done() yet */
            run_end(s, i, TW_STOP_ABORT);
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
        job_drop(s, s->njob - 1);
    tw_prefix_close(s->prefix);
    tw_draw_free(&s->draw);
    free(s->end);
    free(s->allowed);
    free(s->job);
    free(s->run);
    free(s->seq);
    free(s->want);
    free(s->logits);
    free(s);
}
