/* jinja_exec.c - statements, loops and macros. */
#include "jinja_priv.h"

struct tw_jscope *tw_jscope_push(struct tw_jrt *rt, struct tw_jscope *up)
{
    struct tw_jscope *s = tw_jalloc(rt, sizeof(*s));

    s->up = up;
    rt->scope = s;
    return s;
}

void tw_jbind_name(struct tw_jrt *rt, int32_t sym, struct tw_jval v)
{
    struct tw_jscope *s = rt->scope;

    if (!s->up) {
        rt->s->root[sym] = v;
        return;
    }
    for (int32_t i = 0; i < s->n; i++)
        if (s->b[i].sym == sym) {
            s->b[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        int32_t cap = s->cap ? s->cap * 2 : 8;
        struct tw_jbind *b = tw_jarray(rt, cap, sizeof(*b));

        if (s->n)
            memcpy(b, s->b, (size_t)s->n * sizeof(*b));
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (struct tw_jbind){ sym, v };
}

static void assign_namespace(struct tw_jrt *rt, const struct tw_jnode *target, struct tw_jval v)
{
    struct tw_jnode name = { .kind = E_NAME, .sym = target->sym, .line = target->line,
        .name = rt->j->sym[target->sym] };
    struct tw_jval ns = tw_jeval(rt, &name);

    rt->at = target;
    if (ns.t != TW_V_NS)
        tw_jfail(rt, "cannot assign attribute on non-namespace object");
    if (target->name.p[0] == '_')
        tw_jfail(rt, "an attribute of a namespace cannot begin with '_'");
    tw_jdict_set(rt, ns.u.m, tw_jtext(rt, target->name.p, target->name.n, 0), v);
}

static void assign(struct tw_jrt *rt, const struct tw_jnode *target, struct tw_jval v)
{
    const struct tw_jlist *l;
    int64_t i = 0;

    if (target->kind == E_NAME) {
        tw_jbind_name(rt, target->sym, v);
        return;
    }
    if (target->kind == E_NSREF) {
        assign_namespace(rt, target, v);
        return;
    }
    rt->at = target;
    if (v.t == TW_V_UNDEF)
        tw_jfail(rt, "cannot unpack an undefined value");
    l = tw_jiter(rt, &v);
    for (const struct tw_jnode *k = target->kid; k; k = k->next) {
        if (i == l->n)
            tw_jfail(rt, "not enough values to unpack");
        assign(rt, k, l->v[i++]);
    }
    if (i < l->n)
        tw_jfail(rt, "too many values to unpack");
}

void tw_jemit(struct tw_jrt *rt, const struct tw_jval *v)
{
    tw_jprint(rt, rt->out, v);
}

/* {{ a + b + c }}: texts go out one by one, without being joined first. */
static void emit_expr(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v = tw_jeval(rt, n);

    tw_jemit(rt, &v);
}

/* Runs BODY with its output caught; the text comes back. */
static struct tw_jval capture(struct tw_jrt *rt, const struct tw_jnode *body)
{
    struct tw_jsink *out = rt->out, *k = tw_jsink_begin(rt);

    rt->out = k;
    tw_jexec(rt, body);
    rt->out = out;
    return tw_jsink_take(rt, k);
}

/* ---- macros ---- */

struct tw_jval tw_jcall_macro(struct tw_jrt *rt, struct tw_jmacro *m, struct tw_jargs *args)
{
    const struct tw_jnode *n = m->node;
    struct tw_jscope *scope = rt->scope;
    struct tw_jval v, rest;
    int64_t i = 0;

    tw_jscope_push(rt, m->scope);
    for (const struct tw_jnode *k = n->kid; k; k = k->next, i++) {
        const char *name = tw_arena_dup(rt->a, k->name.p, k->name.n);
        const struct tw_jval *a = tw_jarg(args, i, name);

        v = a ? *a : k->a ? tw_jeval(rt, k->a) : tw_jundef(rt, k->name);
        tw_jbind_name(rt, k->sym, v);
    }
    if (n->kind == N_MACRO && n->caller) {
        const struct tw_jval *c = tw_jarg(args, -1, "caller");

        tw_jbind_name(rt, rt->j->sym_caller, c ? *c : tw_jundef(rt, TW_STR_LIT("caller")));
    }
    if (n->kwargs) {
        rest = tw_jdict_new(rt, 0);
        for (int64_t k = 0; k < args->nkw; k++)
            if (!(args->used >> k & 1)) {
                tw_jdict_set(rt, rest.u.m, tw_jtext(rt, args->name[k].p, args->name[k].n, 0),
                        args->kw[k]);
                args->used |= (uint64_t)1 << k;
            }
        tw_jbind_name(rt, rt->j->sym_kwargs, rest);
    }
    if (n->varargs) {
        rest = tw_jlist_new(rt, 0, TW_L_TUPLE);
        for (int64_t k = i; k < args->n; k++)
            tw_jlist_add(rt, rest.u.l, args->v[k]);
        tw_jbind_name(rt, rt->j->sym_varargs, rest);
    }
    tw_jargs_done(rt, args, n->varargs ? INT64_MAX : i, "the macro");
    v = capture(rt, n->body);
    rt->scope = scope;
    return v;
}

static struct tw_jval macro_value(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jmacro *m = tw_jalloc(rt, sizeof(*m));

    m->node = n;
    m->scope = rt->scope;
    return (struct tw_jval){ .t = TW_V_MACRO, .u.macro = m };
}

static void exec_call(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval f = tw_jeval(rt, n->a->a), v;
    struct tw_jargs args;
    struct tw_str *name;
    struct tw_jval *kw;

    tw_jargs_eval(rt, n->a->kid, &args);
    if (args.nkw == 64)
        tw_jfail(rt, "more than 64 arguments by name");
    name = tw_jarray(rt, args.nkw + 1, sizeof(*name));
    kw = tw_jarray(rt, args.nkw + 1, sizeof(*kw));
    for (int64_t i = 0; i < args.nkw; i++) {
        name[i] = args.name[i];
        kw[i] = args.kw[i];
    }
    name[args.nkw] = TW_STR_LIT("caller");
    kw[args.nkw++] = macro_value(rt, n);
    args.name = name;
    args.kw = kw;
    rt->at = n;
    v = tw_jcall(rt, &f, &args);
    tw_jemit(rt, &v);
}

/* ---- loops ---- */

static struct tw_jlist *loop_items(struct tw_jrt *rt, const struct tw_jnode *n,
        const struct tw_jval *of)
{
    struct tw_jlist *l = tw_jiter(rt, of);
    struct tw_jval kept;

    if (!n->c)
        return l;
    kept = tw_jlist_new(rt, 0, TW_L_LIST);
    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jscope *scope = rt->scope;
        struct tw_jval yes;

        tw_jscope_push(rt, scope);
        assign(rt, n->a, l->v[i]);
        yes = tw_jeval(rt, n->c);
        if (tw_jtruth(rt, &yes))
            tw_jlist_add(rt, kept.u.l, l->v[i]);
        rt->scope = scope;
    }
    return kept.u.l;
}

static void run_loop(struct tw_jrt *rt, const struct tw_jnode *n, const struct tw_jval *of,
        int64_t depth)
{
    struct tw_jscope *outer = rt->scope, *s;
    struct tw_jloop *loop = tw_jalloc(rt, sizeof(*loop));
    int32_t owner = rt->owner;
    int how = 0;

    loop->items = loop_items(rt, n, of);
    loop->depth = depth;
    loop->node = n;
    loop->scope = outer;
    s = tw_jscope_push(rt, outer);
    for (loop->i = 0; loop->i < loop->items->n && how != N_BREAK; loop->i++) {
        const struct tw_jval *v = &loop->items->v[loop->i];

        tw_jstep(rt, 1);
        s->n = 0;
        /* what the outermost loop over messages writes belongs to the message it stands on */
        if (owner < 0 && v->t == TW_V_DICT)
            rt->owner = v->u.m->msg;
        tw_jbind_name(rt, rt->j->sym_loop, (struct tw_jval){ .t = TW_V_LOOP, .u.loop = loop });
        assign(rt, n->a, *v);
        how = tw_jexec(rt, n->body);
        rt->owner = owner;
    }
    rt->scope = outer;
    if (!loop->items->n && n->els) {
        tw_jscope_push(rt, outer);
        tw_jexec(rt, n->els);
        rt->scope = outer;
    }
}

struct tw_jval tw_jloop_again(struct tw_jrt *rt, struct tw_jloop *l, const struct tw_jval *items)
{
    struct tw_jscope *scope = rt->scope;
    struct tw_jsink *out = rt->out, *k = tw_jsink_begin(rt);

    if (!l->node->op)
        tw_jfail(rt, "the loop is not recursive");
    rt->scope = l->scope;
    rt->out = k;
    run_loop(rt, l->node, items, l->depth + 1);
    rt->out = out;
    rt->scope = scope;
    return tw_jsink_take(rt, k);
}

/* ---- statements ---- */

static struct tw_jval filter_chain(struct tw_jrt *rt, const struct tw_jnode *f, struct tw_jval v)
{
    struct tw_jargs args;

    if (!f)
        return v;
    v = filter_chain(rt, f->a, v);
    tw_jargs_eval(rt, f->kid, &args);
    rt->at = f;
    return tw_jfilter(rt, f->fn, &v, &args);
}

/* What is a scope of its own but for the loops: with, filter and set blocks. */
static int exec_scoped(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jscope *scope = rt->scope;
    struct tw_jval v;
    int how = 0;

    if (n->kind == N_WITH) {
        struct tw_jscope *inner = tw_jscope_push(rt, scope);

        for (const struct tw_jnode *k = n->kid; k; k = k->next) {
            rt->scope = scope;
            v = tw_jeval(rt, k->b);
            rt->scope = inner;
            assign(rt, k->a, v);
        }
        how = tw_jexec(rt, n->body);
        rt->scope = scope;
        return how;
    }
    tw_jscope_push(rt, scope);
    v = capture(rt, n->body);
    rt->scope = scope;
    v = filter_chain(rt, n->kind == N_FILTERBLOCK ? n->a : n->kid, v);
    if (n->kind == N_FILTERBLOCK)
        tw_jemit(rt, &v);
    else
        assign(rt, n->a, v);
    return 0;
}

static int exec_one(struct tw_jrt *rt, const struct tw_jnode *n)
{
    struct tw_jval v;
    uint32_t gen;
    int how;

    switch (n->kind) {
    case N_TEXT:
        tw_jemit(rt, &n->val);
        return 0;
    case N_OUT:
        emit_expr(rt, n->a);
        return 0;
    case N_IF:
        v = tw_jeval(rt, n->a);
        return tw_jexec(rt, tw_jtruth(rt, &v) ? n->body : n->els);
    case N_FOR:
        v = tw_jeval(rt, n->b);
        run_loop(rt, n, &v, 1);
        return 0;
    case N_SET:
        assign(rt, n->a, tw_jeval(rt, n->b));
        return 0;
    case N_MACRO:
        tw_jbind_name(rt, n->sym, macro_value(rt, n));
        return 0;
    case N_CALL:
        exec_call(rt, n);
        return 0;
    case N_GENERATION:
        gen = rt->gen;
        rt->gen = TW_J_GEN;
        how = tw_jexec(rt, n->body);
        rt->gen = gen;
        return how;
    case N_BREAK:
    case N_CONTINUE:
        return n->kind;
    default:
        return exec_scoped(rt, n);
    }
}

int tw_jexec(struct tw_jrt *rt, const struct tw_jnode *n)
{
    int how = 0;

    if (++rt->depth > TW_J_DEPTH)
        tw_jfail(rt, "the template calls itself too deeply");
    for (; n && !how; n = n->next) {
        tw_jstep(rt, 1);
        rt->at = n;
        how = exec_one(rt, n);
    }
    rt->depth--;
    return how;
}
