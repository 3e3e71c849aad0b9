/* help_golden.h - what is set beside golden values */
#ifndef TW_HELP_GOLDEN_H
#define TW_HELP_GOLDEN_H
#include "nn/model_priv.h"

/* max|a - b| / max|b| of N numbers, or, as VECTORS, |a - b| / |b|; infinity where a is no number. */
double help_rel(const float *a, const float *b, int64_t n, bool vectors);
double help_rel1(double a, double b);

/* The gradient of P, row by row; the caller's to free. */
float *help_grad(struct tw_dev *d, const struct tw_param *p);

/* The experts that the model in DIR, with the adapter in the folder ADAPTER (NULL: none), chooses in F32 for B rows
 * of N ids: [B, N, *width], the caller's to free; NULL for models without. */
int help_experts(struct tw_dev *d, const char *dir, const char *adapter, const int32_t *ids, int64_t B, int64_t N,
        int32_t **experts, int64_t *width, struct tw_err *err);

#endif
