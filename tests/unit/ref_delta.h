/* ref_delta.h - the readable reference of lib/nn/delta_ops.h, in double: one sequence, token by token */
#ifndef TW_REF_DELTA_H
#define TW_REF_DELTA_H
#include "nn/ops.h"

/* x, y [n, C], w [C, taps]. Backward of sum(dy * y): dx, dw overwritten. */
void ref_conv(double *y, const float *x, const float *w, int64_t n, int64_t C, int64_t taps);
void ref_conv_bwd(double *dx, double *dw, const float *dy, const float *x, const float *w, int64_t n,
        int64_t C, int64_t taps);

struct ref_delta {
    int64_t n, hk, hv, dk, dv;
    const float *qkv, *g, *beta;        /* [n, C], [n, hv] twice */
};
/* o [n, hv * dv]; the backward is of sum(dout * o). */
void ref_delta(double *o, const struct ref_delta *r);
void ref_delta_bwd(double *dqkv, double *dg, double *dbeta, const float *dout,
        const struct ref_delta *r);

#endif
