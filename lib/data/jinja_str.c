/* jinja_str.c - what Python's str can do, keeping track of where each byte came from. */
#include "jinja_priv.h"

#include <math.h>
#include <stdio.h>
#include <utf8proc.h>

static size_t byte_of(const struct tw_jstr *s, int64_t chars)
{
    size_t i = 0;

    for (; i < s->n && chars > 0; chars--)
        for (i++; i < s->n && ((unsigned char)s->p[i] & 0xc0) == 0x80; i++)
            ;
    return i;
}

const char *tw_jfind(struct tw_jrt *rt, const char *p, size_t n, const struct tw_jstr *x)
{
    if (n < x->n)
        return NULL;
    if (x->n <= 1)
        return x->n ? memchr(p, x->p[0], n) : p;
    tw_jstep(rt, 1 + (int64_t)(n >> 12));
    return memmem(p, n, x->p, x->n);
}

/* Characters [a, b), 0 <= a, both within the text. */
struct tw_jval tw_jchar_sub(struct tw_jrt *rt, const struct tw_jstr *s, int64_t a, int64_t b)
{
    struct tw_jstr rest;
    size_t begin;

    tw_jstep(rt, (int64_t)(s->n >> 4));
    if (b <= a)
        return tw_jsub(rt, s, 0, 0);
    begin = byte_of(s, a);
    rest = (struct tw_jstr){ .p = s->p + begin, .n = s->n - begin };
    return tw_jsub(rt, s, begin, begin + byte_of(&rest, b - a));
}

static bool in_set(const struct tw_jstr *set, uint32_t c)
{
    const char *p, *end;

    if (!set)
        return tw_jspace(c);
    for (p = set->p, end = p + set->n; p < end;)
        if (tw_utf8_next(&p, end) == c)
            return true;
    return false;
}

struct tw_jval tw_jstrip(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *set,
        int sides)
{
    const char *p = s->p, *end = s->p + s->n;

    tw_jstep(rt, set ? (int64_t)set->n : 1);
    while (sides & 1 && p < end) {
        const char *q = p;

        if (!in_set(set, tw_utf8_next(&q, end)))
            break;
        p = q;
    }
    while (sides & 2 && p < end) {
        const char *q = end - 1, *x;

        while (q > p && ((unsigned char)*q & 0xc0) == 0x80)
            q--;
        x = q;
        if (!in_set(set, tw_utf8_next(&x, end)))
            break;
        end = q;
    }
    return tw_jsub(rt, s, (size_t)(p - s->p), (size_t)(end - s->p));
}

static void add_range(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s, size_t a,
        size_t b)
{
    struct tw_jval v;

    if (a == b)
        return;
    if (!s->nrun) {
        tw_jsink_add(rt, k, s->p + a, b - a, s->origin, s->owner);
        return;
    }
    v = tw_jsub(rt, s, a, b);
    tw_jsink_str(rt, k, v.u.s);
}

struct tw_jval tw_jreplace(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *old,
        const struct tw_jstr *with, int64_t count)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    size_t at = 0;

    tw_jstep(rt, (int64_t)(s->n >> 3) + 1);
    for (; count != 0; count--) {
        const char *hit = tw_jfind(rt, s->p + at, s->n - at, old);
        size_t to;

        if (!hit)
            break;
        tw_jstep(rt, 1);
        to = (size_t)(hit - s->p);
        add_range(rt, k, s, at, to);
        tw_jsink_str(rt, k, with);
        at = to + old->n;
        if (!old->n) {
            struct tw_jstr rest = { .p = s->p + at, .n = s->n - at };
            size_t n = byte_of(&rest, 1);

            if (!n)
                break;
            add_range(rt, k, s, at, at + n);
            at += n;
        }
    }
    add_range(rt, k, s, at, s->n);
    return tw_jsink_take(rt, k);
}

static bool is_letter(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) >= UTF8PROC_CATEGORY_LU &&
            utf8proc_category((utf8proc_int32_t)c) <= UTF8PROC_CATEGORY_LO;
}

struct tw_jval tw_jcase(struct tw_jrt *rt, const struct tw_jstr *s, enum tw_jcase how)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;
    bool start = true;
    size_t run = 0;

    tw_jstep(rt, (int64_t)s->n);
    while (p < end) {
        size_t at = (size_t)(p - s->p);
        uint32_t c = tw_utf8_next(&p, end), u = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
        uint32_t l = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), r = c;
        char t[4];

        if (how == TW_C_UPPER || (how == TW_C_SWAP && c == l))
            r = u;
        else if (how == TW_C_LOWER || how == TW_C_SWAP)
            r = l;
        else
            r = start ? u : l;
        if (how == TW_C_CAPITAL)
            start = false;
        else if (how == TW_C_TITLE)
            start = !is_letter(c);
        else if (how == TW_C_TITLE_FILTER)
            start = c == '-' || tw_jspace(c) || c == '(' || c == '{' || c == '[' || c == '<';
        while (run + 1 < s->nrun && s->run[run].end <= at)
            run++;
        tw_jsink_add(rt, k, t, (size_t)tw_utf8_put(t, r), s->nrun ? s->run[run].origin : s->origin,
                s->nrun ? s->run[run].owner : s->owner);
    }
    return tw_jsink_take(rt, k);
}

