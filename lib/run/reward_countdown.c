/* reward_countdown.c - an equation that uses each given number once and comes to the target. Exact:
 * fractions of 64-bit integers; what does not fit in them is not the target. */
#include "reward_priv.h"
#include <ctype.h>
#include <math.h>

enum { MAX_NUMBERS = 64, MAX_DEPTH = 100 };

struct frac {
    __int128 n, d;
};

struct calc {
    struct tw_str s;
    size_t at;
    int depth;
    bool bad;
    struct frac used[MAX_NUMBERS];
    int nused;
};

static struct frac reduced(struct calc *c, __int128 n, __int128 d)
{
    __int128 a = n < 0 ? -n : n, b = d < 0 ? -d : d, t;

    if (!d) {
        c->bad = true;
        return (struct frac){ 0, 1 };
    }
    while (b) {
        t = a % b;
        a = b;
        b = t;
    }
    if (a) {
        n /= a;
        d /= a;
    }
    if (d < 0) {
        n = -n;
        d = -d;
    }
    if (n > INT64_MAX || n < -INT64_MAX || d > INT64_MAX)
        c->bad = true;
    return c->bad ? (struct frac){ 0, 1 } : (struct frac){ n, d };
}

static void space(struct calc *c)
{
    while (c->at < c->s.n && isspace((unsigned char)c->s.p[c->at]))
        c->at++;
}

static bool eat(struct calc *c, const char *what)
{
    size_t n = strlen(what);

    space(c);
    if (c->s.n - c->at < n || memcmp(c->s.p + c->at, what, n))
        return false;
    c->at += n;
    return true;
}

static struct frac number(struct calc *c)
{
    struct frac f = { 0, 1 };
    bool point = false, any = false;

    space(c);
    for (; c->at < c->s.n && !c->bad; c->at++) {
        char d = c->s.p[c->at];

        if (d == '.' && !point) {
            point = true;
            continue;
        }
        if (!isdigit((unsigned char)d))
            break;
        any = true;
        f.n = 10 * f.n + (d - '0');
        f.d *= point ? 10 : 1;
        c->bad |= f.n > INT64_MAX || f.d > INT64_MAX;
    }
    c->bad |= !any;
    return reduced(c, f.n, f.d);
}

static struct frac sum(struct calc *c);

static struct frac factor(struct calc *c)
{
    struct frac f = { 0, 1 };

    if (++c->depth > MAX_DEPTH) {
        c->bad = true;
    } else if (eat(c, "-") || eat(c, "\u2212")) {
        f = factor(c);
        f.n = -f.n;
    } else if (eat(c, "(")) {
        f = sum(c);
        c->bad |= !eat(c, ")");
    } else {
        f = number(c);
        if (c->nused < MAX_NUMBERS)
            c->used[c->nused++] = f;
        else
            c->bad = true;
    }
    c->depth--;
    return f;
}

static struct frac product(struct calc *c)
{
    struct frac f = factor(c), g;

    while (!c->bad) {
        if (eat(c, "**") || eat(c, "//"))
            c->bad = true;
        else if (eat(c, "*") || eat(c, "\u00d7") || eat(c, "\\times") || eat(c, "\\cdot")) {
            g = factor(c);
            f = reduced(c, f.n * g.n, f.d * g.d);
        } else if (eat(c, "/") || eat(c, "\u00f7") || eat(c, "\\div")) {
            g = factor(c);
            f = reduced(c, f.n * g.d, f.d * g.n);
        } else
            break;
    }
    return f;
}

static struct frac sum(struct calc *c)
{
    struct frac f = product(c), g;

    while (!c->bad) {
        bool plus = eat(c, "+");

        if (!plus && !eat(c, "-") && !eat(c, "\u2212"))
            break;
        g = product(c);
        f = reduced(c, f.n * g.d + (plus ? g.n : -g.n) * f.d, f.d * g.d);
    }
    return f;
}

static int by_value(const void *x, const void *y)
{
    const struct frac *a = x, *b = y;
    __int128 l = a->n * b->d, r = b->n * a->d;

    return (l > r) - (l < r);
}

/* A number of the record, exact as it is written. */
static bool given(struct tw_str raw, struct frac *f)
{
    struct calc c = { .s = tw_trim(raw) };
    bool minus = eat(&c, "-");

    *f = number(&c);
    f->n = minus ? -f->n : f->n;
    return !c.bad && c.at == c.s.n;
}

struct task {
    struct frac target, num[MAX_NUMBERS];
    int n;
};

static bool read_task(const struct tw_json *nums, const struct tw_json *target, struct task *t)
{
    if (!nums || nums->type != TW_JARR || !nums->n || nums->n > MAX_NUMBERS || !target
            || !given(target->type == TW_JSTR ? target->str : target->raw, &t->target))
        return false;
    t->n = (int)nums->n;
    for (int i = 0; i < t->n; i++)
        if (!given(nums->item[i].type == TW_JSTR ? nums->item[i].str : nums->item[i].raw, &t->num[i]))
            return false;
    qsort(t->num, (size_t)t->n, sizeof(*t->num), by_value);
    return true;
}

/* From a reference {target, nums} (an object or its text), or from the record's own columns. */
static bool find_task(const struct tw_reward *r, struct tw_reward_in *in, struct task *t)
{
    const struct tw_json *v, *target = tw_json_get(in->rec, "target");

    for (int64_t i = 0; (v = tw_reward_ref(r, in, i)); i++) {
        struct tw_err none = { 0 };

        if (v->type == TW_JSTR)
            v = tw_json_parse(in->a, v->str, &none);
        if (v && v->type == TW_JOBJ && read_task(tw_json_get(v, "nums"), tw_json_get(v, "target"), t))
            return true;
    }
    target = target ? target : tw_json_get(in->rec, "response");
    return read_task(tw_json_get(in->rec, "nums"), target, t);
}

static bool solves(struct tw_str equation, const struct task *t)
{
    struct calc c = { .s = equation };
    size_t eq = tw_find(equation, "=", 0);
    struct frac f, right;

    if (eq != SIZE_MAX) {
        struct calc rest = { .s = { equation.p + eq + 1, equation.n - eq - 1 } };

        right = sum(&rest);
        space(&rest);
        if (rest.bad || rest.at != rest.s.n || by_value(&right, &t->target))
            return false;
        c.s.n = eq;
    }
    f = sum(&c);
    space(&c);
    if (c.bad || c.at != c.s.n || c.nused != t->n || by_value(&f, &t->target))
        return false;
    qsort(c.used, (size_t)c.nused, sizeof(*c.used), by_value);
    for (int i = 0; i < t->n; i++)
        if (by_value(&c.used[i], &t->num[i]))
            return false;
    return true;
}

int tw_setup_countdown(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    return tw_set_num(s, "partial", &r->partial, -1e9, 1e9, err) < 0 ? -1 : 0;
}

int tw_score_countdown(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct task t;
    struct tw_str said;

    if (!find_task(r, in, &t))
        return tw_unscored(in, "no usable task: nums, a list of numbers, and target");
    *x = 0;
    if (tw_tagged(in->text, "answer", &said) || tw_box_last(in->a, in->text, &said))
        *x = solves(said, &t) ? 1 : r->partial;
    return TW_SCORED;
}
