/* loss_exec.h - tw-train --loss-exec: a loss that is a command. Each step it gets the log-probabilities as
 * one JSON line and answers the loss and dL/dlogp with another; man/tw-loss.7 is the protocol. */
#ifndef TW_LOSS_EXEC_H
#define TW_LOSS_EXEC_H
#include "base/json.h"
#include "run/engine.h"

struct tw_loss_exec;

/* A step's samples, whose logp were computed, and what comes back. */
struct tw_loss_call {
    int64_t step, supervised;
    const struct tw_loss *loss; /* names the kind of the records */
    const struct tw_engine_sample *s;
    const int64_t *id;          /* [n] numbers of the records */
    int64_t n;
    double value;               /* out: the loss; NaN: the command had none */
    float **dlogp;              /* out: for each sample [n] of tokens, 0 where nothing is trained; NaN
                                 * where the command had no number */
    const struct tw_json *metrics;  /* out: an object of numbers, or NULL */
};

/* Starts CMD. TIMEOUT: seconds for a step, 0: for ever. Both live as long as what is returned. */
struct tw_loss_exec *tw_loss_exec_open(const char *cmd, double timeout, struct tw_err *err);
/* What comes back lives in A. */
int tw_loss_exec_call(struct tw_loss_exec *x, struct tw_loss_call *c, struct tw_arena *a,
        struct tw_err *err);
/* Ends its input; its status other than 0 is a notice. NULL: nothing. */
void tw_loss_exec_close(struct tw_loss_exec *x);

#endif
