/* ops.h - struct tw_ops, the only seam between models and devices. CPU is built in (lib/nn/cpu),
 * libtw-cuda.so returns the same table, and the counting device (count.c) only adds up bytes and
 * FLOPs. tests/unit/ref.c is the readable reference that every op of every device must match.
 *
 * Rules that hold for every op:
 * - All pointers inside tensors, matrices and arrays marked (dev) are device memory; structs and
 *   arrays marked (host) are host memory and may be reused as soon as the call returns.
 * - Ops are queued in order and do not report errors; the first failure sticks to the device and
 *   sync() returns it.
 * - Outputs are overwritten unless the text says "adds". Outputs never alias inputs unless said so.
 * - Order of sums: every output of a product is one ascending chain of fused multiply-adds over the
 *   summed index (k, or token for weight gradients) that starts from zero, or for an op that "adds
 *   in a chain" from what is there; then bias, then residual are added, each rounded once. BF16
 *   matrices on the CPU: inputs are rounded to bf16 (nearest even) and the chain runs over pairs of
 *   k as vdpbf16ps does. So a row of an output depends on nothing but its own row of inputs: not on
 *   the rows beside it, on T, on the number of threads, or on how tokens are cut into batches.
 *   CPUs with a tile unit take F32 numbers apart into three bf16 (amx_f32.c), and the chain runs over
 *   32 k, or 32 tokens of one sequence, at a time: what is added for those is a sum of its own.
 * - After begin() said that products are BF16, weight gradients and everything of LoRA are such
 *   products too. A chain over tokens then is what it says token by token with vdpbf16ps (the token
 *   that comes first is the half that is added first, half a pair is completed by a product of -0);
 *   AMX adds 32 tokens of one sequence at a time, in F32 as well, counted from the sequence's start: a
 *   sequence that is cut between two calls must be cut at a multiple of 32.
 */
#ifndef TW_OPS_H
#define TW_OPS_H
#include "base/err.h"
#include "nn/delta_ops.h"
#include "nn/mla_ops.h"
#include "nn/moe_ops.h"
#include "nn/optim_ops.h"
#include "nn/step_ops.h"
#include "nn/tensor.h"

struct tw_dev;                  /* each device begins its own struct with struct tw_dev_head */

/* One run of consecutive tokens [t0, t1) that use one adapter at one module. Runs of a call are
 * ascending and disjoint; tokens in none have no adapter. */
struct tw_lora_run {
    int64_t t0, t1;
    const float *a;             /* (dev) [r, in] row-major */
    const float *b;             /* (dev) [out, r] row-major */
    float *da, *db;             /* (dev) gradients of the same shapes; NULL: not trained */
    int64_t r;
    float scale;
    float drop;                 /* dropout on the input of A, 0: none */
    int64_t slot;               /* lora_wide: its first column among those of all adapters */
};

/* Dropout: feature k of token t is dropped at module m iff u < drop, where u is 24 high bits of word
 * k % 4 of philox(key = drop_key[t], counter = {k / 4, m, 0, 0}) as a fraction; kept values are
 * scaled by 1 / (1 - drop). */
struct tw_lora_ctx {
    const struct tw_lora_run *run;  /* (host) */
    int64_t nrun;
    const uint64_t *drop_key;       /* (dev) [T], NULL: no dropout */
    uint32_t module;
    int64_t ranks, at;              /* lora_wide: columns of all adapters; where those of the first
                                     * product begin behind x */
};

/* One of several products with LoRA that have one input. */
struct tw_lora_one {
    struct tw_tensor *y, *h;        /* backward: y is dy, overwritten by nobody */
    struct tw_tensor *scratch;      /* backward only */
    const struct tw_mat *w;
    const float *bias;
    const struct tw_lora_ctx *c;
    const struct tw_tensor *res;    /* lora_wide, N 1: as linear()'s */
};

/* Tokens whose keys and values the device keeps in one block of a decode state. */
#define TW_KV_BLOCK 32

/* One sequence of an attention call: its queries are rows [q0, q0 + nq). With block == NULL its keys
 * and values are the same rows of k and v and past is 0. Otherwise positions [0, past + nq) are in
 * the decode state: position p in block[p / TW_KV_BLOCK] (dev), at byte `offset` (this layer's part)
 * in the device's own layout; kv_put() has stored the new ones. */
