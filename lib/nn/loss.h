/* loss.h - losses as functions of per-token log-probabilities. A loss says what a sequence (or a pair of
 * them) adds to the total and dL/dlogp of each token; the head turns that into gradients of the logits. The
 * arithmetic is `static inline` code that C and CUDA both compile (loss_fn.h). A name that users write is a
 * preset of one table of settings: two forms of one name (Twinkle's and Tinker's) are two presets and not
 * two functions.
 *
 * How a sum becomes a loss is not the loss's business: the caller gives each sequence a scale S (enum
 * tw_loss_scale). With w the weight of a token, A its advantage, r = exp(logp - old) and clip() the clamp to
 * [lo, hi]:
 *
 *     cross_entropy        L = S sum w -logp;  dft: w -logp e^logp (through e^logp, too);
 *                          label_smoothing=e: w ((1 - e) -logp + e mean over the vocabulary of -logp)
 *     grpo bnpo dr_grpo    L = S sum w -min(r A, clip(r) A) + w beta KL;  ppo, importance_sampling likewise
 *     gspo                 the same with one r for the sequence, exp(mean of logp - old over its weights)
 *     cispo                L = S sum w -clip(r) A logp, no gradient through r
 *     sapo                 L = S sum w -g A, g = sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A
 *     dro                  L = S sum w -(logp A - beta/2 (logp - old)^2)
 *     stable_reinforce     L = S sum w -clip(r) A logp + penalty/2 (logp - old)^2, no gradient through r
 *     dpo simpo cpo orpo   of sums and means over a pair, see tw_loss_pair()
 *     kto                  of one sequence with a label, see tw_loss_kto()
 *     infonce              of embeddings and not of log-probabilities, of a whole step: nn/infonce.h
 *
 * KL to the reference, d = ref - logp: k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1 (beyond d = 20 the
 * exponential goes on as its tangent, so a token that drifted has a finite loss and still a gradient).
 */
#ifndef TW_LOSS_H
#define TW_LOSS_H
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum tw_loss_form {
    TW_LOSS_CROSS_ENTROPY,
    TW_LOSS_SURROGATE,      /* min(r A, clip(r) A) */
    TW_LOSS_CISPO,
    TW_LOSS_SAPO,
    TW_LOSS_DRO,
    TW_LOSS_DPO,
    TW_LOSS_SIMPO,
    TW_LOSS_CPO,
    TW_LOSS_ORPO,
    TW_LOSS_KTO,
    TW_LOSS_INFONCE,
};

enum tw_loss_scale {
    TW_SCALE_TOKEN,     /* over the supervised tokens of the optimiser step */
    TW_SCALE_SEQUENCE,  /* mean over each sequence, then over the sequences of the step */
    TW_SCALE_SUM,       /* the plain sum */
    TW_SCALE_CONSTANT,  /* over sequences times a constant length */
};

enum tw_kl { TW_KL_K1, TW_KL_K2, TW_KL_K3 };
enum tw_dpo_kind { TW_DPO_SIGMOID, TW_DPO_HINGE, TW_DPO_IPO, TW_DPO_KTO_PAIR, TW_DPO_ROBUST };

struct tw_loss {
    const char *name;
    enum tw_loss_form form;
    bool needs_logp;    /* its gradient is known only after the log-probabilities */
    bool pairs;         /* takes preference records: chosen and rejected */
    bool policy;        /* takes rollouts: advantages and the sampler's log-probabilities */
    bool label;         /* takes records with a boolean label */
    bool groups;        /* takes groups: anchor, positive, negatives */
    bool reference;     /* wants log-probabilities of the reference policy (when beta is not 0) */
    int scale;          /* enum tw_loss_scale that its name means; -1: what --loss-scale says */
    bool dft;           /* cross_entropy */
    double uniform;     /* cross_entropy: share of the vocabulary's mean (label smoothing) */
    bool per_sequence;  /* one ratio for a sequence */
    bool clamp;         /* log-ratios are clamped to [-20, 20], as Twinkle does */
    double lo, hi;      /* bounds of the ratio */
    double beta;        /* of the KL term, of dro's penalty, of a preference margin */
    double penalty;     /* stable_reinforce: of the squared log-ratio */
    enum tw_kl kl;
    double tau_pos, tau_neg;
    double length;      /* TW_SCALE_CONSTANT */
    enum tw_dpo_kind kind;
    double smoothing, gamma, nll, lambda;   /* nll: weight of -logp of the chosen one, mean over its tokens */
    bool reference_free;
    double desirable, undesirable, kl_estimate;
    /* infonce */
    double temperature, margin;
    int64_t hard_negatives;     /* of each group; 0: those that it has */
    bool use_batch, mask_fake, include_qq, include_dd;
};

/* "NAME,key=value,..": the preset of that name with those settings changed. `form=tinker` takes Tinker's
 * form of a name that Twinkle has too. OPTION is named in errors, which list the known names, or the known
 * keys of the name. */
int tw_loss_parse(struct tw_loss *l, const char *option, const char *text, struct tw_err *err);

/* One sequence of a loss: arrays of N, position i being that of a predicted token. */
struct tw_loss_seq {
    int64_t n;
    const float *logp;
    const float *old;       /* when it was sampled; NULL: now (the ratio is 1) */
    const float *ref;       /* of the reference policy; NULL: none, and no KL term */
    const float *weight;    /* 0: not trained; NULL: all 1 */
    const float *ratio_mask;/* what enters the mean of a per-sequence ratio; NULL: weight != 0 */
    const float *advantage; /* by position; NULL: adv for all */
    const float *lo, *hi;   /* bounds of the ratio by position; NULL: the loss's */
    double adv;
    double scale;
    bool label;             /* kto: desirable */
    float *dlogp;           /* out: [n] */
    /* out, summed over tokens with weight, for metrics */
    double ratio_sum, ratio_max, kl_sum, tokens;
    int64_t clipped[2], bounded;    /* tokens where the lower, the upper clip, the KL's bound took hold */
};

#endif
