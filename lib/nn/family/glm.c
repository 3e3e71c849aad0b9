/* glm.c - glm-4-9b and GLM-Edge as converted (glm), GLM-4-0414 and GLM-Z1 (glm4), which has norms of
 * what a block gives, too: adjacent numbers of the first half of a head are rotated, gate and up are
 * one matrix, q, k and v may have a bias and o never has */
#include "nn/family.h"

static const struct tw_tdef attn[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DQ, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.k_proj", .slot = TW_S_K, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.v_proj", .slot = TW_S_V, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .axis = TW_AX_ROW, .lora = true },
    { .name = "post_self_attn_layernorm", .slot = TW_S_POST1, .rows = TW_D1, .cols = TW_DD,
      .when = TW_IF_POST_NORMS },
    { 0 },
};

static const struct tw_tdef ffn[] = {
    { .name = "post_attention_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD },
    { .name = "mlp.gate_up_proj", .slot = TW_S_GATEUP, .rows = TW_DI2, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.down_proj", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .axis = TW_AX_ROW, .lora = true },
    { .name = "post_mlp_layernorm", .slot = TW_S_POST2, .rows = TW_D1, .cols = TW_DD,
      .when = TW_IF_POST_NORMS },
    { 0 },
};

static int config(struct tw_config *c, struct tw_err *err)
{
    c->qkv_bias = c->attention_bias;
    return 0;
}

static const char *const claims[] = { "attention_bias", NULL };

#define DEFAULTS .V = 151552, .D = 4096, .I = 13696, .L = 40, .nh = 32, .nkv = 2, .hd = 128, \
        .max_positions = 131072, .init_range = 0.02, .rope_interleaved = true, \
        .rope = { { .theta = 10000, .partial = 0.5 } }

const struct tw_family tw_family_glm = {
    .name = "glm",
    .model_type = { "glm" },
    .claims = claims,
    .defaults = { DEFAULTS, .eps = 1.5625e-7, .attention_bias = true },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { attn, &tw_block_gqa } },
    .ffn = { { ffn, &tw_block_swiglu_fused } },
    .lora_default = "q_proj+v_proj",
};

const struct tw_family tw_family_glm4 = {
    .name = "glm4",
    .model_type = { "glm4" },
    .claims = claims,
    .defaults = { DEFAULTS, .eps = 1.5625e-7, .attention_bias = true, .post_norms = true },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { attn, &tw_block_gqa } },
    .ffn = { { ffn, &tw_block_swiglu_fused } },
    .lora_default = "q_proj+v_proj",
};
