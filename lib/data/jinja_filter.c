/* jinja_filter.c - the filters {{ value | name }}, by a table of names. */
#include "jinja_priv.h"

#include <math.h>
#include <stdlib.h>

#define FILTER(n) static struct tw_jval n(struct tw_jrt *rt, const struct tw_jval *v, \
        struct tw_jargs *a)

/* The text of a value, for filters that call str() on what they get. */
static const struct tw_jstr *text_of(struct tw_jrt *rt, const struct tw_jval *v)
{
    return tw_jstring(rt, v).u.s;
}

/* "a.b.0" of a value; the whole value when there is no path. */
static struct tw_jval by_path(struct tw_jrt *rt, struct tw_jval v, const struct tw_jval *path)
{
    const char *p, *end;

    if (!path || path->t == TW_V_NONE)
        return v;
    if (path->t != TW_V_STR)
        return tw_jitem(rt, &v, path);
    p = path->u.s->p;
    end = p + path->u.s->n;
    while (p <= end) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        struct tw_str part = { p, (size_t)((dot ? dot : end) - p) };
        struct tw_jval key = tw_jtext(rt, part.p, part.n, 0);
        int64_t i = 0;
        size_t k = 0;

        while (k < part.n && k < 9 && part.p[k] >= '0' && part.p[k] <= '9')
            i = i * 10 + (part.p[k++] - '0');
        if (part.n && k == part.n)
            key = tw_jint(i);
        v = tw_jitem(rt, &v, &key);
        if (!dot)
            break;
        p = dot + 1;
    }
    return v;
}

static struct tw_jval lower_key(struct tw_jrt *rt, struct tw_jval v, bool case_sensitive)
{
    return v.t == TW_V_STR && !case_sensitive ? tw_jcase(rt, v.u.s, TW_C_LOWER) : v;
}

/* Sorts items by keys, stable; a merge from the bottom up. */
static void sort_by(struct tw_jrt *rt, struct tw_jval *item, struct tw_jval *key, int64_t n,
        bool reverse)
{
    struct tw_jval *item2 = tw_jarray(rt, n, sizeof(*item2)), *key2 = tw_jarray(rt, n, sizeof(*key2));

    for (int64_t w = 1; w < n; w *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * w) {
            int64_t mid = lo + w < n ? lo + w : n, hi = mid + w < n ? mid + w : n;
            int64_t i = lo, k = mid, o = lo;

            while (i < mid || k < hi) {
                bool left = k == hi;

                if (!left && i < mid) {
                    int c = tw_jcompare(rt, &key[i], &key[k]);

                    left = reverse ? c >= 0 : c <= 0;
                }
                item2[o] = left ? item[i] : item[k];
                key2[o++] = left ? key[i++] : key[k++];
            }
        }
        memcpy(item, item2, (size_t)n * sizeof(*item));
        memcpy(key, key2, (size_t)n * sizeof(*key));
    }
}

static struct tw_jval copy_list(struct tw_jrt *rt, const struct tw_jlist *l, enum tw_jlist_kind kind)
{
    struct tw_jval r = tw_jlist_new(rt, l->n, kind);

    tw_jstep(rt, l->n);
    if (l->n)
        memcpy(r.u.l->v, l->v, (size_t)l->n * sizeof(*l->v));
    r.u.l->n = l->n;
    r.u.l->origin = l->origin;
    return r;
}

FILTER(f_sort)
{
    bool reverse = tw_jarg_bool(rt, a, 0, "reverse", false);
    bool cs = tw_jarg_bool(rt, a, 1, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 2, "attribute");
    struct tw_jval r = copy_list(rt, tw_jiter(rt, v), TW_L_LIST);
    struct tw_jval *key = tw_jarray(rt, r.u.l->n, sizeof(*key));

    for (int64_t i = 0; i < r.u.l->n; i++)
        key[i] = lower_key(rt, by_path(rt, r.u.l->v[i], path), cs);
    if (r.u.l->n)
        sort_by(rt, r.u.l->v, key, r.u.l->n, reverse);
    return r;
}

