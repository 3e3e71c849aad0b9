/* oai_write.c - answers as OpenAI's clients read them, whole or as a stream of events */
#include "oai.h"

static void begin(struct tw_oai *c, struct tw_jw *w, struct tw_buf *b, const char *object)
{
    tw_jw_init(w, b);
    tw_jw_obj(w);
    tw_jw_key(w, "id");
    tw_jw_cstr(w, c->id);
    tw_jw_key(w, "object");
    tw_jw_cstr(w, object);
    tw_jw_key(w, "created");
    tw_jw_int(w, c->created);
    tw_jw_key(w, "model");
    tw_jw_cstr(w, c->model);
}

static void put_usage(struct tw_oai *c, struct tw_jw *w)
{
    int64_t in = 0, out = 0, known = 0;

    for (int64_t p = 0; p < c->nprompt; p++) {
        in += c->prompt[p].n;
        out += c->work[p]->result.sampled;
        known += c->work[p]->result.cached;
    }
    tw_jw_key(w, "usage");
    tw_jw_obj(w);
    tw_jw_key(w, "prompt_tokens");
    tw_jw_int(w, in);
    tw_jw_key(w, "completion_tokens");
    tw_jw_int(w, out);
    tw_jw_key(w, "total_tokens");
    tw_jw_int(w, in + out);
    if (known) {
        tw_jw_key(w, "prompt_tokens_details");
        tw_jw_obj(w);
        tw_jw_key(w, "cached_tokens");
        tw_jw_int(w, known);
        tw_jw_obj_end(w);
    }
    tw_jw_obj_end(w);
}

/* {"token", "logprob", "bytes"}, without the brace that ends it. */
static void put_token(struct tw_oai *c, struct tw_jw *w, int32_t id, float logp)
{
    struct tw_buf t = { 0 };

    tw_tok_decode(c->s->limits->tok, &id, 1, false, &t);
    tw_jw_obj(w);
    tw_jw_key(w, "token");
    tw_jw_str(w, tw_buf_str(&t));
    tw_jw_key(w, "logprob");
    tw_jw_f32(w, logp);
    tw_jw_key(w, "bytes");
    tw_jw_arr(w);
    for (size_t i = 0; i < t.n; i++)
        tw_jw_int(w, (unsigned char)t.p[i]);
    tw_jw_arr_end(w);
    tw_buf_free(&t);
}

