/* opt_value.c - finding options, reading their values; the environment and --config files. */
#include "opt_priv.h"
#include "io.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>

/* What option values point to lives as long as the process, like argv. */
static struct tw_arena forever;

const struct tw_opt *tw_opt_find(const struct tw_cmd *cmd, const char *name, size_t n)
{
    TW_OPT_EACH(cmd, o)
        if (o->kind != TW_KGROUP && strlen(o->name) == n && !memcmp(o->name, name, n))
            return o;
    return NULL;
}

const struct tw_opt *tw_opt_letter(const struct tw_cmd *cmd, char letter)
{
    TW_OPT_EACH(cmd, o)
        if (o->kind != TW_KGROUP && o->letter == letter)
            return o;
    return NULL;
}

/* Edits between A (N bytes) and B: insert, delete, replace, swap of neighbours. */
static int distance(const char *a, size_t n, const char *b)
{
    enum { MAX = 48 };
    int row[3][MAX + 1], *before = row[0], *prev = row[1], *cur = row[2];
    size_t m = strlen(b);

    if (n > MAX || m > MAX)
        return MAX;
    for (size_t j = 0; j <= m; j++)
        prev[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        cur[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int d = prev[j - 1] + (a[i - 1] != b[j - 1]);

            d = prev[j] + 1 < d ? prev[j] + 1 : d;
            d = cur[j - 1] + 1 < d ? cur[j - 1] + 1 : d;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                    before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            cur[j] = d;
        }
        int *t = before;

        before = prev;
        prev = cur;
        cur = t;
    }
    return prev[m];
}

const struct tw_opt *tw_opt_nearest(const struct tw_cmd *cmd, const char *name, size_t n)
{
    const struct tw_opt *best = NULL;
    int least = n < 4 ? 1 : n < 8 ? 2 : 3;

    TW_OPT_EACH(cmd, o) {
        int d = o->kind == TW_KGROUP ? 99 : distance(name, n, o->name);

        if (d < least || (d == least && !best)) {
            best = o;
            least = d;
        }
    }
    if (best)
        return best;
    TW_OPT_EACH(cmd, o)                                     /* the beginning of one name only */
        if (o->kind != TW_KGROUP && n >= 2 && !strncmp(o->name, name, n)) {
            if (best)
                return NULL;
            best = o;
        }
    return best;
}

bool tw_opt_takes_value(const struct tw_opt *o)
{
    return o->kind != TW_KFLAG;
}

const char *tw_opt_meta(const struct tw_opt *o)
{
    if (o->meta)
        return o->meta;
    switch (o->kind) {
    case TW_KINT:
        return "N";
    case TW_KNUM:
        return "X";
    case TW_KFLAG:
    case TW_KONOFF:
        return "on|off";
    default:
        return "TEXT";
    }
}

/* The index of VALUE in "a|b|c", -1: none. */
static int choice(const char *choices, const char *value, size_t n)
{
    int i = 0;

    for (const char *p = choices; *p; i++) {
        size_t len = strcspn(p, "|");

        if (len == n && !memcmp(p, value, n))
            return i;
        p += len + (p[len] == '|');
    }
    return -1;
}

static int set_number(const struct tw_opt *o, void *field, const char *value, const char *place,
        int64_t line, struct tw_err *err)
{
    char *end;
    double d;

    errno = 0;
    if (o->kind == TW_KINT) {
        long long v = strtoll(value, &end, 10);

        d = (double)v;
        if (!*value || *end || isspace((unsigned char)*value) || errno)
            return tw_fail(err, place, line, "'%s' is not a whole number", value);
        if (d >= o->min && d <= o->max)
            *(int64_t *)field = v;
    } else {
        d = strtod(value, &end);
        if (!*value || *end || isspace((unsigned char)*value) || !isfinite(d))
            return tw_fail(err, place, line, "'%s' is not a number", value);
        if (d >= o->min && d <= o->max)
            *(double *)field = d;
    }
    if (d < o->min || d > o->max) {
        if (o->max >= 0x1p62 && d < o->min)
            return tw_fail(err, place, line, "%s is out of range: at least %.16g", value, o->min);
        return tw_fail(err, place, line, "%s is out of range: %.16g to %.16g", value, o->min,
                o->max);
    }
    return 0;
}

static int set_bool(bool *field, const char *value, const char *place, int64_t line,
        struct tw_err *err)
{
    int i = choice("on|true|yes|1|off|false|no|0", value, strlen(value));

    if (i < 0)
        return tw_fail(err, place, line, "'%s' is neither on nor off", value);
    *field = i < 4;
    return 0;
}

