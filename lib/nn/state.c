/* state.c - paged keys and values */
#include "nn/state.h"
#include <assert.h>
#include <stdlib.h>

void tw_state_layout(struct tw_model *m)
{
    m->kv_block = 0;
    for (int64_t i = 0; i < m->cfg.L; i++) {
        m->layer[i].kv_offset = m->kv_block;
        if (m->layer[i].mixer->block->kv)
            m->kv_block += tw_dev_round(m->ops->kv_bytes(m->dev, m->cfg.nkv, m->cfg.hd, m->act));
        if (m->layer[i].mixer->block->latent)
            m->kv_block += tw_dev_round(m->ops->mla->bytes(m->dev, m->cfg.mla.rkv, m->cfg.mla.dr,
                    m->act));
    }
}

/* Blocks are cut from slabs, which grow with what is in use and stay until the model is closed. */
struct tw_kv_slab {
    struct tw_kv_slab *next;
    void *mem;                  /* (dev) */
    struct tw_kv kv[];
};

void tw_state_pool_free(struct tw_model *m)
{
    struct tw_kv_slab *s, *next;

    for (s = m->kv_slab; s; s = next) {
        next = s->next;
        m->ops->free(m->dev, s->mem);
        free(s);
    }
    m->kv_slab = NULL;
    m->kv_free = NULL;
    m->kv_blocks = 0;
}

/* N more blocks; false: the device has no room for them. */
static bool add_slab(struct tw_model *m, int64_t n, struct tw_err *err)
{
    void *mem = m->ops->alloc(m->dev, (size_t)n * m->kv_block, err);
    struct tw_kv_slab *s;

    if (!mem)
        return false;
    s = tw_xcalloc(1, sizeof *s + (size_t)n * sizeof *s->kv);
    s->mem = mem;
    s->next = m->kv_slab;
    m->kv_slab = s;
    m->kv_blocks += n;
    for (int64_t i = n; i-- > 0;) {
        s->kv[i].mem = (char *)mem + (size_t)i * m->kv_block;
        s->kv[i].next = m->kv_free;
        m->kv_free = &s->kv[i];
    }
    return true;
}

static struct tw_kv *take_block(struct tw_model *m, struct tw_err *err)
{
    const int64_t most = (int64_t)(((size_t)1 << 30) / m->kv_block);
    int64_t n = m->kv_blocks / 2 < most ? m->kv_blocks / 2 : most;
    struct tw_err none = { 0 };
    struct tw_kv *b;

    if (!m->kv_free && !(n > 1 && add_slab(m, n, &none)) && !add_slab(m, n > 1 ? 1 : 4, &none) &&
            !add_slab(m, 1, &none)) {
        tw_fail(err, NULL, 0, "no memory on the device for %zu more bytes of decode state",
                m->kv_block);
        return NULL;
    }
    b = m->kv_free;
    m->kv_free = b->next;
    b->next = NULL;
    b->refs = 1;
    return b;
}

static void drop_block(struct tw_model *m, struct tw_kv *b)
{
    assert(b->refs > 0);
    if (--b->refs)
        return;
    b->next = m->kv_free;
    m->kv_free = b;
}

static int64_t blocks_for(int64_t n)
{
    return (n + TW_KV_BLOCK - 1) / TW_KV_BLOCK;
}

static void set_block(struct tw_state *s, int64_t i, struct tw_kv *b)
{
    s->block[i] = b;
    s->mem[i] = b->mem;
}

void tw_state_trim(struct tw_state *s)
{
    int64_t want = blocks_for(s->n);

    while (s->nblock > want)
        drop_block(s->m, s->block[--s->nblock]);
}

int tw_state_grow(struct tw_state *s, int64_t n, struct tw_err *err)
{
    int64_t want = blocks_for(s->n + n), last = s->n / TW_KV_BLOCK;
    struct tw_kv *b;

    if (want > s->cap) {
        s->cap = want + want / 2 + 4;
        s->block = tw_xreallocarray(s->block, (size_t)s->cap, sizeof *s->block);
        s->mem = tw_xreallocarray(s->mem, (size_t)s->cap, sizeof *s->mem);
    }
    if (last < s->nblock && s->block[last]->refs > 1) {
        b = take_block(s->m, err);
        if (!b)
            return -1;
        s->m->ops->copy(s->m->dev, b->mem, s->block[last]->mem, s->m->kv_block);
        drop_block(s->m, s->block[last]);
        set_block(s, last, b);
    }
    while (s->nblock < want) {
        b = take_block(s->m, err);
        if (!b) {
            tw_state_trim(s);
            return -1;
        }
        set_block(s, s->nblock++, b);
    }
    return 0;
}

struct tw_state *tw_state_new(struct tw_model *m, struct tw_err *err)
{
    struct tw_state *s;

    if (!m->kv_block) {
        tw_fail(err, m->dir, 0, "family %s keeps no decode state", m->info.family);
        return NULL;
    }
    s = tw_xcalloc(1, sizeof *s);
    s->m = m;
    return s;
}

struct tw_state *tw_state_fork(struct tw_state *s, struct tw_err *err)
{
    struct tw_state *f = tw_state_new(s->m, err);

    if (!f)
        return NULL;
    f->a = s->a;
    f->n = s->n;
    f->nblock = s->nblock;
    tw_routing_fork(f, s);
    f->cap = s->nblock + 4;
    f->block = tw_xreallocarray(NULL, (size_t)f->cap, sizeof *f->block);
    f->mem = tw_xreallocarray(NULL, (size_t)f->cap, sizeof *f->mem);
    for (int64_t i = 0; i < s->nblock; i++) {
        set_block(f, i, s->block[i]);
        s->block[i]->refs++;
    }
    return f;
}

int tw_state_truncate(struct tw_state *s, int64_t n, struct tw_err *err)
{
    if (n < 0 || n > s->n)
        return tw_fail(err, NULL, 0, "a state of %lld tokens cannot be cut to %lld",
                (long long)s->n, (long long)n);
    s->n = n;
    tw_state_trim(s);
    return 0;
}

int64_t tw_state_len(const struct tw_state *s)
{
    return s->n;
}

void tw_state_free(struct tw_state *s)
{
    if (!s)
        return;
    s->n = 0;
    tw_state_trim(s);
    free(s->block);
    free(s->mem);
    free(s->experts);
    free(s);
}

size_t tw_state_bytes(const struct tw_model *m, int64_t n)
{
    return (size_t)blocks_for(n) * m->kv_block;
}
