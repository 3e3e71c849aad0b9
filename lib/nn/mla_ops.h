/* mla_ops.h - attention over latents: a token keeps one vector c of rkv numbers, from which a matrix
 * kv_b makes each head's key and value, and one rotated part pe of a key that all heads share. In
 * training and where a sequence begins, keys and values are made (attn); where it goes on, the
 * matrix goes to the other side of the products, and only c and pe are ever read (decode). The two
 * are the same sum in another order: they agree to rounding, not to the bit; each of them depends
 * on nothing but its own sequence. The rules of ops.h hold. */
#ifndef TW_MLA_OPS_H
#define TW_MLA_OPS_H
#include "nn/tensor.h"
#include <stdbool.h>

struct tw_dev;
struct tw_attn_seq;
struct tw_lora_ctx;

/* Head h of q is q[t, h * (dn + dr) ..]: dn numbers, then dr rotated ones; of kv it is
 * kv[t, h * (dn + dv) ..]: the key's first dn numbers, then the value. */
struct tw_mla {
    int64_t nh, dn, dr, dv, rkv;
    float scale;
    const struct tw_attn_seq *seq;  /* (host) */
    int64_t nseq;
};

struct tw_mla_ops {
    /* Causal attention inside each sequence, whose keys are its own rows (past is 0; block is not
     * looked at): score = scale (q[0, dn) . k + q[dn, dn + dr) . pe). q [T, nh * (dn + dr)], kv
     * [T, nh * (dn + dv)], pe [T, dr], o [T, nh * dv], lse as in tw_ops.attn; rows of no sequence
     * are left alone. Backward overwrites dq, dkv and dpe, which is the sum over the heads in
     * ascending order. */
    void (*attn)(struct tw_dev *d, struct tw_tensor *o, float *lse, const struct tw_tensor *q,
            const struct tw_tensor *kv, const struct tw_tensor *pe, const struct tw_mla *a);
    void (*attn_bwd)(struct tw_dev *d, struct tw_tensor *dq, struct tw_tensor *dkv,
            struct tw_tensor *dpe, const struct tw_tensor *dout, const struct tw_tensor *o,
            const float *lse, const struct tw_tensor *q, const struct tw_tensor *kv,
            const struct tw_tensor *pe, const struct tw_mla *a);

    /* Bytes of TW_KV_BLOCK latents of one layer in a decode state, products being of type T.
     * put stores rows [q0, q0 + nq) of c [T, rkv] (after its norm) and pe [T, dr] (after rotation)
     * at positions past.. of every sequence. scratch_bytes: what attn, or attn_bwd, of T rows takes
     * beside its tensors and keeps; NULL: nothing. */
    size_t (*scratch_bytes)(const struct tw_dev *d, const struct tw_mla *a, int64_t T,
            enum tw_dtype act, bool bwd);
    size_t (*bytes)(const struct tw_dev *d, int64_t rkv, int64_t dr, enum tw_dtype t);
    void (*put)(struct tw_dev *d, const struct tw_tensor *c, const struct tw_tensor *pe,
            const struct tw_mla *a);

    /* The same attention from the latents of a decode state, over positions [0, past + nq) of which
     * put() has stored the new ones. W is kv_b [nh * (dn + dv), rkv], whose rows of head h are K_h
     * [dn, rkv] and V_h [dv, rkv]; with LORA (may be NULL) they are those of W + scale B A for the
     * tokens of each run (no dropout). For each token and head
     *   g = K_h^T q[0, dn); score_j = scale (g . c_j + q[dn, dn + dr) . pe_j);
     *   u = sum_j p_j c_j; o = V_h u,
     * where sums over j are one chain from position 0. Rows of no sequence are left alone. */
    void (*decode)(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
            const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a);
};

#endif
