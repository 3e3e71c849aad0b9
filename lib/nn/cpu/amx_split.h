/* amx_split.h - f32 numbers as three bf16 each (amx_f32.c says how and why) */
#ifndef TW_AMX_SPLIT_H
#define TW_AMX_SPLIT_H
#include "nn/cpu/amx_priv.h"
#if defined(__x86_64__)
#define PART_WORDS 256          /* a part of 32 numbers of 16 rows or columns: a tile */

/* Parts of 16 pairs, EVEN being the lower halves. What lies under a part's upper half is left there: the
 * pair's other half takes its place. */
AMX static inline void split(__m512i part[3], __m512 even, __m512 odd)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i down = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    const __mmask64 lower = 0x3333333333333333;

#pragma GCC unroll 3
    for (int p = 0; p < 3; p++) {
        part[p] = _mm512_mask_shuffle_epi8((__m512i)odd, lower, (__m512i)even, down);
        even = _mm512_sub_ps(even, (__m512)_mm512_and_si512((__m512i)even, upper));
        odd = _mm512_sub_ps(odd, (__m512)_mm512_and_si512((__m512i)odd, upper));
    }
}

/* Neither takes nor gives denormals from here on, as the unit; returns what restore() wants. */
static inline unsigned flush(void)
{
    unsigned was = _mm_getcsr();

    _mm_setcsr(was | 0x8040);
    __asm__ volatile("" : : : "memory");
    return was;
}

static inline void restore(unsigned was)
{
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(was);
}

void tw_amx_pairs32(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
void tw_amx_few32(const struct tw_few *w);
#endif
#endif
