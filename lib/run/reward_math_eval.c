/* reward_math_eval.c - the value of an expression, exact as long as it can be */
#include "reward_math_priv.h"
#include "base/rng.h"
#include <math.h>

#define LIMIT ((__int128)1 << 62)   /* so that products and sums of two fit in 128 bits */

struct parse {
    const struct tw_mtoks *t;
    int at, to, depth, k, pm;
    bool bad, vars;
};

struct tw_mval tw_mval_real(long double v)
{
    return (struct tw_mval){ .v = v, .d = 1, .bad = isnan(v) };
}

struct tw_mval tw_mval_make(__int128 n, __int128 d)
{
    __int128 a = n < 0 ? -n : n, b = d < 0 ? -d : d, t;
    struct tw_mval r = { .v = (long double)n / (long double)d };

    while (b) {
        t = a % b;
        a = b;
        b = t;
    }
    if (a > 1) {
        n /= a;
        d /= a;
    }
    r.n = d < 0 ? -n : n;
    r.d = d < 0 ? -d : d;
    r.exact = r.n < LIMIT && r.n > -LIMIT && r.d < LIMIT;
    return r;
}

/* A finite result, or the sign that there is none: what overflows has no value here. */
static struct tw_mval bounded(struct parse *p, long double v)
{
    p->bad |= !isfinite(v);
    return tw_mval_real(isfinite(v) ? v : 0);
}

static struct tw_mval add(struct parse *p, struct tw_mval a, struct tw_mval b)
{
    if (a.exact && b.exact)
        return tw_mval_make(a.n * b.d + b.n * a.d, a.d * b.d);
    if (isinf(a.v) != isinf(b.v))
        return isinf(a.v) ? a : b;
    return bounded(p, a.v + b.v);
}

static struct tw_mval mul(struct parse *p, struct tw_mval a, struct tw_mval b)
{
    if (a.exact && b.exact)
        return tw_mval_make(a.n * b.n, a.d * b.d);
    if ((isinf(a.v) && b.v != 0 && b.exact) || (isinf(b.v) && a.v != 0 && a.exact))
        return tw_mval_real(a.v * b.v);
    return bounded(p, a.v * b.v);
}

static struct tw_mval divide(struct parse *p, struct tw_mval a, struct tw_mval b)
{
    if (b.v == 0 || isinf(b.v)) {
        p->bad = true;
        return a;
    }
    if (a.exact && b.exact)
        return tw_mval_make(a.n * b.d, a.d * b.n);
    return bounded(p, a.v / b.v);
}

static struct tw_mval negate(struct tw_mval a)
{
    a.n = -a.n;
    a.v = -a.v;
    return a;
}

static struct tw_mval power(struct parse *p, struct tw_mval a, struct tw_mval b)
{
    struct tw_mval r = tw_mval_make(1, 1);

    if (a.exact && b.exact && b.d == 1 && b.n >= -64 && b.n <= 64 && (a.n || b.n > 0)) {
        for (int i = 0; i < (b.n < 0 ? -b.n : b.n) && r.exact; i++)
            r = tw_mval_make(r.n * a.n, r.d * a.d);
        if (r.exact)
            return b.n < 0 ? tw_mval_make(r.d, r.n) : r;
    }
    return bounded(p, powl(a.v, b.v));
}

static int kind(const struct parse *p)
{
    return p->at < p->to ? p->t->v[p->at].kind : TW_MEND;
}

static bool eat(struct parse *p, int k)
{
    bool is = kind(p) == k;

    p->at += is;
    return is;
}

static struct tw_mval sum(struct parse *p);
static struct tw_mval factor(struct parse *p);

/* A number for a variable: the same wherever it stands, positive, and nothing special. */
static struct tw_mval variable(struct parse *p, struct tw_str name)
{
    if (tw_str_is(name, "pi"))
        return tw_mval_real(acosl(-1));
    if (tw_str_is(name, "e"))
        return tw_mval_real(expl(1));
    p->vars = true;
    return tw_mval_real(0.5L + 2 * (long double)tw_rand01(tw_hash64(name.p, name.n, 1), 0, (uint64_t)p->k));
}

/* One argument of a command: {..}, or one token, of which a number gives one digit ("\frac12"). */
static struct tw_mval argument(struct parse *p)
{
    struct tw_mval v;

    if (eat(p, '{')) {
        v = sum(p);
        p->bad |= !eat(p, '}');
        return v;
    }
    return factor(p);
}

/* \frac12, \frac 1{2}: the digits of one number are two arguments. */
static bool two_digits(struct parse *p, struct tw_mval *a, struct tw_mval *b)
{
    const struct tw_mtok *t = &p->t->v[p->at];

    if (kind(p) != TW_MNUM || t->s.n < 2 || tw_contains(t->s, "."))
        return false;
    if (t->s.n > 2)
        return false;
    *a = tw_mval_make(t->s.p[0] - '0', 1);
    *b = tw_mval_make(t->s.p[1] - '0', 1);
    p->at++;
    return true;
}

