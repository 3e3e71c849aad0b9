/* step_attn_ring.cu - attention of a decode step of many sequences on Hopper: step_attn.cu's way through the
 * keys, which come by the copy engine, block of keys by block of keys, into a ring in shared memory. So many
 * of them are on their way at a time, from before the queries are there, and nothing of them is in registers
 * or passes through L1, of which little is left beside the products of a step.
 *
 * Who waits for whom:
 *   full[i]   a block of keys and values is there; by the asking lane and the copies
 *   free[i]   the four warps have read it: each lane says so itself, since racecheck does not see that one
 *             speaks for its warp
 *   named 1   the four warps for one another: the queries are there; all keys have been read, whose room the
 *             warps' shares take; those are there */
#include "step_attn.cuh"

enum { WARPS = 4, MOST_SLOTS = 4 };

#if TW_SM90
/* The four warps, without the fifth. */
static __device__ __forceinline__ void together()
{
    bar_group(1, WARPS * 32);
}

/* The fifth warp: all keys of this split, which are older than the step. */
template <int HD> static __device__ __forceinline__ void bring(const step_attn_arg &a, char *ring,
        uint32_t bars, int slots, char *const *blk, int kvh, int j0, int j1, int lane)
{
    constexpr int HALF = TW_KV_BLOCK * HD * 2, LINE = HD * 2;
    const int n = (j1 - j0 + TW_KV_BLOCK - 1) / TW_KV_BLOCK;
    const char *mine = lane < n ? blk[j0 / TW_KV_BLOCK + lane] + a.offset + (int64_t)kvh * 2 * HALF : NULL;
    slot_at at = { 0, 1 };

    for (int i = 0; i < n; i++, advance(at, slots)) {
        const char *from = (const char *)__shfl_sync(~0u, (unsigned long long)mine, i);
        const int bytes = min(TW_KV_BLOCK, j1 - j0 - i * TW_KV_BLOCK) * LINE;
        const uint32_t full = bars + at.i * 8;
        char *to = ring + at.i * 2 * HALF;

        if (lane)
            continue;
        if (i >= slots)
            bar_wait(full + MOST_SLOTS * 8, at.round);
        bar_expect(full, 2 * bytes);
        bar_copy(to, from, bytes, full);
        bar_copy(to + HALF, from + HALF, bytes, full);
    }
}

/* c[16, 8] += a[16, 16] b[16, 8], of which rows 8 to 15 of a are zeros. */
static __device__ __forceinline__ void scores(float (&c)[4], uint32_t a0, uint32_t a2, uint32_t b0,
        uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1));
}

/* What a warp has of the softmax over its keys. Lane 4 h + t has head h's maximum, and its own part of the
 * sum; lane LPK s + l has components 8 l to 8 l + 7 of what keys s modulo 32 / LPK gave to every head. */
template <int G> struct running {
    float acc[G][8], top, all;
};

/* With the new key, when it is this warp's. */
template <int LPK, int G> static __device__ __forceinline__ void begin(running<G> &r, const step_attn_arg &a,
        const float (*qs)[LPK * 8], const float *kn, const float *vn, bool own, int lane)
{
    const int l = lane % LPK;

    r.top = -INFINITY;
    r.all = 0;
#pragma unroll
    for (int g = 0; g < G; g++) {
        float dot = 0;

#pragma unroll
        for (int i = 0; i < 8; i++) {
            r.acc[g][i] = own && lane < LPK ? vn[l * 8 + i] : 0;
            dot = fmaf(qs[g][l * 8 + i], own ? kn[l * 8 + i] : 0, dot);
        }
        dot = lanes_sum<LPK>(dot);
        if (own && lane / 4 == g) {
            r.top = dot * (a.scale * 1.44269504f);
            r.all = lane % 4 ? 0 : 1;
        }
    }
}

/* Queries as the left side of scores(): the order of components inside 32 is permuted, as keys are read. */
template <int HD, int G>
static __device__ __forceinline__ void queries(uint4 (&q)[HD / 32], const float (*qs)[HD], int lane)
{
#pragma unroll
    for (int c = 0; c < HD / 32; c++) {
        const float *x = qs[lane / 4 < G ? lane / 4 : 0] + c * 32 + lane % 4 * 8;

        q[c] = lane / 4 < G ? make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]),
                pack2(x[6], x[7])) : make_uint4(0, 0, 0, 0);
    }
}

/* The running softmax takes in eight keys K, of which N are there, with their values V. ROOM, of this warp:
 * the weights of each key, and the factors of what is there. */
