/* save.c - a Hugging Face folder: config.json as it was read, weights in one file or in shards */
#include "nn/model_priv.h"
#include "base/io.h"
#include <math.h>
#include <stdlib.h>

#define SHARD_MAX ((size_t)5000000000)  /* bytes of tensors in a file */
#define CHUNK ((int64_t)1 << 20)        /* elements on the host at a time */

/* The low-rank parts of one weight, on the host: of all of it, or of some of its outputs. */
#define MERGES 3
struct merge {
    const struct tw_module *mod;        /* NULL: none */
    int64_t r;
    float scale;
    float *a, *b;               /* [n, r, in], [n, out, r] */
};

static void merge_one(struct merge *g, const struct tw_model *m, const struct tw_adapter *ad,
        int64_t k)
{
    const struct tw_lora *l = ad && k >= 0 ? &ad->lora[k] : NULL;
    size_t na, nb;

    *g = (struct merge){ 0 };
    if (!l || !l->r)
        return;
    g->mod = &m->module[k];
    g->r = l->r;
    g->scale = l->scale;
    na = (size_t)(g->mod->n * l->r * g->mod->w->w.cols);
    nb = (size_t)(g->mod->n * l->r * g->mod->rows);
    g->a = tw_xreallocarray(NULL, na, sizeof *g->a);
    g->b = tw_xreallocarray(NULL, nb, sizeof *g->b);
    m->ops->get(m->dev, g->a, l->a, na * sizeof *g->a);
    m->ops->get(m->dev, g->b, l->b, nb * sizeof *g->b);
}

static void merge_start(struct merge *g, const struct tw_model *m, const struct tw_adapter *ad,
        const struct tw_weight *w)
{
    merge_one(&g[0], m, ad, w->module);
    merge_one(&g[1], m, ad, w->part[0]);
    merge_one(&g[2], m, ad, w->part[1]);
}

static void merge_end(struct merge *g)
{
    for (int i = 0; i < MERGES; i++) {
        free(g[i].a);
        free(g[i].b);
    }
}

/* W + scale * (B A), all in f32: the product is a chain over the rank. ROW is W's first row. */
static void merge_rows(const struct merge *g, float *w, int64_t row, int64_t n, int64_t cols,
        float *delta)
{
    for (int64_t i = 0; g->r && i < n; i++) {
        int64_t e = (row + i) / g->mod->w->w.rows;
        int64_t out = (row + i) % g->mod->w->w.rows - g->mod->row;
        const float *b = g->b + (e * g->mod->rows + out) * g->r, *a = g->a + e * g->r * cols;

        if (out < 0 || out >= g->mod->rows)
            continue;
        memset(delta, 0, (size_t)cols * sizeof *delta);
        for (int64_t k = 0; k < g->r; k++)
            for (int64_t j = 0; j < cols; j++)
                delta[j] = fmaf(b[k], a[k * cols + j], delta[j]);
        for (int64_t j = 0; j < cols; j++)
            w[i * cols + j] += g->scale * delta[j];
    }
}

/* In the place of a type: each tensor as passes read it. */
#define AS_READ ((enum tw_dtype)-1)

static enum tw_dtype type_of(const struct tw_stored *s, enum tw_dtype dtype)
{
    const struct tw_weight *w = s->piece->w;

    return dtype != AS_READ ? dtype : w->matrix ? w->w.dtype : TW_F32;
}

static int put_piece(const struct tw_model *m, const struct tw_adapter *ad, const struct tw_piece *p, bool read,
        struct tw_wout *o, struct tw_err *err)
{
    int64_t cols = tw_piece_cols(p), step = CHUNK / cols / 64 * 64;
    struct merge g[MERGES];
    float *buf, *delta;
    int ret = 0;

