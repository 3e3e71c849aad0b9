/* jinja_number.c - the filters that make numbers and round them, with the answers of Python's int(),
 * float() and round(). */
#include "jinja_filter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

TW_JFILTER(tw_jf_abs)
{
    struct tw_jval zero = tw_jint(0);

    if (!tw_jis_num(v))
        tw_jfail(rt, "bad operand type for abs(): '%s'", tw_jtype_name(v));
    if (v->t == TW_V_FLOAT)
        return tw_jfloat(fabs(v->u.d));
    return tw_jbinary(rt, tw_jcompare(rt, v, &zero) < 0 ? OP_SUB : OP_ADD, &zero, v);
}

/* A text's digits without white space around and underscores between; NULL when one stands elsewhere. */
static const char *plain_digits(struct tw_jrt *rt, const struct tw_jstr *text, size_t *n)
{
    const struct tw_jstr *s = tw_jstrip(rt, text, NULL, 3).u.s;
    char *out = tw_jalloc(rt, s->n + 1);

    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] != '_')
            out[(*n)++] = s->p[i];
        else if (!i || i + 1 == s->n || s->p[i - 1] == '_' || !strchr("0123456789abcdefABCDEF", s->p[i + 1]))
            return NULL;
    }
    out[*n] = 0;
    return *n && !memchr(out, 0, *n) ? out : NULL;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* int(text, base); false when the text spells no integer. */
static bool int_of_text(struct tw_jrt *rt, const struct tw_jstr *text, int base, struct tw_jval *r)
{
    size_t n;
    const char *p = plain_digits(rt, text, &n), *q;
    bool neg = p && *p == '-';
    struct tw_jval zero = tw_jint(0);
    char kind;

    if (!p)
        return false;
    q = p += neg || *p == '+';
    kind = (char)(*q == '0' ? q[1] | 32 : 0);
    if ((kind == 'x' && (base == 16 || !base)) || (kind == 'o' && (base == 8 || !base))
            || (kind == 'b' && (base == 2 || !base))) {
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
        p = q += 2;
    } else if (!base) {
        base = 10;
    }
    while (digit_of(*q) < base)
        q++;
    if (*q || q == p)
        return false;
    tw_jstep(rt, (q - p) * (q - p) / 64);
    if (!tw_jbig_read(rt->a, p, (size_t)(q - p), base, r))
        return false;               /* too many digits: Python's int() fails, too */
    if (neg)
        *r = tw_jbinary(rt, OP_SUB, &zero, r);
    return true;
}

/* float(value); false where Python raises what the filters catch. */
static bool float_of(struct tw_jrt *rt, const struct tw_jval *v, double *d)
{
    const char *p;
    char *end;
    size_t n;

    if (v->t == TW_V_UNDEF)
        tw_jfail_undefined(rt, v);
    if (tw_jis_num(v)) {
        *d = tw_jnum(v);
        if (v->t == TW_V_BIG && isinf(*d))
            tw_jfail(rt, "int too large to convert to float");
        return true;
    }
    p = v->t == TW_V_STR ? plain_digits(rt, v->u.s, &n) : NULL;
    if (!p || memchr(p, 'x', n) || memchr(p, 'X', n) || memchr(p, '(', n))
        return false;
    *d = strtod(p, &end);
    return !*end;
}

TW_JFILTER(tw_jf_int)
{
    const struct tw_jval *def = tw_jarg(a, 0, "default");
    int64_t base = tw_jarg_int(rt, a, 1, "base", 10);
    struct tw_jval r;
    double d;

    if (v->t == TW_V_INT || v->t == TW_V_BIG)
        return *v;
    if (v->t == TW_V_BOOL)
        return tw_jint(v->u.b);
    if (v->t == TW_V_FLOAT && isinf(v->u.d))
        tw_jfail(rt, "cannot convert float infinity to integer");
    if (v->t == TW_V_STR && (!base || (base >= 2 && base <= 36)) && int_of_text(rt, v->u.s, (int)base, &r))
        return r;
    if (!float_of(rt, v, &d) || !isfinite(d))
        return def ? *def : tw_jint(0);
    return tw_jbig_trunc(rt, d);
}

