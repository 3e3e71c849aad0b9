/* mla.cuh - what the files of attention over latents share. A latent (c | pe) of a token lies in a block
 * of TW_KV_BLOCK of them, in the type of the activations. */
#ifndef TW_MLA_CUH
#define TW_MLA_CUH
#include "cu.cuh"

struct lat_token {
    int32_t row, pos;           /* in the batch; in its sequence */
    int32_t tab;                /* where the pointers of its sequence's blocks begin in blk[] */
    int32_t run;                /* of an adapter; -1: none */
};

struct lat_run {
    const float *a, *b;
    int32_t r;
    float scale;
};

/* What every kernel is told; the tables are in device memory. */
struct lat_arg {
    const struct lat_token *token;
    const struct lat_run *run;
    char *const *blk;
    int32_t n, nh, dn, dr, dv, rkv, splits, max_r;
    float scale;
    int64_t ldq, ldw, ldo, ldc, ldpe;
    const void *q, *w, *c, *pe;
    void *o;
    float *g, *u;               /* [n, nh, rkv + dr], [n, nh, rkv] */
    float *part, *stat;         /* [n, nh, splits] times rkv, and times (max, sum) */
};

static inline int64_t lat_size(enum tw_dtype t)
{
    return t == TW_BF16 ? 2 : 4;
}

void cu_mla_put(struct tw_dev *d, const struct tw_tensor *c, const struct tw_tensor *pe,
        const struct tw_mla *a);
void cu_mla_decode(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a);
/* mla.cu: the table */
void cu_mla_ops(struct tw_ops *o);
#endif
