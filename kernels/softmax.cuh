/* softmax.cuh - log-probabilities, and the gradient of the logits in their place */
#ifndef TW_SOFTMAX_CUH
#define TW_SOFTMAX_CUH
#include "cu.cuh"

struct cu_soft {                /* one chunk; all [n] */
    const int32_t *target;
    const float *temp, *coef, *coef_mean;
    float *logp, *entropy, *mean;
};

/* Rows Z [n, V]; with coef the gradient is of type T, in the first bytes of each row. */
void cu_softmax(struct cu_dev *d, float *z, int64_t V, int64_t n, enum tw_dtype t, const struct cu_soft *q);

#endif
