/* attn_wg_dq.cu - dQ of packed attention on Hopper, of the dS that keys_k (attn_wg_bwd.cu) kept:
 *   dQ = dS K
 * A tile of dS is of ITEM keys and KEPT_ROWS rows, 16 x 16 of them after one another as a warp's lanes held
 * them: eight keys and eight rows a register, keys down. Turned round in registers they are the left sides of
 * the products. A block stays and takes items of two tiles of rows, a warpgroup each, over 64 keys at a time.
 * A third warpgroup's first thread has keys and dS brought, some stages ahead, also those of the next item;
 * each stage says what it is of. dS, half a byte for each FLOP, comes once out of memory: that is most of what
 * the kernel waits for. */
#include "wgmma.cuh"

#define HALF 64                 /* keys */
#define HALF_BYTES (KEPT_BYTES / 2)

struct dq_maps {                /* p: of the keys' shared part, where there is one */
    tma_map k, p;
};

/* What a stage is of: KEPT has a bit for each warpgroup whose rows see these keys. */
struct dq_step {
    int token, left, kvh;       /* the item's first token in the batch; tokens to the sequence's end */
    int kept, last, stop;       /* the item's last step; no step, but the end of all */
};

template <int HQ> struct dq_mem {
    static constexpr int STAGES = HQ == 256 ? 3 : HQ == 192 ? 4 : 5;
    static constexpr uint32_t TILE = HALF * HQ * 2;     /* of K */
    static constexpr uint32_t STAGE = TILE + 2 * HALF_BYTES, OUT = STAGES * STAGE;
    static constexpr uint32_t STEP = OUT + 128 * HQ * 2, BAR = STEP + STAGES * sizeof(dq_step);
    static constexpr size_t SMEM = BAR + STAGES * 16 + 1024;
};

#define B_FULL(st) (bar + (st) * 16)    /* barriers of a stage: it is there, */
#define B_FREE(st) (B_FULL(st) + 8)     /* has been read */

#if TW_HOPPER
/* Whether there is dS of half H of the keys' tiles for the queries from Q: they see some of its tile. */
static __device__ __forceinline__ bool is_kept(const attn_arg &a, const attn_seq &s, int q, int tokens, int h)
{
    int end = a.window ? min(s.nq, h / 2 * ITEM + ITEM - 1 + a.window) : s.nq;

    return q < end && q + tokens > h * HALF;
}

/* Of as many items as there are blocks a block takes its own from the front, of the next from the end, for
 * long ones come first in the list. */
