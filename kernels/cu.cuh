/* cu.cuh - what the files of libtw-cuda.so share: the device, its scratch memory, element types, and
 * small device functions. Activations are BF16 or F32 (a template parameter A of the kernels);
 * arithmetic is F32; sums never depend on the order in which blocks happen to run. */
#ifndef TW_CU_CUH
#define TW_CU_CUH
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
extern "C" {
#include "nn/ops.h"
}

typedef __nv_bfloat16 bf16;

/* Scratch blocks that grow to the largest need and stay. One use of each at a time: what an op puts
 * there is dead when the op has been queued and the next one writes it (one stream orders them). */
enum cu_scratch { CU_S_GEMM, CU_S_HEAD, CU_S_LORA, CU_S_ATTN, CU_S_PART, CU_S_SORT, CU_S_DELTA,
    CU_S_MUON, CU_NSCRATCH };

struct cu_buf {
    void *p;
    size_t n;
};

struct cu_gemm;                 /* gemm.cu: handles, plans by shape */
struct cu_attn;                 /* attn.cu: what attention keeps between calls */
struct cu_delta;                /* delta.cu: the same of recurrent layers */
struct cu_step;                 /* step.cu: records of decode steps */

enum { CU_MARKS = 16 };

struct cu_dev {
    struct tw_dev_head head;    /* first: this is a struct tw_dev */
    int index, sms, major, minor;
    double hz;                  /* the highest clock */
    size_t smem_max;            /* bytes of shared memory a block may have */
    cudaStream_t stream;        /* everything is queued here, in order */
    struct tw_err err;          /* the first failure */
    struct cu_buf scratch[CU_NSCRATCH];
    size_t head_held;           /* of CU_S_HEAD, in the hands of who calls another op now */
    bool whole;                 /* a row's bits are not to depend on how many there are */
    struct cu_gemm *gemm;
    struct cu_attn *attn, *attn_of[2];  /* of the call at hand: over blocks, layers with a window have
                                 * one of their own (1), for theirs are other blocks */
    struct cu_delta *delta;
    struct cu_step *step;
    char *ring;                 /* pinned host memory for uploads, used round and round */
    size_t ring_at;
    cudaEvent_t ring_done[2];   /* the uploads out of each half have been made */
    int64_t marks;              /* there have been so many; the last ones: */
    cudaEvent_t mark[CU_MARKS];
};

static inline struct cu_dev *cu(struct tw_dev *d)
{
    return (struct cu_dev *)d;
}

