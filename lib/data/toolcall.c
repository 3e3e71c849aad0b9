/* toolcall.c - a reply's thinking, calls and text. The forms of calls are in toolcall_forms.c. */
#include "data/toolcall_priv.h"

/* ---- reading ---- */

bool tw_call_take(struct tw_call_at *c, const char *lit)
{
    size_t n = strlen(lit);

    if ((size_t)(c->s->end - c->p) < n || memcmp(c->p, lit, n))
        return false;
    c->p += n;
    return true;
}

static bool is_space(char x)
{
    return x == ' ' || x == '\n' || x == '\t' || x == '\r';
}

void tw_call_space(struct tw_call_at *c)
{
    while (c->p < c->s->end && is_space(*c->p))
        c->p++;
}

/* Looking at N more bytes: false when that is too much in all. */
static bool spend(struct tw_call_scan *s, size_t n)
{
    if (n > s->budget)
        return false;
    s->budget -= n;
    return true;
}

bool tw_call_until(struct tw_call_at *c, const char *lit, struct tw_str *text)
{
    size_t left = (size_t)(c->s->end - c->p), n = strlen(lit);
    const char *hit = c->s->budget ? memmem(c->p, left, lit, n) : NULL;

    if (!spend(c->s, hit ? (size_t)(hit - c->p) : left)) {
        c->s->budget = 0;
        return false;
    }
    if (!hit)
        return false;
    *text = (struct tw_str){ c->p, (size_t)(hit - c->p) };
    c->p = hit + n;
    return true;
}

