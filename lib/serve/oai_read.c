/* oai_read.c - what OpenAI's requests ask for. What we do not know is refused by its name: a setting that
 * is ignored would give other answers than were asked for. */
#include "oai.h"
#include "read_priv.h"
#include <inttypes.h>

void tw_oai_error(struct tw_req *r, int status, const char *fmt, ...)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;
    va_list ap;
    char text[512];

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "error");
    tw_jw_obj(&w);
    tw_jw_key(&w, "message");
    tw_jw_cstr(&w, text);
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, status < 500 ? "invalid_request_error" : "server_error");
    tw_jw_key(&w, "param");
    tw_jw_null(&w);
    tw_jw_key(&w, "code");
    tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, status, &b);
}

/* Keys that both requests have, of the chat alone, of completions alone; then what says nothing about the
 * answer. */
static const char *const both[] = { "model", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids",
    "ignore_eos", "stream", "stream_options", "logprobs", "logit_bias", "user", "metadata", "store",
    "service_tier", "safety_identifier", "prompt_cache_key", NULL };
static const char *const chat_only[] = { "messages", "tools", "tool_choice", "parallel_tool_calls",
    "max_completion_tokens", "top_logprobs", "response_format", "chat_template_kwargs", "modalities", NULL };
static const char *const text_only[] = { "prompt", "echo", "best_of", "suffix", NULL };

static bool among(const char *const *list, struct tw_str key)
{
    for (; *list; list++)
        if (tw_str_is(key, *list))
            return true;
    return false;
}

static int check_keys(const struct tw_oai *c, const struct tw_json *j, struct tw_err *err)
{
    const struct tw_json *v;

    for (int64_t i = 0; i < j->n; i++)
        if (j->item[i].type != TW_JNULL && !among(both, j->item[i].key) &&
                !among(c->chat ? chat_only : text_only, j->item[i].key))
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)j->item[i].key.n, j->item[i].key.p);
    if ((v = tw_json_get(j, "logit_bias")) && v->n)
        return tw_fail(err, NULL, 0, "logit_bias is not supported");
    if ((v = tw_json_get(j, "suffix")) && v->str.n)
        return tw_fail(err, NULL, 0, "suffix is not supported");
    if ((v = tw_json_get(j, "best_of")) && !(v->is_int && v->i == 1))
        return tw_fail(err, NULL, 0, "best_of is not supported but for 1");
    if ((v = tw_json_get(j, "parallel_tool_calls")) && v->type == TW_JBOOL && !v->b)
        return tw_fail(err, NULL, 0, "parallel_tool_calls: the model decides how many calls it makes");
    if ((v = tw_json_get(j, "response_format")) &&
            !(v = tw_json_get(v, "type") ? tw_json_get(v, "type") : v, tw_str_is(v->str, "text")))
        return tw_fail(err, NULL, 0, "response_format is not supported but for text");
    if ((v = tw_json_get(j, "modalities")) &&
            !(v->type == TW_JARR && v->n == 1 && tw_str_is(v->item[0].str, "text")))
        return tw_fail(err, NULL, 0, "modalities is not supported but for text");
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

static int read_stops(struct tw_oai *c, const struct tw_json *j, struct tw_sample_args *s, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(j, "stop"), *ids = tw_json_get(j, "stop_token_ids");
    const struct tw_json *e = v && v->type == TW_JARR ? v->item : v;
    int64_t n = !v ? 0 : v->type == TW_JARR ? v->n : 1, m = ids ? ids->n : 0;
    const char **text = tw_arena_alloc(&c->arena, (size_t)(n + 1) * sizeof *text);
    int32_t *id = tw_arena_alloc(&c->arena, (size_t)(m + 1) * sizeof *id);

    if (n > c->s->limits->max_stop || m > c->s->limits->max_stop)
        return tw_fail(err, NULL, 0, "stop: at most %" PRId64 " are allowed", c->s->limits->max_stop);
    for (int64_t i = 0; i < n; i++) {
        if (e[i].type != TW_JSTR || !e[i].str.n || memchr(e[i].str.p, 0, e[i].str.n))
            return tw_fail(err, NULL, 0, "stop must be a text or a list of texts that are not empty");
        text[i] = tw_arena_str(&c->arena, e[i].str).p;
    }
    if (ids && ids->type != TW_JARR)
        return tw_fail(err, NULL, 0, "stop_token_ids must be a list");
    for (int64_t i = 0; i < m; i++) {
        if (!ids->item[i].is_int || ids->item[i].i < 0 || ids->item[i].i >= c->s->limits->V)
            return tw_fail(err, NULL, 0, "stop_token_ids[%" PRId64 "] is not a token of this model", i);
        id[i] = (int32_t)ids->item[i].i;
    }
    s->stop = text;
    s->nstop = n;
    s->stop_token = id;
    s->nstop_token = m;
    return tw_json_get_bool(j, "ignore_eos", &s->no_stop, err) < 0 ? -1 : 0;
}

