/* amx_attn.c - attention on the tile unit, 32 rows at a time, in three stages: their scores, which are
 * tiles; their weights, by vectors, half of the rows at a time; their outputs, which are tiles again.
 *
 * What bounds it: for 300 ns after a tile instruction, whatever it was, one of the two units of multiply-
 * adds stands still, and a weight is seven operations that only those do; then scores on their way between
 * L1 and L2, where they are many. Stages of other rows beside each other gain nothing: while a product of
 * tiles runs, the other port of the vector units is taken. Nor do stages of more rows at once: their scores
 * are in L2. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,amx-tile,amx-bf16")
#endif
#define TW_VEC_AVX512
#define TW_VEC_DPBF16
#include "nn/cpu/amx_priv.h"
#include "nn/cpu/attn_priv.h"
#include "nn/cpu/vec.h"

#define LOG2_E 0x1.715476p+0f

/* x[k] = 2^x[k], x[k] <= 0, to within 8.6e-5 of it and 1 for 0: rounding to bf16 takes 20 times that. A
 * polynomial of what x is above an integer. Each step is of all eight before the next one: what waits for its
 * inputs fills the processor's queue, and then nothing goes on. */
VFN void exp2_low(vf x[8])
{
    static const float c[] = { 0x1.d2378ap-3f, 0x1.63e658p-1f, 1.0f };
    vf r[8], p[8];

#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        r[k] = _mm512_reduce_ps(x[k], 1);       /* x - floor(x) */
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        p[k] = v_fma(r[k], v_set(0x1.3baaa6p-4f), v_set(c[0]));
#pragma GCC unroll 2
    for (int i = 1; i < 3; i++)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            p[k] = v_fma(p[k], r[k], v_set(c[i]));
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        x[k] = _mm512_scalef_ps(p[k], x[k]);    /* times 2^floor(x) */
}

/* Where row R's 16 scores of keys [i * 32, i * 32 + 16) lie, with the next 16 of them 256 words further; and
 * then its weights of all 32. */
static float *at_step(const struct tw_att16 *w, int64_t i, int r)
{
    return w->s + i * TW_ATT_STEP + r / 16 * 512 + r % 16 * 16;
}

/* Weights of up to 16 rows from R0 on. */
struct soft {
    struct tw_att16 *w;
    int r0;
    int64_t lo, hi;             /* keys that all of them see */
    vf scale, sum[16];
    float most[16];             /* powers of 2, as SCALE makes them of scores */
};

static int64_t behind(int64_t i, int64_t a, int64_t b)
{
    return i >= a && i < b ? b : i;
}

/* The largest scores of four rows from R on. */
static void find_most(struct soft *x, int r)
{
    struct tw_att16 *w = x->w;
    vf none = v_set(-INFINITY), m[8] = { none, none, none, none, none, none, none, none };
    int64_t a = (x->lo + 31) / 32, b = tw_max(a, x->hi / 32);
    float *s = at_step(w, 0, x->r0 + r);

    for (int64_t i = a; i < b; i++)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            m[k] = v_max(v_load(s + i * TW_ATT_STEP + k % 4 * 16 + k / 4 * 256), m[k]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++, s += 16) {
        int64_t lo = w->lo[x->r0 + r + k], hi = w->hi[x->r0 + r + k];

        m[k] = v_max(m[k], m[k + 4]);
        for (int64_t i = behind(lo / 32, a, b); i * 32 < hi; i = behind(i + 1, a, b)) {
            const float *y = s + i * TW_ATT_STEP;

            m[k] = v_max(v_sel(v_between(lo - i * 32, hi - i * 32), v_load(y), none), m[k]);
            m[k] = v_max(v_sel(v_between(lo - i * 32 - 16, hi - i * 32 - 16), v_load(y + 256), none), m[k]);
        }
        w->max[x->r0 + r + k] = v_most(m[k]) * w->scale;
        x->most[r + k] = v_most(m[k]) * (w->scale * LOG2_E);
    }
}

