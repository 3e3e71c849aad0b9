/* step_ops.h - drawing tokens on the device, and decode steps of fused ops: one token each of many
 * sequences. A device that records a step the first times it sees its shape queues it again in one
 * piece; so a step's ops take nothing from the host but what begin() was given, and every number
 * that changes from step to step lies in device memory. Devices without have NULL in their table:
 * then logits go to the host. */
#ifndef TW_STEP_OPS_H
#define TW_STEP_OPS_H
#include "nn/delta_ops.h"
#include "nn/moe_ops.h"
#include "nn/tensor.h"
#include <stdbool.h>

struct tw_dev;

/* One token to be drawn from a row of logits z. What the numbers mean, and the order in which they
 * act, is what run/sampling.h says. */
struct tw_choice {
    double temperature, top_p, min_p, repetition, presence, frequency;
    double u;                   /* uniform in [0, 1) */
    int64_t top_k, top_n;       /* top_n: how many of the best ids are to be named */
    const int32_t *seen;        /* (host) [nseen][2] ids and how often, for the penalties */
    int64_t nseen;
    /* Out. */
    int32_t id;                 /* -1: no finite logit */
    float logp;                 /* log softmax(z / temperature)[id], z as it came (greedy: of z) */
    float sampled_logp;         /* after all processors; 0 when greedy */
    int32_t *top_id;            /* (host) [top_n] best first, -1 behind the last */
    float *top_logp;            /* (host) [top_n] as logp */
};

/* An adapter's part at one module; r 0: none. */
struct tw_step_lora {
    const float *a, *b;         /* (dev) [r, in], [out, r] */
    int32_t r;
    float scale;
};

/* The input of a step. */
struct tw_step {
    int64_t n;                  /* sequences */
    const int32_t *id, *pos;    /* (host) [n] each one's new token, and its position */
    void *const *const *block;  /* (host) [n] each one's blocks of keys and values, and those of layers
                                 * with a window; near NULL: there are none */
    void *const *const *near;
    void *const *rec, *const *mark;     /* (host) [n] each one's recurrent state, and where that is to be
                                 * copied after this token, or NULL; NULL, both: there is none */
    float norm_off;             /* added to the weights of all norms but gated ones and latents' */
    const int32_t *slot;        /* (host) [n] its adapter's row in lora; -1: none */
    const struct tw_step_lora *lora;    /* (host) [nslot, nmodule] */
    int64_t nslot, nmodule, max_r;      /* nslot 0: no adapters */
    struct tw_choice *choice;   /* [n] */
    const uint8_t *allowed;     /* (dev) [V] ids that may be drawn; NULL: all */
    const void *key;            /* what else the walk depends on: addresses, the model */
    size_t nkey;
};

/* A product's matrix, and its module in lora (-1: none). */
struct tw_step_w {
    const struct tw_mat *w;
    const float *bias;          /* (dev) may be NULL */
    int64_t module;
};

struct tw_step_attn {
    int64_t nh, nkv, hd, window;        /* as in struct tw_attn */
    float scale;
    size_t offset;              /* of the layer's part of a block */
    const float *qnorm, *knorm; /* (dev) [hd]; NULL: heads are not normalised */
    float eps;
    const float *cos, *sin;     /* (dev) as in struct tw_rope */
    int64_t rot;
    bool interleaved;
    bool gated;                 /* behind every head of q stands a gate of what attention gives */
};

/* Experts: x += what the router's choice gives. gate_up holds E matrices [2 I, D], down E of [D, I]. */
struct tw_step_moe {
    struct tw_route r;
    const struct tw_mat *router, *gate_up, *down;
    int act;
};

/* Attention over latents, as in mla_ops.h; kvb is kv_b without adapters. */
struct tw_step_mla {
    int64_t nh, dn, dr, dv, rkv;
    float scale;
    size_t offset;              /* of the layer's part of a block */
    const float *norm;          /* (dev) [rkv] of latents */
    float eps;
    const struct tw_mat *kvb;
    const float *cos, *sin;     /* (dev) as in struct tw_rope, of dr components */
    bool interleaved;
};

/* What a model asks for; NULL: it has none of that. */
struct tw_step_need {
    const struct tw_step_attn *attn;
    const struct tw_step_moe *moe;
    const struct tw_step_mla *mla;
    const struct tw_delta *delta;
    const int64_t *k;           /* widths of products */
    int64_t nk;
};

/* A step rounds to BF16 where a pass does: the residual stream; a row that was normalised; q, k, v and
 * what attention gives; heads after norm and rotation; gate, up and the gated unit. Sums are F32. (A
 * device may take a norm's factor out of a product of few tokens and round without it.) This does not
 * make the bits of a pass: sums in another order differ by 1e-7, some roundings then fall the other
 * way, and after a layer the two are as far apart as BF16 is from F32. */
/* All tensors are BF16 and have the rows that begin() said; what stands in rows behind the n-th is
 * of no meaning. norm: products of rmsnorm(x) with these weights and eps; NULL: of x itself. */
struct tw_step_ops {
    int64_t max;                /* sequences of a step */
    /* Whether steps of such a model can be made. */
    bool (*fits)(const struct tw_dev *d, const struct tw_step_need *n);
    /* Takes the input. 0: the whole step has been replayed and its choices are filled; else the
     * rows that its tensors must have. -1: it failed (sync() says why). */
    int64_t (*begin)(struct tw_dev *d, const struct tw_step *s);
    /* The tokens' embeddings, by scale (0: as they are). */
    void (*embed)(struct tw_dev *d, struct tw_tensor *x, const struct tw_mat *w, float scale);
    /* y = the products of x with N matrices side by side (+ res, which may be y). */
    void (*linear)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
            const float *norm, float eps, const struct tw_step_w *w, int64_t n,
            const struct tw_tensor *res);
    /* x += rmsnorm(y), rounded in between. */
    void (*post)(struct tw_dev *d, struct tw_tensor *x, const struct tw_tensor *y, const float *norm,
            float eps);
    /* y = act(gate) * up, both products of x. */
    void (*glu)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *norm,
            float eps, const struct tw_step_w *gate, const struct tw_step_w *up, int act);
    /* Norm and rotation of q and k, which stand side by side with v; stores k and v; attention. */
    void (*attn)(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *qkv,
            const struct tw_step_attn *a);
    /* x += w_k times the k-th chosen expert of rmsnorm(x), and shared (NULL: none) times sigmoid of gate
     * [T, 1] (NULL: 1). */
    void (*moe)(struct tw_dev *d, struct tw_tensor *x, const float *norm, float eps,
            const struct tw_step_moe *m, const struct tw_tensor *shared,
            const struct tw_tensor *gate);
    /* q [T, nh * (dn + dr)] and lat [T, rkv + dr] as the products give them: norm and rotation, the new
     * latent's place in the decode state, attention; o [T, nh * dv]. */
    void (*mla)(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
            const struct tw_tensor *lat, const struct tw_step_mla *a);
    /* tw_delta_ops.step() of the input's recurrent states (s->seq is not looked at). */
    void (*delta)(struct tw_dev *d, struct tw_tensor *y, const struct tw_delta_step *in,
            const struct tw_delta *s);
    /* Logits, and the choices of this step's input. */
    void (*choose)(struct tw_dev *d, const struct tw_tensor *x, const float *norm, float eps,
            const struct tw_mat *w);
    void (*end)(struct tw_dev *d);      /* waits; choices are filled */
};

#endif
