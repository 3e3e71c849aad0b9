/* cpu_priv.h - what the files of the CPU device share: the device, the table of kernels that differ
 * by instruction set, and the matrix product that every op goes through. */
#ifndef TW_CPU_PRIV_H
#define TW_CPU_PRIV_H
#include <stdatomic.h>
#include "base/pool.h"
#include "nn/cpu/whole.h"

/* A run of tokens through the columns [c0, c0 + cols) of one value head's state (nn/delta_ops.h); all
 * pointers are of the first token, those to columns of c0. S lies in panels [dk][16], zero behind dv. */
struct tw_scan {
    int64_t n, dk, cols;
    float *s;
    const float *q, *k;         /* normalised; ldq is of both */
    const float *v;
    const float *alpha, *beta;  /* e^g */
    float *o, *e;               /* outputs, and what v was corrected to; NULL: not wanted. Rows of e
                                 * have whole panels */
    int64_t ldq, ldv, ldg, ldb, ldo, lde;
};

/* c[r * ldc + j] += the sum over tokens t of A(t, r) * b[t * ldb + j], j < n, rounded to bf16: S pairs
 * of K tokens, which is odd where the last pair is half of one. A is packed by pairs() with the first
 * token high, blocks of 8 rows s * 8 words apart. */
struct tw_outer {
    float *c;                   /* whole panels */
    int64_t ldc, n;
    const uint32_t *a;
    const void *b;              /* F32, or BF16 where b16 */
    bool b16;
    int64_t ldb, s, k;
    int64_t ahead;              /* elements of B from a line to the one to ask for */
};

/* Few rows of a product whose weights come from memory, f32 in panels of K rows BP numbers apart, and are
 * split on the way. A: the whole sum, as pack32 made it. */
struct tw_few {
    float *c;                   /* [R][ldc], whole panels */
    int64_t ldc;
    bool first;                 /* c is zero, whatever lies there */
    const uint32_t *a;
    int R;
    const float *b;
    int64_t bp, k, panels;
    uint32_t *room;             /* of TW_FEW_WORDS */
};
#define TW_FEW_WORDS (2 * 4 * 3 * 256)

/* Leaf functions over raw pointers, one table per instruction set (isa_*.c), all compiled from
 * kern.h, so that every table gives the same bits. A panel is 16 columns of a matrix, [s][16]. */
struct tw_att16;                /* attn_priv.h */
struct tw_kern {
    const char *name;
    int mr, pr;                 /* rows and panels of the f32 product's block */
    int mr16, pr16;             /* of the bf16 product's */
    int64_t kc16;               /* pairs of a block of its sum */
    int64_t mc16;               /* rows that pass a panel of weights */
    int64_t unit16;             /* pairs whose sum is one step of the chain: 1, of a tile 16 */
    bool split;                 /* f32 products as well go to tiles, their inputs being split into three
                                 * bf16 each (amx_f32.c); what has 32 in its name is of those alone: */
    int mr32, pr32;
    int64_t kc32;               /* words: 48 for 32 numbers, TW_STEP32 */

