/* amx_few.c - products of a tile of rows or less on the tile unit: decoding, which reads each weight once.
 * Panels of f32 are split into their parts (amx_f32.c) on the way to L1, a step of the sum ahead of the
 * products, which take place meanwhile; the sums are those of any number of rows, bit by bit.
 *
 * What bounds it: reading weights from memory. Four panels are read side by side, since the processor asks
 * for a stream's lines ahead of itself only as far as it trusts the stream, and more of them are under way
 * so; asked for by instructions as far ahead, they come a quarter slower. A step of 16 lines' pairs is 11
 * vector operations a pair, six products of 10 to 16 cycles and four tile loads. Of bf16 it is one of each,
 * and there the next step's lines are asked for: of 38 GB/s without 23, so 26 with two panels, 28 with four. */
#include "nn/cpu/amx_split.h"
#if defined(__x86_64__)
#define FEW_PANELS 4            /* that are read side by side .. */
#define FEW_AHEAD 448           /* .. and the numbers that each is asked for ahead */
#define FEW_WORDS (FEW_PANELS * 3 * PART_WORDS)
_Static_assert(2 * FEW_WORDS == TW_FEW_WORDS, "room for two steps");

/* Few rows: panels that are read side by side, and the parts of a step of theirs in two places in turn. */
struct few {
    const float *at[FEW_PANELS];        /* the pairs of lines to be split next */
    uint32_t *to, *room;
    int half;
    bool there;                         /* the first step of the next panels has been split */
};

AMX static inline __attribute__((always_inline)) void few_lines(struct few *x, int n, const int P)
{
    __m512i part[3];

    for (; n > 0; n--, x->to += 16)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            __builtin_prefetch(x->at[p] + FEW_AHEAD);
            __builtin_prefetch(x->at[p] + FEW_AHEAD + 16);
            split(part, _mm512_loadu_ps(x->at[p]), _mm512_loadu_ps(x->at[p] + 16));
#pragma GCC unroll 3
            for (int q = 0; q < 3; q++)
                _mm512_store_si512(x->to + (p * 3 + q) * PART_WORDS, part[q]);
            x->at[p] += 32;
        }
}

/* The products of panel T, and the lines that are split between them: 16 pairs of each of P panels. */
#define FEW_LINES(slot)                                                                            \
    do {                                                                                           \
        if (more)                                                                                  \
            few_lines(x, 4 * ((slot) + 1) / P - 4 * (slot) / P, P);                                \
    } while (0)
#define FEW_PANEL(t)                                                                               \
    do {                                                                                           \
        if (P > (t)) {                                                                             \
            _tile_loadd(7, b + (t) * 3 * PART_WORDS, 64);                                          \
            _tile_dpbf16ps(t, 4, 7);                                                               \
            _tile_dpbf16ps(t, 5, 7);                                                               \
            FEW_LINES(4 * (t));                                                                    \
            _tile_loadd(7, b + ((t) * 3 + 1) * PART_WORDS, 64);                                    \
            _tile_dpbf16ps(t, 5, 7);                                                               \
            _tile_dpbf16ps(t, 6, 7);                                                               \
            FEW_LINES(4 * (t) + 1);                                                                \
            _tile_loadd(7, b + ((t) * 3 + 2) * PART_WORDS, 64);                                    \
            _tile_dpbf16ps(t, 6, 7);                                                               \
            FEW_LINES(4 * (t) + 2);                                                                \
            _tile_loadd(7, b + (t) * 3 * PART_WORDS, 64);                                          \
            _tile_dpbf16ps(t, 6, 7);                                                               \
            FEW_LINES(4 * (t) + 3);                                                                \
        }                                                                                          \
    } while (0)

/* A step of R rows and P panels whose parts are in the place of this half; MORE: meanwhile the next one
 * is split into the other. */
AMX static inline __attribute__((always_inline)) void few_step(struct few *x, const uint32_t *a, int R,
        const int P, const bool more)
{
    const uint32_t *b = x->room + x->half * FEW_WORDS;

    x->half = !x->half;
    x->to = x->room + x->half * FEW_WORDS;
    __asm__ volatile("" : : : "memory");        /* tile loads name no memory as their input */
    _tile_loadd(4, a + 2 * R * 16, 64);
    _tile_loadd(5, a + R * 16, 64);
    _tile_loadd(6, a, 64);
    FEW_PANEL(0);
    FEW_PANEL(1);
    FEW_PANEL(2);
    FEW_PANEL(3);
}

/* The sums of P panels, tiles 0 .. P - 1. */
#define FEW_TILES(what, P)                                                                         \
    do {                                                                                           \
        what(0);                                                                                   \
        if ((P) > 1)                                                                               \
            what(1);                                                                               \
        if ((P) > 2)                                                                               \
            what(2);                                                                               \
        if ((P) > 3)                                                                               \
            what(3);                                                                               \
    } while (0)
