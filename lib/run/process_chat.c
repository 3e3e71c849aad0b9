/* process_chat.c - messages of every common spelling as ours: role/content and from/value, content as
 * text or as typed parts, tool calls as objects, JSON text or turns of their own */
#include "run/process.h"

static const struct {
    const char *theirs, *ours;
} roles[] = {
    { "system", "system" }, { "developer", "system" },
    { "user", "user" }, { "human", "user" }, { "prompter", "user" },
    { "assistant", "assistant" }, { "gpt", "assistant" }, { "chatgpt", "assistant" },
    { "model", "assistant" }, { "bot", "assistant" }, { "bing", "assistant" }, { "bard", "assistant" },
    { "tool", "tool" }, { "observation", "tool" }, { "function", "tool" }, { "ipython", "tool" },
    { "function_call", "function_call" }, { "tool_call", "function_call" },
};

static const char *role_of(struct tw_str s)
{
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
        if (tw_str_is(s, roles[i].theirs))
            return roles[i].ours;
    return NULL;
}

static int fail_item(struct tw_err *err, const char *where, int64_t n, const struct tw_err *why)
{
    return tw_fail_code(err, why->code, NULL, 0, "%s %lld: %s", where, (long long)n, why->msg);
}

/* A tool call: {name, arguments} or {function: {..}}, as an object or as JSON text. */
static int put_call(struct tw_jw *w, const struct tw_json *call, struct tw_err *err)
{
    const struct tw_json *f = tw_json_get(call, "function"), *args, *decoded = NULL;
    struct tw_arena a = { 0 };
    struct tw_str name, id;

    if (call->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "a tool call must be an object, not %s", tw_json_type_name(call->type));
    f = f && f->type == TW_JOBJ ? f : call;
    if (tw_need(f, "name", &name, err) || tw_text(call, "id", &id, err))
        return -1;
    tw_jw_obj(w);
    if (id.n) {
        tw_jw_key(w, "id");
        tw_jw_str(w, id);
    }
    tw_jw_key(w, "type");
    tw_jw_cstr(w, "function");
    tw_jw_key(w, "function");
    tw_jw_obj(w);
    tw_jw_key(w, "name");
    tw_jw_str(w, name);
    tw_jw_key(w, "arguments");
    args = tw_json_get(f, "arguments");
    if (args && args->type == TW_JSTR)      /* templates want the object, and quote a text */
        decoded = tw_json_parse(&a, args->str, NULL);
    if (decoded && decoded->type == TW_JOBJ)
        args = decoded;
    if (args)
        tw_jw_value(w, args);
    else
        tw_jw_raw(w, TW_STR_LIT("{}"));
    tw_arena_free(&a);
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
    return 0;
}

/* One call, a list of calls, or text that holds either. */
static int put_calls(struct tw_jw *w, const struct tw_json *v, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_err why = { 0 };
    int ret = 0;

    if (v->type == TW_JSTR && !(v = tw_json_parse(&a, v->str, &why))) {
        tw_arena_free(&a);
        return tw_fail(err, NULL, 0, "the text of a tool call is no JSON: %s", why.msg);
    }
    if (v->type == TW_JARR)
        for (int64_t i = 0; i < v->n && !ret; i++)
            ret = put_call(w, &v->item[i], &why) ? fail_item(err, "call", i + 1, &why) : 0;
    else
        ret = put_call(w, v, err);
    tw_arena_free(&a);
    return ret;
}

/* What the parts of one message add up to. */
struct parts {
    struct tw_buf text, reasoning;
    const struct tw_json *call[64];
    int ncall;
};

static int add_part(struct parts *p, const struct tw_json *part, struct tw_err *err)
{
    struct tw_str type = tw_field(part, "type");
    const struct tw_json *v = tw_json_get(part, "value");

    if (part->type == TW_JSTR) {
        tw_buf_adds(&p->text, part->str);
        return 0;
    }
    if (part->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "a part of content must be text or an object, not %s",
                tw_json_type_name(part->type));
    v = v ? v : tw_json_get(part, "text");
    if (tw_str_is(type, "tool_call") || tw_str_is(type, "function_call") || tw_str_is(type, "tool_calls")) {
        if (!v || p->ncall == 64)
            return tw_fail(err, NULL, 0, v ? "more than 64 tool calls in a message"
                                           : "a tool call without value");
        p->call[p->ncall++] = v;
        return 0;
    }
    if (!v || v->type != TW_JSTR || !(tw_str_is(type, "text") || tw_str_is(type, "reasoning")
                || tw_str_is(type, "thinking")))
        return tw_fail(err, NULL, 0, "content part of type \"%.*s\" is not text", (int)type.n, type.p);
    tw_buf_adds(tw_str_is(type, "text") ? &p->text : &p->reasoning, v->str);
    return 0;
}

