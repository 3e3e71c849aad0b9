/* chat_conv.c - a record's conversation: checked, completed, rendered. */
#include "chat_priv.h"

#include <time.h>

/* The usual roles, and those that the template itself spells. */
static bool known_role(const struct tw_chat *c, struct tw_str role)
{
    static const char *const usual[] = { "system", "user", "assistant", "tool" };
    const char *p = c->tpl_text.p, *end = p + c->tpl_text.n;

    for (int i = 0; i < 4; i++)
        if (tw_str_is(role, usual[i]))
            return true;
    while (p && role.n && (p = memmem(p, (size_t)(end - p), role.p, role.n)) != NULL) {
        if (p > c->tpl_text.p && p + role.n < end && (p[-1] == '\'' || p[-1] == '"') &&
                p[role.n] == p[-1])
            return true;
        p++;
    }
    return false;
}

/* What templates go through as a list of calls, and what they join to texts. */
static int check_calls(const struct tw_json *m, const char *list, int64_t i, struct tw_err *err)
{
    static const char *const text[] = { "reasoning_content", "name", "tool_call_id" };
    const struct tw_json *calls = tw_json_get(m, "tool_calls"), *v;

    for (size_t k = 0; k < sizeof text / sizeof *text; k++)
        if ((v = tw_json_get(m, text[k])) && v->type != TW_JSTR)
            return tw_fail(err, NULL, 0, "%s[%lld].%s: expected a text, got %s", list, (long long)i, text[k],
                    tw_json_type_name(v->type));
    if (calls && calls->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s[%lld].tool_calls: expected a list, got %s", list, (long long)i,
                tw_json_type_name(calls->type));
    for (int64_t k = 0; calls && k < calls->n; k++)
        if (calls->item[k].type != TW_JOBJ)
            return tw_fail(err, NULL, 0, "%s[%lld].tool_calls[%lld]: expected an object, got %s", list,
                    (long long)i, (long long)k, tw_json_type_name(calls->item[k].type));
    return 0;
}

static int check_message(const struct tw_chat *c, const struct tw_json *m, const char *list,
        int64_t i, struct tw_err *err)
{
    const struct tw_json *role, *content;

    if (m->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "%s[%lld]: expected an object, got %s", list, (long long)i,
                tw_json_type_name(m->type));
    role = tw_json_get(m, "role");
    content = tw_json_get(m, "content");
    if (!role || role->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "%s[%lld].role: expected a text%s", list, (long long)i,
                role ? "" : ", found none");
    if (!known_role(c, role->str))
        return tw_fail(err, NULL, 0, "%s[%lld].role: unknown role '%.*s' (system, user, assistant, "
                "tool, or one that the template names)", list, (long long)i, (int)role->str.n,
                role->str.p);
    if (content && content->type != TW_JSTR && content->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s[%lld].content: expected a text or a list of parts, got %s",
                list, (long long)i, tw_json_type_name(content->type));
    return check_calls(m, list, i, err);
}

static bool is_role(const struct tw_json *m, const char *role)
{
    const struct tw_json *r = m->type == TW_JOBJ ? tw_json_get(m, "role") : NULL;

    return r && r->type == TW_JSTR && tw_str_is(r->str, role);
}

static struct tw_json text_value(const char *key, struct tw_str s)
{
    return (struct tw_json){ .type = TW_JSTR, .str = s, .raw = s, .key = tw_str(key) };
}

static struct tw_json make_message(struct tw_arena *a, const char *role, struct tw_str text)
{
    struct tw_json *f = tw_arena_alloc(a, 2 * sizeof(*f));

    f[0] = text_value("role", tw_str(role));
    f[1] = text_value("content", text);
    return (struct tw_json){ .type = TW_JOBJ, .item = f, .n = 2, .raw = text };
}

