/* layout.c - a family's table and a config to the list of weights, and their device memory */
#include "nn/model_priv.h"
#include <stdlib.h>

static char *tensor_name(const struct tw_model *m, const struct tw_tdef *d, int64_t layer,
        const char *suffix)
{
    if (d->bare && *suffix == '.')
        suffix = "";
    if (layer >= 0)
        return tw_xasprintf("%s%s.%lld.%s%s", m->prefix, tw_family_layers(m->cfg.family),
                (long long)layer, d->name, suffix);
    return tw_xasprintf("%.*s%s%s", d->slot == TW_S_HEAD ? tw_family_head_at(m->prefix) :
            (int)strlen(m->prefix), m->prefix, d->name, suffix);
}

/* Where the layers are in the class with a head, which adapters are made for. */
static const char *class_prefix(const struct tw_model *m)
{
    const char *first = tw_family_prefix(m->cfg.family, 0);

    return strncmp(m->prefix, first, strlen(first)) ? first : m->prefix;
}

static int64_t add_module(struct tw_model *m, struct tw_weight *w, enum tw_module_form form,
        const char *name)
{
    struct tw_module *mod = &m->module[m->nmodule];
    const char *dot = strrchr(name, '.'), *experts = strstr(name, "experts.");
    size_t skip;

    mod->path = tw_xasprintf("%s%s.%lld.%s", class_prefix(m), tw_family_layers(m->cfg.family),
            (long long)w->layer, name);
    skip = strlen(mod->path) - strlen(name);
    dot = w->w.n > 1 && experts ? experts : dot ? dot + 1 : name;
    mod->kind = mod->path + skip + (dot - name);
    mod->w = w;
    mod->rows = w->w.rows;
    mod->form = form;
    mod->n = tw_mat_count(&w->w);
    return m->nmodule++;
}

/* A module for each expert of what NAME, which ends with what they are called together, holds. */
static int64_t add_each(struct tw_model *m, struct tw_weight *w, const char *what, int64_t row,
        int64_t rows)
{
    const char *name = w->def->name;
    char *each = tw_xasprintf("%.*s.*.%s", (int)(strrchr(name, '.') - name), name, what);
    int64_t k = add_module(m, w, TW_MOD_EACH, each);

    free(each);
    m->module[k].row = row;
    m->module[k].rows = rows;
    return k;
}

/* The modules of a weight: usually one. */
static void add_modules(struct tw_model *m, struct tw_weight *w)
{
    int64_t half = w->w.rows / 2;

    w->module = add_module(m, w, w->w.n > 1 || w->def->slot == TW_S_ROUTER ? TW_MOD_PARAM :
            TW_MOD_LINEAR, w->def->name);
    if (w->w.n > 1 && w->def->slot == TW_S_XGATEUP) {
        w->part[0] = add_each(m, w, "gate_proj", 0, half);
        w->part[1] = add_each(m, w, "up_proj", half, half);
    } else if (w->w.n > 1) {
        w->part[0] = add_each(m, w, "down_proj", 0, w->w.rows);
    }
}

/* Adds the weight of D (and its bias) at M->w[M->nw]. The list was sized by count_defs(). */
static struct tw_weight *add_weight(struct tw_model *m, const struct tw_tdef *d, int64_t layer)
{
    struct tw_weight *w = &m->w[m->nw++], *b;
    int64_t rows = tw_dim(&m->cfg, d->rows), cols = tw_dim(&m->cfg, d->cols);

    *w = (struct tw_weight){ .name = tensor_name(m, d, layer, ".weight"), .def = d,
        .layer = layer, .matrix = d->rows != TW_D1, .module = -1, .part = { -1, -1 } };
    w->w = (struct tw_mat){ .dtype = w->matrix && !d->f32 ? m->opts.dtype : TW_F32, .rows = rows,
        .cols = cols, .n = tw_dim(&m->cfg, d->count) };
    if (d->lora)
        add_modules(m, w);
    if (d->lora && d->slot != TW_S_ROUTER && w->w.n <= 1 && w->w.dtype == TW_BF16 &&
            rows % 8 == 0 && cols % 8 == 0)
        w->w.ext = m->ext;
    if (tw_if(&m->cfg, d->bias)) {
        b = &m->w[m->nw++];
        *b = (struct tw_weight){ .name = tensor_name(m, d, layer, ".bias"), .def = d,
            .layer = layer, .is_bias = true, .module = -1, .part = { -1, -1 },
            .w = { .dtype = TW_F32, .rows = 1, .cols = rows } };
        w->bias = b;
    }
    return w;
}

