/* attn_wg.cu - attention of packed sequences on Hopper, forward, heads up to 128, and those of 192 and 128
 * that come of latents (keys end in a part that all heads share, and lie with their values). A block takes one
 * work item: two warpgroups of 64 rows each, and a third whose one thread has the copy engine bring
 * tiles of 128 keys and values, two stages ahead. A warpgroup runs the softmax of a tile while the
 * tensor cores do its last P V, and the two warpgroups run beside each other:
 *   S = Q K^T (both in shared memory), P = 2^(S scale log2 e - max), O = O 2^(old max - max) + P V
 * with P from registers, rounded to BF16. The order of sums is a row's own: by tiles from the
 * first key its work item sees. */
#include "wgmma.cuh"

#define KEYS 128
#define STAGES 2

/* HQ of queries and keys, HV of values. */
template <int HQ, int HV> struct wgf {
    static constexpr uint32_t TILE = 128 * HQ * 2, VTILE = 128 * HV * 2;        /* bytes: Q or K; V */
    static constexpr uint32_t K = TILE, V = K + STAGES * TILE, BAR = V + STAGES * VTILE;
    static constexpr size_t SMEM = BAR + 128 + 1024;
};

struct maps {                   /* p: of the keys' shared part, where there is one */
    tma_map q, k, v, p;
};

/* Barriers, 8 bytes each: Q is there; and of each stage K there, V there, K read, V read. */
enum { B_Q, B_K, B_V = B_K + STAGES, B_KFREE = B_V + STAGES, B_VFREE = B_KFREE + STAGES };

struct reach {                  /* what an item has to do with keys */
    int rows, from, end;        /* the end of its rows; keys that they see between them */
};

#if TW_HOPPER
static __device__ __forceinline__ reach reach_of(const attn_arg &a, const attn_seq &s, int r0)
{
    reach x;

    x.rows = min(s.nq * a.group, r0 + a.per);
    x.end = row_query(a, x.rows - 1) + 1;
    x.from = a.window ? max(0, row_query(a, r0) + 1 - a.window) / KEYS * KEYS : 0;
    return x;
}

template <int HQ, int HV>
static __device__ __forceinline__ void produce(const attn_arg &a, const maps &m, uint32_t mem,
        const attn_tile &t, const attn_seq &s, const reach &x)
{
    using F = wgf<HQ, HV>;
    uint32_t bar = mem + F::BAR;

    bar_expect(bar + 8 * B_Q, (uint32_t)a.per * HQ * 2);
    for (int p = 0; p < HQ / 64; p++)
        tma(mem + p * 128 * 128, &m.q, bar + 8 * B_Q, p * 64, t.kvh * a.group,
            s.q0 + row_query(a, t.r0));
    for (int j = x.from, i = 0; j < x.end; j += KEYS, i++) {
        int st = i % STAGES, parity = (i / STAGES & 1) ^ 1;

        bar_wait(bar + 8 * (B_KFREE + st), parity);
        bar_expect(bar + 8 * (B_K + st), F::TILE);
        wg_keys<HQ, HV, KEYS>(mem + F::K + st * F::TILE, &m.k, &m.p, bar + 8 * (B_K + st), t.kvh,
                              s.q0 + j);
        bar_wait(bar + 8 * (B_VFREE + st), parity);
        bar_expect(bar + 8 * (B_V + st), F::VTILE);
        for (int p = 0; p < HV / 64; p++)
            tma(mem + F::V + st * F::VTILE + p * KEYS * 128, &m.v, bar + 8 * (B_V + st), p * 64,
                t.kvh, s.q0 + j);
    }
}

template <int HDP>
static __device__ __forceinline__ void finish(const attn_arg &a, const attn_tile &t,
        const attn_seq &s, const reach &x, char *tile, const float *o, const float *max, float *sum,
        int row, int lane)
{
    float inv[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = t.r0 + row + lane / 4 + h * 8;

        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        inv[h] = 1 / sum[h];
        if (a.lse && lane % 4 == 0 && r < x.rows)
            a.lse[row_stat(a, s, t.kvh, r)] = max[h] * a.scale + logf(sum[h]);
    }
    wg_stage<HDP, 128>(tile, o, inv, row, lane);
    for (int i = lane; i < 16 * HDP / 8; i += 32) {
        int r = row + i / (HDP / 8), c = i % (HDP / 8);

        if (t.r0 + r < x.rows && c * 8 < a.hd)
            *(uint4 *)((bf16 *)a.o + row_at(a, s, t.kvh, t.r0 + r, a.ldo) + c * 8) =
                    *(uint4 *)(tile + wg_chunk<128>(r, c));
    }
}

