/* moe_wg.cu - products of experts in BF16 by Hopper's own instructions: a block of two warpgroups makes
 * 128 x 128 of c in steps of 64 of the sum; rows come by cp.async, since those of tokens lie anywhere.
 * An adapter of the experts is one more step: the sum goes on over its hidden state and its factor, and
 * what it adds costs no pass over c. */
#include "moe.cuh"
#include "wgmma.cuh"

#define SIDE 128
#define STEP 64
#define TILE (SIDE * STEP * 2)          /* bytes */

/* NB: 128 columns of c, times. Two blocks of a narrow one share a multiprocessor; a wide one reads rows
 * half as often, has it alone, and lets the products of a step run on into the next. */
template <int NB> struct shape {
    static constexpr int STAGES = NB > 1 ? 4 : 3, AHEAD = 2, STAGE = (1 + NB) * TILE;
    static constexpr size_t SMEM = (size_t)STAGES * STAGE;
};
#define LONG 1024               /* sums from which wide blocks are quicker */
#define LINE (SIDE + 8)                 /* elements of a row of c on its way out */

#if TW_HOPPER
/* c[64, 128] += a[64, 16] b[16, 128], both in shared memory, b with k down. */
static __device__ __forceinline__ void wg_down(float *c, uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " L64
                 "}, %64, %65, p, 1, 1, 0, 1;\n}\n"
                 : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48) : "l"(a), "l"(b), "r"(1));
}

/* What this thread wrote to shared memory is seen by products. */
static __device__ __forceinline__ void wg_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A block's place: rows [m0, m1) of expert e, columns from n0. */
struct part {
    int e, m0, m1, n0;
};

/* Where this thread's pieces of tiles come from: four rows of a, and of b or of its transpose. */
struct source {
    const bf16 *a[4], *b;
    bool row[4];
};

template <int FORM>
static __device__ __forceinline__ void prepare(source &f, const moe_mm &g, const part &p)
{
    const int x = threadIdx.x;
    const bf16 *b = (const bf16 *)g.b + p.e * g.step;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = p.m0 + i * 32 + x / 8;

        f.row[i] = row < p.m1;
        f.a[i] = (const bf16 *)g.a + moe_row(g, f.row[i] ? row : p.m0) * g.lda + x % 8 * 8;
    }
    f.b = FORM == MOE_NT ? b + (int64_t)(p.n0 + x / 8) * g.ldb + x % 8 * 8 :
            b + (int64_t)(x / 16) * g.ldb + p.n0 + x % 16 * 8;
}

template <int FORM, int NB>
static __device__ __forceinline__ void stage(uint32_t to, const source &f, const moe_mm &g, const part &p,
        int k)
{
    const int x = threadIdx.x;

#pragma unroll
    for (int i = 0; i < 4; i++)
        cp16(to + wg_chunk<SIDE>(i * 32 + x / 8, x % 8), f.a[i] + k, f.row[i]);
#pragma unroll
    for (int i = 0; i < 4 * NB; i++) {
        int n = i / 4, r = i % 4;

        if (FORM == MOE_NT) {
            bool used = p.n0 + i * 32 + x / 8 < g.n;

            cp16(to + (1 + n) * TILE + wg_chunk<SIDE>(r * 32 + x / 8, x % 8),
                 used ? f.b + (int64_t)i * 32 * g.ldb + k : (const bf16 *)g.b, used);
        } else {
            bool used = p.n0 + n * SIDE + x % 16 * 8 < g.n;

            cp16(to + (1 + n) * TILE + wg_chunk<STEP>(r * 16 + x / 16, x % 16),
                 used ? f.b + (int64_t)(k + r * 16) * g.ldb + n * SIDE : (const bf16 *)g.b, used);
        }
    }
}

/* The K-th sixteen of a step. */
template <int FORM, int NB>
static __device__ __forceinline__ void product(float (*c)[64], uint32_t at, int wg, int k)
{
    uint64_t a = wg_desc(at + wg * 64 * 128 + k * 32, 0);

#pragma unroll
    for (int n = 0; n < NB; n++)
        if (FORM == MOE_NT)
            wg_ss<SIDE, true>(c[n], a, wg_desc(at + (1 + n) * TILE + k * 32, 0));
        else
            wg_down(c[n], a, wg_desc(at + (1 + n) * TILE + k * 16 * 128, STEP * 128));
}

template <int NB> static __device__ __forceinline__ void hold(float (*c)[64])
{
#pragma unroll
    for (int n = 0; n < NB; n++)
        wg_hold<64>(c[n]);
}

/* The step of an adapter: h and its factor, rounded to BF16; zeros behind r. */
template <int FORM, int NB>
static __device__ __forceinline__ void stage_tail(char *to, const moe_mm &g, const part &p)
{
    const moe_tail &t = g.tail;
    const float *b = t.b + p.e * t.step;

    for (int i = threadIdx.x; i < SIDE * STEP; i += 256) {
        int row = i / STEP, k = i % STEP;
        bool used = k < t.r && p.m0 + row < p.m1;

        *(bf16 *)(to + wg_chunk<SIDE>(row, k / 8) + k % 8 * 2) =
            __float2bfloat16_rn(used ? t.h[(p.m0 + row) * t.ldh + k] : 0);
    }
    for (int i = threadIdx.x; i < NB * SIDE * STEP; i += 256) {
        int n = FORM == MOE_NT ? i / STEP : i % (NB * SIDE), k = FORM == MOE_NT ? i % STEP : i / (NB * SIDE);
        bool used = k < t.r && p.n0 + n < g.n;
        float v = !used ? 0 : FORM == MOE_NT ? b[(int64_t)(p.n0 + n) * t.r + k] :
                b[(int64_t)k * g.n + p.n0 + n];
        char *tile = to + (1 + n / SIDE) * TILE;

        n %= SIDE;
        *(bf16 *)(tile + (FORM == MOE_NT ? wg_chunk<SIDE>(n, k / 8) + k % 8 * 2 :
                          wg_chunk<STEP>(k, n / 8) + n % 8 * 2)) = __float2bfloat16_rn(v);
    }
}

