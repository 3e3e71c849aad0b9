/* jinja_op.c - the operators + - * / // % ** of numbers, texts and lists. */
#include "jinja_priv.h"

#include <math.h>

static struct tw_jval repeat(struct tw_jrt *rt, const struct tw_jval *v, int64_t n)
{
    struct tw_jval r;

    if (v->t == TW_V_STR) {
        struct tw_jsink *k = tw_jsink_begin(rt);

        for (int64_t i = 0; i < n && v->u.s->n; i++) {
            tw_jstep(rt, 1);
            tw_jsink_str(rt, k, v->u.s);
        }
        return tw_jsink_take(rt, k);
    }
    r = tw_jlist_new(rt, 0, v->u.l->kind);
    for (int64_t i = 0; i < n && v->u.l->n; i++)
        for (int64_t k = 0; k < v->u.l->n; k++)
            tw_jlist_add(rt, r.u.l, v->u.l->v[k]);
    return r;
}

static struct tw_jval int_op(struct tw_jrt *rt, enum tw_jop op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;

    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_FLOOR:
    case OP_MOD:
        if (!b)
            tw_jfail(rt, "integer modulo by zero");
        if (b == -1) {
            over = op == OP_FLOOR && a == INT64_MIN;
            r = op == OP_MOD || over ? 0 : -a;
            break;
        }
        r = op == OP_FLOOR ? a / b : a % b;
        if (a % b && (a < 0) != (b < 0))
            r += op == OP_FLOOR ? -1 : b;
        break;
    default: /* OP_POW, b >= 0 */
        if (b > 64 && (a > 1 || a < -1))
            over = true;
        else if (a == 0 || a == 1 || a == -1)
            r = !b || a == 1 || (a == -1 && b % 2 == 0) ? 1 : a;
        else
            for (r = 1; b > 0 && !over; b--)
                over = __builtin_mul_overflow(r, a, &r);
        break;
    }
    if (over)
        tw_jfail(rt, "an integer over 64 bits");
    return tw_jint(r);
}

static struct tw_jval number_op(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b)
{
    double x = tw_jnum(a), y = tw_jnum(b);
    int64_t i = a->t == TW_V_BOOL ? a->u.b : a->u.i, k = b->t == TW_V_BOOL ? b->u.b : b->u.i;

    if (a->t != TW_V_FLOAT && b->t != TW_V_FLOAT && op != OP_DIV && !(op == OP_POW && k < 0))
        return int_op(rt, op, i, k);
    if ((op == OP_DIV || op == OP_FLOOR || op == OP_MOD) && y == 0)
        tw_jfail(rt, "division by zero");
    switch (op) {
    case OP_ADD: return tw_jfloat(x + y);
    case OP_SUB: return tw_jfloat(x - y);
    case OP_MUL: return tw_jfloat(x * y);
    case OP_DIV: return tw_jfloat(x / y);
    case OP_FLOOR: return tw_jfloat(floor(x / y));
    case OP_MOD: return tw_jfloat(x - y * floor(x / y));
    default: return tw_jfloat(pow(x, y));
    }
}

static struct tw_jval join2(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    struct tw_jsink *k = tw_jsink_begin(rt);

    tw_jprint(rt, k, a);
    tw_jprint(rt, k, b);
    return tw_jsink_take(rt, k);
}

static struct tw_jval join_lists(struct tw_jrt *rt, const struct tw_jlist *a,
        const struct tw_jlist *b)
{
    struct tw_jval r = tw_jlist_new(rt, a->n + b->n, a->kind);

    tw_jstep(rt, (a->n + b->n) >> 2);
    if (a->n)
        memcpy(r.u.l->v, a->v, (size_t)a->n * sizeof(*a->v));
    if (b->n)
        memcpy(r.u.l->v + a->n, b->v, (size_t)b->n * sizeof(*b->v));
    r.u.l->n = a->n + b->n;
    return r;
}

static _Noreturn void fail_operands(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b)
{
    static const char *const names[] = { "", "+", "-", "*", "/", "//", "%", "**" };

    if (a->t == TW_V_UNDEF)
        tw_jfail_undefined(rt, a);
    if (b->t == TW_V_UNDEF)
        tw_jfail_undefined(rt, b);
    if (op == OP_ADD && a->t == TW_V_STR)
        tw_jfail(rt, "can only concatenate str (not \"%s\") to str", tw_jtype_name(b));
    tw_jfail(rt, "unsupported operand type(s) for %s: '%s' and '%s'", names[op], tw_jtype_name(a),
            tw_jtype_name(b));
}

struct tw_jval tw_jbinary(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b)
{
    if (tw_jis_num(a) && tw_jis_num(b))
        return number_op(rt, op, a, b);
    if (op == OP_ADD) {
        if (a->t == TW_V_STR && b->t == TW_V_STR)
            return join2(rt, a, b);
        if (a->t == TW_V_LIST && b->t == TW_V_LIST && a->u.l->kind == b->u.l->kind &&
                a->u.l->kind <= TW_L_TUPLE)
            return join_lists(rt, a->u.l, b->u.l);
        if (rt->json_style && (a->t == TW_V_STR || b->t == TW_V_STR))
            return join2(rt, a, b);
    }
    if (op == OP_MUL) {
        bool left = a->t == TW_V_INT || a->t == TW_V_BOOL;
        const struct tw_jval *n = left ? a : b, *v = left ? b : a;

        if ((n->t == TW_V_INT || n->t == TW_V_BOOL) && (v->t == TW_V_STR || (v->t == TW_V_LIST &&
                v->u.l->kind <= TW_L_TUPLE)))
            return repeat(rt, v, n->t == TW_V_INT ? n->u.i : n->u.b);
    }
    if (op == OP_MOD && a->t == TW_V_STR) {
        struct tw_jargs args = { .v = (struct tw_jval *)b, .n = 1 };

        if (b->t == TW_V_LIST && b->u.l->kind == TW_L_TUPLE)
            args = (struct tw_jargs){ .v = b->u.l->v, .n = b->u.l->n };
        return tw_jpercent(rt, a->u.s, &args);
    }
    fail_operands(rt, op, a, b);
}
