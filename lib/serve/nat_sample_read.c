/* nat_sample_read.c - what is to be sampled, and how: Twinkle's SamplingParams as ours */
#include "nat_sample.h"
#include "read_priv.h"

#define INPUTS 1024                     /* most inputs of a call */
#define MAX_TOKENS 2048                 /* where none are given */

static int check_keys(const struct tw_json *j, const char *const *known, const char *where, struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++) {
        bool ok = j->item[i].type == TW_JNULL;

        for (const char *const *k = known; *k && !ok; k++)
            ok = tw_str_is(j->item[i].key, *k);
        if (!ok)
            return tw_fail(err, NULL, 0, "%s%.*s is not known here", where, (int)(j->item[i].key.n < 64 ?
                    j->item[i].key.n : 64), j->item[i].key.p);
    }
    return 0;
}

/* A text, texts, or ids of tokens. */
static int read_stop(struct tw_nat_call *c, const struct tw_json *v, struct tw_sample_args *a,
        struct tw_err *err)
{
    const struct tw_json *e = v && v->type == TW_JARR ? v->item : v;
    int64_t n = !v ? 0 : v->type == TW_JARR ? v->n : 1;
    const char **text = tw_arena_alloc(&c->arena, (size_t)(n + 1) * sizeof *text);
    int32_t *id = tw_arena_alloc(&c->arena, (size_t)(n + 1) * sizeof *id);

    if (n > c->s->limits->max_stop)
        return tw_fail(err, NULL, 0, "stop: at most %lld are allowed", (long long)c->s->limits->max_stop);
    for (int64_t i = 0; i < n; i++) {
        if (e[i].type == TW_JSTR && e[i].str.n && !memchr(e[i].str.p, 0, e[i].str.n))
            text[a->nstop++] = tw_arena_str(&c->arena, e[i].str).p;
        else if (e[i].is_int && e[i].i >= 0 && e[i].i < c->s->limits->V)
            id[a->nstop_token++] = (int32_t)e[i].i;
        else
            return tw_fail(err, NULL, 0, "stop must be texts that are not empty, or tokens of this model");
    }
    a->stop = text;
    a->stop_token = id;
    return 0;
}

static int number(const struct tw_json *j, const char *key, double *out, double lo, double hi,
        struct tw_err *err)
{
    int got = tw_json_get_num(j, key, out, err);

    if (got > 0 && !(*out >= lo && *out <= hi))
        return tw_fail(err, NULL, 0, "%s: %g is not in [%g, %g]", key, *out, lo, hi);
    return got < 0 ? -1 : 0;
}

static int read_params(struct tw_nat_call *c, const struct tw_json *j, struct tw_sample_args *a,
        struct tw_err *err)
{
    static const char *const known[] = { "max_tokens", "max_new_tokens", "seed", "stop", "temperature", "top_k",
        "top_p", "repetition_penalty", "logprobs", "prompt_logprobs", "num_samples", NULL };
    struct tw_sampling *o = &a->sampling;
    int64_t n = 1, seed = 0;
    int got;

    if (check_keys(j, known, "sampling_params: ", err) ||
            tw_read_whole(j, "max_new_tokens", &a->max_tokens, 0, INT32_MAX, err) ||
            tw_read_whole(j, "max_tokens", &a->max_tokens, 0, INT32_MAX, err) ||
            tw_read_whole(j, "num_samples", &n, 1, c->s->limits->max_samples, err) ||
            tw_read_whole(j, "top_k", &o->top_k, -1, INT32_MAX, err) ||
            tw_read_whole(j, "logprobs", &c->logprobs, 0, 20, err) ||
            tw_read_whole(j, "prompt_logprobs", &c->prompt_logprobs, 0, 20, err) ||
            number(j, "temperature", &o->temperature, 0, 1000, err) ||
            number(j, "top_p", &o->top_p, 1e-12, 1, err) ||
            number(j, "repetition_penalty", &o->repetition, 1e-3, 1000, err) ||
            (got = tw_json_get_int(j, "seed", &seed, err)) < 0)
        return -1;
    c->n = n > 1 ? n : c->n;
    o->top_k = o->top_k < 0 ? 0 : o->top_k;
    a->seeded = got > 0;
    a->seed = (uint64_t)seed;
    return read_stop(c, tw_json_get(j, "stop"), a, err);
}

static int read_weights(struct tw_nat_call *c, const struct tw_json *j, struct tw_sample_args *a,
        struct tw_err *err)
{
    struct tw_str uri = { 0 }, name = { 0 };
    struct tw_saved *k;
    char why[160] = "";

