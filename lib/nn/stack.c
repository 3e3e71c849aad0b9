/* stack.c - device memory in one piece */
#include "nn/stack.h"
#include "base/log.h"
#include <assert.h>
#include <stdint.h>

void *tw_stack_take(struct tw_stack *s, size_t n)
{
    char *p = s->base + s->top;

    s->top += tw_dev_round(n);
    if (s->top > s->peak)
        s->peak = s->top;
    assert(!s->cap || s->top <= s->cap);
    return p;
}

struct tw_tensor tw_stack_tensor(struct tw_stack *s, enum tw_dtype t, int64_t rows, int64_t cols)
{
    return (struct tw_tensor){ .data = tw_stack_take(s, (size_t)(rows * cols) * tw_dtype_size(t)),
        .dtype = t, .rows = rows, .cols = cols, .ld = cols };
}

static int no_room(size_t n, const char *what, struct tw_err *err)
{
    char text[32];

    tw_err_clear(err);
    return tw_fail_code(err, TW_ENOMEM, NULL, 0, "no memory on the device for %s: %s", what,
            tw_fmt_bytes(text, (double)n));
}

int tw_stack_reserve(struct tw_stack *s, size_t peak, struct tw_err *err)
{
    if (s->cap >= peak && s->cap)
        return 0;
    tw_stack_free(s);
    peak = tw_dev_round(peak + 1);
    s->base = tw_ops(s->dev)->alloc(s->dev, peak, err);
    if (!s->base)
        return no_room(peak, "the activations of this batch", err);
    s->cap = peak;
    if (tw_ops(s->dev)->often)
        tw_ops(s->dev)->often(s->dev, s->base, peak);
    return 0;
}

void tw_stack_touch(struct tw_stack *s)
{
    if (s->peak < s->cap)
        tw_ops(s->dev)->zero(s->dev, s->base + s->peak, s->cap - s->peak);
    s->peak = s->cap;
}

void tw_stack_free(struct tw_stack *s)
{
    if (s->cap)
        tw_ops(s->dev)->free(s->dev, s->base);
    s->base = NULL;
    s->cap = s->top = s->peak = 0;
}

int tw_mem_alloc(struct tw_devmem *m, struct tw_dev *dev, const char *what, struct tw_err *err)
{
    m->dev = dev;
    m->used = 0;
    m->p = m->n ? tw_ops(dev)->alloc(dev, m->n, err) : NULL;
    if (m->n && !m->p)
        return no_room(m->n, what, err);
    return 0;
}

void *tw_mem_take(struct tw_devmem *m, size_t n)
{
    char *p = m->p + m->used;

    m->used += tw_dev_round(n);
    assert(m->used <= m->n);
    return p;
}

void tw_mem_free(struct tw_devmem *m)
{
    if (m->p)
        tw_ops(m->dev)->free(m->dev, m->p);
    *m = (struct tw_devmem){ 0 };
}
