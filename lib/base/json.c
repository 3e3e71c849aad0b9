/* json.c - the JSON reader. Three linear passes: tw_json_scan() checks strings and brackets, jsmn
 * cuts the text into tokens, and build() walks the tokens, checks what stands between them (jsmn
 * takes "[1 2]", "{1:2}" and the like) and makes the values. */
#include "json_priv.h"
#include "io.h"
#include "rng.h"
#include <limits.h>
#include <math.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>
#pragma GCC diagnostic pop

struct build {
    struct tw_arena *a;
    struct tw_str text;
    const jsmntok_t *tok;
    size_t ntok, next;          /* the token to come */
    size_t at;                  /* everything before it is checked */
    int64_t *dups;              /* NULL: duplicate keys are an error */
    struct tw_err *err;
};

static int fail_at(struct build *b, size_t at, const char *what)
{
    char c = at < b->text.n ? b->text.p[at] : 0;

    if (at >= b->text.n)
        return tw_fail(b->err, NULL, 0, "%s, not the end of the text", what);
    if (c > ' ' && c < 0x7F)
        return tw_fail(b->err, NULL, 0, "%s, not '%c' at column %zu", what, c, at + 1);
    return tw_fail(b->err, NULL, 0, "%s, not byte 0x%02x at column %zu", what, (unsigned char)c,
            at + 1);
}

/* Moves over white space and, if C stands there, over C. */
static bool take(struct build *b, char c)
{
    b->at = tw_json_skip_space(b->text, b->at);
    if (b->at >= b->text.n || b->text.p[b->at] != c)
        return false;
    b->at++;
    return true;
}

/* The text of the string whose inside is S. */
static struct tw_str string_of(struct build *b, struct tw_str s)
{
    if (!s.n || !memchr(s.p, '\\', s.n))
        return s;
    char *p = tw_arena_dup(b->a, s.p, s.n);

    s.n = tw_json_unescape(p, s);
    p[s.n] = 0;
    s.p = p;
    return s;
}

/* The next token, which must be of TYPE and start where we are; NULL if it does not. */
static const jsmntok_t *token(struct build *b, jsmntype_t type)
{
    const jsmntok_t *t = b->next < b->ntok ? &b->tok[b->next] : NULL;
    size_t quote = type == JSMN_STRING;

    if (!t || t->type != type || (size_t)t->start != b->at + quote)
        return NULL;
    b->next++;
    return t;
}

static int build_primitive(struct build *b, struct tw_json *v)
{
    static const struct tw_str yes = TW_STR_LIT("true"), no = TW_STR_LIT("false"),
                               null = TW_STR_LIT("null");
    const jsmntok_t *t = token(b, JSMN_PRIMITIVE);

    if (!t)
        return fail_at(b, b->at, "expected a value");
    v->raw = (struct tw_str){ b->text.p + t->start, (size_t)(t->end - t->start) };
    b->at = (size_t)t->end;
    if (tw_str_eq(v->raw, yes) || tw_str_eq(v->raw, no)) {
        v->type = TW_JBOOL;
        v->b = v->raw.n == 4;
        return 0;
    }
    v->type = TW_JNUM;
    if (tw_json_scan_number(v->raw, v))
        return 0;
    v->type = TW_JNULL;
    if (tw_str_eq(v->raw, null))
        return 0;
    return tw_fail(b->err, NULL, 0, "bad %s '%.*s' at column %d",
            v->raw.p[0] == '-' || (v->raw.p[0] >= '0' && v->raw.p[0] <= '9') ? "number" : "value",
            v->raw.n > 40 ? 40 : (int)v->raw.n, v->raw.p, t->start + 1);
}

/* Looks for members with equal keys. With DUPS NULL, returns the index of the first that repeats a
 * key, or -1. Else the last value of each key takes the place of the first, *DUPS counts. Few keys
 * are compared each with each, many through a hash table. */
static int64_t find_dups(struct tw_json *obj, int64_t *dups)
{
    struct tw_json *m = obj->item;
    int64_t kept = 0, same, ret = -1;
    uint64_t size = 32, h = 0;
    int32_t *slot = NULL;                                   /* index + 1; 0: free */

    while (size < (uint64_t)obj->n * 2)
        size *= 2;
    if (obj->n > 12)
        slot = tw_xcalloc(size, sizeof(*slot));
    for (int64_t i = 0; i < obj->n; i++) {
        if (slot) {
            h = tw_hash64(m[i].key.p, m[i].key.n, 0) & (size - 1);
            while (slot[h] && !tw_str_eq(m[slot[h] - 1].key, m[i].key))
                h = (h + 1) & (size - 1);
            same = slot[h] ? slot[h] - 1 : kept;
        } else {
            for (same = 0; same < kept && !tw_str_eq(m[same].key, m[i].key); same++)
                ;
        }
        if (same < kept && !dups) {
            ret = i;
            break;
        }
        if (same < kept)
            ++*dups;
        else if (slot)
            slot[h] = (int32_t)(same + 1);
        kept += same == kept;
        if (same != i)
            m[same] = m[i];
    }
    free(slot);
    if (dups)
        obj->n = kept;
    return ret;
}

