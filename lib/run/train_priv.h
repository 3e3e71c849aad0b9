/* train_priv.h - the trainer, shared by the files train*.c */
#ifndef TW_TRAIN_PRIV_H
#define TW_TRAIN_PRIV_H
#include "base/log.h"
#include "nn/ckpt.h"
#include "nn/infonce.h"
#include "run/data.h"
#include "run/engine.h"
#include "run/far.h"
#include "run/loss_exec.h"
#include "run/train.h"

struct tw_trainer;

/* An option that a resumed run must not change: its name and its meaning as text. */
struct tw_setting {
    const char *option;
    char *text;
};

/* The reference policy. */
struct tw_train_ref {
    char *dir, *adapter_dir;            /* of a model of its own, of an adapter; NULL: none */
    struct tw_model *model, *count_model;       /* NULL: the one that is trained */
    struct tw_adapter *adapter, *count_adapter; /* NULL: the base, with the adapter off */
    struct tw_engine engine;            /* of its own model */
    size_t bytes;                       /* what it takes, as the last plan has it */
};

struct tw_step_line;

/* Where the weights are and who computes: this machine (train_local.c), or a server (train_remote.c). */
struct tw_learner {
    /* Refuses options that it cannot honour. */
    int (*check)(struct tw_trainer *t, struct tw_err *err);
    /* The model's sizes, into count_model, count_adapter and params; no weight is read. */
    int (*look)(struct tw_trainer *t, struct tw_err *err);
    /* Memory; OUT (may be NULL) gets the plan. */
    int (*plan)(struct tw_trainer *t, FILE *out, struct tw_err *err);
    /* Weights, adapter and moments: new, or those of the checkpoint FROM. */
    int (*open)(struct tw_trainer *t, const char *from, struct tw_err *err);
    /* As tw_engine_forward_backward(), tw_engine_score(). */
    int (*backward)(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
            struct tw_err *err);
    int (*score)(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
            struct tw_err *err);
    /* The same of the reference policy. */
    int (*reference)(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, struct tw_err *err);
    /* LOSS: the step's, as it was just computed. */
    int (*step)(struct tw_trainer *t, double lr, double loss, struct tw_optim_report *r, struct tw_err *err);
    /* What a line of metrics says of the machine; DT: seconds of the step. */
    void (*measure)(struct tw_trainer *t, struct tw_step_line *line, double dt);
    /* A checkpoint, and the weights alone for a sampler, into the folder DIR. */
    int (*save)(struct tw_trainer *t, const char *dir, struct tw_err *err);
    int (*publish)(struct tw_trainer *t, const char *dir, struct tw_err *err);
    /* The folder PARENT/NAME, saved or published, is about to go. */
    void (*drop)(struct tw_trainer *t, const char *parent, const char *name);
    void (*close)(struct tw_trainer *t, bool failed);
};
extern const struct tw_learner tw_learner_local, tw_learner_remote;

struct tw_trainer {
    const struct tw_train_opts *o;
    const struct tw_learner *learner;
    struct tw_far *far;                 /* a server's side of it; NULL: there is none */
    struct tw_far_model far_model, far_ref;     /* what is trained there, and the reference of --ref */
    bool far_skip;                      /* the step's derivatives are not finite: nothing was sent */
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
    struct tw_setting setting[28];
    int nsetting;

