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
    bool routed_experts, penalty_prompt, ignore_eos, prompt_logprobs, score, unordered, resume, chat;
    int dtype, thinking, control;
};

/* What the modes of the command share: model, tokenizer, template, adapters, sampler. */
struct tw_session {
    const struct tw_sample_opts *o;
    char *dir;
    struct tw_dev *dev;
    struct tw_model *model;
    struct tw_chat *chat;
    const struct tw_tok *tok;
    struct tw_named_adapter {
        const char *name;           /* as the user wrote it */
        struct tw_adapter *adapter;
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
/* Other weights, from another folder, in the place of the model's; nothing may be in flight. */
int tw_session_reload(struct tw_session *s, const char *dir, struct tw_err *err);
/* Fills what every request of this session has in common. */
void tw_session_gen(const struct tw_session *s, struct tw_gen *g);

/* The adapter a record asks for by its key "adapter" (null: the base); without the key the only one there
 * is, if any. NAME is NULL for the base. */
int tw_record_adapter(const struct tw_session *s, const struct tw_json *rec, struct tw_adapter **a,
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
int tw_sample_score(struct tw_session *s, char *const *paths, int npaths, struct tw_err *err);
/* Talks with who sits at stdin; OUT is the terminal. */
int tw_sample_chat(struct tw_session *s, FILE *out, struct tw_err *err);

/* Log-probabilities of TOKEN[1..n) under ADAPTER at TEMP, LOGP[0] untouched. */
int tw_score_tokens(struct tw_model *m, struct tw_adapter *a, const int32_t *token, int64_t n,
        float temp, float *logp, struct tw_err *err);
/* A JSON list of N numbers; a value that is not finite is null (so is FIRST_NULL's first). */
void tw_write_logprobs(struct tw_jw *w, const float *logp, int64_t n, bool first_null);

#endif
