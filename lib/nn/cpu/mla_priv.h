/* mla_priv.h - what the files of attention over latents share */
#ifndef TW_MLA_PRIV_H
#define TW_MLA_PRIV_H
#include "nn/cpu/attn_priv.h"

size_t tw_cpu_mla_bytes(const struct tw_dev *d, int64_t rkv, int64_t dr, enum tw_dtype act);
void tw_cpu_mla_put(struct tw_dev *d, const struct tw_tensor *c, const struct tw_tensor *pe,
        const struct tw_mla *a);
void tw_cpu_mla_decode(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a);

#endif