template <int LPK, int G> static __device__ __forceinline__ void take_eight(running<G> &r,
        const uint4 (&q)[LPK / 4], const bf16 *k, const bf16 *v, float (*room)[G], int n, float scale, int lane)
{
    constexpr int HD = LPK * 8, KPW = 32 / LPK, U = 8 / KPW;
    const int t = lane % 4, h = lane / 4, sub = lane / LPK, l = lane % LPK;
    float c[4] = {}, e[4] = {}, x[8];
    uint4 u[U];

#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        uint4 b = h < n ? *(const uint4 *)(k + h * HD + i * 32 + t * 8) : make_uint4(0, 0, 0, 0);

        scores(c, q[i].x, q[i].y, b.x, b.y);
        scores(e, q[i].z, q[i].w, b.z, b.w);
    }
#pragma unroll
    for (int i = 0; i < U; i++)
        u[i] = i * KPW + sub < n ? *(const uint4 *)(v + (i * KPW + sub) * HD + l * 8) :
            make_uint4(0, 0, 0, 0);
    float s0 = 2 * t < n ? (c[0] + e[0]) * scale : -INFINITY;
    float s1 = 2 * t + 1 < n ? (c[1] + e[1]) * scale : -INFINITY;
    float top = fmaxf(s0, s1);

    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(r.top, fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
    const float f = ex2(r.top - top);           /* n is not 0 */

    s0 = ex2(s0 - top), s1 = ex2(s1 - top);
    r.top = top;
    r.all = r.all * f + (s0 + s1);
    __syncwarp();                               /* room was read */
    if (h < G) {
        room[2 * t][h] = s0, room[2 * t + 1][h] = s1;
        if (!t)
            room[8][h] = f;
    }
    __syncwarp();
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float by = room[8][g];

#pragma unroll
        for (int i = 0; i < 8; i++)
            r.acc[g][i] *= by;
    }
#pragma unroll
    for (int i = 0; i < U; i++) {
        unpack(x, u[i]);
#pragma unroll
        for (int g = 0; g < G; g++) {
            const float w = room[i * KPW + sub][g];

#pragma unroll
            for (int k = 0; k < 8; k++)
                r.acc[g][k] = fmaf(w, x[k], r.acc[g][k]);
        }
    }
}

/* One of the four warps, whose part of each block is eight keys; by tensor cores. Its share goes to MO and
 * MS. */
template <int LPK, int G> static __device__ __forceinline__ void by_cores(const step_attn_arg &a,
        const char *ring, uint32_t bars, int slots, const float (*qs)[LPK * 8], const float *kn,
        const float *vn, float (*room)[G], int keys, bool own, float (*mo)[G][LPK * 8], float (*ms)[G][2])
{
    constexpr int HD = LPK * 8, HALF = TW_KV_BLOCK * HD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float scale = a.scale * 1.44269504f;
    running<G> r;
    uint4 q[HD / 32];
    slot_at at = { 0, 0 };

    begin<LPK, G>(r, a, qs, kn, vn, own && !warp, lane);
    queries<HD, G>(q, qs, lane);
    for (int j = warp * 8; j - warp * 8 < keys; j += TW_KV_BLOCK) {
        const bf16 *k = (const bf16 *)ring + at.i * 2 * HALF + warp * 8 * HD;

        bar_wait(bars + at.i * 8, at.round);
        if (j < keys)
            take_eight<LPK, G>(r, q, k, k + HALF, room, min(8, keys - j), scale, lane);
        bar_arrive(bars + (MOST_SLOTS + at.i) * 8);
        advance(at, slots);
    }
    together();
    r.all += __shfl_xor_sync(~0u, r.all, 1);
    r.all += __shfl_xor_sync(~0u, r.all, 2);
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int o = LPK; o < 32; o *= 2)
                r.acc[g][i] += __shfl_xor_sync(~0u, r.acc[g][i], o);
            if (lane < LPK)
                mo[warp][g][lane * 8 + i] = r.acc[g][i];
        }
    if (lane % 4 == 0 && lane / 4 < G) {
        ms[warp][lane / 4][0] = r.top;
        ms[warp][lane / 4][1] = r.all;
    }
}

/* The same by lanes, eight components each, as step_attn.cu has it: one or two heads are too few for the
 * cores. */
