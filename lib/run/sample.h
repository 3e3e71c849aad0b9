/* sample.h - tw-sample: records in, rollouts out. */
#ifndef TW_SAMPLE_H
#define TW_SAMPLE_H
#include "base/io.h"
#include "base/opt.h"
#include "data/chat.h"
#include "run/sampler.h"

struct tw_sample_opts {
    struct tw_common common;
    const char *model, *template_file, *system, *out, *device, *policy;
    struct tw_list adapter, stop, template_arg;
    struct tw_list stop_token;      /* decimal ids */
    int64_t n, max_tokens, top_k, seed, logprobs, max_lag, max_batch, max_model_len, threads, prefix_cache;
    double temperature, top_p, min_p, repetition, presence, frequency;
    bool routed_experts, penalty_prompt, ignore_eos, prompt_logprobs, score, embed, unordered, resume, chat,
            exact;
    int dtype, thinking, control;
};

/* What is sampled from: the model with an adapter or none. */
struct tw_from {
    struct tw_adapter *adapter; /* of this machine; NULL: the base */
    char *sampler;              /* a server's id for it; NULL: of this machine */
    int64_t seq;                /* requests to it so far */
};

struct tw_session;
/* A sequence to be scored. */
struct tw_scoring {
    const int32_t *token;
    int64_t n;
    struct tw_from *from;
    float *logp;                /* out: [n], the first untouched */
};

/* Who computes: this machine (sample_local.c), or a server (sample_remote.c). */
struct tw_source {
    /* The model: its sizes at least. Refuses options that it cannot honour. */
    int (*open)(struct tw_session *s, struct tw_err *err);
    /* Ready to sample. */
    int (*ready)(struct tw_session *s, struct tw_err *err);
    /* Other weights, from the folder DIR, in the place of the model's; nothing may be in flight. */
    int (*reload)(struct tw_session *s, const char *dir, struct tw_err *err);
    /* The weights that ADAPTER, as a user writes it, names. */
    int (*from)(struct tw_session *s, const char *adapter, struct tw_from *from, struct tw_err *err);
    void (*forget)(struct tw_session *s, struct tw_from *from);
    /* As tw_sampler_add(), tw_sampler_step(), tw_sampler_load(), tw_sampler_abort(). */
    void (*add)(struct tw_session *s, struct tw_gen *g, struct tw_from *from);
    int (*step)(struct tw_session *s, struct tw_err *err);
    int64_t (*load)(const struct tw_session *s);
    void (*abort)(struct tw_session *s, struct tw_gen *g);
    /* Log-probabilities at TEMP. */
    int (*score)(struct tw_session *s, struct tw_scoring *q, int64_t n, float temp, struct tw_err *err);
    void (*close)(struct tw_session *s);
};
extern const struct tw_source tw_source_local, tw_source_remote;

/* What the modes of the command share: model, tokenizer, template, adapters, sampler. */
struct tw_session {
    const struct tw_sample_opts *o;
    char *dir;
    struct tw_dev *dev;
    const struct tw_source *source;
    struct tw_model *model;         /* with a server: its sizes alone */
    struct tw_dev *count_dev;
    struct tw_from base;
    struct tw_far_sampling *far;    /* a server's side of it */
    struct tw_chat *chat;
    const struct tw_tok *tok;
    struct tw_named_adapter {
        const char *name;           /* as the user wrote it */
        struct tw_from from;
    } *adapter;
    int nadapter;
    int32_t *end, *stop_token;
    int64_t nend, nstop_token;
    const char **stop;              /* stop texts that are no special token */
    int64_t nstop;
    struct tw_sampler *sampler;
};
/* S must be zeroed; on failure it is the caller's to close as well. */
int tw_session_open(struct tw_session *s, const struct tw_sample_opts *o, struct tw_err *err);
void tw_session_close(struct tw_session *s);
/* Fills what every request of this session has in common. */
void tw_session_gen(const struct tw_session *s, struct tw_gen *g);

/* The adapter a record asks for by its key "adapter" (null: the base); without the key the only one there
 * is, if any. NAME is NULL for the base. */
int tw_record_adapter(struct tw_session *s, const struct tw_json *rec, struct tw_from **from,
        const char **name, struct tw_err *err);

/* Where the lines go: stdout, -o FILE by rename, or with --resume the end of FILE, of which `skip`
 * records are done. _close takes the run's result, and gives the command's. */
struct tw_sample_out {
    FILE *fp;
    const char *name;
    struct tw_out file;
    int64_t skip;
};
int tw_sample_out_open(const struct tw_sample_opts *o, int64_t n, struct tw_sample_out *out,
        struct tw_err *err);
int tw_sample_out_close(const struct tw_sample_opts *o, struct tw_sample_out *out, int ret,
        struct tw_err *err);

int tw_sample_records(struct tw_session *s, char *const *paths, int npaths, struct tw_err *err);
/* Or with opts.embed the embeddings. */
int tw_sample_score(struct tw_session *s, char *const *paths, int npaths, struct tw_err *err);
/* Talks with who sits at stdin; OUT is the terminal. */
int tw_sample_chat(struct tw_session *s, FILE *out, struct tw_err *err);

/* A JSON list of N numbers; a value that is not finite is null (so is FIRST_NULL's first). */
void tw_write_logprobs(struct tw_jw *w, const float *logp, int64_t n, bool first_null);

#endif
