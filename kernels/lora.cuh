/* lora.cuh - the runs of a batch as LoRA's kernels see them */
#ifndef TW_LORA_CUH
#define TW_LORA_CUH
#include "cu.cuh"


enum { TILE = 64, MAX_RUNS = 48, FEW = 256 };

enum { GROUP = 3 };             /* products of one input at once */

struct run {
    int32_t t0, t1, tile0, r;   /* tokens; number of its first tile; rank */
    const float *a, *b;
    float *da, *db;
    float scale, drop;
    const float *more_a[GROUP - 1];     /* of the group's other products, which have the same rank */
    float *more_da[GROUP - 1];
};
static __device__ __forceinline__ const float *a_of(const struct run &u, int m)
{
    return m ? u.more_a[m - 1] : u.a;
}

struct hidden {                 /* h of each product of a group */
    float *p[GROUP];
    int64_t ld[GROUP];
};

struct runs {                   /* passed by value */
    struct run run[MAX_RUNS];
    int n, tiles;               /* tiles in all */
    const uint64_t *key;        /* of dropout */
    uint32_t module;
};

/* The run of tile number TILE; *t0, *t1: its tokens. */
static __device__ __forceinline__ const struct run &find(const struct runs &q, int tile, int *t0,
        int *t1)
{
    int i = 0;

    while (i + 1 < q.n && q.run[i + 1].tile0 <= tile)
        i++;
    *t0 = q.run[i].t0 + (tile - q.run[i].tile0) * TILE;
    *t1 = min(*t0 + TILE, q.run[i].t1);
    return q.run[i];
}

/* Whether feature K of a token is kept: base/rng.h's Philox on the device. */
static __device__ bool keep(uint64_t key, uint32_t module, int64_t k, float drop)
{
    uint32_t c0 = (uint32_t)(k / 4), c1 = module, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    uint32_t u = k % 4 == 0 ? c0 : k % 4 == 1 ? c1 : k % 4 == 2 ? c2 : c3;
    return !((float)(u >> 8) * 0x1p-24f < drop);
}

#endif
