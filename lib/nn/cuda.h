/* cuda.h - what libtw-cuda.so gives: one function. The library is loaded at run time, so that the
 * same commands run where there is no CUDA at all; it shares with its caller only the headers
 * nn/ops.h, nn/step_ops.h, nn/tensor.h and base/err.h, whose shape TW_CUDA_ABI names: a library
 * built from other headers is refused. */
#ifndef TW_CUDA_H
#define TW_CUDA_H
#include "nn/ops.h"

/* Changes with every change of the structs that cross the border. */
#define TW_CUDA_ABI (9u << 16 | (unsigned)sizeof(struct tw_ops) << 4 | \
        (unsigned)(sizeof(struct tw_head) + sizeof(struct tw_lora_run) + sizeof(struct tw_attn) + \
                   sizeof(struct tw_choice) + sizeof(struct tw_step) / 8 + \
                   sizeof(struct tw_delta_ops) / 8) % 16)
#define TW_CUDA_SYMBOL "tw_cuda_open"

/* Opens GPU number INDEX (of those CUDA_VISIBLE_DEVICES leaves). NULL and ERR: none there, too old,
 * or another ABI. */
typedef struct tw_dev *tw_cuda_open_fn(unsigned abi, int index, struct tw_err *err);

#endif
