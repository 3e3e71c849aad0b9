/* step.cuh - what the files of decode steps share (nn/step_ops.h): the input of a step in device
 * memory, and launches that overlap: a kernel is started while the one before it ends, fetches what
 * that one cannot change (weights, keys of earlier tokens), and then waits in step_wait(). */
#ifndef TW_STEP_CUH
#define TW_STEP_CUH
#include "cu.cuh"

enum { STEP_MAX = 256, STEP_FEW = 16, STEP_SOME = 64 };     /* sequences of a step; of a product in few.cu,
                                 * and in step_some.cu */
enum { CHOOSE_RANKS = 8, CHOOSE_THREADS = 512 };    /* blocks that share a row, threads of each */

struct choose_row {             /* a struct tw_choice on its way to the device */
    double temperature, top_p, min_p, repetition, presence, frequency, u;
    int32_t top_k, top_n;       /* top_n -1: no row */
    int32_t seen0, nseen;       /* pairs in seen[] */
};

struct choose_out {             /* and back, in host memory */
    int32_t id;
    float logp, sampled_logp;
    int32_t pad;
};

struct choose_arg {
    const float *z;             /* [rows, V] */
    int64_t V;
    const struct choose_row *row;
    const int32_t *seen;        /* pairs (id, times) */
    const uint8_t *allowed;
    struct choose_out *out;     /* [rows] */
    int32_t *top_id;            /* [rows, top_max] */
    float *top_logp;
    int32_t top_max;
};

/* The input of a step, as kernels see it; all (dev), rows behind the n-th have pos -1. */
struct step_view {
    const int32_t *id, *pos, *slot;
    char *const *blk, *const *near;     /* [T, maxb] near: of layers with a window */
    char *const *rec, *const *mark;     /* [T] recurrent states; where they are to be copied, or NULL */
    const struct tw_step_lora *lora;    /* NULL: no adapters */
    int32_t maxb, nmodule, max_r;
    int32_t splits, split_keys; /* of attention */
    float norm_off;             /* added to the weights of norms */
};

struct cu_step;
struct cu_step *cu_step_of(struct cu_dev *d);
const struct step_view *cu_step_view(struct cu_dev *d);
int64_t cu_step_rows(struct cu_dev *d);
/* How few tokens go: TW_STEP says plain or ring, for comparisons; TW_STEP_RING and TW_STEP_WINDOW are
 * KiB of shared memory a block takes for its ring (when it is said, all products go through rings), and of
 * copies on their way at most. */
enum step_kind { STEP_PLAIN, STEP_RING };
struct step_way {
    enum step_kind kind;
    size_t ring, window;
    bool hold;                  /* weights that fit are held whole (step_hold.cu) */
    size_t took;                /* bytes of shared memory, by a block of the last product there */
};
struct step_way *cu_step_way(struct cu_dev *d);
/* Buffers of the steps; they grow while nothing is recorded, and earlier records are dropped. */
enum step_buf { STEP_IN, STEP_LORA, STEP_H, STEP_NORM, STEP_WIDE, STEP_PART, STEP_TICKET,
    STEP_LOGITS, STEP_MOE, STEP_MLA, STEP_NBUF };
void *cu_step_buf(struct cu_dev *d, enum step_buf b, size_t n);
void cu_step_close(struct cu_dev *d);

/* step_lin.cu */
void cu_step_embed(struct tw_dev *d, struct tw_tensor *x, const struct tw_mat *w, float scale);
void cu_step_post(struct tw_dev *d, struct tw_tensor *x, const struct tw_tensor *y, const float *norm,
        float eps);
void cu_step_linear(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const float *norm, float eps, const struct tw_step_w *w, int64_t n,
        const struct tw_tensor *res);
void cu_step_glu(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const float *norm, float eps, const struct tw_step_w *gate, const struct tw_step_w *up, int act);
void cu_step_logits(struct cu_dev *d, float *z, const struct tw_tensor *x, const float *norm,
        float eps, const struct tw_mat *w);
/* step_attn.cu */
bool cu_step_attn_fits(const struct tw_step_attn *a);
void cu_step_attn(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *qkv,
        const struct tw_step_attn *a);
/* step_moe.cu */
bool cu_step_moe_fits(const struct tw_step_moe *m);
void cu_step_moe(struct tw_dev *d, struct tw_tensor *x, const float *norm, float eps,
        const struct tw_step_moe *m, const struct tw_tensor *shared, const struct tw_tensor *gate);
/* step_mla.cu */
bool cu_step_mla_fits(const struct tw_step_mla *a);
void cu_step_mla(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_tensor *lat, const struct tw_step_mla *a);
/* delta_step.cu */
bool cu_step_delta_fits(const struct tw_delta *s);
void cu_step_delta(struct tw_dev *d, struct tw_tensor *y, const struct tw_delta_step *in,
        const struct tw_delta *s);
/* choose.cu */
bool cu_choose_fits(const struct cu_dev *d, int64_t V);
void cu_choose(struct cu_dev *d, const struct choose_arg *a, int64_t rows);

#ifdef __CUDACC__
/* Lets the next kernel start, which it does when all blocks of this one have come here. What that one
 * reads before its own wait must then be what no kernel of the step writes before it: not this one,
 * and not those before this one, which may be running still. */
static __device__ __forceinline__ void step_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits for the end of the kernel before this one, and so of all before that. */
static __device__ __forceinline__ void step_after()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void step_wait()
{
    step_after();
    step_next();
}

/* Brings what will be read after step_wait() near. */
static __device__ __forceinline__ void step_fetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* All dynamic shared memory that a block of KERNEL may have: the limit must not sink below what an earlier
 * record asks for. And a multiprocessor's L1 as shared memory, so that the next kernel's blocks have room
 * beside its own. */
static inline void step_room(struct cu_dev *d, const void *kernel)
{
    cudaFuncAttributes f = {};

    CU_TRY(d, cudaFuncGetAttributes(&f, kernel));
    CU_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                (int)(d->smem_max - f.sharedSizeBytes)));
    CU_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                cudaSharedmemCarveoutMaxShared));
}

/* Starts KERNEL over the end of the one before it, in clusters of CLUSTER blocks along x. */
template <typename... P, typename... Q> static inline void step_launch(struct cu_dev *d,
        void (*kernel)(P...), dim3 grid, unsigned threads, size_t smem, unsigned cluster, Q... args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute at[2] = {};

    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = smem;
    c.stream = d->stream;
    c.attrs = at;
    at[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    if (cluster > 1) {
        at[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        at[c.numAttrs].val.clusterDim.x = cluster;
        at[c.numAttrs].val.clusterDim.y = 1;
        at[c.numAttrs++].val.clusterDim.z = 1;
    }
    CU_TRY(d, cudaLaunchKernelEx(&c, kernel, P(args)...));
}
#endif
#endif
