/* jinja_case.c - upper and lower case, and the tests on characters of Python's str. */
#include "jinja_case.h"
#include "jinja_priv.h"

#include <stdlib.h>
#include <utf8proc.h>

static bool in_ranges(const struct tw_jrange *r, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n && r[i].first <= c; i++)
        if (c <= r[i].last)
            return true;
    return false;
}
#define IN(table, c) in_ranges(table, sizeof(table) / sizeof(*table), c)

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

static bool is_lower(uint32_t c)
{
    return c < 0x80 ? c >= 'a' && c <= 'z' : category(c) == UTF8PROC_CATEGORY_LL || IN(other_lower, c);
}

static bool is_upper(uint32_t c)
{
    return c < 0x80 ? c >= 'A' && c <= 'Z' : category(c) == UTF8PROC_CATEGORY_LU || IN(other_upper, c);
}

/* A character that has case: what title() looks for. */
static bool is_cased(uint32_t c)
{
    return is_lower(c) || is_upper(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

static bool is_numeric(uint32_t c)
{
    utf8proc_category_t g = category(c);

    return g == UTF8PROC_CATEGORY_ND || g == UTF8PROC_CATEGORY_NL || g == UTF8PROC_CATEGORY_NO
            || IN(other_numeric, c);
}

bool tw_jchar_is(uint32_t c, enum tw_jclass k)
{
    utf8proc_category_t g = category(c);
    bool alpha = g >= UTF8PROC_CATEGORY_LU && g <= UTF8PROC_CATEGORY_LO;

    switch (k) {
    case TW_K_ALPHA: return alpha;
    case TW_K_DECIMAL: return g == UTF8PROC_CATEGORY_ND;
    case TW_K_DIGIT: return g == UTF8PROC_CATEGORY_ND || IN(other_digit, c);
    case TW_K_NUMERIC: return is_numeric(c);
    case TW_K_ALNUM: return alpha || is_numeric(c);
    case TW_K_SPACE: return tw_jspace(c);
    case TW_K_ASCII: return c < 0x80;
    default: return tw_jprintable(c);
    }
}

/* Of all characters; an empty text passes where Python says so. */
bool tw_jstr_is(const struct tw_jstr *s, enum tw_jclass k)
{
    const char *p = s->p, *end = p + s->n;

    while (p < end)
        if (!tw_jchar_is(tw_utf8_next(&p, end), k))
            return false;
    return s->n || k == TW_K_ASCII || k == TW_K_PRINTABLE;
}

bool tw_jstr_case(const struct tw_jstr *s, bool upper)
{
    const char *p = s->p, *end = p + s->n;
    bool seen = false;

    while (p < end) {
        uint32_t c = tw_utf8_next(&p, end);

        if (upper ? is_lower(c) : is_upper(c))
            return false;
        if (category(c) == UTF8PROC_CATEGORY_LT)
            return false;
        seen |= upper ? is_upper(c) : is_lower(c);
    }
    return seen;
}

bool tw_jstr_title(const struct tw_jstr *s)
{
    const char *p = s->p, *end = p + s->n;
    bool seen = false, cased = false;

    while (p < end) {
        uint32_t c = tw_utf8_next(&p, end);
        bool up = is_upper(c) || category(c) == UTF8PROC_CATEGORY_LT;

        if ((up && cased) || (is_lower(c) && !cased))
            return false;
        cased = up || is_lower(c);
        seen |= cased;
    }
    return seen;
}

/* ---- mapping ---- */

static int by_char(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* The upper or title case of C into T; how many bytes. */
static size_t raised(char t[16], uint32_t c, bool title)
{
    uint32_t r = c;
    size_t i = sizeof(special) / sizeof(*special), n;
    const void *hit = c < 0x80 ? NULL : bsearch(&c, special, i, sizeof(*special), by_char);

    if (hit) {
        i = (size_t)((const char *)hit - (const char *)special) / sizeof(*special);
        n = strlen(title ? special[i].title : special[i].upper);
        memcpy(t, title ? special[i].title : special[i].upper, n);
        return n;
    }
    if (c != 0xDF)
        r = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
    return (size_t)tw_utf8_put(t, r);
}

/* Is the sigma at P, of S, the last letter of a word? Marks and the like (case-ignorable) are passed over. */
static bool final_sigma(const struct tw_jstr *s, const char *p, const char *next)
{
    const char *end = s->p + s->n, *q;
    uint32_t c;

    for (q = next; q < end;) {
        c = tw_utf8_next(&q, end);
        if (is_cased(c))
            return false;
        if (category(c) != UTF8PROC_CATEGORY_MN && c != '\'' && c != 0xAD && c != '.' && c != 0x2019)
            break;
    }
    while (p > s->p) {
        for (p--; p > s->p && ((unsigned char)*p & 0xC0) == 0x80; p--)
            ;
        q = p;
        c = tw_utf8_next(&q, end);
        if (is_cased(c))
            return true;
        if (category(c) != UTF8PROC_CATEGORY_MN && c != '\'' && c != 0xAD && c != '.' && c != 0x2019)
            return false;
    }
    return false;
}

static size_t lowered(char t[16], const struct tw_jstr *s, const char *p, const char *next, uint32_t c)
{
    if (c == 0x130) {
        memcpy(t, "i\xCC\x87", 3);
        return 3;
    }
    if (c == 0x3A3)
        return (size_t)tw_utf8_put(t, final_sigma(s, p, next) ? 0x3C2 : 0x3C3);
    return (size_t)tw_utf8_put(t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

struct tw_jval tw_jcase(struct tw_jrt *rt, const struct tw_jstr *s, enum tw_jcase how)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    const char *p = s->p, *end = p + s->n;
    bool start = true;
    size_t run = 0, n;
    struct tw_jval r;

    tw_jstep(rt, (int64_t)s->n);
    while (p < end) {
        const char *at = p;
        uint32_t c = tw_utf8_next(&p, end);
        char t[16];

        if (how == TW_C_UPPER || (how == TW_C_SWAP && is_lower(c))
                || (how == TW_C_TITLE_FILTER && start))
            n = raised(t, c, false);
        else if (how == TW_C_LOWER || (how == TW_C_SWAP && is_upper(c)) || (how != TW_C_SWAP && !start))
            n = lowered(t, s, at, p, c);
        else if (how == TW_C_SWAP)
            n = (size_t)tw_utf8_put(t, c);
        else
            n = raised(t, c, true);
        if (how == TW_C_CAPITAL)
            start = false;
        else if (how == TW_C_TITLE)
            start = !is_cased(c);
        else if (how == TW_C_TITLE_FILTER)
            start = c == '-' || tw_jspace(c) || c == '(' || c == '{' || c == '[' || c == '<';
        while (run + 1 < s->nrun && s->run[run].end <= (size_t)(at - s->p))
            run++;
        tw_jsink_add(rt, k, t, n, s->nrun ? s->run[run].origin : s->origin,
                s->nrun ? s->run[run].owner : s->owner);
    }
    r = tw_jsink_take(rt, k);
    return tw_jmark(rt, &r, s->safe && how != TW_C_TITLE_FILTER);
}

struct tw_jval tw_jcasefold(struct tw_jrt *rt, const struct tw_jstr *s)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    size_t at = 0;

    tw_jstep(rt, (int64_t)s->n);
    for (size_t i = 0; at < s->n; i++) {
        size_t end = s->nrun ? s->run[i].end : s->n;
        utf8proc_uint8_t *out = NULL;
        utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)s->p + at,
                (utf8proc_ssize_t)(end - at), &out, UTF8PROC_CASEFOLD);

        if (n < 0)
            tw_jfail(rt, "a text that cannot be folded");
        tw_jsink_add(rt, k, (const char *)out, (size_t)n, s->nrun ? s->run[i].origin : s->origin,
                s->nrun ? s->run[i].owner : s->owner);
        free(out);
        at = end;
    }
    return tw_jsink_take(rt, k);
}
