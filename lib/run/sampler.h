/* sampler.h - many generations in flight on one model: continuous batching over decode states. A
 * request is queued, its prompt is run once (in chunks, beside the decoding of others), its n samples
 * fork the state, and each token of each sample is drawn from (seed, stream, sample, position) alone:
 * neighbours, batch size, chunking and the prefix cache never change a result. With a prefix cache, a
 * prompt that begins as one that is being run waits for it, so that what they share is run once. */
#ifndef TW_SAMPLER_H
#define TW_SAMPLER_H
#include "data/tok.h"
#include "nn/model.h"
#include "run/sampling.h"

enum tw_stop { TW_STOP_NONE, TW_STOP_STOP, TW_STOP_LENGTH, TW_STOP_ABORT, TW_STOP_ERROR };
const char *tw_stop_name(enum tw_stop s);       /* "stop", "length", "abort", "error" */

/* One sample of a request. `token` holds all that was sampled, the end token (and what completed a
 * stop text) included; `text` is decoded without special tokens and ends before a stop text. */
struct tw_completion {
    int32_t *token;
    float *logp;                /* under the policy at `temperature` (1 when greedy), all rows */
    float *sampled_logp;        /* after all processors; NULL when it does not differ */
    int32_t *top_id;            /* [n, top_n], best first; NULL when top_n is 0 */
    float *top_logp;
    int64_t n, cap, top_n;
    int32_t *experts;           /* [nexperts, routers, topk] of the tokens of prompt and completion but
                                 * the last; NULL: the model does not record them */
    int64_t nexperts;
    struct tw_buf text;
    enum tw_stop stop;
    const char *stop_text;      /* the stop text that matched; NULL: none; borrowed */
    int32_t stop_token;         /* the token that ended it; -1: none */
};

struct tw_gen {
    /* The caller's, unchanged by the sampler; all must live until done() was called. */
    const int32_t *prompt;
    int64_t nprompt;
    int64_t n;                  /* samples: those numbered from FIRST on */
    int64_t first;
    struct tw_sampling sampling;
    uint64_t seed, stream;
    int64_t max_tokens;         /* a completion also ends where the model's window does */
    const char *const *stop;    /* texts */
    int64_t nstop;
    const int32_t *stop_token;
    int64_t nstop_token;
    bool ignore_eos;            /* the model's end tokens do not stop; stop and stop_token do */
    bool penalty_prompt;        /* penalties count the prompt's tokens, too */
    int64_t top_logprobs;
    struct tw_adapter *adapter;
    const void *owner;          /* the prefix cache serves requests of one owner only to each other */
    void *user;
    void (*text)(struct tw_gen *g, int64_t sample, struct tw_str more); /* whole characters; may be NULL */
    void (*done)(struct tw_gen *g);     /* all samples ended; out[] is filled; may free the request */
    /* The sampler's. */
    struct tw_completion *out;  /* [n]; the caller frees with tw_gen_free_out() */
    int64_t finished;
    int64_t cached;             /* tokens of the prompt that were not run for it */
    char error[256];            /* why stop is TW_STOP_ERROR */
    struct tw_gen *next;
};
void tw_gen_free_out(struct tw_gen *g);

struct tw_sampler_opts {
    int64_t max_batch;          /* sequences decoded at once */
    int64_t window;             /* prompt and completion together; 0: the model's */
    int64_t chunk;              /* prompt tokens run in one step; 0: a default */
    int64_t cache_tokens;       /* prefix cache: tokens kept; 0: none */
};

struct tw_sampler;
/* TOK may be NULL (then there is no text, and every row of the vocabulary is a token). END (n of
 * them) are the model's end tokens. Nothing is owned but what it makes. */
struct tw_sampler *tw_sampler_open(struct tw_model *m, const struct tw_tok *tok, const int32_t *end,
        int64_t nend, const struct tw_sampler_opts *o, struct tw_err *err);
/* Queues a request. A bad one (prompt empty, too long, ids out of range) is done() at the next step
 * with every sample TW_STOP_ERROR; others are not affected. */
void tw_sampler_add(struct tw_sampler *s, struct tw_gen *g);
/* One step: at most one chunk of prompts and one token of every running sample. 1: more to do, 0: idle,
 * -1: the device failed. */
int tw_sampler_step(struct tw_sampler *s, struct tw_err *err);
int64_t tw_sampler_load(const struct tw_sampler *s);    /* samples queued or running */
int64_t tw_sampler_prefilled(const struct tw_sampler *s);   /* tokens of prompts that were run so far */
/* Ends a request now: its unfinished samples stop with TW_STOP_ABORT and done() is called. */
void tw_sampler_abort(struct tw_sampler *s, struct tw_gen *g);
/* Forgets what the prefix cache keeps of an adapter that is about to be closed. */
void tw_sampler_forget(struct tw_sampler *s, const struct tw_adapter *a);
void tw_sampler_close(struct tw_sampler *s);

/* The end tokens of a model folder: the union of eos_token_id in generation_config.json and
 * config.json, and the tokenizer's EOS; a malformed value is an error. Allocated, *n of them. */
int tw_end_tokens(const char *dir, const struct tw_tok *tok, int32_t **end, int64_t *n,
        struct tw_err *err);

#endif
