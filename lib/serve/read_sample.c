/* read_sample.c - the arguments of asample */
#include "serve/read_priv.h"
#include <inttypes.h>
#include <math.h>

int tw_read_whole(const struct tw_json *obj, const char *key, int64_t *out, int64_t lo, int64_t hi,
        struct tw_err *err)
{
    int got = tw_json_get_int(obj, key, out, err);

    if (got > 0 && (*out < lo || *out > hi))
        return tw_fail(err, NULL, 0, "%s: %" PRId64 " is not in [%" PRId64 ", %" PRId64 "]", key, *out,
                lo, hi);
    return got < 0 ? -1 : 0;
}

static int stop_list(struct tw_sample_args *s, const struct tw_limits *l, struct tw_arena *a,
        const struct tw_json *v, struct tw_err *err)
{
    const char **text = tw_arena_alloc(a, (size_t)(v->n + 1) * sizeof *text);
    int32_t *id = tw_arena_alloc(a, (size_t)(v->n + 1) * sizeof *id);

    s->no_stop = !v->n;
    for (int64_t i = 0; i < v->n; i++) {
        const struct tw_json *e = &v->item[i];

        if (e->type != v->item[0].type)
            return tw_fail(err, NULL, 0, "stop: texts and token ids are mixed");
        if (e->type == TW_JSTR && e->str.n && !memchr(e->str.p, 0, e->str.n))
            text[s->nstop++] = tw_arena_str(a, e->str).p;
        else if (e->is_int && e->i >= 0 && e->i < l->V)
            id[s->nstop_token++] = (int32_t)e->i;
        else
            return tw_fail(err, NULL, 0, "stop[%" PRId64 "] is neither a text nor a token id of this "
                    "model", i);
    }
    s->stop = text;
    s->stop_token = id;
    return 0;
}

static int read_stop(struct tw_sample_args *s, const struct tw_limits *l, struct tw_arena *a,
        const struct tw_json *v, struct tw_err *err)
{
    struct tw_json one = { .type = TW_JARR, .item = (struct tw_json *)v, .n = 1 };

    if (!v)
        return 0;
    if (v->type == TW_JARR && v->n > l->max_stop)
        return tw_fail(err, NULL, 0, "stop has %" PRId64 " entries, at most %" PRId64 " are allowed",
                v->n, l->max_stop);
    if (v->type != TW_JARR && v->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "stop is neither a text nor a list");
    if (stop_list(s, l, a, v->type == TW_JARR ? v : &one, err))
        return -1;
    if (s->nstop && !l->tok)
        return tw_fail(err, NULL, 0, "stop: this model has no tokenizer; stop at token ids");
    return 0;
}

/* Settings that Tinker does not have: those of tw-sample, by the names that OpenAI-style servers gave them. */
static int read_more(struct tw_sample_args *s, const struct tw_limits *l, struct tw_arena *a,
        const struct tw_json *p, struct tw_err *err)
{
    const struct tw_json *ids = tw_json_get(p, "stop_token_ids");
    struct tw_sampling *o = &s->sampling;
    double temp = 1;
    int32_t *id;
    bool given;

    if (tw_json_get_num(p, "min_p", &o->min_p, err) < 0 ||
            tw_json_get_num(p, "repetition_penalty", &o->repetition, err) < 0 ||
            tw_json_get_num(p, "presence_penalty", &o->presence, err) < 0 ||
            tw_json_get_num(p, "frequency_penalty", &o->frequency, err) < 0 ||
            tw_json_get_num(p, "prompt_temperature", &temp, err) < 0 ||
            tw_json_get_bool(p, "penalty_prompt", &s->penalty_prompt, err) < 0 ||
            tw_json_get_bool(p, "ignore_eos", &s->no_stop, err) < 0 ||
            tw_work_seed(p, "stream", &s->stream, &given, err))
        return -1;
    s->prompt_temp = (float)temp;
    if (!(o->min_p >= 0 && o->min_p <= 1) || !(o->repetition >= 1e-3 && o->repetition <= 1000) ||
            !(o->presence >= -100 && o->presence <= 100) || !(o->frequency >= -100 && o->frequency <= 100) ||
            !(temp >= 1e-3 && temp <= 1000))
        return tw_fail(err, NULL, 0, "min_p, a penalty or prompt_temperature is outside its range");
    if (!ids)
        return 0;
    if (ids->type != TW_JARR || ids->n > l->max_stop)
        return tw_fail(err, NULL, 0, "stop_token_ids is no list of at most %" PRId64 " token ids", l->max_stop);
    id = tw_arena_alloc(a, (size_t)(s->nstop_token + ids->n + 1) * sizeof *id);
    if (s->nstop_token)
        memcpy(id, s->stop_token, (size_t)s->nstop_token * sizeof *id);
    s->stop_token = id;
    for (int64_t i = 0; i < ids->n; i++) {
        if (!ids->item[i].is_int || ids->item[i].i < 0 || ids->item[i].i >= l->V)
            return tw_fail(err, NULL, 0, "stop_token_ids[%" PRId64 "] is no token id of this model", i);
        id[s->nstop_token++] = (int32_t)ids->item[i].i;
    }
    return 0;
}