template <int LPK, int G> static __device__ __forceinline__ void by_lanes(const step_attn_arg &a,
        const char *ring, uint32_t bars, int slots, const float (*qs)[LPK * 8], const float *kn,
        const float *vn, int keys, bool own, float (*mo)[G][LPK * 8], float (*ms)[G][2])
{
    constexpr int HD = LPK * 8, KPW = 32 / LPK, STRIDE = WARPS * KPW, HALF = TW_KV_BLOCK * HD;
    constexpr int U = TW_KV_BLOCK / STRIDE < 4 ? TW_KV_BLOCK / STRIDE : 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, l = lane % LPK;
    const int mine = warp * KPW + lane / LPK;
    float acc[G][8] = {}, top[G], all[G] = {}, q[G][8];
    slot_at at = { 0, 0 };

    start<LPK, G>(acc, top, all, q, a, qs, kn, vn, own && !warp);
    for (int j = 0; j < keys; j += TW_KV_BLOCK) {
        bar_wait(bars + at.i * 8, at.round);
#pragma unroll
        for (int i = 0; i < TW_KV_BLOCK; i += U * STRIDE) {
            const bf16 *from = (const bf16 *)ring + at.i * 2 * HALF + (i + mine) * HD + l * 8;
            uint4 k[U], v[U];

#pragma unroll
            for (int u = 0; u < U; u++) {
                k[u] = v[u] = make_uint4(0, 0, 0, 0);
                if (j + i + mine + u * STRIDE < keys) {
                    k[u] = *(const uint4 *)(from + u * STRIDE * HD);
                    v[u] = *(const uint4 *)(from + u * STRIDE * HD + HALF);
                }
            }
            take<LPK, G, U>(acc, top, all, q, k, v, j + i + mine, STRIDE, keys);
        }
        bar_arrive(bars + (MOST_SLOTS + at.i) * 8);
        advance(at, slots);
    }
    together();
    join_lanes<LPK, G>(acc, top, all);
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (lane < LPK)
#pragma unroll
            for (int i = 0; i < 8; i++)
                mo[warp][g][l * 8 + i] = acc[g][i];
        if (!lane) {
            ms[warp][g][0] = top[g];
            ms[warp][g][1] = all[g];
        }
    }
}
#endif

template <int LPK, int G> static __global__ void
__launch_bounds__((WARPS + 1) * 32, LPK > 16 ? 2 : G > 4 ? 3 : 4)
ring_k(const __grid_constant__ step_attn_arg a, int slots)
{
#if TW_SM90
    constexpr int HD = LPK * 8;
    extern __shared__ __align__(128) char ring[];
    float (*mo)[G][HD] = (float (*)[G][HD])ring;        /* when all keys have been read */
    __shared__ __align__(16) float qs[G][HD], kn[HD], vn[HD], ms[WARPS][G][2], room[G > 2 ? WARPS : 1][9][G];
    __shared__ uint64_t bar[2 * MOST_SLOTS];
    const int kvh = blockIdx.x, t = blockIdx.y, pos = a.v.pos[t], split = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int ns = pos / a.v.split_keys + 1, j0 = split * a.v.split_keys, j1 = min(pos, j0 + a.v.split_keys);
    const uint32_t bars = bar_at(bar);
    char *const *blk = a.v.blk + (int64_t)t * a.v.maxb;

    step_next();
    if (pos < 0 || split >= ns)
        return;
    if (!threadIdx.x) {
        for (int i = 0; i < MOST_SLOTS; i++)
            bar_init(bars + i * 8, 1), bar_init(bars + (MOST_SLOTS + i) * 8, WARPS * 32);
        bar_made();
    }
    __syncthreads();
    if (warp == WARPS) {
        bring<HD>(a, ring, bars, slots, blk, kvh, j0, j1, lane);
        return;
    }
    const bool own = split == ns - 1;   /* of the new key */

    if (!warp)
        fetch<HD>(a, pos, lane);
    step_after();
    prepare_all<HD, G, WARPS>(a, qs, kn, vn, blk, t, kvh, pos, own);
    together();
    if constexpr (G > 2)
        by_cores<LPK, G>(a, ring, bars, slots, qs, kn, vn, room[warp], j1 - j0, own, mo, ms);
    else
        by_lanes<LPK, G>(a, ring, bars, slots, qs, kn, vn, j1 - j0, own, mo, ms);
    together();
    finish<HD, G, WARPS>(a, mo, ms, t, kvh, split, ns);
#endif
}

template <int LPK, int G> static void run(struct cu_dev *d, const struct step_attn_arg *a, dim3 grid)
{
    constexpr int HD = LPK * 8;
    /* So that four blocks lie on a multiprocessor, of heads of 256 two. */
    const int slots = LPK > 16 ? 2 : LPK == 16 ? 3 : MOST_SLOTS;

    step_room(d, (const void *)ring_k<LPK, G>);
    step_launch(d, ring_k<LPK, G>, grid, (WARPS + 1) * 32, (size_t)slots * 2 * TW_KV_BLOCK * HD * 2, 1, *a,
                slots);
}

template <int LPK> static bool heads(struct cu_dev *d, const struct step_attn_arg *a, dim3 grid)
{
    if (a->group == 1)
        run<LPK, 1>(d, a, grid);
    else if (a->group == 2)
        run<LPK, 2>(d, a, grid);
    else if (a->group <= 4)
        run<LPK, 4>(d, a, grid);
    else
        run<LPK, 8>(d, a, grid);
    return true;
}

bool cu_step_attn_ring(struct cu_dev *d, const struct step_attn_arg *a, dim3 grid, int64_t hd)
{
    if (d->major < 9 || a->window || a->v.split_keys > 32 * TW_KV_BLOCK)
        return false;
    return hd == 128 ? heads<16>(d, a, grid) : hd == 64 ? heads<8>(d, a, grid) :
        hd == 256 ? heads<32>(d, a, grid) : false;
}
