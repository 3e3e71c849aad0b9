/* llama.c - Llama 2 and 3, SmolLM2, TinyLlama, R1-Distill-Llama and their kin */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "mlp_bias", NULL };

const struct tw_family tw_family_llama = {
    .name = "llama",
    .model_type = { "llama" },
    .claims = claims,
    .defaults = { .V = 32000, .D = 4096, .I = 11008, .L = 32, .nh = 32, .max_positions = 2048,
        .eps = 1e-6, .init_range = 0.02, .rope = { { .theta = 10000 } } },
    .config = tw_config_attn_bias,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu } },
    .lora_default = "q_proj+v_proj",
};
