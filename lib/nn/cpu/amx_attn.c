/* amx_attn.c - attention on the tile unit, 32 rows at a time: scores of 32 keys, which are tiles, then
 * their weights, by vectors, while the next scores are on their way; at the end outputs, which are tiles
 * again.
 *
 * What bounds it: for 300 ns after a tile instruction, whatever it was, one of the two units of multiply-
 * adds stands still, and while a product of tiles runs, its port is taken. So scores (a quarter of the time)
 * and weights (almost half) add up; a weight is half an instruction of each of twelve, six of which only one
 * port does. Scores never leave L1, and weights, two bytes each, seldom do. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,fma,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,fma,amx-tile,amx-bf16")
#endif
#define TW_VEC_AVX512
#define TW_VEC_DPBF16
#include <limits.h>
#include <math.h>
#include "nn/cpu/amx_priv.h"
#include "nn/cpu/attn_priv.h"
#include "nn/cpu/vec.h"

#define LOG2_E 0x1.715476p+0f

/* Weights are 2^-(n / 1024), n whole numbers of 16 bits that count from a score of the row's own, so 2^-32
 * to 2^32. As a bf16 that is 1 less n, in 128ths, n / 8 being rounded; but 2^x is less than 1 + x between
 * two whole numbers, for which there is a table of 128 places. 92 of 100 weights are what exact ones would
 * be rounded to, the others next to it; as a root mean square they are 3 % further off. Half of what makes
 * them are additions and permutations, which go on behind tiles while multiplications do not. N has 3
 * added for the rounding; the table's last place would be 2 but for the greatest n, which has no room for
 * it. */
#define PARTS 1024              /* of an octave */
#define ROUND 3
static const uint8_t below[128] = {
    1, 3, 6, 9, 12, 15, 18, 20, 23, 26, 28, 31, 33, 35, 38, 40,
    42, 44, 46, 48, 50, 52, 54, 56, 58, 59, 61, 63, 64, 66, 67, 69,
    70, 71, 72, 74, 75, 76, 77, 78, 79, 80, 81, 81, 82, 83, 84, 84,
    85, 85, 86, 86, 87, 87, 87, 88, 88, 88, 88, 88, 88, 88, 88, 88,
    88, 88, 87, 87, 87, 87, 86, 86, 85, 85, 84, 84, 83, 82, 82, 81,
    80, 79, 78, 77, 76, 75, 74, 73, 72, 71, 70, 69, 68, 66, 65, 64,
    62, 61, 59, 58, 56, 55, 53, 51, 50, 48, 46, 45, 43, 41, 39, 37,
    35, 33, 31, 29, 27, 25, 23, 21, 19, 16, 14, 12, 9, 7, 5, 0 };

/* x[k] = 2^-(x[k] / 1024), 32 of them each, as bf16. Each step is of all four before the next one: what waits
 * for its inputs fills the processor's queue, and then nothing goes on. */
VFN void exp2_low(__m512i x[4])
{
    const __mmask64 even = 0x5555555555555555;
    __m512i t0 = _mm512_loadu_si512(below), t1 = _mm512_loadu_si512(below + 64), c[4];

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        c[k] = _mm512_srli_epi16(x[k], 3);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        c[k] = _mm512_maskz_permutex2var_epi8(even, t0, c[k], t1);      /* which looks at seven bits alone */
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        x[k] = _mm512_sub_epi16(_mm512_set1_epi16(127 << 7),
                _mm512_srai_epi16(_mm512_add_epi16(x[k], c[k]), 3));
}

/* 32 keys' scores: 16 rows and 16 keys, then their next 16 keys, then the other rows. They stay in L1, two of
 * them in turn, since a tile is stored when it is wanted again. */
static float *scores_at(const struct tw_att16 *w, int64_t i)
{
    return w->s + i % 2 * (4 * 256);
}

