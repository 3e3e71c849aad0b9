/* json_scan.c - the first pass of the JSON reader, and the decoding of numbers and strings. */
#include "json_priv.h"
#include <math.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Bytes from P that need no look inside a string: printable ASCII but for '"' and '\\'. */
static size_t plain_run(const char *p, size_t n)
{
    size_t i = 0;

#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\'), low = _mm_set1_epi8(0x20);

    for (; i + 16 <= n; i += 16) {
        __m128i v = _mm_loadu_si128((const void *)(p + i));
        /* signed compare: bytes >= 0x80 are negative, hence below 0x20, too */
        __m128i bad = _mm_or_si128(_mm_cmplt_epi8(v, low),
                _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, back)));
        int mask = _mm_movemask_epi8(bad);

        if (mask)
            return i + (size_t)__builtin_ctz((unsigned)mask);
    }
#endif
    for (; i < n; i++) {
        unsigned char c = (unsigned char)p[i];

        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\')
            break;
    }
    return i;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of a \u escape, -1 if they are not there. */
static int hex4(const char *p, const char *end)
{
    int v = 0;

    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(p[i]);

        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

static int fail_col(struct tw_err *err, size_t at, const char *what)
{
    return tw_fail(err, NULL, 0, "%s at column %zu", what, at + 1);
}

/* The escape at TEXT[I] (a backslash). Returns its length, 0 when it is bad (ERR filled). */
static size_t scan_escape(struct tw_str text, size_t i, struct tw_err *err)
{
    const char *p = text.p + i, *end = text.p + text.n;
    int hi, lo;

    if (end - p < 2) {
        fail_col(err, i, "unterminated string");
        return 0;
    }
    if (p[1] != 'u') {
        if (p[1] && strchr("\"\\/bfnrt", p[1]))
            return 2;
        fail_col(err, i, "unknown escape in a string");
        return 0;
    }
    hi = hex4(p + 2, end);
    if (hi < 0) {
        fail_col(err, i, "\\u needs four hexadecimal digits");
        return 0;
    }
    if (hi < 0xD800 || hi > 0xDFFF)
        return 6;
    lo = hi < 0xDC00 && end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8, end) : -1;
    if (lo >= 0xDC00 && lo <= 0xDFFF)
        return 12;
    tw_fail(err, NULL, 0, "lone surrogate \\u%04x at column %zu", hi, i + 1);
    return 0;
}

/* The string whose opening quote is TEXT[I]. Returns the offset behind its closing quote, 0 when it
 * is bad. */
static size_t scan_string(struct tw_str text, size_t i, struct tw_err *err)
{
    size_t start = i++;

    for (;;) {
        i += plain_run(text.p + i, text.n - i);
        if (i >= text.n) {
            fail_col(err, start, "unterminated string, opened");
            return 0;
        }
        unsigned char c = (unsigned char)text.p[i];

        if (c == '"')
            return i + 1;
        if (c == '\\') {
            size_t n = scan_escape(text, i, err);

            if (!n)
                return 0;
            i += n;
        } else if (c < 0x20) {
            tw_fail(err, NULL, 0, "control character 0x%02x in a string at column %zu", c, i + 1);
            return 0;
        } else {
            const char *p = text.p + i;

            if (tw_utf8_next(&p, text.p + text.n) == 0xFFFD && p == text.p + i + 1) {
                tw_fail(err, NULL, 0, "not UTF-8: byte 0x%02x at column %zu", c, i + 1);
                return 0;
            }
            i = (size_t)(p - text.p);
        }
    }
}

