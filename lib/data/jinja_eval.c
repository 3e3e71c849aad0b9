/* jinja_eval.c - expressions: the tree is walked, a value comes back. */
#include "jinja_priv.h"

#include <math.h>

enum { CHAIN = 24 };    /* operands of a + b + c .. that are joined in one go */

/* ---- names, attributes, items ---- */

static struct tw_jval lookup(struct tw_jrt *rt, const struct tw_jnode *n)
{
    const struct tw_jval *v;

    for (const struct tw_jscope *s = rt->scope; s->up; s = s->up)
        for (int32_t i = s->n; i-- > 0;)
            if (s->b[i].sym == n->sym)
                return s->b[i].v;
    v = &rt->s->root[n->sym];
    if (!v->missing)
        return *v;
    if (rt->j->global[n->sym])
        return (struct tw_jval){ .t = TW_V_FUNC, .fn = rt->j->global[n->sym] };
    return tw_jundef(rt, n->name);
}

static struct tw_jval loop_attr(struct tw_jrt *rt, const struct tw_jloop *l, struct tw_str name)
{
    static const char *const fields[] = { "index", "index0", "revindex", "revindex0", "first",
        "last", "length", "depth", "depth0", "previtem", "nextitem" };
    int64_t n = l->items->n;
    size_t f = 0;

    while (f < sizeof(fields) / sizeof(*fields) && !tw_str_is(name, fields[f]))
        f++;
    switch (f) {
    case 0: return tw_jint(l->i + 1);
    case 1: return tw_jint(l->i);
    case 2: return tw_jint(n - l->i);
    case 3: return tw_jint(n - l->i - 1);
    case 4: return tw_jbool(l->i == 0);
    case 5: return tw_jbool(l->i == n - 1);
    case 6: return tw_jint(n);
    case 7: return tw_jint(l->depth);
    case 8: return tw_jint(l->depth - 1);
    case 9: return l->i ? l->items->v[l->i - 1] : tw_jundef(rt, name);
    case 10: return l->i + 1 < n ? l->items->v[l->i + 1] : tw_jundef(rt, name);
    default: return tw_jundef(rt, name);
    }
}

static struct tw_jval bind_method(struct tw_jrt *rt, const struct tw_jval *v, uint16_t fn)
{
    struct tw_jval *self = tw_jalloc(rt, sizeof(*self));

    *self = *v;
    return (struct tw_jval){ .t = TW_V_METHOD, .fn = fn, .u.self = self };
}

static struct tw_jval macro_attr(struct tw_jrt *rt, const struct tw_jnode *n, struct tw_str name)
{
    struct tw_jval names;

    if (tw_str_is(name, "name"))
        return n->kind == N_MACRO ? tw_jtext(rt, n->name.p, n->name.n, 0) : tw_jnone();
    if (tw_str_is(name, "catch_kwargs") || tw_str_is(name, "catch_varargs") || tw_str_is(name, "caller"))
        return tw_jbool(name.p[0] == 'c' && name.p[1] == 'a' && name.n == 6 ? n->caller :
                name.p[6] == 'k' ? n->kwargs : n->varargs);
    if (!tw_str_is(name, "arguments"))
        return tw_jundef(rt, name);
    names = tw_jlist_new(rt, 0, TW_L_TUPLE);
    for (const struct tw_jnode *k = n->kid; k; k = k->next)
        tw_jlist_add(rt, names.u.l, tw_jtext(rt, k->name.p, k->name.n, 0));
    return names;
}

/* Of what has no keys: the few attributes that Python's objects have. */
static struct tw_jval plain_attr(struct tw_jrt *rt, const struct tw_jval *v, struct tw_str name)
{
    const struct tw_jlist *l = v->t == TW_V_LIST ? v->u.l : NULL;

