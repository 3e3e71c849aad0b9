/* reward_olympiad.c - answers of olympiad problems, often in Chinese: normalised as text, then
 * compared as text or number; how well the answer is marked; how the reasoning looks. */
#include "reward_priv.h"
#include "base/rng.h"
#include <ctype.h>
#include <math.h>

/* One replacement; TO may be empty. Texts are replaced wherever they stand. */
struct swap {
    const char *from, *to;
};

static struct tw_str replace_all(struct tw_arena *a, struct tw_str s, const struct swap *list, size_t n)
{
    struct tw_buf b = { 0 };
    struct tw_str out;

    for (size_t i = 0; i < s.n;) {
        size_t k;

        for (k = 0; k < n; k++) {
            size_t len = strlen(list[k].from);

            if (s.n - i >= len && !memcmp(s.p + i, list[k].from, len)) {
                tw_buf_puts(&b, list[k].to);
                i += len;
                break;
            }
        }
        if (k == n)
            tw_buf_putc(&b, s.p[i++]);
    }
    out = tw_arena_str(a, tw_buf_str(&b));
    tw_buf_free(&b);
    return out;
}

/* Full-width digits, letters and signs (U+FF01..U+FF5E) to ASCII, Chinese punctuation too. */
static struct tw_str half_width(struct tw_arena *a, struct tw_str s)
{
    static const struct swap punctuation[] = { { "\u3002", "." }, { "\u3001", "," }, { "\u3000", " " },
        { "\u3010", "[" }, { "\u3011", "]" }, { "\u201c", "\"" }, { "\u201d", "\"" }, { "\u2212", "-" },
        { "\u00d7", "*" }, { "\u00f7", "/" }, { "\u221e", "\\infty" }, { "\u03c0", "\\pi" } };
    struct tw_buf b = { 0 };
    const char *p = s.p, *end = s.p + s.n;

    while (p < end) {
        const char *from = p;
        uint32_t c = tw_utf8_next(&p, end);

        if (c >= 0xFF01 && c <= 0xFF5E)
            tw_buf_putc(&b, (char)(c - 0xFF01 + '!'));
        else
            tw_buf_add(&b, from, (size_t)(p - from));
    }
    s = tw_arena_str(a, tw_buf_str(&b));
    tw_buf_free(&b);
    return replace_all(a, s, punctuation, sizeof(punctuation) / sizeof(*punctuation));
}

/* The end of {..} that begins at I, or of the one character there; the inside in *IN. 0: none. */
static size_t group_end(struct tw_str s, size_t i, struct tw_str *in)
{
    size_t depth = 0, from = i;

    if (i >= s.n)
        return 0;
    if (s.p[i] != '{') {
        *in = (struct tw_str){ s.p + i, 1 };
        return isalnum((unsigned char)s.p[i]) ? i + 1 : 0;
    }
    for (; i < s.n; i++) {
        depth += s.p[i] == '{';
        depth -= s.p[i] == '}';
        if (!depth) {
            *in = (struct tw_str){ s.p + from + 1, i - from - 1 };
            return i + 1;
        }
    }
    return 0;
}

static bool command_at(struct tw_str s, size_t i, const char *name)
{
    size_t n = strlen(name);

    return s.n - i > n && s.p[i] == '\\' && s.n - i >= n + 1 && !memcmp(s.p + i + 1, name, n);
}

enum { MAX_NEST = 20, MAX_ANSWER = 8192 };  /* what no answer needs is not looked at */