/* A digit alone as the first argument of \frac: no power or factorial belongs to it. */
static void two_arguments(struct parse *p, struct tw_mval *a, struct tw_mval *b)
{
    if (two_digits(p, a, b))
        return;
    *a = argument(p);
    *b = argument(p);
}

static struct tw_mval binomial(struct parse *p, struct tw_mval n, struct tw_mval k)
{
    struct tw_mval r = tw_mval_make(1, 1);

    if (!n.exact || !k.exact || n.d != 1 || k.d != 1 || k.n < 0 || k.n > n.n || n.n > 10000) {
        p->bad = true;
        return r;
    }
    for (int i = 1; i <= k.n; i++)
        r = divide(p, mul(p, r, tw_mval_make(n.n - k.n + i, 1)), tw_mval_make(i, 1));
    return r;
}

static struct tw_mval root(struct parse *p, struct tw_mval x, struct tw_mval n)
{
    struct tw_mval r;
    bool odd = n.exact && n.d == 1 && n.n % 2;

    if (!n.exact || n.d != 1 || n.n < 1 || n.n > 64 || (x.v < 0 && !odd)) {
        p->bad = true;
        return x;
    }
    r = bounded(p, n.n == 2 ? sqrtl(x.v) : copysignl(powl(fabsl(x.v), 1 / (long double)n.n), x.v));
    if (x.exact) {                          /* of a perfect power it is exact */
        long double d = roundl(powl((long double)x.d, 1 / (long double)n.n));
        struct tw_mval q = tw_mval_make((__int128)roundl(r.v * d), (__int128)d);
        struct tw_mval back = power(p, q, n);

        if (back.exact && back.n == x.n && back.d == x.d)
            return q;
    }
    return r;
}

static bool starts(int k)
{
    return k == TW_MNUM || k == TW_MVAR || k == TW_MFUN || k == '(' || k == '{';
}

static struct tw_mval apply(struct parse *p, int fun, struct tw_mval x)
{
    switch (fun) {
    case TW_LN: return bounded(p, logl(x.v));
    case TW_EXP: return bounded(p, expl(x.v));
    case TW_SIN: return bounded(p, sinl(x.v));
    case TW_COS: return bounded(p, cosl(x.v));
    case TW_TAN: return bounded(p, tanl(x.v));
    case TW_SEC: return bounded(p, 1 / cosl(x.v));
    case TW_CSC: return bounded(p, 1 / sinl(x.v));
    case TW_COT: return bounded(p, 1 / tanl(x.v));
    case TW_ASIN: return bounded(p, asinl(x.v));
    case TW_ACOS: return bounded(p, acosl(x.v));
    default: return bounded(p, atanl(x.v));
    }
}

/* \sin^2 x, \log_2 8, \ln(x): the argument is a bracket, or the product that follows. */
static struct tw_mval function(struct parse *p, int fun)
{
    struct tw_mval base = { .bad = true }, exponent = { .bad = true }, x;
    bool bracket;

    if (fun == TW_LOG && eat(p, '_'))
        base = argument(p);
    if (eat(p, '^'))
        exponent = argument(p);
    bracket = kind(p) == '(' || kind(p) == '{';
    x = factor(p);
    while (!bracket && !p->bad && (kind(p) == TW_MNUM || kind(p) == TW_MVAR))
        x = mul(p, x, factor(p));
    if (fun == TW_LOG)
        x = bounded(p, base.bad ? log10l(x.v) : logl(x.v) / logl(base.v));
    else
        x = apply(p, fun, x);
    return exponent.bad ? x : power(p, x, exponent);
}

static struct tw_mval command(struct parse *p, int fun)
{
    struct tw_mval a, b = tw_mval_make(2, 1);

    if (fun == TW_FRAC || fun == TW_BINOM) {
        two_arguments(p, &a, &b);
        return fun == TW_FRAC ? divide(p, a, b) : binomial(p, a, b);
    }
    if (fun != TW_SQRT)
        return function(p, fun);
    if (eat(p, '[')) {
        b = sum(p);
        p->bad |= !eat(p, ']');
    }
    a = argument(p);
    return root(p, a, b);
}

static struct tw_mval enclosed(struct parse *p, int close)
{
    struct tw_mval v = sum(p);

    p->bad |= !eat(p, close);
    return v;
}

static struct tw_mval primary(struct parse *p)
{
    const struct tw_mtok *t = &p->t->v[p->at];
    struct tw_mval v = tw_mval_make(0, 1);

