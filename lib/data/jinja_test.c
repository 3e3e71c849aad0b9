/* jinja_test.c - the tests {{ value is name }} and the functions a template may call. */
#include "jinja_priv.h"

#include <stdio.h>
#include <time.h>

enum test { T_BOOLEAN = 1, T_CALLABLE, T_DEFINED, T_DIVISIBLE, T_EQ, T_ESCAPED, T_EVEN, T_FALSE, T_FILTER,
    T_FLOAT, T_GE, T_GT, T_IN, T_INTEGER, T_ITERABLE, T_LE, T_LOWER, T_LT, T_MAPPING, T_NE, T_NONE,
    T_NUMBER, T_ODD, T_SAMEAS, T_SEQUENCE, T_STRING, T_TEST, T_TRUE, T_UNDEFINED, T_UPPER };

static const struct { const char *name; enum test t; } tests[] = {
    { "boolean", T_BOOLEAN }, { "callable", T_CALLABLE }, { "defined", T_DEFINED },
    { "divisibleby", T_DIVISIBLE }, { "eq", T_EQ }, { "equalto", T_EQ }, { "==", T_EQ },
    { "escaped", T_ESCAPED }, { "even", T_EVEN }, { "false", T_FALSE }, { "filter", T_FILTER },
    { "float", T_FLOAT }, { "ge", T_GE }, { ">=", T_GE }, { "gt", T_GT }, { "greaterthan", T_GT },
    { ">", T_GT }, { "in", T_IN }, { "integer", T_INTEGER }, { "iterable", T_ITERABLE },
    { "le", T_LE }, { "<=", T_LE }, { "lower", T_LOWER }, { "lt", T_LT }, { "lessthan", T_LT },
    { "<", T_LT }, { "mapping", T_MAPPING }, { "ne", T_NE }, { "!=", T_NE }, { "none", T_NONE },
    { "number", T_NUMBER }, { "odd", T_ODD }, { "sameas", T_SAMEAS }, { "sequence", T_SEQUENCE },
    { "string", T_STRING }, { "test", T_TEST }, { "true", T_TRUE }, { "undefined", T_UNDEFINED },
    { "upper", T_UPPER },
};

uint16_t tw_jtest_find(struct tw_str name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        if (tw_str_is(name, tests[i].name))
            return tests[i].t;
    return 0;
}

/* v % by == rest; of a text, % is formatting, which fails. */
static bool modulo(struct tw_jrt *rt, const struct tw_jval *v, const struct tw_jval *by, int64_t rest)
{
    struct tw_jval r, want = tw_jint(rest);

    if (!tw_jis_num(v) || !tw_jis_num(by))
        tw_jfail(rt, "the test needs a number, not %s", tw_jtype_name(tw_jis_num(v) ? by : v));
    r = tw_jbinary(rt, OP_MOD, v, by);
    return tw_jequal(rt, &r, &want);
}

static bool same(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    if (a->t != b->t)
        return false;
    return a->t == TW_V_LIST || a->t == TW_V_DICT || a->t == TW_V_NS ? a->u.m == b->u.m :
            tw_jequal(rt, a, b);
}

static bool order(struct tw_jrt *rt, enum test t, const struct tw_jval *a, const struct tw_jval *b)
{
    int c;

    if (a->t == TW_V_UNDEF || b->t == TW_V_UNDEF)
        tw_jfail(rt, "an undefined value cannot be ordered");
    c = tw_jcompare(rt, a, b);
    return t == T_GE ? c >= 0 : t == T_GT ? c > 0 : t == T_LE ? c <= 0 : c < 0;
}

static bool with_argument(struct tw_jrt *rt, enum test t, const struct tw_jval *v,
        const struct tw_jval *x)
{
    if (!x)
        tw_jfail(rt, "the test needs an argument");
    switch (t) {
    case T_DIVISIBLE:
        return modulo(rt, v, x, 0);
    case T_EQ:
        return tw_jequal(rt, v, x);
    case T_NE:
        return !tw_jequal(rt, v, x);
    case T_IN:
        return tw_jcontains(rt, x, v);
    case T_SAMEAS:
        return same(rt, v, x);
    default:
        return order(rt, t, v, x);
    }
}

