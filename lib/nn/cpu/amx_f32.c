/* amx_f32.c - f32 products on the tile unit, which multiplies bf16 alone. A number is the sum of three
 * of them, exactly: hi, what its upper half says; mid, what the upper half of the rest says; lo, what is
 * missing then. Six of the nine products of two numbers' parts are added to the same sums, 32 numbers of k
 * at a time: lo hi, mid hi, mid mid, hi mid, hi lo, hi hi. What is left out is below 2^-21 of a product and
 * 2^-24.5 in the mean, always towards zero; and as the unit has two chains for even and odd k, sums are
 * nearer to the true ones than a chain of fused multiply-adds is.
 *
 * What differs from that chain: the unit takes and gives no denormals, so that what is below 2^-126 is
 * 0 and numbers below 2^-110 lose their last bits; and where an infinity meets a part that is 0 there
 * is a NaN (never a finite number).
 *
 * What bounds it: 24 products of 16 cycles need 14 tile loads. Weights stay f32 in memory and are
 * split for a block of the sum into the thread's own memory, where all rows pass them; A's parts come
 * from L2. Splitting 32 numbers is 11 vector operations, of which the tile unit hides most. */
#include "nn/cpu/amx_split.h"
#if defined(__x86_64__)
#include <string.h>

#define AHEAD 512               /* panels come from L3 or memory: numbers to ask for L1 .. */
#define AHEAD2 4096             /* .. and for L2 */
#define COLUMNS_AHEAD 32
#define TOKENS_AHEAD 16         /* rows of other matrices are far from each other */

/* The parts of 32 numbers of a row. */
AMX static inline void split_row(uint32_t *dst, int64_t stride, __m512 a, __m512 b)
{
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    __m512i part[3];

    split(part, _mm512_permutex2var_ps(a, evens, b), _mm512_permutex2var_ps(a, odds, b));
#pragma GCC unroll 3
    for (int p = 0; p < 3; p++)
        _mm512_storeu_si512(dst + p * stride, part[p]);
}

static inline uint32_t lanes(int64_t n)
{
    return n >= 32 ? ~0u : n <= 0 ? 0 : (1u << n) - 1;
}

/* dst[((i * 3 + p) * R + r) * 16 ..]: part P of numbers [32i, 32i + 32) of row r. */
AMX static void pack32(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k)
{
    unsigned was = flush();

    for (int64_t i = 0; i < s; i += TW_STEP32, src += 32, k -= 32, dst += R * TW_STEP32) {
        uint32_t some = lanes(k);

        for (int r = 0; r < R; r++) {
            const float *x = src + r * ld;

            split_row(dst + r * 16, R * 16, _mm512_maskz_loadu_ps((__mmask16)some, x),
                    _mm512_maskz_loadu_ps((__mmask16)(some >> 16), x + 16));
        }
    }
    restore(was);
}

/* Sums that run down the rows: 16 columns at a time are turned. */
AMX static void pairs32_a(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k)
{
    const struct tw_kern *kern = &tw_kern_avx512bf16;
    float turned[2][16 * 16];
    unsigned was = flush();

    for (int64_t i = 0; i < s; i += TW_STEP32, src += 32 * ld, k -= 32, dst += R * TW_STEP32)
        for (int r = 0; r < R; r += 16) {
            int n = R - r < 16 ? R - r : 16;

            for (int t = 0; t < 32; t++)
                __builtin_prefetch(src + t * ld + r + COLUMNS_AHEAD);
            for (int h = 0; h < 2; h++)
                kern->panel(turned[h], src + 16 * h * ld + r, ld, tw_max(0, tw_min(16, k - 16 * h)), n);
            for (int x = 0; x < n; x++)
                split_row(dst + (r + x) * 16, R * 16, _mm512_loadu_ps(turned[0] + x * 16),
                        _mm512_loadu_ps(turned[1] + x * 16));
        }
    restore(was);
}

/* dst[(i * 3 + p) * 256 + q * 16 ..]: part P of rows 32i + 2q and the next. */
AMX void tw_amx_pairs32(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k)
{
    __mmask16 cols = (__mmask16)lanes(R);
    unsigned was = flush();
    __m512i part[3];

    for (int64_t i = 0; i < s; i += TW_STEP32, k -= 32, dst += 3 * PART_WORDS)
        for (int q = 0; q < 16; q++, src += 2 * ld) {
            __m512 even = _mm512_maskz_loadu_ps(2 * q < k ? cols : 0, src);
            __m512 odd = _mm512_maskz_loadu_ps(2 * q + 1 < k ? cols : 0, src + ld);

            split(part, even, odd);
#pragma GCC unroll 3
            for (int p = 0; p < 3; p++)
                _mm512_storeu_si512(dst + p * PART_WORDS + q * 16, part[p]);
        }
    restore(was);
}

