/* prompt.c - what is asked of prompts: log-probabilities of their tokens and of other tokens in their
 * places (many prompts in one pass), and rows of logits, of which the best tokens are named or others
 * drawn (a piece at a time: a row is as wide as the vocabulary) */
#include "base/log.h"
#include "base/rng.h"
#include "serve/gen.h"
#include <math.h>
#include <stdlib.h>

#define ROWS 64                         /* of logits at once */

static int64_t first_scored(const struct tw_sample_args *s)
{
    int64_t first = s->last_n < 0 || s->last_n >= s->nprompt ? 0 : s->nprompt - s->last_n;

    return first < 1 ? 1 : first;
}

void tw_prompt_start(struct tw_worker *k, struct tw_gen_job *j)
{
    const struct tw_sample_args *s = &j->w->sample;
    struct tw_arena *a = &j->w->arena;
    size_t n = (size_t)s->nprompt, rows = n - 1;
    float *logp;

    j->r.nprompt = s->nprompt;
    j->scored = (!s->prompt_logprobs && !s->ntarget) || rows == 0;
    j->at = s->top_prompt || s->alt ? 0 : s->nprompt;
    if (s->prompt_logprobs) {
        j->r.prompt_logp = logp = tw_arena_alloc(a, n * sizeof *logp);
        for (size_t i = 0; i < n; i++)
            logp[i] = NAN;
    }
    if (s->target) {
        j->r.ntarget = s->ntarget;
        j->r.target = tw_arena_alloc(a, rows * (size_t)s->ntarget * sizeof(float) + 1);
    }
    if (s->top_prompt) {
        j->r.top = (struct tw_topk){ .n = s->nprompt, .k = s->top_prompt,
            .id = tw_arena_alloc(a, n * (size_t)s->top_prompt * sizeof(int32_t)),
            .logp = tw_arena_alloc(a, n * (size_t)s->top_prompt * sizeof(float)) };
        for (int64_t i = 0; i < s->nprompt * s->top_prompt; i++)
            j->r.top.logp[i] = -99999.0F;
    }
    if (s->alt) {
        j->r.nalt = s->alt;
        j->r.alt = tw_arena_alloc(a, rows * (size_t)s->alt * sizeof(int32_t) + 1);
        j->r.alt_logp = tw_arena_alloc(a, rows * (size_t)s->alt * sizeof(float) + 1);
    }
}

/* How many rows J asks for; with ROW they are put there, as of sequence S. */
static int64_t rows_of(const struct tw_gen_job *j, int64_t s, struct tw_row *row)
{
    const struct tw_sample_args *a = &j->w->sample;
    int64_t n = 0, from = a->prompt_logprobs ? first_scored(a) : a->nprompt;
    float temp = a->prompt_temp > 0 ? a->prompt_temp : 1;

    for (int64_t t = 1; t < a->nprompt; t++) {
        if (t >= from) {
            if (row)
                row[n] = (struct tw_row){ .s = s, .at = t - 1, .target = a->prompt[t], .temp = temp };
            n++;
        }
        for (int64_t i = 0; i < a->ntarget; i++) {
            int32_t id = a->target[(t - 1) * a->ntarget + i];

            if (id >= 0 && row)
                row[n] = (struct tw_row){ .s = s, .at = t - 1, .target = id, .temp = 1 };
            n += id >= 0;
        }
    }
    return n;
}

static const struct tw_row *take_rows(struct tw_gen_job *j, const struct tw_row *row)
{
    const struct tw_sample_args *a = &j->w->sample;
    int64_t from = a->prompt_logprobs ? first_scored(a) : a->nprompt;
    float *logp = (float *)j->r.prompt_logp, *target = (float *)j->r.target;

    for (int64_t t = 1; t < a->nprompt; t++) {
        if (t >= from)
            logp[t] = row++->logp;
        for (int64_t i = 0; i < a->ntarget; i++)
            if (a->target[(t - 1) * a->ntarget + i] >= 0)
                target[(t - 1) * a->ntarget + i] = row++->logp;
    }
    return row;
}

static void charge(struct tw_gen_job *j, double dt)
{
    j->busy += dt;
    j->who->spent[TW_SAMPLING] += dt;
}

/* Requests whose prompts are to be scored, those first who had the least. */
static int64_t unscored(struct tw_worker *k, struct tw_gen_job ***out)
{
    int64_t all = 0, n = 0;

    for (struct tw_gen_job *j = k->job; j; j = j->next)
        all += !j->scored;
    *out = tw_arena_alloc(&k->arena, (size_t)(all + 1) * sizeof **out);
    for (struct tw_gen_job *j = k->job; j; j = j->next) {
        int64_t i = n;

        if (j->scored)
            continue;
        for (; i && (*out)[i - 1]->who->spent[TW_SAMPLING] > j->who->spent[TW_SAMPLING]; i--)
            (*out)[i] = (*out)[i - 1];
        (*out)[i] = j;
        n++;
    }
    return n;
}

