/* moe_ops.h - experts: a router sends each token to K of E small networks, whose outputs are added up
 * with its weights. The rows of a batch are put in the order of their experts once (route); products
 * then are one call over all experts, whose rows lie one behind the other, with their borders in
 * device memory: as many rows as there are, none dropped, none added. The rules of ops.h hold: a row
 * of a product depends on nothing but its token, and gradients of an expert's matrix are chains over
 * its tokens in ascending order. */
#ifndef TW_MOE_OPS_H
#define TW_MOE_OPS_H
#include "nn/tensor.h"
#include <stdbool.h>

struct tw_dev;
struct tw_lora_ctx;

/* How a router chooses: from the softmax of its logits, the K largest; the same among the groups of
 * experts with the largest members; from their sigmoid, a bias being added for the choice alone,
 * the K largest among the groups with the largest sums of two. */
enum tw_route_kind { TW_ROUTE_SOFTMAX, TW_ROUTE_GROUP_MAX, TW_ROUTE_SIGMOID };

struct tw_route {
    enum tw_route_kind kind;
    int64_t E, K;
    int64_t groups, topk_groups;        /* groups 1: all of them */
    bool norm;                  /* weights are divided by their sum (sigmoid: by the sum + 1e-20) */
    float scale;                /* then multiplied */
    const float *bias;          /* (dev) [E]; NULL: none */
};

/* Where the rows of a batch go. Row p of a sorted tensor [T * K, ..] is of token pair[p] / K; those
 * of expert e are rows [start[e], start[e + 1]), in ascending order of tokens. */
struct tw_dispatch {
    int64_t T, E, K;
    int32_t *choice;            /* (dev) [T, K] experts, the best first */
    float *weight;              /* (dev) [T, K] */
    int32_t *start;             /* (dev) [E + 1] */
    int32_t *pair;              /* (dev) [T * K] */
    int32_t *place;             /* (dev) [T * K] place[pair[p]] = p */
};

/* What a loss that balances the experts needs: how often sequence s chose expert e, and the sum of
 * the router's probabilities (of sigmoids: divided by their sum over the experts). */
struct tw_balance {
    const int32_t *seq;         /* (dev) [T] */
    int64_t nseq;
    int32_t *count;             /* (dev) [nseq, E]; NULL, all three: not wanted */
    float *sum;                 /* (dev) [nseq, E] */
    const float *coef;          /* (dev) [nseq] backward: dL/dprob[t, e] = coef[s] * count[s, e] */
    int32_t *load;              /* (dev) [E] choices of all tokens; NULL: not wanted */
};

struct tw_moe_ops {
    /* logits F32 [T, E] = x W^T with W F32, in f32 whatever begin() said. Backward: dx as of
     * linear_dx; dw (NULL: not trained) adds in a chain over tokens. */
    void (*logits)(struct tw_dev *d, struct tw_tensor *logits, const struct tw_tensor *x,
            const struct tw_mat *w);
    void (*logits_bwd)(struct tw_dev *d, struct tw_tensor *dx, bool add, struct tw_mat *dw,
            const struct tw_tensor *dlogits, const struct tw_tensor *x, const struct tw_mat *w);

    /* prob F32 [T, E] holds logits and then probabilities (softmax or sigmoid). Fills all of
     * S. Of equal experts (or groups) the lowest comes first. GIVEN (dev) [T, K]: the experts of
     * tokens whose first is not -1, which are not chosen then, only weighted; NULL: none. B (may be
     * NULL): count, sum and load add up. */
    void (*route)(struct tw_dev *d, struct tw_dispatch *s, struct tw_tensor *prob,
            const struct tw_route *r, const int32_t *given, const struct tw_balance *b);
    /* dlogits F32 [T, E] from dweight (dev) [T, K], and from B's count and coef. */
    void (*route_bwd)(struct tw_dev *d, struct tw_tensor *dlogits, const float *dweight,
            const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
            const struct tw_balance *b);