    if (l && l->group && (tw_str_is(name, "grouper") || tw_str_is(name, "list")))
        return l->v[tw_str_is(name, "list")];
    if (l && l->kind == TW_L_RANGE && (tw_str_is(name, "start") || tw_str_is(name, "stop")
            || tw_str_is(name, "step")))
        return tw_jint(name.n == 5 ? l->of.range.start : name.p[2] == 'o' ? l->of.range.stop :
                l->of.range.step);
    if (v->t == TW_V_MACRO)
        return macro_attr(rt, v->u.macro->node, name);
    if (v->t == TW_V_CYCLER && tw_str_is(name, "current"))
        return v->u.cycle->items->v[v->u.cycle->pos];
    if (v->t == TW_V_CYCLER && tw_str_is(name, "items"))
        return (struct tw_jval){ .t = TW_V_LIST, .u.l = v->u.cycle->items };
    if (v->t == TW_V_CYCLER && tw_str_is(name, "pos"))
        return tw_jint(v->u.cycle->pos);
    if (v->t == TW_V_JOINER && tw_str_is(name, "sep"))
        return v->u.cycle->items->v[0];
    if (tw_jis_int(v) && (tw_str_is(name, "real") || tw_str_is(name, "numerator")))
        return v->t == TW_V_BOOL ? tw_jint(v->u.b) : *v;
    if (tw_jis_num(v) && tw_str_is(name, "real"))
        return *v;
    if (tw_jis_num(v) && tw_str_is(name, "imag"))
        return v->t == TW_V_FLOAT ? tw_jfloat(0) : tw_jint(0);
    if (tw_jis_int(v) && tw_str_is(name, "denominator"))
        return tw_jint(1);
    return tw_jundef(rt, name);
}

struct tw_jval tw_jattr(struct tw_jrt *rt, const struct tw_jval *v, struct tw_str name)
{
    const struct tw_jval *x = NULL;
    uint16_t fn;

    if (v->t == TW_V_UNDEF)
        tw_jfail_undefined(rt, v);
    if (v->t == TW_V_NS) {
        x = tw_jdict_gets(rt, v->u.m, name);
        return x ? *x : tw_jundef(rt, name);
    }
    fn = tw_jmethod_find(v, name);
    if (fn)
        return bind_method(rt, v, fn);
    if (v->t == TW_V_LOOP)
        return loop_attr(rt, v->u.loop, name);
    if (v->t != TW_V_DICT)
        return plain_attr(rt, v, name);
    if (v->t == TW_V_DICT)
        x = tw_jdict_gets(rt, v->u.m, name);
    return x ? *x : tw_jundef(rt, name);
}

struct tw_jval tw_jitem(struct tw_jrt *rt, const struct tw_jval *v, const struct tw_jval *key)
{
    const struct tw_jval *x;
    int64_t i, n;

    if (v->t == TW_V_UNDEF)
        tw_jfail_undefined(rt, v);
    if (v->t == TW_V_DICT && (x = tw_jdict_get(rt, v->u.m, key)))
        return *x;
    if ((v->t == TW_V_LIST || v->t == TW_V_STR) && (key->t == TW_V_INT || key->t == TW_V_BOOL)) {
        if (v->t == TW_V_LIST && (v->u.l->kind == TW_L_GEN || v->u.l->kind == TW_L_VIEW) &&
                !rt->json_style)
            return tw_jundef(rt, TW_STR_LIT("element"));
        n = tw_jlen(rt, v);
        i = key->t == TW_V_INT ? key->u.i : key->u.b;
        i = i < 0 ? i + n : i;
        if (i < 0 || i >= n)
            return tw_jundef(rt, TW_STR_LIT("element"));
        return v->t == TW_V_LIST ? v->u.l->v[i] : tw_jchar_sub(rt, v->u.s, i, i + 1);
    }
    if (key->t == TW_V_STR)
        return v->t == TW_V_DICT ?
                ((n = tw_jmethod_find(v, (struct tw_str){ key->u.s->p, key->u.s->n })) ?
                bind_method(rt, v, (uint16_t)n) :
                tw_jundef(rt, (struct tw_str){ key->u.s->p, key->u.s->n })) :
                tw_jattr(rt, v, (struct tw_str){ key->u.s->p, key->u.s->n });
    return tw_jundef(rt, TW_STR_LIT("element"));
}

