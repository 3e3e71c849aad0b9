/* draw_families.c - decode steps of fused ops against passes, for families beyond Llama's: experts,
 * latents, recurrent layers with gated attention, and room for adapters beside the weights. Skipped
 * without a GPU. */
#include <math.h>
#include <stdlib.h>
#include "base/rng.h"
#include "nn/model.h"
#include "nn/step.h"
#include "test.h"

static struct tw_dev *dev;

#define WIDTHS "\"vocab_size\":96,\"hidden_size\":128,\"intermediate_size\":192,\"rms_norm_eps\":1e-6," \
    "\"max_position_embeddings\":4096,"
#define SIZES WIDTHS "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"
#define LATENT "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"kv_lora_rank\":64," \
    "\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":32,\"moe_intermediate_size\":64," \
    "\"n_shared_experts\":2,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"rope_theta\":10000,"
#define LINEAR LINEAR_OF("32", "64")
#define LINEAR_OF(k, v) "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64," \
    "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":" k ",\"linear_value_head_dim\":" v "," \
    "\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"attn_output_gate\":true," \
    "\"layer_types\":[\"linear_attention\",\"linear_attention\",\"full_attention\"]," \
    "\"rope_parameters\":{\"partial_rotary_factor\":0.25,\"rope_theta\":10000.0,\"rope_type\":\"default\"},"

static const struct family {
    const char *name, *config;
    int64_t room;
    int few;                    /* sequences when little is wanted */
} family[] = {
    { "experts", "{\"model_type\":\"qwen3_moe\"," SIZES "\"num_hidden_layers\":3,\"num_experts\":16,"
        "\"num_experts_per_tok\":4,\"moe_intermediate_size\":96,\"norm_topk_prob\":true,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"rope_theta\":10000}", 0, 2 },
    { "many rows an expert, 8 heads a kv head", "{\"model_type\":\"qwen3_moe\"," SIZES
        "\"num_hidden_layers\":2,\"num_experts\":3,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,"
        "\"moe_intermediate_size\":96,\"num_attention_heads\":8,\"num_key_value_heads\":1,\"head_dim\":64,"
        "\"rope_theta\":10000}", 0, 70 },
    { "shared expert", "{\"model_type\":\"qwen2_moe\"," SIZES "\"num_hidden_layers\":2,\"num_experts\":40,"
        "\"num_experts_per_tok\":3,\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":64,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"rope_theta\":10000}", 0, 17 },
    { "latents", "{\"model_type\":\"deepseek_v2\"," SIZES LATENT "\"num_hidden_layers\":3,"
        "\"q_lora_rank\":null,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"n_group\":1,"
        "\"topk_group\":1,\"topk_method\":\"greedy\",\"scoring_func\":\"softmax\","
        "\"norm_topk_prob\":false,\"routed_scaling_factor\":1.0}", 0, 7 },
    { "groups", "{\"model_type\":\"deepseek_v3\"," SIZES LATENT "\"num_hidden_layers\":2,"
        "\"q_lora_rank\":64,\"n_routed_experts\":16,\"num_experts_per_tok\":4,\"n_group\":4,"
        "\"topk_group\":2,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5}", 0, 33 },
    { "recurrent", "{\"model_type\":\"qwen3_5_text\"," SIZES LINEAR "\"num_hidden_layers\":3}", 0, 1 },
    { "recurrent, heads of 128", "{\"model_type\":\"qwen3_5_text\"," SIZES LINEAR_OF("128", "128")
        "\"num_hidden_layers\":3}", 0, 16 },
    { "recurrent experts", "{\"model_type\":\"qwen3_5_moe_text\"," SIZES LINEAR
        "\"num_hidden_layers\":3,\"num_experts\":8,\"num_experts_per_tok\":2,"
        "\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":64}", 0, 17 },
    { "fused projections", "{\"model_type\":\"qwen3_next\"," SIZES LINEAR "\"num_hidden_layers\":3,"
        "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,"
        "\"shared_expert_intermediate_size\":64,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
        "\"mlp_only_layers\":[]}", 0, 7 },
    { "window", "{\"model_type\":\"gemma3_text\"," WIDTHS "\"tie_word_embeddings\":true,"
        "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":1,\"head_dim\":64,\"query_pre_attn_scalar\":64,\"sliding_window\":40,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],"
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}}", 0, 2 },
    { "window of qwen2", "{\"model_type\":\"qwen2\"," SIZES "\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"use_sliding_window\":true,\"sliding_window\":40,"
        "\"max_window_layers\":1,\"rope_theta\":10000.0}", 0, 16 },
    { "gate and up in one", "{\"model_type\":\"glm\"," SIZES "\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"rope_theta\":10000.0}", 0, 7 },
    { "norms behind blocks", "{\"model_type\":\"glm4\"," SIZES "\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"rope_theta\":10000.0}", 0, 33 },
    { "room", "{\"model_type\":\"qwen3\"," SIZES "\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32,\"rope_theta\":10000.0}", 16, 17 },
};