    /* y[p] = x[p] W_e^T for the sorted rows p of each expert e; W holds E matrices. GATHER: x is
     * [T, in] and row p reads that of its token. dx[p] = dy[p] W_e; dw_e adds the chain of its
     * rows. */
    void (*experts)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
            const struct tw_mat *w, const struct tw_dispatch *s, bool gather);
    void (*experts_dx)(struct tw_dev *d, struct tw_tensor *dx, const struct tw_tensor *dy,
            const struct tw_mat *w, const struct tw_dispatch *s);
    void (*experts_dw)(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
            const struct tw_tensor *x, const struct tw_dispatch *s, bool gather);
    /* dx[t] = the sum over k, ascending, of sorted[place[t * K + k]], added to dx when `add`. */
    void (*collect)(struct tw_dev *d, struct tw_tensor *dx, bool add,
            const struct tw_tensor *sorted, const struct tw_dispatch *s);

    /* lora() and lora_bwd() of ops.h for sorted rows: a run's a is [E, r, in], b [E, out, r], and so
     * are da, db; its tokens are [t0, t1). No dropout. h and scratch are [T * K, max r]; dx is
     * sorted. Y may be a view of some of W's rows. */
    void (*lora)(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
            const struct tw_tensor *x, const struct tw_lora_ctx *c, const struct tw_dispatch *s,
            bool gather);
    void (*lora_bwd)(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
            const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
            const struct tw_lora_ctx *c, const struct tw_dispatch *s, bool gather);

    /* y[t] = x[t] + (sum over k, ascending, of weight[t, k] * z[place[t * K + k]], then g *
     * shared[t]), the sum being one chain of fused multiply-adds from zero; g = sigmoid(gate[t]), 1
     * when gate [T, 1] is NULL; shared NULL: no such part. y may be x. Backward overwrites dz
     * (sorted), dweight (dev) [T, K], dshared and dgate (NULL where there is no such part); sums over
     * columns are in a fixed order of the device's own. Of no experts (K 0) it makes the shared part alone. */
    void (*combine)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
            const struct tw_tensor *z, const struct tw_dispatch *s,
            const struct tw_tensor *shared, const struct tw_tensor *gate);
    void (*combine_bwd)(struct tw_dev *d, struct tw_tensor *dz, float *dweight,
            struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
            const struct tw_tensor *z, const struct tw_dispatch *s,
            const struct tw_tensor *shared, const struct tw_tensor *gate);

    /* experts() and lora(), or experts_dx() and lora_bwd(), in one, where C is one run over all tokens and
     * y all of W's rows. False: nothing was done, the caller does them apart. NULL, both: likewise. */
    bool (*experts_lora)(struct tw_dev *d, struct tw_tensor *y, struct tw_tensor *h,
            const struct tw_tensor *x, const struct tw_mat *w, const struct tw_lora_ctx *c,
            const struct tw_dispatch *s, bool gather);
    bool (*experts_lora_dx)(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
            const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
            const struct tw_mat *w, const struct tw_lora_ctx *c, const struct tw_dispatch *s,
            bool gather);

    /* The way back from combine() through the experts' last product and the gated unit before it without
     * dz: dx[p] = dy[pair[p] / K] W_e, with the part of the adapter, is not weighted yet, while gradients
     * of the adapter (C has no run: there is none) are those of weighted rows; h is of no use afterwards.
     * Then glu_bwd() of rows that are weighted there, from dy = dx, with dweight as of combine_bwd().
     * False: nothing was done. NULL, both: the device has no such way. */
    bool (*experts_sum_dx)(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *scratch,
            const struct tw_tensor *dy, const struct tw_tensor *x, struct tw_tensor *h,
            const struct tw_mat *w, const struct tw_lora_ctx *c, const struct tw_dispatch *s);
    void (*glu_sum_bwd)(struct tw_dev *d, struct tw_tensor *dgate, struct tw_tensor *dup, float *dweight,
            const struct tw_tensor *dy, const struct tw_tensor *gate, const struct tw_tensor *up,
            int act, const struct tw_dispatch *s);  /* enum tw_act */
};

#endif
