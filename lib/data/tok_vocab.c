/* tok_vocab.c - token texts and the map from text to id. */
#include "tok_priv.h"
#include <stdlib.h>

static inline uint64_t word8(const char *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Multiply and fold, 8 bytes at a time; the last step overlaps. Never leaves the process. */
uint64_t tok_hash(const char *p, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ n, tail = 0;

    if (n >= 8) {
        for (size_t i = 0; i + 8 < n; i += 8)
            h = mix(h ^ word8(p + i), 0xD6E8FEB86659FD93u);
        tail = word8(p + n - 8);
    } else if (n >= 4) {
        uint32_t a, b;

        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        tail = (uint64_t)a << 32 | b;
    } else if (n) {
        tail = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8
                | (unsigned char)p[n - 1];
    }
    return mix(h ^ tail, 0xA0761D6478BD642Fu);
}

static void put_slot(struct tok_vocab *v, uint64_t hash, int32_t id)
{
    uint32_t i = (uint32_t)hash & v->mask;

    while (v->slot[i])
        i = (i + 1) & v->mask;
    v->slot[i] = (hash >> 32 << 32) | (uint32_t)(id + 1);
}

/* The text of ID, which also is that of OLD, will be found as ID. */
static void take_over(struct tok_vocab *v, uint64_t hash, int32_t old, int32_t id)
{
    uint32_t i = (uint32_t)hash & v->mask;

    while ((uint32_t)v->slot[i] != (uint32_t)(old + 1))
        i = (i + 1) & v->mask;
    v->slot[i] = (hash >> 32 << 32) | (uint32_t)(id + 1);
}

#define AHEAD 16

int32_t tok_vocab_index(struct tok_vocab *v)
{
    uint64_t ahead[AHEAD] = {0};
    uint32_t size = 1024;

    while (size < 2 * v->count)
        size *= 2;
    free(v->slot);
    v->slot = tw_xcalloc(size, sizeof(*v->slot));
    v->mask = size - 1;
    for (int32_t id = -AHEAD; id < v->n; id++) {    /* the slot's memory is asked for early */
        struct tw_str s = tok_vocab_text(v, id), next = tok_vocab_text(v, id + AHEAD);
        uint64_t hash = ahead[(id + AHEAD) % AHEAD];
        int32_t old;

        if (next.p) {
            ahead[(id + AHEAD) % AHEAD] = tok_hash(next.p, next.n);
            tok_vocab_warm(v, ahead[(id + AHEAD) % AHEAD], 0);
        }
        if (!s.p)
            continue;
        old = tok_vocab_find_hash(v, s.p, s.n, hash);
        if (old >= 0 && !v->again)
            return id;
        if (old >= 0)
            take_over(v, hash, old, id);
        else
            put_slot(v, hash, id);
    }
    return -1;
}

int32_t tok_vocab_find_hash(const struct tok_vocab *v, const char *p, size_t n, uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash & v->mask; v->slot[i]; i = (i + 1) & v->mask) {
        uint32_t id = (uint32_t)v->slot[i] - 1;

        if (v->slot[i] >> 32 == hash >> 32 && v->of[id].n == n
                && !memcmp(v->text.p + v->of[id].off, p, n))
            return (int32_t)id;
    }
    return -1;
}

int32_t tok_vocab_find(const struct tok_vocab *v, const char *p, size_t n)
{
    return v->slot ? tok_vocab_find_hash(v, p, n, tok_hash(p, n)) : -1;
}

void tok_vocab_warm(const struct tok_vocab *v, uint64_t hash, int step)
{
    const uint64_t *slot = &v->slot[(uint32_t)hash & v->mask];

    if (!step)
        __builtin_prefetch(slot);
    else if (*slot && step == 1)
        __builtin_prefetch(&v->of[(uint32_t)*slot - 1]);
    else if (*slot)
        __builtin_prefetch(v->text.p + v->of[(uint32_t)*slot - 1].off);
}

int tok_vocab_append(struct tok_vocab *v, size_t n, int64_t id)
{
    if (tok_vocab_text(v, id).p)
        return -1;
    if (id >= v->cap) {
        v->cap = id < 512 ? 1024 : (int32_t)id * 2;
        v->of = tw_xreallocarray(v->of, (size_t)v->cap, sizeof(*v->of));
    }
    for (; v->n <= id; v->n++)
        v->of[v->n] = (struct tok_entry){ 0, TOK_NONE };
    v->of[id] = (struct tok_entry){ (uint32_t)(v->text.n - n), (uint32_t)n };
    v->count++;
    return 0;
}

int tok_vocab_add(struct tok_vocab *v, size_t n, int64_t id)
{
    const char *p = v->text.p + (v->text.n - n);

    if (tok_vocab_find(v, p, n) >= 0 || tok_vocab_append(v, n, id))
        return -1;
    if (!v->slot || v->count + v->count / 2 > v->mask)
        return tok_vocab_index(v) < 0 ? 0 : -1;
    put_slot(v, tok_hash(p, n), (int32_t)id);
    return 0;
}

int tok_vocab_rename(struct tok_vocab *v, size_t n, int64_t id)
{
    const char *p = v->text.p + (v->text.n - n);

    if (id < 0 || id >= v->n || tok_vocab_find(v, p, n) >= 0)
        return -1;
    /* The old text's slot stays, and no text is found by it. */
    v->of[id] = (struct tok_entry){ (uint32_t)(v->text.n - n), (uint32_t)n };
    v->count++;
    if (v->count + v->count / 2 > v->mask)
        return tok_vocab_index(v) < 0 ? 0 : -1;
    put_slot(v, tok_hash(p, n), (int32_t)id);
    return 0;
}

void tok_vocab_free(struct tok_vocab *v)
{
    tw_buf_free(&v->text);
    free(v->of);
    free(v->slot);
}
