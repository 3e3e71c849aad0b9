/* dev.cu - opening a GPU: memory, copies, the sticky error, and the table of its ops */
#include "delta.cuh"
#include "mla.cuh"
#include "moe.cuh"
#include "nn/cuda.h"
#include <new>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const size_t RING = (size_t)8 << 20;     /* bytes of pinned memory for uploads */

void cu_fail(struct cu_dev *d, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    tw_fail(&d->err, NULL, 0, "GPU %d: %s", d->index, text);
}

void cu_note(struct cu_dev *d, cudaError_t e, const char *what)
{
    if (e == cudaErrorMemoryAllocation)
        cu_fail(d, "out of memory in %s: use a smaller --micro-tokens, --recompute, or a shorter "
                "--max-length", what);
    else if (e != cudaSuccess)
        cu_fail(d, "%s: %s", what, cudaGetErrorString(e));
}

/* Memory in numbers people read. */
static double gib(size_t n)
{
    return (double)n / (1 << 30);
}

static void *take(struct cu_dev *d, size_t n, struct tw_err *err)
{
    size_t free = 0, total = 0;
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, n ? n : 1);

    if (e == cudaSuccess)
        return p;
    cudaGetLastError();         /* an allocation that failed leaves nothing behind */
    cudaMemGetInfo(&free, &total);
    if (e == cudaErrorMemoryAllocation)
        tw_fail_code(err, TW_ENOMEM, NULL, 0, "GPU %d has no room for %.2f GiB more (%.2f of %.2f "
                "GiB free): use a smaller --micro-tokens, --recompute, or a shorter --max-length",
                d->index, gib(n),
                gib(free), gib(total));
    else
        tw_fail(err, NULL, 0, "GPU %d: cudaMalloc: %s", d->index, cudaGetErrorString(e));
    return NULL;
}

static void *d_alloc(struct tw_dev *dev, size_t n, struct tw_err *err)
{
    struct cu_dev *d = cu(dev);
    void *p = take(d, n, err);

    if (p)
        CU_TRY(d, cudaMemsetAsync(p, 0, n, d->stream));
    return p;
}

static void d_free(struct tw_dev *dev, void *p)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaStreamSynchronize(d->stream));
    CU_TRY(d, cudaFree(p));
}

void *cu_scratch(struct cu_dev *d, enum cu_scratch kind, size_t n)
{
    struct cu_buf *b = &d->scratch[kind];

    if (n <= b->n)
        return b->p;
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    CU_TRY(d, cudaFree(b->p));
    *b = (struct cu_buf){ NULL, 0 };
    b->p = take(d, n, &d->err);
    if (b->p)
        b->n = n;
    return b->p;
}

/* The ring is written in two halves; a half is used again when its uploads have been made, which
 * they nearly always have. */
void cu_upload(struct cu_dev *d, void *dst, const void *host, size_t n)
{
    const size_t half = RING / 2;

    while (n) {
        size_t at = d->ring_at, room = half - at % half, part = n < room ? n : room;

        if (at % half == 0)
            CU_TRY(d, cudaEventSynchronize(d->ring_done[at / half]));
        memcpy(d->ring + at, host, part);
        CU_TRY(d, cudaMemcpyAsync(dst, d->ring + at, part, cudaMemcpyHostToDevice, d->stream));
        if (at % half + part == half)
            CU_TRY(d, cudaEventRecord(d->ring_done[at / half], d->stream));
        d->ring_at = (at + part) % RING;
        dst = (char *)dst + part;
        host = (const char *)host + part;
        n -= part;
    }
}

/* Small things go by the ring and cost no wait; of large ones the driver makes its own stages. */
static void d_put(struct tw_dev *dev, void *dst, const void *host, size_t n)
{
    struct cu_dev *d = cu(dev);

    if (n <= RING / 4)
        cu_upload(d, dst, host, n);
    else
        CU_TRY(d, cudaMemcpyAsync(dst, host, n, cudaMemcpyHostToDevice, d->stream));
}

static void d_get(struct tw_dev *dev, void *host, const void *src, size_t n)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaMemcpyAsync(host, src, n, cudaMemcpyDeviceToHost, d->stream));
    CU_TRY(d, cudaStreamSynchronize(d->stream));
}

static void d_copy(struct tw_dev *dev, void *dst, const void *src, size_t n)
{
    CU_TRY(cu(dev), cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToDevice, cu(dev)->stream));
}

static void d_zero(struct tw_dev *dev, void *p, size_t n)
{
    CU_TRY(cu(dev), cudaMemsetAsync(p, 0, n, cu(dev)->stream));
}

static int d_sync(struct tw_dev *dev, struct tw_err *err)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaStreamSynchronize(d->stream));
    if (!d->err.code)
        return 0;
    if (err && !err->code)
        *err = d->err;
    return -1;
}

static void *d_pin(struct tw_dev *dev, size_t n)
{
    void *p = NULL;

    CU_TRY(cu(dev), cudaHostAlloc(&p, n ? n : 1, cudaHostAllocDefault));
    return p;
}

static void d_unpin(struct tw_dev *dev, void *p)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaStreamSynchronize(d->stream));        /* a copy may be on its way there */
    CU_TRY(d, cudaFreeHost(p));
}

static void d_get_later(struct tw_dev *dev, void *pinned, const void *src, size_t n)
{
    CU_TRY(cu(dev), cudaMemcpyAsync(pinned, src, n, cudaMemcpyDeviceToHost, cu(dev)->stream));
}

static int64_t d_mark(struct tw_dev *dev)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaEventRecord(d->mark[d->marks % CU_MARKS], d->stream));
    return d->marks++;
}

