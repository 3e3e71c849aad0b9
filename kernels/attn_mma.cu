/* attn_mma.cu - attention on tensor cores by mma.sync, forward: over blocks, heads of more than
 * 128, and GPUs before Hopper. One block takes a work item (a half of it for wide heads), rows of
 * one (sequence, kv head), and goes over its keys in tiles of 64 with a running maximum and sum:
 *   S = Q K^T in registers, P = 2^(S scale log2 e - max), O = O 2^(old max - max) + P V.
 * P is rounded to BF16 for its product; sums are F32. Loads of K run beside P V, loads of V beside
 * Q K^T. The order of sums is a row's own: by key tile from its work item's first. */
#include "attn.cuh"

#define KEYS 64

/* MT m16 tiles of rows in each of 4 warps. */
template <int HDP, int MT> struct fwd {
    static constexpr int M = 64 * MT, ND = HDP / 8, NK = KEYS / 8, KD = HDP / 16;
    static constexpr size_t SMEM = (size_t)(M + 2 * KEYS) * HDP * 2;
};

/* s[m][n][...] = Q K^T for a warp's rows from r0. */
template <int HDP, int MT>
static __device__ __forceinline__ void qk(float (*s)[KEYS / 8][4], uint32_t q, uint32_t k, int r0,
        int hd, int lane)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] = 0;
#pragma unroll
    for (int x = 0; x < HDP / 16; x++) {
        uint32_t fq[MT][4];

        if (x * 16 >= hd)
            break;
#pragma unroll
        for (int m = 0; m < MT; m++)
            a_frag<HDP>(fq[m], q, r0 + m * 16, x, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t fk[4];

            b_rows<HDP>(fk, k, n * 16, x, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(s[m][2 * n], fq[m], fk[0], fk[1]);
                mma(s[m][2 * n + 1], fq[m], fk[2], fk[3]);
            }
        }
    }
}

/* Masks key tile j: rows at positions pos[m][2] see keys [pos - window, pos]. */
template <int MT>
static __device__ __forceinline__ void mask(float (*s)[KEYS / 8][4], const int (*pos)[2], int j,
        int window, int lane)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = j + n * 8 + (lane & 3) * 2 + (i & 1), p = pos[m][i >> 1];

                if (key > p || (window && p - key >= window))
                    s[m][n][i] = -INFINITY;
            }
}

/* One step of the running softmax: s becomes p; o and sum are rescaled. l2 = scale log2 e. What is contracted
 * is written out, so that a tile of which a row sees nothing leaves its bits alone. */
template <int ND>
static __device__ __forceinline__ void soft(float (*s)[4], float (*o)[4], float *max, float *sum,
        float l2)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = max[h], base, fix, add = 0;

#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        base = top == -INFINITY ? 0 : __fmul_rn(top, l2);   /* nothing seen so far */
        fix = ex2(__fsub_rn(__fmul_rn(max[h], l2), base));
        max[h] = top;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * h] = ex2(__fmaf_rn(s[n][2 * h], l2, -base));
            s[n][2 * h + 1] = ex2(__fmaf_rn(s[n][2 * h + 1], l2, -base));
            add += s[n][2 * h] + s[n][2 * h + 1];
        }
        sum[h] = __fmaf_rn(sum[h], fix, add);
#pragma unroll
        for (int n = 0; n < ND; n++) {
            o[n][2 * h] *= fix;
            o[n][2 * h + 1] *= fix;
        }
    }
}

/* o += P V */
template <int HDP, int MT>
static __device__ __forceinline__ void pv(float (*o)[HDP / 8][4], float (*s)[KEYS / 8][4],
        uint32_t v, int hd, int lane)
{
#pragma unroll
    for (int x = 0; x < KEYS / 16; x++) {
        uint32_t fp[MT][4];

#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fp[m][i] = pack2(s[m][2 * x + i / 2][i % 2 * 2],
                                 s[m][2 * x + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < HDP / 16; n++) {
            uint32_t fv[4];

            if (n * 16 >= hd)
                break;
            b_cols<HDP>(fv, v, n * 16, x, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(o[m][2 * n], fp[m], fv[0], fv[1]);
                mma(o[m][2 * n + 1], fp[m], fv[2], fv[3]);
            }
        }
    }
}

