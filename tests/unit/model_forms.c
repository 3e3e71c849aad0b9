/* model_forms.c - checkpoints of the same maths in the forms of other families: a Llama as InternLM2
 * (q, k and v one matrix, rows group by group) and as InternLM3, a GLM as ChatGLM (with shared keys,
 * and with one a head). Loaded, all give the bits of the first; saved, the file that was read; and
 * adapters lie in the rows of the file. */
#include <stdlib.h>
#include "base/io.h"
#include "nn/model_priv.h"
#include "test.h"

#define N 40
static struct tw_dev *dev;
static char *top;
static struct tw_err err;

/* A part of a tensor: rows [row, row + n) of tensor FROM. */
struct part {
    const char *from;
    int64_t row, n;
};

/* Tensors of one file made from those of another. */
struct remap {
    struct tw_weights in;
    struct tw_wdecl decl[80];
    float *data[80];
    char *name[80];
    int64_t n;
};

static void append(struct remap *m, const struct part *p, int64_t *rows, int64_t *cols)
{
    const struct tw_wtensor *t = tw_weights_find(&m->in, tw_str(p->from));
    int64_t c = t && t->ndim == 2 ? t->dim[1] : 1, all = t ? t->dim[0] : 0;
    int64_t n = p->n ? p->n : all;
    float **to = &m->data[m->n];

    CHECK(t != NULL);
    if (!t)
        return;
    *to = tw_xreallocarray(*to, (size_t)((*rows + n) * c), sizeof **to);
    memcpy(*to + *rows * c, (const float *)t->data + p->row * c, (size_t)(n * c) * 4);
    *rows += n;
    *cols = t->ndim == 2 ? c : 0;
}

/* A tensor NAME of N parts. */
static void put(struct remap *m, char *name, const struct part *p, int64_t n)
{
    int64_t rows = 0, cols = 0;

    for (int64_t i = 0; i < n; i++)
        append(m, &p[i], &rows, &cols);
    m->name[m->n] = name;
    m->decl[m->n] = (struct tw_wdecl){ .name = name, .dtype = TW_F32, .ndim = cols ? 2 : 1,
        .dim = { rows, cols } };
    m->n++;
}

static void rename_one(struct remap *m, char *name, char *from)
{
    struct part p = { from, 0, 0 };

    put(m, name, &p, 1);
    free(from);
}

static char *dir_of(const char *name)
{
    char *d = tw_path_join(top, name);

    CHECK(tw_mkdirs(d, &err) == 0);
    return d;
}

static void write_all(struct remap *m, const char *dir, const char *config)
{
    char *path = tw_path_join(dir, "model.safetensors"), *json = tw_path_join(dir, "config.json");
    struct tw_wout *o = tw_wout_open(path, m->decl, m->n, &err);
    int64_t i;

    while (o && (i = tw_wout_next(o)) >= 0)
        CHECK(tw_wout_put(o, m->data[i], TW_F32, m->decl[i].dim[0] *
                (m->decl[i].ndim == 2 ? m->decl[i].dim[1] : 1), &err) == 0);
    CHECK(o && tw_wout_commit(o, &err) == 0);
    CHECK(tw_write_file(json, config, strlen(config), &err) == 0);
    for (i = 0; i < m->n; i++) {
        free(m->name[i]);
        free(m->data[i]);
    }
    tw_weights_close(&m->in);
    free(path), free(json);
}

/* Heads of DIR's model: H of q, K of k and v, D numbers each. */
struct heads {
    int64_t H, K, D;
};

/* q, k, v of layer I, group by group when GROUPS; SUFFIX ".weight" or ".bias". */
static void put_qkv(struct remap *m, char *name, int i, const char *suffix, struct heads h,
        bool groups)
{
    char *q = tw_xasprintf("model.layers.%d.self_attn.q_proj%s", i, suffix);
    char *k = tw_xasprintf("model.layers.%d.self_attn.k_proj%s", i, suffix);
    char *v = tw_xasprintf("model.layers.%d.self_attn.v_proj%s", i, suffix);
    int64_t n = groups ? h.K : 1, per = h.H / n * h.D, one = h.K / n * h.D;
    struct part p[3 * 16];

    for (int64_t g = 0; g < n; g++) {
        p[3 * g] = (struct part){ q, g * per, per };
        p[3 * g + 1] = (struct part){ k, g * one, one };
        p[3 * g + 2] = (struct part){ v, g * one, one };
    }
    put(m, name, p, 3 * n);
    free(q), free(k), free(v);
}