    switch (kind(p)) {
    case TW_MNUM:
        p->at++;
        return t->num;
    case TW_MINF:
        p->at++;
        return tw_mval_real(INFINITY);
    case TW_MVAR:
        p->at++;
        v = variable(p, t->s);
        if (eat(p, '_')) {                  /* x_1 is another variable than x */
            struct tw_mval sub = argument(p);

            v = add(p, v, mul(p, tw_mval_real(0.0137L), sub));
        }
        return v;
    case TW_MFUN:
        p->at++;
        return command(p, t->fun);
    case '(': case '[': case '{':
        p->at++;
        return enclosed(p, t->kind == '(' ? ')' : t->kind == '[' ? ']' : '}');
    case '|':
        p->at++;
        v = enclosed(p, '|');
        return v.v < 0 ? negate(v) : v;
    default:
        p->bad = true;
        return v;
    }
}

static struct tw_mval factorial(struct parse *p, struct tw_mval v)
{
    struct tw_mval r = tw_mval_make(1, 1);

    if (!v.exact || v.d != 1 || v.n < 0 || v.n > 170) {
        p->bad = true;
        return v;
    }
    for (int i = 2; i <= v.n; i++)
        r = mul(p, r, tw_mval_make(i, 1));
    return r;
}

/* A signed base with its power and what stands behind it. */
static struct tw_mval factor(struct parse *p)
{
    struct tw_mval v;

    if (p->bad || ++p->depth > TW_MATH_DEPTH) {
        p->bad = true;
        return tw_mval_make(0, 1);
    }
    if (eat(p, '-')) {
        v = negate(factor(p));
    } else if (eat(p, '+')) {
        v = factor(p);
    } else {
        v = primary(p);
        while (!p->bad) {
            if (eat(p, '!'))
                v = factorial(p, v);
            else if (eat(p, '%'))
                v = divide(p, v, tw_mval_make(100, 1));
            else if (eat(p, '^')) {
                v = power(p, v, argument(p));
            } else
                break;
        }
    }
    p->depth--;
    return v;
}

/* 1\frac{1}{2} and 1 1/2 are sums, not products. */
static bool mixed(struct parse *p, int before, struct tw_mval *v)
{
    const struct tw_mtok *t = p->t->v;
    struct parse q = *p;
    struct tw_mval f;

    if (p->at != before + 1 || t[before].kind != TW_MNUM || !t[before].num.exact || t[before].num.d != 1)
        return false;
    if (kind(p) == TW_MFUN && t[p->at].fun == TW_FRAC)
        f = primary(&q);
    else if (kind(p) == TW_MNUM && p->at + 2 < p->to && t[p->at + 1].kind == '/'
            && t[p->at + 2].kind == TW_MNUM) {
        q.at += 3;
        f = divide(&q, t[p->at].num, t[p->at + 2].num);
    } else
        return false;
    if (q.bad || q.vars != p->vars || !f.exact || f.n <= 0 || f.n >= f.d)
        return false;
    *v = add(p, *v, f);
    p->at = q.at;
    return true;
}

static struct tw_mval product(struct parse *p)
{
    int before = p->at;
    struct tw_mval v = factor(p);

    if (!p->bad && mixed(p, before, &v))
        return v;
    while (!p->bad) {
        if (kind(p) == '/' && p->at + 1 < p->to && p->t->v[p->at + 1].kind == TW_MTEXT)
            break;                          /* km/h */
        if (eat(p, '*'))
            v = mul(p, v, factor(p));
        else if (eat(p, '/'))
            v = divide(p, v, factor(p));
        else if (starts(kind(p)) && !(kind(p) == TW_MNUM && p->t->v[p->at - 1].kind == TW_MNUM))
            v = mul(p, v, factor(p));
        else
            break;
    }
    return v;
}

static struct tw_mval sum(struct parse *p)
{
    struct tw_mval v;

    if (++p->depth > TW_MATH_DEPTH)
        p->bad = true;
    if (!p->bad && kind(p) == TW_MPM) {
        p->at++;
        v = product(p);
        v = p->pm < 0 ? negate(v) : v;
    } else {
        v = product(p);
    }
    while (!p->bad) {
        if (eat(p, '+'))
            v = add(p, v, product(p));
        else if (eat(p, '-'))
            v = add(p, v, negate(product(p)));
        else if (eat(p, TW_MPM)) {
            struct tw_mval b = product(p);

            v = add(p, v, p->pm < 0 ? negate(b) : b);
        } else
            break;
    }
    p->depth--;
    return v;
}

struct tw_mval tw_math_eval(const struct tw_mtoks *t, int from, int to, int k, int pm, int *end, bool *vars)
{
    struct parse p = { .t = t, .at = from, .to = to, .k = k, .pm = pm };
    struct tw_mval v = sum(&p);

    v.bad |= p.bad;
    *end = p.at;
    *vars |= p.vars;
    return v;
}
