/* attn.cuh - what the files of attention share.
 *
 * One way to look at a call everywhere: the queries of a sequence that read one kv head are rows,
 * row r being query r / group and query head kvh * group + r % group. So heads that share keys
 * share their loads. Keys and values are rows of k and v (packed) or lie in blocks of TW_KV_BLOCK
 * tokens, laid out [nkv][K, V][TW_KV_BLOCK][hd] in the type of the activations.
 *
 * A call's sequences are uploaded as a table (struct cu_attn) that is kept while they stay the
 * same, as they do from layer to layer. Kernels take their work from lists in it, made so that the
 * long pieces start first and the pieces that run together find their keys in the L2 cache. */
#ifndef TW_ATTN_CUH
#define TW_ATTN_CUH
#include "cu.cuh"

#define BLK TW_KV_BLOCK
#define ITEM 128                /* keys of a work item, and the most rows of one: whole queries */
#define FEW_MAX 64              /* up to this many rows a sequence over blocks is of few rows, */
#define FEW_ROWS 16             /* which are taken by this many, */
#define FEW_KEYS 256            /* and their keys in splits of this many */
#define KEPT_ROWS 64            /* rows of a tile of dS that is kept, of ITEM keys: whole queries that fit */
#define KEPT_BYTES (ITEM * KEPT_ROWS * 2)
#define KEPT_TILES 2            /* that an item of dQ is of */

struct attn_seq {
    int32_t q0, nq, past;
    int32_t tab;                /* where its pointers begin in blk[]; -1: it has none */
    int32_t packed;             /* all its keys are rows of k: no past, or no blocks */
    int32_t part;               /* rows / group of the few-row sequences before it */
    int32_t pre, kept;          /* where its keys' tiles begin in pre[]; tiles of dS of each of its kv heads */
};

struct attn_tile {
    int32_t seq, kvh, r0, pad;
};

/* The parts of a table in device memory. */
struct attn_view {
    const struct attn_seq *seq;
    const struct attn_tile *rows, *keys;    /* work lists */
    const struct attn_tile *pairs;          /* of KEPT_TILES of dS; r0 is the first one's query */
    const int32_t *pre;         /* [keys / ITEM] of a sequence: which tile of dS is the first of these keys */
    char *const *blk;
};

/* What every kernel is told. off is this layer's part of a block, per the rows of a work item; div
 * is the magic of 1 / group. */
struct attn_arg {
    struct attn_view t;
    size_t off;
    int32_t nh, nkv, group, hd, window, per;
    uint32_t div;
    float scale;
    int64_t ldq, ldk, ldv, ldo, lddo, lddq, lddk, lddv;
    const void *q, *k, *v, *dout, *out;
    void *o, *dq, *dk, *dv;
    float *lse;
    float *delta;               /* [T * nh] rowsum(dO O) */
    char *ds;                   /* tiles of dS; NULL: it is not kept */
    float *part, *stat;         /* few rows: partial outputs [row][split][hd], (max, sum) */
    int32_t few0, splits;       /* the first of the few-row sequences; splits of the grid */
};

struct attn_part {              /* what comes in the lists before a group of pairs; its dS's first tile */
    int32_t keys, pairs;
    int64_t tiles;
};

struct attn_count {             /* of a table */
    int32_t rows, keys, pairs;  /* work items */
    const struct attn_part *part;       /* [parts + 1] groups of pairs of keys, pairs */
    int32_t parts;
    int64_t kept, room;         /* tiles of dS; that are taken at a time, 0: it is not kept */
    int32_t few, few_splits, few_tiles, few_most;   /* few-row sequences: how many; the most splits,
                                                     * row tiles and rows of one; */
    int32_t few_rows;                               /* rows / group of all */
    bool paged, packed;         /* there are such sequences in the work lists */
    int32_t longest;            /* the most queries of a sequence */
};

/* attn_table.cu: fills X and N for a call and brings the table up to date; FEW: sequences of few rows are kept
 * apart. False after noting why not. */
bool cu_attn_begin(struct cu_dev *d, struct attn_arg *x, struct attn_count *n, const struct tw_attn *a,
        bool few);
