/* reward_set.c - a set of hashes, to count what is distinct in time that grows with the text alone */
#include "reward_priv.h"

bool tw_hashset_add(struct tw_hashset *h, uint64_t key)
{
    uint64_t k = key ? key : 1;         /* 0 marks a free slot */
    int64_t at;

    if (2 * (h->n + 1) > h->cap) {
        struct tw_hashset bigger = { .cap = h->cap ? 2 * h->cap : 64 };

        bigger.slot = tw_xcalloc((size_t)bigger.cap, sizeof(*bigger.slot));
        for (int64_t i = 0; i < h->cap; i++)
            if (h->slot[i])
                tw_hashset_add(&bigger, h->slot[i]);
        free(h->slot);
        *h = bigger;
    }
    for (at = (int64_t)(k & (uint64_t)(h->cap - 1)); h->slot[at]; at = (at + 1) & (h->cap - 1))
        if (h->slot[at] == k)
            return false;
    h->slot[at] = k;
    h->n++;
    return true;
}

void tw_hashset_free(struct tw_hashset *h)
{
    free(h->slot);
    *h = (struct tw_hashset){ 0 };
}
