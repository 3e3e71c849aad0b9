/* sampler_step.c - continuous batching: prompts in chunks, samples forked from them, a token each */
#include "run/sampler_priv.h"
#include <stdlib.h>

/* Prompt tokens beside a decode step unless the caller says; on devices that draw tokens; and there,
 * while most samples still wait for their prompts. */
#define CHUNK 512
#define DRAW_CHUNK 2048
#define FULL_CHUNK 8192

/* Tokens of a prompt that are run before its samples start: all, and each draws its first token at
 * once; where the device draws, the last one is each sample's own first step. */
static int64_t prompt_run(const struct tw_sampler *s, const struct tw_gen *g)
{
    return g->nprompt - (s->logits ? 0 : 1);
}

bool tw_job_ready(const struct tw_sampler *s, const struct job *j)
{
    return j->begun && (s->logits ? j->logits != NULL : j->fed == prompt_run(s, j->g));
}

/* Starts samples of finished prompts while there is room. */
static int fork_samples(struct tw_sampler *s, struct tw_err *err)
{
    for (int64_t i = 0; i < s->njob;) {
        struct job *j = &s->job[i];
        struct tw_gen *g = j->g;

        if (tw_job_ready(s, j) && j->state)
            tw_state_marks(j->state, false);    /* samples are not cut back */
        while (tw_job_ready(s, j) && j->forked < g->n && s->nrun < s->max_batch) {
            struct run *r = &s->run[s->nrun];
            bool last = j->forked + 1 == g->n;

            *r = (struct run){ .g = g, .sample = j->forked, .last = g->prompt[g->nprompt - 1] };
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
                tw_run_end(s, s->nrun - 1, TW_STOP_LENGTH);
            else if (s->logits && tw_run_draw(s, s->nrun - 1, j->logits, err) < 0)
                return -1;
            if (last)           /* G may be gone */
                break;
        }
        if (j->begun && !j->state)
            tw_job_drop(s, i);
        else
            i++;
    }
    return 0;
}

static struct tw_seq next_of(const struct run *r)
{
    return (struct tw_seq){ .token = &r->last, .n = 1, .adapter = r->g->adapter,
        .state = r->state };
}

static int64_t left_of(const struct tw_sampler *s, const struct job *j)
{
    return j->begun ? prompt_run(s, j->g) - j->fed : 0;
}

/* How many owners have prompts to be run. */
static int64_t owners(const struct tw_sampler *s)
{
    int64_t n = 0;

    for (int64_t i = 0; i < s->njob; i++) {
        bool first = left_of(s, &s->job[i]) > 0;

        for (int64_t k = 0; k < i && first; k++)
            first = s->job[k].g->owner != s->job[i].g->owner || left_of(s, &s->job[k]) <= 0;
        n += first;
    }
    return n;
}

static int64_t given(const struct tw_sampler *s, const void *owner, const int64_t *fed)
{
    int64_t n = 0;

    for (int64_t i = 0; i < s->njob; i++)
        n += s->job[i].g->owner == owner ? fed[i] : 0;
    return n;
}

/* Adds to the N sequences of a batch prompts, or chunks of them, of LEFT tokens in all; fed[i] is
 * what job i gets: each owner an equal part, then what is left in their order. */
static int64_t prompts(struct tw_sampler *s, int64_t n, int64_t left, int64_t *fed)
{
    int64_t all = owners(s), part = all ? left / all : 0;

    for (int round = all > 1 ? 0 : 1; round < 2; round++)
        for (int64_t i = 0; i < s->njob && left; i++) {
            int64_t take = left_of(s, &s->job[i]) - fed[i];

            if (!round && take > part - given(s, s->job[i].g->owner, fed))
                take = part - given(s, s->job[i].g->owner, fed);
            take = take < left ? take : left;
            if (take > 0)
                fed[i] += take;
            left -= take > 0 ? take : 0;
        }
    for (int64_t i = 0; i < s->njob; i++)
        if (fed[i])
            s->seq[n++] = (struct tw_seq){ .token = s->job[i].g->prompt + s->job[i].fed, .n = fed[i],
                .adapter = s->job[i].g->adapter, .state = s->job[i].state };
    return n;
}

