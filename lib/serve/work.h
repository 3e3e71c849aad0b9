/* work.h - what clients ask of the engine: one struct tw_work a request, decoded from its body by
 * whatever thread holds that, queued, done by the one engine thread that owns the device, and handed
 * back with its result. Work of one model is done in the order in which it was submitted; whose turn
 * a submit is (sequence numbers, repeats, gaps) and what names mean (sessions, paths, tenants'
 * rights) is the caller's business.
 *
 *     w = tw_work_read(TW_FORWARD_BACKWARD, &limits, proto, body, err);    NULL: answer 400
 *     w->id = ..; w->tenant = ..; w->done = ..;
 *     tw_worker_submit(worker, w);        done() is called on the engine thread, later
 */
#ifndef TW_WORK_H
#define TW_WORK_H
#include "nn/loss.h"
#include "nn/model.h"
#include "nn/optim.h"
#include "run/sampling.h"
#include "serve/nat_work.h"

struct tw_work;

enum tw_verb {
    TW_CREATE,                  /* a model with a new adapter */
    TW_CREATE_FROM,             /* a model from a checkpoint: create.from, create.optimizer */
    TW_RESTORE,                 /* a model from the snapshot of its state, the file create.from */
    TW_FORWARD_BACKWARD,        /* forward only, too */
    TW_OPTIM_STEP,
    TW_SAVE,                    /* a checkpoint: adapter and trainer/ */
    TW_SAVE_SAMPLER,            /* frozen weights to sample from */
    TW_LOAD,                    /* a checkpoint into a model that exists */
    TW_UNLOAD,                  /* forgets a model */
    TW_SAMPLE,
    TW_DROP_SAMPLER,            /* forgets the frozen weights sample.key: no file of them is written later */
    TW_NVERB,
};

/* Targets [at, at + n) of a datum were sampled, as tokens from OFFSET on of the sequence SEQ, which is
 * borrowed from the body. */
struct tw_span {
    struct tw_str seq;
    int64_t offset, at, n;
};

/* One datum of forward_backward, as the loss sees it. Arrays belong to the work's arena. */
struct tw_datum_in {
    const int32_t *token;       /* [n] */
    int64_t n, k;               /* k targets a position */
    const int32_t *target;      /* [n, k] */
    const float *weight;        /* [n, k]; NULL: all 1 */
    const float *old, *adv;     /* [n]; NULL: none */
    const float *ratio_mask;    /* [n]; NULL: none */
    const float *lo, *hi;       /* [n] bounds of the ratio; NULL: the loss's */
    const float *temp;          /* [n] temperatures of the log-probabilities; NULL: the request's */
    const struct tw_span *span; /* [nspan], of losses that read them */
    int64_t nspan;
};

struct tw_fb_args {
    struct tw_datum_in *d;
    int64_t n, tokens;
    struct tw_loss loss;
    const char *type;           /* loss_fn_output_type */
    bool forward_only;
    float temp;                 /* of the log-probabilities; 0: 1 */
    bool base;                  /* with the adapter off: only forward */
    const struct tw_nat_fb *nat;    /* NULL: of the Tinker API, as the next three */
};

struct tw_create_args {
    int64_t rank;               /* 0: full-parameter training */
    uint64_t seed;
    double alpha;
    bool attn, mlp, unembed;
    const char *targets;        /* in place of the flags, as --lora writes them; NULL */
    bool rslora;
    double dropout;
    const char *from;           /* folder of a checkpoint or snapshot; NULL */
    bool optimizer;             /* TW_CREATE_FROM: with its moments and the count of steps */
    const char *dir;            /* folder of its own, for snapshots of its state; NULL: none */
};

struct tw_optim_args {
    struct tw_optim_opts adam;
    double lr, clip;
    bool told;                  /* the client says what its loss of this step is, for the curves: */
    double loss;
    const struct tw_nat_step *nat;
};

struct tw_save_args {
    const char *dir;            /* the folder to make; it must not exist */
    const char *base;           /* name of the base model that adapter_config.json records */
    const char *key;            /* TW_SAVE_SAMPLER: what samples call these weights */
    bool optimizer;             /* trainer/ as well */
    bool lazy;                  /* TW_SAVE_SAMPLER: the folder may be written later, when room is
                                 * needed or the model's state is snapshot */
    const struct tw_nat_ckpt *nat;
};

