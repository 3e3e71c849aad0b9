/* moe_wg.cuh - what moe_wg.cu's blocks have to do: pieces of c in turn, and the step of an adapter */
#ifndef TW_MOE_WG_CUH
#define TW_MOE_WG_CUH
#include "moe.cuh"
#include "wgmma.cuh"

#define ROWS 128
#define COLS 256
#define STEP 64
#define PEERS 2

enum { A_BYTES = ROWS * STEP * 2, B_BYTES = COLS * STEP * 2 };     /* of a step */

struct wg_arg {
    moe_mm g;
    int across;                         /* pieces of c in a row of them */
    bool fours;                         /* h and its factor can be read by 16 bytes */
    tma_map b, a;
};

#if defined(__CUDACC__) && TW_HOPPER
/* A block's part of a piece: rows [m0, m1) of expert e, columns from n0. APART: the other block has others. */
struct part {
    int e, m0, m1, n0;
    bool apart;
};

/* Pieces of 256 rows that an expert of so many has; of what is left behind them, 128 rows at most, the two
 * blocks of a pair take columns side by side. */
static __device__ __forceinline__ int whole(int rows)
{
    return (rows + ROWS - 1) / (PEERS * ROWS);
}

static __device__ __forceinline__ int rows_of(const moe_mm &g, int e)
{
    return g.lo ? g.hi[e] - g.lo[e] : g.rows;
}

/* How many pieces of c come before each expert's first: FIRST[E] is how many there are. By one warp. */
static __device__ __forceinline__ void count(const wg_arg &a, int *first)
{
    const int lane = threadIdx.x % 32, E = a.g.E;
    int before = 0;

    for (int i = lane; i - lane < E; i += 32) {
        int rows = i < E ? rows_of(a.g, i) : 0, n = whole(rows), sum;

        n = n * a.across + (rows > n * PEERS * ROWS ? (a.across + PEERS - 1) / PEERS : 0), sum = n;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            int x = __shfl_up_sync(~0u, sum, o);

            sum += lane >= o ? x : 0;
        }
        if (i < E)
            first[i] = before + sum - n;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (!lane)
        first[E] = before;
}

/* Rows are halved by sixty-fours, so that a short piece keeps one warpgroup of each block at work. */
static __device__ __forceinline__ bool find(const wg_arg &a, const int *first, int piece, int rank, part &p)
{
    const moe_mm &g = a.g;
    int end = g.E;

    if (piece >= first[g.E])
        return false;
    p.e = 0;
    while (end - p.e > 1) {             /* first[e] <= piece < first[end] */
        int mid = (p.e + end) / 2;

        if (first[mid] <= piece)
            p.e = mid;
        else
            end = mid;
    }
    piece -= first[p.e];
    int lo = g.lo ? g.lo[p.e] : 0, rows = rows_of(g, p.e), n = whole(rows), row = piece / a.across;

    p.apart = row >= n;
    if (p.apart) {
        p.m0 = lo + n * PEERS * ROWS;
        p.n0 = ((piece - n * a.across) * PEERS + rank) * COLS;
        p.m1 = p.n0 < g.n ? lo + rows : p.m0;
    } else {
        int r0 = lo + row * PEERS * ROWS, r1 = min(lo + rows, r0 + PEERS * ROWS);
        int half = (r1 - r0 + 127) / 128 * 64;

        p.m0 = min(r1, r0 + rank * half);
        p.m1 = min(r1, p.m0 + half);
        p.n0 = piece % a.across * COLS;
    }
    return true;
}

/* What a thread puts into the step of an adapter for sixteen ranks: of h, and of its factor. */
struct tail_of {
    float h[16], b[32];
};

/* The numbers I to I + 3 of N, the first of which is at P + AT. FOURS: they come at once, all or none. */
template <bool FOURS>
static __device__ __forceinline__ void four(float *to, const float *p, int64_t at, int i, int n)
{
    if constexpr (FOURS) {
        float4 v = i < n ? *(const float4 *)(p + at) : make_float4(0, 0, 0, 0);

        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[k] = i + k < n ? p[at + k] : 0;
    }
}

template <int FORM, bool FOURS>
static __device__ __forceinline__ void tail_ask(tail_of &f, const moe_mm &g, const part &p, int x, int k0)
{
    const moe_tail &t = g.tail;
    const float *b = t.b + p.e * t.step;

#pragma unroll
    for (int k = 0; k < 16; k += 4)
        four<FOURS>(f.h + k, t.h, (p.m0 + x) * t.ldh + k0 + k, k0 + k, p.m0 + x < p.m1 ? t.r : 0);
#pragma unroll
    for (int i = 0; i < 32; i += 4)
        if (FORM == MOE_NT) {
            int n = p.n0 + x + i / 16 * 128, k = k0 + i % 16;

            four<FOURS>(f.b + i, b, (int64_t)n * t.r + k, k, n < g.n ? t.r : 0);
        } else {
            int n = p.n0 + x % 32 * 8 + i % 8, k = k0 + x / 32 + i / 8 * 4;

            four<FOURS>(f.b + i, b, (int64_t)k * g.n + n, n, k < t.r ? g.n : 0);
        }
}

static __device__ __forceinline__ void put8(char *to, const float *v)
{
    *(uint4 *)to = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
}

/* Rounded to BF16; zeros are behind the last rank. */
template <int FORM>
static __device__ __forceinline__ void tail_put(char *to, const tail_of &f, int x, int k0)
{
#pragma unroll
    for (int c = 0; c < 2; c++)
        put8(to + wg_chunk<ROWS>(x, k0 / 8 + c), f.h + c * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
        put8(to + A_BYTES + (FORM == MOE_NT ? wg_chunk<COLS>(x + i / 2 * 128, k0 / 8 + i % 2) :
                        wg_chunk<STEP>(k0 + x / 32 + i * 4, x % 32)), f.b + i * 8);
}

/* Sixteens of ranks that are multiplied: one, two or four. */
static __device__ __forceinline__ int tail_sixteens(const moe_mm &g)
{
    return g.tail.r <= 16 ? 1 : g.tail.r <= 32 ? 2 : STEP / 16;
}

/* Of the I-th sixteen ranks. */
template <int FORM>
static __device__ __forceinline__ void tail_get(tail_of &f, const wg_arg &a, const part &p, int x, int i)
{
    if (a.fours)
        tail_ask<FORM, true>(f, a.g, p, x, i * 16);
    else
        tail_ask<FORM, false>(f, a.g, p, x, i * 16);
}

/* F has the first sixteen. */
template <int FORM>
static __device__ __forceinline__ void tail_step(char *to, tail_of &f, const wg_arg &a, const part &p, int x)
{
    tail_put<FORM>(to, f, x, 0);
    for (int i = 1; i < tail_sixteens(a.g); i++) {
        tail_get<FORM>(f, a, p, x, i);
        tail_put<FORM>(to, f, x, i * 16);
    }
}
#endif
#endif
