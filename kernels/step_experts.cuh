/* step_experts.cuh - what the kernels have that stay with the experts of a decode step on Hopper
 * (step_experts.cu, step_experts_few.cu): a block a multiprocessor goes through its part of gate and up, then
 * through its part of down, and weights are on their way all the time. One of its warps asks the copy engine
 * for them, tile by tile of 8 rows into a ring in shared memory; the others are step_moe.cu's eight warps,
 * with its sums bit for bit: warp w has the segments of k that are w modulo 8, rows of an expert in
 * registers.
 *
 * Who waits for whom:
 *   full[slot]   its copies are there; by the asking lane, which says how many bytes, and the copies
 *   empty[slot]  the eight warps have read it; each lane says so itself, since racecheck does not see that one
 *                speaks for its warp
 *   named 1      the eight warps' sums are in their cells, which are used in turn (step_ring.cu)
 *   done[e]      how many groups of gate and up of the e-th active expert are in memory, counted by each warp
 *                for itself: who multiplies by down waits for all. They come, since all blocks are there at
 *                once and each goes through gate and up first. (One a multiprocessor, and a process has one
 *                stream; where other processes may hold multiprocessors at the same time, it is not used.) */
#ifndef TW_STEP_EXPERTS_CUH
#define TW_STEP_EXPERTS_CUH
#include "step_moe.cuh"
#include "step_ring.cuh"
#include "wgmma.cuh"

/* Of few rows: those of all experts, columns of down at a time, tokens. */
enum { OWN_ROWS = 32, OWN_COLS = 16, OWN_TOKENS = 4 };
enum { TILES = 4, GROUP = TILES * 8, MOST_SLOTS = 16, EIGHT = WARPS * 32, DEPTH = 8 };

struct stay_arg {
    moe_arg a;
    int32_t slots, slot;        /* of the ring; bytes of one */
    int32_t tokens, first;      /* where shared memory has normalised tokens, and the ring */
    int32_t pitch[2], per[2], groups[2];        /* of gate and up, of down: bytes of a row; tiles of a slot;
                                                 * groups of an expert */
};

/* What experts have rows: as struct moe_arg has them, in its memory or in a block's own. */
struct lists {
    const int32_t *active, *start, *pair, *place;
    const float *weight;
    const bf16 *x;              /* normalised tokens */
    int nact;
};

struct own {                    /* a block's own, of few rows */
    int32_t active[2 * OWN_ROWS], start[OWN_ROWS], pair[OWN_ROWS], place[OWN_ROWS], choice[OWN_ROWS], nact;
    float weight[OWN_ROWS];
};

/* In front of the ring. */
struct desk {
    union {
        float cell[2][WARPS][16][GROUP];
        struct {                /* of few rows: by row of an expert */
            float cell[WARPS][OWN_ROWS][OWN_COLS], z[OWN_ROWS][OWN_COLS];
        } few;
    };
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    own o;
};

#if defined(__CUDACC__)
#if TW_HOPPER
/* This block's part of N things. */
static __device__ __forceinline__ int part(int n, int b)
{
    return (int)((int64_t)n * b / gridDim.x);
}

/* The row of weights that lane LANE brings of tile R of a group. */
template <bool DOWN>
static __device__ __forceinline__ const bf16 *weights(const moe_arg &a, int e, int g, int r, int lane)
{
    int i = DOWN ? g * GROUP + r * 8 + lane : g * GROUP / 2 + r % 2 * 8 + lane;

    if (DOWN)
        return i < a.D ? a.down + e * a.step_dn + (int64_t)i * a.lddn : NULL;
    return i < a.I ? a.gate_up + e * a.step_gu + (int64_t)(r / 2 * a.I + i) * a.ldgu : NULL;
}

/* Waits for a slot and asks for what fills it: BYTES of a row, by each lane that has one. */
static __device__ __forceinline__ void fill(desk &d, char *mem, const stay_arg &p, place at, const bf16 *row,
        uint32_t bytes, int pitch, int lane)
{
    unsigned who = __ballot_sync(~0u, row != NULL);

    if (at.round)
        bar_wait(bar_at(&d.empty[at.slot]), (at.round - 1) & 1);
    if (!lane)
        bar_expect(bar_at(&d.full[at.slot]), bytes * (uint32_t)__popc(who));
    __syncwarp();
    if (row)
        bar_copy(mem + at.slot * p.slot + lane * pitch, row, bytes, bar_at(&d.full[at.slot]));
}