TW_JFILTER(tw_jf_float)
{
    const struct tw_jval *def = tw_jarg(a, 0, "default");
    double d;

    return float_of(rt, v, &d) ? tw_jfloat(d) : def ? *def : tw_jfloat(0);
}

/* round(int, -places): to the even neighbour when it is as far. */
static struct tw_jval round_int(struct tw_jrt *rt, const struct tw_jval *v, int64_t places)
{
    struct tw_jval ten = tw_jint(10), two = tw_jint(2), n = tw_jint(places), unit, rest, twice, down, odd;
    int c;

    unit = tw_jbinary(rt, OP_POW, &ten, &n);
    rest = tw_jbinary(rt, OP_MOD, v, &unit);
    down = tw_jbinary(rt, OP_SUB, v, &rest);
    twice = tw_jbinary(rt, OP_MUL, &rest, &two);
    c = tw_jcompare(rt, &twice, &unit);
    odd = tw_jbinary(rt, OP_FLOOR, &down, &unit);
    odd = tw_jbinary(rt, OP_MOD, &odd, &two);
    return c > 0 || (!c && tw_jtruth(rt, &odd)) ? tw_jbinary(rt, OP_ADD, &down, &unit) : down;
}

/* round(float, places): of the decimal number that the float is exactly. */
static double round_float(double d, int64_t places)
{
    char t[800];
    double scale;

    if (!isfinite(d) || places > 323)
        return d;
    if (places >= 0) {
        snprintf(t, sizeof(t), "%.*f", (int)places, d);
        return strtod(t, NULL);
    }
    if (places < -308)
        return d * 0;
    scale = pow(10, (double)-places);
    return nearbyint(d / scale) * scale;
}

TW_JFILTER(tw_jf_round)
{
    int64_t prec = tw_jarg_int(rt, a, 0, "precision", 0);
    const struct tw_jstr *how = tw_jarg_str(rt, a, 1, "method");
    bool ceiling = how && how->n == 4 && !memcmp(how->p, "ceil", 4);
    double d, scale;

    if (how && !ceiling && !(how->n == 5 && !memcmp(how->p, "floor", 5))
            && !(how->n == 6 && !memcmp(how->p, "common", 6)))
        tw_jfail(rt, "method must be common, ceil or floor");
    if (!tw_jis_num(v))
        tw_jfail(rt, "type %s doesn't define __round__ method", tw_jtype_name(v));
    if (prec < -4000 || prec > 4000)
        tw_jfail(rt, "a precision out of range");
    if (!ceiling && !(how && *how->p == 'f')) {
        if (v->t == TW_V_FLOAT)
            return tw_jfloat(round_float(v->u.d, prec));
        return prec < 0 ? round_int(rt, v, -prec) : v->t == TW_V_BOOL ? tw_jint(v->u.b) : *v;
    }
    d = tw_jnum(v);
    scale = pow(10, (double)prec);
    d = ceiling ? ceil(d * scale) : floor(d * scale);
    return prec ? tw_jfloat(d / scale) : tw_jfloat(d);
}

TW_JFILTER(tw_jf_filesize)
{
    static const char *const unit[2][8] = { { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" },
        { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } };
    bool binary = tw_jarg_bool(rt, a, 0, "binary", false);
    double d, base = binary ? 1024 : 1000, size = base;
    char t[400];
    int i = 0;

    if (!float_of(rt, v, &d) || !isfinite(d))
        tw_jfail(rt, "filesizeformat needs a number");
    if (d == 1) {
        snprintf(t, sizeof(t), "1 Byte");
    } else if (d < base) {
        snprintf(t, sizeof(t), "%.0f Bytes", trunc(d) + 0.0);
    } else {
        for (size *= base; i < 7 && d >= size; i++)
            size *= base;
        snprintf(t, sizeof(t), "%.1f %s", base * d / size, unit[binary][i]);
    }
    return tw_jtext(rt, tw_arena_dup(rt->a, t, strlen(t)), strlen(t), v->origin);
}
