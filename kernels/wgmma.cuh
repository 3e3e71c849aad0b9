/* wgmma.cuh - Hopper's own instructions as attention uses them: tiles copied into shared memory by
 * the copy engine (TMA), and products of warpgroups (wgmma).
 *
 * Tiles are panels of 64 columns (128 bytes a row, chunks of 16 bytes permuted by the row's place
 * among eight, as the copy engine and the products do it by themselves), 1024-byte aligned. */
#ifndef TW_WGMMA_CUH
#define TW_WGMMA_CUH
#include "attn.cuh"
#include "bar.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TW_HOPPER 1
#else
#define TW_HOPPER 0             /* compiled for another GPU: the kernels are empty, and not used */
#endif

/* The driver's description of a tensor for the copy engine. (Its header has our cuda.h's name.) */
struct __attribute__((aligned(64))) tma_map {
    uint64_t opaque[16];
};

/* A map of tokens' heads of T, for boxes of 64 columns, HEADS heads, TOKENS tokens; false: this
 * tensor cannot be copied so, or there is no such engine. */
bool cu_attn_map(struct tma_map *m, const struct tw_tensor *t, int64_t hd, int64_t heads,
        int64_t tokens);

/* What a map is made of: HD numbers of each of NH heads, HEAD apart, of ROWS tokens, LD apart; boxes. */
struct attn_box {
    const void *p;
    int64_t hd, nh, rows, head, ld, heads, tokens;
};
bool cu_attn_map_of(struct tma_map *m, const struct attn_box *b);
/* Of a matrix of ROWS rows and K columns, for boxes of BOX rows. */
bool cu_rows_map(struct tma_map *m, const void *p, int64_t rows, int64_t k, int64_t ld, int64_t box);
/* Of keys and values that come of latents, heads of 128 and 128 side by side, and the keys' shared 64. */
bool cu_attn_latent_maps(struct tma_map *k, struct tma_map *v, struct tma_map *p,
        const struct tw_tensor *kv, const struct tw_tensor *pe, int64_t nh, int64_t tokens);

/* attn_wg_dq.cu: dQ of the dS that is kept, and of keys in boxes of 64 by map K, of which those of latents
 * have their last 64 columns by P. */
void cu_attn_wg_dq(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        const struct tma_map *k, const struct tma_map *p);

#if defined(__CUDACC__)
#if TW_HOPPER
/* Queues the copy of one box from (column, head, token). */
static __device__ __forceinline__ void tma(uint32_t dst, const tma_map *m, uint32_t bar, int c,
        int h, int t)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst), "l"(m), "r"(bar), "r"(c), "r"(h),
                 "r"(t) : "memory");
}

/* The same, to this place in those blocks of the cluster that are in MASK; it arrives on each one's barrier. */
static __device__ __forceinline__ void tma_many(uint32_t dst, const tma_map *m, uint32_t bar, int c, int h,
        int t, int mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst), "l"(m), "r"(bar),
                 "r"(c), "r"(h), "r"(t), "h"((uint16_t)mask) : "memory");
}

/* Queues a tile of ROWS keys of HQ numbers, of which those behind HV are of map P (all heads share). */
template <int HQ, int HV, int ROWS>
static __device__ __forceinline__ void wg_keys(uint32_t to, const tma_map *k, const tma_map *p,
        uint32_t bar, int head, int token)
{
#pragma unroll
    for (int i = 0; i < HQ / 64; i++)
        if (i * 64 < HV)
            tma(to + i * ROWS * 128, k, bar, i * 64, head, token);
        else
            tma(to + i * ROWS * 128, p, bar, i * 64 - HV, 0, token);
}