static int read_sampling(struct tw_oai *c, const struct tw_json *j, struct tw_sample_args *s,
        struct tw_err *err)
{
    struct tw_sampling *o = &s->sampling;
    int64_t seed = 0;
    int got;

    *o = (struct tw_sampling){ .temperature = 1, .top_p = 1, .repetition = 1 };
    s->max_tokens = c->chat ? -1 : 16;
    if (tw_read_whole(j, "max_tokens", &s->max_tokens, 1, INT32_MAX, err) ||
            tw_read_whole(j, "max_completion_tokens", &s->max_tokens, 1, INT32_MAX, err) ||
            tw_read_whole(j, "n", &c->n, 1, c->s->limits->max_samples, err) ||
            tw_read_whole(j, "top_k", &o->top_k, -1, INT32_MAX, err) ||
            number(j, "temperature", &o->temperature, 0, 1000, err) ||
            number(j, "top_p", &o->top_p, 1e-12, 1, err) || number(j, "min_p", &o->min_p, 0, 1, err) ||
            number(j, "presence_penalty", &o->presence, -100, 100, err) ||
            number(j, "frequency_penalty", &o->frequency, -100, 100, err) ||
            number(j, "repetition_penalty", &o->repetition, 1e-3, 1000, err) ||
            (got = tw_json_get_int(j, "seed", &seed, err)) < 0)
        return -1;
    if (o->top_k < 0)
        o->top_k = 0;
    s->seeded = got > 0;
    s->seed = (uint64_t)seed;
    return read_stops(c, j, s, err);
}

/* logprobs is a number of completions, and a flag beside top_logprobs of a chat. */
static int read_output(struct tw_oai *c, const struct tw_json *j, struct tw_err *err)
{
    const struct tw_json *o = tw_json_get(j, "stream_options");

    if (tw_json_get_bool(j, "stream", &c->stream, err) < 0 ||
            (c->chat && tw_json_get_bool(j, "logprobs", &c->logprobs, err) < 0) ||
            (!c->chat && tw_json_get_bool(j, "echo", &c->echo, err) < 0) ||
            tw_read_whole(j, c->chat ? "top_logprobs" : "logprobs", &c->top, 0, TW_OAI_TOP, err))
        return -1;
    if (!c->chat)
        c->logprobs = tw_json_has(j, "logprobs") && tw_json_get(j, "logprobs");
    if (c->chat && c->top && !c->logprobs)
        return tw_fail(err, NULL, 0, "top_logprobs goes with logprobs");
    if (c->echo && c->logprobs)
        return tw_fail(err, NULL, 0, "echo with logprobs is not supported: asample has prompt_logprobs");
    if (!o)
        return 0;
    if (o->type != TW_JOBJ || !c->stream)
        return tw_fail(err, NULL, 0, "stream_options must be an object, and goes with stream");
    return tw_json_get_bool(o, "include_usage", &c->usage, err) < 0 ? -1 : 0;
}

/* The weights that MODEL names: the base, or a checkpoint for sampling. */
static int read_model(struct tw_oai *c, const struct tw_json *j, struct tw_sample_args *s, struct tw_err *err)
{
    struct tw_str name;
    struct tw_saved *w;
    char why[160];

    if (tw_json_get_str(j, "model", &name, err) <= 0)
        return err->code ? -1 : tw_fail(err, NULL, 0, "model is missing");
    c->model = tw_arena_str(&c->arena, name).p;
    if (tw_base_known(c->s, name))
        return 0;
    c->status = 404;
    if (!strstr(c->model, "://"))
        return tw_fail(err, NULL, 0, "model %s is not served; it is %s, or a path tinker://..", c->model,
                c->s->name[0]);
    if (!(w = tw_saved_find(c->s, c->tenant, name, why)))
        return tw_fail(err, NULL, 0, "model %s: %s", c->model, why);
    if (strcmp(w->kind, "sampler_weights"))
        return tw_fail(err, NULL, 0, "model %s: weights to sample from are under sampler_weights/", c->model);
    s->key = tw_arena_dup(&c->arena, w->key, strlen(w->key));
    s->dir = tw_arena_dup(&c->arena, w->dir, strlen(w->dir));
    c->status = 400;
    return 0;
}

static struct tw_chat *chat_of(struct tw_srv *s, enum tw_tri thinking, struct tw_err *err)
{
    struct tw_chat_opts o = { .generation_prompt = true, .thinking = thinking, .add_special = TW_AUTO,
        .control = TW_AUTO };
    struct tw_chat **c = &s->chat[thinking + 1];

