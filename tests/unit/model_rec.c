/* model_rec.c - models with recurrent layers: where their decode states can be cut, and the forms of
 * their checkpoints: the text part of a multimodal one, and MLX's, which has the convolution turned and
 * norms that hold 1 + w. Loaded they give the bits of the plain one; saved, the tensors that were read. */
#include <stdlib.h>
#include "base/io.h"
#include "base/rng.h"
#include "nn/model_priv.h"
#include "test.h"

#define DIR "tests/data/models/qwen3_5"
#define VMAX 96
static struct tw_dev *dev;
static struct tw_err err;
static char *top;

static struct tw_model *open_model(const char *dir)
{
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);

    if (!m)
        printf("# %s: %s\n", err.place, err.msg);
    CHECK(m && tw_model_info(m)->V == VMAX);
    return m;
}

static void step(struct tw_model *m, struct tw_state *s, const int32_t *t, int64_t n, float *z)
{
    struct tw_seq seq = { .token = t, .n = n, .state = s };
    int64_t last = n - 1;

    CHECK(tw_model_decode(m, &seq, 1, &last, 1, z, &err) == 0);
}

/* Where layers are recurrent a state is cut to copies that were made on the way: few of them, however
 * long it is, and forks have their own. */
static void marks(void)
{
    enum { LONG = 400 };
    struct tw_model *m = open_model(DIR);
    struct tw_state *s, *f;
    float z[VMAX] = { 0 }, want[VMAX] = { 0 };
    int32_t t[LONG];
    int64_t cost;

    if (!m)
        return;
    for (uint64_t i = 0; i < LONG; i++)
        t[i] = (int32_t)tw_rand_below(6, 0, i, VMAX);
    s = tw_state_new(m, &err);
    tw_state_marks(s, true);
    for (int64_t at = 0; at < LONG; at += 80)
        step(m, s, t + at, 80, want);
    f = tw_state_fork(s, &err);
    cost = tw_state_cost(s);
    for (int64_t n = LONG; n > 0; n -= 23) {
        int64_t cut = tw_state_cut(f, n);

        CHECK(cut == n || (cut % 64 == 0 && n - cut < 200));
        CHECK(cut == n || tw_state_truncate(f, n, &err) == -1);
        CHECK(!tw_state_truncate(f, cut, &err));
        if (cut < LONG)
            step(m, f, t + cut, LONG - cut, z);
        CHECK(cut == LONG || !memcmp(z, want, sizeof z));
        tw_state_free(f);
        f = tw_state_fork(s, &err);
    }
    tw_state_marks(f, false);
    CHECK(tw_state_cost(f) <= cost && tw_state_cost(s) == cost);
    CHECK(tw_state_cut(f, LONG) == LONG);
    tw_state_free(s);
    step(m, f, t, 1, z);
    tw_state_free(f);
    tw_model_close(m);
}

/* The logits behind some tokens. */
static void logits_of(const char *dir, float *z)
{
    struct tw_model *m = open_model(dir);
    struct tw_state *s = m ? tw_state_new(m, &err) : NULL;
    int32_t t[70];

    for (int i = 0; i < 70; i++)
        t[i] = (i * i + 3 * i) % VMAX;
    if (m)
        step(m, s, t, 70, z);
    tw_state_free(s);
    tw_model_close(m);
}

enum form { MULTIMODAL, MLX, MLX_HEAD };        /* the last with a head that is a copy of the embedding */

/* What tensor T of the plain checkpoint is in the other form. */
static struct tw_wdecl decl_of(const struct tw_wtensor *t, enum form form, char **name)
{
    const char *prefix = form != MULTIMODAL ? "language_model.model." : "model.language_model.";
    struct tw_wdecl d = { .dtype = TW_F32, .ndim = t->ndim };

    for (int i = 0; i < t->ndim; i++)
        d.dim[i] = t->dim[i];
    if (form != MULTIMODAL && t->ndim == 3) {
        d.dim[1] = t->dim[2];
        d.dim[2] = t->dim[1];
    }
    *name = tw_xasprintf("%s%.*s", prefix, (int)t->name.n - 6, t->name.p + 6);
    d.name = *name;
    return d;
}

static void write_form(const char *dir, enum form form)
{
    static const float zero[4] = { 0 };
    char *path = tw_path_join(dir, "model.safetensors"), *name[100];
    struct tw_wdecl decl[100];
    struct tw_weights in = { 0 };
    struct tw_wout *o;
    int64_t i, n;

    CHECK(tw_weights_open(&in, DIR, &err) == 0);
    for (n = 0; n < in.n; n++)
        decl[n] = decl_of(&in.t[n], form, &name[n]);
    decl[n++] = (struct tw_wdecl){ .name = "mtp.fc.weight", .dtype = TW_F32, .ndim = 2, .dim = { 2, 2 } };
    if (form == MLX_HEAD) {
        decl[n] = decl_of(tw_weights_find(&in, tw_str("model.embed_tokens.weight")), form, &name[n]);
        free(name[n]);
        decl[n++].name = "language_model.lm_head.weight";
    }
    decl[n++] = (struct tw_wdecl){ .name = form != MULTIMODAL ? "vision_tower.w" : "model.visual.merger.w",
        .dtype = TW_F32, .ndim = 1, .dim = { 4 } };
    o = tw_wout_open(path, decl, n, &err);
    CHECK(o);
    while (o && (i = tw_wout_next(o)) >= 0) {
        const struct tw_wtensor *t = i < in.n ? &in.t[i] : decl[i].ndim == 2 && decl[i].dim[0] > 2 ?
                tw_weights_find(&in, tw_str("model.embed_tokens.weight")) : NULL;
        int64_t len = 1;
        float *x;
        bool baked;

        for (int k = 0; k < decl[i].ndim; k++)
            len *= decl[i].dim[k];
        x = tw_xcalloc((size_t)len, sizeof *x);
        memcpy(x, t ? t->data : zero, (size_t)len * 4);
        baked = form != MULTIMODAL && t && strstr(decl[i].name, "norm") && !strstr(decl[i].name, "linear_attn");
        for (int64_t k = 0; baked && k < len; k++)
            x[k] += 1;
        CHECK(tw_wout_put(o, x, TW_F32, len, &err) == 0);
        free(x);
    }
    CHECK(o && tw_wout_commit(o, &err) == 0);
    for (i = 0; i < in.n; i++)
        free(name[i]);
    tw_weights_close(&in);
    free(path);
}