/* The most splits that a few-row sequence of the call that began last has. */
int32_t cu_attn_splits(const struct cu_dev *d, const struct tw_attn *a);
/* attn_wg.cu, attn_wg_bwd.cu: packed sequences on Hopper, what attn_mma.cu takes and heads of up to
 * 128; false: not these shapes, or not this GPU. */
bool cu_attn_wg(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *k, const struct tw_tensor *v);
bool cu_attn_wg_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_tensor *dout);          /* delta is there */
/* The same of keys and values that come of latents: queries of 192, values of 128, which lie behind their
 * keys' first 128 in kv; the other 64 are pe, of all heads. The backward leaves each head's part of pe's
 * gradient in dpe [T, nh, 64]. */
bool cu_attn_wg_latent(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe);
bool cu_attn_wg_latent_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe,
        const struct tw_tensor *dout, void *dpe);
/* attn.cu: a whole call of it. DOUT NULL: forward. False: nothing was done. */
struct attn_latent {
    const struct tw_tensor *o, *q, *kv, *pe, *dout, *dq, *dkv;
    float *lse;
    void *dpe;
};
bool cu_attn_latent(struct cu_dev *d, const struct attn_latent *l, const struct tw_attn *a);
/* attn_paged.cu: sequences over blocks in the bits of cu_attn_wg(). */
bool cu_attn_paged(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n);
/* attn_mma.cu, attn_bwd.cu, attn_few.cu: BF16, head sizes in eights up to 256. */
void cu_attn_mma(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n);
void cu_attn_mma_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n);
void cu_attn_few(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n);
/* Shared memory that the second and third need for heads of HD. */
size_t cu_attn_mma_bwd_smem(int64_t hd);
size_t cu_attn_few_smem(int64_t hd);
/* attn_simt.cu: any type and head size up to 256. */
void cu_attn_simt(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        enum tw_dtype t);
void cu_attn_simt_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        enum tw_dtype t);
void cu_attn_delta(struct cu_dev *d, const struct attn_arg *a, float *delta, int64_t T,
        enum tw_dtype t, bool fast);
void cu_kv_put(struct cu_dev *d, const struct attn_arg *a, int64_t nseq, int64_t longest,
        enum tw_dtype t);

#ifdef __CUDACC__
static __device__ __forceinline__ int row_query(const struct attn_arg &a, int r)
{
    return a.group == 1 ? r : __umulhi(r, a.div);
}

/* Where row r of (s, kvh) begins in a matrix of queries, in elements. */
static __device__ __forceinline__ int64_t row_at(const struct attn_arg &a, const attn_seq &s,
        int kvh, int r, int64_t ld)
{
    int i = row_query(a, r);

    return (int64_t)(s.q0 + i) * ld + (int64_t)(kvh * a.group + r - i * a.group) * a.hd;
}

/* And its place in lse and delta. */
static __device__ __forceinline__ int64_t row_stat(const struct attn_arg &a, const attn_seq &s,
        int kvh, int r)
{
    int i = row_query(a, r);

    return (int64_t)(s.q0 + i) * a.nh + kvh * a.group + r - i * a.group;
}

/* Key (V 0) or value (V 1) J of (s, kvh). */
template <typename A, int V, bool PAGED>
static __device__ __forceinline__ const A *key_at(const struct attn_arg &a, const attn_seq &s,
        int kvh, int j)
{
    if (!PAGED) {
        const A *x = (const A *)(V ? a.v : a.k);

        return x + (int64_t)(s.q0 + j) * (V ? a.ldv : a.ldk) + (int64_t)kvh * a.hd;
    }
    return (const A *)(a.t.blk[s.tab + j / BLK] + a.off) +
            ((int64_t)(kvh * 2 + V) * BLK + j % BLK) * a.hd;
}

static __device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes into shared memory; zeros when not USED. */
static __device__ __forceinline__ void cp16(uint32_t dst, const void *src, bool used)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src),
                 "r"(used ? 16 : 0));
}
static __device__ __forceinline__ void cp_commit()
{
    asm volatile("cp.async.commit_group;\n");
}
template <int N> static __device__ __forceinline__ void cp_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

