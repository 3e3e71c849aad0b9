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
        r = tw_jsink_take(rt, k);
        return tw_jmark(rt, &r, v->u.s->safe);
    }
    r = tw_jlist_new(rt, 0, v->u.l->kind);
    for (int64_t i = 0; i < n && v->u.l->n; i++)
        for (int64_t k = 0; k < v->u.l->n; k++)
            tw_jlist_add(rt, r.u.l, v->u.l->v[k]);
    return r;
}

static struct tw_jval int_op(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *x,
        const struct tw_jval *y)
{
    int64_t a = x->t == TW_V_BOOL ? x->u.b : x->u.i, b = y->t == TW_V_BOOL ? y->u.b : y->u.i, r = 0;
    bool over = x->t == TW_V_BIG || y->t == TW_V_BIG;

    if (over)
        return tw_jbig_op(rt, op, x, y);
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
        over = b > 64;
        for (r = 1; b > 0 && !over; b--)
            over = __builtin_mul_overflow(r, a, &r);
        break;
    }
    return over ? tw_jbig_op(rt, op, x, y) : tw_jint(r);
}

/* As Python: the rest has the sign of the divisor, zeros too. */
static double modulo(double x, double y)
{
    double m = fmod(x, y);

    return m == 0 ? copysign(0, y) : (m < 0) != (y < 0) ? m + y : m;
}

static double floor_div(double x, double y)
{
    double q = (x - modulo(x, y)) / y, f = floor(q);

    return q == 0 ? copysign(0, x / y) : q - f > 0.5 ? f + 1 : f;
}

static struct tw_jval number_op(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b)
{
    double x, y;

    if (tw_jis_int(a) && tw_jis_int(b) && op != OP_DIV && !(op == OP_POW && tw_jnum(b) < 0))
        return int_op(rt, op, a, b);
    x = tw_jnum(a);
    y = tw_jnum(b);
    if ((a->t == TW_V_BIG && isinf(x)) || (b->t == TW_V_BIG && isinf(y)))
        tw_jfail(rt, "int too large to convert to float");
    if ((op == OP_DIV || op == OP_FLOOR || op == OP_MOD) && y == 0)
        tw_jfail(rt, "division by zero");
    if (op == OP_POW && x == 0 && y < 0)
        tw_jfail(rt, "0.0 cannot be raised to a negative power");
    if (op == OP_POW && x < 0 && isfinite(y) && y != floor(y))
        tw_jfail(rt, "a negative number to a fractional power is complex, which is not supported");
    switch (op) {
    case OP_ADD: return tw_jfloat(x + y);
    case OP_SUB: return tw_jfloat(x - y);
    case OP_MUL: return tw_jfloat(x * y);
    case OP_DIV: return tw_jfloat(x / y);
    case OP_FLOOR: return tw_jfloat(floor_div(x, y));
    case OP_MOD: return tw_jfloat(modulo(x, y));
    default:
        x = pow(x, y);
        if (isinf(x) && isfinite(tw_jnum(a)) && isfinite(y))
            tw_jfail(rt, "the result is too large for a float");
        return tw_jfloat(x);
    }
}

static struct tw_jval join2(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b)
{
    bool safe = (a->t == TW_V_STR && a->u.s->safe) || (b->t == TW_V_STR && b->u.s->safe);
    struct tw_jval x = safe ? tw_jescape(rt, a) : *a, y = safe ? tw_jescape(rt, b) : *b;
    struct tw_jsink *k = tw_jsink_begin(rt);

    tw_jprint(rt, k, &x);
    tw_jprint(rt, k, &y);
    x = tw_jsink_take(rt, k);
    return tw_jmark(rt, &x, safe);
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
            args = (struct tw_jargs){ .v = b->u.l->v, .n = b->u.l->n, .of_tuple = true };
        return tw_jpercent_safe(rt, a->u.s, &args);
    }
    fail_operands(rt, op, a, b);
}
