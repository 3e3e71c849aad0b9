/* jinja_big.c - integers beyond 64 bits, as Python has them, up to the digits that it agrees to
 * print. A value keeps them as decimal text; here they are limbs of nine digits, the lowest first. */
#include "jinja_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Limbs of a result; a product of two has twice as many. */
enum { LIMBS = (TW_J_DIGITS + 8) / 9, BASE = 1000000000 };

struct big {
    bool neg;
    int n;                          /* 0: the number is 0 */
    uint32_t d[2 * LIMBS + 2];
};

static void trim(struct big *b)
{
    while (b->n && !b->d[b->n - 1])
        b->n--;
    b->neg &= b->n > 0;
}

static void load(struct big *b, const struct tw_jval *v)
{
    int64_t i = v->t == TW_V_BOOL ? v->u.b : v->u.i;
    uint64_t x = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *p;
    size_t n;

    b->n = 0;
    if (v->t != TW_V_BIG) {
        b->neg = i < 0;
        for (; x; x /= BASE)
            b->d[b->n++] = (uint32_t)(x % BASE);
        return;
    }
    p = v->u.s->p;
    n = v->u.s->n;
    b->neg = n && *p == '-';
    for (size_t end = n; end > b->neg;) {
        size_t from = end - b->neg > 9 ? end - 9 : b->neg;
        uint32_t limb = 0;

        for (size_t k = from; k < end; k++)
            limb = limb * 10 + (uint32_t)(p[k] - '0');
        b->d[b->n++] = limb;
        end = from;
    }
    trim(b);
}

/* The value: an int where it fits 64 bits. False: it has too many digits. */
static bool store_in(struct tw_arena *mem, struct big *b, struct tw_jval *v)
{
    uint64_t x = 0, most = (uint64_t)INT64_MAX + b->neg;
    struct tw_jstr *s;
    char *p;

    trim(b);
    if (b->n > LIMBS)
        return false;
    for (int i = b->n < 3 ? b->n : 3; i-- > 0;)
        x = x * BASE + b->d[i];
    if (b->n < 3 || (b->n == 3 && b->d[2] < 10 && x <= most)) {
        *v = tw_jint(b->neg ? (int64_t)(0 - x) : (int64_t)x);
        return true;
    }
    s = tw_arena_alloc(mem, sizeof(*s));
    s->p = p = tw_arena_alloc(mem, 9 * (size_t)b->n + 12);
    s->owner = -1;
    p += snprintf(p, 12, "%s%u", b->neg ? "-" : "", b->d[b->n - 1]);
    for (int i = b->n - 1; i-- > 0;)
        p += snprintf(p, 10, "%09u", b->d[i]);
    s->n = (size_t)(p - s->p);
    *v = (struct tw_jval){ .t = TW_V_BIG, .u.s = s };
    return true;
}

static _Noreturn void fail_size(struct tw_jrt *rt)
{
    tw_jfail(rt, "an integer of more than %d digits", TW_J_DIGITS);
}

static struct tw_jval store(struct tw_jrt *rt, struct big *b)
{
    struct tw_jval v;

    if (!store_in(rt->a, b, &v))
        fail_size(rt);
    return v;
}

