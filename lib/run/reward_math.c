/* reward_math.c - are two answers the same? Lists, sets, tuples, intervals and matrices are taken
 * apart; expressions are compared as values (with variables: at several points); what has no value is
 * compared as text. */
#include "reward_math_priv.h"
#include <ctype.h>
#include <math.h>

enum { POINTS = 3, MAX_ITEMS = 64 };

struct side {
    struct tw_mtoks t;
    int from, to;
};

struct unit {
    const char *name;
    int dim;                    /* 1 length, 2 mass, 3 time, 4 volume, 5 money, 6 angle */
    double factor;
};

static const struct unit units[] = { { "mm", 1, 0.001 }, { "cm", 1, 0.01 }, { "m", 1, 1 }, { "km", 1, 1000 },
    { "meter", 1, 1 }, { "metre", 1, 1 }, { "centimeter", 1, 0.01 }, { "kilometer", 1, 1000 },
    { "millimeter", 1, 0.001 }, { "in", 1, 0.0254 }, { "inch", 1, 0.0254 }, { "inche", 1, 0.0254 },
    { "ft", 1, 0.3048 }, { "foot", 1, 0.3048 }, { "feet", 1, 0.3048 }, { "yd", 1, 0.9144 },
    { "yard", 1, 0.9144 }, { "mi", 1, 1609.344 }, { "mile", 1, 1609.344 }, { "mg", 2, 1e-6 }, { "g", 2, 0.001 },
    { "gram", 2, 0.001 }, { "kg", 2, 1 }, { "kilogram", 2, 1 }, { "lb", 2, 0.45359237 },
    { "pound", 2, 0.45359237 }, { "oz", 2, 0.028349523125 }, { "ounce", 2, 0.028349523125 }, { "s", 3, 1 },
    { "sec", 3, 1 }, { "second", 3, 1 }, { "min", 3, 60 }, { "minute", 3, 60 }, { "h", 3, 3600 },
    { "hr", 3, 3600 }, { "hour", 3, 3600 }, { "day", 3, 86400 }, { "week", 3, 604800 }, { "ml", 4, 0.001 },
    { "l", 4, 1 }, { "liter", 4, 1 }, { "litre", 4, 1 }, { "cent", 5, 0.01 }, { "dollar", 5, 1 },
    { "degree", 6, 1 }, { "deg", 6, 1 } };

static const struct unit *find_unit(struct tw_str w)
{
    char b[16];
    size_t n = w.n;

    if (!n || n >= sizeof(b))
        return NULL;
    for (size_t i = 0; i < n; i++)
        b[i] = (char)tolower((unsigned char)w.p[i]);
    for (int plural = 0; plural < 2; plural++, n--) {
        for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
            if (tw_str_is((struct tw_str){ b, n }, units[i].name))
                return &units[i];
        if (n < 3 || b[n - 1] != 's')
            return NULL;
    }
    return NULL;
}

bool tw_math_unit(struct tw_str w)
{
    return find_unit(w) != NULL;
}

static bool opens(int k)
{
    return k == '(' || k == '[' || k == '{' || k == TW_MSET || k == TW_MBEGIN;
}

static bool closes(int k)
{
    return k == ')' || k == ']' || k == '}' || k == TW_MTES || k == TW_MCLOSE;
}

/* Where the bracket at I closes, whatever kind closes it ([0,1) is one); -1: nowhere. */
static int closing(const struct side *s, int i)
{
    int depth = 0;

    for (; i < s->to; i++) {
        depth += opens(s->t.v[i].kind);
        depth -= closes(s->t.v[i].kind);
        if (!depth)
            return i;
    }
    return -1;
}

/* The parts of S at separators outside brackets. Number of them; -1: too many. */
static int split(const struct side *s, bool matrix, struct side *out)
{
    int n = 0, depth = 0;

    out[n] = *s;
    for (int i = s->from; i < s->to; i++) {
        int k = s->t.v[i].kind;

        depth += opens(k) - closes(k);
        if (depth || (matrix ? k != '&' && k != TW_MROW : k != ','))
            continue;
        out[n].to = i;
        n += out[n].to > out[n].from;       /* "1, or 2" has two parts */
        if (n == MAX_ITEMS)
            return -1;
        out[n] = (struct side){ s->t, i + 1, s->to };
    }
    return n + (out[n].to > out[n].from);
}

static bool equal(const struct side *x, const struct side *y, double tol, int depth);

