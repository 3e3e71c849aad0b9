/* jinja_filter.c - the filters {{ value | name }}, by a table of names. */
#include "jinja_filter.h"
#include "jinja_method.h"

/* The text of a value, for filters that call str() on what they get. */
static const struct tw_jstr *text_of(struct tw_jrt *rt, const struct tw_jval *v)
{
    return tw_jstring(rt, v).u.s;
}

static TW_JFILTER(f_string) { return tw_jstring(rt, v); }
static TW_JFILTER(f_upper) { return tw_jcase(rt, text_of(rt, v), TW_C_UPPER); }
static TW_JFILTER(f_lower) { return tw_jcase(rt, text_of(rt, v), TW_C_LOWER); }
static TW_JFILTER(f_title) { return tw_jcase(rt, text_of(rt, v), TW_C_TITLE_FILTER); }
static TW_JFILTER(f_capitalize) { return tw_jcase(rt, text_of(rt, v), TW_C_CAPITAL); }

static TW_JFILTER(f_trim)
{
    return tw_jstrip(rt, text_of(rt, v), tw_jarg_str(rt, a, 0, "chars"), 3);
}

static TW_JFILTER(f_replace)
{
    const struct tw_jval *old = tw_jarg(a, 0, "old"), *with = tw_jarg(a, 1, "new");

    if (!old || !with)
        tw_jfail(rt, "replace needs two texts");
    return tw_jreplace(rt, text_of(rt, v), text_of(rt, old), text_of(rt, with),
            tw_jarg_int(rt, a, 2, "count", -1));
}

static TW_JFILTER(f_default)
{
    const struct tw_jval *d = tw_jarg(a, 0, "default_value");
    bool falsy = tw_jarg_bool(rt, a, 1, "boolean", false);

    if (v->t == TW_V_UNDEF || (falsy && !tw_jtruth(rt, v)))
        return d ? *d : tw_jlit(rt, "");
    return *v;
}

static TW_JFILTER(f_attr)
{
    const struct tw_jstr *name = tw_jarg_str(rt, a, 0, "name");

    if (!name)
        tw_jfail(rt, "attr needs a name");
    if (v->t == TW_V_DICT) {
        uint16_t fn = tw_jmethod_find(v, (struct tw_str){ name->p, name->n });

        if (!fn)
            return tw_jundef(rt, (struct tw_str){ name->p, name->n });
    }
    return tw_jattr(rt, v, (struct tw_str){ name->p, name->n });
}

static TW_JFILTER(f_format)
{
    a->used = ~(uint64_t)0;
    a->of_tuple = true;
    if (!a->nkw)
        return tw_jpercent_safe(rt, text_of(rt, v), a);
    struct tw_jval names = tw_jdict_new(rt, 0);
    struct tw_jargs one = { .v = &names, .n = 1 };

    for (int64_t i = 0; i < a->nkw; i++)
        tw_jdict_set(rt, names.u.m, tw_jtext(rt, a->name[i].p, a->name[i].n, 0), a->kw[i]);
    return tw_jpercent_safe(rt, text_of(rt, v), &one);
}

static struct tw_jval json_indent(struct tw_jrt *rt, const struct tw_jval *indent)
{
    struct tw_jval blank = tw_jlit(rt, " ");
    struct tw_jval n = tw_jint(indent->t == TW_V_BOOL ? indent->u.b : indent->u.i);

    if (indent->t == TW_V_STR)
        return *indent;
    if (indent->t != TW_V_INT && indent->t != TW_V_BOOL)
        tw_jfail(rt, "indent must be an int or a str");
    if (n.u.i > 1000)
        tw_jfail(rt, "an indent over 1000");
    return n.u.i <= 0 ? tw_jlit(rt, "") : tw_jbinary(rt, OP_MUL, &blank, &n);
}

