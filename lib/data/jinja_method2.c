/* jinja_method2.c - the methods of dict, list, loop and cycler. */
#include "jinja_method.h"

struct tw_jval tw_jdict_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jdict *d,
        struct tw_jargs *a)
{
    const struct tw_jval *key = m == M_GET ? tw_jarg(a, 0, "key") : NULL, *x;
    struct tw_jval l;

    if (m == M_GET) {
        if (!key)
            tw_jfail(rt, "get expected at least 1 argument");
        x = tw_jdict_get(rt, d, key);
        x = x ? x : tw_jarg(a, 1, "default");
        return x ? *x : tw_jnone();
    }
    if (m == M_COPY) {
        l = tw_jdict_new(rt, d->n);
        for (int64_t i = 0; i < d->n; i++)
            l.u.m->e[i] = d->e[i];
        l.u.m->n = d->n;
        return l;
    }
    l = tw_jlist_new(rt, d->n, TW_L_VIEW);
    l.u.l->of.view = m == M_ITEMS ? "items" : m == M_KEYS ? "keys" : "values";
    for (int64_t i = 0; i < d->n; i++) {
        struct tw_jval pair;

        if (m != M_ITEMS) {
            tw_jlist_add(rt, l.u.l, m == M_KEYS ? d->e[i].k : d->e[i].v);
            continue;
        }
        pair = tw_jlist_new(rt, 2, TW_L_TUPLE);
        tw_jlist_add(rt, pair.u.l, d->e[i].k);
        tw_jlist_add(rt, pair.u.l, d->e[i].v);
        tw_jlist_add(rt, l.u.l, pair);
    }
    return l;
}

struct tw_jval tw_jlist_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jlist *l,
        struct tw_jargs *a)
{
    const struct tw_jval *x = m == M_COPY ? NULL : tw_jarg(a, 0, NULL);
    int64_t n = 0, from = tw_jarg_int(rt, a, 1, NULL, 0), to = tw_jarg_int(rt, a, 2, NULL, l->n);
    struct tw_jval r;

    if (m == M_COPY) {
        if (l->kind != TW_L_LIST)
            tw_jfail(rt, "only a list or dict has copy()");
        r = tw_jlist_new(rt, l->n, l->kind);
        for (int64_t i = 0; i < l->n; i++)
            tw_jlist_add(rt, r.u.l, l->v[i]);
        return r;
    }
    if (l->kind > TW_L_RANGE)
        tw_jfail(rt, "a generator or view has no such method");
    if (!x)
        tw_jfail(rt, "a value to look for is needed");
    from = from < 0 ? (from + l->n < 0 ? 0 : from + l->n) : from;
    to = to < 0 ? to + l->n : to > l->n ? l->n : to;
    for (int64_t i = from; i < to; i++)
        if (tw_jequal(rt, &l->v[i], x)) {
            if (m == M_LINDEX)
                return tw_jint(i);
            n++;
        }
    if (m == M_LINDEX)
        tw_jfail(rt, "the value is not in the list");
    return tw_jint(n);
}

struct tw_jval tw_jloop_method(struct tw_jrt *rt, enum tw_jmethod m, struct tw_jloop *l,
        struct tw_jargs *a)
{
    struct tw_jval now = tw_jlist_new(rt, a->n, TW_L_TUPLE), old;
    bool changed;

    if (m == M_CYCLE) {
        if (!a->n)
            tw_jfail(rt, "no items for cycling given");
        return a->v[l->i % a->n];
    }
    for (int64_t i = 0; i < a->n; i++)
        tw_jlist_add(rt, now.u.l, a->v[i]);
    old = (struct tw_jval){ .t = TW_V_LIST, .u.l = l->changed };
    changed = !l->changed || !tw_jequal(rt, &old, &now);
    l->changed = now.u.l;
    return tw_jbool(changed);
}

struct tw_jval tw_jcycle_method(struct tw_jrt *rt, enum tw_jmethod m, struct tw_jcycle *c)
{
    struct tw_jval v = c->items->v[c->pos];

    tw_jstep(rt, 1);
    c->pos = m == M_RESET ? 0 : (c->pos + 1) % c->items->n;
    return m == M_RESET ? tw_jnone() : v;
}

struct tw_jval tw_jfromkeys(struct tw_jrt *rt, struct tw_jargs *a)
{
    const struct tw_jval *keys = tw_jarg(a, 0, NULL), *v = tw_jarg(a, 1, NULL);
    struct tw_jval r = tw_jdict_new(rt, 0);
    const struct tw_jlist *l;

    if (!keys)
        tw_jfail(rt, "fromkeys needs keys");
    l = tw_jiter(rt, keys);
    for (int64_t i = 0; i < l->n; i++)
        tw_jdict_set(rt, r.u.m, l->v[i], v ? *v : tw_jnone());
    return r;
}