/* Four 8x8 matrices of 16-bit elements; T: transposed. */
template <bool T>
static __device__ __forceinline__ void ldsm(uint32_t *r, uint32_t at)
{
    if (T)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

/* c[16, 8] += a[16, 16] b[16, 8] */
static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ float ex2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Tiles in shared memory are rows of HDP elements whose 16-byte chunks are permuted so that eight
 * rows of one column of chunks fall on all banks. */
template <int HDP> static __device__ __forceinline__ uint32_t swz(int row, int chunk)
{
    return (row * (HDP / 8) + (chunk ^ (row & 7))) * 16;
}

/* The fragments of a lane, from a tile at shared address X. A operand: rows r0 .. r0 + 15, columns
 * of k step K (a_frag), or columns r0 .. r0 + 15, rows of k step K (a_cols). B operand of two n
 * tiles: from rows n0 .. n0 + 15 at k step K (b_rows), or from rows of k step K at columns
 * n0 .. n0 + 15 (b_cols). */
template <int HDP>
static __device__ __forceinline__ void a_frag(uint32_t *r, uint32_t x, int r0, int k, int lane)
{
    ldsm<false>(r, x + swz<HDP>(r0 + (lane & 15), k * 2 + (lane >> 4)));
}
template <int HDP>
static __device__ __forceinline__ void a_cols(uint32_t *r, uint32_t x, int r0, int k, int lane)
{
    ldsm<true>(r, x + swz<HDP>(k * 16 + (lane >> 4) * 8 + (lane & 7), r0 / 8 + (lane >> 3 & 1)));
}
template <int HDP>
static __device__ __forceinline__ void b_rows(uint32_t *r, uint32_t x, int n0, int k, int lane)
{
    ldsm<false>(r, x + swz<HDP>(n0 + (lane >> 4) * 8 + (lane & 7), k * 2 + (lane >> 3 & 1)));
}
template <int HDP>
static __device__ __forceinline__ void b_cols(uint32_t *r, uint32_t x, int n0, int k, int lane)
{
    ldsm<true>(r, x + swz<HDP>(k * 16 + (lane & 15), n0 / 8 + (lane >> 4)));
}

/* Queues rows r0 .. r0 + N of (s, kvh) of a matrix of queries into a tile; zeros past ROWS. */
template <int HDP, int N, int NT>
static __device__ __forceinline__ void load_rows(const struct attn_arg &a, const attn_seq &s,
        int kvh, uint32_t dst, const void *src, int64_t ld, int r0, int rows)
{
    constexpr int C = HDP / 8;

#pragma unroll
    for (int i = threadIdx.x; i < N * C; i += NT) {
        int r = i / C, c = i % C;
        bool used = r0 + r < rows && c * 8 < a.hd;

        cp16(dst + swz<HDP>(r, c),
             (const bf16 *)src + (used ? row_at(a, s, kvh, r0 + r, ld) + c * 8 : 0), used);
    }
}

/* The same of keys (V 0) or values (V 1) j0 .. j0 + N; zeros from END on. */
template <int HDP, int N, int NT, int V, bool PAGED>
static __device__ __forceinline__ void load_keys(const struct attn_arg &a, const attn_seq &s,
        int kvh, uint32_t dst, int j0, int end)
{
    constexpr int C = HDP / 8;

#pragma unroll
    for (int i = threadIdx.x; i < N * C; i += NT) {
        int j = i / C, c = i % C;
        bool used = j0 + j < end && c * 8 < a.hd;

        cp16(dst + swz<HDP>(j, c),
             key_at<bf16, V, PAGED>(a, s, kvh, used ? j0 + j : 0) + (used ? c * 8 : 0), used);
    }
}

/* Lets a kernel have N bytes of shared memory; false: this GPU has less. */
template <typename K> static inline bool smem_want(struct cu_dev *d, K *kernel, size_t n)
{
    if (n > d->smem_max) {
        cu_fail(d, "attention with heads of this size needs %zu KiB of shared memory a block, and "
                "there are %zu: use --device cpu", n >> 10, d->smem_max >> 10);
        return false;
    }
    CU_TRY(d, cudaFuncSetAttribute((const void *)kernel,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n));
    return true;
}
#endif
#endif
