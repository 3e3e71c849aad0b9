/* sampler_priv.h - what the files of the sampler share */
#ifndef TW_SAMPLER_PRIV_H
#define TW_SAMPLER_PRIV_H
#include "run/prefix.h"
#include "run/sampler.h"

struct job {                    /* a request whose prompt has entered */
    struct tw_gen *g;
    struct tw_state *state;     /* none while it waits for one that begins the same way */
    int64_t fed;                /* prompt tokens in the state */
    int64_t forked;             /* samples started */
    bool begun;
    float *logits;              /* [V] after the prompt; NULL until it is through */
};

struct run {                    /* a sample that decodes */
    struct tw_gen *g;
    int64_t sample;
    struct tw_state *state;
    struct tw_counts counts;
    struct tw_tok_stream stream;
    struct tw_buf piece;
    size_t shown;               /* bytes of text handed to text() */
    int32_t last;               /* drawn, not in the state yet */
};

struct tw_sampler {
    struct tw_model *model;
    const struct tw_tok *tok;
    const struct tw_ops *ops;
    struct tw_dev *dev;
    int64_t V, window, max_batch, chunk;
    int32_t *end;
    int64_t nend;
    uint8_t *allowed;           /* NULL: all */
    struct tw_gen *head, *tail; /* waiting */
    struct job *job;            /* [max_batch] */
    struct run *run;            /* [max_batch] */
    int64_t njob, nrun;
    struct tw_seq *seq;         /* the step's batch */
    int64_t *want;
    float *logits;              /* [max_batch + jobs, V]; NULL: the device draws, and has */
    uint8_t *allowed_dev;       /* (dev) allowed */
    struct tw_choice *choice;   /* [max_batch] */
    struct tw_draw draw;
    struct tw_prefix *prefix;
    int64_t cache;              /* tokens it keeps */
    int64_t prefilled;
};

/* sampler.c */
void tw_job_drop(struct tw_sampler *s, int64_t i);
/* Takes run I out of the batch; its state may serve later prompts that begin the same way. */
void tw_run_end(struct tw_sampler *s, int64_t i, enum tw_stop why);
/* Lets requests in while there is room for their samples, and jobs begin that need not wait. */
int tw_sampler_admit(struct tw_sampler *s, struct tw_err *err);

/* sampler_step.c: whether the prompt of J is through, and its samples may start */
bool tw_job_ready(const struct tw_sampler *s, const struct job *j);

/* draw.c */
/* What is to be drawn for run I. SEEN (the caller frees) holds what the penalties look at. */
void tw_run_choice(struct tw_sampler *s, int64_t i, struct tw_choice *c, int32_t **seen);
/* Run I goes on by the token that was drawn; the sample may end. Returns 1 when it did. */
int tw_run_take(struct tw_sampler *s, int64_t i, const struct tw_choice *d, struct tw_err *err);
/* Draws the next token of run I from its logits here. Returns 1 when the sample ended. */
int tw_run_draw(struct tw_sampler *s, int64_t i, const float *z, struct tw_err *err);
void tw_run_show(struct run *r, size_t upto);

#endif