static void chat_logprobs(struct tw_oai *c, struct tw_jw *w, const struct tw_sampled *o)
{
    tw_jw_obj(w);
    tw_jw_key(w, "content");
    tw_jw_arr(w);
    for (int64_t i = 0; i < o->n; i++) {
        put_token(c, w, o->token[i], o->logp[i]);
        tw_jw_key(w, "top_logprobs");
        tw_jw_arr(w);
        for (int64_t k = 0; k < o->top_n && o->top_id[i * o->top_n + k] >= 0; k++) {
            put_token(c, w, o->top_id[i * o->top_n + k], o->top_logp[i * o->top_n + k]);
            tw_jw_obj_end(w);
        }
        tw_jw_arr_end(w);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
}

/* Four lists side by side; offsets count bytes of the text as the tokens spell it. */
static void text_logprobs(struct tw_oai *c, struct tw_jw *w, const struct tw_sampled *o)
{
    const struct tw_tok *tok = c->s->limits->tok;
    struct tw_buf t = { 0 };
    int64_t at = 0;

    tw_jw_obj(w);
    tw_jw_key(w, "tokens");
    tw_jw_arr(w);
    for (int64_t i = 0; i < o->n; i++, tw_buf_clear(&t)) {
        tw_tok_decode(tok, &o->token[i], 1, false, &t);
        tw_jw_str(w, tw_buf_str(&t));
    }
    tw_jw_arr_end(w);
    tw_jw_key(w, "token_logprobs");
    tw_jw_arr(w);
    for (int64_t i = 0; i < o->n; i++)
        tw_jw_f32(w, o->logp[i]);
    tw_jw_arr_end(w);
    tw_jw_key(w, "text_offset");
    tw_jw_arr(w);
    for (int64_t i = 0; i < o->n; i++, tw_buf_clear(&t)) {
        tw_jw_int(w, at);
        tw_tok_decode(tok, &o->token[i], 1, true, &t);
        at += (int64_t)t.n;
    }
    tw_jw_arr_end(w);
    tw_jw_key(w, "top_logprobs");
    tw_jw_arr(w);
    for (int64_t i = 0; i < o->n; i++) {
        tw_jw_obj(w);
        for (int64_t k = 0; k < o->top_n && o->top_id[i * o->top_n + k] >= 0; k++, tw_buf_clear(&t)) {
            tw_tok_decode(tok, &o->top_id[i * o->top_n + k], 1, false, &t);
            tw_jw_key_n(w, tw_buf_str(&t));
            tw_jw_f32(w, o->top_logp[i * o->top_n + k]);
        }
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
    tw_buf_free(&t);
}

static void put_logprobs(struct tw_oai *c, struct tw_jw *w, const struct tw_sampled *o)
{
    tw_jw_key(w, "logprobs");
    if (!c->logprobs)
        tw_jw_null(w);
    else if (c->chat)
        chat_logprobs(c, w, o);
    else
        text_logprobs(c, w, o);
}

static void split(struct tw_oai *c, int64_t i, struct tw_reply *out)
{
    int64_t p = i / c->n;
    const struct tw_sampled *o = &c->work[p]->sample.out[i % c->n];

    tw_chat_reply(c->template, &c->arena, &c->prompt[p], o->token, o->n, o->text, c->tools, out);
    if (c->tools)
        return;
    for (int64_t k = 0; k < out->ncall; k++) /* nobody asked for calls: what looks like one is text */
        out->content = o->text;
    out->ncall = 0;
}

static void put_finish(struct tw_jw *w, const struct tw_sampled *o, int64_t ncall)
{
    tw_jw_key(w, "finish_reason");
    tw_jw_cstr(w, o->length ? "length" : ncall ? "tool_calls" : "stop");
}

/* What the ids of a choice's calls begin with. */
static const char *call_id(struct tw_oai *c, int64_t choice)
{
    return tw_arena_printf(&c->arena, "call_%.16s_%lld_", c->id + 9, (long long)choice);
}

static void put_choice(struct tw_oai *c, struct tw_jw *w, int64_t i)
{
    const struct tw_sampled *o = &c->work[i / c->n]->sample.out[i % c->n];
    struct tw_reply reply = { 0 };
    struct tw_buf t = { 0 };

    tw_jw_obj(w);
    tw_jw_key(w, "index");
    tw_jw_int(w, i);
    if (c->chat) {
        split(c, i, &reply);
        tw_jw_key(w, "message");
        tw_jw_obj(w);
        tw_jw_key(w, "role");
        tw_jw_cstr(w, "assistant");
        tw_reply_write(w, &reply, call_id(c, i), true);
        tw_jw_obj_end(w);
    } else {
        const struct tw_tokens *p = &c->prompt[i / c->n];

        if (c->echo)
            tw_tok_decode(c->s->limits->tok, p->token, p->n, true, &t);
        tw_buf_adds(&t, o->text);
        tw_jw_key(w, "text");
        tw_jw_str(w, tw_buf_str(&t));
        tw_buf_free(&t);
    }
    put_logprobs(c, w, o);
    put_finish(w, o, reply.ncall);
    tw_jw_obj_end(w);
}

/* The work that failed first; NULL: none did. */
static const struct tw_result *failure(const struct tw_oai *c)
{
    for (int64_t p = 0; p < c->nprompt; p++)
        if (c->work[p]->result.category)
            return &c->work[p]->result;
    return NULL;
}

void tw_oai_answer(struct tw_oai *c)
{
    const struct tw_result *bad = failure(c);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (bad) {
        tw_oai_error(c->r, !strcmp(bad->category, "user") ? 400 : !strcmp(bad->category, TW_ENDING) ? 503
                : 500, "%s", bad->error.p ? bad->error.p : "?");
        return;
    }
    begin(c, &w, &b, c->chat ? "chat.completion" : "text_completion");
    tw_jw_key(&w, "choices");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < c->nprompt * c->n; i++)
        put_choice(c, &w, i);
    tw_jw_arr_end(&w);
    put_usage(c, &w);
    tw_jw_obj_end(&w);
    tw_reply_json(c->r, 200, &b);
}

static void send(struct tw_oai *c, struct tw_buf *b)
{
    tw_buf_puts(b, "\n\n");
    tw_stream_write(c->r, b->p, b->n);
    tw_buf_free(b);
}

/* An event with one choice, open for its members. */
static void event(struct tw_oai *c, struct tw_jw *w, struct tw_buf *b, int64_t i)
{
    tw_buf_puts(b, "data: ");
    begin(c, w, b, c->chat ? "chat.completion.chunk" : "text_completion");
    tw_jw_key(w, "choices");
    tw_jw_arr(w);
    tw_jw_obj(w);
    tw_jw_key(w, "index");
    tw_jw_int(w, i);
}

static void event_end(struct tw_oai *c, struct tw_jw *w, struct tw_buf *b)
{
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
    send(c, b);
}

static void delta(struct tw_oai *c, int64_t i, const char *key, struct tw_str text)
{
    struct tw_oai_choice *x = &c->choice[i];
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!text.n && x->begun)
        return;
    event(c, &w, &b, i);
    if (c->chat) {
        tw_jw_key(&w, "delta");
        tw_jw_obj(&w);
        if (!x->begun) {
            tw_jw_key(&w, "role");
            tw_jw_cstr(&w, "assistant");
        }
        tw_jw_key(&w, key);
        tw_jw_str(&w, text);
        tw_jw_obj_end(&w);
    } else {
        tw_jw_key(&w, "text");
        tw_jw_str(&w, text);
    }
    tw_jw_key(&w, "logprobs");
    tw_jw_null(&w);
    tw_jw_key(&w, "finish_reason");
    tw_jw_null(&w);
    x->begun = true;
    event_end(c, &w, &b);
}