static int read_content(struct parts *p, const struct tw_json *content, struct tw_err *err)
{
    struct tw_err why = { 0 };

    if (!content)
        return 0;
    if (content->type == TW_JSTR) {
        tw_buf_adds(&p->text, content->str);
        return 0;
    }
    if (content->type != TW_JARR)
        return tw_fail(err, NULL, 0, "content must be text or a list of parts, not %s",
                tw_json_type_name(content->type));
    for (int64_t i = 0; i < content->n; i++)
        if (add_part(p, &content->item[i], &why))
            return fail_item(err, "part", i + 1, &why);
    return 0;
}

static int put_body(struct tw_jw *w, struct parts *p, const struct tw_json *msg, bool call_turn,
        struct tw_err *err)
{
    const struct tw_json *calls = tw_json_get(msg, "tool_calls");
    struct tw_json text = { .type = TW_JSTR, .str = tw_buf_str(&p->text) };

    tw_jw_key(w, "content");
    tw_jw_str(w, call_turn ? (struct tw_str){ "", 0 } : text.str);
    if (p->reasoning.n) {
        tw_jw_key(w, "reasoning_content");
        tw_jw_str(w, tw_buf_str(&p->reasoning));
    }
    if (!call_turn && !calls && !p->ncall)
        return 0;
    tw_jw_key(w, "tool_calls");
    tw_jw_arr(w);
    if ((call_turn && put_calls(w, &text, err)) || (calls && put_calls(w, calls, err)))
        return -1;
    for (int i = 0; i < p->ncall; i++)
        if (put_calls(w, p->call[i], err))
            return -1;
    tw_jw_arr_end(w);
    return 0;
}

int tw_put_normal(struct tw_jw *w, const struct tw_json *msg, struct tw_err *err)
{
    static const char *const used[] = { "role", "content", "from", "value", "tool_calls", NULL };
    struct parts p = { 0 };
    bool from = tw_json_get(msg, "from") || tw_json_get(msg, "value");
    struct tw_str name;
    const char *role;
    int ret = -1;

    if (msg->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "a message must be an object, not %s", tw_json_type_name(msg->type));
    if (from && (tw_json_get(msg, "role") || tw_json_get(msg, "content")))
        return tw_fail(err, NULL, 0, "a message mixes role/content and from/value");
    if (tw_need(msg, from ? "from" : "role", &name, err))
        return -1;
    if (!(role = role_of(name)))
        return tw_fail(err, NULL, 0, "unknown role \"%.*s\": system, user (human), assistant (gpt), tool "
                "(observation) and function_call are known", (int)name.n, name.p);
    if (!read_content(&p, tw_json_get(msg, from ? "value" : "content"), err)) {
        bool call_turn = !strcmp(role, "function_call");

        tw_jw_obj(w);
        tw_jw_key(w, "role");
        tw_jw_cstr(w, call_turn ? "assistant" : role);
        ret = put_body(w, &p, msg, call_turn, err);
        if (!ret) {
            tw_put_rest(w, msg, used);
            tw_jw_obj_end(w);
        }
    }
    tw_buf_free(&p.text);
    tw_buf_free(&p.reasoning);
    return ret;
}

int tw_put_some(struct tw_jw *w, const struct tw_json *list, int64_t from, int64_t to, struct tw_err *err)
{
    struct tw_err why = { 0 };

    for (int64_t i = from; i < to; i++)
        if (tw_put_normal(w, &list->item[i], &why))
            return fail_item(err, "message", i + 1, &why);
    return 0;
}

/* SYSTEM goes first unless the list brings its own. */
int tw_put_messages(struct tw_jw *w, const struct tw_json *list, struct tw_str system,
        struct tw_err *err)
{
    const struct tw_json *first = list->type == TW_JARR && list->n ? &list->item[0] : NULL;

    if (!first)
        return tw_fail(err, NULL, 0, list->type == TW_JARR ? "an empty list of messages"
                : "messages must be a list");
    if (first->type == TW_JOBJ && system.n && !tw_str_is(tw_field(first, "role"), "system")
            && !tw_str_is(tw_field(first, "from"), "system"))
        tw_put_message(w, "system", system);
    return tw_put_some(w, list, 0, list->n, err);
}

int tw_put_list(struct tw_jw *w, const struct tw_json *list, int64_t from, struct tw_err *err)
{
    if (list->n <= from)
        return tw_fail(err, NULL, 0, "an empty list of messages");
    tw_jw_arr(w);
    if (tw_put_some(w, list, from, list->n, err))
        return -1;
    tw_jw_arr_end(w);
    return 0;
}
