/* jinja_put.c - a value in its width: texts, integers of any base, floats, with signs and groups. */
#include "jinja_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void add_fill(struct tw_jrt *rt, struct tw_jsink *k, int64_t n, const struct tw_jspec *f)
{
    for (; n > 0; n--)
        tw_jsink_add(rt, k, f->nfill ? f->fill : " ", f->nfill ? (size_t)f->nfill : 1, 0, -1);
}

/* Writes V, a text, to its width. The first SIGN bytes of it are what '=' puts the filling behind. */
static void put_padded(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s, size_t sign,
        const struct tw_jspec *f, char align)
{
    int64_t n = (int64_t)tw_jchars(s), fill = f->width > n ? f->width - n : 0, left = 0;

    align = f->align ? f->align : align;
    if (align == '=') {
        tw_jsink_str(rt, k, tw_jsub(rt, s, 0, sign).u.s);
        add_fill(rt, k, fill, f);
        tw_jsink_str(rt, k, tw_jsub(rt, s, sign, s->n).u.s);
        return;
    }
    left = align == '>' ? fill : align == '^' ? fill / 2 : 0;
    add_fill(rt, k, left, f);
    tw_jsink_str(rt, k, s);
    add_fill(rt, k, fill - left, f);
}

void tw_jput_text(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jval v, const struct tw_jspec *f)
{
    if (f->prec >= 0)
        v = tw_jchar_sub(rt, v.u.s, 0, f->prec);
    put_padded(rt, k, v.u.s, 0, f, '<');
}

/* How many digits it takes: those that are there and, where zeros fill the width of a grouped number,
 * zeros in front. LEAD and TAIL: what stands around them. */
static size_t digits_wanted(size_t n, const struct tw_jspec *f, size_t each, size_t lead, size_t tail)
{
    size_t want = n;

    if (f->group && f->zero && !f->align && n)
        while (lead + want + (want - 1) / each + tail < (size_t)f->width)
            want++;
    return want;
}

/* SIGN and PREFIX, the digits before the point with their groups, what follows; then the width. */
static void put_number(struct tw_jrt *rt, struct tw_jsink *k, bool neg, const char *prefix,
        struct tw_str digits, struct tw_str rest, const struct tw_jspec *f, uint32_t origin)
{
    char sign[2] = { neg ? '-' : f->sign == '+' || f->sign == ' ' ? f->sign : 0, 0 };
    size_t lead = strlen(sign) + strlen(prefix), each = f->conv && strchr("xXbo", f->conv) ? 4 : 3;
    size_t want = digits_wanted(digits.n, f, each, lead, rest.n), n = lead;
    char *p = tw_jalloc(rt, lead + 2 * want + rest.n + 1);
    struct tw_jspec padded = *f;

    memcpy(p, sign, strlen(sign));
    memcpy(p + strlen(sign), prefix, strlen(prefix));
    for (size_t i = 0; i < want; i++) {
        p[n++] = i + digits.n < want ? '0' : digits.p[i + digits.n - want];
        if (f->group && i + 1 < want && (want - i - 1) % each == 0)
            p[n++] = f->group;
    }
    memcpy(p + n, rest.p, rest.n);
    n += rest.n;
    if (f->zero && !f->nfill) {
        padded.fill[0] = '0';
        padded.nfill = 1;
    }
    put_padded(rt, k, tw_jtext(rt, p, n, origin).u.s, lead, &padded, f->zero ? '=' : '>');
}

void tw_jput_int(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jval v, const struct tw_jspec *f,
        bool percent)
{
    int base = f->conv == 'x' || f->conv == 'X' ? 16 : f->conv == 'o' ? 8 : f->conv == 'b' ? 2 : 10;
    struct tw_jval zero = tw_jint(0), text;
    bool neg = tw_jcompare(rt, &v, &zero) < 0;
    const char *prefix = !f->alt || base == 10 ? "" : f->conv == 'x' ? "0x" : f->conv == 'X' ? "0X" :
            base == 8 ? "0o" : "0b";
    int64_t zeros;
    char *p;

    text = tw_jbig_base(rt, &v, base);
    zeros = percent && f->prec > (int64_t)text.u.s->n ? f->prec - (int64_t)text.u.s->n : 0;
    p = tw_jalloc(rt, (size_t)zeros + text.u.s->n + 1);
    memset(p, '0', (size_t)zeros);
    memcpy(p + zeros, text.u.s->p, text.u.s->n);
    for (size_t i = 0; f->conv == 'X' && i < (size_t)zeros + text.u.s->n; i++)
        p[i] = (char)(p[i] >= 'a' ? p[i] - 32 : p[i]);
    put_number(rt, k, neg, prefix, (struct tw_str){ p, (size_t)zeros + text.u.s->n }, TW_STR_LIT(""), f,
            v.origin);
}

/* Python's own form of a float with a precision but no type: 'g', with a digit behind the point. */
static void general(char *t, size_t size, double d, int prec)
{
    int exp;
    char e[512];

    snprintf(e, sizeof(e), "%.*e", prec ? prec - 1 : 0, d);
    exp = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    snprintf(t, size, "%.*g", prec ? prec : 1, d);
    if (exp >= -4 && exp < prec && !strchr(t, '.') && !strchr(t, 'e'))
        snprintf(t + strlen(t), size - strlen(t), ".0");
    else if (exp == prec && prec && !strchr(t, 'e'))
        snprintf(t, size, "%.*e", prec - 1, d);
}

void tw_jput_float(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v,
        const struct tw_jspec *f)
{
    double d = tw_jnum(v), size = fabs(d);
    int prec = f->prec < 0 ? 6 : f->prec > 300 ? 300 : (int)f->prec;
    char t[1024], fmt[8] = "%.*e", *point;
    bool neg = signbit(d) && !isnan(d);

    if (v->t == TW_V_BIG && isinf(d))
        tw_jfail(rt, "int too large to convert to float");
    if (!isfinite(d)) {
        snprintf(t, sizeof(t), "%s", isnan(d) ? "nan" : "inf");
        if (f->conv == 'F' || f->conv == 'E' || f->conv == 'G')
            snprintf(t, sizeof(t), "%s", isnan(d) ? "NAN" : "INF");
    } else if (!f->conv && f->prec < 0) {
        tw_jfloat_text(t, size);
    } else if (!f->conv) {
        general(t, sizeof(t), size, prec);
    } else {
        snprintf(fmt, sizeof(fmt), "%%%s.*%c", f->alt ? "#" : "", f->conv == '%' ? 'f' :
                f->conv == 'n' ? 'g' : f->conv);
        snprintf(t, sizeof(t), fmt, prec, f->conv == '%' ? size * 100 : size);
    }
    if (f->conv == '%')
        snprintf(t + strlen(t), sizeof(t) - strlen(t), "%%");
    for (point = t; *point >= '0' && *point <= '9'; point++)
        ;
    put_number(rt, k, neg, "", (struct tw_str){ t, (size_t)(point - t) }, tw_str(point), f, v->origin);
}

struct tw_jval tw_jchar_of(struct tw_jrt *rt, const struct tw_jval *v)
{
    char t[4];
    size_t n;

    if (v->t == TW_V_STR && tw_jchars(v->u.s) == 1)
        return *v;
    if (v->t != TW_V_INT || v->u.i < 0 || v->u.i > 0x10FFFF || (v->u.i >= 0xD800 && v->u.i < 0xE000))
        tw_jfail(rt, "%%c needs a character or its number");
    n = (size_t)tw_utf8_put(t, (uint32_t)v->u.i);
    return tw_jtext(rt, tw_arena_dup(rt->a, t, n), n, v->origin);
}
