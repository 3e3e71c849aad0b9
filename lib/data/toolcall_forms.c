/* toolcall_forms.c - the forms in which models call tools: each read, and each written. */
#include "data/toolcall_priv.h"

#define BAR "\xEF\xBD\x9C"              /* the wide bar and low block of DeepSeek's tokens */
#define LOW "\xE2\x96\x81"
#define DS(words) "<" BAR words BAR ">"
#define CALLS_BEGIN DS("tool" LOW "calls" LOW "begin")
#define CALLS_END DS("tool" LOW "calls" LOW "end")
#define CALL_BEGIN DS("tool" LOW "call" LOW "begin")
#define CALL_END DS("tool" LOW "call" LOW "end")
#define CALL_SEP DS("tool" LOW "sep")
#define DSML BAR "DSML" BAR

/* Arguments put together from keys and values. */
struct args {
    struct tw_buf b;
    int64_t n;
};

static void put_arg(struct tw_call_scan *s, struct args *x, struct tw_str name, struct tw_str key,
        struct tw_str value, bool text)
{
    tw_buf_puts(&x->b, x->n++ ? "," : "{");
    tw_json_quote(&x->b, key);
    tw_buf_putc(&x->b, ':');
    if (text)
        tw_json_quote(&x->b, value);
    else
        tw_call_value(s, &x->b, name, key, value);
}

/* A key that stands twice makes no object, and so no call. */
static bool end_args(struct tw_call_scan *s, struct args *x, struct tw_str name, bool good,
        enum tw_call_form form)
{
    struct tw_str text;

    tw_buf_puts(&x->b, x->n ? "}" : "{}");
    text = tw_arena_str(s->a, tw_buf_str(&x->b));
    tw_buf_free(&x->b);
    good = good && tw_json_parse(s->a, text, NULL);
    if (good)
        tw_call_add(s, name, text, form);
    return good;
}