struct tw_attn_seq {
    int64_t q0, nq, past;
    void *const *block;         /* (host) array of device pointers */
    size_t offset;
};

struct tw_attn {
    int64_t nh, nkv, hd;        /* query heads, key/value heads, head size; query head h reads h*nkv/nh */
    float scale;
    int64_t window;             /* 0: all; else key j is seen by query i iff i - j < window */
    const struct tw_attn_seq *seq;  /* (host) */
    int64_t nseq;
    bool whole;                 /* with blocks, too, the bits of the sequence packed, where whole() is */
    const struct tw_mat *next;  /* what multiplies the outputs: it may be asked for; NULL: not known */
};

struct tw_rope {
    const float *cos, *sin;     /* (dev) [npos, rot / 2], scaled by the attention factor */
    const int32_t *pos;         /* (dev) [T] */
    int64_t rot;                /* rotated width of each head, <= hd; the first `rot` components */
    bool interleaved;           /* pairs (2i, 2i+1) instead of (i, i + rot/2) */
};

/* The head: log-probabilities of targets from final hidden states, in chunks of rows so that the
 * logits of a batch never exist at once, and in the same pass the gradient when it is known. */
struct tw_head {
    const struct tw_tensor *h;  /* [T, D], after the final norm */
    const struct tw_mat *w;     /* [V, D] */
    int64_t n;                  /* rows asked for; ascending, a row may repeat (several targets) */
    const int32_t *row;         /* (dev) [n] in [0, T) */
    const int32_t *target;      /* (dev) [n] in [0, V) */
    const float *temp;          /* (dev) [n] > 0; NULL: all 1. logp = log softmax(z / temp)[target] */
    float *logp;                /* (dev) [n] out */
    float *entropy;             /* (dev) [n] out, of softmax(z / temp); NULL: not wanted */
    float *mean;                /* (dev) [n] out, mean over V of log softmax(z / temp); NULL: not
                                 * wanted */
    const float *coef;          /* (dev) [n] dL/dlogp; NULL: forward only */
    const float *coef_mean;     /* (dev) [n] dL/dmean, beside coef; NULL: none */
    struct tw_tensor *dh;       /* [T, D] out, all of it (zero where no row was asked for); its sum
                                 * over V is one chain for each tile of 1024 rows, tiles added in
                                 * order: one chain over V would cost precision */
    struct tw_mat *dw;          /* F32 [V, D], adds in a chain of rows (it may be unset); NULL:
                                 * not trained */
};

enum tw_act { TW_SILU, TW_GELU_TANH, TW_SIGMOID };

/* Groups of W columns, OFF columns into every STRIDE of a wider row. */
struct tw_cols {
    int64_t n, w, stride, off;  /* n groups */
};

struct tw_ops {
    const char *name;           /* "cpu", "cuda", "count" */
    bool low_act;               /* activations are in the dtype of the products; else F32 */
    bool low_in;                /* with products in BF16, what only they read may be BF16 beside F32
                                 * activations, of whole groups of 32 columns: y of rmsnorm() and
                                 * glu(); dgate and dup, where gate and up were; x and dy of linear(),
                                 * linear_dw() without a bias and adapters without dropout */
    bool in_place;              /* linear() gives the same bits where y is res */
    bool alone;                 /* a row's bits do not depend on how many there are */
    bool sets;                  /* linear_dw() and head() know of gradients that are unset */
    bool plain;                 /* a matrix is its rows, one behind the other: what follows it in memory, of
                                 * as many columns and without room for adapters, may be taken as more
                                 * rows of it by linear(), linear_dx() and linear_dw(), whose sums over
                                 * rows then are one sum */
    bool one_grad;              /* embed_bwd() does, too, and adds to what head() made: look-ups of a tied
                                 * embedding have no gradient of their own */