    step = step < 64 ? 64 : step;
    step = step < p->n ? step : p->n;
    buf = tw_xreallocarray(NULL, (size_t)(step * cols), sizeof *buf);
    delta = tw_xreallocarray(NULL, (size_t)cols, sizeof *delta);
    merge_start(g, m, ad, p->w);
    for (int64_t r = 0; r < p->n && !ret; r += step) {
        int64_t n = r + step < p->n ? step : p->n - r;

        tw_weight_get(m, p->w, read, p->row + r, n, buf);
        for (int i = 0; i < MERGES; i++)
            merge_rows(&g[i], buf, p->row + r, n, cols, delta);
        for (int64_t i = 0; i < n * cols && !ret; i++)
            if (!isfinite(buf[i]))
                ret = tw_fail(err, NULL, 0, "%s has a value that is not finite: the model is not "
                        "written", p->w->name);
        if (!ret)
            ret = tw_wout_put(o, buf, TW_F32, n * cols, err);
    }
    merge_end(g);
    free(buf);
    free(delta);
    return ret;
}

static int put_stored(const struct tw_model *m, const struct tw_adapter *ad,
        const struct tw_stored *s, bool read, struct tw_wout *o, struct tw_err *err)
{
    int ret = 0;

    for (int64_t i = 0; i < s->npiece && !ret; i++)
        ret = put_piece(m, ad, &s->piece[i], read, o, err);
    return ret;
}

/* Tensors [first, first + n) into one file. */
static int write_file(const struct tw_model *m, const struct tw_adapter *ad, enum tw_dtype dtype,
        int64_t first, int64_t n, const char *path, struct tw_err *err)
{
    struct tw_wdecl *decl = tw_xcalloc((size_t)n, sizeof *decl);
    struct tw_wout *o;
    int64_t i;
    int ret = 0;

    for (i = 0; i < n; i++) {
        const struct tw_stored *s = &m->stored[first + i];

        decl[i] = (struct tw_wdecl){ .name = s->name, .dtype = type_of(s, dtype), .ndim = s->ndim,
            .dim = { s->dim[0], s->dim[1], s->dim[2] } };
    }
    o = tw_wout_open(path, decl, n, err);
    if (!o)
        ret = -1;
    while (!ret && (i = tw_wout_next(o)) >= 0)
        ret = put_stored(m, ad, &m->stored[first + i], dtype == AS_READ, o, err);
    if (o && !ret)
        ret = tw_wout_commit(o, err);
    else if (o)
        tw_wout_abort(o);
    free(decl);
    return ret;
}

/* How many tensors from FIRST on fit into one shard (at least one), and their bytes. */
static int64_t shard_len(const struct tw_model *m, enum tw_dtype dtype, int64_t first, size_t max,
        size_t *bytes)
{
    int64_t n = 0;

    *bytes = 0;
    for (int64_t i = first; i < m->nstored; i++) {
        size_t one = tw_dtype_size(type_of(&m->stored[i], dtype));

        for (int d = 0; d < m->stored[i].ndim; d++)
            one *= (size_t)m->stored[i].dim[d];

        if (n && *bytes + one > max)
            break;
        *bytes += one;
        n++;
    }
    return n;
}

static int write_index(const struct tw_model *m, const int64_t *of, int nshard, size_t total,
        const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "model.safetensors.index.json"), name[64];
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "metadata");
    tw_jw_obj(&w);
    tw_jw_key(&w, "total_size");
    tw_jw_int(&w, (int64_t)total);
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "weight_map");
    tw_jw_obj(&w);
    for (int64_t i = 0; i < m->nstored; i++) {
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", (int)of[i] + 1, nshard);
        tw_jw_key(&w, m->stored[i].name);
        tw_jw_cstr(&w, name);
    }
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

static int write_weights(const struct tw_model *m, const struct tw_adapter *ad,
        enum tw_dtype dtype, const char *dir, size_t max, struct tw_err *err)
{
    int64_t *of = tw_xcalloc((size_t)m->nstored, sizeof *of), first = 0, n;
    size_t bytes, total = 0;
    int nshard = 0, ret = 0;
    char name[64], *path;

