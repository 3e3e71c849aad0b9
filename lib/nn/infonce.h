/* infonce.h - InfoNCE: a loss of embeddings, which all sequences of a step share. A sequence is its hidden
 * state h after the final norm at its last token; its embedding is e = h / |h|. Sequences come in groups: an
 * anchor q, its positive p, then negatives; all but anchors are documents d. With t the temperature, a group
 * has the cross-entropy of its positive,
 *
 *     -q.p / t + log sum over columns of e^(column / t),
 *
 * whose columns are q.d of the documents of all groups (use_batch; else of its own), with include_qq q.q' of
 * the other anchors, with include_dd p.d of all documents but p. mask_fake_negative leaves out columns of
 * q.d and q.q' above q.p + fake_neg_margin. hard_negatives=k takes k negatives of each group: the first
 * ones, or where there are fewer all of them in turn, again and again. The loss is the mean over groups.
 *
 * All of it is done in double on the host, in one order: nothing depends on how sequences were cut into
 * passes. */
#ifndef TW_INFONCE_H
#define TW_INFONCE_H
#include "base/mem.h"
#include "nn/loss.h"

struct tw_embeds {
    int64_t n, D;
    const float *const *h;      /* [n] of [D] */
    const bool *begins;         /* [n] an anchor; at least one sequence follows before the next one */
    float *const *dh;           /* [n] of [D] out; NULL: only the sums are wanted */
    double *loss;               /* [n] out: a group's part of the loss at its anchor, else 0; NULL: not
                                 * wanted */
};

/* Sums over groups, for the loss and for metrics. */
struct tw_embed_sums {
    double loss;                /* mean over groups: this one is no sum */
    double pos, pos_min, pos_max, neg;  /* q.p; q.p' of the other groups */
    int64_t groups, negs;       /* what pos and neg are sums of */
    int64_t right;              /* groups whose positive is nearer than any other document */
};

/* Scratch and lists come from A. */
void tw_infonce(const struct tw_loss *l, const struct tw_embeds *in, struct tw_embed_sums *out,
        struct tw_arena *a);
/* The state H [D] at length 1. */
void tw_embedding(float *e, const float *h, int64_t D);
/* Adds B to A; the loss is that of all groups of both. */
void tw_embed_sums_add(struct tw_embed_sums *a, const struct tw_embed_sums *b);

#endif
