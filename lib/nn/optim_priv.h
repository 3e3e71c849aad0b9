/* optim_priv.h - what optim.c and optim_file.c share */
#ifndef TW_OPTIM_PRIV_H
#define TW_OPTIM_PRIV_H
#include "nn/optim.h"
#include "nn/stack.h"

/* Parameters [i, end) whose weights, gradients and moments lie one after the other, each rounded up
 * to what devices align to: N elements that one call of an op takes. What lies between is zero. */
struct tw_optim_span {
    int64_t i, end, n;
};

struct tw_optim {
    struct tw_dev *dev;
    const struct tw_params *params;
    bool rows;
    struct tw_optim_opts opts;
    void **m, **v;                  /* (dev) one a parameter, in the layout of its weights; NULL where a
                                     * parameter has none */
    float **ms, **vs;               /* (dev) their scales, of codes of 8 bits */
    struct tw_devmem mem;           /* that holds all these */
    struct tw_optim_span *span, *gspan;     /* gspan: whose gradients do, whatever the rest does */
    int64_t nspan, ngspan;
    double *sum, *got;              /* (dev), and pinned */
    float *scale;                   /* (dev) */
    int64_t updates;
    double by;                      /* what divides the next gradients; 0: nothing */
};

/* optim_opts.c: whether P is updated element by element; how many moments it has. */
bool tw_optim_flat(const struct tw_optim_opts *o, const struct tw_param *p);
int tw_optim_moments(const struct tw_optim_opts *o, const struct tw_param *p);
/* Bytes of one moment of P, and of its scales. */
size_t tw_optim_moment(const struct tw_optim_opts *o, const struct tw_param *p, size_t *scales);
/* optim.c: the moments of parameter I, where they are not F32. */
struct tw_small tw_optim_small(const struct tw_optim *o, int64_t i);

#endif
