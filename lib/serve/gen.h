/* gen.h - a sampling request under way: its prompt scored where that was asked for, and its samples,
 * which are handed to the sampler in pieces, so that a request of thousands leaves room for others. */
#ifndef TW_GEN_H
#define TW_GEN_H
#include "serve/result.h"
#include "serve/worker_priv.h"

struct tw_gen_job {
    struct tw_gen_job *next;
    struct tw_work *w;
    struct tw_who *who;
    struct tw_snap *snap;               /* NULL: the base */
    struct tw_model *model;             /* what it samples from, */
    struct tw_sampler *sampler;         /* and by what */
    struct tw_gen **piece;              /* handed to the sampler */
    int64_t npiece, given, left;        /* samples handed over, and not back yet */
    bool gone;                          /* cancelled */
    bool scored;                        /* nothing (more) is to be known of the prompt by one pass */
    int64_t at;                         /* positions whose rows of logits were looked at; nprompt: all */
    struct tw_state *state;             /* holds at tokens */
    struct tw_response r;
    struct tw_err err;                  /* why it fails */
    double busy;
};

/* prompt.c: one pass over prompts that are to be scored, or one piece of one whose rows of logits are
 * to be seen. False: there was nothing to do. */
bool tw_prompt_turn(struct tw_worker *k);
void tw_prompt_start(struct tw_worker *k, struct tw_gen_job *j);

#endif