static int check_keys(struct build *b, struct tw_json *obj)
{
    int64_t i = find_dups(obj, b->dups);

    if (i < 0)
        return 0;
    struct tw_str k = obj->item[i].key;
    size_t col = (size_t)(obj->item[i].raw.p - b->text.p) + 1;

    return tw_fail(b->err, NULL, 0, "duplicate key '%.*s', its second value at column %zu",
            k.n > 64 ? 64 : (int)k.n, k.p, col);
}

static int build_key(struct build *b, struct tw_json *v)
{
    const jsmntok_t *t;

    b->at = tw_json_skip_space(b->text, b->at);
    if (!(t = token(b, JSMN_STRING)))
        return fail_at(b, b->at, "expected a key in quotes");
    v->key = string_of(b, (struct tw_str){ b->text.p + t->start, (size_t)(t->end - t->start) });
    b->at = (size_t)t->end + 1;
    return take(b, ':') ? 0 : fail_at(b, b->at, "expected ':' after a key");
}

static int build(struct build *b, struct tw_json *v);

/* jsmn's size is the number of elements, as it sees them; each one is checked here. */
static int build_container(struct build *b, struct tw_json *v, bool is_obj)
{
    const jsmntok_t *t = token(b, is_obj ? JSMN_OBJECT : JSMN_ARRAY);
    char close = is_obj ? '}' : ']';
    size_t start = b->at++;

    if (!t)
        return fail_at(b, start, "expected a value");
    v->type = is_obj ? TW_JOBJ : TW_JARR;
    v->item = t->size ? tw_arena_alloc(b->a, (size_t)t->size * sizeof(*v->item)) : NULL;
    while (!take(b, close)) {
        if (v->n && !take(b, ','))
            return fail_at(b, b->at, is_obj ? "expected ',' or '}'" : "expected ',' or ']'");
        if (v->n == t->size)
            return fail_at(b, tw_json_skip_space(b->text, b->at),
                    is_obj ? "expected a key in quotes" : "expected a value");
        struct tw_json *e = &v->item[v->n];

        if ((is_obj && build_key(b, e)) || build(b, e))
            return -1;
        v->n++;
    }
    v->raw = (struct tw_str){ b->text.p + start, b->at - start };
    return is_obj ? check_keys(b, v) : 0;
}

static int build(struct build *b, struct tw_json *v)
{
    const jsmntok_t *t;

    b->at = tw_json_skip_space(b->text, b->at);
    switch (b->at < b->text.n ? b->text.p[b->at] : 0) {
    case '{':
        return build_container(b, v, true);
    case '[':
        return build_container(b, v, false);
    case '"':
        if (!(t = token(b, JSMN_STRING)))
            return fail_at(b, b->at, "expected a value");
        v->type = TW_JSTR;
        v->raw = (struct tw_str){ b->text.p + b->at, (size_t)(t->end - t->start) + 2 };
        v->str = string_of(b, (struct tw_str){ v->raw.p + 1, v->raw.n - 2 });
        b->at += v->raw.n;
        return 0;
    default:
        return build_primitive(b, v);
    }
}

/* jsmn stopped at P: says what it did not like, more precisely where build() finds it first. */
static int jsmn_failed(struct build *b, const jsmn_parser *p)
{
    struct tw_json v = {0};

    b->ntok = p->toknext;
    if (build(b, &v))
        return -1;
    b->at = tw_json_skip_space(b->text, b->at);
    return fail_at(b, b->at < b->text.n ? b->at : p->pos, "expected nothing behind the value");
}

static struct tw_json *parse(struct tw_arena *a, struct tw_str text, int64_t *dups,
        struct tw_err *err)
{
    struct build b = { .a = a, .text = text, .dups = dups, .err = err };
    struct tw_json *v = NULL;
    jsmntok_t *tok = NULL, one;
    size_t max;
    jsmn_parser p;
    int n;

