/* help_moe.h - what the tests of experts on the GPU share: dispatches, experts and adapters that both devices
 * hold */
#ifndef TW_HELP_MOE_H
#define TW_HELP_MOE_H
#include "help_cuda.h"

#define CM(op, ...) tw_ops(cpu)->moe->op(cpu, __VA_ARGS__)
#define GM(op, ...) tw_ops(gpu)->moe->op(gpu, __VA_ARGS__)

/* A dispatch that both have. */
struct sorted {
    struct tw_dispatch c, g;
};

struct tw_dispatch dispatch_on(struct tw_dev *d, int64_t T, int64_t E, int64_t K);
void dispatch_off(struct tw_dev *d, const struct tw_dispatch *s);
struct both f32(int64_t rows, int64_t cols, bool empty);
void *ints(struct tw_dev *d, const int32_t *p, int64_t n);

/* Of E experts each token has K; the last but one has none, or (ONE) all but the first. */
struct shape {
    int64_t T, E, K, in, out, r;
    bool one;
};

/* The last MOE_QUICK of each go all ways with few rows. */
enum { MOE_QUICK = 2, THIN_QUICK = 4 };
extern const struct shape moe_shapes[6];
extern const struct shape moe_thin[14];     /* several strips of columns, and of rows of one expert */

struct sorted sort(const struct shape *q);
/* E matrices of out x in, of which BOTH's are the first. */
struct both experts_of(const struct shape *q, enum tw_dtype t);

struct adapter {
    struct both a, b, da, db;
    struct tw_lora_run c, g;
};

/* Of tokens [t0, t1). */
struct adapter adapter(const struct shape *q, int64_t t0, int64_t t1);

#endif