/* \frac{a}{b} -> (a)/(b), \sqrt{x} -> sqrt(x), \text{x} -> x, _{x} and ^{x} unwrapped. */
static void unwrap(struct tw_buf *b, struct tw_str s, int depth)
{
    static const char *const plain[] = { "text", "mathrm", "mathbf", "mathit" };

    for (size_t i = 0; i < s.n;) {
        struct tw_str x, y;
        size_t skip = command_at(s, i, "dfrac") || command_at(s, i, "tfrac") ? 6
                : command_at(s, i, "frac") ? 5 : 0, end, end2;

        if (depth < MAX_NEST && skip && (end = group_end(s, i + skip, &x)) && (end2 = group_end(s, end, &y))) {
            tw_buf_putc(b, '(');
            unwrap(b, x, depth + 1);
            tw_buf_puts(b, ")/(");
            unwrap(b, y, depth + 1);
            tw_buf_putc(b, ')');
            i = end2;
            continue;
        }
        if (depth < MAX_NEST && command_at(s, i, "sqrt") && (end = group_end(s, i + 5, &x))) {
            tw_buf_puts(b, "sqrt(");
            unwrap(b, x, depth + 1);
            tw_buf_putc(b, ')');
            i = end;
            continue;
        }
        skip = 0;
        for (size_t k = 0; k < sizeof(plain) / sizeof(*plain); k++)
            if (command_at(s, i, plain[k]))
                skip = strlen(plain[k]) + 1;
        if ((s.p[i] == '_' || s.p[i] == '^') && i + 1 < s.n && s.p[i + 1] == '{')
            skip = 1;
        if (depth < MAX_NEST && skip && (end = group_end(s, i + skip, &x)) && s.p[i + skip] == '{') {
            if (skip == 1)
                tw_buf_putc(b, s.p[i]);
            unwrap(b, x, depth + 1);
            i = end;
            continue;
        }
        tw_buf_putc(b, s.p[i++]);
    }
}

/* Units that stand alone or behind a number; the longest first. */
static const char *const unit_names[] = { "km/h", "m/s", "g/mol", "kJ/mol", "mol/L", "kcal", "MeV",
    "keV", "GeV",
    "kPa", "MPa", "kHz", "MHz", "GHz", "mol", "cal", "mmHg", "rad", "deg", "eV", "kJ", "kW", "mA", "kV",
    "Hz", "Pa", "km", "cm", "mm", "nm", "kg", "mg", "mL", "min", "atm", "\u5398\u7c73", "\u5343\u7c73",
    "\u6beb\u7c73", "\u5343\u514b", "\u5c0f\u65f6", "\u5206\u949f", "\u5e73\u65b9\u7c73", "\u7c73", "\u514b",
    "\u79d2", "\u5143", "\u4e2a", "\u5ea6", "\u5c81", "\u5929", "\u4eba", "\u00b0", "m", "g", "s", "J",
    "N", "W", "V", "A", "K", "L", "h", "C", "T" };

static bool letter(struct tw_str s, size_t i)
{
    return i < s.n && isalpha((unsigned char)s.p[i]);
}

static size_t unit_at(struct tw_str s, size_t i)
{
    for (size_t k = 0; k < sizeof(unit_names) / sizeof(*unit_names); k++) {
        size_t n = strlen(unit_names[k]);
        bool single = n == 1, ascii = !(unit_names[k][0] & 0x80);
        size_t back = i;

        if (s.n - i < n || memcmp(s.p + i, unit_names[k], n) || (ascii && letter(s, i + n)))
            continue;
        while (back && s.p[back - 1] == ' ')
            back--;
        if (ascii && letter(s, i ? i - 1 : s.n))
            continue;
        /* one letter may as well be a variable: only behind a number it is a unit */
        if ((single || !ascii) && !(back && (isdigit((unsigned char)s.p[back - 1]) || s.p[back - 1] == ')')))
            continue;
        return n;
    }
    return 0;
}

static struct tw_str no_units(struct tw_arena *a, struct tw_str s)
{
    struct tw_buf b = { 0 };
    struct tw_str out;
    size_t n;

    for (size_t i = 0; i < s.n;)
        if ((n = unit_at(s, i))) {
            i += n;
            if (i + 1 < s.n && s.p[i] == '^' && isdigit((unsigned char)s.p[i + 1]))
                i += 2;
        } else {
            tw_buf_putc(&b, s.p[i++]);
        }
    out = tw_arena_str(a, tw_buf_str(&b));
    tw_buf_free(&b);
    return out;
}

/* 3:2 -> 3/2 -> (3)/(2), white space and surplus commas go. */
static struct tw_str tidy(struct tw_arena *a, struct tw_str s)
{
    struct tw_buf b = { 0 };
    struct tw_str out;

