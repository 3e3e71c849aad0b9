/* step.c - the way of a token when many sequences go on by one: ids, positions, blocks and adapters
 * go to the device in one piece, the fused ops of each block follow, and drawn tokens come back */
#include "nn/step.h"
#include "nn/state.h"
#include <stdlib.h>

struct tw_tensor tw_step_tensor(struct tw_stepper *s, int64_t cols)
{
    return tw_stack_tensor(&s->m->stack, s->m->act, s->x.rows, cols);
}

struct tw_step_w tw_step_w(const struct tw_stepper *s, const struct tw_weight *w)
{
    return (struct tw_step_w){ .w = &w->w, .bias = w->bias ? w->bias->w.data : NULL,
        .module = s->lora ? w->module : -1 };
}

void tw_step_into(struct tw_stepper *s, const struct tw_tensor *h, const struct tw_weight *w,
        const struct tw_weight *post)
{
    const struct tw_step_w one = tw_step_w(s, w);
    struct tw_tensor y = post ? tw_step_tensor(s, w->w.rows) : s->x;

    s->ops->linear(s->m->dev, &y, h, NULL, 0, &one, 1, post ? NULL : &s->x);
    if (post)
        s->ops->post(s->m->dev, &s->x, &y, post->w.data, (float)s->m->cfg.eps);
}

struct tw_step_attn tw_step_attn(const struct tw_model *m, const struct tw_layer *l)
{
    const struct tw_config *c = &m->cfg;

    return (struct tw_step_attn){ .nh = c->nh, .nkv = c->nkv, .hd = c->hd, .window = l->conf->window,
        .scale = (float)tw_attn_scale(c), .offset = l->kv_offset,
        .qnorm = l->w[TW_S_QNORM] ? l->w[TW_S_QNORM]->w.data : NULL,
        .knorm = l->w[TW_S_KNORM] ? l->w[TW_S_KNORM]->w.data : NULL, .eps = (float)c->eps,
        .cos = m->cos[l->conf->rope], .sin = m->sin[l->conf->rope], .rot = tw_rope_width(c),
        .interleaved = c->rope_interleaved };
}

/* What the layers ask for. */
struct need {
    struct tw_step_need n;
    struct tw_step_attn attn;
    struct tw_step_moe moe;
    struct tw_step_mla mla;
    struct tw_delta delta;
    int64_t k[8];
};

static void need_mixer(struct need *n, const struct tw_model *m, const struct tw_layer *l)
{
    const struct tw_config *c = &m->cfg;

    if (l->mixer->block->kv) {
        n->attn = tw_step_attn(m, l);
        n->n.attn = &n->attn;
        n->k[1] = c->nh * c->hd;
    } else if (l->mixer->block->latent) {
        n->mla = tw_step_mla(m, l);
        n->n.mla = &n->mla;
        n->k[2] = c->nh * c->mla.dv;
        n->k[3] = c->mla.rq;
    } else {
        n->delta = tw_delta_conf(c);
        n->n.delta = &n->delta;
        n->k[4] = n->delta.hv * n->delta.dv;
    }
}

/* False: a block has no step. */
static bool needs(struct need *n, const struct tw_model *m)
{
    *n = (struct need){ .n = { .k = n->k, .nk = sizeof n->k / sizeof *n->k }, .k = { m->cfg.D } };
    for (int64_t i = 0; i < m->cfg.L; i++) {
        const struct tw_layer *l = &m->layer[i];

        if (!l->mixer->block->step || !l->ffn->block->step || (l->moe >= 0 && l->w[TW_S_POST2]))
            return false;
        need_mixer(n, m, l);
        if (l->moe < 0) {
            n->k[5] = m->cfg.I;
            continue;
        }
        n->moe = tw_step_moe(m, l);
        n->n.moe = &n->moe;
        n->k[6] = m->cfg.moe.I;
        n->k[7] = m->cfg.moe.shared;
    }
    return true;
}

bool tw_step_fits(const struct tw_model *m)
{
    const struct tw_step_ops *ops = m->ops->step;
    struct need n;

    if (!ops || m->act != TW_BF16 || m->opts.dtype != TW_BF16 || !tw_state_kept(m))
        return false;
    if (m->record)              /* the fused ops leave no lists of experts */
        return false;
    return needs(&n, m) && ops->fits(m->dev, &n.n);
}

/* Adapters of experts, routers and latents are beyond the fused ops. */
bool tw_step_takes(const struct tw_model *m, const struct tw_adapter *a)
{
    for (int64_t i = 0; a && i < m->nmodule; i++) {
        enum tw_slot s = m->module[i].w->def->slot;

        if (a->lora[i].r && (s == TW_S_ROUTER || s == TW_S_XGATEUP || s == TW_S_XDOWN || s == TW_S_KVB))
            return false;
    }
    return true;
}