enum { MOST = 70 };

struct world {
    struct tw_model *m;
    struct tw_adapter *a;
    struct tw_state *step[MOST], *pass[MOST];
    int32_t last[MOST];
    float *z;
    int64_t rows, far;          /* compared; far off */
};

static void open_world(struct world *w, const struct family *f)
{
    struct tw_model_opts o = { .dtype = TW_BF16, .init_random = true, .seed = 3, .lora_room = f->room };
    struct tw_lora_opts lo = { .r = 8, .alpha = 16, .init = "gaussian", .targets = "o_proj+down_proj" };
    struct tw_err err = { 0 };
    char path[] = "/tmp/tw-draw-XXXXXX";
    int fd = mkstemp(path);
    FILE *fp = fdopen(fd, "w");

    fputs(f->config, fp);
    fclose(fp);
    o.config_json = path;
    *w = (struct world){ 0 };
    w->m = tw_model_open(NULL, dev, &o, &err);
    CHECK_STR(err.msg, "");
    remove(path);
    CHECK(tw_step_fits(w->m));
    if (f->room)
        w->a = tw_adapter_new(w->m, &lo, 1, true, &err);
    for (int64_t j = 1; w->a && j < tw_adapter_params(w->a)->n; j += 2) {       /* B is zero at first */
        const struct tw_param *p = &tw_adapter_params(w->a)->p[j];
        float *b = tw_xreallocarray(NULL, (size_t)p->n, sizeof *b);

        for (int64_t i = 0; i < p->n; i++)
            b[i] = 0.02f * (float)tw_rand_normal((uint64_t)j, 5, (uint64_t)i);
        tw_ops(dev)->put(dev, p->w.data, b, (size_t)p->n * 4);
        free(b);
    }
    w->z = tw_xreallocarray(NULL, (size_t)(MOST * tw_model_info(w->m)->V), sizeof *w->z);
}

/* A token each of T sequences by a step and by a pass. */
static void once(struct world *w, int T, int turn)
{
    int64_t V = tw_model_info(w->m)->V, want[MOST];
    struct tw_seq seq[MOST];
    struct tw_choice c[MOST];
    struct tw_err err = { 0 };

    for (int i = 0; i < T; i++) {
        w->last[i] = (int32_t)((w->last[i] * 31 + 7 + turn) % V);
        seq[i] = (struct tw_seq){ .token = &w->last[i], .n = 1, .state = w->step[i],
            .adapter = i % 2 ? w->a : NULL };
        c[i] = (struct tw_choice){ .top_p = 1, .repetition = 1 };
        want[i] = i;
    }
    CHECK(!tw_model_draw(w->m, seq, T, c, NULL, &err));
    if (test_quick())
        return;
    for (int i = 0; i < T; i++)
        seq[i].state = w->pass[i];
    CHECK(!tw_model_decode(w->m, seq, T, want, T, w->z, &err));
    CHECK_STR(err.msg, "");
    for (int i = 0; i < T; i++) {
        float logp = c[i].id >= 0 && c[i].id < V ?
            tw_ops(dev)->pick(dev, w->z + i * V, V, 1, c[i].id) : NAN;

        w->rows++;
        w->far += !(fabsf(logp - c[i].logp) < 0.06f);
    }
}