#define LOAD(tile, at) TW_TILE_LOAD(tile, at, 64)

/* The products of two tiles of A (or one) and two of B (or one), which lie in turn in registers. A load
 * comes as soon as the product before the last one of its register is under way. */
#define MID_A(at)                                                                                  \
    do {                                                                                           \
        LOAD(4, a + (at));                                                                         \
        TW_TILE_MUL(0, 4, 6);                                                                      \
        if (two_panels)                                                                            \
            TW_TILE_MUL(1, 4, 7);                                                                  \
        if (two_rows) {                                                                            \
            LOAD(5, a + (at) + PART_WORDS);                                                        \
            TW_TILE_MUL(2, 5, 6);                                                                  \
            if (two_panels)                                                                        \
                TW_TILE_MUL(3, 5, 7);                                                              \
        }                                                                                          \
    } while (0)
#define MID_B(at)                                                                                  \
    do {                                                                                           \
        LOAD(6, b + (at));                                                                         \
        TW_TILE_MUL(0, 4, 6);                                                                      \
        if (two_rows)                                                                              \
            TW_TILE_MUL(2, 5, 6);                                                                  \
        if (two_panels) {                                                                          \
            LOAD(7, b + bp + (at));                                                                \
            TW_TILE_MUL(1, 4, 7);                                                                  \
            if (two_rows)                                                                          \
                TW_TILE_MUL(3, 5, 7);                                                              \
        }                                                                                          \
    } while (0)

AMX static inline __attribute__((always_inline)) void split_pair(uint32_t *dst, const float *even,
        const float *odd)
{
    __m512i part[3];

    split(part, _mm512_loadu_ps(even), _mm512_loadu_ps(odd));
#pragma GCC unroll 3
    for (int p = 0; p < 3; p++)
        _mm512_storeu_si512(dst + p * PART_WORDS, part[p]);
}

/* Splits N pairs of rows more, of weights panel by panel as they lie, of tokens of all panels at once. */
AMX static inline __attribute__((always_inline)) void split_more(struct tw_split *x, int64_t n,
        const bool weights)
{
    for (; n > 0 && x->left; n--) {
        const float *odd = x->src + x->ld;

        if (weights) {
            __builtin_prefetch(x->src + AHEAD);
            __builtin_prefetch(odd + AHEAD);
            __builtin_prefetch(x->src + AHEAD2, 0, 2);
            __builtin_prefetch(odd + AHEAD2, 0, 2);
        } else {
            __builtin_prefetch(x->src + TOKENS_AHEAD * x->ld);
            __builtin_prefetch(odd + TOKENS_AHEAD * x->ld);
        }
        split_pair(x->dst, x->src, odd);
        if (!weights && x->panels > 1) {
            __builtin_prefetch(x->src + TOKENS_AHEAD * x->ld + 16);
            __builtin_prefetch(odd + TOKENS_AHEAD * x->ld + 16);
            split_pair(x->dst + x->pairs * TW_STEP32, x->src + 16, odd + 16);
        }
        x->src = odd + x->ld;
        x->dst += --x->left % 16 ? 16 : 16 + 2 * PART_WORDS;
        if (weights && !x->left && x->panels > 1) {
            x->panels--;
            x->left = x->pairs;
            x->src += x->skip;
        }
    }
}

/* What is due behind a product of parts: evenly, so that lines come evenly. */
AMX static inline __attribute__((always_inline)) void split_some(struct tw_split *x, int64_t per,
        const bool weights)
{
    x->due += per;
    if (x->due < TW_SPLIT_ONE)
        return;
    split_more(x, x->due / TW_SPLIT_ONE, weights);
    x->due %= TW_SPLIT_ONE;
}

/* A tile of A's next step, which lies in L2. */
static inline __attribute__((always_inline)) void rows_ahead(const char *next, const int part)
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        __builtin_prefetch(next + part * 1024 + i * 64);
}

