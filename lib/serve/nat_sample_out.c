/* nat_sample_out.c - what was sampled, and the input with it appended: a turn of a conversation that goes on */
#include "nat_sample.h"
#include <math.h>

static void put_pair(struct tw_jw *w, int32_t id, float logp)
{
    tw_jw_arr(w);
    tw_jw_int(w, id);
    tw_jw_f32(w, logp);
    tw_jw_arr_end(w);
}

/* A list for each token: itself, or the best when more than one were asked for. */
static void put_logprobs(struct tw_jw *w, const struct tw_nat_call *c, const struct tw_sampled *o, int64_t n)
{
    tw_jw_key(w, "logprobs");
    if (c->logprobs < 0) {
        tw_jw_null(w);
        return;
    }
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++) {
        tw_jw_arr(w);
        if (!o->top_n)
            put_pair(w, o->token[i], o->logp[i]);
        for (int64_t k = 0; k < o->top_n && o->top_id[i * o->top_n + k] >= 0; k++)
            put_pair(w, o->top_id[i * o->top_n + k], o->top_logp[i * o->top_n + k]);
        tw_jw_arr_end(w);
    }
    tw_jw_arr_end(w);
}

static void put_tokens(struct tw_jw *w, const int32_t *token, int64_t n)
{
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++)
        tw_jw_int(w, token[i]);
    tw_jw_arr_end(w);
}

/* Labels are shifted: the one before the first sampled token is it; the last is the first token's. */
static void put_labels(struct tw_jw *w, const struct tw_json *in, const struct tw_tokens *prompt,
        const struct tw_sampled *o, int64_t n)
{
    const struct tw_json *old = tw_json_get(in, "labels");
    bool fits = old && old->type == TW_JARR && old->n == prompt->n;

    tw_jw_key(w, "labels");
    tw_jw_arr(w);
    for (int64_t i = 0; i + 1 < prompt->n; i++)
        tw_jw_int(w, fits && old->item[i].is_int ? old->item[i].i : -100);
    for (int64_t i = 0; i < n; i++)
        tw_jw_int(w, o->token[i]);
    tw_jw_int(w, fits && old->item[prompt->n - 1].is_int ? old->item[prompt->n - 1].i : -100);
    tw_jw_arr_end(w);
}

static void put_messages(struct tw_nat_call *c, struct tw_jw *w, int64_t p, const struct tw_sampled *o,
        int64_t n)
{
    const struct tw_json *in = &c->input[p], *old = tw_json_get(in, "messages");
    const struct tw_json *tools = tw_json_get(in, "tools");
    struct tw_chat *chat = tw_nat_chat(c->s, c->template, TW_NAT_PROMPT, NULL);
    struct tw_reply reply = { .content = o->text };

    if (!old || old->type != TW_JARR)
        return;
    if (chat)
        tw_chat_reply(chat, &c->arena, &c->prompt[p], o->token, n, o->text, tools && tools->type == TW_JARR ?
                tools : NULL, &reply);
    tw_jw_key(w, "messages");
    tw_jw_arr(w);
    for (int64_t i = 0; i < old->n; i++)
        tw_jw_value(w, &old->item[i]);
    tw_jw_obj(w);
    tw_jw_key(w, "role");
    tw_jw_cstr(w, "assistant");
    tw_reply_write(w, &reply, "call_", true);
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
}

static bool remade(struct tw_str key)
{
    static const char *const names[] = { "input_ids", "labels", "attention_mask", "position_ids", "length",
        "messages" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tw_str_is(key, names[i]))
            return true;
    return false;
}

