/* step.h - a decode step: one token each of many sequences, in the device's fused ops */
#ifndef TW_STEP_H
#define TW_STEP_H
#include "nn/model_priv.h"

/* The walk of a step through the layers; x is the residual stream, updated in place. */
struct tw_stepper {
    struct tw_model *m;
    const struct tw_step_ops *ops;
    bool lora;                  /* there are adapters in it */
    struct tw_tensor x;
};

/* An activation of the block that is being walked, dead at its end. */
struct tw_tensor tw_step_tensor(struct tw_stepper *s, int64_t cols);
struct tw_step_w tw_step_w(const struct tw_stepper *s, const struct tw_weight *w);
/* x += h W^T, normalised by POST where that is not NULL. */
void tw_step_into(struct tw_stepper *s, const struct tw_tensor *h, const struct tw_weight *w,
        const struct tw_weight *post);
struct tw_step_attn tw_step_attn(const struct tw_model *m, const struct tw_layer *l);
struct tw_step_moe tw_step_moe(const struct tw_model *m, const struct tw_layer *l);
struct tw_step_mla tw_step_mla(const struct tw_model *m, const struct tw_layer *l);     /* block_mla.c */

/* Whether the device makes steps of this model. */
bool tw_step_fits(const struct tw_model *m);
/* Whether they take in adapter A (NULL: none). */
bool tw_step_takes(const struct tw_model *m, const struct tw_adapter *a);
/* Appends the one token of each of N sequences, whose states have room for it, and draws. */
int tw_step_run(struct tw_model *m, const struct tw_seq *seq, int64_t n, struct tw_choice *choice,
        const uint8_t *allowed, struct tw_err *err);

#endif
