/* model_experts.c - checkpoints of one model with experts: a tensor an expert, one for all of a
 * layer, FP8 with factors of blocks. All give the bits they should, and what is saved has the names
 * and shapes of what was read. */
#include <math.h>
#include <stdlib.h>
#include "base/io.h"
#include "base/rng.h"
#include "nn/model_priv.h"
#include "test.h"

#define N 40
#define SRC "tests/data/models/qwen3_moe"
static struct tw_dev *dev;
static char *top;
static struct tw_err err;

struct file {
    struct tw_wdecl decl[300];
    const void *data[300];
    int64_t n;
};

static void add(struct file *f, const char *name, enum tw_dtype t, int ndim, const int64_t *dim,
        const void *data)
{
    f->decl[f->n] = (struct tw_wdecl){ .name = name, .dtype = t, .ndim = ndim };
    for (int i = 0; i < ndim; i++)
        f->decl[f->n].dim[i] = dim[i];
    f->data[f->n++] = data;
}

static int64_t elems(const struct tw_wdecl *d)
{
    int64_t n = 1;

    for (int i = 0; i < d->ndim; i++)
        n *= d->dim[i];
    return n;
}

/* DIR with the source's config.json (TAIL in the place of its last brace) and the tensors of F. */
static char *write_dir(const char *name, struct file *f, const char *tail)
{
    char *dir = tw_path_join(top, name), *path = tw_path_join(dir, "model.safetensors");
    char *json = tw_path_join(dir, "config.json");
    struct tw_buf config = { 0 };
    struct tw_wout *o;
    int64_t i;

    CHECK(tw_mkdirs(dir, &err) == 0);
    CHECK(tw_read_file(&config, SRC "/config.json", 1 << 20, &err) == 0);
    while (config.n && config.p[config.n - 1] != '}')
        config.n--;
    config.n--;
    tw_buf_puts(&config, tail);
    CHECK(tw_write_file(json, config.p, config.n, &err) == 0);
    o = tw_wout_open(path, f->decl, f->n, &err);
    while (o && (i = tw_wout_next(o)) >= 0)
        CHECK(tw_wout_put(o, f->data[i], f->decl[i].dtype, elems(&f->decl[i]), &err) == 0);
    CHECK(o && tw_wout_commit(o, &err) == 0);
    if (err.code)
        printf("# %s\n", err.msg);
    tw_buf_free(&config);
    free(path), free(json);
    return dir;
}

/* Log-probabilities; 0: the model could not be opened. */
static int64_t score(const char *dir, enum tw_dtype t, float *logp, const char *save)
{
    struct tw_model_opts o = { .dtype = t };
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);
    struct tw_row row[N];
    int32_t tok[N];
    struct tw_seq seq = { .token = tok, .n = N };

    if (!m)
        return 0;
    for (int64_t i = 0; i < N; i++)
        tok[i] = (int32_t)(i * 37 % 200);
    for (int64_t i = 0; i < N; i++)
        row[i] = (struct tw_row){ .at = i, .temp = 1, .target = tok[(i + 1) % N] };
    CHECK(tw_model_run(m, &seq, 1, row, N, 0, NULL, NULL, &err) == 0);
    for (int64_t i = 0; i < N; i++)
        logp[i] = row[i].logp;
    if (save) {
        CHECK(tw_mkdirs(save, &err) == 0);
        CHECK(tw_model_save(m, NULL, TW_F32, save, &err) == 0);
    }
    tw_model_close(m);
    return N;
}

static bool same_shapes(const char *a, const char *b)
{
    struct tw_weights x, y;
    bool same;

    CHECK(tw_weights_open(&x, a, &err) == 0);
    CHECK(tw_weights_open(&y, b, &err) == 0);
    same = x.n == y.n;
    for (int64_t i = 0; same && i < x.n; i++) {
        same = tw_str_eq(x.t[i].name, y.t[i].name) && x.t[i].ndim == y.t[i].ndim &&
                x.t[i].n == y.t[i].n;
        for (int k = 0; same && k < x.t[i].ndim; k++)
            same = x.t[i].dim[k] == y.t[i].dim[k];
        same = same && !memcmp(x.t[i].data, y.t[i].data, (size_t)x.t[i].n * 4);
    }
    tw_weights_close(&x);
    tw_weights_close(&y);
    return same;
}

