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

/* Arguments behind "(", up to and with ")". */
static struct tw_jnode *parse_args(struct tw_jparse *p)
{
    struct tw_jnode *first = NULL, **tail = &first;
    bool named = false, star = false, starstar = false;

    while (!tw_jskip_op(p, ")")) {
        const struct tw_jtok *at = p->tok;
        struct tw_jnode *n;

        if (first) {
            tw_jneed_op(p, ",");
            if (tw_jskip_op(p, ")"))
                break;
            at = p->tok;
        }
        if (tw_jskip_op(p, "*")) {
            if (star || starstar)
                tw_jparse_fail(p, at, "a second or misplaced * argument");
            n = tw_jnode_at(p, E_STAR, at);
            star = true;
        } else if (tw_jskip_op(p, "**")) {
            if (starstar)
                tw_jparse_fail(p, at, "a second ** argument");
            n = tw_jnode_at(p, E_STARSTAR, at);
            starstar = true;
        } else if (p->tok->t == TW_T_NAME && p->tok[1].t == TW_T_OP && tw_str_is(p->tok[1].s, "=")) {
            n = tw_jnode_at(p, E_KWARG, at);
            n->name = at->s;
            p->tok += 2;
            named = true;
        } else {
            if (named || star || starstar)
                tw_jparse_fail(p, at, "an argument by position behind arguments by name");
            n = tw_jnode_at(p, E_ARG, at);
        }
        n->a = tw_jexpr(p);
        *tail = n;
        tail = &n->next;
    }
    return first;
}

static struct tw_jnode *none_node(struct tw_jparse *p)
{
    struct tw_jnode *n = tw_jnode_at(p, E_CONST, p->tok);

    n->val = tw_jnone();
    return n;
}

/* What stands between "[" and "]": an index, a tuple of them, or a slice. */
static struct tw_jnode *parse_subscript(struct tw_jparse *p, struct tw_jnode *of,
        const struct tw_jtok *at)
{
    struct tw_jnode *part[3] = { NULL, NULL, NULL }, *n;
    int k = 0;
    bool slice = false;

    for (; !tw_jis_op(p, "]") && !tw_jis_op(p, ","); ) {
        if (tw_jskip_op(p, ":")) {
            slice = true;
            if (++k > 2)
                tw_jparse_fail(p, p->tok, "a third ':' in a slice");
        } else if (part[k]) {
            tw_jparse_fail(p, p->tok, "expected ']'");
        } else {
            part[k] = tw_jexpr(p);
        }
    }
    if (tw_jis_op(p, ","))
        tw_jparse_fail(p, p->tok, "an index of several parts");
    tw_jneed_op(p, "]");
    if (!slice) {
        if (!part[0])
            tw_jparse_fail(p, at, "an empty index");
        n = tw_jnode_at(p, E_ITEM, at);
        n->b = part[0];
    } else {
        n = tw_jnode_at(p, E_SLICE, at);
        for (int i = 2; i >= 0; i--) {
            struct tw_jnode *x = part[i] ? part[i] : none_node(p);

            x->next = n->kid;
            n->kid = x;
        }
    }
    n->a = of;
    return n;
}

static struct tw_jnode *parse_call(struct tw_jparse *p, struct tw_jnode *f,
        const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_CALL, at);

    n->a = f;
    n->kid = parse_args(p);
    return n;
}

static struct tw_jnode *parse_postfix(struct tw_jparse *p, struct tw_jnode *n)
{
    for (;;) {
        const struct tw_jtok *at = p->tok;

        if (tw_jskip_op(p, ".")) {
            struct tw_jnode *x;

            if (p->tok->t == TW_T_NAME) {
                x = tw_jnode_at(p, E_ATTR, p->tok);
                x->name = p->tok->s;
            } else if (p->tok->t == TW_T_INT) {
                x = tw_jnode_at(p, E_ITEM, p->tok);
                x->b = tw_jnode_at(p, E_CONST, p->tok);
                x->b->val = tw_jint(p->tok->i);
            } else {
                tw_jparse_fail(p, p->tok, "expected a name or number behind '.'");
            }
            p->tok++;
            x->a = n;
            n = x;
        } else if (tw_jskip_op(p, "[")) {
            n = parse_subscript(p, n, at);
        } else if (tw_jskip_op(p, "(")) {
            n = parse_call(p, n, at);
        } else {
            return n;
        }
    }
}

