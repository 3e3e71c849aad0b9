/* reward_math_lex.c - LaTeX and plain text of an answer as tokens */
#include "reward_math_priv.h"
#include <ctype.h>
#include <math.h>

struct lex {
    struct tw_arena *a;
    struct tw_str s;
    size_t at;
    int depth;                  /* of brackets, where a comma separates */
    bool blank;                 /* white space stood before this token */
    bool bad;
    struct tw_mtoks t;
};

static struct tw_mtok *push(struct lex *l, int kind)
{
    struct tw_mtok *t;

    if (l->t.n == TW_MATH_TOKENS) {
        l->bad = true;
        l->t.n--;
    }
    t = &l->t.v[l->t.n++];
    *t = (struct tw_mtok){ .kind = kind };
    return t;
}

static bool at(const struct lex *l, const char *what)
{
    size_t n = strlen(what);

    return l->s.n - l->at >= n && !memcmp(l->s.p + l->at, what, n);
}

static bool eat(struct lex *l, const char *what)
{
    bool is = at(l, what);

    l->at += is ? strlen(what) : 0;
    return is;
}

static int digit(const struct lex *l, size_t i)
{
    return i < l->s.n && isdigit((unsigned char)l->s.p[i]);
}

/* Length of a separator of thousands at AT that three digits and no more follow; 0: none. */
static size_t thousands(const struct lex *l, size_t i)
{
    static const char *const sep[] = { "{,}", "\\,", "\\!", ",\\!", "," };

    for (size_t k = 0; k < sizeof(sep) / sizeof(*sep); k++) {
        size_t n = strlen(sep[k]);

        if (l->s.n - i < n || memcmp(l->s.p + i, sep[k], n) || (k == 4 && l->depth))
            continue;
        if (digit(l, i + n) && digit(l, i + n + 1) && digit(l, i + n + 2) && !digit(l, i + n + 3))
            return n;
    }
    return 0;
}

/* \overline{36} behind a decimal point, read into the number. */
static void overline(struct lex *l, __int128 *n, __int128 *d)
{
    size_t from = l->at + 10, to = from;
    __int128 rep = 0, nines = 1;

    if (!at(l, "\\overline{"))
        return;
    while (digit(l, to) && to - from < 9) {
        rep = 10 * rep + (l->s.p[to++] - '0');
        nines *= 10;
    }
    if (to == from || to >= l->s.n || l->s.p[to] != '}' || *d > 1000000000)
        return;
    *n = *n * (nines - 1) + rep;
    *d *= nines - 1;
    l->at = to + 1;
}

static void lex_number(struct lex *l)
{
    struct tw_mtok *t = push(l, TW_MNUM);
    size_t from = l->at, sep = 0;
    __int128 n = 0, d = 1;
    bool first = true;
    long double v = 0;
    int digits = 0, after = 0;

    for (; digit(l, l->at) || (!first && !after && (sep = thousands(l, l->at))); first = false) {
        if (!digit(l, l->at)) {
            l->at += sep;
            continue;
        }
        v = 10 * v + (l->s.p[l->at] - '0');
        digits += n != 0 || l->s.p[l->at] != '0';
        n = digits > 30 ? n : 10 * n + (l->s.p[l->at] - '0');
        l->at++;
    }
    if (l->at < l->s.n && l->s.p[l->at] == '.' && (digits || !first || digit(l, l->at + 1))) {
        for (l->at++; digit(l, l->at); l->at++, after++) {
            v = 10 * v + (l->s.p[l->at] - '0');
            digits += 1;
            if (digits <= 30) {
                n = 10 * n + (l->s.p[l->at] - '0');
                d *= 10;
            }
        }
        if (digits <= 18)
            overline(l, &n, &d);
    }
    t->num = digits > 30 ? tw_mval_real(v / powl(10, after)) : tw_mval_make(n, d);
    t->huge = digits > 30;
    if (l->at < l->s.n && (l->s.p[l->at] == 'e' || l->s.p[l->at] == 'E')) {
        size_t k = l->at + 1;
        int e = 0, sign = k < l->s.n && l->s.p[k] == '-' ? -1 : 1;

        k += k < l->s.n && (l->s.p[k] == '-' || l->s.p[k] == '+');
        for (size_t first_digit = k; digit(l, k) && k - first_digit < 4; k++) {
            e = 10 * e + (l->s.p[k] - '0');
            l->at = k + 1;
        }
        if (e > 30 || digits + e > 30)
            t->num = tw_mval_real(t->num.v * powl(10, sign * e));
        else
            for (; e > 0; e--)
                t->num = tw_mval_make(t->num.n * (sign > 0 ? 10 : 1), t->num.d * (sign > 0 ? 1 : 10));
    }
    t->s = (struct tw_str){ l->s.p + from, l->at - from };
}