    if (!*c)
        *c = tw_chat_open(tw_worker_dir(s->worker), NULL, &o, err);
    if (*c && !tw_chat_tok(*c)) {
        tw_fail(err, NULL, 0, "this model has no tokenizer; send token ids to asample");
        return NULL;
    }
    return *c;
}

/* A content that is a list of parts, as one text. */
static int put_content(struct tw_jw *w, const struct tw_json *v, struct tw_err *err)
{
    struct tw_buf text = { 0 };

    if (v->type != TW_JARR) {
        tw_jw_value(w, v);
        return 0;
    }
    for (int64_t i = 0; i < v->n; i++) {
        const struct tw_json *t = &v->item[i], *x = t->type == TW_JOBJ ? tw_json_get(t, "text") : NULL;

        if (!x || x->type != TW_JSTR || !tw_json_get(t, "type") ||
                !tw_str_is(tw_json_get(t, "type")->str, "text")) {
            tw_buf_free(&text);
            return tw_fail(err, NULL, 0, "messages: this model reads texts; a part of another type is here");
        }
        tw_buf_adds(&text, x->str);
    }
    tw_jw_str(w, tw_buf_str(&text));
    tw_buf_free(&text);
    return 0;
}

static int put_messages(struct tw_jw *w, const struct tw_json *list, struct tw_err *err)
{
    if (!list || list->type != TW_JARR || !list->n)
        return tw_fail(err, NULL, 0, "messages must be a list that is not empty");
    tw_jw_arr(w);
    for (int64_t i = 0; i < list->n; i++) {
        const struct tw_json *m = &list->item[i], *role;

        if (m->type != TW_JOBJ)
            return tw_fail(err, NULL, 0, "messages[%" PRId64 "] is not an object", i);
        role = tw_json_get(m, "role");
        tw_jw_obj(w);
        for (int64_t k = 0; k < m->n; k++) {
            if (m->item[k].type == TW_JNULL && !tw_str_is(m->item[k].key, "content"))
                continue;
            tw_jw_key_n(w, m->item[k].key);
            if (tw_str_is(m->item[k].key, "role") && role && tw_str_is(role->str, "developer"))
                tw_jw_cstr(w, "system");
            else if (!tw_str_is(m->item[k].key, "content"))
                tw_jw_value(w, &m->item[k]);
            else if (m->item[k].type == TW_JNULL)
                tw_jw_cstr(w, "");
            else if (put_content(w, &m->item[k], err))
                return -1;
        }
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
    return 0;
}

static int read_tools(struct tw_oai *c, const struct tw_json *j, enum tw_tri *thinking, struct tw_err *err)
{
    const struct tw_json *tools = tw_json_get(j, "tools"), *choice = tw_json_get(j, "tool_choice");
    const struct tw_json *args = tw_json_get(j, "chat_template_kwargs");
    bool think = false;
    int got = 0;

    if (tools && tools->type != TW_JARR)
        return tw_fail(err, NULL, 0, "tools must be a list");
    if (choice && !tw_str_is(choice->str, "auto") && !tw_str_is(choice->str, "none"))
        return tw_fail(err, NULL, 0, "tool_choice is not supported but for auto and none");
    c->tools = tools && tools->n && !(choice && tw_str_is(choice->str, "none")) ? tools : NULL;
    for (int64_t i = 0; args && i < args->n; i++)
        if (args->type != TW_JOBJ || !tw_str_is(args->item[i].key, "enable_thinking"))
            return tw_fail(err, NULL, 0, "chat_template_kwargs: only enable_thinking is known here");
    if (args && (got = tw_json_get_bool(args, "enable_thinking", &think, err)) < 0)
        return -1;
    *thinking = got ? think ? TW_ON : TW_OFF : TW_AUTO;
    return 0;
}

static int read_chat(struct tw_oai *c, const struct tw_json *j, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;
    struct tw_json *rec = NULL;
    enum tw_tri thinking = TW_AUTO;
    int ret;

    if (read_tools(c, j, &thinking, err) || !(c->template = chat_of(c->s, thinking, err)))
        return -1;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "messages");
    ret = put_messages(&w, tw_json_get(j, "messages"), err);
    if (!ret && c->tools) {
        tw_jw_key(&w, "tools");
        tw_jw_value(&w, c->tools);
    }
    if (!ret) {
        tw_jw_obj_end(&w);
        rec = tw_json_parse(&c->arena, tw_arena_str(&c->arena, tw_buf_str(&b)), err);
    }
    tw_buf_free(&b);
    c->nprompt = 1;
    c->prompt = tw_arena_alloc(&c->arena, sizeof *c->prompt);
    return rec ? tw_chat_prompt(c->template, &c->arena, rec, c->prompt, err) : -1;
}