    /* Memory. put/get copy between host and device and are complete on return. */
    void *(*alloc)(struct tw_dev *d, size_t bytes, struct tw_err *err); /* 64-byte aligned, zeroed */
    void (*free)(struct tw_dev *d, void *p);
    void (*put)(struct tw_dev *d, void *dst, const void *host, size_t bytes);
    void (*get)(struct tw_dev *d, void *host, const void *src, size_t bytes);
    void (*copy)(struct tw_dev *d, void *dst, const void *src, size_t bytes);
    void (*zero)(struct tw_dev *d, void *p, size_t bytes);
    /* What lies at P is about to be written for the first time, all of it; and will be gone through again and
     * again until it is freed. NULL, both: of no use to the device. */
    void (*fresh)(struct tw_dev *d, void *p, size_t bytes);
    void (*often)(struct tw_dev *d, void *p, size_t bytes);
    int (*sync)(struct tw_dev *d, struct tw_err *err);  /* waits; the sticky error */
    /* Copies that nobody waits for yet, into host memory of pin() (NULL: there is none): they are made when
     * reach() has returned for a later mark(). It waits until the device is past that point, not for what
     * was queued behind it; the sticky error. */
    void *(*pin)(struct tw_dev *d, size_t bytes);
    void (*unpin)(struct tw_dev *d, void *p);
    void (*get_later)(struct tw_dev *d, void *pinned, const void *src, size_t bytes);
    int64_t (*mark)(struct tw_dev *d);
    int (*reach)(struct tw_dev *d, int64_t mark, struct tw_err *err);
    /* Bytes of the device that are taken (by whom ever) and that are free; and the most FLOPs a second
     * of products of T. NULL, both: the host's, and not known. */
    void (*memory)(struct tw_dev *d, size_t *used, size_t *free);
    double (*peak)(const struct tw_dev *d, enum tw_dtype t);

    /* What the ops up to the next begin() belong to: the dtype of the products, and a packed batch of
     * NSEQ sequences, t0 (host) [nseq + 1] its first rows. NULL: of no use to the device. */
    void (*begin)(struct tw_dev *d, enum tw_dtype products, const int64_t *t0, int64_t nseq);

    /* Asks (ON), or no more, for products of BF16 in which a row's bits do not depend on how many there
     * are, and for choices that report what head() does. False: they cannot be had. NULL: they never can,
     * or are so anyway (alone). */
    bool (*whole)(struct tw_dev *d, bool on);

    /* Matrices. mat_put/mat_get: rows [row, row + n) from/to row-major host memory of dtype FROM
     * (F32 or BF16) / F32. mat_cast: a BF16 matrix (all its n) from an F32 one of the same shape. */
    int64_t (*mat_elems)(const struct tw_dev *d, int64_t rows, int64_t cols, enum tw_dtype t);
    void (*mat_put)(struct tw_dev *d, struct tw_mat *m, const void *host, enum tw_dtype from,
            int64_t row, int64_t n);
    void (*mat_get)(struct tw_dev *d, float *host, const struct tw_mat *m, int64_t row, int64_t n);
    void (*mat_cast)(struct tw_dev *d, struct tw_mat *bf16, const struct tw_mat *f32);
    /* Rows [row, row + n) are what mat_put() makes of (float)(std * tw_rand_normal(seed, stream, first)),
     * the next with first + 1 and so on, but for a last bit now and then. NULL: the host makes them. */
    void (*mat_normal)(struct tw_dev *d, struct tw_mat *m, uint64_t seed, uint64_t stream,
            uint64_t first, double std, int64_t row, int64_t n);

    /* y[t] = W[id[t]]; dw[id[t]] += dy[t] in token order. id (dev) [T] */
    void (*embed)(struct tw_dev *d, struct tw_tensor *y, const struct tw_mat *w, const int32_t *id);
    void (*embed_bwd)(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
            const int32_t *id);

    /* Each row is cut into groups of n = length of w: y = x * r * (w + off) with r = 1/sqrt(mean(x^2)
     * + eps) per group; rstd (dev) [T * groups] keeps r. off is 0 (plain) or 1 (zero-centred).
     * Backward: dx = r*(g - x*r*mean(g*x*r)), g = dy*(w+off), added to dx when `add`; dw[n] adds in
     * a chain over tokens (then groups); NULL: not trained. dx may alias dy. */
    void (*rmsnorm)(struct tw_dev *d, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
            const float *w, int64_t n, float eps, float off);
    void (*rmsnorm_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add, float *dw,
            const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
            const float *rstd, float off);

