/* attn_few.cu - attention of few rows over a decode state's blocks: decoding. Bound by reading keys
 * and values once, so the keys of a sequence are cut into splits of FEW_KEYS; a block takes up to
 * FEW_ROWS rows of one (sequence, kv head, split), its 4 warps take tiles of 16 keys in turn, each
 * with its own ring of shared memory, and are put together in order. Sequences of several splits
 * are put together by a second kernel, in order too. Where the cuts are depends only on positions,
 * so a row's bits depend on nothing but its own sequence. Lengths and blocks are read from device
 * memory: a grid serves every batch that is not larger. */
#include "attn.cuh"

#define TILE 16
#define STAGES 3

template <int HDP> struct few {
    static constexpr uint32_t KV = TILE * HDP * 2;      /* bytes of a tile of keys, or of values */
    static constexpr uint32_t RING = STAGES * 2 * KV;   /* of a warp */
    static constexpr size_t SMEM = 4 * RING + FEW_ROWS * HDP * 2;
};

struct cut {                    /* of the keys of row tile r0 */
    int from, end, first;       /* the keys its rows see between them; the first split */
    int n;                      /* splits */
};

static __device__ __forceinline__ cut cut_of(const attn_arg &a, const attn_seq &s, int r0)
{
    int rows = s.nq * a.group, low = s.past + row_query(a, r0);
    int last = s.past + row_query(a, min(r0 + FEW_ROWS, rows) - 1);
    cut c;

    c.from = a.window ? max(0, low + 1 - a.window) : 0;
    c.end = last + 1;
    c.first = c.from / FEW_KEYS;
    c.n = (c.end + FEW_KEYS - 1) / FEW_KEYS - c.first;
    return c;
}

/* Queues keys and values j .. j + TILE, which lie in one block, into a warp's stage. */
template <int HDP>
static __device__ __forceinline__ void load_tile(const attn_arg &a, const attn_seq &s, int kvh,
        uint32_t to, int j, int end, int lane)
{
    constexpr int C = HDP / 8;
    const bf16 *k = key_at<bf16, 0, true>(a, s, kvh, j), *v = k + BLK * a.hd;

#pragma unroll
    for (int i = lane; i < TILE * C; i += 32) {
        int r = i / C, c = i % C;
        bool used = j + r < end && c * 8 < a.hd;
        int at = used ? r * a.hd + c * 8 : 0;

        cp16(to + swz<HDP>(r, c), k + at, used);
        cp16(to + few<HDP>::KV + swz<HDP>(r, c), v + at, used);
    }
}

