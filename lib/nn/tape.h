/* tape.h - the graph of one micro-batch. A block's forward calls the functions below; each queues
 * its op and, when the tape records, notes how to go back. A tape is cut into segments (a layer, the
 * head): going back through a segment and replaying one are the same for every family. */
#ifndef TW_TAPE_H
#define TW_TAPE_H
#include "nn/batch.h"

/* An activation, and its gradient once something has asked for it. */
struct tw_var {
    struct tw_tensor v, g;
    bool wrote;                 /* g holds a gradient: what comes next adds */
    bool ends;                  /* nothing that it is made of is trained: nobody wants its gradient */
    struct tw_var *of;          /* it is columns [col, ..) of this one, in v and in g; NULL: none */
    int64_t col;
    bool low;                   /* v is BF16 though activations are not: only products read it */
    bool wide;                  /* behind g's columns there is the room that adapters want */
    int64_t room, used;         /* columns behind v's: there are, and hold states of adapters */
    struct tw_op *maker;        /* what makes the value again going back; NULL: it is kept */
    bool stale;                 /* going back: it has not been made again yet */
    bool waits_for;             /* only tw_t_linear() reads it, and can wait until it is made */
    struct tw_op *waiting;      /* ops whose gradients of weights want it then */
};

#define TW_GROUP 3              /* the most products that share an input */
struct tw_group {
    struct tw_var *y;
    struct tw_weight *w;
    struct tw_tensor h;
};

struct tw_op;
typedef void tw_bwd_fn(struct tw_tape *t, struct tw_op *op);
struct tw_op {
    tw_bwd_fn *bwd;
    tw_bwd_fn *redo;            /* makes y's value again; NULL: it is kept */
    bool lazy;                  /* bwd makes y's value again by itself, for those who wait */
    struct tw_op *waits;        /* the next that waits for the same value */
    struct tw_var *y, *x, *x2, *x3; /* output, inputs */
    struct tw_weight *w;
    struct tw_tensor h;         /* LoRA's hidden */
    float *save;                /* rstd or lse */
    float eps;
    int64_t n, heads, at;
    bool wide;                  /* LoRA's part is inside the products */
    struct tw_attn attn;
    struct tw_mla mla;
    const struct tw_rope *rope;
    struct tw_group *group;
    void *more;                 /* what the op's own file keeps */
    struct tw_op *prev;
};

#define TW_POOL 8               /* values of a layer that are made again, at most */

/* Routers of a pass. */
struct tw_routing {
    const int32_t *given;       /* (dev) [nmoe, T, K] as tw_moe_ops.route() takes them; NULL: none */
    int32_t *chosen;            /* (dev) [nmoe, T, K] where choices are kept; NULL: nobody asks */
    int32_t *load;              /* (dev) [nmoe, E]; NULL: nobody asks */
    struct tw_balance balance;  /* load is of no meaning here; */
    bool taken;                 /* and its copies are queued */
};

struct tw_tape {
    struct tw_model *m;
    struct tw_dev *dev;         /* m's, or its counting device */
    const struct tw_ops *ops;
    struct tw_stack *st;
    struct tw_arena *host;      /* vars and notes live until the pass ends */
    const struct tw_batch *b;
    struct tw_rope rope[TW_MAX_ROPES];
    const uint64_t *drop;       /* (dev) */
    struct tw_routing routing;
    struct tw_op *last;         /* newest note of the open segment */
    bool record;
    struct tw_var *known;       /* replaying: this output is there already */
    bool light;                 /* values that are cheap to make are made again going back, into
                                 * memory that all layers share: pool */
    struct tw_tensor pool[TW_POOL];
    int npool, at;              /* at: of this layer's next */
};

struct tw_var *tw_var_new(struct tw_tape *t, int64_t rows, int64_t cols);
/* The same, for inputs and outputs of products: with room for adapters where this batch wants it. */
struct tw_var *tw_var_wide(struct tw_tape *t, int64_t rows, int64_t cols);
/* The gradient of V to write to; *add: to add to what is there. NULL: nobody wants it. */
struct tw_tensor *tw_var_grad(struct tw_tape *t, struct tw_var *v, bool *add);
/* Columns [col, col + n) of X, in place. Going back, each column of X is to be written by one of its
 * parts before X's own gradient is read. */
struct tw_var *tw_var_cols(struct tw_tape *t, struct tw_var *x, int64_t col, int64_t n);

struct tw_var *tw_t_embed(struct tw_tape *t, struct tw_weight *w, const int32_t *id);
/* Groups of N; with the config's epsilon, or one of its own. */
struct tw_var *tw_t_norm(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n);
/* The same over all columns, of a value that only products read. */
struct tw_var *tw_t_norm_in(struct tw_tape *t, struct tw_var *x, struct tw_weight *w);
struct tw_var *tw_t_norm_eps(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n,
        double eps);
/* x W^T + bias + LoRA (+ res), into OUT when not NULL. OUT may be RES when nothing is recorded. */
struct tw_var *tw_t_linear(struct tw_tape *t, struct tw_var *x, struct tw_weight *w,
        struct tw_var *res, struct tw_var *out);
