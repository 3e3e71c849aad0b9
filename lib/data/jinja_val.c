/* jinja_val.c - the values of a template: texts with their origins, lists and dicts, and where
 * they are written to. */
#include "jinja_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

_Noreturn void tw_jfail(struct tw_jrt *rt, const char *fmt, ...)
{
    char msg[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    tw_fail(rt->err, rt->j->name, rt->at ? rt->at->line : 0, "%s", msg);
    longjmp(rt->fail, 1);
}

_Noreturn void tw_jfail_undefined(struct tw_jrt *rt, const struct tw_jval *v)
{
    tw_jfail(rt, "'%.*s' is undefined", (int)v->u.s->n, v->u.s->p);
}

void *tw_jalloc(struct tw_jrt *rt, size_t n)
{
    if (n > rt->mem)
        tw_jfail(rt, "the template takes too much memory");
    rt->mem -= n;
    return tw_arena_alloc(rt->a, n);
}

void *tw_jarray(struct tw_jrt *rt, int64_t n, size_t size)
{
    if (n < 0 || (uint64_t)n > SIZE_MAX / 2 / size)
        tw_jfail(rt, "the template takes too much memory");
    return tw_jalloc(rt, (size_t)n * size);
}

/* ---- sinks ---- */

struct tw_jsink *tw_jsink_begin(struct tw_jrt *rt)
{
    struct tw_jsink *k = rt->s->idle;

    if (k)
        rt->s->idle = k->next;
    else
        k = tw_xcalloc(1, sizeof(*k));
    k->n = k->nrun = 0;
    k->next = rt->s->busy;
    rt->s->busy = k;
    return k;
}

/* Gives back a sink; those that were begun after it and left behind go with it. */
static void sink_end(struct tw_jrt *rt, struct tw_jsink *k)
{
    struct tw_jsink *x;

    do {
        x = rt->s->busy;
        rt->s->busy = x->next;
        x->next = rt->s->idle;
        rt->s->idle = x;
    } while (x != k);
}

static void sink_grow(struct tw_jrt *rt, struct tw_jsink *k, size_t n)
{
    size_t cap = k->cap ? k->cap : 256;

    if (n > rt->mem || k->n + n > (size_t)1 << 31)
        tw_jfail(rt, "the template writes too much text");
    while (cap - k->n < n)
        cap *= 2;
    k->p = tw_xrealloc(k->p, cap);
    k->cap = cap;
}

void tw_jsink_add(struct tw_jrt *rt, struct tw_jsink *k, const char *p, size_t n, uint32_t origin,
        int32_t owner)
{
    struct tw_jrun *last = k->nrun ? &k->run[k->nrun - 1] : NULL;

    if (!n)
        return;
    tw_jstep(rt, (int64_t)(n >> 6));
    if (k->cap - k->n < n)
        sink_grow(rt, k, n);
    memcpy(k->p + k->n, p, n);
    k->n += n;
    if (owner < 0)
        owner = rt->owner;
    origin |= rt->gen;
    if (last && last->origin == origin && last->owner == owner) {
        last->end = k->n;
        return;
    }
    if (k->nrun == k->cap_run) {
        k->cap_run = k->cap_run ? k->cap_run * 2 : 32;
        k->run = tw_xreallocarray(k->run, k->cap_run, sizeof(*k->run));
    }
    k->run[k->nrun++] = (struct tw_jrun){ k->n, origin, owner };
}

void tw_jsink_lit(struct tw_jrt *rt, struct tw_jsink *k, const char *s)
{
    tw_jsink_add(rt, k, s, strlen(s), 0, -1);
}

void tw_jsink_str(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s)
{
    size_t at = 0;

    if (!s->nrun) {
        tw_jsink_add(rt, k, s->p, s->n, s->origin, s->owner);
        return;
    }
    for (size_t i = 0; i < s->nrun; i++) {
        tw_jsink_add(rt, k, s->p + at, s->run[i].end - at, s->run[i].origin, s->run[i].owner);
        at = s->run[i].end;
    }
}

struct tw_jval tw_jsink_take(struct tw_jrt *rt, struct tw_jsink *k)
{
    struct tw_jstr *s = tw_jalloc(rt, sizeof(*s));
    char *p = tw_jalloc(rt, k->n + 1);

    if (k->n)
        memcpy(p, k->p, k->n);
    *s = (struct tw_jstr){ .p = p, .n = k->n, .owner = -1 };
    if (k->nrun == 1) {
        s->origin = k->run[0].origin;
        s->owner = k->run[0].owner;
    } else if (k->nrun) {
        struct tw_jrun *r = tw_jalloc(rt, k->nrun * sizeof(*r));

        memcpy(r, k->run, k->nrun * sizeof(*r));
        s->run = r;
        s->nrun = k->nrun;
    }
    sink_end(rt, k);
    return (struct tw_jval){ .t = TW_V_STR, .u.s = s };
}

/* ---- making values ---- */

struct tw_jval tw_jtext(struct tw_jrt *rt, const char *p, size_t n, uint32_t origin)
{
    struct tw_jstr *s = tw_jalloc(rt, sizeof(*s));

    *s = (struct tw_jstr){ .p = p, .n = n, .origin = origin, .owner = -1 };
    return (struct tw_jval){ .t = TW_V_STR, .u.s = s };
}

struct tw_jval tw_jlit(struct tw_jrt *rt, const char *s)
{
    return tw_jtext(rt, s, strlen(s), 0);
}

struct tw_jval tw_jundef(struct tw_jrt *rt, struct tw_str name)
{
    struct tw_jval v = tw_jtext(rt, name.p, name.n, 0);

    v.t = TW_V_UNDEF;
    return v;
}

struct tw_jval tw_jsub(struct tw_jrt *rt, const struct tw_jstr *s, size_t begin, size_t end)
{
    struct tw_jstr *r = tw_jalloc(rt, sizeof(*r));
    struct tw_jrun *run;
    size_t i = 0, n;

    if (end < begin)
        end = begin;
    *r = (struct tw_jstr){ .p = s->p + begin, .n = end - begin, .origin = s->origin,
        .owner = s->owner, .safe = s->safe };
    if (s->nrun) {
        while (i < s->nrun - 1 && s->run[i].end <= begin)
            i++;
        for (n = 1; i + n < s->nrun && s->run[i + n - 1].end < end; n++)
            ;
        if (n == 1) {
            r->origin = s->run[i].origin;
            r->owner = s->run[i].owner;
        } else {
            r->run = run = tw_jalloc(rt, n * sizeof(*run));
            r->nrun = n;
            for (size_t k = 0; k < n; k++) {
                run[k] = s->run[i + k];
                run[k].end = (run[k].end < end ? run[k].end : end) - begin;
            }
        }
    }
    return (struct tw_jval){ .t = TW_V_STR, .u.s = r };
}

struct tw_jval tw_jlist_new(struct tw_jrt *rt, int64_t cap, enum tw_jlist_kind kind)
{
    struct tw_jlist *l = tw_jalloc(rt, sizeof(*l));

    l->kind = kind;
    l->cap = cap;
    l->v = cap ? tw_jarray(rt, cap, sizeof(*l->v)) : NULL;
    return (struct tw_jval){ .t = TW_V_LIST, .u.l = l };
}

void tw_jlist_add(struct tw_jrt *rt, struct tw_jlist *l, struct tw_jval v)
{
    tw_jstep(rt, 1);
    if (l->n == l->cap) {
        int64_t cap = l->cap ? l->cap * 2 : 8;
        struct tw_jval *x = tw_jarray(rt, cap, sizeof(*x));

        if (l->n)
            memcpy(x, l->v, (size_t)l->n * sizeof(*x));
        l->v = x;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct tw_jval tw_jdict_new(struct tw_jrt *rt, int64_t cap)
{
    struct tw_jdict *m = tw_jalloc(rt, sizeof(*m));

    m->msg = -1;
    m->cap = cap;
    m->e = cap ? tw_jarray(rt, cap, sizeof(*m->e)) : NULL;
    return (struct tw_jval){ .t = TW_V_DICT, .u.m = m };
}

const struct tw_jval *tw_jdict_gets(struct tw_jrt *rt, const struct tw_jdict *m, struct tw_str k)
{
    if (m->n > 16)
        tw_jstep(rt, m->n >> 4);
    for (int64_t i = 0; i < m->n; i++) {
        const struct tw_jval *x = &m->e[i].k;

        if (x->t == TW_V_STR && x->u.s->n == k.n && !memcmp(x->u.s->p, k.p, k.n))
            return &m->e[i].v;
    }
    return NULL;
}

const struct tw_jval *tw_jdict_get(struct tw_jrt *rt, const struct tw_jdict *m,
        const struct tw_jval *k)
{
    if (k->t == TW_V_STR)
        return tw_jdict_gets(rt, m, (struct tw_str){ k->u.s->p, k->u.s->n });
    if (k->t == TW_V_DICT || k->t == TW_V_NS || (k->t == TW_V_LIST && k->u.l->kind != TW_L_TUPLE))
        tw_jfail(rt, "unhashable type: '%s'", tw_jtype_name(k));
    tw_jstep(rt, m->n >> 4);
    for (int64_t i = 0; i < m->n; i++)
        if (tw_jequal(rt, &m->e[i].k, k))
            return &m->e[i].v;
    return NULL;
}

void tw_jdict_set(struct tw_jrt *rt, struct tw_jdict *m, struct tw_jval k, struct tw_jval v)
{
    struct tw_jval *old = (struct tw_jval *)tw_jdict_get(rt, m, &k);

    tw_jstep(rt, 1);
    if (old) {
        *old = v;
        return;
    }
    if (m->n == m->cap) {
        int64_t cap = m->cap ? m->cap * 2 : 8;
        struct tw_jent *e = tw_jarray(rt, cap, sizeof(*e));

        if (m->n)
            memcpy(e, m->e, (size_t)m->n * sizeof(*e));
        m->e = e;
        m->cap = cap;
    }
    m->e[m->n++] = (struct tw_jent){ k, v };
}

static struct tw_jval json_number(struct tw_jrt *rt, const struct tw_json *j, uint32_t origin)
{
    struct tw_jval v = j->is_int ? tw_jint(j->i) : tw_jfloat(j->d);
    bool digits = !j->is_int;

    for (size_t i = 0; digits && i < j->raw.n; i++)
        digits = j->raw.p[i] == '-' || (j->raw.p[i] >= '0' && j->raw.p[i] <= '9');
    if (digits && j->raw.n > TW_J_DIGITS)
        tw_jfail(rt, "an integer of more than %d digits", TW_J_DIGITS);
    if (digits) {
        v = tw_jtext(rt, j->raw.p, j->raw.n, origin);
        v.t = TW_V_BIG;
    }
    v.origin = origin;
    return v;
}

struct tw_jval tw_jval_json(struct tw_jrt *rt, const struct tw_json *j, uint32_t origin)
{
    struct tw_jval v = tw_jnone();

    switch (j->type) {
    case TW_JNULL:
        break;
    case TW_JBOOL:
        v = tw_jbool(j->b);
        v.origin = origin;
        break;
    case TW_JNUM:
        return json_number(rt, j, origin);
    case TW_JSTR:
        return tw_jtext(rt, j->str.p, j->str.n, origin);
    case TW_JARR:
        v = tw_jlist_new(rt, j->n, TW_L_LIST);
        v.u.l->origin = origin;
        for (int64_t i = 0; i < j->n; i++)
            v.u.l->v[i] = tw_jval_json(rt, &j->item[i], origin);
        v.u.l->n = j->n;
        break;
    case TW_JOBJ:
        v = tw_jdict_new(rt, j->n);
        v.u.m->origin = origin;
        for (int64_t i = 0; i < j->n; i++)
            v.u.m->e[i] = (struct tw_jent){
                tw_jtext(rt, j->item[i].key.p, j->item[i].key.n, origin),
                tw_jval_json(rt, &j->item[i], origin) };
        v.u.m->n = j->n;
        break;
    }
    return v;
}