/* One tile: the running softmax of 16 rows at positions pos over keys j .. j + TILE. */
template <int HDP>
static __device__ __forceinline__ void step(const attn_arg &a, float (*o)[4], float *max,
        float *sum, const uint32_t (*q)[4], uint32_t k, uint32_t v, const int *pos, int j, int lane)
{
    float s[2][4] = {}, l2 = a.scale * 1.44269504f;
    uint32_t fp[4];

#pragma unroll
    for (int x = 0; x < HDP / 16; x++) {
        uint32_t fk[4];

        if (x * 16 >= a.hd)
            break;
        b_rows<HDP>(fk, k, 0, x, lane);
        mma(s[0], q[x], fk[0], fk[1]);
        mma(s[1], q[x], fk[2], fk[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = max[h], base, fix, add = 0;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[i / 2][2 * h + i % 2];
            int key = j + i / 2 * 8 + (lane & 3) * 2 + i % 2;

            if (key > pos[h] || (a.window && pos[h] - key >= a.window))
                *x = -INFINITY;
            top = fmaxf(top, *x);
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        base = top == -INFINITY ? 0 : top * l2;
        fix = ex2(max[h] * l2 - base);
        max[h] = top;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[i / 2][2 * h + i % 2];

            *x = ex2(*x * l2 - base);
            add += *x;
        }
        sum[h] = sum[h] * fix + add;
#pragma unroll
        for (int n = 0; n < HDP / 8; n++) {
            o[n][2 * h] *= fix;
            o[n][2 * h + 1] *= fix;
        }
        fp[h] = pack2(s[0][2 * h], s[0][2 * h + 1]);
        fp[2 + h] = pack2(s[1][2 * h], s[1][2 * h + 1]);
    }
#pragma unroll
    for (int n = 0; n < HDP / 16; n++) {
        uint32_t fv[4];

        if (n * 16 >= a.hd)
            break;
        b_cols<HDP>(fv, v, n * 16, 0, lane);
        mma(o[2 * n], fp, fv[0], fv[1]);
        mma(o[2 * n + 1], fp, fv[2], fv[3]);
    }
}

/* The warps' sums through shared memory (words: o [4][16][HDP + 4], max [4][16], sum [4][16]), then
 * the answer, or this split's part of it. */
template <int HDP>
static __device__ __forceinline__ void merge(const attn_arg &a, const attn_seq &s, int kvh,
        float *mem, const float (*o)[4], const float *max, float *sum, int r0, const cut &c)
{
    constexpr int LD = HDP + 4;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = s.nq * a.group - r0;
    float *tops = mem + 4 * 16 * LD, *sums = tops + 64;

    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = warp * 16 + lane / 4 + h * 8;

        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        tops[r] = max[h];
        sums[r] = sum[h];
#pragma unroll
        for (int n = 0; n < HDP / 8; n++)
            *(float2 *)&mem[r * LD + n * 8 + (lane & 3) * 2] =
                    make_float2(o[n][2 * h], o[n][2 * h + 1]);
    }
    __syncthreads();
    for (int r = warp; r < min(rows, 16); r += 4) {
        float top = -INFINITY, all = 0, w[4];
        int64_t at = row_stat(a, s, kvh, r0 + r), part = at - (int64_t)(s.q0 - s.part) * a.nh;

        part = part * a.splits + blockIdx.x;
        for (int x = 0; x < 4; x++)
            top = fmaxf(top, tops[x * 16 + r]);
        for (int x = 0; x < 4; x++) {
            w[x] = top == -INFINITY ? 0 : ex2((tops[x * 16 + r] - top) * a.scale * 1.44269504f);
            all += sums[x * 16 + r] * w[x];
        }
        for (int i = lane; i < a.hd; i += 32) {
            float y = 0;

            for (int x = 0; x < 4; x++)
                y += w[x] * mem[(x * 16 + r) * LD + i];
            if (c.n == 1)
                ((bf16 *)a.o)[row_at(a, s, kvh, r0 + r, a.ldo) + i] = __float2bfloat16_rn(y / all);
            else
                a.part[part * a.hd + i] = y;
        }
        if (lane)
            continue;
        if (c.n > 1) {
            a.stat[part * 2] = top;
            a.stat[part * 2 + 1] = all;
        } else if (a.lse) {
            a.lse[at] = top * a.scale + logf(all);
        }
    }
}

template <int HDP>
static __global__ void __launch_bounds__(128) few_k(const __grid_constant__ attn_arg a)
{
    using F = few<HDP>;
    extern __shared__ __align__(128) char mem[];
    attn_seq s = a.t.seq[a.few0 + blockIdx.z];
    int kvh = blockIdx.y % a.nkv, r0 = blockIdx.y / a.nkv * FEW_ROWS, rows = s.nq * a.group;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pos[2];
    uint32_t ring = smem_at(mem) + warp * F::RING, tile_q = smem_at(mem) + 4 * F::RING;

    if (r0 >= rows)
        return;
    cut c = cut_of(a, s, r0);
    if ((int)blockIdx.x >= c.n)
        return;
    int j = (c.first + (int)blockIdx.x) * FEW_KEYS, end = min(c.end, j + FEW_KEYS);
    float o[HDP / 8][4] = {}, max_[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    uint32_t q[HDP / 16][4];

    load_rows<HDP, FEW_ROWS, 128>(a, s, kvh, tile_q, a.q, a.ldq, r0, rows);
    cp_commit();
    j = c.from > j ? c.from / (4 * TILE) * (4 * TILE) + warp * TILE : j + warp * TILE;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (j + i * 4 * TILE < end)
            load_tile<HDP>(a, s, kvh, ring + i * 2 * F::KV, j + i * 4 * TILE, end, lane);
        cp_commit();
    }
    cp_wait<STAGES - 1>();
    __syncthreads();
#pragma unroll
    for (int x = 0; x < HDP / 16; x++)
        a_frag<HDP>(q[x], tile_q, 0, x, lane);
#pragma unroll
    for (int h = 0; h < 2; h++)
        pos[h] = s.past + row_query(a, min(r0 + lane / 4 + h * 8, rows - 1));
    for (int stage = 0; j < end; j += 4 * TILE, stage = (stage + 1) % STAGES) {
        uint32_t at = ring + stage * 2 * F::KV;
        int ahead = j + (STAGES - 1) * 4 * TILE;

        __syncwarp();
        if (ahead < end)
            load_tile<HDP>(a, s, kvh, ring + (stage + STAGES - 1) % STAGES * 2 * F::KV, ahead, end,
                    lane);
        cp_commit();
        cp_wait<STAGES - 1>();
        __syncwarp();
        step<HDP>(a, o, max_, sum, q, at, at + F::KV, pos, j, lane);
    }
    cp_wait<0>();
    merge<HDP>(a, s, kvh, (float *)mem, o, max_, sum, r0, c);
}

