/* help_cuda.h - what the tests of the GPU's ops share: buffers that both devices hold, and comparing
 * them. Outputs are full of NaN before. */
#ifndef TW_HELP_CUDA_H
#define TW_HELP_CUDA_H
#include "nn/ops.h"

extern struct tw_dev *gpu, *cpu;
extern enum tw_dtype act;           /* of the GPU's activations and matrices */

/* A buffer on both devices: F32 on the CPU; on the GPU activations in act. */
struct both {
    struct tw_tensor c, g;
    struct tw_mat mc, mg;
    float *start;                   /* what it was made with; NULL: NaN */
    int64_t n;
};

/* Opens both; prints that all is skipped where there is no GPU. */
bool help_cuda_open(void);
void help_cuda_close(void);

float *numbers(int64_t n, float scale);     /* values of BF16, about normal; to be freed */
void *put(struct tw_dev *d, const void *host, size_t bytes);
/* Rows of COLS elements, PAD more between them, that must stay as they are; empty: NaN. */
struct both tensor(int64_t rows, int64_t cols, int64_t pad, bool empty, float scale);
struct both vector(int64_t n, bool empty);  /* F32 on both */
struct both matrix(int64_t rows, int64_t cols, enum tw_dtype t);
struct both roomy_matrix(int64_t rows, int64_t cols, int64_t ext, enum tw_dtype t);    /* on the GPU */
void done(struct both *b);

/* max |a - b| / max |b| within the tolerance of act; says where not. */
double tolerance(void);
bool near(const float *got, const float *want, int64_t n, double tol, const char *what);
bool same_as(const struct both *b, const char *what);
bool same_mat_as(const struct both *b, const char *what);
float *seen(const struct both *b);          /* the GPU's numbers; to be freed */
/* Gives the GPU's scratch of the head, of which attention's backward takes what is there, N bytes or more. */
void head_room(size_t n);
bool is_healthy(void);                      /* no op has failed */

#define same(b, what) ((void)(same_as(b, what) || test_here_++))
#define same_mat(b, what) ((void)(same_mat_as(b, what) || test_here_++))
#define healthy() ((void)(is_healthy() || test_here_++))
#define C(op, ...) tw_ops(cpu)->op(cpu, __VA_ARGS__)
#define G(op, ...) tw_ops(gpu)->op(gpu, __VA_ARGS__)
#define EACH(a) for (size_t i = 0; i < sizeof(a) / sizeof *(a); i++)

#endif
