/* amx_priv.h - what bf16 and f32 products on the tile unit share: tiles 0..3 are sums of 32 rows and 2
 * panels (0 and 1 of the first 16 rows), 4 and 5 are of A, 6 and 7 of B. */
#ifndef TW_AMX_PRIV_H
#define TW_AMX_PRIV_H
#include "nn/cpu/cpu_priv.h"
#if defined(__x86_64__)
#include <immintrin.h>
#define AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))

/* Beside a guest who uses tiles on the core's other thread, a stream of tile operations alone gets half of
 * what it gets with eight operations, of whatever effect, behind each: of 459 GFLOP/s of f32 125, and 206.
 * On a core of its own these cost nothing. Loads want them as products do, even where other work follows. */
#define TW_TILE_ROOM __asm__ volatile("nop;nop;nop;nop;nop;nop;nop;nop")
#define TW_TILE_LOAD(t, at, ld)                                                                    \
    do {                                                                                           \
        _tile_loadd(t, at, ld);                                                                    \
        TW_TILE_ROOM;                                                                              \
    } while (0)
#define TW_TILE_PASS(t, at, ld) /* which passes L1 by */                                           \
    do {                                                                                           \
        _tile_stream_loadd(t, at, ld);                                                             \
        TW_TILE_ROOM;                                                                              \
    } while (0)
#define TW_TILE_MUL(c, a, b)                                                                       \
    do {                                                                                           \
        _tile_dpbf16ps(c, a, b);                                                                   \
        TW_TILE_ROOM;                                                                              \
    } while (0)

void tw_amx_config(int r0, int r1, int P);      /* for r0 and r1 rows of P panels */
void tw_amx_config_few(int rows);       /* tiles 0..3 are sums, 4..6 of A, 7 of B */
/* From SUM, where the tiles were stored, into C. */
void tw_amx_finish(const struct tw_whole *w, const float *sum);
#endif
#endif
