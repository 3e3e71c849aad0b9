/* jinja_format.c - texts with places for values: "%05d" % x, "{:>5}".format(x), as Python fills them. */
#include "jinja_format.h"

#include <math.h>

static int64_t spec_number(struct tw_jrt *rt, const char **p, const char *end)
{
    int64_t n = 0;

    while (*p < end && **p >= '0' && **p <= '9') {
        n = n * 10 + (*(*p)++ - '0');
        if (n > 10000)
            tw_jfail(rt, "a width or precision over 10000");
    }
    return n;
}

static struct tw_jval repr_of(struct tw_jrt *rt, const struct tw_jval *v)
{
    struct tw_jsink *k = tw_jsink_begin(rt);

    tw_jrepr(rt, k, v);
    return tw_jsink_take(rt, k);
}

/* ---- "%s and %d" % values ---- */

static void put_percent(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v, struct tw_jspec *f)
{
    struct tw_jval x = *v;

    if (strchr("src", f->conv)) {
        x = f->conv == 'c' ? tw_jchar_of(rt, v) : f->conv == 's' ? tw_jstring(rt, v) : repr_of(rt, v);
        f->align = f->align ? f->align : '>';
        tw_jput_text(rt, k, x, f);
        return;
    }
    if (!tw_jis_num(v))
        tw_jfail(rt, "%%%c format: a real number is required, not %s", f->conv, tw_jtype_name(v));
    if (strchr("eEfFgG", f->conv)) {
        tw_jput_float(rt, k, v, f);
        return;
    }
    if (v->t == TW_V_FLOAT) {
        if (f->conv == 'x' || f->conv == 'X' || f->conv == 'o' || !isfinite(v->u.d))
            tw_jfail(rt, "%%%c format: an integer is required, not float", f->conv);
        x = tw_jbig_trunc(rt, v->u.d);
    }
    if (f->conv == 'i' || f->conv == 'u')
        f->conv = 'd';
    tw_jput_int(rt, k, x, f, true);
}

static int64_t next_int(struct tw_jrt *rt, struct tw_jargs *args, int64_t *next)
{
    if (*next >= args->n || args->v[*next].t != TW_V_INT)
        tw_jfail(rt, "* wants int");
    if (args->v[*next].u.i > 10000 || args->v[*next].u.i < -10000)
        tw_jfail(rt, "a width or precision over 10000");
    return args->v[(*next)++].u.i;
}

/* What stands between '%' and the value's place. */
static struct tw_jspec percent_spec(struct tw_jrt *rt, const char **p, const char *end,
        struct tw_jargs *args, int64_t *next)
{
    struct tw_jspec f = { .prec = -1 };
    bool left = false;

    for (; *p < end && **p && strchr("-0+ #", **p); (*p)++) {
        left |= **p == '-';
        f.zero |= **p == '0';
        f.alt |= **p == '#';
        if (**p == '+' || (**p == ' ' && !f.sign))
            f.sign = **p;
    }
    if (*p < end && **p == '*') {
        (*p)++;
        f.width = next_int(rt, args, next);
        left |= f.width < 0;
        f.width = f.width < 0 ? -f.width : f.width;
    } else {
        f.width = spec_number(rt, p, end);
    }
    if (*p < end && **p == '.') {
        (*p)++;
        if (*p < end && **p == '*') {
            (*p)++;
            f.prec = next_int(rt, args, next);
            f.prec = f.prec < 0 ? 0 : f.prec;
        } else {
            f.prec = spec_number(rt, p, end);
        }
    }
    while (*p < end && **p && strchr("hlL", **p))
        (*p)++;
    if (*p == end)
        tw_jfail(rt, "incomplete format");
    f.conv = *(*p)++;
    if (!f.conv || !strchr("srdiuxXoeEfFgGc%", f.conv))
        tw_jfail(rt, "unsupported format character '%c'", f.conv);
    if (left) {
        f.align = '<';
        f.zero = false;
    }
    return f;
}

/* The value that "(name)" at P asks for; P is then behind it. */
static const struct tw_jval *percent_name(struct tw_jrt *rt, const char **p, const char *end,
        struct tw_jargs *args)
{
    const char *close = *p;
    const struct tw_jval *v;
    int deep = 0;

    for (; close < end; close++)
        if ((deep += *close == '(' ? 1 : *close == ')' ? -1 : 0) == 0)
            break;
    if (close == end || args->n != 1 || args->v[0].t != TW_V_DICT)
        tw_jfail(rt, "format requires a mapping");
    v = tw_jdict_gets(rt, args->v[0].u.m, (struct tw_str){ *p + 1, (size_t)(close - *p - 1) });
    if (!v)
        tw_jfail(rt, "a name in the format is not in the mapping");
    *p = close + 1;
    return v;
}

