/* optim_ops.h - updates beside plain AdamW and SGD, which a device may lack. The rules of ops.h hold;
 * as there, nothing happens when *scale is NaN. */
#ifndef TW_OPTIM_OPS_H
#define TW_OPTIM_OPS_H
#include "base/err.h"
#include "nn/tensor.h"

struct tw_dev;

struct tw_muon {
    float lr, momentum, decay;  /* decoupled: w -= lr * decay * w */
    float move;                 /* w -= move * O: the learning rate times what the shape asks for */
    bool nesterov;
    int steps;                  /* of Newton and Schulz */
    enum tw_dtype products;     /* BF16: inputs of products are rounded */
};

struct tw_optim_ops {
    /* One step on the matrix W (each of its n by itself), F32, or BF16 with low; ROWS: it lies row
     * after row, else in the device's layout; g and m are as w's elements. With d = g * *scale,
     *     m += (1 - momentum) (d - m);  u = nesterov ? m + (1 - momentum) (d - m) : m
     *     X = u / max(norm of u, 1e-7), then STEPS times with A = X X^T (or X^T X, the smaller):
     *     X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
     *     w = w (1 - lr decay) - move X */
    void (*muon)(struct tw_dev *d, const struct tw_mat *w, bool rows, const float *g, float *m,
            const struct tw_muon *p, const float *scale);
    /* Memory that muon() takes for a matrix of that shape, once for all of them. */
    size_t (*muon_scratch)(const struct tw_dev *d, int64_t rows, int64_t cols);
};

#endif
