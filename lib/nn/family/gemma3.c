/* gemma3.c - the text model of Gemma 3: norms around both parts of a layer, all zero-centred; scaled
 * embeddings; of every few layers one sees all, with angles of its own, the others a window */
#include "nn/family.h"
#include <math.h>

static const struct tw_tdef global[] = {
    { .name = "embed_tokens", .slot = TW_S_EMBED, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { .name = "norm", .slot = TW_S_NORM_F, .rows = TW_D1, .cols = TW_DD, .init = TW_INIT_ZERO },
    { .name = "lm_head", .slot = TW_S_HEAD, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { 0 },
};

static const struct tw_tdef attn[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD,
      .init = TW_INIT_ZERO },
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DQ, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.k_proj", .slot = TW_S_K, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.v_proj", .slot = TW_S_V, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { .name = "self_attn.q_norm", .slot = TW_S_QNORM, .rows = TW_D1, .cols = TW_DHD,
      .init = TW_INIT_ZERO },
    { .name = "self_attn.k_norm", .slot = TW_S_KNORM, .rows = TW_D1, .cols = TW_DHD,
      .init = TW_INIT_ZERO },
    { .name = "post_attention_layernorm", .slot = TW_S_POST1, .rows = TW_D1, .cols = TW_DD,
      .init = TW_INIT_ZERO },
    { 0 },
};

static const struct tw_tdef ffn[] = {
    { .name = "pre_feedforward_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD,
      .init = TW_INIT_ZERO },
    { .name = "mlp.gate_proj", .slot = TW_S_GATE, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.up_proj", .slot = TW_S_UP, .rows = TW_DI, .cols = TW_DD,
      .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.down_proj", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .axis = TW_AX_ROW, .lora = true },
    { .name = "post_feedforward_layernorm", .slot = TW_S_POST2, .rows = TW_D1, .cols = TW_DD,
      .init = TW_INIT_ZERO },
    { 0 },
};

/* Without a list of layer types every n-th layer sees all. */
static int layers(struct tw_config *c, struct tw_err *err)
{
    int64_t every = 6;

    if (tw_json_get(c->text, "layer_types"))
        return 0;
    if (tw_json_get_int(c->text, "_sliding_window_pattern", &every, err) < 0 ||
        tw_json_get_int(c->text, "sliding_window_pattern", &every, err) < 0)
        return -1;
    if (every < 1 || c->window < 1)
        return tw_fail(err, c->path, 0, "sliding_window %lld in all but every %lld-th layer is no "
                "schedule", (long long)c->window, (long long)every);
    for (int64_t i = 0; i < c->L; i++)
        c->layer[i].window = (i + 1) % every ? c->window : 0;
    return 0;
}

/* Angles of layers with a window have a base of their own and are never scaled; older releases keep
 * it beside the others' settings. */
static int ropes(struct tw_config *c, struct tw_err *err)
{
    struct tw_rope_conf *r = &c->rope[1];

    if (c->nrope == 1) {
        *r = (struct tw_rope_conf){ .theta = 10000, .partial = c->rope[0].partial };
        c->nrope = 2;
        if (tw_json_get_num(c->text, "rope_local_base_freq", &r->theta, err) < 0 ||
            tw_config_rope_check(c, r, err))
            return -1;
    }
    for (int64_t i = 0; i < c->L; i++)
        c->layer[i].rope = c->layer[i].window ? 1 : 0;
    return 0;
}

static int config(struct tw_config *c, struct tw_err *err)
{
    double scalar = 256;

    if (!tw_json_get(c->text, "hidden_activation") && !tw_json_get(c->text, "hidden_act"))
        c->act = TW_GELU_TANH;
    if (tw_json_get_num(c->text, "query_pre_attn_scalar", &scalar, err) < 0)
        return -1;
    if (!(scalar > 0))
        return tw_fail(err, c->path, 0, "query_pre_attn_scalar is %g", scalar);
    c->attn_scale = 1 / sqrt(scalar);
    c->embed_scale = sqrt((double)c->D);
    return tw_config_attn_bias(c, err) || layers(c, err) || ropes(c, err) ? -1 : 0;
}

static const char *const claims[] = { "attention_bias", "sliding_window", "layer_types",
    "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq",
    "query_pre_attn_scalar",
    /* of the multimodal class around it, and of what runs it */
    "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image",
    "cache_implementation", NULL };

static const char *const skip[] = { "vision_tower.", "multi_modal_projector.",
    "model.vision_tower.", "model.multi_modal_projector.", NULL };

const struct tw_family tw_family_gemma3 = {
    .name = "gemma3",
    .model_type = { "gemma3_text" },
    .claims = claims,
    .defaults = { .V = 262208, .D = 2304, .I = 9216, .L = 26, .nh = 8, .nkv = 4, .hd = 256,
        .max_positions = 131072, .eps = 1e-6, .init_range = 0.02, .tied = true, .window = 4096,
        .norm_off = 1, .post_norms = true,
        .rope = { { .theta = 1000000 }, { .theta = 10000 } } },
    .config = config,
    .global = global,
    .mixer = { { attn, &tw_block_gqa } },
    .ffn = { { ffn, &tw_block_swiglu } },
    .skip = skip,
    .lora_default = "q_proj+v_proj",
};