static int64_t slice_bound(struct tw_jrt *rt, const struct tw_jnode *n, int64_t def, int64_t lo,
        int64_t hi, int64_t len)
{
    struct tw_jval v = tw_jeval(rt, n);
    int64_t i;

    if (v.t == TW_V_NONE)
        return def;
    if (!tw_jis_int(&v))
        tw_jfail(rt, "slice indices must be integers or None");
    if (v.t == TW_V_BIG)
        return *v.u.s->p == '-' ? lo : hi;
    i = v.t == TW_V_INT ? v.u.i : v.u.b;
    if (i < 0)
        i = i < -len ? lo : i + len;
    return i < lo ? lo : i > hi ? hi : i;
}

static bool slice_range(const struct tw_jlist *l, struct tw_jlist *r, int64_t a, int64_t b, int64_t by)
{
    int64_t start = l->of.range.start, step = l->of.range.step, x, y;

    return !__builtin_mul_overflow(step, by, &r->of.range.step) && !__builtin_mul_overflow(step, a, &x)
            && !__builtin_mul_overflow(step, b, &y) && !__builtin_add_overflow(start, x, &r->of.range.start)
            && !__builtin_add_overflow(start, y, &r->of.range.stop);
}

static struct tw_jval eval_slice(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v = tw_jeval(rt, n->a), step = tw_jeval(rt, n->kid->next->next), r;
    struct tw_jsink *k;
    int64_t by = 1, len, a, b;

    if (v.t == TW_V_UNDEF)
        tw_jfail_undefined(rt, &v);
    if ((v.t != TW_V_LIST && v.t != TW_V_STR) ||
            (v.t == TW_V_LIST && v.u.l->kind >= TW_L_GEN && !rt->json_style))
        tw_jfail(rt, "'%s' object is not subscriptable", tw_jtype_name(&v));
    if (step.t == TW_V_INT)
        by = step.u.i;
    else if (step.t != TW_V_NONE)
        tw_jfail(rt, "slice indices must be integers or None");
    if (!by)
        tw_jfail(rt, "slice step cannot be zero");
    len = tw_jlen(rt, &v);
    a = slice_bound(rt, n->kid, by > 0 ? 0 : len - 1, by > 0 ? 0 : -1, by > 0 ? len : len - 1, len);
    b = slice_bound(rt, n->kid->next, by > 0 ? len : -1, by > 0 ? 0 : -1, by > 0 ? len : len - 1,
            len);
    if (v.t == TW_V_STR && by == 1)
        return tw_jchar_sub(rt, v.u.s, a, b);
    if (v.t == TW_V_LIST) {
        r = tw_jlist_new(rt, 0, v.u.l->kind <= TW_L_RANGE ? v.u.l->kind : TW_L_LIST);
        r.u.l->origin = v.u.l->origin;
        if (v.u.l->kind == TW_L_RANGE && !slice_range(v.u.l, r.u.l, a, b, by))
            tw_jfail(rt, "a slice of a range with numbers over 64 bits");
        for (int64_t i = a; by > 0 ? i < b : i > b; i += by) {
            tw_jlist_add(rt, r.u.l, v.u.l->v[i]);
            if (by > INT64_MAX - len || by < -(INT64_MAX - len))
                break;
        }
        return r;
    }
    k = tw_jsink_begin(rt);
    for (int64_t i = a; by > 0 ? i < b : i > b; i += by) {
        r = tw_jchar_sub(rt, v.u.s, i, i + 1);
        tw_jsink_str(rt, k, r.u.s);
        if (by > INT64_MAX - len || by < -(INT64_MAX - len))
            break;
    }
    return tw_jsink_take(rt, k);
}

/* ---- operators ---- */

