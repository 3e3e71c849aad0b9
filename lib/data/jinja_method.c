/* jinja_method.c - the methods of str, dict and list that a template may call. Those that would
 * change a value in place are refused, as the reference's sandbox refuses them. */
#include "jinja_method.h"

struct name { const char *name; enum tw_jmethod m; };
static const struct name of_str[] = {
    { "strip", M_STRIP }, { "lstrip", M_LSTRIP }, { "rstrip", M_RSTRIP }, { "split", M_SPLIT },
    { "rsplit", M_RSPLIT }, { "splitlines", M_SPLITLINES }, { "replace", M_REPLACE },
    { "startswith", M_STARTS }, { "endswith", M_ENDS }, { "upper", M_UPPER }, { "lower", M_LOWER },
    { "casefold", M_CASEFOLD }, { "title", M_TITLE }, { "capitalize", M_CAPITALIZE },
    { "swapcase", M_SWAPCASE }, { "find", M_FIND }, { "rfind", M_RFIND }, { "index", M_INDEX },
    { "rindex", M_RINDEX }, { "count", M_COUNT }, { "join", M_JOIN }, { "format", M_FORMAT },
    { "isdigit", M_ISDIGIT }, { "isnumeric", M_ISNUMERIC }, { "isdecimal", M_ISDECIMAL },
    { "isalpha", M_ISALPHA }, { "isalnum", M_ISALNUM }, { "isspace", M_ISSPACE },
    { "isupper", M_ISUPPER }, { "isascii", M_ISASCII }, { "isprintable", M_ISPRINTABLE },
    { "istitle", M_ISTITLE }, { "islower", M_ISLOWER }, { "expandtabs", M_EXPANDTABS },
    { "format_map", M_FORMAT_MAP }, { "zfill", M_ZFILL }, { "ljust", M_LJUST },
    { "rjust", M_RJUST }, { "center", M_CENTER }, { "removeprefix", M_REMOVEPREFIX },
    { "removesuffix", M_REMOVESUFFIX }, { "partition", M_PARTITION },
    { "rpartition", M_RPARTITION }, { NULL, 0 },
};
static const struct name of_dict[] = {
    { "get", M_GET }, { "items", M_ITEMS }, { "keys", M_KEYS }, { "values", M_VALUES },
    { "copy", M_COPY }, { "fromkeys", M_FROMKEYS }, { "clear", M_UNSAFE }, { "pop", M_UNSAFE },
    { "popitem", M_UNSAFE }, { "setdefault", M_UNSAFE }, { "update", M_UNSAFE }, { NULL, 0 },
};
static const struct name of_list[] = {
    { "index", M_LINDEX }, { "count", M_LCOUNT }, { "copy", M_COPY }, { "append", M_UNSAFE },
    { "clear", M_UNSAFE }, { "extend", M_UNSAFE }, { "insert", M_UNSAFE }, { "pop", M_UNSAFE },
    { "remove", M_UNSAFE }, { "reverse", M_UNSAFE }, { "sort", M_UNSAFE }, { NULL, 0 },
};
static const struct name of_loop[] = { { "cycle", M_CYCLE }, { "changed", M_CHANGED }, { NULL, 0 } };
static const struct name of_cycler[] = { { "next", M_NEXT }, { "reset", M_RESET }, { NULL, 0 } };
static const struct name of_class[] = { { "fromkeys", M_FROMKEYS }, { NULL, 0 } };      /* dict itself */

uint16_t tw_jmethod_find(const struct tw_jval *v, struct tw_str name)
{
    const struct name *t = v->t == TW_V_STR ? of_str : v->t == TW_V_DICT ? of_dict :
            v->t == TW_V_LIST ? of_list : v->t == TW_V_LOOP ? of_loop :
            v->t == TW_V_CYCLER ? of_cycler :
            v->t == TW_V_FUNC && v->fn == tw_jfunc_find(TW_STR_LIT("dict")) ? of_class : NULL;

    for (; t && t->name; t++)
        if (t->name[0] == name.p[0] && tw_str_is(name, t->name))
            return t->m;
    return 0;
}

