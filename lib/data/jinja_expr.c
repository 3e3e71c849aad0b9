/* jinja_expr.c - tokens to expression trees, with Jinja2's precedence. */
#include "jinja_parse.h"

#include <stdlib.h>

static struct tw_jnode *parse_unary(struct tw_jparse *p, bool with_filter);

static enum tw_jop compare_op(struct tw_jparse *p)
{
    static const struct { const char *s; enum tw_jop op; } ops[] = { { "==", OP_EQ },
        { "!=", OP_NE }, { "<", OP_LT }, { "<=", OP_LE }, { ">", OP_GT }, { ">=", OP_GE } };

    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        if (tw_jskip_op(p, ops[i].s))
            return ops[i].op;
    if (tw_jskip_name(p, "in"))
        return OP_IN;
    if (tw_jis_name(p, "not") && p->tok[1].t == TW_T_NAME && tw_str_is(p->tok[1].s, "in")) {
        p->tok += 2;
        return OP_NOTIN;
    }
    return 0;
}

static struct tw_jnode *binary(struct tw_jparse *p, const struct tw_jtok *at, enum tw_jop op,
        struct tw_jnode *a, struct tw_jnode *b)
{
    struct tw_jnode *n = tw_jnode_at(p, E_BIN, at);

    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return n;
}

static struct tw_jnode *parse_pow(struct tw_jparse *p)
{
    struct tw_jnode *l = parse_unary(p, true);
    const struct tw_jtok *at = p->tok;

    while (tw_jskip_op(p, "**")) {
        l = binary(p, at, OP_POW, l, parse_unary(p, true));
        at = p->tok;
    }
    return l;
}

static struct tw_jnode *parse_mul(struct tw_jparse *p)
{
    struct tw_jnode *l = parse_pow(p);

    for (;;) {
        const struct tw_jtok *at = p->tok;
        enum tw_jop op = tw_jskip_op(p, "*") ? OP_MUL : tw_jskip_op(p, "/") ? OP_DIV :
                tw_jskip_op(p, "//") ? OP_FLOOR : tw_jskip_op(p, "%") ? OP_MOD : 0;

        if (!op)
            return l;
        l = binary(p, at, op, l, parse_pow(p));
    }
}

static struct tw_jnode *parse_concat(struct tw_jparse *p)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *first = parse_mul(p), *n, **tail;

    if (!tw_jis_op(p, "~"))
        return first;
    n = tw_jnode_at(p, E_CONCAT, at);
    n->kid = first;
    tail = &first->next;
    while (tw_jskip_op(p, "~")) {
        *tail = parse_mul(p);
        tail = &(*tail)->next;
    }
    return n;
}

static struct tw_jnode *parse_add(struct tw_jparse *p)
{
    struct tw_jnode *l = parse_concat(p);

    for (;;) {
        const struct tw_jtok *at = p->tok;
        enum tw_jop op = tw_jskip_op(p, "+") ? OP_ADD : tw_jskip_op(p, "-") ? OP_SUB : 0;

        if (!op)
            return l;
        l = binary(p, at, op, l, parse_concat(p));
    }
}

static struct tw_jnode *parse_compare(struct tw_jparse *p)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *a = parse_add(p), *n = NULL, **tail = NULL;
    enum tw_jop op;

    while (at = p->tok, (op = compare_op(p)) != 0) {
        struct tw_jnode *k = tw_jnode_at(p, E_CMP, at);

        k->op = (uint8_t)op;
        k->a = parse_add(p);
        if (!n) {
            n = tw_jnode_at(p, E_CMP, at);
            n->a = a;
            tail = &n->kid;
        }
        *tail = k;
        tail = &k->next;
    }
    return n ? n : a;
}

static struct tw_jnode *parse_not(struct tw_jparse *p)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *n;

    if (!tw_jis_name(p, "not"))
        return parse_compare(p);
    tw_jnest(p);
    p->tok++;
    n = tw_jnode_at(p, E_NOT, at);
    n->a = parse_not(p);
    p->nest--;
    return n;
}

static struct tw_jnode *parse_logic(struct tw_jparse *p, bool is_or)
{
    struct tw_jnode *l = is_or ? parse_logic(p, false) : parse_not(p);

    for (;;) {
        const struct tw_jtok *at = p->tok;
        struct tw_jnode *n;

        if (!tw_jskip_name(p, is_or ? "or" : "and"))
            return l;
        n = tw_jnode_at(p, is_or ? E_OR : E_AND, at);
        n->a = l;
        n->b = is_or ? parse_logic(p, false) : parse_not(p);
        l = n;
    }
}

struct tw_jnode *tw_jexpr_or(struct tw_jparse *p)
{
    struct tw_jnode *n;

    tw_jnest(p);
    n = parse_logic(p, true);
    p->nest--;
    return n;
}

struct tw_jnode *tw_jexpr(struct tw_jparse *p)
{
    struct tw_jnode *e;