static bool wanted(const struct tw_model *m, const struct tw_tdef *d)
{
    return d->when == TW_IF_UNSET || tw_if(&m->cfg, d->when);
}

static int64_t count_defs(const struct tw_model *m, const struct tw_tdef *d, int64_t *lora)
{
    int64_t n = 0;

    for (; d->name; d++) {
        if (!wanted(m, d))
            continue;
        n++;
        *lora += d->lora ? 3 : 0;       /* a matrix of experts has up to three modules */
    }
    return n;
}

static void add_part(struct tw_model *m, struct tw_layer *l, const struct tw_part *part)
{
    for (const struct tw_tdef *d = part->tensor; d->name; d++)
        if (wanted(m, d))
            l->w[d->slot] = add_weight(m, d, l->index);
}

static void list_weights(struct tw_model *m)
{
    const struct tw_family *f = m->cfg.family;
    int64_t lora = 0, L = m->cfg.L, none = 0, n = count_defs(m, f->global, &none);
    const struct tw_tdef *d;

    m->layer = tw_xcalloc((size_t)L, sizeof *m->layer);
    for (int64_t i = 0; i < L; i++) {
        struct tw_layer *l = &m->layer[i];

        *l = (struct tw_layer){ .m = m, .index = i, .conf = &m->cfg.layer[i],
            .moe = -1 };
        l->mixer = &f->mixer[l->conf->mixer];
        l->ffn = &f->ffn[l->conf->ffn];
        if (l->ffn->block == &tw_block_moe)
            l->moe = m->nmoe++;
        n += count_defs(m, l->mixer->tensor, &lora) + count_defs(m, l->ffn->tensor, &lora);
    }
    m->w = tw_xcalloc((size_t)(2 * n), sizeof *m->w);
    m->module = tw_xcalloc((size_t)lora + 1, sizeof *m->module);
    for (d = f->global; d->name; d++)
        if (d->slot == TW_S_EMBED)
            m->global[d->slot] = add_weight(m, d, -1);
    for (int64_t i = 0; i < L; i++) {
        add_part(m, &m->layer[i], m->layer[i].mixer);
        add_part(m, &m->layer[i], m->layer[i].ffn);
    }
    for (d = f->global; d->name; d++)
        if (d->slot != TW_S_EMBED && !(d->slot == TW_S_HEAD && m->tied))
            m->global[d->slot] = add_weight(m, d, -1);
}

static size_t stored_bytes(const struct tw_model *m, const struct tw_weight *w, enum tw_dtype t)
{
    return (size_t)tw_weight_elems(m, w, t) * tw_dtype_size(t);
}

int64_t tw_weight_elems(const struct tw_model *m, const struct tw_weight *w, enum tw_dtype t)
{
    if (!w->matrix)
        return w->w.cols;
    return tw_mat_count(&w->w) * m->ops->mat_elems(m->dev, w->w.rows + w->w.ext,
            w->w.cols + w->w.ext, t);
}

static bool trained(const struct tw_model *m, const struct tw_weight *w)
{
    return m->opts.train && !w->def->frozen;
}

/* Whether W's master is W itself and the bits it lacks. */
static bool is_split(const struct tw_model *m, const struct tw_weight *w)
{
    return trained(m, w) && w->w.dtype == TW_BF16 && m->ops->adamw_split;
}

static bool has_own_master(const struct tw_model *m, const struct tw_weight *w)
{
    return trained(m, w) && w->w.dtype != TW_F32 && !is_split(m, w);
}

/* Whether look-ups in W have a gradient of their own, beside the head's. */
static bool has_second(const struct tw_model *m, const struct tw_weight *w)
{
    return trained(m, w) && m->tied && w == m->global[TW_S_EMBED] && !m->ops->one_grad;
}

static void add_sizes(struct tw_model *m)
{
    for (int64_t i = 0; i < m->nw; i++) {
        const struct tw_weight *w = &m->w[i];
        size_t f32 = stored_bytes(m, w, TW_F32);

        tw_mem_add(&m->mem, stored_bytes(m, w, w->w.dtype));
        if (is_split(m, w))
            tw_mem_add(&m->mem, stored_bytes(m, w, TW_BF16));
        if (has_own_master(m, w))
            tw_mem_add(&m->mem, f32);
        if (trained(m, w))
            tw_mem_add(&m->grads, f32);
        if (has_second(m, w))
            tw_mem_add(&m->grads, f32);
    }
}