/* ---- str ---- */

static struct tw_jval m_split(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        bool right)
{
    const struct tw_jstr *x = tw_jarg_str(rt, a, 0, "sep");
    int64_t max = tw_jarg_int(rt, a, 1, "maxsplit", -1);

    tw_jstep(rt, (int64_t)(s->n >> 2));
    return x ? tw_jsplit_by(rt, s, x, max, right) : tw_jsplit_space(rt, s, max, right);
}

/* The part that arguments I and I + 1, a start and an end in characters, leave of S; *from: its start.
 * False: it begins behind its end, where not even an empty text is found. */
static bool window(struct tw_jrt *rt, struct tw_jargs *a, int64_t i, const struct tw_jstr **s, int64_t *from)
{
    int64_t len, lo, hi;

    *from = 0;
    if (a->n <= i)
        return true;
    len = (int64_t)tw_jchars(*s);
    lo = tw_jarg_int(rt, a, i, NULL, 0);
    hi = tw_jarg_int(rt, a, i + 1, NULL, len);
    lo = lo < 0 ? (lo + len < 0 ? 0 : lo + len) : lo;
    hi = hi < 0 ? (hi + len < 0 ? 0 : hi + len) : hi > len ? len : hi;
    if (lo > hi)
        return false;
    *from = lo;
    *s = tw_jchar_sub(rt, *s, lo, hi).u.s;
    return true;
}

static bool has_affix(const struct tw_jstr *s, const struct tw_jstr *x, bool end)
{
    return s->n >= x->n && (!x->n || !memcmp(end ? s->p + s->n - x->n : s->p, x->p, x->n));
}

static struct tw_jval m_affix(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        bool end)
{
    const struct tw_jval *x = tw_jarg(a, 0, NULL);
    int64_t from;
    bool any = window(rt, a, 1, &s, &from);

    if (x && x->t == TW_V_LIST && x->u.l->kind == TW_L_TUPLE) {
        for (int64_t i = 0; i < x->u.l->n; i++)
            if (any && x->u.l->v[i].t == TW_V_STR && has_affix(s, x->u.l->v[i].u.s, end))
                return tw_jbool(true);
        return tw_jbool(false);
    }
    if (!x || x->t != TW_V_STR)
        tw_jfail(rt, "%s first arg must be str or a tuple of str, not %s",
                end ? "endswith" : "startswith", x ? tw_jtype_name(x) : "nothing");
    return tw_jbool(any && has_affix(s, x->u.s, end));
}

static struct tw_jval m_find(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        enum tw_jmethod m)
{
    const struct tw_jstr *x = tw_jarg_str(rt, a, 0, NULL);
    bool last = m == M_RFIND || m == M_RINDEX, any;
    const char *hit;
    int64_t from;
    size_t at;

    if (!x)
        tw_jfail(rt, "a text to look for is needed");
    tw_jstep(rt, (int64_t)(s->n >> 2));
    any = window(rt, a, 1, &s, &from);
    if (!any) {
        at = SIZE_MAX;
    } else if (last) {
        at = tw_jfind_last(s->p, s->n, x);
    } else {
        hit = tw_jfind(rt, s->p, s->n, x);
        at = hit ? (size_t)(hit - s->p) : SIZE_MAX;
    }
    if (at == SIZE_MAX) {
        if (m == M_INDEX || m == M_RINDEX)
            tw_jfail(rt, "substring not found");
        return tw_jint(-1);
    }
    return tw_jint(from + (int64_t)tw_jchars(&(struct tw_jstr){ .p = s->p, .n = at }));
}

static struct tw_jval m_count(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a)
{
    const struct tw_jstr *x = tw_jarg_str(rt, a, 0, NULL);
    const char *p, *end, *hit;
    int64_t n = 0, from;

