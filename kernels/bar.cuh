/* bar.cuh - barriers in shared memory, copies that arrive on them, and clusters of blocks: what
 * kernels of Hopper and later share. Empty in code for older GPUs, where nobody calls them. */
#ifndef TW_BAR_CUH
#define TW_BAR_CUH
#include "cu.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TW_SM90 1
#else
#define TW_SM90 0               /* compiled for an older GPU: the kernels are empty, and not used */
#endif

#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t bar_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void bar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
static __device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives when what this thread has asked for by cp.async so far is there. */
static __device__ __forceinline__ void bar_arrive_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
/* Arrives on the barrier at BAR of block RANK of the cluster: it says that something was read. (To release
 * what was written to the whole cluster would be a trip to memory each time.) */
static __device__ __forceinline__ void bar_arrive_at(uint32_t bar, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(bar), "r"(rank) : "memory");
#endif
}
/* Arrives, and N bytes of copies will too. */
static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t n)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n)
                 : "memory");
}
/* Waits until the phase of this parity is over. */
static __device__ __forceinline__ void bar_wait(uint32_t bar, int parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(bar), "r"(parity) : "memory");
}
/* After bar_init(), by the same thread: the copy engine sees what it made. */
static __device__ __forceinline__ void bar_made()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Queues a copy of N bytes (all three in sixteens) that will arrive on BAR; what is read goes first
 * when the L2 cache needs room. */
static __device__ __forceinline__ void bar_copy(void *to, const void *from, uint32_t n, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b64 once;\ncreatepolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], once;\n}\n" ::"r"(bar_at(to)), "l"(from), "r"(n), "r"(bar)
                 : "memory");
#endif
}
/* The same without a hint. */
static __device__ __forceinline__ void bar_copy_kept(void *to, const void *from, uint32_t n,
        uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(bar_at(to)), "l"(from), "r"(n), "r"(bar) : "memory");
#endif
}
/* What threads of this block wrote to shared memory, before a barrier that this one came through, is seen by
 * the copy engine. Queues copies of N bytes (all three in sixteens) out of there; bar_stored() waits until
 * those of this thread have been read. */
static __device__ __forceinline__ void bar_publish()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
static __device__ __forceinline__ void bar_store(void *to, const void *from, uint32_t n)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(bar_at(from)),
                 "r"(n) : "memory");
#endif
}
static __device__ __forceinline__ void bar_stored()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
/* A slot of a ring of copies, and the parity of how often it has come round. */
struct slot_at {
    int i, round;
};

static __device__ __forceinline__ void advance(slot_at &at, int slots)
{
    if (++at.i == slots)
        at.i = 0, at.round ^= 1;
}

/* Waits for the N threads of whole warps that come to barrier ID. */
static __device__ __forceinline__ void bar_group(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* P, as block RANK of the cluster has it. */
template <class T> static __device__ __forceinline__ T *cluster_map(T *p, unsigned rank)
{
#if __CUDA_ARCH__ >= 900
    return (T *)__cluster_map_shared_rank(p, rank);
#else
    return p;
#endif
}
/* Sends four numbers to AT in block RANK of the cluster, where they arrive on BAR; or two. */
static __device__ __forceinline__ void cluster_send(uint32_t at, const float *c, uint32_t bar, int rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\n"
                 "mapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], "
                 "{%3, %4, %5, %6}, [bar];\n}\n" ::"r"(at), "r"(bar), "r"(rank), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3]) : "memory");
#endif
}
static __device__ __forceinline__ void cluster_send_pair(uint32_t at, float a, float b, uint32_t bar, int rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\n"
                 "mapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [bar];\n}\n"
                 ::"r"(at), "r"(bar), "r"(rank), "f"(a), "f"(b) : "memory");
#endif
}
/* Says that this thread has come, and that what it wrote before may be read by those who wait. */
static __device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
#endif
#endif
