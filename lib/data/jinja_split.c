/* jinja_split.c - a text cut into parts: at white space, at a separator, at line ends. */
#include "jinja_method.h"

static size_t space_run(const struct tw_jstr *s, size_t at, size_t *next)
{
    const char *p = s->p + at, *end = s->p + s->n;

    if (p == end || !tw_jspace(tw_utf8_next(&p, end)))
        return 0;
    *next = (size_t)(p - s->p);
    return 1;
}

/* From the left: words, and after MAX of them the rest as it is. */
static struct tw_jval words_left(struct tw_jrt *rt, const struct tw_jstr *s, int64_t max)
{
    struct tw_jval l = tw_jlist_new(rt, 0, TW_L_LIST);
    size_t at = 0, next;

    for (;;) {
        size_t start;

        while (space_run(s, at, &next))
            at = next;
        if (at == s->n)
            return l;
        if (max-- == 0) {
            tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, at, s->n));
            return l;
        }
        for (start = at; at < s->n && !space_run(s, at, &next); at++)
            ;
        tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, start, at));
    }
}

struct tw_jval tw_jsplit_space(struct tw_jrt *rt, const struct tw_jstr *s, int64_t max, bool right)
{
    struct tw_jval all, l, rest;
    int64_t from;

    if (!right || max < 0)
        return words_left(rt, s, max);
    all = words_left(rt, s, -1);
    l = tw_jlist_new(rt, 0, TW_L_LIST);
    from = all.u.l->n > max ? all.u.l->n - max : 0;
    if (from) {
        const char *end = from < all.u.l->n ? all.u.l->v[from].u.s->p : s->p + s->n;

        rest = tw_jsub(rt, s, 0, (size_t)(end - s->p));
        tw_jlist_add(rt, l.u.l, tw_jstrip(rt, rest.u.s, NULL, 2));
    }
    for (int64_t i = from; i < all.u.l->n; i++)
        tw_jlist_add(rt, l.u.l, all.u.l->v[i]);
    return l;
}

size_t tw_jfind_last(const char *p, size_t n, const struct tw_jstr *x)
{
    for (size_t i = n >= x->n ? n - x->n + 1 : 0; i-- > 0;)
        if (!memcmp(p + i, x->p, x->n))
            return i;
    return SIZE_MAX;
}

struct tw_jval tw_jsplit_by(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *x,
        int64_t max, bool right)
{
    struct tw_jval l = tw_jlist_new(rt, 0, TW_L_LIST), r;
    size_t at = 0, end = s->n;

    if (!x->n)
        tw_jfail(rt, "empty separator");
    for (; max != 0; max--) {
        const char *hit = NULL;
        size_t i;

        if (right) {
            i = tw_jfind_last(s->p, end, x);
            hit = i == SIZE_MAX ? NULL : s->p + i;
        } else {
            hit = tw_jfind(rt, s->p + at, s->n - at, x);
        }
        if (!hit)
            break;
        i = (size_t)(hit - s->p);
        if (right) {
            tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, i + x->n, end));
            end = i;
        } else {
            tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, at, i));
            at = i + x->n;
        }
    }
    tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, at, end));
    if (!right)
        return l;
    r = tw_jlist_new(rt, l.u.l->n, TW_L_LIST);
    for (int64_t i = l.u.l->n; i-- > 0;)
        tw_jlist_add(rt, r.u.l, l.u.l->v[i]);
    return r;
}

struct tw_jval tw_jsplit_lines(struct tw_jrt *rt, const struct tw_jstr *s, bool keep)
{
    struct tw_jval l = tw_jlist_new(rt, 0, TW_L_LIST);
    const char *p = s->p, *end = s->p + s->n;
    size_t start = 0;

    while (p < end) {
        size_t at = (size_t)(p - s->p);
        uint32_t c = tw_utf8_next(&p, end);

        if (!((c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 ||
                c == 0x2029))
            continue;
        if (c == '\r' && p < end && *p == '\n')
            p++;
        tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, start, keep ? (size_t)(p - s->p) : at));
        start = (size_t)(p - s->p);
    }
    if (start < s->n)
        tw_jlist_add(rt, l.u.l, tw_jsub(rt, s, start, s->n));
    return l;
}
