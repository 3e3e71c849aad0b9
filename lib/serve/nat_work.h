/* nat_work.h - what Twinkle's native API asks of the engine beyond Tinker's: steps that count micro-batches
 * and divide the gradient, schedulers, losses over pairs and references, sums for metrics. All that such a
 * request needs is in its work; what moves from work to work is in the model's state, and so in its
 * snapshots. */
#ifndef TW_NAT_WORK_H
#define TW_NAT_WORK_H
#include "base/buf.h"
#include "nn/infonce.h"
#include <stdbool.h>
#include <stdint.h>

/* Sums between two calculate_metric, of training or of evaluation. */
struct tw_nat_sums {
    double loss, tokens, calls;         /* tokens: of losses that are sums */
    double pairs, chosen, rejected, ref_chosen, ref_rejected, right, refs;
    double n, logp, old, with_old, diff, kl, kl_max, ratio_max, low, high;
};

/* The same of embeddings. */
struct tw_nat_sims {
    double pos, pos_min, pos_max, groups, neg, negs;
};

/* Part of a model's state as it stands in files: members are only added at the end. */
struct tw_nat_state {
    int64_t steps, every;               /* backwards done; so many make an update */
    int64_t sched;                      /* steps of the scheduler */
    int64_t consumed;                   /* samples, as the client said */
    int64_t optim_n, sched_n;           /* which set_optimizer, set_lr_scheduler these are of */
    double count;                       /* what divides the gradient that waits */
    double norm;                        /* of the last gradient */
    char optim[160];                    /* as tw_optim_parse() reads it; empty: Tinker's */
    struct tw_nat_sums sum[2];          /* training, evaluation */
    struct tw_nat_sims sim[2];
};

/* The learning rate by scheduler steps; nat_sched.c. Numbers as the scheduler of that name has them. */
enum tw_nat_sched_kind {
    TW_NAT_CONSTANT, TW_NAT_COSINE_WARMUP, TW_NAT_LINEAR_WARMUP, TW_NAT_COSINE_ANNEALING,
    TW_NAT_STEP_LR, TW_NAT_MULTI_STEP, TW_NAT_LINEAR_LR, TW_NAT_CONSTANT_LR, TW_NAT_EXPONENTIAL,
    TW_NAT_POLYNOMIAL, TW_NAT_RESTARTS, TW_NAT_PARAM,
};
struct tw_nat_sched {
    enum tw_nat_sched_kind kind;
    double a[4];                        /* see the table in nat_sched.c */
    int64_t mark[16], nmark;            /* milestones */
};
double tw_nat_lr(const struct tw_nat_sched *s, double base, int64_t step);

/* One datum beyond struct tw_datum_in. */
struct tw_nat_datum {
    double scale, nll_scale;
    const float *ref;                   /* [n]; NULL */
    bool label;
};

/* Of task "embedding": which sequences are anchors, and what came of it. */
struct tw_nat_embed {
    const bool *begins;                 /* [n]; NULL: there are no labels, and no loss */
    int64_t D;
    float **state;                      /* [n] of [D] */
    struct tw_embed_sums sums;
};

struct tw_nat_fb {
    const struct tw_nat_datum *d;       /* [fb.n] */
    bool eval;                          /* its sums are those of evaluation */
    bool loss;                          /* there is one: it goes into the sums */
    bool policy;                        /* its log-probabilities go into the sums */
    bool backward;
    bool mean;                          /* the loss is a mean: the gradient counts once */
    int64_t every;                      /* 0: as before */
    double lo, hi;                      /* of a ratio that counts as clipped */
    const char *result;                 /* "output", "value", "null" */
    struct tw_nat_embed *embed;         /* NULL: log-probabilities */
};

enum tw_nat_op { TW_NAT_CLIP, TW_NAT_STEP, TW_NAT_ZERO, TW_NAT_LR, TW_NAT_CLIP_STEP, TW_NAT_METRIC,
    TW_NAT_DICT };
struct tw_nat_step {
    enum tw_nat_op op;
    double max_norm;
    int64_t every;                      /* 0: as before */
    int64_t optim_n, sched_n;
    const char *optim;
    double decay, lr;
    struct tw_nat_sched sched;
    bool eval, dpo, grpo, embed; /* calculate_metric: which it is asked for */
    double beta;                        /* DPOMetric */
    double age, since;                  /* seconds of the model, and since the last calculate_metric */
};

/* Of a save, and of a load. */
struct tw_nat_ckpt {
    int64_t consumed;
    bool resume;                        /* resume_from_checkpoint: the counts are the checkpoint's */
    bool counts;                        /* and become the model's */
    int64_t optim_n, sched_n;
    const char *optim;
};

struct tw_worker;
struct tw_pupil;
struct tw_work;
struct tw_engine_sample;
struct tw_err;
struct tw_optim_job;
struct tw_optim_report;
struct tw_engine;
struct tw_jw;

/* nat_work.c, on the engine thread. What of datum I is not Tinker's. */
void tw_nat_sample(const struct tw_work *w, int64_t i, struct tw_engine_sample *s);
/* A forward_backward that went well: counts, sums, and the result's JSON. */
void tw_nat_fb_done(struct tw_pupil *p, struct tw_work *w, float *const *logp, double sum);
/* An optim_step of Tinker's comes: its optimiser is AdamW. */
int tw_nat_tinker(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err);
/* What is asked of P's optimiser and is no update is done: 0. 1: J is the update, after which comes
 * tw_nat_end(). -1: it failed. */
int tw_nat_begin(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, struct tw_optim_job *j,
        struct tw_err *err);
int tw_nat_end(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, const struct tw_optim_report *r,
        struct tw_err *err);
/* DIR/trainer_state.json, and back: what is answered, and where c->counts the model's, too. */
int tw_nat_save(const struct tw_pupil *p, const struct tw_nat_ckpt *c, const char *dir, struct tw_err *err);
/* All of it as DIR/trainer/native, and back from there when it is there. */
int tw_nat_write(const struct tw_pupil *p, const char *dir, struct tw_err *err);
int tw_nat_read(struct tw_pupil *p, const char *dir, struct tw_err *err);
int tw_nat_load(struct tw_pupil *p, const struct tw_nat_ckpt *c, const char *dir, struct tw_buf *json,
        struct tw_err *err);

/* nat_embed.c: the head of P's queue over E, its loss in *SUM. An error of code TW_EMISUSE is the
 * client's. */
int tw_nat_embed(struct tw_worker *k, struct tw_engine *e, struct tw_pupil *p, double *sum,
        struct tw_err *err);
void tw_nat_embed_sums(struct tw_nat_sims *m, const struct tw_embed_sums *s);
void tw_nat_embed_put(struct tw_jw *j, const struct tw_work *w);    /* "embeddings": .. */

/* nat_sums.c */
void tw_nat_sums_add(struct tw_nat_sums *m, const struct tw_work *w, float *const *logp);
/* The reply to calculate_metric; the sums begin anew. */
void tw_nat_metrics(struct tw_nat_state *n, const struct tw_nat_step *s, struct tw_buf *json);

#endif
