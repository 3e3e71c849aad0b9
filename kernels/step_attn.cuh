/* step_attn.cuh - what both kinds of attention of a decode step do with a query, a key and a running
 * softmax: one block a kv head (step_attn.cu), or a cluster of blocks (step_attn_cluster.cu). */
#ifndef TW_STEP_ATTN_CUH
#define TW_STEP_ATTN_CUH
#include "bar.cuh"
#include "step.cuh"

enum { BIG = 16 };              /* warps that share the keys of a split when sequences are few */

struct step_attn_arg {
    struct step_view v;
    const bf16 *qkv;
    bf16 *o;
    int64_t ldq, ldo;
    float *part;                /* [T, nh, splits, hd + 2] */
    int32_t *ticket;            /* [T, nkv] splits that are through; 0 between calls */
    const float *qnorm, *knorm, *cos, *sin;
    size_t offset;
    float eps, scale;
    int32_t nh, nkv, group, window, rot, pairs;
    int32_t gated;              /* a gate behind every head of q */
};

/* The same bits by a cluster; false: it does not take this shape, and nothing was done. */
bool cu_step_attn_cluster(struct cu_dev *d, struct step_attn_arg *a, int64_t rows, int64_t hd);
/* step_attn_ring.cu: the same of many sequences, GRID of kv heads, sequences and splits; false: as above. */
bool cu_step_attn_ring(struct cu_dev *d, const struct step_attn_arg *a, dim3 grid, int64_t hd);

#ifdef __CUDACC__
static __device__ __forceinline__ float ex2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* What a lane needs of a norm's weights and of a position's rotation, which no kernel of a step changes. */
template <int HD> struct turn {
    static constexpr int N = HD < 32 ? 1 : HD / 32, M = N < 2 ? 1 : N / 2;
    float k[N], c[M], s[M];
};

template <int HD>
static __device__ __forceinline__ turn<HD> turn_of(const float *norm, const step_attn_arg &a, int pos, int lane)
{
    turn<HD> t;
    int half = a.rot / 2;

#pragma unroll
    for (int i = 0; i < t.M; i++)
        if (lane + 32 * i < half) {
            t.c[i] = a.cos[(int64_t)pos * half + lane + 32 * i];
            t.s[i] = a.sin[(int64_t)pos * half + lane + 32 * i];
        }
#pragma unroll
    for (int i = 0; i < t.N; i++)
        t.k[i] = norm && lane + 32 * i < HD ? norm[lane + 32 * i] + a.v.norm_off : 0;
    return t;
}

/* One head by one warp: to[HD] = rotated norm of x, rounded where the ops of a pass round: between
 * the two only where those are not one. */
template <int HD> static __device__ __forceinline__ void prepare(float *to, const bf16 *x, bool norm,
        const turn<HD> &t, const step_attn_arg &a, int lane)
{
    constexpr int N = turn<HD>::N, M = turn<HD>::M;
    float v[N], sq = 0;
    int half = a.rot / 2;

#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = lane + 32 * i < HD ? __bfloat162float(x[lane + 32 * i]) : 0;
        sq = fmaf(v[i], v[i], sq);
    }
    if (norm) {
        float r = 1 / sqrtf(warp_sum(sq) / HD + a.eps);
        bool two = HD < 64 || a.rot != HD || a.pairs;

#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = two ? round_bf16(v[i] * r * t.k[i]) : v[i] * r * t.k[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + 32 * i < HD)
            to[lane + 32 * i] = v[i];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < M; n++) {
        int i = lane + 32 * n, p = a.pairs ? 2 * i : i, q = a.pairs ? 2 * i + 1 : i + half;

        if (i < half) {
            float x0 = to[p], x1 = to[q];

            to[p] = round_bf16(x0 * t.c[n] - x1 * t.s[n]);
            to[q] = round_bf16(x1 * t.c[n] + x0 * t.s[n]);
        }
    }
    __syncwarp();
}

