/* bins.h - first-fit: each load goes into the first of many equal bins that has room for it. */
#ifndef TW_BINS_H
#define TW_BINS_H
#include <stdint.h>

struct tw_bins {
    int64_t *tree;                  /* tree[leaves + i]: what is free in bin i; an inner node has the
                                     * larger of its two */
    int64_t leaves, n;              /* bins used: [0, n) */
};
/* For at most N loads, none larger than SIZE. */
void tw_bins_open(struct tw_bins *b, int64_t n, int64_t size);
int64_t tw_bins_put(struct tw_bins *b, int64_t load);   /* the bin's number; O(log n) */
int64_t tw_bins_left(const struct tw_bins *b, int64_t i);
void tw_bins_close(struct tw_bins *b);

#endif
