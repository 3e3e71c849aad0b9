/* tok_cache.c - words met before and their ids. Threads share it without a lock: an entry is
 * written once, then published by one compare-and-swap of its slot, and never changes. When it is
 * full nothing more is remembered; most of any text is made of words that came early. */
#include "tok_priv.h"
#include <stdatomic.h>
#include <stdlib.h>

#ifndef TOK_CACHE_BITS
#define TOK_CACHE_BITS 19               /* fuzzers, who open tokenizers all the time, set fewer */
#endif
#define SLOTS ((uint32_t)1 << TOK_CACHE_BITS)
#define MOST (SLOTS / 2)                /* entries */
#define UNITS ((uint64_t)8 * SLOTS)     /* of 8 bytes; pages are only touched when used */
#define PROBES 32

struct entry {
    uint16_t len, n;
    int32_t id[];                       /* n ids, then len bytes */
};
struct tok_cache {
    _Atomic uint64_t used, count;
    uint64_t *unit;
    _Atomic uint64_t slot[SLOTS];       /* hash >> 32 << 32 | unit + 1 */
};

struct tok_cache *tok_cache_open(void)
{
    struct tok_cache *c = tw_xcalloc(1, sizeof(*c));

    c->unit = tw_xcalloc(UNITS, 8);
    return c;
}

void tok_cache_close(struct tok_cache *c)
{
    if (!c)
        return;
    free(c->unit);
    free(c);
}

const int32_t *tok_cache_find(const struct tok_cache *c, const char *p, size_t len, uint64_t hash,
        int64_t *n)
{
    uint32_t i = (uint32_t)hash;

    for (int k = 0; k < PROBES; k++, i++) {
        uint64_t s = atomic_load_explicit(&c->slot[i & (SLOTS - 1)], memory_order_acquire);
        const struct entry *e;

        if (!s)
            return NULL;
        if (s >> 32 != hash >> 32)
            continue;
        e = (const struct entry *)(c->unit + ((uint32_t)s - 1));
        if (e->len == len && !memcmp(e->id + e->n, p, len)) {
            *n = e->n;
            return e->id;
        }
    }
    return NULL;
}

void tok_cache_put(struct tok_cache *c, const char *p, size_t len, uint64_t hash,
        const int32_t *id, int64_t n)
{
    uint64_t units = (sizeof(struct entry) + (size_t)n * sizeof(*id) + len + 7) / 8, at;
    uint32_t i = (uint32_t)hash;
    struct entry *e;

    if (atomic_load_explicit(&c->used, memory_order_relaxed) + units > UNITS
            || atomic_load_explicit(&c->count, memory_order_relaxed) >= MOST)
        return;
    at = atomic_fetch_add_explicit(&c->used, units, memory_order_relaxed);
    if (at + units > UNITS)
        return;
    e = (struct entry *)(c->unit + at);
    e->len = (uint16_t)len;
    e->n = (uint16_t)n;
    if (n)
        memcpy(e->id, id, (size_t)n * sizeof(*id));
    memcpy(e->id + n, p, len);
    for (int k = 0; k < PROBES; k++, i++) {
        uint64_t none = 0;

        if (atomic_compare_exchange_strong_explicit(&c->slot[i & (SLOTS - 1)], &none,
                    (hash >> 32 << 32) | (at + 1), memory_order_release, memory_order_relaxed)) {
            atomic_fetch_add_explicit(&c->count, 1, memory_order_relaxed);
            return;
        }
    }
}
