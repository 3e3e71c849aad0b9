/* pass.h - one walk of a packed batch through the model, on the device or on the counting device */
#ifndef TW_PASS_H
#define TW_PASS_H
#include "nn/tape.h"

struct tw_rows {                /* what is asked of the head */
    int64_t n;
    int32_t *row, *target;      /* (host) [n] */
    float *temp, *coef;         /* (host) [n]; temp NULL: all 1; coef NULL: none, or not known yet */
    float *coef_mean;           /* (host) [n]; NULL: none */
    float *logp, *entropy, *mean;   /* (host) [n] out; entropy, mean NULL: not wanted */
    int (*coef_fn)(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err);
    void *arg;
    struct tw_row *user;        /* the caller's rows, for coef_fn */
};

/* Between the caller's row I and the head's arrays: what came out, and what goes in. */
static inline void tw_rows_out(struct tw_rows *r, int64_t i)
{
    r->user[i].logp = r->logp[i];
    if (r->entropy)
        r->user[i].entropy = r->entropy[i];
    if (r->mean)
        r->user[i].mean = r->mean[i];
}
static inline void tw_rows_coef(struct tw_rows *r, int64_t i)
{
    r->coef[i] = r->user[i].coef;
    if (r->coef_mean)
        r->coef_mean[i] = r->user[i].coef_mean;
}

struct tw_pass {
    struct tw_model *m;
    struct tw_batch b;
    struct tw_rows rows;        /* a training or scoring pass */
    float *state;               /* (host) [nseq, D] with TW_EMBED, and what tw_model_embed() says of: */
    const float *grad;
    int (*embed_fn)(void *arg, struct tw_err *err);
    void *embed_arg;
    const int32_t *want;        /* (host) decoding: rows whose logits are wanted */
    int64_t nwant;
    float *logits;              /* (host) [nwant, V]; NULL: the device draws: */
    struct tw_choice *choice;   /* [nwant] */
    const uint8_t *allowed;     /* (dev) */
    bool decode, late;          /* late: rows.logp and the like are the model's pinned memory */
    unsigned flags;
    struct tw_arena arena;
};

/* embed.c: what is asked in place of the head of H, the final norm's. COUNTING: nothing is there to read. */
int tw_pass_embed(struct tw_pass *p, struct tw_tape *t, struct tw_var *h, bool counting, struct tw_err *err);
/* later.c: pinned memory until all who wait have been served (NULL: there is none); from now on the pass's rows
 * wait, whose copies are queued, and the balance of its routers, if COUNT (pinned) is not NULL. */
void *tw_late_take(struct tw_model *m, size_t bytes);
void tw_late_add(struct tw_pass *p, const int32_t *count, const float *sum);
/* routing.c: E / rows^2 times the sum over experts, ROWS being tokens times routers. */
double tw_balance_of(const int32_t *count, const float *sum, int64_t E, double rows);
/* The same calls for both: queues the pass on DEV with activations from ST. */
int tw_pass_run(struct tw_pass *p, struct tw_dev *dev, struct tw_stack *st, struct tw_err *err);
/* Counts the pass, makes room and runs it; returns the device's error, with TW_LATER what is known of it. */
int tw_pass_do(struct tw_pass *p, struct tw_err *err);
/* Counts only: the peak of the stack; FLOPs add up in the counting device. */
size_t tw_pass_count(struct tw_pass *p);

#endif
