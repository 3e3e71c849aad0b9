/* gen.c - sampling: who goes next, samples in and out of the sampler, and the answer */
#include "base/log.h"
#include "base/rng.h"
#include "data/tok.h"
#include "serve/gen.h"
#include <stdlib.h>

void tw_gen_submit(struct tw_worker *k, struct tw_work *w)
{
    struct tw_who *h = tw_who_get(k, w->tenant), *o;
    double least = -1;

    for (o = k->who; o; o = o->next)
        if (o != h && o->head && (least < 0 || o->spent[TW_SAMPLING] < least))
            least = o->spent[TW_SAMPLING];
    if (!h->head && h->spent[TW_SAMPLING] < least)
        h->spent[TW_SAMPLING] = least;
    if (h->tail)
        h->tail->next = w;
    else
        h->head = w;
    h->tail = w;
}

bool tw_gen_busy(const struct tw_worker *k)
{
    for (const struct tw_who *h = k->who; h; h = h->next)
        if (h->head)
            return true;
    return k->job != NULL;
}

static void piece_done(struct tw_gen *g)
{
    struct tw_gen_job *j = g->user;

    j->left -= g->n;
    for (int64_t i = 0; i < g->n; i++)
        if (g->out[i].stop == TW_STOP_ERROR)
            tw_fail(&j->err, NULL, 0, "%s", *g->error ? g->error : "sampling failed");
}

static void piece_text(struct tw_gen *g, int64_t sample, struct tw_str more)
{
    struct tw_gen_job *j = g->user;

    j->w->sample.text(j->w, g->first + sample, more);
}

/* Stop texts that spell one special token stop on the token. */
static void stops(const struct tw_worker *k, struct tw_work *w)
{
    struct tw_sample_args *s = &w->sample;
    const char **text = tw_arena_alloc(&w->arena, (size_t)(s->nstop + 1) * sizeof *text);
    int32_t *id = tw_arena_alloc(&w->arena, (size_t)(s->nstop + s->nstop_token + 1) * sizeof *id);
    int64_t nt = 0, ni = 0;

    for (int64_t i = 0; i < s->nstop; i++) {
        int32_t one = tw_tok_id(k->tok, tw_str(s->stop[i]));

        if (one >= 0 && tw_tok_is_special(k->tok, one))
            id[ni++] = one;
        else
            text[nt++] = s->stop[i];
    }
    for (int64_t i = 0; i < s->nstop_token; i++)
        id[ni++] = s->stop_token[i];
    s->stop = text;
    s->nstop = nt;
    s->stop_token = id;
    s->nstop_token = ni;
}

static void free_job(struct tw_worker *k, struct tw_gen_job *j)
{
    for (int64_t i = 0; i < j->npiece; i++) {
        tw_gen_free_out(j->piece[i]);
        free(j->piece[i]);
    }
    tw_state_free(j->state);
    tw_snap_release(k, j->snap);
    free(j->piece);
    free(j);
}

/* The next request of H begins. */
static struct tw_gen_job *start(struct tw_worker *k, struct tw_who *h)
{
    struct tw_gen_job *j = tw_xcalloc(1, sizeof *j), **at = &k->job;
    struct tw_work *w = h->head;

    h->head = w->next;
    h->tail = h->head ? h->tail : NULL;
    j->w = w;
    j->who = h;
    if (w->refused) {
        tw_fail(&j->err, NULL, 0, "%s", w->refused);
    } else if (w->sample.key && !(j->snap = tw_snap_hold(k, w->sample.key, w->sample.dir, &j->err))) {
        j->at = w->sample.nprompt;
    }
    w->result.version = j->snap ? j->snap->version : 0;
    j->model = j->snap && j->snap->full ? j->snap->model : k->model;
    j->sampler = j->snap && j->snap->full ? j->snap->sampler : k->sampler;
    while (*at)
        at = &(*at)->next;
    *at = j;
    if (j->err.code) {
        j->scored = true;
        return j;
    }
    stops(k, w);
    tw_prompt_start(k, j);
    return j;
}

