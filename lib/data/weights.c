/* weights.c - safetensors read through a mapping. All of a header is checked before a tensor is
 * handed out: element counts, offsets, order and the file's size. */
#include "data/weights.h"
#include "base/io.h"
#include <limits.h>
#include <stdlib.h>

#define HEADER_MAX 100000000        /* the reference reader's limit, too */
#define INDEX_MAX (256u << 20)

static int by_begin(const void *a, const void *b)
{
    const struct tw_wtensor *x = a, *y = b;

    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->n > 0) - (y->n > 0);     /* empty tensors before the one that starts there */
}

static int name_cmp(struct tw_str a, struct tw_str b)
{
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);

    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int by_name(const void *a, const void *b)
{
    return name_cmp(((const struct tw_wtensor *)a)->name, ((const struct tw_wtensor *)b)->name);
}

/* "dtype" and "shape" of one entry: fills dtype, ndim, dim, n. */
static int read_shape(struct tw_wtensor *t, const struct tw_json *v, const char *path,
        struct tw_err *err)
{
    const struct tw_json *dtype = tw_json_get(v, "dtype"), *shape = tw_json_get(v, "shape");
    int type;

    if (!dtype || dtype->type != TW_JSTR || !shape || shape->type != TW_JARR)
        return tw_fail_code(err, TW_ECORRUPT, path, 0, "tensor %.*s: needs a dtype and a shape",
                (int)t->name.n, t->name.p);
    if ((type = tw_dtype_parse(dtype->str)) < 0)
        return tw_fail(err, path, 0, "tensor %.*s: dtype %.*s is not supported", (int)t->name.n,
                t->name.p, (int)dtype->str.n, dtype->str.p);
    if (shape->n > TW_WDIMS)
        return tw_fail(err, path, 0, "tensor %.*s has %lld dimensions; at most %d are supported",
                (int)t->name.n, t->name.p, (long long)shape->n, TW_WDIMS);
    t->dtype = (enum tw_dtype)type;
    t->ndim = (int)shape->n;
    t->n = 1;
    for (int i = 0; i < t->ndim; i++) {
        const struct tw_json *d = &shape->item[i];

        if (!d->is_int || d->i < 0 || __builtin_mul_overflow(t->n, d->i, &t->n))
            return tw_fail_code(err, TW_ECORRUPT, path, 0, "tensor %.*s: bad shape",
                    (int)t->name.n, t->name.p);
        t->dim[i] = d->i;
    }
    return 0;
}

/* One entry of the header, whose data lies behind BUF: check_size() saw to that. */
static int read_entry(struct tw_wtensor *t, const struct tw_json *v, const unsigned char *buf,
        const char *path, struct tw_err *err)
{
    const struct tw_json *off = tw_json_get(v, "data_offsets");
    int64_t bytes, begin, end;

    if (v->type != TW_JOBJ)
        return tw_fail_code(err, TW_ECORRUPT, path, 0, "tensor %.*s: not an object",
                (int)t->name.n, t->name.p);
    if (read_shape(t, v, path, err))
        return -1;
    if (!off || off->type != TW_JARR || off->n != 2 || !off->item[0].is_int ||
            !off->item[1].is_int)
        return tw_fail_code(err, TW_ECORRUPT, path, 0, "tensor %.*s: bad data_offsets",
                (int)t->name.n, t->name.p);
    begin = off->item[0].i;
    end = off->item[1].i;
    if (begin < 0 || end < begin || __builtin_mul_overflow(t->n,
            (int64_t)tw_dtype_size(t->dtype), &bytes) || bytes != end - begin)
        return tw_fail_code(err, TW_ECORRUPT, path, 0,
                "tensor %.*s: its data_offsets do not fit its shape", (int)t->name.n, t->name.p);
    t->data = buf + begin;
    return 0;
}

/* The tensors T of one file must cover its data exactly: no hole, no overlap, nothing after. */
static int check_cover(struct tw_wtensor *t, int64_t n, const struct tw_map *m,
        const unsigned char *buf, const char *path, struct tw_err *err)
{
    const unsigned char *at = buf;

    qsort(t, (size_t)n, sizeof *t, by_begin);
    for (int64_t i = 0; i < n; i++) {
        if ((const unsigned char *)t[i].data != at)
            return tw_fail_code(err, TW_ECORRUPT, path, 0,
                    "tensor %.*s: data overlaps or leaves a hole before it", (int)t[i].name.n,
                    t[i].name.p);
        at += (size_t)t[i].n * tw_dtype_size(t[i].dtype);
    }
    if (at != m->p + m->n)
        return tw_fail_code(err, TW_ECORRUPT, path, 0,
                "the header describes %zu bytes, the file has %zu", (size_t)(at - m->p), m->n);
    return 0;
}