    /* c[r * ldc + p * 16 ..] += the sum over s of A(r, s) * b[p * bp + s * 16 ..], r in [0, R), p
     * in [0, P); FIRST: c is zero, whatever lies there. mm: A(r, s) = a[s * as + r]. mms: a[r * ar
     * + s]. mm16: A as pack16 made it, S counts pairs and b holds pairs of bf16. */
    void (*mm)(float *c, int64_t ldc, const float *a, int64_t as, const float *b, int64_t bp,
            int64_t s, bool first, int R, int P);
    void (*mms)(float *c, int64_t ldc, const float *a, int64_t ar, const float *b, int64_t bp,
            int64_t s, bool first, int R, int P);
    void (*mm16)(float *c, int64_t ldc, const uint32_t *a, const uint32_t *b, int64_t bp, int64_t s,
            bool first, int R, int P);
    void (*whole)(const struct tw_whole *w, int P);     /* mr rows */
    void (*whole16)(const struct tw_whole *w, int P);   /* mr16 rows; NULL: there is none */
    void (*low16)(const struct tw_whole *w);    /* what is made of a product; NULL: there is none */
    /* The second panel's sums are at c + cp. MORE is split meanwhile; NULL: nothing. */
    void (*mm32)(float *c, int64_t ldc, int64_t cp, const uint32_t *a, const uint32_t *b, int64_t bp,
            int64_t s, bool first, int R, int P, struct tw_split *more);
    void (*whole32)(const struct tw_whole *w, int P);
    void (*few32)(const struct tw_few *w);      /* mm32's bits */
    void (*few16)(const struct tw_few *w);      /* mm16's, K being words; NULL: there is none */
    int few;                    /* rows */
    void (*outer)(const struct tw_outer *o, int blocks);    /* 1 or 2 blocks of 8; NULL: none */
    /* dst[s * R + r] = src[r * ld + s]; pack16: pairs, columns at or past K are zero. */
    void (*pack)(float *dst, const float *src, int64_t ld, int R, int64_t s);
    void (*pack16)(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
    /* S words of R rows of A, which has K columns from SRC on; pairs32_a: of R columns, whose sum runs
     * over K rows. pairs32: a panel of B, K rows of R columns (others are zero). */
    void (*pack32)(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
    void (*pairs32_a)(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
    void (*pairs32)(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
    void (*low)(uint16_t *dst, const float *src, int64_t n);    /* rounds to bf16 */
    /* The same of N numbers times SCALE, whole groups of 32, which go to lines STEP words apart; and of up to
     * four rows that rms() gives, whose lines follow each other. NULL, both: there are none. */
    void (*lines)(uint32_t *dst, int64_t step, const float *src, int64_t n, float scale);
    void (*rms_lines)(uint32_t *dst, int64_t step, float *rstd, const float *x, int64_t ldx, int rows,
            const float *w, int64_t n, float eps, float off);
    /* pack16() of what is BF16 already, LD and S in words. */
    void (*packw)(float *dst, const float *src, int64_t ld, int R, int64_t s);
    /* dst[s * W + r] = src[s * ld + r] for r < R <= W <= 16, 0 up to W. */
    void (*packc)(float *dst, int W, const float *src, int64_t ld, int R, int64_t s);
    /* dst[i * W + r] = the pair of rows 2i and 2i + 1 of column r < R <= W (zero up to W), i < s;
     * rows at or past K are PAD. FIRST_HIGH: row 2i is the half that is added first. pairs_a: in
     * the order of mm16's A, W == R. */
    void (*pairs)(uint32_t *dst, int W, const float *src, int64_t ld, int R, int64_t s, int64_t k,
            bool first_high, uint32_t pad);
    void (*pairs_a)(uint32_t *dst, int W, const float *src, int64_t ld, int R, int64_t s,
            int64_t k, bool first_high, uint32_t pad);
    /* The same of BF16 rows. */
    void (*pairsw)(uint32_t *dst, int W, const uint16_t *src, int64_t ld, int R, int64_t s,
            int64_t k, bool first_high, uint32_t pad);
    void (*pairsw_a)(uint32_t *dst, int W, const uint16_t *src, int64_t ld, int R, int64_t s,
            int64_t k, bool first_high, uint32_t pad);
    /* dst[j * 16 + i] = src[i * ld + j] for i < n (others 0), j < s: rows become a panel.
     * panel16: of pairs, columns at or past K are zero. */
    void (*panel)(float *dst, const float *src, int64_t ld, int64_t n, int64_t s);
    void (*panel16)(uint32_t *dst, const float *src, int64_t ld, int64_t n, int64_t s, int64_t k);
    /* 16 rows and 16 columns of a bf16 panel, 8 x 16 pairs of columns, as 8 x 16 pairs of rows. */
    void (*turn16)(uint32_t *dst, const uint32_t *src);
    /* y = x * scale + bias + res over n columns; bias, res may be NULL. */
    void (*epi)(float *y, const float *x, int64_t n, float scale, const float *bias,
            const float *res);
    /* The same for rows. */
    void (*epis)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t n,
            float scale, const float *bias, const float *res, int64_t ldres);

    float (*dot)(const float *a, const float *b, int64_t n);
    float (*rms)(float *y, const float *x, const float *w, int64_t n, float eps, float off);
    void (*rms_dx)(float *dx, bool add, const float *dy, const float *x, const float *w, int64_t n,
            float r, float off);
    /* dw[0, c), c <= 16: a chain over T rows of G groups of n. */
    void (*rms_dw)(float *dw, int64_t c, const float *dy, int64_t ldy, const float *x, int64_t ldx,
            const float *rstd, int64_t T, int64_t G, int64_t n);
    void (*rope)(float *x, const float *cos, const float *sin, int64_t half, float sign);
    void (*glu)(float *y, const float *gate, const float *up, int64_t n, enum tw_act act);
    /* SiLU as near as BF16 wants it; NULL: it would be no quicker. */
    void (*glu_low)(float *y, const float *gate, const float *up, int64_t n);
    void (*glu_bwd)(float *dgate, float *dup, float *y, const float *dy, const float *gate,
            const float *up, int64_t n, enum tw_act act);   /* y: glu's value; NULL: not wanted */
    void (*add)(float *y, const float *x, int64_t n);
    void (*axpy)(float *y, float a, const float *x, int64_t n);
    void (*adamw)(float *w, const float *g, float *m, float *v, int64_t n, const struct tw_adamw *p,
            float scale);
    void (*sgd)(float *w, const float *g, float *m, int64_t n, float lr, float momentum,
            float decay, float scale);
    void (*adamw_small)(float *w, const float *g, const struct tw_small *s, int64_t at, int64_t n,
            const struct tw_adamw *p, float scale, const float *map);

    /* st: max of z/temp, sum of e^(z/temp - max), sum of e^(..) * (z/temp - max) when ent. */
    void (*stats)(float st[3], const float *z, int64_t n, float temp, bool ent);
    /* z = c e^(z/temp - max) */
    void (*dsoftmax)(float *z, int64_t n, float temp, float max, float c);
    /* Scores s[0, end) of one query that sees [lo, hi): s = e^(s * scale - max), 0 where unseen;
     * end is a multiple of 16. Returns the sum, *max the largest. */
    float (*soft)(float *s, int64_t lo, int64_t hi, int64_t end, float scale, float *max);
    void (*att16)(struct tw_att16 *w);  /* of the tile unit; NULL: there is none */
    /* s = p = e^(s * scale - lse) in [lo, hi) else 0; dp = p * (dp - delta) * scale. */
    void (*dsoft)(float *s, float *dp, int64_t lo, int64_t hi, int64_t end, float scale, float lse,
            float delta);

    /* y = the sum over j of w[j * ldw ..] x[j], n columns, SILU of it when ACT; conv_back: dp = dy
     * times the derivative of that, dw[j * ldw ..] += dp x[j] (NULL: not wanted). */
    void (*conv)(float *y, const float *const *x, const float *w, int64_t ldw, int taps, int64_t n,
            bool act);
    void (*conv_back)(float *dp, float *dw, const float *dy, const float *const *x, const float *w,
            int64_t ldw, int taps, int64_t n);
    /* y[j] = e^(gi - g[j]) for j < n, and 0 up to a multiple of 16. */
    void (*decay)(float *y, float gi, const float *g, int64_t n);
    void (*scan)(const struct tw_scan *a);  /* at most scan_p panels */
    int scan_p;
};
extern const struct tw_kern tw_kern_c;
#if defined(__x86_64__)
extern const struct tw_kern tw_kern_avx2, tw_kern_avx512, tw_kern_avx512bf16;
/* AMX replaces the products of tw_kern_avx512bf16 and their packing, in blocks of 32 rows and 2 panels. */
bool tw_amx_enable(void);       /* asks the kernel for the tile registers; false: there are none */
void tw_amx_pack16(uint32_t *dst, const float *src, int64_t ld, int R, int64_t s, int64_t k);
void tw_amx_pairs(uint32_t *dst, int W, const float *src, int64_t ld, int R, int64_t s, int64_t k,
        bool first_high, uint32_t pad);
void tw_amx_packw(float *dst, const float *src, int64_t ld, int R, int64_t s);
void tw_amx_pairsw(uint32_t *dst, int W, const uint16_t *src, int64_t ld, int R, int64_t s,
        int64_t k, bool first_high, uint32_t pad);
void tw_amx_mm16(float *c, int64_t ldc, const uint32_t *a, const uint32_t *b, int64_t bp,
        int64_t s, bool first, int R, int P);
void tw_amx_whole16(const struct tw_whole *w, int P);
void tw_amx_low16(const struct tw_whole *w);
void tw_amx_att16(struct tw_att16 *w);
void tw_amx_few16(const struct tw_few *w);
void tw_amx_f32(struct tw_kern *k);     /* what is of f32 products */
#endif

#define TW_STEP32 48            /* words of 32 numbers that are split */

/* Scratch buffers of the device by use; an op uses each for one thing at a time. */
enum tw_slot { TW_SLOT_WT, TW_SLOT_X, TW_SLOT_Y, TW_SLOT_KV, TW_SLOT_LIST, TW_SLOT_ROWS,
    TW_SLOT_LORA, TW_SLOT_OWN, TW_SLOT_MORE, TW_SLOT_CUT, TW_SLOT_STEP, TW_SLOT_DELTA,
    TW_SLOT_SHARE, TW_NSLOT };

#define TW_OFTEN 32
struct tw_cpu {
    struct tw_dev_head head;
    const struct tw_kern *k;
    struct tw_kern amx;         /* what k points to where there are tiles */
    struct tw_pool *pool;
    int threads;
    atomic_int late;            /* large pages that took long */
    atomic_int unjoined;        /* small ones that did not become large in time */
    struct tw_often {
        void *p;                /* NULL: none */
        size_t bytes;
        int batches;            /* of tokens since then, up to 2 */
    } often[TW_OFTEN];
    struct tw_err err;          /* the first failure, sticky */
    bool low;                   /* begin(): products round their inputs to bf16 */
    int64_t ncut;               /* begin(): sequences; their first tokens are in TW_SLOT_CUT */
    struct { void *p; size_t n; } slot[TW_NSLOT];
    char *own;                  /* threads * TW_OWN_BYTES: a product's tile and packed inputs */
};

/* A buffer of at least BYTES, 64-byte aligned, not cleared; NULL: no memory (noted in d->err). */
void *tw_cpu_scratch(struct tw_cpu *d, enum tw_slot s, size_t bytes);
void tw_cpu_run(struct tw_cpu *d, int64_t n, void (*fn)(void *arg, int64_t i, int thread),
        void *arg);

static inline int64_t tw_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t tw_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tw_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline float *tw_row(const struct tw_tensor *x, int64_t r)
{
    return (float *)x->data + r * x->ld;
}
/* The same of F32 or BF16, and element I of an array of either. */
static inline const void *tw_elem(const void *p, bool low, int64_t i)
{
    return (const char *)p + i * (low ? 2 : 4);
}
static inline const float *tw_at(const struct tw_tensor *x, int64_t r)
{
    return tw_elem(x->data, x->dtype == TW_BF16, r * x->ld);
}
/* Where 32 columns of row R of a packed X begin, which are a line; the next 32 are *STEP words further. */
static inline uint32_t *tw_line(const struct tw_tensor *x, int64_t r, int64_t col, int64_t *step)
{
    int64_t block = r / 32 * 32;

    *step = tw_min(32, x->rows - block) * 16;
    return (uint32_t *)x->data + block * x->cols / 2 + col / 32 * *step + (r - block) * 16;
}
/* How many of LEFT panels a block takes that has room for PR: one alone keeps the units waiting. */
static inline int64_t tw_panels(int64_t pr, int64_t left)
{
    return left > pr && left < 2 * pr ? (left + 1) / 2 : tw_min(pr, left);
}
/* Words (floats, or pairs of bf16) of one panel of a matrix with K columns. */
static inline int64_t tw_panel_words(enum tw_dtype t, int64_t k)
{
    return t == TW_F32 ? k * 16 : tw_up(k, 32) * 8;
}

/* C[m, n] (+)= A[m, s] B[s, n], every element one ascending chain over s. */
enum tw_bkind {
    TW_B_PANEL,                 /* b + (n / 16) * s * 16: [s][16] */
    TW_B_PANEL16,               /* the same of bf16 pairs, s padded to 32 */
    TW_B_ROWS,                  /* b[s * ldb + n] */
    TW_B_COLS,                  /* b[n * ldb + s] */
};
struct tw_factors {
    const float *a;
    int64_t lda, s;
    bool packed;                /* A lies as products read it: only where tw_cpu_packs() */
    bool a16, b16;              /* A, B (of a sum over tokens) are BF16, of whole groups of 32 columns */
    bool a_cols;                /* A(r, s) = a[s * lda + r] and B in rows: a sum over tokens */
    enum tw_bkind bkind;
    const void *b;
    int64_t ldb;
    int64_t r0, r1;             /* of a further product: the rows of C that it is added to */
};
/* A narrow product with the same A: out[r - r0] = scale A[r] B for rows [r0, r1), n columns. */
struct tw_side {
    struct tw_factors f;        /* its B and rows */
    int64_t n;
    float *out;
    int64_t ldo;
    float scale;
    int64_t of;                 /* 0: the same A as f; i: as more[i - 1], whose rows are all */
};
struct tw_gemm {
    int64_t m, n;
    struct tw_factors f;
    const struct tw_side *side; /* come first: MORE may read what they give */
    int64_t nside;
    const struct tw_factors *more;  /* the chain of rows [r0, r1) goes on over these */
    int64_t nmore;
    bool low;                   /* bf16 products (PANEL16 always is one) */
    const int64_t *cut;         /* with a_cols: [ncut + 1] where sequences begin in s; only devices */
    int64_t ncut;               /* with tiles look at them */
    float *c;
    int64_t ldc;
    bool cont;                  /* the chain goes on from what c holds */
    /* With a_cols it always does, but from zero where FRESH, and that is all; side and more are none. */
    bool fresh;
    bool c_panel;               /* C(r, n) = c[(n / 16) * 16 * m + r * 16 + n % 16] */
    bool c_cols;                /* C(r, n) = c[n * ldc + r] */
    float scale;                /* else times scale, plus bias, plus res, each rounded */
    const float *bias, *res;
    int64_t ldres;
    enum tw_made made;          /* y, in the place of C: of heads of HD columns, rotated by TURN; or a unit,
                                 * for which UP is B of a second product. Only where tw_cpu_gated_fits() or
                                 * tw_cpu_heads_fit() */
    const void *up;
    uint16_t *y;
    int64_t ldy;
    bool y_packed;              /* of a unit */
    enum tw_act act;
    const struct tw_rope *turn;
    int64_t hd;
};
void tw_cpu_gemm(struct tw_cpu *d, const struct tw_gemm *g);
/* N products of one A (m, f.a, f.lda and f.s are equal), packed once, or one whose sides are of its
 * further products' A: where the shapes fit. */
#define TW_GEMM_GROUP 3
bool tw_cpu_gemm_fits(struct tw_cpu *d, const struct tw_gemm *g, int n);
void tw_cpu_gemm_group(struct tw_cpu *d, const struct tw_gemm *g, int n);
void tw_cpu_gemm_tokens(struct tw_cpu *d, const struct tw_gemm *g);     /* where a_cols */
/* max + log(sum): of a row of scores. */
float tw_cpu_lse(float max, float sum);
/* wt = rows [n0, n0 + n) of W transposed: panels of W's columns over them, in W's dtype. */
void tw_cpu_transpose(struct tw_cpu *d, void *wt, const struct tw_mat *w, int64_t n0, int64_t n);

/* A tile: rows times panels; rows when B lies in panels and when it is packed for each tile; the
 * length of a block of the sum. */
#define TW_TILE (128 * 64)
#define TW_MC 128
#define TW_MC_RAW 256
#define TW_KC 576
#define TW_TILE_WORDS ((TW_TILE + TW_MC_RAW) * 16)
#define TW_STRIP_WORDS (512 * 48)      /* sums of a strip: mc16 rows, pr panels */
#define TW_B_WORDS (7 * 16 * TW_KC)     /* packed panels of B: of two, twice kc32 words, and more */
#define TW_OWN_WORDS (TW_TILE_WORDS + TW_MC_RAW * TW_KC + TW_MC * TW_KC + TW_B_WORDS)

/* P is freed; a batch of ROWS tokens begins. */
void tw_cpu_forget(struct tw_cpu *d, const void *p);
void tw_cpu_batch(struct tw_cpu *d, int64_t rows);

/* The ops, by file. */
void tw_cpu_fresh(struct tw_dev *d, void *p, size_t bytes);
void tw_cpu_often(struct tw_dev *d, void *p, size_t bytes);
void tw_cpu_close(struct tw_dev *d);
int64_t tw_cpu_mat_elems(const struct tw_dev *d, int64_t rows, int64_t cols, enum tw_dtype t);
void tw_cpu_mat_put(struct tw_dev *d, struct tw_mat *m, const void *host, enum tw_dtype from,
        int64_t row, int64_t n);
void tw_cpu_mat_get(struct tw_dev *d, float *host, const struct tw_mat *m, int64_t row, int64_t n);
void tw_cpu_mat_cast(struct tw_dev *d, struct tw_mat *bf16, const struct tw_mat *f32);
void tw_cpu_embed(struct tw_dev *d, struct tw_tensor *y, const struct tw_mat *w, const int32_t *id);
void tw_cpu_embed_bwd(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
        const int32_t *id);
void tw_cpu_linear(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res);
void tw_cpu_begin(struct tw_dev *d, enum tw_dtype products, const int64_t *t0, int64_t nseq);
void tw_cpu_linear_dx(struct tw_dev *d, struct tw_tensor *dx, bool add, const struct tw_tensor *dy,
        const struct tw_mat *w);
void tw_cpu_linear_dw(struct tw_dev *d, struct tw_mat *dw, float *dbias, const struct tw_tensor *dy,
        const struct tw_tensor *x);
void tw_cpu_lora(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c);
void tw_cpu_lora_bwd(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c);
void tw_cpu_lora_linear(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_mat *w, const float *bias,
        const struct tw_tensor *res, const struct tw_lora_ctx *c);
void tw_cpu_lora_linear_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add,
        struct tw_tensor *scratch, const struct tw_tensor *dy, const struct tw_tensor *x,
        const struct tw_tensor *h, const struct tw_mat *w, const struct tw_lora_ctx *c);
void tw_cpu_lora_group(struct tw_dev *d, struct tw_lora_one *one, int n,
        const struct tw_tensor *x);
void tw_cpu_lora_group_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x);
void tw_cpu_rmsnorm(struct tw_dev *d, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const float *w, int64_t n, float eps, float off);
void tw_cpu_rmsnorm_bwd(struct tw_dev *d, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off);
void tw_cpu_rope(struct tw_dev *d, struct tw_tensor *x, int64_t nheads, int64_t hd,
        const struct tw_rope *r, int sign);
void tw_cpu_attn(struct tw_dev *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a);
void tw_cpu_attn_bwd(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dk,
        struct tw_tensor *dv, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *k,
        const struct tw_tensor *v, const struct tw_attn *a);
size_t tw_cpu_kv_bytes(const struct tw_dev *d, int64_t nkv, int64_t hd, enum tw_dtype products);
void tw_cpu_kv_put(struct tw_dev *d, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_attn *a);
extern const struct tw_mla_ops tw_cpu_mla;
/* What becomes of N numbers of a gated unit in products that are BF16, or not. */
void tw_cpu_unit(const struct tw_kern *k, bool low, float *y, const float *gate, const float *up, int64_t n,
        enum tw_act act);
void tw_cpu_glu(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act);
bool tw_cpu_packs(const struct tw_dev *d, int64_t rows, int64_t cols);
bool tw_cpu_heads_fit(const struct tw_dev *d, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r);
void tw_cpu_turned(struct tw_dev *d, struct tw_tensor *const *y, const struct tw_tensor *x,
        const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r);
bool tw_cpu_gated_fits(const struct tw_dev *d, const struct tw_tensor *x, const struct tw_mat *gate,
        const struct tw_mat *up);
void tw_cpu_gated(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *gate, const struct tw_mat *up, enum tw_act act);
void tw_cpu_glu_bwd(struct tw_dev *d, struct tw_tensor *dgate, struct tw_tensor *dup,
        struct tw_tensor *y, const struct tw_tensor *dy, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act);
extern const struct tw_delta_ops tw_cpu_delta_ops;
void tw_cpu_cols(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *x,
        const struct tw_cols *c, bool back);
void tw_cpu_head(struct tw_dev *d, const struct tw_head *h);
size_t tw_cpu_head_scratch(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, int grads);
void tw_cpu_logits(struct tw_dev *d, float *logits, const struct tw_tensor *h, const int32_t *row,
        int64_t n, const struct tw_mat *w);
float tw_cpu_pick(const struct tw_dev *d, const float *z, int64_t V, float temp, int32_t target);
void tw_cpu_add(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x);
void tw_cpu_scale(struct tw_dev *d, struct tw_tensor *y, float a);
void tw_cpu_axpy(struct tw_dev *d, float *y, float a, const float *x, int64_t n);
void tw_cpu_sumsq(struct tw_dev *d, double *sum, const float *g, int64_t n);
void tw_cpu_clip(struct tw_dev *d, float *scale, const double *sum, float max, double by);
void tw_cpu_adamw_many(struct tw_dev *d, const struct tw_adamw_item *item, int64_t n);
void tw_cpu_adamw(struct tw_dev *d, float *w, const float *g, float *m, float *v, int64_t n,
        const struct tw_adamw *p, const float *scale);
void tw_cpu_sgd(struct tw_dev *d, float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale);
void tw_cpu_adamw_small(struct tw_dev *d, void *w, uint16_t *low, const float *g,
        const struct tw_small *s, int64_t n, const struct tw_adamw *p, const float *scale);
void tw_cpu_small_get(struct tw_dev *d, float *x, const struct tw_small *s, bool second, int64_t n);
void tw_cpu_small_put(struct tw_dev *d, const struct tw_small *s, bool second, const float *x,
        int64_t n);
extern const struct tw_optim_ops tw_cpu_optim;

#endif
