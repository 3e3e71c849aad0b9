/* loss.h - losses as functions of per-token log-probabilities. A loss says what a token adds to it
 * and dL/dlogp; the head turns that into gradients of the logits. The arithmetic is `static inline`
 * code that C and CUDA both compile. A name that users write is a preset of one table of settings,
 * so two forms of one name are two presets and not two functions.
 *
 * How a sum becomes a loss is not the loss's business: the caller gives each sample a scale
 * (enum tw_loss_scale). With S = scale of the sample and w = weight of the token,
 *
 *     cross_entropy:  L = S * w * -logp,   dL/dlogp = -S * w
 */
#ifndef TW_LOSS_H
#define TW_LOSS_H
#include "base/err.h"
#include <stdbool.h>

enum tw_loss_form { TW_LOSS_CROSS_ENTROPY };

enum tw_loss_scale {
    TW_SCALE_TOKEN,     /* over the supervised tokens of the optimiser step */
    TW_SCALE_SEQUENCE,  /* mean over each sequence, then over the sequences of the step */
    TW_SCALE_SUM,       /* the plain sum */
};

struct tw_loss {
    const char *name;
    enum tw_loss_form form;
    bool needs_logp;    /* its gradient is known only after the log-probabilities */
    bool pairs;         /* takes preference records: chosen and rejected */
};

/* "NAME,key=value,..": the preset of that name with those settings changed. OPTION is named in
 * errors, which list the known names, or the known keys of the name. */
int tw_loss_parse(struct tw_loss *l, const char *option, const char *text, struct tw_err *err);

/* What one token adds to the loss, and the derivative of that by its log-probability. */
static inline double tw_loss_token(const struct tw_loss *l, float logp, float weight, double scale,
        float *dlogp)
{
    switch (l->form) {
    case TW_LOSS_CROSS_ENTROPY:
        *dlogp = (float)(-scale * (double)weight);
        return scale * -(double)weight * (double)logp;
    }
    *dlogp = 0;
    return 0;
}

#endif
