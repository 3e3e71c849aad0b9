/* moe_priv.h - the ops of experts on this device, by file */
#ifndef TW_MOE_PRIV_H
#define TW_MOE_PRIV_H
#include "nn/cpu/cpu_priv.h"

/* moe.c */
void tw_cpu_route(struct tw_dev *dev, struct tw_dispatch *s, struct tw_tensor *prob,
        const struct tw_route *r, const int32_t *given, const struct tw_balance *b);
void tw_cpu_route_bwd(struct tw_dev *dev, struct tw_tensor *dlogits, const float *dweight,
        const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
        const struct tw_balance *b);
void tw_cpu_collect(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *sorted, const struct tw_dispatch *s);
void tw_cpu_combine(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate);
void tw_cpu_combine_bwd(struct tw_dev *dev, struct tw_tensor *dz, float *dweight,
        struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate);

/* moe_mm.c: all of the table */
extern const struct tw_moe_ops tw_cpu_moe;

#endif
