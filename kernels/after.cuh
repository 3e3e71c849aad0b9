/* after.cuh - short kernels over the end of the one before them */
#ifndef TW_AFTER_CUH
#define TW_AFTER_CUH
#include "cu.cuh"

/* cu_start() launches a kernel so that it is set up while the one before it still runs (on Hopper and later;
 * elsewhere as usual). It touches no memory before cu_after(), its first statement: this lets the next one be
 * set up, which happens when all blocks have come here, and waits until all before has been done and can be
 * seen. A kernel that left without it would let the next one pass what is not done. Nor may what it reads be
 * __restrict__: loads of what nobody writes (.nc) are moved in front of it by the compiler. */
static __device__ __forceinline__ void cu_after()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <typename... P, typename... Q> static inline void cu_start(struct cu_dev *d, void (*kernel)(P...),
        dim3 grid, dim3 threads, size_t smem, Q... args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute at = {};

    c.gridDim = grid;
    c.blockDim = threads;
    c.dynamicSmemBytes = smem;
    c.stream = d->stream;
    c.attrs = &at;
    c.numAttrs = d->major >= 9;
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    CU_TRY(d, cudaLaunchKernelEx(&c, kernel, P(args)...));
}

#endif