template <bool DOWN>
static __device__ __forceinline__ place ask(const stay_arg &p, desk &d, char *mem, place at, const lists &l,
        int lane)
{
    const moe_arg &a = p.a;
    const int n = p.groups[DOWN], end = part(l.nact * n, blockIdx.x + 1), per = p.per[DOWN];
    const uint32_t bytes = (DOWN ? a.I : a.D) * 2;

    for (int i = part(l.nact * n, blockIdx.x); i < end; i++) {
        int e = l.active[2 * (i / n)];

        for (int r = 0; r < TILES; r += per) {
            const bf16 *row = lane < 8 * per ? weights<DOWN>(a, e, i % n, r + lane / 8, lane % 8) : NULL;

            fill(d, mem, p, at, row, bytes, p.pitch[DOWN], lane);
            at = after(at, p.slots);
        }
    }
    return at;
}

/* This lane's parts of so many sixteens of rows, from M on, of an expert's ROWS, which begin at FIRST. */
template <bool DOWN, int SIXTEENS>
static __device__ __forceinline__ void bring(uint4 (&x)[DEPTH][2 * SIXTEENS], const moe_arg &a,
        const lists &l, int first, int m, int rows, int warp, int lane)
{
    const int nseg = (DOWN ? a.I : a.D) / SEG;

#pragma unroll
    for (int h = 0; h < 2 * SIXTEENS; h++) {
        int p = m + h * 8 + lane / 4;
        const bf16 *from = NULL;

        if (p < rows) {
            p += first;
            from = DOWN ? a.h + (int64_t)p * a.I : l.x + (int64_t)(l.pair[p] / (int)a.r.K) * a.D;
            from += lane % 4 * 8;
        }
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            int s = warp + u * WARPS;

            if (!from || s >= nseg)
                x[u][h] = make_uint4(0, 0, 0, 0);
            else if (DOWN)      /* other blocks have written it just now */
                x[u][h] = __ldcg((const uint4 *)(from + s * SEG));
            else
                x[u][h] = *(const uint4 *)(from + s * SEG);
        }
    }
}

/* One tile: its sums of N sixteens of rows. */
template <int N, int H>
static __device__ __forceinline__ void multiply(float (*acc)[4], const uint4 (&x)[DEPTH][H], const char *w,
        int n)
{
#pragma unroll
    for (int u = 0; u < DEPTH; u++)
        if (u < n) {
            uint4 v = *(const uint4 *)(w + u * WARPS * SEG * 2);

#pragma unroll
            for (int i = 0; i < N; i++)
                few_mma(acc[i], x[u][2 * i].x, x[u][2 * i + 1].x, x[u][2 * i].y, x[u][2 * i + 1].y,
                        v.x, v.y);
#pragma unroll
            for (int i = 0; i < N; i++)
                few_mma(acc[i], x[u][2 * i].z, x[u][2 * i + 1].z, x[u][2 * i].w, x[u][2 * i + 1].w,
                        v.z, v.w);
        }
}

/* What comes of 16 rows and a group. */
template <bool DOWN>
static __device__ __forceinline__ void put(const moe_arg &a, const float (*cell)[16][GROUP], int g, int row,
        int rows)
{
    constexpr int COLS = DOWN ? GROUP : GROUP / 2;

    for (int i = threadIdx.x; i < min(16, rows) * COLS; i += EIGHT) {
        int t = i / COLS, c = i % COLS, out = g * COLS + c;
        float v = 0, up = 0;

#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            v += cell[k][t][c];
            up += DOWN ? 0 : cell[k][t][COLS % GROUP + c];
        }
        if (out >= (DOWN ? a.D : a.I))
            continue;
        if (DOWN)
            a.z[(int64_t)(row + t) * a.D + out] = __float2bfloat16_rn(v);
        else
            a.h[(int64_t)(row + t) * a.I + out] = __float2bfloat16_rn(gate_act(round_bf16(v), a.act) *
                    round_bf16(up));
    }
}