/* Precedence of the system text: the record's message, its `system` key, --system, the template. */
static int system_text(const struct tw_chat *c, const struct tw_json *rec,
        const struct tw_json *list, struct tw_str *out, struct tw_err *err)
{
    const struct tw_json *key = tw_json_get(rec, "system");
    bool has = list->n && is_role(&list->item[0], "system");

    *out = (struct tw_str){ NULL, 0 };
    if (key && key->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "system: expected a text, got %s",
                tw_json_type_name(key->type));
    if (key && has)
        return tw_fail(err, NULL, 0, "system: the record also has a system message");
    if (key)
        *out = key->str.p ? key->str : TW_STR_LIT("");
    else if (!has && c->system)
        *out = tw_str(c->system);
    return 0;
}

static const struct tw_json *list_field(const struct tw_json *rec, const char *key, int *bad,
        struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(rec, key);

    if (v && v->type != TW_JARR)
        *bad = tw_fail(err, NULL, 0, "%s: expected a list, got %s", key, tw_json_type_name(v->type));
    return v;
}

/* Tools that are texts of JSON (as tables of one type per column hold them) become objects. */
static const struct tw_json *decode_tools(struct tw_arena *a, const struct tw_json *tools)
{
    struct tw_json *copy = NULL;

    for (int64_t i = 0; tools && i < tools->n; i++) {
        struct tw_err ignored = {0};
        struct tw_json *j = tools->item[i].type == TW_JSTR ?
                tw_json_parse(a, tools->item[i].str, &ignored) : NULL;

        if (!j || j->type != TW_JOBJ)
            continue;
        if (!copy) {
            copy = tw_arena_dup(a, tools, sizeof(*copy));
            copy->item = tw_arena_dup(a, tools->item, (size_t)tools->n * sizeof(*copy->item));
        }
        copy->item[i] = *j;
    }
    return copy ? copy : tools;
}

/* "key_rounds" of `user_data`, a list of [key, value] pairs: the messages whose replies are trained,
 * as a list or the text of one. */
static int key_rounds(struct tw_arena *a, const struct tw_json *rec, const struct tw_json **out,
        struct tw_err *err)
{
    const struct tw_json *data = tw_json_get(rec, "user_data"), *v = NULL;

    for (int64_t i = 0; data && data->type == TW_JARR && i < data->n && !v; i++) {
        const struct tw_json *pair = &data->item[i];

        if (pair->type == TW_JARR && pair->n == 2 && pair->item[0].type == TW_JSTR &&
                tw_str_is(pair->item[0].str, "key_rounds"))
            v = &pair->item[1];
    }
    if (v && v->type == TW_JSTR) {
        struct tw_err ignored = {0};

        v = tw_json_parse(a, v->str, &ignored);
        if (!v)
            return tw_fail(err, NULL, 0, "user_data: key_rounds is not a list of numbers");
    }
    for (int64_t i = 0; v && i < v->n; i++)
        if (v->type != TW_JARR || !v->item[i].is_int)
            return tw_fail(err, NULL, 0, "user_data: key_rounds is not a list of numbers");
    *out = v;
    return 0;
}

/* MORE: a reply of a preference pair (a text, a message, or a list of messages) put behind. */
int tw_chat_conv(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        const struct tw_json *more, struct tw_chat_conv *out, struct tw_err *err)
{
    int bad = 0;
    const struct tw_json *list = list_field(rec, "messages", &bad, err);
    struct tw_json empty = { .type = TW_JARR }, *item;
    struct tw_str sys;
    int64_t nmore = !more ? 0 : more->type == TW_JARR ? more->n : 1, n = 0;

    *out = (struct tw_chat_conv){ 0 };
    out->tools = list_field(rec, "tools", &bad, err);
    out->documents = list_field(rec, "documents", &bad, err);
    if (bad || key_rounds(a, rec, &out->rounds, err))
        return -1;
    out->tools = decode_tools(a, out->tools);
    list = list ? list : &empty;
    if (system_text(c, rec, list, &sys, err))
        return -1;
    if (!list->n && !nmore)
        return tw_fail(err, NULL, 0, "messages: the list is empty");
    for (int64_t i = 0; i < list->n; i++)
        if (check_message(c, &list->item[i], "messages", i, err))
            return -1;
    out->messages = *list;
    if (!sys.p && !nmore)
        return 0;
    item = tw_arena_alloc(a, (size_t)(list->n + nmore + 1) * sizeof(*item));
    if (sys.p) {
        item[n++] = make_message(a, "system", sys);
        out->added = 1;
    }
    for (int64_t i = 0; i < list->n; i++)
        item[n++] = list->item[i];
    out->from = n;
    out->side = more && more->key.n == 6 ? "chosen" : "rejected";
    for (int64_t i = 0; i < nmore; i++) {
        const struct tw_json *m = more->type == TW_JARR ? &more->item[i] : more;

        item[n] = m->type == TW_JSTR ? make_message(a, "assistant", m->str) : *m;
        if (check_message(c, &item[n++], out->side, i, err))
            return -1;
    }
    if (!nmore)
        out->from = 0;
    out->messages.item = item;
    out->messages.n = n;
    return 0;
}