struct tw_load_args {
    const char *from;
    bool optimizer;             /* moments and the count of steps, too; else they are reset */
    const struct tw_nat_ckpt *nat;
};

/* One sample as text; everything lives in the work's arena. */
struct tw_sampled {
    const int32_t *token;
    const float *logp;
    int64_t n, top_n;
    const int32_t *top_id;      /* [n, top_n], best first; -1: none */
    const float *top_logp;
    struct tw_str text;         /* without special tokens, up to a stop text */
    bool length;                /* it ended for want of room */
};

struct tw_sample_args {
    const char *key;            /* of the weights; NULL: the base */
    const char *dir;            /* where they are when they are not in memory */
    const int32_t *prompt;
    int64_t nprompt, n, max_tokens;
    struct tw_sampling sampling;
    uint64_t seed, stream;      /* stream: tells prompts of one seed apart */
    bool seeded;                /* by the client; else the caller may set a seed */
    const char *const *stop;
    int64_t nstop;
    const int32_t *stop_token;
    int64_t nstop_token;
    bool no_stop;               /* the model's end tokens do not stop */
    bool penalty_prompt;        /* penalties count the prompt's tokens, too */
    float prompt_temp;          /* of prompt_logprobs; 0: 1 */
    bool prompt_logprobs;
    int64_t last_n;             /* of the prompt to be scored; -1: all */
    int64_t top_prompt, top_sample, alt;    /* k; 0: none */
    const int32_t *target;      /* [nprompt - 1, ntarget], -1: nothing is asked; NULL */
    int64_t ntarget;
    bool record;                /* record_stability_info */
    /* For a caller that wants texts: KEEP fills out[n] in place of the protobuf message, and TEXT, when
     * not NULL, gets whole characters as they come, on the engine thread. */
    bool keep;
    void (*text)(struct tw_work *w, int64_t sample, struct tw_str more);
    struct tw_sampled *out;
    const float *prompt_logp;   /* [nprompt] NaN: none; NULL: was not asked for */
    const int32_t *prompt_top;  /* [nprompt, top_prompt], -1: none; NULL */
    const float *prompt_top_logp;
};

/* What came of it. `proto` holds the protobuf message of forward_backward and sample, `json` the
 * result object of all else; tw_result_json() makes the JSON form of the former for older clients. */
#define TW_ENDING "ending"
struct tw_result {
    const char *category;       /* NULL: it went well; "user", "server"; TW_ENDING: it was not begun
                                 * because the worker ends, and is to be submitted to the next one */
    struct tw_buf error;        /* the text, when category is set */
    struct tw_buf json, proto;
    int64_t tokens;             /* what it cost: trained or read, and sampled */
    int64_t sampled;
    int64_t cached;             /* tokens of the prompt that were known from an earlier one */
    double waited, busy;        /* seconds in the queue, and of the device */
    int64_t turns;              /* of the engine's thread, from when it was seen to when it was done */
    double loss;                /* forward_backward: the sum; optim_step: the gradient's norm */
    int64_t version;            /* optimiser steps of the weights that were used */
};

struct tw_work {
    enum tw_verb verb;
    /* The caller's; tw_work_free() frees what hangs on them. */
    char *id, *tenant;          /* request, and who is to be treated fairly */
    char *model;                /* NULL for TW_SAMPLE, TW_DROP_SAMPLER */
    int64_t seq;                /* names the state after it in snapshots */
    char *refused;              /* not NULL: not done, fails with this text, category user */
    void *user;
    void (*done)(struct tw_work *w);    /* on the engine thread; W is the callee's to free */
    /* From the body. */
    char *session;              /* sampling_session_id; NULL */
    union {
        struct tw_fb_args fb;
        struct tw_create_args create;
        struct tw_optim_args optim;
        struct tw_save_args save;
        struct tw_load_args load;
        struct tw_sample_args sample;
    };
    struct tw_arena arena;      /* that the arguments live in */
    struct tw_result result;
    struct tw_work *next;       /* the engine's */
    void *state;
    double t0;
    int64_t turn0;
};

