/* step_experts_few.cu - all of a layer's experts for few tokens on Hopper in one kernel that stays
 * (step_experts.cuh). Every block normalises the tokens; a warp of some block makes the logits of an expert,
 * and when all are there every block chooses for itself and makes its own lists. Gate and up are cut as for
 * many tokens; of down a block takes 16 outputs of all chosen experts and adds them up to the residual
 * stream, in step_moe.cu's order. All bits are those of the kernels there.
 *
 * Who waits for whom, beside what step_experts.cuh says:
 *   front        logits that are there, and blocks that have read the tokens, which are the residual stream;
 *                by who chooses */
#include "step_experts.cuh"
#include "step_route.cuh"

enum { THREADS = EIGHT + 32 };

#if TW_HOPPER
static __device__ __forceinline__ void ask_few(const stay_arg &p, desk &d, char *mem, place at,
        const lists &l, int lane)
{
    const moe_arg &a = p.a;
    const int n = (a.D + OWN_COLS - 1) / OWN_COLS, end = part(n, blockIdx.x + 1), per = min(p.per[1], 2);

    for (int g = part(n, blockIdx.x); g < end; g++)
        for (int k = 0; k < l.nact; k++)
            for (int r = 0; r < 2; r += per) {
                int i = g * OWN_COLS + r * 8 + lane;

                fill(d, mem, p, at, lane < 8 * per && i < a.D ? a.down + l.active[2 * k] * a.step_dn +
                     (int64_t)i * a.lddn : NULL, a.I * 2, p.pitch[1], lane);
                at = after(at, p.slots);
            }
}

static __device__ __forceinline__ void bring_few(uint4 (&x)[DEPTH], const moe_arg &a, const lists &l, int k,
        int warp, int lane)
{
    bool some = k < l.nact && lane / 4 < l.active[2 * k + 1];
    const bf16 *from = some ? a.h + (int64_t)(l.start[k] + lane / 4) * a.I + lane % 4 * 8 : NULL;

#pragma unroll
    for (int u = 0; u < DEPTH; u++) {
        int s = warp + u * WARPS;

        x[u] = some && s < a.I / SEG ? __ldcg((const uint4 *)(from + s * SEG)) : make_uint4(0, 0, 0, 0);
    }
}

/* x += what experts give to 16 columns. */
static __device__ __forceinline__ void add_few(const moe_arg &a, const lists &l, const float (*z)[OWN_COLS],
        int g)
{
    const int K = (int)a.r.K, t = threadIdx.x / OWN_COLS, c = threadIdx.x % OWN_COLS, i = g * OWN_COLS + c;
    float sum = 0;

    if (t >= a.T || i >= a.D || a.pos[t] < 0)
        return;
    for (int k = 0; k < K; k++)
        sum = fmaf(l.weight[t * K + k], z[l.place[t * K + k]][c], sum);
    if (a.shared)
        sum = fmaf(a.gate ? 1 / (1 + expf(-__bfloat162float(a.gate[t * a.ldg]))) : 1,
                __bfloat162float(a.shared[t * a.lds + i]), sum);
    a.to[t * a.ldx + i] = __float2bfloat16_rn(__bfloat162float(a.x[t * a.ldx + i]) + sum);
}

static __device__ __forceinline__ void consume_few(const stay_arg &p, desk &d, const char *mem, place at,
        const lists &l, int warp, int lane)
{
    const moe_arg &a = p.a;
    const int n = (a.D + OWN_COLS - 1) / OWN_COLS, end = part(n, blockIdx.x + 1), per = min(p.per[1], 2);
    const int pitch = p.pitch[1], nseg = (a.I / SEG - warp + WARPS - 1) / WARPS, all = a.T * (int)a.r.K;
    const char *mine = mem + lane / 4 * pitch + (warp * SEG + lane % 4 * 8) * 2;

    while (lane < l.nact && acquire(a.done + lane) < p.groups[0] * WARPS)
        ;
    __syncwarp();
    for (int g = part(n, blockIdx.x); g < end; g++) {
        uint4 next[DEPTH];

        bring_few(next, a, l, 0, warp, lane);
        for (int k = 0; k < l.nact; k++) {
            float acc[2][4] = {};
            uint4 x[DEPTH][2] = {};

#pragma unroll
            for (int u = 0; u < DEPTH; u++)
                x[u][0] = next[u];
            bring_few(next, a, l, k + 1, warp, lane);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                bar_wait(bar_at(&d.full[at.slot]), at.round & 1);
                multiply<1>(&acc[r], x, mine + at.slot * p.slot + r % per * 8 * pitch, nseg);
                if (r % per == per - 1) {
                    bar_arrive(bar_at(&d.empty[at.slot]));
                    at = after(at, p.slots);
                }
            }
            if (lane / 4 < l.active[2 * k + 1])
#pragma unroll
                for (int r = 0; r < 2; r++)
                    *(float2 *)&d.few.cell[warp][l.start[k] + lane / 4][r * 8 + lane % 4 * 2] =
                        make_float2(acc[r][0], acc[r][1]);
        }
        bar_group(1, EIGHT);
        for (int i = threadIdx.x; i < all * OWN_COLS; i += EIGHT) {
            float v = 0;

#pragma unroll
            for (int k = 0; k < WARPS; k++)
                v += d.few.cell[k][i / OWN_COLS][i % OWN_COLS];
            d.few.z[i / OWN_COLS][i % OWN_COLS] = round_bf16(v);
        }
        bar_group(1, EIGHT);
        add_few(a, l, d.few.z, g);
    }
}
/* The lists of few rows, by one warp: lane i for choice i. */
static __device__ __forceinline__ void list_few(const moe_arg &a, own &o, int lane)
{
    const int K = (int)a.r.K;
    bool some = lane < a.T * K && a.pos[min(lane / K, a.T - 1)] >= 0;
    unsigned below = (1u << lane) - 1;
    int e = some ? o.choice[lane] : -1;
    unsigned same = __match_any_sync(~0u, e), first;
    int lead = __ffs(same) - 1, rows = __popc(same), sum;

    first = __ballot_sync(~0u, some && lead == lane);
    sum = some && lead == lane ? rows : 0;
    for (int i = 1; i < 32; i *= 2) {
        int y = __shfl_up_sync(~0u, sum, i);

        sum += lane >= i ? y : 0;
    }
    sum = __shfl_sync(~0u, sum - rows, lead) + __popc(same & below);    /* where this row is */
    if (some) {
        o.pair[sum] = lane;
        o.place[lane] = sum;
        if (lead == lane) {
            int k = __popc(first & below);

            o.active[2 * k] = e;
            o.active[2 * k + 1] = rows;
            o.start[k] = sum;
        }
    }
    if (!lane)
        o.nact = __popc(first);
}

