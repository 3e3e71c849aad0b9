/* gguf.c - the container: metadata and the table of tensors, read through a mapping. Fields follow
 * one another unaligned, so a cursor that cannot pass the end walks over them once. */
#include "data/gguf_priv.h"
#include <stdlib.h>

struct cursor {
    const unsigned char *p, *end;
    bool bad;                   /* ran past the end */
};

static const unsigned char *take(struct cursor *c, uint64_t n)
{
    const unsigned char *p = c->p;

    if (c->bad || n > (uint64_t)(c->end - c->p)) {
        c->bad = true;
        return NULL;
    }
    c->p += n;
    return p;
}

static uint64_t take_int(struct cursor *c, int size)
{
    const unsigned char *p = take(c, (uint64_t)size);
    uint64_t v = 0;

    for (int i = 0; p && i < size; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static struct tw_str take_str(struct cursor *c)
{
    uint64_t n = take_int(c, 8);
    const unsigned char *p = take(c, n);

    return (struct tw_str){ (const char *)p, p ? n : 0 };
}

static int scalar_size(uint32_t type)
{
    static const unsigned char size[GGUF_NTYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

    return type < GGUF_NTYPES ? size[type] : 0;
}

/* Moves over the value of KV, whose type is known. False: a type that does not exist. */
static bool skip_value(struct cursor *c, struct gguf_kv *kv)
{
    uint32_t type = kv->type;

    kv->n = 1;
    if (type == GGUF_ARR) {
        type = kv->elem = (uint32_t)take_int(c, 4);
        kv->n = take_int(c, 8);
    }
    kv->p = c->p;
    if (type == GGUF_STR) {
        for (uint64_t i = 0; i < kv->n && !c->bad; i++)
            take_str(c);
        return true;
    }
    if (!scalar_size(type))
        return false;
    if (kv->n > (uint64_t)(c->end - c->p))
        c->bad = true;
    else
        take(c, kv->n * (uint64_t)scalar_size(type));
    return true;
}

static int cmp_str(struct tw_str a, struct tw_str b)
{
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);

    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int by_key(const void *a, const void *b)
{
    return cmp_str(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    return cmp_str(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;

    return (x->p > y->p) - (x->p < y->p);
}

static int truncated(const struct tw_gguf *g, const char *where, struct tw_err *err)
{
    return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "truncated in %s (%zu bytes)", where,
            g->map.n);
}

static int read_kvs(struct tw_gguf *g, struct cursor *c, uint64_t n, struct tw_err *err)
{
    if (n > (uint64_t)(c->end - c->p) / 13)     /* the least an entry takes, before allocating */
        return truncated(g, "the metadata", err);
    g->kv = tw_xcalloc(n + 1, sizeof *g->kv);
    for (; g->nkv < (int64_t)n; g->nkv++) {
        struct gguf_kv *kv = &g->kv[g->nkv];

        kv->key = take_str(c);
        kv->type = (uint32_t)take_int(c, 4);
        if (!skip_value(c, kv) && !c->bad)
            return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "key %.*s: unknown type %u",
                    (int)kv->key.n, kv->key.p, kv->type == GGUF_ARR ? kv->elem : kv->type);
        if (c->bad)
            return truncated(g, "the metadata", err);
    }
    qsort(g->kv, n, sizeof *g->kv, by_key);
    for (int64_t i = 1; i < g->nkv; i++)
        if (tw_str_eq(g->kv[i].key, g->kv[i - 1].key))
            return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "key %.*s comes twice",
                    (int)g->kv[i].key.n, g->kv[i].key.p);
    return 0;
}

/* One entry of the table; p stays the offset until the data's start is known. */
static int read_tensor(struct tw_gguf *g, struct gguf_tensor *t, struct cursor *c,
        struct tw_err *err)
{
    const struct ggml_type *type;
    uint32_t ndim;

    t->name = take_str(c);
    ndim = (uint32_t)take_int(c, 4);
    if (!c->bad && ndim > 4)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "tensor %.*s: %u dimensions",
                (int)t->name.n, t->name.p, ndim);
    t->ndim = (int)ndim;
    t->n = 1;
    for (int i = 0; i < t->ndim && !c->bad; i++) {
        t->dim[i] = (int64_t)take_int(c, 8);
        if (t->dim[i] < 0 || __builtin_mul_overflow(t->n, t->dim[i], &t->n))
            return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "tensor %.*s: bad shape",
                    (int)t->name.n, t->name.p);
    }
    t->type = (uint32_t)take_int(c, 4);
    t->bytes = take_int(c, 8);                  /* the offset, for now */
    if (c->bad)
        return truncated(g, "the table of tensors", err);
    if (!(type = tw_ggml_type(t->type)))
        return tw_fail(err, g->path, 0, "tensor %.*s: type %u is not supported", (int)t->name.n,
                t->name.p, t->type);
    if ((t->ndim ? t->dim[0] : 1) % type->block)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0,
                "tensor %.*s: rows of %lld do not fill blocks of %s", (int)t->name.n, t->name.p,
                (long long)t->dim[0], type->name);
    return 0;
}