static const struct { const char *name; int fun; } funs[] = { { "frac", TW_FRAC }, { "dfrac", TW_FRAC },
    { "tfrac", TW_FRAC }, { "cfrac", TW_FRAC }, { "sqrt", TW_SQRT }, { "binom", TW_BINOM },
    { "dbinom", TW_BINOM }, { "tbinom", TW_BINOM }, { "ln", TW_LN }, { "log", TW_LOG }, { "exp", TW_EXP },
    { "sin", TW_SIN }, { "cos", TW_COS }, { "tan", TW_TAN }, { "sec", TW_SEC }, { "csc", TW_CSC },
    { "cot", TW_COT }, { "arcsin", TW_ASIN }, { "arccos", TW_ACOS }, { "arctan", TW_ATAN } };

static const struct { const char *name; int kind; } words[] = { { "cdot", '*' }, { "times", '*' },
    { "ast", '*' }, { "div", '/' }, { "infty", TW_MINF }, { "infinity", TW_MINF }, { "inf", TW_MINF },
    { "pm", TW_MPM }, { "cup", ',' }, { "or", ',' }, { "and", ',' }, { "lvert", '|' }, { "rvert", '|' },
    { "vert", '|' }, { "mid", '|' }, { "lbrace", TW_MSET }, { "rbrace", TW_MTES }, { "lbrack", '[' },
    { "rbrack", ']' }, { "le", TW_MREL }, { "leq", TW_MREL }, { "ge", TW_MREL }, { "geq", TW_MREL },
    { "lt", TW_MREL }, { "gt", TW_MREL }, { "ne", TW_MREL }, { "neq", TW_MREL }, { "in", TW_MREL },
    { "approx", TW_MREL }, { "equiv", TW_MREL } };

static bool word(struct lex *l, struct tw_str w, bool command)
{
    for (size_t i = 0; i < sizeof(funs) / sizeof(*funs); i++)
        if (tw_str_is(w, funs[i].name)) {
            push(l, TW_MFUN)->fun = funs[i].fun;
            return true;
        }
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (tw_str_is(w, words[i].name) && (command || words[i].kind == ',' || words[i].kind == TW_MINF)) {
            push(l, words[i].kind)->s = w;
            return true;
        }
    return false;
}

static void text(struct lex *l, struct tw_str s)
{
    s = tw_trim(s);
    while (s.n && (s.p[s.n - 1] == '.' || s.p[s.n - 1] == ','))
        s.n--;
    if (s.n == 3 && *s.p == '(' && s.p[2] == ')')
        s = (struct tw_str){ s.p + 1, 1 };  /* a letter of a choice */
    if (s.n && !word(l, s, false))
        push(l, s.n == 1 && isalpha((unsigned char)*s.p) && !(l->t.n && tw_math_unit(s)) ? TW_MVAR
                : TW_MTEXT)->s = s;
}

/* The inside of {..} at AT, which moves behind it. */
static struct tw_str braces(struct lex *l)
{
    size_t from, depth = 0;