    /* rmsnorm() of heads of n, then rope() of the result, in one; the backward may turn dy back in
     * place. NULL, both: callers do one after the other. */
    void (*norm_rope)(struct tw_dev *d, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
            const float *w, int64_t n, float eps, float off, const struct tw_rope *r);
    void (*norm_rope_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add, float *dw,
            struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
            const float *rstd, float off, const struct tw_rope *r);

    /* y = x W^T (+ bias) (+ res); y may alias res. dx = dy W, added to dx when `add`. dw (F32; it
     * may be unset) and dbias (may be NULL) add in a chain over tokens. */
    void (*linear)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
            const struct tw_mat *w, const float *bias, const struct tw_tensor *res);
    void (*linear_dx)(struct tw_dev *d, struct tw_tensor *dx, bool add, const struct tw_tensor *dy,
            const struct tw_mat *w);
    void (*linear_dw)(struct tw_dev *d, struct tw_mat *dw, float *dbias, const struct tw_tensor *dy,
            const struct tw_tensor *x);

    /* y[t] += scale * drop(x[t]) A^T B^T for the tokens of each run; what the backward needs of it
     * stays in h, F32 [T, max r], the device's own. Backward: with h[t] = drop(x[t]) A^T,
     * db += scale * dy^T h, dh = scale * dy B (into scratch [T, max r]),
     * da += dh^T drop(x), dx += drop(dh A). Gradients of A and B add in a chain over tokens. dx of
     * lora_bwd(), lora_linear_bwd(), lora_group_bwd() and lora_wide_bwd() may be NULL: nobody wants it. */
    void (*lora)(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
            const struct tw_tensor *x, const struct tw_lora_ctx *c);
    void (*lora_bwd)(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
            const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
            const struct tw_lora_ctx *c);

    /* linear() and lora() in one, and their backward without dw: the chain of a row goes on over its
     * run's rank, then come bias and residual. h is the device's own. NULL, both: callers do one
     * after the other. */
    void (*lora_linear)(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
            const struct tw_tensor *x, const struct tw_mat *w, const float *bias,
            const struct tw_tensor *res, const struct tw_lora_ctx *c);
    void (*lora_linear_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add,
            struct tw_tensor *scratch, const struct tw_tensor *dy, const struct tw_tensor *x,
            const struct tw_tensor *h, const struct tw_mat *w, const struct tw_lora_ctx *c);

    /* lora_linear() of N <= 3 products of one input, without residuals, and the backward: dx is of
     * all of them, added to when `add`; each has its own dy, h, scratch. NULL, both: callers do one
     * after the other. */
    bool group_bare;            /* those without adapters may be among them */
    void (*lora_group)(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x);
    void (*lora_group_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add,
            struct tw_lora_one *one, int n, const struct tw_tensor *x);

    /* LoRA as more columns of the products themselves, N <= 3 of one input, BF16, no dropout, every
     * token in a run: y = [x | h] [W | s B]^T (+ bias) (+ res) with h = x A^T in the columns behind x
     * (c->at, c->ranks a product), s B behind W's rows and A below W, all in BF16; a token's h is zero
     * in the slots of other adapters. y NULL: only h is wanted. With one's h (BF16 [T, c->ranks])
     * hidden states are put there too, and read there going back: x's room may be used again.
     * Backward: dh = s dy B goes behind dy, dx = [dy | dh] [W / A], added to when `add`, and db; then
     * lora_wide_da() with x's values. da and db add in a chain over tokens. x and dy must have as many
     * columns of room as w; what of it behind dy is no rank's may be written, too. From the one to the
     * other nobody may run another batch. NULL, all: the device has no such products. */
    void (*lora_wide)(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x);
    void (*lora_wide_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add,
            struct tw_lora_one *one, int n, const struct tw_tensor *x);
    void (*lora_wide_da)(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x);

    /* In place, on nheads heads of hd each in x [T, nheads * hd]; sign -1 is the backward. */
    void (*rope)(struct tw_dev *d, struct tw_tensor *x, int64_t nheads, int64_t hd,
            const struct tw_rope *r, int sign);

    /* Causal attention inside each sequence. o [T, nh*hd]; lse (dev) [T * nh] F32, the log of the
     * softmax's denominator (NULL: not wanted). Backward (never with blocks) overwrites dq dk dv. */
    void (*attn)(struct tw_dev *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
            const struct tw_tensor *k, const struct tw_tensor *v, const struct tw_attn *a);
    void (*attn_bwd)(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dk,
            struct tw_tensor *dv, const struct tw_tensor *dout, const struct tw_tensor *o,
            const float *lse, const struct tw_tensor *q, const struct tw_tensor *k,
            const struct tw_tensor *v, const struct tw_attn *a);
    /* Bytes one block takes for one layer, products being of type T; kv_put stores rows
     * [q0, q0+nq) of k, v (after RoPE) at positions past.. of every sequence of A. */
    size_t (*kv_bytes)(const struct tw_dev *d, int64_t nkv, int64_t hd, enum tw_dtype t);
    void (*kv_put)(struct tw_dev *d, const struct tw_tensor *k, const struct tw_tensor *v,
            const struct tw_attn *a);
    const struct tw_mla_ops *mla;   /* attention over latents; NULL: the device has none */
    const struct tw_moe_ops *moe;   /* experts; NULL: the device has none */

    /* y = act(gate) * up, and its backward. dgate may alias gate, dup up. glu_bwd's y: made once
     * more, NULL: not wanted. With products in BF16 y need be no nearer than its rounding makes it. */
    void (*glu)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *gate,
            const struct tw_tensor *up, enum tw_act act);
    void (*glu_bwd)(struct tw_dev *d, struct tw_tensor *dgate, struct tw_tensor *dup,
            struct tw_tensor *y, const struct tw_tensor *dy, const struct tw_tensor *gate,
            const struct tw_tensor *up, enum tw_act act);

    /* Whether what only products of BF16 matrices read may lie as they read it, where nothing goes back and
     * there are no adapters: y of rmsnorm() over all columns, of attn() with heads of whole groups of 32
     * columns and of gated(); x of linear(), lora_group() and gated(). NULL: never. */
    bool (*packs)(const struct tw_dev *d, int64_t rows, int64_t cols);
    /* y = act(x gate^T) * (x up^T), rounded to BF16: the bits of linear() twice and glu(), where nothing goes
     * back and nothing is added to the products; gated_fits() says for which BF16 x and matrices. NULL,
     * both: callers do one after the other. */
    bool (*gated_fits)(const struct tw_dev *d, const struct tw_tensor *x, const struct tw_mat *gate,
            const struct tw_mat *up);
    void (*gated)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
            const struct tw_mat *gate, const struct tw_mat *up, enum tw_act act);

    /* y[i] = x w[i]^T for N <= 3 matrices, in heads of HD which are rotated but for those of the last one,
     * rounded to BF16: the bits of linear() and rope(), where nothing goes back and nothing is added to the
     * products. attn() and kv_put() take such q, and k and v both. heads_fit() says for which BF16 x and
     * matrices. NULL, both: callers do one after the other. */
    bool (*heads_fit)(const struct tw_dev *d, const struct tw_tensor *x, const struct tw_mat *const *w, int n,
            int64_t hd, const struct tw_rope *r);
    void (*heads)(struct tw_dev *d, struct tw_tensor *const *y, const struct tw_tensor *x,
            const struct tw_mat *const *w, int n, int64_t hd, const struct tw_rope *r);

    /* y[t, i * w + j] = x[t, i * stride + off + j]; with BACK the same columns of x from y. */
    void (*cols)(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *x,
            const struct tw_cols *c, bool back);

    const struct tw_delta_ops *delta;   /* layers with a recurrent state */

    void (*head)(struct tw_dev *d, const struct tw_head *h);
    /* Memory that head() takes for N rows; GRADS: 0 none, 1 of h, 2 of w too. */
    size_t (*head_scratch)(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, int grads);
    /* logits (host) [n, V] F32 of rows row[i] (host) of h; the same bits as inside head(). */
    void (*logits)(struct tw_dev *d, float *logits, const struct tw_tensor *h, const int32_t *row,
            int64_t n, const struct tw_mat *w);
    /* log softmax(z / temp)[target] of one row of logits on the host; the same bits as head(). */
    float (*pick)(const struct tw_dev *d, const float *z, int64_t V, float temp, int32_t target);

    /* Draws choice i from the logits of row[i] (host) of h; complete on return. allowed (dev) [V]
     * bars ids; NULL: none. NULL, both: the host draws. */
    void (*choose)(struct tw_dev *d, const struct tw_tensor *h, const int32_t *row, int64_t n,
            const struct tw_mat *w, struct tw_choice *choice, const uint8_t *allowed);
    const struct tw_step_ops *step;     /* decode steps in fused ops */

    void (*add)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x);  /* y += x */
    void (*scale)(struct tw_dev *d, struct tw_tensor *y, float a);  /* y *= a; NULL: cannot */
    void (*axpy)(struct tw_dev *d, float *y, float a, const float *x, int64_t n);   /* y += a x */

    /* *sum (dev, double) += sum of squares, in fixed chunks summed in order. clip: *scale (dev) =
     * min(1, max / (sqrt(sum) / by)) / by (1 / by when max is 0), NaN when sum is not finite. */
    void (*sumsq)(struct tw_dev *d, double *sum, const float *g, int64_t n);
    void (*clip)(struct tw_dev *d, float *scale, const double *sum, float max, double by);
    /* One step on n elements; the gradient is g * *scale; nothing happens when *scale is NaN. */
    void (*adamw)(struct tw_dev *d, float *w, const float *g, float *m, float *v, int64_t n,
            const struct tw_adamw *p, const float *scale);
    void (*sgd)(struct tw_dev *d, float *w, const float *g, float *m, int64_t n, float lr,
            float momentum, float decay, const float *scale);   /* m NULL when momentum is 0 */

    /* The same for masters that are split (struct tw_mat), and the sum of squares of such; they leave
     * hi ready for products. NULL, all: the device keeps F32 masters beside BF16 weights. */
    void (*adamw_split)(struct tw_dev *d, uint16_t *hi, uint16_t *low, const float *g, float *m, float *v,
            int64_t n, const struct tw_adamw *p, const float *scale);
    void (*sgd_split)(struct tw_dev *d, uint16_t *hi, uint16_t *low, const float *g, float *m, int64_t n,
            float lr, float momentum, float decay, const float *scale);
    void (*sumsq_split)(struct tw_dev *d, double *sum, const uint16_t *hi, const uint16_t *low,
            int64_t n);
    const struct tw_optim_ops *optim;   /* other updates; NULL: there are none */

    void (*close)(struct tw_dev *d);    /* what tw_dev_close() calls */
};