static bool compare(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b)
{
    int c;

    switch (op) {
    case OP_EQ:
        return tw_jequal(rt, a, b);
    case OP_NE:
        return !tw_jequal(rt, a, b);
    case OP_IN:
        return tw_jcontains(rt, b, a);
    case OP_NOTIN:
        return !tw_jcontains(rt, b, a);
    default:
        if (a->t == TW_V_UNDEF)
            tw_jfail_undefined(rt, a);
        if (b->t == TW_V_UNDEF)
            tw_jfail_undefined(rt, b);
        if (tw_jis_num(a) && tw_jis_num(b) && (isnan(tw_jnum(a)) || isnan(tw_jnum(b))))
            return false;
        c = tw_jcompare(rt, a, b);
        return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
    }
}

/* a + b + c ..: texts are joined at once, anything else two by two from the left. */
static struct tw_jval eval_add(struct tw_jrt *rt, const struct tw_jnode *n)
{
    const struct tw_jnode *x = n;
    struct tw_jval v[CHAIN];
    struct tw_jsink *k;
    int count = 1, texts = 0;

    for (; x->kind == E_BIN && x->op == OP_ADD && count < CHAIN; x = x->a)
        count++;
    v[0] = tw_jeval(rt, x);
    texts = v[0].t == TW_V_STR && !v[0].u.s->safe;
    for (int i = 1; i < count; i++) {
        x = n;
        for (int skip = count - 1 - i; skip > 0; skip--)
            x = x->a;
        v[i] = tw_jeval(rt, x->b);
        texts += v[i].t == TW_V_STR && !v[i].u.s->safe;
    }
    if (texts < count) {
        for (int i = 1; i < count; i++)
            v[0] = tw_jbinary(rt, OP_ADD, &v[0], &v[i]);
        return v[0];
    }
    k = tw_jsink_begin(rt);
    for (int i = 0; i < count; i++)
        tw_jsink_str(rt, k, v[i].u.s);
    return tw_jsink_take(rt, k);
}

static struct tw_jval eval_compare(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval a = tw_jeval(rt, n->a), b;

    for (const struct tw_jnode *k = n->kid; k; k = k->next) {
        b = tw_jeval(rt, k->a);
        if (!compare(rt, k->op, &a, &b))
            return tw_jbool(false);
        a = b;
    }
    return tw_jbool(true);
}

static struct tw_jval eval_sign(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v = tw_jeval(rt, n->a), sign;

    if (v.t == TW_V_UNDEF)
        tw_jfail_undefined(rt, &v);
    if (!tw_jis_num(&v))
        tw_jfail(rt, "bad operand type for unary %c: '%s'", n->kind == E_NEG ? '-' : '+',
                tw_jtype_name(&v));
    if (v.t == TW_V_FLOAT)
        return tw_jfloat(n->kind == E_NEG ? -v.u.d : v.u.d);
    sign = tw_jint(n->kind == E_NEG ? -1 : 1);
    return tw_jbinary(rt, OP_MUL, &sign, &v);
}

static struct tw_jval eval_many(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval r;

    if (n->kind == E_CONCAT) {
        struct tw_jsink *k = tw_jsink_begin(rt);

        for (const struct tw_jnode *x = n->kid; x; x = x->next) {
            struct tw_jval v = tw_jeval(rt, x);

            tw_jprint(rt, k, &v);
        }
        return tw_jsink_take(rt, k);
    }
    if (n->kind == E_DICT) {
        r = tw_jdict_new(rt, 0);
        for (const struct tw_jnode *x = n->kid; x; x = x->next->next) {
            struct tw_jval key = tw_jeval(rt, x);

            tw_jdict_set(rt, r.u.m, key, tw_jeval(rt, x->next));
        }
        return r;
    }
    r = tw_jlist_new(rt, 0, n->kind == E_TUPLE ? TW_L_TUPLE : TW_L_LIST);
    for (const struct tw_jnode *x = n->kid; x; x = x->next)
        tw_jlist_add(rt, r.u.l, tw_jeval(rt, x));
    return r;
}

