/* stub.cu - of the device, what kernels/attn*.cu need: errors are printed, scratch grows, an upload
 * waits */
#include "cu.cuh"
#include <stdarg.h>
#include <stdio.h>

void cu_fail(struct cu_dev *d, const char *fmt, ...)
{
    va_list ap;

    printf("# ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    d->err.code = 1;
}

void cu_note(struct cu_dev *d, cudaError_t e, const char *what)
{
    if (e == cudaSuccess || d->err.code)
        return;
    cu_fail(d, "%s: %s", what, cudaGetErrorString(e));
}

void *cu_scratch(struct cu_dev *d, enum cu_scratch kind, size_t n)
{
    struct cu_buf *b = &d->scratch[kind];

    if (n > b->n) {
        cudaDeviceSynchronize();
        cudaFree(b->p);
        CU_TRY(d, cudaMalloc(&b->p, n));
        b->n = n;
    }
    return b->p;
}

void cu_upload(struct cu_dev *d, void *dst, const void *host, size_t n)
{
    CU_TRY(d, cudaMemcpyAsync(dst, host, n, cudaMemcpyHostToDevice, d->stream));
    CU_TRY(d, cudaStreamSynchronize(d->stream));
}
