/* attn_bwd.cu - backward of packed attention on tensor cores by mma.sync, where attn_wg_bwd.cu does
 * not go, without atomics: one pass owns rows and makes dQ, another owns keys and makes dK and dV,
 * each with all its sums in registers in the order of tiles. Both are the same kernel with roles
 * exchanged: the owner keeps 64 of X1, X2 in shared memory and goes over Y1, Y2 in tiles of 64,
 *   rows: X = Q, dO; Y = K, V        keys: X = K, V; Y = Q, dO
 *   S = X1 Y1^T, D = X2 Y2^T, P = 2^(S scale log2 e - lse), dS = P (D - delta),
 *   out1 += dS Y1 (dQ or dK, times scale at the end), out2 += P Y2 (dV).
 * P and dS are rounded to BF16 for their products. Heads wider than 128 have the columns of out
 * made by two blocks (S and D twice), for they would not fit into registers. */
#include "attn.cuh"

#define N 64                    /* rows and keys of a tile: 16 rows each of 4 warps */

template <int HDP> struct bwd {
    static constexpr int HO = HDP > 128 ? 128 : HDP;    /* columns of out that a block makes */
    static constexpr uint32_t TILE = N * HDP * 2;
    static constexpr size_t SMEM = 6 * (size_t)TILE + 4 * N * sizeof(float);
};

/* s[n][..] = x y^T for a warp's 16 rows of x from row and all N rows of y. */
template <int HDP>
static __device__ __forceinline__ void product(float (*s)[4], uint32_t x, uint32_t y, int row,
        int hd, int lane)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int k = 0; k < HDP / 16; k++) {
        uint32_t fx[4], fy[4];

        if (k * 16 >= hd)
            break;
        a_frag<HDP>(fx, x, row, k, lane);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            b_rows<HDP>(fy, y, n * 16, k, lane);
            mma(s[2 * n], fx, fy[0], fy[1]);
            mma(s[2 * n + 1], fx, fy[2], fy[3]);
        }
    }
}

