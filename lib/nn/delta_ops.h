/* delta_ops.h - the ops of layers that keep a state of constant size in place of keys and values:
 * gated DeltaNet, the causal convolution before it, its gates and the norm behind it. A device without
 * them has NULL in its table, and models that need them are refused.
 *
 * Order, where bits are promised (the CPU): the outputs of a sequence depend on its own tokens alone,
 * not on its neighbours, on threads, or on how its tokens are cut into calls that carry the state on.
 * A device that takes chunks through matrix products gives the same numbers up to rounding (1e-5 in
 * F32); what it promises is that packed sequences do not touch each other. */
#ifndef TW_DELTA_OPS_H
#define TW_DELTA_OPS_H
#include "nn/tensor.h"

struct tw_dev;

/* Positions of a sequence at which its state can be copied on the way are multiples of this. */
#define TW_DELTA_MARK 64

/* Where the state after AT tokens of the sequence is to be copied to; a multiple of TW_DELTA_MARK. */
struct tw_delta_mark {
    int64_t at;
    void *state;                /* (dev) */
};

/* One sequence of a call: rows [t0, t0 + n). */
struct tw_delta_seq {
    int64_t t0, n;
    int64_t past;               /* tokens the state holds; 0: all of it counts as zero */
    void *state;                /* (dev) of all layers, read and then written; NULL: none is kept */
    const struct tw_delta_mark *mark;   /* (host) ascending, in (past, past + n]; with a state only */
    int64_t nmark;
};

struct tw_delta {
    int64_t hk, hv, dk, dv;     /* heads of q and k, of v; their sizes. Value head h has the q and k
                                 * of head h * hk / hv */
    int64_t taps;               /* of the convolution, at most TW_DELTA_TAPS */
    int64_t chunk;              /* tokens of a chunk; 0: the device's choice */
    size_t offset;              /* of this layer's part in every state, in bytes */
    const struct tw_delta_seq *seq;     /* (host) they cover all rows, in order */
    int64_t nseq;
};
#define TW_DELTA_TAPS 16

/* C = 2 hk dk + hv dv columns: all q, all k, all v, heads one after the other. */
static inline int64_t tw_delta_cols(const struct tw_delta *s)
{
    return 2 * s->hk * s->dk + s->hv * s->dv;
}

/* The inputs of step(). */
struct tw_delta_step {
    const struct tw_tensor *qkv, *z, *a, *b;    /* qkv as conv() takes it */
    const float *w, *alog, *dt, *norm;          /* (dev) of conv(), gates(), gnorm() */
    float eps;
};

struct tw_delta_ops {
    /* Bytes of one layer's part of a state (the last taps - 1 inputs of the convolution, and S in F32:
     * the device's own layout, which conv() and delta() share), activations being of type ACT; of
     * what delta() keeps for the backward of T rows (0: the backward does it again); at most of what
     * the device takes beside that for calls of T rows, and keeps. */
    size_t (*state_bytes)(const struct tw_dev *d, const struct tw_delta *s, enum tw_dtype act);
    size_t (*save_bytes)(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
            enum tw_dtype act);
    size_t (*scratch_bytes)(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
            enum tw_dtype act);

    /* y[t, c] = silu(sum over j of w[c, j] x[t - taps + 1 + j, c]), tokens before the sequence being
     * zero: a chain over ascending j. x, y [T, C]; w (dev) F32 [C, taps]. Moves the state's window
     * on. Backward: of whole sequences; dx is overwritten (a chain over ascending tokens), dw adds
     * in a chain over tokens, NULL: not trained. */
    void (*conv)(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *w,
            const struct tw_delta *s);
    void (*conv_bwd)(struct tw_dev *d, struct tw_tensor *dx, float *dw, const struct tw_tensor *dy,
            const struct tw_tensor *x, const float *w, const struct tw_delta *s);

    /* g = -e^alog softplus(a + dt) and beta = sigmoid(b), F32 [T, hv], from a and b [T, hv]; alog, dt
     * (dev) F32 [hv]. Backward: da and db are overwritten (da may be a, db b), dalog and ddt add in
     * a chain over tokens; NULL, both: not trained. */
    void (*gates)(struct tw_dev *d, struct tw_tensor *g, struct tw_tensor *beta,
            const struct tw_tensor *a, const struct tw_tensor *b, const float *alog,
            const float *dt);
    void (*gates_bwd)(struct tw_dev *d, struct tw_tensor *da, struct tw_tensor *db, float *dalog,
            float *ddt, const struct tw_tensor *dg, const struct tw_tensor *dbeta,
            const struct tw_tensor *a, const struct tw_tensor *b, const float *alog,
            const float *dt);

    /* The rule, for every value head and token, S [dk, dv] F32 and zero at the start:
     *     q^ = q r(q) / sqrt(dk), k^ = k r(k), r(x) = 1 / sqrt(sum of x^2 + 1e-6)
     *     S = e^g S;  e = beta (v - S^T k^);  S = S + k^ e^T;  o = S^T q^
     * qkv [T, C], g and beta as gates() gives them, o [T, hv * dv]. SAVE (dev) has save_bytes(), NULL:
     * no backward follows. Starts from the state and leaves the new one in it; a state at a mark is
     * copied whole, the convolution's window by conv(), S here. All sums of e and o are chains over
     * ascending dk. In chunks (exp only of what is not positive; Gij = e^(Gi - Gj) for j <= i, with G
     * the sum of g from the chunk's start; a last chunk that is short is zero behind its end):
     *     M = I + strictlower(beta_i Gij (k_i . k_j)),  E = M^-1 diag(beta) (V - diag(e^G) K S)
     *     O = diag(e^G) Q S + lower(Gij (q_i . k_j)) E
     *     S <- e^(G_end) S + (diag(e^(G_end - G)) K)^T E
     * Chunks end at multiples of their length counted from the sequence's first token, so that marks
     * fall on ends. Backward: of whole sequences; dqkv, dg and dbeta are overwritten. */
    void (*delta)(struct tw_dev *d, struct tw_tensor *o, void *save, const struct tw_tensor *qkv,
            const struct tw_tensor *g, const struct tw_tensor *beta, const struct tw_delta *s);
    void (*delta_bwd)(struct tw_dev *d, struct tw_tensor *dqkv, struct tw_tensor *dg,
            struct tw_tensor *dbeta, const struct tw_tensor *dout, const void *save,
            const struct tw_tensor *qkv, const struct tw_tensor *g, const struct tw_tensor *beta,
            const struct tw_delta *s);

    /* y = (x r w) silu(z) in groups of n = length of w, r = 1 / sqrt(mean(x^2) + eps) per group, which
     * rstd (dev) [T * groups] keeps (NULL: not wanted). Backward: dx is overwritten, dz too (it may be
     * z); dw[n] adds in a chain over tokens (then groups), NULL: not trained. */
    void (*gnorm)(struct tw_dev *d, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
            const struct tw_tensor *z, const float *w, int64_t n, float eps);
    void (*gnorm_bwd)(struct tw_dev *d, struct tw_tensor *dx, struct tw_tensor *dz, float *dw,
            const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *z,
            const float *w, int64_t n, const float *rstd);

    /* conv(), gates(), delta() and gnorm() of sequences of one token each, all with a state, in one;
     * y [T, hv * dv]. NULL: callers do one after the other. */
    void (*step)(struct tw_dev *d, struct tw_tensor *y, const struct tw_delta_step *in,
            const struct tw_delta *s);
};

#endif
