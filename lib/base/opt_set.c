/* opt_set.c - settings of the form "name,key=value,key=value". */
#include "opt.h"
#include "buf.h"
#include <errno.h>
#include <math.h>

/* The end of the part at P: the next comma outside "quotes" and of a value not in /slashes/. */
static const char *part_end(const char *p)
{
    const char *eq = p + strcspn(p, "=,\"");
    char quote = 0;

    if (*eq == '=' && (eq[1] == '/' || eq[1] == '"')) {
        quote = eq[1];
        p = eq + 2;
    }
    if (quote) {
        /* the closing mark is the one that a comma or the end follows, so paths may hold slashes */
        for (const char *q = p; *q; q++)
            if (*q == quote && (!q[1] || q[1] == ','))
                return q + 1;
        if (quote == '"')
            return NULL;
        p = eq + 1;                             /* "/etc/x": a path, not a pattern */
    }
    return p + strcspn(p, ",");
}

int tw_set_parse(struct tw_set *s, const char *option, const char *text, struct tw_err *err)
{
    const char *p = text, *end;

    memset(s, 0, sizeof(*s));
    s->option = option;
    if (!*text)
        return tw_fail_code(err, TW_EMISUSE, option, 0, "an empty setting");
    for (;; p = end + 1) {
        if (!(end = part_end(p)))
            return tw_fail_code(err, TW_EMISUSE, option, 0, "unterminated quote in '%s'", text);
        const char *eq = memchr(p, '=', (size_t)(end - p));

        if (!eq && p == text) {
            s->name = (struct tw_str){ p, (size_t)(end - p) };
        } else if (!eq || eq == p) {
            return tw_fail_code(err, TW_EMISUSE, option, 0, "expected key=value, not '%.*s'",
                    (int)(end - p), p);
        } else {
            struct tw_str key = { p, (size_t)(eq - p) }, value = { eq + 1, (size_t)(end - eq - 1) };

            if (s->n == (int)(sizeof(s->kv) / sizeof(s->kv[0])))
                return tw_fail_code(err, TW_EMISUSE, option, 0, "too many settings in '%s'", text);
            for (int i = 0; i < s->n; i++)
                if (tw_str_eq(s->kv[i].key, key))
                    return tw_fail_code(err, TW_EMISUSE, option, 0, "'%.*s' is given twice",
                            (int)key.n, key.p);
            if (value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"') {
                value.p++;
                value.n -= 2;
            }
            s->kv[s->n].key = key;
            s->kv[s->n++].value = value;
        }
        if (!*end)
            return 0;
    }
}

/* The value of KEY, NULL when it is not there. Notes that KEY is known. */
static const struct tw_str *ask(struct tw_set *s, const char *key)
{
    const int max = (int)(sizeof(s->asked) / sizeof(s->asked[0]));
    int i;

    for (i = 0; i < s->nasked && strcmp(s->asked[i], key); i++)
        ;
    if (i == s->nasked && i < max)
        s->asked[s->nasked++] = key;
    for (i = 0; i < s->n; i++)
        if (tw_str_is(s->kv[i].key, key)) {
            s->kv[i].used = true;
            return &s->kv[i].value;
        }
    return NULL;
}

static int bad(const struct tw_set *s, const char *key, const struct tw_str *v, const char *want,
        struct tw_err *err)
{
    return tw_fail_code(err, TW_EMISUSE, s->option, 0, "%s=%.*s is not %s", key, (int)v->n, v->p,
            want);
}

/* V as a NUL-terminated number in TEXT; false when it is empty, spaced or too long to be one. */
static bool number_text(char text[64], const struct tw_str *v)
{
    if (!v->n || v->n > 63 || (unsigned char)v->p[0] <= ' ')
        return false;
    memcpy(text, v->p, v->n);
    text[v->n] = 0;
    return true;
}

int tw_set_num(struct tw_set *s, const char *key, double *out, double lo, double hi,
        struct tw_err *err)
{
    const struct tw_str *v = ask(s, key);
    char text[64], *end;
    double d;

    if (!v)
        return 0;
    if (!number_text(text, v))
        return bad(s, key, v, "a number", err);
    d = strtod(text, &end);
    if (*end || !isfinite(d))
        return bad(s, key, v, "a number", err);
    if (d < lo || d > hi)
        return tw_fail_code(err, TW_EMISUSE, s->option, 0, "%s=%s is out of range: %.15g to %.15g",
                key, text, lo, hi);
    *out = d;
    return 1;
}

int tw_set_int(struct tw_set *s, const char *key, int64_t *out, int64_t lo, int64_t hi,
        struct tw_err *err)
{
    const struct tw_str *v = ask(s, key);
    char text[64], *end;
    long long i;

    if (!v)
        return 0;
    if (!number_text(text, v))
        return bad(s, key, v, "a whole number", err);
    errno = 0;
    i = strtoll(text, &end, 10);
    if (*end || errno)
        return bad(s, key, v, "a whole number", err);
    if (i < lo || i > hi)
        return tw_fail_code(err, TW_EMISUSE, s->option, 0, "%s=%s is out of range: %lld to %lld",
                key, text, (long long)lo, (long long)hi);
    *out = i;
    return 1;
}

int tw_set_bool(struct tw_set *s, const char *key, bool *out, struct tw_err *err)
{
    const struct tw_str *v = ask(s, key);

    if (!v)
        return 0;
    if (!tw_str_is(*v, "on") && !tw_str_is(*v, "off"))
        return bad(s, key, v, "on or off", err);
    *out = v->n == 2;
    return 1;
}

int tw_set_str(struct tw_set *s, const char *key, struct tw_str *out)
{
    const struct tw_str *v = ask(s, key);

    if (!v)
        return 0;
    *out = *v;
    return 1;
}

int tw_set_enum(struct tw_set *s, const char *key, const char *choices, int *out,
        struct tw_err *err)
{
    const struct tw_str *v = ask(s, key);
    int i = 0;

    if (!v)
        return 0;
    for (const char *p = choices;; i++) {
        size_t n = strcspn(p, "|");

        if (tw_str_eq(*v, (struct tw_str){ p, n })) {
            *out = i;
            return 1;
        }
        if (!p[n])
            break;
        p += n + 1;
    }
    return tw_fail_code(err, TW_EMISUSE, s->option, 0, "%s=%.*s is not one of %s", key, (int)v->n,
            v->p, choices);
}

int tw_set_done(struct tw_set *s, struct tw_err *err)
{
    struct tw_buf known = {0};
    int i, ret = 0;

    for (i = 0; i < s->n && s->kv[i].used; i++)
        ;
    if (i == s->n)
        return 0;
    for (int k = 0; k < s->nasked; k++)
        tw_buf_printf(&known, "%s%s", k ? ", " : "", s->asked[k]);
    ret = tw_fail_code(err, TW_EMISUSE, s->option, 0, "unknown key '%.*s'; known are: %s",
            (int)s->kv[i].key.n, s->kv[i].key.p, known.n ? known.p : "none");
    tw_buf_free(&known);
    return ret;
}
