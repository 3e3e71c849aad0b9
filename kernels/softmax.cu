/* softmax.cu - log-probabilities of targets and the gradient of the logits, which takes their place. Bound
 * by memory: on Hopper a cluster of blocks holds a row in registers, so that it is read once, and has the
 * next one brought meanwhile. */
#include "softmax.cuh"
#include "bar.cuh"
#include <math.h>

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

/* A cluster of PEERS blocks takes rows in turn, of each K times four logits a thread. Blocks stay: the copy
 * engine brings the next row while this one is worked at. Sums are those of each thread, of each warp by its
 * own maximum, of the block's warps, and then of the blocks, in an order that is always the same. */
enum { PEERS = 8, THREADS = 512, WARPS = THREADS / 32, PIECE = THREADS * 4, WIDE = PEERS * PIECE };

struct __align__(16) share {    /* of a row: a warp's, or a block's */
    float top, sum, xe, all;
};

#if TW_SM90
/* One share of what the lanes of a warp have. */
template <bool MORE> static __device__ __forceinline__ share share_sum(share s)
{
    float top = warp_max(s.top), f = s.top > -INFINITY ? __expf(s.top - top) : 0;

    return { top, warp_sum(s.sum * f), MORE ? warp_sum(s.xe * f) : 0, MORE ? warp_sum(s.all) : 0 };
}

/* Puts S to TO in block RANK of the cluster, where it arrives on BAR. */
static __device__ __forceinline__ void tell(share *to, const share &s, uint64_t *bar, int rank)
{
    const float four[4] = { s.top, s.sum, s.xe, s.all };

    cluster_send(bar_at(to), four, bar_at(bar), rank);
}

/* Queues a block's share of a row, piece by piece. */
static __device__ __forceinline__ void ask(float *to, const float *row, int mine, uint64_t *bar)
{
    bar_expect(bar_at(bar), (uint32_t)mine * 4);
    for (int c = 0; c < mine; c += PIECE)
        bar_copy_kept(to + c, row + c, (uint32_t)(min(mine - c, PIECE) * 4), bar_at(bar));
}
#endif

template <class A, int K, bool MORE> static __global__ void __launch_bounds__(THREADS, 2)
softmax_cluster(float *z, int V, int n, const struct cu_soft q)
{
#if TW_SM90
    extern __shared__ __align__(128) float next[];
    __shared__ share of_warp[2][WARPS], got[2][PEERS];
    __shared__ uint64_t there, told[2];
    const int rank = (int)(blockIdx.x % PEERS), step = (int)(gridDim.x / PEERS), lane = threadIdx.x % 32;
    const int part = (V / 4 + PEERS - 1) / PEERS * 4, first = rank * part, mine = min(part, V - first);
    const int at = (int)threadIdx.x * 4;
    int i = (int)(blockIdx.x / PEERS);

    if (!threadIdx.x) {
        bar_init(bar_at(&there), 1), bar_init(bar_at(&told[0]), 1), bar_init(bar_at(&told[1]), 1);
        bar_made();
    }
    cluster_arrive();                   /* nobody sends before the other has barriers, */
    cluster_wait();
    if (!threadIdx.x && i < n)
        ask(next, z + (int64_t)i * V + first, mine, &there);
    for (int it = 0, turn = 0; i < n; i += step, it++, turn ^= 1) {
        const int target = q.target[i] - first;
        const float inv = q.temp ? 1 / q.temp[i] : 1, c = q.coef ? q.coef[i] * inv : 0;
        const float m = q.coef_mean ? q.coef_mean[i] * inv : 0;
        const bool hit = target >= 0 && target < mine && target % PIECE / 4 == (int)threadIdx.x;
        float x[K][4], max = -INFINITY, zt = 0;
        share s = {};

        bar_wait(bar_at(&there), it & 1);
#pragma unroll
        for (int k = 0; k < K; k++) {
            x[k][0] = x[k][1] = x[k][2] = x[k][3] = -INFINITY;
            if (at + k * PIECE < mine)
                logits_at<4>(x[k], next + at + k * PIECE, inv);
        }
        if (hit)
            zt = next[target] * inv;
        __syncthreads();                /* all of this share has been read */
        if (!threadIdx.x && i + step < n)
            ask(next, z + (int64_t)(i + step) * V + first, mine, &there);
#pragma unroll
        for (int k = 0; k < K; k++)
            max = fmaxf(fmaxf(max, fmaxf(x[k][0], x[k][1])), fmaxf(x[k][2], x[k][3]));
        max = warp_max(max);
        max = max > -INFINITY ? max : 0;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float e = __expf(x[k][j] - max);

                if (MORE && at + k * PIECE < mine) {
                    s.xe += x[k][j] * e;
                    s.all += x[k][j];
                }
                s.sum += e;
                x[k][j] = e;
            }
        s = { max, warp_sum(s.sum), MORE ? warp_sum(s.xe) : 0, MORE ? warp_sum(s.all) : 0 };
        if (!lane)
            of_warp[turn][threadIdx.x / 32] = s;
        __syncthreads();
        if (threadIdx.x < 32) {
            share b = lane < WARPS ? of_warp[turn][lane] : share{ -INFINITY, 0, 0, 0 };

            b = share_sum<MORE>(b);
            if (!lane)
                bar_expect(bar_at(&told[turn]), PEERS * sizeof b);
            if (lane < PEERS)
                tell(&got[turn][rank], b, &told[turn], lane);
        }
        bar_wait(bar_at(&told[turn]), it / 2 & 1);      /* all of the row has been read */
        s = lane < PEERS ? got[turn][lane] : share{ -INFINITY, 0, 0, 0 };
        s = share_sum<MORE>(s);

        float lse = s.top + logf(s.sum);
        if (hit)
            q.logp[i] = zt - lse;
        if (MORE && !rank && !threadIdx.x) {
            if (q.entropy)
                q.entropy[i] = lse - s.xe / s.sum;
            if (q.mean)
                q.mean[i] = s.all / (float)V - lse;
        }
        if (!q.coef)
            continue;
        const float each = m / (float)V, by = (c + m) * __expf(max - lse);
        A *out = (A *)(z + (int64_t)i * V) + first;

#pragma unroll
        for (int k = 0; k < K; k++) {
            if (at + k * PIECE >= mine)
                break;
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[k][j] = each - by * x[k][j];
            gradient_to<4>(out + at + k * PIECE, x[k]);
        }
        if (hit)
            st1(out + target, c + each - by * __expf(zt - max));
    }
    cluster_arrive();                   /* nor leaves while others may still send */
    cluster_wait();
#endif
}

template <class A, int K, bool MORE> static void launch(struct cu_dev *d, float *z, int64_t V, int64_t n,
        const struct cu_soft *q)
{
    static int most;                    /* clusters at a time */
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a;

    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = PEERS;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)(d->sms * 2 / PEERS * PEERS));
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = K * PIECE * 4;
    c.stream = d->stream;
    c.attrs = &a;
    c.numAttrs = 1;
    CU_TRY(d, cudaFuncSetAttribute((const void *)softmax_cluster<A, K, MORE>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.dynamicSmemBytes));
    if (!most)
        CU_TRY(d, cudaOccupancyMaxActiveClusters(&most, softmax_cluster<A, K, MORE>, &c));
    c.gridDim = dim3((unsigned)((most < 1 ? 1 : most < n ? most : n) * PEERS));
    CU_TRY(d, cudaLaunchKernelEx(&c, softmax_cluster<A, K, MORE>, z, (int)V, (int)n, *q));
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