static char *layer_name(const char *start, int i, const char *name)
{
    return tw_xasprintf("%s.%d.%s", start, i, name);
}

static void layer_renamed(struct remap *m, const char *start, int i, const char *const *pair)
{
    for (; *pair; pair += 2)
        rename_one(m, layer_name(start, i, pair[0]), layer_name("model.layers", i, pair[1]));
}

static char *make_internlm2(void)
{
    static const char *const pairs[] = { "attention_norm.weight", "input_layernorm.weight",
        "attention.wo.weight", "self_attn.o_proj.weight", "ffn_norm.weight",
        "post_attention_layernorm.weight", "feed_forward.w1.weight", "mlp.gate_proj.weight",
        "feed_forward.w3.weight", "mlp.up_proj.weight", "feed_forward.w2.weight",
        "mlp.down_proj.weight", NULL };
    struct remap m = { 0 };
    char *dir = dir_of("internlm2");

    CHECK(tw_weights_open(&m.in, "tests/data/models/llama", &err) == 0);
    rename_one(&m, tw_xstrdup("model.tok_embeddings.weight"),
            tw_xstrdup("model.embed_tokens.weight"));
    rename_one(&m, tw_xstrdup("model.norm.weight"), tw_xstrdup("model.norm.weight"));
    rename_one(&m, tw_xstrdup("output.weight"), tw_xstrdup("lm_head.weight"));
    for (int i = 0; i < 2; i++) {
        put_qkv(&m, layer_name("model.layers", i, "attention.wqkv.weight"), i, ".weight",
                (struct heads){ 4, 2, 16 }, true);
        layer_renamed(&m, "model.layers", i, pairs);
    }
    write_all(&m, dir, "{\"model_type\":\"internlm2\",\"architectures\":[\"InternLM2ForCausalLM\"],"
            "\"auto_map\":{\"AutoConfig\":\"x.y\"},\"attn_implementation\":\"eager\","
            "\"bias\":false,\"hidden_size\":32,\"head_dim\":16,\"intermediate_size\":64,"
            "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
            "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
            "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0},\"vocab_size\":200,"
            "\"tie_word_embeddings\":false}\n");
    return dir;
}

static char *make_internlm3(void)
{
    struct remap m = { 0 };
    char *dir = dir_of("internlm3");

    CHECK(tw_weights_open(&m.in, "tests/data/models/llama", &err) == 0);
    for (int64_t i = 0; i < m.in.n; i++) {
        char *name = tw_xstrndup(m.in.t[i].name.p, m.in.t[i].name.n);

        rename_one(&m, tw_xstrdup(name), name);
    }
    write_all(&m, dir, "{\"model_type\":\"internlm3\",\"bias\":false,\"qkv_bias\":false,"
            "\"hidden_size\":32,\"head_dim\":16,\"intermediate_size\":64,\"num_hidden_layers\":2,"
            "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":512,"
            "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":"
            "\"dynamic\",\"factor\":6.0},\"vocab_size\":200,\"tie_word_embeddings\":false}\n");
    return dir;
}

