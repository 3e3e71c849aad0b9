/* chatglm.c - ChatGLM2 and 3, glm-4-9b with the layout of their own code: the maths of glm.c, q, k and
 * v one matrix, and names and config keys that nobody else has */
#include "nn/family.h"

static const struct tw_tdef global[] = {
    { .name = "embedding.word_embeddings", .slot = TW_S_EMBED, .rows = TW_DV, .cols = TW_DD,
      .axis = TW_AX_VOCAB },
    { .name = "encoder.final_layernorm", .slot = TW_S_NORM_F, .rows = TW_D1, .cols = TW_DD },
    { .name = "transformer.output_layer", .slot = TW_S_HEAD, .rows = TW_DV, .cols = TW_DD,
      .axis = TW_AX_VOCAB },
    { 0 },
};

static const struct tw_tdef attn[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "self_attention.query_key_value", .slot = TW_S_QKV, .rows = TW_DQKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true, .files = tw_files_qkv },
    { .name = "self_attention.dense", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

static const struct tw_tdef ffn[] = {
    { .name = "post_attention_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD },
    { .name = "mlp.dense_h_to_4h", .slot = TW_S_GATEUP, .rows = TW_DI2, .cols = TW_DD,
      .bias = TW_IF_MLP_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.dense_4h_to_h", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .bias = TW_IF_MLP_BIAS, .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

/* Settings of their code that have one value in all their models. */
static int check(const struct tw_config *c, struct tw_err *err)
{
    static const struct {
        const char *key;
        bool want;
    } fixed[] = { { "rmsnorm", true }, { "post_layer_norm", true }, { "original_rope", true },
        { "apply_residual_connection_post_layernorm", false }, { "prefix_projection", false },
        { "interleaved_qkv", false } };

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        bool is = fixed[i].want;

        if (tw_json_get_bool(c->text, fixed[i].key, &is, err) < 0)
            return -1;
        if (is != fixed[i].want)
            return tw_fail(err, c->path, 0, "%s is %s: no model of family chatglm is known that "
                    "has it so", fixed[i].key, is ? "true" : "false");
    }
    return 0;
}

/* With a key for each head their matrix comes head by head. The angles' base is 10000 by a ratio. */
static int config(struct tw_config *c, struct tw_err *err)
{
    bool shared = false;
    double ratio = 1;

    if (check(c, err) || tw_json_get_bool(c->text, "multi_query_attention", &shared, err) < 0 ||
        tw_json_get_num(c->text, "rope_ratio", &ratio, err) < 0)
        return -1;
    if (!shared) {
        c->nkv = c->nh;
        c->qkv_groups = true;
    }
    c->mlp_bias = c->o_bias;
    c->qkv_bias |= c->o_bias;
    c->rope[0].theta = 10000 * ratio;
    return tw_config_rope_check(c, &c->rope[0], err);
}

static const char *const claims[] = { "num_layers", "ffn_hidden_size", "kv_channels",
    "multi_query_group_num", "padded_vocab_size", "layernorm_epsilon", "seq_length", "add_qkv_bias",
    "add_bias_linear", "multi_query_attention", "rope_ratio", "rmsnorm", "post_layer_norm",
    "original_rope", "apply_residual_connection_post_layernorm", "prefix_projection",
    "interleaved_qkv",
    /* of no effect on what is computed */
    "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion",
    "fp32_residual_connection", "classifier_dropout", "pre_seq_len", "quantization_bit", NULL };

static const char *const skip[] = { "rotary_pos_emb.inv_freq", NULL };

const struct tw_family tw_family_chatglm = {
    .name = "chatglm",
    .model_type = { "chatglm" },
    .claims = claims,
    .defaults = { .V = 65024, .D = 4096, .I = 13696, .L = 28, .nh = 32, .hd = 128,
        .max_positions = 2048, .eps = 1e-5, .init_range = 0.02, .qkv_bias = true,
        .rope_interleaved = true, .rope = { { .theta = 10000, .partial = 0.5 } } },
    .config = config,
    .prefix = { "transformer." },
    .layers = "encoder.layers",
    .global = global,
    .mixer = { { attn, &tw_block_gqa_fused } },
    .ffn = { { ffn, &tw_block_swiglu_fused } },
    .skip = skip,
    .lora_default = "query_key_value",
};