    while (l->at < l->s.n && isspace((unsigned char)l->s.p[l->at]))
        l->at++;
    from = l->at + 1;
    if (l->at >= l->s.n || l->s.p[l->at] != '{')
        return (struct tw_str){ "", 0 };
    for (; l->at < l->s.n; l->at++) {
        depth += l->s.p[l->at] == '{';
        depth -= l->s.p[l->at] == '}';
        if (!depth)
            return (struct tw_str){ l->s.p + from, l->at++ - from };
    }
    l->bad = true;
    return (struct tw_str){ "", 0 };
}

static bool is_one(struct tw_str w, const char *const *list)
{
    for (; *list; list++)
        if (tw_str_is(w, *list))
            return true;
    return false;
}

static void lex_command(struct lex *l)
{
    static const char *const skip[] = { "left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr",
        "displaystyle", "textstyle", "quad", "qquad", "limits", "boxed", "mathstrut", NULL };
    static const char *const texts[] = { "text", "mathrm", "textbf", "textit", "mbox", "operatorname",
        "textrm", "hbox", "mathsf", NULL };
    static const char *const plain[] = { "mathbf", "mathbb", "mathit", "mathcal", "overline", "vec", NULL };
    size_t from = ++l->at;
    struct tw_str w;

    if (l->at < l->s.n && !isalpha((unsigned char)l->s.p[l->at])) {
        char c = l->s.p[l->at++];

        if (c == '{' || c == '}')
            push(l, c == '{' ? TW_MSET : TW_MTES);
        else if (c == '\\')
            push(l, TW_MROW);
        else if (c == '%' || c == '|')
            push(l, c);
        else if (!strchr(",!;: ()[]$\n&#_", c) || !c)
            l->bad = true;
        return;
    }
    while (l->at < l->s.n && isalpha((unsigned char)l->s.p[l->at]))
        l->at++;
    w = (struct tw_str){ l->s.p + from, l->at - from };
    if (is_one(w, skip) || is_one(w, plain))
        return;
    if (is_one(w, texts)) {
        text(l, braces(l));
    } else if (tw_str_is(w, "begin") || tw_str_is(w, "end")) {
        bool begin = w.p[0] == 'b';

        if (tw_contains(braces(l), "array") && begin)
            braces(l);                      /* how its columns stand */
        push(l, begin ? TW_MBEGIN : TW_MCLOSE);
    } else if (tw_str_is(w, "circ") || tw_str_is(w, "degree")) {
        if (l->t.n && l->t.v[l->t.n - 1].kind == '^')
            l->t.n--;
        else if (l->t.n > 1 && l->t.v[l->t.n - 1].kind == '{' && l->t.v[l->t.n - 2].kind == '^' && eat(l, "}"))
            l->t.n -= 2;
        push(l, TW_MTEXT)->s = TW_STR_LIT("degree");
    } else if (!word(l, w, true)) {
        push(l, TW_MVAR)->s = w;
    }
}

static void lex_letters(struct lex *l)
{
    size_t from = l->at;
    struct tw_str w;

    while (l->at < l->s.n && isalpha((unsigned char)l->s.p[l->at]))
        l->at++;
    w = (struct tw_str){ l->s.p + from, l->at - from };
    if (tw_str_is(w, "pi")) {
        push(l, TW_MVAR)->s = w;
    } else if (word(l, w, false)) {
        return;
    } else if (w.n > 3 || (l->t.n && l->t.v[l->t.n - 1].kind == TW_MTEXT)
            || (l->t.n && l->t.v[l->t.n - 1].kind == TW_MNUM && l->blank && tw_math_unit(w))) {
        push(l, TW_MTEXT)->s = w;
    } else {
        for (size_t i = 0; i < w.n; i++)
            push(l, TW_MVAR)->s = (struct tw_str){ w.p + i, 1 };
    }
}

