/* attn_priv.h - what attention is to this device, whatever the model calls its parts. Head h of a
 * key is nk numbers at k[row * ldk + h * sk], then dk - nk numbers of pe[row * ldpe], which all
 * heads share; its value dv numbers at v[row * ldv + h * sv]. Gradients lie the same way. */
#ifndef TW_ATTN_PRIV_H
#define TW_ATTN_PRIV_H
#include "nn/cpu/cpu_priv.h"

struct tw_keys {
    float *k, *v, *pe;
    int64_t ldk, sk, ldv, sv, ldpe;
};

struct tw_heads {
    int64_t nh, nkv, dk, nk, dv, window;
    float scale;
    const struct tw_attn_seq *seq;
    int64_t nseq;
    struct tw_keys in;
};

void tw_cpu_heads(struct tw_cpu *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
        const struct tw_heads *a);
/* dpe is of each head for itself: head h's at out->pe + h * spe. */
void tw_cpu_heads_bwd(struct tw_cpu *d, struct tw_tensor *dq, const struct tw_keys *out,
        int64_t spe, const struct tw_tensor *dout, const struct tw_tensor *o, const float *lse,
        const struct tw_tensor *q, const struct tw_heads *a);
/* N keys of head H from row ROW on as rows of dk numbers, *ld apart: where they are, or in ROOM. */
const float *tw_cpu_key_rows(const struct tw_heads *a, int64_t row, int64_t h, int64_t n,
        float *room, int64_t *ld);

/* A call, and a sequence of it. */
struct tw_att {
    struct tw_cpu *d;
    const struct tw_heads *a;
    const struct tw_tensor *q;
    struct tw_tensor *o;
    float *lse;
    float *kv;                  /* blocks of the packed sequences */
    const struct tw_att_seq *seq;
    bool low;                   /* bf16 products */
    int mr, pr;                 /* of their block */
    int64_t align;              /* keys that are taken together: a panel, in bf16 also a tile */
    int64_t group, dvp;         /* query heads of a kv head; dv in whole panels */
    int64_t dkw;                /* words of dk components */
    int64_t own, lds;           /* words of a thread's scratch and of a row of scores */
};

struct tw_att_seq {
    int64_t item;               /* the first of its work items */
    int64_t bk;                 /* keys of a block */
    size_t kv;                  /* where its block begins, words into att.kv */
};

/* Words of one kv head of a block of BK keys. */
int64_t tw_att_words(bool low, int64_t bk, int64_t dk, int64_t dv);
/* The block of sequence S that key POS is in, and there the kv head. */
float *tw_att_block(const struct tw_att *t, int64_t s, int64_t kvh, int64_t pos);
/* All keys and values of the call, into their blocks. */
void tw_att_put(struct tw_att *t);

#endif
