/* bins.c - a tree of maxima over what is free */
#include "run/bins.h"
#include "base/mem.h"
#include <stdlib.h>

void tw_bins_open(struct tw_bins *b, int64_t n, int64_t size)
{
    *b = (struct tw_bins){ .leaves = 1 };
    while (b->leaves < n)
        b->leaves *= 2;
    b->tree = tw_xreallocarray(NULL, (size_t)(2 * b->leaves), sizeof(*b->tree));
    for (int64_t i = 0; i < 2 * b->leaves; i++)
        b->tree[i] = size;
}

int64_t tw_bins_put(struct tw_bins *b, int64_t load)
{
    int64_t i = 1, *tree = b->tree;

    while (i < b->leaves)
        i = tree[2 * i] >= load ? 2 * i : 2 * i + 1;
    tree[i] -= load;
    for (int64_t k = i / 2; k; k /= 2)
        tree[k] = tree[2 * k] > tree[2 * k + 1] ? tree[2 * k] : tree[2 * k + 1];
    if (i - b->leaves >= b->n)
        b->n = i - b->leaves + 1;
    return i - b->leaves;
}

int64_t tw_bins_left(const struct tw_bins *b, int64_t i)
{
    return b->tree[b->leaves + i];
}

void tw_bins_close(struct tw_bins *b)
{
    free(b->tree);
    *b = (struct tw_bins){ 0 };
}
