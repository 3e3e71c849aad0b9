/* optim.h - from gradients to new weights: the norm over everything that is trained, clipping, the
 * update, and the learning rate of each step. */
#ifndef TW_OPTIM_H
#define TW_OPTIM_H
#include "nn/model.h"

enum tw_optim_kind { TW_ADAMW, TW_SGD, TW_MUON };

/* By what Muon multiplies the learning rate of a matrix [r, c]: 0.2 sqrt(max(r, c)), with which an
 * update is as large as AdamW's; sqrt(max(1, r / c)); sqrt(r / c). */
enum tw_muon_scale { TW_MUON_RMS, TW_MUON_ORIGINAL, TW_MUON_SPECTRAL };

struct tw_optim_opts {
    enum tw_optim_kind kind;        /* TW_MUON is AdamW for what is not `inner` */
    double beta1, beta2, eps;       /* adamw */
    enum tw_small_kind states;      /* adamw: what moments are kept in */
    double momentum;                /* sgd, where 0 keeps no moments; muon */
    bool nesterov;                  /* muon, as the next two */
    int64_t steps;
    enum tw_muon_scale scale;
    double decay;                   /* decoupled: w -= lr * decay * w */
    bool decay_all;                 /* also norms and biases; else matrices only */
};
/* "adamw,beta1=0.9,beta2=0.999,eps=1e-8,states=f32", "sgd,momentum=0" or
 * "muon,momentum=0.95,nesterov=on,steps=5,scale=rms" with AdamW's settings. Sets all but the decay. */
int tw_optim_parse(struct tw_optim_opts *o, const char *option, const char *text,
        struct tw_err *err);
/* What an optimiser of PARAMS keeps, in bytes; what a step takes besides, which DEV keeps too; and what
 * its file takes. */
size_t tw_optim_room(const struct tw_optim_opts *o, const struct tw_dev *dev,
        const struct tw_params *params, size_t *scratch);
size_t tw_optim_file(const struct tw_optim_opts *o, const struct tw_params *params);

struct tw_optim;

/* Moments (zero) for PARAMS, which must outlive the optimiser. ROWS: the parameters are row-major on
 * the device (an adapter's), not in its own matrix layout (a model's). */
struct tw_optim *tw_optim_open(struct tw_dev *dev, const struct tw_params *params, bool rows,
        const struct tw_optim_opts *o, struct tw_err *err);
void tw_optim_close(struct tw_optim *o);
/* Other settings from now on; the kind must stay, and moments are kept as they are. */
void tw_optim_set(struct tw_optim *o, const struct tw_optim_opts *opts);
/* The moments as bytes, the same on every device for an adapter's; put() also says how many updates
 * they are of. */
size_t tw_optim_bytes(const struct tw_optim *o);
void tw_optim_get(const struct tw_optim *o, void *host);
void tw_optim_put(struct tw_optim *o, const void *host, int64_t updates);

/* The gradients of the next step are divided by BY before all else. */
void tw_optim_divide(struct tw_optim *o, double by);

struct tw_optim_report {
    double norm;                    /* L2 over all gradients (divided), before clipping */
    bool skipped;                   /* the norm was not finite: nothing was changed */
    const char *bad;                /* then the first parameter with such a gradient; else NULL */
};
/* One update from the gradients that are there, which are used up (zeroed after). CLIP 0: none. It may be
 * queued still on return: a device's failure in it is told by the next call that waits. */
int tw_optim_step(struct tw_optim *o, double lr, double clip, struct tw_optim_report *r,
        struct tw_err *err);
/* One update of each of N optimisers on one device, which is what each gets alone: AdamW of adapters in
 * as many launches as one takes, others one after the other. */
struct tw_optim_job {
    struct tw_optim *o;
    double lr, clip;
    struct tw_optim_report r;       /* out */
};
int tw_optim_steps(struct tw_optim_job *j, int64_t n, struct tw_err *err);
/* How many updates were applied: what the bias corrections count. */
int64_t tw_optim_updates(const struct tw_optim *o);
/* Elements and tensors that decay and that do not. */
void tw_optim_groups(const struct tw_optim *o, int64_t n[2], int64_t elems[2]);
/* The name of the first parameter that holds a value that is not finite; NULL: all are. */
const char *tw_optim_bad_weight(struct tw_optim *o, struct tw_err *err);

/* The moments as a safetensors file of row-major F32 tensors, the same on every device; no file
 * where there are none. Moments in fewer bits pass through the gradients, which must be used up then.
 * UPDATES is the caller's to keep. Loading is strict: names and shapes must be those of the
 * parameters. */
int tw_optim_save(struct tw_optim *o, const char *path, struct tw_err *err);
int tw_optim_load(struct tw_optim *o, const char *path, int64_t updates, struct tw_err *err);
/* The same for the F32 weights themselves, where the model's own file is less exact. */
int tw_optim_save_weights(struct tw_optim *o, const char *path, struct tw_err *err);
int tw_optim_load_weights(struct tw_optim *o, const char *path, struct tw_err *err);

/* The learning rate is a pure function of the step, counted from 0 here:
 *     s < warmup:  lr * s / warmup
 *     constant:    lr
 *     linear:      lr * (total - s) / (total - warmup)
 *     cosine:      lr * (1 + cos(pi * (s - warmup) / (total - warmup))) / 2 */
enum tw_schedule_kind { TW_CONSTANT, TW_LINEAR, TW_COSINE };
struct tw_schedule {
    enum tw_schedule_kind kind;
    int64_t warmup, total;
    double lr;
};
/* "constant|linear|cosine,warmup=N" into kind and warmup. */
int tw_schedule_parse(struct tw_schedule *s, const char *option, const char *text,
        struct tw_err *err);
double tw_schedule_lr(const struct tw_schedule *s, int64_t step);

#endif