int tw_json_scan(struct tw_str text, size_t *tokens, struct tw_err *err)
{
    size_t open[TW_JSON_DEPTH];         /* where each open bracket stands */
    size_t n = 1;
    int depth = 0;

    for (size_t i = 0; i < text.n;) {
        switch (text.p[i]) {
        case '"':
            n++;
            i = scan_string(text, i, err);
            if (!i)
                return -1;
            continue;
        case '{':
        case '[':
            if (depth == TW_JSON_DEPTH)
                return tw_fail(err, NULL, 0, "nested deeper than %d at column %zu", TW_JSON_DEPTH,
                        i + 1);
            open[depth++] = i;
            n += 2;                     /* itself, and a first element */
            break;
        case '}':
        case ']':
            if (!depth || text.p[open[depth - 1]] != text.p[i] - 2)
                return fail_col(err, i, text.p[i] == '}' ? "unexpected '}'" : "unexpected ']'");
            depth--;
            break;
        case ',':
            n++;
            break;
        default:
            break;
        }
        i++;
    }
    if (depth)
        return fail_col(err, open[depth - 1], text.p[open[depth - 1]] == '{'
                        ? "unterminated object, opened"
                        : "unterminated array, opened");
    *tokens = n;
    return 0;
}

size_t tw_json_unescape(char *out, struct tw_str s)
{
    const char *p = s.p, *end = s.p + s.n;
    char *q = out;

    while (p < end) {
        const char *b = memchr(p, '\\', (size_t)(end - p));
        size_t n = (size_t)((b ? b : end) - p);

        memcpy(q, p, n);
        q += n;
        p += n;
        if (!b)
            break;
        if (p[1] == 'u') {
            uint32_t c = (uint32_t)hex4(p + 2, end);

            p += 6;
            if (c >= 0xD800 && c <= 0xDBFF) {           /* checked: the other half follows */
                c = 0x10000 + ((c - 0xD800) << 10) + ((uint32_t)hex4(p + 2, end) - 0xDC00);
                p += 6;
            }
            q += tw_utf8_put(q, c);
        } else {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";

            *q++ = to[strchr(from, p[1]) - from];
            p += 2;
        }
    }
    return (size_t)(q - out);
}

/* RAW read by strtod, which needs a NUL behind it. */
static double slow_double(struct tw_str raw)
{
    char small[64], *p = raw.n < sizeof(small) ? small : tw_xmalloc(raw.n + 1);
    double d;

    memcpy(p, raw.p, raw.n);
    p[raw.n] = 0;
    d = strtod(p, NULL);
    if (p != small)
        free(p);
    return d;
}

bool tw_json_scan_number(struct tw_str raw, struct tw_json *v)
{
    static const double ten[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const char *p = raw.p, *end = p + raw.n, *first;
    bool minus = p < end && *p == '-', over = false, integral;
    uint64_t m = 0;                     /* the digits read so far, while they fit */
    int64_t e = 0, exp10 = 0;

    p += minus;
    first = p;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        over |= __builtin_mul_overflow(m, 10, &m) || __builtin_add_overflow(m, *p - '0', &m);
    if (p == first || (*first == '0' && p > first + 1))
        return false;
    integral = p == end;
    if (p < end && *p == '.') {
        first = ++p;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            over |= __builtin_mul_overflow(m, 10, &m) || __builtin_add_overflow(m, *p - '0', &m);
        if (p == first)
            return false;
        exp10 = first - p;
    }
    if (p < end && (*p | 0x20) == 'e') {
        bool neg = ++p < end && *p == '-';

        p += p < end && (*p == '-' || *p == '+');
        for (first = p; p < end && *p >= '0' && *p <= '9'; p++)
            e = e < 100000 ? e * 10 + (*p - '0') : e;
        if (p == first)
            return false;
        exp10 += neg ? -e : e;
    }
    if (p != end)
        return false;
    v->is_int = integral && !over && m <= (uint64_t)INT64_MAX + minus;
    if (v->is_int)
        v->i = (int64_t)(minus ? -m : m);
    /* with 53 bits of digits and a power of ten that is exact, one operation rounds correctly */
    if (!over && m <= (uint64_t)1 << 53 && exp10 >= -22 && exp10 <= 22) {
        double d = exp10 < 0 ? (double)m / ten[-exp10] : (double)m * ten[exp10];

        v->d = minus ? -d : d;
    } else {
        v->d = slow_double(raw);
    }
    return true;
}