/* One pass over as many prompts as it may have tokens. */
static bool score(struct tw_worker *k)
{
    struct tw_seq *seq;
    struct tw_gen_job **job, **turn, *j;
    const struct tw_row *got;
    struct tw_row *row;
    int64_t n = 0, tokens = 0, rows = 0, all = 0;
    struct tw_err err = { 0 };
    double t0 = tw_now(), dt;

    all = unscored(k, &turn);
    if (!all)
        return false;
    seq = tw_arena_alloc(&k->arena, (size_t)all * sizeof *seq);
    job = tw_arena_alloc(&k->arena, (size_t)all * sizeof *job);
    for (int64_t i = 0; i < all; i++) {
        const struct tw_sample_args *s;

        j = turn[i];
        s = &j->w->sample;
        if (n && (tokens + s->nprompt > k->engine.micro_tokens || j->model != job[0]->model))
            continue;
        seq[n] = (struct tw_seq){ .token = s->prompt, .n = s->nprompt,
            .adapter = j->snap ? j->snap->a : NULL };
        rows += rows_of(j, n, NULL);
        tokens += s->nprompt;
        job[n++] = j;
    }
    row = tw_arena_alloc(&k->arena, (size_t)(rows + 1) * sizeof *row);
    got = row;
    for (int64_t i = 0, r = 0; i < n; i++)
        r += rows_of(job[i], i, row + r);
    if (rows)
        tw_model_run(job[0]->model, seq, n, row, rows, 0, NULL, NULL, &err);
    dt = tw_now() - t0;
    for (int64_t i = 0; i < n; i++) {
        charge(job[i], dt * (double)seq[i].n / (double)tokens);
        job[i]->scored = true;
        if (err.code)
            job[i]->err = err;
        else
            got = take_rows(job[i], got);
    }
    return true;
}

/* The best tokens after position T - 1, and draws; Z are the logits there. */
static int look(struct tw_worker *k, struct tw_gen_job *j, struct tw_draw *d, int64_t t,
        const float *z, struct tw_err *err)
{
    const struct tw_sample_args *a = &j->w->sample;
    const struct tw_ops *ops = tw_ops(k->dev);
    float temp = a->sampling.temperature > 0 ? (float)a->sampling.temperature : 1;
    uint64_t seed = a->seeded ? a->seed : tw_hash64(j->w->id, strlen(j->w->id), 0);
    int32_t *id = j->r.top.id + t * a->top_prompt;
    int64_t got;

    if (a->top_prompt && t >= first_scored(a)) {
        got = tw_sampling_top(d, z, k->allowed, a->top_prompt, id);
        for (int64_t i = 0; i < got; i++)
            j->r.top.logp[t * a->top_prompt + i] = ops->pick(k->dev, z, k->limits.V, 1, id[i]);
    }
    for (int64_t i = 0; i < a->alt; i++) {
        int64_t at = (t - 1) * a->alt + i;
        struct tw_drawn one;

        if (tw_sampling_draw(d, &a->sampling, z, k->allowed, &(struct tw_counts){ 0 },
                    tw_rand01(seed, (uint64_t)t + 1, (uint64_t)i), &one, err))
            return -1;
        ((int32_t *)j->r.alt)[at] = one.id;
        ((float *)j->r.alt_logp)[at] = ops->pick(k->dev, z, k->limits.V, temp, one.id);
    }
    return 0;
}

/* The next rows of logits of J. */
static int piece(struct tw_worker *k, struct tw_gen_job *j, struct tw_err *err)
{
    const struct tw_sample_args *a = &j->w->sample;
    int64_t n = a->nprompt - 1 - j->at, want[ROWS], V = k->limits.V;
    struct tw_seq seq = { .adapter = j->snap ? j->snap->a : NULL, .token = a->prompt + j->at };
    struct tw_draw d;
    float *z;
    int ret = 0;

    n = n < ROWS ? n : ROWS;
    if (!j->state && n && !(j->state = tw_state_new(j->model, err)))
        return -1;
    seq.state = j->state;
    seq.n = n;
    for (int64_t i = 0; i < n; i++)
        want[i] = i;
    z = tw_xreallocarray(NULL, (size_t)(n * V + 1), sizeof *z);
    tw_draw_init(&d, V);
    if (n)
        ret = tw_model_decode(j->model, &seq, 1, want, n, z, err);
    for (int64_t i = 0; i < n && !ret; i++)
        ret = look(k, j, &d, j->at + 1 + i, z + i * V, err);
    j->at += n;
    if (j->at >= a->nprompt - 1) {
        j->at = a->nprompt;
        tw_state_free(j->state);
        j->state = NULL;
    }
    tw_draw_free(&d);
    free(z);
    return ret;
}

bool tw_prompt_turn(struct tw_worker *k)
{
    struct tw_gen_job *least = NULL;
    double t0;

    if (score(k))
        return true;
    for (struct tw_gen_job *j = k->job; j; j = j->next)
        if (!j->err.code && j->at < j->w->sample.nprompt &&
                (!least || j->who->spent[TW_SAMPLING] < least->who->spent[TW_SAMPLING]))
            least = j;
    if (!least)
        return false;
    t0 = tw_now();
    if (piece(k, least, &least->err))
        least->at = least->w->sample.nprompt;
    charge(least, tw_now() - t0);
    return true;
}
