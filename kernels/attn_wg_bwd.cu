/* attn_wg_bwd.cu - backward of packed attention on Hopper, heads up to 128, of 256, and
 * those of 192 and 128 that come of latents: attn_bwd.cu's passes
 * with the machinery of attn_wg.cu. A block has two warpgroups of 64 rows each, and a third that
 * brings the tiles they go over.
 *   keys_k owns 128 keys and goes over tiles of up to 64 rows, whole queries with all the heads
 *     that read its kv head: S^T = K Q^T, D^T = V dO^T, dV += P^T dO, dK += dS^T Q. Where there is room it
 *     keeps dS, as its lanes hold it.
 *   dq_k (attn_wg_dq.cu) makes dQ of kept dS; or without room
 *   rows_k owns a work item's rows and goes over tiles of 128 keys: S = Q K^T, D = dO V^T,
 *     dQ += dS K, which is 7 products for 5.
 * The left sides P and dS come from registers, rounded to BF16. While a warpgroup computes P and
 * dS the tensor cores work for the other one. Every sum has one owner and one order, both ways the same:
 * the usual alternative adds to dQ by atomics in an order that nobody knows. */
#include "wgmma.cuh"

#define STAGES_MOST 3
#define N 64                    /* rows of a tile of keys_k */
#define LOG2E 1.44269504f

/* Heads of 256 take keys_k twice, once for each gradient: there are no registers for both. */
enum { DK = 1, DV = 2, DKV = 3 };

/* Barriers of both kernels: what the block owns is there; a stage is there, has been read. */
enum { B_OWN, B_FULL, B_FREE = B_FULL + STAGES_MOST };

/* HQ of queries and keys, HV of values. */
template <int HQ, int HV> struct keys_mem {
    static constexpr uint32_t OWN = 128 * HQ * 2, TILE = N * HQ * 2;    /* of K; of Q */
    static constexpr uint32_t STAGE = TILE + N * HV * 2;        /* of Q and dO */
    static constexpr int STAGES = HQ > 192 ? 1 : 3;
    static constexpr uint32_t RING = OWN + 128 * HV * 2, STAT = RING + STAGES * STAGE;
    static constexpr uint32_t BAR = STAT + STAGES * 2 * N * 4;
    static constexpr size_t SMEM = BAR + 128 + 1024;
};

template <int HQ, int HV> struct rows_mem {
    static constexpr int KEYS = HQ > 128 ? 64 : 128;    /* of a tile: as registers allow */
    static constexpr uint32_t OWN = 128 * HQ * 2, TILE = KEYS * HQ * 2; /* of Q; of K */
    static constexpr uint32_t STAGE = TILE + KEYS * HV * 2;     /* of K and V */
    static constexpr int STAGES = HQ > 192 ? 1 : 2;
    static constexpr uint32_t RING = OWN + 128 * HV * 2, BAR = RING + STAGES * STAGE;
    static constexpr size_t SMEM = BAR + 128 + 1024;
};

/* Maps of Q and dO in boxes of a kernel's rows, of K, V and the keys' shared part in boxes of its keys.
 * From a head of dk (dv) to the next; where each head's gradient of the shared part goes. */
struct maps {
    tma_map q, k, v, g, p;
    int64_t khead, vhead;
    bf16 *pe;                   /* [T, nh, 64] */
};

#if TW_HOPPER
/* Initialises the barriers; FILL threads fill a stage beside the copy engine's. What those wrote each
 * consumer says itself that it has read: racecheck does not see that a lane speaks for its warp. */
