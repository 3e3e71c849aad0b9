/* glm4_moe.c - GLM-4.5, GLM-4.5-Air, GLM-4.6: half of each head is rotated, in halves; experts are
 * chosen by the sigmoid of the router with a bias, as in DeepSeek-V3 */
#include "nn/family.h"

static const char *const claims[] = { "attention_bias", "use_qk_norm", "n_routed_experts",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace",
    "num_nextn_predict_layers", "output_router_logits", "router_aux_loss_coef", NULL };

/* q, k and v have a bias, o has none. */
static int config(struct tw_config *c, struct tw_err *err)
{
    c->qkv_bias = c->attention_bias;
    return tw_config_moe(c, err);
}

const struct tw_family tw_family_glm4_moe = {
    .name = "glm4_moe",
    .model_type = { "glm4_moe" },
    .claims = claims,
    .defaults = { .V = 151552, .D = 4096, .I = 10944, .L = 46, .nh = 96, .nkv = 8, .hd = 128,
        .max_positions = 131072, .eps = 1e-5, .init_range = 0.02,
        .rope = { { .theta = 10000, .partial = 0.5 } },
        .moe = { .E = 128, .K = 8, .I = 1408, .shared_count = 1, .route = TW_ROUTE_SIGMOID,
            .norm = true, .scale = 1, .first_dense = 1 } },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_deepseek, &tw_block_moe } },
    .lora_default = "q_proj+k_proj+v_proj+o_proj",
};