/* All experts of layer L: gate and up, or down. To be freed. */
static float *gather(struct tw_weights *in, int l, bool down, int64_t dim[3])
{
    static const char *const part[] = { "gate_proj", "up_proj", "down_proj" };
    float *all = NULL;
    int64_t n = 0, E = 8;

    for (int64_t e = 0; e < E; e++)
        for (int k = down ? 2 : 0; k < (down ? 3 : 2); k++) {
            char *name = tw_xasprintf("model.layers.%d.mlp.experts.%lld.%s.weight", l, (long long)e,
                    part[k]);
            const struct tw_wtensor *t = tw_weights_find(in, tw_str(name));

            CHECK(t != NULL);
            all = tw_xreallocarray(all, (size_t)(n + t->n), sizeof *all);
            memcpy(all + n, t->data, (size_t)t->n * sizeof *all);
            n += t->n;
            dim[1] = down ? t->dim[0] : 2 * t->dim[0];
            dim[2] = t->dim[1];
            free(name);
        }
    dim[0] = E;
    return all;
}

static void layouts(void)
{
    static const char *const name[2][2] = {
        { "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj" },
        { "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj" } };
    struct tw_weights in;
    struct file f = { 0 };
    float a[N], b[N], *all[4];
    char *names[300], *dir, *saved = tw_path_join(top, "fused-saved");
    char *apart = tw_path_join(top, "apart-saved");
    int64_t nname = 0;

    CHECK(tw_weights_open(&in, SRC, &err) == 0);
    for (int64_t i = 0; i < in.n; i++) {
        char *s = tw_xstrndup(in.t[i].name.p, in.t[i].name.n);

        names[nname++] = s;
        if (!strstr(s, ".experts."))
            add(&f, s, TW_F32, in.t[i].ndim, in.t[i].dim, in.t[i].data);
    }
    for (int k = 0; k < 4; k++) {
        int64_t dim[3] = { 0 };

        all[k] = gather(&in, k / 2, k % 2, dim);
        add(&f, name[k / 2][k % 2], TW_F32, 3, dim, all[k]);
    }
    dir = write_dir("fused", &f, "}");
    for (enum tw_dtype t = TW_F32; t <= TW_BF16; t++) {
        CHECK(score(SRC, t, a, t == TW_F32 ? apart : NULL) && score(dir, t, b, t == TW_F32 ? saved :
                NULL));
        CHECK(!memcmp(a, b, sizeof a));
    }
    CHECK(same_shapes(dir, saved));
    CHECK(same_shapes(SRC, apart));
    for (int k = 0; k < 4; k++)
        free(all[k]);
    while (nname)
        free(names[--nname]);
    tw_weights_close(&in);
    free(dir), free(saved), free(apart);
}

#define QUANT ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\"," \
    "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[16,20]}}"

/* The tensor as FP8 in *Q, its factors in *S, and the values these mean in *W. */
static void quantise(const struct tw_wtensor *t, uint8_t **q, float **s, float **w, int64_t sdim[2])
{
    int64_t rows = t->dim[0], cols = t->dim[1];

    sdim[0] = (rows + 15) / 16;
    sdim[1] = (cols + 19) / 20;
    *q = tw_xcalloc((size_t)t->n, 1);
    *s = tw_xcalloc((size_t)(sdim[0] * sdim[1]), sizeof **s);
    *w = tw_xcalloc((size_t)t->n, sizeof **w);
    for (int64_t i = 0; i < sdim[0] * sdim[1]; i++)
        (*s)[i] = 0.16f + 0.04f * (float)(i % 7);
    for (int64_t i = 0; i < t->n; i++) {        /* numbers below 2 */
        (*q)[i] = (uint8_t)(tw_rand_below(11, (uint64_t)t->n, (uint64_t)i, 0x40) |
                tw_rand_below(12, (uint64_t)t->n, (uint64_t)i, 2) << 7);
        CHECK(tw_convert(*w + i, TW_F32, *q + i, TW_F8_E4M3, 1) == 0);
        (*w)[i] *= (*s)[i / cols / 16 * sdim[1] + i % cols / 20];
    }
}

