/* model_files.c - checkpoints and configs: every spelling that means the same, everything that must be
 * refused, and what is written back */
#include "test.h"
#include "base/io.h"
#include "nn/model_priv.h"
#include <unistd.h>

static char top[] = "/tmp/tw-model-files-XXXXXX";
static struct tw_dev *dev;

#define BASE "\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":200," \
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5"
#define LLAMA "{\"model_type\":\"llama\"," BASE

static char *path_of(const char *name)
{
    return tw_path_join(top, name);
}

static int read_config(struct tw_config *c, const char *text, struct tw_err *err)
{
    char *path = path_of("config.json");
    int ret;

    CHECK(tw_write_file(path, text, strlen(text), err) == 0);
    ret = tw_config_read(c, path, err);
    free(path);
    return ret;
}

static void refused(const char *text, const char *why)
{
    struct tw_config c;
    struct tw_err err = { 0 };

    CHECK(read_config(&c, text, &err) == -1);
    CHECK(strstr(err.msg, why) && strstr(err.place, "config.json"));
    if (!strstr(err.msg, why))
        printf("# got: %s: %s\n", err.place, err.msg);
}

static void configs_refused(void)
{
    refused("[]", "not a JSON object");
    refused("{}", "model_type is missing");
    refused("{\"model_type\":\"bert\"}", "\"bert\" is not known; known are llama");
    refused(LLAMA ",\"frobnicate\":3}", "\"frobnicate\": 3");
    refused(LLAMA ",\"use_sliding_window\":true}", "use_sliding_window");
    refused(LLAMA ",\"hidden_act\":\"relu\"}", "hidden_act is \"relu\"");
    refused(LLAMA ",\"attention_dropout\":0.1}", "attention_dropout");
    refused(LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quantised");
    refused(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", "\"longrope\"");
    refused(LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "needs a factor");
    refused(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"x\":1}}",
            "rope_scaling.x");
    refused(LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}", "one set");
    refused(LLAMA ",\"head_dim\":15}", "not an even width");
    refused("{\"model_type\":\"llama\",\"hidden_size\":\"32\"}", "hidden_size");
    refused("{\"model_type\":\"llama\",\"hidden_size\":0}", "hidden_size is 0");
    refused("{\"model_type\":\"llama\",\"hidden_size\":30,\"num_attention_heads\":4}",
            "not a multiple");
    refused("{\"model_type\":\"llama\",\"num_attention_heads\":4,\"num_key_value_heads\":3}",
            "not a multiple");
    refused("{\"model_type\":\"qwen2\"," BASE ",\"layer_types\":[\"full_attention\",\"x\"]}",
            "layer_types[1] is \"x\"");
    refused("{\"model_type\":\"qwen2\"," BASE ",\"layer_types\":[\"full_attention\"]}",
            "not a list of 2");
}

/* Angles of two configs agree bit for bit. */
static void same_rope(const char *a, const char *b, bool same)
{
    struct tw_config c[2];
    struct tw_err err = { 0 };
    float t[2][2][100 * 4];

    CHECK(read_config(&c[0], a, &err) == 0);
    CHECK(read_config(&c[1], b, &err) == 0);
    if (err.code) {
        printf("# %s\n", err.msg);
        return;
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tw_rope_width(&c[i]), 8);
        tw_rope_table(&c[i], 0, 100, 100, t[i][0], t[i][1]);
        tw_config_free(&c[i]);
    }
    CHECK(!memcmp(t[0], t[1], sizeof t[0]) == same);
}

static void spellings(void)
{
    static const char plain[] = LLAMA ",\"rope_theta\":5e5}";
    static const char linear[] = LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":"
        "{\"type\":\"linear\",\"factor\":4.0}}";

    same_rope(plain, LLAMA ",\"rope_parameters\":{\"rope_theta\":5e5}}", true);
    same_rope(plain, LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":null,\"head_dim\":null}", true);
    same_rope(plain, LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"dynamic\","
        "\"factor\":2}}", true);
    /* a base for 1300 tokens, by hand: d 8, factor 2 over 512 positions */
    same_rope(LLAMA ",\"rope_theta\":3257747.2146723033}",
        LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2,"
        "\"length\":1300}}", true);
    same_rope(plain, linear, false);
    same_rope(linear, LLAMA ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\","
        "\"factor\":4.0}}", true);
    same_rope(linear, LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"yarn\","
        "\"factor\":4.0}}", false);
    same_rope(plain, LLAMA ",\"rope_theta\":5e5,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
        "\"architectures\":[\"X\"],\"rope_interleaved\":false,\"whatever\":null}", true);
    same_rope(plain, "{\"model_type\":\"outer\",\"tie_word_embeddings\":true,\"vision_config\":{},"
        "\"text_config\":{\"model_type\":\"llama\"," BASE ",\"rope_theta\":5e5}}", true);
}

