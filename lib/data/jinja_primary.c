/* jinja_primary.c - names, constants, brackets, and what stands behind them: attributes, indices,
 * calls. */
#include "jinja_parse.h"

/* Arguments behind "(", up to and with ")". */
struct tw_jnode *tw_jparse_args(struct tw_jparse *p)
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

struct tw_jnode *tw_jparse_call(struct tw_jparse *p, struct tw_jnode *f,
        const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, E_CALL, at);

    n->a = f;
    n->kid = tw_jparse_args(p);
    return n;
}

struct tw_jnode *tw_jparse_postfix(struct tw_jparse *p, struct tw_jnode *n)
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
                x->b->val = p->tok->num;
            } else {
                tw_jparse_fail(p, p->tok, "expected a name or number behind '.'");
            }
            p->tok++;
            x->a = n;
            n = x;
        } else if (tw_jskip_op(p, "[")) {
            n = parse_subscript(p, n, at);
        } else if (tw_jskip_op(p, "(")) {
            n = tw_jparse_call(p, n, at);
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

struct tw_jnode *tw_jparse_primary(struct tw_jparse *p)
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
        n->val = at->num;
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