static int read_params(struct tw_sample_args *s, const struct tw_limits *l, struct tw_arena *a,
        const struct tw_json *p, struct tw_err *err)
{
    struct tw_sampling *o = &s->sampling;

    *o = (struct tw_sampling){ .temperature = 1, .top_p = 1, .repetition = 1, .top_k = -1 };
    s->max_tokens = -1;
    if (!p)
        return 0;
    if (p->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "sampling_params is not an object");
    if (tw_read_whole(p, "max_tokens", &s->max_tokens, 1, INT32_MAX, err) ||
            tw_read_whole(p, "top_k", &o->top_k, -1, INT32_MAX, err) ||
            tw_json_get_num(p, "temperature", &o->temperature, err) < 0 ||
            tw_json_get_num(p, "top_p", &o->top_p, err) < 0 ||
            tw_work_seed(p, "seed", &s->seed, &s->seeded, err))
        return -1;
    if (!(o->temperature >= 0 && o->temperature <= 1000))
        return tw_fail(err, NULL, 0, "temperature: %g is not in [0, 1000]", o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return tw_fail(err, NULL, 0, "top_p: %g is not in (0, 1]", o->top_p);
    return read_stop(s, l, a, tw_json_get(p, "stop"), err) || read_more(s, l, a, p, err) ? -1 : 0;
}

static int read_targets(struct tw_sample_args *s, const struct tw_limits *l, struct tw_arena *a,
        const struct tw_json *v, struct tw_err *err)
{
    struct tw_tensor_in t = { .name = TW_STR_LIT("target_prompt_logprobs") };
    int32_t *x;

    if (!v)
        return 0;
    if (tw_read_tensor(a, v, "asample", &t, err))
        return -1;
    if (!t.is_int || t.ndim != 2 || t.dim[0] != s->nprompt - 1)
        return tw_fail(err, NULL, 0, "target_prompt_logprobs: the tensor must be int64 of %" PRId64
                " rows", s->nprompt - 1);
    s->ntarget = t.dim[1];
    s->target = x = tw_arena_alloc(a, (size_t)t.n * sizeof *x + 1);
    for (int64_t i = 0; i < t.n; i++) {
        int64_t id;

        memcpy(&id, t.data + 8 * i, sizeof id);
        if (id != -1 && !tw_is_token(l, id))
            return tw_fail(err, NULL, 0, "target_prompt_logprobs: %" PRId64 " is not a token of this "
                    "model", id);
        x[i] = (int32_t)id;
    }
    return 0;
}

static int check(struct tw_sample_args *s, const struct tw_limits *l, struct tw_err *err)
{
    if (!s->nprompt)
        return tw_fail(err, NULL, 0, "the prompt is empty");
    for (int64_t i = 0; i < s->nprompt; i++)
        if (!tw_is_token(l, s->prompt[i]))
            return tw_fail(err, NULL, 0, "prompt: token %" PRId32 " at position %" PRId64 " is not one "
                    "of this model", s->prompt[i], i);
    if (s->max_tokens < 0) {
        s->max_tokens = l->window - s->nprompt;
        if (s->max_tokens < 1)
            return tw_fail(err, NULL, 0, "Prompt length plus max_tokens exceeds the model's context "
                    "window: %" PRId64 " prompt tokens + 1 max_tokens > %" PRId64 ".", s->nprompt,
                    l->window);
    } else if (s->nprompt + s->max_tokens > l->window) {
        return tw_fail(err, NULL, 0, "Prompt length plus max_tokens exceeds the model's context window: "
                "%" PRId64 " prompt tokens + %" PRId64 " max_tokens > %" PRId64 ".", s->nprompt,
                s->max_tokens, l->window);
    }
    if (s->sampling.top_k < 0)
        s->sampling.top_k = 0;
    return 0;
}

int tw_read_sample(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        struct tw_err *err)
{
    struct tw_sample_args *s = &w->sample;
    int64_t most = l->V < 1024 ? l->V : 1024;
    int32_t *prompt;

    *s = (struct tw_sample_args){ .n = 1, .last_n = -1 };
    if (tw_read_input(&w->arena, tw_json_get(body, "prompt"), "prompt", &prompt, &s->nprompt, err))
        return -1;
    s->prompt = prompt;
    if (tw_read_whole(body, "num_samples", &s->n, 1, l->max_samples, err) ||
            tw_json_get_bool(body, "prompt_logprobs", &s->prompt_logprobs, err) < 0 ||
            tw_json_get_bool(body, "record_stability_info", &s->record, err) < 0 ||
            tw_read_whole(body, "prompt_logprobs_last_n", &s->last_n, 0, INT32_MAX, err) ||
            tw_read_whole(body, "topk_prompt_logprobs", &s->top_prompt, 0, most, err) ||
            tw_read_whole(body, "topk_sample_logprobs", &s->top_sample, 0, most, err) ||
            tw_read_whole(body, "prompt_alt_tokens_k", &s->alt, 0, most, err) ||
            read_params(s, l, &w->arena, tw_json_get(body, "sampling_params"), err) ||
            check(s, l, err))
        return -1;
    return read_targets(s, l, &w->arena, tw_json_get(body, "target_prompt_logprobs"), err);
}
