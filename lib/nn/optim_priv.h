/* optim_priv.h - what optim.c and optim_file.c share */
#ifndef TW_OPTIM_PRIV_H
#define TW_OPTIM_PRIV_H
#include "nn/optim.h"

struct tw_optim {
    struct tw_dev *dev;
    const struct tw_params *params;
    bool rows;
    struct tw_optim_opts opts;
    float **m, **v;                 /* (dev) one a parameter, in the layout of its weights */
    double *sum;                    /* (dev) */
    float *scale;                   /* (dev) */
    int64_t updates;
};

#endif
