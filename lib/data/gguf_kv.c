/* gguf_kv.c - typed look-ups in the metadata, whose values were checked when the file was opened. */
#include "data/gguf_priv.h"

static int wrong(const struct tw_gguf *g, const struct gguf_kv *kv, const char *want,
        struct tw_err *err)
{
    return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "key %.*s: %s expected", (int)kv->key.n,
            kv->key.p, want);
}

static bool is_int(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

/* Reads an integer of TYPE at *P and moves *P; false: beyond int64. */
static bool next_int(uint32_t type, const unsigned char **p, int64_t *out)
{
    uint64_t v = 0;
    int size = type == GGUF_U8 || type == GGUF_I8 ? 1 : type == GGUF_U16 || type == GGUF_I16 ? 2 :
            type == GGUF_U32 || type == GGUF_I32 ? 4 : 8;

    for (int i = 0; i < size; i++)
        v |= (uint64_t)(*p)[i] << 8 * i;
    *p += size;
    *out = type == GGUF_I8 ? (int8_t)v : type == GGUF_I16 ? (int16_t)v :
            type == GGUF_I32 ? (int32_t)v : (int64_t)v;
    return type != GGUF_U64 || v <= INT64_MAX;
}

static double next_num(uint32_t type, const unsigned char **p)
{
    float f;
    double d;

    if (type == GGUF_F32) {
        memcpy(&f, *p, 4);
        *p += 4;
        return f;
    }
    memcpy(&d, *p, 8);
    *p += 8;
    return d;
}

static struct tw_str next_str(const unsigned char **p)
{
    uint64_t n;
    struct tw_str s;

    memcpy(&n, *p, 8);
    s = (struct tw_str){ (const char *)*p + 8, n };
    *p += 8 + n;
    return s;
}

int tw_gguf_int(const struct tw_gguf *g, const char *key, int64_t *out, struct tw_err *err)
{
    const struct gguf_kv *kv = tw_gguf_kv(g, key);
    const unsigned char *p;
    int64_t v;

    if (!kv)
        return 0;
    p = kv->p;
    if (!is_int(kv->type) || !next_int(kv->type, &p, &v))
        return wrong(g, kv, "an integer", err);
    *out = v;
    return 1;
}

int tw_gguf_num(const struct tw_gguf *g, const char *key, double *out, struct tw_err *err)
{
    const struct gguf_kv *kv = tw_gguf_kv(g, key);
    const unsigned char *p;

    if (!kv)
        return 0;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong(g, kv, "a number", err);
    p = kv->p;
    *out = next_num(kv->type, &p);
    return 1;
}

int tw_gguf_bool(const struct tw_gguf *g, const char *key, bool *out, struct tw_err *err)
{
    const struct gguf_kv *kv = tw_gguf_kv(g, key);

    if (!kv)
        return 0;
    if (kv->type != GGUF_BOOL || *kv->p > 1)
        return wrong(g, kv, "true or false", err);
    *out = *kv->p;
    return 1;
}

int tw_gguf_str(const struct tw_gguf *g, const char *key, struct tw_str *out, struct tw_err *err)
{
    const struct gguf_kv *kv = tw_gguf_kv(g, key);
    const unsigned char *p;

    if (!kv)
        return 0;
    if (kv->type != GGUF_STR)
        return wrong(g, kv, "a text", err);
    p = kv->p;
    *out = next_str(&p);
    return 1;
}

/* A list whose length is *N, when that is given. */
static int find_list(const struct tw_gguf *g, const char *key, const struct gguf_kv **kv,
        int64_t *n, struct tw_err *err)
{
    if (!(*kv = tw_gguf_kv(g, key)))
        return 0;
    if ((*kv)->type != GGUF_ARR)
        return wrong(g, *kv, "a list", err);
    if (*n && (uint64_t)*n != (*kv)->n)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "key %s: %llu elements instead of %lld",
                key, (unsigned long long)(*kv)->n, (long long)*n);
    *n = (int64_t)(*kv)->n;
    return 1;
}

int tw_gguf_strs(const struct tw_gguf *g, const char *key, struct tw_arena *a,
        struct tw_str **out, int64_t *n, struct tw_err *err)
{
    const struct gguf_kv *kv;
    const unsigned char *p;
    int got = find_list(g, key, &kv, n, err);

    if (got <= 0)
        return got;
    if (kv->elem != GGUF_STR)
        return wrong(g, kv, "a list of texts", err);
    *out = tw_arena_alloc(a, (size_t)*n * sizeof **out);
    p = kv->p;
    for (int64_t i = 0; i < *n; i++)
        (*out)[i] = next_str(&p);
    return 1;
}

int tw_gguf_ints(const struct tw_gguf *g, const char *key, struct tw_arena *a, int64_t **out,
        int64_t *n, struct tw_err *err)
{
    const struct gguf_kv *kv;
    const unsigned char *p;
    int got = find_list(g, key, &kv, n, err);

    if (got <= 0)
        return got;
    if (!is_int(kv->elem))
        return wrong(g, kv, "a list of integers", err);
    *out = tw_arena_alloc(a, (size_t)*n * sizeof **out);
    p = kv->p;
    for (int64_t i = 0; i < *n; i++)
        if (!next_int(kv->elem, &p, &(*out)[i]))
            return wrong(g, kv, "a list of integers", err);
    return 1;
}

int tw_gguf_nums(const struct tw_gguf *g, const char *key, struct tw_arena *a, double **out,
        int64_t *n, struct tw_err *err)
{
    const struct gguf_kv *kv;
    const unsigned char *p;
    int got = find_list(g, key, &kv, n, err);

    if (got <= 0)
        return got;
    if (kv->elem != GGUF_F32 && kv->elem != GGUF_F64)
        return wrong(g, kv, "a list of numbers", err);
    *out = tw_arena_alloc(a, (size_t)*n * sizeof **out);
    p = kv->p;
    for (int64_t i = 0; i < *n; i++)
        (*out)[i] = next_num(kv->elem, &p);
    return 1;
}