bool tw_jtest(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *v, struct tw_jargs *a)
{
    enum test t = fn;
    const struct tw_jval two = tw_jint(2);
    bool lazy = v->t == TW_V_LIST && (v->u.l->kind == TW_L_GEN || v->u.l->kind == TW_L_VIEW);

    if (t == T_DIVISIBLE || t == T_EQ || t == T_NE || t == T_IN || t == T_SAMEAS || t == T_GE ||
            t == T_GT || t == T_LE || t == T_LT) {
        tw_jargs_done(rt, a, 1, "the test");
        return with_argument(rt, t, v, tw_jarg(a, 0, NULL));
    }
    tw_jargs_done(rt, a, 0, "the test");
    if ((t == T_FILTER || t == T_TEST) && (v->t == TW_V_LIST || v->t == TW_V_DICT))
        tw_jfail(rt, "unhashable type: '%s'", tw_jtype_name(v));
    switch (t) {
    case T_BOOLEAN: return v->t == TW_V_BOOL;
    case T_CALLABLE: return v->t >= TW_V_MACRO || v->t == TW_V_UNDEF;
    case T_DEFINED: return v->t != TW_V_UNDEF;
    case T_ESCAPED: return v->t == TW_V_STR && v->u.s->safe;
    case T_EVEN: return modulo(rt, v, &two, 0);
    case T_FALSE: return v->t == TW_V_BOOL && !v->u.b;
    case T_FILTER: return v->t == TW_V_STR && tw_jfilter_find((struct tw_str){ v->u.s->p, v->u.s->n });
    case T_FLOAT: return v->t == TW_V_FLOAT;
    case T_INTEGER: return v->t == TW_V_INT || v->t == TW_V_BIG;
    case T_ITERABLE: return v->t == TW_V_STR || v->t == TW_V_LIST || v->t == TW_V_DICT ||
            v->t == TW_V_UNDEF || v->t == TW_V_LOOP;
    case T_LOWER: return tw_jstr_case(tw_jstring(rt, v).u.s, false);
    case T_MAPPING: return v->t == TW_V_DICT;
    case T_NONE: return v->t == TW_V_NONE;
    case T_NUMBER: return tw_jis_num(v) || v->t == TW_V_BIG;
    case T_ODD: return modulo(rt, v, &two, 1);
    case T_SEQUENCE: return v->t == TW_V_STR || v->t == TW_V_DICT || v->t == TW_V_UNDEF ||
            (v->t == TW_V_LIST && !lazy);
    case T_STRING: return v->t == TW_V_STR;
    case T_TEST: return v->t == TW_V_STR && tw_jtest_find((struct tw_str){ v->u.s->p, v->u.s->n });
    case T_TRUE: return v->t == TW_V_BOOL && v->u.b;
    case T_UNDEFINED: return v->t == TW_V_UNDEF;
    default: return tw_jstr_case(tw_jstring(rt, v).u.s, true);
    }
}

/* ---- functions ---- */

enum func { F_RAISE = 1, F_RANGE, F_NAMESPACE, F_DICT, F_STRFTIME, F_CYCLER, F_JOINER };
static const struct { const char *name; enum func f; } funcs[] = { { "raise_exception", F_RAISE },
    { "range", F_RANGE }, { "namespace", F_NAMESPACE }, { "dict", F_DICT },
    { "strftime_now", F_STRFTIME }, { "cycler", F_CYCLER }, { "joiner", F_JOINER } };

uint16_t tw_jfunc_find(struct tw_str name)
{
    for (size_t i = 0; i < sizeof(funcs) / sizeof(*funcs); i++)
        if (tw_str_is(name, funcs[i].name))
            return funcs[i].f;
    return 0;
}

static struct tw_jval make_range(struct tw_jrt *rt, struct tw_jargs *a)
{
    int64_t lo = 0, hi, by = tw_jarg_int(rt, a, 2, NULL, 1), n = 0;
    struct tw_jval r;

    if (a->n < 1 || a->n > 3)
        tw_jfail(rt, "range takes 1 to 3 arguments");
    hi = tw_jarg_int(rt, a, a->n > 1, NULL, 0);
    if (a->n > 1)
        lo = tw_jarg_int(rt, a, 0, NULL, 0);
    if (!by)
        tw_jfail(rt, "range() arg 3 must not be zero");
    if (by > 0 ? lo < hi : lo > hi) {
        uint64_t span = by > 0 ? (uint64_t)hi - (uint64_t)lo : (uint64_t)lo - (uint64_t)hi;
        uint64_t step = by > 0 ? (uint64_t)by : 0 - (uint64_t)by, count = (span - 1) / step + 1;

        if (count > 100000)
            tw_jfail(rt, "Range too big. The sandbox blocks ranges larger than 100000.");
        n = (int64_t)count;
    }
    r = tw_jlist_new(rt, n, TW_L_RANGE);
    r.u.l->of.range.start = lo;
    r.u.l->of.range.stop = hi;
    r.u.l->of.range.step = by;
    for (int64_t i = 0; i < n; i++)
        tw_jlist_add(rt, r.u.l, tw_jint(lo + i * by));
    return r;
}

