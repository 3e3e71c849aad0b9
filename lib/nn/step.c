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

bool tw_step_fits(const struct tw_model *m)
{
    const struct tw_step_ops *ops = m->ops->step;
    const struct tw_config *c = &m->cfg;
    const int64_t k[] = { c->D, c->nh * c->hd, c->nkv * c->hd, c->I };
    struct tw_step_attn a = { .nh = c->nh, .nkv = c->nkv, .hd = c->hd, .rot = tw_rope_width(c),
        .interleaved = c->rope_interleaved };

    if (!ops || m->act != TW_BF16 || m->opts.dtype != TW_BF16 || !m->kv.bytes || m->ext)
        return false;
    if (c->norm_off != 0 || c->post_norms || c->embed_scale != 0)   /* the fused ops know none */
        return false;
    for (int64_t i = 0; i < c->L; i++)
        if (!m->layer[i].mixer->block->step || !m->layer[i].ffn->block->step)
            return false;
    return ops->fits(m->dev, &a, k, sizeof k / sizeof *k);
}

/* Room for any step, so that addresses stay what they are. */
static int reserve(struct tw_model *m, struct tw_err *err)
{
    const struct tw_config *c = &m->cfg;
    int64_t wide = 2 * (c->nh + c->nkv) * c->hd, cols = c->D + (wide > c->I ? wide : c->I);

    return tw_stack_reserve(&m->stack, (size_t)(m->ops->step->max * cols) *
            tw_dtype_size(m->act) + 4096, err);
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
    s.ops->embed(m->dev, &s.x, &m->global[TW_S_EMBED]->w);
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
    struct tw_step st = { .n = n, .id = id, .pos = pos, .block = block, .choice = choice,
        .allowed = allowed };
    const void *key[6];
    int64_t end = 0, rows;
    int ret = -1;

    for (int64_t i = 0; i < n; i++) {
        id[i] = seq[i].token[0];
        pos[i] = (int32_t)seq[i].state->n;
        block[i] = seq[i].state->mem;
        if (pos[i] >= end)
            end = pos[i] + 1;
    }
    adapters(&st, m, seq, &a);
    if (!tw_model_rope(m, end, err) && !reserve(m, err)) {
        const void *now[6] = { m, m->mem.p, m->cos[0], m->stack.base, m->global[TW_S_EMBED]->w.data,
            allowed };

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