/* ---- formatting ---- */

struct spec {
    bool left, zero, plus, space, alt;
    char fill, align;
    int64_t width, prec;            /* -1: none */
    char conv;
};

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

static void pad(struct tw_jrt *rt, struct tw_jsink *k, int64_t n, char fill)
{
    for (; n > 0; n--)
        tw_jsink_add(rt, k, &fill, 1, 0, -1);
}

static void put_padded(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jval v, const struct spec *f)
{
    int64_t n, left, fill;

    if (f->prec >= 0 && strchr("srS", f->conv))
        v = tw_jchar_sub(rt, v.u.s, 0, f->prec);
    n = (int64_t)tw_jchars(v.u.s);
    fill = f->width > n ? f->width - n : 0;
    left = f->align == '^' ? fill / 2 : f->left || f->align == '<' ? 0 : fill;
    if (f->zero && !f->left && v.u.s->n && (*v.u.s->p == '-' || *v.u.s->p == '+')) {
        tw_jsink_add(rt, k, v.u.s->p, 1, v.u.s->origin, -1);
        pad(rt, k, fill, '0');
        v = tw_jsub(rt, v.u.s, 1, v.u.s->n);
        fill = left = 0;
    }
    pad(rt, k, left, f->fill);
    tw_jsink_str(rt, k, v.u.s);
    pad(rt, k, fill - left, f->fill);
}

static struct tw_jval number_text(struct tw_jrt *rt, const struct tw_jval *v, const struct spec *f)
{
    char t[512], fmt[16];
    double d;

    if (!tw_jis_num(v))
        tw_jfail(rt, "%%%c: a number is required, not %s", f->conv, tw_jtype_name(v));
    d = tw_jnum(v);
    snprintf(fmt, sizeof(fmt), "%%%s%s%s", f->plus ? "+" : f->space ? " " : "", f->alt ? "#" : "",
            strchr("dixXo", f->conv) ? "ll" : ".*");
    fmt[strlen(fmt) + 1] = 0;
    fmt[strlen(fmt)] = f->conv == 'i' ? 'd' : f->conv;
    if (strchr("dixXo", f->conv)) {
        if (v->t == TW_V_FLOAT && !(fabs(d) < 9e18))
            tw_jfail(rt, "%%%c of a number that is out of range", f->conv);
        snprintf(t, sizeof(t), fmt, v->t == TW_V_INT ? (long long)v->u.i : (long long)d);
    } else {
        int prec = f->prec < 0 ? 6 : f->prec > 100 ? 100 : (int)f->prec;

        snprintf(t, sizeof(t), fmt, prec, d);
    }
    return tw_jtext(rt, tw_arena_dup(rt->a, t, strlen(t)), strlen(t), v->origin);
}

static void put_spec(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v,
        const struct spec *f)
{
    struct tw_jsink *x;

    switch (f->conv) {
    case 's':
        put_padded(rt, k, tw_jstring(rt, v), f);
        return;
    case 'r':
        x = tw_jsink_begin(rt);
        tw_jrepr(rt, x, v);
        put_padded(rt, k, tw_jsink_take(rt, x), f);
        return;
    case 'd': case 'i': case 'x': case 'X': case 'o':
    case 'f': case 'F': case 'e': case 'E': case 'g': case 'G':
        put_padded(rt, k, number_text(rt, v, f), f);
        return;
    default:
        tw_jfail(rt, "the format character '%c' is not supported", f->conv);
    }
}

