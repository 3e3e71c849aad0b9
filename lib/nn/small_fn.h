/* small_fn.h - moments of AdamW in 16 or 8 bits: the arithmetic of one number, compiled by C and CUDA
 * (which says what TW_FN is), to the same bits.
 *
 * 8 bits: 256 numbers share a scale, the one of largest magnitude, sign included, so that it is kept
 * exactly; of the second moment the square root is kept, whose range is half as wide in its exponents.
 * A number over its scale is one of the 256 values of the dynamic map of Dettmers et al. ("8-bit
 * Optimizers via Block-wise Quantization", 2022): seven decades below 1, each with twice as many values
 * as the one below, at equal distances. 16 bits: BF16.
 *
 * Rounding goes up or down at random, in proportion to the distances: a second moment moves by a
 * thousandth a step, and to the nearest it would stand still. The random bits are those of a counter
 * (place, step), so they depend on nothing else; numbers that come back from a file go to the nearest,
 * which is where they were. */
#ifndef TW_SMALL_FN_H
#define TW_SMALL_FN_H
#include "base/rng.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef TW_FN
#define TW_FN static inline
#endif

#define TW_SMALL_BLOCK 256      /* numbers of a scale */
#define TW_SMALL_M 0x1p-100f    /* smallest scales: nothing becomes subnormal */
#define TW_SMALL_R 0x1p-40f

/* Value C of the map; SIGN: that of the first moment, else of the root of the second. Ascending in C. */
TW_FN float tw_small_value(int c, int sign)
{
    const double ten[] = { 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1 };
    int p = sign ? (c < 127 ? 127 - c : c - 127) : c + 1, d = 0;
    double x;

    if (c == 255)
        return 1;
    if (sign ? !p : !c)
        return 0;
    while (p >> (d + 1))
        d++;
    x = ten[sign ? d : d - 1] * (0.1 + 0.9 * ((p - (1 << d) + 0.5) / (1 << d)));
    return (float)(sign && c < 127 ? -x : x);
}

/* The largest value of MAP that is not above X >= MAP[0]. */
TW_FN int tw_small_below(const float *map, float x)
{
    int c = 0;

    for (int half = 128; half; half /= 2)
        c += map[c + half] <= x ? half : 0;
    return c;
}

/* X between two values, up when R, a fraction of 2^16, is below its share of the way. */
TW_FN int tw_small_random(const float *map, float x, uint32_t r)
{
    int c = tw_small_below(map, x);

    if (c < 255 && ((float)r + 0.5f) * 0x1p-16f * (map[c + 1] - map[c]) < x - map[c])
        c++;
    return c;
}

TW_FN int tw_small_nearest(const float *map, float x)
{
    int c = tw_small_below(map, x);

    return c < 255 && map[c + 1] - x < x - map[c] ? c + 1 : c;
}

/* The scale of a block whose first moments are in [LO, HI], whose roots are at most HI. */
TW_FN float tw_small_scale_m(float lo, float hi)
{
    float s = hi >= -lo ? hi : lo;

    return fabsf(s) < TW_SMALL_M ? TW_SMALL_M : s;
}
TW_FN float tw_small_scale_r(float hi)
{
    return hi < TW_SMALL_R ? TW_SMALL_R : hi;
}

/* A root that is not zero stays so: the first moment is divided by it. */
TW_FN int tw_small_floor(int c, float root)
{
    return c || !(root > 0) ? c : 1;
}

/* BF16 of a finite number; R: 16 random bits. */
TW_FN uint16_t tw_small_bf16(float x, uint32_t r)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return (uint16_t)((u + r) >> 16);
}

/* Random bits of numbers 4 I .. 4 I + 3: the low half of each word is the first moment's. */
TW_FN void tw_small_bits(uint32_t out[4], uint64_t i, uint64_t step)
{
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)step, (uint32_t)(step >> 32) };
    uint32_t key[2] = { 0x6d6f6d65u, 0x6e74732eu };

    tw_philox(out, ctr, key);
}

/* What AdamW makes of the weight W with gradient G (scaled), M and V, which are new after it. */
struct tw_small_step {
    float beta1, beta2, rest1, rest2, keep, lr, root, eps;
};
TW_FN float tw_small_adamw(float w, float g, float *m, float *v, float *root,
        const struct tw_small_step *p)
{
    *m = fmaf(p->beta1, *m, p->rest1 * g);
    *v = fmaf(p->beta2, *v, p->rest2 * (g * g));
    *root = sqrtf(*v);
    return fmaf(p->lr, *m / fmaf(*root, p->root, p->eps), p->keep * w);
}

#endif