/* y[i] = x W[i]^T + bias + LoRA for N <= TW_GROUP products of one input. */
void tw_t_linears(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n,
        struct tw_var **y);
/* The same where the weights lie one behind the other: y are columns of one value (see tw_var_cols()), made
 * by one product where nothing but weights is to be multiplied; with adapters the way back is one. */
void tw_t_linears_joined(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n,
        struct tw_var **y);
/* What a block adds to its input: x + y, into OUT; with W (a norm of what it gives): x + norm(y). */
void tw_t_residual(struct tw_tape *t, struct tw_var *x, struct tw_var *y, struct tw_weight *w,
        struct tw_var *out);
/* Heads of x normalised by w (NULL: not), then rotated by the layer's rope. */
struct tw_var *tw_t_norm_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *w, int64_t heads);
/* y[i] = x W[i]^T, rounded, all but the last of N in heads that are rotated, for attention alone, where
 * nothing is recorded; false: not these. */
bool tw_t_heads(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *const *w, int n, struct tw_var **y);
/* The first numbers of HEADS heads, STRIDE apart, in place. */
void tw_t_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, int64_t heads,
        int64_t stride);
struct tw_var *tw_t_attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v);
/* The same, of a value that only products read. */
struct tw_var *tw_t_attn_in(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v);
/* Rows ROW[0, n) (host) of a batch of decode states: their values, so that all else is of them alone; their
 * heads rotated; and their attention, where keys and values are those of all rows. */
struct tw_some {
    int64_t n;
    const int32_t *row;
};
struct tw_var *tw_t_some(struct tw_tape *t, struct tw_var *x, const struct tw_some *s);
struct tw_var *tw_t_some_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *w, int64_t heads, const struct tw_some *s);
struct tw_var *tw_t_some_attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v, const struct tw_some *s);
/* Attention over latents (nn/mla_ops.h): C normalised, PE and the ends of Q's heads rotated, W is
 * kv_b. Where a decode state goes on only its latents are read. */
struct tw_var *tw_t_mla(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *c, struct tw_var *pe, struct tw_weight *w);
struct tw_var *tw_t_glu(struct tw_tape *t, struct tw_var *gate, struct tw_var *up);
/* The same of products without a bias, whose value only products read. */
struct tw_var *tw_t_glu_in(struct tw_tape *t, struct tw_var *gate, struct tw_var *up);
/* The same with the products of x that gate and up are, in one, where nothing is recorded; NULL: not
 * these. */
struct tw_var *tw_t_glu_of(struct tw_tape *t, struct tw_var *x, struct tw_weight *gate,
        struct tw_weight *up);

/* routing.c: what routers are told in a pass, and what is kept of them when all is queued. */
struct tw_pass;
void tw_routing_start(struct tw_pass *p, struct tw_tape *t);
void tw_routing_end(struct tw_pass *p, struct tw_tape *t);
/* Queues the copies of the forward's balance to pinned memory, for who waits later; NULL, both: nobody asks, or
 * tw_routing_end() waits. What they say, when they are there. */
void tw_routing_later(struct tw_pass *p, struct tw_tape *t, const int32_t **count, const float **sum);
void tw_routing_out(const struct tw_pass *p, const int32_t *count, const float *sum);

/* tape_delta.c. Pieces of x's columns that together are all of it, each put behind those before it
 * into y[to]. */
#define TW_SPLITS 4
struct tw_split {
    struct tw_cols c;
    int to;
};
void tw_t_split(struct tw_tape *t, struct tw_var *x, const struct tw_split *s, int n,
        struct tw_var **y, int ny);
struct tw_var *tw_t_gated(struct tw_tape *t, struct tw_var *gate, struct tw_var *x);
/* The ops of nn/delta_ops.h; tw_t_delta() makes the gates of a and b. */
struct tw_var *tw_t_conv(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x);
struct tw_var *tw_t_delta(struct tw_tape *t, const struct tw_layer *l, struct tw_var *qkv,
        struct tw_var *a, struct tw_var *b);
struct tw_var *tw_t_gnorm(struct tw_tape *t, struct tw_var *x, struct tw_var *z,
        struct tw_weight *w);
/* All of them for in: qkv, z, b, a when every sequence brings one token and the device does that in one;
 * else NULL. */
struct tw_var *tw_t_delta_step(struct tw_tape *t, const struct tw_layer *l, struct tw_var *const *in);

/* tape_moe.c: router, experts and shared expert of the input of a layer's ffn, normalised as N; X and
 * what they give go into OUT. */
void tw_t_moe(struct tw_tape *t, const struct tw_layer *l, struct tw_var *n, struct tw_var *x,
        struct tw_var *out);
struct tw_route tw_route_of(const struct tw_layer *l);

/* Makes what the open segment did not keep; before tw_tape_back(). */
void tw_tape_redo(struct tw_tape *t);
/* Walks the notes of the open segment back and forgets them. */
void tw_tape_back(struct tw_tape *t);

#endif