static struct tw_jnode *parse_dict(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_DICT, at), **tail = &n->kid;

    while (!tw_jskip_op(p, "}")) {
        if (n->kid) {
            tw_jneed_op(p, ",");
            if (tw_jskip_op(p, "}"))
                break;
        }
        *tail = tw_jexpr(p);
        tail = &(*tail)->next;
        tw_jneed_op(p, ":");
        *tail = tw_jexpr(p);
        tail = &(*tail)->next;
    }
    return n;
}

static struct tw_jnode *parse_list(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_LIST, at), **tail = &n->kid;

    while (!tw_jskip_op(p, "]")) {
        if (n->kid) {
            tw_jneed_op(p, ",");
            if (tw_jskip_op(p, "]"))
                break;
        }
        *tail = tw_jexpr(p);
        tail = &(*tail)->next;
    }
    return n;
}

static struct tw_jnode *parse_string(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_CONST, at);
    struct tw_buf b = {0};

    if (p->tok->t != TW_T_STR) {
        n->val = tw_jparse_text(p, at->s);
        return n;
    }
    tw_buf_adds(&b, at->s);
    for (; p->tok->t == TW_T_STR; p->tok++)
        tw_buf_adds(&b, p->tok->s);
    n->val = tw_jparse_text(p, tw_arena_str(&p->j->arena, tw_buf_str(&b)));
    tw_buf_free(&b);
    return n;
}

static struct tw_jnode *parse_name(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_CONST, at);

    if (tw_str_is(at->s, "true") || tw_str_is(at->s, "True")) {
        n->val = tw_jbool(true);
    } else if (tw_str_is(at->s, "false") || tw_str_is(at->s, "False")) {
        n->val = tw_jbool(false);
    } else if (tw_str_is(at->s, "none") || tw_str_is(at->s, "None") ||
            (p->j->json_style && tw_str_is(at->s, "null"))) {
        n->val = tw_jnone();
    } else {
        n->kind = E_NAME;
        n->name = at->s;
        n->sym = tw_jsymbol(p, at->s);
        tw_jname_used(p, at->s);
    }
    return n;
}

static struct tw_jnode *parse_primary(struct tw_jparse *p)
{
    const struct tw_jtok *at = p->tok++;
    struct tw_jnode *n;

    switch (at->t) {
    case TW_T_NAME:
        return parse_name(p, at);
    case TW_T_STR:
        return parse_string(p, at);
    case TW_T_INT:
    case TW_T_FLOAT:
        n = tw_jnode_at(p, E_CONST, at);
        n->val = at->t == TW_T_INT ? tw_jint(at->i) : tw_jfloat(at->d);
        return n;
    case TW_T_OP:
        if (tw_str_is(at->s, "(")) {
            n = tw_jexpr_tuple(p, TW_JT_PAREN);
            tw_jneed_op(p, ")");
            return n;
        }
        if (tw_str_is(at->s, "["))
            return parse_list(p, at);
        if (tw_str_is(at->s, "{"))
            return parse_dict(p, at);
        break;
    default:
        break;
    }
    p->tok = at;
    tw_jparse_fail(p, at, "expected an expression");
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
            tw_jparse_fail(p, at, "no filter named '%.*s'", (int)f->name.n, f->name.p);
        f->a = n;
        if (tw_jskip_op(p, "("))
            f->kid = parse_args(p);
        n = f;
    }
    return n;
}

static bool starts_argument(struct tw_jparse *p)
{
    const struct tw_jtok *k = p->tok;

    if (k->t == TW_T_NAME)
        return !tw_str_is(k->s, "else") && !tw_str_is(k->s, "or") && !tw_str_is(k->s, "and") &&
                !tw_str_is(k->s, "if");
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
        n->kid = parse_args(p);
    } else if (starts_argument(p)) {
        if (tw_jis_name(p, "is"))
            tw_jparse_fail(p, p->tok, "tests cannot be chained with 'is'");
        n->kid = tw_jnode_at(p, E_ARG, p->tok);
        n->kid->a = parse_postfix(p, parse_primary(p));
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
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        at = p->tok;
        if (tw_jis_op(p, "|"))
            n = tw_jexpr_filter(p, n, false);
        else if (tw_jskip_name(p, "is"))
            n = parse_test(p, n);
        else if (tw_jskip_op(p, "("))
            n = parse_call(p, n, at);
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
        *tail = how == TW_JT_TARGET ? parse_primary(p) : how == TW_JT_ITER ? tw_jexpr_or(p) :
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
