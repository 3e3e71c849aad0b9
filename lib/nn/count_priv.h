/* count_priv.h - the counting device's tables that are files of their own */
#ifndef TW_COUNT_PRIV_H
#define TW_COUNT_PRIV_H
#include "nn/ops.h"

struct tw_count {
    struct tw_dev_head head;
    const struct tw_dev *like;
    struct tw_ops ops;
};
static inline const struct tw_dev *tw_count_like(const struct tw_dev *d)
{
    return ((const struct tw_count *)d)->like;
}

extern const struct tw_moe_ops tw_count_moe;
extern const struct tw_delta_ops tw_count_delta;

#endif
