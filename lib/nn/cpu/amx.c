/* amx.c - bf16 products on the tile unit (tdpbf16ps). A block is up to 32 rows and 2 panels: four
 * tiles of sums (0..3), two of A (4, 5), two of B (6, 7); a step multiplies 16 pairs of k, for
 * which a panel of B is one tile of 1 KiB as it lies. Four products of 16 cycles need four tile
 * loads, so B's two panels stay in L1 and A comes from L2.
 *
 * Rounding: the unit keeps even and odd k of a tile apart and adds them at its end, so its bits are
 * not those of vdpbf16ps; but a row's chain runs over tiles of k from the first and sees no other
 * row, which is all that ops.h promises, and a process uses one of the two for every shape. */
#include "nn/cpu/amx_priv.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_DATA 18            /* the state component of the tile registers */
#define REQ_XCOMP_PERM 0x1023   /* arch_prctl's request for it */

bool tw_amx_enable(void)
{
    unsigned a, b, c, d, lo, hi;

    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1))
        return false;           /* no xgetbv */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1))
        return false;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (lo >> 17 & 3) == 3 && !syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA);
}

/* dst[(i / 16 * R + r) * 16 + i % 16] = pair i of row r: rows of tiles side by side, S a multiple
 * of 16. */
AMX void tw_amx_pack16(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k)
{
    for (int64_t i = 0; i < s; i += 16)
        for (int r = 0; r < R; r++) {
            const float *x = src + r * ld + 2 * i;
            int64_t n = k - 2 * i;
            uint32_t left = n >= 32 ? ~0u : n <= 0 ? 0 : (1u << n) - 1;
            __m512 a = _mm512_maskz_loadu_ps((__mmask16)left, x);
            __m512 b = _mm512_maskz_loadu_ps((__mmask16)(left >> 16), x + 16);

            _mm512_storeu_si512(dst + (i * R / 16 + r) * 16, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
}

/* Sums that run down the rows: sixteen pairs of sixteen columns as they lie, then transposed. */
void tw_amx_pairs(uint32_t *dst, int W, const float *src, int64_t ld, int R, int64_t s, int64_t k,
        bool first_high, uint32_t pad)
{
    const struct tw_kern *kern = &tw_kern_avx512bf16;
    float words[16 * 16];

    for (int64_t i = 0; i < s; i += 16)
        for (int r = 0; r < R; r += 16) {
            int n = R - r < 16 ? R - r : 16;

            kern->pairs((uint32_t *)words, 16, src + 2 * i * ld + r, ld, n, 16, k - 2 * i,
                    first_high, pad);
            kern->panel((float *)dst + (i / 16 * R + r) * 16, words, 16, 16, n);
        }
}

/* The same of what is rounded already. */
AMX void tw_amx_packw(float *dst, const float *src, int64_t ld, int R, int64_t s)
{
    for (int64_t i = 0; i < s; i += 16)
        for (int r = 0; r < R; r++)
            _mm512_storeu_ps(dst + (i * R / 16 + r) * 16, _mm512_loadu_ps(src + r * ld + i));
}

void tw_amx_pairsw(uint32_t *dst, int W, const uint16_t *src, int64_t ld, int R, int64_t s,
        int64_t k, bool first_high, uint32_t pad)
{
    const struct tw_kern *kern = &tw_kern_avx512bf16;
    float words[16 * 16];

    for (int64_t i = 0; i < s; i += 16)
        for (int r = 0; r < R; r += 16) {
            int n = R - r < 16 ? R - r : 16;

            kern->pairsw((uint32_t *)words, 16, src + 2 * i * ld + r, ld, n, 16, k - 2 * i,
                    first_high, pad);
            kern->panel((float *)dst + (i / 16 * R + r) * 16, words, 16, 16, n);
        }
}

struct config {
    uint8_t palette, start, rest[14];
    uint16_t bytes[16];         /* of a row, by tile */
    uint8_t rows[16];
};

AMX static void load(uint64_t rows)
{
    struct config c __attribute__((aligned(64))) = { .palette = 1 };

    for (int t = 0; t < 8; t++) {
        c.rows[t] = (uint8_t)(rows >> 8 * t);
        c.bytes[t] = c.rows[t] ? 64 : 0;
    }
    /* The intrinsic names only the first bytes as its input: without this the compiler may drop the
     * stores to the others. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* A thread keeps its configuration as long as it has the tiles asked for (others may have any rows): to
 * load one takes longer than a small block. */
static void config(uint64_t rows)               // a byte for each tile
{
    static _Thread_local uint64_t have;
    uint64_t asked = ((rows + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) * 255;

    if (!((rows ^ have) & asked))
        return;
    have = rows;
    load(rows);
}

void tw_amx_config(int r0, int r1, int P)
{
    uint64_t a = (uint64_t)r0, b = (uint64_t)r1, sums = a | b << 16, two = P > 1;

    config(sums | two * sums << 8 | a << 32 | b << 40 | (uint64_t)16 << 48 | two * 16 << 56);
}

void tw_amx_config_few(int rows)
{
    config((uint64_t)rows * 0x01010101010101 | (uint64_t)16 << 56);
}

/* Steps of one shape, so that the loop has no branches. */
#define TILES(two_rows, two_panels)                                                                \
    do {                                                                                           \
        if (first) {                                                                               \
            _tile_zero(0);                                                                         \
            if (two_panels)                                                                        \
                _tile_zero(1);                                                                     \
            if (two_rows)                                                                          \
                _tile_zero(2);                                                                     \
            if (two_rows && two_panels)                                                            \
                _tile_zero(3);                                                                     \
        } else {                                                                                   \
            _tile_loadd(0, c, cs);                                                                 \
            if (two_panels)                                                                        \
                _tile_loadd(1, c + 16, cs);                                                        \
            if (two_rows)                                                                          \
                _tile_loadd(2, c1, cs);                                                            \
            if (two_rows && two_panels)                                                            \
                _tile_loadd(3, c1 + 16, cs);                                                       \
        }                                                                                          \
        for (int64_t i = 0; i < s; i += 16, a += R * 16, b += 256) {                               \
            TW_TILE_LOAD(4, a, 64);                                                                \
            TW_TILE_LOAD(6, b, 64);                                                                \
            TW_TILE_MUL(0, 4, 6);                                                                  \
            if (two_rows) {                                                                        \
                TW_TILE_LOAD(5, a + 256, 64);                                                      \
                TW_TILE_MUL(2, 5, 6);                                                              \
            }                                                                                      \
            if (two_panels) {                                                                      \
                TW_TILE_LOAD(7, b + bp, 64);                                                       \
                TW_TILE_MUL(1, 4, 7);                                                              \
            }                                                                                      \
            if (two_rows && two_panels)                                                            \
                TW_TILE_MUL(3, 5, 7);                                                              \
        }                                                                                          \
        _tile_stored(0, c, cs);                                                                    \
        if (two_panels)                                                                            \
            _tile_stored(1, c + 16, cs);                                                           \
        if (two_rows)                                                                              \
            _tile_stored(2, c1, cs);                                                               \
        if (two_rows && two_panels)                                                                \
            _tile_stored(3, c1 + 16, cs);                                                          \
    } while (0)

/* Tile loads name no memory as their input. */
AMX void tw_amx_mm16(float *c, int64_t ldc, const uint32_t *a, const uint32_t *b, int64_t bp,
        int64_t s, bool first, int R, int P)
{
    int r0 = R < 16 ? R : 16, r1 = R - r0;
    int64_t cs = ldc * 4;
    float *c1 = c + 16 * ldc;

    tw_amx_config(r0, r1, P);
    __asm__ volatile("" : : : "memory");
    if (r1 && P > 1)
        TILES(1, 1);
    else if (r1)
        TILES(1, 0);
    else if (P > 1)
        TILES(0, 1);
    else
        TILES(0, 0);
}

/* What is in the tiles' place, into C. */
AMX void tw_amx_finish(const struct tw_whole *w, const float *sum)
{
    __m512 scale = _mm512_set1_ps(w->scale), bias[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };

    if (w->n < 32) {
        tw_kern_avx512bf16.epis(w->c, w->ldc, sum, 32, 32, w->n, w->scale, w->bias, w->res, w->ldres);
        return;
    }
    for (int p = 0; w->bias && p < 2; p++)
        bias[p] = _mm512_loadu_ps(w->bias + p * 16);
    for (int64_t r = 0; r < 32; r++)
        for (int p = 0; p < 2; p++) {
            __m512 x = _mm512_load_ps(sum + r * 32 + p * 16);

            if (w->scale != 1)
                x = _mm512_mul_ps(x, scale);
            if (w->bias)
                x = _mm512_add_ps(x, bias[p]);
            if (w->res)
                x = _mm512_add_ps(x, _mm512_loadu_ps(w->res + r * w->ldres + p * 16));
            _mm512_storeu_ps(w->c + r * w->ldc + p * 16, x);
        }
}
#endif
