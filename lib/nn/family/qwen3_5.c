/* qwen3_5.c - Qwen3.5, dense and with experts: the text part of multimodal checkpoints, too. Three of
 * four layers are a gated delta rule. Norms are zero-centred but for the one behind the rule */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "layer_types", "full_attention_interval",
    "attn_output_gate", "output_gate_type", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "mamba_ssm_dtype",
    "mlp_only_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
    /* experts */
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "norm_topk_prob", "router_aux_loss_coef",
    "output_router_logits", NULL };

static int config_moe(struct tw_config *c, struct tw_err *err)
{
    c->moe.norm = true;         /* whatever a flag says */
    return tw_config_delta(c, err) || tw_config_moe(c, err) ? -1 : 0;
}

#define COMMON \
    .V = 248320, .hd = 256, .nh = 16, .max_positions = 32768, .eps = 1e-6, .init_range = 0.02, \
    .qk_norm = true, .norm_off = 1, .rope = { { .theta = 10000, .partial = 0.25 } }, \
    .lin = { .hk = 16, .hv = 32, .dk = 128, .dv = 128, .taps = 4, .interval = 4, \
        .output_gate = true }
#define MIXERS { { tw_attn_gated, &tw_block_gated }, { tw_delta_apart, &tw_block_delta } }

const struct tw_family tw_family_qwen3_5 = {
    .name = "qwen3_5",
    .model_type = { "qwen3_5", "qwen3_5_text" },
    .claims = claims,
    .defaults = { COMMON, .D = 4096, .I = 12288, .L = 32, .nkv = 4 },
    .config = tw_config_delta,
    .global = tw_global_decoder,
    .mixer = MIXERS,
    .ffn = { { tw_ffn_llama, &tw_block_swiglu } },
    .skip = tw_family_delta_skip,
    .lora_default = "q_proj+k_proj+v_proj+o_proj+in_proj_qkv+in_proj_z+out_proj",
};

const struct tw_family tw_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_type = { "qwen3_5_moe", "qwen3_5_moe_text" },
    .claims = claims,
    .defaults = { COMMON, .D = 2048, .I = 512, .L = 40, .nkv = 2,
        .moe = { .E = 256, .K = 8, .I = 512, .shared = 512, .shared_gate = true, .aux = 0.001,
            .fused = true } },
    .config = config_moe,
    .global = tw_global_decoder,
    .mixer = MIXERS,
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_qwen, &tw_block_moe } },
    .skip = tw_family_delta_skip,
    .lora_default = "q_proj+k_proj+v_proj+o_proj+in_proj_qkv+in_proj_z+out_proj",
};
