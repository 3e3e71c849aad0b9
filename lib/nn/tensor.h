/* tensor.h - activations and weight matrices. The only capitals are dimensions: T tokens of a packed
 * batch, D model width, H heads, V vocabulary, L layers, B sequences. */
#ifndef TW_TENSOR_H
#define TW_TENSOR_H
#include "data/weights.h"   /* enum tw_dtype, bf16 conversions */

/* An activation [rows, cols] in device memory; row r starts at data + r * ld elements. The CPU keeps
 * activations in F32, a GPU in BF16 or F32. A view (columns of a fused product) has ld > cols. */
struct tw_tensor {
    void *data;
    enum tw_dtype dtype;
    int64_t rows, cols, ld;
    bool packed;                /* BF16 as the device's products read it (packs() in ops.h): only ops that
                                 * say so take it, and ld has no meaning */
};

/* A weight matrix [rows = out, cols = in] in the device's own layout (the CPU packs panels of
 * outputs, CUDA is row-major): only mat_put, mat_get and mat_cast know it. Everything elementwise
 * (optimiser, norms) works on the stored elements, mat_elems() of them, padding included (zero). */
struct tw_mat {
    void *data;
    enum tw_dtype dtype;        /* TW_F32 or TW_BF16 */
    int64_t rows, cols;
    int64_t n;                  /* of N matrices one behind the other (experts): each mat_elems() stored
                                 * elements long; 0 and 1: one. Only the grouped ops look at it */
    int64_t ext;                /* columns behind each row, and rows behind the last, kept for the
                                 * factors of adapters (lora_wide); mostly 0 */
    uint16_t *low;              /* a BF16 matrix that stands for F32, each value the nearest BF16 (away
                                 * from zero when there are two): F32 bits are (bits of data << 16) +
                                 * (int16_t)low, modulo 2^32; in the layout of data; mostly NULL */
    bool unset;                 /* a gradient that counts as zero, whatever data holds: the op that adds
                                 * to it first (linear_dw(), head()) writes, and takes the mark away */
};

static inline int64_t tw_mat_count(const struct tw_mat *m) { return m->n > 1 ? m->n : 1; }
/* Elements, padding not counted. */
static inline int64_t tw_mat_size(const struct tw_mat *m)
{
    return tw_mat_count(m) * m->rows * m->cols;
}

#endif