    for (; first < m->nstored; first += n, nshard++) {
        n = shard_len(m, dtype, first, max, &bytes);
        total += bytes;
        for (int64_t i = 0; i < n; i++)
            of[first + i] = nshard;
    }
    first = 0;
    for (int k = 0; k < nshard && !ret; k++, first += n) {
        n = shard_len(m, dtype, first, max, &bytes);
        if (nshard == 1)
            snprintf(name, sizeof name, "model.safetensors");
        else
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k + 1, nshard);
        path = tw_path_join(dir, name);
        ret = write_file(m, ad, dtype, first, n, path, err);
        free(path);
    }
    if (!ret && nshard > 1)
        ret = write_index(m, of, nshard, total, dir, err);
    free(of);
    return ret;
}

static const char *torch_dtype(enum tw_dtype t)
{
    return t == TW_BF16 ? "bfloat16" : t == TW_F16 ? "float16" : "float32";
}

/* The members of OBJ as they stand, but for the dtype and, where the checkpoint overruled it, the
 * tie: a flag that disagrees with the tensors would break the next loader. */
static void write_object(const struct tw_model *m, const struct tw_json *obj, enum tw_dtype dtype,
        int depth, struct tw_buf *out)
{
    int64_t n = 0;

    tw_buf_puts(out, "{");
    for (int64_t i = 0; i < obj->n; i++) {
        const struct tw_json *v = &obj->item[i];

        if (tw_str_is(v->key, "quantization_config"))   /* what is written is not quantised */
            continue;
        tw_buf_printf(out, "%s\n%*s", n++ ? "," : "", 2 * depth + 2, "");
        tw_json_quote(out, v->key);
        tw_buf_puts(out, ": ");
        if ((tw_str_is(v->key, "dtype") || tw_str_is(v->key, "torch_dtype")) &&
            v->type == TW_JSTR)
            tw_buf_printf(out, "\"%s\"", torch_dtype(dtype));
        else if (tw_str_is(v->key, "tie_word_embeddings") && v->type == TW_JBOOL)
            tw_buf_puts(out, m->tied ? "true" : "false");
        else if (v == m->cfg.text)
            write_object(m, v, dtype, depth + 1, out);
        else
            tw_buf_adds(out, v->raw);
    }
    if (obj == m->cfg.root && m->tied != m->cfg.tied && !tw_json_has(obj, "tie_word_embeddings"))
        tw_buf_printf(out, ",\n  \"tie_word_embeddings\": %s", m->tied ? "true" : "false");
    tw_buf_printf(out, "\n%*s}", 2 * depth, "");
}

int tw_model_save_max(const struct tw_model *m, const struct tw_adapter *merge,
        enum tw_dtype dtype, const char *dir, size_t max, struct tw_err *err)
{
    char *path = tw_path_join(dir, "config.json");
    struct tw_buf text = { 0 };
    int ret;

    write_object(m, m->cfg.root, dtype == AS_READ ? m->opts.dtype : dtype, 0, &text);
    tw_buf_putc(&text, '\n');
    if (dtype != AS_READ && dtype != TW_F32 && dtype != TW_BF16 && dtype != TW_F16)
        ret = tw_fail(err, dir, 0, "models are written in F32, BF16 or F16, not %s",
                tw_dtype_name(dtype));
    else if (merge && merge->m != m)
        ret = tw_fail(err, dir, 0, "the adapter belongs to another model");
    else
        ret = write_weights(m, merge, dtype, dir, max, err);
    if (!ret)
        ret = tw_write_file(path, text.p, text.n, err);
    tw_buf_free(&text);
    free(path);
    return ret;
}

int tw_model_save(const struct tw_model *m, const struct tw_adapter *merge, enum tw_dtype dtype,
        const char *dir, struct tw_err *err)
{
    return tw_model_save_max(m, merge, dtype, dir, SHARD_MAX, err);
}

int tw_model_publish(const struct tw_model *m, const char *dir, struct tw_err *err)
{
    return tw_model_save_max(m, NULL, AS_READ, dir, SHARD_MAX, err);
}
