/* state.c - paged keys and values, and the block of recurrent layers */
#include "nn/state.h"
#include <assert.h>
#include <stdlib.h>

void tw_state_layout(struct tw_model *m)
{
    struct tw_delta d = tw_delta_conf(&m->cfg);

    m->window = 0;
    m->rec.bytes = 0;
    for (int k = 0; k < TW_KV_KINDS; k++)
        m->kv[k].bytes = 0;
    for (int64_t i = 0; i < m->cfg.L; i++) {
        struct tw_layer *l = &m->layer[i];
        const struct tw_block *b = l->mixer->block;
        size_t *kv;

        l->kv_kind = b->kv && l->conf->window ? TW_KV_WINDOW : TW_KV_ALL;
        kv = &m->kv[l->kv_kind].bytes;
        l->kv_offset = b->rec ? m->rec.bytes : *kv;
        if (b->kv)
            *kv += tw_dev_round(m->ops->kv_bytes(m->dev, m->cfg.nkv, m->cfg.hd, m->opts.dtype));
        if (b->kv && l->conf->window > m->window)
            m->window = l->conf->window;
        if (b->latent)
            *kv += tw_dev_round(m->ops->mla->bytes(m->dev, m->cfg.mla.rkv, m->cfg.mla.dr, m->opts.dtype));
        if (b->rec)
            m->rec.bytes += tw_dev_round(m->ops->delta->state_bytes(m->dev, &d, m->act));
    }
}

/* Bytes of a block of each kind together. */
static size_t block_bytes(const struct tw_model *m)
{
    return m->kv[TW_KV_ALL].bytes + m->kv[TW_KV_WINDOW].bytes;
}

bool tw_state_kept(const struct tw_model *m)
{
    return block_bytes(m) || m->rec.bytes;
}

/* Blocks are cut from slabs, which grow with what is in use and stay until the model is closed. */
struct tw_kv_slab {
    struct tw_kv_slab *next;
    void *mem;                  /* (dev) */
    struct tw_kv kv[];
};

static void pool_free(struct tw_model *m, struct tw_kv_pool *p)
{
    struct tw_kv_slab *s, *next;

    for (s = p->slab; s; s = next) {
        next = s->next;
        m->ops->free(m->dev, s->mem);
        free(s);
    }
    *p = (struct tw_kv_pool){ .bytes = p->bytes };
}

void tw_state_pool_free(struct tw_model *m)
{
    for (int k = 0; k < TW_KV_KINDS; k++)
        pool_free(m, &m->kv[k]);
    pool_free(m, &m->rec);
}

/* N more blocks; false: the device has no room for them. */
static bool add_slab(struct tw_model *m, struct tw_kv_pool *p, int64_t n, struct tw_err *err)
{
    void *mem = m->ops->alloc(m->dev, (size_t)n * p->bytes, err);
    struct tw_kv_slab *s;

    if (!mem)
        return false;
    s = tw_xcalloc(1, sizeof *s + (size_t)n * sizeof *s->kv);
    s->mem = mem;
    s->next = p->slab;
    p->slab = s;
    p->n += n;
    for (int64_t i = n; i-- > 0;) {
        s->kv[i].mem = (char *)mem + (size_t)i * p->bytes;
        s->kv[i].fresh = true;
        s->kv[i].next = p->free;
        p->free = &s->kv[i];
    }
    return true;
}

static struct tw_kv *take_block(struct tw_model *m, struct tw_kv_pool *p, struct tw_err *err)
{
    const int64_t most = (int64_t)(((size_t)1 << 30) / p->bytes);
    int64_t n = p->n / 2 < most ? p->n / 2 : most;
    struct tw_err none = { 0 };
    struct tw_kv *b;

