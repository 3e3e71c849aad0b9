/* sampling.h - from one row of logits to one token. Order of the processors: penalties, temperature,
 * top-k, top-p (on what top-k left), min-p. */
#ifndef TW_SAMPLING_H
#define TW_SAMPLING_H
#include "base/err.h"
#include "base/mem.h"
#include <stdint.h>

struct tw_sampling {
    double temperature;         /* 0: greedy, the lowest id wins a tie */
    int64_t top_k;              /* 0: off */
    double top_p;               /* 1: off. The token that reaches top_p is kept */
    double min_p;               /* 0: off. Keeps p >= min_p * max p */
    double repetition;          /* 1: off. Logits of seen tokens: divided if positive, else multiplied */
    double presence, frequency; /* 0: off. Subtracted once, and once for each time seen */
};

/* How often each token was seen; what the penalties look at. Zero-initialise. */
struct tw_count {
    int32_t id, n;              /* n 0: a free slot */
};
struct tw_counts {
    struct tw_count *slot;
    int64_t n, cap;
};
void tw_counts_add(struct tw_counts *c, int32_t id);
void tw_counts_free(struct tw_counts *c);

/* Scratch for one draw at a time over V logits. */
struct tw_cand {
    float p;
    int32_t id;
};
struct tw_draw {
    int64_t V;
    float *z, *p;
    struct tw_cand *cand;
};
void tw_draw_init(struct tw_draw *d, int64_t V);
void tw_draw_free(struct tw_draw *d);

struct tw_drawn {
    int32_t id;
    bool processed;             /* penalties or truncation were on: sampled_logp differs */
    float sampled_logp;         /* log-probability after all processors; 0 when greedy */
};

/* Draws from logits Z with the uniform number U in [0, 1). ALLOWED (V bytes, NULL: all) bars ids that
 * the tokenizer has no token for. Fails when no finite logit is left. The result depends on nothing
 * but the arguments: not on the processor, nor on other rows. */
int tw_sampling_draw(struct tw_draw *d, const struct tw_sampling *s, const float *z,
        const uint8_t *allowed, const struct tw_counts *counts, double u, struct tw_drawn *out,
        struct tw_err *err);

bool tw_sampling_processed(const struct tw_sampling *s, int64_t V);     /* as in struct tw_drawn */
bool tw_sampling_penalises(const struct tw_sampling *s);

/* The K best allowed ids of Z, best first (ties: lower id first). Returns how many. */
int64_t tw_sampling_top(struct tw_draw *d, const float *z, const uint8_t *allowed, int64_t k,
        int32_t *id);

#endif
