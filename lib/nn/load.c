/* load.c - values of the weights: from a checkpoint, or random */
#include "nn/model_priv.h"
#include "base/pool.h"
#include "base/rng.h"
#include <stdio.h>
#include <stdlib.h>

#define CHUNK ((int64_t)1 << 20)        /* elements on the host at a time */

static void put_rows(struct tw_model *m, struct tw_weight *w, const void *p, enum tw_dtype from,
        int64_t row, int64_t n)
{
    if (!w->matrix) {
        m->ops->put(m->dev, w->w.data, p, (size_t)w->w.cols * sizeof(float));
        return;
    }
    m->ops->mat_put(m->dev, &w->master, p, from, row, n);
    if (w->master.data != w->w.data)
        m->ops->mat_put(m->dev, &w->w, p, from, row, n);
}

static int64_t chunk_rows(const struct tw_weight *w)
{
    int64_t n = CHUNK / w->w.cols / 64 * 64;

    return n > 64 ? n : 64;
}

static int load_one(struct tw_model *m, struct tw_weight *w, const struct tw_wtensor *t,
        struct tw_err *err)
{
    int64_t rows = w->w.rows, cols = w->w.cols, step = chunk_rows(w);
    size_t size = tw_dtype_size(t->dtype);
    float *buf;
    int ret = 0;

    /* What the device takes as it is goes there from the mapping. */
    if (w->matrix && (t->dtype == TW_F32 || t->dtype == TW_BF16) && (uintptr_t)t->data % size == 0) {
        put_rows(m, w, t->data, t->dtype, 0, rows);
        return 0;
    }
    step = step < rows ? step : rows;
    buf = tw_xreallocarray(NULL, (size_t)(step * cols), sizeof *buf);
    for (int64_t r = 0; r < rows && !ret; r += step) {
        int64_t n = r + step < rows ? step : rows - r;

        ret = tw_weights_f32(t, r * cols, n * cols, buf, err);
        if (!ret)
            put_rows(m, w, buf, TW_F32, r, n);
    }
    free(buf);
    return ret;
}

static int check_shape(const struct tw_model *m, const struct tw_weight *w,
        const struct tw_wtensor *t, struct tw_err *err)
{
    int64_t want[2] = { w->w.rows, w->w.cols };
    int nd = w->matrix ? 2 : 1;
    char got[128] = "";
    size_t at = 0;

    if (t->ndim == nd && t->dim[nd - 1] == want[1] && (nd == 1 || t->dim[0] == want[0]))
        return 0;
    for (int i = 0; i < t->ndim && at < sizeof got - 24; i++)
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%lld", i ? ", " : "",
                (long long)t->dim[i]);
    if (nd == 1)
        return tw_fail(err, m->dir, 0, "tensor %s has shape [%s], config.json means [%lld]",
                w->name, got, (long long)want[1]);
    return tw_fail(err, m->dir, 0, "tensor %s has shape [%s], config.json means [%lld, %lld]",
            w->name, got, (long long)want[0], (long long)want[1]);
}

/* Tensors that are in some checkpoints and in no computation: tables of angles, and the copy of a
 * tied embedding. */
static bool ignorable(const struct tw_model *m, struct tw_str name)
{
    static const char inv[] = "rotary_emb.inv_freq";
    size_t n = sizeof inv - 1;

    if (name.n >= n && !memcmp(name.p + name.n - n, inv, n))
        return true;
    return m->tied && tw_str_is(name, "lm_head.weight");
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
    for (int64_t i = 0; i < m->nw; i++) {
        struct tw_wtensor *t = tw_weights_find(file, tw_str(m->w[i].name));

        if (!t)
            return tw_fail(err, m->dir, 0, "the checkpoint has no tensor %s", m->w[i].name);
        if (check_shape(m, &m->w[i], t, err))
            return -1;
        t->used = true;
    }
    return check_claimed(m, file, err);
}

/* The counting device has no use for billions of numbers. */
static bool counts_only(const struct tw_model *m)
{
    return !strcmp(m->ops->name, "count");
}

int tw_model_load(struct tw_model *m, struct tw_weights *file, struct tw_err *err)
{
    if (counts_only(m))
        return 0;
    for (int64_t i = 0; i < m->nw; i++)
        if (load_one(m, &m->w[i], tw_weights_find(file, tw_str(m->w[i].name)), err))
            return -1;
    return 0;
}

struct fill {
    const struct tw_weight *w;
    float *buf;
    uint64_t seed, k;           /* k: the tensor's place in the list */
    int64_t row;                /* of buf's first */
    double std;
};

/* Element I of tensor K: a pure function of (seed, K, I), so it depends on no layout or thread. */
static void fill_row(void *arg, int64_t i, int thread)
{
    const struct fill *f = arg;
    int64_t cols = f->w->w.cols, at = (f->row + i) * cols;

    for (int64_t j = 0; j < cols; j++)
        f->buf[i * cols + j] = !f->w->matrix ? !f->w->is_bias :
                (float)(f->std * tw_rand_normal(f->seed, f->k, (uint64_t)(at + j)));
}

int tw_model_init_random(struct tw_model *m, struct tw_err *err)
{
    struct tw_pool *pool;

    if (counts_only(m))
        return 0;
    pool = tw_pool_open(0);
    for (int64_t k = 0; k < m->nw; k++) {
        struct tw_weight *w = &m->w[k];
        int64_t step = chunk_rows(w) < w->w.rows ? chunk_rows(w) : w->w.rows;
        struct fill f = { .w = w, .seed = m->opts.seed, .k = (uint64_t)k,
            .std = m->cfg.init_range,
            .buf = tw_xreallocarray(NULL, (size_t)(step * w->w.cols), sizeof *f.buf) };

        for (; f.row < w->w.rows; f.row += step) {
            int64_t n = f.row + step < w->w.rows ? step : w->w.rows - f.row;

            tw_pool_run(pool, n, fill_row, &f);
            put_rows(m, w, f.buf, TW_F32, f.row, n);
        }
        free(f.buf);
    }
    tw_pool_close(pool);
    return m->ops->sync(m->dev, err);
}

void tw_weight_get(const struct tw_model *m, const struct tw_weight *w, int64_t row, int64_t n,
        float *out)
{
    if (w->matrix)
        m->ops->mat_get(m->dev, out, &w->master, row, n);
    else
        m->ops->get(m->dev, out, w->master.data, (size_t)w->w.cols * sizeof *out);
}
