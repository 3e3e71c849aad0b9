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
};

struct few_arg {
    struct few_w m[3];
    const bf16 *x, *res;
    const float *norm;
    void *y;
    int64_t ldx, ldy, ldres;
    float eps;
    int32_t T, K, nm, groups, act;
    /* Adapters: h [T][nm][max_r] is there already. */
    const float *h;
    const struct tw_step_lora *lora;
    const int32_t *slot;
    int32_t nmodule, max_r;
};

/* Queues the product of at most STEP_FEW tokens; GLU and LOGITS have a norm. */
void cu_few(struct cu_dev *d, struct few_arg *a, enum few_mode mode);

#ifdef __CUDACC__
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
#endif
#endif