/* What is known of the model before a request is read. */
struct tw_limits {
    int64_t V, window;          /* tokens; a prompt and what is sampled together */
    int64_t max_rank;
    int64_t max_tokens;         /* of one forward_backward; 0: none */
    int64_t max_samples, max_stop;
    const struct tw_tok *tok;   /* NULL: every row is a token */
    const uint8_t *known;       /* [V] rows that are tokens; NULL: all */
};

struct tw_work *tw_work_new(enum tw_verb verb);
void tw_work_free(struct tw_work *w);
/* Decodes the body of create_model, forward_backward (and the older forward, FORWARD_ONLY), optim_step
 * or asample: arguments, model and session ids, sequence number. PROTO: protobuf, else JSON. What is
 * wrong with the meaning of a training request is in w->refused, so that its number is not lost;
 * NULL: not to be understood, or a bad sampling or creating request: 400 with ERR's text. */
struct tw_work *tw_work_read(enum tw_verb verb, const struct tw_limits *l, bool proto,
        bool forward_only, struct tw_str body, struct tw_err *err);
/* The JSON that clients before 0.25 want of a protobuf result. */
int tw_result_json(enum tw_verb verb, struct tw_str proto, struct tw_buf *json, struct tw_err *err);

struct tw_worker_opts {
    const char *model;          /* MODEL as users write it */
    const char *device;
    int64_t threads;
    int dtype;                  /* enum tw_dtype; -1: f32 on a CPU, bf16 on a GPU */
    int64_t max_adapters;       /* in device memory, at most */
    int64_t memory;             /* bytes to plan for at most; 0: what is free */
    int64_t max_rank;
    int64_t window;             /* 0: the model's */
    int64_t max_batch;          /* sequences decoded at once; 0: a default */
    int64_t micro_tokens;       /* of a pass; 0: a default */
    int64_t cache_tokens;       /* of prompts, kept for those that begin the same way; 0: none */
    const char *swap;           /* folder for what is swapped out */
    bool full;                  /* one model may train all weights */
    bool exact;                 /* sampling and training give the same bits: struct tw_model_opts */
    int64_t snapshot_every;     /* optimiser steps; 0: never */
    bool last_snapshots;        /* at the end, of what came since: somebody will read them */
    /* A model's state up to and with request SEQ is in PATH (a file; of a whole model a folder), for
     * TW_RESTORE with the same create arguments: on a thread of the worker. Older ones are the callee's
     * to remove. */
    int (*snapshot)(void *arg, const char *model, int64_t seq, const char *path);
    void *arg;
};

struct tw_worker;
/* Loads the model and starts the engine thread. */
struct tw_worker *tw_worker_open(const struct tw_worker_opts *o, struct tw_err *err);
const struct tw_limits *tw_worker_limits(const struct tw_worker *k);
const struct tw_model_info *tw_worker_info(const struct tw_worker *k);
const char *tw_worker_dir(const struct tw_worker *k);   /* of the base model */
/* Any thread. */
void tw_worker_submit(struct tw_worker *k, struct tw_work *w);
/* A sample that nobody waits for any more: it fails, soon. Others are not affected. */
void tw_worker_cancel(struct tw_worker *k, const char *id);
struct tw_worker_stat {
    int64_t queued, running;            /* requests; samples that decode */
    int64_t models, resident, swapped, snapshots;
    int64_t tokens_trained, tokens_prompt, tokens_sampled, steps, passes, merged;
    int64_t step_passes;                /* optimiser steps that were done together count once */
    int64_t tokens_prefilled;           /* of prompts, run before sampling */
    int64_t cache_hits, tokens_cached;  /* requests that began with a prompt that was known, and its tokens */
    double busy_train, busy_sample;     /* seconds of the device */
    size_t memory;                      /* bytes of the device */
    size_t plan_pass, plan_adapter;     /* of a pass, and of an adapter of the largest rank that trains */
};
void tw_worker_stat(struct tw_worker *k, struct tw_worker_stat *out);
/* Ends the thread. What is queued or under way comes back as TW_ENDING; with DRAIN training that is
 * queued is done first. Where there are snapshots, each model's state is saved. */
void tw_worker_close(struct tw_worker *k, bool drain);

#endif