template <int HQ, int HV>
static __device__ __forceinline__ void consume(const attn_arg &a, char *base, uint32_t mem,
        const attn_tile &t, const attn_seq &s, const reach &x)
{
    using F = wgf<HQ, HV>;
    uint32_t bar = mem + F::BAR;
    int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    int row = wg * 64 + threadIdx.x % 128 / 32 * 16, pos[2];
    int first = row_query(a, t.r0 + wg * 64);           /* positions of the warpgroup's rows */
    int last = row_query(a, min(t.r0 + wg * 64 + 64, x.rows) - 1);
    float o[HV / 2], sc[KEYS / 2], max[2], sum[2] = { 0, 0 }, fix[2];
    uint32_t p[KEYS / 4], q = mem + wg * 64 * 128;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        pos[h] = row_query(a, min(t.r0 + row + lane / 4 + h * 8, x.rows - 1));
        max[h] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < HV / 2; i++)
        o[i] = 0;
    bar_wait(bar + 8 * B_Q, 0);
    for (int j = x.from, i = 0; j < x.end; j += KEYS, i++) {
        int st = i % STAGES, was = (i - 1) % STAGES;

        bar_wait(bar + 8 * (B_K + st), i / STAGES & 1);
        wg_fence();
        wg_scores<HQ, KEYS, 128>(sc, q, mem + F::K + st * F::TILE);
        wg_commit();
        if (i) {
            bar_wait(bar + 8 * (B_V + was), (i - 1) / STAGES & 1);
            wg_fence();
            wg_mix<HV, KEYS>(o, p, mem + F::V + was * F::VTILE);
            wg_commit();
            wg_wait<1>();
        } else {
            wg_wait<0>();
        }
        wg_hold<KEYS / 2>(sc);
        if (lane == 0)
            bar_arrive(bar + 8 * (B_KFREE + st));
        wg_soft<KEYS>(a, sc, max, sum, fix, pos, j,
             j + KEYS > first + 1 || (a.window && last - j >= a.window), lane);
        wg_wait<0>();
        wg_hold<HV / 2>(o);
        if (i && lane == 0)
            bar_arrive(bar + 8 * (B_VFREE + was));
#pragma unroll
        for (int n = 0; n < HV / 2; n++)
            o[n] *= fix[n >> 1 & 1];
        wg_pack<KEYS>(p, sc);
    }
    int n = (x.end - x.from + KEYS - 1) / KEYS - 1;
    bar_wait(bar + 8 * (B_V + n % STAGES), n / STAGES & 1);
    wg_fence();
    wg_mix<HV, KEYS>(o, p, mem + F::V + n % STAGES * F::VTILE);
    wg_commit();
    wg_wait<0>();
    wg_hold<HV / 2>(o);
    finish<HV>(a, t, s, x, base, o, max, sum, row, lane);
}
#endif

template <int HQ, int HV>
static __global__ void __launch_bounds__(384, 1) fwd_k(const __grid_constant__ attn_arg a,
        const __grid_constant__ maps m)
{
#if TW_HOPPER
    using F = wgf<HQ, HV>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u, bar = mem + F::BAR;
    attn_tile t = a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    reach x = reach_of(a, s, t.r0);

    if (!s.packed)
        return;
    if (threadIdx.x == 0) {
        bar_init(bar + 8 * B_Q, 1);
        for (int i = 0; i < STAGES; i++) {
            bar_init(bar + 8 * (B_K + i), 1);
            bar_init(bar + 8 * (B_V + i), 1);
            bar_init(bar + 8 * (B_KFREE + i), 8);       /* consumer warps */
            bar_init(bar + 8 * (B_VFREE + i), 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_less<24>();
        if (threadIdx.x == 0)
            produce<HQ, HV>(a, m, mem, t, s, x);
    } else {
        regs_more<240>();
        consume<HQ, HV>(a, given + (mem - smem_at(given)), mem, t, s, x);
    }
#endif
}

/* cuTensorMapEncodeTiled of the driver, which is not linked: the library loads without it. */
typedef int encode_fn(struct tma_map *m, int type, uint32_t rank, void *base, const uint64_t *dim,
        const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
        int swizzle, int promotion, int fill);

static encode_fn *encode_find(void)
{
    void *p = NULL;
    cudaDriverEntryPointQueryResult got;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault,
            &got) != cudaSuccess || got != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_fn *)p;
}