/* Weights in one block; with training, masters (where the products are not F32) behind each, or what
 * they have more behind all; gradients in a block of their own. */
static int take_memory(struct tw_model *m, struct tw_err *err)
{
    add_sizes(m);
    if (tw_mem_alloc(&m->mem, m->dev, "the weights", err) ||
        tw_mem_alloc(&m->grads, m->dev, "the gradients", err))
        return -1;
    if (m->ops->often)
        m->ops->often(m->dev, m->mem.p, m->mem.n);
    for (int64_t i = 0; i < m->nw; i++) {
        struct tw_weight *w = &m->w[i];
        size_t f32 = stored_bytes(m, w, TW_F32);

        w->w.data = tw_mem_take(&m->mem, stored_bytes(m, w, w->w.dtype));
        w->master = w->dw = w->w;
        w->dw.data = NULL;
        w->dw.dtype = TW_F32;
        if (has_own_master(m, w)) {
            w->master.data = tw_mem_take(&m->mem, f32);
            w->master.dtype = TW_F32;
        }
        if (trained(m, w))
            w->dw.data = tw_mem_take(&m->grads, f32);
        if (has_second(m, w))
            w->g2 = tw_mem_take(&m->grads, f32);
    }
    for (int64_t i = 0; i < m->nw; i++)
        if (is_split(m, &m->w[i]))
            m->w[i].master.low = tw_mem_take(&m->mem, stored_bytes(m, &m->w[i], TW_BF16));
    return 0;
}

/* Whether W's gradient is made by linear_dw() or head() alone, so that it may be unset. */
static bool may_be_unset(const struct tw_model *m, const struct tw_weight *w)
{
    if (!m->ops->sets || !w->matrix || tw_mat_count(&w->w) > 1 || w->w.ext)
        return false;
    if (w->def->slot == TW_S_EMBED)
        return m->tied;                     /* what look-ups add has its own place, or comes after */
    return w->def->slot != TW_S_CONV && w->def->slot != TW_S_ROUTER;
}

static void list_params(struct tw_model *m)
{
    struct tw_params *ps = &m->params;

    ps->p = tw_xcalloc((size_t)m->nw, sizeof *ps->p);
    for (int64_t i = 0; i < m->nw; i++) {
        struct tw_weight *w = &m->w[i];
        struct tw_param *p = &ps->p[ps->n];

        if (!trained(m, w))
            continue;
        ps->n++;
        p->name = w->name;
        p->w = w->master;
        p->g = w->dw.data;
        p->g2 = w->g2;
        p->dw = may_be_unset(m, w) ? &w->dw : NULL;
        p->matrix = w->matrix;
        p->inner = w->matrix && w->layer >= 0 && w->def->slot != TW_S_CONV;
        p->n = tw_weight_elems(m, w, TW_F32);
        p->low = has_own_master(m, w) ? &w->w : NULL;
        ps->elems += tw_mat_size(&w->w);
    }
}

static void fill_info(struct tw_model *m)
{
    struct tw_model_info *o = &m->info;
    const struct tw_config *c = &m->cfg;
    bool hard;

    *o = (struct tw_model_info){ .family = c->family->name, .V = c->V, .D = c->D, .L = c->L,
        .max_positions = tw_rope_longest(c, &hard), .tied = m->tied };
    if (m->nmoe) {
        o->routers = m->nmoe;
        o->experts = c->moe.E;
        o->topk = c->moe.K;
        o->router_bias = c->moe.route == TW_ROUTE_SIGMOID;
    }
    for (int64_t i = 0; i < m->nw; i++) {
        const struct tw_weight *w = &m->w[i];
        int64_t n = tw_mat_size(&w->w);

        o->params += n;
        if (w->w.n > 1)         /* of experts a token passes some */
            n = n / w->w.n * c->moe.K;
        if (w->matrix && (w != m->global[TW_S_EMBED] || m->tied))
            o->active_matmul += n;
    }
}

void tw_model_layout(struct tw_model *m, struct tw_weights *file)
{
    list_weights(m);
    tw_model_stored(m, file);
    fill_info(m);
}

int tw_model_memory(struct tw_model *m, struct tw_err *err)
{
    if (take_memory(m, err))
        return -1;
    if (m->opts.train)
        list_params(m);
    return 0;
}
