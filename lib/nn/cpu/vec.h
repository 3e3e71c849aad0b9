/* vec.h - sixteen floats at a time, the same bits on every instruction set: all lanes are
 * elementwise IEEE operations and fused multiply-adds, so AVX512 does in one instruction what AVX2
 * does in two and portable C in a loop. Included by kern.h inside an isa_*.c file that defines one
 * of TW_VEC_AVX512, TW_VEC_AVX2, TW_VEC_C. */
#ifndef TW_VEC_H
#define TW_VEC_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "data/weights.h"

/* Vectors in registers must be inlined. Of arrays the compiler may decide: inlining all of them
 * takes it minutes, with a sanitizer even those it would choose. */
#if defined(TW_VEC_C) && defined(__SANITIZE_ADDRESS__)
#define VFN static __attribute__((noinline, unused))
#elif defined(TW_VEC_C)
#define VFN static inline __attribute__((unused))
#else
#define VFN static inline __attribute__((always_inline, unused))
#endif

/* Where a lane of a loop reads unaligned 32-bit words. */
VFN float v_word(const void *p)
{
    float f;

    memcpy(&f, p, 4);
    return f;
}

#if defined(TW_VEC_AVX512)
#include <immintrin.h>
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
VFN vf v_set(float x) { return _mm512_set1_ps(x); }
VFN vf v_load(const void *p) { return _mm512_loadu_ps(p); }
VFN void v_store(void *p, vf x) { _mm512_storeu_ps(p, x); }
VFN vf v_loadn(const float *p, int64_t n)   /* lanes [0, n), n <= 16, the others 0 */
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
VFN void v_storen(float *p, vf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}
VFN vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VFN vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VFN vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VFN vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VFN vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VFN vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
VFN vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }   /* a > b ? a : b */
VFN vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }   /* a < b ? a : b */
VFN vf v_rint(vf a) { return _mm512_roundscale_ps(a, 8); }
VFN vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VFN vm v_unord(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
VFN vf v_sel(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }   /* m ? a : b */
VFN vi v_toint(vf a) { return _mm512_cvttps_epi32(a); }
VFN vi v_half(vi a) { return _mm512_srai_epi32(a, 1); }
VFN vi v_isub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
VFN vf v_pow2(vi n)             /* 2^n for n in [-126, 127] */
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
VFN vm v_between(int64_t lo, int64_t hi)    /* lanes in [lo, hi) */
{
    uint32_t a = lo <= 0 ? 0 : lo >= 16 ? 0xffff : (1u << lo) - 1;
    uint32_t b = hi <= 0 ? 0 : hi >= 16 ? 0xffff : (1u << hi) - 1;

    return (vm)(b & ~a);
}

#elif defined(TW_VEC_AVX2)
#include <immintrin.h>
typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef struct { __m256 a, b; } vm;
#define V2(name, call) VFN vf name(vf x, vf y) { return (vf){ call(x.a, y.a), call(x.b, y.b) }; }
VFN vf v_set(float x) { __m256 a = _mm256_set1_ps(x); return (vf){ a, a }; }
VFN vf v_load(const void *p)
{
    return (vf){ _mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8) };
}
VFN void v_store(void *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps((float *)p + 8, x.b);
}
VFN vm v_between(int64_t lo, int64_t hi)
{
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    __m256i l = _mm256_set1_epi32(lo < -1 ? -1 : lo > 16 ? 16 : (int)lo);
    __m256i h = _mm256_set1_epi32(hi < 0 ? 0 : hi > 16 ? 16 : (int)hi);

    return (vm){ _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(l, i),
                    _mm256_cmpgt_epi32(h, i))),
            _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(l, j),
                    _mm256_cmpgt_epi32(h, j))) };
}
VFN vf v_loadn(const float *p, int64_t n)
{
    vm m = v_between(0, n);

    return (vf){ _mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
            n > 8 ? _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)) : _mm256_setzero_ps() };
}
VFN void v_storen(float *p, vf x, int64_t n)
{
    vm m = v_between(0, n);

    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
V2(v_add, _mm256_add_ps)
V2(v_sub, _mm256_sub_ps)
V2(v_mul, _mm256_mul_ps)
V2(v_div, _mm256_div_ps)
V2(v_max, _mm256_max_ps)
V2(v_min, _mm256_min_ps)
VFN vf v_fma(vf a, vf b, vf c)
{
    return (vf){ _mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b) };
}
VFN vf v_sqrt(vf a) { return (vf){ _mm256_sqrt_ps(a.a), _mm256_sqrt_ps(a.b) }; }
VFN vf v_rint(vf a) { return (vf){ _mm256_round_ps(a.a, 8), _mm256_round_ps(a.b, 8) }; }
VFN vm v_lt(vf x, vf y)
{
    return (vm){ _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ) };
}
VFN vm v_unord(vf x)
{
    return (vm){ _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q) };
}
VFN vf v_sel(vm m, vf x, vf y)
{
    return (vf){ _mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b) };
}
VFN vi v_toint(vf x) { return (vi){ _mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b) }; }
VFN vi v_half(vi x) { return (vi){ _mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1) }; }
VFN vi v_isub(vi x, vi y)
{
    return (vi){ _mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b) };
}
VFN vf v_pow2(vi n)
{
    __m256i k = _mm256_set1_epi32(127);

    return (vf){ _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.a, k), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.b, k), 23)) };
}