/* The router: X, the normalised tokens, in shared memory, and this block's lists. The ninth warp has no part in
 * it but comes to each barrier: those of some warps beside one of all are more than racecheck can follow. */
static __device__ __forceinline__ void route_few(const stay_arg &p, desk &d, bf16 *x, int warp, int lane)
{
    const moe_arg &a = p.a;
    const int E = (int)a.r.E, e = blockIdx.x + warp * gridDim.x;
    const bool mine = warp < WARPS && e < E;
    const float *row = a.router + min(e, E - 1) * a.ldr;
    float w[EARLY][8];

#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (mine && lane * 8 + i * 256 < a.D)
            ldv<8>(w[i], row + lane * 8 + i * 256);
    step_wait();
    if (warp < a.T)
        norm_row(a, x + warp * a.D, NULL, warp);
    __syncthreads();
    if (!threadIdx.x)           /* nobody writes the tokens before all have read them */
        atomicAdd(a.front, 1);
    if (mine) {
        float acc[TOKENS] = {};

#pragma unroll
        for (int i = 0; i < EARLY; i++)
            if (lane * 8 + i * 256 < a.D)
                logits(acc, w[i], x + lane * 8 + i * 256, a.T, a.D);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float s = warp_sum(acc[t]);

            if (!lane && t < a.T)
                a.logits[(int64_t)t * E + e] = s;
        }
        if (!lane) {
            __threadfence();
            atomicAdd(a.front, 1);
        }
    }
    if (warp < a.T) {
        while (acquire(a.front) < E + (int)gridDim.x)
            ;
        __syncwarp();
        choose_any(a, &d.cell[0][0][0][0] + warp * 3 * E, warp, d.o.choice, d.o.weight);
    }
    __syncthreads();
    if (!warp)
        list_few(a, d.o, lane);
}
#endif

static __global__ void __launch_bounds__(THREADS, 1) few_k(const __grid_constant__ stay_arg p)
{
#if TW_HOPPER
    extern __shared__ __align__(128) char mem[];
    desk &d = *(desk *)mem;
    const own &o = d.o;
    bf16 *x = (bf16 *)(mem + p.tokens);
    char *slots = mem + p.first;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
    place at = { 0, 0 };

    make_bars(p, d);
    route_few(p, d, x, warp, lane);
    __syncthreads();
    const lists l = { o.active, o.start, o.pair, o.place, o.weight, x, o.nact };
    if (warp == WARPS) {
        at = ask<false>(p, d, slots, at, l, lane);
        ask_few(p, d, slots, at, l, lane);
        return;
    }
    at = consume<false, 1>(p, d, slots, at, turn, l, warp, lane);
    bar_group(1, EIGHT);        /* the cells are others */
    consume_few(p, d, slots, at, l, warp, lane);
    leave(p.a, l.nact);
#endif
}

bool cu_step_experts_few(struct cu_dev *d, const struct moe_arg *a)
{
    struct stay_arg p;

    if (cu_step_way(d)->kind == STEP_PLAIN || a->T > OWN_TOKENS || a->T * a->r.K > OWN_ROWS || a->r.E > 256 ||
            a->D > EARLY * 256 || a->D % 8 || a->r.E > d->sms * WARPS ||
            !lay_out(d, &p, a, (int64_t)a->T * a->D * 2))
        return false;
    stay(d, few_k, THREADS, &p);
    return true;
}
