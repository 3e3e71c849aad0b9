/* optim_file.c - an optimiser's moments, or its f32 weights, as a safetensors file of row-major
 * tensors. */
#include "nn/optim_priv.h"
#include <stdlib.h>

#define CHUNK ((int64_t)1 << 20)    /* elements moved between device and host at once */

/* A tensor of a file. */
struct item {
    const char *prefix;
    const struct tw_param *p;
    float *data;                    /* NULL: the weights themselves */
    bool small, second;             /* a moment in fewer bits, which passes through data, the gradient */
};

/* Those there are, to be freed: first all of one kind, then all of the next. */
static struct item *items_of(const struct tw_optim *o, bool weights, int64_t *n)
{
    const char *const prefix[] = { "exp_avg.", "exp_avg_sq." };
    void *const *const list[] = { o->m, o->v };
    bool small = o->opts.states;
    struct item *item = tw_xcalloc((size_t)(2 * o->params->n + 1), sizeof *item);

    *n = 0;
    for (int k = 0; k < 2 - weights; k++)
        for (int64_t i = 0; i < o->params->n; i++)
            if (weights)
                item[(*n)++] = (struct item){ "", &o->params->p[i], NULL, false, false };
            else if (list[k][i])
                item[(*n)++] = (struct item){ prefix[k], &o->params->p[i],
                    small ? o->params->p[i].g : list[k][i], small, k };
    return item;
}

/* Does parameter P lie row after row on the device? A vector does, and all of an adapter. */
static bool plain(const struct tw_optim *o, const struct tw_param *p)
{
    return o->rows || !p->matrix;
}

static int64_t rows_of(const struct tw_param *p)
{
    return tw_mat_count(&p->w) * p->w.rows;
}

/* The matrix that row *ROW of P lies in, and its row there; *N rows at most are in the same. */
static struct tw_mat mat_of(const struct tw_param *p, float *data, int64_t *row, int64_t *n)
{
    int64_t i = *row / p->w.rows;
    int64_t each = i * (p->n / tw_mat_count(&p->w));
    struct tw_mat m = { .data = data ? data : p->w.data, .dtype = TW_F32, .rows = p->w.rows,
        .cols = p->w.cols };

    if (!data && p->w.low) {
        m.dtype = TW_BF16;
        m.low = p->w.low + each;
    }
    m.data = (char *)m.data + (size_t)each * tw_dtype_size(m.dtype);
    *row -= i * p->w.rows;
    *n = p->w.rows - *row < *n ? p->w.rows - *row : *n;
    return m;
}

static void fetch(const struct tw_optim *o, const struct tw_param *p, float *data, int64_t row,
        int64_t n, float *host)
{
    int64_t cols = p->w.cols, k;

    if (plain(o, p)) {
        tw_ops(o->dev)->get(o->dev, host, (data ? data : (float *)p->w.data) + row * cols,
                (size_t)(n * cols) * sizeof(float));
        return;
    }
    for (int64_t at = 0; at < n; at += k) {
        int64_t r = row + at;
        struct tw_mat m;

        k = n - at;
        m = mat_of(p, data, &r, &k);
        tw_ops(o->dev)->mat_get(o->dev, host + at * cols, &m, r, k);
    }
}

static void store(const struct tw_optim *o, const struct tw_param *p, float *data, int64_t row,
        int64_t n, const float *host)
{
    int64_t cols = p->w.cols, k;

    if (plain(o, p)) {
        tw_ops(o->dev)->put(o->dev, (data ? data : (float *)p->w.data) + row * cols, host,
                (size_t)(n * cols) * sizeof(float));
        return;
    }
    for (int64_t at = 0; at < n; at += k) {
        int64_t r = row + at;
        struct tw_mat m;

        k = n - at;
        m = mat_of(p, data, &r, &k);
        tw_ops(o->dev)->mat_put(o->dev, &m, host + at * cols, TW_F32, r, k);
    }
}

static int64_t rows_at_once(const struct tw_param *p)
{
    int64_t n = CHUNK / (p->w.cols > 0 ? p->w.cols : 1);

    return n < 1 ? 1 : n < rows_of(p) ? n : rows_of(p);
}

/* Between an item's moment and the gradient that it passes through, which is zero again after. */
static void pass(const struct tw_optim *o, const struct item *it, bool in)
{
    struct tw_small s = tw_optim_small(o, it->p - o->params->p);
    const struct tw_ops *ops = tw_ops(o->dev);

    if (it->small && !in)
        ops->optim->small_get(o->dev, it->data, &s, it->second, it->p->n);
    if (it->small && in) {
        ops->optim->small_put(o->dev, &s, it->second, it->data, it->p->n);
        ops->zero(o->dev, it->data, (size_t)it->p->n * sizeof(float));
    }
}

