/* state.h - decode states, for the files of the model. Keys and values live in blocks of TW_KV_BLOCK
 * tokens, shared copy-on-write between forks: one block for all layers that look back without end, and
 * one for those with a window, which is given back when the window has left it. Recurrent layers have
 * one block, which each pass overwrites: copies of it made on the way (marks) are what a state can be
 * cut back to. */
#ifndef TW_STATE_H
#define TW_STATE_H
#include "nn/model_priv.h"

struct tw_kv {
    struct tw_kv *next;         /* in the model's list of free blocks */
    void *mem;                  /* (dev) */
    int64_t refs;
    bool fresh;                 /* never used: of memory that the system may still have to make */
};

/* Blocks of one kind, in the order of their tokens. Those before FIRST are gone: their place in mem is
 * that of block FIRST, so that a kernel which begins a tile early reads numbers, if not the right ones;
 * it masks them. */
struct tw_pages {
    int64_t first, n, cap;
    struct tw_kv **block;
    void **mem;                 /* [n] block[i]->mem, as ops want it */
};

#define TW_STATE_MARKS 4
struct tw_mark {
    int64_t at;
    struct tw_kv *rec;
};

struct tw_state {
    struct tw_model *m;
    struct tw_adapter *a;       /* of the tokens in it; meaningless while n is 0 */
    int64_t n;
    struct tw_pages page[TW_KV_KINDS];
    bool keep;                  /* what a cut may need stays: marks, blocks behind the window */
    int32_t *experts;           /* (host) [n, routers, topk], where they are recorded; else NULL */
    int64_t room;               /* tokens that experts has room for */
    struct tw_kv *rec;          /* recurrent layers after n tokens; NULL: there are none, or n is 0 */
    struct tw_mark mark[TW_STATE_MARKS];    /* ascending; behind n: the pass to come makes them */
    int nmark;
    int64_t step;               /* with keep: marks are at multiples of it */
    bool busy;                  /* in the batch being packed */
};

/* Whether M's states hold anything. */
bool tw_state_kept(const struct tw_model *m);
/* Blocks for N more tokens, what is written not shared. On failure the state is as before. */
int tw_state_grow(struct tw_state *s, int64_t n, struct tw_err *err);
/* routing.c: what S has recorded of routers, for its new fork F. */
void tw_routing_fork(struct tw_state *f, const struct tw_state *s);
/* Gives back blocks that hold none of its tokens (after a failed pass). */
void tw_state_trim(struct tw_state *s);
/* Gives back blocks that no later token sees, unless they are to stay. */
void tw_state_slide(struct tw_state *s);
/* The recurrent layers' part of a pass over the tokens that it grew for; from A. */
void tw_state_delta(const struct tw_state *s, struct tw_delta_seq *q, struct tw_arena *a);
/* The recurrent state, and where its copy after the next token goes; NULL: there is none. */
void tw_state_rec(const struct tw_state *s, void **now, void **copy);
/* Where each layer's part of a block begins; sets the blocks' sizes. */
void tw_state_layout(struct tw_model *m);
void tw_state_pool_free(struct tw_model *m);

#endif
