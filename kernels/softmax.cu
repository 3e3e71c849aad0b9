/* softmax.cu - log-probabilities of targets and the gradient of the logits, which takes their place. Bound
 * by memory: on Hopper a cluster of blocks holds a row in registers, so that it is read once. */
#include "softmax.cuh"
#include <cooperative_groups.h>
#include <math.h>

namespace cg = cooperative_groups;

/* N logits at P, times INV. */
template <int N> static __device__ __forceinline__ void logits_at(float (&x)[N], const float *p,
        float inv)
{
    if constexpr (N == 4) {
        float4 v = *(const float4 *)p;

        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        x[0] = *p;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] *= inv;
}

template <int N> static __device__ __forceinline__ void gradient_to(float *p, const float (&g)[N])
{
    if constexpr (N == 4)
        *(float4 *)p = make_float4(g[0], g[1], g[2], g[3]);
    else
        *p = g[0];
}
template <int N> static __device__ __forceinline__ void gradient_to(bf16 *p, const float (&g)[N])
{
    if constexpr (N == 4) {
        __nv_bfloat162 a = __floats2bfloat162_rn(g[0], g[1]), b = __floats2bfloat162_rn(g[2], g[3]);

        *(uint2 *)p = make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
    } else {
        *p = __float2bfloat16_rn(g[0]);
    }
}

/* A block takes a row: maximum, sum of exponentials, and what else is asked for, in one reading by
 * running maxima; then the gradient, tile by tile: what a tile writes lies in what has been read.
 * N logits at a time; V is a multiple of N. */
template <class A, int N, bool MORE> static __global__ void __launch_bounds__(512)
softmax_rows(float *z, int64_t V, const struct cu_soft q)
{
    int64_t i = blockIdx.x;
    float inv = q.temp ? 1 / q.temp[i] : 1, max = -INFINITY, sum = 0, xe = 0, all = 0, x[N];
    float *row = z + i * V;
    int32_t target = q.target[i];

#pragma unroll 4
    for (int64_t v = threadIdx.x * N; v < V; v += 512 * N) {
        float m = max;

        logits_at<N>(x, row + v, inv);
#pragma unroll
        for (int k = 0; k < N; k++)
            m = fmaxf(m, x[k]);
        if (m > max) {          /* a new maximum: what is there shrinks */
            float f = __expf(max - m);

            sum *= f;
            xe *= f;
            max = m;
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            float e = __expf(x[k] - max);

            sum += e;
            if (MORE) {
                xe += x[k] * e;
                all += x[k];
            }
        }
    }
    float top = block_max(max), f = max > -INFINITY ? __expf(max - top) : 0;
    sum = block_sum(sum * f);
    float lse = top + logf(sum);
    if (MORE) {
        xe = block_sum(xe * f) / sum;
        all = block_sum(all) / (float)V;
    }
    if (!threadIdx.x) {
        q.logp[i] = row[target] * inv - lse;
        if (q.entropy)
            q.entropy[i] = lse - xe;
        if (q.mean)
            q.mean[i] = all - lse;
    }
    if (!q.coef)
        return;
    float c = q.coef[i] * inv, m = q.coef_mean ? q.coef_mean[i] * inv : 0, each = m / (float)V;
    A *out = (A *)row;

    __syncthreads();            /* row[target] has been read */
    for (int64_t v0 = 0; v0 < V; v0 += 2 * 512 * N) {
        float g[2][N];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            int64_t v = v0 + (k * 512 + threadIdx.x) * N;

            if (v < V) {
                logits_at<N>(x, row + v, inv);
#pragma unroll
                for (int j = 0; j < N; j++)
                    g[k][j] = (v + j == target ? c : 0) - (c + m) * __expf(x[j] - lse) + each;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int64_t v = v0 + (k * 512 + threadIdx.x) * N;

            if (v < V)
                gradient_to<N>(out + v, g[k]);
        }
    }
}

/* A cluster of PEERS blocks takes a row, K times four logits a thread. Sums are those of each thread, of
 * each block's by its own maximum, and then of the blocks in order. */
enum { PEERS = 8, THREADS = 512, WIDE = PEERS * THREADS * 4 };

struct share {                  /* of a row, one block's */
    float top, sum, xe, all;
};

