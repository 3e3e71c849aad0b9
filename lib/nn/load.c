/* load.c - values of the weights: from a checkpoint, or random */
#include "nn/model_priv.h"
#include "base/pool.h"
#include "base/rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK ((int64_t)1 << 20)        /* elements on the host at a time */

static struct tw_mat one_of(const struct tw_model *m, const struct tw_mat *w, int64_t i)
{
    struct tw_mat one = *w;
    int64_t n = m->ops->mat_elems(m->dev, w->rows, w->cols, w->dtype);

    one.n = 1;
    one.data = (char *)w->data + (size_t)(i * n) * tw_dtype_size(w->dtype);
    if (w->low)
        one.low = w->low + i * n;
    return one;
}

/* Where rows [row, ..) of W start: in which of its matrices, at which of its rows; at most *N of them
 * are there. */
static int64_t place(const struct tw_weight *w, int64_t row, int64_t *r, int64_t *n)
{
    *r = row % w->w.rows;
    *n = w->w.rows - *r < *n ? w->w.rows - *r : *n;
    return row / w->w.rows;
}

/* Rows [row, row + n), which may lie in several of the weight's matrices. */
static void put_rows(struct tw_model *m, struct tw_weight *w, const void *p, enum tw_dtype from,
        int64_t row, int64_t n)
{
    const char *at = p;

    if (!w->matrix) {
        m->ops->put(m->dev, (float *)w->w.data + row, p, (size_t)n * sizeof(float));
        return;
    }
    while (n > 0) {
        int64_t k = n, r, i = place(w, row, &r, &k);
        struct tw_mat to = one_of(m, &w->master, i);

        m->ops->mat_put(m->dev, &to, at, from, r, k);
        if (w->master.data != w->w.data) {
            to = one_of(m, &w->w, i);
            m->ops->mat_put(m->dev, &to, at, from, r, k);
        }
        at += (size_t)(k * w->w.cols) * tw_dtype_size(from);
        row += k;
        n -= k;
    }
}

static int64_t chunk_rows(int64_t cols)
{
    int64_t n = CHUNK / cols / 64 * 64;

    return n > 64 ? n : 64;
}

/* P from element AT of T on, whose factors are F. */
static int load_piece(struct tw_model *m, const struct tw_piece *p, const struct tw_wtensor *t,
        int64_t at, const struct tw_fp8 *f, struct tw_err *err)
{
    int64_t cols = tw_piece_cols(p), step = chunk_rows(cols);
    size_t size = tw_dtype_size(t->dtype);
    const char *data = (const char *)t->data + (size_t)at * size;
    float *buf;
    int ret = 0;

    /* What the device takes as it is goes there from the mapping. */
    if (p->w->matrix && (t->dtype == TW_F32 || t->dtype == TW_BF16) && (uintptr_t)data % size == 0) {
        put_rows(m, p->w, data, t->dtype, p->row, p->n);
        return 0;
    }
    step = step < p->n ? step : p->n;
    buf = tw_xreallocarray(NULL, (size_t)(step * cols), sizeof *buf);
    for (int64_t r = 0; r < p->n && !ret; r += step) {
        int64_t n = r + step < p->n ? step : p->n - r;

        ret = tw_weights_f32(t, at + r * cols, n * cols, buf, err);
        tw_fp8_apply(f, at / cols + r, n, buf);
        if (!ret)
            put_rows(m, p->w, buf, TW_F32, p->row + r, n);
    }
    free(buf);
    return ret;
}

static int load_one(struct tw_model *m, const struct tw_stored *s, struct tw_weights *file,
        struct tw_err *err)
{
    const struct tw_wtensor *t = tw_weights_find(file, tw_str(s->name));
    struct tw_fp8 f;
    int64_t at = 0;
    int ret = tw_fp8_open(&f, m, file, t, err);

    for (int64_t i = 0; i < s->npiece && !ret; i++) {
        ret = load_piece(m, &s->piece[i], t, at, &f, err);
        at += s->piece[i].n * tw_piece_cols(&s->piece[i]);
    }
    tw_fp8_close(&f);
    return ret;
}