static __device__ __forceinline__ void unpack(float (&v)[8], uint4 u)
{
    uint32_t w[4] = { u.x, u.y, u.z, u.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

template <int N> static __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int o = N / 2; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

/* The running softmax of G heads takes in U keys. */
template <int LPK, int G, int U> static __device__ __forceinline__ void take(float (&acc)[G][8],
        float (&top)[G], float (&all)[G], const float (&q)[G][8], const uint4 (&k)[U],
        const uint4 (&v)[U], int j, int stride, int end)
{
    float s[U][G], x[8];

#pragma unroll
    for (int u = 0; u < U; u++) {
        unpack(x, k[u]);
#pragma unroll
        for (int g = 0; g < G; g++) {
            float dot = 0;

#pragma unroll
            for (int i = 0; i < 8; i++)
                dot = fmaf(q[g][i], x[i], dot);
            dot = lanes_sum<LPK>(dot);
            s[u][g] = j + u * stride < end ? dot : -INFINITY;
        }
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        float m = top[g], base, f;

#pragma unroll
        for (int u = 0; u < U; u++)
            m = fmaxf(m, s[u][g]);
        base = m == -INFINITY ? 0 : m;
        f = ex2(top[g] - base);
        top[g] = m;
        all[g] *= f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[g][i] *= f;
#pragma unroll
        for (int u = 0; u < U; u++) {
            s[u][g] = ex2(s[u][g] - base);
            all[g] += s[u][g];
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        unpack(x, v[u]);
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[g][i] = fmaf(s[u][g], x[i], acc[g][i]);
    }
}

/* Puts the lane groups of a warp together: each lane then has the sum of all groups. */
template <int LPK, int G> static __device__ __forceinline__ void join_lanes(float (&acc)[G][8],
        float (&top)[G], float (&all)[G])
{
#pragma unroll
    for (int o = LPK; o < 32; o <<= 1)
#pragma unroll
        for (int g = 0; g < G; g++) {
            float m = __shfl_xor_sync(~0u, top[g], o), n = __shfl_xor_sync(~0u, all[g], o);
            float big = fmaxf(top[g], m), base = big == -INFINITY ? 0 : big;
            float f = ex2(top[g] - base), e = ex2(m - base);

            all[g] = all[g] * f + n * e;
            top[g] = big;
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[g][i] = acc[g][i] * f + __shfl_xor_sync(~0u, acc[g][i], o) * e;
        }
}

/* A component of a head's output, by the gate where there is one. */
template <int HD> static __device__ __forceinline__ void put_o(const step_attn_arg &a, int t, int head,
        int c, float y)
{
    if (a.gated) {
        float g = __bfloat162float(a.qkv[t * a.ldq + (head * 2 + 1) * HD + c]);

        y = round_bf16(y) / (1 + __expf(-g));
    }
    a.o[t * a.ldo + head * HD + c] = __float2bfloat16_rn(y);
}

/* What prepare() reads beside the products. */
template <int HD> static __device__ __forceinline__ void fetch(const step_attn_arg &a, int pos, int lane)
{
    if (lane * 32 < a.rot / 2) {
        step_fetch(a.cos + (int64_t)pos * (a.rot / 2) + lane * 32);
        step_fetch(a.sin + (int64_t)pos * (a.rot / 2) + lane * 32);
    }
    if (a.qnorm && lane * 32 < HD) {
        step_fetch(a.qnorm + lane * 32);
        step_fetch(a.knorm + lane * 32);
    }
}

/* What a warp has to do with a head: those of a kv head are its queries, and behind a group of them its key and
 * value. */
template <int HD> struct task {
    const bf16 *x;              /* NULL: nothing, zeros */
    bf16 *to;                   /* the decode state; NULL: not to be written */
    bool key, norm, rotate;
    turn<HD> t;
};

template <int HD, int G> static __device__ __forceinline__ task<HD> task_of(const step_attn_arg &a,
        char *const *blk, int h, int t, int kvh, int pos, int lane, bool own)
{
    const bf16 *x = a.qkv + t * a.ldq;
    const float *norm = h < G ? a.qnorm : a.knorm;
    task<HD> k = { NULL, NULL, h >= G, norm != NULL, h <= G, {} };

    if (h < a.group) {
        k.x = x + (kvh * a.group + h) * (1 + a.gated) * HD;
    } else if (h >= G && own) {
        k.x = x + (a.nh * (1 + a.gated) + (h - G) * a.nkv + kvh) * HD;
        k.to = (bf16 *)(blk[pos / TW_KV_BLOCK] + a.offset) +
            ((int64_t)(kvh * 2 + h - G) * TW_KV_BLOCK + pos % TW_KV_BLOCK) * HD;
    }
    if (k.x && k.rotate)
        k.t = turn_of<HD>(norm, a, pos, lane);
    return k;
}

/* Does it: AT is the head's place in shared memory. */
template <int HD>
static __device__ __forceinline__ void do_task(const step_attn_arg &a, const task<HD> &k, float *at, int lane)
{
    if (k.x && k.rotate)
        prepare<HD>(at, k.x, k.norm, k.t, a, lane);
    else if (k.x || !k.key)
        for (int i = lane; i < HD; i += 32)
            at[i] = k.x ? __bfloat162float(k.x[i]) : 0;
    if (k.to)
        for (int i = lane; i < HD; i += 32)
            k.to[i] = __float2bfloat16_rn(at[i]);
}

/* The queries of a kv head into qs, zeros for heads it does not have; and when OWN the new key and
 * value, which go to the decode state, too. */
template <int HD, int G, int WARPS> static __device__ __forceinline__ void prepare_all(
        const step_attn_arg &a, float (*qs)[HD], float *kn, float *vn, char *const *blk, int t, int kvh,
        int pos, bool own)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int h = warp; h < G + 2; h += WARPS)
        do_task<HD>(a, task_of<HD, G>(a, blk, h, t, kvh, pos, lane, own), h < G ? qs[h] : h == G ? kn : vn,
                    lane);
}

/* Starts the running softmax: with the new key in the first lanes of warp 0 of its block. */
template <int LPK, int G> static __device__ __forceinline__ void start(float (&acc)[G][8],
        float (&top)[G], float (&all)[G], float (&q)[G][8], const step_attn_arg &a,
        const float (*qs)[LPK * 8], const float *kn, const float *vn, bool first)
{
    int lane = threadIdx.x % 32, sub = lane / LPK, l = lane % LPK;

#pragma unroll
    for (int g = 0; g < G; g++) {
        float dot = 0;

        top[g] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[g][i] = qs[g][l * 8 + i] * (a.scale * 1.44269504f);
            if (first)
                dot = fmaf(q[g][i], kn[l * 8 + i], dot);
        }
        if (first) {     /* the new key is the first that warp 0 sees */
            dot = lanes_sum<LPK>(dot);
            if (!sub) {
                top[g] = dot;
                all[g] = 1;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    acc[g][i] = vn[l * 8 + i];
            }
        }
    }
}