/* What the weights of up to 32 rows count from. */
struct base {
    vf scale;                   /* of scores, to parts of octaves */
    int64_t lo, hi;             /* keys that all of them see */
    int64_t first;              /* behind it no row begins */
    float at[32];               /* parts, rounding included */
    float most[32];             /* the largest scores, where those were looked for .. */
    uint32_t none;              /* .. and rows of which one is no number; then, */
    bool exact;                 /* what is too little stays in range */
};

/* Which of 32 keys from step I on each row sees. */
static void seen(const struct tw_att16 *w, int64_t i, uint32_t see[32])
{
    __m512i at = _mm512_set1_epi32((int)(i * 32)), zero = _mm512_setzero_si512(), one = _mm512_set1_epi32(1);

    for (int r = 0; r < 32; r += 16) {
        __m512i lo = _mm512_max_epi32(_mm512_sub_epi32(_mm512_loadu_si512(w->lo + r), at), zero);
        __m512i hi = _mm512_max_epi32(_mm512_sub_epi32(_mm512_loadu_si512(w->hi + r), at), zero);

        lo = _mm512_sub_epi32(_mm512_sllv_epi32(one, lo), one);     /* all where that is 32 or more */
        hi = _mm512_sub_epi32(_mm512_sllv_epi32(one, hi), one);
        _mm512_storeu_si512(see + r, _mm512_andnot_si512(lo, hi));
    }
}

