/* qwen3.c - Qwen3 dense: every head of q and k is normalised before it is rotated */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "use_sliding_window", "sliding_window",
    "max_window_layers", "layer_types", NULL };

const struct tw_family tw_family_qwen3 = {
    .name = "qwen3",
    .model_type = { "qwen3" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 4096, .I = 22016, .L = 32, .nh = 32, .nkv = 32, .hd = 128,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .window = 4096,
        .max_window_layers = 28, .qk_norm = true,
        .rope = { { .theta = 10000 } } },
    .config = tw_config_attn_bias,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu } },
    .lora_default = "q_proj+v_proj",
};