static void shape_text(char *out, size_t n, const int64_t *dim, int ndim)
{
    size_t at = 0;

    *out = 0;
    for (int i = 0; i < ndim && at < n - 24; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
}

static int check_shape(const struct tw_model *m, const struct tw_stored *s,
        const struct tw_wtensor *t, struct tw_err *err)
{
    char got[128], want[128];
    bool same = t->ndim == s->ndim;

    for (int i = 0; same && i < s->ndim; i++)
        same = t->dim[i] == s->dim[i];
    if (same)
        return 0;
    shape_text(got, sizeof got, t->dim, t->ndim);
    shape_text(want, sizeof want, s->dim, s->ndim);
    return tw_fail(err, m->dir, 0, "tensor %s has shape [%s], config.json means [%s]", s->name, got,
            want);
}

/* Tensors that are in some checkpoints and in no computation: tables of angles, and the copy of a
 * tied embedding. */
static bool ignorable(const struct tw_model *m, struct tw_str name)
{
    static const char inv[] = "rotary_emb.inv_freq";
    size_t n = sizeof inv - 1;

    if (name.n >= n && !memcmp(name.p + name.n - n, inv, n))
        return true;
    if (m->tied && tw_family_is_head(m->cfg.family, name))
        return true;
    return tw_family_skips(m->cfg.family, &m->cfg, tw_str(m->prefix), name);
}

static int check_claimed(const struct tw_model *m, const struct tw_weights *file,
        struct tw_err *err)
{
    struct tw_buf names = { 0 };
    int64_t n = 0;

    for (int64_t i = 0; i < file->n; i++) {
        const struct tw_wtensor *t = &file->t[i];

        if (t->used || ignorable(m, t->name))
            continue;
        if (n++ < 3)
            tw_buf_printf(&names, "%s%.*s", n > 1 ? ", " : "", (int)t->name.n, t->name.p);
    }
    if (!n)
        return 0;
    tw_fail(err, m->dir, 0, "%lld of the checkpoint's %lld tensors are not known to family %s: "
            "%s%s", (long long)n, (long long)file->n, m->info.family, names.p,
            n > 3 ? ", .." : "");
    tw_buf_free(&names);
    return -1;
}

int tw_model_check(const struct tw_model *m, struct tw_weights *file, struct tw_err *err)
{
    for (int64_t i = 0; i < m->nstored; i++) {
        struct tw_wtensor *t = tw_weights_find(file, tw_str(m->stored[i].name));

        if (!t)
            return tw_fail(err, m->dir, 0, "the checkpoint has no tensor %s", m->stored[i].name);
        if (check_shape(m, &m->stored[i], t, err) || tw_fp8_check(m, file, t, err))
            return -1;
        t->used = true;
    }
    return check_claimed(m, file, err);
}

bool tw_model_counts(const struct tw_model *m)
{
    return !strcmp(m->ops->name, "count");
}

int tw_model_load(struct tw_model *m, struct tw_weights *file, struct tw_err *err)
{
    if (tw_model_counts(m))
        return 0;
    for (int64_t i = 0; i < m->nstored; i++)
        if (load_one(m, &m->stored[i], file, err))
            return -1;
    return 0;
}

struct fill {
    const struct tw_weight *w;
    float *buf;
    uint64_t seed, k;           /* k: the tensor's place in the list */
    int64_t row, cols;          /* of buf's first; of all */
    double std, off;            /* off: of norms */
};

static bool is_norm(const struct tw_weight *w)
{
    static const enum tw_slot norms[] = { TW_S_NORM_F, TW_S_NORM1, TW_S_NORM2, TW_S_QNORM,
        TW_S_KNORM, TW_S_POST1, TW_S_POST2 };

    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (w->def->slot == norms[i])
            return true;
    return false;
}

/* Of elements that are not random. */
static float constant(const struct fill *f)
{
    if (f->w->is_bias)
        return 0;
    if (f->w->def->init != TW_INIT_DEFAULT)
        return f->w->def->init == TW_INIT_ONE;
    return (float)(1 - (is_norm(f->w) ? f->off : 0));
}

/* The number at element I of the tensor when it is random. */
static float random_number(const struct fill *f, int64_t i)
{
    if (f->w->def->init == TW_INIT_ALOG)
        return (float)log(0.01 + 15.99 * tw_rand01(f->seed, f->k, (uint64_t)i));
    return (float)(f->std * tw_rand_normal(f->seed, f->k, (uint64_t)i));
}

static bool is_random(const struct tw_weight *w)
{
    enum tw_init init = w->is_bias ? TW_INIT_ZERO : w->def->init;

    return init == TW_INIT_NORMAL || init == TW_INIT_ALOG || (w->matrix && init == TW_INIT_DEFAULT);
}

/* Element I of tensor K: a pure function of (seed, K, I), so it depends on no layout or thread. */
static void fill_row(void *arg, int64_t i, int thread)
{
    const struct fill *f = arg;
    int64_t cols = f->cols, at = (f->row + i) * cols;
    bool random = is_random(f->w);

    for (int64_t j = 0; j < cols; j++)
        f->buf[i * cols + j] = random ? random_number(f, at + j) : constant(f);
}

/* Normals made where they are to be, as put_rows() would put them. */
static void normal_rows(struct tw_model *m, struct tw_weight *w, uint64_t stream)
{
    int64_t all = tw_mat_count(&w->w) * w->w.rows;

    for (int64_t row = 0, k; row < all; row += k) {
        int64_t r, i;

        k = all - row;
        i = place(w, row, &r, &k);
        uint64_t first = (uint64_t)(row * w->w.cols);
        struct tw_mat to = one_of(m, &w->master, i);

        m->ops->mat_normal(m->dev, &to, m->opts.seed, stream, first, m->cfg.init_range, r, k);
        if (w->master.data != w->w.data) {
            to = one_of(m, &w->w, i);
            m->ops->mat_normal(m->dev, &to, m->opts.seed, stream, first, m->cfg.init_range, r, k);
        }
    }
}

int tw_model_init_random(struct tw_model *m, struct tw_err *err)
{
    struct tw_pool *pool;

    if (tw_model_counts(m))
        return 0;
    pool = tw_pool_open(0);
    for (int64_t k = 0; k < m->nw; k++) {
        struct tw_weight *w = &m->w[k];

        if (m->ops->mat_normal && w->matrix && is_random(w) && w->def->init != TW_INIT_ALOG) {
            normal_rows(m, w, (uint64_t)k);
            continue;
        }
        int64_t cols = w->matrix ? w->w.cols : 1;
        int64_t rows = w->matrix ? tw_mat_count(&w->w) * w->w.rows : w->w.cols;
        int64_t step = chunk_rows(cols) < rows ? chunk_rows(cols) : rows;
        struct fill f = { .w = w, .seed = m->opts.seed, .k = (uint64_t)k, .cols = cols,
            .std = m->cfg.init_range, .off = m->cfg.norm_off,
            .buf = tw_xreallocarray(NULL, (size_t)(step * cols), sizeof *f.buf) };

        for (; f.row < rows; f.row += step) {
            int64_t n = f.row + step < rows ? step : rows - f.row;

            tw_pool_run(pool, n, fill_row, &f);
            put_rows(m, w, f.buf, TW_F32, f.row, n);
        }
        free(f.buf);
    }
    tw_pool_close(pool);
    return m->ops->sync(m->dev, err);
}

void tw_weight_get(const struct tw_model *m, const struct tw_weight *w, bool read, int64_t row, int64_t n,
        float *out)
{
    if (!w->matrix) {
        m->ops->get(m->dev, out, (float *)w->master.data + row, (size_t)n * sizeof *out);
        return;
    }
    while (n > 0) {
        int64_t k = n, r, i = place(w, row, &r, &k);
        struct tw_mat from = one_of(m, read ? &w->w : &w->master, i);

        from.low = read ? NULL : from.low;
        m->ops->mat_get(m->dev, out, &from, r, k);
        out += k * w->w.cols;
        row += k;
        n -= k;
    }
}