FILTER(f_dictsort)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jstr *by = tw_jarg_str(rt, a, 1, "by");
    bool reverse = tw_jarg_bool(rt, a, 2, "reverse", false), by_value;
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_LIST), *key;

    by_value = by && by->n == 5 && !memcmp(by->p, "value", 5);
    if (by && !by_value && !(by->n == 3 && !memcmp(by->p, "key", 3)))
        tw_jfail(rt, "you can only sort by either \"key\" or \"value\"");
    if (v->t != TW_V_DICT)
        tw_jfail(rt, "dictsort needs a dict, not %s", tw_jtype_name(v));
    key = tw_jarray(rt, v->u.m->n, sizeof(*key));
    for (int64_t i = 0; i < v->u.m->n; i++) {
        struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].k);
        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].v);
        tw_jlist_add(rt, r.u.l, pair);
        key[i] = lower_key(rt, by_value ? v->u.m->e[i].v : v->u.m->e[i].k, cs);
    }
    if (r.u.l->n)
        sort_by(rt, r.u.l->v, key, r.u.l->n, reverse);
    return r;
}

FILTER(f_items)
{
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN);

    if (v->t == TW_V_UNDEF)
        return r;
    if (v->t != TW_V_DICT)
        tw_jfail(rt, "Can only get item pairs from a mapping.");
    for (int64_t i = 0; i < v->u.m->n; i++) {
        struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].k);
        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].v);
        tw_jlist_add(rt, r.u.l, pair);
    }
    return r;
}

FILTER(f_unique)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), seen = tw_jlist_new(rt, 0, TW_L_LIST);

    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval key = lower_key(rt, by_path(rt, l->v[i], path), cs);

        if (tw_jcontains(rt, &seen, &key))
            continue;
        tw_jlist_add(rt, seen.u.l, key);
        tw_jlist_add(rt, r.u.l, l->v[i]);
    }
    return r;
}

static struct tw_jval extreme(struct tw_jrt *rt, const struct tw_jval *v, struct tw_jargs *a, int sign)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval best = {0}, key, x;

    if (!l->n)
        return tw_jundef(rt, TW_STR_LIT("No aggregated item, sequence was empty."));
    for (int64_t i = 0; i < l->n; i++) {
        x = lower_key(rt, by_path(rt, l->v[i], path), cs);
        if (i && sign * tw_jcompare(rt, &x, &key) <= 0)
            continue;
        key = x;
        best = l->v[i];
    }
    return best;
}
FILTER(f_min) { return extreme(rt, v, a, -1); }
FILTER(f_max) { return extreme(rt, v, a, 1); }

FILTER(f_sum)
{
    const struct tw_jval *path = tw_jarg(a, 0, "attribute"), *start = tw_jarg(a, 1, "start");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = start ? *start : tw_jint(0), x;

    for (int64_t i = 0; i < l->n; i++) {
        x = by_path(rt, l->v[i], path);
        r = tw_jbinary(rt, OP_ADD, &r, &x);
    }
    return r;
}

FILTER(f_map)
{
    const struct tw_jval *path = a->n ? NULL : tw_jarg(a, -1, "attribute");
    const struct tw_jval *def = path ? tw_jarg(a, -1, "default") : NULL;
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), x;
    struct tw_jargs rest = *a;
    uint16_t fn = 0;

    if (!path) {
        const struct tw_jstr *name = tw_jarg_str(rt, a, 0, NULL);

        fn = name ? tw_jfilter_find((struct tw_str){ name->p, name->n }) : 0;
        if (!fn)
            tw_jfail(rt, "map needs the name of a filter or attribute=");
        rest.v++;
        rest.n--;
    }
    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jargs call = rest;

        x = path ? by_path(rt, l->v[i], path) : tw_jfilter(rt, fn, &l->v[i], &call);
        a->used = call.used | (path ? a->used : 0);
        tw_jlist_add(rt, r.u.l, def && x.t == TW_V_UNDEF ? *def : x);
    }
    a->used = ~(uint64_t)0;
    return r;
}

/* select, reject and their attr forms: test (default: truth) on items or on an attribute of them. */
static struct tw_jval pick(struct tw_jrt *rt, const struct tw_jval *v, struct tw_jargs *a, bool attr,
        bool want)
{
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN);
    struct tw_jargs rest = *a;
    const struct tw_jval *path = NULL;
    uint16_t fn = 0;

    if (attr) {
        if (!rest.n)
            tw_jfail(rt, "Missing parameter for attribute name");
        path = rest.v++;
        rest.n--;
    }
    if (rest.n) {
        if (rest.v[0].t == TW_V_STR)
            fn = tw_jtest_find((struct tw_str){ rest.v[0].u.s->p, rest.v[0].u.s->n });
        if (!fn)
            tw_jfail(rt, "no such test to select by");
        rest.v++;
        rest.n--;
    }
    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval x = by_path(rt, l->v[i], path);
        struct tw_jargs call = rest;
        bool yes = fn ? tw_jtest(rt, fn, &x, &call) : tw_jtruth(rt, &x);

        if (yes == want)
            tw_jlist_add(rt, r.u.l, l->v[i]);
    }
    a->used = ~(uint64_t)0;
    return r;
}
FILTER(f_select) { return pick(rt, v, a, false, true); }
FILTER(f_reject) { return pick(rt, v, a, false, false); }
FILTER(f_selectattr) { return pick(rt, v, a, true, true); }
FILTER(f_rejectattr) { return pick(rt, v, a, true, false); }

