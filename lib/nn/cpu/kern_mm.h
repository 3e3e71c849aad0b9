/* kern_mm.h - the blocks of the matrix product, compiled once per instruction set by kern.h.
 * A block of R rows and P panels keeps its R * P sums in registers for the whole length of the sum:
 * per step P vectors of B are loaded and R numbers of A broadcast. AVX512 takes 8 x 3 (24 sums of
 * 32 registers, enough to hide the latency of two units), AVX2 6 x 1 (12 of 16), portable C one
 * row: what fits any processor's registers, and compilers take minutes over more. */

#if defined(TW_VEC_AVX512)
#define MR 8
#define PR 3
#elif defined(TW_VEC_AVX2)
#define MR 6
#define PR 1
#else
#define MR 1
#define PR 1
#endif

/* Panels lie in L2 or farther: wide blocks ask for what they read some steps later. A block of AVX2 has
 * no time for it. */
#if defined(TW_VEC_AVX512)
#define AHEAD 512
#else
#define AHEAD 0
#endif

/* BF: pairs of bf16. A(r, s) is a[r * ar + s * as], where one of ar and as is the constant 1. */
VFN void mm_block(float *restrict c, int64_t ldc, const float *restrict a, int64_t ar,
        int64_t as, const float *restrict b, int64_t bp, int64_t s, bool first, const int R,
        const int P, const bool bf)
{
    vf acc[MR][PR], x, w[PR];

#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            acc[r][p] = first ? v_set(0) : v_load(c + r * ldc + p * 16);
    for (int64_t i = 0; i < s; i++) {
        /* Sums over tokens read A from L3: what comes next lies behind it, on another page. */
        if (bf)
            __builtin_prefetch((const char *)a + 2048);
#pragma GCC unroll 4
        for (int p = 0; (AHEAD || bf) && p < P; p++)
            __builtin_prefetch((const char *)(b + p * bp + i * 16) + (bf ? 1024 : AHEAD));
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            w[p] = v_load(b + p * bp + i * 16);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            x = v_set(a[r * ar]);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
                acc[r][p] = bf ? v_dp(acc[r][p], x, w[p]) : v_fma(x, w[p], acc[r][p]);
        }
        a += as;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            v_store(c + r * ldc + p * 16, acc[r][p]);
}

VFN int64_t lanes(const struct tw_whole *t, int p)
{
    return t->n - p * 16 < 16 ? t->n - p * 16 : 16;
}

/* Sums of MR rows that never leave the registers until they are finished. */
VFN void whole_block(const struct tw_whole *t, const int P, const bool bf)
{
    vf acc[MR][PR], x, w[PR];

#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            acc[r][p] = t->from ? ld(t->from + r * t->ldf + p * 16, lanes(t, p)) : v_set(0);
    for (int q = 0; q < t->parts; q++) {
        const float *restrict a = t->part[q].a, *restrict b = t->part[q].b;
        int64_t bp = t->part[q].bp;

        for (int64_t i = 0; i < t->part[q].s; i++, a += MR) {
#pragma GCC unroll 4
            for (int p = 0; AHEAD && !bf && p < P; p++)
                __builtin_prefetch((const char *)(b + p * bp + i * 16) + AHEAD);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
                w[p] = v_load(b + p * bp + i * 16);
#pragma GCC unroll 8
            for (int r = 0; r < MR; r++) {
                x = v_set(a[r]);
#pragma GCC unroll 4
                for (int p = 0; p < P; p++)
                    acc[r][p] = bf ? v_dp(acc[r][p], x, w[p]) : v_fma(x, w[p], acc[r][p]);
            }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        int64_t k = lanes(t, p);

#pragma GCC unroll 8
        for (int r = 0; r < MR; r++) {
            vf v = acc[r][p];

            if (t->scale != 1)
                v = v_mul(v, v_set(t->scale));
            if (t->bias)
                v = v_add(v, ld(t->bias + p * 16, k));
            if (t->res)
                v = v_add(v, ld(t->res + r * t->ldres + p * 16, k));
            st(t->c + r * t->ldc + p * 16, v, k);
        }
    }
}

VFN void whole_switch(const struct tw_whole *all, int P, const bool bf)
{
    struct tw_whole t = *all;

    for (int64_t i = 0; i < t.blocks; i++, tw_whole_next(&t, MR)) {
        tw_whole_ahead(&t, MR);
        if (P == 1)
            whole_block(&t, 1, bf);
#if PR > 1
        else if (P == 2)
            whole_block(&t, 2, bf);
        else
            whole_block(&t, 3, bf);
#endif
    }
}

static void whole(const struct tw_whole *t, int P)
{
    whole_switch(t, P, false);
}

static void whole16(const struct tw_whole *t, int P)
{
    whole_switch(t, P, true);
}

#define MM_CASE(r, p)                                                                              \
    case (r) * 4 + (p):                                                                            \
        mm_block(c, ldc, a, ar, as, b, bp, s, first, r, p, bf);                                    \
        break;
#if PR > 1
#define MM_ROW(r) MM_CASE(r, 1) MM_CASE(r, 2) MM_CASE(r, 3)
#else
#define MM_ROW(r) MM_CASE(r, 1)
#endif

VFN void mm_switch(float *c, int64_t ldc, const float *a, int64_t ar, int64_t as, const float *b,
        int64_t bp, int64_t s, bool first, int R, int P, const bool bf)
{
    switch (R * 4 + P) {
        MM_ROW(1)
#if MR >= 6
        MM_ROW(2)
        MM_ROW(3)
        MM_ROW(4)
        MM_ROW(5)
        MM_ROW(6)
#endif
#if MR >= 8
        MM_ROW(7)
        MM_ROW(8)
#endif
    default:
        break;
    }
}

static void mm(float *c, int64_t ldc, const float *a, int64_t as, const float *b, int64_t bp,
        int64_t s, bool first, int R, int P)
{
    mm_switch(c, ldc, a, 1, as, b, bp, s, first, R, P, false);
}

static void mms(float *c, int64_t ldc, const float *a, int64_t ar, const float *b, int64_t bp,
        int64_t s, bool first, int R, int P)
{
    mm_switch(c, ldc, a, ar, 1, b, bp, s, first, R, P, false);
}

static void mm16(float *c, int64_t ldc, const uint32_t *a, const uint32_t *b, int64_t bp, int64_t s,
        bool first, int R, int P)
{
    mm_switch(c, ldc, (const float *)a, 1, R, (const float *)b, bp, s, first, R, P, true);
}
