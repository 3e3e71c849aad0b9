/* help_ops.h - what the op tests share: the devices to try, random arrays, tensors and matrices on
 * a device, and comparing bits between devices. */
#ifndef TW_HELP_OPS_H
#define TW_HELP_OPS_H
#include "nn/ops.h"

/* The devices of this machine: every instruction set, one thread and several. */
struct help_dev {
    struct tw_dev *d;
    char name[32];
    int bits;                   /* devices with one number agree in the bits of products */
};
extern struct help_dev help_devs[8];
extern int help_ndev;
void help_open(void);
void help_close(void);

/* N numbers from the seed: about normal, plus some zeros. To be freed. */
float *help_rand(int64_t n, uint64_t seed, float scale);
void help_round16(float *x, int64_t n);             /* to bf16 values */
void *help_put(struct tw_dev *d, const void *host, size_t bytes);   /* a device copy */
float *help_get(struct tw_dev *d, const void *p, int64_t n);        /* a host copy, to be freed */
/* A tensor of rows of COLS inside rows of LD elements, what lies between being 7. */
struct tw_tensor help_tensor(struct tw_dev *d, const float *x, int64_t rows, int64_t cols,
        int64_t ld);
float *help_tensor_get(struct tw_dev *d, const struct tw_tensor *x);
/* Whether nothing was written between the rows. */
bool help_tensor_clean(struct tw_dev *d, const struct tw_tensor *x);
struct tw_mat help_mat(struct tw_dev *d, const float *w, int64_t rows, int64_t cols,
        enum tw_dtype t);
float *help_mat_get(struct tw_dev *d, const struct tw_mat *m);

/* |got - want| <= tol * max(1, |want|) everywhere; says where not. */
bool help_near(const float *got, const double *want, int64_t n, double tol, const char *what);
bool help_same(const void *a, const void *b, size_t bytes, const char *what);
/* The result of the first device is kept under SLOT and the others' compared with it, to the
 * bit. */
bool help_agree(int slot, const float *x, int64_t n, const char *what, const char *dev);
void help_forget(void);

#endif