/* Bytes at the end of T that may yet become TAG. */
static size_t held(struct tw_str t, const char *tag)
{
    size_t n = strlen(tag) - 1;

    for (n = n < t.n ? n : t.n; n; n--)
        if (!memcmp(t.p + t.n - n, tag, n))
            return n;
    return 0;
}

/* What a chat has said so far: thinking first, where there is any. Calls come whole, at the end. */
static void chat_piece(struct tw_oai *c, int64_t i)
{
    static const char open[] = "<think>", close[] = "</think>";
    struct tw_oai_choice *x = &c->choice[i];
    struct tw_str t = tw_buf_str(&x->text), said;
    struct tw_reply r;
    size_t lead = 0;

    if (c->tools)
        return;
    while (lead < t.n && (t.p[lead] == '\n' || t.p[lead] == ' '))
        lead++;
    said = (struct tw_str){ t.p + lead, t.n - lead };
    if (!x->begun && (!said.n || (said.n < sizeof open - 1 && !memcmp(said.p, open, said.n))))
        return;
    tw_chat_reply(c->template, &c->arena, &c->prompt[i / c->n], NULL, 0, t, NULL, &r);
    if (r.ncall)
        r.content = t;
    if (r.open && held(r.reasoning, close) <= r.reasoning.n)
        r.reasoning.n -= held(r.reasoning, close);
    if (r.reasoning.p && r.reasoning.n > x->reasoned) {
        delta(c, i, "reasoning_content", (struct tw_str){ r.reasoning.p + x->reasoned,
                r.reasoning.n - x->reasoned });
        x->reasoned = r.reasoning.n;
    }
    if (!r.open && r.content.n > x->said) {
        delta(c, i, "content", (struct tw_str){ r.content.p + x->said, r.content.n - x->said });
        x->said = r.content.n;
    }
}

