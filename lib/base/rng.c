/* rng.c - what is built on tw_rand64: normals, ranges, permutations; and a hash. */
#include "rng.h"
#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846
#define SMALL_PERM 256

double tw_rand_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, out[4];
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)stream,
        (uint32_t)(stream >> 32) };
    uint64_t a, b;

    tw_philox(out, ctr, key);
    a = (uint64_t)out[1] << 32 | out[0];
    b = (uint64_t)out[3] << 32 | out[2];
    /* u1 in (0, 1): its logarithm is finite; u2 in [0, 1) */
    double u1 = ((double)(a >> 12) + 0.5) * 0x1p-52, u2 = (double)(b >> 11) * 0x1p-53;

    return sqrt(-2 * log(u1)) * cos(2 * PI * u2);
}

/* Lemire's method: the high half of a 128-bit product, rejecting the few low halves that would
 * favour some results. Each retry moves to another key. */
uint64_t tw_rand_below(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    for (uint64_t key = seed;; key += 0x9E3779B97F4A7C15u) {
        unsigned __int128 m = (unsigned __int128)tw_rand64(key, stream, i) * n;

        if ((uint64_t)m >= n || (uint64_t)m >= -n % n)
            return (uint64_t)(m >> 64);
    }
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Fisher-Yates: exactly uniform, which a Feistel network on a handful of items is not. */
static uint64_t permute_small(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    unsigned char v[SMALL_PERM];

    for (uint64_t k = 0; k < n; k++) {
        uint64_t j = tw_rand_below(seed, stream, k, k + 1);

        v[k] = v[j];
        v[j] = (unsigned char)k;
    }
    return v[i];
}

uint64_t tw_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    uint64_t key[2] = { tw_rand64(seed, stream, 0), tw_rand64(seed, stream, 1) };
    int half = 0;

    if (n <= SMALL_PERM)
        return n < 2 ? 0 : permute_small(seed, stream, i, n);
    while (half < 32 && (n - 1) >> (2 * half))
        half++;
    uint64_t mask = half == 32 ? 0xFFFFFFFFu : ((uint64_t)1 << half) - 1;

    /* the network permutes [0, 4^half), less than 4n: walk its cycle until inside [0, n) */
    do {
        uint64_t l = i >> half, r = i & mask;

        for (uint64_t round = 0; round < 6; round++) {
            uint64_t f = mix(r ^ key[round & 1], key[~round & 1] + round * 0xA0761D6478BD642Fu);
            uint64_t t = l ^ ((f ^ f >> 32) & mask);

            l = r;
            r = t;
        }
        i = l << half | r;
    } while (i >= n);
    return i;
}

uint64_t tw_hash64(const void *data, uint64_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = mix(seed ^ 0xA0761D6478BD642Fu, n ^ 0xE7037ED1A0B428DBu), w;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = mix(h ^ w, 0x8EBC6AF09C88C6E3u);
    }
    w = 0;
    if (n)
        memcpy(&w, p, n);
    return mix(h ^ w, h + 0x589965CC75374CC3u);
}