FILTER(f_join)
{
    const struct tw_jval *d = tw_jarg(a, 0, "d"), *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);

    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval x = by_path(rt, l->v[i], path);

        if (i && d)
            tw_jprint(rt, k, d);
        tw_jprint(rt, k, &x);
    }
    return tw_jsink_take(rt, k);
}

static struct tw_jval end_of(struct tw_jrt *rt, const struct tw_jval *v, bool last)
{
    const struct tw_jlist *l;

    if (last && v->t == TW_V_LIST && v->u.l->kind == TW_L_GEN && !rt->json_style)
        tw_jfail(rt, "'generator' object is not reversible");
    l = tw_jiter(rt, v);
    return l->n ? l->v[last ? l->n - 1 : 0] :
            tw_jundef(rt, TW_STR_LIT("No item, sequence was empty."));
}
FILTER(f_first) { return end_of(rt, v, false); }
FILTER(f_last) { return end_of(rt, v, true); }

FILTER(f_list) { return copy_list(rt, tw_jiter(rt, v), TW_L_LIST); }
FILTER(f_length) { return tw_jint(tw_jlen(rt, v)); }
FILTER(f_string) { return tw_jstring(rt, v); }
FILTER(f_upper) { return tw_jcase(rt, text_of(rt, v), TW_C_UPPER); }
FILTER(f_lower) { return tw_jcase(rt, text_of(rt, v), TW_C_LOWER); }
FILTER(f_title) { return tw_jcase(rt, text_of(rt, v), TW_C_TITLE_FILTER); }
FILTER(f_capitalize) { return tw_jcase(rt, text_of(rt, v), TW_C_CAPITAL); }

FILTER(f_trim)
{
    return tw_jstrip(rt, text_of(rt, v), tw_jarg_str(rt, a, 0, "chars"), 3);
}

FILTER(f_reverse)
{
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, l->n, TW_L_GEN);
    struct tw_jsink *k;

    for (int64_t i = l->n; i-- > 0;)
        tw_jlist_add(rt, r.u.l, l->v[i]);
    if (v->t != TW_V_STR)
        return r;
    k = tw_jsink_begin(rt);
    for (int64_t i = 0; i < r.u.l->n; i++)
        tw_jsink_str(rt, k, r.u.l->v[i].u.s);
    return tw_jsink_take(rt, k);
}

FILTER(f_replace)
{
    const struct tw_jstr *old = tw_jarg_str(rt, a, 0, "old"), *with = tw_jarg_str(rt, a, 1, "new");

    if (!old || !with)
        tw_jfail(rt, "replace needs two texts");
    return tw_jreplace(rt, text_of(rt, v), old, with, tw_jarg_int(rt, a, 2, "count", -1));
}

FILTER(f_default)
{
    const struct tw_jval *d = tw_jarg(a, 0, "default_value");
    bool falsy = tw_jarg_bool(rt, a, 1, "boolean", false);

    if (v->t == TW_V_UNDEF || (falsy && !tw_jtruth(rt, v)))
        return d ? *d : tw_jlit(rt, "");
    return *v;
}

FILTER(f_abs)
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

FILTER(f_int)
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

FILTER(f_float)
{
    const struct tw_jval *def = tw_jarg(a, 0, "default");
    double d;

    return number_of(rt, v, &d) ? tw_jfloat(d) : def ? *def : tw_jfloat(0);
}

FILTER(f_round)
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

FILTER(f_attr)
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

FILTER(f_format)
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

FILTER(f_tojson)
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

FILTER(f_indent)
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

FILTER(f_truncate)
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