/* Up to ROOM samples of J. */
static void give(struct tw_worker *k, struct tw_gen_job *j, int64_t room)
{
    const struct tw_sample_args *s = &j->w->sample;
    int64_t most = k->max_batch > 4 ? k->max_batch / 4 : 1, n = s->n - j->given;
    struct tw_gen *g = tw_xcalloc(1, sizeof *g);

    n = n < most ? n : most;
    n = n < room ? n : room;
    *g = (struct tw_gen){ .prompt = s->prompt, .nprompt = s->nprompt, .n = n, .first = j->given,
        .sampling = s->sampling, .seed = s->seeded ? s->seed : tw_hash64(j->w->id,
                strlen(j->w->id), 0), .stream = s->stream, .penalty_prompt = s->penalty_prompt,
        .max_tokens = s->max_tokens, .stop = s->stop,
        .nstop = s->nstop, .stop_token = s->stop_token, .nstop_token = s->nstop_token,
        .ignore_eos = s->no_stop, .top_logprobs = s->top_sample,
        .adapter = j->snap ? j->snap->a : NULL, .owner = j->who, .user = j, .text = s->text ? piece_text : NULL,
        .done = piece_done };
    j->piece = tw_xreallocarray(j->piece, (size_t)(j->npiece + 1), sizeof *j->piece);
    j->piece[j->npiece++] = g;
    j->given += n;
    j->left += n;
    tw_sampler_add(j->sampler, g);
}

/* One whole model beside the base is in memory at a time: samples of others wait for its to end. */
static bool may_start(const struct tw_worker *k, const struct tw_work *w)
{
    const struct tw_snap *s = w->sample.key ? tw_snap_find((struct tw_worker *)k, w->sample.key) : NULL;
    bool full = s ? s->full : w->sample.dir && tw_full_dir(w->sample.dir);

    return !full || !tw_full_busy(k, w->sample.key);
}

static int64_t in_flight(const struct tw_worker *k, const struct tw_who *h)
{
    int64_t n = 0;

    for (const struct tw_gen_job *j = k->job; j; j = j->next)
        n += j->who == h ? j->left : 0;
    return n;
}

/* How many samples of H may enter. Some places are kept for those who have nothing in flight: however
 * much others ask for, and however long theirs are, nobody waits for the end of one. */
static int64_t room_for(const struct tw_worker *k, const struct tw_who *h)
{
    int64_t load = tw_gen_load(k);

    if (load < k->max_batch)
        return k->max_batch - load;
    return load < k->max_batch + k->kept && !in_flight(k, h);
}

/* Whose samples enter next: of a request that has begun, or of one that waits. */
static struct tw_who *neediest(const struct tw_worker *k, struct tw_gen_job **job)
{
    struct tw_who *best = NULL;

    *job = NULL;
    for (struct tw_gen_job *j = k->job; j; j = j->next)
        if (!j->err.code && j->given < j->w->sample.n && room_for(k, j->who) &&
                (!best || j->who->spent[TW_SAMPLING] < best->spent[TW_SAMPLING])) {
            best = j->who;
            *job = j;
        }
    for (struct tw_who *h = k->who; h; h = h->next)
        if (h->head && room_for(k, h) && may_start(k, h->head) &&
                (!best || h->spent[TW_SAMPLING] < best->spent[TW_SAMPLING])) {
            best = h;
            *job = NULL;
            for (struct tw_gen_job *j = k->job; j && !*job; j = j->next)
                if (j->who == h && !j->err.code && j->given < j->w->sample.n)
                    *job = j;
        }
    return best;
}

/* What a sample is reckoned to cost before it is known, so that equals take turns. */
static void admit(struct tw_worker *k)
{
    struct tw_gen_job *j;
    struct tw_who *h;

    while ((h = neediest(k, &j))) {
        if (!j)
            j = start(k, h);
        if (!j->err.code)
            give(k, j, room_for(k, h));
        h->spent[TW_SAMPLING] += 1e-6;
    }
}

