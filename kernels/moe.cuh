/* moe.cuh - products of experts: one launch over all of them, whose rows lie one behind the other with
 * their borders in device memory. */
#ifndef TW_MOE_CUH
#define TW_MOE_CUH
#include "cu.cuh"

/* c[p, n] = alpha a[p, k] b_e[n, k]^T, or b_e[k, n], for the rows p of each expert e; or of all
 * rows of an expert c_e[m, n] += alpha a[p, m]^T b[p, n]. */
enum moe_form { MOE_NT, MOE_NN, MOE_TN };

/* What an adapter adds: the sum goes on over h [rows, r] and its factor, [n, r] or [r, n] of each expert. */
struct moe_tail {
    const float *h, *b;             /* h NULL: nothing */
    int64_t ldh, step;
    int32_t r;
};

struct moe_mm {
    const void *a, *b;
    void *c;
    enum tw_dtype ta, tb, tc;
    int64_t lda, ldb, ldc, step;    /* elements; from one expert's b (of MOE_TN: c) to the next's */
    const int32_t *lo, *hi;         /* (dev) [E] rows [lo, hi) are e's; NULL: one, of all rows */
    const int32_t *pair;            /* (dev) row p of a (of MOE_TN: of b) is pair[p] / K's; NULL: p's */
    int32_t K, E, rows;             /* rows: of all experts */
    int32_t m, n, k;                /* m of MOE_TN, k of the others */
    bool add;                       /* to what is in c */
    struct moe_tail tail;           /* of moe_wg.cu only */
    bool whole;                     /* F32 operands are not rounded to BF16 */
    float alpha;
};

/* By tensor cores where the types and shapes are for them, else in plain F32: chains in ascending
 * order. EXACT: plain F32 in any case. */
void cu_moe_mm(struct cu_dev *d, enum moe_form form, const struct moe_mm *g, bool exact);

/* moe_wg.cu, moe_mm.cu, moe_simt.cu: the three of them. False: not these shapes, or not this GPU. */
bool cu_moe_wg_fits(struct cu_dev *d, enum moe_form form, const struct moe_mm *g);
bool cu_moe_wg(struct cu_dev *d, enum moe_form form, const struct moe_mm *g);
bool cu_moe_mma(struct cu_dev *d, enum moe_form form, const struct moe_mm *g);
void cu_moe_simt(struct cu_dev *d, enum moe_form form, const struct moe_mm *g);
/* moe_thin.cu: those of adapters, of ranks up to 64 in fours, with F32 factors and hidden states. False:
 * nothing was done. The second makes both of what an adapter does with dy, of ROWS rows that are in the order
 * of dh's pair; of 0 it says whether it could. */
bool cu_moe_thin(struct cu_dev *d, enum moe_form form, const struct moe_mm *g);
bool cu_moe_thin_back(struct cu_dev *d, const struct moe_mm *dh, const struct moe_mm *db, int64_t rows);

/* moe_route.cu */
void cu_moe_route(struct tw_dev *d, struct tw_dispatch *s, struct tw_tensor *prob,
        const struct tw_route *r, const int32_t *given, const struct tw_balance *b);
void cu_moe_route_bwd(struct tw_dev *d, struct tw_tensor *dlogits, const float *dweight,
        const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
        const struct tw_balance *b);
/* moe_sum.cu */
void cu_moe_collect(struct tw_dev *d, struct tw_tensor *dx, bool add,
        const struct tw_tensor *sorted, const struct tw_dispatch *s);
void cu_moe_combine(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate);
void cu_moe_combine_bwd(struct tw_dev *d, struct tw_tensor *dz, float *dweight,
        struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate);
/* x[p] times the weight of row p */
void cu_moe_weigh(struct cu_dev *d, const struct tw_tensor *x, int64_t cols, const struct tw_dispatch *s);
void cu_moe_glu_bwd(struct tw_dev *d, struct tw_tensor *dgate, struct tw_tensor *dup, float *dweight,
        const struct tw_tensor *dy, const struct tw_tensor *gate, const struct tw_tensor *up, int act,
        const struct tw_dispatch *s);
/* moe.cu: the table */
void cu_moe_ops(struct tw_ops *o);

#ifdef __CUDACC__
/* The expert of the TILE-th piece of BM rows, and the piece's rows [r0, r1); false: there are fewer
 * pieces. All threads of a warp ask together. */
static __device__ __forceinline__ bool moe_tile(const struct moe_mm &g, int tile, int bm, int &e,
        int &r0, int &r1)
{
    int lane = threadIdx.x % 32, before = 0;

    if (!g.lo) {
        e = 0;
        r0 = tile * bm;
        r1 = min(g.rows, r0 + bm);
        return r0 < g.rows;
    }
    for (int first = 0; first < g.E; first += 32) {
        int i = first + lane, n = i < g.E ? (g.hi[i] - g.lo[i] + bm - 1) / bm : 0, sum = n;

#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            int x = __shfl_up_sync(~0u, sum, o);

            sum += lane >= o ? x : 0;
        }
        int all = __shfl_sync(~0u, sum, 31);

        if (tile < before + all) {
            int at = __ffs(__ballot_sync(~0u, before + sum > tile)) - 1;

            e = first + at;
            r0 = g.lo[e] + (tile - before - __shfl_sync(~0u, sum - n, at)) * bm;
            r1 = min(g.hi[e], r0 + bm);
            return true;
        }
        before += all;
    }
    return false;
}

static __device__ __forceinline__ int64_t moe_row(const struct moe_mm &g, int p)
{
    return g.pair ? g.pair[p] / g.K : p;
}
#endif

/* No more pieces of BM rows than this. */
static inline unsigned moe_tiles(const struct moe_mm *g, int bm)
{
    return (unsigned)(cu_div(g->rows, bm) + (g->lo ? (g->E < g->rows ? g->E : g->rows) : 0));
}
#endif
