/* rng.h - counter-based random numbers: Philox 4x32-10 (Salmon et al., 2011). A number is a pure
 * function of (seed, stream, counter), so it does not depend on threads, order or device. */
#ifndef TW_RNG_H
#define TW_RNG_H
#include <stdint.h>

#ifndef TW_FN                   /* what a compiler for other processors says before it includes this */
#define TW_FN static inline
#endif

/* out[0..3] = philox4x32_10(counter, key) */
TW_FN void tw_philox(uint32_t out[4], const uint32_t ctr[4], const uint32_t key[2])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];

    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 64 random bits for counter I of STREAM under SEED. */
static inline uint64_t tw_rand64(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, out[4];
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)stream,
        (uint32_t)(stream >> 32) };

    tw_philox(out, ctr, key);
    return (uint64_t)out[1] << 32 | out[0];
}
/* Uniform in [0, 1): 53 bits; and in (0, 1). */
static inline double tw_rand01(uint64_t seed, uint64_t stream, uint64_t i)
{
    return (double)(tw_rand64(seed, stream, i) >> 11) * 0x1p-53;
}
/* A standard normal (Box-Muller on counter I), and a uniform integer in [0, n), n > 0, unbiased. */
double tw_rand_normal(uint64_t seed, uint64_t stream, uint64_t i);
uint64_t tw_rand_below(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);
/* Position I of the permutation of [0, n) that (seed, stream) names: O(1) memory (a Feistel network
 * with cycle walking), so a shuffled order needs no array and can be entered anywhere. */
uint64_t tw_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);
/* A stable 64-bit hash of bytes (for keys and fingerprints, not for secrets). */
uint64_t tw_hash64(const void *p, uint64_t n, uint64_t seed);

#endif
