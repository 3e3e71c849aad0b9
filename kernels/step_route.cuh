/* step_route.cuh - the router of a decode step: a token's norm, its logits and its choice, by warps */
#ifndef TW_STEP_ROUTE_CUH
#define TW_STEP_ROUTE_CUH
#include "step_moe.cuh"
#include "best.cuh"

/* Tokens whose logits are made at once; pieces of 256 weights that are fetched before those are there. */
enum { TOKENS = 8, EARLY = 8, MOST_E = 1024, MOST_K = 32 };

/* Eight of a token, to be normalised: their squares, and by the factor R. */
static __device__ __forceinline__ void squares_of(float &sq, const uint4 &u)
{
    float v[8];

    ldv<8>(v, (const bf16 *)&u);
#pragma unroll
    for (int j = 0; j < 8; j++)
        sq = fmaf(v[j], v[j], sq);
}

static __device__ __forceinline__ void norm_eight(const moe_arg &a, bf16 *to, bf16 *keep, const uint4 &u, int k,
        float r)
{
    float v[8], n[8];

    ldv<8>(v, (const bf16 *)&u);
    ldv<8>(n, a.norm + k);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = v[j] * r * (n[j] + a.off);
    stv<8>(to + k, v);
    if (keep)
        stv<8>(keep + k, v);
}

/* A warp normalises a token into shared memory, rounded as in a pass, and to KEEP when that is not NULL. The
 * first pieces are on their way at once and stay in registers. */
static __device__ __forceinline__ void norm_row(const moe_arg &a, bf16 *to, bf16 *keep, int t)
{
    const int first = threadIdx.x % 32 * 8;
    const bf16 *x = a.x + t * a.ldx;
    uint4 u[EARLY];
    float sq = 0;

#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (first + i * 256 < a.D)
            u[i] = *(const uint4 *)(x + first + i * 256);
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (first + i * 256 < a.D)
            squares_of(sq, u[i]);
    for (int k = first + EARLY * 256; k < a.D; k += 256)
        squares_of(sq, *(const uint4 *)(x + k));
    sq = 1 / sqrtf(warp_sum(sq) / (float)a.D + a.eps);
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (first + i * 256 < a.D)
            norm_eight(a, to, keep, u[i], first + i * 256, sq);
    for (int k = first + EARLY * 256; k < a.D; k += 256)
        norm_eight(a, to, keep, *(const uint4 *)(x + k), k, sq);
}

/* Scores of experts outside the best groups become -infinity. */
static __device__ __forceinline__ void limit(const struct tw_route &r, float *c, float *group)
{
    int lane = threadIdx.x % 32, n = (int)(r.E / r.groups);

    for (int g = lane; g < r.groups; g += 32) {
        float top = -INFINITY, second = -INFINITY;

        for (int i = g * n; i < (g + 1) * n; i++)
            if (c[i] > top)
                second = top, top = c[i];
            else if (c[i] > second)
                second = c[i];
        group[g] = r.kind == TW_ROUTE_SIGMOID && n > 1 ? top + second : top;
    }
    __syncwarp();
    for (int i = 0; i < r.topk_groups; i++) {
        int g = best(group, (int)r.groups);

        __syncwarp();
        if (!lane)
            group[g] = NAN;
        __syncwarp();
    }
    for (int e = lane; e < r.E; e += 32)
        if (group[e / n] == group[e / n])
            c[e] = -INFINITY;
    __syncwarp();
}

/* Ascends as X does; NAN is below all. */
static __device__ __forceinline__ uint32_t order(float x)
{
    uint32_t u = __float_as_uint(x);

    return x != x ? 0 : u >> 31 ? ~u : u | 0x80000000u;
}

/* The lowest of the largest of 32 V keys, lane i having every 32nd from i on; it is taken out. */
template <int V> static __device__ __forceinline__ int best_of(uint32_t (&key)[V])
{
    const int lane = threadIdx.x % 32;
    uint32_t top = 0, at;

#pragma unroll
    for (int i = 0; i < V; i++)
        top = max(top, key[i]);
    top = __reduce_max_sync(~0u, top);
    at = ~0u;
#pragma unroll
    for (int i = V - 1; i >= 0; i--)
        at = key[i] == top ? (uint32_t)(i * 32 + lane) : at;
    at = __reduce_min_sync(~0u, at);
#pragma unroll
    for (int i = 0; i < V; i++)
        key[i] = at == (uint32_t)(i * 32 + lane) ? 0 : key[i];
    return (int)at;
}

/* One warp chooses for a token among at most 32 V experts; p and c are E numbers each in shared memory. */
template <int V> static __device__ __forceinline__ void choose(const moe_arg &a, float *p, float *c, int t,
        int32_t *choice, float *weight)
{
    const struct tw_route &r = a.r;
    const int lane = threadIdx.x % 32, E = (int)r.E, K = (int)r.K;
    float top = -INFINITY, sum = 0, mine = 0;
    int e = 0;

    for (int i = lane; i < E; i += 32) {
        p[i] = __ldcg(a.logits + (int64_t)t * E + i);
        top = fmaxf(top, p[i]);
    }
    top = warp_max(top);
    for (int i = lane; i < E; i += 32) {
        p[i] = r.kind == TW_ROUTE_SIGMOID ? 1 / (1 + expf(-p[i])) : expf(p[i] - top);
        sum += p[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < E; i += 32) {
        if (r.kind != TW_ROUTE_SIGMOID)
            p[i] /= sum;
        c[i] = r.bias ? p[i] + r.bias[i] : p[i];
    }
    __syncwarp();
    if (r.groups > 1)
        limit(r, c, c + E);
    sum = r.kind == TW_ROUTE_SIGMOID ? 1e-20f : 0;
    uint32_t key[V];
#pragma unroll
    for (int i = 0; i < V; i++)
        key[i] = i * 32 + lane < E ? order(c[i * 32 + lane]) : 0;
    for (int k = 0; k < K; k++) {
        int b = best_of<V>(key);

        if (lane == k)
            e = b, mine = p[b];
        sum += p[b];
    }
    if (lane < K) {
        choice[t * K + lane] = e;
        weight[t * K + lane] = (r.norm ? mine / sum : mine) * r.scale;
    }
}

static __device__ __forceinline__ void choose_any(const moe_arg &a, float *p, int t, int32_t *choice,
        float *weight)
{
    const int E = (int)a.r.E;

    if (E <= 64)
        choose<2>(a, p, p + E, t, choice, weight);
    else if (E <= 128)
        choose<4>(a, p, p + E, t, choice, weight);
    else if (E <= 256)
        choose<8>(a, p, p + E, t, choice, weight);
    else
        choose<MOST_E / 32>(a, p, p + E, t, choice, weight);
}

static __device__ __forceinline__ void logits(float (&acc)[TOKENS], const float (&w)[8], const bf16 *x,
        int n, int D)
{
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float v[8];

        if (t >= n)
            break;
        ldv<8>(v, x + t * D);
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[t] = fmaf(v[j], w[j], acc[t]);
    }
}
#endif