struct tw_jval tw_jpercent(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;
    int64_t next = 0;

    while (p < end) {
        const char *q = memchr(p, '%', (size_t)(end - p));
        const struct tw_jval *v = NULL;
        struct tw_jspec f;

        tw_jsink_str(rt, k, tw_jsub(rt, s, (size_t)(p - s->p), (size_t)((q ? q : end) - s->p)).u.s);
        if (!q)
            break;
        p = q + 1;
        if (p < end && *p == '(') {
            v = percent_name(rt, &p, end, args);
            next = 1;
        }
        f = percent_spec(rt, &p, end, args, &next);
        if (f.conv == '%') {
            tw_jsink_lit(rt, k, "%");
            continue;
        }
        if (!v && next >= args->n)
            tw_jfail(rt, "not enough arguments for format string");
        put_percent(rt, k, v ? v : &args->v[next++], &f);
    }
    if (next < args->n && !(args->n == 1 && (args->v[0].t == TW_V_DICT || args->v[0].t == TW_V_UNDEF
            || (args->v[0].t == TW_V_LIST && args->v[0].u.l->kind != TW_L_GEN && !args->of_tuple))))
        tw_jfail(rt, "not all arguments converted during string formatting");
    return tw_jsink_take(rt, k);
}

/* The same, and into a safe text go escaped ones. */
struct tw_jval tw_jpercent_safe(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args)
{
    struct tw_jargs x = *args;
    struct tw_jval r;

    if (!s->safe)
        return tw_jpercent(rt, s, args);
    x.v = tw_jarray(rt, x.n, sizeof(*x.v));
    for (int64_t i = 0; i < x.n; i++)
        x.v[i] = args->v[i].t == TW_V_STR ? tw_jescape(rt, &args->v[i]) : args->v[i];
    r = tw_jpercent(rt, s, &x);
    return tw_jmark(rt, &r, true);
}

/* ---- "{:>5}".format(value) ---- */

static struct tw_jspec brace_spec(struct tw_jrt *rt, struct tw_str s)
{
    const char *p = s.p, *end = p + s.n, *q = p;
    struct tw_jspec f = { .prec = -1 };

    if (p < end)
        tw_utf8_next(&q, end);
    if (q < end && p < end && strchr("<>^=", *q)) {
        f.nfill = (int)(q - p);
        memcpy(f.fill, p, (size_t)f.nfill);
        f.align = *q;
        p = q + 1;
    } else if (p < end && strchr("<>^=", *p)) {
        f.align = *p++;
    }
    if (p < end && (*p == '+' || *p == ' ' || *p == '-'))
        f.sign = *p++;
    if (p < end && *p == '#') {
        f.alt = true;
        p++;
    }
    if (p < end && *p == '0') {
        f.zero = true;
        p++;
    }
    f.width = spec_number(rt, &p, end);
    if (p < end && (*p == ',' || *p == '_'))
        f.group = *p++;
    if (p < end && *p == '.') {
        p++;
        if (p == end || *p < '0' || *p > '9')
            tw_jfail(rt, "Format specifier missing precision");
        f.prec = spec_number(rt, &p, end);
    }
    if (p < end)
        f.conv = *p++;
    if (p < end || (f.conv && !strchr("sbcdoxXneEfFgG%", f.conv)))
        tw_jfail(rt, "Invalid format specifier '%.*s'", (int)s.n, s.p);
    return f;
}

static void put_brace(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v, struct tw_str spec)
{
    struct tw_jspec f;

    if (!spec.n) {
        tw_jprint(rt, k, v);
        return;
    }
    f = brace_spec(rt, spec);
    if (v->t == TW_V_STR && (!f.conv || f.conv == 's') && !f.sign && !f.alt && f.align != '=' && !f.group) {
        if (f.zero && !f.nfill)
            f.fill[f.nfill++] = '0';
        tw_jput_text(rt, k, *v, &f);
    } else if (tw_jis_int(v) && f.conv == 'c' && f.prec < 0 && !f.sign) {
        tw_jput_text(rt, k, tw_jchar_of(rt, v), &f);
    } else if (tw_jis_int(v) && (!f.conv || strchr("bdoxXn", f.conv)) && f.prec < 0
            && !(f.group == ',' && f.conv && f.conv != 'd')) {
        tw_jput_int(rt, k, *v, &f, false);
    } else if (tw_jis_num(v) && (v->t == TW_V_FLOAT || f.conv) && (!f.conv || strchr("eEfFgGn%", f.conv))) {
        tw_jput_float(rt, k, v, &f);
    } else {
        tw_jfail(rt, "the format '%.*s' does not fit a value of type '%s'", (int)spec.n, spec.p,
                tw_jtype_name(v));
    }
}