/* Lines that the next block will be finished with: LEFT rows of C, and of residuals that lie APART, PER a
 * step. All at once they would take the buffers that tiles' lines pass. */
struct ask {
    const float *c, *res;
    int64_t ldc, ldres, left, per;
    bool apart;
};

/* Asks for N rows more. */
static inline __attribute__((always_inline)) void ask_more(struct ask *x, int64_t n)
{
    for (; n > 0 && x->left; n--, x->left--, x->c += x->ldc) {
        __builtin_prefetch(x->c, 1);
        __builtin_prefetch(x->c + 16, 1);
        if (x->apart) {
            __builtin_prefetch(x->res);
            __builtin_prefetch(x->res + 16);
            x->res += x->ldres;
        }
    }
}

/* S words of a sum onto tiles 0..3, and what is PER is split after each product of parts: one shape each,
 * so that there are no branches but of those. */
AMX static inline __attribute__((always_inline)) void add(const uint32_t *a, const uint32_t *b,
        int64_t bp, int64_t s, int R, struct tw_split *split, int64_t per, struct ask *ask,
        const bool two_rows, const bool two_panels, const bool weights)
{
    const int64_t mid = R * 16, lo = 2 * mid;
    struct tw_split x = *split;
    struct ask y = *ask;
    const char *next;

    for (int64_t i = 0; i < s; i += TW_STEP32, a += R * TW_STEP32, b += 3 * PART_WORDS) {
        next = (const char *)(a + R * TW_STEP32);
        __asm__ volatile("" : "+r"(next));     /* one register for all addresses */
        LOAD(6, b);
        if (two_panels)
            LOAD(7, b + bp);
        MID_A(lo);
        rows_ahead(next, 0);
        split_some(&x, per, weights);
        MID_A(mid);
        rows_ahead(next, 1);
        split_some(&x, per, weights);
        if (weights)
            ask_more(&y, y.per);
        MID_B(PART_WORDS);
        rows_ahead(next, 2);
        split_some(&x, per, weights);
        MID_A(0);
        if (two_rows)
            rows_ahead(next, 3);
        split_some(&x, per, weights);
        MID_B(2 * PART_WORDS);
        if (two_rows)
            rows_ahead(next, 4);
        split_some(&x, per, weights);
        MID_B(0);
        if (two_rows)
            rows_ahead(next, 5);
        split_some(&x, per, weights);
    }
    *split = x;
    *ask = y;
}

AMX static void add_any(const uint32_t *a, const uint32_t *b, int64_t bp, int64_t s, int R, int P,
        struct tw_split *x, int64_t per, struct ask *y, bool weights)
{
    unsigned was = flush();

    __asm__ volatile("" : : : "memory");        /* tile loads name no memory as their input */
    if (R == 32 && P > 1 && weights)
        add(a, b, bp, s, 32, x, per, y, true, true, true);
    else if (R == 32 && P > 1)
        add(a, b, bp, s, 32, x, per, y, true, true, false);
    else if (R > 16 && P > 1)
        add(a, b, bp, s, R, x, per, y, true, true, weights);
    else if (R > 16)
        add(a, b, bp, s, R, x, per, y, true, false, weights);
    else if (P > 1)
        add(a, b, bp, s, R, x, per, y, false, true, weights);
    else
        add(a, b, bp, s, R, x, per, y, false, false, weights);
    restore(was);
}

AMX static void zero(int R, int P)
{
    _tile_zero(0);
    if (P > 1)
        _tile_zero(1);
    if (R > 16)
        _tile_zero(2);
    if (R > 16 && P > 1)
        _tile_zero(3);
}

AMX static void store(float *c, int64_t ldc, int64_t cp, int R, int P)
{
    _tile_stored(0, c, ldc * 4);
    if (P > 1)
        _tile_stored(1, c + cp, ldc * 4);
    if (R > 16)
        _tile_stored(2, c + 16 * ldc, ldc * 4);
    if (R > 16 && P > 1)
        _tile_stored(3, c + 16 * ldc + cp, ldc * 4);
    __asm__ volatile("" : : "r"(c) : "memory");
}

AMX static void load(const float *c, int64_t ldc, int64_t cp, int R, int P)
{
    __asm__ volatile("" : : "r"(c) : "memory");
    _tile_loadd(0, c, ldc * 4);
    if (P > 1)
        _tile_loadd(1, c + cp, ldc * 4);
    if (R > 16)
        _tile_loadd(2, c + 16 * ldc, ldc * 4);
    if (R > 16 && P > 1)
        _tile_loadd(3, c + 16 * ldc + cp, ldc * 4);
}