static int token_prompt(struct tw_oai *c, const struct tw_json *v, struct tw_tokens *out, struct tw_err *err)
{
    out->n = v->n;
    out->token = tw_arena_alloc(&c->arena, (size_t)v->n * sizeof *out->token);
    for (int64_t i = 0; i < v->n; i++) {
        if (!v->item[i].is_int || v->item[i].i < 0 || v->item[i].i >= c->s->limits->V)
            return tw_fail(err, NULL, 0, "prompt[%" PRId64 "] is not a token of this model", i);
        out->token[i] = (int32_t)v->item[i].i;
    }
    return 0;
}

static int text_prompt(struct tw_oai *c, const struct tw_json *v, struct tw_tokens *out, struct tw_err *err)
{
    struct tw_json item = *v, rec = { .type = TW_JOBJ, .item = &item, .n = 1 };
    struct tw_chat *chat = chat_of(c->s, TW_AUTO, err);

    if (v->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "prompt must be a text, a list of texts, or token ids");
    item.key = tw_str("prompt");
    return chat ? tw_chat_prompt(chat, &c->arena, &rec, out, err) : -1;
}

static int read_text(struct tw_oai *c, const struct tw_json *j, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(j, "prompt");
    bool many = v && v->type == TW_JARR && v->n && !v->item[0].is_int;

    if (!v || (v->type == TW_JARR && !v->n))
        return tw_fail(err, NULL, 0, "prompt is missing");
    c->nprompt = many ? v->n : 1;
    if (c->nprompt > TW_OAI_PROMPTS)
        return tw_fail(err, NULL, 0, "prompt: at most %d are allowed", TW_OAI_PROMPTS);
    c->prompt = tw_arena_alloc(&c->arena, (size_t)c->nprompt * sizeof *c->prompt);
    for (int64_t i = 0; i < c->nprompt; i++) {
        const struct tw_json *one = many ? &v->item[i] : v;

        if (one->type == TW_JARR ? token_prompt(c, one, &c->prompt[i], err)
                                 : text_prompt(c, one, &c->prompt[i], err))
            return -1;
    }
    return 0;
}

static int make_works(struct tw_oai *c, const struct tw_sample_args *s, struct tw_err *err)
{
    int64_t window = c->s->limits->window, most = s->max_tokens < 0 ? 1 : s->max_tokens;

    c->work = tw_arena_alloc(&c->arena, (size_t)c->nprompt * sizeof *c->work);
    memset(c->work, 0, (size_t)c->nprompt * sizeof *c->work);
    if (c->n * c->nprompt > c->s->limits->max_samples)
        return tw_fail(err, NULL, 0, "n: at most %" PRId64 " samples a request", c->s->limits->max_samples);
    for (int64_t p = 0; p < c->nprompt; p++) {
        struct tw_tokens *t = &c->prompt[p];
        struct tw_sample_args *a;

        if (!t->n)
            return tw_fail(err, NULL, 0, "the prompt is empty");
        if (t->n + most > window)
            return tw_fail(err, NULL, 0, "Prompt length plus max_tokens exceeds the model's context window: "
                    "%" PRId64 " prompt tokens + %" PRId64 " max_tokens > %" PRId64 ".", t->n, most, window);
        c->work[p] = tw_work_new(TW_SAMPLE);
        a = &c->work[p]->sample;
        *a = *s;
        a->prompt = t->token;
        a->nprompt = t->n;
        a->n = c->n;
        a->top_sample = c->top;
        a->last_n = -1;
        if (a->max_tokens < 0)
            a->max_tokens = window - t->n;
        if (a->seeded)
            a->seed += (uint64_t)p << 32;
    }
    return 0;
}

int tw_oai_read(struct tw_oai *c, struct tw_req *r)
{
    struct tw_err err = { 0 };
    struct tw_sample_args s = { 0 };
    struct tw_json *j = tw_json_parse(&c->arena, tw_arena_str(&c->arena, r->body), &err);

    c->n = 1;
    c->status = 400;
    if (j && j->type != TW_JOBJ)
        tw_fail(&err, NULL, 0, "the body is not an object");
    if (!err.code && !check_keys(c, j, &err) && !read_model(c, j, &s, &err) && !read_output(c, j, &err) &&
            !read_sampling(c, j, &s, &err) && !(c->chat ? read_chat : read_text)(c, j, &err) &&
            !make_works(c, &s, &err))
        return 0;
    if (!c->work)
        c->nprompt = 0;
    tw_oai_error(r, c->status, "%s", err.msg);
    return -1;
}