static const char refusal[] = "chat template";
static const struct tw_json none = { .type = TW_JNULL };
static const struct tw_json yes = { .type = TW_JBOOL, .b = true }, no = { .type = TW_JBOOL };

static int render_once(const struct tw_chat *c, const struct tw_chat_conv *v, bool prompt,
        struct tw_jinja_out *out, struct tw_err *err)
{
    struct tw_jinja_var var[TW_CHAT_VARS + 4];
    int n = 0;

    /* what user_variable() tells apart: messages, tools and documents come first */
    var[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("messages"), .json = &v->messages };
    var[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("tools"),
        .json = v->tools ? v->tools : &none };
    var[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("documents"),
        .json = v->documents ? v->documents : &none };
    var[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("add_generation_prompt"),
        .json = prompt ? &yes : &no };
    for (int i = 0; i < c->nvar; i++)
        var[n++] = c->var[i];
    return tw_jinja_render(v->tools && c->tpl_tools ? c->tpl_tools : c->tpl, var, n,
            (int64_t)time(NULL), out, err);
}

/* A copy of OBJ in which member KEY has another value. */
static struct tw_json with_member(struct tw_arena *a, const struct tw_json *obj,
        const struct tw_json *member, struct tw_json value)
{
    struct tw_json copy = *obj;

    copy.item = tw_arena_dup(a, obj->item, (size_t)obj->n * sizeof(*copy.item));
    value.key = member->key;
    copy.item[member - obj->item] = value;
    return copy;
}

/* One tool call whose arguments are a text of JSON, as some servers write them: CALL gets the object
 * in its place. */
static bool decode_call(struct tw_arena *a, struct tw_json *call)
{
    const struct tw_json *f = call->type == TW_JOBJ ? tw_json_get(call, "function") : NULL;
    const struct tw_json *of = f && f->type == TW_JOBJ ? f : call, *args;
    struct tw_err ignored = {0};
    struct tw_json *j;

    args = of->type == TW_JOBJ ? tw_json_get(of, "arguments") : NULL;
    if (!args || args->type != TW_JSTR || !(j = tw_json_parse(a, args->str, &ignored)) ||
            j->type != TW_JOBJ)
        return false;
    *call = of == call ? with_member(a, call, args, *j) :
            with_member(a, call, f, with_member(a, f, args, *j));
    return true;
}

/* The list of messages with such arguments decoded; false when there are none. */
static bool decode_arguments(struct tw_arena *a, struct tw_json *list)
{
    struct tw_json *item = tw_arena_dup(a, list->item, (size_t)list->n * sizeof(*item));
    bool any = false;

    for (int64_t i = 0; i < list->n; i++) {
        const struct tw_json *calls = tw_json_get(&item[i], "tool_calls");
        struct tw_json copy;

        if (!calls || calls->type != TW_JARR || !calls->n)
            continue;
        copy = *calls;
        copy.item = tw_arena_dup(a, calls->item, (size_t)calls->n * sizeof(*copy.item));
        for (int64_t k = 0; k < copy.n; k++)
            any |= decode_call(a, &copy.item[k]);
        item[i] = with_member(a, &item[i], calls, copy);
    }
    list->item = item;
    return any;
}

