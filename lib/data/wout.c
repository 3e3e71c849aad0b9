/* wout.c - safetensors written: one file, or several with an index. */
#include "data/wout_soon.h"
#include "base/io_soon.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#define CHUNK 16384         /* elements converted at a time */

/* One file: tensors order[first] to order[last - 1]. */
struct part {
    struct tw_out out;
    char *name;             /* in the index */
    int64_t first, last, bytes;
    bool open;
};

struct tw_wout {
    struct tw_wdecl *decl;
    int64_t *order, n, total;
    char *dir;              /* NULL: a single file at a path */
    struct part *part;
    int64_t nparts, cur;    /* cur: the part that is being written */
    int64_t next, left;     /* position in order; elements the current tensor still needs */
    bool failed;
};

static int64_t elements(const struct tw_wdecl *d)
{
    int64_t n = 1;

    for (int i = 0; i < d->ndim; i++)
        n *= d->dim[i];
    return n;
}

static int64_t decl_bytes(const struct tw_wdecl *d)
{
    return elements(d) * (int64_t)tw_dtype_size(d->dtype);
}

/* Copies DECL after checking that the sizes can be added up. */
static int take_decl(struct tw_wout *o, const struct tw_wdecl *decl, int64_t n, const char *place,
        struct tw_err *err)
{
    o->decl = tw_xcalloc((size_t)n + 1, sizeof *o->decl);
    o->order = tw_xcalloc((size_t)n + 1, sizeof *o->order);
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = (int64_t)tw_dtype_size(decl[i].dtype);
        bool bad = decl[i].ndim < 0 || decl[i].ndim > TW_WDIMS;

        for (int k = 0; !bad && k < decl[i].ndim; k++)
            bad = decl[i].dim[k] < 0 || __builtin_mul_overflow(bytes, decl[i].dim[k], &bytes);
        if (bad || __builtin_add_overflow(o->total, bytes, &o->total))
            return tw_fail(err, place, 0, "tensor %s: bad shape", decl[i].name);
        o->decl[i] = decl[i];
        o->decl[i].name = tw_xstrdup(decl[i].name);
        o->order[i] = i;
        o->n = i + 1;
    }
    return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct tw_wdecl *d = arg;

    return strcmp(d[*(const int64_t *)a].name, d[*(const int64_t *)b].name);
}

/* The order of the reference writer: every tensor is then aligned to its element. */
static int by_size_name(const void *a, const void *b, void *arg)
{
    const struct tw_wdecl *d = arg, *x = &d[*(const int64_t *)a], *y = &d[*(const int64_t *)b];
    size_t sx = tw_dtype_size(x->dtype), sy = tw_dtype_size(y->dtype);

    return sx != sy ? (sx < sy) - (sx > sy) : strcmp(x->name, y->name);
}

static int check_names(struct tw_wout *o, const char *place, struct tw_err *err)
{
    int64_t *s = tw_xcalloc((size_t)o->n + 1, sizeof *s);
    int ret = 0;

    memcpy(s, o->order, (size_t)o->n * sizeof *s);
    qsort_r(s, (size_t)o->n, sizeof *s, by_name, o->decl);
    for (int64_t i = 0; !ret && i < o->n; i++) {
        const char *name = o->decl[s[i]].name;

        if (!strcmp(name, "__metadata__") || (i && !strcmp(name, o->decl[s[i - 1]].name)))
            ret = tw_fail(err, place, 0, "tensor %s: declared twice, or a reserved name", name);
    }
    free(s);
    return ret;
}

static void header_text(const struct tw_wout *o, const struct part *p, struct tw_buf *b)
{
    struct tw_jw w;
    int64_t at = 0;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "__metadata__");
    tw_jw_obj(&w);
    tw_jw_key(&w, "format");
    tw_jw_cstr(&w, "pt");
    tw_jw_obj_end(&w);
    for (int64_t i = p->first; i < p->last; i++) {
        const struct tw_wdecl *d = &o->decl[o->order[i]];

        tw_jw_key(&w, d->name);
        tw_jw_obj(&w);
        tw_jw_key(&w, "dtype");
        tw_jw_cstr(&w, tw_dtype_name(d->dtype));
        tw_jw_key(&w, "shape");
        tw_jw_arr(&w);
        for (int k = 0; k < d->ndim; k++)
            tw_jw_int(&w, d->dim[k]);
        tw_jw_arr_end(&w);
        tw_jw_key(&w, "data_offsets");
        tw_jw_arr(&w);
        tw_jw_int(&w, at);
        at += decl_bytes(d);
        tw_jw_int(&w, at);
        tw_jw_arr_end(&w);
        tw_jw_obj_end(&w);
    }
    tw_jw_obj_end(&w);
    while (b->n % 8)
        tw_buf_putc(b, ' ');
}