/* The bracket around all of S, with more than one part or of a set or matrix: a container. */
static bool container(const struct side *s, struct side *inside)
{
    int k = s->t.v[s->from].kind;
    bool comma = false;
    int depth = 0;

    if (s->to - s->from < 2 || !opens(k) || closing(s, s->from) != s->to - 1)
        return false;
    *inside = (struct side){ s->t, s->from + 1, s->to - 1 };
    for (int i = inside->from; i < inside->to; i++) {
        depth += opens(s->t.v[i].kind) - closes(s->t.v[i].kind);
        comma |= !depth && s->t.v[i].kind == ',';
    }
    return k == TW_MBEGIN || k == TW_MSET || (comma && k != '{');
}

static bool each(const struct side *a, const struct side *b, int n, bool ordered, double tol, int depth)
{
    bool used[MAX_ITEMS] = { false };

    for (int i = 0; i < n; i++) {
        int k = ordered ? i : 0, last = ordered ? i : n - 1;

        while (k <= last && (used[k] || !equal(&a[i], &b[k], tol, depth)))
            k++;
        if (k > last)
            return false;
        used[k] = true;
    }
    return true;
}

static bool equal_containers(const struct side *x, const struct side *y, const struct side *in_x,
        const struct side *in_y, double tol, int depth)
{
    struct side a[MAX_ITEMS + 1], b[MAX_ITEMS + 1];
    int k = x->t.v[x->from].kind, n, m;
    bool matrix = k == TW_MBEGIN;

    if (k != y->t.v[y->from].kind || x->t.v[x->to - 1].kind != y->t.v[y->to - 1].kind)
        return false;
    n = split(in_x, matrix, a);
    m = split(in_y, matrix, b);
    if (n != m || n < 1)
        return n == m && !n;
    for (int i = 0; matrix && i + 1 < n; i++)   /* the same shape */
        if (a[i].t.v[a[i].to].kind != b[i].t.v[b[i].to].kind)
            return false;
    return each(a, b, n, k != TW_MSET, tol, depth);
}

/* "x = 5" is 5, "x \in [0,1]" is [0,1]: what stands behind the last sign after a lone variable. */
static struct side value_of(const struct side *s)
{
    struct side v = *s;

    for (int i = s->from; i < s->to; i++) {
        int k = s->t.v[i].kind;
        bool sign = k == '=' || (k == TW_MREL && (tw_str_is(s->t.v[i].s, "in")
                    || tw_str_is(s->t.v[i].s, "approx")));

        if (sign && (i - s->from == 1 || k == '=' ) && s->t.v[s->from].kind == TW_MVAR
                && (i - s->from == 1 || (s->t.v[s->from + 1].kind == '(' && i - s->from == 4)
                    || v.from > s->from))
            v.from = i + 1;
    }
    return v.from < v.to ? v : *s;
}

static bool close_enough(struct tw_mval a, struct tw_mval b, double tol)
{
    long double big = fmaxl(fabsl(a.v), fabsl(b.v));

    if (isinf(a.v) || isinf(b.v))
        return a.v == b.v;
    if (a.exact && b.exact && tol == 0)
        return a.n == b.n && a.d == b.d;
    return fabsl(a.v - b.v) <= fmaxl(big * fmaxl(tol, 1e-9L), a.exact && b.exact ? 0 : 1e-12L);
}

/* The unit behind a value: TEXT and powers of it. Scale and kind of it where it is known. */
struct measure {
    struct tw_str text[8];
    int power[8], n;
    double factor;
    int dims[7];
    bool known, bad;
};

static struct measure measure(const struct side *s, int at)
{
    struct measure m = { .factor = 1, .known = true };
    int sign = 1;

    for (; at < s->to; at++) {
        const struct tw_mtok *t = &s->t.v[at];
        const struct unit *u;

        if (t->kind == '/' || t->kind == '*' || t->kind == '{' || t->kind == '}') {
            sign = t->kind == '/' ? -1 : sign;
            continue;
        }
        if ((t->kind != TW_MTEXT && t->kind != TW_MVAR) || m.n == 8) {
            m.bad = true;
            return m;
        }
        m.text[m.n] = t->s;
        m.power[m.n] = sign;
        if (at + 2 < s->to && t[1].kind == '^' && t[2].kind == TW_MNUM && t[2].num.v < 10) {
            m.power[m.n] = sign * (int)t[2].num.v;
            at += 2;
        }
        u = find_unit(t->s);
        m.known &= u != NULL;
        if (u) {
            m.dims[u->dim] += m.power[m.n];
            m.factor *= pow(u->factor, m.power[m.n]);
        }
        m.n++;
    }
    return m;
}

