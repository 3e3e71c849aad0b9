/* stack.h - device memory as a stack: the forward grows it, the backward releases it in reverse. Its
 * size is known beforehand, from the same pass on a counting stack, which gives out addresses that
 * nobody reads. */
#ifndef TW_STACK_H
#define TW_STACK_H
#include "nn/ops.h"

#define TW_DEV_ALIGN 256        /* bytes; what GPU loads like */

struct tw_stack {
    struct tw_dev *dev;
    char *base;
    size_t cap, top, peak;      /* cap 0: counting */
};

static inline size_t tw_dev_round(size_t n)
{
    return (n + TW_DEV_ALIGN - 1) / TW_DEV_ALIGN * TW_DEV_ALIGN;
}

/* N bytes, not zeroed. Passing the size that was counted is a bug of ours: it aborts. */
void *tw_stack_take(struct tw_stack *s, size_t n);
struct tw_tensor tw_stack_tensor(struct tw_stack *s, enum tw_dtype t, int64_t rows, int64_t cols);

/* Makes room for PEAK bytes of an empty stack; what is there is lost. */
int tw_stack_reserve(struct tw_stack *s, size_t peak, struct tw_err *err);
/* Writes what no pass has used yet: memory that the system promised and does not have ends the
 * process now and not later. The stack must be empty. */
void tw_stack_touch(struct tw_stack *s);
void tw_stack_free(struct tw_stack *s);

/* One block of device memory cut into parts: add the sizes, allocate, take in the same order. */
struct tw_devmem {
    struct tw_dev *dev;
    char *p;
    size_t n, used;
};
static inline void tw_mem_add(struct tw_devmem *m, size_t n)
{
    m->n += tw_dev_round(n);
}
int tw_mem_alloc(struct tw_devmem *m, struct tw_dev *dev, const char *what, struct tw_err *err);
void *tw_mem_take(struct tw_devmem *m, size_t n);
void tw_mem_free(struct tw_devmem *m);

#endif
