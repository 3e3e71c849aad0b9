/* far.h - what tw-train and tw-sample ask of a server, in the words of the Tinker API: a session, models
 * in training, weights, samplers. Tokens go there, and log-probabilities come back; text, losses and
 * schedules stay here. Errors have the server as their place. */
#ifndef TW_FAR_H
#define TW_FAR_H
#include "data/rpc.h"
#include "data/tok.h"
#include "run/engine.h"

/* Where a folder's weights are on a server: DIR/trainer/server.json. */
struct tw_far_path {
    char *server, *path;        /* the server when they were saved; tinker://.. */
};
/* 1, 0: DIR is of this machine, -1. */
int tw_far_read(struct tw_far_path *p, const char *dir, struct tw_err *err);
int tw_far_write(const char *dir, const char *server, const char *path, struct tw_err *err);
void tw_far_path_free(struct tw_far_path *p);

struct tw_far {
    struct tw_rpc *rpc;
    char *session;
    char *base;                 /* the name that the server has for the model, */
    int64_t window;             /* and its tokens; 0: not known */
    int64_t nmodel, nsampler;   /* made so far */
    int (*go_on)(void *arg, struct tw_err *err);        /* asked while results are waited for; NULL */
    void *arg;
};
/* Asks the server of $TW_SERVER what it serves: MODEL, as the user wrote it, by that name, and with the
 * tokenizer TOK (NULL: not known). */
struct tw_far *tw_far_open(const char *model, const struct tw_tok *tok, struct tw_err *err);
/* Begins a session. With FILE its id is kept there; one that FILE names already, of a process that was
 * killed, is ended. */
int tw_far_begin(struct tw_far *f, const char *file, struct tw_err *err);
/* Ends the session: "success", "errored" or "interrupted". */
void tw_far_close(struct tw_far *f, const char *how);

/* A call of PATH with BODY, which is emptied. */
struct tw_call *tw_far_send(struct tw_far *f, const char *path, struct tw_buf *body, unsigned flags);
/* Its answer; C stays the caller's. */
int tw_far_wait(struct tw_far *f, struct tw_call *c, const struct tw_json **out, struct tw_err *err);

struct tw_far_model {
    struct tw_far *f;
    char *id;
    int64_t seq;                /* of its last request */
};
/* O NULL: all weights are trained, where the server offers that. */
int tw_far_create(struct tw_far_model *m, struct tw_far *f, const struct tw_lora_opts *o, bool attn, bool mlp,
        uint64_t seed, struct tw_err *err);
/* From a checkpoint of the server. */
int tw_far_load(struct tw_far_model *m, struct tw_far *f, const char *path, bool optimizer, struct tw_err *err);
void tw_far_model_free(struct tw_far_model *m);

/* Log-probabilities of the samples' tokens, into each one's logp where that is not NULL: 0 where the
 * weight is. WEIGHT NULL: forward only, BASE: with the adapter off. Else WEIGHT[i] [n] in place of each
 * one's own, and gradients of sum -weight logp add up. What the samples say of losses is not looked at. */
int tw_far_pass(struct tw_far_model *m, struct tw_engine_sample *s, int64_t n, float *const *weight,
        bool base, struct tw_err *err);
/* LOSS is what the server's page shows of this step. */
int tw_far_step(struct tw_far_model *m, const struct tw_optim_opts *o, double lr, double clip, double loss,
        struct tw_optim_report *r, struct tw_err *err);
/* Saves under NAME; *PATH (allocated) is where. SAMPLER: only to sample from. */
int tw_far_save(struct tw_far_model *m, const char *name, bool sampler, char **path, struct tw_err *err);

/* The files of the weights at PATH into the folder DIR. */
int tw_far_download(struct tw_far *f, const char *path, const char *dir, struct tw_err *err);
/* The weights at PATH go, in S seconds or at once; where they are gone already, nothing happens. */
int tw_far_remove(struct tw_far *f, const char *path, double s, struct tw_err *err);

/* A sampler of the weights at PATH (NULL: the base); its id, allocated. */
char *tw_far_sampler(struct tw_far *f, const char *path, struct tw_err *err);

#endif