static struct tw_str without_newlines(struct tw_str s)
{
    if (s.n && s.p[0] == '\n') {
        s.p++;
        s.n--;
    }
    if (s.n && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* <function=NAME> <parameter=KEY> VALUE </parameter> .. </function>, or a JSON object inside. */
static bool xml_function(struct tw_call_at *c)
{
    struct args x = {0};
    struct tw_str name, key, value;
    struct tw_json *v;
    bool good = true;

    if (!tw_call_take(c, "<function=") || !tw_call_name(c, &name) || !tw_call_take(c, ">"))
        return false;
    if (tw_call_json(c, &v)) {
        tw_call_space(c);
        if (v->type != TW_JOBJ || !tw_call_take(c, "</function>"))
            return false;
        tw_call_add_json(c->s, name, v, TW_CALL_XML);
        return true;
    }
    for (tw_call_space(c); good && tw_call_take(c, "<parameter="); tw_call_space(c)) {
        good = tw_call_until(c, ">", &key) && tw_call_until(c, "</parameter>", &value);
        if (good)
            put_arg(c->s, &x, name, key, without_newlines(value), false);
    }
    good = good && tw_call_take(c, "</function>");
    return end_args(c->s, &x, name, good, TW_CALL_XML);
}

/* NAME and pairs of <arg_key>, <arg_value>. */
static bool glm_call(struct tw_call_at *c)
{
    struct args x = {0};
    struct tw_str name, key, value;
    bool good;

    tw_call_space(c);
    good = tw_call_name(c, &name);
    for (tw_call_space(c); good && tw_call_take(c, "<arg_key>"); tw_call_space(c)) {
        good = tw_call_until(c, "</arg_key>", &key);
        tw_call_space(c);
        good = good && tw_call_take(c, "<arg_value>") && tw_call_until(c, "</arg_value>", &value);
        if (good)
            put_arg(c->s, &x, name, tw_call_trim(key), without_newlines(value), false);
    }
    good = good && (x.n || tw_call_given(c->s, name, true));
    return end_args(c->s, &x, name, good, TW_CALL_GLM);
}

/* <tool_call> of three forms. The last one may lack its end. */
static bool tag_call(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    struct tw_json *v;
    int64_t n = c->s->ncall;
    bool good = false;

    if (!tw_call_take(&in, "<tool_call>"))
        return false;
    tw_call_space(&in);
    if (in.p < c->s->end && *in.p == '{')
        good = tw_call_json(&in, &v) && tw_call_object(c->s, v, TW_CALL_HERMES);
    else if (in.p < c->s->end && *in.p == '<')
        good = xml_function(&in);
    else
        good = glm_call(&in);
    tw_call_space(&in);
    if (!good || !(in.p == c->s->end || tw_call_take(&in, "</tool_call>"))) {
        c->s->ncall = n;
        return false;
    }
    c->p = in.p;
    return true;
}

/* One call: "function" SEP NAME and a fence of JSON, or NAME SEP JSON. */
static bool deepseek_call(struct tw_call_at *c)
{
    struct tw_str name, kind;
    struct tw_json *v;
    bool fence;

    tw_call_space(c);
    if (!tw_call_take(c, CALL_BEGIN) || !tw_call_until(c, CALL_SEP, &kind))
        return false;
    name = kind = tw_call_trim(kind);
    if (tw_str_is(kind, "function") && !(c->p < c->s->end && *c->p == '{') && !tw_call_name(c, &name))
        return false;
    tw_call_space(c);
    fence = tw_call_take(c, "```json");
    if (!name.n || !tw_call_json(c, &v) || v->type != TW_JOBJ)
        return false;
    tw_call_space(c);
    if (fence && !tw_call_take(c, "```"))
        return false;
    tw_call_space(c);
    if (!tw_call_take(c, CALL_END))
        return false;
    tw_call_add_json(c->s, name, v, TW_CALL_DEEPSEEK);
    return true;
}

static bool deepseek(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    bool list = tw_call_take(&in, CALLS_BEGIN);
    int64_t n = c->s->ncall;

    for (;;) {
        struct tw_call_at one = in;

        if (!deepseek_call(&one))
            break;
        in = one;
    }
    tw_call_space(&in);
    if (c->s->ncall == n || (list && in.p < c->s->end && !tw_call_take(&in, CALLS_END))) {
        c->s->ncall = n;
        return false;
    }
    c->p = in.p;
    return true;
}

static bool dsml_invoke(struct tw_call_at *c)
{
    struct args x = {0};
    struct tw_str name, key, kind, value;
    bool good = true;

    tw_call_space(c);
    if (!tw_call_take(c, "<" DSML "invoke name=\"") || !tw_call_until(c, "\">", &name))
        return false;
    tw_call_space(c);
    for (; good && tw_call_take(c, "<" DSML "parameter name=\""); tw_call_space(c)) {
        good = tw_call_until(c, "\"", &key) && tw_call_until(c, ">", &kind)
                && tw_call_until(c, "</" DSML "parameter>", &value);
        if (good)
            put_arg(c->s, &x, name, key, value,
                    tw_str_is(tw_call_trim(kind), "string=\"true\""));
    }
    good = good && tw_call_take(c, "</" DSML "invoke>");
    return end_args(c->s, &x, name, good, TW_CALL_DSML);
}

static bool dsml(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    int64_t n = c->s->ncall;
    const char *const *end;
    static const char *const ends[] = { "</" DSML "tool_calls>", "</" DSML "function_calls>" };

    if (tw_call_take(&in, "<" DSML "tool_calls>"))
        end = &ends[0];
    else if (tw_call_take(&in, "<" DSML "function_calls>"))
        end = &ends[1];
    else
        return false;
    for (;;) {
        struct tw_call_at one = in;

        if (!dsml_invoke(&one))
            break;
        in = one;
    }
    tw_call_space(&in);
    if (c->s->ncall == n || (in.p < c->s->end && !tw_call_take(&in, *end))) {
        c->s->ncall = n;
        return false;
    }
    c->p = in.p;
    return true;
}

/* <|action_start|><|plugin|>JSON<|action_end|>. */
static bool internlm(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    struct tw_json *v;

    if (!tw_call_take(&in, "<|action_start|>"))
        return false;
    tw_call_space(&in);
    if (!tw_call_take(&in, "<|plugin|>") || !tw_call_json(&in, &v))
        return false;
    tw_call_space(&in);
    if (in.p < c->s->end && !tw_call_take(&in, "<|action_end|>"))
        return false;
    if (!tw_call_object(c->s, v, TW_CALL_INTERNLM))
        return false;
    c->p = in.p;
    return true;
}

/* JSON calls to the end of the text, with ; between them. Without the tag before it, an object counts
 * only if it has nothing but a name and parameters, and such a tool was given. */
static bool llama(struct tw_call_at *c, bool whole)
{
    struct tw_call_at in = *c;
    bool tag = tw_call_take(&in, "<|python_tag|>");
    int64_t n = c->s->ncall;
    struct tw_json *v;

    if (!tag && !whole)
        return false;
    do {
        if (!tw_call_json(&in, &v) || v->type != TW_JOBJ)
            break;
        if (!tag && (v->n != 2 + tw_json_has(v, "type") || !tw_json_has(v, "name")
                    || !tw_json_has(v, "parameters")))
            break;
        if (!tw_call_object(c->s, v, TW_CALL_LLAMA)
                || (!tag && !tw_call_given(c->s, c->s->call[c->s->ncall - 1].name, false)))
            break;
        tw_call_space(&in);
        if (in.p == c->s->end) {
            c->p = in.p;
            return true;
        }
    } while (tw_call_take(&in, ";"));
    c->s->ncall = n;
    return false;
}

/* [TOOL_CALLS] and a list, or NAME[ARGS]{..} each. */
static bool mistral(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    int64_t n = c->s->ncall;
    struct tw_json *v;
    struct tw_str name;
    bool good;

    if (!tw_call_take(&in, "[TOOL_CALLS]"))
        return false;
    tw_call_space(&in);
    if (tw_call_name(&in, &name)) {
        good = tw_call_take(&in, "[ARGS]") && tw_call_json(&in, &v) && v->type == TW_JOBJ;
        if (good)
            tw_call_add_json(c->s, name, v, TW_CALL_MISTRAL);
    } else {
        good = tw_call_json(&in, &v) && v->type == TW_JARR && v->n;
        for (int64_t i = 0; good && i < v->n; i++)
            good = tw_call_object(c->s, &v->item[i], TW_CALL_MISTRAL);
    }
    if (!good) {
        c->s->ncall = n;
        return false;
    }
    c->p = in.p;
    return true;
}

/* "Action:" and "Action Input:" at the beginning of lines. */
static bool react(struct tw_call_at *c)
{
    struct tw_call_at in = *c;
    struct tw_str name;
    struct tw_json *v;

    if (!tw_call_take(&in, "Action:"))
        return false;
    while (in.p < c->s->end && *in.p == ' ')
        in.p++;
    if (!tw_call_name(&in, &name))
        return false;
    tw_call_space(&in);
    if (!tw_call_take(&in, "Action Input:") || !tw_call_json(&in, &v) || v->type != TW_JOBJ)
        return false;
    tw_call_space(&in);
    tw_call_take(&in, "Observation:");
    tw_call_add_json(c->s, name, v, TW_CALL_REACT);
    c->p = in.p;
    return true;
}

bool tw_call_match(struct tw_call_at *c, bool whole)
{
    const char *p = c->p;
    struct tw_call_at in = *c;

    switch (*p) {
    case '<':
        if (c->s->end - p > 2 && p[1] == '\xEF')
            return deepseek(c) || dsml(c);
        if (c->s->end - p > 2 && p[1] == '|')
            return internlm(c) || llama(c, whole);
        if (tag_call(c))
            return true;
        if (!xml_function(&in))
            return false;
        c->p = in.p;
        return true;
    case '[':
        return mistral(c);
    case '{':
        return llama(c, whole);
    default:
        return react(c);
    }
}

/* ---- writing ---- */

static void put_json_call(struct tw_buf *out, const struct tw_call *k, const char *args)
{
    tw_buf_puts(out, "{\"name\": ");
    tw_json_quote(out, k->name);
    tw_buf_printf(out, ", \"%s\": ", args);
    tw_buf_adds(out, k->arguments);
    tw_buf_putc(out, '}');
}

/* Keys and values one by one: BEGIN key MID value END. A text stands as it is, unless it would be read
 * as something else. */
static void put_pairs(struct tw_buf *out, const struct tw_call *k, enum tw_call_form form)
{
    struct tw_arena a = {0}, probe = {0};
    struct tw_json *v = tw_json_parse(&a, k->arguments, NULL);

    for (int64_t i = 0; v && i < v->n; i++) {
        const struct tw_json *x = &v->item[i];
        bool text = x->type == TW_JSTR;
        bool plain = text && (form == TW_CALL_DSML
                || !tw_json_parse(&probe, tw_call_trim(x->str), NULL));
        struct tw_str value = plain ? x->str : x->raw;

        if (form == TW_CALL_XML)
            tw_buf_printf(out, "<parameter=%.*s>\n%.*s\n</parameter>\n", (int)x->key.n, x->key.p,
                    (int)value.n, value.p);
        else if (form == TW_CALL_GLM)
            tw_buf_printf(out, "<arg_key>%.*s</arg_key>\n<arg_value>%.*s</arg_value>\n",
                    (int)x->key.n, x->key.p, (int)value.n, value.p);
        else
            tw_buf_printf(out, "<" DSML "parameter name=\"%.*s\" string=\"%s\">%.*s</" DSML
                    "parameter>\n", (int)x->key.n, x->key.p, text ? "true" : "false",
                    (int)value.n, value.p);
    }
    tw_arena_free(&a);
    tw_arena_free(&probe);
}

static void put_one(struct tw_buf *out, enum tw_call_form form, const struct tw_call *k, bool first)
{
    struct tw_str n = k->name, x = k->arguments;

    switch (form) {
    case TW_CALL_HERMES:
        tw_buf_puts(out, first ? "<tool_call>\n" : "\n<tool_call>\n");
        put_json_call(out, k, "arguments");
        tw_buf_puts(out, "\n</tool_call>");
        break;
    case TW_CALL_XML:
        tw_buf_printf(out, "%s<tool_call>\n<function=%.*s>\n", first ? "" : "\n", (int)n.n, n.p);
        put_pairs(out, k, form);
        tw_buf_puts(out, "</function>\n</tool_call>");
        break;
    case TW_CALL_GLM:
        tw_buf_printf(out, "%s<tool_call>%.*s\n", first ? "" : "\n", (int)n.n, n.p);
        put_pairs(out, k, form);
        tw_buf_puts(out, "</tool_call>");
        break;
    case TW_CALL_DEEPSEEK:
        tw_buf_printf(out, CALL_BEGIN "function" CALL_SEP "%.*s\n```json\n%.*s\n```" CALL_END,
                (int)n.n, n.p, (int)x.n, x.p);
        break;
    case TW_CALL_DSML:
        tw_buf_printf(out, "<" DSML "invoke name=\"%.*s\">\n", (int)n.n, n.p);
        put_pairs(out, k, form);
        tw_buf_puts(out, "</" DSML "invoke>\n");
        break;
    case TW_CALL_LLAMA:
        tw_buf_puts(out, first ? "" : "; ");
        put_json_call(out, k, "parameters");
        break;
    case TW_CALL_INTERNLM:
        tw_buf_puts(out, "<|action_start|><|plugin|>\n");
        put_json_call(out, k, "parameters");
        tw_buf_puts(out, "<|action_end|>\n");
        break;
    case TW_CALL_MISTRAL:
        tw_buf_puts(out, first ? "" : ", ");
        put_json_call(out, k, "arguments");
        break;
    case TW_CALL_REACT:
        tw_buf_printf(out, "%sAction: %.*s\nAction Input: %.*s", first ? "" : "\n", (int)n.n, n.p,
                (int)x.n, x.p);
        break;
    case TW_CALL_FORMS:
        break;
    }
}

void tw_call_render(struct tw_buf *out, enum tw_call_form form, const struct tw_call *call,
        int64_t n)
{
    static const struct {
        const char *begin, *end;
    } list[TW_CALL_FORMS] = {
        [TW_CALL_DEEPSEEK] = { CALLS_BEGIN, CALLS_END },
        [TW_CALL_DSML] = { "<" DSML "tool_calls>\n", "</" DSML "tool_calls>" },
        [TW_CALL_LLAMA] = { "<|python_tag|>", "" },
        [TW_CALL_MISTRAL] = { "[TOOL_CALLS][", "]" },
    };

    if (n && list[form].begin)
        tw_buf_puts(out, list[form].begin);
    for (int64_t i = 0; i < n; i++)
        put_one(out, form, &call[i], !i);
    if (n && list[form].end)
        tw_buf_puts(out, list[form].end);
}
