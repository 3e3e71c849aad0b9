/* digest_x86.c - SHA-256 with the processor's own instructions, about ten times the plain code */
#include "io.h"
#include "digest_priv.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

bool tw_sha256_has_ni(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 29))
        return false;
    return __get_cpuid(1, &a, &b, &c, &d) && c & 1u << 19;     /* SSE4.1 for the shuffles */
}

/* The instructions keep the eight words as ABEF and CDGH and do two rounds each; four rounds and
 * the four words of the schedule that they free make one turn of the loop. */
__attribute__((target("sha,sse4.1"))) void tw_sha256_ni(uint32_t h[8], const unsigned char *p,
        size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i x = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xb1);
    __m128i y = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(x, y, 8), cdgh = _mm_blend_epi16(y, x, 0xf0);

    for (; blocks; blocks--, p += 64) {
        __m128i was0 = abef, was1 = cdgh, w[4];

        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            __m128i k = _mm_loadu_si128((const __m128i *)(tw_sha256_k + 4 * i));
            __m128i m = _mm_add_epi32(w[0], k), next;

            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, m);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(m, 0x0e));
            next = _mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), _mm_alignr_epi8(w[3], w[2], 4));
            next = _mm_sha256msg2_epu32(next, w[3]);
            w[0] = w[1];
            w[1] = w[2];
            w[2] = w[3];
            w[3] = next;
        }
        abef = _mm_add_epi32(abef, was0);
        cdgh = _mm_add_epi32(cdgh, was1);
    }
    x = _mm_shuffle_epi32(abef, 0x1b);
    y = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(x, y, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(y, x, 8));
}
#else
bool tw_sha256_has_ni(void)
{
    return false;
}

void tw_sha256_ni(uint32_t h[8], const unsigned char *p, size_t blocks)
{
}
#endif