/* Divides a warp's rows by their sums and writes them, by way of its own part of the tile Q. */
template <int HDP, int MT>
static __device__ __forceinline__ void finish(const attn_arg &a, const attn_seq &s, int kvh,
        char *tile, float (*o)[HDP / 8][4], const float (*max)[2], float (*sum)[2], int r0,
        int row, int rows, int lane)
{
    constexpr int C = HDP / 8;

    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + m * 16 + lane / 4 + h * 8;
            float inv;

            sum[m][h] += __shfl_xor_sync(~0u, sum[m][h], 1);
            sum[m][h] += __shfl_xor_sync(~0u, sum[m][h], 2);
            inv = 1 / sum[m][h];
#pragma unroll
            for (int n = 0; n < C; n++)
                *(uint32_t *)(tile + swz<HDP>(r, n) + (lane & 3) * 4) =
                        pack2(o[m][n][2 * h] * inv, o[m][n][2 * h + 1] * inv);
            if (a.lse && lane % 4 == 0 && r0 + r < rows)
                a.lse[row_stat(a, s, kvh, r0 + r)] = max[m][h] * a.scale + logf(sum[m][h]);
        }
    __syncwarp();
    for (int i = lane; i < MT * 16 * C; i += 32) {
        int r = row + i / C, c = i % C;

        if (r0 + r < rows && c * 8 < a.hd)
            *(uint4 *)((bf16 *)a.o + row_at(a, s, kvh, r0 + r, a.ldo) + c * 8) =
                    *(uint4 *)(tile + swz<HDP>(r, c));
    }
}

template <int HDP, int MT, bool PAGED>
static __global__ void __launch_bounds__(128, HDP > 128 ? 1 : 2)
fwd_k(const __grid_constant__ attn_arg a)
{
    using F = fwd<HDP, MT>;
    extern __shared__ __align__(128) char mem[];
    uint32_t q = smem_at(mem), k = q + F::M * HDP * 2, v = k + KEYS * HDP * 2;
    attn_tile t = a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * MT * 16;
    int rows = min(s.nq * a.group, t.r0 + a.per);
    int r0 = t.r0 + (MT == 1 ? (int)blockIdx.y * F::M : 0);

    if (s.packed == PAGED || r0 >= rows)
        return;
    int first = s.past + row_query(a, r0);
    int last = s.past + row_query(a, min(r0 + F::M, rows) - 1);
    int from = a.window ? max(0, first + 1 - a.window) / KEYS * KEYS : 0, end = last + 1;
    int pos[MT][2];
    float o[MT][F::ND][4] = {}, max_[MT][2], sum[MT][2] = {}, l2 = a.scale * 1.44269504f;

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = min(r0 + row + m * 16 + lane / 4 + h * 8, rows - 1);

            pos[m][h] = s.past + row_query(a, r);
            max_[m][h] = -INFINITY;
        }
    load_rows<HDP, F::M, 128>(a, s, t.kvh, q, a.q, a.ldq, r0, rows);
    load_keys<HDP, KEYS, 128, 0, PAGED>(a, s, t.kvh, k, from, end);
    cp_commit();
    for (int j = from; j < end; j += KEYS) {
        float p[MT][F::NK][4];

        cp_wait<0>();
        __syncthreads();        /* K is there, nobody reads V any more */
        load_keys<HDP, KEYS, 128, 1, PAGED>(a, s, t.kvh, v, j, end);
        cp_commit();
        qk<HDP, MT>(p, q, k, row, a.hd, lane);
        cp_wait<0>();
        __syncthreads();        /* V is there, nobody reads K any more */
        if (j + KEYS < end)
            load_keys<HDP, KEYS, 128, 0, PAGED>(a, s, t.kvh, k, j + KEYS, end);
        cp_commit();
        if (j + KEYS > first + 1 || (a.window && last - j >= a.window))
            mask<MT>(p, pos, j, a.window, lane);
#pragma unroll
        for (int m = 0; m < MT; m++)
            soft<F::ND>(p[m], o[m], max_[m], sum[m], l2);
        pv<HDP, MT>(o, p, v, a.hd, lane);
    }
    finish<HDP, MT>(a, s, t.kvh, mem, o, max_, sum, r0, row, rows, lane);
}

template <int HDP, int MT>
static void fwd_run(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    using F = fwd<HDP, MT>;
    dim3 grid((unsigned)n->rows, ITEM / F::M);

    if (n->packed) {
        if (!smem_want(d, fwd_k<HDP, MT, false>, F::SMEM))
            return;
        fwd_k<HDP, MT, false><<<grid, 128, F::SMEM, d->stream>>>(*a);
        CU_DONE(d, "attention");
    }
    if (n->paged) {
        if (!smem_want(d, fwd_k<HDP, MT, true>, F::SMEM))
            return;
        fwd_k<HDP, MT, true><<<grid, 128, F::SMEM, d->stream>>>(*a);
        CU_DONE(d, "attention over blocks");
    }
}

void cu_attn_mma(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    if (!n->rows)
        return;
    if (a->hd <= 64)
        fwd_run<64, 2>(d, a, n);
    else if (a->hd <= 128)
        fwd_run<128, 2>(d, a, n);
    else
        fwd_run<256, 1>(d, a, n);
}