/* Of four rows from S on, which are rows from R on, for 32 keys. */
VFN void four(struct soft *x, float *s, int r, const vm see[8], const bool all)
{
    vf p[8];

#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        p[k] = _mm512_fmsub_ps(v_load(s + k / 2 * 16 + k % 2 * 256), x->scale, v_set(x->most[r + k / 2]));
    exp2_low(p);
#pragma GCC unroll 8
    for (int k = 0; k < 8 && !all; k++)
        p[k] = v_sel(see[k], p[k], v_set(0));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        x->sum[r + k] = v_add(v_add(x->sum[r + k], p[2 * k]), p[2 * k + 1]);
        _mm512_storeu_si512(s + k * 16, (__m512i)_mm512_cvtne2ps_pbh(p[2 * k + 1], p[2 * k]));
    }
}

/* The weights of four rows from R on for keys [i * 32, i * 32 + 32), where not all of them see all. */
static void find_some(struct soft *x, int64_t i, int r)
{
    vm see[8];

    for (int k = 0; k < 4; k++) {
        int64_t lo = x->w->lo[x->r0 + r + k] - i * 32, hi = x->w->hi[x->r0 + r + k] - i * 32;

        see[2 * k] = v_between(lo, hi);
        see[2 * k + 1] = v_between(lo - 16, hi - 16);
    }
    four(x, at_step(x->w, i, x->r0 + r), r, see, false);
}

/* Vectors leave the way from memory free, so weights that are multiplied next are asked for here. */
static void soft_rows(struct soft *x, int R)
{
    struct tw_att16 *w = x->w;

    x->lo = 0;
    x->hi = INT64_MAX;
    for (int r = 0; r < R; r++) {
        x->lo = tw_max(x->lo, w->lo[x->r0 + r]);
        x->hi = tw_min(x->hi, w->hi[x->r0 + r]);
    }
    for (int r = 0; r < 16; r++)
        x->sum[r] = v_set(0);
    for (int r = 0; r < R; r += 4)
        find_most(x, r);
    for (int64_t i = 0; i < w->n; i++) {
        float *s = at_step(w, i, x->r0);

        for (int k = 0; k < w->asks && w->ask->at < w->ask->end; k++, w->ask->at += 64)
            __builtin_prefetch(w->ask->at, 0, 2);
        for (int k = 0; !x->r0 && w->R > 16 && k < 512; k += 16)
            __builtin_prefetch(s + 512 + k, 1);
        for (int r = 0; r < R; r += 4)
            if (i * 32 >= x->lo && i * 32 + 32 <= x->hi)
                four(x, s + r * 16, r, NULL, true);
            else
                find_some(x, i, r);
    }
    for (int r = 0; r < R; r++)
        w->sum[x->r0 + r] = v_sum(x->sum[r]);
}

/* Numbers that are not normal take a processor forty times as long; here they are zero. */
static void weights(struct tw_att16 *w)
{
    unsigned csr = _mm_getcsr();
    struct soft x;

    x.w = w;
    x.scale = v_set(w->scale * LOG2_E);
    _mm_setcsr(csr | _MM_FLUSH_ZERO_ON);
    for (x.r0 = 0; x.r0 < w->R; x.r0 += 16)
        soft_rows(&x, tw_min(16, w->R - x.r0));
    _mm_setcsr(csr);
}

#define DP(two_rows, two_panels)                                                                   \
    do {                                                                                           \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        if (two_rows)                                                                              \
            _tile_dpbf16ps(2, 5, 6);                                                               \
        if (two_panels) {                                                                          \
            _tile_dpbf16ps(1, 4, 7);                                                               \
            if (two_rows)                                                                          \
                _tile_dpbf16ps(3, 5, 7);                                                           \
        }                                                                                          \
    } while (0)

/* What tile T holds goes to S. Then it is zero. */
#define PUT(t, s)                                                                                  \
    do {                                                                                           \
        _tile_stored(t, s, 64);                                                                    \
        _tile_zero(t);                                                                             \
    } while (0)

/* Scores of 32 keys each, rows in one tile or two. A tile is stored when it is wanted again: four in a row
 * are more than the processor's queue of stores takes. */