bool cu_attn_map_of(struct tma_map *m, const struct attn_box *b)
{
    enum { BFLOAT16 = 9, NONE = 0, SWIZZLE_128B = 3, L2_256B = 3 };
    static encode_fn *const encode = encode_find();
    uint64_t dim[3] = { (uint64_t)b->hd, (uint64_t)b->nh, (uint64_t)b->rows };
    uint64_t stride[2] = { (uint64_t)b->head * 2, (uint64_t)b->ld * 2 };
    uint32_t box[3] = { 64, (uint32_t)b->heads, (uint32_t)b->tokens }, step[3] = { 1, 1, 1 };

    return encode && !encode(m, BFLOAT16, 3, (void *)b->p, dim, stride, box, step, NONE,
            SWIZZLE_128B, L2_256B, NONE);
}

bool cu_rows_map(struct tma_map *m, const void *p, int64_t rows, int64_t k, int64_t ld, int64_t box)
{
    struct attn_box b = { p, k, 1, rows, ld, ld, 1, box };

    return k % 8 == 0 && ld % 8 == 0 && (uintptr_t)p % 16 == 0 && cu_attn_map_of(m, &b);
}

bool cu_attn_map(struct tma_map *m, const struct tw_tensor *t, int64_t hd,
        int64_t heads, int64_t tokens)
{
    struct attn_box b = { t->data, hd, t->cols / hd, t->rows, hd, t->ld, heads, tokens };

    return cu_attn_map_of(m, &b);
}

template <int HQ, int HV> static void fwd_run(struct cu_dev *d, const struct attn_arg *a, int items,
        const maps *m)
{
    const size_t smem = wgf<HQ, HV>::SMEM;

    if (!smem_want(d, fwd_k<HQ, HV>, smem))
        return;
    fwd_k<HQ, HV><<<(unsigned)items, 384, smem, d->stream>>>(*a, *m);
    CU_DONE(d, "attention (warpgroups)");
}

/* Kernels that were compiled for another GPU than Hopper are empty: they need no registers. */
bool cu_attn_wg_real(void)
{
    cudaFuncAttributes f;

    return cudaFuncGetAttributes(&f, fwd_k<128, 128>) == cudaSuccess && f.numRegs > 100;
}

bool cu_attn_wg(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *k, const struct tw_tensor *v)
{
    maps m;

    if (!n->packed || !cu_attn_wg_real() || a->hd > 128 || a->group > ITEM ||
            !cu_attn_map(&m.q, q, a->hd, a->group, a->per / a->group) ||
            !cu_attn_map(&m.k, k, a->hd, 1, KEYS) || !cu_attn_map(&m.v, v, a->hd, 1, KEYS))
        return false;
    m.p = m.k;
    if (a->hd <= 64)
        fwd_run<64, 64>(d, a, n->rows, &m);
    else
        fwd_run<128, 128>(d, a, n->rows, &m);
    return true;
}

bool cu_attn_latent_maps(struct tma_map *k, struct tma_map *v, struct tma_map *p,
        const struct tw_tensor *kv, const struct tw_tensor *pe, int64_t nh, int64_t tokens)
{
    struct attn_box b = { kv->data, 128, nh, kv->rows, 256, kv->ld, 1, tokens };
    bool ok = cu_attn_map_of(k, &b);

    b.p = (bf16 *)kv->data + 128;
    return ok && cu_attn_map_of(v, &b) && cu_attn_map(p, pe, 64, 1, tokens);
}

bool cu_attn_wg_latent(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe)
{
    maps m;

    if (!n->packed || !cu_attn_wg_real() || !cu_attn_map(&m.q, q, 192, 1, a->per) ||
            !cu_attn_latent_maps(&m.k, &m.v, &m.p, kv, pe, a->nh, KEYS))
        return false;
    fwd_run<192, 128>(d, a, n->rows, &m);
    return true;
}