    s = tw_without(a, s, " \t\r\n\v\f");
    for (size_t i = 0; i < s.n;) {
        size_t mid = i, end;

        while (mid < s.n && isdigit((unsigned char)s.p[mid]))
            mid++;
        for (end = mid + 1; end < s.n && isdigit((unsigned char)s.p[end]); end++)
            ;
        if (mid > i && mid < s.n && (s.p[mid] == '/' || s.p[mid] == ':') && end > mid + 1) {
            tw_buf_printf(&b, "(%.*s)/(%.*s)", (int)(mid - i), s.p + i, (int)(end - mid - 1), s.p + mid + 1);
            i = end;
        } else if (mid > i) {
            tw_buf_add(&b, s.p + i, mid - i);
            i = mid;
        } else {
            if (s.p[i] != ',' || (b.n && b.p[b.n - 1] != ','))
                tw_buf_putc(&b, s.p[i]);
            i++;
        }
    }
    out = tw_arena_str(a, tw_buf_str(&b));
    tw_buf_free(&b);
    while (out.n && (out.p[out.n - 1] == ',' || out.p[out.n - 1] == '.'))
        out.n--;
    while (out.n && (*out.p == ',' || *out.p == '.') && !(out.n > 1 && isdigit((unsigned char)out.p[1])))
        out.p++, out.n--;
    return out;
}

struct tw_str tw_olympiad_normal(struct tw_arena *a, struct tw_str s)
{
    static const struct swap latex[] = { { "\\left", "" }, { "\\right", "" }, { "\\leq", "" }, { "\\geq", "" },
        { "\\le", "" }, { "\\ge", "" }, { "\\lt", "" }, { "\\gt", "" }, { "\\neq", "" }, { "\\approx", "" },
        { "\\quad", "" }, { "\\qquad", "" }, { "\\,", "" }, { "\\;", "" }, { "\\:", "" }, { "\\!", "" },
        { "\\ ", "" }, { "~", "" }, { "$", "" }, { "+\\infty", "\\infty" }, { "\\infty", "\\infty" },
        { "\\in", " in " }, { "\\cup", " cup " }, { "\\cap", " cap " }, { "^\\circ", "\u00b0" },
        { "^{\\circ}", "\u00b0" }, { "\\circ", "\u00b0" }, { "\\cdot", "*" }, { "\\times", "*" },
        { "{,}", "," } };
    static const struct swap greek[] = { { "Delta", "" }, { "Omega", "" }, { "Gamma", "" }, { "Lambda", "" },
        { "Sigma", "" }, { "Phi", "" }, { "Psi", "" }, { "Theta", "" }, { "Pi", "" }, { "Xi", "" } };
    struct tw_buf b = { 0 };

    s = half_width(a, s);
    s = replace_all(a, s, latex, sizeof(latex) / sizeof(*latex));
    unwrap(&b, s, 0);
    s = tw_without(a, tw_buf_str(&b), "\\");
    tw_buf_free(&b);
    s = replace_all(a, s, greek, sizeof(greek) / sizeof(*greek));
    return tidy(a, no_units(a, s));
}

/* A number, or a quotient of two: (3)/(2). */
static bool number_of(struct tw_arena *a, struct tw_str s, double *x)
{
    double top, bottom;
    size_t at = tw_find(s, ")/(", 0), minus = s.n > 0 && *s.p == '-';

    if (at != SIZE_MAX && s.n > minus + 1 && s.p[minus] == '(' && s.p[s.n - 1] == ')'
            && tw_number((struct tw_str){ s.p + minus + 1, at - minus - 1 }, &top)
            && tw_number((struct tw_str){ s.p + at + 3, s.n - at - 4 }, &bottom) && bottom != 0) {
        *x = minus ? -top / bottom : top / bottom;
        return true;
    }
    return tw_number(s, x) || tw_number(tw_without(a, s, ","), x);
}

/* 1 for the same, 0.99 exp(-5 e) for numbers whose relative error is e, else 0. */
static double compare(struct tw_arena *a, struct tw_str said, struct tw_str truth)
{
    double x, y, off;

    if (said.n > MAX_ANSWER || truth.n > MAX_ANSWER)
        return 0;
    said = tw_olympiad_normal(a, said);
    truth = tw_olympiad_normal(a, truth);
    if (said.n && tw_str_eq(said, truth))
        return 1;
    if (!number_of(a, said, &x) || !number_of(a, truth, &y))
        return 0;
    off = fabs(x - y);
    if (off < 1e-4 || (y != 0 && off / fabs(y) < 0.01))
        return 1;
    return y != 0 ? 0.99 * exp(-5 * off / fabs(y)) : 0;
}