FILTER(f_escape)
{
    static const char *const pair[][2] = { { "&", "&amp;" }, { ">", "&gt;" }, { "<", "&lt;" },
        { "'", "&#39;" }, { "\"", "&#34;" } };
    struct tw_jval s = tw_jstring(rt, v);

    for (size_t i = 0; i < sizeof(pair) / sizeof(*pair); i++)
        s = tw_jreplace(rt, s.u.s, tw_jlit(rt, pair[i][0]).u.s, tw_jlit(rt, pair[i][1]).u.s, -1);
    return s;
}

FILTER(f_wordcount)
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

FILTER(f_center)
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

FILTER(f_batch)
{
    int64_t size = tw_jarg_int(rt, a, 0, "linecount", 0);
    const struct tw_jval *fill = tw_jarg(a, 1, "fill_with");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), row = r;

    if (size < 1)
        tw_jfail(rt, "batch needs a size of at least 1");
    for (int64_t i = 0; i < l->n; i++) {
        if (i % size == 0) {
            row = tw_jlist_new(rt, 0, TW_L_LIST);
            tw_jlist_add(rt, r.u.l, row);
        }
        tw_jlist_add(rt, row.u.l, l->v[i]);
    }
    while (fill && l->n && row.u.l->n < size)
        tw_jlist_add(rt, row.u.l, *fill);
    return r;
}

FILTER(f_groupby)
{
    const struct tw_jval *path = tw_jarg(a, 0, "attribute");
    const struct tw_jval *def = tw_jarg(a, 1, "default");
    bool cs = tw_jarg_bool(rt, a, 2, "case_sensitive", false);
    struct tw_jval l = copy_list(rt, tw_jiter(rt, v), TW_L_LIST), r = tw_jlist_new(rt, 0, TW_L_LIST);
    struct tw_jval *key = tw_jarray(rt, l.u.l->n, sizeof(*key)), group = r;

    for (int64_t i = 0; i < l.u.l->n; i++) {
        key[i] = by_path(rt, l.u.l->v[i], path);
        if (def && key[i].t == TW_V_UNDEF)
            key[i] = *def;
        key[i] = lower_key(rt, key[i], cs);
    }
    if (l.u.l->n)
        sort_by(rt, l.u.l->v, key, l.u.l->n, false);
    for (int64_t i = 0; i < l.u.l->n; i++) {
        if (!i || !tw_jequal(rt, &key[i - 1], &key[i])) {
            struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

            group = tw_jlist_new(rt, 0, TW_L_LIST);
            tw_jlist_add(rt, pair.u.l, by_path(rt, l.u.l->v[i], path));
            tw_jlist_add(rt, pair.u.l, group);
            tw_jlist_add(rt, r.u.l, pair);
        }
        tw_jlist_add(rt, group.u.l, l.u.l->v[i]);
    }
    return r;
}

static const struct {
    const char *name;
    struct tw_jval (*fn)(struct tw_jrt *, const struct tw_jval *, struct tw_jargs *);
    int max;
} table[] = {
    { "abs", f_abs, 0 }, { "attr", f_attr, 1 }, { "batch", f_batch, 2 },
    { "capitalize", f_capitalize, 0 }, { "center", f_center, 1 }, { "count", f_length, 0 },
    { "d", f_default, 2 }, { "default", f_default, 2 }, { "dictsort", f_dictsort, 3 },
    { "e", f_escape, 0 }, { "escape", f_escape, 0 }, { "first", f_first, 0 },
    { "float", f_float, 1 }, { "format", f_format, 64 }, { "groupby", f_groupby, 3 },
    { "indent", f_indent, 3 }, { "int", f_int, 2 }, { "items", f_items, 0 }, { "join", f_join, 2 },
    { "last", f_last, 0 }, { "length", f_length, 0 }, { "list", f_list, 0 }, { "lower", f_lower, 0 },
    { "map", f_map, 64 }, { "max", f_max, 2 }, { "min", f_min, 2 }, { "reject", f_reject, 64 },
    { "rejectattr", f_rejectattr, 64 }, { "replace", f_replace, 3 }, { "reverse", f_reverse, 0 },
    { "round", f_round, 2 }, { "safe", f_string, 0 }, { "select", f_select, 64 },
    { "selectattr", f_selectattr, 64 }, { "sort", f_sort, 3 }, { "string", f_string, 0 },
    { "sum", f_sum, 2 }, { "title", f_title, 0 }, { "tojson", f_tojson, 4 }, { "trim", f_trim, 1 },
    { "truncate", f_truncate, 4 }, { "unique", f_unique, 2 }, { "upper", f_upper, 0 },
    { "wordcount", f_wordcount, 0 },
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