static int compare_size(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (int i = a->n; i-- > 0;)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

/* r = |a| + |b| and r = |a| - |b|, |a| >= |b|; r may be a. */
static void add_size(struct big *r, const struct big *a, const struct big *b)
{
    uint32_t carry = 0;
    int n = a->n > b->n ? a->n : b->n;

    for (int i = 0; i < n; i++) {
        uint32_t x = carry + (i < a->n ? a->d[i] : 0) + (i < b->n ? b->d[i] : 0);

        carry = x >= BASE;
        r->d[i] = carry ? x - BASE : x;
    }
    r->n = n;
    if (carry)
        r->d[r->n++] = 1;
}

static void sub_size(struct big *r, const struct big *a, const struct big *b)
{
    uint32_t borrow = 0;

    r->n = a->n;
    for (int i = 0; i < a->n; i++) {
        uint32_t y = borrow + (i < b->n ? b->d[i] : 0);

        borrow = a->d[i] < y;
        r->d[i] = a->d[i] + (borrow ? BASE : 0) - y;
    }
    trim(r);
}

/* a + b, or a - b with NEGATE. */
static void add(struct big *r, const struct big *a, const struct big *b, bool negate)
{
    bool bneg = b->neg != negate;

    r->neg = false;
    if (a->neg == bneg) {
        add_size(r, a, b);
        r->neg = bneg;
    } else if (compare_size(a, b) >= 0) {
        bool neg = a->neg;

        sub_size(r, a, b);
        r->neg = neg;
    } else {
        sub_size(r, b, a);
        r->neg = bneg;
    }
    trim(r);
}

/* r = a * b; r is neither. */
static void mul(struct tw_jrt *rt, struct big *r, const struct big *a, const struct big *b)
{
    if (a->n + b->n > 2 * LIMBS)
        fail_size(rt);
    tw_jstep(rt, (int64_t)a->n * b->n / 64);
    r->n = a->n + b->n;
    r->neg = a->neg != b->neg;
    memset(r->d, 0, (size_t)r->n * sizeof(*r->d));
    for (int i = 0; i < a->n; i++) {
        uint64_t carry = 0;

        for (int k = 0; k < b->n; k++) {
            carry += (uint64_t)a->d[i] * b->d[k] + r->d[i + k];
            r->d[i + k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
        r->d[i + b->n] = (uint32_t)carry;
    }
    trim(r);
}

/* |a| / |b|: q, and the rest stays in a. One limb of q at a time, found by halving its interval: at most
 * 30 looks at b for each. */
static void divide(struct tw_jrt *rt, struct big *q, struct big *a, const struct big *b)
{
    struct big part = {0}, rest = {0};

    tw_jstep(rt, (int64_t)a->n * b->n);
    *q = (struct big){ .n = a->n };
    for (int i = a->n; i-- > 0;) {
        uint32_t lo = 0, hi = BASE - 1;

        memmove(rest.d + 1, rest.d, (size_t)rest.n * sizeof(*rest.d));
        rest.d[0] = a->d[i];
        rest.n++;
        trim(&rest);
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo + 1) / 2;
            uint64_t carry = 0;

            for (int k = 0; k < b->n; k++) {
                carry += (uint64_t)b->d[k] * mid;
                part.d[k] = (uint32_t)(carry % BASE);
                carry /= BASE;
            }
            part.d[b->n] = (uint32_t)carry;
            part.n = b->n + 1;
            trim(&part);
            if (compare_size(&part, &rest) <= 0)
                lo = mid;
            else
                hi = mid - 1;
        }
        q->d[i] = lo;
        for (uint64_t k = 0, carry = 0; k <= (uint64_t)b->n; k++) {
            carry += k < (uint64_t)b->n ? (uint64_t)b->d[k] * lo : 0;
            part.d[k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
        part.n = b->n + 1;
        trim(&part);
        sub_size(&rest, &rest, &part);
    }
    *a = rest;
    trim(q);
}

/* Floor division and its rest, which has the sign of b. */
static void divide_floor(struct tw_jrt *rt, struct big *q, struct big *a, const struct big *b)
{
    static const struct big one = { .n = 1, .d = { 1 } };
    bool neg = a->neg != b->neg;

    divide(rt, q, a, b);
    if (neg && a->n) {
        sub_size(a, b, a);
        add_size(q, q, &one);
    }
    q->neg = neg && q->n;
    a->neg = b->neg && a->n;
}

static void power(struct tw_jrt *rt, struct big *r, struct big *a, const struct tw_jval *by)
{
    struct big t;
    int64_t e = by->t == TW_V_BOOL ? by->u.b : by->u.i;
    bool odd;

    if (by->t == TW_V_BIG) {
        odd = (by->u.s->p[by->u.s->n - 1] - '0') & 1;
        e = a->n > 1 || (a->n && a->d[0] > 1) ? INT64_MAX : 2 + odd;
    }
    *r = (struct big){ .n = 1, .d = { 1 } };
    while (e > 0) {
        if (e & 1) {
            mul(rt, &t, r, a);
            *r = t;
        }
        e >>= 1;
        if (e) {
            mul(rt, &t, a, a);
            *a = t;
        }
        if (r->n > LIMBS || a->n > LIMBS)
            fail_size(rt);
    }
}

struct tw_jval tw_jbig_op(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *x,
        const struct tw_jval *y)
{
    struct big a, b, r;

    load(&a, x);
    load(&b, y);
    if (a.n > LIMBS || b.n > LIMBS)
        fail_size(rt);
    switch (op) {
    case OP_ADD:
    case OP_SUB:
        add(&r, &a, &b, op == OP_SUB);
        return store(rt, &r);
    case OP_MUL:
        mul(rt, &r, &a, &b);
        return store(rt, &r);
    case OP_FLOOR:
    case OP_MOD:
        if (!b.n)
            tw_jfail(rt, "integer division or modulo by zero");
        divide_floor(rt, &r, &a, &b);
        return store(rt, op == OP_FLOOR ? &r : &a);
    default: /* OP_POW, y >= 0 */
        power(rt, &r, &a, y);
        return store(rt, &r);
    }
}

int tw_jbig_compare(const struct tw_jval *x, const struct tw_jval *y)
{
    struct big a, b;
    int c;

    load(&a, x);
    load(&b, y);
    if (a.neg != b.neg)
        return a.neg ? -1 : 1;
    c = compare_size(&a, &b);
    return a.neg ? -c : c;
}

bool tw_jbig_read(struct tw_arena *mem, const char *p, size_t n, int base, struct tw_jval *v)
{
    struct big b = { .neg = n && *p == '-' };

    for (size_t i = b.neg; i < n; i++) {
        uint64_t carry = (uint64_t)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);

        for (int k = 0; k < b.n || carry; k++) {
            carry += k < b.n ? (uint64_t)b.d[k] * (unsigned)base : 0;
            b.d[k] = (uint32_t)(carry % BASE);
            carry /= BASE;
            b.n = k < b.n ? b.n : k + 1;
        }
        if (b.n > LIMBS)
            return false;
    }
    return store_in(mem, &b, v);
}

double tw_jbig_double(const struct tw_jval *v)
{
    char t[TW_J_DIGITS + 16];

    memcpy(t, v->u.s->p, v->u.s->n);
    t[v->u.s->n] = 0;
    return strtod(t, NULL);
}

struct tw_jval tw_jbig_trunc(struct tw_jrt *rt, double d)
{
    char t[400];
    int n = snprintf(t, sizeof(t), "%.0f", trunc(d));
    struct tw_jval v;

    if (!tw_jbig_read(rt->a, t, (size_t)n, 10, &v))
        fail_size(rt);
    return v;
}

struct tw_jval tw_jbig_base(struct tw_jrt *rt, const struct tw_jval *v, int base)
{
    static const char digit[] = "0123456789abcdef";
    struct big b;
    char *text, *p;

    load(&b, v);
    b.neg = false;
    text = tw_jalloc(rt, 30 * (size_t)b.n + 3);
    p = text + 30 * (size_t)b.n + 2;
    tw_jstep(rt, (int64_t)b.n * b.n / 4);
    text = p;
    do {
        uint64_t rest = 0;

        for (int i = b.n; i-- > 0;) {
            rest = rest * BASE + b.d[i];
            b.d[i] = (uint32_t)(rest / (unsigned)base);
            rest %= (unsigned)base;
        }
        trim(&b);
        *--text = digit[rest];
    } while (b.n);
    return tw_jtext(rt, text, (size_t)(p - text), v->origin);
}
