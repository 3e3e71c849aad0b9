/* amx_whole.c - blocks of bf16 products on the tile unit from their first step to what becomes of them:
 * C, or a gated unit whose gate and up are the two panels of a block. Blocks stand one behind the other,
 * and a block is finished while the next is summed: a step keeps the tile unit busy for 64 cycles, in
 * which vector units have nothing to do.
 *
 * What bounds it: operands from L2 and L1, whose buffers of lines on their way weights from memory and
 * lines of C have to share. */
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
#include "nn/cpu/vec.h"
#include "nn/cpu/kern_act.h"

/* Where the chain of a block begins. */
static void begin(const struct tw_whole *w, float *sum, int P)
{
    if (!w->from) {
        _tile_zero(0);
        _tile_zero(2);
        if (P > 1) {
            _tile_zero(1);
            _tile_zero(3);
        }
        return;
    }
    if (w->n == 32) {           /* two whole panels */
        _tile_loadd(0, w->from, w->ldf * 4);
        _tile_loadd(1, w->from + 16, w->ldf * 4);
        _tile_loadd(2, w->from + 16 * w->ldf, w->ldf * 4);
        _tile_loadd(3, w->from + 16 * w->ldf + 16, w->ldf * 4);
        return;
    }
    tw_kern_avx512bf16.epis(sum, 32, w->from, w->ldf, 32, w->n, 1, NULL, NULL, 0);
    __asm__ volatile("" : : "r"(sum) : "memory");
    _tile_loadd(0, sum, 128);
    _tile_loadd(2, sum + 512, 128);
    if (P > 1) {
        _tile_loadd(1, sum + 16, 128);
        _tile_loadd(3, sum + 528, 128);
    }
}

/* What vector units do while tiles are busy, step by step: they finish the block before, 32 columns of
 * it, and ask for lines that are wanted later. (Asked for all at once, those would keep the loads of
 * tiles out of the cache's few buffers.) */
struct meanwhile {
    struct tw_whole done;       /* of blocks 0: nothing is left of it */
    const float *sum;
    int64_t r, rows;            /* the next of its rows; how many a step takes */
    struct tw_next next;
    int64_t left;               /* steps that ask */
    const struct tw_whole *now; /* its lines are asked for, too, from row AHEAD on */
    int64_t ahead;
};

VFN void rows_out(const struct tw_whole *w, const float *sum, int64_t r, int64_t to)
{
    for (; r < to; r++)
        for (int p = 0; p < 2; p++) {
            vf x = v_load(sum + r * 32 + p * 16);

            if (w->scale != 1)
                x = v_mul(x, v_set(w->scale));
            if (w->bias)
                x = v_add(x, v_load(w->bias + p * 16));
            if (w->res)
                x = v_add(x, v_load(w->res + r * w->ldres + p * 16));
            v_store(w->c + r * w->ldc + p * 16, x);
        }
}

VFN void units_out(const struct tw_whole *w, const float *sum, int64_t r, int64_t to, enum tw_act act)
{
    for (; r < to; r++) {
        vf a, da;

        v_act(v_load(sum + r * 32), act, &a, &da);
        _mm256_storeu_si256((__m256i *)(w->y + r * w->ldy),
                (__m256i)_mm512_cvtneps_pbh(v_mul(a, v_load(sum + r * 32 + 16))));
    }
}

/* Rows [r, to) of the block before. UNIT: they are of a gated unit. */
VFN void some_out(struct meanwhile *m, int64_t to, const bool unit)
{
    if (!unit)
        rows_out(&m->done, m->sum, m->r, to);
    else if (m->done.act == TW_SILU)
        units_out(&m->done, m->sum, m->r, to, TW_SILU);
    else
        units_out(&m->done, m->sum, m->r, to, m->done.act);
    m->r = to;
}

VFN void meanwhile(struct meanwhile *m, const bool unit)
{
    const struct tw_whole *w = m->now;
    int64_t to = tw_min(32, m->ahead + m->rows);

    some_out(m, tw_min(32, m->r + m->rows), unit);
    if (m->left > 0) {
        m->left--;
        tw_ask(&m->next);
    }
    for (; m->ahead < to; m->ahead++) {
        if (unit) {
            __builtin_prefetch(w->y + m->ahead * w->ldy, 1);
            continue;
        }
        __builtin_prefetch(w->c + m->ahead * w->ldc, 1);
        __builtin_prefetch(w->c + m->ahead * w->ldc + 16, 1);
        if (w->res && w->res != w->c) {
            __builtin_prefetch(w->res + m->ahead * w->ldres);
            __builtin_prefetch(w->res + m->ahead * w->ldres + 16);
        }
    }
}