/* ChatGLM of the GLM in FROM, whose heads are H; GROUPS: one key a head. */
static char *make_chatglm(const char *name, const char *from, struct heads h, bool groups)
{
    static const char *const pairs[] = { "input_layernorm.weight", "input_layernorm.weight",
        "self_attention.dense.weight", "self_attn.o_proj.weight",
        "post_attention_layernorm.weight", "post_attention_layernorm.weight",
        "mlp.dense_h_to_4h.weight", "mlp.gate_up_proj.weight", "mlp.dense_4h_to_h.weight",
        "mlp.down_proj.weight", NULL };
    static const char start[] = "transformer.encoder.layers";
    struct remap m = { 0 };
    char *dir = dir_of(name), *config;

    CHECK(tw_weights_open(&m.in, from, &err) == 0);
    rename_one(&m, tw_xstrdup("transformer.embedding.word_embeddings.weight"),
            tw_xstrdup("model.embed_tokens.weight"));
    rename_one(&m, tw_xstrdup("transformer.encoder.final_layernorm.weight"),
            tw_xstrdup("model.norm.weight"));
    rename_one(&m, tw_xstrdup("transformer.output_layer.weight"), tw_xstrdup("lm_head.weight"));
    for (int i = 0; i < 2; i++) {
        put_qkv(&m, layer_name(start, i, "self_attention.query_key_value.weight"), i, ".weight",
                h, groups);
        put_qkv(&m, layer_name(start, i, "self_attention.query_key_value.bias"), i, ".bias", h,
                groups);
        layer_renamed(&m, start, i, pairs);
    }
    config = tw_xasprintf("{\"model_type\":\"chatglm\",\"add_bias_linear\":false,"
            "\"add_qkv_bias\":true,\"apply_query_key_layer_scaling\":true,"
            "\"apply_residual_connection_post_layernorm\":false,\"attention_dropout\":0.0,"
            "\"attention_softmax_in_fp32\":true,\"bias_dropout_fusion\":true,"
            "\"ffn_hidden_size\":64,\"fp32_residual_connection\":false,\"hidden_dropout\":0.0,"
            "\"hidden_size\":32,\"kv_channels\":16,\"layernorm_epsilon\":1.5e-07,"
            "\"multi_query_attention\":%s,\"multi_query_group_num\":2,\"num_attention_heads\":4,"
            "\"num_layers\":2,\"original_rope\":true,\"padded_vocab_size\":200,"
            "\"post_layer_norm\":true,\"rmsnorm\":true,\"rope_ratio\":1,\"seq_length\":512,"
            "\"use_cache\":true,\"torch_dtype\":\"float32\",\"tie_word_embeddings\":false,"
            "\"eos_token_id\":[1,2]}\n", groups ? "false" : "true");
    write_all(&m, dir, config);
    free(config);
    return dir;
}

static struct tw_model *open_dir(const char *dir)
{
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);

    if (!m)
        printf("# %s: %s: %s\n", dir, err.place, err.msg);
    CHECK(m != NULL);
    return m;
}

/* The logits of N tokens, [N, V]; to be freed. */
static float *logits(const char *dir)
{
    struct tw_model *m = open_dir(dir);
    int32_t tok[N];
    int64_t want[N];
    struct tw_seq seq = { .token = tok, .n = N };
    float *z = tw_xcalloc((size_t)N * 200, sizeof *z);

    for (int i = 0; i < N; i++) {
        tok[i] = 3 + i * 37 % 190;
        want[i] = i;
    }
    if (!m)
        return z;
    CHECK(tw_model_info(m)->V == 200);
    seq.state = tw_state_new(m, &err);
    CHECK(tw_model_decode(m, &seq, 1, want, N, z, &err) == 0);
    tw_state_free(seq.state);
    tw_model_close(m);
    return z;
}

/* All tensors of A are in B, and no others, with the same bits. */
static void same_file(const char *a, const char *b)
{
    struct tw_weights x = { 0 }, y = { 0 };

    CHECK(tw_weights_open(&x, a, &err) == 0 && tw_weights_open(&y, b, &err) == 0);
    CHECK_INT(x.n, y.n);
    for (int64_t i = 0; i < x.n; i++) {
        const struct tw_wtensor *t = tw_weights_find(&y, x.t[i].name);

        CHECK(t && t->n == x.t[i].n && t->ndim == x.t[i].ndim && t->dim[0] == x.t[i].dim[0] &&
              !memcmp(t->data, x.t[i].data, (size_t)t->n * 4));
    }
    tw_weights_close(&x);
    tw_weights_close(&y);
}

static void saved_as_read(const char *dir, const char *out)
{
    struct tw_model *m = open_dir(dir);

    CHECK(m && tw_model_save(m, NULL, TW_F32, out, &err) == 0);
    tw_model_close(m);
    same_file(dir, out);
}

