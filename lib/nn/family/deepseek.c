/* deepseek.c - DeepSeek-V2 and V3 (R1, V3.1, and others with that class): attention over latents,
 * the first layers dense, the others experts beside a shared one. V2 chooses experts by the softmax
 * of the router, V3 by its sigmoid with a bias. */
#include "nn/family.h"
#include <math.h>

static const struct tw_tdef attn[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DLQ, .cols = TW_DD,
      .when = TW_IF_FULL_Q, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.q_a_proj", .slot = TW_S_QA, .rows = TW_DRQ, .cols = TW_DD,
      .when = TW_IF_LOW_Q, .bias = TW_IF_QKV_BIAS, .lora = true },
    { .name = "self_attn.q_a_layernorm", .slot = TW_S_QANORM, .rows = TW_D1, .cols = TW_DRQ,
      .when = TW_IF_LOW_Q },
    { .name = "self_attn.q_b_proj", .slot = TW_S_QB, .rows = TW_DLQ, .cols = TW_DRQ,
      .when = TW_IF_LOW_Q, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.kv_a_proj_with_mqa", .slot = TW_S_KVA, .rows = TW_DRKVPE, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .lora = true },
    { .name = "self_attn.kv_a_layernorm", .slot = TW_S_KVANORM, .rows = TW_D1, .cols = TW_DRKV },
    { .name = "self_attn.kv_b_proj", .slot = TW_S_KVB, .rows = TW_DLKV, .cols = TW_DRKV,
      .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DLO,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

/* The value of KEY, when it is there, must be one of A and B. */
static int one_of(const struct tw_config *c, const char *key, const char *a, const char *b,
        struct tw_str *got, struct tw_err *err)
{
    *got = tw_str(a);
    if (tw_json_get_str(c->text, key, got, err) < 0)
        return -1;
    if (tw_str_is(*got, a) || tw_str_is(*got, b))
        return 0;
    return tw_fail(err, c->path, 0, "%s is \"%.*s\": family %s knows %s%s%s", key, (int)got->n,
            got->p, c->family->name, a, strcmp(a, b) ? " and " : "", strcmp(a, b) ? b : "");
}

/* Scores are over both parts of a head; what yarn adds is a factor of them, not of the angles. Every
 * head has a key of its own, whatever num_key_value_heads says. */
static int latents(struct tw_config *c, struct tw_err *err)
{
    int64_t dqk = c->mla.dn + c->mla.dr, said = dqk;

    if (tw_json_get_int(c->text, "qk_head_dim", &said, err) < 0 ||
        tw_json_get_bool(c->text, "rope_interleave", &c->rope_interleaved, err) < 0)
        return -1;
    if (said != dqk)
        return tw_fail(err, c->path, 0, "qk_head_dim is %lld, qk_nope_head_dim + qk_rope_head_dim "
                "is %lld", (long long)said, (long long)dqk);
    if (tw_json_has(c->text, "q_lora_rank") && !tw_json_get(c->text, "q_lora_rank"))
        c->mla.rq = 0;          /* null: no default */
    if (c->nh * (dqk + c->mla.dv) > (int64_t)1 << 26)
        return tw_fail(err, c->path, 0, "num_attention_heads times the widths of a head is %lld: "
                "too large", (long long)(c->nh * (dqk + c->mla.dv)));
    c->nkv = c->nh;
    c->attn_scale = tw_rope_score_gain(&c->rope[0]) / sqrt((double)dqk);
    return tw_config_attn_bias(c, err);
}

static int config_v2(struct tw_config *c, struct tw_err *err)
{
    struct tw_str s;

    if (one_of(c, "scoring_func", "softmax", "softmax", &s, err) ||
        one_of(c, "topk_method", "greedy", "group_limited_greedy", &s, err))
        return -1;
    if (tw_str_is(s, "greedy"))
        c->moe.groups = c->moe.topk_groups = 1;
    return latents(c, err) || tw_config_moe(c, err) ? -1 : 0;
}

static int config_v3(struct tw_config *c, struct tw_err *err)
{
    struct tw_str s;

    if (one_of(c, "scoring_func", "sigmoid", "sigmoid", &s, err) ||
        one_of(c, "topk_method", "noaux_tc", "noaux_tc", &s, err))
        return -1;
    return latents(c, err) || tw_config_moe(c, err) ? -1 : 0;
}

static const char *const claims[] = { "attention_bias", "mlp_bias", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "rope_interleave",
    "n_routed_experts", "num_experts", "num_local_experts", "n_shared_experts",
    "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq",
    "n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor",
    "norm_topk_prob", "num_nextn_predict_layers", "output_router_logits", "router_aux_loss_coef",
    /* of pre-training, and of how experts are spread */
    "aux_loss_alpha", "seq_aux", "ep_size", NULL };

const struct tw_family tw_family_deepseek_v2 = {
    .name = "deepseek_v2",
    .model_type = { "deepseek_v2" },
    .claims = claims,
    .defaults = { .V = 102400, .D = 4096, .I = 11008, .L = 30, .nh = 32, .hd = 64,
        .max_positions = 2048, .eps = 1e-6, .init_range = 0.02, .rope_interleaved = true,
        .rope = { { .theta = 10000 } },
        .mla = { .rq = 1536, .rkv = 512, .dn = 128, .dr = 64, .dv = 128 },
        .moe = { .E = 64, .K = 6, .I = 1407, .shared_count = 2, .route = TW_ROUTE_GROUP_MAX,
            .scale = 1 } },
    .config = config_v2,
    .global = tw_global_decoder,
    .mixer = { { attn, &tw_block_mla } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_deepseek, &tw_block_moe } },
    .lora_default = "q_proj+q_a_proj+q_b_proj+kv_a_proj_with_mqa+kv_b_proj+o_proj",
};

const struct tw_family tw_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .model_type = { "deepseek_v3" },
    .claims = claims,
    .defaults = { .V = 129280, .D = 7168, .I = 18432, .L = 61, .nh = 128, .hd = 64,
        .max_positions = 4096, .eps = 1e-6, .init_range = 0.02, .rope_interleaved = true,
        .rope = { { .theta = 10000 } },
        .mla = { .rq = 1536, .rkv = 512, .dn = 128, .dr = 64, .dv = 128 },
        .moe = { .E = 256, .K = 8, .I = 2048, .shared_count = 1, .route = TW_ROUTE_SIGMOID,
            .groups = 8, .topk_groups = 4, .norm = true, .scale = 2.5, .first_dense = 3 } },
    .config = config_v3,
    .global = tw_global_decoder,
    .mixer = { { attn, &tw_block_mla } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu }, { tw_ffn_moe_deepseek, &tw_block_moe } },
    .lora_default = "q_proj+q_a_proj+q_b_proj+kv_a_proj_with_mqa+kv_b_proj+o_proj",
};
