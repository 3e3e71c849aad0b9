/* attn_priv.h - what attention is to this device, whatever the model calls its parts. Head h of a
 * key is nk numbers at k[row * ldk + h * sk], then dk - nk numbers of pe[row * ldpe], which all
 * heads share; its value dv numbers at v[row * ldv + h * sv]. Gradients lie the same way. */
#ifndef TW_ATTN_PRIV_H
#define TW_ATTN_PRIV_H
#include "nn/cpu/cpu_priv.h"

struct tw_keys {
    float *k, *v, *pe;          /* k and v BF16 where LOW, without pe; elements all the same */
    int64_t ldk, sk, ldv, sv, ldpe;
    bool low;
};

struct tw_heads {
    int64_t nh, nkv, dk, nk, dv, window;
    float scale;
    const struct tw_attn_seq *seq;
    int64_t nseq;
    struct tw_keys in;
    const struct tw_mat *next;  /* what multiplies the outputs; NULL: not known */
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
    bool tiles;                 /* whole heads on the tile unit (attn_tiles.c) */
    int mr, pr;                 /* of their block */
    int64_t align;              /* keys that are taken together: a panel, in bf16 also a tile */
    int64_t group, dvp;         /* query heads of a kv head; dv in whole panels */
    int64_t dkw;                /* words of dk components */
    int64_t own, lds;           /* words of a thread's scratch and of a row of scores */
    int asks;                   /* tiles: lines of the next weights that a step asks for */
};

/* What a thread has still to ask for, at the beginning of its scratch. */
struct tw_ask {
    const char *at, *end;
};
#define TW_ASK_WORDS 16

struct tw_att_seq {
    int64_t item;               /* the first of its work items */
    int64_t bk;                 /* keys of a block */
    size_t kv;                  /* where its block begins, words into att.kv */
};

/* Words of one kv head of a block of BK keys. */
int64_t tw_att_words(bool low, int64_t bk, int64_t dk, int64_t dv);
/* The block of sequence S that key POS is in, and there the kv head. */
float *tw_att_block(const struct tw_att *t, int64_t s, int64_t kvh, int64_t pos);
/* A row's query, counted from the first of the call, and its head. */
struct tw_att_place {
    int64_t q, h, last;         /* last: of the group */
};

static inline struct tw_att_place tw_att_place(const struct tw_att *t, int64_t s, int64_t kvh, int64_t r)
{
    int64_t h = kvh * t->group;

    return (struct tw_att_place){ t->a->seq[s].q0 + r / t->group, h + r % t->group, h + t->group - 1 };
}

static inline void tw_att_next(const struct tw_att *t, struct tw_att_place *p)
{
    p->h++;
    if (p->h > p->last) {
        p->h -= t->group;
        p->q++;
    }
}

/* What is to become of a row whose weights are not divided by their SUM yet; packed, it is there already. */
static inline void tw_att_out(const struct tw_att *t, const struct tw_att_place *p, const float *x, float max,
        float sum)
{
    if (!t->o->packed)
        t->d->k->epi(tw_row(t->o, p->q) + p->h * t->a->dv, x, t->a->dv, 1 / sum, NULL, NULL);
    if (t->lse)
        t->lse[p->q * t->a->nh + p->h] = tw_cpu_lse(max, sum);
}

/* Up to 32 rows of attention, all of one kv head, on the tile unit: queries times keys are scores, e^(score *
 * scale - the row's largest), rounded, are weights, and those times values are outputs. */
struct tw_att16 {
    int R;
    int64_t n, steps, panels;   /* of 32 keys; of 32 components; of 16 numbers of a value */
    const void *x[32];          /* the queries, where they are whole groups of 32; NULL: they are in Q */
    bool low;                   /* they are rounded already */
    uint32_t *q;                /* [steps][32][16] */
    const uint32_t *const *k, *const *v;        /* [n] where each 32 keys begin, and their values */
    int64_t vp;                 /* words from a panel of values to the next */
    int lo[32], hi[32];         /* a row sees keys [lo, hi) */
    float scale;                /* > 0 */
    struct tw_ask *ask;         /* ASKS lines of it with each 32 keys, of 16 rows */
    int asks;
    float *s;                   /* [TW_ATT_SCORES] room for scores */
    uint32_t *p;                /* [n][32][16] and for weights */
    float max[32], sum[32];     /* weights are e^(score * scale - max); their sum */
    float *o;                   /* [R][panels * 16] outputs, not divided by those sums yet */
    uint32_t *y[32];            /* where they go divided and rounded, each 32 numbers YSTEP words further (fewer
                                 * in the tensor's last block of rows); NULL: nowhere */
    int64_t ystep[32];
};
#define TW_ATT_SCORES (2 * 4 * 256)

/* Rows [r0, r1) of a sequence and kv head on the tile unit, and the words of memory that takes. */
void tw_att_tiles(const struct tw_att *t, int64_t s, int64_t kvh, int64_t r0, int64_t r1, float *room);
int64_t tw_att_tiles_words(const struct tw_att *t, int64_t longest);
/* All keys and values of the call, into their blocks. */
void tw_att_put(struct tw_att *t);

#endif