int tw_opt_set(const struct tw_opt *o, void *opts, const char *value, const char *place,
        int64_t line, struct tw_err *err)
{
    void *field = (char *)opts + o->at;
    struct tw_list *list = field;
    const char **grown;
    int i;

    /* a file, a folder or a name that is empty comes from a variable of a script that is not set */
    if (!*value && (o->kind == TW_KSTR || o->kind == TW_KLIST) && strcmp(tw_opt_meta(o), "TEXT"))
        return tw_fail(err, place, line, "an empty value; needs %s", tw_opt_meta(o));
    switch (o->kind) {
    case TW_KSTR:
        *(const char **)field = value;
        return 0;
    case TW_KINT:
    case TW_KNUM:
        return set_number(o, field, value, place, line, err);
    case TW_KFLAG:
    case TW_KONOFF:
        return set_bool(field, value, place, line, err);
    case TW_KENUM:
        i = choice(o->meta, value, strlen(value));
        if (i < 0)
            return tw_fail(err, place, line, "unknown value '%s', not one of %s", value, o->meta);
        *(int *)field = i;
        return 0;
    case TW_KLIST:
        grown = tw_arena_alloc(&forever, ((size_t)list->n + 1) * sizeof(*grown));
        if (list->n)
            memcpy(grown, list->v, (size_t)list->n * sizeof(*grown));
        grown[list->n++] = value;
        list->v = grown;
        return 0;
    default:
        return tw_fail(err, place, line, "not an option");
    }
}

/* "TW_TRAIN_LOG_EVERY" of "tw-train" and "log-every"; without WITH_CMD "TW_LOG_EVERY". */
static void env_name(char *out, size_t size, const char *cmd, const char *option, bool with_cmd)
{
    snprintf(out, size, "TW_%s%s%s", with_cmd ? cmd + 3 : "", with_cmd ? "_" : "", option);
    for (; *out; out++)
        *out = *out == '-' ? '_' : (char)toupper((unsigned char)*out);
}

static bool reserved(const char *name)
{
    return choice("TW_SERVER|TW_API_KEY|TW_SHARE|TW_CACHE|TW_DEBUG", name, strlen(name)) >= 0;
}

/* A list's variable holds one value a line. */
static int set_from_env(const struct tw_opt *o, void *opts, const char *name, struct tw_err *err)
{
    const char *value = getenv(name);

    if (!value || reserved(name))
        return 0;
    if (o->kind != TW_KLIST)
        return tw_opt_set(o, opts, value, name, 0, err);
    ((struct tw_list *)((char *)opts + o->at))->n = 0;
    while (*value) {
        size_t n = strcspn(value, "\n");

        if (n && tw_opt_set(o, opts, tw_arena_dup(&forever, value, n), name, 0, err))
            return -1;
        value += n + (value[n] == '\n');
    }
    return 0;
}

int tw_opt_env(const struct tw_cmd *cmd, void *opts, struct tw_err *err)
{
    char general[96], own[96];

    TW_OPT_EACH(cmd, o) {
        if (o->kind == TW_KGROUP)
            continue;
        env_name(general, sizeof(general), cmd->name, o->name, false);
        env_name(own, sizeof(own), cmd->name, o->name, true);
        /* the weaker of two is not even read: its value may suit another command only */
        if (set_from_env(o, opts, getenv(own) ? own : general, err))
            return -1;
    }
    return 0;
}

static char *trim(char *s)
{
    size_t n;

    s += strspn(s, " \t");
    n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

static int config_line(const struct tw_cmd *cmd, void *opts, char *text, const char *path,
        int64_t line, struct tw_err *err)
{
    char *eq, *name, *value;
    const struct tw_opt *o;

    text = trim(text);
    if (!*text || *text == '#')
        return 0;
    eq = strchr(text, '=');
    if (!eq)
        return tw_fail(err, path, line, "expected 'name = value', not '%s'", text);
    *eq = 0;
    name = trim(text);
    value = trim(eq + 1);
    o = tw_opt_find(cmd, name, strlen(name));
    if (!o) {
        o = tw_opt_nearest(cmd, name, strlen(name));
        return tw_fail(err, path, line, "unknown option '%s'%s%s%s", name,
                o ? "; did you mean '" : "", o ? o->name : "", o ? "'?" : "");
    }
    if (!strcmp(o->name, "config"))
        return tw_fail(err, path, line, "'config' cannot stand in a configuration file");
    return tw_opt_set(o, opts, value, path, line, err);
}

int tw_opt_config(const struct tw_cmd *cmd, void *opts, const char *path, struct tw_err *err)
{
    struct tw_buf b = {0};
    int64_t line = 1;
    char *text;

    if (tw_read_file(&b, path, 1 << 20, err)) {
        tw_buf_free(&b);
        return -1;
    }
    if (b.n && memchr(b.p, 0, b.n)) {
        tw_buf_free(&b);
        return tw_fail(err, path, 0, "not a text file");
    }
    text = tw_arena_dup(&forever, b.n ? b.p : "", b.n);
    tw_buf_free(&b);
    for (char *p = text; p && *p; line++) {
        char *nl = strchr(p, '\n');

        if (nl)
            *nl = 0;
        if (config_line(cmd, opts, p, path, line, err))
            return -1;
        p = nl ? nl + 1 : NULL;
    }
    return 0;
}