/* "%s and %d" % values, also by name: "%(a)s" % {"a": 1}. */
struct tw_jval tw_jpercent(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;
    int64_t next = 0;

    while (p < end) {
        const char *q = memchr(p, '%', (size_t)(end - p));
        struct spec f = { .fill = ' ', .prec = -1 };
        const struct tw_jval *v = NULL;

        add_range(rt, k, s, (size_t)(p - s->p), (size_t)((q ? q : end) - s->p));
        if (!q)
            break;
        p = q + 1;
        if (p < end && *p == '(') {
            const char *close = memchr(p, ')', (size_t)(end - p));

            if (!close || args->n != 1 || args->v[0].t != TW_V_DICT)
                tw_jfail(rt, "format requires a mapping");
            v = tw_jdict_gets(rt, args->v[0].u.m, (struct tw_str){ p + 1, (size_t)(close - p - 1) });
            if (!v)
                tw_jfail(rt, "a name in the format is not in the mapping");
            p = close + 1;
            next = 1;
        }
        for (; p < end && *p && strchr("-0+ #", *p); p++) {
            f.left |= *p == '-';
            f.zero |= *p == '0';
            f.plus |= *p == '+';
            f.space |= *p == ' ';
            f.alt |= *p == '#';
        }
        f.fill = f.zero && !f.left ? '0' : ' ';
        f.width = spec_number(rt, &p, end);
        if (p < end && *p == '.') {
            p++;
            f.prec = spec_number(rt, &p, end);
        }
        if (p == end)
            tw_jfail(rt, "incomplete format");
        f.conv = *p++;
        if (f.conv == '%') {
            tw_jsink_lit(rt, k, "%");
            continue;
        }
        if (!v && next >= args->n)
            tw_jfail(rt, "not enough arguments for format string");
        put_spec(rt, k, v ? v : &args->v[next++], &f);
    }
    if (next < args->n && !(args->n == 1 && args->v[0].t == TW_V_DICT))
        tw_jfail(rt, "not all arguments converted during string formatting");
    return tw_jsink_take(rt, k);
}

/* The "[[fill]align][sign][0][width][.prec][type]" of "{:..}". */
static struct spec brace_spec(struct tw_jrt *rt, const char *p, const char *end,
        const struct tw_jval *v)
{
    struct spec f = { .fill = ' ', .prec = -1, .conv = v->t == TW_V_INT ? 'd' : 's' };

    if (end - p >= 2 && strchr("<>^", p[1])) {
        f.fill = p[0];
        f.align = p[1];
        p += 2;
    } else if (p < end && strchr("<>^", *p)) {
        f.align = *p++;
    }
    if (p < end && (*p == '+' || *p == ' ' || *p == '-')) {
        f.plus = *p == '+';
        f.space = *p++ == ' ';
    }
    if (p < end && *p == '0') {
        f.zero = true;
        f.fill = '0';
        p++;
    }
    f.width = spec_number(rt, &p, end);
    if (p < end && *p == '.') {
        p++;
        f.prec = spec_number(rt, &p, end);
        if (v->t == TW_V_FLOAT)
            f.conv = 'g';
    }
    if (p < end)
        f.conv = *p++;
    if (p < end)
        tw_jfail(rt, "a format that is not supported");
    if (!f.align)
        f.align = v->t == TW_V_STR ? '<' : '>';
    return f;
}

static const struct tw_jval *brace_field(struct tw_jrt *rt, struct tw_jargs *args, struct tw_str name,
        int64_t *next)
{
    const char *p = name.p;
    int64_t i;

    if (!name.n)
        i = (*next)++;
    else if (*p >= '0' && *p <= '9')
        i = spec_number(rt, &p, name.p + name.n);
    else
        i = -1;
    if (i >= 0 && (!name.n || p == name.p + name.n)) {
        if (i >= args->n)
            tw_jfail(rt, "a format asks for more arguments than there are");
        return &args->v[i];
    }
    for (int64_t w = 0; w < args->nkw; w++)
        if (tw_str_eq(args->name[w], name))
            return &args->kw[w];
    tw_jfail(rt, "a format asks for an argument that is not there");
}

struct tw_jval tw_jformat(struct tw_jrt *rt, const struct tw_jstr *s, struct tw_jargs *args)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;
    int64_t next = 0;

    while (p < end) {
        const char *q = p, *close, *colon;
        const struct tw_jval *v;
        struct spec f;

        while (q < end && *q != '{' && *q != '}')
            q++;
        add_range(rt, k, s, (size_t)(p - s->p), (size_t)(q - s->p));
        if (q == end)
            break;
        if (q + 1 < end && q[1] == *q) {
            add_range(rt, k, s, (size_t)(q - s->p), (size_t)(q + 1 - s->p));
            p = q + 2;
            continue;
        }
        close = memchr(q, '}', (size_t)(end - q));
        if (*q == '}' || !close)
            tw_jfail(rt, "a single '%c' in a format", *q);
        colon = memchr(q, ':', (size_t)(close - q));
        v = brace_field(rt, args, (struct tw_str){ q + 1, (size_t)((colon ? colon : close) - q - 1) },
                &next);
        f = brace_spec(rt, colon ? colon + 1 : close, close, v);
        if (!colon)
            f.conv = 's';
        put_spec(rt, k, v, &f);
        p = close + 1;
    }
    return tw_jsink_take(rt, k);
}