struct tw_jval tw_jcall(struct tw_jrt *rt, const struct tw_jval *f, struct tw_jargs *args)
{
    switch (f->t) {
    case TW_V_FUNC:
        return tw_jfunc(rt, f->fn, args);
    case TW_V_METHOD:
        return tw_jmethod(rt, f->fn, f->u.self, args);
    case TW_V_MACRO:
        return tw_jcall_macro(rt, f->u.macro, args);
    case TW_V_LOOP:
        if (args->n != 1 || args->nkw)
            tw_jfail(rt, "loop() takes one argument");
        return tw_jloop_again(rt, f->u.loop, &args->v[0]);
    case TW_V_JOINER:
        return f->u.cycle->pos++ ? f->u.cycle->items->v[0] : tw_jlit(rt, "");
    case TW_V_UNDEF:
        tw_jfail_undefined(rt, f);
    default:
        tw_jfail(rt, "'%s' object is not callable", tw_jtype_name(f));
    }
}

static struct tw_jval eval_call(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jargs args;
    struct tw_jval f, self;
    uint16_t fn;

    if (n->a->kind == E_ATTR) {
        /* a method that is called at once needs no bound value */
        self = tw_jeval(rt, n->a->a);
        fn = self.t == TW_V_UNDEF || self.t == TW_V_NS ? 0 : tw_jmethod_find(&self, n->a->name);
        if (fn) {
            tw_jargs_eval(rt, n->kid, &args);
            rt->at = n;
            return tw_jmethod(rt, fn, &self, &args);
        }
        f = tw_jattr(rt, &self, n->a->name);
        if (f.t == TW_V_UNDEF)
            tw_jfail(rt, "'%s object' has no attribute '%.*s'", tw_jtype_name(&self),
                    (int)n->a->name.n, n->a->name.p);
    } else {
        f = tw_jeval(rt, n->a);
    }
    tw_jargs_eval(rt, n->kid, &args);
    rt->at = n;
    return tw_jcall(rt, &f, &args);
}

static struct tw_jval eval_applied(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v = tw_jeval(rt, n->a);
    struct tw_jargs args;

    tw_jargs_eval(rt, n->kid, &args);
    rt->at = n;
    return n->kind == E_FILTER ? tw_jfilter(rt, n->fn, &v, &args) :
            tw_jbool(tw_jtest(rt, n->fn, &v, &args));
}

static struct tw_jval eval_node(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v, w;

    switch (n->kind) {
    case E_CONST:
        return n->val;
    case E_NAME:
        return lookup(rt, n);
    case E_ATTR:
        v = tw_jeval(rt, n->a);
        rt->at = n;
        return tw_jattr(rt, &v, n->name);
    case E_ITEM:
        v = tw_jeval(rt, n->a);
        w = tw_jeval(rt, n->b);
        rt->at = n;
        return tw_jitem(rt, &v, &w);
    case E_SLICE:
        return eval_slice(rt, n);
    case E_CALL:
        return eval_call(rt, n);
    case E_FILTER:
    case E_TEST:
        return eval_applied(rt, n);
    case E_NOT:
        v = tw_jeval(rt, n->a);
        return tw_jbool(!tw_jtruth(rt, &v));
    case E_NEG:
    case E_POS:
        return eval_sign(rt, n);
    case E_AND:
    case E_OR:
        v = tw_jeval(rt, n->a);
        return tw_jtruth(rt, &v) == (n->kind == E_OR) ? v : tw_jeval(rt, n->b);
    case E_COND:
        v = tw_jeval(rt, n->b);
        if (tw_jtruth(rt, &v))
            return tw_jeval(rt, n->a);
        return n->c ? tw_jeval(rt, n->c) : tw_jundef(rt, TW_STR_LIT("the missing else"));
    case E_BIN:
        if (n->op == OP_ADD)
            return eval_add(rt, n);
        v = tw_jeval(rt, n->a);
        w = tw_jeval(rt, n->b);
        rt->at = n;
        return tw_jbinary(rt, n->op, &v, &w);
    case E_CMP:
        return eval_compare(rt, n);
    default:
        return eval_many(rt, n);
    }
}

struct tw_jval tw_jeval(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v;

    tw_jstep(rt, 1);
    if (++rt->depth > TW_J_DEPTH)
        tw_jfail(rt, "the template calls itself too deeply");
    rt->at = n;
    v = eval_node(rt, n);
    rt->depth--;
    return v;
}
