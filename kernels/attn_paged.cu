/* attn_paged.cu - attention over a decode state's blocks in the bits of attn_wg.cu, heads up to 128: for
 * those who want of a token what a pass over its whole sequence gives it. A block takes 64 rows of one
 * (sequence, kv head) and goes over all their keys from the first tile that they see, in the same tiles of
 * 128, by the same products (wgmma) and the same running softmax; keys are never split among blocks. Rows of
 * a product know nothing of each other, so it does not matter which of them are there. Keys and values come
 * by cp.async, the next tile's keys beside P V, its values right behind. A row is bound by the walk over its
 * keys. */
#include "wgmma.cuh"

#define KEYS 128
#define ROWS 64

template <int HD> struct paged {
    static constexpr uint32_t Q = ROWS * HD * 2, TILE = KEYS * HD * 2, K = Q, V = Q + TILE;
    static constexpr size_t SMEM = Q + 2 * TILE + 1024;
};

#if TW_HOPPER
template <int HD>
static __device__ __forceinline__ void bring_rows(const attn_arg &a, const attn_seq &s, int kvh,
        uint32_t to, int r0, int rows)
{
    for (int i = threadIdx.x; i < ROWS * HD / 8; i += 128) {
        int r = i / (HD / 8), c = i % (HD / 8);
        bool used = r0 + r < rows && c * 8 < a.hd;

        cp16(to + wg_chunk<ROWS>(r, c),
             (const bf16 *)a.q + (used ? row_at(a, s, kvh, r0 + r, a.ldq) + c * 8 : 0), used);
    }
}

/* Keys (V 0) or values (V 1) j0 .. j0 + KEYS; zeros from END on. */
template <int HD, int V>
static __device__ __forceinline__ void bring_keys(const attn_arg &a, const attn_seq &s, int kvh,
        uint32_t to, int j0, int end)
{
#pragma unroll 8
    for (int i = threadIdx.x; i < KEYS * HD / 8; i += 128) {
        int j = i / (HD / 8), c = i % (HD / 8);
        bool used = j0 + j < end && c * 8 < a.hd;

        cp16(to + wg_chunk<KEYS>(j, c),
             key_at<bf16, V, true>(a, s, kvh, used ? j0 + j : j0) + (used ? c * 8 : 0), used);
    }
}
#endif

template <int HD>
static __global__ void __launch_bounds__(128, 2) paged_k(const __grid_constant__ attn_arg a)
{
#if TW_HOPPER
    using P = paged<HD>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pos[2];
    attn_tile t = a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int r0 = t.r0 + blockIdx.y * ROWS, rows = min(s.nq * a.group, t.r0 + a.per);
    float o[HD / 2] = {}, sc[KEYS / 2], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 }, fix[2], inv[2];
    uint32_t p[KEYS / 4];

    if (s.packed || r0 >= rows)
        return;
    int first = s.past + row_query(a, r0), last = s.past + row_query(a, min(r0 + ROWS, rows) - 1);
    int from = a.window ? ::max(0, first + 1 - a.window) / KEYS * KEYS : 0, end = last + 1;

#pragma unroll
    for (int h = 0; h < 2; h++)
        pos[h] = s.past + row_query(a, min(r0 + warp * 16 + lane / 4 + h * 8, rows - 1));
    bring_rows<HD>(a, s, t.kvh, mem, r0, rows);
    bring_keys<HD, 0>(a, s, t.kvh, mem + P::K, from, end);
    cp_commit();
    bring_keys<HD, 1>(a, s, t.kvh, mem + P::V, from, end);
    cp_commit();
    for (int j = from; j < end; j += KEYS) {
        cp_wait<1>();
        wg_publish();
        __syncthreads();        /* keys are there */
        wg_fence();
        wg_scores<HD, KEYS, ROWS>(sc, mem, mem + P::K);
        wg_commit();
        wg_wait<0>();
        wg_hold<KEYS / 2>(sc);
        wg_soft<KEYS>(a, sc, max, sum, fix, pos, j,
                      j + KEYS > first + 1 || (a.window && last - j >= a.window), lane);
        cp_wait<0>();
        wg_publish();
        __syncthreads();        /* values are there, nobody reads keys any more */
        if (j + KEYS < end)
            bring_keys<HD, 0>(a, s, t.kvh, mem + P::K, j + KEYS, end);
        cp_commit();
#pragma unroll
        for (int n = 0; n < HD / 2; n++)
            o[n] *= fix[n >> 1 & 1];
        wg_pack<KEYS>(p, sc);
        wg_hold<HD / 2>(o);
        wg_fence();
        wg_mix<HD, KEYS>(o, p, mem + P::V);
        wg_commit();
        wg_wait<0>();
        wg_hold<HD / 2>(o);
        __syncthreads();        /* nobody reads values any more */
        if (j + KEYS < end)
            bring_keys<HD, 1>(a, s, t.kvh, mem + P::V, j + KEYS, end);
        cp_commit();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = r0 + warp * 16 + lane / 4 + h * 8;

        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        inv[h] = 1 / sum[h];
        if (a.lse && lane % 4 == 0 && r < rows)
            a.lse[row_stat(a, s, t.kvh, r)] = max[h] * a.scale + logf(sum[h]);
    }
    char *tile = given + (mem - smem_at(given));        /* of Q, each warp its own rows */
    wg_stage<HD, ROWS>(tile, o, inv, warp * 16, lane);
    for (int i = lane; i < 16 * HD / 8; i += 32) {
        int r = warp * 16 + i / (HD / 8), c = i % (HD / 8);

        if (r0 + r < rows && c * 8 < a.hd)
            *(uint4 *)((bf16 *)a.o + row_at(a, s, t.kvh, r0 + r, a.ldo) + c * 8) =
                    *(uint4 *)(tile + wg_chunk<ROWS>(r, c));
    }
#endif
}

template <int HD> static void run(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    dim3 grid((unsigned)n->rows, n->longest * a->group > ROWS ? ITEM / ROWS : 1);

    if (!smem_want(d, paged_k<HD>, paged<HD>::SMEM))
        return;
    paged_k<HD><<<grid, 128, paged<HD>::SMEM, d->stream>>>(*a);
    CU_DONE(d, "attention over blocks (warpgroups)");
}

bool cu_attn_paged(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n)
{
    if (!n->paged || a->hd > 128 || a->group > ITEM || !cu_attn_wg_real())
        return false;
    if (a->hd <= 64)
        run<64>(d, a, n);
    else
        run<128>(d, a, n);
    return true;
}