/* Room for any step, so that addresses stay what they are. */
static int reserve(struct tw_model *m, struct tw_err *err)
{
    const struct tw_config *c = &m->cfg;
    int64_t attn = (3 * c->nh + 2 * c->nkv) * c->hd + c->nh * c->hd;
    int64_t mla = c->mla.rq + c->nh * (c->mla.dn + c->mla.dr + c->mla.dv) + c->mla.rkv + c->mla.dr;
    int64_t delta = 2 * c->lin.hk * c->lin.dk + 3 * c->lin.hv * c->lin.dv + 2 * c->lin.hv;
    int64_t ffn = 3 * c->I + c->moe.shared + c->D + 8, wide = attn > mla ? attn : mla;

    wide = wide > 2 * delta ? wide : 2 * delta;
    wide = 2 * c->D + (wide > ffn ? wide : ffn);
    return tw_stack_reserve(&m->stack, (size_t)(m->ops->step->max * wide) *
            tw_dtype_size(m->act) + 8192, err);
}

/* The adapters of the sequences, each once, and their modules. */
static void adapters(struct tw_step *st, const struct tw_model *m, const struct tw_seq *seq,
        struct tw_arena *a)
{
    struct tw_adapter **list = tw_arena_alloc(a, (size_t)st->n * sizeof *list);
    int32_t *slot = tw_arena_alloc(a, (size_t)st->n * sizeof *slot);
    struct tw_step_lora *lora;

    for (int64_t i = 0; i < st->n; i++) {
        int64_t k = 0;

        slot[i] = -1;
        if (!seq[i].adapter)
            continue;
        while (k < st->nslot && list[k] != seq[i].adapter)
            k++;
        if (k == st->nslot)
            list[st->nslot++] = seq[i].adapter;
        if (seq[i].adapter->max_r > st->max_r)
            st->max_r = seq[i].adapter->max_r;
        slot[i] = (int32_t)k;
    }
    st->slot = slot;
    st->nmodule = m->nmodule;
    st->lora = lora = tw_arena_alloc(a, (size_t)(st->nslot * m->nmodule) * sizeof *lora);
    for (int64_t k = 0; k < st->nslot; k++)
        for (int64_t i = 0; i < m->nmodule; i++) {
            const struct tw_lora *l = &list[k]->lora[i];

            *lora++ = (struct tw_step_lora){ l->a, l->b, (int32_t)l->r, l->scale };
        }
}

static void walk(struct tw_model *m, const struct tw_step *st, int64_t rows)
{
    const struct tw_weight *head = m->tied ? m->global[TW_S_EMBED] : m->global[TW_S_HEAD];
    struct tw_stepper s = { .m = m, .ops = m->ops->step, .lora = st->nslot > 0 };

    m->stack.top = 0;
    s.x = tw_stack_tensor(&m->stack, m->act, rows, m->cfg.D);
    s.ops->embed(m->dev, &s.x, &m->global[TW_S_EMBED]->w, (float)m->cfg.embed_scale);
    for (int64_t i = 0; i < m->cfg.L; i++) {
        size_t top = m->stack.top;

        m->layer[i].mixer->block->step(&s, &m->layer[i]);
        m->stack.top = top;
        m->layer[i].ffn->block->step(&s, &m->layer[i]);
        m->stack.top = top;
    }
    s.ops->choose(m->dev, &s.x, m->global[TW_S_NORM_F]->w.data, (float)m->cfg.eps, &head->w);
    s.ops->end(m->dev);
}

int tw_step_run(struct tw_model *m, const struct tw_seq *seq, int64_t n, struct tw_choice *choice,
        const uint8_t *allowed, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    int32_t *id = tw_arena_alloc(&a, (size_t)n * sizeof *id);
    int32_t *pos = tw_arena_alloc(&a, (size_t)n * sizeof *pos);
    void *const **block = tw_arena_alloc(&a, (size_t)n * sizeof *block);
    void *const **near = tw_arena_alloc(&a, (size_t)n * sizeof *near);
    void **rec = tw_arena_alloc(&a, (size_t)n * sizeof *rec);
    void **mark = tw_arena_alloc(&a, (size_t)n * sizeof *mark);
    struct tw_step st = { .n = n, .id = id, .pos = pos, .block = block, .choice = choice,
        .allowed = allowed, .norm_off = (float)m->cfg.norm_off };
    const void *key[6];
    int64_t end = 0, rows;
    int ret = -1;

    for (int64_t i = 0; i < n; i++) {
        id[i] = seq[i].token[0];
        pos[i] = (int32_t)seq[i].state->n;
        block[i] = seq[i].state->page[TW_KV_ALL].mem;
        near[i] = seq[i].state->page[TW_KV_WINDOW].mem;
        tw_state_rec(seq[i].state, &rec[i], &mark[i]);
        if (pos[i] >= end)
            end = pos[i] + 1;
    }
    if (m->window)
        st.near = near;
    if (m->rec.bytes) {
        st.rec = rec;
        st.mark = mark;
    }
    adapters(&st, m, seq, &a);
    if (!tw_model_rope(m, end, err) && !reserve(m, err)) {
        const void *now[6] = { (void *)(uintptr_t)m->id, m->mem.p, m->cos[0], m->stack.base,
            m->global[TW_S_EMBED]->w.data, allowed };

        memcpy(key, now, sizeof key);
        st.key = key;
        st.nkey = sizeof key;
        rows = m->ops->step->begin(m->dev, &st);
        if (rows > 0)
            walk(m, &st, rows);
        ret = m->ops->sync(m->dev, err);
    }
    tw_arena_free(&a);
    return ret;
}