/* Takes the space now: a disk that is too full says so before hours of writing. File systems that
 * cannot reserve are left to fail at the write. */
static int reserve(struct tw_out *out, int64_t bytes, struct tw_err *err)
{
    struct statvfs v;
    char need[32], have[32];

    if (out->is_stdout || !bytes || !fallocate(fileno(out->fp), 0, 0, bytes))
        return 0;
    if (errno != ENOSPC && errno != EFBIG && errno != EDQUOT)
        return 0;
    if (errno != ENOSPC || fstatvfs(fileno(out->fp), &v))
        return tw_fail(err, out->path, 0, "cannot reserve %s: %s", tw_fmt_bytes(need, bytes),
                strerror(errno));
    return tw_fail(err, out->path, 0, "not enough space: needs %s, %s are free",
            tw_fmt_bytes(need, bytes), tw_fmt_bytes(have, (double)v.f_bavail * v.f_frsize));
}

static int start_part(struct tw_wout *o, struct tw_err *err)
{
    struct part *p = &o->part[o->cur];
    struct tw_buf b = { 0 };
    unsigned char len[8];
    char *path = o->dir ? tw_path_join(o->dir, p->name) : tw_xstrdup(p->name);
    int ret = -1;

    header_text(o, p, &b);
    for (int i = 0; i < 8; i++)
        len[i] = (unsigned char)((uint64_t)b.n >> 8 * i);
    if (tw_out_open(&p->out, path, err))
        goto out;
    p->open = true;
    if (reserve(&p->out, (int64_t)b.n + 8 + p->bytes, err) ||
            tw_out_write(&p->out, len, 8, err) || tw_out_write(&p->out, b.p, b.n, err))
        goto out;
    ret = 0;
out:
    tw_buf_free(&b);
    free(path);
    return ret;
}

/* Moves over empty tensors and into the next file, to the tensor that needs data. */
static int advance(struct tw_wout *o, struct tw_err *err)
{
    while (!o->left && o->next < o->n && ++o->next < o->n) {
        o->left = elements(&o->decl[o->order[o->next]]);
        if (o->next < o->part[o->cur].last)
            continue;
        o->cur++;
        if (start_part(o, err))
            return -1;
    }
    return 0;
}

static int start(struct tw_wout *o, struct tw_err *err)
{
    for (int64_t i = 0; i < o->nparts; i++) {
        struct part *p = &o->part[i];

        qsort_r(o->order + p->first, (size_t)(p->last - p->first), sizeof *o->order,
                by_size_name, o->decl);
        for (int64_t k = p->first; k < p->last; k++)
            p->bytes += decl_bytes(&o->decl[o->order[k]]);
    }
    if (start_part(o, err))
        return -1;
    o->left = o->n ? elements(&o->decl[o->order[0]]) : 0;
    return advance(o, err);
}

struct tw_wout *tw_wout_open(const char *path, const struct tw_wdecl *decl, int64_t n,
        struct tw_err *err)
{
    struct tw_wout *o = tw_xcalloc(1, sizeof *o);

    o->part = tw_xcalloc(1, sizeof *o->part);
    o->nparts = 1;
    o->part->name = tw_xstrdup(path);
    o->part->last = n;
    if (!take_decl(o, decl, n, path, err) && !check_names(o, path, err) && !start(o, err))
        return o;
    tw_wout_abort(o);
    return NULL;
}

/* Cuts the declared order into parts of at most MAX bytes. */
static void cut_parts(struct tw_wout *o, int64_t max)
{
    int64_t sum = 0;

    o->part = tw_xcalloc((size_t)o->n + 1, sizeof *o->part);
    o->nparts = 1;
    for (int64_t i = 0; i < o->n; i++) {
        int64_t bytes = decl_bytes(&o->decl[i]);

        if (max && sum && bytes > max - sum) {
            o->part[o->nparts++].first = i;
            sum = 0;
        }
        sum += bytes;
        o->part[o->nparts - 1].last = i + 1;
    }
    for (int64_t i = 0; i < o->nparts; i++)
        o->part[i].name = o->nparts == 1 ? tw_xstrdup("model.safetensors") :
                tw_xasprintf("model-%05lld-of-%05lld.safetensors", (long long)i + 1,
                        (long long)o->nparts);
}

