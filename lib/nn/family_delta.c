/* family_delta.c - what Qwen3-Next and Qwen3.5 share: attention with a gate in some layers, the gated
 * delta rule in the others; tables, the form of the convolution in files, the check of the config */
#include "nn/model_priv.h"

/* [C, 1, taps]; files of MLX have [C, taps, 1], and norms that hold 1 + w already. */
static void files_conv(struct tw_model *m, struct tw_weight *w, struct tw_weights *file)
{
    int64_t taps = m->cfg.lin.taps, dim[3] = { w->w.cols / taps, 1, taps };
    const struct tw_wtensor *t = file ? tw_weights_find(file, tw_str(w->name)) : NULL;

    if (t && t->ndim == 3 && taps > 1 && t->dim[2] == 1 && t->dim[1] == taps) {
        dim[1] = taps;
        dim[2] = 1;
        m->cfg.norm_off = 0;
    }
    tw_stored_rows(tw_stored_add(m, tw_xstrdup(w->name), 3, dim), w, 0, w->w.cols);
}

#define NORM1 { .name = "input_layernorm", .slot = TW_S_NORM1, .rows = TW_D1, .cols = TW_DD }
#define IN(name_, slot_, rows_) \
    { .name = "linear_attn." name_, .slot = slot_, .rows = rows_, .cols = TW_DD, \
      .axis = TW_AX_COL, .lora = true }
#define INNER \
    { .name = "linear_attn.conv1d", .slot = TW_S_CONV, .rows = TW_D1, .cols = TW_DCONV, \
      .init = TW_INIT_NORMAL, .files = files_conv }, \
    { .name = "linear_attn.A_log", .slot = TW_S_ALOG, .rows = TW_D1, .cols = TW_DHV, \
      .init = TW_INIT_ALOG, .bare = true }, \
    { .name = "linear_attn.dt_bias", .slot = TW_S_DTBIAS, .rows = TW_D1, .cols = TW_DHV, \
      .init = TW_INIT_ONE, .bare = true }, \
    { .name = "linear_attn.norm", .slot = TW_S_GNORM, .rows = TW_D1, .cols = TW_DLV, \
      .init = TW_INIT_ONE }, \
    { .name = "linear_attn.out_proj", .slot = TW_S_OUT, .rows = TW_DD, .cols = TW_DVD, \
      .axis = TW_AX_ROW, .lora = true }

const struct tw_tdef tw_attn_gated[] = {
    NORM1,
    { .name = "self_attn.q_proj", .slot = TW_S_Q, .rows = TW_DQ2, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.k_proj", .slot = TW_S_K, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.v_proj", .slot = TW_S_V, .rows = TW_DKV, .cols = TW_DD,
      .bias = TW_IF_QKV_BIAS, .axis = TW_AX_COL, .lora = true },
    { .name = "self_attn.o_proj", .slot = TW_S_O, .rows = TW_DD, .cols = TW_DQ,
      .bias = TW_IF_O_BIAS, .axis = TW_AX_ROW, .lora = true },
    { .name = "self_attn.q_norm", .slot = TW_S_QNORM, .rows = TW_D1, .cols = TW_DHD },
    { .name = "self_attn.k_norm", .slot = TW_S_KNORM, .rows = TW_D1, .cols = TW_DHD },
    { 0 },
};

const struct tw_tdef tw_delta_apart[] = {
    NORM1,
    IN("in_proj_qkv", TW_S_INQKV, TW_DC),
    IN("in_proj_z", TW_S_INZ, TW_DVD),
    IN("in_proj_b", TW_S_INB, TW_DHV),
    IN("in_proj_a", TW_S_INA, TW_DHV),
    INNER,
    { 0 },
};

const struct tw_tdef tw_delta_fused[] = {
    NORM1,
    IN("in_proj_qkvz", TW_S_INQKVZ, TW_DQKVZ),
    IN("in_proj_ba", TW_S_INBA, TW_DBA),
    INNER,
    { 0 },
};

const char *const tw_family_delta_skip[] = { "mtp.", "model.visual.", "visual.", "vision_tower.",
    NULL };

struct tw_delta tw_delta_conf(const struct tw_config *c)
{
    return (struct tw_delta){ .hk = c->lin.hk, .hv = c->lin.hv, .dk = c->lin.dk, .dv = c->lin.dv,
        .taps = c->lin.taps };
}

static int check_numbers(const struct tw_config *c, struct tw_err *err)
{
    const struct tw_lin_conf *n = &c->lin;
    struct tw_delta d = tw_delta_conf(c);

    if (n->hv % n->hk)
        return tw_fail(err, c->path, 0, "linear_num_value_heads %lld is not a multiple of "
                "linear_num_key_heads %lld", (long long)n->hv, (long long)n->hk);
    if (tw_delta_cols(&d) > (int64_t)1 << 26)
        return tw_fail(err, c->path, 0, "the linear layers' heads are %lld wide: too large",
                (long long)tw_delta_cols(&d));
    if (!n->output_gate)
        return tw_fail(err, c->path, 0, "attn_output_gate is false: this family's attention has a "
                "gate");
    return 0;
}

/* layer_types says which layers have attention, else every full_attention_interval-th has. */
int tw_config_delta(struct tw_config *c, struct tw_err *err)
{
    const struct tw_json *types = tw_json_get(c->text, "layer_types");
    struct tw_str gate = TW_STR_LIT("swish");

    if (check_numbers(c, err) || tw_json_get_str(c->text, "output_gate_type", &gate, err) < 0)
        return -1;
    if (!tw_str_is(gate, "swish") && !tw_str_is(gate, "silu"))
        return tw_fail(err, c->path, 0, "output_gate_type is \"%.*s\": swish is known", (int)gate.n,
                gate.p);
    for (int64_t i = 0; i < c->L; i++) {
        bool full = types ? tw_str_is(types->item[i].str, "full_attention") :
                (i + 1) % c->lin.interval == 0;

        if (c->layer[i].window)
            return tw_fail(err, c->path, 0, "layer_types[%lld] is sliding_attention: this family "
                    "has full_attention and linear_attention", (long long)i);
        c->layer[i].mixer = !full;
    }
    return tw_config_attn_bias(c, err);
}
