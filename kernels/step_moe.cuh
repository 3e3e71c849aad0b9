/* step_moe.cuh - experts of a decode step, as its files see them */
#ifndef TW_STEP_MOE_CUH
#define TW_STEP_MOE_CUH
#include "few.cuh"

struct moe_arg {
    struct tw_route r;
    const bf16 *x, *shared, *gate;
    const float *norm, *router;
    const bf16 *gate_up, *down;
    int64_t ldx, lds, ldg, ldr, ldgu, lddn, step_gu, step_dn;
    float eps, off;
    int32_t T, D, I, act;
    const int32_t *pos;         /* -1: no row */
    bf16 *to;                   /* the residual stream */
    bf16 *xn, *h, *z;           /* [T, D], [T * K, I], [T * K, D] */
    float *logits, *weight;     /* [T, E], [T, K] */
    int32_t *ticket, *nact, *active, *start, *choice, *pair, *place, *done;
    int32_t *front, *leave;     /* step_experts.cu: logits that are there; blocks that are through */
};

/* The same bits by kernels that stay, on Hopper; false: nothing was done. step_experts.cu: gate, up and down
 * of all active experts. step_experts_few.cu: of few tokens all, the router's choice and the sum, too. */
bool cu_step_experts(struct cu_dev *d, const struct moe_arg *a);
bool cu_step_experts_few(struct cu_dev *d, const struct moe_arg *a);
#endif
