/* moe_route.cu - routers: a warp chooses for a token; then all choices are put in the order of their
 * experts by a stable counting sort: how often each piece of the choices names an expert, where each
 * piece's begin, and each choice's own place. */
#include "moe.cuh"
#include "best.cuh"

#define WARPS 4                 /* tokens of a block */
#define PIECE 512               /* choices sorted by a warp */
#define SUM_ROWS 8              /* of probabilities read at a time */
#define AT_ONCE 16              /* pieces */

struct route_arg {
    struct tw_route r;
    float *prob;
    int64_t ld;
    int32_t T;
    const int32_t *given;
    int32_t *choice;
    float *weight;
};

/* What a group is worth: its best member, or the sum of its best two. */
static __device__ __forceinline__ float worth(const float *c, int n, bool two)
{
    float top = -INFINITY, second = -INFINITY;

    for (int i = 0; i < n; i++)
        if (c[i] > top)
            second = top, top = c[i];
        else if (c[i] > second)
            second = c[i];
    return two && n > 1 ? top + second : top;
}

/* Scores of experts that may not be chosen become -infinity. */
static __device__ void limit(const struct tw_route &r, float *c, float *group)
{
    int lane = threadIdx.x % 32, n = (int)(r.E / r.groups);

    for (int g = lane; g < r.groups; g += 32)
        group[g] = worth(c + g * n, n, r.kind == TW_ROUTE_SIGMOID);
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

/* Logits to probabilities, in place. */
static __device__ void probabilities(const struct tw_route &r, float *p)
{
    int lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0;

    if (r.kind == TW_ROUTE_SIGMOID) {
        for (int e = lane; e < r.E; e += 32)
            p[e] = 1 / (1 + expf(-p[e]));
        return;
    }
    for (int e = lane; e < r.E; e += 32)
        top = fmaxf(top, p[e]);
    top = warp_max(top);
    for (int e = lane; e < r.E; e += 32)
        sum += expf(p[e] - top);
    sum = warp_sum(sum);
    for (int e = lane; e < r.E; e += 32)
        p[e] = expf(p[e] - top) / sum;
}

static __device__ __forceinline__ float sum_of(const struct tw_route &r, const float *p,
        const int32_t *choice)
{
    float sum = 0;

    for (int k = 0; k < r.K; k++)
        sum += p[choice[k]];
    return r.kind == TW_ROUTE_SIGMOID ? sum + 1e-20f : sum;
}

/* Shared memory of a warp: E scores, and as many of groups. */
static __global__ void route_k(const __grid_constant__ route_arg a)
{
    extern __shared__ float room[];
    const struct tw_route &r = a.r;
    int lane = threadIdx.x % 32, t = blockIdx.x * WARPS + threadIdx.x / 32;
    float *c = room + threadIdx.x / 32 * 2 * r.E, *p = a.prob + t * a.ld, *w = a.weight + t * r.K;
    int32_t *choice = a.choice + t * r.K;

    if (t >= a.T)
        return;
    probabilities(r, p);
    for (int e = lane; e < r.E; e += 32)
        c[e] = r.bias ? p[e] + r.bias[e] : p[e];
    __syncwarp();
    if (a.given && a.given[t * r.K] >= 0) {
        for (int k = lane; k < r.K; k += 32)
            choice[k] = a.given[t * r.K + k];
    } else {
        if (r.groups > 1)
            limit(r, c, c + r.E);
        for (int k = 0; k < r.K; k++) {
            int e = best(c, (int)r.E);

            __syncwarp();
            if (!lane) {
                choice[k] = e;
                c[e] = NAN;     /* never again, not even among -infinities */
            }
            __syncwarp();
        }
    }
    __syncwarp();
    float sum = r.norm ? sum_of(r, p, choice) : 1;

    for (int k = lane; k < r.K; k += 32)
        w[k] = (r.norm ? p[choice[k]] / sum : p[choice[k]]) * r.scale;
}

/* part[piece][e] = how often the piece names e. */
static __global__ void count_k(int32_t *part, const int32_t *choice, int n, int E)
{
    extern __shared__ int32_t count[];

    for (int e = threadIdx.x; e < E; e += 32)
        count[e] = 0;
    __syncwarp();
    for (int i = threadIdx.x; i < PIECE && blockIdx.x * PIECE + i < n; i += 32)
        atomicAdd(&count[choice[blockIdx.x * PIECE + i]], 1);
    __syncwarp();
    for (int e = threadIdx.x; e < E; e += 32)
        part[(int64_t)blockIdx.x * E + e] = count[e];
}

/* part[piece][e] becomes how many of e's rows lie in the pieces before; then the borders. */
static __global__ void border_k(int32_t *start, int32_t *part, int pieces, int E)
{
    extern __shared__ int32_t count[];

    for (int e = threadIdx.x; e < E; e += blockDim.x) {
        int32_t sum = 0, x[AT_ONCE];

        for (int first = 0; first < pieces; first += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                x[i] = first + i < pieces ? part[(int64_t)(first + i) * E + e] : 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (first + i < pieces)
                    part[(int64_t)(first + i) * E + e] = sum;
                sum += x[i];
            }
        }
        count[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    int lane = threadIdx.x, before = 0;

    for (int first = 0; first < E; first += 32) {
        int e = first + lane, x = e < E ? count[e] : 0, sum = x;

#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            int y = __shfl_up_sync(~0u, sum, o);

            sum += lane >= o ? y : 0;
        }
        if (e < E)
            start[e] = before + sum - x;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (!lane)
        start[E] = before;
}

static __global__ void place_k(int32_t *pair, int32_t *place, const int32_t *choice,
        const int32_t *start, const int32_t *part, int n, int E)
{
    extern __shared__ int32_t at[];
    int lane = threadIdx.x, first = blockIdx.x * PIECE;

    for (int e = lane; e < E; e += 32)
        at[e] = start[e] + part[(int64_t)blockIdx.x * E + e];
    __syncwarp();
    for (int i = first + lane; i - lane < min(n, first + PIECE); i += 32) {
        int e = i < n ? choice[i] : -1;
        unsigned same = __match_any_sync(~0u, e);
        int p = e < 0 ? 0 : at[e] + __popc(same & ((1u << lane) - 1));

        __syncwarp();
        if (e >= 0) {
            pair[p] = i;
            place[i] = p;
            if (lane == __ffs(same) - 1)
                at[e] += __popc(same);
        }
        __syncwarp();
    }
}

static void sort(struct cu_dev *d, const struct tw_dispatch *s)
{
    int n = (int)(s->T * s->K), E = (int)s->E;
    unsigned pieces = (unsigned)cu_div(n, PIECE);
    int32_t *part = (int32_t *)cu_scratch(d, CU_S_SORT, (size_t)pieces * (size_t)E * 4);
    size_t smem = (size_t)E * 4;

    if (!part)
        return;
    count_k<<<pieces, 32, smem, d->stream>>>(part, s->choice, n, E);
    border_k<<<1, 512, smem, d->stream>>>(s->start, part, (int)pieces, E);
    place_k<<<pieces, 32, smem, d->stream>>>(s->pair, s->place, s->choice, s->start, part, n, E);
    CU_DONE(d, "rows by expert");
}

static __global__ void load_k(int32_t *load, int32_t *count, const int32_t *choice,
        const int32_t *seq, int n, int K, int E)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    if (load)
        atomicAdd(&load[choice[i]], 1);
    if (count)
        atomicAdd(&count[(int64_t)seq[i / K] * E + choice[i]], 1);
}

/* 1 / the sum of a token's sigmoids; 1 of a softmax. */
static __global__ void share_k(float *share, const float *prob, int64_t ld, int T, int E, bool sigmoid)
{
    int t = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;

    if (t >= T)
        return;
    for (int e = lane; sigmoid && e < E; e += 32)
        sum += prob[t * ld + e];
    sum = warp_sum(sum);
    if (!lane)
        share[t] = sigmoid ? 1 / sum : 1;
}

/* A thread adds up an expert's column in the order of tokens. */
static __global__ void sum_k(float *sum, const float *prob, int64_t ld, const float *share,
        const int32_t *seq, int T, int E)
{
    int e = blockIdx.x * blockDim.x + threadIdx.x, s = T ? seq[0] : 0;
    float acc;

    if (e >= E || !T)
        return;
    acc = sum[(int64_t)s * E + e];
    for (int t = 0; t < T; t += SUM_ROWS) {
        float x[SUM_ROWS];

#pragma unroll
        for (int i = 0; i < SUM_ROWS; i++)
            x[i] = t + i < T ? prob[(t + i) * ld + e] * share[t + i] : 0;
#pragma unroll
        for (int i = 0; i < SUM_ROWS; i++)
            if (t + i < T) {
                if (seq[t + i] != s) {
                    sum[(int64_t)s * E + e] = acc;
                    s = seq[t + i];
                    acc = sum[(int64_t)s * E + e];
                }
                acc += x[i];
            }
    }
    sum[(int64_t)s * E + e] = acc;
}

static void balance(struct cu_dev *d, const struct tw_dispatch *s, const struct tw_tensor *prob,
        const struct tw_route *r, const struct tw_balance *b)
{
    int T = (int)s->T, K = (int)s->K, E = (int)s->E;
    float *share;

    load_k<<<(unsigned)cu_div(T * K, 256), 256, 0, d->stream>>>(b->load, b->count, s->choice, b->seq,
            T * K, K, E);
    CU_DONE(d, "load of experts");
    if (!b->count || !(share = (float *)cu_scratch(d, CU_S_PART, (size_t)T * 4)))
        return;
    share_k<<<(unsigned)cu_div(T, WARPS), WARPS * 32, 0, d->stream>>>(share, (const float *)prob->data,
            prob->ld, T, E, r->kind == TW_ROUTE_SIGMOID);
    sum_k<<<(unsigned)cu_div(E, 32), 32, 0, d->stream>>>(b->sum, (const float *)prob->data, prob->ld,
            share, b->seq, T, E);
    CU_DONE(d, "balance of experts");
}

void cu_moe_route(struct tw_dev *dev, struct tw_dispatch *s, struct tw_tensor *prob,
        const struct tw_route *r, const int32_t *given, const struct tw_balance *b)
{
    struct cu_dev *d = cu(dev);
    struct route_arg a = { *r, (float *)prob->data, prob->ld, (int32_t)s->T, given, s->choice,
        s->weight };

    if (!s->T)
        return;
    if (r->E > 1024) {
        cu_fail(d, "%lld experts: 1024 are the most, use --device cpu", (long long)r->E);
        return;
    }
    route_k<<<(unsigned)cu_div(s->T, WARPS), WARPS * 32, (size_t)(WARPS * 2 * r->E) * 4,
            d->stream>>>(a);
    CU_DONE(d, "router");
    sort(d, s);
    if (b)
        balance(d, s, prob, r, b);
}

struct route_bwd_arg {
    struct tw_route r;
    const float *prob, *dweight, *coef;
    float *dlogits;
    int64_t ld, ldd;
    int32_t T;
    const int32_t *choice, *seq, *count;
};

/* Adds what the balance wants; of shares p / sum(p) when they are sigmoids. */
static __device__ void balance_row(const route_bwd_arg &a, int t, const float *p, float *dp)
{
    bool sigmoid = a.r.kind == TW_ROUTE_SIGMOID;
    int lane = threadIdx.x % 32, E = (int)a.r.E;
    const int32_t *count = a.count + (int64_t)a.seq[t] * E;
    float coef = a.coef[a.seq[t]], f = 1, mean = 0;

    if (sigmoid) {
        f = 0;
        for (int e = lane; e < E; e += 32)
            f += p[e];
        f = 1 / warp_sum(f);
        for (int e = lane; e < E; e += 32)
            mean += coef * (float)count[e] * (p[e] * f);
        mean = warp_sum(mean);
    }
    for (int e = lane; e < E; e += 32)
        dp[e] += (coef * (float)count[e] - mean) * f;
}

static __global__ void route_bwd_k(const __grid_constant__ route_bwd_arg a)
{
    extern __shared__ float room[];
    const struct tw_route &r = a.r;
    int lane = threadIdx.x % 32, t = blockIdx.x * WARPS + threadIdx.x / 32, E = (int)r.E;
    float *dp = room + threadIdx.x / 32 * E, *to = a.dlogits + t * a.ldd, mean = 0;
    const float *p = a.prob + t * a.ld, *dw = a.dweight + t * r.K;
    const int32_t *choice = a.choice + t * r.K;

    if (t >= a.T)
        return;
    for (int e = lane; e < E; e += 32)
        dp[e] = 0;
    __syncwarp();
    float sum = r.norm ? sum_of(r, p, choice) : 1;

    for (int k = 0; k < r.K && r.norm; k++)
        mean += dw[k] * (p[choice[k]] / sum);
    for (int k = lane; k < r.K; k += 32)
        dp[choice[k]] = r.scale * (dw[k] - mean) / sum;
    __syncwarp();
    if (a.coef)
        balance_row(a, t, p, dp);
    mean = 0;
    for (int e = lane; e < E && r.kind != TW_ROUTE_SIGMOID; e += 32)
        mean += p[e] * dp[e];
    mean = warp_sum(mean);
    for (int e = lane; e < E; e += 32)
        to[e] = r.kind == TW_ROUTE_SIGMOID ? dp[e] * p[e] * (1 - p[e]) : p[e] * (dp[e] - mean);
}

void cu_moe_route_bwd(struct tw_dev *dev, struct tw_tensor *dlogits, const float *dweight,
        const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
        const struct tw_balance *b)
{
    struct cu_dev *d = cu(dev);
    struct route_bwd_arg a = { *r, (const float *)prob->data, dweight, b ? b->coef : NULL,
        (float *)dlogits->data, prob->ld, dlogits->ld, (int32_t)s->T, s->choice,
        b ? b->seq : NULL, b ? b->count : NULL };

    if (!s->T)
        return;
    route_bwd_k<<<(unsigned)cu_div(s->T, WARPS), WARPS * 32, (size_t)(WARPS * r->E) * 4,
            d->stream>>>(a);
    CU_DONE(d, "router's backward");
}
