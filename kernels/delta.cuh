/* delta.cuh - what the files of recurrent layers share.
 *
 * A call's sequences are cut into chunks of CH tokens, whose ends fall on multiples of CH counted from
 * a sequence's first token. With raw q and k (rq and rk are what normalises them, 1 / sqrt(dk) in rq),
 * a = e^G, G the sum of g from the chunk's start, e = e^(G_end - G), Gij = e^(Gi - Gj) for j <= i, the
 * form of nn/delta_ops.h becomes products of what lies in memory, with numbers for rows between them:
 *     T = (I + strictlower(beta_i Gij rk_i rk_j (k_i . k_j)))^-1                      inverse
 *     E = T diag(beta) (V - diag(a rk) K S)                                           state
 *     S <- a_end S + K^T diag(rk e) E                                                 state
 *     O = diag(a rq) Q S + lower(Gij rq_i rk_j (q_i . k_j)) E                         out
 * "inverse" and "out" take chunks in any order; "state" goes from chunk to chunk, a block having some
 * columns of S of one head of one sequence, which do not touch the others. It leaves S at every chunk's
 * start. The backward makes T again, then
 *     dE0 = P^T dO                          any order (P is what O multiplies E with)
 *     X = T^T (dE0 + diag(rk e) K dS)       from the last chunk to the first; dS behind the chunk
 *     dS <- a_end dS + Q^T diag(a rq) dO - K^T diag(beta a rk) X
 * and the gradients of a chunk follow from S, dS and X in any order (delta_grad.cu).
 *
 * In BF16 products are mma.sync with F32 sums, chunks have 64 tokens, and T, E, S and dS are rounded to
 * BF16 where they enter products; the state itself stays F32. In F32 everything is F32 multiply-adds,
 * and chunks have 32 tokens, so that the tiles fit into shared memory. */
#ifndef TW_DELTA_CUH
#define TW_DELTA_CUH
#include "attn.cuh"

#define DL_MOST 128             /* sizes of heads */
#define DL_THREADS 256
#define DL_FEW 8                /* sequences of a call that are no longer go token by token */

struct dl_seq {
    int32_t t0, n, past;
    int32_t c0, nc;             /* its chunks */
    int32_t mark0, nmark, pad;
    char *state;
};

struct dl_mark {
    char *state;
    int32_t at;                 /* tokens of the call */
    int32_t seq;
};

struct dl_chunk {
    int32_t t, m;               /* first row; rows */
    int32_t seq;
    int32_t at;                 /* of the first row in the call's part of the sequence */
};

enum { DL_G, DL_BETA, DL_RK, DL_RQ, DL_A, DL_E, DL_NUMS };     /* numbers of a chunk's rows */

/* What every kernel is told; the tables are in device memory. Scratch that is not S of a chunk is
 * [chunk or row][hv][..], heads padded to the D of the kernels. */
struct dl_arg {
    const dl_seq *seq;
    const dl_mark *mark;
    const dl_chunk *chunk;
    int32_t nseq, nmark, nchunk, len;       /* len: the most rows of a chunk */
    int32_t hk, hv, dk, dv, taps, most;     /* most: the most rows of a sequence */
    int32_t vec, pair;          /* qkv and dout can be read by 16 bytes; o, dqkv written by pairs */
    int64_t C, offset, s_at;    /* columns; the layer's part of a state, and S behind the window */
    const void *qkv, *dout;
    const float *g, *beta;
    void *o, *dqkv;
    float *dg, *dbeta;
    int64_t ldx, ldg, ldb, ldo, lddo, lddx, lddg, lddb;
    float *num;                 /* [chunk][hv][DL_NUMS][CH] */
    void *t, *s, *e;            /* T [chunk][hv][CH][CH]; S [chunk][hv][D][D]; E, or dE0 and then X
                                 * [row][hv][D] */
    void *ds;                   /* as s: dS behind the chunk */
};

/* delta.cu: the sequences of S as tables, on the device until another call has others; what of A
 * follows from S and the type of X. False: it failed, or heads are too large. */
bool cu_delta_tables(struct cu_dev *d, dl_arg *a, const struct tw_delta *s, const struct tw_tensor *x);
/* delta_conv.cu */
size_t cu_delta_window(const struct tw_delta *s, enum tw_dtype act);
void cu_delta_conv(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *w,
        const struct tw_delta *s);
void cu_delta_conv_bwd(struct tw_dev *d, struct tw_tensor *dx, float *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const float *w, const struct tw_delta *s);
/* delta_gate.cu */
void cu_delta_gate_ops(struct tw_delta_ops *o);
/* delta_fwd.cu, delta_bwd.cu, delta_grad.cu, delta_step.cu: one call each, scratch is there. */
bool cu_delta_inverse(struct cu_dev *d, const dl_arg *a, enum tw_dtype t);
bool cu_delta_forward(struct cu_dev *d, const dl_arg *a, enum tw_dtype t);
bool cu_delta_backward(struct cu_dev *d, const dl_arg *a, enum tw_dtype t);
bool cu_delta_grads(struct cu_dev *d, const dl_arg *a, enum tw_dtype t);
void cu_delta_tokens(struct cu_dev *d, const dl_arg *a, enum tw_dtype t);
void cu_delta_decode(struct tw_dev *d, struct tw_tensor *y, const struct tw_delta_step *in,
        const struct tw_delta *s);