/* Takes what was fed into account; LOGITS of prompts that are through, in order. */
static void prompts_fed(struct tw_sampler *s, const int64_t *fed, const float *logits)
{
    for (int64_t i = 0; i < s->njob; i++) {
        struct job *j = &s->job[i];

        j->fed += fed[i];
        s->prefilled += fed[i];
        if (!fed[i] || j->fed < prompt_run(s, j->g))
            continue;
        if (logits) {
            j->logits = tw_xreallocarray(NULL, s->V, sizeof(float));
            memcpy(j->logits, logits, s->V * sizeof(float));
            logits += s->V;
        }
        tw_prefix_copy(s->prefix,
                (struct tw_prefix_key){ j->g->adapter, j->g->owner }, j->state, j->g->prompt, j->fed);
    }
}

/* One batch: the last token of every run, then chunks of prompts; logits come here. */
static int step_here(struct tw_sampler *s, int64_t *fed, struct tw_err *err)
{
    int64_t nrun = s->nrun, n, nwant = 0, row = 0;

    for (int64_t i = 0; i < nrun; i++) {
        s->seq[i] = next_of(&s->run[i]);
        s->want[nwant++] = row++;
    }
    n = prompts(s, nrun, s->chunk ? s->chunk : CHUNK, fed);
    for (int64_t i = 0; i < s->njob; i++) {
        row += fed[i];
        if (fed[i] && s->job[i].fed + fed[i] == s->job[i].g->nprompt)
            s->want[nwant++] = row - 1;
    }
    if (n && tw_model_decode(s->model, s->seq, n, s->want, nwant, s->logits, err))
        return -1;
    prompts_fed(s, fed, s->logits + nrun * s->V);
    for (int64_t i = 0, k = 0; k < nrun; k++) {
        int ended = tw_run_draw(s, i, s->logits + k * s->V, err);

        if (ended < 0)
            return -1;
        i += !ended;
    }
    return 0;
}

/* Every run draws its next token on the device. */
static int draw_there(struct tw_sampler *s, struct tw_err *err)
{
    int64_t nrun = s->nrun;
    int32_t **seen = tw_xcalloc(nrun, sizeof(*seen));
    int ret;

    for (int64_t i = 0; i < nrun; i++) {
        s->seq[i] = next_of(&s->run[i]);
        tw_run_choice(s, i, &s->choice[i], &seen[i]);
    }
    ret = tw_model_draw(s->model, s->seq, nrun, s->choice, s->allowed_dev, err);
    for (int64_t i = 0; i < nrun; i++)
        free(seen[i]);
    free(seen);
    for (int64_t i = 0, k = 0; k < nrun && ret >= 0; k++) {
        ret = tw_run_take(s, i, &s->choice[k], err);
        i += !ret;
    }
    return ret < 0 ? -1 : 0;
}

/* Prompts apart, in large pieces, then one token of every run. */
static int step_there(struct tw_sampler *s, int64_t *fed, struct tw_err *err)
{
    int64_t chunk = s->chunk ? s->chunk : s->nrun > s->njob ? DRAW_CHUNK : FULL_CHUNK;
    int64_t n = prompts(s, 0, chunk, fed);

    if (n && tw_model_decode(s->model, s->seq, n, NULL, 0, NULL, err))
        return -1;
    prompts_fed(s, fed, NULL);
    return fork_samples(s, err) || (s->nrun && draw_there(s, err)) ? -1 : 0;
}

int tw_sampler_step(struct tw_sampler *s, struct tw_err *err)
{
    int64_t *fed;
    int ret;

    if (tw_sampler_admit(s, err) || fork_samples(s, err))
        return -1;
    fed = tw_xcalloc(s->max_batch, sizeof(*fed));
    ret = s->logits ? step_here(s, fed, err) : step_there(s, fed, err);
    free(fed);
    if (ret || fork_samples(s, err))
        return -1;
    return s->nrun || s->njob || s->head;
}
