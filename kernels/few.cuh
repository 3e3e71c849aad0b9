/* few.cuh - a product of few tokens, as its kernels (few.cu) and those who ask for it
 * (step_lin.cu) see it */
#ifndef TW_FEW_CUH
#define TW_FEW_CUH
#include "step.cuh"

enum few_mode { PLAIN, LOGITS, GLU };
enum { WARPS = 8, SEG = 32 };

struct few_w {
    const bf16 *w;
    const float *bias;
    int32_t rows, module, group0, y0;   /* its first group of rows; its first column of y */
    int32_t ld, pad;            /* elements from a row of w to the next */
};
enum { FEW_W = 4 };             /* matrices of a product */

struct few_arg {
    struct few_w m[FEW_W];
    const bf16 *x, *res;
    const float *norm;
    void *y;
    int64_t ldx, ldy, ldres;
    float eps, off;             /* off: added to the norm's weights */
    int32_t T, K, nm, groups, act;
    /* Adapters: h [T][nm][max_r] is there already. */
    const float *h;
    const struct tw_step_lora *lora;
    const int32_t *slot;
    int32_t nmodule, max_r;
};

/* Queues the product of at most STEP_FEW tokens; GLU and LOGITS have a norm. */
void cu_few(struct cu_dev *d, struct few_arg *a, enum few_mode mode);
/* step_hold.cu, step_ring.cu: the same bits, on Hopper; rings for few of them. False: nothing was done. */
bool cu_few_hold(struct cu_dev *d, const struct few_arg *a, enum few_mode mode);
bool cu_few_ring(struct cu_dev *d, const struct few_arg *a, enum few_mode mode);
/* step_some.cu: the product of 17 to 64 tokens on Hopper, which are normalised already, without adapters:
 * a->norm and a->h are not looked at. False: nothing was done. */
bool cu_some(struct cu_dev *d, const struct few_arg *a, enum few_mode mode);

#ifdef __CUDACC__
/* Sixteen bytes that are read once. Not as what nobody writes (.nc): the assembler moves step_wait() in front
 * of such loads, and then weights are asked for when the kernel before has ended. */
static __device__ __forceinline__ uint4 ld_once(const bf16 *p)
{
    uint4 u;

    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w) : "l"(p));
    return u;
}

/* c[16, 8] += a[16, 16] b[16, 8] */
static __device__ __forceinline__ void few_mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2,
        uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ float gate_act(float x, int act)
{
    if (act == TW_SILU)
        return x / (1 + __expf(-x));
    return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

static __device__ __forceinline__ float round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* What adapters add to output ROW of matrix I for a token. */
static __device__ __forceinline__ float adapted(const few_arg &a, int token, int i, int row)
{
    int slot = a.slot[token];
    float sum = 0;

    if (slot < 0 || a.m[i].module < 0)
        return 0;
    tw_step_lora l = a.lora[(int64_t)slot * a.nmodule + a.m[i].module];
    const float *h = a.h + ((int64_t)token * a.nm + i) * a.max_r, *b = l.b + (int64_t)row * l.r;

    if (l.r % 4 == 0)
        for (int r = 0; r < l.r; r += 4) {
            float4 p = *(const float4 *)(h + r), q = *(const float4 *)(b + r);

            sum = fmaf(p.x, q.x, fmaf(p.y, q.y, fmaf(p.z, q.z, fmaf(p.w, q.w, sum))));
        }
    else
        for (int r = 0; r < l.r; r++)
            sum = fmaf(h[r], b[r], sum);
    return l.scale * sum;
}

/* Eight elements of a token by the norm's weights; their squares are added to *sum. */
static __device__ __forceinline__ uint4 normed(uint4 u, const float (&k)[8], float off, float *sum)
{
    uint32_t w[4] = { u.x, u.y, u.z, u.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float lo = __uint_as_float(w[i] << 16), hi = __uint_as_float(w[i] & 0xffff0000u);
        __nv_bfloat162 p;

        *sum = fmaf(lo, lo, *sum);
        *sum = fmaf(hi, hi, *sum);
        p = __floats2bfloat162_rn(lo * (k[2 * i] + off), hi * (k[2 * i + 1] + off));
        w[i] = *(uint32_t *)&p;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* An output of matrix M: its sum (with GLU, up's beside it) by the norm's factor R of the token, with
 * bias, what adapters add, and residual. */
template <int MODE> static __device__ __forceinline__ void put_sum(const few_arg &a, int token, int m,
        int row, float sum, float up, float r, float res)
{
    const few_w &w = a.m[m];
    float v = sum * r + (w.bias ? w.bias[row] : 0);

    if (MODE == LOGITS) {
        ((float *)a.y)[token * a.ldy + row] = v;
        return;
    }
    if (a.h)
        v += adapted(a, token, m, row);
    if (MODE == GLU) {
        up = up * r + (a.m[1].bias ? a.m[1].bias[row] : 0);
        if (a.h)
            up += adapted(a, token, 1, row);
        v = gate_act(round_bf16(v), a.act) * round_bf16(up);
    }
    ((bf16 *)a.y)[token * a.ldy + w.y0 + row] = __float2bfloat16_rn(v + res);
}
#endif
#endif
