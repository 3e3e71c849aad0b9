/* family_moe.c - what families with experts share: tables, forms in files, the check of the config */
#include "nn/model_priv.h"

/* The name of a tensor of W's layer, below mlp.experts. */
static char *expert_name(const struct tw_model *m, const struct tw_weight *w, const char *what,
        int64_t e)
{
    const char *dot = strrchr(w->def->name, '.');
    int n = (int)(dot - w->def->name);

    if (e < 0)
        return tw_xstrdup(w->name);
    return tw_xasprintf("%s%s.%lld.%.*s.%lld.%s.weight", m->prefix,
            tw_family_layers(m->cfg.family), (long long)w->layer, n, w->def->name, (long long)e,
            what);
}

/* One tensor of all experts, as some checkpoints have it? */
static bool fused(const struct tw_model *m, const struct tw_weight *w, struct tw_weights *file)
{
    return file ? tw_weights_find(file, tw_str(w->name)) != NULL : m->cfg.moe.fused;
}

static void add_fused(struct tw_model *m, struct tw_weight *w)
{
    int64_t dim[3] = { w->w.n, w->w.rows, w->w.cols };

    tw_stored_rows(tw_stored_add(m, tw_xstrdup(w->name), 3, dim), w, 0, w->w.n * w->w.rows);
}

static void add_part(struct tw_model *m, struct tw_weight *w, const char *what, int64_t e,
        int64_t row, int64_t n)
{
    int64_t dim[2] = { n, w->w.cols };

    tw_stored_rows(tw_stored_add(m, expert_name(m, w, what, e), 2, dim), w, e * w->w.rows + row, n);
}

static void files_gate_up(struct tw_model *m, struct tw_weight *w, struct tw_weights *file)
{
    int64_t n = w->w.rows / 2;

    if (fused(m, w, file)) {
        add_fused(m, w);
        return;
    }
    for (int64_t e = 0; e < w->w.n; e++) {
        add_part(m, w, "gate_proj", e, 0, n);
        add_part(m, w, "up_proj", e, n, n);
    }
}

static void files_down(struct tw_model *m, struct tw_weight *w, struct tw_weights *file)
{
    if (fused(m, w, file)) {
        add_fused(m, w);
        return;
    }
    for (int64_t e = 0; e < w->w.n; e++)
        add_part(m, w, "down_proj", e, 0, w->w.rows);
}

#define NORM2 \
    { .name = "post_attention_layernorm", .slot = TW_S_NORM2, .rows = TW_D1, .cols = TW_DD }
#define ROUTER \
    { .name = "mlp.gate", .slot = TW_S_ROUTER, .rows = TW_DE, .cols = TW_DD, .f32 = true, \
      .lora = true }
#define EXPERTS \
    { .name = "mlp.experts.gate_up_proj", .slot = TW_S_XGATEUP, .rows = TW_DIM2, .cols = TW_DD, \
      .count = TW_DE, .axis = TW_AX_EXPERT, .bare = true, .lora = true, \
      .files = files_gate_up }, \
    { .name = "mlp.experts.down_proj", .slot = TW_S_XDOWN, .rows = TW_DD, .cols = TW_DIM, \
      .count = TW_DE, .axis = TW_AX_EXPERT, .bare = true, .lora = true, \
      .files = files_down }
#define SHARED(name_) \
    { .name = name_ ".gate_proj", .slot = TW_S_SGATE, .rows = TW_DIS, .cols = TW_DD, \
      .when = TW_IF_SHARED, .axis = TW_AX_COL, .lora = true }, \
    { .name = name_ ".up_proj", .slot = TW_S_SUP, .rows = TW_DIS, .cols = TW_DD, \
      .when = TW_IF_SHARED, .axis = TW_AX_COL, .lora = true }, \
    { .name = name_ ".down_proj", .slot = TW_S_SDOWN, .rows = TW_DD, .cols = TW_DIS, \
      .when = TW_IF_SHARED, .axis = TW_AX_ROW, .lora = true }

const struct tw_tdef tw_ffn_moe_qwen[] = {
    NORM2,
    ROUTER,
    EXPERTS,
    SHARED("mlp.shared_expert"),
    { .name = "mlp.shared_expert_gate", .slot = TW_S_SMIX, .rows = TW_DONE, .cols = TW_DD,
      .when = TW_IF_SHARED_GATE, .lora = true },
    { 0 },
};

const struct tw_tdef tw_ffn_moe_deepseek[] = {
    NORM2,
    ROUTER,
    { .name = "mlp.gate.e_score_correction_bias", .slot = TW_S_RBIAS, .rows = TW_D1, .cols = TW_DE,
      .when = TW_IF_ROUTER_BIAS, .init = TW_INIT_ZERO, .bare = true, .frozen = true },
    EXPERTS,
    SHARED("mlp.shared_experts"),
    { 0 },
};

/* mlp_only_layers: dense ones. 0: it does not list I. */
static int listed_dense(const struct tw_config *c, int64_t i, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(c->text, "mlp_only_layers");

    if (v && v->type != TW_JARR)
        return tw_fail(err, c->path, 0, "mlp_only_layers is not a list of layers");
    for (int64_t k = 0; v && k < v->n; k++) {
        if (v->item[k].type != TW_JNUM || !v->item[k].is_int)
            return tw_fail(err, c->path, 0, "mlp_only_layers[%lld] is not a layer", (long long)k);
        if (v->item[k].i == i)
            return 1;
    }
    return 0;
}

static int check_numbers(const struct tw_config *c, struct tw_err *err)
{
    const struct tw_moe_conf *m = &c->moe;

    if (m->E * c->L > 1 << 20)      /* their tensors are listed one by one */
        return tw_fail(err, c->path, 0, "%lld experts in %lld layers are too many",
                (long long)m->E, (long long)c->L);
    if (m->K > m->E)
        return tw_fail(err, c->path, 0, "num_experts_per_tok is %lld, and there are %lld experts",
                (long long)m->K, (long long)m->E);
    if (m->E % m->groups || m->topk_groups > m->groups)
        return tw_fail(err, c->path, 0, "n_group %lld and topk_group %lld do not fit %lld experts",
                (long long)m->groups, (long long)m->topk_groups, (long long)m->E);
    if (m->K > m->E / m->groups * m->topk_groups)
        return tw_fail(err, c->path, 0, "num_experts_per_tok is %lld, and %lld of %lld groups have "
                "%lld experts", (long long)m->K, (long long)m->topk_groups, (long long)m->groups,
                (long long)(m->E / m->groups * m->topk_groups));
    return 0;
}

int tw_config_moe(struct tw_config *c, struct tw_err *err)
{
    struct tw_moe_conf *m = &c->moe;

    m->groups = m->groups > 0 ? m->groups : 1;
    m->topk_groups = m->topk_groups > 0 ? m->topk_groups : m->groups;
    m->scale = m->scale != 0 ? m->scale : 1;
    m->step = m->step > 0 ? m->step : 1;
    m->freq = m->freq > 0 ? m->freq : 1;
    if (m->shared_count)
        m->shared = m->shared_count * m->I;
    if (check_numbers(c, err))
        return -1;
    for (int64_t i = 0; i < c->L; i++) {
        int dense = listed_dense(c, i, err);

        if (dense < 0)
            return -1;
        c->layer[i].ffn = !dense && m->E > 0 && (i + 1) % m->step == 0 && i >= m->first_dense &&
                i % m->freq == 0;
    }
    return 0;
}
