/* qwen2_moe.c - Qwen1.5-MoE, Qwen2-57B-A14B: Qwen2 with experts, and one that every token passes,
 * weighted by a gate of its own */
#include "nn/family.h"

static const char *const claims[] = { "use_sliding_window", "sliding_window", "max_window_layers",
    "layer_types", "qkv_bias", "num_experts", "num_local_experts", "num_experts_per_tok",
    "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef", "output_router_logits", NULL };

const struct tw_family tw_family_qwen2_moe = {
    .name = "qwen2_moe",
    .model_type = { "qwen2_moe" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 2048, .I = 5632, .L = 24, .nh = 16, .nkv = 16,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .window = 4096,
        .max_window_layers = 28, .qkv_bias = true, .rope = { { .theta = 10000 } },
        .moe = { .E = 60, .K = 4, .I = 1408, .shared = 5632, .shared_gate = true,
            .aux = 0.001 } },
    .config = tw_config_moe,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_qwen, &tw_block_moe } },
    .lora_default = "q_proj+k_proj+v_proj+o_proj",
};
