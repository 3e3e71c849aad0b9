/* jinja_ask.c - what can be asked of any value: is it true, equal, larger, in another, how long. The
 * answers are Python's. */
#include "jinja_priv.h"

#include <math.h>

const char *tw_jtype_name(const struct tw_jval *v)
{
    static const char *const names[] = { "Undefined", "NoneType", "bool", "int", "float", "int",
        "str", "list", "dict", "Namespace", "Macro", "function", "method", "LoopContext",
        "Cycler", "Joiner" };
    static const char *const lists[] = { "list", "tuple", "range", "generator", "dict_items" };

    return v->t == TW_V_LIST ? lists[v->u.l->kind] : names[v->t];
}

bool tw_jtruth(struct tw_jrt *rt, const struct tw_jval *v)
{
    switch (v->t) {
    case TW_V_UNDEF:
    case TW_V_NONE:
        return false;
    case TW_V_BOOL:
        return v->u.b;
    case TW_V_INT:
        return v->u.i != 0;
    case TW_V_FLOAT:
        return v->u.d != 0;
    case TW_V_STR:
        return v->u.s->n != 0;
    case TW_V_LIST:
        return v->u.l->n != 0 || v->u.l->kind == TW_L_GEN;
    case TW_V_DICT:
        return v->u.m->n != 0;
    default:
        return true;
    }
}

static bool list_equal(struct tw_jrt *rt, const struct tw_jlist *a, const struct tw_jlist *b)
{
    if (a->n != b->n || (a->kind == TW_L_TUPLE) != (b->kind == TW_L_TUPLE))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        if (!tw_jequal(rt, &a->v[i], &b->v[i]))
            return false;
    return true;
}

static bool dict_equal(struct tw_jrt *rt, const struct tw_jdict *a, const struct tw_jdict *b)
{
    if (a->n != b->n)
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const struct tw_jval *o = tw_jdict_get(rt, b, &a->e[i].k);

        if (!o || !tw_jequal(rt, &a->e[i].v, o))
            return false;
    }
    return true;
}

/* Exact, also between an int and a float. A NaN is larger than any number. */
static int compare_numbers(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    double x, y;
    struct tw_jval whole;
    int c;

    if (a->t == TW_V_INT && b->t == TW_V_INT)
        return a->u.i < b->u.i ? -1 : a->u.i > b->u.i;
    if (tw_jis_int(a) && tw_jis_int(b))
        return tw_jbig_compare(a, b);
    if (tw_jis_int(a))
        return -compare_numbers(rt, b, a);
    x = a->u.d;
    if (tw_jis_int(b) && fabs(x) >= 0x1p53 && isfinite(x)) {
        whole = tw_jbig_trunc(rt, x);
        return compare_numbers(rt, &whole, b);
    }
    if (b->t == TW_V_INT && (b->u.i > (int64_t)1 << 53 || b->u.i < -((int64_t)1 << 53))) {
        c = b->u.i < 0 ? 1 : -1;            /* a is nearer to zero, or not finite */
        return isfinite(x) ? c : x < 0 ? -1 : 1;
    }
    y = tw_jnum(b);
    return x < y ? -1 : !(x <= y);
}

bool tw_jequal(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    bool yes;

    tw_jstep(rt, 1);
    if (rt->json_style && (a->t == TW_V_BOOL) != (b->t == TW_V_BOOL))
        return false;
    if (tw_jis_num(a) && tw_jis_num(b))
        return compare_numbers(rt, a, b) == 0;
    if (a->t != b->t)
        return false;
    switch (a->t) {
    case TW_V_UNDEF:
    case TW_V_NONE:
        return true;
    case TW_V_STR:
        tw_jstep(rt, (int64_t)(a->u.s->n >> 6));
        return a->u.s->n == b->u.s->n && !memcmp(a->u.s->p, b->u.s->p, a->u.s->n);
    case TW_V_FUNC:
        return a->fn == b->fn;
    default:
        if (a->u.m == b->u.m)
            return true;
        if (++rt->depth > TW_J_DEPTH)
            tw_jfail(rt, "values nested too deeply");
        yes = a->t == TW_V_LIST ? list_equal(rt, a->u.l, b->u.l) :
                a->t == TW_V_DICT ? dict_equal(rt, a->u.m, b->u.m) : false;
        rt->depth--;
        return yes;
    }
}