/* out += w y[:, col ...], w the 16 x N of a warp. */
template <int HDP>
static __device__ __forceinline__ void collect(float (*out)[4], const float (*w)[4], uint32_t y,
        int col, int hd, int lane)
{
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t fw[4], fy[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            fw[i] = pack2(w[2 * k + i / 2][i % 2 * 2], w[2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < bwd<HDP>::HO / 16; n++) {
            if (col + n * 16 >= hd)
                break;
            b_cols<HDP>(fy, y, col + n * 16, k, lane);
            mma(out[2 * n], fw, fy[0], fy[1]);
            mma(out[2 * n + 1], fw, fy[2], fy[3]);
        }
    }
}

/* Where a block's work is. */
struct span {
    int own0, own_end;          /* rows or keys that it owns */
    int from, end;              /* what it goes over */
};

template <bool KEYS>
static __device__ __forceinline__ span span_of(const attn_arg &a, const attn_seq &s, int item,
        int own0)
{
    int rows = s.nq * a.group;
    span x = { own0, KEYS ? s.nq : min(rows, item + a.per), 0, 0 };

    if (KEYS) {
        x.from = own0 * a.group / N * N;
        x.end = a.window ? min(s.nq, own0 + N - 1 + a.window) * a.group : rows;
    } else {
        int first = row_query(a, own0);

        x.from = a.window ? max(0, first + 1 - a.window) / N * N : 0;
        x.end = row_query(a, min(own0 + N, x.own_end) - 1) + 1;
    }
    return x;
}

template <int HDP, bool KEYS>
static __device__ __forceinline__ void load_own(const attn_arg &a, const attn_seq &s, int kvh,
        uint32_t x, const span &w)
{
    if (KEYS) {
        load_keys<HDP, N, 128, 0, false>(a, s, kvh, x, w.own0, w.own_end);
        load_keys<HDP, N, 128, 1, false>(a, s, kvh, x + bwd<HDP>::TILE, w.own0, w.own_end);
    } else {
        load_rows<HDP, N, 128>(a, s, kvh, x, a.q, a.ldq, w.own0, w.own_end);
        load_rows<HDP, N, 128>(a, s, kvh, x + bwd<HDP>::TILE, a.dout, a.lddo, w.own0, w.own_end);
    }
}

/* Tile j of Y1, Y2, and of the rows' lse and delta if those are Y. Rows past the end have P = 0. */
template <int HDP, bool KEYS>
static __device__ __forceinline__ void load_other(const attn_arg &a, const attn_seq &s, int kvh,
        uint32_t y, float *stat, const span &w, int j)
{
    if (!KEYS) {
        load_keys<HDP, N, 128, 0, false>(a, s, kvh, y, j, w.end);
        load_keys<HDP, N, 128, 1, false>(a, s, kvh, y + bwd<HDP>::TILE, j, w.end);
        return;
    }
    load_rows<HDP, N, 128>(a, s, kvh, y, a.q, a.ldq, j, w.end);
    load_rows<HDP, N, 128>(a, s, kvh, y + bwd<HDP>::TILE, a.dout, a.lddo, j, w.end);
    if (threadIdx.x < N) {
        bool used = j + (int)threadIdx.x < w.end;
        int64_t at = used ? row_stat(a, s, kvh, j + threadIdx.x) : 0;

        stat[threadIdx.x] = used ? a.lse[at] * 1.44269504f : INFINITY;
        stat[N + threadIdx.x] = used ? a.delta[at] : 0;
    }
}

/* Whether row (query i) does not see key j. */
static __device__ __forceinline__ bool hidden(const attn_arg &a, int i, int j)
{
    return j > i || (a.window && i - j >= a.window);
}

/* s becomes P and d becomes dS. */
template <bool KEYS>
static __device__ __forceinline__ void soft(const attn_arg &a, float (*s)[4], float (*d)[4],
        const float *lse, const float *delta, const float *stat, const int *own, int j, bool mask,
        int lane)
{
    float l2 = a.scale * 1.44269504f;

#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = n * 8 + (lane & 3) * 2 + (i & 1), h = i >> 1;
            float p = ex2(s[n][i] * l2 - (KEYS ? stat[c] : lse[h]));

            if (mask && (KEYS ? hidden(a, row_query(a, j + c), own[h]) : hidden(a, own[h], j + c)))
                p = 0;
            s[n][i] = p;
            d[n][i] = p * (d[n][i] - (KEYS ? stat[N + c] : delta[h]));
        }
}