/* T sequences of different lengths, a few tokens each; then from copies on the way. With little their prompts
 * are made at once, and steps are not compared. */
static void compare(struct world *w, int T, int longest)
{
    int64_t V = tw_model_info(w->m)->V;
    int32_t *prompt = tw_xcalloc((size_t)longest, sizeof *prompt);
    struct tw_seq all[MOST];
    int64_t nall = 0;
    struct tw_err err = { 0 };

    for (int i = 0; i < longest; i++)
        prompt[i] = (int32_t)((i * 37 + i * i) % V);
    for (int i = 0; i < T; i++) {
        struct tw_seq seq = { .token = prompt, .n = 1 + (i * 53 + longest - 3) % longest,
            .adapter = i % 2 ? w->a : NULL };

        w->last[i] = (int32_t)(11 * i % V);
        seq.state = w->step[i] = tw_state_new(w->m, &err);
        tw_state_marks(w->step[i], i % 3 == 0);
        if (test_quick())
            all[nall++] = seq;
        else
            CHECK(i == 5 || !tw_model_decode(w->m, &seq, 1, NULL, 0, NULL, &err));  /* one begins with a step */
        w->pass[i] = tw_state_fork(w->step[i], &err);
        CHECK_STR(err.msg, "");
    }
    CHECK(!nall || !tw_model_decode(w->m, all, nall, NULL, 0, NULL, &err));
    for (int turn = 0; turn < (test_quick() ? 2 : 4); turn++)
        once(w, T, turn);
    for (int i = 0; i < T && !test_quick(); i++) {
        int64_t n = tw_state_cut(w->step[i], tw_state_len(w->step[i]) - 1);

        CHECK_INT(tw_state_cut(w->pass[i], tw_state_len(w->pass[i]) - 1), n);
        CHECK(!tw_state_truncate(w->step[i], n, &err) && !tw_state_truncate(w->pass[i], n, &err));
    }
    once(w, T, 4);
    for (int i = 0; i < T; i++) {
        tw_state_free(w->step[i]);
        tw_state_free(w->pass[i]);
    }
    free(prompt);
}

/* Families [FROM, TO). Where two experts are as good as equal, a step may choose the other one: of few rows. */
static void steps_are_passes(size_t from, size_t to)
{
    static const int T[] = { 1, 2, 7, 16, 17, 33, MOST };

    for (size_t k = from; k < to; k++) {
        int few = family[k].few;
        struct world w;

        open_world(&w, &family[k]);
        for (size_t i = 0; i < sizeof T / sizeof *T && !test_quick(); i++)
            compare(&w, T[i], 66);
        if (test_quick())
            compare(&w, few, few < 17 ? 66 : 20);
        else
            compare(&w, 3, 700);
        printf("# %s: %lld of %lld rows are far off\n", family[k].name, (long long)w.far,
               (long long)w.rows);
        CHECK(w.far * 50 <= w.rows);
        tw_adapter_close(w.a);
        tw_model_close(w.m);
        free(w.z);
    }
}

static void experts(void)
{
    steps_are_passes(0, 3);
}

static void latents(void)
{
    steps_are_passes(3, 5);
}

static void recurrent(void)
{
    steps_are_passes(5, 7);
}

static void recurrent_experts(void)
{
    steps_are_passes(7, 9);
}

static void windows(void)
{
    steps_are_passes(9, 11);
}

static void others(void)
{
    steps_are_passes(11, sizeof family / sizeof *family);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_dev_open("cuda", 0, &err);
    if (!dev || !tw_ops(dev)->step) {
        printf("1..0 # SKIP %s\n", dev ? "the GPU makes no steps" : err.msg);
        return 0;
    }
    RUN(experts);
    RUN(latents);
    RUN(recurrent);
    RUN(recurrent_experts);
    RUN(windows);
    RUN(others);
    tw_dev_close(dev);
    return test_end();
}