AMX static void mm32(float *c, int64_t ldc, int64_t cp, const uint32_t *a, const uint32_t *b, int64_t bp,
        int64_t s, bool first, int R, int P, struct tw_split *more)
{
    struct tw_split none = { .left = 0 };
    struct ask ask = { .left = 0 };

    tw_amx_config(R < 16 ? R : 16, R > 16 ? R - 16 : 0, P);
    if (first)
        zero(R, P);
    else
        load(c, ldc, cp, R, P);
    add_any(a, b, bp, s, R, P, more ? more : &none, more ? more->per : 0, &ask, !more);
    store(c, ldc, cp, R, P);
}

/* Where the chain of a block of R rows begins; SUM is there for panels that are not whole. */
AMX static void begin(const struct tw_whole *w, float *sum, int R, int P)
{
    if (!w->from) {
        zero(R, P);
    } else if (w->n == P * 16) {
        load(w->from, w->ldf, 16, R, P);
    } else {
        tw_kern_avx512bf16.epis(sum, 32, w->from, w->ldf, R, w->n, 1, NULL, NULL, 0);
        load(sum, 32, 16, R, P);
    }
}

/* What is in the tiles, into C. */
AMX static void finish(const struct tw_whole *w, float *sum, int R, int P)
{
    if (w->scale == 1 && !w->bias && !w->res && w->n == P * 16) {
        store(w->c, w->ldc, 16, R, P);
        return;
    }
    store(sum, 32, 16, R, P);
    if (R == 32)
        tw_amx_finish(w, sum);
    else
        tw_kern_avx512bf16.epis(w->c, w->ldc, sum, 32, R, w->n, w->scale, w->bias, w->res, w->ldres);
}

/* What is finished behind the block at W, LEFT rows being left with it: the next rows, or the first of the
 * next strip. */
static struct ask ask_next(const struct tw_whole *all, const struct tw_whole *w, int64_t left)
{
    bool below = left > 32;
    const struct tw_whole *at = below ? w : all;
    int64_t r = below ? 32 : 0, c = below ? 0 : 32, steps = 0;
    struct ask x = { .c = at->c + r * w->ldc + c, .ldc = w->ldc, .ldres = w->ldres,
        .apart = w->res && w->res != w->c,
        .left = below ? tw_min(32, left - 32) : w->follows ? tw_min(32, all->rows) : 0 };

    if (x.apart)
        x.res = at->res + r * w->ldres + c;
    for (int q = 0; q < w->parts; q++)
        steps += w->part[q].s / TW_STEP32;
    x.per = (x.left + steps - 1) / steps;
    return x;
}

AMX static void whole32(const struct tw_whole *all, int P)
{
    float sum[32 * 32] __attribute__((aligned(64)));
    struct tw_whole w = *all;
    int64_t places = (w.rows + 31) / 32 * w.part[0].s / TW_STEP32 * 6;
    int64_t per = tw_split_per(w.split.left * w.split.panels, places);
    struct ask ask;
    unsigned was;

    memset(sum, 0, sizeof sum);
    for (int64_t left = w.rows; left > 0; left -= 32, tw_whole_next(&w, 32)) {
        int R = left < 32 ? (int)left : 32;

        tw_amx_config(R < 16 ? R : 16, R > 16 ? R - 16 : 0, P);
        if (left == w.rows)
            tw_whole_ahead(&w, R);
        ask = ask_next(all, &w, left);
        begin(&w, sum, R, P);
        for (int q = 0; q < w.parts; q++)
            add_any(w.part[q].a, w.part[q].b, w.part[q].bp, w.part[q].s, R, P, &w.split, q ? 0 : per,
                    &ask, true);
        finish(&w, sum, R, P);
    }
    was = flush();
    split_more(&w.split, INT64_MAX, true);
    restore(was);
}

void tw_amx_f32(struct tw_kern *k)
{
    k->split = true;
    k->mm32 = mm32;
    k->whole32 = whole32;
    k->few32 = tw_amx_few32;
    k->few = 16;
    k->pack32 = pack32;
    k->pairs32_a = pairs32_a;
    k->pairs32 = tw_amx_pairs32;
    k->mr32 = 32;
    k->pr32 = 2;
    k->kc32 = 864;
}
#endif
