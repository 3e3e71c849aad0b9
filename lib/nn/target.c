/* target.c - module paths against names and expressions */
#include "nn/target.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

struct tw_target {
    const struct tw_json *v;
    const char *what;
    pcre2_code *re;             /* NULL: a list of names */
    bool *used;                 /* [v->n] */
};

static pcre2_code *compile(struct tw_str text, const char *what, struct tw_err *err)
{
    PCRE2_UCHAR msg[128] = { 0 };
    PCRE2_SIZE at;
    int code;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)text.p, text.n, PCRE2_UTF, &code, &at, NULL);

    if (!re) {
        pcre2_get_error_message(code, msg, sizeof msg);
        tw_fail(err, NULL, 0, "%s: \"%.*s\" is not a regular expression: %s at %zu", what,
                (int)text.n, text.p, (char *)msg, (size_t)at);
    }
    return re;
}

/* The whole of PATH. */
static int match(pcre2_code *re, const char *path, const char *what, struct tw_err *err)
{
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(re, NULL);
    int got = pcre2_match(re, (PCRE2_SPTR)path, strlen(path), 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
            md, NULL);

    pcre2_match_data_free(md);
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    if (got < 0)
        return tw_fail(err, NULL, 0, "%s: the regular expression takes too long", what);
    return 1;
}

struct tw_target *tw_target_new(const struct tw_json *v, const char *what, struct tw_err *err)
{
    struct tw_target *t;

    for (int64_t i = 0; v->type == TW_JARR && i < v->n; i++) {
        if (v->item[i].type != TW_JSTR) {
            tw_fail(err, NULL, 0, "%s is not a list of texts", what);
            return NULL;
        }
    }
    if (v->type != TW_JARR && v->type != TW_JSTR) {
        tw_fail(err, NULL, 0, "%s is neither a text nor a list of texts", what);
        return NULL;
    }
    t = tw_xcalloc(1, sizeof *t);
    t->v = v;
    t->what = what;
    if (v->type == TW_JSTR) {
        t->re = compile(v->str, what, err);
        if (!t->re) {
            free(t);
            return NULL;
        }
    } else {
        t->used = tw_xcalloc((size_t)v->n + 1, sizeof *t->used);
    }
    return t;
}

static bool ends_with(const char *path, struct tw_str name)
{
    size_t n = strlen(path);

    if (n < name.n || memcmp(path + n - name.n, name.p, name.n))
        return false;
    return n == name.n || path[n - name.n - 1] == '.';
}

int tw_target_match(struct tw_target *t, const char *path, struct tw_err *err)
{
    int hit = 0;

    if (t->re)
        return match(t->re, path, t->what, err);
    for (int64_t i = 0; i < t->v->n; i++) {
        if (ends_with(path, t->v->item[i].str)) {
            t->used[i] = true;
            hit = 1;
        }
    }
    return hit;
}

struct tw_str tw_target_unused(const struct tw_target *t)
{
    for (int64_t i = 0; t->used && i < t->v->n; i++)
        if (!t->used[i])
            return t->v->item[i].str;
    return (struct tw_str){ 0 };
}

void tw_target_free(struct tw_target *t)
{
    if (!t)
        return;
    pcre2_code_free(t->re);
    free(t->used);
    free(t);
}

int tw_pattern_find(const struct tw_json *obj, const char *path, const char *what, double *out,
        struct tw_err *err)
{
    for (int64_t i = 0; obj && i < obj->n; i++) {
        const struct tw_json *v = &obj->item[i];
        struct tw_buf text = { 0 };
        pcre2_code *re;
        int got;

        if (v->type != TW_JNUM)
            return tw_fail(err, NULL, 0, "%s: the value of \"%.*s\" is not a number", what,
                    (int)v->key.n, v->key.p);
        tw_buf_printf(&text, "(.*\\.)?(%.*s)", (int)v->key.n, v->key.p);
        re = compile(tw_buf_str(&text), what, err);
        got = re ? match(re, path, what, err) : -1;
        pcre2_code_free(re);
        tw_buf_free(&text);
        if (got > 0)
            *out = v->d;
        if (got)
            return got;
    }
    return 0;
}