/* "name.attr[key]" */
static struct tw_jval brace_field(struct tw_jrt *rt, struct tw_jargs *args, struct tw_str path,
        int64_t *next)
{
    const char *p = path.p, *end = p + path.n, *q = p;
    struct tw_str name;
    struct tw_jval v = {0};
    int64_t i = -1;

    while (q < end && *q != '.' && *q != '[')
        q++;
    name = (struct tw_str){ p, (size_t)(q - p) };
    if (!name.n)
        i = (*next)++;
    else if (*p >= '0' && *p <= '9' && (i = spec_number(rt, &p, q)) >= 0 && p != q)
        i = -1;
    if (i >= args->n)
        tw_jfail(rt, "a format asks for more arguments than there are");
    if (i >= 0)
        v = args->v[i];
    for (int64_t w = 0; i < 0 && w < args->nkw; w++)
        if (tw_str_eq(args->name[w], name)) {
            v = args->kw[w];
            i = 0;
        }
    if (i < 0)
        tw_jfail(rt, "a format asks for '%.*s', which is not there", (int)name.n, name.p);
    for (p = q; p < end; p = q) {
        bool item = *p == '[';
        struct tw_jval key;

        for (q = ++p; q < end && (item ? *q != ']' : *q != '.' && *q != '['); q++)
            ;
        key = tw_jtext(rt, p, (size_t)(q - p), 0);
        if (item && p < q && *p >= '0' && *p <= '9')
            key = tw_jint(spec_number(rt, &p, q));
        v = item ? tw_jitem(rt, &v, &key) : tw_jattr(rt, &v, (struct tw_str){ p, (size_t)(q - p) });
        q += item;
    }
    return v;
}

static struct tw_jval format_at(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args,
        int64_t *next, int deep);

/* "name!r:spec", where spec may hold further fields. */
static void put_field(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jargs *args, struct tw_str s,
        int64_t *next, int deep)
{
    const char *p = s.p, *end = p + s.n, *q = p;
    struct tw_jval v, spec;
    int brackets = 0;

    for (; q < end && (brackets || (*q != ':' && *q != '!')); q++)
        brackets += *q == '[' ? 1 : *q == ']' ? -1 : 0;
    v = brace_field(rt, args, (struct tw_str){ p, (size_t)(q - p) }, next);
    if (v.t == TW_V_UNDEF)
        tw_jfail_undefined(rt, &v);
    if (q < end && *q == '!') {
        if (end - q < 2 || !strchr("sr", q[1]) || (end - q > 2 && q[2] != ':'))
            tw_jfail(rt, "a conversion is !s or !r");
        v = q[1] == 's' ? tw_jstring(rt, &v) : repr_of(rt, &v);
        q += 2;
    }
    spec = tw_jtext(rt, q, 0, 0);
    if (q < end)
        spec = tw_jtext(rt, q + 1, (size_t)(end - q - 1), 0);
    if (memchr(spec.u.s->p, '{', spec.u.s->n)) {
        if (deep > 1)
            tw_jfail(rt, "Max string recursion exceeded");
        spec = format_at(rt, spec.u.s, args, next, deep + 1);
    }
    put_brace(rt, k, &v, (struct tw_str){ spec.u.s->p, spec.u.s->n });
}

static struct tw_jval format_at(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args,
        int64_t *next, int deep)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;

    while (p < end) {
        const char *q = p, *close;
        int open = 1;

        while (q < end && *q != '{' && *q != '}')
            q++;
        tw_jsink_str(rt, k, tw_jsub(rt, s, (size_t)(p - s->p), (size_t)(q - s->p)).u.s);
        if (q == end)
            break;
        if (q + 1 < end && q[1] == *q) {
            tw_jsink_str(rt, k, tw_jsub(rt, s, (size_t)(q - s->p), (size_t)(q + 1 - s->p)).u.s);
            p = q + 2;
            continue;
        }
        for (close = q + 1; *q == '{' && close < end; close++)
            if ((open += *close == '{' ? 1 : *close == '}' ? -1 : 0) == 0)
                break;
        if (*q == '}' || close == end)
            tw_jfail(rt, "a single '%c' in a format", *q);
        put_field(rt, k, args, (struct tw_str){ q + 1, (size_t)(close - q - 1) }, next, deep);
        p = close + 1;
    }
    return tw_jsink_take(rt, k);
}

struct tw_jval tw_jformat(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args)
{
    int64_t next = 0;

    return format_at(rt, s, args, &next, 0);
}