/* c by way of shared memory, so that rows are written by 16 bytes. */
static __device__ __forceinline__ void store(char *smem, const moe_mm &g, const part &p, int n0,
        const float *c)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    bf16 *line = (bf16 *)smem;

#pragma unroll
    for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(line + (row + h * 8) * LINE + n * 8 + lane % 4 * 2) =
                pack2(c[n * 4 + h * 2] * g.alpha, c[n * 4 + h * 2 + 1] * g.alpha);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = i * 16 + threadIdx.x / 16, col = threadIdx.x % 16 * 8;

        if (p.m0 + r < p.m1 && n0 + col < g.n)
            *(uint4 *)((bf16 *)g.c + (p.m0 + r) * g.ldc + n0 + col) = *(uint4 *)(line + r * LINE + col);
    }
}
#endif

template <int FORM, int NB>
static __global__ void __launch_bounds__(256, NB > 1 ? 1 : 2) wg_k(const __grid_constant__ moe_mm g)
{
#if TW_HOPPER
    using F = shape<NB>;
    extern __shared__ __align__(1024) char smem[];
    part p = { 0, 0, 0, (int)blockIdx.x * NB * SIDE };
    const int wg = threadIdx.x / 128, steps = g.k / STEP;
    const uint32_t base = smem_at(smem);
    float c[NB][64] = {};
    source f;

    if (!moe_tile(g, blockIdx.y, SIDE, p.e, p.m0, p.m1))
        return;
    prepare<FORM>(f, g, p);
#pragma unroll
    for (int s = 0; s < F::AHEAD; s++) {
        if (s < steps)
            stage<FORM, NB>(base + s * F::STAGE, f, g, p, s * STEP);
        cp_commit();
    }
    for (int s = 0, at = 0; s < steps; s++, at = at + 1 < F::STAGES ? at + 1 : 0) {
        cp_wait<F::AHEAD - 1>();
        wg_publish();
        __syncthreads();        /* and the products of a step before (NB > 1: of two) are done */
        if (s + F::AHEAD < steps)
            stage<FORM, NB>(base + (at + F::AHEAD) % F::STAGES * F::STAGE, f, g, p, (s + F::AHEAD) * STEP);
        cp_commit();
        hold<NB>(c);
        wg_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            product<FORM, NB>(c, base + at * F::STAGE, wg, k);
        wg_commit();
        wg_wait<(NB > 1)>();
        hold<NB>(c);
    }
    cp_wait<0>();
    wg_wait<0>();
    hold<NB>(c);
    __syncthreads();
    if (g.tail.h) {
        stage_tail<FORM, NB>(smem, g, p);
        wg_publish();
        __syncthreads();
        for (int k = 0; k * 16 < g.tail.r; k++) {
            wg_fence();         /* registers may move between the rounds of a loop */
            product<FORM, NB>(c, base, wg, k);
        }
        wg_fence();
        wg_commit();
        wg_wait<0>();
        hold<NB>(c);
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < NB; n++)
        store(smem + n * SIDE * LINE * 2, g, p, p.n0 + n * SIDE, c[n]);
#endif
}

bool cu_moe_wg_fits(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    return cu_attn_wg_real() && form != MOE_TN && g->ta == TW_BF16 && g->tb == TW_BF16 &&
            g->tc == TW_BF16 && !g->add && !g->whole && g->k % STEP == 0 && g->n >= 64 && g->n % 8 == 0 &&
            g->tail.r <= STEP && shape<2>::SMEM <= d->smem_max && (uintptr_t)g->a % 16 == 0 &&
            (uintptr_t)g->b % 16 == 0 && (uintptr_t)g->c % 16 == 0 && g->lda % 8 == 0 && g->ldb % 8 == 0 &&
            g->ldc % 8 == 0 && g->step % 8 == 0;
}

template <int FORM, int NB> static void run(struct cu_dev *d, const struct moe_mm *g)
{
    dim3 grid((unsigned)cu_div(g->n, NB * SIDE), moe_tiles(g, SIDE));

    CU_TRY(d, cudaFuncSetAttribute((const void *)wg_k<FORM, NB>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)shape<NB>::SMEM));
    wg_k<FORM, NB><<<grid, 256, shape<NB>::SMEM, d->stream>>>(*g);
    CU_DONE(d, "products of experts");
}

bool cu_moe_wg(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    bool wide = g->k >= LONG;

    if (!cu_moe_wg_fits(d, form, g))
        return false;
    if (form == MOE_NT)
        wide ? run<MOE_NT, 2>(d, g) : run<MOE_NT, 1>(d, g);
    else
        wide ? run<MOE_NN, 2>(d, g) : run<MOE_NN, 1>(d, g);
    return true;
}
