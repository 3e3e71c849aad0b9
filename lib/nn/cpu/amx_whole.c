/* amx_whole.c - blocks of bf16 products on the tile unit from their first step to what becomes of them:
 * C, or what is made of it: a gated unit whose gate and up are the two panels of a block, or rotated heads,
 * whose halves they are. Blocks stand one behind the other,
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
    const float *sum;
    int left, rows;             /* of the block before; how many a step takes */
    float *c;                   /* its next row */
    const float *bias, *res;
    uint16_t *y;
    int64_t ldc, ldres, ldy;
    float scale;
    enum tw_act act;
    const float *cos, *sin;
    const int32_t *pos;
    int64_t half;
    struct tw_next next;
    int64_t asks;               /* steps that ask */
    int ahead;                  /* rows of this block whose lines are still to be asked for, too */
    const float *to, *from;     /* in C, and in RES where that is not the same */
};

VFN void head_out(struct meanwhile *m, vf a, vf b)
{
    int64_t at = *m->pos++ * m->half;
    vf c = v_load(m->cos + at), s = v_load(m->sin + at);

    _mm256_storeu_si256((__m256i *)m->y, (__m256i)_mm512_cvtneps_pbh(v_sub(v_mul(a, c), v_mul(b, s))));
    _mm256_storeu_si256((__m256i *)(m->y + m->half),
            (__m256i)_mm512_cvtneps_pbh(v_add(v_mul(b, c), v_mul(a, s))));
    m->y += m->ldy;
}