/* Writes a warp's rows of out by way of its own part of the tile X1. */
template <int HDP, bool KEYS>
static __device__ __forceinline__ void write_out(const attn_arg &a, const attn_seq &s, int kvh,
        char *tile, const float (*out)[4], bf16 *to, int64_t ld, float scale, const span &w,
        int row, int col, int lane)
{
    constexpr int C = bwd<HDP>::HO / 8;

    __syncwarp();
#pragma unroll
    for (int n = 0; n < C; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(tile + swz<HDP>(row + lane / 4 + h * 8, n) + (lane & 3) * 4) =
                    pack2(out[n][2 * h] * scale, out[n][2 * h + 1] * scale);
    __syncwarp();
    for (int i = lane; i < 16 * C; i += 32) {
        int r = row + i / C, c = i % C, at = w.own0 + r;

        if (at < w.own_end && col + c * 8 < a.hd)
            *(uint4 *)(to + col + c * 8 + (KEYS ? (int64_t)(s.q0 + at) * ld + (int64_t)kvh * a.hd
                    : row_at(a, s, kvh, at, ld))) = *(uint4 *)(tile + swz<HDP>(r, c));
    }
}

template <int HDP, bool KEYS>
static __global__ void __launch_bounds__(128, HDP > 128 ? 1 : 2)
bwd_k(const __grid_constant__ attn_arg a)
{
    using B = bwd<HDP>;
    extern __shared__ __align__(128) char mem[];
    uint32_t x = smem_at(mem), y = x + 2 * B::TILE;
    float *stat = (float *)(mem + 6 * B::TILE);
    attn_tile t = KEYS ? a.t.keys[blockIdx.x] : a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16;
    int col = (int)blockIdx.y * B::HO, own0 = t.r0 + (int)blockIdx.z * N, own[2];
    span w = span_of<KEYS>(a, s, t.r0, own0);
    float out1[B::HO / 8][4] = {}, out2[KEYS ? B::HO / 8 : 1][4] = {}, lse[2], delta[2];

    if (own0 >= w.own_end)
        return;
    load_own<HDP, KEYS>(a, s, t.kvh, x, w);
    load_other<HDP, KEYS>(a, s, t.kvh, y, stat, w, w.from);
    cp_commit();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = min(own0 + row + lane / 4 + h * 8, w.own_end - 1);

        own[h] = KEYS ? r : row_query(a, r);
        lse[h] = KEYS ? 0 : a.lse[row_stat(a, s, t.kvh, r)] * 1.44269504f;
        delta[h] = KEYS ? 0 : a.delta[row_stat(a, s, t.kvh, r)];
    }
    int low = KEYS ? own0 : row_query(a, own0);     /* what the block owns: keys or queries */
    int high = KEYS ? own0 + N - 1 : w.end - 1;

    for (int j = w.from, at = 0; j < w.end; j += N, at ^= 1) {
        float p[N / 8][4], ds[N / 8][4];
        uint32_t y1 = y + at * 2 * B::TILE, y2 = y1 + B::TILE;
        bool mask = KEYS ? row_query(a, j) < high || (a.window &&
                row_query(a, min(j + N, w.end) - 1) - low >= a.window)
                : j + N - 1 > low || (a.window && high - j >= a.window);

        cp_wait<0>();
        __syncthreads();        /* the tile is there, nobody reads the other any more */
        if (j + N < w.end)
            load_other<HDP, KEYS>(a, s, t.kvh, y + (at ^ 1) * 2 * B::TILE, stat + (at ^ 1) * 2 * N,
                    w, j + N);
        cp_commit();
        product<HDP>(p, x, y1, row, a.hd, lane);
        product<HDP>(ds, x + B::TILE, y2, row, a.hd, lane);
        soft<KEYS>(a, p, ds, lse, delta, stat + at * 2 * N, own, j, mask, lane);
        if (KEYS)
            collect<HDP>(out2, p, y2, col, a.hd, lane);
        collect<HDP>(out1, ds, y1, col, a.hd, lane);
    }
    cp_wait<0>();
    __syncthreads();
    write_out<HDP, KEYS>(a, s, t.kvh, mem, out1, (bf16 *)(KEYS ? a.dk : a.dq),
            KEYS ? a.lddk : a.lddq, a.scale, w, row, col, lane);
    if (KEYS)
        write_out<HDP, KEYS>(a, s, t.kvh, mem, out2, (bf16 *)a.dv, a.lddv, 1, w, row, col, lane);
}

template <int HDP, bool KEYS>
static void bwd_run(struct cu_dev *d, const struct attn_arg *a, int items)
{
    using B = bwd<HDP>;

    if (!items)
        return;
    if (!smem_want(d, bwd_k<HDP, KEYS>, B::SMEM))
        return;
    dim3 grid((unsigned)items, (unsigned)cu_div(a->hd, B::HO), ITEM / N);

    bwd_k<HDP, KEYS><<<grid, 128, B::SMEM, d->stream>>>(*a);
    CU_DONE(d, "attention's backward");
}

size_t cu_attn_mma_bwd_smem(int64_t hd)
{
    return hd <= 64 ? bwd<64>::SMEM : hd <= 128 ? bwd<128>::SMEM : bwd<256>::SMEM;
}

void cu_attn_mma_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    if (a->hd <= 64) {
        bwd_run<64, true>(d, a, n->keys);
        bwd_run<64, false>(d, a, n->rows);
    } else if (a->hd <= 128) {
        bwd_run<128, true>(d, a, n->keys);
        bwd_run<128, false>(d, a, n->rows);
    } else {
        bwd_run<256, true>(d, a, n->keys);
        bwd_run<256, false>(d, a, n->rows);
    }
}