static bool same_word(struct tw_str a, struct tw_str b)
{
    a = tw_trim(a);
    b = tw_trim(b);
    return a.n == b.n && !strncasecmp(a.p, b.p, a.n);
}

/* 1: comparable, with *f the factor from Y to X; 0: not. A side without a unit fits any. */
static bool same_unit(const struct measure *x, const struct measure *y, double *f)
{
    *f = 1;
    if (x->bad || y->bad)
        return false;
    if (!x->n || !y->n)
        return true;
    if (x->known && y->known) {
        *f = y->factor / x->factor;
        return !memcmp(x->dims, y->dims, sizeof(x->dims));
    }
    for (int i = 0; i < x->n; i++)
        if (x->n != y->n || x->power[i] != y->power[i] || !same_word(x->text[i], y->text[i]))
            return false;
    return true;
}

/* Both have a value, at every point and for both signs of a plus-minus, and they agree. */
static bool equal_values(const struct side *x, const struct side *y, double tol, bool *valued)
{
    int end_x, end_y;
    bool vars = false, same = true;
    double f = 1;

    *valued = false;
    for (int k = 0; k < POINTS && (k == 0 || vars); k++)
        for (int pm = 1; pm >= -1; pm -= 2) {
            struct tw_mval a = tw_math_eval(&x->t, x->from, x->to, k, pm, &end_x, &vars);
            struct tw_mval b = tw_math_eval(&y->t, y->from, y->to, k, pm, &end_y, &vars);

            if (a.bad || b.bad)
                return false;
            if (!k && pm > 0) {
                struct measure mx = measure(x, end_x), my = measure(y, end_y);

                *valued = !mx.bad && !my.bad;
                if (!same_unit(&mx, &my, &f))
                    return false;
            }
            if (f != 1)
                b = tw_mval_real(b.v * f);
            same &= close_enough(a, b, tol);
        }
    return same;
}

/* The same tokens: how texts, relations and numbers too long for a value are compared. */
static bool same_tokens(const struct side *x, const struct side *y)
{
    if (x->to - x->from != y->to - y->from)
        return false;
    for (int i = 0; i < x->to - x->from; i++) {
        const struct tw_mtok *a = &x->t.v[x->from + i], *b = &y->t.v[y->from + i];

        if (a->kind != b->kind || a->fun != b->fun
                || !(a->kind == TW_MTEXT ? same_word(a->s, b->s) : tw_str_eq(a->s, b->s)))
            return false;
    }
    return true;
}

static bool has_huge(const struct side *s)
{
    for (int i = s->from; i < s->to; i++)
        if (s->t.v[i].huge)
            return true;
    return false;
}

static bool equal(const struct side *x, const struct side *y, double tol, int depth)
{
    struct side a = value_of(x), b = value_of(y), in_a, in_b;
    bool ca = container(&a, &in_a), cb = container(&b, &in_b), valued;

    if (depth > 8)
        return false;
    if (ca || cb)
        return ca && cb && equal_containers(&a, &b, &in_a, &in_b, tol, depth + 1);
    if (same_tokens(&a, &b))
        return true;
    if (has_huge(&a) || has_huge(&b))
        return false;
    return equal_values(&a, &b, tol, &valued);
}

/* A set is a list of what is in it, and stands for one. */
static int items(struct side s, struct side *out)
{
    struct side inside;

    s = value_of(&s);
    if (container(&s, &inside) && s.t.v[s.from].kind == TW_MSET)
        s = inside;
    return split(&s, false, out);
}

static struct tw_str squeezed(struct tw_arena *a, struct tw_str s)
{
    s = tw_without(a, tw_trim(s), " \t\r\n\v\f${}");
    while (s.n && s.p[s.n - 1] == '.')
        s.n--;
    return s;
}

bool tw_math_equal(struct tw_arena *arena, struct tw_str x, struct tw_str y, double tol)
{
    struct side s = { 0 }, t = { 0 }, a[MAX_ITEMS + 1], b[MAX_ITEMS + 1];
    int n, m;

    if (tw_str_eq(squeezed(arena, x), squeezed(arena, y)))
        return tw_trim(x).n > 0;
    if (!tw_math_lex(arena, x, &s.t) || !tw_math_lex(arena, y, &t.t))
        return false;
    s.to = s.t.n;
    t.to = t.t.n;
    n = items(s, a);
    m = items(t, b);
    return n == m && n > 0 && each(a, b, n, false, tol, 0);
}