template <class A, int K, bool MORE> static __global__ void __launch_bounds__(THREADS, 2)
softmax_cluster(float *z, int V, const struct cu_soft q)
{
#if __CUDA_ARCH__ >= 900
    __shared__ share mine;
    cg::cluster_group peers = cg::this_cluster();
    int64_t i = blockIdx.x / PEERS;
    int at = ((int)(blockIdx.x % PEERS) * THREADS + (int)threadIdx.x) * 4, target = q.target[i];
    float inv = q.temp ? 1 / q.temp[i] : 1, max = -INFINITY, sum = 0, xe = 0, all = 0, x[K][4], hit = 0;
    float *row = z + i * V;
    A *out = (A *)row;

#pragma unroll
    for (int k = 0; k < K; k++) {
        x[k][0] = x[k][1] = x[k][2] = x[k][3] = -INFINITY;
        if (at + k * WIDE < V)
            logits_at<4>(x[k], row + at + k * WIDE, inv);
    }
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (at + k * WIDE + j == target)
                hit = x[k][j];
            max = fmaxf(max, x[k][j]);
        }
    max = block_max(max);
    max = max > -INFINITY ? max : 0;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float e = __expf(x[k][j] - max);

            if (MORE && at + k * WIDE < V) {
                xe += x[k][j] * e;
                all += x[k][j];
            }
            sum += e;
            x[k][j] = e;
        }
    sum = block_sum(sum);
    if (MORE) {
        xe = block_sum(xe);
        all = block_sum(all);
    }
    if (!threadIdx.x)
        mine = { max, sum, xe, all };
    peers.sync();               /* and all of the row has been read */
    float top = -INFINITY, total = 0, txe = 0, tall = 0;
#pragma unroll
    for (int p = 0; p < PEERS; p++)
        top = fmaxf(top, peers.map_shared_rank(&mine, p)->top);
#pragma unroll
    for (int p = 0; p < PEERS; p++) {
        share s = *peers.map_shared_rank(&mine, p);
        float f = __expf(s.top - top);

        total += s.sum * f;
        txe += s.xe * f;
        tall += s.all;
    }
    peers.sync();               /* nobody reads here any more */
    float lse = top + logf(total);
    if (target >= at && (target - at) % WIDE < 4)
        q.logp[i] = hit - lse;
    if (MORE && !(blockIdx.x % PEERS) && !threadIdx.x) {
        if (q.entropy)
            q.entropy[i] = lse - txe / total;
        if (q.mean)
            q.mean[i] = tall / (float)V - lse;
    }
    if (!q.coef)
        return;
    float c = q.coef[i] * inv, m = q.coef_mean ? q.coef_mean[i] * inv : 0, each = m / (float)V;
    float by = (c + m) * __expf(max - lse);

#pragma unroll
    for (int k = 0; k < K; k++) {
        int v = at + k * WIDE;

        if (v >= V)
            break;
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[k][j] = (v + j == target ? c : 0) - by * x[k][j] + each;
        gradient_to<4>(out + v, x[k]);
    }
#endif
}

template <class A, int K, bool MORE> static void launch(struct cu_dev *d, float *z, int64_t V, int64_t n,
        const struct cu_soft *q)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a;

    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = PEERS;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)(n * PEERS));
    c.blockDim = dim3(THREADS);
    c.stream = d->stream;
    c.attrs = &a;
    c.numAttrs = 1;
    CU_TRY(d, cudaLaunchKernelEx(&c, softmax_cluster<A, K, MORE>, z, (int)V, *q));
}

template <class A, bool MORE> static void rows(struct cu_dev *d, float *z, int64_t V, int64_t n,
        const struct cu_soft *q)
{
    bool four = V % 4 == 0;

    if (four && d->major == 9 && V > WIDE && V <= 10 * WIDE) {
        if (V <= 3 * WIDE)
            launch<A, 3, MORE>(d, z, V, n, q);
        else if (V <= 8 * WIDE)
            launch<A, 8, MORE>(d, z, V, n, q);
        else
            launch<A, 10, MORE>(d, z, V, n, q);
    } else if (four) {
        softmax_rows<A, 4, MORE><<<(unsigned)n, 512, 0, d->stream>>>(z, V, *q);
    } else {
        softmax_rows<A, 1, MORE><<<(unsigned)n, 512, 0, d->stream>>>(z, V, *q);
    }
}

void cu_softmax(struct cu_dev *d, float *z, int64_t V, int64_t n, enum tw_dtype t, const struct cu_soft *q)
{
    bool more = q->entropy || q->mean;

    CU_ACT(t, if (more) rows<A, true>(d, z, V, n, q); else rows<A, false>(d, z, V, n, q));
    CU_DONE(d, "softmax");
}