/* Characters that have a LaTeX name; the rest of what is not ASCII is part of a text. */
static bool lex_unicode(struct lex *l)
{
    static const struct { const char *s; int kind, fun; const char *name; } sign[] = {
        { "\u2212", '-', 0, NULL }, { "\u00d7", '*', 0, NULL }, { "\u00b7", '*', 0, NULL },
        { "\u22c5", '*', 0, NULL }, { "\u00f7", '/', 0, NULL }, { "\u221e", TW_MINF, 0, NULL },
        { "\u00b1", TW_MPM, 0, NULL }, { "\u222a", ',', 0, NULL }, { "\u03c0", TW_MVAR, 0, "pi" },
        { "\u221a", TW_MFUN, TW_SQRT, NULL }, { "\u00b0", TW_MTEXT, 0, "degree" },
        { "\u2264", TW_MREL, 0, "le" }, { "\u2265", TW_MREL, 0, "ge" }, { "\u2260", TW_MREL, 0, "ne" } };

    for (size_t i = 0; i < sizeof(sign) / sizeof(*sign); i++)
        if (eat(l, sign[i].s)) {
            struct tw_mtok *t = push(l, sign[i].kind);

            t->fun = sign[i].fun;
            t->s = sign[i].name ? tw_str(sign[i].name) : t->s;
            return true;
        }
    for (int e = 2; e <= 3; e++)
        if (eat(l, e == 2 ? "\u00b2" : "\u00b3")) {
            push(l, '^');
            *push(l, TW_MNUM) = (struct tw_mtok){ .kind = TW_MNUM, .num = tw_mval_make(e, 1),
                .s = e == 2 ? TW_STR_LIT("2") : TW_STR_LIT("3") };
            return true;
        }
    if (eat(l, "\u20ac") || eat(l, "\u00a3") || eat(l, "\u00a5") || eat(l, "\u2009") || eat(l, "\u00a0"))
        return true;
    return false;
}

static void lex_one(struct lex *l)
{
    char c = l->s.p[l->at];

    if (digit(l, l->at) || (c == '.' && digit(l, l->at + 1))) {
        lex_number(l);
    } else if (isalpha((unsigned char)c)) {
        lex_letters(l);
    } else if (c == '\\') {
        lex_command(l);
    } else if (c == '$' || c == '~' || c == '`' || c == '"') {
        l->at++;
    } else if (c == '<' || c == '>') {
        push(l, TW_MREL)->s = (struct tw_str){ l->s.p + l->at++, 1 };
    } else if (c == '*' && at(l, "**")) {
        l->at += 2;
        push(l, '^');
    } else if (c && strchr("+-*/^_()[]{},=|!%&:;", c)) {
        l->depth += (c == '(' || c == '[') - (c == ')' || c == ']');
        push(l, c == ':' ? '/' : c == ';' ? ',' : c);
        l->at++;
    } else if (!lex_unicode(l)) {
        size_t from = l->at;

        while (l->at < l->s.n && (l->s.p[l->at] & 0x80))
            l->at++;
        l->bad |= l->at == from;
        push(l, TW_MTEXT)->s = (struct tw_str){ l->s.p + from, l->at - from };
    }
}

bool tw_math_lex(struct tw_arena *a, struct tw_str s, struct tw_mtoks *out)
{
    struct lex l = { .a = a, .s = tw_trim(s) };

    if (l.s.n && l.s.p[l.s.n - 1] == '.')
        l.s.n--;
    if (!l.s.n || l.s.n > TW_MATH_BYTES)
        return false;
    l.t.v = tw_arena_alloc(a, TW_MATH_TOKENS * sizeof(*l.t.v));
    while (l.at < l.s.n && !l.bad) {
        l.blank = isspace((unsigned char)l.s.p[l.at]);
        while (l.at < l.s.n && isspace((unsigned char)l.s.p[l.at]))
            l.at++;
        if (l.at < l.s.n)
            lex_one(&l);
    }
    *out = l.t;
    return !l.bad && l.t.n > 0;
}