static __device__ __forceinline__ int item_of(int turn)
{
    return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

template <int HQ, int HV>
static __device__ __forceinline__ void dq_produce(const attn_arg &a, const dq_maps &m, char *base,
        uint32_t mem, int items)
{
    using M = dq_mem<HQ>;
    uint32_t bar = mem + M::BAR;
    dq_step *step = (dq_step *)(base + M::STEP);
    int tokens = KEPT_ROWS / a.group, i = 0;

    for (int turn = 0, item; (item = item_of(turn)) < items; turn++) {
        attn_tile t = a.t.pairs[item];
        attn_seq s = a.t.seq[t.seq];
        int h = a.window ? max(0, t.r0 + 1 - a.window) / ITEM * 2 : 0;
        int end = (min(s.nq, t.r0 + 2 * tokens) + HALF - 1) / HALF, next = a.t.pre[s.pre + h / 2], tile = 0;

        for (; h < end; h++, i++) {
            int st = i % M::STAGES;
            uint32_t at = st * M::STAGE, full = B_FULL(st);
            bool one = is_kept(a, s, t.r0, tokens, h), two = is_kept(a, s, t.r0 + tokens, tokens, h);

            if (h % 2 == 0) {
                tile = next + t.kvh * s.kept + t.r0 / tokens - h / 2 * ITEM / tokens;
                if (h + 2 < end)
                    next = a.t.pre[s.pre + h / 2 + 1];
            }
            const char *ds = a.ds + (int64_t)tile * KEPT_BYTES + h % 2 * HALF_BYTES;

            bar_wait(B_FREE(st), (i / M::STAGES & 1) ^ 1);
            step[st] = { s.q0 + t.r0, s.nq - t.r0, t.kvh, one | two << 1, h + 1 == end, 0 };
            bar_expect(full, M::TILE + (one + two) * HALF_BYTES);
            if (one)
                bar_copy(base + at + M::TILE, ds, HALF_BYTES, full);
            if (two)
                bar_copy(base + at + M::TILE + HALF_BYTES, ds + KEPT_BYTES, HALF_BYTES, full);
            wg_keys<HQ, HV, HALF>(mem + at, &m.k, &m.p, full, t.kvh, s.q0 + h * HALF);
        }
    }
    bar_wait(B_FREE(i % M::STAGES), (i / M::STAGES & 1) ^ 1);
    step[i % M::STAGES].stop = 1;
    bar_arrive(B_FULL(i % M::STAGES));
}

/* dq += dS K of a stage. */
template <int HQ>
static __device__ __forceinline__ void dq_add(float *dq, const char *ds, uint32_t keys)
{
    uint32_t p[HALF / 4];

#pragma unroll
    for (int k = 0; k < HALF / 16; k++) {
        uint4 y = *(const uint4 *)(ds + k * (KEPT_ROWS / 16) * 512);

        p[4 * k] = wg_turned(y.x);
        p[4 * k + 1] = wg_turned(y.z);
        p[4 * k + 2] = wg_turned(y.y);
        p[4 * k + 3] = wg_turned(y.w);
    }
    wg_fence();
    wg_mix_any<HQ, HALF>(dq, p, keys);
    wg_commit();
    wg_wait<0>();
    wg_hold<HQ / 2>(dq);
}

template <int HQ>
static __device__ __forceinline__ void dq_out(const attn_arg &a, char *out, const dq_step &x, const float *dq,
        int wg, int row, int lane)
{
    int tokens = KEPT_ROWS / a.group;

    wg_put<HQ>(out, dq, a.scale, a.hd, wg * 64 + row, lane, [&](int r) {
        int slot = r % 64, i = row_query(a, slot), token = wg * tokens + i;

        return i < tokens && token < x.left ? (bf16 *)a.dq + (int64_t)(x.token + token) * a.lddq +
                (int64_t)(x.kvh * a.group + slot - i * a.group) * a.hd : (bf16 *)NULL;
    });
}

template <int HQ>
static __device__ __forceinline__ void dq_consume(const attn_arg &a, char *base, uint32_t mem)
{
    using M = dq_mem<HQ>;
    uint32_t bar = mem + M::BAR;
    int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16;
    float dq[HQ / 2] = {};

    for (int i = 0;; i++) {
        int st = i % M::STAGES;

        bar_wait(B_FULL(st), i / M::STAGES & 1);
        dq_step x = *((const dq_step *)(base + M::STEP) + st);

        if (x.stop)
            break;
        if (x.kept >> wg & 1)
            dq_add<HQ>(dq, base + st * M::STAGE + M::TILE + wg * HALF_BYTES + row * 32 + lane * 16,
                       mem + st * M::STAGE);
        bar_arrive(B_FREE(st));
        if (!x.last)
            continue;
        dq_out<HQ>(a, base + M::OUT, x, dq, wg, row, lane);
#pragma unroll
        for (int n = 0; n < HQ / 2; n++)
            dq[n] = 0;
    }
}
#endif

template <int HQ, int HV>
static __global__ void __launch_bounds__(384, 1) dq_k(const __grid_constant__ attn_arg a,
        const __grid_constant__ dq_maps m, int items)
{
#if TW_HOPPER
    using M = dq_mem<HQ>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u, bar = mem + M::BAR;
    char *base = given + (mem - smem_at(given));

    if (threadIdx.x == 0) {
        for (int i = 0; i < M::STAGES; i++) {
            bar_init(B_FULL(i), 1);
            bar_init(B_FREE(i), 256);
        }
        bar_made();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        regs_less<24>();
        if (threadIdx.x == 0)
            dq_produce<HQ, HV>(a, m, base, mem, items);
    } else {
        regs_more<240>();
        dq_consume<HQ>(a, base, mem);
    }
#endif
}

template <int HQ, int HV> static void dq_run(struct cu_dev *d, const struct attn_arg *a, int items,
        const struct dq_maps *m)
{
    const size_t smem = dq_mem<HQ>::SMEM;

    if (!smem_want(d, dq_k<HQ, HV>, smem))
        return;
    dq_k<HQ, HV><<<(unsigned)(items < d->sms ? items : d->sms), 384, smem, d->stream>>>(*a, *m, items);
    CU_DONE(d, "attention's gradient of queries");
}

void cu_attn_wg_dq(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tma_map *k, const struct tma_map *p)
{
    struct dq_maps m = { *k, *p };

    if (a->hd <= 64)
        dq_run<64, 64>(d, a, n->pairs, &m);
    else if (a->hd <= 128)
        dq_run<128, 128>(d, a, n->pairs, &m);
    else if (a->hd == 192)
        dq_run<192, 128>(d, a, n->pairs, &m);
    else
        dq_run<256, 256>(d, a, n->pairs, &m);
}