#else
typedef struct { float f[16]; } vf;
typedef struct { int32_t f[16]; } vi;
typedef struct { bool f[16]; } vm;
#define VEACH(r, e)                                                                                \
    do {                                                                                           \
        for (int i = 0; i < 16; i++)                                                               \
            (r).f[i] = (e);                                                                        \
        return (r);                                                                                \
    } while (0)
VFN vf v_set(float x) { vf r; VEACH(r, x); }
VFN vf v_load(const void *p) { vf r; memcpy(&r, p, 64); return r; }
VFN void v_store(void *p, vf x) { memcpy(p, &x, 64); }
VFN vf v_loadn(const float *p, int64_t n) { vf r; VEACH(r, i < n ? p[i] : 0); }
VFN void v_storen(float *p, vf x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = x.f[i];
}
VFN vf v_add(vf a, vf b) { vf r; VEACH(r, a.f[i] + b.f[i]); }
VFN vf v_sub(vf a, vf b) { vf r; VEACH(r, a.f[i] - b.f[i]); }
VFN vf v_mul(vf a, vf b) { vf r; VEACH(r, a.f[i] * b.f[i]); }
VFN vf v_div(vf a, vf b) { vf r; VEACH(r, a.f[i] / b.f[i]); }
VFN vf v_fma(vf a, vf b, vf c) { vf r; VEACH(r, fmaf(a.f[i], b.f[i], c.f[i])); }
VFN vf v_sqrt(vf a) { vf r; VEACH(r, sqrtf(a.f[i])); }
VFN vf v_max(vf a, vf b) { vf r; VEACH(r, a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
VFN vf v_min(vf a, vf b) { vf r; VEACH(r, a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
VFN vf v_rint(vf a) { vf r; VEACH(r, rintf(a.f[i])); }
VFN vm v_lt(vf a, vf b) { vm r; VEACH(r, a.f[i] < b.f[i]); }
VFN vm v_unord(vf a) { vm r; VEACH(r, a.f[i] != a.f[i]); }
VFN vf v_sel(vm m, vf a, vf b) { vf r; VEACH(r, m.f[i] ? a.f[i] : b.f[i]); }
/* Out of range (a NaN) is the least integer, as the processors' instruction has it. */
VFN vi v_toint(vf a) { vi r; VEACH(r, fabsf(a.f[i]) < 0x1p31f ? (int32_t)a.f[i] : INT32_MIN); }
VFN vi v_half(vi a) { vi r; VEACH(r, a.f[i] >> 1); }
VFN vi v_isub(vi a, vi b) { vi r; VEACH(r, (int32_t)((uint32_t)a.f[i] - (uint32_t)b.f[i])); }
VFN vf v_pow2(vi n)
{
    vf r;

    for (int i = 0; i < 16; i++) {
        uint32_t u = ((uint32_t)n.f[i] + 127) << 23;

        memcpy(&r.f[i], &u, 4);
    }
    return r;
}
VFN vm v_between(int64_t lo, int64_t hi) { vm r; VEACH(r, i >= lo && i < hi); }
#endif

/* The sum and the maximum of all lanes in one fixed order: lane i and i + 8, those and i + 4, .. */
VFN float v_sum(vf x)
{
#if defined(TW_VEC_AVX512) || defined(TW_VEC_AVX2)
#if defined(TW_VEC_AVX512)
    __m256 e = _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castsi256_ps(
                _mm512_extracti64x4_epi64(_mm512_castps_si512(x), 1)));
#else
    __m256 e = _mm256_add_ps(x.a, x.b);
#endif
    __m128 f = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));

    f = _mm_add_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_add_ss(f, _mm_shuffle_ps(f, f, 1)));
#else
    float f[16];

    v_store(f, x);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            f[i] += f[i + n];
    return f[0];
#endif
}
VFN float v_most(vf x)          /* a > b ? a : b of each two */
{
#if defined(TW_VEC_AVX512) || defined(TW_VEC_AVX2)
#if defined(TW_VEC_AVX512)
    __m256 e = _mm256_max_ps(_mm512_castps512_ps256(x), _mm256_castsi256_ps(
                _mm512_extracti64x4_epi64(_mm512_castps_si512(x), 1)));
#else
    __m256 e = _mm256_max_ps(x.a, x.b);
#endif
    __m128 f = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));

    f = _mm_max_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_max_ss(f, _mm_shuffle_ps(f, f, 1)));
