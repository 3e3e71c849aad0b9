/* qwen3_next.c - Qwen3-Next: as Qwen3.5 with experts, the projections of a linear layer fused by head */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "layer_types", "full_attention_interval",
    "attn_output_gate", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim", "num_experts", "num_local_experts",
    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef",
    "output_router_logits", NULL };

static int config(struct tw_config *c, struct tw_err *err)
{
    return tw_config_delta(c, err) || tw_config_moe(c, err) ? -1 : 0;
}

const struct tw_family tw_family_qwen3_next = {
    .name = "qwen3_next",
    .model_type = { "qwen3_next" },
    .claims = claims,
    .defaults = { .V = 151936, .D = 2048, .I = 5632, .L = 48, .nh = 16, .nkv = 2, .hd = 256,
        .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, .qk_norm = true, .norm_off = 1,
        .rope = { { .theta = 10000, .partial = 0.25 } },
        .lin = { .hk = 16, .hv = 32, .dk = 128, .dv = 128, .taps = 4, .interval = 4,
            .output_gate = true },
        .moe = { .E = 512, .K = 10, .I = 512, .shared = 512, .shared_gate = true, .norm = true,
            .aux = 0.001 } },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_gated, &tw_block_gated }, { tw_delta_fused, &tw_block_delta_fused } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_qwen, &tw_block_moe } },
    .skip = tw_family_delta_skip,
    .lora_default = "q_proj+k_proj+v_proj+o_proj+in_proj_qkvz+out_proj",
};