/* How W's blocks of STEPS steps share what there is to do. */
static struct meanwhile meanwhile_of(const struct tw_whole *w, int64_t steps)
{
    struct meanwhile m = { .r = 32, .rows = (32 + steps - 1) / steps, .next = w->next, .ahead = 32 };
    int64_t lines = w->next.n * w->blocks / 64, all = steps * w->blocks * tw_max(1, w->strips);
    int64_t per = (lines + all - 1) / all;

    if (lines > 0) {
        m.next.n = per * 64;
        m.left = lines / per;
    }
    return m;
}

/* The products of a part onto tiles 0..3, 32 rows. */
#define PART(load_a, load_b, two_panels)                                                           \
    for (int64_t i = 0; i < s; i += 16, a += 512) {                                                \
        load_a(4, a, 64);                                                                          \
        load_b(6, b + i * 16, 64);                                                                 \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        load_a(5, a + 256, 64);                                                                    \
        _tile_dpbf16ps(2, 5, 6);                                                                   \
        if (two_panels) {                                                                          \
            load_b(7, b + bp + i * 16, 64);                                                        \
            _tile_dpbf16ps(1, 4, 7);                                                               \
            _tile_dpbf16ps(3, 5, 7);                                                               \
        }                                                                                          \
        meanwhile(m, unit);                                                                        \
    }

/* What passes L1 by: B where A's rows stay for the next strips, both where those would not fit. */
enum pass { PASS_NONE, PASS_B, PASS_BOTH };

VFN void sum_block(const struct tw_whole *w, struct meanwhile *m, int P, const bool unit, const enum pass pass)
{
    for (int q = 0; q < w->parts; q++) {
        const uint32_t *a = w->part[q].a, *b = w->part[q].b;
        int64_t bp = w->part[q].bp, s = w->part[q].s;

        if (pass == PASS_BOTH)
            PART(_tile_stream_loadd, _tile_stream_loadd, 1)
        else if (pass == PASS_B)
            PART(_tile_loadd, _tile_stream_loadd, 1)
        else if (P > 1)
            PART(_tile_loadd, _tile_loadd, 1)
        else
            PART(_tile_loadd, _tile_loadd, 0)
    }
}

static void strip_next(struct tw_whole *w)
{
    for (int q = 0; q < w->parts; q++)
        w->part[q].b = (const uint32_t *)w->part[q].b + w->bs;
    w->c = w->c ? w->c + 32 : NULL;
    w->bias = w->bias ? w->bias + 32 : NULL;
    w->res = w->res ? w->res + 32 : NULL;
    w->y = w->y ? w->y + 16 + w->half * w->yskip : NULL;
    w->half = !w->half;
}

VFN void whole_blocks(const struct tw_whole *all, int P, const bool unit, const enum pass pass)
{
    float sum[2][32 * 32] __attribute__((aligned(64))), *to = sum[0];
    struct tw_whole rows = *all, w;
    struct meanwhile m;
    int64_t steps = 0;

    for (int q = 0; q < all->parts; q++)
        steps += all->part[q].s / 16;
    m = meanwhile_of(all, tw_max(steps, 1));
    m.now = &w;
    memset(sum, 0, sizeof sum);
    tw_amx_config(16, 16, P);
    for (int64_t n = 0, strip = 0; n < all->blocks; strip++) {
        if (strip == tw_max(1, all->strips)) {
            tw_whole_next(&rows, 32);
            strip = 0;
            if (++n == all->blocks)
                break;
        }
        if (strip)
            strip_next(&w);
        else
            w = rows;
        to = to == sum[0] ? sum[1] : sum[0];
        begin(&w, to, P);
        m.ahead = w.ahead && w.n == 32 ? 0 : 32;
        __asm__ volatile("" : : "r"(to) : "memory");
        sum_block(&w, &m, P, unit, pass);
        some_out(&m, 32, unit);
        _tile_stored(0, to, 128);
        _tile_stored(2, to + 512, 128);
        if (P > 1) {
            _tile_stored(1, to + 16, 128);
            _tile_stored(3, to + 528, 128);
        }
        __asm__ volatile("" : : "r"(to) : "memory");
        m.done = w;
        m.sum = to;
        m.r = 0;
        if (!unit && w.n < 32) {
            tw_amx_finish(&w, to);
            m.r = 32;
        }
    }
    some_out(&m, 32, unit);
}

void tw_amx_whole16(const struct tw_whole *w, int P)
{
    if (w->strips > 1)
        whole_blocks(w, 2, false, PASS_B);
    else if (P > 1 && w->part[0].s > TW_L1_WORDS)
        whole_blocks(w, 2, false, PASS_BOTH);
    else
        whole_blocks(w, P, false, PASS_NONE);
}

void tw_amx_gated16(const struct tw_whole *w)
{
    if (w->strips > 1)
        whole_blocks(w, 2, true, PASS_B);
    else if (w->part[0].s > TW_L1_WORDS)
        whole_blocks(w, 2, true, PASS_BOTH);
    else
        whole_blocks(w, 2, true, PASS_NONE);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
