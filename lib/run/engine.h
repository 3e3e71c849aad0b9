/* engine.h - the verbs that training, sampling and serving are made of. A call names everything it
 * works on: the adapter, the loss, the temperature and the scale travel with each sample, so there is
 * no current adapter, and one call may hold samples of many. The loss is a plain sum over tokens;
 * what divides it is in each sample's scale, and so the caller's business.
 *
 *     tw_engine_forward_backward(&e, sample, n, TW_DROPOUT, err);     gradients add up
 *     tw_engine_optim_step(&e, optim, lr, clip, &report, err);        and are used up
 */
#ifndef TW_ENGINE_H
#define TW_ENGINE_H
#include "nn/loss_fn.h"
#include "nn/optim.h"

struct tw_engine {
    struct tw_model *model;         /* borrowed */
    int64_t micro_tokens;           /* a pass takes at most so many, or one longer sequence */
    unsigned recompute;         /* 0, TW_SELECTIVE or TW_RECOMPUTE */
    /* Asked before each pass, when not NULL; other than 0 ends the call with its error. */
    int (*go_on)(void *arg, struct tw_err *err);
    void *arg;
    struct tw_arena arena;          /* of one pass */
};

struct tw_engine_sample {
    const int32_t *token;           /* [n] */
    const float *weight;            /* [n]; weight[i] is of predicting token[i]; NULL: all 1 */
    int64_t n;
    const int32_t *target;          /* not NULL: [n, ntarget], what position i is to predict in
                                     * place of token[i + 1]; then weight, old, ref and logp are
                                     * [n, ntarget], too */
    int64_t ntarget;
    struct tw_adapter *adapter;     /* NULL: the base */
    const struct tw_loss *loss;
    double scale;                   /* of this sample's loss */
    float temp;                     /* of the log-probabilities; */
    const float *temps;             /* [n] of those of each position's predictions; NULL: temp */
    uint64_t key;                   /* names the sample for dropout */
    bool tied;                      /* stays in one pass with the sample before it; of a pair, the
                                     * rejected one */
    const float *old, *ref;         /* [n] or NULL: log-probabilities when it was sampled, and of
                                     * the reference policy */
    double adv;                     /* policy losses: the advantage of all its tokens */
    const float *advantage;         /* [n] the same by token; NULL: adv */
    const float *ratio_mask;        /* [n] what enters the mean of a ratio of the whole sequence; */
    const float *lo, *hi;           /* [n] bounds of the ratio; NULL each: as in the loss */
    double nll_scale;               /* preference losses: scale of the chosen one's likelihood */
    bool label;                     /* kto: desirable; infonce: an anchor */
    bool all;                       /* with target: logp where the weight is 0, too */
    const int32_t *experts;         /* [n, routers, topk] as in struct tw_seq, or NULL */
    double aux;                     /* coefficient of its routers' balancing loss, which is not in sum */
    double balance;                 /* out: that loss, when aux is not 0 */
    double sum;                     /* out: what it adds to the loss, scale included; a pair's is
                                     * the chosen one's */
    float *logp;                    /* out, when not NULL: [n], where weight is not 0 (or all); else 0 */
    struct tw_loss_seq stat;        /* out: the sums for metrics of losses that keep them */
    double entropy;                 /* out, with TW_ENTROPY: sum over its trained tokens */
    float *state, *dstate;          /* [D] of tw_engine_embed(): the hidden state of its last token, out, and
                                     * the derivative by it */
};

/* Passes over the samples in their order, in packed batches of whole samples, so that no result
 * depends on where a batch is cut. FLAGS: TW_DROPOUT, TW_ENTROPY; TW_LATER: passes whose loss needs no
 * log-probabilities follow each other without a wait, others have one; the last way back may go on. */
int tw_engine_forward_backward(struct tw_engine *e, struct tw_engine_sample *s, int64_t n,
        unsigned flags, struct tw_err *err);
/* The same without gradients and without dropout. FLAGS: TW_ENTROPY. */
int tw_engine_score(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err);
/* The arithmetic between forward and backward alone, for log-probabilities that come from elsewhere and
 * are in each sample's logp: its sum and stat, and COEF[i] [n], the derivative of the loss by each of
 * them, in A. Samples without targets of their own, and no smoothing. */
void tw_engine_loss(struct tw_engine_sample *s, int64_t n, float **coef, struct tw_arena *a);
/* Every sample's state. With FN that is called with all of them there, to make every sample's dstate; the
 * gradients of these add up. What fits one pass is run once, else the passes are run again on their way back.
 * FLAGS: TW_DROPOUT, which drops the same in both, TW_LATER. Of the samples token, n, adapter, key and aux are
 * used. */
int tw_engine_embed(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        int (*fn)(void *arg, struct tw_err *err), void *arg, struct tw_err *err);
/* engine.c: how many samples from S on go into one pass. */
int64_t tw_engine_cut(const struct tw_engine *e, const struct tw_engine_sample *s, int64_t n);
int tw_engine_optim_step(struct tw_engine *e, struct tw_optim *o, double lr, double clip,
        struct tw_optim_report *r, struct tw_err *err);

/* What a training holds in DIR: an adapter in PEFT's form or a whole model, with the optimiser's
 * moments, and f32 weights where the model's file is less exact, in DIR/trainer. ADAPTER NULL: the
 * model's own weights. BASE is the name of the base model that an adapter records. */
int tw_engine_save(struct tw_engine *e, struct tw_adapter *adapter, struct tw_optim *o,
        enum tw_dtype dtype, const char *base, const char *dir, struct tw_err *err);
/* The optimiser's part of that, for a model or adapter that was opened from DIR. */
int tw_engine_load(struct tw_engine *e, struct tw_optim *o, int64_t updates, const char *dir,
        struct tw_err *err);

void tw_engine_close(struct tw_engine *e);

#endif