/* DIR gives the bits that FROM gives, and is written as it was read. */
static void same_as(const char *from, char *dir)
{
    float *a = logits(from), *b = logits(dir);
    char *out = tw_xasprintf("%s-saved", dir);

    CHECK(!memcmp(a, b, (size_t)N * 200 * sizeof *a));
    CHECK(a[0] != 0);
    CHECK(tw_mkdirs(out, &err) == 0);
    saved_as_read(dir, out);
    free(a), free(b), free(out);
}

static void internlm2(void)
{
    char *dir = make_internlm2();

    same_as("tests/data/models/llama", dir);
    free(dir);
}

/* A base that was chosen for 512 positions is no base for 513 tokens. */
static void too_long(const char *dir)
{
    static const int32_t tok[513] = { 5 };
    struct tw_model *m = open_dir(dir);
    struct tw_seq seq = { .token = tok, .n = 513, .state = m ? tw_state_new(m, &err) : NULL };

    CHECK(m && tw_model_decode(m, &seq, 1, NULL, 0, NULL, &err) == -1);
    CHECK(strstr(err.msg, "\"length\""));
    tw_err_clear(&err);
    seq.n = 512;
    CHECK(m && tw_model_decode(m, &seq, 1, NULL, 0, NULL, &err) == 0);
    tw_state_free(seq.state);
    tw_model_close(m);
}

static void internlm3(void)
{
    char *dir = make_internlm3();

    same_as("tests/data/models/llama", dir);
    too_long(dir);
    free(dir);
}

static void chatglm(void)
{
    char *dir = make_chatglm("chatglm", "tests/data/models/glm", (struct heads){ 4, 2, 16 }, false);

    same_as("tests/data/models/glm", dir);
    free(dir);
}

/* A GLM with a key for each head, as ChatGLM's code keeps it: head by head. */
static void chatglm_heads(void)
{
    static const char config[] = "{\"model_type\":\"glm\",\"hidden_size\":32,\"head_dim\":16,"
        "\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":4,\"max_position_embeddings\":512,\"rms_norm_eps\":1.5e-07,"
        "\"partial_rotary_factor\":0.5,\"vocab_size\":200,\"initializer_range\":0.2,"
        "\"pad_token_id\":0,\"eos_token_id\":2}\n";
    char *from = dir_of("glm-heads"), *json = tw_path_join(from, "config.json"), *dir;
    struct tw_model_opts o = { .dtype = TW_F32, .init_random = true, .seed = 4 };
    struct tw_model *m;

    CHECK(tw_write_file(json, config, strlen(config), &err) == 0);
    m = tw_model_open(from, dev, &o, &err);
    CHECK(m && tw_model_save(m, NULL, TW_F32, from, &err) == 0);
    tw_model_close(m);
    dir = make_chatglm("chatglm-heads", from, (struct heads){ 4, 4, 16 }, true);
    same_as(from, dir);
    free(from), free(json), free(dir);
}

/* A row W of C numbers of a matrix, plus scale B A of rank R4. */
#define R4 4
static void merged_row(float *w, const float *b, const float *a, int64_t c, float scale)
{
    for (int64_t j = 0; j < c; j++) {
        double s = 0;

        for (int64_t k = 0; k < R4; k++)
            s += (double)b[k] * a[k * c + j];
        w[j] += (float)(scale * s);
    }
}

