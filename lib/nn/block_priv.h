/* block_priv.h - what the files of the blocks share */
#ifndef TW_BLOCK_PRIV_H
#define TW_BLOCK_PRIV_H
#include "nn/tape.h"

/* x + a product of H, into OUT; where the family has a norm of what a block gives, that of it. */
void tw_block_into(struct tw_tape *t, struct tw_var *h, struct tw_weight *w,
        struct tw_weight *post, struct tw_var *x, struct tw_var *out);

#endif