    if (!x)
        tw_jfail(rt, "a text to count is needed");
    tw_jstep(rt, (int64_t)(s->n >> 2));
    if (!window(rt, a, 1, &s, &from))
        return tw_jint(0);
    p = s->p;
    end = p + s->n;
    if (!x->n)
        return tw_jint((int64_t)tw_jchars(s) + 1);
    for (; (hit = tw_jfind(rt, p, (size_t)(end - p), x)) != NULL; p = hit + x->n)
        n++;
    return tw_jint(n);
}

static struct tw_jval m_join(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a)
{
    const struct tw_jval *x = tw_jarg(a, 0, NULL);
    struct tw_jsink *k = tw_jsink_begin(rt);
    const struct tw_jlist *l;

    if (!x)
        tw_jfail(rt, "join needs something to join");
    l = tw_jiter(rt, x);
    for (int64_t i = 0; i < l->n; i++) {
        if (l->v[i].t != TW_V_STR)
            tw_jfail(rt, "sequence item %lld: expected str instance, %s found", (long long)i,
                    tw_jtype_name(&l->v[i]));
        if (i)
            tw_jsink_str(rt, k, s);
        tw_jsink_str(rt, k, l->v[i].u.s);
    }
    return tw_jsink_take(rt, k);
}

static struct tw_jval m_is(const struct tw_jstr *s, enum tw_jmethod m)
{
    static const enum tw_jclass k[] = { TW_K_DIGIT, TW_K_DECIMAL, TW_K_NUMERIC, TW_K_ALPHA, TW_K_ALNUM,
        TW_K_SPACE, TW_K_ASCII, TW_K_PRINTABLE };

    if (m == M_ISUPPER || m == M_ISLOWER)
        return tw_jbool(tw_jstr_case(s, m == M_ISUPPER));
    return tw_jbool(m == M_ISTITLE ? tw_jstr_title(s) : tw_jstr_is(s, k[m - M_ISDIGIT]));
}

static struct tw_jval m_pad(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        enum tw_jmethod m)
{
    int64_t width = tw_jarg_int(rt, a, 0, NULL, 0), n = width - (int64_t)tw_jchars(s), left;
    const struct tw_jstr *fill = m == M_ZFILL ? NULL : tw_jarg_str(rt, a, 1, NULL);
    struct tw_jsink *k = tw_jsink_begin(rt);
    size_t sign = m == M_ZFILL && s->n && (*s->p == '-' || *s->p == '+');

    if (fill && tw_jchars(fill) != 1)
        tw_jfail(rt, "the fill character must be exactly one character long");
    left = n <= 0 || m == M_LJUST ? 0 : m == M_CENTER ? n / 2 + (n & width & 1) : n;
    tw_jsink_str(rt, k, tw_jsub(rt, s, 0, sign).u.s);
    for (int64_t i = 0; i < left || (i < n && i >= left); i++) {
        tw_jstep(rt, 1);
        if (i == left)
            tw_jsink_str(rt, k, tw_jsub(rt, s, sign, s->n).u.s);
        if (fill)
            tw_jsink_str(rt, k, fill);
        else
            tw_jsink_lit(rt, k, m == M_ZFILL ? "0" : " ");
    }
    if (n <= left)
        tw_jsink_str(rt, k, tw_jsub(rt, s, sign, s->n).u.s);
    return tw_jsink_take(rt, k);
}

static struct tw_jval m_expandtabs(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a)
{
    int64_t size = tw_jarg_int(rt, a, 0, "tabsize", 8), column = 0;
    const char *p = s->p, *end = p + s->n;
    struct tw_jsink *k = tw_jsink_begin(rt);

    while (p < end) {
        size_t at = (size_t)(p - s->p);
        uint32_t c = tw_utf8_next(&p, end);

        if (c != '\t') {
            column = c == '\n' || c == '\r' ? 0 : column + 1;
            tw_jsink_str(rt, k, tw_jsub(rt, s, at, (size_t)(p - s->p)).u.s);
            continue;
        }
        for (int64_t n = size > 0 ? size - column % size : 0; n > 0; n--, column++) {
            tw_jstep(rt, 1);
            tw_jsink_lit(rt, k, " ");
        }
    }
    return tw_jsink_take(rt, k);
}