/* delta.cu: the table */
void cu_delta_ops(struct tw_ops *o);
void cu_delta_close(struct cu_dev *d);

#ifdef __CUDACC__
/* Sizes that follow from the type. Tiles in shared memory are rows of W elements and PAD more, so that
 * eight rows of one column of 16-byte words fall on all banks. The eight warps stand in RG groups for
 * 16 rows each, CG for columns. */
template <typename E> struct dl {
    static constexpr bool low = sizeof(E) == 2;
    static constexpr int CH = low ? 64 : 32, PAD = low ? 8 : 4, V = 16 / sizeof(E);
    static constexpr int RG = CH / 16, CG = 8 / RG;
};

static __device__ __forceinline__ void st2(float *p, float u, float v)
{
    *(float2 *)p = make_float2(u, v);
}
static __device__ __forceinline__ void st2(bf16 *p, float u, float v)
{
    *(uint32_t *)p = pack2(u, v);
}
static __device__ __forceinline__ float2 ld2(const float *p) { return *(const float2 *)p; }
static __device__ __forceinline__ float2 ld2(const bf16 *p)
{
    uint32_t u = *(const uint32_t *)p;

    return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
}

/* c[16, NT * 8] += A B over K: A(i, k) is a[(r0 + i) * lda + k], or a[k * lda + r0 + i] when AT;
 * B(k, j) is b[(n0 + j) * ldb + k], or b[k * ldb + n0 + j] when BT. A lane has of tile n the rows
 * lane / 4 and that + 8, columns n * 8 + lane % 4 * 2 and the next. All in shared memory. */
template <int NT, bool AT, bool BT>
static __device__ __forceinline__ void mm(float (*c)[4], const bf16 *a, int lda, int r0, const bf16 *b,
        int ldb, int n0, int K)
{
    const int lane = threadIdx.x % 32;
    uint32_t x = smem_at(a), y = smem_at(b);

    static_assert(NT % 2 == 0, "tiles come in pairs");
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[4], fb[4];

        if (AT)
            ldsm<true>(fa, x + ((k + (lane >> 4) * 8 + (lane & 7)) * lda + r0 + (lane >> 3 & 1) * 8) * 2);
        else
            ldsm<false>(fa, x + ((r0 + (lane & 15)) * lda + k + (lane >> 4) * 8) * 2);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            if (BT)
                ldsm<true>(fb, y + ((k + (lane & 15)) * ldb + n0 + n * 8 + (lane >> 4) * 8) * 2);
            else
                ldsm<false>(fb, y + ((n0 + n * 8 + (lane >> 4) * 8 + (lane & 7)) * ldb + k +
                        (lane >> 3 & 1) * 8) * 2);
            mma(c[n], fa, fb[0], fb[1]);
            mma(c[n + 1], fa, fb[2], fb[3]);
        }
    }
}
template <int NT, bool AT, bool BT>
static __device__ __forceinline__ void mm(float (*c)[4], const float *a, int lda, int r0, const float *b,
        int ldb, int n0, int K)
{
    const int row = r0 + threadIdx.x % 32 / 4, col = n0 + threadIdx.x % 4 * 2;

    for (int k = 0; k < K; k++) {
        float u = AT ? a[k * lda + row] : a[row * lda + k];
        float v = AT ? a[k * lda + row + 8] : a[(row + 8) * lda + k];

#pragma unroll
        for (int n = 0; n < NT; n++) {
            float p = BT ? b[k * ldb + col + n * 8] : b[(col + n * 8) * ldb + k];
            float q = BT ? b[k * ldb + col + n * 8 + 1] : b[(col + n * 8 + 1) * ldb + k];

            c[n][0] = fmaf(u, p, c[n][0]);
            c[n][1] = fmaf(u, q, c[n][1]);
            c[n][2] = fmaf(v, p, c[n][2]);
            c[n][3] = fmaf(v, q, c[n][3]);
        }
    }
}

/* Goes over a lane's pairs of a warp's part from row r0, column n0: i and j are row and column of the
 * pair u, w. */
#define DL_PAIRS(NT, c, r0, n0, ...)                                                               \
    do {                                                                                           \
        _Pragma("unroll") for (int n_ = 0; n_ < (NT); n_++)                                        \
            _Pragma("unroll") for (int h_ = 0; h_ < 2; h_++) {                                     \
                [[maybe_unused]] const int i = (r0) + (int)threadIdx.x % 32 / 4 + h_ * 8;          \
                [[maybe_unused]] const int j = (n0) + n_ * 8 + (int)threadIdx.x % 4 * 2;           \
                [[maybe_unused]] float &u = (c)[n_][h_ * 2], &w = (c)[n_][h_ * 2 + 1];             \
                __VA_ARGS__                                                                        \
            }                                                                                      \
    } while (0)

