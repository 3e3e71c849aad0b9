/* batch.h - a packed batch: [T] tokens of several sequences, end to end, without padding */
#ifndef TW_BATCH_H
#define TW_BATCH_H
#include "nn/model_priv.h"

/* Adjacent sequences of one adapter. */
struct tw_span {
    int64_t t0, t1;
    struct tw_adapter *a;
    int64_t slot;               /* the columns of the adapters before it */
};

struct tw_batch {
    const struct tw_seq *seq;   /* borrowed */
    int64_t nseq, T, nspan;
    int64_t *t0;                /* [nseq + 1] first row of each sequence */
    int64_t end;                /* one more than the largest position */
    int64_t max_r;              /* of the adapters in it; 0: none */
    int64_t ranks;              /* columns of all its adapters; 0: the weights have no room for them */
    int32_t *id, *pos;          /* (host) [T] */
    uint64_t *drop;             /* (host) [T]; NULL: no dropout */
    struct tw_span *span;
    struct tw_attn_seq *attn;   /* [nseq] */
    struct tw_delta_seq *delta; /* [nseq] */
    void *const **page[TW_KV_KINDS];    /* [nseq] each one's blocks of keys and values, where states: */
    bool states;                /* the sequences have decode states */
};

/* Whether sequence I has tokens of the vocabulary and an adapter of the model. */
int tw_batch_check(const struct tw_model *m, const struct tw_seq *s, int64_t i, struct tw_err *err);
/* Checks and packs NSEQ sequences. Everything lives in A. FLAGS: TW_DROPOUT. */
int tw_batch_pack(struct tw_batch *b, struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        unsigned flags, struct tw_arena *a, struct tw_err *err);
/* Names the blocks of layer L's keys and values in attn; nothing where there are no states. */
void tw_batch_layer(const struct tw_batch *b, const struct tw_layer *l);

#endif