/* Puts the splits of a row together, a block a row: each of 4 warps adds up every fourth split in
 * order, then the four are added. */
static __global__ void __launch_bounds__(128) join_k(const __grid_constant__ attn_arg a)
{
    __shared__ float tops[4], alls[4], sums[4][256];
    attn_seq s = a.t.seq[a.few0 + blockIdx.y];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int r = blockIdx.x / a.nkv, kvh = blockIdx.x % a.nkv;

    if (r >= s.nq * a.group)
        return;
    cut c = cut_of(a, s, r / FEW_ROWS * FEW_ROWS);
    if (c.n == 1)
        return;
    int64_t at = row_stat(a, s, kvh, r), part = (at - (int64_t)(s.q0 - s.part) * a.nh) * a.splits;
    const float *stat = a.stat + part * 2, *o = a.part + part * a.hd;
    float top = -INFINITY, all = 0, y[8] = {};

    for (int x = threadIdx.x; x < c.n; x += 128)
        top = fmaxf(top, stat[x * 2]);
    top = warp_max(top);
    if (!lane)
        tops[warp] = top;
    __syncthreads();
    top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
#pragma unroll 4
    for (int x = warp; x < c.n; x += 4) {
        float w = ex2((stat[x * 2] - top) * a.scale * 1.44269504f);

        all += w * stat[x * 2 + 1];
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i * 32 + lane < a.hd)
                y[i] += w * o[(int64_t)x * a.hd + i * 32 + lane];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[warp][i * 32 + lane] = y[i];
    alls[warp] = all;
    __syncthreads();
    all = alls[0] + alls[1] + alls[2] + alls[3];
    for (int i = threadIdx.x; i < a.hd; i += 128)
        ((bf16 *)a.o)[row_at(a, s, kvh, r, a.ldo) + i] = __float2bfloat16_rn(
                (sums[0][i] + sums[1][i] + sums[2][i] + sums[3][i]) / all);
    if (a.lse && !threadIdx.x)
        a.lse[at] = top * a.scale + logf(all);
}

template <int HDP>
static void few_run(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    dim3 grid((unsigned)a->splits, (unsigned)(a->nkv * n->few_tiles), (unsigned)n->few);

    if (!smem_want(d, few_k<HDP>, few<HDP>::SMEM))
        return;
    few_k<HDP><<<grid, 128, few<HDP>::SMEM, d->stream>>>(*a);
    CU_DONE(d, "attention of few rows");
}

size_t cu_attn_few_smem(int64_t hd)
{
    return hd <= 64 ? few<64>::SMEM : hd <= 128 ? few<128>::SMEM : few<256>::SMEM;
}

void cu_attn_few(struct cu_dev *d, const struct attn_arg *given, const struct attn_count *n)
{
    struct attn_arg a = *given;
    size_t words;

    if (!n->few)
        return;
    for (a.splits = 1; a.splits < n->few_splits; a.splits *= 2)
        ;
    words = (size_t)n->few_rows * (size_t)a.nh * (size_t)a.splits;
    if (a.splits > 1) {
        a.part = (float *)cu_scratch(d, CU_S_ATTN, words * (size_t)(a.hd + 2) * sizeof(float));
        if (!a.part)
            return;
        a.stat = a.part + words * (size_t)a.hd;
    }
    if (a.hd <= 64)
        few_run<64>(d, &a, n);
    else if (a.hd <= 128)
        few_run<128>(d, &a, n);
    else
        few_run<256>(d, &a, n);
    if (a.splits > 1) {
        dim3 grid((unsigned)(n->few_most * a.nkv), (unsigned)n->few);

        join_k<<<grid, 128, 0, d->stream>>>(a);
        CU_DONE(d, "attention's splits");
    }
}
