/* internlm2.c - InternLM2 and 2.5: the maths of Llama; q, k and v are one matrix, whose rows come group
 * by group */
#include "nn/family.h"

static const struct tw_tdef global[] = {
    { .name = "tok_embeddings", .slot = TW_S_EMBED, .rows = TW_DV, .cols = TW_DD,
      .axis = TW_AX_VOCAB },
    { .name = "norm", .slot = TW_S_NORM_F, .rows = TW_D1, .cols = TW_DD },
    { .name = "output", .slot = TW_S_HEAD, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { 0 },
};

static const struct tw_tdef attn[] = {
    { .name = "attention_norm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "attention.wqkv", .slot = TW_S_QKV, .rows = TW_DQKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true, .files = tw_files_qkv },
    { .name = "attention.wo", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

static const struct tw_tdef ffn[] = {
    { .name = "ffn_norm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD },
    { .name = "feed_forward.w1", .slot = TW_S_GATE, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "feed_forward.w3", .slot = TW_S_UP, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "feed_forward.w2", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

/* "bias" is that of both products of attention. */
static int config(struct tw_config *c, struct tw_err *err)
{
    c->qkv_bias = c->o_bias;
    return 0;
}

static const char *const claims[] = { "bias", NULL };

const struct tw_family tw_family_internlm2 = {
    .name = "internlm2",
    .model_type = { "internlm2" },
    .claims = claims,
    .defaults = { .V = 103168, .D = 4096, .I = 11008, .L = 32, .nh = 32, .max_positions = 2048,
        .eps = 1e-6, .init_range = 0.02, .o_bias = true, .qkv_groups = true,
        .rope = { { .theta = 10000 } } },
    .config = config,
    .global = global,
    .mixer = { { attn, &tw_block_gqa_fused } },
    .ffn = { { ffn, &tw_block_swiglu } },
    .lora_default = "wqkv",
};