int tw_setup_olympiad(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    bool close = true;

    if (tw_set_bool(s, "close", &close, err) < 0)
        return -1;
    r->partial = close;
    return 0;
}

/* A comma at I that three digits follow is part of a number. */
static bool thousands(struct tw_str s, size_t i)
{
    return i && i + 3 < s.n && isdigit((unsigned char)s.p[i - 1]) && isdigit((unsigned char)s.p[i + 1])
            && isdigit((unsigned char)s.p[i + 2]) && isdigit((unsigned char)s.p[i + 3]);
}

/* The parts of S between top-level commas. */
static int64_t parts(struct tw_arena *a, struct tw_str s, struct tw_str **out)
{
    int64_t n = 0, depth = 0;
    size_t from = 0;

    s.n = s.n < MAX_ANSWER ? s.n : MAX_ANSWER;
    *out = tw_arena_alloc(a, (s.n + 1) * sizeof(**out));
    for (size_t i = 0; i <= s.n; i++) {
        if (i < s.n) {
            depth += s.p[i] == '(' || s.p[i] == '[' || s.p[i] == '{';
            depth -= s.p[i] == ')' || s.p[i] == ']' || s.p[i] == '}';
        }
        if (i < s.n && (s.p[i] != ',' || depth > 0 || thousands(s, i)))
            continue;
        (*out)[n] = tw_trim((struct tw_str){ s.p + from, i - from });
        n += (*out)[n].n > 0;
        from = i + 1;
    }
    return n;
}

static bool is_multiple(const struct tw_reward_in *in)
{
    bool yes = false;

    return tw_json_get_bool(in->rec, "is_multiple_answer", &yes, NULL) > 0 && yes;
}

/* One answer: the last box. Several: the share of the references that some part of some box meets. */
int tw_score_olympiad(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_boxes b = tw_boxes(in->a, in->text);
    struct tw_str *ref, *truth, *said, last;
    int64_t nref = tw_reward_refs(r, in, &ref), n, met = 0;

    if (!nref)
        return tw_unscored(in, "no usable reference");
    if (b.n > 64)
        b = (struct tw_boxes){ b.v + b.n - 64, 64 };
    n = nref > 1 ? nref : parts(in->a, ref[0], &truth);
    truth = nref > 1 ? ref : truth;
    *x = 0;
    if (n > 1 && (nref > 1 || is_multiple(in))) {
        for (int64_t i = 0; i < n && i < 64; i++) {
            bool found = false;

            for (int64_t k = 0; k < b.n && !found; k++) {
                int64_t m = parts(in->a, b.v[k], &said);

                found = compare(in->a, b.v[k], truth[i]) == 1;
                for (int64_t j = 0; j < m && j < 64 && !found; j++)
                    found = compare(in->a, said[j], truth[i]) == 1;
            }
            met += found;
        }
        *x = (double)met / (double)n;
    } else if (tw_box_last(in->a, in->text, &last)) {
        *x = compare(in->a, last, ref[0]);
        if (*x < 1 && !r->partial)
            *x = 0;
    }
    return TW_SCORED;
}

int tw_score_olympiad_format(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_boxes b = tw_boxes(in->a, in->text);
    struct tw_hashset set = { 0 };
    struct tw_str last;

    *x = 0;
    if (!b.n)
        return TW_SCORED;
    for (int64_t i = 0; i < b.n; i++) {
        struct tw_str s = tw_trim(b.v[i]);

        /* boxes may be nested deep: the beginning and the length of a long one will do */
        tw_hashset_add(&set, tw_hash64(s.p, s.n < 1000 ? s.n : 1000, s.n));
    }
    tw_box_last(in->a, in->text, &last);
    *x = 0.4 + (set.n == 1 ? 0.3 : 0) - (set.n > 2 ? 0.3 : 0);
    if (last.p >= tw_tail(in->text, 200).p + 7)     /* where "\boxed{" begins */
        *x += 0.3;
    *x = fmin(1, fmax(0, *x));
    tw_hashset_free(&set);
    return TW_SCORED;
}