static void write_config(const char *dir, bool tied)
{
    static const char tie[] = "\"tie_word_embeddings\": ";
    struct tw_buf text = { 0 }, out = { 0 };
    char *to = tw_path_join(dir, "config.json");

    CHECK(tw_read_file(&text, DIR "/config.json", 1 << 20, &err) == 0);
    char *inner = strstr(text.p, tie);

    if (!tied && inner) {       /* as many letters */
        memcpy(inner, "\"tie_word_embeddings\":false", sizeof tie + 3);
        CHECK(inner[sizeof tie + 3] == ',' || inner[sizeof tie + 3] == '\n');
    }
    tw_buf_printf(&out, "{ \"model_type\": \"qwen3_5\", \"architectures\": "
            "[\"Qwen3_5ForConditionalGeneration\"], \"image_token_id\": 90, \"vision_config\": "
            "{ \"depth\": 2 }, \"tie_word_embeddings\": %s, \"text_config\": %.*s }",
            tied ? "true" : "false", (int)text.n, text.p);
    CHECK(tw_write_file(to, out.p, out.n, &err) == 0);
    tw_buf_free(&text);
    tw_buf_free(&out);
    free(to);
}

/* All text tensors of A are in B, the same bytes under the same names and shapes. */
static void same_tensors(const char *a, const char *b)
{
    struct tw_weights x = { 0 }, y = { 0 };

    CHECK(tw_weights_open(&x, a, &err) == 0 && tw_weights_open(&y, b, &err) == 0);
    CHECK(y.n + 2 == x.n);
    for (int64_t i = 0; i < y.n; i++) {
        const struct tw_wtensor *t = &y.t[i], *u = tw_weights_find(&x, t->name);
        int64_t n = 1;

        CHECK(u && u->ndim == t->ndim);
        for (int k = 0; u && k < t->ndim; k++) {
            CHECK(u->dim[k] == t->dim[k]);
            n *= t->dim[k];
        }
        CHECK(u && !memcmp(u->data, t->data, (size_t)n * 4));
    }
    tw_weights_close(&x);
    tw_weights_close(&y);
}

static void form(const char *what, enum form f)
{
    char *dir = tw_path_join(top, what), *back = tw_path_join(dir, "saved");
    float want[VMAX] = { 0 }, got[VMAX] = { 0 };
    struct tw_model *m;

    CHECK(tw_mkdirs(back, &err) == 0);
    write_config(dir, f != MLX_HEAD);
    write_form(dir, f);
    logits_of(DIR, want);
    logits_of(dir, got);
    CHECK(f != MULTIMODAL || !memcmp(got, want, sizeof got));
    for (int i = 0; i < VMAX; i++)      /* 1 + w is rounded */
        CHECK(got[i] - want[i] < 1e-3f && want[i] - got[i] < 1e-3f);
    m = open_model(dir);
    CHECK(m && m->tied == (f != MLX_HEAD));
    CHECK(m && tw_model_save(m, NULL, TW_F32, back, &err) == 0);
    tw_model_close(m);
    same_tensors(dir, back);
    logits_of(back, want);
    CHECK(!memcmp(got, want, sizeof got));
    free(dir), free(back);
}

static void multimodal(void)
{
    form("multimodal", MULTIMODAL);
}

static void mlx(void)
{
    form("mlx", MLX);
    form("mlx-head", MLX_HEAD);
}

/* Random weights: norms that are 1, decays in their range; the same whatever builds them. */
static void random_weights(void)
{
    struct tw_model_opts o = { .dtype = TW_F32, .init_random = true, .seed = 5 };
    struct tw_model *m = tw_model_open(DIR, dev, &o, &err);
    float w[96];

    CHECK(m);
    for (int64_t i = 0; m && i < m->nw; i++) {
        const struct tw_weight *x = &m->w[i];

        if (x->matrix || x->w.cols > 96)
            continue;
        tw_weight_get(m, x, false, 0, x->w.cols, w);
        for (int64_t k = 0; k < x->w.cols; k++)
            if (x->def->slot == TW_S_ALOG)
                CHECK(w[k] > -4.7f && w[k] < 2.78f);
            else
                CHECK(w[k] == (x->def->slot == TW_S_GNORM || x->def->slot == TW_S_DTBIAS));
    }
    tw_model_close(m);
}

int main(void)
{
    top = tw_xstrdup("/tmp/tw-model-rec-XXXXXX");
    dev = tw_cpu_open(2, "auto", &err);
    if (!mkdtemp(top) || !dev) {
        printf("Bail out! %s: %s\n", err.place, err.msg);
        return 1;
    }
    RUN(marks);
    RUN(multimodal);
    RUN(mlx);
    RUN(random_weights);
    tw_dev_close(dev);
    CHECK(tw_rmtree(top, &err) == 0);
    free(top);
    return test_end();
}