#define FEW_LOAD(t) _tile_loadd(t, c + (t) * 16, ldc * 4)
#define FEW_STORE(t) _tile_stored(t, c + (t) * 16, ldc * 4)

AMX static void few_begin(const float *c, int64_t ldc, bool first, int P)
{
    __asm__ volatile("" : : "r"(c) : "memory");
    if (first)
        FEW_TILES(_tile_zero, P);
    else
        FEW_TILES(FEW_LOAD, P);
}

AMX static void few_end(float *c, int64_t ldc, int P)
{
    FEW_TILES(FEW_STORE, P);
    __asm__ volatile("" : : "r"(c) : "memory");
}

/* P panels from B on, of which and of the NEXT ones behind them the first step may have been split. */
AMX static inline __attribute__((always_inline)) void few_panels(struct few *x, const struct tw_few *w,
        float *c, const float *b, int64_t next, const int P)
{
    const uint32_t *a = w->a;
    int64_t steps = w->k / 32;

    few_begin(c, w->ldc, w->first, P);
    for (int p = 0; p < P; p++)
        x->at[p] = b + p * w->bp + x->there * 512;
    if (steps && !x->there) {
        x->to = x->room + x->half * FEW_WORDS;
        few_lines(x, 16, P);
    }
    for (int64_t i = 1; i < steps; i++, a += w->R * TW_STEP32)
        few_step(x, a, w->R, P, true);
    x->there = steps && next;
    for (int p = 0; x->there && p < P; p++)     /* those are never more than P */
        x->at[p] = b + (P + tw_min(p, next - 1)) * w->bp;
    if (x->there)
        few_step(x, a, w->R, P, true);
    else if (steps)
        few_step(x, a, w->R, P, false);
    if (w->k % 32) {
        x->half ^= steps > 0;   /* the place whose parts have just been used */
        for (int p = 0; p < P; p++)
            tw_amx_pairs32(x->room + x->half * FEW_WORDS + p * 3 * PART_WORDS, b + p * w->bp + steps * 512,
                    16, 16, TW_STEP32, w->k % 32);
        few_step(x, w->a + steps * w->R * TW_STEP32, w->R, P, false);
    }
    few_end(c, w->ldc, P);
}

AMX void tw_amx_few32(const struct tw_few *w)
{
    struct few x = { .room = w->room };
    const float *b = w->b;
    float *c = w->c;
    unsigned was = flush();
    int64_t n, next;

    tw_amx_config_few(w->R);
    for (int64_t left = w->panels; left > 0; left -= n, b += n * w->bp, c += n * 16) {
        n = tw_panels(FEW_PANELS, left);
        next = tw_panels(FEW_PANELS, left - n);
        if (n == 4)
            few_panels(&x, w, c, b, next, 4);
        else if (n == 3)
            few_panels(&x, w, c, b, next, 3);
        else if (n == 2)
            few_panels(&x, w, c, b, next, 2);
        else
            few_panels(&x, w, c, b, next, 1);
    }
    restore(was);
}

/* A tile of panel T of bf16, whose next lines are asked for, behind the last step those of the next panels: in
 * a loop that is not written out it takes as long as it brings. */
#define LOW_PANEL(t)                                                                               \
    do {                                                                                           \
        if ((t) < P) {                                                                             \
            const uint32_t *y = x + (t) * bp;                                                      \
            const uint32_t *z = i + 1 < steps ? y + 256 : b + (P + (t)) * bp;                      \
            _Pragma("GCC unroll 16") for (int k = 0; k < 256; k += 16)                             \
                __builtin_prefetch(z + k);                                                         \
            TW_TILE_LOAD(7, y, 64);                                                                \
            TW_TILE_MUL(t, 4, 7);                                                                  \
        }                                                                                          \
    } while (0)

AMX static inline __attribute__((always_inline)) void low_panels(const struct tw_few *w, float *c,
        const uint32_t *b, const int P)
{
    const uint32_t *a = w->a, *x = b;
    int64_t steps = w->k / 16, bp = w->bp;

    few_begin(c, w->ldc, w->first, P);
    for (int64_t i = 0; i < steps; i++, a += w->R * 16, x += 256) {
        TW_TILE_LOAD(4, a, 64);
        LOW_PANEL(0);
        LOW_PANEL(1);
        LOW_PANEL(2);
        LOW_PANEL(3);
    }
    few_end(c, w->ldc, P);
}

AMX void tw_amx_few16(const struct tw_few *w)
{
    const uint32_t *b = (const uint32_t *)w->b;
    float *c = w->c;
    int64_t n;

    tw_amx_config_few(w->R);
    for (int64_t left = w->panels; left > 0; left -= n, b += n * w->bp, c += n * 16) {
        n = tw_panels(FEW_PANELS, left);
        if (n == 4)
            low_panels(w, c, b, 4);
        else if (n == 3)
            low_panels(w, c, b, 3);
        else if (n == 2)
            low_panels(w, c, b, 2);
        else
            low_panels(w, c, b, 1);
    }
}
#endif