/* The splits of a sequence, in order, by the block that finished last. */
template <int HD, int WARPS> static __device__ __forceinline__ void join_splits(const step_attn_arg &a, int t,
        int kvh, int ns)
{
    for (int i = threadIdx.x; i < a.group * HD; i += WARPS * 32) {
        int head = kvh * a.group + i / HD, c = i % HD;
        const float *p = a.part + ((int64_t)t * a.nh + head) * a.v.splits * (HD + 2);
        float top = -INFINITY, all = 0, y = 0;

        for (int x = 0; x < ns; x++)
            top = fmaxf(top, __ldcg(p + x * (HD + 2) + HD));
        for (int x = 0; x < ns; x++) {
            float w = ex2(__ldcg(p + x * (HD + 2) + HD) - top);

            all = fmaf(w, __ldcg(p + x * (HD + 2) + HD + 1), all);
            y = fmaf(w, __ldcg(p + x * (HD + 2) + c), y);
        }
        put_o<HD>(a, t, head, c, y / all);
    }
}

/* The warps' parts, in order, to the output or to this split's place; by the first WARPS of the block. */
template <int HD, int G, int WARPS>
static __device__ __forceinline__ void finish(const step_attn_arg &a,
        const float (*mo)[G][HD], const float (*ms)[G][2], int t, int kvh, int split, int ns)
{
    __shared__ int last;

    for (int i = threadIdx.x; i < a.group * HD; i += WARPS * 32) {
        int g = i / HD, c = i % HD, head = kvh * a.group + g;
        float top = -INFINITY, all = 0, y = 0;

#pragma unroll
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, ms[w][g][0]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float f = top == -INFINITY ? 0 : ex2(ms[w][g][0] - top);

            all = fmaf(f, ms[w][g][1], all);
            y = fmaf(f, mo[w][g][c], y);
        }
        if (ns == 1) {
            put_o<HD>(a, t, head, c, y / all);
            continue;
        }
        float *p = a.part + (((int64_t)t * a.nh + head) * a.v.splits + split) * (HD + 2);
        p[c] = y;
        if (!c) {
            p[HD] = top;
            p[HD + 1] = all;
        }
    }
    if (ns == 1)
        return;
    __threadfence();
    bar_group(1, WARPS * 32);
    if (!threadIdx.x) {
        int *n = &a.ticket[t * a.nkv + kvh];

        last = atomicAdd(n, 1) == ns - 1;
        if (last)
            *n = 0;
        __threadfence();
    }
    bar_group(1, WARPS * 32);
    if (last)
        join_splits<HD, WARPS>(a, t, kvh, ns);
}
#endif
#endif