/* What this thread wrote to shared memory is seen by products. */
static __device__ __forceinline__ void wg_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void wg_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until all but the N latest groups are done. */
template <int N> static __device__ __forceinline__ void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from touching accumulators before here. */
template <int N> static __device__ __forceinline__ void wg_hold(float *x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

/* What wgmma is told of a matrix in shared memory: rows of its summed index across (K-major; PANEL
 * is not used) or down (the panels of 64 columns PANEL bytes apart). */
static __device__ __forceinline__ uint64_t wg_desc(uint32_t at, uint32_t panel)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 |
            (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define R4(x, i) "+f"(x[i]), "+f"(x[(i) + 1]), "+f"(x[(i) + 2]), "+f"(x[(i) + 3])
#define R16(x, i) R4(x, i), R4(x, (i) + 4), R4(x, (i) + 8), R4(x, (i) + 12)
#define L32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
        "%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define L64 L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"   \
        "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define W4(x, i) "=f"(x[i]), "=f"(x[(i) + 1]), "=f"(x[(i) + 2]), "=f"(x[(i) + 3])
#define W16(x, i) W4(x, i), W4(x, (i) + 4), W4(x, (i) + 8), W4(x, (i) + 12)

/* c[64, N] = a[64, 16] b[N, 16]^T, or += when ADD, both in shared memory with k across. What does
 * not add only writes c: read, it would tie a product to the values of the tile before. */
template <int N, bool ADD>
static __device__ __forceinline__ void wg_ss(float *c, uint64_t a, uint64_t b)
{
#define SS(l, at, a, b) "{\n.reg .pred p;\nsetp.ne.b32 p, %" at ", 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n" l "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}\n"
#define SS64 SS("64k16.f32.bf16.bf16 " L32, "34", "32", "33")
#define SS128 SS("128k16.f32.bf16.bf16 " L64, "66", "64", "65")
    if (N == 64 && ADD)
        asm volatile(SS64 : R16(c, 0), R16(c, 16) : "l"(a), "l"(b), "r"(1));
    else if (N == 64)
        asm volatile(SS64 : W16(c, 0), W16(c, 16) : "l"(a), "l"(b), "r"(0));
    else if (ADD)
        asm volatile(SS128 : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
                     : "l"(a), "l"(b), "r"(1));
    else
        asm volatile(SS128 : W16(c, 0), W16(c, 16), W16(c, 32), W16(c, 48)
                     : "l"(a), "l"(b), "r"(0));
}

/* c[64, 256] = a[64, 16] b, or += when ADD, in shared memory: DOWN, b[16, 256] with k down; else
 * b[256, 16]^T. */
#define L128 L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"    \
        "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,"  \
        "%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"  \
        "%126,%127"
#define SS256(down) "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                            \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " L128 "}, %128, %129, p, 1, 1, 0, " down     \
        ";\n}\n"
#define C128 R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48), R16(c, 64), R16(c, 80), R16(c, 96), R16(c, 112)
template <bool DOWN> static __device__ __forceinline__ void wg_wide(float *c, uint64_t a, uint64_t b, int add)
{
    if (DOWN)
        asm volatile(SS256("1") : C128 : "l"(a), "l"(b), "r"(add));
    else
        asm volatile(SS256("0") : C128 : "l"(a), "l"(b), "r"(add));
}

/* c[64, N] += a[64, 16] b[16, N], a in registers, b in shared memory with k down. */
template <int N>
static __device__ __forceinline__ void wg_rs(float *c, const uint32_t *a, uint64_t b)
{
    if (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " L32
                     "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n"
                     : R16(c, 0), R16(c, 16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " L64
                     "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}\n"
                     : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

/* c[64, N] = x y^T over hd: x the 64 rows at X of a tile of XR rows, y a tile of N rows. */
template <int HDP, int N, int XR>
static __device__ __forceinline__ void wg_scores(float *c, uint32_t x, uint32_t y)
{
    wg_ss<N, false>(c, wg_desc(x, 0), wg_desc(y, 0));
#pragma unroll
    for (int k = 1; k < HDP / 16; k++)
        wg_ss<N, true>(c, wg_desc(x + k / 4 * XR * 128 + k % 4 * 32, 0),
                       wg_desc(y + k / 4 * N * 128 + k % 4 * 32, 0));
}

/* c[64, HDP] += p y: p[64, N] in registers, y a tile of N rows. */
template <int HDP, int N>
static __device__ __forceinline__ void wg_mix(float *c, const uint32_t *p, uint32_t y)
{
#pragma unroll
    for (int k = 0; k < N / 16; k++)
        wg_rs<HDP>(c, p + 4 * k, wg_desc(y + k * 16 * 128, N * 128));
}

/* The same of widths that are no single product's. */
template <int HDP, int N>
static __device__ __forceinline__ void wg_mix_any(float *c, const uint32_t *p, uint32_t y)
{
    if constexpr (HDP == 256) {
        wg_mix<128, N>(c, p, y);
        wg_mix<128, N>(c + 64, p, y + 2 * N * 128);
    } else if constexpr (HDP == 192) {
        wg_mix<128, N>(c, p, y);
        wg_mix<64, N>(c + 64, p, y + 2 * N * 128);
    } else {
        wg_mix<HDP, N>(c, p, y);
    }
}

/* x[64, N] of a warpgroup in BF16, as the left side of a product. */
template <int N> static __device__ __forceinline__ void wg_pack(uint32_t *p, const float *x)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        p[i] = pack2(x[2 * i], x[2 * i + 1]);
}

/* A warp's 8 x 8 of BF16, rows and columns exchanged. */
static __device__ __forceinline__ uint32_t wg_turned(uint32_t x)
{
    uint32_t y;

    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Where chunk c of row r of a tile of ROWS rows lies. */
template <int ROWS> static __device__ __forceinline__ uint32_t wg_chunk(int r, int c)
{
    return c / 8 * ROWS * 128 + r * 128 + ((c ^ r) & 7) * 16;
}

/* Puts a warp's 16 rows from row of x[64, HDP] * f[half] into a tile of ROWS rows, as BF16. */
template <int HDP, int ROWS>
static __device__ __forceinline__ void wg_stage(char *tile, const float *x, const float *f, int row,
        int lane)
{
#pragma unroll
    for (int n = 0; n < HDP / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(tile + wg_chunk<ROWS>(row + lane / 4 + h * 8, n) + (lane & 3) * 4) =
                    pack2(x[n * 4 + h * 2] * f[h], x[n * 4 + h * 2 + 1] * f[h]);
    __syncwarp();
}

/* One step of the running softmax over keys j .. j + N: s becomes P, fix what O has to be multiplied by.
 * What is contracted is written out: a tile of which a row sees nothing leaves its bits alone (fix is 1 then),
 * and kernels of other shapes have the same. */
template <int N>
static __device__ __forceinline__ void wg_soft(const attn_arg &a, float *s, float *max, float *sum,
        float *fix, const int *pos, int j, bool mask, int lane)
{
    float l2 = a.scale * 1.44269504f;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = max[h], base, add = 0;

        if (mask)
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    int key = j + n * 8 + (lane & 3) * 2 + (i & 1);

                    if (key > pos[h] || (a.window && pos[h] - key >= a.window))
                        s[n * 4 + i] = -INFINITY;
                }
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + 2 * h], s[n * 4 + 2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        base = top == -INFINITY ? 0 : __fmul_rn(top, l2);       /* nothing seen so far */
        fix[h] = ex2(__fsub_rn(__fmul_rn(max[h], l2), base));
        max[h] = top;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                s[n * 4 + i] = ex2(__fmaf_rn(s[n * 4 + i], l2, -base));
                add += s[n * 4 + i];
            }
        sum[h] = __fmaf_rn(sum[h], fix[h], add);
    }
}

/* Writes a warp's 16 rows from row of x * f, of which there are COLS columns, by way of the tile of 128
 * rows; to(r) is where local row r goes, NULL: nowhere. */
template <int HDP, typename F>
static __device__ __forceinline__ void wg_put(char *tile, const float *x, float f, int cols, int row,
        int lane, F to)
{
    float both[2] = { f, f };

    wg_stage<HDP, 128>(tile, x, both, row, lane);
    for (int i = lane; i < 16 * HDP / 8; i += 32) {
        int r = row + i / (HDP / 8), c = i % (HDP / 8);
        bf16 *p = to(r);

        if (p && c * 8 < cols)
            *(uint4 *)(p + c * 8) = *(uint4 *)(tile + wg_chunk<128>(r, c));
    }
}

template <int R> static __device__ __forceinline__ void regs_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}
template <int R> static __device__ __forceinline__ void regs_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}
#endif
#endif
#endif