int tw_jcompare(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    tw_jstep(rt, 1);
    if (tw_jis_num(a) && tw_jis_num(b))
        return compare_numbers(rt, a, b);
    if (a->t == TW_V_STR && b->t == TW_V_STR) {
        size_t n = a->u.s->n < b->u.s->n ? a->u.s->n : b->u.s->n;
        int c = n ? memcmp(a->u.s->p, b->u.s->p, n) : 0;

        tw_jstep(rt, (int64_t)(n >> 6));
        return c ? (c < 0 ? -1 : 1) : a->u.s->n < b->u.s->n ? -1 : a->u.s->n > b->u.s->n;
    }
    if (a->t == TW_V_LIST && b->t == TW_V_LIST && a->u.l->kind == b->u.l->kind
            && a->u.l->kind <= TW_L_TUPLE) {
        const struct tw_jlist *x = a->u.l, *y = b->u.l;

        for (int64_t i = 0; i < x->n && i < y->n; i++)
            if (!tw_jequal(rt, &x->v[i], &y->v[i]))
                return tw_jcompare(rt, &x->v[i], &y->v[i]);
        return x->n < y->n ? -1 : x->n > y->n;
    }
    tw_jfail(rt, "'%s' and '%s' cannot be ordered", tw_jtype_name(a), tw_jtype_name(b));
}

void tw_jconsume(struct tw_jrt *rt, struct tw_jlist *l, int64_t n)
{
    if (l->kind != TW_L_GEN || rt->json_style)
        return;
    l->v = l->n ? l->v + n : l->v;
    l->n -= n;
    l->cap = l->n;
}

bool tw_jcontains(struct tw_jrt *rt, const struct tw_jval *in, const struct tw_jval *x)
{
    switch (in->t) {
    case TW_V_UNDEF:
        return false;
    case TW_V_STR:
        if (x->t != TW_V_STR)
            tw_jfail(rt, "'in <string>' requires string as left operand, not %s", tw_jtype_name(x));
        tw_jstep(rt, (int64_t)(in->u.s->n >> 4));
        return tw_jfind(rt, in->u.s->p, in->u.s->n, x->u.s) != NULL;
    case TW_V_DICT:
        return tw_jdict_get(rt, in->u.m, x) != NULL;
    case TW_V_LIST:
        for (int64_t i = 0; i < in->u.l->n; i++)
            if (tw_jequal(rt, &in->u.l->v[i], x)) {
                tw_jconsume(rt, in->u.l, i + 1);
                return true;
            }
        tw_jconsume(rt, in->u.l, in->u.l->n);
        return false;
    default:
        tw_jfail(rt, "argument of type '%s' is not iterable", tw_jtype_name(in));
    }
}

int64_t tw_jlen(struct tw_jrt *rt, const struct tw_jval *v)
{
    switch (v->t) {
    case TW_V_UNDEF:
        return 0;
    case TW_V_STR:
        return (int64_t)tw_jchars(v->u.s);
    case TW_V_DICT:
        return v->u.m->n;
    case TW_V_LIST:
        if (v->u.l->kind != TW_L_GEN || rt->json_style)
            return v->u.l->n;
        break;
    case TW_V_LOOP:
        return v->u.loop->items->n;
    default:
        break;
    }
    tw_jfail(rt, "object of type '%s' has no len()", tw_jtype_name(v));
}

struct tw_jlist *tw_jiter(struct tw_jrt *rt, const struct tw_jval *v)
{
    struct tw_jval l;

    switch (v->t) {
    case TW_V_LIST:
        if (v->u.l->kind != TW_L_GEN || rt->json_style)
            return v->u.l;
        l = tw_jlist_new(rt, 0, TW_L_LIST);
        l.u.l->v = v->u.l->v;
        l.u.l->n = l.u.l->cap = v->u.l->n;
        v->u.l->n = v->u.l->cap = 0;
        return l.u.l;
    case TW_V_UNDEF:
        return tw_jlist_new(rt, 0, TW_L_LIST).u.l;
    case TW_V_DICT:
        l = tw_jlist_new(rt, v->u.m->n, TW_L_LIST);
        for (int64_t i = 0; i < v->u.m->n; i++)
            tw_jlist_add(rt, l.u.l, v->u.m->e[i].k);
        return l.u.l;
    case TW_V_STR:
        l = tw_jlist_new(rt, (int64_t)tw_jchars(v->u.s), TW_L_LIST);
        for (size_t i = 0; i < v->u.s->n;) {
            size_t n = 1;

            while (i + n < v->u.s->n && ((unsigned char)v->u.s->p[i + n] & 0xc0) == 0x80)
                n++;
            tw_jlist_add(rt, l.u.l, tw_jsub(rt, tw_jmark(rt, v, false).u.s, i, i + n));
            i += n;
        }
        return l.u.l;
    default:
        tw_jfail(rt, "'%s' object is not iterable", tw_jtype_name(v));
    }
}
