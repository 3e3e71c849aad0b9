/* train.h - tw-train: a loop over records that calls the engine's verbs, and the folder RUN that it
 * leaves. The options here are those of the command; text options are parsed by the trainer. */
#ifndef TW_TRAIN_H
#define TW_TRAIN_H
#include "base/opt.h"
#include <signal.h>
#include <stdio.h>

struct tw_train_opts {
    struct tw_common common;        /* first, as tw_start() wants it */
    const char *model, *out, *adapter, *config_json, *lora, *loss, *schedule, *optimizer, *shuffle;
    const char *device, *eval, *metrics, *loss_exec, *ref;
    int init, loss_scale, decay_on, recompute, dtype;   /* indexes of the choices below */
    double router_aux, router_bias;
    double lr, weight_decay, clip, loss_timeout;        /* lr < 0: by default */
    int64_t epochs, steps, batch, micro_tokens, eval_every, early_stop, save_every, keep, max_skips;
    int64_t seed, threads, nproc;                       /* epochs, steps 0: not given */
    bool router_replay, keep_best, resume, plan, merge, force;
    int publish;                    /* auto, on, off */
};
#define TW_TRAIN_INIT "none|random"
#define TW_TRAIN_LOSS_SCALE "token|sequence|sum"        /* enum tw_loss_scale */
#define TW_TRAIN_DECAY_ON "matrices|all"
#define TW_TRAIN_RECOMPUTE "auto|none|selective|layer"
#define TW_TRAIN_DTYPE "auto|bf16|f32"

enum { TW_STOP_AT_ONCE = -1 };

/* Trains on the records of PATHS (none: stdin). OPTIONS: all resolved options as a JSON object, for
 * RUN/config.json. *STOP is TW_STOP_AT_ONCE until the first step begins (nothing is lost by then), and
 * 0 from there on. When it becomes a signal's number the step is finished and saved, and the call
 * returns 0; the caller re-raises. With opts.plan only the plan is printed to OUT; with opts.merge
 * merged weights are written. */
int tw_train(const struct tw_train_opts *o, char *const *paths, int npaths, struct tw_str options,
        volatile sig_atomic_t *stop, FILE *out, struct tw_err *err);

#endif