/* No tensor may end behind the end of the file, DATA bytes of which come before the data. */
static int check_size(const struct tw_json *h, const struct tw_map *m, size_t data,
        const char *path, struct tw_err *err)
{
    uint64_t need = 0;

    for (int64_t i = 0; i < h->n; i++) {
        const struct tw_json *off = tw_json_get(&h->item[i], "data_offsets");

        if (off && off->type == TW_JARR && off->n == 2 && off->item[1].is_int &&
                off->item[1].i > 0 && (uint64_t)off->item[1].i > need)
            need = (uint64_t)off->item[1].i;
    }
    if (need <= m->n - data)
        return 0;
    return tw_fail_code(err, TW_ECORRUPT, path, 0,
            "truncated: the header describes %llu bytes, the file has %zu",
            (unsigned long long)(need + data), m->n);
}

static int check_metadata(const struct tw_json *v, const char *path, struct tw_err *err)
{
    bool good = v->type == TW_JOBJ;

    for (int64_t i = 0; good && i < v->n; i++)
        good = v->item[i].type == TW_JSTR;
    if (good)
        return 0;
    return tw_fail_code(err, TW_ECORRUPT, path, 0,
            "__metadata__ must be an object of strings");
}

/* Checks the header of the mapped file M and appends its tensors to W. */
static int read_header(struct tw_weights *w, const struct tw_map *m, const char *path,
        struct tw_err *err)
{
    uint64_t len = 0;
    struct tw_json *h;
    int64_t first = w->n;

    for (int i = 0; i < 8 && m->n >= 8; i++)
        len |= (uint64_t)m->p[i] << 8 * i;
    if (m->n < 8 || len < 2)
        return tw_fail_code(err, TW_ECORRUPT, path, 0, "not a safetensors file (%zu bytes)", m->n);
    if (len > HEADER_MAX)
        return tw_fail_code(err, TW_ECORRUPT, path, 0,
                "not a safetensors file: a header of %llu bytes", (unsigned long long)len);
    if (len > m->n - 8)
        return tw_fail_code(err, TW_ECORRUPT, path, 0,
                "truncated: the header needs %llu bytes, the file has %zu",
                (unsigned long long)len + 8, m->n);
    if (m->p[8] != '{')
        return tw_fail_code(err, TW_ECORRUPT, path, 0, "not a safetensors file");
    h = tw_json_parse(&w->arena, (struct tw_str){ (const char *)m->p + 8, (size_t)len }, err);
    if (!h) {
        tw_err_place(err, path, 0);
        return -1;
    }
    if (check_size(h, m, 8 + (size_t)len, path, err))
        return -1;
    w->t = tw_xreallocarray(w->t, (size_t)(w->n + h->n + 1), sizeof *w->t);
    for (int64_t i = 0; i < h->n; i++) {
        struct tw_wtensor *t = &w->t[w->n];

        if (tw_str_is(h->item[i].key, "__metadata__")) {
            if (check_metadata(&h->item[i], path, err))
                return -1;
            continue;
        }
        *t = (struct tw_wtensor){ .name = h->item[i].key, .file = w->nmap - 1 };
        if (read_entry(t, &h->item[i], m->p + 8 + len, path, err))
            return -1;
        w->n++;
    }
    return check_cover(w->t + first, w->n - first, m, m->p + 8 + len, path, err);
}

static int add_file(struct tw_weights *w, const char *path, struct tw_err *err)
{
    w->map = tw_xreallocarray(w->map, (size_t)w->nmap + 1, sizeof *w->map);
    w->map[w->nmap] = (struct tw_map){ 0 };
    if (tw_map_open(&w->map[w->nmap], path, err))
        return -1;
    w->nmap++;
    return read_header(w, &w->map[w->nmap - 1], path, err);
}

/* PATH, links followed, must stay in the folder DIR. The snapshots of a Hugging Face cache link to
 * blobs/ two levels up: there the root is the folder of the repository. */
static int check_inside(const char *dir, const char *path, struct tw_err *err)
{
    char root[PATH_MAX], real[PATH_MAX], *slash, *up;
    size_t n;

    if (!realpath(dir, root))
        return tw_fail(err, dir, 0, "cannot open the folder");
    if (!realpath(path, real))
        return tw_fail(err, path, 0, "no such file, but model.safetensors.index.json names it");
    if ((slash = strrchr(root, '/')) && slash > root) {
        for (up = slash - 1; up > root && *up != '/'; up--)
            ;
        if (up > root && !strncmp(up, "/snapshots/", 11))
            *up = 0;
    }
    n = strlen(root);
    if (strncmp(real, root, n) || (n > 1 && real[n] != '/'))
        return tw_fail(err, path, 0, "refused: the link leads out of the model's folder");
    return 0;
}

/* Which file (1..nfile) weight_map gives a tensor; the names are sorted. */
struct place {
    struct tw_str name, file;
    int at;
};

static int place_by_file(const void *a, const void *b)
{
    return name_cmp(((const struct place *)a)->file, ((const struct place *)b)->file);
}