    if (!p->free && !(n > 1 && add_slab(m, p, n, &none)) &&
            !add_slab(m, p, n > 1 || p == &m->rec ? 1 : 4, &none) && !add_slab(m, p, 1, &none)) {
        tw_fail(err, NULL, 0, "no memory on the device for %zu more bytes of decode state",
                p->bytes);
        return NULL;
    }
    b = p->free;
    p->free = b->next;
    b->next = NULL;
    b->refs = 1;
    return b;
}

static void drop_block(struct tw_kv_pool *p, struct tw_kv *b)
{
    assert(b->refs > 0);
    if (--b->refs)
        return;
    b->next = p->free;
    p->free = b;
}

static int64_t blocks_for(int64_t n)
{
    return (n + TW_KV_BLOCK - 1) / TW_KV_BLOCK;
}

static void set_block(struct tw_pages *p, int64_t i, struct tw_kv *b)
{
    p->block[i] = b;
    for (int64_t k = i == p->first ? 0 : i; k <= i; k++)
        p->mem[k] = b->mem;
}

static void room_for(struct tw_pages *p, int64_t n)
{
    if (n <= p->cap)
        return;
    p->cap = n + n / 2 + 4;
    p->block = tw_xreallocarray(p->block, (size_t)p->cap, sizeof *p->block);
    p->mem = tw_xreallocarray(p->mem, (size_t)p->cap, sizeof *p->mem);
}

/* The first block of the layers with a window that token N, or one after it, sees; or that a token up to
 * a block before it would see: prompts go on a few tokens before the end of what was generated. */
static int64_t first_seen(const struct tw_model *m, int64_t n)
{
    int64_t at = n + 1 - m->window - TW_KV_BLOCK;

    return at > 0 ? at / TW_KV_BLOCK : 0;
}

void tw_state_slide(struct tw_state *s)
{
    struct tw_pages *p = &s->page[TW_KV_WINDOW];
    int64_t first = first_seen(s->m, s->n), at = p->first;

    if (s->keep || !p->n || first <= at)
        return;
    p->first = first;
    while (at < first)
        drop_block(&s->m->kv[TW_KV_WINDOW], p->block[at++]);
    set_block(p, first, p->block[first]);
}

static void drop_mark(struct tw_state *s, int i)
{
    drop_block(&s->m->rec, s->mark[i].rec);
    memmove(&s->mark[i], &s->mark[i + 1], (size_t)(s->nmark - i - 1) * sizeof *s->mark);
    s->nmark--;
}

void tw_state_trim(struct tw_state *s)
{
    for (int k = 0; k < TW_KV_KINDS; k++) {
        struct tw_pages *p = &s->page[k];
        int64_t want = s->n ? blocks_for(s->n) : p->first;

        while (p->n > want)
            drop_block(&s->m->kv[k], p->block[--p->n]);
        if (!s->n)
            p->n = p->first = 0;
    }
    while (s->nmark && s->mark[s->nmark - 1].at > s->n)
        drop_mark(s, s->nmark - 1);
    if (!s->n && s->rec) {
        drop_block(&s->m->rec, s->rec);
        s->rec = NULL;
    }
}

/* A block of its own in the place of *B, with what that holds; *B may be NULL. */
static int own_block(struct tw_state *s, struct tw_kv_pool *p, struct tw_kv **b, struct tw_err *err)
{
    struct tw_kv *to;

    if (*b && (*b)->refs == 1)
        return 0;
    to = take_block(s->m, p, err);
    if (!to)
        return -1;
    if (*b) {
        s->m->ops->copy(s->m->dev, to->mem, (*b)->mem, p->bytes);
        drop_block(p, *b);
    }
    *b = to;
    return 0;
}

/* Where the next N tokens are to leave copies: at multiples of a step that doubles when there would be
 * too many. Without memory for it there is none: they are for a cache. */