static void windows(void)
{
    struct tw_config c;
    struct tw_err err = { 0 };

    CHECK(read_config(&c, "{\"model_type\":\"qwen2\"," BASE ",\"use_sliding_window\":true,"
            "\"sliding_window\":8,\"max_window_layers\":1}", &err) == 0);
    CHECK(c.layer[0].window == 0 && c.layer[1].window == 8);
    tw_config_free(&c);
    CHECK(read_config(&c, "{\"model_type\":\"qwen2\"," BASE ",\"sliding_window\":8,"
            "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", &err) == 0);
    CHECK(c.layer[0].window == 8 && c.layer[1].window == 0);
    tw_config_free(&c);
    CHECK(read_config(&c, "{\"model_type\":\"qwen2\"," BASE ",\"sliding_window\":null}", &err) == 0);
    CHECK(c.layer[0].window == 0 && c.hd == 8 && c.nkv == 2);
    tw_config_free(&c);
}

/* Copies checkpoint NAME to folder TO: tensors whose name begins with SKIP are left out, a leading
 * STRIP is taken off, and one tensor ADD of N elements is added. */
static void copy_model(const char *name, const char *to, const char *skip, const char *strip,
        const char *add, int64_t n)
{
    char *from = tw_xasprintf("tests/data/models/%s", name), *dir = path_of(to);
    char *cfg = tw_path_join(from, "config.json"), *cfg2 = tw_path_join(dir, "config.json");
    char *out = tw_path_join(dir, "model.safetensors");
    struct tw_weights file = { 0 };
    struct tw_wdecl d[64];
    const float *data[64], zeros[64] = { 0 };
    struct tw_buf text = { 0 };
    struct tw_arena names = { 0 };
    struct tw_err err = { 0 };
    struct tw_wout *o;
    int64_t k = 0, i;

    CHECK(!tw_mkdirs(dir, &err) && !tw_weights_open(&file, from, &err));
    for (i = 0; i < file.n; i++) {
        const struct tw_wtensor *t = &file.t[i];
        char *s = tw_arena_dup(&names, t->name.p, t->name.n);
        size_t cut = strip && !strncmp(s, strip, strlen(strip)) ? strlen(strip) : 0;

        if (skip && !strncmp(s, skip, strlen(skip)))
            continue;
        d[k] = (struct tw_wdecl){ .name = s + cut, .dtype = TW_F32, .ndim = t->ndim,
            .dim = { t->dim[0], t->dim[1] } };
        data[k++] = t->data;
    }
    if (add) {
        d[k] = (struct tw_wdecl){ .name = add, .dtype = TW_F32, .ndim = 1, .dim = { n } };
        data[k++] = zeros;
    }
    o = tw_wout_open(out, d, k, &err);
    while (o && (i = tw_wout_next(o)) >= 0)
        CHECK(!tw_wout_put(o, data[i], TW_F32, d[i].dim[0] * (d[i].ndim > 1 ? d[i].dim[1] : 1),
                &err));
    CHECK(o && !tw_wout_commit(o, &err));
    CHECK(!tw_read_file(&text, cfg, 0, &err) && !tw_write_file(cfg2, text.p, text.n, &err));
    tw_weights_close(&file);
    tw_buf_free(&text);
    tw_arena_free(&names);
    free(from);
    free(dir);
    free(cfg);
    free(cfg2);
    free(out);
}

static struct tw_model *open_dir(const char *dir, bool train, struct tw_err *err)
{
    struct tw_model_opts o = { .dtype = TW_F32, .train = train };

    return tw_model_open(dir, dev, &o, err);
}

/* Opens the copy TO of a checkpoint: WHY NULL: it must work and give the log-probability WANT. */
static void try_open(const char *to, const char *why, float want)
{
    static const int32_t tok[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    char *dir = path_of(to);
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir(dir, false, &err);
    struct tw_seq seq = { .token = tok, .n = 8 };
    struct tw_row row = { .at = 7, .target = 100, .temp = 1 };

    if (why) {
        CHECK(!m && strstr(err.msg, why));
        if (m || !strstr(err.msg, why))
            printf("# %s: %s\n", to, err.msg);
    } else {
        CHECK(m && !tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err));
        if (!m)
            printf("# %s: %s\n", to, err.msg);
        CHECK(want == 0 || row.logp == want);
    }
    tw_model_close(m);
    free(dir);
}