template <int NT> static __device__ __forceinline__ void clear(float (*c)[4])
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int h = 0; h < 4; h++)
            c[n][h] = 0;
}

/* Queues a tile of ROWS rows of W elements, of which SRC has M rows of COLS; zeros elsewhere. VEC: by 16
 * bytes; else it is there after the next barrier. By a block of THREADS. */
template <typename E, int W, int THREADS = DL_THREADS>
static __device__ __forceinline__ void load(E *dst, const E *src, int64_t ld, int rows, int m, int cols,
        bool vec)
{
    constexpr int V = dl<E>::V, LD = W + dl<E>::PAD;

    if (vec) {
        for (int x = threadIdx.x; x < rows * (W / V); x += THREADS) {
            int r = x / (W / V), c = x % (W / V) * V;
            bool used = r < m && c < cols;

            cp16(smem_at(dst + r * LD + c), used ? src + r * ld + c : src, used);
        }
        return;
    }
    for (int x = threadIdx.x; x < rows * W; x += THREADS) {
        int r = x / W, c = x % W;

        st1(dst + r * LD + c, r < m && c < cols ? ld1(src + r * ld + c) : 0.0f);
    }
}

/* The numbers of a chunk's rows. */
template <typename E>
static __device__ __forceinline__ void load_nums(float *dst, const dl_arg &a, int chunk, int h)
{
    constexpr int N = DL_NUMS * dl<E>::CH;
    const float *src = a.num + ((int64_t)chunk * a.hv + h) * N;

    for (int x = threadIdx.x * 4; x < N; x += DL_THREADS * 4)
        cp16(smem_at(dst + x), src + x, true);
}

/* The q (K 0) or k (K 1) of value head h, or of q head h; and the values. */
template <typename E>
static __device__ __forceinline__ const E *dl_qk(const dl_arg &a, int64_t t, int kh, int K)
{
    return (const E *)a.qkv + t * a.ldx + (int64_t)(K * a.hk + kh) * a.dk;
}
template <typename E>
static __device__ __forceinline__ const E *dl_v(const dl_arg &a, int64_t t, int h)
{
    return (const E *)a.qkv + t * a.ldx + (int64_t)2 * a.hk * a.dk + (int64_t)h * a.dv;
}

/* Two elements of a row of which COLS exist, at column j. */
template <typename E>
static __device__ __forceinline__ void put2(E *row, int j, int cols, bool vec, float u, float v)
{
    if (vec && j + 1 < cols) {
        st2(row + j, u, v);
        return;
    }
    if (j < cols)
        st1(row + j, u);
    if (j + 1 < cols)
        st1(row + j + 1, v);
}
template <typename E>
static __device__ __forceinline__ float2 get2(const E *row, int j, int cols, bool vec)
{
    if (vec && j + 1 < cols)
        return ld2(row + j);
    return make_float2(j < cols ? ld1(row + j) : 0, j + 1 < cols ? ld1(row + j + 1) : 0);
}

/* P of a chunk and its products qk = Q K^T, a warp's part, into a tile of rows of LC. */
template <typename E, int M, int LC>
static __device__ __forceinline__ void probs(E *sp, float (*qk)[4], const float *num, int r0, int n0)
{
    constexpr int CH = dl<E>::CH;
    const float *G = num + DL_G * CH, *rk = num + DL_RK * CH;

    DL_PAIRS(M, qk, r0, n0, {
        float f = num[DL_RQ * CH + i], g = G[i];

        st2(sp + i * LC + j, j <= i ? f * rk[j] * expf(g - G[j]) * u : 0,
            j < i ? f * rk[j + 1] * expf(g - G[j + 1]) * w : 0);
    });
}

/* Lets a kernel have N bytes of shared memory; false: this GPU has less. */
template <typename K> static inline bool dl_smem(struct cu_dev *d, K *kernel, size_t n)
{
    if (n > d->smem_max) {
        cu_fail(d, "recurrent layers with heads of this size need %zu KiB of shared memory a block, "
                "and there are %zu: use --device cpu", n >> 10, d->smem_max >> 10);
        return false;
    }
    CU_TRY(d, cudaFuncSetAttribute((const void *)kernel,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n));
    return true;
}

/* Calls with E and D by the type and the larger size of a head. */
#define DL_BY(t, a, ...)                                                                           \
    do {                                                                                           \
        bool small_ = (a)->dk <= 64 && (a)->dv <= 64;                                              \
        if ((t) == TW_BF16 && small_) { using E = bf16; constexpr int D = 64; __VA_ARGS__; }       \
        else if ((t) == TW_BF16) { using E = bf16; constexpr int D = 128; __VA_ARGS__; }           \
        else if (small_) { using E = float; constexpr int D = 64; __VA_ARGS__; }                   \
        else { using E = float; constexpr int D = 128; __VA_ARGS__; }                              \
    } while (0)
#endif
#endif