/* Turns the offset of T into its place, which must lie in the data that starts at DATA. */
static int place_tensor(struct tw_gguf *g, struct gguf_tensor *t, const unsigned char *data,
        uint64_t align, struct tw_err *err)
{
    const struct ggml_type *type = tw_ggml_type(t->type);
    uint64_t at = t->bytes, left = (uint64_t)(g->map.p + g->map.n - data);
    size_t bytes;

    if (__builtin_mul_overflow((size_t)(t->n / type->block), type->bytes, &bytes) || at % align)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "tensor %.*s: bad size or offset",
                (int)t->name.n, t->name.p);
    if (at > left || bytes > left - at)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0,
                "truncated: tensor %.*s ends at byte %llu of the data, the file holds %llu",
                (int)t->name.n, t->name.p, (unsigned long long)at + bytes,
                (unsigned long long)left);
    t->p = data + at;
    t->bytes = bytes;
    return 0;
}

static int check_tensors(struct tw_gguf *g, struct tw_err *err)
{
    qsort(g->t, (size_t)g->nt, sizeof *g->t, by_place);
    for (int64_t i = 1; i < g->nt; i++)
        if (g->t[i - 1].p + g->t[i - 1].bytes > g->t[i].p)
            return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "tensors %.*s and %.*s overlap",
                    (int)g->t[i - 1].name.n, g->t[i - 1].name.p, (int)g->t[i].name.n,
                    g->t[i].name.p);
    qsort(g->t, (size_t)g->nt, sizeof *g->t, by_name);
    for (int64_t i = 1; i < g->nt; i++)
        if (tw_str_eq(g->t[i].name, g->t[i - 1].name))
            return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "tensor %.*s comes twice",
                    (int)g->t[i].name.n, g->t[i].name.p);
    return 0;
}

static int read_tensors(struct tw_gguf *g, struct cursor *c, uint64_t n, struct tw_err *err)
{
    int64_t align = 32;
    size_t at;

    if (n > (uint64_t)(c->end - c->p) / 24)
        return truncated(g, "the table of tensors", err);
    g->t = tw_xcalloc(n + 1, sizeof *g->t);
    for (; g->nt < (int64_t)n; g->nt++)
        if (read_tensor(g, &g->t[g->nt], c, err))
            return -1;
    if (tw_gguf_int(g, "general.alignment", &align, err) < 0)
        return -1;
    if (align < 8 || align > 1 << 20 || align % 8)
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "general.alignment is %lld",
                (long long)align);
    at = (size_t)(c->p - g->map.p);
    at += ((size_t)align - at % (size_t)align) % (size_t)align;
    if (at > g->map.n)
        at = g->map.n;                          /* no data: only empty tensors fit */
    for (int64_t i = 0; i < g->nt; i++)
        if (place_tensor(g, &g->t[i], g->map.p + at, (uint64_t)align, err))
            return -1;
    return check_tensors(g, err);
}

static int parse(struct tw_gguf *g, struct tw_err *err)
{
    struct cursor c = { g->map.p, g->map.p + g->map.n, false };
    const unsigned char *magic = take(&c, 4);
    uint32_t version = (uint32_t)take_int(&c, 4);
    uint64_t nt = take_int(&c, 8), nkv = take_int(&c, 8);

    if (!magic || memcmp(magic, "GGUF", 4))
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "not a GGUF file");
    if (c.bad)
        return truncated(g, "the header", err);
    if (version != 2 && version != 3)
        return tw_fail(err, g->path, 0, "GGUF version %u%s; only versions 2 and 3 are supported",
                version, version > 0xffff ? " (a big-endian file)" : "");
    return read_kvs(g, &c, nkv, err) || read_tensors(g, &c, nt, err) ? -1 : 0;
}

int tw_gguf_open(struct tw_gguf *g, const char *path, struct tw_err *err)
{
    *g = (struct tw_gguf){ .path = path };
    if (tw_map_open(&g->map, path, err))
        return -1;
    if (!parse(g, err))
        return 0;
    tw_gguf_close(g);
    return -1;
}

void tw_gguf_close(struct tw_gguf *g)
{
    tw_map_close(&g->map);
    free(g->kv);
    free(g->t);
    *g = (struct tw_gguf){ 0 };
}

const struct gguf_kv *tw_gguf_kv(const struct tw_gguf *g, const char *key)
{
    struct gguf_kv want = { .key = tw_str(key) };

    return bsearch(&want, g->kv, (size_t)g->nkv, sizeof want, by_key);
}

struct gguf_tensor *tw_gguf_tensor(const struct tw_gguf *g, const char *name)
{
    struct gguf_tensor want = { .name = tw_str(name) };

    return bsearch(&want, g->t, (size_t)g->nt, sizeof want, by_name);
}