/* Of rows X to X[3], 128 bits each: their largest ones. */
VFN vf most_of_four(const vf *x)
{
    vf a = v_max(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    vf b = v_max(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));

    return v_max(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* The largest of what each of 16 rows sees, in their order. */
static vf most_of(const float *s, const uint32_t *see)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    vf none = v_set(-INFINITY), x[16], a, b;

#pragma GCC unroll 16
    for (int r = 0; r < 16; r++)
        x[r] = v_max(_mm512_mask_loadu_ps(none, (vm)see[r], s + r * 16),
                _mm512_mask_loadu_ps(none, (vm)(see[r] >> 16), s + r * 16 + 256));
    for (int r = 0; r < 16; r += 4)
        x[r] = most_of_four(x + r);
    a = v_max(_mm512_unpacklo_ps(x[0], x[4]), _mm512_unpackhi_ps(x[0], x[4]));
    b = v_max(_mm512_unpacklo_ps(x[8], x[12]), _mm512_unpackhi_ps(x[8], x[12]));
    a = v_max(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    return _mm512_permutexvar_ps(order, a);
}

/* Rows X of 16 from R on count from MOST. */
static void set_bases(struct tw_att16 *w, struct base *b, int r, vm x, vf most)
{
    _mm512_mask_storeu_ps(w->max + r, x, v_mul(most, v_set(w->scale)));
    _mm512_mask_storeu_ps(b->at + r, x, _mm512_fmadd_ps(most, b->scale, v_set(ROUND)));
}

/* The weights of four rows, of which S is of the first, for 32 keys, to Y. SEE: not all of them see all. What
 * is no number, or too much for one of 32 bits, becomes the greatest weight, or the least where that is kept
 * from it. */
VFN void four(const float *s, uint32_t *y, const struct base *b, int r, const uint32_t *see, const bool keep)
{
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __m512i n[8], x[4];
    vf p[8];

#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        p[k] = _mm512_fnmadd_ps(v_load(s + k / 2 * 16 + k % 2 * 256), b->scale, v_set(b->at[r + k / 2]));
#pragma GCC unroll 8
    for (int k = 0; k < 8 && keep; k++)
        p[k] = v_min(p[k], v_set(INT16_MAX));
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        n[k] = _mm512_cvtps_epi32(p[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        x[k] = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(n[2 * k], n[2 * k + 1]));
    exp2_low(x);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        _mm512_storeu_si512(y + k * 16, see ? _mm512_maskz_mov_epi16(see[k], x[k]) : x[k]);
}

/* Rows whose first keys are among these 32 count from the largest score of those. */
static void find_bases(struct tw_att16 *w, struct base *b, int64_t i, const uint32_t *see)
{
    for (int r = 0; r < w->R; r += 16) {
        __m512i first = _mm512_srli_epi32(_mm512_loadu_si512(w->lo + r), 5);

        set_bases(w, b, r, _mm512_cmpeq_epi32_mask(first, _mm512_set1_epi32((int)i)),
                most_of(scores_at(w, i) + r * 32, see + r));
    }
}

/* Weights of keys [32 i, 32 i + 32), whose scores are there. Vectors leave the way from memory free, so
 * what is multiplied next is asked for here. */
static void weights(struct tw_att16 *w, struct base *b, int64_t i)
{
    const float *s = scores_at(w, i);
    uint32_t *y = w->p + i * 512, see[32];
    bool all = i * 32 >= b->lo && i * 32 + 32 <= b->hi;

    for (int k = 0; k < w->asks * (1 + (w->R > 16)) && w->ask->at < w->ask->end; k++, w->ask->at += 64)
        __builtin_prefetch(w->ask->at, 0, 2);
    if (i <= b->first || !all || b->exact)
        seen(w, i, see);
    if (i <= b->first && !b->exact)
        find_bases(w, b, i, see);
    for (int r = 0; r < w->R; r += 4)
        if (b->exact)
            four(s + r / 16 * 512 + r % 16 * 16, y + r * 16, b, r, see + r, true);
        else if (all)
            four(s + r / 16 * 512 + r % 16 * 16, y + r * 16, b, r, NULL, false);
        else
            four(s + r / 16 * 512 + r % 16 * 16, y + r * 16, b, r, see + r, false);
}

/* What tile T holds goes to S. Then it is zero. */
#define PUT(t, s)                                                                                  \
    do {                                                                                           \
        _tile_stored(t, s, 64);                                                                    \
        _tile_zero(t);                                                                             \
    } while (0)

typedef void each_fn(struct tw_att16 *w, struct base *b, int64_t i);

/* Scores of 32 keys each, rows in one tile or two, and what EACH makes of them. A tile is stored when it is
 * wanted again: four in a row are more than the processor's queue of stores takes. */
VFN void scores(struct tw_att16 *w, struct base *b, each_fn *each, const bool two, const int64_t steps)
{
    float *last = scores_at(w, 0);      /* where the first ones are overwritten */

    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *k = w->k[i], *q = w->q;

#pragma GCC unroll 4
        for (int64_t j = 0; j < steps; j++, k += 256, q += 512) {
            TW_TILE_LOAD(4, q, 64);
            TW_TILE_PASS(6, k, 64);
            if (two)
                TW_TILE_LOAD(5, q + 256, 64);
            TW_TILE_PASS(7, k + steps * 256, 64);
            if (!j)
                PUT(0, last);
            TW_TILE_MUL(0, 4, 6);
            if (two && !j)
                PUT(2, last + 512);
            if (two)
                TW_TILE_MUL(2, 5, 6);
            if (!j)
                PUT(1, last + 256);
            TW_TILE_MUL(1, 4, 7);
            if (two && !j)
                PUT(3, last + 768);
            if (two)
                TW_TILE_MUL(3, 5, 7);
        }
        last = scores_at(w, i);
        if (i)
            each(w, b, i - 1);
    }
    PUT(0, last);
    if (two)
        PUT(2, last + 512);
    PUT(1, last + 256);
    if (two)
        PUT(3, last + 768);
    each(w, b, w->n - 1);
}

/* Scores of more than 16 rows of two steps, whose queries stay in tiles: half of the loads, which are what
 * tiles wait for while a core's second thread uses them, too. */
VFN void scores_two(struct tw_att16 *w, struct base *b, each_fn *each)
{
    float *last = scores_at(w, 0);

    TW_TILE_LOAD(0, w->q, 64);
    TW_TILE_LOAD(1, w->q + 512, 64);
    TW_TILE_LOAD(2, w->q + 256, 64);
    TW_TILE_LOAD(3, w->q + 768, 64);
    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *k = w->k[i];

#pragma GCC unroll 2
        for (int p = 0; p < 2; p++, k += 512) {
            TW_TILE_PASS(6, k, 64);
            TW_TILE_PASS(7, k + 256, 64);
            PUT(4, last);
            TW_TILE_MUL(4, 0, 6);
            PUT(5, last + 512);
            TW_TILE_MUL(5, 2, 6);
            TW_TILE_MUL(4, 1, 7);
            TW_TILE_MUL(5, 3, 7);
            last = scores_at(w, i) + p * 256;
        }
        if (i)
            each(w, b, i - 1);
    }
    PUT(4, last);
    PUT(5, last + 512);
    each(w, b, w->n - 1);
}

VFN void scores_each(struct tw_att16 *w, struct base *b, each_fn *each)
{
    if (w->R > 16 && w->steps == 2)
        scores_two(w, b, each);
    else if (w->R > 16 && w->steps == 4)
        scores(w, b, each, true, 4);
    else if (w->R > 16)
        scores(w, b, each, true, w->steps);
    else
        scores(w, b, each, false, w->steps);
}

/* Queries of whole groups of 32 components, as tiles read them. */
static void pack(const struct tw_att16 *w)
{
    for (int r = 0; r < w->R && w->low; r++)
        for (int64_t j = 0; j < w->steps; j++)
            _mm512_storeu_si512(w->q + (j * 32 + r) * 16,
                    _mm512_loadu_si512((const uint16_t *)w->x[r] + j * 32));
    for (int r = 0; r < w->R && !w->low; r++)
        for (int64_t j = 0; j < w->steps; j++) {
            const float *x = (const float *)w->x[r] + j * 32;

            _mm512_storeu_si512(w->q + (j * 32 + r) * 16,
                    (__m512i)_mm512_cvtne2ps_pbh(v_load(x + 16), v_load(x)));
        }
}

/* Panels of 32 rows of ones, whose products are the sums of weights. */
#define EIGHT 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80
#define LINES EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT
static const uint32_t ones[256] __attribute__((aligned(64))) = { LINES, LINES, LINES, LINES };

/* Outputs of a panel or two of values from panel P on; behind the last panel are the sums. */
VFN void outputs(const struct tw_att16 *w, int64_t p, float *sum, const bool two, const bool panels)
{
    bool sums = p == w->panels, sums1 = p + 1 == w->panels;
    int64_t ld = sums ? 16 : w->panels * 16, ld1 = sums1 ? 16 : w->panels * 16;
    float *o = sums ? sum : w->o + p * 16, *o1 = sums1 ? sum : o + 16;

    _tile_zero(0);
    if (panels)
        _tile_zero(1);
    if (two)
        _tile_zero(2);
    if (two && panels)
        _tile_zero(3);
    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *v = w->v[i] + p * w->vp, *x = w->p + i * 512;

        TW_TILE_LOAD(4, x, 64);
        TW_TILE_PASS(6, sums ? ones : v, 64);
        if (two)
            TW_TILE_LOAD(5, x + 256, 64);
        if (panels)
            TW_TILE_PASS(7, sums1 ? ones : v + w->vp, 64);
        TW_TILE_MUL(0, 4, 6);
        if (two)
            TW_TILE_MUL(2, 5, 6);
        if (panels)
            TW_TILE_MUL(1, 4, 7);
        if (two && panels)
            TW_TILE_MUL(3, 5, 7);
    }
    _tile_stored(0, o, ld * 4);
    if (two)
        _tile_stored(2, o + 16 * ld, ld * 4);
    if (panels)
        _tile_stored(1, o1, ld1 * 4);
    if (two && panels)
        _tile_stored(3, o1 + 16 * ld1, ld1 * 4);
}

