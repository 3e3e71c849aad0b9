/* read_list.c - lists of numbers as JSON writes them, megabytes of them. Where each number ends is found first:
 * then the processor reads several side by side, and needs no guess of how long each is. */
#include "serve/read_priv.h"
#include <float.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digits are read eight at a time");

#define INLINE static inline __attribute__((always_inline))     /* the compiler thinks of size */

static const char *after_space(const char *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')
        p++;
    return p;
}

/* scaled(), for what a double does not hold exactly. */
static bool scaled_long(uint64_t m, int e, double *out)
{
#if LDBL_MANT_DIG == 64
    static const long double ten[] = { 1e0L, 1e1L, 1e2L, 1e3L, 1e4L, 1e5L, 1e6L, 1e7L, 1e8L, 1e9L, 1e10L,
        1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L,
        1e25L, 1e26L, 1e27L };
    long double x = (long double)m;
    uint64_t bits;

    if (e < -27 || e > 27)
        return false;
    x = e < 0 ? x / ten[-e] : x * ten[e];       /* both are exact: rounded once, to 64 bits */
    memcpy(&bits, &x, sizeof bits);
    *out = (double)x;
    return (bits & 0x7FF) != 0x400;             /* just between two doubles: the first rounding matters */
#else
    (void)m;
    (void)e;
    (void)out;
    return false;
#endif
}

