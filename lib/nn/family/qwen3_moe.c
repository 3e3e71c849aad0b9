/* qwen3_moe.c - Qwen3 with experts: 30B-A3B, 235B-A22B, Coder */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "use_sliding_window", "sliding_window",
    "max_window_layers", "layer_types", "num_experts", "num_local_experts", "num_experts_per_tok",
    "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
    "router_aux_loss_coef", "output_router_logits", NULL };

static int config(struct tw_config *c, struct tw_err *err)
{
    return tw_config_attn_bias(c, err) || tw_config_moe(c, err) ? -1 : 0;
}

const struct tw_family tw_family_qwen3_moe = {
    .name = "qwen3_moe",
    .model_type = { "qwen3_moe" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 2048, .I = 6144, .L = 24, .nh = 32, .nkv = 4,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .window = 4096,
        .max_window_layers = 28, .qk_norm = true, .rope = { { .theta = 10000 } },
        .moe = { .E = 128, .K = 8, .I = 768, .aux = 0.001 } },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_qwen, &tw_block_moe } },
    .lora_default = "q_proj+k_proj+v_proj+o_proj",
};
