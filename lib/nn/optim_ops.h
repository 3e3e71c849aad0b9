/* optim_ops.h - updates beside plain AdamW and SGD, each of which a device may lack (NULL). The rules of
 * ops.h hold; as there, nothing happens when *scale is NaN. */
#ifndef TW_OPTIM_OPS_H
#define TW_OPTIM_OPS_H
#include "base/err.h"
#include "nn/tensor.h"

struct tw_dev;

struct tw_adamw {
    float lr, beta1, beta2, eps, decay; /* decoupled: w -= lr * decay * w */
    float bias1, bias2;                 /* 1 - beta^t of this step */
};

struct tw_muon {
    float lr, momentum, decay;  /* decoupled: w -= lr * decay * w */
    float move;                 /* w -= move * O: the learning rate times what the shape asks for */
    bool nesterov;
    int steps;                  /* of Newton and Schulz */
    enum tw_dtype products;     /* BF16: inputs of products are rounded */
};

struct tw_muon_item {           /* a matrix (or several: its n), its gradient and its momentum */
    const struct tw_mat *w;
    const float *g;
    float *m;
};

/* One of many AdamW steps: N elements, and what is to be done with them. */
struct tw_adamw_item {
    float *w, *g, *m, *v;       /* (dev) */
    int64_t n;
    double *sum;                /* of pin() */
    double by;                  /* of clip(), as max; 0: 1 */
    float max;
    float scale;                /* what comes of them: the op's own */
    struct tw_adamw p;
};

/* Moments of N numbers in fewer bits; small_fn.h says what they are. */
enum tw_small_kind { TW_SMALL_F32, TW_SMALL_BF16, TW_SMALL_8BIT };
struct tw_small {
    enum tw_small_kind kind;
    void *m, *v;                /* (dev) [n] BF16, or codes of a byte */
    float *ms, *vs;             /* (dev) of codes: the scale of each 256 */
    uint64_t at;                /* place of the first number, a multiple of 4, and the step: what their */
    uint64_t step;              /* random bits are of */
};

struct tw_optim_ops {
    /* One step on each of N items (host), all of one shape and one type: w is F32, or BF16 with low;
     * ROWS: it lies row after row, else in the device's layout; g and m are as w's elements. With
     * d = g * *scale,
     *     m += (1 - momentum) (d - m);  u = nesterov ? m + (1 - momentum) (d - m) : m
     *     X = u / max(norm of u, 1e-7), then STEPS times with A = X X^T (or X^T X, the smaller):
     *     X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
     *     w = w (1 - lr decay) - move X */
    void (*muon)(struct tw_dev *d, const struct tw_muon_item *item, int64_t n, bool rows,
            const struct tw_muon *p, const float *scale);
    /* Memory that muon() takes for matrices of that shape, once for all of them. */
    size_t (*muon_scratch)(const struct tw_dev *d, int64_t rows, int64_t cols);

    /* Many steps in as many launches as one takes, or regions of threads: *sum of each item (host, there after
     * reach() of a later mark()) is the sum of squares of its gradient, as sumsq() makes it from zero; then
     * comes what clip() and adamw() do, and the gradient is zero. Where the sum is no number all of an item
     * stays as it is. Items (host) are apart from each other. NULL: there is no such op. */
    void (*adamw_many)(struct tw_dev *d, const struct tw_adamw_item *item, int64_t n);

    /* AdamW of N numbers with moments in fewer bits; LOW as in adamw_split(), or NULL. */
    void (*adamw_small)(struct tw_dev *d, void *w, uint16_t *low, const float *g, const struct tw_small *s,
            int64_t n, const struct tw_adamw *p, const float *scale);
    /* x = the first (SECOND: the second) moments; and back, each to the nearest. */
    void (*small_get)(struct tw_dev *d, float *x, const struct tw_small *s, bool second, int64_t n);
    void (*small_put)(struct tw_dev *d, const struct tw_small *s, bool second, const float *x, int64_t n);
};

#endif
