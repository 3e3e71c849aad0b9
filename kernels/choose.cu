/* choose.cu - from rows of logits to tokens: run/sampling.c on the device. A cluster of
 * CHOOSE_RANKS blocks keeps a row in its shared memory, each thread a run of consecutive ids. Probabilities are
 * those of sampling.c to the bit; sums are doubles in an order of their own, so a draw differs from
 * the host's only where it falls within their rounding of a boundary. Nothing is sorted: what
 * top-k, top-p, min-p and the draw look for is a place in the order of (probability, id), found by its
 * probability, three bits at a time, and then by its number among equals. */
#include "bar.cuh"
#include "step.cuh"
#include <cooperative_groups.h>
#include <math.h>

namespace cg = cooperative_groups;

enum { RANKS = CHOOSE_RANKS, NT = CHOOSE_THREADS, WAY = 7 };

struct shared {                 /* of a block, in front of its ids */
    double warp[NT / 32][WAY], slot[2][RANKS][WAY];
    unsigned long long uwarp[NT / 32], uslot[2][RANKS];
    double scan[NT / 32];
};

struct ctx {
    shared *s;
    float *z;                   /* [NT * C]: ids base .. */
    int C, base, rank, phase;   /* ids of a thread, first id of the block; phase of slot[] */
};

/* e^x for x <= 0, as run/sampling.c has it, operation by operation. */
static __device__ __forceinline__ float exp_neg(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    float k = __fadd_rn(__fadd_rn(__fmul_rn(c, 1.44269504f), 12582912.0f), -12582912.0f);
    float r = __fsub_rn(__fsub_rn(c, __fmul_rn(k, 0.693145752f)), __fmul_rn(k, 1.42860677e-6f));
    float p = 1.0f / 720;

    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    return x < -87.0f ? 0.0f : __fmul_rn(p, __int_as_float(((int)k + 127) << 23));
}

static __device__ __forceinline__ void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();
#endif
}

template <class T> static __device__ __forceinline__ T *of_rank(T *p, int rank)
{
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().map_shared_rank(p, rank);
#else
    return p;
#endif
}

/* Sums over the row, the same for every thread: each block's go to all blocks, and a warp reads them once. Two
 * slots in turn: one is read while the other fills. */
template <int N> static __device__ __forceinline__ void row_sum(ctx &x, double (&v)[N])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int o = 16; o; o >>= 1)
            v[i] += __shfl_xor_sync(~0u, v[i], o);
        if (!lane)
            x.s->warp[warp][i] = v[i];
    }
    __syncthreads();
    if (threadIdx.x < N * RANKS) {
        int i = threadIdx.x % N;
        double sum = 0;

        for (int w = 0; w < NT / 32; w++)
            sum += x.s->warp[w][i];
        *of_rank(&x.s->slot[x.phase][x.rank][i], threadIdx.x / N) = sum;
    }
    cluster_sync();
    double all = 0;
    for (int r = 0; r < (lane < N ? RANKS : 0); r++)
        all += x.s->slot[x.phase][r][lane];
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = __shfl_sync(~0u, all, i);
    x.phase ^= 1;
}

static __device__ __forceinline__ unsigned long long row_max(ctx &x, unsigned long long v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int o = 16; o; o >>= 1)
        v = max(v, __shfl_xor_sync(~0u, v, o));
    if (!lane)
        x.s->uwarp[warp] = v;
    __syncthreads();
    if (threadIdx.x < RANKS) {
        v = 0;
        for (int w = 0; w < NT / 32; w++)
            v = max(v, x.s->uwarp[w]);
        *of_rank(&x.s->uslot[x.phase][x.rank], threadIdx.x) = v;
    }
    cluster_sync();
    v = x.s->uslot[x.phase][lane % RANKS];
#pragma unroll
    for (int o = RANKS / 2; o; o >>= 1)
        v = max(v, __shfl_xor_sync(~0u, v, o));
    x.phase ^= 1;
    return v;
}