static __device__ __forceinline__ void bars(uint32_t bar, int stages, int fill)
{
    if (threadIdx.x == 0) {
        bar_init(bar + 8 * B_OWN, 1);
        for (int i = 0; i < stages; i++) {
            bar_init(bar + 8 * (B_FULL + i), 1 + fill);
            bar_init(bar + 8 * (B_FREE + i), fill ? 256 : 8);   /* consumers, or their warps */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

/* Queues a tile of ROWS rows, of which a box fills the first, from (head, token). */
template <int HDP, int ROWS>
static __device__ __forceinline__ void bring(uint32_t to, const tma_map *m, uint32_t bar, int head,
        int token)
{
    for (int p = 0; p < HDP / 64; p++)
        tma(to + p * ROWS * 128, m, bar, p * 64, head, token);
}

struct span {                   /* what keys_k goes over */
    int from, end, tokens;      /* queries [from, end), TOKENS a tile, of which FROM is a multiple */
    char *ds;                   /* their tiles of dS; NULL: it is not kept */
};

template <int HQ, int HV>
static __device__ __forceinline__ void keys_produce(const attn_arg &a, const maps &m, char *base,
        uint32_t mem, const attn_tile &t, const attn_seq &s, const span &x)
{
    using M = keys_mem<HQ, HV>;
    uint32_t bar = mem + M::BAR;
    int warp = threadIdx.x / 32, c = threadIdx.x - 32, i = 0;
    int head = t.kvh * a.group, mine = row_query(a, c), tile_rows = x.tokens * a.group;

    if (threadIdx.x == 0) {
        bar_expect(bar + 8 * B_OWN, M::RING);
        wg_keys<HQ, HV, 128>(mem, &m.k, &m.p, bar + 8 * B_OWN, t.kvh, s.q0 + t.r0);
        bring<HV, 128>(mem + M::OWN, &m.v, bar + 8 * B_OWN, t.kvh, s.q0 + t.r0);
    }
    if (threadIdx.x && (warp == 0 || warp == 3))
        return;
    for (int q = x.from; q < x.end; q += x.tokens, i++) {
        int st = i % M::STAGES;
        uint32_t full = bar + 8 * (B_FULL + st), to = mem + M::RING + st * M::STAGE;
        float *stat = (float *)(base + M::STAT) + st * 2 * N;

        bar_wait(bar + 8 * (B_FREE + st), (i / M::STAGES & 1) ^ 1);
        if (warp == 0) {
            bar_expect(full, (uint32_t)tile_rows * (HQ + HV) * 2);
            bring<HQ, N>(to, &m.q, full, head, s.q0 + q);
            bring<HV, N>(to + M::TILE, &m.g, full, head, s.q0 + q);
        } else {
            bool used = c < tile_rows && q + mine < x.end;
            int64_t at = (int64_t)(s.q0 + q + mine) * a.nh + head + c - mine * a.group;

            stat[c] = used ? a.lse[at] * LOG2E : INFINITY;      /* so that P is 0 */
            stat[N + c] = used ? a.delta[at] : 0;
            bar_arrive(full);
        }
    }
}

/* Scores of a tile become P. A lane's are of keys key and key + 8 and of the rows from STAT on. */
static __device__ __forceinline__ void keys_soft(const attn_arg &a, float *sc, const float *stat,
        int q, int key, bool mask, int lane)
{
    float l2 = a.scale * LOG2E;

#pragma unroll
    for (int n = 0; n < N / 2; n++)
        sc[n] = ex2(sc[n] * l2 - stat[n / 4 * 8 + (n & 1)]);
    if (!mask)
        return;
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        int i = q + row_query(a, n / 4 * 8 + (lane & 3) * 2 + (n & 1)), j = key + (n >> 1 & 1) * 8;

        if (j > i || (a.window && i - j >= a.window))
            sc[n] = 0;
    }
}

/* There are registers for S and D at once: heads of 256 have two passes for it. */
#define EARLY(HQ) ((HQ) != 192)

/* P of a score: exact, or (FULL false: registers are few) as it went into the product. */
template <bool FULL>
static __device__ __forceinline__ float p_of(const float *sc, const uint32_t *pp, int n)
{
    return FULL ? sc[n] : __uint_as_float(n & 1 ? pp[n / 2] & 0xffff0000u : pp[n / 2] << 16);
}

template <int HQ, int HV, int PART>
static __device__ __forceinline__ void keys_consume(const attn_arg &a, const maps &m, char *base,
        uint32_t mem, const attn_tile &t, const attn_seq &s, const span &x)
{
    using M = keys_mem<HQ, HV>;
    uint32_t bar = mem + M::BAR;
    int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, i = 0, q = x.from;
    int row = wg * 64 + threadIdx.x % 128 / 32 * 16, low = t.r0 + wg * 64;
    int key = t.r0 + row + lane / 4;
    char *ds = x.ds + row * KEPT_ROWS * 2 + lane * 16;
    uint32_t k = mem + wg * 64 * 128, v = k + M::OWN, pp[N / 4], pd[N / 4];
    float dk[PART == DV ? 4 : HQ / 2] = {}, dv[PART == DK ? 4 : HV / 2] = {}, sc[N / 2], d[N / 2];

    for (; q < x.end && q + x.tokens <= low; q += x.tokens, i++) {  /* before all our keys */
        bar_wait(bar + 8 * (B_FULL + i % M::STAGES), i / M::STAGES & 1);
        bar_arrive(bar + 8 * (B_FREE + i % M::STAGES));
    }
    bar_wait(bar + 8 * B_OWN, 0);
    for (; q < x.end; q += x.tokens, i++) {
        int st = i % M::STAGES;
        uint32_t yq = mem + M::RING + st * M::STAGE, yo = yq + M::TILE;
        const float *stat = (const float *)(base + M::STAT) + st * 2 * N + (lane & 3) * 2;
        bool mask = q < low + 63 || (a.window && q + x.tokens - 1 - low >= a.window);

        bar_wait(bar + 8 * (B_FULL + st), i / M::STAGES & 1);
        wg_fence();
        wg_scores<HQ, N, 128>(sc, k, yq);
        wg_commit();
        if (EARLY(HQ) && PART != DV) {
            wg_scores<HV, N, 128>(d, v, yo);
            wg_commit();
            wg_wait<1>();
        } else {
            wg_wait<0>();
        }
        wg_hold<N / 2>(sc);
        keys_soft(a, sc, stat, q, key, mask, lane);
        if constexpr (PART != DK) {
            wg_pack<N>(pp, sc);
            wg_fence();
            if (!EARLY(HQ) && PART != DV) {
                wg_scores<HV, N, 128>(d, v, yo);
                wg_commit();
            }
            wg_mix_any<HV, N>(dv, pp, yo);
            wg_commit();
        }
        if constexpr (PART != DV) {
            wg_wait<PART != DK>();
            wg_hold<N / 2>(d);
#pragma unroll
            for (int n = 0; n < N / 2; n++)
                d[n] = p_of<EARLY(HQ)>(sc, pp, n) * (d[n] - stat[N + n / 4 * 8 + (n & 1)]);
            wg_pack<N>(pd, d);
            wg_fence();
            wg_mix_any<HQ, N>(dk, pd, yq);
            wg_commit();
            if (x.ds)
#pragma unroll
                for (int n = 0; n < N / 16; n++)
                    *(uint4 *)(ds + (int64_t)i * KEPT_BYTES + n * 512) =
                            uint4{ pd[4 * n], pd[4 * n + 1], pd[4 * n + 2], pd[4 * n + 3] };
        }
        wg_wait<0>();
        if constexpr (PART != DV)
            wg_hold<HQ / 2>(dk);
        if constexpr (PART != DK)
            wg_hold<HV / 2>(dv);
        bar_arrive(bar + 8 * (B_FREE + st));
    }
    auto to = [&](void *p, int64_t ld, int64_t head, int r) {
        return t.r0 + r < s.nq ? (bf16 *)p + (int64_t)(s.q0 + t.r0 + r) * ld + t.kvh * head : (bf16 *)NULL;
    };
    if constexpr (PART != DV)
        wg_put<HV>(base, dk, a.scale, HV < a.hd ? HV : a.hd, row, lane,
                [&](int r) { return to(a.dk, a.lddk, m.khead, r); });
    if constexpr (HQ > HV)
        wg_put<HQ - HV>(base + HV * 256, dk + HV / 2, a.scale, HQ - HV, row, lane,
                     [&](int r) { return to(m.pe, (int64_t)a.nh * (HQ - HV), HQ - HV, r); });
    if constexpr (PART != DK)
        wg_put<HV>(base + M::OWN, dv, 1, HV < a.hd ? HV : a.hd, row, lane,
                [&](int r) { return to(a.dv, a.lddv, m.vhead, r); });
}
#endif

template <int HQ, int HV, int PART>
static __global__ void __launch_bounds__(384, 1) keys_k(const __grid_constant__ attn_arg a,
        const __grid_constant__ maps m)
{
#if TW_HOPPER
    using M = keys_mem<HQ, HV>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u;
    char *base = given + (mem - smem_at(given));
    attn_tile t = a.t.keys[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int tokens = N / a.group;
    span x = { t.r0 / tokens * tokens, a.window ? min(s.nq, t.r0 + 127 + a.window) : s.nq, tokens, NULL };
    int gap = N - x.tokens * a.group;   /* rows that no box fills: they must not be NaN */

    for (int i = threadIdx.x; i < gap * M::STAGES * ((HQ + HV) / 64) * 8; i += 384) {
        int chunk = i % 8, r = i / 8 % gap, panel = i / 8 / gap;

        *(uint4 *)(base + M::RING + (panel * N + N - gap + r) * 128 + chunk * 16) = uint4();
    }
    if (gap)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (a.ds && PART != DV)
        x.ds = a.ds + (int64_t)(a.t.pre[s.pre + t.r0 / ITEM] + t.kvh * s.kept) * KEPT_BYTES;
    bars(mem + M::BAR, M::STAGES, N);
    if (threadIdx.x < 128) {
        regs_less<24>();
        keys_produce<HQ, HV>(a, m, base, mem, t, s, x);
    } else {
        regs_more<240>();
        keys_consume<HQ, HV, PART>(a, m, base, mem, t, s, x);
    }
#endif
}

#if TW_HOPPER
template <int HQ, int HV>
static __device__ __forceinline__ void rows_produce(const attn_arg &a, const maps &m, uint32_t mem,
        const attn_tile &t, const attn_seq &s, int from, int end)
{
    using M = rows_mem<HQ, HV>;
    uint32_t bar = mem + M::BAR;
    int head = t.kvh * a.group, token = s.q0 + row_query(a, t.r0);

    bar_expect(bar + 8 * B_OWN, (uint32_t)a.per * (HQ + HV) * 2);
    bring<HQ, 128>(mem, &m.q, bar + 8 * B_OWN, head, token);
    bring<HV, 128>(mem + M::OWN, &m.g, bar + 8 * B_OWN, head, token);
    for (int j = from, i = 0; j < end; j += M::KEYS, i++) {
        int st = i % M::STAGES;
        uint32_t full = bar + 8 * (B_FULL + st), to = mem + M::RING + st * M::STAGE;

        bar_wait(bar + 8 * (B_FREE + st), (i / M::STAGES & 1) ^ 1);
        bar_expect(full, M::STAGE);
        wg_keys<HQ, HV, M::KEYS>(to, &m.k, &m.p, full, t.kvh, s.q0 + j);
        bring<HV, M::KEYS>(to + M::TILE, &m.v, full, t.kvh, s.q0 + j);
    }
}

/* Scores of key tile j become P. A lane's are of rows at pos[0] and pos[1]. */
template <int KEYS>
static __device__ __forceinline__ void rows_soft(const attn_arg &a, float *sc, const float *lse,
        const int *pos, int j, bool mask, int lane)
{
    float l2 = a.scale * LOG2E;

#pragma unroll
    for (int n = 0; n < KEYS / 2; n++)
        sc[n] = ex2(sc[n] * l2 - lse[n >> 1 & 1]);
    if (!mask)
        return;
#pragma unroll
    for (int n = 0; n < KEYS / 2; n++) {
        int key = j + n / 4 * 8 + (lane & 3) * 2 + (n & 1), p = pos[n >> 1 & 1];

        if (key > p || (a.window && p - key >= a.window))
            sc[n] = 0;
    }
}

template <int HQ, int HV>
static __device__ __forceinline__ void rows_consume(const attn_arg &a, char *base, uint32_t mem,
        const attn_tile &t, const attn_seq &s, int rows, int from, int end)
{
    using M = rows_mem<HQ, HV>;
    constexpr int KEYS = M::KEYS;
    uint32_t bar = mem + M::BAR;
    int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, pos[2];
    int row = wg * 64 + threadIdx.x % 128 / 32 * 16;
    int first = row_query(a, t.r0 + wg * 64);
    int last = row_query(a, min(t.r0 + wg * 64 + 64, rows) - 1);
    uint32_t q = mem + wg * 64 * 128, g = q + M::OWN, pd[KEYS / 4];
    float dq[HQ / 2] = {}, sc[KEYS / 2], d[KEYS / 2], lse[2], delta[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = min(t.r0 + row + lane / 4 + h * 8, rows - 1);

        pos[h] = row_query(a, r);
        lse[h] = a.lse[row_stat(a, s, t.kvh, r)] * LOG2E;
        delta[h] = a.delta[row_stat(a, s, t.kvh, r)];
    }
    bar_wait(bar + 8 * B_OWN, 0);
    for (int j = from, i = 0; j < end; j += KEYS, i++) {
        int st = i % M::STAGES;
        uint32_t k = mem + M::RING + st * M::STAGE;

        bar_wait(bar + 8 * (B_FULL + st), i / M::STAGES & 1);
        wg_fence();
        wg_scores<HQ, KEYS, 128>(sc, q, k);
        wg_commit();
        wg_scores<HV, KEYS, 128>(d, g, k + M::TILE);
        wg_commit();
        wg_wait<1>();
        wg_hold<KEYS / 2>(sc);
        rows_soft<KEYS>(a, sc, lse, pos, j,
                  j + KEYS > first + 1 || (a.window && last - j >= a.window), lane);
        wg_wait<0>();
        wg_hold<KEYS / 2>(d);
#pragma unroll
        for (int n = 0; n < KEYS / 2; n++)
            d[n] = (EARLY(HQ) ? sc[n] : __bfloat162float(__float2bfloat16(sc[n]))) *
                    (d[n] - delta[n >> 1 & 1]);
        wg_pack<KEYS>(pd, d);
        wg_fence();
        wg_mix_any<HQ, KEYS>(dq, pd, k);
        wg_commit();
        wg_wait<0>();
        wg_hold<HQ / 2>(dq);
        if (lane == 0)
            bar_arrive(bar + 8 * (B_FREE + st));
    }
    wg_put<HQ>(base, dq, a.scale, a.hd, row, lane, [&](int r) {
        return t.r0 + r < rows ? (bf16 *)a.dq + row_at(a, s, t.kvh, t.r0 + r, a.lddq)
                : (bf16 *)NULL;
    });
}
#endif

template <int HQ, int HV>
static __global__ void __launch_bounds__(384, 1) rows_k(const __grid_constant__ attn_arg a,
        const __grid_constant__ maps m)
{
#if TW_HOPPER
    using M = rows_mem<HQ, HV>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u;
    attn_tile t = a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int rows = min(s.nq * a.group, t.r0 + a.per), end = row_query(a, rows - 1) + 1;
    int from = a.window ? max(0, row_query(a, t.r0) + 1 - a.window) / 128 * 128 : 0;

    bars(mem + M::BAR, M::STAGES, 0);
    if (threadIdx.x < 128) {
        regs_less<24>();
        if (threadIdx.x == 0)
            rows_produce<HQ, HV>(a, m, mem, t, s, from, end);
    } else {
        regs_more<240>();
        rows_consume<HQ, HV>(a, given + (mem - smem_at(given)), mem, t, s, rows, from, end);
    }
#endif
}

template <int HQ, int HV, int PART> static bool keys_run(struct cu_dev *d, const struct attn_arg *a,
        const struct attn_count *n, const struct maps *m)
{
    const size_t smem = keys_mem<HQ, HV>::SMEM;

    if (!smem_want(d, keys_k<HQ, HV, PART>, smem))
        return false;
    keys_k<HQ, HV, PART><<<(unsigned)n->keys, 384, smem, d->stream>>>(*a, *m);
    CU_DONE(d, "attention's backward by keys (warpgroups)");
    return true;
}

template <int HQ, int HV> static bool keys_all(struct cu_dev *d, const struct attn_arg *a,
        const struct attn_count *n, const struct maps *m)
{
    if constexpr (HV > 128)
        return keys_run<HQ, HV, DV>(d, a, n, m) && keys_run<HQ, HV, DK>(d, a, n, m);
    else
        return keys_run<HQ, HV, DKV>(d, a, n, m);
}

/* By kept dS: so many groups of pairs at a time as its room takes. */
template <int HQ, int HV> static void kept_run(struct cu_dev *d, const struct attn_arg *a,
        const struct attn_count *n, const struct maps *keys, const tma_map *half, const tma_map *p)
{
    for (int32_t i = 0, end; i < n->parts; i = end) {
        const struct attn_part *from = &n->part[i];
        struct attn_arg x = *a;
        struct attn_count c = *n;

        for (end = i + 1; end < n->parts && n->part[end + 1].tiles - from->tiles <= n->room;)
            end++;
        x.t.keys += from->keys;
        x.t.pairs += from->pairs;
        x.ds -= from->tiles * KEPT_BYTES;
        c.keys = n->part[end].keys - from->keys;
        c.pairs = n->part[end].pairs - from->pairs;
        if (!keys_all<HQ, HV>(d, &x, &c, keys))
            return;
        cu_attn_wg_dq(d, &x, &c, half, p);
    }
}

template <int HQ, int HV> static void bwd_run(struct cu_dev *d, const struct attn_arg *a,
        const struct attn_count *n, const struct maps *keys, const struct maps *rows, const tma_map *half)
{
    const size_t smem = rows_mem<HQ, HV>::SMEM;

    if (n->room)
        return kept_run<HQ, HV>(d, a, n, keys, half, &rows->p);
    if (!keys_all<HQ, HV>(d, a, n, keys) || !smem_want(d, rows_k<HQ, HV>, smem))
        return;
    rows_k<HQ, HV><<<(unsigned)n->rows, 384, smem, d->stream>>>(*a, *rows);
    CU_DONE(d, "attention's backward by rows (warpgroups)");
}

bool cu_attn_wg_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *k, const struct tw_tensor *v,
        const struct tw_tensor *dout)
{
    struct maps keys, rows;
    tma_map half;
    const int64_t tile = a->hd > 128 ? rows_mem<256, 256>::KEYS : 128;

    if (!n->packed || !cu_attn_wg_real() || (a->hd > 128 && a->hd != 256) || a->group > N ||
            !cu_attn_map(&rows.q, q, a->hd, a->group, a->per / a->group) ||
            !cu_attn_map(&rows.g, dout, a->hd, a->group, a->per / a->group) ||
            !cu_attn_map(&keys.k, k, a->hd, 1, 128) || !cu_attn_map(&keys.v, v, a->hd, 1, 128) ||
            !cu_attn_map(&rows.k, k, a->hd, 1, tile) || !cu_attn_map(&rows.v, v, a->hd, 1, tile) ||
            !cu_attn_map(&half, k, a->hd, 1, 64) ||
            !cu_attn_map(&keys.q, q, a->hd, a->group, N / a->group) ||
            !cu_attn_map(&keys.g, dout, a->hd, a->group, N / a->group))
        return false;
    keys.p = rows.p = rows.k;
    keys.khead = keys.vhead = a->hd;
    if (a->hd <= 64)
        bwd_run<64, 64>(d, a, n, &keys, &rows, &half);
    else if (a->hd <= 128)
        bwd_run<128, 128>(d, a, n, &keys, &rows, &half);
    else
        bwd_run<256, 256>(d, a, n, &keys, &rows, &half);
    return true;
}

bool cu_attn_wg_latent_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe,
        const struct tw_tensor *dout, void *dpe)
{
    static_assert(rows_mem<192, 128>::KEYS == 64, "dq_k takes the same boxes");
    struct maps keys, rows;

    if (!n->packed || !cu_attn_wg_real() || !cu_attn_map(&rows.q, q, 192, 1, a->per) ||
            !cu_attn_map(&rows.g, dout, 128, 1, a->per) || !cu_attn_map(&keys.q, q, 192, 1, N) ||
            !cu_attn_map(&keys.g, dout, 128, 1, N) ||
            !cu_attn_latent_maps(&rows.k, &rows.v, &rows.p, kv, pe, a->nh, rows_mem<192, 128>::KEYS) ||
            !cu_attn_latent_maps(&keys.k, &keys.v, &keys.p, kv, pe, a->nh, 128))
        return false;
    keys.khead = keys.vhead = 256;
    keys.pe = (bf16 *)dpe;
    bwd_run<192, 128>(d, a, n, &keys, &rows, &rows.k);
    return true;
}