static TW_JFILTER(f_tojson)
{
    struct tw_jjson o = { .item = { ", ", 2 }, .key = { ": ", 2 } };
    const struct tw_jval *indent, *seps;
    struct tw_jsink *k;

    o.ascii = tw_jarg_bool(rt, a, 0, "ensure_ascii", false);
    indent = tw_jarg(a, 1, "indent");
    seps = tw_jarg(a, 2, "separators");
    o.sort = tw_jarg_bool(rt, a, 3, "sort_keys", false);
    if (indent && indent->t != TW_V_NONE) {
        const struct tw_jstr *s = json_indent(rt, indent).u.s;

        o.indent = (struct tw_str){ s->p, s->n };
        o.item = TW_STR_LIT(",");
    }
    if (seps && seps->t != TW_V_NONE) {
        const struct tw_jval *x = seps->t == TW_V_LIST && seps->u.l->n == 2 ? seps->u.l->v : NULL;

        if (!x || x[0].t != TW_V_STR || x[1].t != TW_V_STR)
            tw_jfail(rt, "separators must be two texts");
        o.item = (struct tw_str){ x[0].u.s->p, x[0].u.s->n };
        o.key = (struct tw_str){ x[1].u.s->p, x[1].u.s->n };
    }
    k = tw_jsink_begin(rt);
    tw_jdump(rt, k, v, &o, 0);
    return tw_jsink_take(rt, k);
}

/* R, made from the text V: as safe as that was. */
static struct tw_jval like(struct tw_jrt *rt, const struct tw_jval *v, struct tw_jval r)
{
    return tw_jmark(rt, &r, v->t == TW_V_STR && v->u.s->safe);
}

/* For filters that do not call str(): fails when V is no text. */
static bool need_text(struct tw_jrt *rt, const struct tw_jval *v, const char *what)
{
    if (v->t != TW_V_STR && !rt->json_style)
        tw_jfail(rt, "%s needs a text, not %s", what, tw_jtype_name(v));
    return true;
}

static TW_JFILTER(f_indent)
{
    const struct tw_jval *width = need_text(rt, v, "indent") ? tw_jarg(a, 0, "width") : NULL;
    bool first = tw_jarg_bool(rt, a, 1, "first", false), blank = tw_jarg_bool(rt, a, 2, "blank", false);
    struct tw_jval four = tw_jint(4), pad = json_indent(rt, width ? width : &four), lines;
    const struct tw_jstr *s = text_of(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);
    bool open = !s->n || s->p[s->n - 1] == '\n';        /* an empty line follows */

    tw_jstep(rt, (int64_t)(s->n >> 2));
    lines = tw_jsplit_lines(rt, s, false);
    for (int64_t i = 0; i < lines.u.l->n + open; i++) {
        const struct tw_jstr *line = i < lines.u.l->n ? lines.u.l->v[i].u.s : NULL;

        if (i)
            tw_jsink_lit(rt, k, "\n");
        if (i ? (line && line->n) || blank : first)
            tw_jsink_str(rt, k, pad.u.s);
        if (line)
            tw_jsink_str(rt, k, line);
    }
    return like(rt, v, tw_jsink_take(rt, k));
}

static TW_JFILTER(f_truncate)
{
    int64_t len = tw_jarg_int(rt, a, 0, "length", 255), cut;
    bool kill = tw_jarg_bool(rt, a, 1, "killwords", false);
    const struct tw_jstr *end = tw_jarg_str(rt, a, 2, "end"), *s = text_of(rt, v);
    int64_t leeway = tw_jarg_int(rt, a, 3, "leeway", 5);
    struct tw_jsink *k;
    struct tw_jval r;

    if (v->t == TW_V_UNDEF || ((v->t == TW_V_LIST || v->t == TW_V_DICT) && tw_jlen(rt, v) <= len + leeway))
        return *v;
    need_text(rt, v, "truncate");
    if (!end)
        end = tw_jlit(rt, "...").u.s;
    cut = len - (int64_t)tw_jchars(end);
    if (cut < 0 || leeway < 0 || len > INT64_MAX - leeway)
        tw_jfail(rt, "expected length >= the length of the end mark");
    if ((int64_t)tw_jchars(s) <= len + leeway)
        return (struct tw_jval){ .t = TW_V_STR, .u.s = s };
    r = tw_jchar_sub(rt, s, 0, cut);
    if (!kill && r.u.s->n) {
        const char *sp = memrchr(r.u.s->p, ' ', r.u.s->n);

        if (sp)
            r = tw_jsub(rt, r.u.s, 0, (size_t)(sp - r.u.s->p));
    }
    k = tw_jsink_begin(rt);
    tw_jsink_str(rt, k, r.u.s);
    tw_jsink_str(rt, k, end);
    return tw_jsink_take(rt, k);
}