    tw_jnest(p);
    e = parse_logic(p, true);
    for (;;) {
        const struct tw_jtok *at = p->tok;
        struct tw_jnode *n;

        if (!tw_jskip_name(p, "if"))
            break;
        n = tw_jnode_at(p, E_COND, at);
        n->a = e;
        n->b = parse_logic(p, true);
        if (tw_jskip_name(p, "else"))
            n->c = tw_jexpr(p);
        e = n;
    }
    p->nest--;
    return e;
}

struct tw_jnode *tw_jexpr_filter(struct tw_jparse *p, struct tw_jnode *n, bool inline_first)
{
    while (inline_first || tw_jskip_op(p, "|")) {
        const struct tw_jtok *at = p->tok;
        struct tw_jnode *f = tw_jnode_at(p, E_FILTER, at);

        inline_first = false;
        f->name = tw_jneed_name(p);
        f->fn = tw_jfilter_find(f->name);
        if (!f->fn)
            tw_jparse_fail(p, at, tw_jfilter_refused(f->name) ? "the filter '%.*s' is not supported" :
                    "no filter named '%.*s'", (int)f->name.n, f->name.p);
        f->a = n;
        if (tw_jskip_op(p, "("))
            f->kid = tw_jparse_args(p);
        n = f;
    }
    return n;
}

static bool starts_argument(struct tw_jparse *p)
{
    const struct tw_jtok *k = p->tok;

    if (k->t == TW_T_NAME)
        return !tw_str_is(k->s, "else") && !tw_str_is(k->s, "or") && !tw_str_is(k->s, "and") &&
                !(tw_str_is(k->s, "if") && p->j->json_style);
    return k->t == TW_T_STR || k->t == TW_T_INT || k->t == TW_T_FLOAT || tw_jis_op(p, "[") ||
            tw_jis_op(p, "{");
}

static struct tw_jnode *parse_test(struct tw_jparse *p, struct tw_jnode *of)
{
    const struct tw_jtok *at = p->tok;
    bool negated = tw_jskip_name(p, "not");
    struct tw_jnode *n = tw_jnode_at(p, E_TEST, at), *no;

    at = p->tok;
    n->name = tw_jneed_name(p);
    n->fn = tw_jtest_find(n->name);
    if (!n->fn)
        tw_jparse_fail(p, at, "no test named '%.*s'", (int)n->name.n, n->name.p);
    n->a = of;
    if (tw_jskip_op(p, "(")) {
        n->kid = tw_jparse_args(p);
    } else if (starts_argument(p)) {
        if (tw_jis_name(p, "is"))
            tw_jparse_fail(p, p->tok, "tests cannot be chained with 'is'");
        n->kid = tw_jnode_at(p, E_ARG, p->tok);
        n->kid->a = tw_jparse_postfix(p, tw_jparse_primary(p));
    }
    if (!negated)
        return n;
    no = tw_jnode_at(p, E_NOT, at);
    no->a = n;
    return no;
}

static struct tw_jnode *parse_unary(struct tw_jparse *p, bool with_filter)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *n;
    int sign = tw_jskip_op(p, "-") ? E_NEG : tw_jskip_op(p, "+") ? E_POS : 0;

    tw_jnest(p);
    if (sign) {
        n = tw_jnode_at(p, sign, at);
        n->a = parse_unary(p, false);
    } else {
        n = tw_jparse_primary(p);
    }
    n = tw_jparse_postfix(p, n);
    while (with_filter) {
        at = p->tok;
        if (tw_jis_op(p, "|"))
            n = tw_jexpr_filter(p, n, false);
        else if (tw_jskip_name(p, "is"))
            n = parse_test(p, n);
        else if (tw_jskip_op(p, "("))
            n = tw_jparse_call(p, n, at);
        else
            break;
    }
    p->nest--;
    return n;
}

/* An expression or, where commas follow, a tuple of them. */
struct tw_jnode *tw_jexpr_tuple(struct tw_jparse *p, enum tw_jtuple how)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *first = NULL, **tail = &first, *n;
    bool comma = false;

    tw_jnest(p);
    while (!(tw_jis_op(p, ")") || p->tok->t == TW_T_VAR_END || p->tok->t == TW_T_BLOCK_END ||
            (how == TW_JT_TARGET && (tw_jis_name(p, "in") || tw_jis_op(p, "="))) ||
            (how == TW_JT_ITER && tw_jis_name(p, "recursive")))) {
        if (first && !comma)
            break;
        *tail = how == TW_JT_TARGET ? tw_jparse_primary(p) : how == TW_JT_ITER ? tw_jexpr_or(p) :
                tw_jexpr(p);
        tail = &(*tail)->next;
        comma = tw_jskip_op(p, ",");
        if (!comma)
            break;
    }
    p->nest--;
    if (first && !first->next && !comma)
        return first;
    if (!first && how != TW_JT_PAREN)
        tw_jparse_fail(p, p->tok, "expected an expression");
    n = tw_jnode_at(p, E_TUPLE, at);
    n->kid = first;
    return n;
}