    char *model_dir, *base;             /* the folder, and the name that an adapter records */
    char *adapter_dir;                  /* --adapter, or NULL */
    struct tw_dev *dev, *count_dev;
    struct tw_model *model, *count_model;
    struct tw_adapter *adapter, *count_adapter;
    const struct tw_params *params;
    struct tw_optim *optim;
    struct tw_engine engine;
    struct tw_train_ref ref;
    struct tw_loss_exec *exec;          /* --loss-exec; NULL: none */
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
    bool cut;                           /* a signal came while a step waited for its records */
    bool resuming;                      /* from a checkpoint, not from nothing */
    bool moved;                         /* an update with a gradient and a learning rate was made */
    int64_t updates, metrics_bytes;     /* as a checkpoint says */
    int64_t stream_n;                   /* records of a stream that went into steps, */
    uint64_t stream_hash;               /* and their fingerprint */
    double waited, published;           /* seconds for the step's records, for the last publishing */
    double since;                       /* when the last step ended; 0: none did */
    double spent[3];                    /* seconds: waiting for records, training, publishing */
    size_t peak_plan;                   /* bytes, of the largest pass */
    size_t taken;                       /* of the GPU, before anything of ours was there */
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
/* At the end of the rollouts: were those all that the sampler handed out? HELD: not trained yet. */
int tw_run_rollouts_end(struct tw_trainer *t, int64_t held, struct tw_err *err);
/* In the middle of a step: is there still someone who writes rollouts, or has the sampler done its work? */
int tw_run_pipe_alive(struct tw_trainer *t, struct tw_err *err);
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

/* train_step.c. *END: there was nothing left to train on. */
int tw_train_step(struct tw_trainer *t, bool *end, struct tw_err *err);
int tw_train_eval(struct tw_trainer *t, struct tw_err *err);

/* train_batch.c: the samples of a step as the engine takes them, in their order. */
struct tw_step_part {
    struct tw_str name;
    double n, sum, sum2;                /* of one reward: how many, sum, sum of squares */
};
#define TW_STEP_PARTS 32
struct tw_step_batch {
    struct tw_engine_sample *s;
    int64_t *id;                        /* the number in the data, for messages */
    int64_t n, cap;
    int64_t samples, tokens, supervised, sequences;
    int64_t pairs, chosen;              /* preference pairs, and the chosen ones' supervised tokens */
    int64_t dropped;                    /* rollouts that were put aside meanwhile */
    double reward, reward2;             /* sums of rewards and of their squares */
    struct tw_step_part *part;          /* the rewards by name */
    int64_t npart;
};
extern const struct tw_loss tw_step_plain;      /* cross-entropy */
/* The number of the sample at position I of an epoch. */
int64_t tw_train_order(const struct tw_trainer *t, int64_t epoch, int64_t i);
/* The batch of the next step. Empty: the end of a stream. With t->cut it is of no use. */
int tw_step_gather(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err);
/* Adds the sequences of D that train something; the others cannot change any number. */
void tw_step_add(struct tw_trainer *t, struct tw_step_batch *b, const struct tw_datum *d, int64_t epoch);
/* What each sample's sum is multiplied with, so that the sums add up to the loss of the step. */
void tw_step_scales(const struct tw_trainer *t, struct tw_step_batch *b, enum tw_loss_scale scale);
/* Log-probabilities of the reference policy, into each sample's ref. */
int tw_step_reference(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err);

/* train_metrics.c: what a line of metrics says of a step. */
/* Sums over preference pairs, [0] of the chosen, [1] of the rejected; right: how many pairs prefer the
 * chosen one, by its gain over the reference where there is one. pairs() adds those of a batch. */
struct tw_step_pairs {
    double logp[2], ref[2];
    int64_t n, right;
};
void tw_step_pairs(struct tw_step_pairs *p, const struct tw_step_batch *b);
struct tw_step_line {
    double loss, lr, norm, rate, mfu;
    double balance, aux;                /* of routers: the loss that balances, its coefficient */
    size_t memory;
    double wait, busy, publish;         /* seconds: for records, all else since the last step, for the
                                         * weights that the sampler got before this step */
    int64_t tokens;
    const struct tw_loss *l;
    const struct tw_step_batch *b;      /* of a step whose loss has more to say */
    const struct tw_step_pairs *pairs;  /* of an evaluation */
    struct tw_embed_sums embed;         /* of a loss of embeddings */
    const struct tw_json *own;          /* of --loss-exec, or NULL */
};
void tw_step_put(struct tw_jw *w, void *line);          /* for tw_run_event() */
void tw_step_put_eval(struct tw_jw *w, void *line);
void tw_step_progress(struct tw_trainer *t, const struct tw_step_line *l);

/* train_embed.c: the loss of a step's embeddings into SUMS, and each group's part into its anchor's sum; with
 * BACK the gradients, too. */
int tw_step_embed(struct tw_trainer *t, struct tw_step_batch *b, bool back, struct tw_embed_sums *sums,
        struct tw_err *err);
void tw_step_put_embed(struct tw_jw *w, const struct tw_embed_sums *s);

/* train_ref.c: --ref. find: which folders; count: on the counting device; open: for use. */
bool tw_same_folder(const char *a, const char *b);      /* both exist, and as one */
int tw_ref_find(struct tw_trainer *t, struct tw_err *err);
int tw_ref_count(struct tw_trainer *t, struct tw_err *err);
int tw_ref_open(struct tw_trainer *t, struct tw_err *err);
void tw_ref_close(struct tw_trainer *t);
/* Bytes it takes beside the training, in passes of TOKENS. -1: an error. */
int tw_ref_bytes(const struct tw_trainer *t, int64_t tokens, int64_t nseq, int64_t longest, size_t *bytes,
        struct tw_err *err);
/* What it is, so that a resumed run has the same. */
int tw_ref_print(const struct tw_trainer *t, char out[64], struct tw_err *err);
/* Do samples get log-probabilities of a reference? */
static inline bool tw_train_compares(const struct tw_trainer *t)
{
    return t->loss.reference || (t->o->loss_exec && t->o->ref);
}

/* train_plan.c: counts on the counting device; chooses recomputation; refuses what cannot fit.
 * OUT (may be NULL) gets the plan. */
int tw_train_plan(struct tw_trainer *t, FILE *out, struct tw_err *err);
/* Adds to an error of code TW_ENOMEM what the training needs and what would help. */
void tw_train_no_memory(struct tw_trainer *t, struct tw_err *err);

/* train_merge.c. */
int tw_train_merge(const struct tw_train_opts *o, struct tw_err *err);

/* train_local.c: count_model, count_adapter and params; WEIGHTS: their files are looked into. */
int tw_train_count(struct tw_trainer *t, bool weights, struct tw_err *err);

/* train.c: what train_merge.c needs too. */
int tw_train_device(const struct tw_train_opts *o, struct tw_dev **dev, struct tw_err *err);
char *tw_train_base_name(const char *model);

#endif