/* What the threads before this one have of V, over the whole row. */
static __device__ __forceinline__ double row_before(ctx &x, double v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double in = v, before = 0;

#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        double y = __shfl_up_sync(~0u, in, o);

        if (lane >= o)
            in += y;
    }
    if (lane == 31)
        x.s->scan[warp] = in;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        before += x.s->scan[w];
    if (threadIdx.x == NT - 1)
        for (int r = 0; r < RANKS; r++)
            *of_rank(&x.s->slot[x.phase][x.rank][0], r) = before + in;
    cluster_sync();
    double all = 0;
    for (int r = 0; r < x.rank; r++)
        all += x.s->slot[x.phase][r][0];
    x.phase ^= 1;
    return all + before + (in - v);
}

/* Orders (z, id): larger first, then the lower id; 0 is below all. */
static __device__ __forceinline__ unsigned long long order(float z, int id)
{
    uint32_t u = __float_as_uint(z);

    u = u >> 31 ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ int id_of(unsigned long long o)
{
    return (int)~(uint32_t)o;
}

static __device__ __forceinline__ float value_of(unsigned long long o)
{
    uint32_t u = (uint32_t)(o >> 32);

    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

/* The best finite or infinite id below BELOW in the order; 0: none. NaN counts as none. */
static __device__ unsigned long long best(ctx &x, unsigned long long below)
{
    unsigned long long top = 0;

    for (int i = threadIdx.x; i < NT * x.C; i += NT)
        if (x.z[i] > -INFINITY) {
            unsigned long long o = order(x.z[i], x.base + i);

            if (o < below && o > top)
                top = o;
        }
    return row_max(x, top);
}

/* Largest value (as bits) of a probability at which the count (MASS 0) or sum of those that are not
 * smaller reaches GOAL (passes it when PAST); 0: none does. */
template <int MASS> static __device__ uint32_t search(ctx &x, double goal, bool past)
{
    const float *p = x.z + threadIdx.x * x.C;
    uint32_t at = 0;

    for (int shift = 27; shift >= 0; shift -= 3) {
        double v[WAY] = {};

        for (int i = 0; i < x.C; i++) {
            uint32_t b = __float_as_uint(p[i]);
            double m = MASS ? (double)p[i] : 1;

            if (!b)
                continue;
#pragma unroll
            for (int j = 0; j < WAY; j++)
                v[j] += b >= at + ((uint32_t)(j + 1) << shift) ? m : 0;
        }
        row_sum<WAY>(x, v);
        uint32_t from = at;
#pragma unroll
        for (int j = 0; j < WAY; j++)
            if (past ? v[j] > goal : v[j] >= goal)
                at = from + ((uint32_t)(j + 1) << shift);
    }
    return at;
}

struct cut {                    /* what is kept: all above value T, and the first ties of value T */
    uint32_t t;
    double above, mass, ties;   /* how many, their sum */
};

/* The cut that keeps everything down to T. */
static __device__ cut stats(ctx &x, uint32_t t)
{
    const float *p = x.z + threadIdx.x * x.C;
    double v[3] = {};

    for (int i = 0; i < x.C; i++) {
        uint32_t b = __float_as_uint(p[i]);

        v[0] += b > t;
        v[1] += b > t ? (double)p[i] : 0;
        v[2] += b == t;
    }
    row_sum<3>(x, v);
    return { t, v[0], v[1], v[2] };
}

static __device__ double total(const cut &c)
{
    return c.mass + c.ties * (double)__uint_as_float(c.t);
}

/* What top-k, then top-p, then min-p keep. */
static __device__ cut truncate(ctx &x, const choose_row &q, int64_t V)
{
    uint32_t t = q.top_k > 0 && q.top_k < V ? search<0>(x, q.top_k, false) : 1;
    cut c = stats(x, t ? t : 1);

    if (q.top_k > 0 && q.top_k < V && t)
        c.ties = fmin(c.ties, q.top_k - c.above);
    if (q.top_p < 1) {
        double goal = q.top_p * total(c), most = c.ties;
        uint32_t t2 = search<1>(x, goal, false);

        if (t2 > t && t2 > 1) {
            c = stats(x, t2);
            most = c.ties;
        }
        c.ties = fmax(1.0, fmin(most, ceil((goal - c.mass) / (double)__uint_as_float(c.t))));
    }
    if (q.min_p > 0 && (double)__uint_as_float(c.t) < q.min_p) {
        float least = (float)q.min_p;

        if ((double)least < q.min_p)
            least = __uint_as_float(__float_as_uint(least) + 1);
        c = stats(x, __float_as_uint(least));
    }
    return c;
}

/* The number J, from 0, of the ids whose probability has bits T. */
static __device__ int nth(ctx &x, uint32_t t, double j)
{
    const float *p = x.z + threadIdx.x * x.C;
    double n = 0;
    unsigned long long found = 0;

    for (int i = 0; i < x.C; i++)
        n += __float_as_uint(p[i]) == t;
    double at = row_before(x, n);
    if (at <= j && j < at + n)
        for (int i = 0; i < x.C && !found; i++)
            if (__float_as_uint(p[i]) == t && at++ == j)
                found = x.base + threadIdx.x * x.C + i + 1;
    return (int)row_max(x, found) - 1;
}

static __device__ int draw_cut(ctx &x, const cut &c, double u, double *p)
{
    double goal = u * total(c);
    uint32_t t = search<1>(x, goal, true);
    cut at = c;

    if (t > c.t)
        at = stats(x, t);
    *p = __uint_as_float(at.t);
    return nth(x, at.t, fmax(0.0, fmin(at.ties - 1, floor((goal - at.mass) / *p))));
}

/* In the order of ids: the first at which the sum passes u * total; *sum: the total. */
static __device__ int draw_plain(ctx &x, double u, double *sum)
{
    const float *p = x.z + threadIdx.x * x.C;
    double v[1] = { 0 }, mine, at;
    int me = x.rank * NT + threadIdx.x;
    unsigned long long key = 0, found = 0;

    for (int i = 0; i < x.C; i++)
        v[0] += p[i];
    mine = v[0];
    at = row_before(x, mine);
    row_sum<1>(x, v);
    *sum = v[0];
    double goal = u * v[0];
    if (mine > 0)               /* the first thread that passes the goal, else the last with any */
        key = at + mine > goal ? 1ull << 40 | (uint32_t)(RANKS * NT - me) : (uint32_t)me + 1;
    key = row_max(x, key);
    int who = key >> 40 ? RANKS * NT - (int)(uint32_t)key : (int)key - 1;
    if (me == who)
        for (int i = 0; i < x.C; i++) {
            at += p[i];
            if (p[i] > 0)
                found = x.base + threadIdx.x * x.C + i + 1;
            if (p[i] > 0 && at > goal)
                break;
        }
    return (int)row_max(x, found) - 1;
}

/* The row into shared memory; *first: its best, as best() has it. Returns log sum exp(z /
 * temperature) of all of it. */
static __device__ double load(ctx &x, const float *row, int64_t V, float inv,
        unsigned long long *first)
{
    float top = -INFINITY;
    double v[1] = { 0 };
    int at = -1;

#pragma unroll 13
    for (int k = 0; k < x.C; k++) {
        int i = k * NT + threadIdx.x;
        float z = x.base + i < V ? row[x.base + i] : -INFINITY;

        x.z[i] = z;
        if (z > top) {
            top = z;
            at = i;
        }
    }
    cluster_wait();             /* all blocks are there to be written to */
    *first = row_max(x, at < 0 ? 0 : order(top, x.base + at));
    top = *first ? value_of(*first) : -INFINITY;
    for (int i = threadIdx.x; i < NT * x.C; i += NT)
        v[0] += __expf((x.z[i] - top) * inv);
    row_sum<1>(x, v);
    return (double)top * inv + log(v[0]);
}

static __device__ void name_top(ctx &x, const choose_arg &a, const choose_row &q, double lse,
        float inv)
{
    unsigned long long o = ~0ull;

    for (int k = 0; k < q.top_n; k++) {
        o = o ? best(x, o) : 0;
        if (!x.rank && !threadIdx.x) {
            int64_t at = (int64_t)blockIdx.y * a.top_max + k;

            a.top_id[at] = o ? id_of(o) : -1;
            a.top_logp[at] = o ? (float)((double)value_of(o) * inv - lse) : -INFINITY;
        }
    }
}

static __device__ void penalise(ctx &x, const choose_arg &a, const choose_row &q)
{
    for (int i = threadIdx.x; i < q.nseen; i += NT) {
        int id = a.seen[2 * (q.seen0 + i)], n = a.seen[2 * (q.seen0 + i) + 1], at = id - x.base;

        if (at < 0 || at >= NT * x.C || id >= a.V || (a.allowed && !a.allowed[id]))
            continue;
        double v = x.z[at];
        v = v > 0 ? v / q.repetition : v * q.repetition;
        x.z[at] = (float)__dsub_rn(__dsub_rn(v, q.presence), __dmul_rn(q.frequency, n));
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(NT) choose_k(const __grid_constant__ choose_arg a, int C)
{
    extern __shared__ __align__(16) char mem[];
    ctx x = { (shared *)mem, (float *)(mem + sizeof(shared)), C, 0, (int)blockIdx.x, 0 };

    cluster_arrive();
    step_wait();
    choose_row q = a.row[blockIdx.y];
    if (q.top_n < 0)
        return;
    const float *row = a.z + (int64_t)blockIdx.y * a.V;
    float inv = q.temperature > 0 ? (float)(1 / q.temperature) : 1;
    bool cuts = (q.top_k > 0 && q.top_k < a.V) || q.top_p < 1 || q.min_p > 0;
    bool penal = q.repetition != 1 || q.presence != 0 || q.frequency != 0;

    x.base = x.rank * NT * C;
    unsigned long long top;
    double lse = load(x, row, a.V, inv, &top), sum = 1, p = 1;
#pragma unroll 8
    for (int i = threadIdx.x; i < (a.allowed ? NT * C : 0); i += NT)
        if (x.base + i < a.V && !a.allowed[x.base + i])
            x.z[i] = -INFINITY;
    __syncthreads();
    name_top(x, a, q, lse, inv);
    if (penal)
        penalise(x, a, q);
    if (penal || a.allowed)
        top = best(x, ~0ull);
    float max = value_of(top);
    int id = top && isfinite(max) ? id_of(top) : -1;
    if (id >= 0 && q.temperature > 0) {
        for (int i = threadIdx.x; i < NT * C; i += NT)
            x.z[i] = exp_neg(__fmul_rn(__fsub_rn(x.z[i], max), inv));
        __syncthreads();
        if (cuts) {
            cut c = truncate(x, q, a.V);

            id = draw_cut(x, c, q.u, &p);
            sum = total(c);
        } else {
            id = draw_plain(x, q.u, &sum);
        }
    }
    if (penal && !cuts && q.temperature > 0) {  /* the probability of what was drawn */
        double v[1] = { 0 };
        int at = id - x.base;

        if (!threadIdx.x && at >= 0 && at < NT * C)
            v[0] = x.z[at];
        row_sum<1>(x, v);
        p = v[0];
    }
    if (!x.rank && !threadIdx.x) {
        bool says = (cuts || penal) && q.temperature > 0 && id >= 0;

        a.out[blockIdx.y] = { id, id < 0 ? 0 : (float)((double)row[id] * inv - lse),
            says ? (float)log(p / sum) : 0, 0 };
    }
}

static int run_of(int64_t V)
{
    return (int)cu_div(V, (int64_t)RANKS * NT) | 1;    /* odd: threads fall on different banks */
}

bool cu_choose_fits(const struct cu_dev *d, int64_t V)
{
    return sizeof(shared) + (size_t)run_of(V) * NT * 4 <= d->smem_max;
}

void cu_choose(struct cu_dev *d, const struct choose_arg *a, int64_t rows)
{
    int C = run_of(a->V);
    size_t smem = sizeof(shared) + (size_t)C * NT * 4;

    if (!cu_choose_fits(d, a->V)) {
        cu_fail(d, "a vocabulary of %lld tokens is too large to draw from on the device",
                (long long)a->V);
        return;
    }
    CU_TRY(d, cudaFuncSetAttribute((const void *)choose_k,
                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    step_launch(d, choose_k, dim3(RANKS, (unsigned)rows), NT, smem, RANKS, *a, C);
    CU_DONE(d, "choice of tokens");
}