/* All of them, and the sums of the rows' weights. */
static void mix(struct tw_att16 *w)
{
    float sum[32 * 16] __attribute__((aligned(64)));
    bool two = w->R > 16;

    __asm__ volatile("" : : : "memory");        /* tile loads name none as their input */
    for (int64_t p = 0; p <= w->panels; p += 2)
        if (two && p < w->panels)
            outputs(w, p, sum, true, true);
        else if (two)
            outputs(w, p, sum, true, false);
        else if (p < w->panels)
            outputs(w, p, sum, false, true);
        else
            outputs(w, p, sum, false, false);
    for (int r = 0; r < w->R; r++)
        w->sum[r] = sum[r * 16];
}

/* Outputs of whole groups of 32 numbers over the sums of weights, to lines. */
static void unpack(const struct tw_att16 *w)
{
    for (int r = 0; r < w->R; r++) {
        const float *o = w->o + r * w->panels * 16;
        vf c = v_set(1 / w->sum[r]);

        for (int64_t p = 0; p < w->panels; p += 2, o += 32)
            _mm512_storeu_si512(w->y[r] + p / 2 * w->ystep[r], (__m512i)_mm512_cvtne2ps_pbh(
                        v_mul(v_load(o + 16), c), v_mul(v_load(o), c)));
    }
}

