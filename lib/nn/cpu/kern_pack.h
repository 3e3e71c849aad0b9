/* kern_pack.h - bringing inputs into the order of the product's blocks, part of kern.h. On x86 the
 * work is transposing eight by eight words in registers; rests and other block heights go word by
 * word. */

#if defined(TW_VEC_AVX512) || defined(TW_VEC_AVX2)
/* r[i] lane j becomes r[j] lane i. */
VFN void turn8(__m256 r[8])
{
    __m256 t[8];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256 lo = r[i], hi = r[i + 4];

        r[i] = _mm256_permute2f128_ps(lo, hi, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(lo, hi, 0x31);
    }
}

/* dst[j * ldd + i] = src[i * lds + j], i and j in [0, 8) */
VFN void turn_block(float *dst, int64_t ldd, const float *src, int64_t lds)
{
    __m256 r[8];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * lds);
    turn8(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        _mm256_storeu_ps(dst + i * ldd, r[i]);
}
#define HAVE_TURN 1

/* Sixteen floats as eight pairs of bf16. */
VFN __m256i pairs8(const float *x)
{
#if defined(TW_VEC_DPBF16)
    return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x));
#else
    __m256i r[2];

    for (int i = 0; i < 2; i++) {       /* nearest even; NaN stays NaN */
        __m256 f = _mm256_loadu_ps(x + 8 * i);
        __m256i u = _mm256_castps_si256(f), odd = _mm256_srli_epi32(u, 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
        __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff),
                    _mm256_and_si256(odd, _mm256_set1_epi32(1))));

        r[i] = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16),
                _mm256_or_si256(odd, _mm256_set1_epi32(0x40)), nan);
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(r[0], r[1]), 0xd8);
#endif
}
#else
#define HAVE_TURN 0
#endif

static void pack(float *dst, const float *src, int64_t lds, int R, int64_t s)
{
    int64_t i = 0;

    if (R == 1) {
        memcpy(dst, src, (size_t)s * 4);
        return;
    }
#if HAVE_TURN
    if (R == 8)
        for (; i + 8 <= s; i += 8)
            turn_block(dst + i * 8, 8, src + i, lds);
#endif
    for (; i < s; i++)
        for (int r = 0; r < R; r++)
            dst[i * R + r] = src[r * lds + i];
}

static void pack16(uint32_t *dst, const float *src, int64_t lds, int R, int64_t s, int64_t k)
{
    int64_t i = 0;

#if HAVE_TURN
    if (R == 8)
        for (; i + 8 <= s && 2 * i + 16 <= k; i += 8) {
            __m256 r[8];

#pragma GCC unroll 8
            for (int x = 0; x < 8; x++)
                r[x] = _mm256_castsi256_ps(pairs8(src + x * lds + 2 * i));
            turn8(r);
#pragma GCC unroll 8
            for (int x = 0; x < 8; x++)
                _mm256_storeu_ps((float *)dst + (i + x) * 8, r[x]);
        }
    if (R == 1)
        for (; i + 8 <= s && 2 * i + 16 <= k; i += 8)
            _mm256_storeu_si256((__m256i *)(dst + i), pairs8(src + 2 * i));
#endif
    for (; i < s; i++)
        for (int r = 0; r < R; r++) {
            const float *x = src + r * lds + 2 * i;
            uint32_t lo = 2 * i < k ? tw_f32_to_bf16(x[0]) : 0;
            uint32_t hi = 2 * i + 1 < k ? tw_f32_to_bf16(x[1]) : 0;

            dst[i * R + r] = lo | hi << 16;
        }
}

#if defined(TW_VEC_DPBF16)
/* Sixteen BF16 of each of two rows. */
VFN __m512i two_rows(const uint16_t *x, const uint16_t *y)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)x)),
            _mm256_loadu_si256((const __m256i *)y), 1);
}

/* Where the halves of pairs are among two rounded rows: the first row low, the first row high. */
static const uint16_t interleave[2][32] = {
    { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 },
    { 16, 0, 17, 1, 18, 2, 19, 3, 20, 4, 21, 5, 22, 6, 23, 7,
      24, 8, 25, 9, 26, 10, 27, 11, 28, 12, 29, 13, 30, 14, 31, 15 },
};
#endif

/* Rows 2i and 2i + 1 of a column side by side: the pair of a sum that runs down the rows. FIRST_HIGH
 * puts row 2i into the half that vdpbf16ps adds first. Half a pair is completed by PAD. */
