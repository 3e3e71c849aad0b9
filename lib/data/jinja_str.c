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

struct tw_jval tw_jmark(struct tw_jrt *rt, const struct tw_jval *text, bool safe)
{
    struct tw_jstr *s;

    if (text->t != TW_V_STR || text->u.s->safe == safe)
        return *text;
    s = tw_jalloc(rt, sizeof(*s));
    *s = *text->u.s;
    s->safe = safe;
    return (struct tw_jval){ .t = TW_V_STR, .u.s = s };
}

struct tw_jval tw_jescape(struct tw_jrt *rt, const struct tw_jval *v)
{
    static const char *const pair[][2] = { { "&", "&amp;" }, { ">", "&gt;" }, { "<", "&lt;" },
        { "'", "&#39;" }, { "\"", "&#34;" } };
    struct tw_jval s = tw_jstring(rt, v);

    if (s.u.s->safe)
        return s;
    for (size_t i = 0; i < sizeof(pair) / sizeof(*pair); i++)
        s = tw_jreplace(rt, s.u.s, tw_jlit(rt, pair[i][0]).u.s, tw_jlit(rt, pair[i][1]).u.s, -1);
    return tw_jmark(rt, &s, true);
}
