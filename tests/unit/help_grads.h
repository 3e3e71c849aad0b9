/* help_grads.h - gradients that are zero, where nobody may see what is unset */
#ifndef TW_HELP_GRADS_H
#define TW_HELP_GRADS_H
#include "nn/model.h"

/* tw_params_zero(), and NaN into what is unset. */
void help_zero_grads(struct tw_dev *d, const struct tw_params *p);

#endif