/* Notes a failure of call WHAT as the device's error when it is the first. */
void cu_note(struct cu_dev *d, cudaError_t e, const char *what);
void cu_fail(struct cu_dev *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define CU_TRY(d, call) cu_note((d), (call), #call)
/* After a kernel's launch. */
#define CU_DONE(d, what) cu_note((d), cudaGetLastError(), (what))

/* N bytes of scratch KIND; NULL after noting that there is no memory. */
void *cu_scratch(struct cu_dev *d, enum cu_scratch kind, size_t n);
/* Queues a copy of N host bytes to device memory DST without waiting; HOST may be reused at once. */
void cu_upload(struct cu_dev *d, void *dst, const void *host, size_t n);

/* Products of row-major matrices by cuBLASLt, accumulated in F32. ct is the type of c.
 *   cu_nt: c[m, n] = a[m, k] b[n, k]^T + beta c0    (y = x W^T)
 *   cu_nn: c[m, n] = a[m, k] b[k, n]   + beta c0    (dx = dy W)
 *   cu_tn: c[m, n] = a[k, m]^T b[k, n] + beta c0    (dW = dy^T x)
 * a and b have type t; ld in elements; c0 may be c. Of a batch: that many products of matrices sa, sb
 * and sc (c and c0) elements apart. */
struct cu_mm {
    int64_t m, n, k;
    const void *a, *b, *c0;
    void *c;
    int64_t lda, ldb, ldc;
    enum tw_dtype t, ct;
    float alpha, beta;
    int64_t batch, sa, sb, sc;  /* 0: one */
    int64_t ldc0;               /* 0: ldc */
};
void cu_nt(struct cu_dev *d, const struct cu_mm *p);
void cu_nn(struct cu_dev *d, const struct cu_mm *p);
void cu_tn(struct cu_dev *d, const struct cu_mm *p);
/* linear() and linear_dx() over MORE columns behind x's (dy's) and behind (below) w's: see
 * struct tw_mat. */
void cu_linear(struct cu_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, int64_t more, const float *bias, const struct tw_tensor *res);
void cu_linear_dx(struct cu_dev *d, struct tw_tensor *dx, bool add, const struct tw_tensor *dy,
        const struct tw_mat *w, int64_t more);
/* Elements from a row of a matrix to the next. */
static inline int64_t cu_ld(const struct tw_mat *w)
{
    return w->cols + w->ext;
}
/* chain.cu: cu_nt() of BF16 in one ascending chain over k for any number of rows, for products that are not so
 * large; false: not these. */
bool cu_chain(struct cu_dev *d, const struct cu_mm *p);
bool cu_gemm_open(struct cu_dev *d);
void cu_gemm_close(struct cu_dev *d);

/* elem.cu */
void cu_elem_ops(struct tw_ops *o);
/* mat.cu */
void cu_mat_ops(struct tw_ops *o);
/* norm.cu */
void cu_norm_ops(struct tw_ops *o);
/* gemm.cu */
void cu_linear_ops(struct tw_ops *o);
/* lora.cu */
void cu_lora_ops(struct tw_ops *o);
/* lora_wide.cu */
void cu_lora_wide_ops(struct tw_ops *o);
/* head.cu */
void cu_head_ops(struct tw_ops *o);
/* The logits of rows row[i] (host) of h, to z (dev) [n, V]. */
void cu_logits(struct cu_dev *d, float *z, const struct tw_tensor *h, const int32_t *row, int64_t n,
        const struct tw_mat *w);
/* Says the log-probabilities of N choices from their logits anew, by the kernel that head() has; ROOM: (dev)
 * of 12 bytes a row. */
void cu_report(struct cu_dev *d, float *z, int64_t V, struct tw_choice *choice, int64_t n, char *room);
/* optim.cu */
void cu_optim_ops(struct tw_ops *o);
/* small.cu */
void cu_adamw_small(struct tw_dev *dev, void *w, uint16_t *low, const float *g, const struct tw_small *s,
        int64_t n, const struct tw_adamw *p, const float *scale);
void cu_small_get(struct tw_dev *dev, float *x, const struct tw_small *s, bool second, int64_t n);
void cu_small_put(struct tw_dev *dev, const struct tw_small *s, bool second, const float *x, int64_t n);
/* muon.cu */
size_t cu_muon_scratch(const struct tw_dev *dev, int64_t rows, int64_t cols);
void cu_muon(struct tw_dev *dev, const struct tw_muon_item *item, int64_t n, bool rows,
        const struct tw_muon *p, const float *scale);
/* attn_wg.cu: whether kernels of Hopper's own instructions were compiled for the GPU that is there. */
bool cu_attn_wg_real(void);
/* attn.cu: attn, attn_bwd, kv_bytes, kv_put */
void cu_attn_ops(struct tw_ops *o);
void cu_attn_close(struct cu_dev *d);
/* step.cu: choose, step; for Hopper and later */
void cu_step_ops(struct tw_ops *o);
void cu_step_close(struct cu_dev *d);

static inline int64_t cu_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#ifdef __CUDACC__
static __device__ __forceinline__ float ld1(const float *p) { return *p; }
static __device__ __forceinline__ float ld1(const bf16 *p) { return __bfloat162float(*p); }
static __device__ __forceinline__ void st1(float *p, float x) { *p = x; }
static __device__ __forceinline__ void st1(bf16 *p, float x) { *p = __float2bfloat16_rn(x); }

/* Masters that are split: struct tw_mat's low. */
static __device__ __forceinline__ float join(uint32_t hi, uint32_t low)
{
    return __uint_as_float((hi << 16) + (uint32_t)(int32_t)(int16_t)low);
}
static __device__ __forceinline__ void split(float f, uint32_t &hi, uint32_t &low)
{
    uint32_t u = __float_as_uint(f);

    hi = (u + 0x8000u) >> 16;
    low = u & 0xffff;
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);

    return *(uint32_t *)&x;
}

/* Sums over a warp and over a block of whole warps, in a fixed order; every thread gets the sum. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}
static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
static __device__ __forceinline__ float block_sum(float x)
{
    __shared__ float part[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    x = warp_sum(x);
    __syncthreads();
    if (!lane)
        part[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / 32 ? part[lane] : 0;
    return warp_sum(x);
}
static __device__ __forceinline__ float block_max(float x)
{
    __shared__ float part[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    x = warp_max(x);
    __syncthreads();
    if (!lane)
        part[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / 32 ? part[lane] : -INFINITY;
    return warp_max(x);
}

/* V = 8 elements at once by 16-byte accesses (aligned), or V = 1. */
template <int V> static __device__ __forceinline__ void ldv(float (&v)[V], const float *p)
{
    if constexpr (V == 8) {
        float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];

        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        v[0] = *p;
    }
}
template <int V> static __device__ __forceinline__ void ldv(float (&v)[V], const bf16 *p)
{
    if constexpr (V == 8) {
        uint4 u = *(const uint4 *)p;
        uint32_t w[4] = { u.x, u.y, u.z, u.w };

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    } else {
        v[0] = __bfloat162float(*p);
    }
}
template <int V> static __device__ __forceinline__ void stv(float *p, const float (&v)[V])
{
    if constexpr (V == 8) {
        ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        *p = v[0];
    }
}
template <int V> static __device__ __forceinline__ void stv(bf16 *p, const float (&v)[V])
{
    if constexpr (V == 8) {
        uint32_t w[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 h = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);

            w[i] = *(uint32_t *)&h;
        }
        *(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
    } else {
        *p = __float2bfloat16_rn(v[0]);
    }
}

/* Calls KERNEL<A> by the type of a tensor. */
#define CU_ACT(dtype, ...)                                                                         \
    do {                                                                                           \
        if ((dtype) == TW_BF16) { using A = bf16; __VA_ARGS__; }                                   \
        else { using A = float; __VA_ARGS__; }                                                     \
    } while (0)
/* Whether rows of COLS elements from these can be read eight at a time. */
static inline bool cu_vec8(const struct tw_tensor *t, int64_t cols)
{
    return (uintptr_t)t->data % 16 == 0 && t->ld % 8 == 0 && cols % 8 == 0;
}
/* Calls with V = 8 or 1. */
#define CU_VEC(eight, ...)                                                                         \
    do {                                                                                           \
        if (eight) { constexpr int V = 8; __VA_ARGS__; }                                           \
        else { constexpr int V = 1; __VA_ARGS__; }                                                 \
    } while (0)
#endif
#endif