static void put_sequences(struct tw_gen_job *j, struct tw_sequence *q)
{
    int64_t i = 0, want = j->w->sample.top_sample;

    for (int64_t p = 0; p < j->npiece; p++)
        for (int64_t s = 0; s < j->piece[p]->n; s++, i++) {
            struct tw_completion *c = &j->piece[p]->out[s];

            q[i] = (struct tw_sequence){ .token = c->token, .logp = c->logp, .n = c->n,
                .length = c->stop == TW_STOP_LENGTH };
            j->w->result.sampled += c->n;
            if (!want)
                continue;
            q[i].top = (struct tw_topk){ .n = c->n, .k = want,
                .id = tw_arena_alloc(&j->w->arena, (size_t)(c->n * want + 1) * 4),
                .logp = tw_arena_alloc(&j->w->arena, (size_t)(c->n * want + 1) * 4) };
            for (int64_t t = 0; t < c->n * want; t++) {
                int64_t row = t / want, col = t % want;
                int32_t id = col < c->top_n ? c->top_id[row * c->top_n + col] : -1;

                q[i].top.id[t] = id < 0 ? 0 : id;
                q[i].top.logp[t] = id < 0 ? -99999.0F : c->top_logp[row * c->top_n + col];
            }
        }
}

/* The same for callers that want texts. */
static void keep(struct tw_gen_job *j)
{
    struct tw_sample_args *s = &j->w->sample;
    struct tw_arena *a = &j->w->arena;
    int64_t i = 0;

    s->out = tw_arena_alloc(a, (size_t)s->n * sizeof *s->out);
    s->prompt_logp = j->r.prompt_logp;
    s->prompt_top = j->r.top.id;
    s->prompt_top_logp = j->r.top.logp;
    for (int64_t p = 0; p < j->npiece; p++)
        for (int64_t k = 0; k < j->piece[p]->n; k++, i++) {
            const struct tw_completion *c = &j->piece[p]->out[k];
            size_t n = (size_t)c->n, top = n * (size_t)c->top_n;
            struct tw_sampled *o = &s->out[i];

            *o = (struct tw_sampled){ .n = c->n, .top_n = c->top_n,
                .text = tw_arena_str(a, tw_buf_str(&c->text)), .length = c->stop == TW_STOP_LENGTH };
            o->token = tw_arena_dup(a, c->token, n * sizeof *c->token);
            o->logp = tw_arena_dup(a, c->logp, n * sizeof *c->logp);
            if (top) {
                o->top_id = tw_arena_dup(a, c->top_id, top * sizeof *c->top_id);
                o->top_logp = tw_arena_dup(a, c->top_logp, top * sizeof *c->top_logp);
            }
            j->w->result.sampled += c->n;
        }
}

static void finish(struct tw_worker *k, struct tw_gen_job *j)
{
    struct tw_work *w = j->w;

    w->result.busy = j->busy;
    w->result.tokens = w->sample.nprompt;
    w->result.cached = j->npiece ? j->piece[0]->cached : 0;
    if (j->err.code) {
        tw_work_fail(k, w, !j->npiece && (w->refused || w->sample.key) ? "user" : "server", &j->err);
        free_job(k, j);
        return;
    }
    if (w->sample.keep) {
        keep(j);
    } else {
        j->r.nseq = w->sample.n;
        j->r.cached = w->result.cached;
        j->r.seq = tw_arena_alloc(&w->arena, (size_t)w->sample.n * sizeof *j->r.seq);
        put_sequences(j, j->r.seq);
        tw_result_sample(&w->result.proto, &j->r);
    }
    k->stat.tokens_prompt += w->sample.nprompt;
    k->stat.tokens_cached += w->result.cached;
    k->stat.cache_hits += w->result.cached > 0;
    k->stat.tokens_sampled += w->result.sampled;
    tw_work_done(k, w);
    free_job(k, j);
}