    if (tw_json_get_str(j, "adapter_uri", &uri, err) < 0 || tw_json_get_str(j, "adapter_name", &name, err) < 0)
        return -1;
    if (!uri.n && name.n)
        return tw_fail(err, NULL, 0, "adapter_name: weights are sampled from by adapter_uri, the twinkle_path "
                "that save gave");
    if (!uri.n)
        return 0;
    if (!memmem(uri.p, uri.n, "://", 3))
        return tw_fail(err, NULL, 0, "adapter_uri: checkpoints of this server are sampled from, "
                "twinkle://RUN/sampler_weights/NAME");
    if (!(k = tw_saved_find(c->s, c->tenant, uri, why)))
        return tw_fail(err, NULL, 0, "adapter_uri: %s", why);
    a->key = tw_arena_dup(&c->arena, k->key, strlen(k->key));
    a->dir = tw_arena_dup(&c->arena, k->dir, strlen(k->dir));
    return 0;
}

/* The work of prompt P. */
static int make_work(struct tw_nat_call *c, const struct tw_sample_args *common, int64_t p, struct tw_err *err)
{
    int64_t window = c->s->limits->window, room = window - c->prompt[p].n;
    struct tw_sample_args *a;

    if (!c->prompt[p].n)
        return tw_fail(err, NULL, 0, "inputs[%lld]: the prompt is empty", (long long)p);
    if (room < (common->max_tokens > 0 ? common->max_tokens : 1))
        return tw_fail(err, NULL, 0, "inputs[%lld]: %lld prompt tokens and %lld to sample are more than the "
                "model's context window of %lld", (long long)p, (long long)c->prompt[p].n,
                (long long)(common->max_tokens > 0 ? common->max_tokens : 1), (long long)window);
    c->work[p] = tw_work_new(TW_SAMPLE);
    a = &c->work[p]->sample;
    *a = *common;
    a->prompt = c->prompt[p].token;
    a->nprompt = c->prompt[p].n;
    a->n = c->n;
    a->last_n = -1;
    a->keep = true;
    a->top_sample = c->logprobs > 1 ? c->logprobs : 0;
    a->prompt_logprobs = c->prompt_logprobs >= 0;
    a->top_prompt = c->prompt_logprobs > 0 ? c->prompt_logprobs : 0;
    if (a->max_tokens < 0)
        a->max_tokens = room < MAX_TOKENS ? room : MAX_TOKENS;
    if (a->max_tokens == 0)
        a->max_tokens = 1;
    if (a->seeded)
        a->seed += (uint64_t)p << 32;
    else
        tw_random_bytes(&a->seed, sizeof a->seed);
    return 0;
}

int tw_nat_call_read(struct tw_nat_call *c, const struct tw_json *j, struct tw_err *err)
{
    static const char *const known[] = { "inputs", "sampling_params", "adapter_name", "adapter_uri",
        "num_samples", NULL };
    const struct tw_json *params = tw_json_get(j, "sampling_params"), *in = tw_json_get(j, "inputs");
    struct tw_sample_args a = { .max_tokens = -1, .sampling = { .temperature = 1, .top_p = 1,
        .repetition = 1 } };
    bool list = in && in->type == TW_JARR;

    c->n = 1;
    c->logprobs = c->prompt_logprobs = -1;
    if (check_keys(j, known, "", err) ||
            tw_read_whole(j, "num_samples", &c->n, 1, c->s->limits->max_samples, err) ||
            (params && params->type != TW_JOBJ && tw_fail(err, NULL, 0, "sampling_params must be an object")) ||
            (params && read_params(c, params, &a, err)) || read_weights(c, j, &a, err))
        return -1;
    c->empty = a.max_tokens == 0;
    if (!in || (list && !in->n) || (!list && in->type != TW_JOBJ))
        return tw_fail(err, NULL, 0, "inputs must be an object or a list of objects, and not be empty");
    c->input = list ? in->item : in;
    c->nprompt = list ? in->n : 1;
    if (c->nprompt > INPUTS || c->nprompt * c->n > c->s->limits->max_samples)
        return tw_fail(err, NULL, 0, "inputs: at most %d, and %lld samples a call", INPUTS,
                (long long)c->s->limits->max_samples);
    c->prompt = tw_arena_alloc(&c->arena, (size_t)c->nprompt * sizeof *c->prompt);
    c->work = tw_arena_alloc(&c->arena, (size_t)c->nprompt * sizeof *c->work);
    for (int64_t p = 0; p < c->nprompt; p++)
        if (tw_nat_prompt(c->s, &c->arena, &c->input[p], c->template, &c->prompt[p], err) ||
                make_work(c, &a, p, err))
            return -1;
    return 0;
}
