/* train_priv.h - the trainer, shared by the files train*.c */
#ifndef TW_TRAIN_PRIV_H
#define TW_TRAIN_PRIV_H
#include "base/log.h"
#include "nn/ckpt.h"
#include "run/data.h"
#include "run/engine.h"
#include "run/train.h"

/* An option that a resumed run must not change: its name and its meaning as text. */
struct tw_setting {
    const char *option;
    char *text;
};

struct tw_trainer {
    const struct tw_train_opts *o;
    char *const *paths;
    int npaths;
    struct tw_str options;
    volatile sig_atomic_t *stop;
    FILE *out;

    struct tw_loss loss;                /* parsed options */
    enum tw_loss_scale scale;
    struct tw_optim_opts optim_opts;
    struct tw_schedule schedule;        /* total: 0 when a stream decides */
    struct tw_lora_opts lora;
    char *lora_targets, *lora_init;
    bool use_lora, shuffle, shuffle_auto;
    uint64_t shuffle_seed;
    enum tw_dtype dtype;
    struct tw_setting setting[24];
    int nsetting;

    char *model_dir, *base;             /* the folder, and the name that an adapter records */
    char *adapter_dir;                  /* --adapter, or NULL */
    struct tw_dev *dev, *count_dev;
    struct tw_model *model, *count_model;
    struct tw_adapter *adapter, *count_adapter;
    const struct tw_params *params;
    struct tw_optim *optim;
    struct tw_engine engine;
    struct tw_chat *chat;
    struct tw_data *data, *eval;
    struct tw_tally tally, eval_tally;
    struct tw_metrics *metrics, *copy;
    int lock;                           /* of RUN; -1 */
    struct tw_arena arena;              /* of a step */

    int64_t per_epoch;                  /* steps; 0 for a stream */
    int64_t step;                       /* done so far */
    int64_t skips;                      /* in a row */
    int64_t trained;                    /* samples of all steps */
    int64_t dropped;                    /* rollouts that were put aside */
    int64_t prompts;                    /* prompts whose rollouts are all trained or put aside */
    int64_t tokens;                     /* of all steps */
    double best;                        /* evaluation loss */
    int64_t best_step;                  /* -1: none yet */
    int64_t bad_evals;                  /* since the best */
    int64_t saved, evaled;              /* the step that was last saved, evaluated; -1 */
    bool ended;                         /* early stop, or the stream's end */
    bool resuming;                      /* from a checkpoint, not from nothing */
    bool moved;                         /* an update with a gradient and a learning rate was made */
    int64_t updates, metrics_bytes, stream_n;   /* as a checkpoint says */
    uint64_t stream_hash;
    size_t peak_plan;                   /* bytes, of the largest pass */
    size_t reserve;                     /* its activations; 0: a stream's are not known */
    bool touched;                       /* all of the memory is at hand */
    char last[96];                      /* of the last step, for the progress line */
};

/* train_opts.c: the text options. tw_train_settings() needs the data and the model. */
int tw_train_parse(struct tw_trainer *t, struct tw_err *err);
int tw_train_settings(struct tw_trainer *t, struct tw_err *err);

/* train_run.c: the folder RUN. */
int tw_run_enter(struct tw_trainer *t, struct tw_err *err);         /* makes and locks it */
void tw_run_leave(struct tw_trainer *t);
/* The newest checkpoint that verifies, its folder in *DIR (NULL: none); skipped ones are named. */
int tw_run_newest(struct tw_trainer *t, char **dir, struct tw_err *err);
int tw_run_start(struct tw_trainer *t, struct tw_err *err);         /* config.json, metrics */
int tw_run_event(struct tw_trainer *t, const char *event, void (*put)(struct tw_jw *w, void *arg),
        void *arg, struct tw_err *err);
int tw_run_save(struct tw_trainer *t, struct tw_err *err);
int tw_run_publish(struct tw_trainer *t, struct tw_err *err);
/* Removes what an earlier run said to a sampler. */
void tw_run_unpublish(struct tw_trainer *t);
/* Only RUN/policy.json: the counts, and whether the training has all it wanted. */
int tw_run_policy(struct tw_trainer *t, bool done, struct tw_err *err);
/* At the end of the rollouts: were those all that the sampler handed out? */
int tw_run_rollouts_end(struct tw_trainer *t, struct tw_err *err);
/* Weights are published and a sampler may follow them. */
static inline bool tw_train_publishes(const struct tw_trainer *t)
{
    return t->o->publish == 1 || (t->o->publish == 0 && t->loss.policy);
}
size_t tw_run_ckpt_size(const struct tw_trainer *t);

/* train_state.c: trainer/state.json. */
int tw_state_write(const struct tw_trainer *t, const char *dir, struct tw_err *err);
int tw_state_read(struct tw_trainer *t, const char *dir, struct tw_err *err);
/* Compares the settings of the run in DIR with those of now. */
int tw_state_compare(const struct tw_trainer *t, const char *dir, struct tw_err *err);

/* train_step.c. */
int tw_train_step(struct tw_trainer *t, bool *end, struct tw_err *err);
int tw_train_eval(struct tw_trainer *t, struct tw_err *err);
/* The number of the sample at position I of an epoch. */
int64_t tw_train_order(const struct tw_trainer *t, int64_t epoch, int64_t i);

/* train_plan.c: counts on the counting device; chooses recomputation; refuses what cannot fit.
 * OUT (may be NULL) gets the plan. */
int tw_train_plan(struct tw_trainer *t, FILE *out, struct tw_err *err);
/* Adds to an error of code TW_ENOMEM what the training needs and what would help. */
void tw_train_no_memory(struct tw_trainer *t, struct tw_err *err);
size_t tw_train_moments(const struct tw_trainer *t);    /* bytes of the optimiser's */

/* train_merge.c. */
int tw_train_merge(const struct tw_train_opts *o, struct tw_err *err);

/* train.c: what train_merge.c needs too. */
int tw_train_device(const struct tw_train_opts *o, struct tw_dev **dev, struct tw_err *err);
char *tw_train_base_name(const char *model);

#endif