static void plan_marks(struct tw_state *s, int64_t n)
{
    int64_t end = s->n + n;

    if (!s->keep)
        return;
    while (s->nmark + end / s->step - s->n / s->step > TW_STATE_MARKS) {
        s->step *= 2;
        for (int i = s->nmark; i-- > 0;)
            if (s->mark[i].at % s->step)
                drop_mark(s, i);
    }
    for (int64_t at = (s->n / s->step + 1) * s->step; at <= end; at += s->step) {
        struct tw_err none = { 0 };
        struct tw_kv *b = take_block(s->m, &s->m->rec, &none);

        if (!b)
            return;
        s->mark[s->nmark++] = (struct tw_mark){ at, b };
    }
}

/* Blocks [from, n) of P are about to be used: the memory of those that are fresh is made at once, as far as
 * they follow each other. A prompt's would be thousands of pages, each made when it is first written. */
static void make_pages(const struct tw_model *m, const struct tw_kv_pool *pool, const struct tw_pages *p,
        int64_t from)
{
    for (int64_t i = from, k; m->ops->fresh && i < p->n; i = k) {
        char *at = p->block[i]->mem;
        bool fresh = p->block[i]->fresh;

        for (k = i; k < p->n && p->block[k]->fresh; k++) {
            if (p->block[k]->mem != at + (size_t)(k - i) * pool->bytes)
                break;
            p->block[k]->fresh = false;
        }
        k += !fresh;
        if (fresh)
            m->ops->fresh(m->dev, at, (size_t)(k - i) * pool->bytes);
    }
}

/* The same for the blocks of one kind; on failure there may be some more than before. */
static int grow_pages(struct tw_state *s, int k, int64_t n, struct tw_err *err)
{
    struct tw_pages *p = &s->page[k];
    struct tw_kv_pool *pool = &s->m->kv[k];
    int64_t want = pool->bytes ? blocks_for(s->n + n) : 0, last = s->n / TW_KV_BLOCK, had = p->n;
    struct tw_kv *b;

    room_for(p, want);
    if (last < p->n) {
        b = p->block[last];
        if (own_block(s, pool, &b, err))
            return -1;
        set_block(p, last, b);
    }
    while (p->n < want) {
        b = take_block(s->m, pool, err);
        if (!b)
            return -1;
        set_block(p, p->n++, b);
    }
    make_pages(s->m, pool, p, had);
    return 0;
}

int tw_state_grow(struct tw_state *s, int64_t n, struct tw_err *err)
{
    int ret = s->m->rec.bytes ? own_block(s, &s->m->rec, &s->rec, err) : 0;

    for (int k = 0; k < TW_KV_KINDS && !ret; k++)
        ret = grow_pages(s, k, n, err);
    if (ret)
        tw_state_trim(s);
    else if (s->m->rec.bytes)
        plan_marks(s, n);
    return ret;
}

void tw_state_delta(const struct tw_state *s, struct tw_delta_seq *q, struct tw_arena *a)
{
    struct tw_delta_mark *to;
    int first = 0;

    if (!s->rec)
        return;
    while (first < s->nmark && s->mark[first].at <= s->n)
        first++;
    q->state = s->rec->mem;
    q->nmark = s->nmark - first;
    q->mark = to = tw_arena_alloc(a, (size_t)q->nmark * sizeof *to);
    for (int64_t i = 0; i < q->nmark; i++)
        to[i] = (struct tw_delta_mark){ s->mark[first + i].at, s->mark[first + i].rec->mem };
}

void tw_state_rec(const struct tw_state *s, void **now, void **copy)
{
    *now = s->rec ? s->rec->mem : NULL;
    *copy = NULL;
    for (int i = 0; i < s->nmark; i++)
        if (s->mark[i].at == s->n + 1)
            *copy = s->mark[i].rec->mem;
}

struct tw_state *tw_state_new(struct tw_model *m, struct tw_err *err)
{
    struct tw_state *s;

    if (!tw_state_kept(m)) {
        tw_fail(err, m->dir, 0, "family %s keeps no decode state", m->info.family);
        return NULL;
    }
    s = tw_xcalloc(1, sizeof *s);
    s->m = m;
    return s;
}