/* The adapter of a fused matrix, read from its file: B's rows are those of the checkpoint's tensor. */
static void adapter_rows(void)
{
    static const char tensor[] = "model.layers.1.attention.wqkv.weight";
    char *dir = make_internlm2(), *ad = dir_of("adapter"), *out = dir_of("merged");
    char *file = tw_path_join(ad, "adapter_model.safetensors");
    struct tw_lora_opts o = { .r = R4, .alpha = 8, .targets = "wqkv+w2" };
    struct tw_model *m = open_dir(dir);
    struct tw_adapter *a = tw_adapter_new(m, &o, 3, true, &err);
    struct tw_weights x = { 0 }, base = { 0 }, merged = { 0 };
    const struct tw_wtensor *la, *lb, *w, *got;
    double worst = 0;

    for (int64_t k = 1; a && k < tw_adapter_params(a)->n; k += 2) {
        const struct tw_param *p = &tw_adapter_params(a)->p[k];

        for (int64_t i = 0; i < p->n; i++)
            ((float *)p->w.data)[i] = 0.01f * (float)(i % 97 - 48);
    }
    CHECK(a && tw_adapter_save(a, ad, "x", &err) == 0);
    tw_adapter_close(a);
    a = tw_adapter_open(m, ad, false, &err);
    CHECK(a && tw_model_save(m, a, TW_F32, out, &err) == 0);
    CHECK(!tw_weights_open(&x, file, &err) && !tw_weights_open(&base, dir, &err) &&
          !tw_weights_open(&merged, out, &err));
    la = tw_weights_find(&x, TW_STR_LIT("base_model.model.model.layers.1.attention.wqkv."
            "lora_A.weight"));
    lb = tw_weights_find(&x, TW_STR_LIT("base_model.model.model.layers.1.attention.wqkv."
            "lora_B.weight"));
    w = tw_weights_find(&base, tw_str(tensor));
    got = tw_weights_find(&merged, tw_str(tensor));
    CHECK(la && lb && w && got);
    for (int64_t r = 0; lb && r < lb->dim[0]; r++) {
        float row[64];
        int64_t c = la->dim[1];

        memcpy(row, (const float *)w->data + r * c, (size_t)c * 4);
        merged_row(row, (const float *)lb->data + r * R4, la->data, c, 2);
        for (int64_t j = 0; j < c; j++)
            worst = fmax(worst, fabs((double)row[j] - (double)((const float *)got->data)[r * c +
                    j]));
    }
    CHECK(worst < 1e-6);
    tw_weights_close(&x), tw_weights_close(&base), tw_weights_close(&merged);
    tw_adapter_close(a);
    tw_model_close(m);
    free(dir), free(ad), free(out), free(file);
}

/* Every other form is written as it was read, too. */
static void other_forms(void)
{
    static const char *const names[] = { "glm", "glm4", "gemma3_text", "deepseek_v2",
        "deepseek_v3" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *from = tw_xasprintf("tests/data/models/%s", names[i]);
        char *to = dir_of(names[i]);

        saved_as_read(from, to);
        free(from), free(to);
    }
}

/* A layer behind the last, for predicting a second token, is passed over; another one is not. */
static void next_token_layers(void)
{
    static const char from[] = "tests/data/models/deepseek_v3";
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_buf config = { 0 };
    struct remap m = { 0 };
    char *dir = dir_of("next"), *bad = dir_of("next-bad");
    float *a, *b;

    CHECK(tw_read_file(&config, "tests/data/models/deepseek_v3/config.json", 0, &err) == 0);
    tw_buf_putc(&config, 0);
    for (int k = 2; k < 4; k++) {
        memset(&m, 0, sizeof m);
        CHECK(tw_weights_open(&m.in, from, &err) == 0);
        for (int64_t i = 0; i < m.in.n; i++) {
            char *name = tw_xstrndup(m.in.t[i].name.p, m.in.t[i].name.n);

            rename_one(&m, tw_xstrdup(name), name);
        }
        rename_one(&m, layer_name("model.layers", k, "eh_proj.weight"),
                tw_xstrdup("model.embed_tokens.weight"));
        write_all(&m, k == 2 ? dir : bad, config.p);
    }
    a = logits(from);
    b = logits(dir);
    CHECK(!memcmp(a, b, (size_t)N * 200 * sizeof *a));
    CHECK(!tw_model_open(bad, dev, &o, &err));
    CHECK(strstr(err.msg, "model.layers.3.eh_proj.weight"));
    tw_err_clear(&err);
    tw_buf_free(&config);
    free(a), free(b), free(dir), free(bad);
}

int main(void)
{
    top = tw_xstrdup("/tmp/tw-model-forms-XXXXXX");
    dev = tw_cpu_open(1, "auto", &err);
    if (!dev || !mkdtemp(top))
        return 1;
    RUN(internlm2);
    RUN(internlm3);
    RUN(chatglm);
    RUN(chatglm_heads);
    RUN(adapter_rows);
    RUN(other_forms);
    RUN(next_token_layers);
    tw_dev_close(dev);
    tw_rmtree(top, &err);
    free(top);
    return test_end();
}