void tw_oai_piece(struct tw_oai *c, int64_t i, struct tw_str more)
{
    const struct tw_tokens *p = &c->prompt[i / c->n];
    struct tw_buf t = { 0 };

    if (c->chat) {
        tw_buf_adds(&c->choice[i].text, more);
        chat_piece(c, i);
        return;
    }
    if (c->echo && !c->choice[i].begun)
        tw_tok_decode(c->s->limits->tok, p->token, p->n, true, &t);
    tw_buf_adds(&t, more);
    delta(c, i, "text", tw_buf_str(&t));
    tw_buf_free(&t);
}

/* As in a whole answer, but each with its index. */
static void put_calls(struct tw_oai *c, struct tw_jw *w, int64_t choice, const struct tw_reply *r)
{
    tw_jw_key(w, "tool_calls");
    tw_jw_arr(w);
    for (int64_t i = 0; i < r->ncall; i++) {
        tw_jw_obj(w);
        tw_jw_key(w, "index");
        tw_jw_int(w, i);
        tw_jw_key(w, "id");
        tw_jw_cstr(w, tw_arena_printf(&c->arena, "%s%lld", call_id(c, choice), (long long)i));
        tw_jw_key(w, "type");
        tw_jw_cstr(w, "function");
        tw_jw_key(w, "function");
        tw_jw_obj(w);
        tw_jw_key(w, "name");
        tw_jw_str(w, r->call[i].name);
        tw_jw_key(w, "arguments");
        tw_jw_str(w, r->call[i].arguments);
        tw_jw_obj_end(w);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
}

/* The last event of choice I: what was held back, the calls, log-probabilities, why it ended. */
static void last(struct tw_oai *c, int64_t i)
{
    const struct tw_sampled *o = &c->work[i / c->n]->sample.out[i % c->n];
    struct tw_oai_choice *x = &c->choice[i];
    struct tw_reply r = { 0 };
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (c->chat) {
        split(c, i, &r);
        if (r.reasoning.p && r.reasoning.n > x->reasoned)
            delta(c, i, "reasoning_content", (struct tw_str){ r.reasoning.p + x->reasoned,
                    r.reasoning.n - x->reasoned });
        if (r.content.n > x->said || !x->begun)
            delta(c, i, "content", (struct tw_str){ r.content.p ? r.content.p + x->said : "",
                    r.content.n > x->said ? r.content.n - x->said : 0 });
    }
    event(c, &w, &b, i);
    if (c->chat) {
        tw_jw_key(&w, "delta");
        tw_jw_obj(&w);
        if (r.ncall)
            put_calls(c, &w, i, &r);
        tw_jw_obj_end(&w);
    } else {
        tw_jw_key(&w, "text");
        tw_jw_cstr(&w, "");
    }
    put_logprobs(c, &w, o);
    put_finish(&w, o, r.ncall);
    event_end(c, &w, &b);
}

void tw_oai_ended(struct tw_oai *c, int64_t p)
{
    if (!c->work[p]->result.category)
        for (int64_t k = 0; k < c->n; k++)
            last(c, p * c->n + k);
}

void tw_oai_end(struct tw_oai *c)
{
    const struct tw_result *bad = failure(c);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (bad) {
        tw_buf_puts(&b, "data: {\"error\": {\"message\": ");
        tw_json_quote(&b, bad->error.p ? tw_buf_str(&bad->error) : tw_str("?"));
        tw_buf_printf(&b, ", \"type\": \"%s\"}}", bad->category);
        send(c, &b);
    } else if (c->usage) {
        tw_buf_puts(&b, "data: ");
        begin(c, &w, &b, c->chat ? "chat.completion.chunk" : "text_completion");
        tw_jw_key(&w, "choices");
        tw_jw_arr(&w);
        tw_jw_arr_end(&w);
        put_usage(c, &w);
        tw_jw_obj_end(&w);
        send(c, &b);
    }
    tw_stream_write(c->r, "data: [DONE]\n\n", 14);
    tw_stream_end(c->r);
}