int tw_chat_render_conv(const struct tw_chat *c, struct tw_arena *a, const struct tw_chat_conv *v,
        bool prompt, struct tw_jinja_out *out, struct tw_err *err)
{
    struct tw_err first = {0}, second = {0};
    struct tw_chat_conv decoded = *v;

    if (!c->tpl) {
        if (err && !err->code)
            *err = c->no_tpl;
        return -1;
    }
    if (!render_once(c, v, prompt, out, &first))
        return 0;
    if (decode_arguments(a, &decoded.messages) && !render_once(c, &decoded, prompt, out, &second))
        return 0;
    return tw_fail(err, NULL, 0, "%s, line %lld: %s", refusal, (long long)first.line, first.msg);
}

bool tw_chat_refused(const struct tw_err *err)
{
    return err->code && !strncmp(err->msg, refusal, sizeof(refusal) - 1);
}

/* ---- generation prompts ---- */

static void add_header(struct tw_chat *c, struct tw_str h)
{
    for (int i = 0; i < c->nheader; i++)
        if (tw_str_eq(c->header[i], h))
            return;
    if (h.n && c->nheader < TW_CHAT_HEADERS)
        c->header[c->nheader++] = tw_arena_str(&c->arena, h);
}

/* Where a prompt begins the same conversation with a reply, the header is what it has of the pass that
 * writes the reply: with and without add_generation_prompt it may be there, as behind a tool's output. */
static void header_of_pass(struct tw_chat *c, const struct tw_json *list, const struct tw_jinja_out *prompt)
{
    static const char reply[] = "{\"role\":\"assistant\",\"content\":\"x\"}";
    struct tw_jinja_out whole = {0};
    struct tw_err ignored = {0};
    struct tw_chat_conv v = { .messages = *list };
    struct tw_json *item = tw_arena_alloc(&c->arena, ((size_t)list->n + 1) * sizeof(*item));
    size_t from;

    memcpy(item, list->item, (size_t)list->n * sizeof(*item));
    item[list->n] = *tw_json_parse(&c->arena, tw_str(reply), &ignored);
    v.messages.item = item;
    v.messages.n = list->n + 1;
    if (!render_once(c, &v, false, &whole, &ignored) && prompt->text.n <= whole.text.n
            && !memcmp(whole.text.p, prompt->text.p, prompt->text.n)) {
        from = whole.nmsg > list->n ? whole.msg_begin[list->n] : SIZE_MAX;
        if (from < prompt->text.n)
            add_header(c, (struct tw_str){ prompt->text.p + from, prompt->text.n - from });
    }
    tw_jinja_out_free(&whole);
}

/* What the template writes for add_generation_prompt is the header of a reply: it is found by
 * rendering small conversations with and without. One that the template refuses tells nothing. */
int tw_chat_find_headers(struct tw_chat *c, struct tw_err *err)
{
    static const char *const probes[] = {
        "[{\"role\":\"user\",\"content\":\"a\"}]",
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}]",
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
        "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"t\"}]",
    };
    struct tw_jinja_out with = {0}, without = {0};

    for (size_t i = 0; i < sizeof(probes) / sizeof(*probes); i++) {
        struct tw_json *m = tw_json_parse(&c->arena, tw_str(probes[i]), err);
        struct tw_err ignored = {0};
        struct tw_chat_conv v = {0};
        size_t n;

        if (!m)
            return -1;
        v.messages = *m;
        if (render_once(c, &v, true, &with, &ignored) ||
                render_once(c, &v, false, &without, &ignored))
            continue;
        n = without.text.n;
        if (with.text.n > n && !memcmp(with.text.p, without.text.p, n))
            add_header(c, (struct tw_str){ with.text.p + n, with.text.n - n });
        header_of_pass(c, m, &with);
    }
    tw_jinja_out_free(&with);
    tw_jinja_out_free(&without);
    return 0;
}