/* Where the JSON object or list at P ends, by its brackets; NULL: it does not. */
static const char *json_end(struct tw_call_at *c)
{
    const char *p = c->p, *end = c->s->end;
    int64_t depth = 0;
    bool text = false;

    for (; p < end; p++) {
        if (text && *p == '\\') {
            p++;
        } else if (text || *p == '"') {
            text = text != (*p == '"');
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if ((*p == '}' || *p == ']') && --depth <= 0) {
            p++;
            break;
        }
    }
    if (p > end)
        p = end;
    if (!spend(c->s, (size_t)(p - c->p))) {
        c->s->budget = 0;
        return NULL;
    }
    return depth || text ? NULL : p;
}

bool tw_call_json(struct tw_call_at *c, struct tw_json **v)
{
    const char *end;

    tw_call_space(c);
    if (c->p == c->s->end || (*c->p != '{' && *c->p != '[') || !(end = json_end(c)))
        return false;
    *v = tw_json_parse(c->s->a, (struct tw_str){ c->p, (size_t)(end - c->p) }, NULL);
    if (!*v)
        return false;
    c->p = end;
    return true;
}

bool tw_call_name(struct tw_call_at *c, struct tw_str *name)
{
    const char *p = c->p;

    while (p < c->s->end && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z')
                || (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || *p == '.'))
        p++;
    *name = (struct tw_str){ c->p, (size_t)(p - c->p) };
    c->p = p;
    return name->n > 0;
}

struct tw_str tw_call_trim(struct tw_str s)
{
    while (s.n && is_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && is_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

/* ---- calls ---- */

void tw_call_add(struct tw_call_scan *s, struct tw_str name, struct tw_str args,
        enum tw_call_form form)
{
    if (s->ncall == s->cap) {
        struct tw_call *more;

        s->cap = s->cap ? 2 * s->cap : 4;
        more = tw_arena_alloc(s->a, (size_t)s->cap * sizeof(*more));
        if (s->ncall)
            memcpy(more, s->call, (size_t)s->ncall * sizeof(*more));
        s->call = more;
    }
    s->call[s->ncall++] = (struct tw_call){ .name = name, .arguments = args, .form = form };
}

void tw_call_add_json(struct tw_call_scan *s, struct tw_str name, const struct tw_json *args,
        enum tw_call_form form)
{
    struct tw_buf b = {0};
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_value(&w, args);
    tw_call_add(s, name, tw_arena_str(s->a, tw_buf_str(&b)), form);
    tw_buf_free(&b);
}

bool tw_call_object(struct tw_call_scan *s, const struct tw_json *v, enum tw_call_form form)
{
    const struct tw_json *f = v->type == TW_JOBJ ? tw_json_get(v, "function") : NULL, *args;
    struct tw_str name = { NULL, 0 }, text = TW_STR_LIT("{}");

    f = f && f->type == TW_JOBJ ? f : v;
    if (f->type != TW_JOBJ)
        return false;
    if (tw_json_get_str(f, "name", &name, NULL) <= 0)
        tw_json_get_str(f, "tool_name", &name, NULL);
    if (!name.n)
        return false;
    args = tw_json_get(f, "arguments");
    args = args ? args : tw_json_get(f, "parameters");
    if (args && args->type == TW_JSTR)
        args = tw_json_parse(s->a, args->str, NULL);
    else if (!args && (tw_json_has(f, "arguments") || tw_json_has(f, "parameters")))
        args = tw_json_parse(s->a, text, NULL);     /* null */
    else if (!args)
        args = f->n == 1 ? tw_json_parse(s->a, text, NULL) : NULL;
    if (!args || args->type != TW_JOBJ)
        return false;
    tw_call_add_json(s, name, args, form);
    return true;
}

static const struct tw_json *find_tool(const struct tw_json *tools, struct tw_str name)
{
    for (int64_t i = 0; tools && tools->type == TW_JARR && i < tools->n; i++) {
        const struct tw_json *t = &tools->item[i], *f;
        struct tw_str n = { NULL, 0 };

        if (t->type != TW_JOBJ)
            continue;
        f = tw_json_get(t, "function");
        f = f && f->type == TW_JOBJ ? f : t;
        tw_json_get_str(f, "name", &n, NULL);
        if (tw_str_eq(n, name) && n.n)
            return f;
    }
    return NULL;
}

bool tw_call_given(const struct tw_call_scan *s, struct tw_str name, bool if_none)
{
    return s->tools ? find_tool(s->tools, name) != NULL : if_none;
}

/* Does the schema say that this argument is a text? */
static bool is_text(const struct tw_json *tool, struct tw_str key)
{
    const struct tw_json *v = tool ? tw_json_get(tool, "parameters") : NULL;
    struct tw_str type = { NULL, 0 };

    v = v && v->type == TW_JOBJ ? tw_json_get(v, "properties") : NULL;
    for (int64_t i = 0; v && v->type == TW_JOBJ && i < v->n; i++)
        if (tw_str_eq(v->item[i].key, key) && v->item[i].type == TW_JOBJ)
            tw_json_get_str(&v->item[i], "type", &type, NULL);
    return tw_str_is(type, "string");
}

void tw_call_value(struct tw_call_scan *s, struct tw_buf *out, struct tw_str name,
        struct tw_str key, struct tw_str value)
{
    struct tw_json *v = NULL;

    if (!is_text(find_tool(s->tools, name), key) && tw_call_trim(value).n)
        v = tw_json_parse(s->a, tw_call_trim(value), NULL);
    if (v) {
        struct tw_jw w;

        tw_jw_init(&w, out);
        tw_jw_value(&w, v);
    } else {
        tw_json_quote(out, value);
    }
}

/* ---- a reply ---- */

/* Does a call begin in this text? */
static bool has_call(const char *p, size_t n)
{
    static const char *const marks[] = { "<tool_call>", "<function=", "[TOOL_CALLS]",
        "<|action_start|>", "<|python_tag|>", "<\xEF\xBD\x9C", "Action:", "{\"name\"" };

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (memmem(p, n, marks[i], strlen(marks[i])))
            return true;
    return false;
}

/* Takes the think block off the front of *TEXT. */
static void take_thinking(struct tw_str *text, bool thinking, struct tw_reply *out)
{
    static const struct tw_str begin = { "<think>", 7 }, stop = { "</think>", 8 };
    struct tw_str t = *text;
    const char *close, *open;

    while (t.n && is_space(*t.p)) {
        t.p++;
        t.n--;
    }
    if (t.n >= begin.n && !memcmp(t.p, begin.p, begin.n)) {
        thinking = true;
        t.p += begin.n;
        t.n -= begin.n;
    } else {
        t = *text;
    }
    close = t.n ? memmem(t.p, t.n, stop.p, stop.n) : NULL;
    open = close ? memmem(t.p, (size_t)(close - t.p), begin.p, begin.n) : NULL;
    /* An end without a beginning: the prompt may have begun it; or a call has it in an argument. */
    if (!thinking && (!close || open || has_call(t.p, (size_t)(close - t.p))))
        return;
    out->open = !close;
    out->reasoning = (struct tw_str){ t.p, close ? (size_t)(close - t.p) : t.n };
    while (out->reasoning.n && is_space(*out->reasoning.p)) {
        out->reasoning.p++;
        out->reasoning.n--;
    }
    out->reasoning.n = tw_call_trim(out->reasoning).n;
    if (!out->reasoning.p)
        out->reasoning.p = "";
    text->n = close ? (size_t)(t.p + t.n - close) - stop.n : 0;
    text->p = close ? close + stop.n : t.p + t.n;
    while (close && text->n && *text->p == '\n') {
        text->p++;
        text->n--;
    }
}

/* A stretch of text between calls. One of spaces alone is part of their layout. */
static void keep(struct tw_buf *b, const char *p, const char *end, bool before, bool after)
{
    struct tw_str s = { p, (size_t)(end - p) };

    if ((before || after) && !tw_call_trim(s).n)
        return;
    while (after && s.n && is_space(s.p[s.n - 1]))
        s.n--;
    while (before && s.n && is_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    if (b->n && before)
        tw_buf_putc(b, '\n');
    tw_buf_adds(b, s);
}

static bool begins_call(const char *text, const char *p)
{
    return *p == '<' || *p == '[' || *p == '{' || (*p == 'A' && (p == text || p[-1] == '\n'));
}

void tw_reply_parse(struct tw_arena *a, struct tw_str text, bool thinking,
        const struct tw_json *tools, struct tw_reply *out)
{
    struct tw_call_scan s = { .a = a, .tools = tools };
    struct tw_buf left = {0};
    const char *from, *first;
    bool any = false;

    *out = (struct tw_reply){ .reasoning = { NULL, 0 } };
    take_thinking(&text, thinking, out);
    s.end = text.p + text.n;
    s.budget = 16 * text.n + 4096;
    from = text.p;
    first = tw_call_trim(text).p;
    for (const char *p = text.p; p && p < s.end;) {
        struct tw_call_at c = { .s = &s, .p = p };

        if (!begins_call(text.p, p) || !s.budget || !tw_call_match(&c, p == first)) {
            p++;
            continue;
        }
        keep(&left, from, p, any, true);
        any = true;
        from = p = c.p;
    }
    if (!any) {
        out->content = text;
        return;
    }
    keep(&left, from, s.end, true, false);
    out->content = tw_arena_str(a, tw_buf_str(&left));
    if (!out->content.p)
        out->content = TW_STR_LIT("");
    tw_buf_free(&left);
    out->call = s.call;
    out->ncall = s.ncall;
}

void tw_reply_write(struct tw_jw *w, const struct tw_reply *r, const char *id, bool as_text)
{
    tw_jw_key(w, "content");
    tw_jw_str(w, r->content);
    if (r->reasoning.p) {
        tw_jw_key(w, "reasoning_content");
        tw_jw_str(w, r->reasoning);
    }
    if (!r->ncall)
        return;
    tw_jw_key(w, "tool_calls");
    tw_jw_arr(w);
    for (int64_t i = 0; i < r->ncall; i++) {
        char text[64];

        snprintf(text, sizeof(text), "%.40s%lld", id ? id : "", (long long)i);
        tw_jw_obj(w);
        if (id) {
            tw_jw_key(w, "id");
            tw_jw_cstr(w, text);
        }
        tw_jw_key(w, "type");
        tw_jw_cstr(w, "function");
        tw_jw_key(w, "function");
        tw_jw_obj(w);
        tw_jw_key(w, "name");
        tw_jw_str(w, r->call[i].name);
        tw_jw_key(w, "arguments");
        if (as_text)
            tw_jw_str(w, r->call[i].arguments);
        else
            tw_jw_raw(w, r->call[i].arguments);
        tw_jw_obj_end(w);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
}
