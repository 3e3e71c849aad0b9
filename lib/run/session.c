/* session.c - what every mode of tw-sample needs before its first token */
#include "base/io.h"
#include "base/log.h"
#include "data/hub.h"
#include "data/rpc.h"
#include "run/sample.h"
#include <errno.h>
#include <stdlib.h>

static int add_end(struct tw_ids *ids, const struct tw_json *v, const char *path, struct tw_err *err)
{
    if (v->type != TW_JNUM || !v->is_int || v->i < 0 || v->i > INT32_MAX)
        return tw_fail(err, path, 0, "eos_token_id is not a token id or a list of them");
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->id[i] == v->i)
            return 0;
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 8;
        ids->id = tw_xreallocarray(ids->id, ids->cap, sizeof(*ids->id));
    }
    ids->id[ids->n++] = (int32_t)v->i;
    return 0;
}

static int end_of_file(struct tw_ids *ids, const char *dir, const char *name, struct tw_err *err)
{
    char *path = tw_path_join(dir, name);
    struct tw_arena a = { 0 };
    const struct tw_json *j = NULL, *v = NULL, *text;
    int ret = 0;

    if (tw_is_file(path)) {
        j = tw_json_file(&a, path, 0, err);
        ret = j ? 0 : -1;
    }
    if (j && !(v = tw_json_get(j, "eos_token_id")) && (text = tw_json_get(j, "text_config"))
            && text->type == TW_JOBJ)
        v = tw_json_get(text, "eos_token_id");
    if (v && v->type == TW_JARR) {
        for (int64_t i = 0; i < v->n && !ret; i++)
            ret = add_end(ids, &v->item[i], path, err);
    } else if (v) {
        ret = add_end(ids, v, path, err);
    }
    tw_arena_free(&a);
    free(path);
    return ret;
}

int tw_end_tokens(const char *dir, const struct tw_tok *tok, int32_t **end, int64_t *n,
        struct tw_err *err)
{
    struct tw_ids ids = { 0 };
    struct tw_json eos = { .type = TW_JNUM, .is_int = true, .i = tok ? tw_tok_eos(tok) : -1 };

    if (end_of_file(&ids, dir, "generation_config.json", err)
            || end_of_file(&ids, dir, "config.json", err)
            || (eos.i >= 0 && add_end(&ids, &eos, dir, err))) {
        tw_ids_free(&ids);
        return -1;
    }
    *end = ids.id;
    *n = ids.n;
    return 0;
}

/* Stop texts that spell one special token stop on the token (it never shows in the text). */
static int stops(struct tw_session *s, struct tw_err *err)
{
    const struct tw_sample_opts *o = s->o;

    s->stop = tw_xcalloc(o->stop.n + 1, sizeof(*s->stop));
    s->stop_token = tw_xcalloc(o->stop.n + o->stop_token.n + 1, sizeof(*s->stop_token));
    for (int i = 0; i < o->stop.n; i++) {
        const char *text = o->stop.v[i];
        int32_t id = s->tok ? tw_tok_id(s->tok, tw_str(text)) : -1;

        if (!*text)
            return tw_fail(err, "--stop", 0, "an empty text stops nothing");
        if (!s->tok)
            return tw_fail(err, "--stop", 0, "%s has no tokenizer; use --stop-token", s->dir);
        if (id >= 0 && tw_tok_is_special(s->tok, id))
            s->stop_token[s->nstop_token++] = id;
        else
            s->stop[s->nstop++] = text;
    }
    for (int i = 0; i < o->stop_token.n; i++) {
        char *rest;
        long id;

        errno = 0;
        id = strtol(o->stop_token.v[i], &rest, 10);
        if (errno || *rest || rest == o->stop_token.v[i] || id < 0 || id >= tw_model_info(s->model)->V)
            return tw_fail_code(err, TW_EMISUSE, "--stop-token", 0, "\"%s\" is not a token id of this model",
                    o->stop_token.v[i]);
        s->stop_token[s->nstop_token++] = (int32_t)id;
    }
    return 0;
}

static int adapters(struct tw_session *s, struct tw_err *err)
{
    const struct tw_list *list = &s->o->adapter;

    s->adapter = tw_xcalloc(list->n + 1, sizeof(*s->adapter));
    for (int i = 0; i < list->n; i++) {
        s->adapter[i].name = list->v[i];
        if (s->source->from(s, list->v[i], &s->adapter[i].from, err))
            return -1;
        s->nadapter++;
    }
    return 0;
}