static struct base base_of(const struct tw_att16 *w)
{
    struct base b = { .scale = v_set(w->scale * (LOG2_E * PARTS)) };
    __m512i lo = _mm512_setzero_si512(), hi = _mm512_set1_epi32(INT_MAX);

    for (int r = 0; r < w->R; r += 16) {
        __mmask16 x = (__mmask16)(w->R - r < 16 ? (1 << (w->R - r)) - 1 : 0xffff);

        lo = _mm512_max_epi32(lo, _mm512_maskz_loadu_epi32(x, w->lo + r));
        hi = _mm512_min_epi32(hi, _mm512_mask_loadu_epi32(hi, x, w->hi + r));
    }
    b.lo = _mm512_reduce_max_epi32(lo);
    b.hi = _mm512_reduce_min_epi32(hi);
    b.first = b.lo / 32;
    return b;
}

/* Rows whose weights are too great: what they count from is far below their largest score, or there is one
 * that is no number. */
static uint32_t too_great(const struct tw_att16 *w)
{
    uint32_t rows = 0;

    for (int r = 0; r < w->R; r++)
        rows |= (uint32_t)!(w->sum[r] < 0x1p30f) << r;
    return rows;
}

/* The largest scores so far, and where one of them is no number. */
static void find_most(struct tw_att16 *w, struct base *b, int64_t i)
{
    uint32_t see[32];

    seen(w, i, see);
    for (int r = 0; r < w->R; r++) {
        const float *s = scores_at(w, i) + r / 16 * 512 + r % 16 * 16;

        if (see[r] & (v_unord(v_load(s)) | (uint32_t)v_unord(v_load(s + 256)) << 16))
            b->none |= 1u << r;
    }
    for (int r = 0; r < w->R; r += 16)
        v_store(b->most + r, v_max(v_load(b->most + r), most_of(scores_at(w, i) + r * 32, see + r)));
}

/* The same again, the weights of ROWS counting from their largest scores. */
static void again(struct tw_att16 *w, struct base *b, uint32_t rows)
{
    for (int r = 0; r < 32; r++)
        b->most[r] = -INFINITY;
    scores_each(w, b, find_most);
    for (int r = 0; r < w->R; r += 16)
        set_bases(w, b, r, (vm)(rows >> r), v_load(b->most + r));
    b->exact = true;
    scores_each(w, b, weights);
    mix(w);
    for (int r = 0; r < w->R; r++)
        if (rows >> r & 1 && (b->none >> r & 1 || !(fabsf(b->most[r]) < INFINITY)))
            w->sum[r] = NAN;
}

void tw_amx_att16(struct tw_att16 *w)
{
    struct base b = base_of(w);
    uint32_t rows;

    if (w->x[0])
        pack(w);
    tw_amx_config(tw_min(16, w->R), tw_max(0, w->R - 16), 2);
    __asm__ volatile("" : : : "memory");        /* tile loads name none as their input */
    scores_each(w, &b, weights);
    mix(w);
    rows = too_great(w);
    if (rows)
        again(w, &b, rows);
    if (w->y[0])
        unpack(w);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
