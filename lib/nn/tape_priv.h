/* tape_priv.h - what the files of the tape's ops share */
#ifndef TW_TAPE_PRIV_H
#define TW_TAPE_PRIV_H
#include "nn/tape.h"

/* Notes how to go back from Y, an output, to X; NULL: the tape does not record. */
struct tw_op *tw_note(struct tw_tape *t, tw_bwd_fn *bwd, struct tw_var *y, struct tw_var *x);
/* The runs of a module, out of the batch's spans; none when MODULE is -1. */
struct tw_lora_ctx tw_lora_ctx_of(struct tw_tape *t, int64_t module);
/* Back through a product of a value that was made again: only the gradients of its weights. */
void tw_linear_weights_back(struct tw_tape *t, struct tw_op *op);
/* Gives Y's gradient to RES, which Y is a sum with. */
void tw_residual_back(struct tw_tape *t, struct tw_var *y, struct tw_var *res);

#endif