/* format() with the names of a dict. */
static struct tw_jval m_format_map(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a)
{
    const struct tw_jval *v = tw_jarg(a, 0, NULL);
    struct tw_jargs names = {0};

    if (!v || v->t != TW_V_DICT)
        tw_jfail(rt, "format_map needs a dict");
    names.name = tw_jarray(rt, v->u.m->n, sizeof(*names.name));
    names.kw = tw_jarray(rt, v->u.m->n, sizeof(*names.kw));
    for (int64_t i = 0; i < v->u.m->n; i++)
        if (v->u.m->e[i].k.t == TW_V_STR) {
            names.name[names.nkw] = (struct tw_str){ v->u.m->e[i].k.u.s->p, v->u.m->e[i].k.u.s->n };
            names.kw[names.nkw++] = v->u.m->e[i].v;
        }
    return tw_jformat(rt, s, &names);
}

static struct tw_jval m_partition(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        bool right)
{
    const struct tw_jstr *x = tw_jarg_str(rt, a, 0, NULL);
    struct tw_jval l = tw_jlist_new(rt, 3, TW_L_TUPLE);
    const char *hit;
    size_t at;

    if (!x || !x->n)
        tw_jfail(rt, "empty separator");
    hit = tw_jfind(rt, s->p, s->n, x);
    at = right ? tw_jfind_last(s->p, s->n, x) : hit ? (size_t)(hit - s->p) : SIZE_MAX;
    if (at == SIZE_MAX) {
        tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, 0, right ? 0 : s->n));
        tw_jlist_add(rt, l.u.l, tw_jlit(rt, ""));
        tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, 0, right ? s->n : 0));
        return l;
    }
    tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, 0, at));
    tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, at, at + x->n));
    tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, at + x->n, s->n));
    return l;
}

static struct tw_jval m_replace(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a)
{
    const struct tw_jstr *old = tw_jarg_str(rt, a, 0, NULL), *with = tw_jarg_str(rt, a, 1, NULL);

    if (!old || !with)
        tw_jfail(rt, "replace expected at least 2 arguments");
    return tw_jreplace(rt, s, old, with, tw_jarg_int(rt, a, 2, "count", -1));
}

static struct tw_jval remove_affix(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *a,
        bool end)
{
    const struct tw_jstr *x = tw_jarg_str(rt, a, 0, NULL);

    if (!x)
        tw_jfail(rt, "a text to remove is needed");
    if (!has_affix(s, x, end))
        return tw_jsub(rt, s, 0, s->n);
    return end ? tw_jsub(rt, s, 0, s->n - x->n) : tw_jsub(rt, s, x->n, s->n);
}

static struct tw_jval str_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jstr *s,
        struct tw_jargs *a)
{
    static const enum tw_jcase how[] = { TW_C_UPPER, TW_C_LOWER, TW_C_TITLE, TW_C_CAPITAL,
        TW_C_SWAP };

    switch (m) {
    case M_STRIP: case M_LSTRIP: case M_RSTRIP:
        return tw_jstrip(rt, s, tw_jarg_str(rt, a, 0, NULL), m == M_STRIP ? 3 : m == M_LSTRIP ? 1 : 2);
    case M_SPLIT: case M_RSPLIT:
        return m_split(rt, s, a, m == M_RSPLIT);
    case M_SPLITLINES:
        return tw_jsplit_lines(rt, s, tw_jarg_bool(rt, a, 0, "keepends", false));
    case M_REPLACE:
        return m_replace(rt, s, a);
    case M_STARTS: case M_ENDS:
        return m_affix(rt, s, a, m == M_ENDS);
    case M_UPPER: case M_LOWER: case M_TITLE: case M_CAPITALIZE: case M_SWAPCASE:
        return tw_jcase(rt, s, how[m - M_UPPER]);
    case M_FIND: case M_RFIND: case M_INDEX: case M_RINDEX:
        return m_find(rt, s, a, m);
    case M_COUNT:
        return m_count(rt, s, a);
    case M_JOIN:
        return m_join(rt, s, a);
    case M_FORMAT:
        a->used = ~(uint64_t)0;
        return tw_jformat(rt, s, a);
    case M_FORMAT_MAP:
        return m_format_map(rt, s, a);
    case M_CASEFOLD:
        return tw_jcasefold(rt, s);
    case M_EXPANDTABS:
        return m_expandtabs(rt, s, a);
    case M_ZFILL: case M_LJUST: case M_RJUST: case M_CENTER:
        return m_pad(rt, s, a, m);
    case M_REMOVEPREFIX: case M_REMOVESUFFIX:
        return remove_affix(rt, s, a, m == M_REMOVESUFFIX);
    case M_PARTITION: case M_RPARTITION:
        return m_partition(rt, s, a, m == M_RPARTITION);
    default:
        return m_is(s, m);
    }
}

