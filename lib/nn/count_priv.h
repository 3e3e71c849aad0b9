/* count_priv.h - the counting device's tables that are files of their own */
#ifndef TW_COUNT_PRIV_H
#define TW_COUNT_PRIV_H
#include "nn/ops.h"

extern const struct tw_moe_ops tw_count_moe;

#endif
