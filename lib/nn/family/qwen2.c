/* qwen2.c - Qwen2, Qwen2.5, R1-Distill-Qwen: q, k and v always have a bias, o never */
#include "nn/family.h"

static const char *const claims[] = { "use_sliding_window", "sliding_window", "max_window_layers",
    "layer_types", NULL };

const struct tw_family tw_family_qwen2 = {
    .name = "qwen2",
    .model_type = { "qwen2" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 4096, .I = 22016, .L = 32, .nh = 32, .nkv = 32,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .window = 4096,
        .max_window_layers = 28, .qkv_bias = true,
        .rope = { { .theta = 10000 } } },
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu } },
    .lora_default = "q_proj+v_proj",
};