struct tw_dev_head {
    const struct tw_ops *ops;
    double flops;               /* counted by the counting device; others leave it */
};
static inline const struct tw_ops *tw_ops(const struct tw_dev *d)
{
    return ((const struct tw_dev_head *)d)->ops;
}

/* The CPU: THREADS 0 means all that the process may use. ISA "auto", or "avx512", "avx2", "c" to force
 * one (tests; an ISA the processor lacks is an error). Scratch is the device's own. */
struct tw_dev *tw_cpu_open(int threads, const char *isa, struct tw_err *err);
const char *tw_cpu_isa(const struct tw_dev *d);         /* "amx", "avx512", "avx2" or "c" */
/* The counting device that stands for DEV's layouts: no memory, no work, only numbers. */
struct tw_dev *tw_count_open(const struct tw_dev *like, struct tw_err *err);
/* The device that --device names: "cpu", "cuda", "cuda:N" (the N-th GPU), or "auto": a GPU where there
 * is one, else the CPU. THREADS are the CPU's. GPUs come with libtw-cuda.so, which is looked for beside
 * the commands (../lib) and where the loader looks. */
struct tw_dev *tw_dev_open(const char *name, int threads, struct tw_err *err);
/* Bytes that can still be allocated on D, and those taken: a GPU's, or this process's at its peak. */
size_t tw_dev_free(struct tw_dev *d);
size_t tw_dev_used(struct tw_dev *d);
double tw_dev_peak(const struct tw_dev *d, enum tw_dtype t);   /* FLOPs a second; infinity: not known */
void tw_dev_close(struct tw_dev *d);

#endif