struct tw_wout *tw_wout_open_dir(const char *dir, const struct tw_wdecl *decl, int64_t n,
        int64_t max_bytes, struct tw_err *err)
{
    struct tw_wout *o = tw_xcalloc(1, sizeof *o);

    o->dir = tw_xstrdup(dir);
    if (take_decl(o, decl, n, dir, err) || check_names(o, dir, err))
        goto fail;
    cut_parts(o, max_bytes);
    if (!start(o, err))
        return o;
fail:
    tw_wout_abort(o);
    return NULL;
}

int64_t tw_wout_next(const struct tw_wout *o)
{
    return o->next < o->n ? o->order[o->next] : -1;
}

int tw_wout_put(struct tw_wout *o, const void *data, enum tw_dtype from, int64_t n,
        struct tw_err *err)
{
    const struct tw_wdecl *d = &o->decl[o->next < o->n ? o->order[o->next] : 0];
    struct part *p = &o->part[o->cur];
    uint64_t tmp[CHUNK * 8 / sizeof(uint64_t)];

    if (o->next >= o->n || n < 0 || n > o->left) {
        o->failed = true;
        return tw_fail(err, p->out.path, 0, "more data than the declared tensors hold");
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        const char *in = (const char *)data + (size_t)i * tw_dtype_size(from);

        if (tw_convert(tmp, d->dtype, in, from, m)) {
            o->failed = true;
            return tw_fail(err, p->out.path, 0, "tensor %s: cannot write %s as %s", d->name,
                    tw_dtype_name(from), tw_dtype_name(d->dtype));
        }
        if (tw_out_write(&p->out, tmp, (size_t)m * tw_dtype_size(d->dtype), err)) {
            o->failed = true;
            return -1;
        }
    }
    o->left -= n;
    if (advance(o, err)) {
        o->failed = true;
        return -1;
    }
    return 0;
}

static void index_text(const struct tw_wout *o, struct tw_buf *b)
{
    struct tw_jw w;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "metadata");
    tw_jw_obj(&w);
    tw_jw_key(&w, "total_size");
    tw_jw_int(&w, o->total);
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "weight_map");
    tw_jw_obj(&w);
    for (int64_t i = 0; i < o->nparts; i++) {
        for (int64_t k = o->part[i].first; k < o->part[i].last; k++) {
            tw_jw_key(&w, o->decl[o->order[k]].name);
            tw_jw_cstr(&w, o->part[i].name);
        }
    }
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(b, '\n');
}

static int commit_index(const struct tw_wout *o, bool now, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    char *path = tw_path_join(o->dir, "model.safetensors.index.json");
    int ret;

    index_text(o, &b);
    ret = tw_write_file_when(path, b.p, b.n, now, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

int tw_wout_commit(struct tw_wout *o, struct tw_err *err)
{
    return tw_wout_commit_when(o, true, err);
}

int tw_wout_commit_when(struct tw_wout *o, bool now, struct tw_err *err)
{
    if (o->failed)
        return tw_fail(err, o->part[o->cur].out.path, 0, "an earlier write failed");
    if (o->next < o->n)
        return tw_fail(err, o->part[o->cur].out.path, 0, "tensor %s: not all of its data was given",
                o->decl[o->order[o->next]].name);
    for (int64_t i = 0; i < o->nparts; i++) {
        o->part[i].open = false;
        if (tw_out_commit_when(&o->part[i].out, now, err)) {
            tw_out_abort(&o->part[i].out);
            return -1;
        }
    }
    if (o->nparts > 1 && commit_index(o, now, err))
        return -1;
    tw_wout_abort(o);
    return 0;
}

void tw_wout_abort(struct tw_wout *o)
{
    if (!o)
        return;
    for (int64_t i = 0; i < o->nparts; i++) {
        if (o->part[i].open)
            tw_out_abort(&o->part[i].out);
        free(o->part[i].name);
    }
    for (int64_t i = 0; i < o->n; i++)
        free((char *)o->decl[i].name);
    free(o->part);
    free(o->decl);
    free(o->order);
    free(o->dir);
    free(o);
}