/* A mark that is too old to have an event of its own lies before the one that took its place. */
static int d_reach(struct tw_dev *dev, int64_t mark, struct tw_err *err)
{
    struct cu_dev *d = cu(dev);

    CU_TRY(d, cudaEventSynchronize(d->mark[mark % CU_MARKS]));
    if (!d->err.code)
        return 0;
    if (err && !err->code)
        *err = d->err;
    return -1;
}

static bool d_whole(struct tw_dev *dev, bool on)
{
    struct cu_dev *d = cu(dev);
    bool can = d->major == 9 && cu_attn_wg_real();

    d->whole = on && can;
    return can;
}

static void d_memory(struct tw_dev *dev, size_t *used, size_t *free)
{
    size_t total = 0;

    *free = 0;
    CU_TRY(cu(dev), cudaMemGetInfo(free, &total));
    *used = total - *free;
}

/* Dense products: multiply-adds a multiprocessor makes in a cycle, at the highest clock. */
static double d_peak(const struct tw_dev *dev, enum tw_dtype t)
{
    const struct cu_dev *d = (const struct cu_dev *)dev;
    double each = t == TW_F32 ? 128 : d->major >= 9 ? 2048 : d->major == 8 && d->minor ? 512 : 1024;

    return 2 * each * d->sms * d->hz;
}

static void d_close(struct tw_dev *dev)
{
    struct cu_dev *d = cu(dev);

    if (d->stream)
        cudaStreamSynchronize(d->stream);
    cu_step_close(d);
    cu_attn_close(d);
    cu_delta_close(d);
    cu_gemm_close(d);
    for (int i = 0; i < CU_NSCRATCH; i++)
        cudaFree(d->scratch[i].p);
    for (int i = 0; i < 2; i++)
        if (d->ring_done[i])
            cudaEventDestroy(d->ring_done[i]);
    for (int i = 0; i < CU_MARKS; i++)
        if (d->mark[i])
            cudaEventDestroy(d->mark[i]);
    cudaFreeHost(d->ring);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    delete d;
}

static struct tw_ops make_ops(bool hopper)
{
    struct tw_ops o = {};

    o.name = "cuda";
    o.low_act = o.sets = o.plain = o.one_grad = true;
    o.alloc = d_alloc;
    o.free = d_free;
    o.put = d_put;
    o.get = d_get;
    o.copy = d_copy;
    o.zero = d_zero;
    o.sync = d_sync;
    o.pin = d_pin;
    o.unpin = d_unpin;
    o.get_later = d_get_later;
    o.mark = d_mark;
    o.reach = d_reach;
    o.whole = d_whole;
    o.memory = d_memory;
    o.peak = d_peak;
    o.close = d_close;
    cu_mat_ops(&o);
    cu_elem_ops(&o);
    cu_norm_ops(&o);
    cu_linear_ops(&o);
    cu_lora_ops(&o);
    cu_lora_wide_ops(&o);
    cu_head_ops(&o);
    cu_optim_ops(&o);
    cu_attn_ops(&o);
    cu_mla_ops(&o);
    cu_moe_ops(&o);
    cu_delta_ops(&o);
    if (hopper)
        cu_step_ops(&o);
    return o;
}

static bool start(struct cu_dev *d, struct tw_err *err)
{
    static const struct tw_ops older = make_ops(false), hopper = make_ops(true);
    cudaDeviceProp p;
    int n = 0, smem = 0, khz = 0;
    cudaError_t e = cudaGetDeviceCount(&n);

    if (e != cudaSuccess || !n)
        return !tw_fail_code(err, TW_ENOTFOUND, "--device", 0, "there is no CUDA GPU here (%s): use "
                "--device cpu", e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
    if (d->index >= n)
        return !tw_fail(err, "--device", 0, "there is no GPU %d: %d %s visible", d->index, n,
                n == 1 ? "is" : "are");
    CU_TRY(d, cudaSetDevice(d->index));
    CU_TRY(d, cudaGetDeviceProperties(&p, d->index));
    if (p.major < 8)
        return !tw_fail(err, NULL, 0, "GPU %d (%s) has compute capability %d.%d, 8.0 is needed: "
                "use --device cpu", d->index, p.name, p.major, p.minor);
    d->head.ops = p.major < 9 ? &older : &hopper;
    d->sms = p.multiProcessorCount;
    d->major = p.major;
    d->minor = p.minor;
    CU_TRY(d, cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, d->index));
    d->hz = khz * 1e3;
    CU_TRY(d, cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index));
    d->smem_max = (size_t)smem;
    CU_TRY(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    CU_TRY(d, cudaHostAlloc((void **)&d->ring, RING, cudaHostAllocDefault));
    for (int i = 0; i < 2; i++)
        CU_TRY(d, cudaEventCreateWithFlags(&d->ring_done[i], cudaEventDisableTiming));
    for (int i = 0; i < CU_MARKS; i++)
        CU_TRY(d, cudaEventCreateWithFlags(&d->mark[i], cudaEventDisableTiming));
    if (!cu_gemm_open(d) || d->err.code) {
        if (err && !err->code)
            *err = d->err;
        return false;
    }
    return true;
}

extern "C" __attribute__((visibility("default"))) struct tw_dev *tw_cuda_open(unsigned abi,
        int index, struct tw_err *err)
{
    struct cu_dev *d;

    if (abi != TW_CUDA_ABI) {
        tw_fail(err, NULL, 0, "libtw-cuda.so was built for another version of this command (%x, "
                "%x is asked for): build both again", TW_CUDA_ABI, abi);
        return NULL;
    }
    d = new (std::nothrow) struct cu_dev();
    if (!d) {
        tw_fail(err, NULL, 0, "out of memory");
        return NULL;
    }
    d->index = index;
    if (!start(d, err)) {
        d_close((struct tw_dev *)d);
        return NULL;
    }
    return (struct tw_dev *)d;
}