static __device__ __forceinline__ int acquire(const int32_t *p)
{
    int x;

    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* N groups of an active expert are in memory. */
static __device__ __forceinline__ void tell(int32_t *done, int n, int lane)
{
    __syncwarp();
    if (lane)
        return;
    __threadfence();
    atomicAdd(done, n);
}

template <bool DOWN, int SIXTEENS>
static __device__ __forceinline__ place consume(const stay_arg &p, desk &d, const char *mem, place at,
        int &turn, const lists &l, int warp, int lane)
{
    const moe_arg &a = p.a;
    const int n = p.groups[DOWN], end = part(l.nact * n, blockIdx.x + 1), per = p.per[DOWN];
    const int pitch = p.pitch[DOWN];
    const int nseg = ((DOWN ? a.I : a.D) / SEG - warp + WARPS - 1) / WARPS;
    const char *mine = mem + lane / 4 * pitch + (warp * SEG + lane % 4 * 8) * 2;
    int has = -1, run = 0, old = -1;    /* rows that are in registers; groups since old was told */
    uint4 x[DEPTH][2 * SIXTEENS];

    for (int i = part(l.nact * n, blockIdx.x); i < end; i++) {
        int k = i / n, rows = l.active[2 * k + 1], first = l.start[k];
        place from = at;

        if (DOWN && k != old) {
            while (acquire(a.done + k) < p.groups[0] * WARPS)
                ;
            __syncwarp();
        } else if (!DOWN && k != old && old >= 0) {
            tell(a.done + old, run, lane);
            run = 0;
        }
        old = k;
        run++;
        for (int m = 0; m < rows; m += 16 * SIXTEENS) {
            float acc[TILES][SIXTEENS][4] = {};

            if (has != first + m)
                bring<DOWN, SIXTEENS>(x, a, l, first, m, rows, warp, lane);
            has = first + m;
            at = from;
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                const char *w = mine + at.slot * p.slot + r % per * 8 * pitch;

                bar_wait(bar_at(&d.full[at.slot]), at.round & 1);
                if (m + 16 < rows)
                    multiply<SIXTEENS>(acc[r], x, w, nseg);
                else
                    multiply<1>(acc[r], x, w, nseg);
                if (r % per == per - 1) {
                    if (m + 16 * SIXTEENS >= rows)
                        bar_arrive(bar_at(&d.empty[at.slot]));
                    at = after(at, p.slots);
                }
            }
#pragma unroll
            for (int s = 0; s < SIXTEENS; s++) {
                if (m + s * 16 >= rows)
                    break;
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int r = 0; r < TILES; r++)
                        *(float2 *)&d.cell[turn][warp][h * 8 + lane / 4][r * 8 + lane % 4 * 2] =
                            make_float2(acc[r][s][2 * h], acc[r][s][2 * h + 1]);
                bar_group(1, EIGHT);
                put<DOWN>(a, d.cell[turn], i % n, first + m + s * 16, rows - m - s * 16);
                turn ^= 1;
            }
        }
    }
    if (!DOWN && old >= 0)
        tell(a.done + old, run, lane);
    return at;
}

/* By all threads, before a barrier of the block. */
static __device__ __forceinline__ void make_bars(const stay_arg &p, desk &d)
{
    if (threadIdx.x)
        return;
    for (int i = 0; i < p.slots; i++) {
        bar_init(bar_at(&d.full[i]), 1);
        bar_init(bar_at(&d.empty[i]), EIGHT);
    }
    bar_made();
}

/* The last block to end makes all counts zero again. */
static __device__ __forceinline__ void leave(const moe_arg &a, int nact)
{
    bar_group(1, EIGHT);
    if (threadIdx.x || atomicAdd(a.leave, 1) != (int)gridDim.x - 1)
        return;
    *a.front = *a.leave = 0;
    for (int i = 0; i < nact; i++)
        a.done[i] = 0;
}
#endif

/* Lays out shared memory, TOKENS of it for bytes of normalised tokens; false: this is not for it. */
static inline bool lay_out(struct cu_dev *d, struct stay_arg *p, const struct moe_arg *a, int64_t tokens)
{
    const int k[2] = { a->D, a->I }, n[2] = { a->I, a->D };
    int64_t most = k[0] > k[1] ? k[0] : k[1];
    int shared = 0;             /* by processes at the same time */

    CU_TRY(d, cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, d->index));
    if (shared || !cu_attn_wg_real() || most > DEPTH * WARPS * SEG)
        return false;
    *p = (struct stay_arg){};
    p->a = *a;
    p->tokens = up(sizeof(struct desk));
    p->first = p->tokens + up(tokens);
    p->slot = (int32_t)(8 * (most * 2 + 64) - 64);
    p->slots = (int32_t)(((int64_t)d->smem_max - p->first) / p->slot);
    p->slots = p->slots < MOST_SLOTS ? p->slots : MOST_SLOTS;
    for (int i = 0; i < 2; i++) {
        p->pitch[i] = k[i] * 2 + 64;
        int fit = (p->slot + 64) / (8 * p->pitch[i]);

        p->per[i] = fit < 2 ? 1 : fit < 4 ? 2 : 4;
        p->groups[i] = (int32_t)cu_div(n[i], i ? GROUP : GROUP / 2);
    }
    return p->slots >= 4;
}

static inline void stay(struct cu_dev *d, void (*kernel)(struct stay_arg), unsigned threads,
        const struct stay_arg *p)
{
    size_t smem = (size_t)(p->first + p->slots * p->slot);

    step_room(d, (const void *)kernel);
    step_launch(d, kernel, dim3((unsigned)d->sms), threads, smem, 1, *p);
}
#endif
#endif