static void fp8(void)
{
    static struct file low, plain;
    struct tw_weights in;
    void *mine[900];
    float a[N], b[N];
    char *dir[3];
    int64_t n = 0;

    CHECK(tw_weights_open(&in, SRC, &err) == 0);
    for (int64_t i = 0; i < in.n; i++) {
        const struct tw_wtensor *t = &in.t[i];
        char *s = tw_xstrndup(t->name.p, t->name.n);
        int64_t sdim[2];
        uint8_t *q;
        float *f, *w;

        mine[n++] = s;
        if (!strstr(s, "_proj.weight")) {
            add(&low, s, TW_F32, t->ndim, t->dim, t->data);
            add(&plain, s, TW_F32, t->ndim, t->dim, t->data);
            continue;
        }
        quantise(t, &q, &f, &w, sdim);
        mine[n++] = q, mine[n++] = f, mine[n++] = w;
        mine[n++] = tw_xasprintf("%s_scale_inv", s);
        add(&low, s, TW_F8_E4M3, 2, t->dim, q);
        add(&low, mine[n - 1], TW_F32, 2, sdim, f);
        add(&plain, s, TW_F32, 2, t->dim, w);
    }
    dir[0] = write_dir("fp8", &low, QUANT);
    dir[1] = write_dir("plain", &plain, "}");
    dir[2] = tw_path_join(top, "fp8-saved");
    CHECK(score(dir[0], TW_F32, a, dir[2]) && score(dir[1], TW_F32, b, NULL));
    CHECK(!memcmp(a, b, sizeof a));
    CHECK(same_shapes(dir[1], dir[2]));
    CHECK(score(dir[2], TW_F32, b, NULL) && !memcmp(a, b, sizeof a));
    free(dir[0]);
    dir[0] = write_dir("fp8", &low, ",\"quantization_config\":{\"quant_method\":\"fp8\","
            "\"weight_block_size\":[32,20]}}");
    CHECK(!score(dir[0], TW_F32, a, NULL) && strstr(err.msg, "weight_block_size"));
    tw_err_clear(&err);
    while (n)
        free(mine[--n]);
    for (int i = 0; i < 3; i++)
        free(dir[i]);
    tw_weights_close(&in);
}

/* The balancing loss of a sequence, alone (all rows count nothing). */
static double balance_of(struct tw_model *m, double aux)
{
    double balance = NAN;
    int32_t tok[N];
    struct tw_seq seq = { .token = tok, .n = N, .aux = aux, .balance = &balance };
    struct tw_row row[N];

    for (int64_t i = 0; i < N; i++)
        tok[i] = (int32_t)(i * 31 % 200);
    for (int64_t i = 0; i < N; i++)
        row[i] = (struct tw_row){ .at = i, .temp = 1, .target = tok[i] };
    CHECK(tw_model_run(m, &seq, 1, row, N, aux != 0 ? TW_BACKWARD : 0, NULL, NULL, &err) == 0);
    return balance;
}

/* Its gradient reaches the routers: against differences, with no other loss. */
static void balance(void)
{
    static const char *const dirs[] = { SRC, "tests/data/models/qwen2_moe",
        "tests/data/models/glm4_moe" };

    for (int i = 0; i < 3; i++) {
        struct tw_model_opts o = { .dtype = TW_F32, .train = true };
        struct tw_model *m = tw_model_open(dirs[i], dev, &o, &err);
        struct tw_weight *w = m->layer[1].w[TW_S_ROUTER];
        int64_t D = w->w.cols, n = w->w.rows * D;
        float *g = tw_xcalloc((size_t)n, sizeof *g), *v = tw_xcalloc((size_t)n, sizeof *v);
        double worst = 0, most = 0;

        CHECK(balance_of(m, 1) > 1.9);
        tw_ops(dev)->mat_get(dev, g, &w->dw, 0, w->w.rows);
        for (int64_t k = 0; k < n; k += 7) {
            double at[2];

            for (int s = 0; s < 2; s++) {
                tw_weight_get(m, w, false, 0, w->w.rows, v);
                v[k] += s ? 1e-3f : -1e-3f;
                tw_ops(dev)->mat_put(dev, &w->w, v, TW_F32, 0, w->w.rows);
                at[s] = balance_of(m, 0);
                v[k] -= s ? 1e-3f : -1e-3f;
                tw_ops(dev)->mat_put(dev, &w->w, v, TW_F32, 0, w->w.rows);
            }
            worst = fmax(worst, fabs((at[1] - at[0]) / 2e-3 - (double)g[k]));
            most = fmax(most, fabs((double)g[k]));
        }
        printf("# %s: gradients up to %.2g, off by %.2g\n", dirs[i], most, worst);
        CHECK(most > 1e-3 && worst < 0.02 * most);
        free(g), free(v);
        tw_model_close(m);
    }
}

int main(void)
{
    top = tw_xstrdup("/tmp/tw-model-experts-XXXXXX");
    dev = tw_cpu_open(2, "auto", &err);
    if (!dev || !mkdtemp(top))
        return 1;
    RUN(layouts);
    RUN(fp8);
    RUN(balance);
    tw_dev_close(dev);
    tw_rmtree(top, &err);
    free(top);
    return test_end();
}
