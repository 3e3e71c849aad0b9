/* loss-exec.c - a loss for tw-train --loss-exec, see tw-loss(7): a step a line in, its loss and gradient a
 * line out. Needs nothing but a C compiler:
 *
 *     cc -O2 -o loss-exec examples/loss-exec.c -lm
 *     tw-train -m tiny --lora r=8 --loss grpo --loss-exec './loss-exec grpo' -o run rollouts.jsonl
 *
 * cross_entropy and grpo do what the built-in losses of these names do, to the last bit. */
#define _GNU_SOURCE
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
    double *v;
    size_t n, cap;
};

struct sequence {
    struct list logp, old, weight;
    double advantage, scale;
};

static const char *at;          /* what is left of the line */

static void die(const char *what)
{
    fprintf(stderr, "loss-exec: %s\n", what);
    exit(1);
}

static bool take(char c)
{
    while (isspace((unsigned char)*at))
        at++;
    if (*at != c)
        return false;
    at++;
    return true;
}

static double number(void)
{
    char *end;
    double x = strtod(at, &end);

    if (end == at)
        die("a number was expected");
    at = end;
    return x;
}

/* A text; no key that matters here has an escape. */
static void text(char *out, size_t size)
{
    size_t n = 0;

    if (!take('"'))
        die("a text was expected");
    for (; *at && *at != '"'; at++) {
        at += *at == '\\' && at[1];
        if (n + 1 < size)
            out[n++] = *at;
    }
    out[n] = 0;
    take('"');
}

static void skip(void);

/* [x, x, ..] or {"key": x, ..}: calls EACH for every x, which must take it. */
static void items(void (*each)(const char *key, void *arg), void *arg)
{
    bool object = take('{');
    char key[32] = "";

    if (!object && !take('['))
        die("a list or an object was expected");
    if (take(object ? '}' : ']'))
        return;
    do {
        if (object) {
            text(key, sizeof key);
            if (!take(':'))
                die("a colon was expected");
        }
        each(key, arg);
    } while (take(','));
    if (!take(object ? '}' : ']'))
        die("a list or an object does not end");
}

static void skip_item(const char *key, void *arg)
{
    (void)key, (void)arg;
    skip();
}

static void skip(void)
{
    char word[8];

    while (isspace((unsigned char)*at))
        at++;
    if (*at == '"')
        text(word, sizeof word);
    else if (*at == '{' || *at == '[')
        items(skip_item, NULL);
    else
        at += strcspn(at, ",]} \t");
}

static void add(const char *key, void *arg)
{
    struct list *l = arg;

    (void)key;
    if (l->n == l->cap && !(l->v = realloc(l->v, (l->cap = 2 * l->cap + 64) * sizeof *l->v)))
        die("no memory");
    l->v[l->n++] = number();
}

static void field(const char *key, void *arg)
{
    struct sequence *s = arg;

    if (!strcmp(key, "logprobs"))
        items(add, &s->logp);
    else if (!strcmp(key, "old_logprobs"))
        items(add, &s->old);
    else if (!strcmp(key, "weights"))
        items(add, &s->weight);
    else if (!strcmp(key, "advantage"))
        s->advantage = number();
    else if (!strcmp(key, "scale"))
        s->scale = number();
    else
        skip();
}

static double clip(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* The loss of token I and its derivative by the log-probability, before weight and scale. */
static double cross_entropy(const struct sequence *s, size_t i, double *slope)
{
    *slope = -1;
    return -s->logp.v[i];
}

static double grpo(const struct sequence *s, size_t i, double *slope)
{
    double A = s->advantage, d = s->old.n ? s->logp.v[i] - s->old.v[i] : 0;
    double ratio = exp(clip(d, -20, 20)), clipped = clip(ratio, 1 - 0.2, 1 + 0.2);

    if (ratio * A > clipped * A) {              /* the smaller term is the clipped one: no gradient */
        *slope = 0;
        return -(clipped * A);
    }
    *slope = d >= -20 && d <= 20 ? -ratio * A : 0;
    return -(ratio * A);
}

struct step {
    double (*loss)(const struct sequence *s, size_t i, double *slope);
    double total;
    size_t sequences;
};

static void sequence(const char *key, void *arg)
{
    struct step *st = arg;
    struct sequence s = { .scale = 1 };
    double part = 0, slope;

    (void)key;
    items(field, &s);
    if (s.weight.n != s.logp.n || (s.old.n && s.old.n != s.logp.n))
        die("lists of different lengths");
    fputs(st->sequences++ ? ",[" : "[", stdout);
    for (size_t i = 0; i < s.logp.n; i++) {
        double value = st->loss(&s, i, &slope), w = s.scale * s.weight.v[i];

        part += w * value;
        printf("%s%.17g", i ? "," : "", w * slope);
    }
    putchar(']');
    st->total += part;
    free(s.logp.v);
    free(s.old.v);
    free(s.weight.v);
}

static void top(const char *key, void *arg)
{
    if (!strcmp(key, "sequences"))
        items(sequence, arg);
    else
        skip();
}

int main(int argc, char **argv)
{
    struct step st = { .loss = argc > 1 && !strcmp(argv[1], "grpo") ? grpo : cross_entropy };
    char *line = NULL;
    size_t size = 0;

    while (getline(&line, &size, stdin) > 0) {
        st.total = 0;
        st.sequences = 0;
        at = line;
        fputs("{\"dlogp\":[", stdout);
        items(top, &st);
        printf("],\"loss\":%.17g}\n", st.total);
        fflush(stdout);         /* tw-train waits for it */
    }
    free(line);
    return 0;
}