static TW_JFILTER(f_escape) { return tw_jescape(rt, v); }

static TW_JFILTER(f_forceescape)
{
    struct tw_jval s = tw_jstring(rt, v);

    s = tw_jmark(rt, &s, false);
    return tw_jescape(rt, &s);
}

static TW_JFILTER(f_safe)
{
    struct tw_jval s = tw_jstring(rt, v);

    return tw_jmark(rt, &s, true);
}

static TW_JFILTER(f_center)
{
    int64_t width = tw_jarg_int(rt, a, 0, "width", 80), n, left;
    const struct tw_jstr *s = text_of(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);

    n = width - (int64_t)tw_jchars(s);
    left = n > 0 ? n / 2 + (n & width & 1) : 0;
    for (int64_t i = 0; i < left; i++)
        tw_jsink_lit(rt, k, " ");
    tw_jsink_str(rt, k, s);
    for (int64_t i = left; i < n; i++) {
        tw_jstep(rt, 1);
        tw_jsink_lit(rt, k, " ");
    }
    return like(rt, v, tw_jsink_take(rt, k));
}

static const struct {
    const char *name;
    struct tw_jval (*fn)(struct tw_jrt *, const struct tw_jval *, struct tw_jargs *);
    int max;
} table[] = {
    { "abs", tw_jf_abs, 0 }, { "attr", f_attr, 1 }, { "batch", tw_jf_batch, 2 },
    { "capitalize", f_capitalize, 0 }, { "center", f_center, 1 }, { "count", tw_jf_length, 0 },
    { "d", f_default, 2 }, { "default", f_default, 2 }, { "dictsort", tw_jf_dictsort, 3 },
    { "e", f_escape, 0 }, { "escape", f_escape, 0 }, { "filesizeformat", tw_jf_filesize, 1 },
    { "first", tw_jf_first, 0 }, { "forceescape", f_forceescape, 0 }, { "float", tw_jf_float, 1 },
    { "format", f_format, 64 }, { "groupby", tw_jf_groupby, 3 }, { "indent", f_indent, 3 },
    { "int", tw_jf_int, 2 }, { "items", tw_jf_items, 0 }, { "join", tw_jf_join, 2 },
    { "last", tw_jf_last, 0 }, { "length", tw_jf_length, 0 }, { "list", tw_jf_list, 0 },
    { "lower", f_lower, 0 }, { "map", tw_jf_map, 64 }, { "max", tw_jf_max, 2 },
    { "min", tw_jf_min, 2 }, { "reject", tw_jf_reject, 64 }, { "rejectattr", tw_jf_rejectattr, 64 },
    { "replace", f_replace, 3 }, { "reverse", tw_jf_reverse, 0 }, { "round", tw_jf_round, 2 },
    { "safe", f_safe, 0 }, { "select", tw_jf_select, 64 }, { "selectattr", tw_jf_selectattr, 64 },
    { "slice", tw_jf_slice, 2 }, { "sort", tw_jf_sort, 3 }, { "string", f_string, 0 },
    { "sum", tw_jf_sum, 2 }, { "title", f_title, 0 }, { "tojson", f_tojson, 4 },
    { "trim", f_trim, 1 }, { "truncate", f_truncate, 4 }, { "unique", tw_jf_unique, 2 },
    { "upper", f_upper, 0 }, { "urlencode", tw_jf_urlencode, 0 },
    { "wordcount", tw_jf_wordcount, 0 },
};

bool tw_jfilter_refused(struct tw_str name)
{
    static const char *const those[] = { "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr" };

    for (size_t i = 0; i < sizeof(those) / sizeof(*those); i++)
        if (tw_str_is(name, those[i]))
            return true;
    return false;
}

uint16_t tw_jfilter_find(struct tw_str name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (tw_str_is(name, table[i].name))
            return (uint16_t)(i + 1);
    return 0;
}

struct tw_jval tw_jfilter(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *v,
        struct tw_jargs *args)
{
    struct tw_jval r = table[fn - 1].fn(rt, v, args);

    tw_jargs_done(rt, args, table[fn - 1].max, table[fn - 1].name);
    return r;
}
