/* jinja_method2.c - the methods of dict, list and loop. */
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
    struct tw_jval r;
    int64_t n = 0;

    if (m == M_COPY) {
        r = tw_jlist_new(rt, l->n, l->kind);
        for (int64_t i = 0; i < l->n; i++)
            tw_jlist_add(rt, r.u.l, l->v[i]);
        return r;
    }
    if (!x)
        tw_jfail(rt, "a value to look for is needed");
    for (int64_t i = 0; i < l->n; i++)
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