static float reference(const char *dir)
{
    static const int32_t tok[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir(dir, false, &err);
    struct tw_seq seq = { .token = tok, .n = 8 };
    struct tw_row row = { .at = 7, .target = 100, .temp = 1 };

    CHECK(m && !tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err));
    tw_model_close(m);
    return row.logp;
}

static void checkpoints(void)
{
    float llama = reference("tests/data/models/llama");
    float tied = reference("tests/data/models/llama-rope3");

    copy_model("llama", "a", NULL, NULL, NULL, 0);
    try_open("a", NULL, llama);
    copy_model("llama", "b", NULL, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", 8);
    try_open("b", NULL, llama);
    copy_model("llama", "c", NULL, "model.", NULL, 0);
    try_open("c", NULL, llama);
    copy_model("llama", "d", "lm_head", "model.", NULL, 0);     /* a bare backbone: tied */
    try_open("d", NULL, 0);
    copy_model("llama-rope3", "e", NULL, NULL, "lm_head.weight", 8); /* tied, and a copy */
    try_open("e", NULL, tied);
    copy_model("llama", "f", NULL, NULL, "model.layers.0.self_attn.q_norm.weight", 8);
    try_open("f", "1 of the checkpoint's 22 tensors are not known to family llama: "
            "model.layers.0.self_attn.q_norm.weight", 0);
    copy_model("llama", "g", "model.layers.1.mlp.up", NULL, NULL, 0);
    try_open("g", "no tensor model.layers.1.mlp.up_proj.weight", 0);
    copy_model("llama", "h", "model.norm", NULL, "model.norm.weight", 8);
    try_open("h", "model.norm.weight has shape [8], config.json means [32]", 0);
    copy_model("llama", "i", "model.embed", NULL, NULL, 0);
    try_open("i", "no tensor model.embed_tokens.weight", 0);
    try_open("none", "", 0);
}

/* Tensor NAME of the folder DIR as f32. */
static float *fetch(const char *dir, const char *name, int64_t *n)
{
    struct tw_weights file = { 0 };
    struct tw_err err = { 0 };
    struct tw_wtensor *t;
    float *out = NULL;

    if (!tw_weights_open(&file, dir, &err) && (t = tw_weights_find(&file, tw_str(name)))) {
        out = tw_xcalloc((size_t)t->n, sizeof *out);
        CHECK(!tw_weights_f32(t, 0, t->n, out, &err));
        *n = t->n;
    }
    tw_weights_close(&file);
    return out;
}

static void saved(void)
{
    char *dir = path_of("saved"), *cfg = tw_path_join(dir, "config.json");
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir("tests/data/models/llama", false, &err);
    struct tw_buf text = { 0 };
    int64_t n = 0;
    float *a, *b;

    CHECK(!tw_mkdirs(dir, &err) && !tw_model_save_max(m, NULL, TW_F32, dir, 30000, &err));
    CHECK_STR(err.msg, "");
    CHECK(reference(dir) == reference("tests/data/models/llama"));
    CHECK(!tw_rmtree(dir, &err) && !tw_mkdirs(dir, &err));
    CHECK(!tw_model_save(m, NULL, TW_BF16, dir, &err));
    CHECK(!tw_model_save(m, NULL, TW_F16, dir, &err));
    CHECK_NEAR(reference(dir), reference("tests/data/models/llama"), 1e-2);
    CHECK(!tw_model_save(m, NULL, TW_BF16, dir, &err));
    a = fetch("tests/data/models/llama", "model.layers.1.mlp.up_proj.weight", &n);
    b = fetch(dir, "model.layers.1.mlp.up_proj.weight", &n);
    CHECK_INT(n, 32 * 64);
    for (int64_t i = 0; a && b && i < n; i++)
        CHECK(tw_bf16_to_f32(tw_f32_to_bf16(a[i])) == b[i]);
    CHECK(!tw_read_file(&text, cfg, 0, &err) && strstr(text.p, "\"dtype\": \"bfloat16\"") &&
          strstr(text.p, "\"rope_theta\": 10000.0") && strstr(text.p, "\"tie_word_embeddings\": fal"));
    tw_buf_free(&text);
    tw_model_close(m);
    free(a);
    free(b);
    free(dir);
    free(cfg);
}

/* W + s B A in f32, rounded once. */
static void merged(void)
{
    static const char w[] = "model.layers.0.self_attn.q_proj.weight";
    static const char l[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    static const char ld[] = "tests/data/models/llama/adapter/adapter_model.safetensors";
    char *dir = path_of("merged"), *lb = tw_xstrdup(l);
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir("tests/data/models/llama", false, &err);
    struct tw_adapter *a = tw_adapter_open(m, "tests/data/models/llama/adapter", false, &err);
    float *base, *A, *B, *got;
    int64_t n = 0, same = 0;

    *strstr(lb, "lora_A") = 0;
    lb = tw_xrealloc(lb, 200);
    memcpy(lb + strlen(lb), "lora_B.weight", 14);
    CHECK(a && !tw_mkdirs(dir, &err) && !tw_model_save(m, a, TW_BF16, dir, &err));
    A = fetch(ld, l, &n);
    B = fetch(ld, lb, &n);
    base = fetch("tests/data/models/llama", w, &n);
    got = fetch(dir, w, &n);
    for (int64_t i = 0; got && A && B && i < n; i++) {
        float d = 0;

        for (int64_t k = 0; k < 4; k++)
            d = fmaf(B[i / 32 * 4 + k], A[k * 32 + i % 32], d);
        same += got[i] == tw_bf16_to_f32(tw_f32_to_bf16(base[i] + 3.0f * d));
    }
    CHECK_INT(same, 64 * 32);
    tw_adapter_close(a);
    tw_model_close(m);
    free(A);
    free(B);
    free(base);
    free(got);
    free(lb);
    free(dir);
}

/* Training in BF16 keeps F32 masters: small updates add up there and reach the products. */
static void masters(void)
{
    char *dir = path_of("masters");
    struct tw_model_opts o = { .dtype = TW_BF16, .train = true };
    struct tw_err err = { 0 };
    struct tw_model *m = tw_model_open("tests/data/models/llama-rope3", dev, &o, &err), *k;
    static const int32_t tok[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    struct tw_seq seq = { .token = tok, .n = 8 };
    struct tw_row row = { .at = 7, .target = 100, .temp = 1 }, again = row;
    const struct tw_params *p = tw_model_params(m);
    float before, one[64 * 32], zero[64 * 32] = { 0 };
    struct tw_mat w = p->p[0].w;

    tw_ops(dev)->mat_get(dev, one, &w, 0, 1);
    before = one[0];
    w.data = p->p[0].g;
    zero[0] = 1;                /* a gradient for one element of the embedding */
    tw_ops(dev)->mat_put(dev, &w, zero, TW_F32, 0, 1);
    for (int i = 0; i < 100; i++)
        tw_ops(dev)->axpy(dev, p->p[0].w.data, -1e-4f, p->p[0].g, p->p[0].n);
    tw_params_updated(dev, p);
    tw_ops(dev)->mat_get(dev, one, &p->p[0].w, 0, 1);
    CHECK_NEAR(one[0], before - 0.01, 1e-6);
    tw_ops(dev)->mat_get(dev, one, p->p[0].low, 0, 1);
    CHECK(one[0] == tw_bf16_to_f32(tw_f32_to_bf16(one[0])) && fabsf(one[0] - before + 0.01f) < 4e-3f);
    CHECK(!tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err));
    CHECK(!tw_mkdirs(dir, &err) && !tw_model_save(m, NULL, TW_F32, dir, &err));
    o.train = false;
    k = tw_model_open(dir, dev, &o, &err);
    CHECK(k && !tw_model_run(k, &seq, 1, &again, 1, 0, NULL, NULL, &err));
    CHECK(row.logp == again.logp);
    tw_model_close(m);
    tw_model_close(k);
    free(dir);
}

static void sizes(void)
{
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir("tests/data/models/llama-rope3", true, &err);
    const struct tw_params *p = tw_model_params(m);
    const struct tw_model_info *info = tw_model_info(m);
    struct tw_plan plan, again;
    int32_t tok[96] = { 0 };
    struct tw_seq seq[2] = { { .token = tok, .n = 64 }, { .token = tok, .n = 32 } };
    struct tw_row row[96];
    double attn = 2 * 4.0 * 64 * (64 * 65 / 2 + 32 * 33 / 2);

    CHECK_INT(info->params, 31136);
    CHECK(info->tied && p->p[0].g2 && !p->p[1].g2 && p->elems == info->params);
    CHECK_INT(info->active_matmul, 31136 - 5 * 32);
    CHECK(!tw_model_plan(m, NULL, 96, 2, 64, TW_BACKWARD, &plan, &err));
    CHECK(!tw_model_plan(m, NULL, 96, 2, 64, TW_BACKWARD | TW_RECOMPUTE, &again, &err));
    CHECK(again.activations < plan.activations && again.flops_step > plan.flops_step);
    CHECK(plan.flops_forward >= 2.0 * (double)info->active_matmul * 96 + attn);
    CHECK(plan.flops_forward <= 1.05 * (2.0 * (double)info->active_matmul * 96 + attn));
    CHECK(plan.flops_step > 2.9 * plan.flops_forward && plan.flops_step < 3.3 * plan.flops_forward);
    CHECK(plan.optimizer >= 8 * 31136 && plan.optimizer < 2 * plan.gradients);
    for (int i = 0; i < 96; i++)
        row[i] = (struct tw_row){ .s = i / 64, .at = i % 64, .temp = 0.5f };
    CHECK(!tw_model_run(m, seq, 2, row, 96, TW_BACKWARD, NULL, NULL, &err));
    CHECK_INT(m->stack.peak, plan.activations);
    CHECK(tw_model_plan(m, NULL, 96, 2, 40, 0, &plan, &err) == -1);
    tw_model_close(m);
}

static void random_weights(void)
{
    struct tw_model_opts o = { .dtype = TW_F32, .init_random = true, .seed = 3,
        .config_json = "tests/data/models/qwen2/config.json" };
    struct tw_err err = { 0 };
    struct tw_model *m = tw_model_open(NULL, dev, &o, &err);
    struct tw_dev *plain = tw_cpu_open(1, "c", &err);
    struct tw_model *k = tw_model_open(NULL, plain, &o, &err);
    double sum = 0, sq = 0;
    float a[64 * 32], b[64 * 32];

    CHECK(m && k);
    for (int64_t i = 0; m && k && i < m->nw; i++) {
        const struct tw_weight *w = &m->w[i];

        if (w->w.rows > 64)
            continue;
        tw_weight_get(m, w, false, 0, w->matrix ? w->w.rows : w->w.cols, a);
        tw_weight_get(k, &k->w[i], false, 0, w->matrix ? w->w.rows : w->w.cols, b);
        CHECK(!memcmp(a, b, (size_t)tw_mat_size(&w->w) * sizeof *a));
        CHECK(w->matrix || a[0] == (w->is_bias ? 0 : 1));
        for (int64_t j = 0; w->matrix && w->w.rows == 64 && j < 64 * 32; j++) {
            sum += (double)a[j];
            sq += (double)a[j] * (double)a[j];
        }
    }
    CHECK_NEAR(sqrt(sq / (4 * 64 * 32)), 0.02, 1e-3);
    CHECK_NEAR(sum / (4 * 64 * 32), 0, 1e-3);
    tw_model_close(m);
    tw_model_close(k);
    tw_dev_close(plain);
}

static void bad_batches(void)
{
    static const int32_t tok[3] = { 1, 2, 200 };
    struct tw_err err = { 0 };
    struct tw_model *m = open_dir("tests/data/models/llama", false, &err);
    struct tw_seq seq = { .token = tok, .n = 3 };
    struct tw_row row = { .at = 1, .target = 3, .temp = 1 };

    CHECK(tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err) == -1);
    CHECK(strstr(err.msg, "token 2 of sequence 0 is 200"));
    tw_err_clear(&err);
    seq.n = 0;
    CHECK(tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err) == -1);
    CHECK(strstr(err.msg, "is empty"));
    tw_err_clear(&err);
    seq.n = 2;
    row.at = 2;
    CHECK(tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err) == -1);
    tw_err_clear(&err);
    row.at = 1;
    row.temp = 0;
    CHECK(tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err) == -1);
    CHECK(strstr(err.msg, "temperature"));
    tw_err_clear(&err);
    CHECK(tw_model_decode(m, &seq, 1, NULL, 0, NULL, &err) == -1);
    CHECK(strstr(err.msg, "decode state"));
    tw_model_close(m);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_cpu_open(1, "auto", &err);
    if (!dev || !mkdtemp(top))
        return 1;
    RUN(configs_refused);
    RUN(spellings);
    RUN(windows);
    RUN(checkpoints);
    RUN(saved);
    RUN(merged);
    RUN(masters);
    RUN(sizes);
    RUN(random_weights);
    RUN(bad_batches);
    tw_dev_close(dev);
    tw_rmtree(top, &err);
    return test_end();
}