static struct tw_jval make_dict(struct tw_jrt *rt, struct tw_jargs *a, bool ns)
{
    struct tw_jval r = tw_jdict_new(rt, 0);

    if (a->n > 1)
        tw_jfail(rt, "at most one argument by position");
    if (a->n && a->v[0].t != TW_V_DICT) {
        const struct tw_jlist *l = tw_jiter(rt, &a->v[0]);

        for (int64_t i = 0; i < l->n; i++) {
            const struct tw_jlist *pair = tw_jiter(rt, &l->v[i]);

            if (pair->n != 2)
                tw_jfail(rt, "a dict is made from pairs");
            tw_jdict_set(rt, r.u.m, pair->v[0], pair->v[1]);
        }
    } else if (a->n) {
        for (int64_t i = 0; i < a->v[0].u.m->n; i++)
            tw_jdict_set(rt, r.u.m, a->v[0].u.m->e[i].k, a->v[0].u.m->e[i].v);
    }
    for (int64_t i = 0; ns && i < a->nkw; i++)
        if (a->name[i].n && a->name[i].p[0] == '_')
            tw_jfail(rt, "a namespace cannot hold the name '%.*s'", (int)a->name[i].n, a->name[i].p);
    for (int64_t i = 0; i < a->nkw; i++)
        tw_jdict_set(rt, r.u.m, tw_jtext(rt, a->name[i].p, a->name[i].n, 0), a->kw[i]);
    if (ns)
        r.t = TW_V_NS;
    return r;
}

static struct tw_jval make_cycle(struct tw_jrt *rt, struct tw_jargs *a, bool joiner)
{
    struct tw_jval items = tw_jlist_new(rt, a->n + 1, TW_L_TUPLE);
    struct tw_jcycle *c = tw_jalloc(rt, sizeof(*c));
    const struct tw_jval *sep = joiner ? tw_jarg(a, 0, "sep") : NULL;

    if (joiner)
        tw_jlist_add(rt, items.u.l, sep ? *sep : tw_jlit(rt, ", "));
    for (int64_t i = 0; i < a->n && !joiner; i++)
        tw_jlist_add(rt, items.u.l, a->v[i]);
    if (!items.u.l->n)
        tw_jfail(rt, "at least one item has to be provided");
    tw_jargs_done(rt, a, joiner ? 1 : INT64_MAX, joiner ? "joiner" : "cycler");
    *c = (struct tw_jcycle){ .items = items.u.l };
    return (struct tw_jval){ .t = joiner ? TW_V_JOINER : TW_V_CYCLER, .u.cycle = c };
}

static struct tw_jval strftime_now(struct tw_jrt *rt, struct tw_jargs *a)
{
    const struct tw_jstr *f = tw_jarg_str(rt, a, 0, "format");
    char fmt[256], text[1024];
    time_t t = (time_t)rt->now;
    struct tm tm;
    size_t n;

    if (!f || f->n >= sizeof(fmt) || memchr(f->p, 0, f->n))
        tw_jfail(rt, "strftime_now needs a format of less than %zu bytes", sizeof(fmt));
    memcpy(fmt, f->p, f->n);
    fmt[f->n] = 0;
    localtime_r(&t, &tm);
    n = strftime(text, sizeof(text), fmt, &tm);
    return tw_jtext(rt, tw_arena_dup(rt->a, text, n), n, 0);
}

struct tw_jval tw_jfunc(struct tw_jrt *rt, uint16_t fn, struct tw_jargs *a)
{
    struct tw_jval v;

    switch ((enum func)fn) {
    case F_RAISE:
        v = a->n ? tw_jstring(rt, &a->v[0]) : tw_jlit(rt, "raise_exception()");
        tw_jfail(rt, "%.*s", v.u.s->n > 900 ? 900 : (int)v.u.s->n, v.u.s->p);
    case F_RANGE:
        return make_range(rt, a);
    case F_NAMESPACE:
        return make_dict(rt, a, true);
    case F_DICT:
        return make_dict(rt, a, false);
    case F_CYCLER: case F_JOINER:
        return make_cycle(rt, a, fn == F_JOINER);
    default:
        return strftime_now(rt, a);
    }
}