/* M times ten to the E, rounded as strtod does; false when that takes more than one operation. */
INLINE bool scaled(uint64_t m, int e, double *out)
{
    static const double exact[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
        1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

    if (m >> 53 || e < -22 || e > 22)
        return scaled_long(m, e, out);
    *out = e < 0 ? (double)m / exact[-e] : (double)m * exact[e];    /* both are exact: rounded once */
    return true;
}

static bool slowly(const char *from, const char *to, double *out)
{
    char copy[64];

    if (to - from >= (ptrdiff_t)sizeof copy)
        return false;
    memcpy(copy, from, (size_t)(to - from));
    copy[to - from] = 0;
    *out = strtod(copy, NULL);
    return true;
}

#define EACH(c) (0x0101010101010101u * (c))

/* Bytes that are 10 or more are marked; right up to and with the first of them. */
INLINE uint64_t no_digits(uint64_t t)
{
    return ((t + EACH(0x76)) | t) & EACH(0x80);
}

INLINE uint64_t eight_at(const char *p)
{
    uint64_t t;

    memcpy(&t, p, sizeof t);
    return t ^ EACH('0');
}

/* The number that eight digits are: pairs, fours, all in three multiplications. */
INLINE uint64_t of_eight(uint64_t t)
{
    t = t * 10 + (t >> 8);
    return (uint32_t)(((t & 0x000000FF000000FFu) * 0x000F424000000064u +
            (t >> 16 & 0x000000FF000000FFu) * 0x0000271000000001u) >> 32);
}

static const uint64_t whole_ten[] = { 1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000,
    1000000000, 10000000000 };

/* Digits behind those of M; eight characters can be read wherever one of them is. */
static uint64_t run_of_digits(const char **p, uint64_t m)
{
    uint64_t t, no;
    int n;

    do {
        t = eight_at(*p);
        no = no_digits(t);
        n = no ? __builtin_ctzll(no) / 8 : 8;
        if (n)
            m = m * whole_ten[n] + of_eight(t << (64 - 8 * n));
        *p += n;
    } while (n == 8);
    return m;
}

/* The N digits, 1 to 8, before END; *BAD when those are none. */
INLINE uint64_t digits_before(const char *end, int64_t n, uint64_t *bad)
{
    uint64_t t = eight_at(end - 8) & ~(uint64_t)0 << (64 - 8 * n);

    *bad |= no_digits(t);
    return of_eight(t);
}

/* A number; some character that cannot be of one, the list's ']', is behind it, and seven more. */
static bool number(const char **at, double *out)
{
    const char *from = *at, *p = from + (*from == '-'), *first = p, *dot;
    uint64_t m = run_of_digits(&p, 0);
    ptrdiff_t digits = m ? p - first : 0;       /* those that count; past 19 M is not them any more */
    int e = 0, x = 0;
    bool minus;

    if (p == first || (*first == '0' && p > first + 1))
        return false;
    if (*p == '.') {
        dot = ++p;
        while (!digits && *p == '0')
            p++;
        first = p;
        m = run_of_digits(&p, m);
        digits += p - first;
        if (p == dot || p - dot > 60)
            return false;
        e = (int)(dot - p);
    }
    if ((*p | 32) == 'e') {
        minus = *++p == '-';
        p += minus || *p == '+';
        for (first = p; *p >= '0' && *p <= '9' && p - first < 5; p++)
            x = x * 10 + (*p - '0');
        if (p == first)
            return false;
        e += minus ? -x : x;
    }
    *at = p;
    if (digits > 19 || !scaled(m, e, out))
        return slowly(from, p, out);
    *out = *from == '-' ? -*out : *out;
    return true;
}

/* Which of 64 characters are commas. */
INLINE uint64_t commas(const char *p)
{
    uint64_t all = 0, w;

    for (int k = 0; k < 64; k += 8) {
        memcpy(&w, p + k, sizeof w);
        w ^= EACH(',');
        w = ~(((w & EACH(0x7F)) + EACH(0x7F)) | w) & EACH(0x80);
        all |= ((w >> 7) * 0x0102040810204080u >> 56) << k;
    }
    return all;
}

int64_t tw_list_ends(const char *p, const char *close, const char *end, uint32_t *at)
{
    uint32_t *first = at;
    char last[64] = { 0 };

    if (after_space(p) == close)
        return 0;
    for (const char *q = p; q < close; q += 64) {
        uint64_t m;

        if (end - q < 64)
            memcpy(last, q, (size_t)(end - q));
        m = commas(end - q < 64 ? last : q);
        if (close - q < 64)
            m &= ((uint64_t)1 << (close - q)) - 1;
        for (; m; m &= m - 1)
            *at++ = (uint32_t)(q - p) + (uint32_t)__builtin_ctzll(m);
    }
    *at++ = (uint32_t)(close - p);
    return at - first;
}

/* [*P, TO) without the space around it; false when that is all. */
INLINE bool trim(const char **p, const char **to)
{
    *p += **p == ' ';
    if (**p <= ' ')
        *p = after_space(*p);
    while (*to > *p && (*to)[-1] <= ' ' && strchr(" \n\t\r", (*to)[-1]))
        --*to;
    return *to > *p;
}

bool tw_list_integers(const char *p, const uint32_t *at, int64_t n, int32_t *out)
{
    const char *list = p, *to, *end;

    for (int64_t i = 0; i < n; i++, p = end + 1) {
        uint64_t v, bad = 0;
        bool minus;

        end = to = list + at[i];
        if (!trim(&p, &to))
            return false;
        minus = *p == '-';
        p += minus;
        if (to - p < 1 || to - p > 10 || (*p == '0' && to - p > 1))
            return false;
        v = digits_before(to, to - p < 8 ? to - p : 8, &bad);
        if (to - p > 8)
            v += digits_before(to - 8, to - p - 8, &bad) * 100000000;
        if (bad || v > (uint64_t)INT32_MAX + minus)
            return false;
        out[i] = (int32_t)(minus ? -(int64_t)v : (int64_t)v);
    }
    return true;
}

/* One digit, a point, and up to 18 more: how nearly all are written. Any other: false. */
INLINE bool plain(const char *p, const char *to, double *out)
{
    bool minus = *p == '-';
    int64_t n = to - (p += minus) - 2;
    uint64_t m = (uint64_t)*p - '0', bad = 0;

    if (m > 9 || n < 1 || n > 18 || p[1] != '.')
        return false;
    if (n > 16) {
        m = m * whole_ten[n - 16] + digits_before(to - 16, n - 16, &bad);
        n = 16;
    }
    if (n > 8) {
        m = m * whole_ten[n - 8] + digits_before(to - 8, n - 8, &bad);
        n = 8;
    }
    m = m * whole_ten[n] + digits_before(to, n, &bad);
    if (bad || !scaled(m, (int)(p + 2 - to), out))
        return false;
    *out = minus ? -*out : *out;
    return true;
}

bool tw_list_floats(const char *p, const uint32_t *at, int64_t n, float *out)
{
    const char *list = p, *to, *end;
    double d;

    for (int64_t i = 0; i < n; i++, p = end + 1) {
        end = to = list + at[i];
        if (!trim(&p, &to) || (!plain(p, to, &d) && (!number(&p, &d) || p != to)))
            return false;
        out[i] = (float)d;
    }
    return true;
}