#else
    float f[16];

    v_store(f, x);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            f[i] = f[i] > f[i + n] ? f[i] : f[i + n];
    return f[0];
#endif
}

/* p 2^n for whole n in [-152, 130] and p near 1, rounded once: what is no normal number comes of the
 * second of two factors. */
VFN vf v_scale(vf p, vf n)
{
#if defined(TW_VEC_AVX512)
    return _mm512_scalef_ps(p, n);
#else
    vi k = v_toint(n), h = v_half(k);

    return v_mul(v_mul(p, v_pow2(h)), v_pow2(v_isub(k, h)));
#endif
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 7 in r, and 2^n so that
 * results down to the last denormal are rounded once. Error below 1 ulp; NaN stays NaN. */
VFN vf v_exp_in(vf c)           /* c in [-105, 90] */
{
    vf n = v_rint(v_mul(c, v_set(0x1.715476p+0f)));
    vf r = v_fma(n, v_set(-0x1.62e400p-1f), c), p;

    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    p = v_fma(r, v_set(1.0f / 5040), v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_scale(p, n);
}
VFN vf v_exp(vf x)
{
    return v_sel(v_unord(x), x, v_exp_in(v_max(v_min(x, v_set(90.0f)), v_set(-105.0f))));
}
/* The same for softmaxes, whose largest is e^0: what is below e^-87 is zero there. No sum would feel it,
 * and a number that is not normal takes a processor ten times as long. */
VFN vf v_exp_soft(vf x)
{
    vf least = v_set(-87.0f);

    return v_sel(v_lt(x, least), v_set(0), v_exp_in(v_max(least, x)));
}

/* acc plus the products of one pair of bf16 a word, as vdpbf16ps does it (found by trial on the
 * hardware): the odd element's fused multiply-add first, then the even one's; denormals are zero on
 * the way in and out. */
#if defined(TW_VEC_AVX512)
VFN vf v_words(uint32_t x) { return _mm512_castsi512_ps(_mm512_set1_epi32((int)x)); }
VFN vf v_even(vf w) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(w), 16)); }
VFN vf v_odd(vf w)
{
    return _mm512_castsi512_ps(_mm512_and_epi32(_mm512_castps_si512(w),
                _mm512_set1_epi32((int)0xffff0000)));
}
VFN vf v_flush(vf x)
{
    vm tiny = _mm512_cmp_ps_mask(_mm512_abs_ps(x), v_set(0x1p-126f), _CMP_LT_OQ);

    return _mm512_mask_and_ps(x, tiny, x, v_set(-0.0f));
}
#elif defined(TW_VEC_AVX2)
VFN vf v_words(uint32_t x)
{
    __m256 a = _mm256_castsi256_ps(_mm256_set1_epi32((int)x));

    return (vf){ a, a };
}
VFN __m256 v_even8(__m256 w)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(w), 16));
}
VFN __m256 v_odd8(__m256 w)
{
    return _mm256_and_ps(w, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}
VFN __m256 v_flush8(__m256 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 tiny = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ);

    return _mm256_blendv_ps(x, _mm256_and_ps(x, sign), tiny);
}
VFN vf v_even(vf w) { return (vf){ v_even8(w.a), v_even8(w.b) }; }
VFN vf v_odd(vf w) { return (vf){ v_odd8(w.a), v_odd8(w.b) }; }
VFN vf v_flush(vf x) { return (vf){ v_flush8(x.a), v_flush8(x.b) }; }
#else
VFN float v_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
VFN uint32_t v_unbits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
VFN vf v_words(uint32_t x) { vf r; VEACH(r, v_bits(x)); }
VFN vf v_even(vf w) { vf r; VEACH(r, v_bits(v_unbits(w.f[i]) << 16)); }
VFN vf v_odd(vf w) { vf r; VEACH(r, v_bits(v_unbits(w.f[i]) & 0xffff0000)); }
VFN vf v_flush(vf x) { vf r; VEACH(r, fabsf(x.f[i]) < 0x1p-126f ? copysignf(0, x.f[i]) : x.f[i]); }
#endif
VFN vf v_dp(vf acc, vf a, vf b)
{
#if defined(TW_VEC_DPBF16)
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
    acc = v_flush(v_fma(v_flush(v_odd(a)), v_flush(v_odd(b)), v_flush(acc)));
    return v_flush(v_fma(v_flush(v_even(a)), v_flush(v_even(b)), acc));
#endif
}

#endif