static void pairs(uint32_t *dst, int W, const float *src, int64_t lds, int R, int64_t s, int64_t k,
        bool first_high, uint32_t pad)
{
    int64_t i = 0;

#if defined(TW_VEC_DPBF16)
    if (R == 16 && W == 16) {
        __m512i order = _mm512_loadu_si512(interleave[first_high]);

        for (; i < s && 2 * i + 2 <= k; i++) {
            const float *x = src + 2 * i * lds;
            __m512bh two = _mm512_cvtne2ps_pbh(v_load(x + lds), v_load(x));

            v_store(dst + i * 16, (__m512)_mm512_permutexvar_epi16(order, (__m512i)two));
        }
    } else if (R == 8 && W == 8) {
        __m512i order = _mm512_loadu_si512(interleave[first_high]);
        __m256i half = _mm512_castsi512_si256(order);

        /* sixteen columns' order, for eight: the second row's begin at 8 */
        half = _mm256_sub_epi16(half, _mm256_and_si256(_mm256_srli_epi16(half, 1),
                    _mm256_set1_epi16(8)));
        for (; i < s && 2 * i + 2 <= k; i++) {
            const float *x = src + 2 * i * lds;
            __m256bh two = _mm256_cvtne2ps_pbh(_mm256_loadu_ps(x + lds), _mm256_loadu_ps(x));

            _mm256_storeu_si256((__m256i *)(dst + i * 8),
                    _mm256_permutexvar_epi16(half, (__m256i)two));
        }
    }
#endif
    for (; i < s; i++)
        for (int r = 0; r < W; r++) {
            const float *x = src + 2 * i * lds + r;
            uint32_t a = 2 * i < k ? r < R ? tw_f32_to_bf16(x[0]) : 0 : pad;
            uint32_t b = 2 * i + 1 < k ? r < R ? tw_f32_to_bf16(x[lds]) : 0 : pad;

            dst[i * W + r] = first_high ? b | a << 16 : a | b << 16;
        }
}

static void pairsw(uint32_t *dst, int W, const uint16_t *src, int64_t lds, int R, int64_t s,
        int64_t k, bool first_high, uint32_t pad)
{
    int64_t i = 0;

#if defined(TW_VEC_DPBF16)
    __m512i order = _mm512_loadu_si512(interleave[first_high]);

    if (R == 16 && W == 16)
        for (; i < s && 2 * i + 2 <= k; i++)
            _mm512_storeu_si512(dst + i * 16, _mm512_permutexvar_epi16(order,
                        two_rows(src + 2 * i * lds, src + (2 * i + 1) * lds)));
    else if (R == 8 && W == 8)
        for (; i < s && 2 * i + 2 <= k; i++) {
            __m128i x = _mm_loadu_si128((const __m128i *)(src + 2 * i * lds));
            __m128i y = _mm_loadu_si128((const __m128i *)(src + (2 * i + 1) * lds));
            __m128i a = first_high ? y : x, b = first_high ? x : y;

            _mm_storeu_si128((__m128i *)(dst + i * 8), _mm_unpacklo_epi16(a, b));
            _mm_storeu_si128((__m128i *)(dst + i * 8) + 1, _mm_unpackhi_epi16(a, b));
        }
#endif
    for (; i < s; i++)
        for (int r = 0; r < W; r++) {
            const uint16_t *x = src + 2 * i * lds + r;
            uint32_t a = 2 * i < k ? r < R ? x[0] : 0 : pad;
            uint32_t b = 2 * i + 1 < k ? r < R ? x[lds] : 0 : pad;

            dst[i * W + r] = first_high ? b | a << 16 : a | b << 16;
        }
}

static void low(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;

#if HAVE_TURN
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(dst + i), pairs8(src + i));
#endif
    for (; i < n; i++)
        dst[i] = tw_f32_to_bf16(src[i]);
}

#if defined(TW_VEC_DPBF16)
static void lines(uint32_t *dst, int64_t step, const float *src, int64_t n, float scale)
{
    vf c = v_set(scale);

    for (int64_t i = 0; i < n; i += 32, dst += step)
        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(v_mul(v_load(src + i + 16), c),
                    v_mul(v_load(src + i), c)));
}
#define LINES lines
#else
#define LINES NULL
#endif

static void packc(float *dst, int W, const float *src, int64_t lds, int R, int64_t s)
{
    if (W == 16)
        for (int64_t i = 0; i < s; i++)
            v_store(dst + i * 16, R == 16 ? v_load(src + i * lds) : v_loadn(src + i * lds, R));
#if HAVE_TURN
    else if (W == 8 && R == 8)
        for (int64_t i = 0; i < s; i++)
            _mm256_storeu_ps(dst + i * 8, _mm256_loadu_ps(src + i * lds));
#endif
    else
        for (int64_t i = 0; i < s; i++)
            for (int r = 0; r < W; r++)
                dst[i * W + r] = r < R ? src[i * lds + r] : 0;
}

static void panel(float *dst, const float *src, int64_t lds, int64_t n, int64_t s)
{
    int64_t j = 0;

#if HAVE_TURN
    if (n == 16)
        for (; j + 8 <= s; j += 8) {
            turn_block(dst + j * 16, 16, src + j, lds);
            turn_block(dst + j * 16 + 8, 16, src + 8 * lds + j, lds);
        }
#endif
    for (; j < s; j++)
        for (int64_t i = 0; i < 16; i++)
            dst[j * 16 + i] = i < n ? src[i * lds + j] : 0;
}