static void put_feature(struct tw_nat_call *c, struct tw_jw *w, int64_t p, const struct tw_sampled *o,
        int64_t n)
{
    const struct tw_json *in = &c->input[p];
    const struct tw_tokens *t = &c->prompt[p];

    tw_jw_key(w, "new_input_feature");
    tw_jw_obj(w);
    for (int64_t i = 0; i < in->n; i++)
        if (!remade(in->item[i].key)) {
            tw_jw_key_n(w, in->item[i].key);
            tw_jw_value(w, &in->item[i]);
        }
    tw_jw_key(w, "input_ids");
    tw_jw_arr(w);
    for (int64_t i = 0; i < t->n + n; i++)
        tw_jw_int(w, i < t->n ? t->token[i] : o->token[i - t->n]);
    tw_jw_arr_end(w);
    put_labels(w, in, t, o, n);
    tw_jw_key(w, "attention_mask");
    tw_jw_arr(w);
    for (int64_t i = 0; i < t->n + n; i++)
        tw_jw_int(w, 1);
    tw_jw_arr_end(w);
    tw_jw_key(w, "position_ids");
    tw_jw_arr(w);
    for (int64_t i = 0; i < t->n + n; i++)
        tw_jw_int(w, i);
    tw_jw_arr_end(w);
    tw_jw_key(w, "length");
    tw_jw_int(w, t->n + n);
    put_messages(c, w, p, o, n);
    tw_jw_obj_end(w);
}

static void put_sequence(struct tw_nat_call *c, struct tw_jw *w, int64_t p, const struct tw_sampled *o)
{
    const struct tw_tok *tok = c->s->limits->tok;
    struct tw_buf text = { 0 };
    int64_t n = c->empty ? 0 : o->n;

    tw_jw_obj(w);
    tw_jw_key(w, "stop_reason");
    tw_jw_cstr(w, o->length ? "length" : "stop");
    tw_jw_key(w, "tokens");
    put_tokens(w, o->token, n);
    put_logprobs(w, c, o, n);
    tw_jw_key(w, "decoded");
    if (tok)
        tw_tok_decode(tok, o->token, n, false, &text);
    tw_jw_str(w, tw_buf_str(&text));
    tw_buf_free(&text);
    put_feature(c, w, p, o, n);
    tw_jw_obj_end(w);
}

/* Of the prompt: nothing stands before its first token. */
static void put_prompt(struct tw_nat_call *c, struct tw_jw *w, const struct tw_sample_args *a)
{
    tw_jw_key(w, "prompt_logprobs");
    if (!a->prompt_logp) {
        tw_jw_null(w);
    } else {
        tw_jw_arr(w);
        for (int64_t i = 0; i < a->nprompt; i++)
            if (isnan(a->prompt_logp[i]))
                tw_jw_null(w);
            else
                tw_jw_f32(w, a->prompt_logp[i]);
        tw_jw_arr_end(w);
    }
    tw_jw_key(w, "topk_prompt_logprobs");
    if (!a->prompt_top) {
        tw_jw_null(w);
        return;
    }
    tw_jw_arr(w);
    for (int64_t i = 0; i < a->nprompt; i++) {
        if (!i) {
            tw_jw_null(w);
            continue;
        }
        tw_jw_arr(w);
        for (int64_t k = 0; k < a->top_prompt && a->prompt_top[i * a->top_prompt + k] >= 0; k++)
            put_pair(w, a->prompt_top[i * a->top_prompt + k], a->prompt_top_logp[i * a->top_prompt + k]);
        tw_jw_arr_end(w);
    }
    tw_jw_arr_end(w);
}

static bool failed(struct tw_nat_call *c)
{
    for (int64_t p = 0; p < c->nprompt; p++) {
        const struct tw_result *x = &c->work[p]->result;

        if (x->category) {
            int status = !strcmp(x->category, "user") ? 400 : !strcmp(x->category, TW_ENDING) ? 503 : 500;

            tw_reply_error(c->r, status, "sample: %.*s", (int)(x->error.n < 1000 ? x->error.n : 1000),
                    x->error.p ? x->error.p : "");
            return true;
        }
    }
    return false;
}

void tw_nat_call_answer(struct tw_nat_call *c)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (failed(c))
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "samples");
    tw_jw_arr(&w);
    for (int64_t p = 0; p < c->nprompt; p++) {
        const struct tw_sample_args *a = &c->work[p]->sample;

        tw_jw_obj(&w);
        tw_jw_key(&w, "sequences");
        tw_jw_arr(&w);
        for (int64_t i = 0; i < c->n; i++)
            put_sequence(c, &w, p, &a->out[i]);
        tw_jw_arr_end(&w);
        tw_jw_key(&w, "prompt_token_ids");
        put_tokens(&w, a->prompt, a->nprompt);
        put_prompt(c, &w, a);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(c->r, 200, &b);
}