/* Requests of which all is known, or that failed, are answered. */
static void sweep(struct tw_worker *k)
{
    for (struct tw_gen_job **at = &k->job, *j; (j = *at);) {
        bool all = j->given == j->w->sample.n && j->scored && j->at == j->w->sample.nprompt;

        if (!j->left && (all || j->err.code)) {
            *at = j->next;
            finish(k, j);
        } else {
            at = &j->next;
        }
    }
}

/* DT seconds of sampler S, to those whose samples it held. */
static void charge(struct tw_worker *k, const struct tw_sampler *s, double dt)
{
    int64_t all = 0;

    for (struct tw_gen_job *j = k->job; j; j = j->next)
        all += j->sampler == s ? j->left : 0;
    for (struct tw_gen_job *j = k->job; j && all; j = j->next) {
        double part = j->sampler == s ? dt * (double)j->left / (double)all : 0;

        j->busy += part;
        j->who->spent[TW_SAMPLING] += part;
    }
}

/* Ends what the sampler holds of J. */
static void abort_job(struct tw_gen_job *j)
{
    for (int64_t i = 0; i < j->npiece && j->left; i++)
        if (j->piece[i]->finished < j->piece[i]->n)
            tw_sampler_abort(j->sampler, j->piece[i]);
    j->scored = true;
}

/* One step of S. */
static void step(struct tw_worker *k, struct tw_sampler *s)
{
    struct tw_err err = { 0 };
    double t0 = tw_now();

    if (!tw_sampler_load(s))
        return;
    if (tw_sampler_step(s, &err) < 0)
        for (struct tw_gen_job *j = k->job; j; j = j->next)
            if (j->left && j->sampler == s) {
                tw_fail(&j->err, NULL, 0, "%s", err.msg);
                abort_job(j);
            }
    charge(k, s, tw_now() - t0);
}

/* The sampler of the one whole model beside the base; NULL: there is none. */
static struct tw_sampler *other(const struct tw_worker *k)
{
    for (const struct tw_snap *s = k->snap; s; s = s->next)
        if (s->sampler)
            return s->sampler;
    return NULL;
}

int64_t tw_gen_load(const struct tw_worker *k)
{
    const struct tw_sampler *s = other(k);

    return tw_sampler_load(k->sampler) + (s ? tw_sampler_load(s) : 0);
}

void tw_gen_turn(struct tw_worker *k)
{
    struct tw_sampler *s;

    admit(k);
    tw_prompt_turn(k);
    for (struct tw_gen_job *j = k->job; j; j = j->next)
        if (j->err.code && j->left)
            abort_job(j);
    step(k, k->sampler);
    if ((s = other(k)))
        step(k, s);
    sweep(k);
}

bool tw_gen_cancel(struct tw_worker *k, const char *id)
{
    struct tw_err err = { 0 };

    tw_fail(&err, NULL, 0, "it was cancelled");
    for (struct tw_who *h = k->who; h; h = h->next)
        for (struct tw_work **at = &h->head, *last = NULL, *w; (w = *at); last = w, at = &w->next) {
            if (strcmp(w->id, id))
                continue;
            *at = w->next;
            if (h->tail == w)
                h->tail = last;
            tw_work_fail(k, w, "user", &err);
            return true;
        }
    for (struct tw_gen_job *j = k->job; j; j = j->next) {
        if (strcmp(j->w->id, id))
            continue;
        j->err = err;
        abort_job(j);
        sweep(k);
        return true;
    }
    return false;
}

void tw_gen_fail_all(struct tw_worker *k)
{
    struct tw_err err = { 0 };
    struct tw_gen_job *j;

    tw_fail(&err, NULL, 0, "the server is ending");
    for (struct tw_who *h = k->who; h; h = h->next) {
        struct tw_work *w = h->head, *next;

        h->head = h->tail = NULL;
        for (; w; w = next) {
            next = w->next;
            tw_work_fail(k, w, TW_ENDING, &err);
        }
    }
    while ((j = k->job)) {
        abort_job(j);
        k->job = j->next;
        tw_work_fail(k, j->w, TW_ENDING, &err);
        free_job(k, j);
    }
}