static int write_tensor(struct tw_optim *o, struct tw_wout *out, const struct item *it,
        struct tw_err *err)
{
    const struct tw_param *p = it->p;
    float *data = it->data;
    int64_t step = rows_at_once(p);
    float *host = tw_xreallocarray(NULL, (size_t)(step * p->w.cols), sizeof *host);
    int ret = 0;

    pass(o, it, false);
    for (int64_t row = 0; !ret && row < rows_of(p); row += step) {
        int64_t n = rows_of(p) - row < step ? rows_of(p) - row : step;

        fetch(o, p, data, row, n, host);
        ret = tw_wout_put(out, host, TW_F32, n * p->w.cols, err);
    }
    if (it->small)
        tw_ops(o->dev)->zero(o->dev, data, (size_t)p->n * sizeof(float));
    free(host);
    return ret;
}

static int write_file(struct tw_optim *o, const struct item *item, int64_t n, const char *path,
        struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_wdecl *decl = tw_arena_alloc(&a, (size_t)n * sizeof *decl);
    struct tw_wout *out = NULL;
    int64_t i;
    int ret = -1;

    for (i = 0; i < n; i++) {
        const struct tw_param *p = item[i].p;

        decl[i] = (struct tw_wdecl){ .dtype = TW_F32, .ndim = 2, .dim = { rows_of(p), p->w.cols },
            .name = tw_arena_printf(&a, "%s%s", item[i].prefix, p->name) };
    }
    if (!(out = tw_wout_open(path, decl, n, err)))
        goto out;
    while ((i = tw_wout_next(out)) >= 0)
        if (write_tensor(o, out, &item[i], err))
            goto out;
    if (!(ret = tw_wout_commit(out, err)))
        out = NULL;
out:
    tw_wout_abort(out);
    tw_arena_free(&a);
    return ret;
}

static int read_tensor(struct tw_optim *o, const struct tw_wtensor *t, const struct item *it,
        struct tw_err *err)
{
    const struct tw_param *p = it->p;
    int64_t step = rows_at_once(p);
    float *host = tw_xreallocarray(NULL, (size_t)(step * p->w.cols), sizeof *host);
    int ret = 0;

    for (int64_t row = 0; !ret && row < rows_of(p); row += step) {
        int64_t n = rows_of(p) - row < step ? rows_of(p) - row : step;

        ret = tw_weights_f32(t, row * p->w.cols, n * p->w.cols, host, err);
        if (!ret)
            store(o, p, it->data, row, n, host);
    }
    if (!ret)
        pass(o, it, true);
    free(host);
    return ret;
}

static int read_file(struct tw_optim *o, const struct item *item, int64_t n, const char *path,
        struct tw_err *err)
{
    struct tw_weights w;
    struct tw_arena a = { 0 };
    int ret = -1;

    if (tw_weights_open(&w, path, err))
        return -1;
    if (w.n != n) {
        tw_fail(err, path, 0, "holds %lld tensors, and this training has %lld", (long long)w.n,
                (long long)n);
        goto out;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct tw_param *p = item[i].p;
        char *name = tw_arena_printf(&a, "%s%s", item[i].prefix, p->name);
        struct tw_wtensor *t = tw_weights_find(&w, tw_str(name));

        if (!t || t->dtype != TW_F32 || t->ndim != 2 || t->dim[0] != rows_of(p) ||
                t->dim[1] != p->w.cols) {
            tw_fail(err, path, 0, "%s: %s", name, t ? "has another shape" : "is missing");
            goto out;
        }
        if (read_tensor(o, t, &item[i], err))
            goto out;
    }
    ret = tw_ops(o->dev)->sync(o->dev, err);
out:
    tw_weights_close(&w);
    tw_arena_free(&a);
    return ret;
}

/* Where nothing is kept there is no file. */
static int file(struct tw_optim *o, bool weights, bool write, const char *path, struct tw_err *err)
{
    int64_t n;
    struct item *item = items_of(o, weights, &n);
    int ret = !n ? 0 : write ? write_file(o, item, n, path, err) : read_file(o, item, n, path, err);

    free(item);
    return ret;
}

int tw_optim_save(struct tw_optim *o, const char *path, struct tw_err *err)
{
    return file(o, false, true, path, err);
}

int tw_optim_load(struct tw_optim *o, const char *path, int64_t updates, struct tw_err *err)
{
    o->updates = updates;
    return file(o, false, false, path, err);
}

int tw_optim_save_weights(struct tw_optim *o, const char *path, struct tw_err *err)
{
    return file(o, true, true, path, err);
}

int tw_optim_load_weights(struct tw_optim *o, const char *path, struct tw_err *err)
{
    if (file(o, true, false, path, err))
        return -1;
    tw_params_updated(o->dev, o->params);
    return tw_ops(o->dev)->sync(o->dev, err);
}
