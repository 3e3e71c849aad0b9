/* jinja_args.c - the arguments of calls. */
#include "jinja_priv.h"

const struct tw_jval *tw_jarg(struct tw_jargs *a, int64_t i, const char *name)
{
    if (i >= 0 && i < a->n)
        return &a->v[i];
    for (int64_t k = 0; name && k < a->nkw; k++)
        if (tw_str_is(a->name[k], name)) {
            a->used |= (uint64_t)1 << k;
            return &a->kw[k];
        }
    return NULL;
}

const struct tw_jstr *tw_jarg_str(struct tw_jrt *rt, struct tw_jargs *a, int64_t i,
        const char *name)
{
    const struct tw_jval *v = tw_jarg(a, i, name);

    if (!v || v->t == TW_V_NONE)
        return NULL;
    if (v->t != TW_V_STR)
        tw_jfail(rt, "expected a str for '%s', not %s", name ? name : "the argument",
                tw_jtype_name(v));
    return v->u.s;
}

int64_t tw_jarg_int(struct tw_jrt *rt, struct tw_jargs *a, int64_t i, const char *name, int64_t def)
{
    const struct tw_jval *v = tw_jarg(a, i, name);

    if (!v || v->t == TW_V_NONE)
        return def;
    if (v->t == TW_V_BOOL)
        return v->u.b;
    if (v->t == TW_V_BIG)
        tw_jfail(rt, "the int for '%s' is out of range", name ? name : "the argument");
    if (v->t != TW_V_INT)
        tw_jfail(rt, "expected an int for '%s', not %s", name ? name : "the argument",
                tw_jtype_name(v));
    return v->u.i;
}

bool tw_jarg_bool(struct tw_jrt *rt, struct tw_jargs *a, int64_t i, const char *name, bool def)
{
    const struct tw_jval *v = tw_jarg(a, i, name);

    return v ? tw_jtruth(rt, v) : def;
}

void tw_jargs_done(struct tw_jrt *rt, struct tw_jargs *a, int64_t max, const char *what)
{
    if (a->n > max)
        tw_jfail(rt, "%s takes at most %lld arguments, not %lld", what, (long long)max,
                (long long)a->n);
    for (int64_t k = 0; k < a->nkw; k++)
        if (!(a->used >> k & 1))
            tw_jfail(rt, "%s has no argument named '%.*s'", what, (int)a->name[k].n, a->name[k].p);
}

static void add_keyword(struct tw_jrt *rt, struct tw_jargs *a, int64_t *cap, struct tw_str name,
        struct tw_jval v)
{
    if (a->nkw == 64)
        tw_jfail(rt, "more than 64 arguments by name");
    if (a->nkw == *cap) {
        int64_t n = *cap ? *cap * 2 : 4;
        struct tw_str *names = tw_jarray(rt, n, sizeof(*names));
        struct tw_jval *kw = tw_jarray(rt, n, sizeof(*kw));

        for (int64_t i = 0; i < a->nkw; i++) {
            names[i] = a->name[i];
            kw[i] = a->kw[i];
        }
        a->name = names;
        a->kw = kw;
        *cap = n;
    }
    a->name[a->nkw] = name;
    a->kw[a->nkw++] = v;
}

void tw_jargs_eval(struct tw_jrt *rt, const struct tw_jnode *kid, struct tw_jargs *out)
{
    struct tw_jval list;
    int64_t cap = 0, n = 0;

    *out = (struct tw_jargs){0};
    if (!kid)
        return;
    for (const struct tw_jnode *k = kid; k; k = k->next)
        n++;
    list = tw_jlist_new(rt, n, TW_L_LIST);
    for (; kid; kid = kid->next) {
        struct tw_jval v = tw_jeval(rt, kid->a);

        if (kid->kind == E_ARG) {
            tw_jlist_add(rt, list.u.l, v);
        } else if (kid->kind == E_KWARG) {
            add_keyword(rt, out, &cap, kid->name, v);
        } else if (kid->kind == E_STAR) {
            const struct tw_jlist *l = tw_jiter(rt, &v);

            for (int64_t i = 0; i < l->n; i++)
                tw_jlist_add(rt, list.u.l, l->v[i]);
        } else {
            if (v.t != TW_V_DICT)
                tw_jfail(rt, "the argument behind ** must be a dict");
            for (int64_t i = 0; i < v.u.m->n; i++) {
                const struct tw_jval *key = &v.u.m->e[i].k;

                if (key->t != TW_V_STR)
                    tw_jfail(rt, "the keys behind ** must be str");
                add_keyword(rt, out, &cap, (struct tw_str){ key->u.s->p, key->u.s->n },
                        v.u.m->e[i].v);
            }
        }
    }
    out->v = list.u.l->v;
    out->n = list.u.l->n;
}