VFN void row_out(struct meanwhile *m, const enum tw_made made, const enum tw_act act)
{
    vf a = v_load(m->sum), b = v_load(m->sum + 16);

    m->sum += 32;
    m->left--;
    if (made == TW_MADE_HEADS) {
        head_out(m, a, b);
        return;
    }
    if (made == TW_MADE_LOW) {
        _mm512_storeu_si512(m->y, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        m->y += m->ldy;
        return;
    }
    if (made == TW_MADE_UNIT) {
        vf x, dx;

        if (act == TW_SILU) {
            x = v_silu_low(a, b);
        } else {
            v_act(a, act, &x, &dx);
            x = v_mul(x, b);
        }
        _mm256_storeu_si256((__m256i *)m->y, (__m256i)_mm512_cvtneps_pbh(x));
        m->y += m->ldy;
        return;
    }
    if (m->scale != 1) {
        a = v_mul(a, v_set(m->scale));
        b = v_mul(b, v_set(m->scale));
    }
    if (m->bias) {
        a = v_add(a, v_load(m->bias));
        b = v_add(b, v_load(m->bias + 16));
    }
    if (m->res) {
        a = v_add(a, v_load(m->res));
        b = v_add(b, v_load(m->res + 16));
        m->res += m->ldres;
    }
    v_store(m->c, a);
    v_store(m->c + 16, b);
    m->c += m->ldc;
}

VFN void rows_out(struct meanwhile *m, int n, const enum tw_made made)
{
    for (; n > 0 && m->left; n--)
        if (made != TW_MADE_UNIT || m->act == TW_SILU)
            row_out(m, made, TW_SILU);
        else
            row_out(m, made, m->act);
}

VFN void meanwhile(struct meanwhile *m, const enum tw_made made)
{
    rows_out(m, m->rows, made);
    if (m->asks > 0) {
        m->asks--;
        tw_ask(&m->next);
    }
    for (int n = m->rows; n > 0 && m->ahead; n--, m->ahead--) {
        __builtin_prefetch(m->to, 1);
        __builtin_prefetch(m->to + 16, 1);
        m->to += m->ldc;
        if (m->from) {
            __builtin_prefetch(m->from);
            __builtin_prefetch(m->from + 16);
            m->from += m->ldres;
        }
    }
}

/* How W's blocks of STEPS steps share what there is to do; the first step of a block brings the sums of the
 * one before. */
static struct meanwhile meanwhile_of(const struct tw_whole *w, int64_t steps)
{
    struct meanwhile m = { .rows = (int)(32 / tw_max(1, steps - 1)) + 1, .ldc = w->ldc, .ldres = w->ldres,
        .ldy = w->ldy, .scale = w->scale, .act = w->act, .half = w->half, .next = w->next };
    int64_t lines = w->next.n * w->blocks / 64, all = tw_max(1, steps - 1) * w->blocks * tw_max(1, w->strips);
    int64_t per = (lines + all - 1) / all;

    if (lines > 0) {
        m.next.n = per * 64;
        m.asks = lines / per;
    }
    return m;
}

static void ahead_of(struct meanwhile *m, const struct tw_whole *w)
{
    m->ahead = w->ahead && w->n == 32 && !w->made ? 32 : 0;
    m->to = w->c;
    m->from = w->res && w->res != w->c ? w->res : NULL;
}

/* W was summed. */
static void done_with(struct meanwhile *m, const struct tw_whole *w, const float *sum)
{
    m->sum = sum;
    m->left = 32;
    m->c = w->c;
    m->bias = w->bias;
    m->res = w->res;
    m->y = w->y;
    if (w->cos) {
        m->cos = w->cos + w->at * 16;
        m->sin = w->sin + w->at * 16;
        m->pos = w->pos;
    }
}

/* A tile of the block before goes to OUT, and this block's begins with zero. */
#define TURN(t, at)                                                                                \
    do {                                                                                           \
        _tile_stored(t, out + (at), ld * 4);                                                       \
        _tile_zero(t);                                                                             \
    } while (0)
/* All loads come before the products: where a core's second thread uses tiles too, those wait less then. */
#define STEP(load_a, load_b, two_panels, turn)                                                     \
    do {                                                                                           \
        load_b(6, b, 64);                                                                          \
        if (two_panels)                                                                            \
            load_b(7, b + bp, 64);                                                                 \
        load_a(4, a, 64);                                                                          \
        load_a(5, a + 256, 64);                                                                    \
        if (turn)                                                                                  \
            TURN(0, 0);                                                                            \
        TW_TILE_MUL(0, 4, 6);                                                                      \
        if (turn)                                                                                  \
            TURN(2, 16 * ld);                                                                      \
        TW_TILE_MUL(2, 5, 6);                                                                      \
        if (two_panels) {                                                                          \
            if (turn)                                                                              \
                TURN(1, 16);                                                                       \
            TW_TILE_MUL(1, 4, 7);                                                                  \
            if (turn)                                                                              \
                TURN(3, 16 * ld + 16);                                                             \
            TW_TILE_MUL(3, 5, 7);                                                                  \
        }                                                                                          \
        a += 512;                                                                                  \
        b += 256;                                                                                  \
    } while (0)
/* The products of a part onto tiles 0..3, 32 rows. Four tiles stored in a row would wait for the
 * processor's queue of stores: each is stored when it is wanted again. */
#define PART(load_a, load_b, two_panels)                                                           \
    do {                                                                                           \
        if (turn && s) {                                                                           \
            STEP(load_a, load_b, two_panels, true);                                                \
            s -= 16;                                                                               \
            turn = false;                                                                          \
        }                                                                                          \
        for (; s; s -= 16) {                                                                       \
            STEP(load_a, load_b, two_panels, false);                                               \
            meanwhile(m, made);                                                                    \
        }                                                                                          \
    } while (0)

/* What passes L1 by: B where A's rows stay for the next strips, both where those would not fit. */
enum pass { PASS_NONE, PASS_B, PASS_BOTH };

/* TURN: OUT still waits for the tiles. */
VFN void sum_block(const struct tw_whole *w, struct meanwhile *m, float *out, int64_t ld, bool turn, int P,
        const enum tw_made made, const enum pass pass)
{
    for (int q = 0; q < w->parts; q++) {
        const uint32_t *a = w->part[q].a, *b = w->part[q].b;
        int64_t bp = w->part[q].bp, s = w->part[q].s;

        if (pass == PASS_BOTH)
            PART(TW_TILE_PASS, TW_TILE_PASS, 1);
        else if (pass == PASS_B)
            PART(TW_TILE_LOAD, TW_TILE_PASS, 1);
        else if (P > 1)
            PART(TW_TILE_LOAD, TW_TILE_LOAD, 1);
        else
            PART(TW_TILE_LOAD, TW_TILE_LOAD, 0);
    }
}

static void put_tiles(float *out, int64_t ld, int P)
{
    _tile_stored(0, out, ld * 4);
    _tile_stored(2, out + 16 * ld, ld * 4);
    if (P > 1) {
        _tile_stored(1, out + 16, ld * 4);
        _tile_stored(3, out + 16 * ld + 16, ld * 4);
    }
    __asm__ volatile("" : : "r"(out) : "memory");
}

static void strip_next(struct tw_whole *w)
{
    bool last = w->made && ++w->at == w->group;

    for (int q = 0; q < w->parts; q++)
        w->part[q].b = (const uint32_t *)w->part[q].b + w->bs + last * w->bskip;
    w->c = w->c ? w->c + 32 : NULL;
    w->bias = w->bias ? w->bias + 32 : NULL;
    w->res = w->res ? w->res + 32 : NULL;
    w->y = w->y ? w->y + w->ystep + last * w->yskip : NULL;
    if (last)
        w->at = 0;
}

VFN void whole_blocks(const struct tw_whole *all, int P, const enum tw_made made, const enum pass pass)
{
    float sum[32 * 32] __attribute__((aligned(64))), first[32 * 32] __attribute__((aligned(64))), *out = sum;
    struct tw_whole rows = *all, w;
    struct meanwhile m;
    int64_t steps = 0, ld = 32;
    bool turn, plain;

    for (int q = 0; q < all->parts; q++)
        steps += all->part[q].s / 16;
    m = meanwhile_of(all, tw_max(steps, 1));
    tw_amx_config(16, 16, P);
    turn = steps && !all->from;
    plain = turn && !made && all->n == 32 && all->scale == 1 && !all->bias && !all->res;
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
        if (!turn)
            begin(&w, first, P);
        ahead_of(&m, &w);
        __asm__ volatile("" : : "r"(sum), "r"(first) : "memory");
        sum_block(&w, &m, out, ld, turn, P, made, pass);
        rows_out(&m, 32, made);
        if (!turn || w.n < 32)
            put_tiles(sum, 32, P);
        if (plain) {            /* tiles are what C is */
            out = w.c;
            ld = w.ldc;
            continue;
        }
        done_with(&m, &w, sum);
        if (!made && w.n < 32) {
            tw_amx_finish(&w, sum);
            m.left = 0;
        }
    }
    if (plain || (turn && m.left))
        put_tiles(out, ld, P);
    rows_out(&m, 32, made);
}

void tw_amx_whole16(const struct tw_whole *w, int P)
{
    if (w->strips > 1)
        whole_blocks(w, 2, TW_MADE_C, PASS_B);
    else if (P > 1 && w->part[0].s > TW_L1_WORDS)
        whole_blocks(w, 2, TW_MADE_C, PASS_BOTH);
    else
        whole_blocks(w, P, TW_MADE_C, PASS_NONE);
}

VFN void make(const struct tw_whole *w, const enum tw_made made)
{
    if (w->strips > 1)
        whole_blocks(w, 2, made, PASS_B);
    else if (w->part[0].s > TW_L1_WORDS)
        whole_blocks(w, 2, made, PASS_BOTH);
    else
        whole_blocks(w, 2, made, PASS_NONE);
}

void tw_amx_low16(const struct tw_whole *w)
{
    if (w->made == TW_MADE_UNIT)
        make(w, TW_MADE_UNIT);
    else if (w->made == TW_MADE_HEADS)
        make(w, TW_MADE_HEADS);
    else
        make(w, TW_MADE_LOW);
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