/* For --verbose: what ends a reply, and what the adapters touch. */
static void describe(const struct tw_session *s)
{
    struct tw_buf b = { 0 };
    char text[32];

    if (!tw_verbose())
        return;
    for (int64_t i = 0; i < s->nend; i++) {
        tw_buf_printf(&b, "%s%d", i ? ", " : "", s->end[i]);
        if (s->tok) {
            tw_buf_puts(&b, " ");
            tw_tok_decode(s->tok, &s->end[i], 1, false, &b);
        }
    }
    tw_info("%s: %s parameters, %s of %lld tokens; replies end at %s%s", s->dir,
            tw_fmt_count(text, tw_model_info(s->model)->params), s->o->max_model_len ? "a window" :
            "its window", (long long)(s->o->max_model_len ? s->o->max_model_len :
            tw_model_info(s->model)->max_positions), b.n ? b.p : "no token",
            s->o->ignore_eos ? ", which --ignore-eos passes" : "");
    for (int i = 0; i < s->nadapter; i++) {
        if (!s->adapter[i].from.adapter)
            continue;
        tw_buf_clear(&b);
        tw_adapter_describe(s->adapter[i].from.adapter, &b);
        tw_info("adapter %s: %s", s->adapter[i].name, b.p);
    }
    tw_buf_free(&b);
}

int tw_session_open(struct tw_session *s, const struct tw_sample_opts *o, struct tw_err *err)
{
    struct tw_chat_opts co = { .train_on = TW_ON_ALL, .add_special = TW_AUTO,
        .thinking = (enum tw_tri)(o->thinking - 1), .control = o->control ? TW_ON : TW_AUTO,
        .system = o->system, .args = (const char *const *)o->template_arg.v,
        .nargs = o->template_arg.n };
    *s = (struct tw_session){ .o = o, .source = tw_rpc_server() ? &tw_source_remote : &tw_source_local };
    if (!(s->dir = tw_model_dir(o->model, err))
            || !(s->chat = tw_chat_open(s->dir, o->template_file, &co, err))
            || (s->tok = tw_chat_tok(s->chat), s->source->open(s, err)))
        return -1;
    if (adapters(s, err) || tw_end_tokens(s->dir, s->tok, &s->end, &s->nend, err) || stops(s, err))
        return -1;
    describe(s);
    return s->source->ready(s, err);
}

int tw_record_adapter(struct tw_session *s, const struct tw_json *rec, struct tw_from **from,
        const char **name, struct tw_err *err)
{
    struct tw_str want = { 0 };

    *from = &s->base;
    *name = NULL;
    if (tw_json_has(rec, "adapter") && !tw_json_get(rec, "adapter"))
        return 0;
    if (tw_json_get_str(rec, "adapter", &want, err) < 0)
        return -1;
    if (!want.p && s->nadapter > 1)
        return tw_fail(err, NULL, 0, "there are %d adapters: the record must name one in \"adapter\"",
                s->nadapter);
    for (int i = 0; i < s->nadapter; i++)
        if (!want.p || tw_str_is(want, s->adapter[i].name)) {
            *from = &s->adapter[i].from;
            *name = s->adapter[i].name;
            return 0;
        }
    if (want.p)
        return tw_fail(err, NULL, 0, "adapter \"%.*s\" was not given with --adapter", (int)want.n, want.p);
    return 0;
}

void tw_session_gen(const struct tw_session *s, struct tw_gen *g)
{
    const struct tw_sample_opts *o = s->o;

    *g = (struct tw_gen){ .n = o->n, .seed = (uint64_t)o->seed, .max_tokens = o->max_tokens,
        .stop = s->stop, .nstop = s->nstop, .stop_token = s->stop_token,
        .nstop_token = s->nstop_token, .ignore_eos = o->ignore_eos,
        .penalty_prompt = o->penalty_prompt, .top_logprobs = o->logprobs };
    g->sampling = (struct tw_sampling){ .temperature = o->temperature, .top_k = o->top_k,
        .top_p = o->top_p, .min_p = o->min_p, .repetition = o->repetition,
        .presence = o->presence, .frequency = o->frequency };
}

void tw_session_close(struct tw_session *s)
{
    if (s->source)
        s->source->close(s);
    free(s->adapter);
    free(s->end);
    free(s->stop);
    free(s->stop_token);
    tw_model_close(s->model);
    tw_dev_close(s->count_dev);
    tw_dev_close(s->dev);
    tw_chat_close(s->chat);
    free(s->dir);
}