static void fork_pages(struct tw_pages *to, const struct tw_pages *from)
{
    room_for(to, from->n);
    to->first = from->first;
    to->n = from->n;
    for (int64_t i = from->first; i < from->n; i++) {
        set_block(to, i, from->block[i]);
        from->block[i]->refs++;
    }
}

struct tw_state *tw_state_fork(struct tw_state *s, struct tw_err *err)
{
    struct tw_state *f = tw_state_new(s->m, err);

    if (!f)
        return NULL;
    f->a = s->a;
    f->n = s->n;
    f->keep = s->keep;
    tw_routing_fork(f, s);
    for (int k = 0; k < TW_KV_KINDS; k++)
        fork_pages(&f->page[k], &s->page[k]);
    f->rec = s->rec;
    if (f->rec)
        f->rec->refs++;
    f->step = s->step;
    f->nmark = s->nmark;
    for (int i = 0; i < s->nmark; i++) {
        f->mark[i] = s->mark[i];
        f->mark[i].rec->refs++;
    }
    return f;
}

/* The mark at N exactly; NULL: there is none. */
static const struct tw_mark *mark_at(const struct tw_state *s, int64_t n)
{
    for (int i = 0; i < s->nmark; i++)
        if (s->mark[i].at == n)
            return &s->mark[i];
    return NULL;
}

int64_t tw_state_cut(const struct tw_state *s, int64_t n)
{
    int64_t best = n, first = s->page[TW_KV_WINDOW].first;

    if (n >= s->n)
        return s->n;
    if (s->m->rec.bytes)
        best = 0;
    for (int i = 0; i < s->nmark; i++)
        if (s->mark[i].at <= n)
            best = s->mark[i].at;
    return !first || best + 1 - s->m->window >= first * TW_KV_BLOCK ? best : 0;
}

void tw_state_marks(struct tw_state *s, bool keep)
{
    s->keep = keep;
    s->step = keep && s->step ? s->step : TW_DELTA_MARK;
    while (!keep && s->nmark)
        drop_mark(s, s->nmark - 1);
    tw_state_slide(s);
}

int tw_state_truncate(struct tw_state *s, int64_t n, struct tw_err *err)
{
    if (n < 0 || n > s->n)
        return tw_fail(err, NULL, 0, "a state of %lld tokens cannot be cut to %lld",
                (long long)s->n, (long long)n);
    if (tw_state_cut(s, n) != n)
        return tw_fail(err, NULL, 0, "a state of %lld tokens that has not kept all of them cannot be cut "
                "to %lld: the most it can is %lld", (long long)s->n, (long long)n,
                (long long)tw_state_cut(s, n));
    if (s->rec && n && n < s->n) {
        drop_block(&s->m->rec, s->rec);
        s->rec = mark_at(s, n)->rec;
        s->rec->refs++;
    }
    s->n = n;
    tw_state_trim(s);
    return 0;
}

int64_t tw_state_len(const struct tw_state *s)
{
    return s->n;
}

int64_t tw_state_cost(const struct tw_state *s)
{
    size_t per = block_bytes(s->m) / TW_KV_BLOCK, rec = (size_t)(s->nmark + (s->rec != NULL));
    size_t gone = (size_t)s->page[TW_KV_WINDOW].first * s->m->kv[TW_KV_WINDOW].bytes;

    return s->n + (int64_t)(rec * s->m->rec.bytes / (per ? per : 1024)) - (int64_t)(per ? gone / per : 0);
}

void tw_state_free(struct tw_state *s)
{
    if (!s)
        return;
    s->n = 0;
    tw_state_trim(s);
    for (int k = 0; k < TW_KV_KINDS; k++) {
        free(s->page[k].block);
        free(s->page[k].mem);
    }
    free(s->experts);
    free(s);
}

size_t tw_state_bytes(const struct tw_model *m, int64_t n)
{
    return (size_t)blocks_for(n) * block_bytes(m) + (n > 0 ? m->rec.bytes : 0);
}
