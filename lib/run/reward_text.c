/* reward_text.c - finding the answer in a text. Everything here takes time in proportion to the
 * text, whatever it holds: models write what no person would. */
#include "reward_priv.h"
#include <math.h>

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct tw_str tw_trim(struct tw_str s)
{
    while (s.n && blank(s.p[s.n - 1]))
        s.n--;
    while (s.n && blank(*s.p)) {
        s.p++;
        s.n--;
    }
    return s;
}

int64_t tw_chars(struct tw_str s)
{
    int64_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += (s.p[i] & 0xC0) != 0x80;
    return n;
}

struct tw_str tw_tail(struct tw_str s, int64_t chars)
{
    size_t at = s.n;

    while (at && chars)
        chars -= (s.p[--at] & 0xC0) != 0x80;
    return (struct tw_str){ s.p + at, s.n - at };
}

size_t tw_find(struct tw_str s, const char *what, size_t from)
{
    const char *at = from < s.n ? memmem(s.p + from, s.n - from, what, strlen(what)) : NULL;

    return at ? (size_t)(at - s.p) : SIZE_MAX;
}

size_t tw_find_last(struct tw_str s, const char *what)
{
    size_t len = strlen(what);

    for (size_t at = s.n + 1 > len ? s.n + 1 - len : 0; at-- > 0;)
        if (!memcmp(s.p + at, what, len))
            return at;
    return SIZE_MAX;
}

bool tw_contains(struct tw_str s, const char *what)
{
    return tw_find(s, what, 0) != SIZE_MAX;
}

struct tw_str tw_without(struct tw_arena *a, struct tw_str s, const char *drop)
{
    char *p = tw_arena_alloc(a, s.n + 1);
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        if (!s.p[i] || !strchr(drop, s.p[i]))
            p[n++] = s.p[i];
    return (struct tw_str){ p, n };
}

bool tw_number(struct tw_str s, double *x)
{
    char b[128], *end;

    s = tw_trim(s);
    if (!s.n || s.n >= sizeof(b))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789.+-eE", s.p[i]) || !s.p[i])
            return false;
    memcpy(b, s.p, s.n);
    b[s.n] = 0;
    *x = strtod(b, &end);
    return end == b + s.n && isfinite(*x);
}

struct tw_boxes tw_boxes(struct tw_arena *a, struct tw_str s)
{
    struct tw_boxes out = { 0 };
    size_t *open = NULL, n = 0, cap = 0;    /* 2 * position + 1 for a box */
    int64_t max = 0;
    bool box = false;

    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\\') {
            size_t len = s.n - i >= 6 && !memcmp(s.p + i, "\\boxed", 6) ? 6
                    : s.n - i >= 5 && !memcmp(s.p + i, "\\fbox", 5) ? 5 : 2;

            box = len > 2;
            i += len - 1;
        } else if (s.p[i] == '{') {
            if (n == cap)
                open = tw_xreallocarray(open, cap = cap ? 2 * cap : 64, sizeof(*open));
            open[n++] = 2 * (i + 1) + box;
            box = false;
        } else if (s.p[i] == '}') {
            if (n && open[--n] & 1) {
                if (out.n == max) {
                    struct tw_str *v = tw_arena_alloc(a, (size_t)(max = 2 * max + 8) * sizeof(*v));

                    if (out.n)
                        memcpy(v, out.v, (size_t)out.n * sizeof(*v));
                    out.v = v;
                }
                out.v[out.n++] = (struct tw_str){ s.p + open[n] / 2, i - open[n] / 2 };
            }
            box = false;
        } else if (!blank(s.p[i])) {
            box = false;
        }
    }
    free(open);
    return out;
}

bool tw_box_last(struct tw_arena *a, struct tw_str s, struct tw_str *out)
{
    struct tw_boxes b = tw_boxes(a, s);
    bool found = false;

    for (int64_t i = 0; i < b.n; i++)
        if (!found || b.v[i].p > out->p) {
            *out = b.v[i];
            found = true;
        }
    return found;
}

bool tw_tagged(struct tw_str s, const char *tag, struct tw_str *out)
{
    char open[32], close[32];
    size_t from, to;

    snprintf(open, sizeof(open), "<%s>", tag);
    snprintf(close, sizeof(close), "</%s>", tag);
    if ((to = tw_find_last(s, close)) == SIZE_MAX)
        return false;
    if ((from = tw_find_last((struct tw_str){ s.p, to }, open)) == SIZE_MAX)
        return false;
    from += strlen(open);
    *out = (struct tw_str){ s.p + from, to - from };
    return true;
}

bool tw_hashes(struct tw_arena *a, struct tw_str s, struct tw_str *out)
{
    bool found = false;

    for (size_t at = 0; (at = tw_find(s, "####", at)) != SIZE_MAX;) {
        size_t from = at += 4;

        while (at < s.n && (blank(s.p[at]) || (s.p[at] && strchr("-0123456789,.", s.p[at]))))
            at++;
        if (tw_trim((struct tw_str){ s.p + from, at - from }).n) {
            *out = (struct tw_str){ s.p + from, at - from };
            found = true;
        }
    }
    if (found)
        *out = tw_without(a, *out, ", \t\r\n\v\f");
    return found;
}