    if (text.n >= INT_MAX) {
        tw_fail(err, NULL, 0, "%zu bytes are too many for one value", text.n);
        return NULL;
    }
    if (tw_json_scan(text, &max, err))
        return NULL;
    b.at = tw_json_skip_space(text, 0);
    if (b.at == text.n) {
        tw_fail(err, NULL, 0, "empty: expected a value");
        return NULL;
    }
    if (strchr("{[\"", text.p[b.at])) {
        tok = tw_xreallocarray(NULL, max, sizeof(*tok));
        b.tok = tok;
        jsmn_init(&p);
        n = jsmn_parse(&p, text.p, text.n, tok, (unsigned)max);
        if (n < 0) {
            jsmn_failed(&b, &p);
            goto out;
        }
        b.ntok = p.toknext;
    } else {                    /* strict jsmn wants a delimiter behind a number or a word */
        size_t end = b.at;

        while (end < text.n && !strchr(" \t\r\n", text.p[end]))
            end++;
        one = (jsmntok_t){ .type = JSMN_PRIMITIVE, .start = (int)b.at, .end = (int)end };
        b.tok = &one;
        b.ntok = 1;
    }
    v = tw_arena_alloc(a, sizeof(*v));
    if (build(&b, v)) {
        v = NULL;
        goto out;
    }
    b.at = tw_json_skip_space(text, b.at);
    if (b.at < text.n) {
        fail_at(&b, b.at, "expected nothing behind the value");
        v = NULL;
    }
out:
    free(tok);
    return v;
}

struct tw_json *tw_json_parse(struct tw_arena *a, struct tw_str text, struct tw_err *err)
{
    return parse(a, text, NULL, err);
}

struct tw_json *tw_json_parse_dups(struct tw_arena *a, struct tw_str text, int64_t *dups,
        struct tw_err *err)
{
    *dups = 0;
    return parse(a, text, dups, err);
}

struct tw_json *tw_json_file(struct tw_arena *a, const char *path, size_t max, struct tw_err *err)
{
    struct tw_buf b = {0};
    struct tw_json *v = NULL;
    struct tw_str text;

    if (!tw_read_file(&b, path, max, err)) {
        text = tw_arena_str(a, tw_buf_str(&b));
        if (text.n >= 3 && !memcmp(text.p, "\xEF\xBB\xBF", 3)) {
            text.p += 3;
            text.n -= 3;
        }
        v = tw_json_parse(a, text, err);
        if (!v)
            tw_err_place(err, path, 0);
    }
    tw_buf_free(&b);
    return v;
}

static const struct tw_json *member(const struct tw_json *obj, const char *key)
{
    size_t n = strlen(key);

    for (int64_t i = 0; obj && obj->type == TW_JOBJ && i < obj->n; i++)
        if (obj->item[i].key.n == n && !memcmp(obj->item[i].key.p, key, n))
            return &obj->item[i];
    return NULL;
}

const struct tw_json *tw_json_get(const struct tw_json *obj, const char *key)
{
    const struct tw_json *v = member(obj, key);

    return v && v->type != TW_JNULL ? v : NULL;
}

bool tw_json_has(const struct tw_json *obj, const char *key)
{
    return member(obj, key) != NULL;
}

static int wrong_type(const struct tw_json *v, const char *key, const char *want,
        struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "'%s' must be %s, not %s", key, want,
            tw_json_type_name(v->type));
}

int tw_json_get_int(const struct tw_json *obj, const char *key, int64_t *out, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(obj, key);

    if (!v)
        return 0;
    if (v->type != TW_JNUM)
        return wrong_type(v, key, "a whole number", err);
    if (v->is_int)
        *out = v->i;
    else if (v->d == floor(v->d) && fabs(v->d) <= 0x1p53)
        *out = (int64_t)v->d;           /* 1.0 and 1e3 are whole, too */
    else
        return tw_fail(err, NULL, 0, "'%s' must be a whole number of 64 bits, not %.*s", key,
                v->raw.n > 40 ? 40 : (int)v->raw.n, v->raw.p);
    return 1;
}

int tw_json_get_num(const struct tw_json *obj, const char *key, double *out, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(obj, key);

    if (!v)
        return 0;
    if (v->type != TW_JNUM)
        return wrong_type(v, key, "a number", err);
    if (!isfinite(v->d))
        return tw_fail(err, NULL, 0, "'%s': %.*s is too large", key,
                v->raw.n > 40 ? 40 : (int)v->raw.n, v->raw.p);
    *out = v->d;
    return 1;
}

int tw_json_get_bool(const struct tw_json *obj, const char *key, bool *out, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(obj, key);

    if (!v)
        return 0;
    if (v->type != TW_JBOOL)
        return wrong_type(v, key, "true or false", err);
    *out = v->b;
    return 1;
}

int tw_json_get_str(const struct tw_json *obj, const char *key, struct tw_str *out,
        struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(obj, key);

    if (!v)
        return 0;
    if (v->type != TW_JSTR)
        return wrong_type(v, key, "a string", err);
    *out = v->str;
    return 1;
}

const char *tw_json_type_name(enum tw_json_type t)
{
    static const char *const name[] = { "null", "a boolean", "a number", "a string", "an array",
        "an object" };

    return name[t];
}
