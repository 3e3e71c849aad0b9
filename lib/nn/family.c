/* family.c - the registry of families and what they share */
#include "nn/family.h"

static const struct tw_family *const families[] = {
    &tw_family_llama, &tw_family_qwen2, &tw_family_qwen3,
    &tw_family_qwen2_moe, &tw_family_qwen3_moe, &tw_family_glm4_moe,
    &tw_family_glm, &tw_family_glm4, &tw_family_chatglm,
    &tw_family_internlm2, &tw_family_internlm3, &tw_family_gemma3,
    &tw_family_deepseek_v2, &tw_family_deepseek_v3,
    &tw_family_qwen3_next, &tw_family_qwen3_5, &tw_family_qwen3_5_moe,
};

const struct tw_tdef tw_global_decoder[] = {
    { .name = "embed_tokens", .slot = TW_S_EMBED, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { .name = "norm", .slot = TW_S_NORM_F, .rows = TW_D1, .cols = TW_DD },
    { .name = "lm_head", .slot = TW_S_HEAD, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { 0 },
};

const struct tw_tdef tw_attn_llama[] = {
    { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD },
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DQ, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.k_proj", .slot = TW_S_K, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.v_proj", .slot = TW_S_V, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { .name = "self_attn.q_norm", .slot = TW_S_QNORM, .rows = TW_D1, .cols = TW_DHD,
      .when = TW_IF_QK_NORM },
    { .name = "self_attn.k_norm", .slot = TW_S_KNORM, .rows = TW_D1, .cols = TW_DHD,
      .when = TW_IF_QK_NORM },
    { 0 },
};

const struct tw_tdef tw_ffn_llama[] = {
    { .name = "post_attention_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD },
    { .name = "mlp.gate_proj", .slot = TW_S_GATE, .rows = TW_DI, .cols = TW_DD,
      .bias = TW_IF_MLP_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.up_proj", .slot = TW_S_UP, .rows = TW_DI, .cols = TW_DD,
      .bias = TW_IF_MLP_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "mlp.down_proj", .slot = TW_S_DOWN, .rows = TW_DD, .cols = TW_DI,
      .bias = TW_IF_MLP_BIAS, .axis = TW_AX_ROW, .lora = true },
    { 0 },
};

int tw_config_attn_bias(struct tw_config *c, struct tw_err *err)
{
    c->qkv_bias = c->o_bias = c->attention_bias;
    return 0;
}

bool tw_if(const struct tw_config *c, enum tw_if f)
{
    switch (f) {
    case TW_IF_UNSET: return false;
    case TW_IF_YES: return true;
    case TW_IF_QKV_BIAS: return c->qkv_bias;
    case TW_IF_O_BIAS: return c->o_bias;
    case TW_IF_MLP_BIAS: return c->mlp_bias;
    case TW_IF_QK_NORM: return c->qk_norm;
    case TW_IF_POST_NORMS: return c->post_norms;
    case TW_IF_SHARED: return c->moe.shared > 0;
    case TW_IF_ROUTER_BIAS: return c->moe.route == TW_ROUTE_SIGMOID;
    case TW_IF_SHARED_GATE: return c->moe.shared > 0 && c->moe.shared_gate;
    case TW_IF_LOW_Q: return c->mla.rq > 0;
    case TW_IF_FULL_Q: return !c->mla.rq;
    }
    return false;
}

int64_t tw_dim(const struct tw_config *c, enum tw_dim dim)
{
    struct tw_delta d = tw_delta_conf(c);

    switch (dim) {
    case TW_D1: return 1;
    case TW_DONE: return 1;
    case TW_DV: return c->V;
    case TW_DD: return c->D;
    case TW_DI: return c->I;
    case TW_DQ: return c->nh * c->hd;
    case TW_DKV: return c->nkv * c->hd;
    case TW_DHD: return c->hd;
    case TW_DE: return c->moe.E;
    case TW_DIM: return c->moe.I;
    case TW_DIM2: return 2 * c->moe.I;
    case TW_DIS: return c->moe.shared;
    case TW_DQKV: return (c->nh + 2 * c->nkv) * c->hd;
    case TW_DI2: return 2 * c->I;
    case TW_DLQ: return c->nh * (c->mla.dn + c->mla.dr);
    case TW_DRQ: return c->mla.rq;
    case TW_DRKV: return c->mla.rkv;
    case TW_DRKVPE: return c->mla.rkv + c->mla.dr;
    case TW_DLKV: return c->nh * (c->mla.dn + c->mla.dv);
    case TW_DLO: return c->nh * c->mla.dv;
    case TW_DQ2: return 2 * c->nh * c->hd;
    case TW_DC: return tw_delta_cols(&d);
    case TW_DVD: return d.hv * d.dv;
    case TW_DQKVZ: return tw_delta_cols(&d) + d.hv * d.dv;
    case TW_DCONV: return tw_delta_cols(&d) * d.taps;
    case TW_DHV: return d.hv;
    case TW_DBA: return 2 * d.hv;
    case TW_DLV: return d.dv;
    }
    return 0;
}

const char *tw_family_prefix(const struct tw_family *f, int i)
{
    static const char *const usual[] = { "model.", "", "model.language_model.",
        "language_model.model.", NULL };

    return f->prefix[0] ? i < 4 ? f->prefix[i] : NULL : usual[i];
}

const char *tw_family_layers(const struct tw_family *f)
{
    return f->layers ? f->layers : "layers";
}

int tw_family_head_at(const char *prefix)
{
    size_t n = strlen(prefix), tail = sizeof "model." - 1;

    return n > tail && !strcmp(prefix + n - tail - 1, ".model.") ? (int)(n - tail) : 0;
}

bool tw_family_is_head(const struct tw_family *f, struct tw_str name)
{
    for (int i = 0; tw_family_prefix(f, i); i++) {
        const char *prefix = tw_family_prefix(f, i);
        size_t n = (size_t)tw_family_head_at(prefix);

        if (n && name.n > n && !memcmp(name.p, prefix, n))
            name = (struct tw_str){ name.p + n, name.n - n };
    }
    for (const struct tw_tdef *d = f->global; d->name; d++) {
        size_t n = strlen(d->name);

        if (d->slot == TW_S_HEAD)
            return name.n == n + 7 && !memcmp(name.p, d->name, n) &&
                   !memcmp(name.p + n, ".weight", 7);
    }
    return false;
}

static bool cut(struct tw_str *s, struct tw_str start)
{
    if (s->n < start.n || memcmp(s->p, start.p, start.n))
        return false;
    *s = (struct tw_str){ s->p + start.n, s->n - start.n };
    return true;
}

bool tw_family_skips(const struct tw_family *f, const struct tw_config *c, struct tw_str prefix,
        struct tw_str name)
{
    struct tw_str below = name, s;
    int64_t layer = 0;
    bool in = cut(&below, prefix);

    for (const char *const *k = f->skip; k && *k; k++) {
        s = name;
        if (cut(&s, tw_str(*k)))
            return true;
        s = below;
        if (in && cut(&s, tw_str(*k)))
            return true;
    }
    s = below;
    if (!in || !c->next_layers || !cut(&s, tw_str(tw_family_layers(f))) || !cut(&s, tw_str(".")))
        return false;
    for (; s.n && s.p[0] >= '0' && s.p[0] <= '9' && layer < INT32_MAX; s.p++, s.n--)
        layer = 10 * layer + s.p[0] - '0';
    return layer >= c->L && layer < c->L + c->next_layers;
}

const struct tw_family *tw_family_find(struct tw_str model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (size_t k = 0; k < 3 && families[i]->model_type[k]; k++)
            if (tw_str_is(model_type, families[i]->model_type[k]))
                return families[i];
    return NULL;
}

void tw_family_names(struct tw_buf *out)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        tw_buf_printf(out, "%s%s", i ? ", " : "", families[i]->name);
}