/* A method of a text marked as safe: what it puts in is escaped, and what it gives is safe. */
static struct tw_jval safe_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jstr *s,
        struct tw_jargs *a)
{
    struct tw_jval r, list;

    if (m == M_STARTS || m == M_ENDS || m == M_FIND || m == M_RFIND || m == M_INDEX || m == M_RINDEX
            || m == M_COUNT)
        return str_method(rt, m, s, a);
    for (int64_t i = 0; i < a->n + a->nkw; i++) {
        struct tw_jval *v = i < a->n ? &a->v[i] : &a->kw[i - a->n];

        if (v->t == TW_V_STR)
            *v = tw_jescape(rt, v);
        if (m != M_JOIN || v->t != TW_V_LIST)
            continue;
        list = tw_jlist_new(rt, 0, TW_L_LIST);
        for (int64_t k = 0; k < v->u.l->n; k++)
            tw_jlist_add(rt, list.u.l, tw_jescape(rt, &v->u.l->v[k]));
        *v = list;
    }
    r = str_method(rt, m, s, a);
    if (r.t == TW_V_STR)
        return tw_jmark(rt, &r, true);
    for (int64_t i = 0; r.t == TW_V_LIST && i < r.u.l->n; i++)
        r.u.l->v[i] = tw_jmark(rt, &r.u.l->v[i], true);
    return r;
}

static int64_t most_args(enum tw_jmethod m)
{
    switch (m) {
    case M_FORMAT:
        return INT64_MAX;
    case M_REPLACE: case M_STARTS: case M_ENDS: case M_FIND: case M_RFIND: case M_INDEX: case M_RINDEX:
    case M_COUNT: case M_LINDEX:
        return 3;
    case M_SPLIT: case M_RSPLIT: case M_LJUST: case M_RJUST: case M_CENTER: case M_GET:
    case M_FROMKEYS:
        return 2;
    case M_STRIP: case M_LSTRIP: case M_RSTRIP: case M_SPLITLINES: case M_JOIN: case M_ZFILL:
    case M_REMOVEPREFIX: case M_REMOVESUFFIX: case M_PARTITION: case M_RPARTITION: case M_LCOUNT:
    case M_EXPANDTABS: case M_FORMAT_MAP:
        return 1;
    default:
        return 0;
    }
}

struct tw_jval tw_jmethod(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *self,
        struct tw_jargs *a)
{
    enum tw_jmethod m = fn;
    struct tw_jval r;

    if (m == M_UNSAFE)
        tw_jfail(rt, "a template cannot change a %s in place", tw_jtype_name(self));
    if (m == M_FROMKEYS)
        r = tw_jfromkeys(rt, a);
    else if (self->t == TW_V_CYCLER)
        r = tw_jcycle_method(rt, m, self->u.cycle);
    else if (self->t == TW_V_STR)
        r = (self->u.s->safe ? safe_method : str_method)(rt, m, self->u.s, a);
    else if (self->t == TW_V_DICT)
        r = tw_jdict_method(rt, m, self->u.m, a);
    else if (self->t == TW_V_LIST)
        r = tw_jlist_method(rt, m, self->u.l, a);
    else
        return tw_jloop_method(rt, m, self->u.loop, a);
    tw_jargs_done(rt, a, most_args(m), "the method");
    return r;
}