static int place_by_name(const void *a, const void *b)
{
    return name_cmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

/* Every tensor of the map must be in the shard it names, and nowhere else. */
static int check_index(struct tw_weights *w, const struct place *p, int64_t n, const char *index,
        struct tw_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        struct tw_wtensor *t = tw_weights_find(w, p[i].name);

        if (!t || t->file != p[i].at)
            return tw_fail_code(err, TW_ECORRUPT, index, 0, "tensor %.*s is not in %.*s",
                    (int)p[i].name.n, p[i].name.p, (int)p[i].file.n, p[i].file.p);
    }
    return 0;
}

static int sort_tensors(struct tw_weights *w, const char *path, struct tw_err *err)
{
    if (w->n)
        qsort(w->t, (size_t)w->n, sizeof *w->t, by_name);
    for (int64_t i = 1; i < w->n; i++)
        if (tw_str_eq(w->t[i - 1].name, w->t[i].name))
            return tw_fail_code(err, TW_ECORRUPT, path, 0, "tensor %.*s comes twice",
                    (int)w->t[i].name.n, w->t[i].name.p);
    return 0;
}

/* The shards that PLACE names, each once. All names are judged before the first is opened. */
static int open_shards(struct tw_weights *w, const char *dir, const char *index,
        struct place *p, int64_t n, struct tw_err *err)
{
    char *path = NULL;
    int ret = -1;

    for (int64_t i = 0; i < n; i++)
        if (!tw_path_safe(p[i].file))
            return tw_fail(err, index, 0, "refused: shard name \"%.*s\" leads out of the folder",
                    (int)p[i].file.n, p[i].file.p);
    qsort(p, (size_t)n, sizeof *p, place_by_file);
    for (int64_t i = 0; i < n; i++) {
        if (!i || !tw_str_eq(p[i].file, p[i - 1].file)) {
            free(path);
            path = tw_xasprintf("%s/%.*s", dir, (int)p[i].file.n, p[i].file.p);
            if (check_inside(dir, path, err) || add_file(w, path, err))
                goto out;
        }
        p[i].at = w->nmap - 1;
    }
    qsort(p, (size_t)n, sizeof *p, place_by_name);
    ret = sort_tensors(w, index, err) || check_index(w, p, n, index, err) ? -1 : 0;
out:
    free(path);
    return ret;
}

static int open_index(struct tw_weights *w, const char *dir, const char *index,
        struct tw_err *err)
{
    struct tw_json *j = tw_json_file(&w->arena, index, INDEX_MAX, err);
    const struct tw_json *map = j ? tw_json_get(j, "weight_map") : NULL;
    struct place *p;

    if (!j)
        return -1;
    if (!map || map->type != TW_JOBJ || !map->n)
        return tw_fail_code(err, TW_ECORRUPT, index, 0, "no weight_map");
    p = tw_arena_alloc(&w->arena, (size_t)map->n * sizeof *p);
    for (int64_t i = 0; i < map->n; i++) {
        if (map->item[i].type != TW_JSTR)
            return tw_fail_code(err, TW_ECORRUPT, index, 0, "weight_map: %.*s: not a file name",
                    (int)map->item[i].key.n, map->item[i].key.p);
        p[i] = (struct place){ map->item[i].key, map->item[i].str, 0 };
    }
    return open_shards(w, dir, index, p, map->n, err);
}

int tw_weights_open(struct tw_weights *w, const char *dir_or_file, struct tw_err *err)
{
    char *one = tw_path_join(dir_or_file, "model.safetensors");
    char *index = tw_path_join(dir_or_file, "model.safetensors.index.json");
    int ret = -1;

    *w = (struct tw_weights){ .path = tw_xstrdup(dir_or_file) };
    if (!tw_is_dir(dir_or_file))
        ret = add_file(w, dir_or_file, err) || sort_tensors(w, dir_or_file, err) ? -1 : 0;
    else if (tw_is_file(one))
        ret = add_file(w, one, err) || sort_tensors(w, one, err) ? -1 : 0;
    else if (tw_is_file(index))
        ret = open_index(w, dir_or_file, index, err);
    else
        tw_fail(err, dir_or_file, 0,
                "no model.safetensors and no model.safetensors.index.json in the folder");
    free(one);
    free(index);
    if (ret)
        tw_weights_close(w);
    return ret;
}

struct tw_wtensor *tw_weights_find(struct tw_weights *w, struct tw_str name)
{
    int64_t lo = 0, hi = w->n;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int c = name_cmp(w->t[mid].name, name);

        if (!c)
            return &w->t[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

void tw_weights_close(struct tw_weights *w)
{
    for (int i = 0; i < w->nmap; i++)
        tw_map_close(&w->map[i]);
    free(w->map);
    free(w->t);
    free(w->path);
    tw_arena_free(&w->arena);
    *w = (struct tw_weights){ 0 };
}