VFN void scores(const struct tw_att16 *w, const bool two, const int64_t steps)
{
    float *last = w->s;         /* where the first ones are overwritten */

    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *k = w->k[i], *q = w->q;

#pragma GCC unroll 4
        for (int64_t j = 0; j < steps; j++, k += 256, q += 512) {
            _tile_loadd(4, q, 64);
            _tile_stream_loadd(6, k, 64);
            if (two)
                _tile_loadd(5, q + 256, 64);
            _tile_stream_loadd(7, k + steps * 256, 64);
            if (!j)
                PUT(0, last);
            _tile_dpbf16ps(0, 4, 6);
            if (two && !j)
                PUT(2, last + 512);
            if (two)
                _tile_dpbf16ps(2, 5, 6);
            if (!j)
                PUT(1, last + 256);
            _tile_dpbf16ps(1, 4, 7);
            if (two && !j)
                PUT(3, last + 768);
            if (two)
                _tile_dpbf16ps(3, 5, 7);
        }
        last = at_step(w, i, 0);
    }
    PUT(0, last);
    if (two)
        PUT(2, last + 512);
    PUT(1, last + 256);
    if (two)
        PUT(3, last + 768);
}

/* Scores of more than 16 rows of two steps, whose queries stay in tiles: half of the loads, which are what
 * tiles wait for while a core's second thread uses them, too. */
static void scores_two(const struct tw_att16 *w)
{
    float *last = w->s;

    _tile_loadd(0, w->q, 64);
    _tile_loadd(1, w->q + 512, 64);
    _tile_loadd(2, w->q + 256, 64);
    _tile_loadd(3, w->q + 768, 64);
    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *k = w->k[i];

#pragma GCC unroll 2
        for (int p = 0; p < 2; p++, k += 512) {
            _tile_stream_loadd(6, k, 64);
            _tile_stream_loadd(7, k + 256, 64);
            PUT(4, last);
            _tile_dpbf16ps(4, 0, 6);
            PUT(5, last + 512);
            _tile_dpbf16ps(5, 2, 6);
            _tile_dpbf16ps(4, 1, 7);
            _tile_dpbf16ps(5, 3, 7);
            last = at_step(w, i, 0) + p * 256;
        }
    }
    PUT(4, last);
    PUT(5, last + 512);
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

/* Outputs of a panel or two of values from panel P on. */
VFN void outputs(const struct tw_att16 *w, int64_t p, const bool two, const bool panels)
{
    float *o = w->o + p * 16, *o1 = o + 16 * w->panels * 16;
    int64_t ld = w->panels * 64;

    _tile_zero(0);
    if (panels)
        _tile_zero(1);
    if (two)
        _tile_zero(2);
    if (two && panels)
        _tile_zero(3);
    for (int64_t i = 0; i < w->n; i++) {
        const uint32_t *v = w->v[i] + p * w->vp;
        const float *s = at_step(w, i, 0);

        _tile_loadd(4, s, 64);
        _tile_stream_loadd(6, v, 64);
        if (two)
            _tile_loadd(5, s + 512, 64);
        if (panels)
            _tile_stream_loadd(7, v + w->vp, 64);
        DP(two, panels);
    }
    _tile_stored(0, o, ld);
    if (two)
        _tile_stored(2, o1, ld);
    if (panels)
        _tile_stored(1, o + 16, ld);
    if (two && panels)
        _tile_stored(3, o1 + 16, ld);
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

void tw_amx_att16(struct tw_att16 *w)
{
    bool two = w->R > 16;

    if (w->x[0])
        pack(w);
    tw_amx_config(tw_min(16, w->R), tw_max(0, w->R - 16), 2);
    __asm__ volatile("" : : : "memory");        /* tile loads name none as their input */
    if (two && w->steps == 2)
        scores_two(w);
    else if (two && w->steps == 4)
        scores(w, true, 4);
    else if (two)
        scores(w, true, w->steps);
    else
        scores(w, false, w->steps);
    weights(w);
    __asm__ volatile("" : : : "memory");
    for (int64_t p = 0; p < w->panels; p += 2)
        if (two && w->panels - p > 1)
            outputs(w, p, true, true);
        else if (two)
            outputs(w, p, true, false);
        else if (w->panels - p > 1)
            outputs(w, p, false, true);
        else
            outputs(w, p, false, false);
    if (w->y[0])
        unpack(w);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
