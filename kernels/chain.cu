/* chain.cu - products y = x W^T of BF16 whose every output is one chain over k in ascending steps of 16,
 * whatever the number of rows: what cuBLASLt's products add up that do not split k (seen equal in all 1,635
 * that were tried), for few tokens. A block makes 64 outputs of up to NT tokens: weights are the left side of
 * wgmma, tokens its right side, in steps of 64 of k that a warp of its own has the copy engine bring. Bound by
 * reading the weights when tokens are few, or by the chain. */
#include "after.cuh"
#include "wgmma.cuh"

enum { OUT = 64, STEP = 64, LINE = STEP * 2 };
enum { APART = OUT + 4 };       /* floats from a token's outputs to the next one's: fewer clashes */

struct chain_arg {
    tma_map w, x;
    const void *c0;             /* NULL: nothing is added */
    void *y;
    int64_t ldy, ldc0;
    int n, t, k;
    bool fours;                 /* outputs can be read and written by fours */
};

template <int NT> struct chain {
    static constexpr int STAGES = NT <= 32 ? 8 : NT == 64 ? 6 : 4;
    static constexpr uint32_t A = OUT * LINE, STAGE = A + NT * LINE, BAR = STAGES * STAGE;
    static constexpr size_t SMEM = BAR + STAGES * 16 + 1024;
};

#if TW_HOPPER
/* c[64, 16] += a[64, 16] b[16, 16]^T, both in shared memory with k across. */
static __device__ __forceinline__ void narrow(float *c, uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, "
                 "p, 1, 1, 0, 0;\n}\n" : R4(c, 0), R4(c, 4) : "l"(a), "l"(b), "r"(1));
}

template <int NT> static __device__ __forceinline__ void step16(float *c, uint64_t a, uint64_t b)
{
    if constexpr (NT == 16)
        narrow(c, a, b);
    else if constexpr (NT == 256)
        wg_wide<false>(c, a, b, 1);
    else
        wg_ss<NT, true>(c, a, b);
}

/* The four warps that multiply. */
static __device__ __forceinline__ void together()
{
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

template <class O> static __device__ __forceinline__ void put(const chain_arg &a, const float *from, int64_t t,
        int o, int n)
{
    O *y = (O *)a.y + t * a.ldy + o;
    const O *c0 = a.c0 ? (const O *)a.c0 + t * a.ldc0 + o : NULL;

    if (a.fours && n >= 4) {
        float v[4] = { from[0], from[1], from[2], from[3] };

#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] += c0 ? ld1(c0 + i) : 0;
        if constexpr (sizeof(O) == 4)
            *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        else
            *(uint2 *)y = make_uint2(pack2(v[0], v[1]), pack2(v[2], v[3]));
        return;
    }
    for (int i = 0; i < 4 && i < n; i++)
        st1(y + i, from[i] + (c0 ? ld1(c0 + i) : 0));
}
#endif

template <int NT, class O>
static __global__ void __launch_bounds__(160) chain_k(const __grid_constant__ chain_arg a)
{
#if TW_HOPPER
    using C = chain<NT>;
    extern __shared__ char given[];
    uint32_t mem = (smem_at(given) + 1023) & ~1023u;
    int n0 = blockIdx.x * OUT, t0 = blockIdx.y * NT, steps = (a.k + STEP - 1) / STEP;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float c[NT / 2] = {};
    auto full = [&](int i) { return mem + C::BAR + i % C::STAGES * 16; };

    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            bar_init(full(i), 1);
            bar_init(full(i) + 8, 4);   /* it was read */
        }
        bar_made();
    }
    __syncthreads();
    cu_after();
    if (warp == 4) {
        for (int i = 0; lane == 0 && i < steps; i++) {
            uint32_t to = mem + i % C::STAGES * C::STAGE;

            bar_wait(full(i) + 8, (i / C::STAGES & 1) ^ 1);
            bar_expect(full(i), C::STAGE);
            tma(to, &a.w, full(i), i * STEP, 0, n0);
            tma(to + C::A, &a.x, full(i), i * STEP, 0, t0);
        }
        return;
    }
    for (int i = 0; i < steps; i++) {
        uint32_t x = mem + i % C::STAGES * C::STAGE;

        bar_wait(full(i), i / C::STAGES & 1);
        wg_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            step16<NT>(c, wg_desc(x + k * 32, 0), wg_desc(x + C::A + k * 32, 0));
        wg_commit();
        wg_wait<1>();
        if (i && lane == 0)
            bar_arrive(full(i - 1) + 8);
    }
    wg_wait<0>();
    wg_hold<NT / 2>(c);
    together();                 /* nobody reads steps any more */
    float *out = (float *)(given + (mem - smem_at(given)));
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        out[(i / 4 * 8 + lane % 4 * 2 + i % 2) * APART + warp * 16 + lane / 4 + i / 2 % 2 * 8] = c[i];
    together();
    for (int i = threadIdx.x; i < NT * (OUT / 4); i += 128) {
        int t = i / (OUT / 4), o = i % (OUT / 4) * 4;

        if (t0 + t < a.t && n0 + o < a.n)
            put<O>(a, out + t * APART + o, t0 + t, n0 + o, a.n - n0 - o);
    }
#endif
}

template <int NT> static void run(struct cu_dev *d, const struct chain_arg *a, enum tw_dtype t)
{
    dim3 grid((unsigned)cu_div(a->n, OUT), (unsigned)cu_div(a->t, NT));

    CU_ACT(t, if (smem_want(d, chain_k<NT, A>, chain<NT>::SMEM))
            cu_start(d, chain_k<NT, A>, grid, 160, chain<NT>::SMEM, *a));
    CU_DONE(d, "products of one chain");
}

bool cu_chain(struct cu_dev *d, const struct cu_mm *p)
{
    struct chain_arg a = {};
    size_t size = p->ct == TW_BF16 ? 2 : 4;
    int64_t tiles = cu_div(p->n, OUT), nt = 256;

    if (p->t != TW_BF16 || p->k % 8 || p->lda % 8 || p->ldb % 8 || ((uintptr_t)p->a | (uintptr_t)p->b) % 16 ||
            p->alpha != 1 || p->batch > 1 || !cu_attn_wg_real())
        return false;
    if (p->m <= 16)
        nt = 16;
    else if (p->m <= 64 || tiles * cu_div(p->m, 128) < d->sms)
        nt = 64;
    else if (p->m <= 128 || tiles * cu_div(p->m, 256) < d->sms)
        nt = 128;
    if (!cu_rows_map(&a.w, p->b, p->n, p->k, p->ldb, OUT) || !cu_rows_map(&a.x, p->a, p->m, p->k, p->lda, nt))
        return false;
    a.c0 = p->beta == 0 ? NULL : p->c0 ? p->c0 : p->c;
    a.y = p->c, a.ldy = p->ldc, a.ldc0 = p->ldc0 ? p->ldc0 : p->ldc;
    a.n = (int)p->n, a.t = (int)p->m, a.k = (int)p->k;
    a.fours = p->ldc % 4 == 0 && ((uintptr_t)p->c | (uintptr_t)a.c0) % (4 * size) == 0;
    if (nt == 16)
        run<16>(d, &a, p->ct);
    else if (nt == 64)
        run<64>(d, &a, p->ct);
    else if (nt == 128)
        run<128>(d, &a, p->ct);
    else
        run<256>(d, &a, p->ct);
    return true;
}
