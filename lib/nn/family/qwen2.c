/* qwen2.c - Qwen2, Qwen2.5, R1-Distill-Qwen: q, k and v always have a bias, o never */
#include "nn/family.h"

static const struct tw_tdef layer[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DQ, .cols = TW_DD,
      .bias = TW_BIAS_YES, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.k_proj", .slot = TW_S_K, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_BIAS_YES, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.v_proj", .slot = TW_S_V, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_BIAS_YES, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .axis = TW_AX_ROW, .lora = true },
    { .name = "post_attention_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD },
    { .name = "mlp.gate_proj", .slot = TW_S_GATE, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.up_proj", .slot = TW_S_UP, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.down_proj", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

static const char *const claims[] = { "use_sliding_window", "sliding_window", "max_window_layers",
    "layer_types", NULL };

const struct tw_family tw_family_qwen2 = {
    .name = "qwen2",
    .model_type = { "qwen2" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 4096, .I = 22016, .L = 32, .nh = 32, .nkv = 32,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .window = 4096,
        .max_window_layers = 28, .rope = { .theta = 10000 } },
    .global = tw_global_decoder,
    .layer = layer,
    .block = { &tw_block_gqa, &tw_block_swiglu },
    .lora_default = "q_proj+v_proj",
};
