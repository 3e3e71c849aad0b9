/* map.h - text to pointer. The map borrows its keys: they live in what the pointer points to. */
#ifndef TW_SERVE_MAP_H
#define TW_SERVE_MAP_H
#include "base/mem.h"
#include <stdint.h>

struct tw_map_slot {
    const char *key;                /* NULL: free, or was removed when hash is not 0 */
    uint64_t hash;
    void *value;
};

struct tw_map_of {                  /* zero-initialise */
    struct tw_map_slot *slot;
    size_t n, used, cap;            /* entries; with removed ones; slots, a power of two */
};

void *tw_map_get(const struct tw_map_of *m, struct tw_str key);     /* NULL: none */
static inline void *tw_map_gets(const struct tw_map_of *m, const char *key)
{
    return tw_map_get(m, tw_str(key));
}
void tw_map_put(struct tw_map_of *m, const char *key, void *value); /* replaces an equal key */
void *tw_map_del(struct tw_map_of *m, const char *key);             /* what was there */
/* Goes over all: i from 0, until NULL. The current one may be removed, nothing added. */
void *tw_map_next(const struct tw_map_of *m, size_t *i);
void tw_map_free(struct tw_map_of *m);

#endif
