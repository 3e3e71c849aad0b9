/* tok_scan.c - a pull reader for the vocabulary and the merges of tokenizer.json: hundreds of
 * thousands of values that would cost more as a tree than all the rest of loading. */
#include "tok_priv.h"
#include <math.h>
#include <stdlib.h>

int tok_scan_fail(struct tok_scan *s, const char *what)
{
    return tw_fail(s->err, s->name, 0, "%s at byte %zu", what, (size_t)(s->p - s->begin) + 1);
}

static void skip_space(struct tok_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

bool tok_scan_take(struct tok_scan *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

int tok_scan_need(struct tok_scan *s, char c)
{
    char what[] = "expected 'x'";

    if (tok_scan_take(s, c))
        return 0;
    what[10] = c;
    return tok_scan_fail(s, what);
}

static int hex4(const char *p, const char *end, uint32_t *v)
{
    if (end - p < 4)
        return -1;
    *v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F'                               ? c - 'A' + 10
                                                                     : -1;
        if (d < 0)
            return -1;
        *v = *v << 4 | (uint32_t)d;
    }
    return 0;
}

/* The escape at s->p, which stands on its backslash. */
static int escape(struct tok_scan *s, struct tw_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;
    uint32_t c, low;

    if (s->end - s->p < 2)
        return tok_scan_fail(s, "unterminated string");
    if (s->p[1] && (at = strchr(from, s->p[1]))) {
        tw_buf_putc(out, to[at - from]);
        s->p += 2;
        return 0;
    }
    if (s->p[1] != 'u' || hex4(s->p + 2, s->end, &c))
        return tok_scan_fail(s, "bad escape");
    s->p += 6;
    if (c >= 0xD800 && c < 0xDC00) {
        if (s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u' || hex4(s->p + 2, s->end, &low)
                || low < 0xDC00 || low > 0xDFFF)
            return tok_scan_fail(s, "lone surrogate");
        s->p += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (c >= 0xDC00 && c < 0xE000) {
        return tok_scan_fail(s, "lone surrogate");
    }
    tw_buf_utf8(out, c);
    return 0;
}

int tok_scan_string(struct tok_scan *s, struct tw_buf *out)
{
    if (!tok_scan_take(s, '"'))
        return tok_scan_fail(s, "expected a string");
    for (;;) {
        const char *run = s->p;

        while (s->p < s->end && *s->p != '"' && *s->p != '\\' && (unsigned char)*s->p >= 0x20)
            s->p++;
        tw_buf_add(out, run, (size_t)(s->p - run));
        if (s->p == s->end)
            return tok_scan_fail(s, "unterminated string");
        if (*s->p == '"') {
            s->p++;
            return 0;
        }
        if (*s->p != '\\')
            return tok_scan_fail(s, "control character in a string");
        if (escape(s, out))
            return -1;
    }
}

int tok_scan_int(struct tok_scan *s, int64_t *v)
{
    bool minus = tok_scan_take(s, '-');
    const char *first = s->p;
    int64_t n = 0;

    skip_space(s);
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9' && n < INT64_MAX / 10 - 1)
        n = n * 10 + (*s->p++ - '0');
    if (s->p == first)
        return tok_scan_fail(s, "expected an integer");
    *v = minus ? -n : n;
    return 0;
}

/* The double that is nearest to a power of ten; EXP >= 0. */
static double pow10_of(int64_t exp)
{
    char text[32];

    snprintf(text, sizeof(text), "1e%lld", (long long)(exp < 400 ? exp : 400));
    return strtod(text, NULL);
}

/* Digits go into 64 bits and what does not fit is left out; the number is then divided or multiplied
 * by a power of ten. That is how the reference reads scores: its last bit decides ties. */
static double decimal(uint64_t digits, int64_t exp)
{
    double f = (double)digits;

    for (; f != 0 && exp < -308; exp += 308)
        f /= 1e308;
    if (exp < -308 || f == 0)
        return 0;
    return exp < 0 ? f / pow10_of(-exp) : f * pow10_of(exp);
}

int tok_scan_num(struct tok_scan *s, double *v)
{
    bool minus = tok_scan_take(s, '-'), full = false, point = false, minus_exp = false;
    uint64_t digits = 0;
    int64_t exp = 0, e = 0;
    const char *first;

    skip_space(s);
    first = s->p;
    for (; s->p < s->end && ((*s->p >= '0' && *s->p <= '9') || (*s->p == '.' && !point)); s->p++) {
        uint64_t d = (uint64_t)(*s->p - '0');

        if (*s->p == '.') {
            point = true;
            continue;
        }
        full = full || digits > (UINT64_MAX - d) / 10;
        if (!full)
            digits = digits * 10 + d;
        exp += full ? !point : -(int64_t)point;
    }
    if (s->p == first || *first == '.' || s->p[-1] == '.')
        return tok_scan_fail(s, "expected a number");
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        s->p++;
        if (s->p < s->end && (*s->p == '-' || *s->p == '+'))
            minus_exp = *s->p++ == '-';
        first = s->p;
        for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++)
            e = e < 100000 ? e * 10 + (*s->p - '0') : e;
        if (s->p == first)
            return tok_scan_fail(s, "expected a number");
    }
    *v = decimal(digits, exp + (minus_exp ? -e : e));
    if (isinf(*v))
        return tok_scan_fail(s, "a number that is too large");
    *v = minus ? -*v : *v;
    return 0;
}

/* A string is stepped over, not checked: whoever reads the raw text checks it. */
static int skip_string(struct tok_scan *s)
{
    s->p++;
    while (s->p < s->end && *s->p != '"')
        s->p += *s->p == '\\' ? 2 : 1;
    if (s->p >= s->end) {
        s->p = s->end;
        return tok_scan_fail(s, "unterminated string");
    }
    s->p++;
    return 0;
}

int tok_scan_skip(struct tok_scan *s, struct tw_str *raw)
{
    int64_t depth = 0;

    skip_space(s);
    raw->p = s->p;
    do {
        skip_space(s);
        if (s->p == s->end)
            return tok_scan_fail(s, "unexpected end");
        if (*s->p == '"') {
            if (skip_string(s))
                return -1;
        } else if (*s->p == '{' || *s->p == '[') {
            depth++;
            s->p++;
        } else if (*s->p == '}' || *s->p == ']') {
            if (--depth < 0)
                return tok_scan_fail(s, "expected a value");
            s->p++;
        } else if (*s->p == ',' || *s->p == ':') {
            if (!depth)
                return tok_scan_fail(s, "expected a value");
            s->p++;
        } else {
            while (s->p < s->end && !strchr(" \t\r\n,:{}[]\"", *s->p))
                s->p++;
            if (s->p < s->end && !*s->p)
                return tok_scan_fail(s, "NUL byte");
        }
    } while (depth);
    raw->n = (size_t)(s->p - raw->p);
    return 0;
}
