/* gemm_priv.h - what tiles, strips and shared rows have in common: packing, blocks, the thread's memory. */
#ifndef TW_GEMM_PRIV_H
#define TW_GEMM_PRIV_H
#include "nn/cpu/cpu_priv.h"

struct tw_prod {
    struct tw_cpu *d;
    const struct tw_gemm *g;
    bool bf, split;             /* neither: fused multiply-adds of f32 */
    bool few;                   /* few rows: an item is one strip */
    bool tiles;                 /* the tile unit does it */
    int64_t unit;               /* words: blocks of the sum are multiples of it */
    int64_t mc, nc, nj;         /* rows and panels of a tile, tiles per row of tiles */
    int64_t s, kc;              /* length of the sum and of a block, in words */
    int mr, pr;
    bool strips, sides;         /* the way of strips; its items do side products as well */
    bool turns;                 /* all strips take their turn for each block of the sum */
    int n;                      /* strips: products of one A, one behind the other */
};

struct tw_tile {
    float *c, *a, *more, *b;    /* sums; packed A, A of further products, B */
    int64_t r0, r1, p0, p1, ld;
};

struct tw_prod tw_prod_of(struct tw_cpu *d, const struct tw_gemm *g);
/* Numbers of the sum that N words hold, N a multiple of unit. */
static inline int64_t tw_prod_at(const struct tw_prod *j, int64_t n)
{
    return j->bf ? 2 * n : j->split ? n / TW_STEP32 * 32 : n;
}
/* The most words of a sum for which NP panels of B fit where t->b is. */
static inline int64_t tw_prod_room(const struct tw_prod *j, int64_t np)
{
    return TW_B_WORDS / (16 * np) / j->unit * j->unit;
}
/* Words of a block of the sum, all of about the same length, up to KC. */
static inline int64_t tw_prod_even(const struct tw_prod *j, int64_t kc)
{
    int64_t blocks = (j->s + kc - 1) / kc;

    return tw_up((j->s + blocks - 1) / blocks, j->unit);
}
static inline bool tw_in_panels(const struct tw_factors *f)
{
    return f->bkind == TW_B_PANEL || f->bkind == TW_B_PANEL16;
}
/* Words of the sum of F. */
int64_t tw_prod_words(const struct tw_prod *j, const struct tw_factors *f);
/* Words [s0, s0 + n) of the sum of rows [r0, r1), in blocks of mr rows. */
void tw_prod_pack_a(const struct tw_prod *j, float *to, const struct tw_factors *f, int64_t r0,
        int64_t r1, int64_t s0, int64_t n);
/* Panels [p, p + np) of B, which has N columns, for words [s0, s0 + n): where they lie, packed if
 * need be. */
const float *tw_prod_pack_b(const struct tw_prod *j, const struct tw_tile *t,
        const struct tw_factors *f, int64_t N, int64_t p, int64_t np, int64_t s0, int64_t n,
        int64_t *bp);
void tw_prod_block(const struct tw_prod *j, float *c, int64_t ldc, const float *a, const float *b,
        int64_t bp, int64_t n, bool first, int rows, int np);
/* Adds words [s0, s0 + n) of F's product to rows [r0, r1) of the tile; A is packed. */
void tw_prod_add(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f,
        const float *a, int64_t r0, int64_t r1, int64_t s0, int64_t n, bool first);
/* Adds all of F's product, whose A is packed where t->more is. */
void tw_prod_more(const struct tw_prod *j, const struct tw_tile *t, const struct tw_factors *f);
/* C's rows of the tile, which has NP panels from P on, into its sums. */
void tw_prod_load(const struct tw_prod *j, const struct tw_tile *t, int64_t p, int64_t np);

#define TW_STRIP_PARTS (TW_WHOLE_PARTS - 1)

/* A strip, and what its blocks go on with after their own sum. */
struct tw_strip {
    int64_t p, c0, n;           /* its first panel; its columns */
    int64_t p0, p1;             /* the item's first panel, and behind its last one */
    const float *there;         /* of B, whose split is in half_of(half) */
    int half;
    int np;
    bool asked;                 /* its lines of C have been asked for */
    bool packed;                /* further products are packed for the whole item */
    bool fused;                 /* and each holds for all rows: */
    int parts;
    const struct tw_factors *f[TW_STRIP_PARTS];
    const float *a[TW_STRIP_PARTS];
};
/* A strip of the rows that are packed, from the sum to C. */
void tw_strip_run(const struct tw_prod *j, const struct tw_tile *t, struct tw_strip *e);

/* Cuts C for the way of strips. Returns the items; 0: it is not for this shape. ALONE: no other product
 * has its A. */
int64_t tw_strip_plan(struct tw_prod *j, bool alone);
void tw_strip_job(void *prod, int64_t i, int thread);

/* N products of one A that all threads pack once; false: not these. */
bool tw_share_fits(struct tw_cpu *d, const struct tw_gemm *g, int n);
bool tw_share_run(struct tw_cpu *d, const struct tw_gemm *g, int n);

#endif
