/* jinja_filter.c - the filters {{ value | name }}, by a table of names. */
#include "jinja_filter.h"

#include <math.h>
#include <stdlib.h>

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
    const struct tw_jstr *old = tw_jarg_str(rt, a, 0, "old"), *with = tw_jarg_str(rt, a, 1, "new");

    if (!old || !with)
        tw_jfail(rt, "replace needs two texts");
    return tw_jreplace(rt, text_of(rt, v), old, with, tw_jarg_int(rt, a, 2, "count", -1));
}

static TW_JFILTER(f_default)
{
    const struct tw_jval *d = tw_jarg(a, 0, "default_value");
    bool falsy = tw_jarg_bool(rt, a, 1, "boolean", false);

    if (v->t == TW_V_UNDEF || (falsy && !tw_jtruth(rt, v)))
        return d ? *d : tw_jlit(rt, "");
    return *v;
}

static TW_JFILTER(f_abs)
{
    if (!tw_jis_num(v))
        tw_jfail(rt, "bad operand type for abs(): '%s'", tw_jtype_name(v));
    if (v->t == TW_V_FLOAT)
        return tw_jfloat(fabs(v->u.d));
    if (v->t == TW_V_INT && v->u.i == INT64_MIN)
        tw_jfail(rt, "an integer over 64 bits");
    return v->t == TW_V_BOOL ? tw_jint(v->u.b) : tw_jint(v->u.i < 0 ? -v->u.i : v->u.i);
}

/* The number a text spells; false when it spells none. */
static bool number_of(struct tw_jrt *rt, const struct tw_jval *v, double *d)
{
    const struct tw_jstr *s;
    const char *p;
    char *end;

    if (tw_jis_num(v)) {
        *d = tw_jnum(v);
        return true;
    }
    if (v->t != TW_V_STR)
        return false;
    s = tw_jstrip(rt, v->u.s, NULL, 3).u.s;
    p = tw_arena_dup(rt->a, s->p, s->n);
    *d = strtod(p, &end);
    return s->n && end == p + s->n && !memchr(p, 'x', s->n) && !memchr(p, 'X', s->n);
}

static TW_JFILTER(f_int)
{
    const struct tw_jval *def = tw_jarg(a, 0, "default");
    int64_t base = tw_jarg_int(rt, a, 1, "base", 10);
    double d;

    if (v->t == TW_V_INT)
        return *v;
    if (base != 10 && v->t == TW_V_STR && base >= 2 && base <= 36) {
        const char *p = tw_arena_dup(rt->a, v->u.s->p, v->u.s->n);
        char *end;
        long long i = strtoll(p, &end, (int)base);

        return v->u.s->n && end == p + v->u.s->n ? tw_jint(i) : def ? *def : tw_jint(0);
    }
    if (!number_of(rt, v, &d) || !(fabs(d) < 9.2e18))
        return def ? *def : tw_jint(0);
    return tw_jint((int64_t)d);
}

static TW_JFILTER(f_float)
{
    const struct tw_jval *def = tw_jarg(a, 0, "default");
    double d;

    return number_of(rt, v, &d) ? tw_jfloat(d) : def ? *def : tw_jfloat(0);
}