/* Sixteen rows at a time are rounded, then words (pairs) are transposed. */
static void panel16(uint32_t *dst, const float *src, int64_t lds, int64_t n, int64_t s, int64_t k)
{
    enum { WORDS = 32 };
    float words[16 * WORDS];

    for (int64_t i = 0; i < s; i += WORDS) {
        int64_t w = tw_min(WORDS, s - i), c = tw_min(2 * w, k - 2 * i);

        for (int64_t r = 0; r < n; r++) {
            uint16_t *to = (uint16_t *)(words + r * WORDS);

            if (c > 0)
                low(to, src + r * lds + 2 * i, c);
            for (int64_t x = tw_max(c, 0); x < 2 * w; x++)
                to[x] = 0;
        }
        panel((float *)dst + i * 16, words, WORDS, n, w);
    }
}

static void turn16(uint32_t *dst, const uint32_t *src)
{
#if HAVE_TURN
    for (int half = 0; half < 2; half++) {      /* eight rows of W at a time */
        __m256 r[8];

#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            r[i] = _mm256_loadu_ps((const float *)src + i * 16 + half * 8);
        turn8(r);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            __m256i a = _mm256_castps_si256(r[i]), b = _mm256_castps_si256(r[i + 1]);
            __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
            __m256i *to = (__m256i *)(dst + (half * 4 + i / 2) * 16);

            _mm256_storeu_si256(to, _mm256_permute2x128_si256(lo, hi, 0x20));
            _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(lo, hi, 0x31));
        }
    }
#else
    for (int n = 0; n < 16; n += 2)
        for (int k = 0; k < 16; k++) {
            uint32_t a = src[k / 2 * 16 + n], b = src[k / 2 * 16 + n + 1];

            if (k % 2)
                a >>= 16, b >>= 16;
            dst[n / 2 * 16 + k] = (a & 0xffff) | b << 16;
        }
#endif
}

#if defined(TW_VEC_DPBF16)
/* BLOCKS * 8 rows and P panels of struct tw_outer, its first COLS columns. */
VFN void outer_block(const struct tw_outer *o, int64_t col, const int blocks, const int P,
        const bool b16)
{
    static const uint16_t none[16] = { [0 ... 15] = 0x8000 };
    const char *b = tw_elem(o->b, b16, col);
    const int64_t size = b16 ? 2 : 4, ldb = o->ldb * size, cols = o->n - col;
    float *c = o->c + col;
    vf acc[16];
    __m512i order = _mm512_loadu_si512(interleave[1]);
    const uint32_t *a0 = o->a, *a1 = o->a + o->s * 8;
    int64_t k[2] = { tw_min(16, cols), tw_min(16, cols - 16) };

#pragma GCC unroll 16
    for (int r = 0; r < blocks * 8; r++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++)
            acc[r * P + p] = v_load(c + r * o->ldc + p * 16);
    for (int64_t i = 0; i < o->s; i++, b += 2 * ldb, a0 += 8, a1 += 8) {
        bool whole = 2 * i + 1 < o->k;

#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
            const char *x = b + p * 16 * size, *y = x + ldb;
            __m512i two = b16 ? two_rows((const uint16_t *)x, whole ? (const uint16_t *)y : none) :
                    (__m512i)_mm512_cvtne2ps_pbh(whole ? ld((const float *)y, k[p]) : v_set(-0.0f),
                            ld((const float *)x, k[p]));
            vf w = (vf)_mm512_permutexvar_epi16(order, two);

            __builtin_prefetch(x + o->ahead * size);
            __builtin_prefetch(y + o->ahead * size);
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++)
                acc[r * P + p] = v_dp(acc[r * P + p], v_words(a0[r]), w);
            if (blocks == 2)
#pragma GCC unroll 8
                for (int r = 0; r < 8; r++)
                    acc[(r + 8) * P + p] = v_dp(acc[(r + 8) * P + p], v_words(a1[r]), w);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < blocks * 8; r++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++)
            v_store(c + r * o->ldc + p * 16, acc[r * P + p]);
}

VFN void outer_cols(const struct tw_outer *o, int blocks, const bool b16)
{
    int64_t i = 0;

    if (blocks == 2) {
        for (; i < o->n; i += 16)
            outer_block(o, i, 2, 1, b16);
        return;
    }
    for (; i + 16 < o->n; i += 32)
        outer_block(o, i, 1, 2, b16);
    if (i < o->n)
        outer_block(o, i, 1, 1, b16);
}

static void outer(const struct tw_outer *o, int blocks)
{
    if (o->b16)
        outer_cols(o, blocks, true);
    else
        outer_cols(o, blocks, false);
}
#define OUTER outer
#else
#define OUTER NULL
#endif