static TW_JFILTER(f_round)
{
    int64_t prec = tw_jarg_int(rt, a, 0, "precision", 0);
    const struct tw_jstr *how = tw_jarg_str(rt, a, 1, "method");
    double d, scale;
    char t[400];

    if (!number_of(rt, v, &d))
        tw_jfail(rt, "cannot round a %s", tw_jtype_name(v));
    if (prec < -300 || prec > 300)
        tw_jfail(rt, "a precision out of range");
    scale = pow(10, (double)prec);
    if (!how || (how->n == 6 && !memcmp(how->p, "common", 6))) {
        if (prec >= 0) {
            snprintf(t, sizeof(t), "%.*f", prec > 30 ? 30 : (int)prec, d);
            return tw_jfloat(strtod(t, NULL));
        }
        return tw_jfloat(nearbyint(d * scale) / scale);
    }
    if (how->n == 4 && !memcmp(how->p, "ceil", 4))
        return tw_jfloat(ceil(d * scale) / scale);
    if (how->n == 5 && !memcmp(how->p, "floor", 5))
        return tw_jfloat(floor(d * scale) / scale);
    tw_jfail(rt, "method must be common, ceil or floor");
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
    if (!a->nkw)
        return tw_jpercent(rt, text_of(rt, v), a);
    struct tw_jval names = tw_jdict_new(rt, 0);
    struct tw_jargs one = { .v = &names, .n = 1 };

    for (int64_t i = 0; i < a->nkw; i++)
        tw_jdict_set(rt, names.u.m, tw_jtext(rt, a->name[i].p, a->name[i].n, 0), a->kw[i]);
    return tw_jpercent(rt, text_of(rt, v), &one);
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

static TW_JFILTER(f_indent)
{
    const struct tw_jval *width = tw_jarg(a, 0, "width");
    bool first = tw_jarg_bool(rt, a, 1, "first", false), blank = tw_jarg_bool(rt, a, 2, "blank", false);
    struct tw_jval four = tw_jint(4), pad = json_indent(rt, width ? width : &four);
    const struct tw_jstr *s = text_of(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);
    size_t at = 0;

    tw_jstep(rt, (int64_t)(s->n >> 2));
    for (bool head = true; ; head = false) {
        const char *nl = s->n - at ? memchr(s->p + at, '\n', s->n - at) : NULL;
        size_t end = nl ? (size_t)(nl - s->p) : s->n;
        struct tw_jval line = tw_jsub(rt, s, at, nl ? end + 1 : end);

        if (head ? first : (end > at || blank))
            tw_jsink_str(rt, k, pad.u.s);
        tw_jsink_str(rt, k, line.u.s);
        if (!nl)
            return tw_jsink_take(rt, k);
        at = end + 1;
    }
}

static TW_JFILTER(f_truncate)
{
    int64_t len = tw_jarg_int(rt, a, 0, "length", 255), cut;
    bool kill = tw_jarg_bool(rt, a, 1, "killwords", false);
    const struct tw_jstr *end = tw_jarg_str(rt, a, 2, "end"), *s = text_of(rt, v);
    int64_t leeway = tw_jarg_int(rt, a, 3, "leeway", 5);
    struct tw_jsink *k;
    struct tw_jval r;

    if (!end)
        end = tw_jlit(rt, "...").u.s;
    cut = len - (int64_t)tw_jchars(end);
    if (cut < 0 || leeway < 0 || len > INT64_MAX - leeway)
        tw_jfail(rt, "expected length >= the length of the end mark");
    if ((int64_t)tw_jchars(s) <= len + leeway)
        return tw_jtext(rt, "", 0, 0).t == TW_V_STR ? (struct tw_jval){ .t = TW_V_STR, .u.s = s } : *v;
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

static TW_JFILTER(f_escape)
{
    static const char *const pair[][2] = { { "&", "&amp;" }, { ">", "&gt;" }, { "<", "&lt;" },
        { "'", "&#39;" }, { "\"", "&#34;" } };
    struct tw_jval s = tw_jstring(rt, v);

    for (size_t i = 0; i < sizeof(pair) / sizeof(*pair); i++)
        s = tw_jreplace(rt, s.u.s, tw_jlit(rt, pair[i][0]).u.s, tw_jlit(rt, pair[i][1]).u.s, -1);
    return s;
}

static TW_JFILTER(f_wordcount)
{
    const struct tw_jstr *s = text_of(rt, v);
    const char *p = s->p, *end = p + s->n;
    int64_t n = 0;
    bool in = false;

    while (p < end) {
        bool sp = tw_jspace(tw_utf8_next(&p, end));

        n += !sp && !in;
        in = !sp;
    }
    return tw_jint(n);
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
    return tw_jsink_take(rt, k);
}

static const struct {
    const char *name;
    struct tw_jval (*fn)(struct tw_jrt *, const struct tw_jval *, struct tw_jargs *);
    int max;
} table[] = {
    { "abs", f_abs, 0 }, { "attr", f_attr, 1 }, { "batch", tw_jf_batch, 2 },
    { "capitalize", f_capitalize, 0 }, { "center", f_center, 1 }, { "count", tw_jf_length, 0 },
    { "d", f_default, 2 }, { "default", f_default, 2 }, { "dictsort", tw_jf_dictsort, 3 },
    { "e", f_escape, 0 }, { "escape", f_escape, 0 }, { "first", tw_jf_first, 0 },
    { "float", f_float, 1 }, { "format", f_format, 64 }, { "groupby", tw_jf_groupby, 3 },
    { "indent", f_indent, 3 }, { "int", f_int, 2 }, { "items", tw_jf_items, 0 },
    { "join", tw_jf_join, 2 }, { "last", tw_jf_last, 0 }, { "length", tw_jf_length, 0 },
    { "list", tw_jf_list, 0 }, { "lower", f_lower, 0 }, { "map", tw_jf_map, 64 },
    { "max", tw_jf_max, 2 }, { "min", tw_jf_min, 2 }, { "reject", tw_jf_reject, 64 },
    { "rejectattr", tw_jf_rejectattr, 64 }, { "replace", f_replace, 3 },
    { "reverse", tw_jf_reverse, 0 }, { "round", f_round, 2 }, { "safe", f_string, 0 },
    { "select", tw_jf_select, 64 }, { "selectattr", tw_jf_selectattr, 64 },
    { "slice", tw_jf_slice, 2 }, { "sort", tw_jf_sort, 3 }, { "string", f_string, 0 }, { "sum", tw_jf_sum, 2 },
    { "title", f_title, 0 }, { "tojson", f_tojson, 4 }, { "trim", f_trim, 1 },
    { "truncate", f_truncate, 4 }, { "unique", tw_jf_unique, 2 }, { "upper", f_upper, 0 },
    { "urlencode", tw_jf_urlencode, 0 }, { "wordcount", f_wordcount, 0 },
};

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
