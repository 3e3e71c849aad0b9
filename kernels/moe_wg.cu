/* moe_wg.cu - products of experts in BF16 by Hopper's own instructions. A pair of blocks makes 256 x 256 of
 * c, 128 rows each, in steps of 64 of the sum. Each brings half of the expert's weights by the copy engine for
 * both, and its own rows: by the copy engine where they lie one behind another, by cp.async where they are
 * tokens that lie anywhere. Of the rows that an expert has left behind whole pieces a pair makes 128 x 512,
 * 256 columns each: few rows are bound by bringing weights, which two blocks with the same would bring twice
 * as often. Of a block's three warpgroups one brings, up to four steps ahead and on into the next piece of c,
 * and two multiply 64 rows each. Blocks stay: as many pairs as there is room for take pieces in turn.
 * An adapter of the experts is one more step: the sum goes on over its hidden state and its factor, and
 * what it adds costs no pass over c. */
#include "moe_wg.cuh"

#define STAGES 4
#define BOTH ((1 << PEERS) - 1)
#define EXPERTS 512                     /* at most */
#define AHEAD 2                         /* steps before that of an adapter at which its numbers are asked for */

enum { BRING = 128, MULTIPLY = 256 };   /* threads */
enum { STAGE = A_BYTES + B_BYTES };

/* Shared memory: steps; barriers that a step is there, and that it was read; each expert's first piece. */
enum { M_FULL = STAGES * STAGE, M_FREE = M_FULL + STAGES * 8, M_FIRST = M_FREE + STAGES * 8,
    SMEM = M_FIRST + (EXPERTS + 1) * 4 };

#if TW_HOPPER
/* The copy engine's part of a step: half of the weights for both blocks (or all of this one's own), and its
 * rows, if they can be had so. By one thread. */
template <int FORM>
static __device__ __forceinline__ void bring(uint32_t to, uint32_t full, const wg_arg &a, const part &p,
        int k, int rank)
{
    const uint32_t b = to + A_BYTES;
    const int halves = a.g.pair ? 0 : (p.m1 - p.m0 + ROWS / 2 - 1) / (ROWS / 2);

    bar_expect(full, B_BYTES + halves * (A_BYTES / 2));
    if (p.apart && FORM == MOE_NT)
#pragma unroll
        for (int i = 0; i < 2; i++)
            tma(b + i * (B_BYTES / 2), &a.b, full, k, p.n0 + i * (COLS / 2), p.e);
    else if (p.apart)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tma(b + i * STEP * 128, &a.b, full, p.n0 + i * 64, k, p.e);
    else if (FORM == MOE_NT)
        tma_many(b + rank * (B_BYTES / 2), &a.b, full, k, p.n0 + rank * (COLS / 2), p.e, BOTH);
    else
#pragma unroll
        for (int i = rank * 2; i < rank * 2 + 2; i++)
            tma_many(b + i * STEP * 128, &a.b, full, p.n0 + i * 64, k, p.e, BOTH);
    for (int i = 0; i < halves; i++)
        tma(to + i * (A_BYTES / 2), &a.a, full, k, 0, p.m0 + i * (ROWS / 2));
}

/* Of rows that lie anywhere, those that this thread brings an eighth of each step of. */
static __device__ __forceinline__ void rows_at(int *row, const moe_mm &g, const part &p, int x)
{
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
        int r = p.m0 + i * 16 + x / 8;

        row[i] = g.pair && r < p.m1 ? (int)moe_row(g, r) : -1;
    }
}

/* What a piece needs that takes long to come is asked for while the one before is brought. */
template <int FORM>
static __device__ __forceinline__ void produce(const wg_arg &a, char *smem, int rank)
{
    const moe_mm &g = a.g;
    const int x = threadIdx.x - MULTIPLY, steps = g.k / STEP;
    const int *first = (const int *)(smem + M_FIRST);
    const uint32_t mem = smem_at(smem);
    const bf16 *x0 = (const bf16 *)g.a + x % 8 * 8;
    int it = 0, piece = blockIdx.x / PEERS, row[ROWS / 16], then[ROWS / 16];
    tail_of f;
    part p, next;
    bool more = find(a, first, piece, rank, next);

    if (more)
        rows_at(then, g, next, x);
    while (more) {
        p = next;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++)
            row[i] = then[i];
        piece += gridDim.x / PEERS;
        for (int s = 0; s < steps; s++, it++) {
            uint32_t to = mem + it % STAGES * STAGE, full = mem + M_FULL + it % STAGES * 8;

            if (g.tail.h && s == max(steps - AHEAD, 0))
                tail_get<FORM>(f, a, p, x, 0);
            bar_wait(mem + M_FREE + it % STAGES * 8, (it / STAGES & 1) ^ 1);
            if (!x)
                bring<FORM>(to, full, a, p, s * STEP, rank);
            if (g.pair) {
#pragma unroll
                for (int i = 0; i < ROWS / 16; i++)
                    cp16(to + wg_chunk<ROWS>(i * 16 + x / 8, x % 8), x0 + max(row[i], 0) * g.lda + s * STEP,
                         row[i] >= 0);
                bar_arrive_copied(full);
            } else {
                bar_arrive(full);
            }
            if (!s && (more = find(a, first, piece, rank, next)))
                rows_at(then, g, next, x);
        }
        if (g.tail.h) {
            bar_wait(mem + M_FREE + it % STAGES * 8, (it / STAGES & 1) ^ 1);
            tail_step<FORM>(smem + it % STAGES * STAGE, f, a, p, x);
            wg_publish();
            if (!x)                     /* in place of the copy engine's */
                bar_arrive(mem + M_FULL + it % STAGES * 8);
            bar_arrive(mem + M_FULL + it++ % STAGES * 8);
        }
    }
}

/* c in rows of 16 bytes: four lanes have two columns each of four groups of eight, and trade them. */
static __device__ __forceinline__ void store(const moe_mm &g, const part &p, int row, const float *c)
{
    const int lane = threadIdx.x % 32, q = lane & 3;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + lane / 4 + h * 8;
        bf16 *to = (bf16 *)g.c + r * g.ldc + p.n0 + q * 8;

#pragma unroll
        for (int n = 0; n < COLS / 32; n++) {
            uint32_t u[4];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *v = c + (n * 4 + j) * 4 + h * 2;

                u[j] = pack2(v[0], v[1]);
            }
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                uint32_t x = __shfl_xor_sync(~0u, q & 1 ? u[j] : u[j + 1], 1);

                u[j] = q & 1 ? x : u[j];
                u[j + 1] = q & 1 ? u[j + 1] : x;
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t x = __shfl_xor_sync(~0u, q & 2 ? u[j] : u[j + 2], 2);

                u[j] = q & 2 ? x : u[j];
                u[j + 2] = q & 2 ? u[j + 2] : x;
            }
            if (r < p.m1 && p.n0 + n * 32 + q * 8 < g.n)    /* weights are what the L2 cache is for */
                __stcs((uint4 *)(to + n * 32), make_uint4(u[0], u[1], u[2], u[3]));
        }
    }
}

/* The step at AT was read by this warp: both blocks may write there again. */
static __device__ __forceinline__ void release(uint32_t mem, int at)
{
    if (threadIdx.x % 32 < PEERS)
        bar_arrive_at(mem + M_FREE + at * 8, threadIdx.x % 32);
}

/* c += (or, not ADD, is) the products of N sixteens of the step at TILE. */
template <int FORM, int N>
static __device__ __forceinline__ void multiply(float *c, uint32_t tile, int wg, bool add)
{
    const uint32_t b = tile + A_BYTES;

    wg_hold<128>(c);
    wg_fence();
#pragma unroll
    for (int k = 0; k < N; k++)
        wg_wide<FORM == MOE_NN>(c, wg_desc(tile + wg * 64 * 128 + k * 32, 0),
                FORM == MOE_NN ? wg_desc(b + k * 16 * 128, STEP * 128) : wg_desc(b + k * 32, 0), k || add);
    wg_commit();
}

/* A piece in which this warpgroup has no rows. */
static __device__ __forceinline__ void skip(uint32_t mem, int &it, int steps)
{
    for (int end = it + steps; it < end; it++) {
        bar_wait(mem + M_FULL + it % STAGES * 8, it / STAGES & 1);
        release(mem, it % STAGES);
    }
}

template <int FORM>
static __device__ __forceinline__ void consume(const wg_arg &a, const char *smem, int rank)
{
    const moe_mm &g = a.g;
    const int wg = __shfl_sync(~0u, threadIdx.x / 128, 0), steps = g.k / STEP;
    const int *first = (const int *)(smem + M_FIRST), tail = g.tail.h ? tail_sixteens(g) : 0;
    const uint32_t mem = smem_at(smem);
    int it = 0, piece = blockIdx.x / PEERS;
    float c[128] = {};
    part p, next;
    bool more = find(a, first, piece, rank, next);

    while (more) {
        p = next;
        piece += gridDim.x / PEERS;
        if (p.m0 + wg * 64 >= p.m1) {
            skip(mem, it, steps + (tail > 0));
            more = find(a, first, piece, rank, next);
            continue;
        }
        for (int s = 0; s < steps; s++, it++) {
            bar_wait(mem + M_FULL + it % STAGES * 8, it / STAGES & 1);
            if (g.pair)
                wg_publish();
            multiply<FORM, STEP / 16>(c, mem + it % STAGES * STAGE, wg, s);
            if (!s)
                more = find(a, first, piece, rank, next);
            wg_wait<1>();
            wg_hold<128>(c);
            if (s)
                release(mem, (it - 1) % STAGES);
        }
        if (tail) {
            uint32_t tile = mem + it % STAGES * STAGE;

            bar_wait(mem + M_FULL + it % STAGES * 8, it / STAGES & 1);
            if (tail == 1)
                multiply<FORM, 1>(c, tile, wg, true);
            else if (tail == 2)
                multiply<FORM, 2>(c, tile, wg, true);
            else
                multiply<FORM, 4>(c, tile, wg, true);
            wg_wait<1>();
            wg_hold<128>(c);
            release(mem, (it++ - 1) % STAGES);
        }
        wg_wait<0>();
        wg_hold<128>(c);
        release(mem, (it - 1) % STAGES);
        if (g.alpha != 1)
#pragma unroll
            for (int i = 0; i < 128; i++)
                c[i] *= g.alpha;
        store(g, p, p.m0 + wg * 64 + threadIdx.x % 128 / 32 * 16, c);
    }
}
#endif

template <int FORM>
static __global__ void __launch_bounds__(BRING + MULTIPLY, 1) wg_k(const __grid_constant__ wg_arg a)
{
#if TW_HOPPER
    extern __shared__ __align__(1024) char smem[];
    const int rank = blockIdx.x % PEERS;
    const uint32_t mem = smem_at(smem);

    if (!threadIdx.x) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(mem + M_FULL + i * 8, BRING + 1);
            bar_init(mem + M_FREE + i * 8, PEERS * MULTIPLY / 32);
        }
        bar_made();
    }
    if (threadIdx.x / 32 == 1)
        count(a, (int *)(smem + M_FIRST));
    __syncthreads();
    cluster_arrive();                   /* nobody sends before the other has barriers, */
    cluster_wait();
    if (threadIdx.x >= MULTIPLY) {
        regs_less<120>();
        produce<FORM>(a, smem, rank);
    } else {
        regs_more<192>();
        consume<FORM>(a, smem, rank);
    }
    cluster_arrive();                   /* nor leaves while it may still send */
    cluster_wait();
#endif
}

bool cu_moe_wg_fits(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    return cu_attn_wg_real() && form != MOE_TN && g->ta == TW_BF16 && g->tb == TW_BF16 &&
            g->tc == TW_BF16 && !g->add && !g->whole && g->k % STEP == 0 && g->n >= 64 && g->n % 8 == 0 &&
            g->tail.r <= STEP && g->E <= EXPERTS && SMEM <= d->smem_max && (uintptr_t)g->a % 16 == 0 &&
            (uintptr_t)g->b % 16 == 0 && (uintptr_t)g->c % 16 == 0 && g->lda % 8 == 0 && g->ldb % 8 == 0 &&
            g->ldc % 8 == 0 && g->step % 8 == 0;
}

/* For boxes of 64 numbers: of a block's rows; of half a step's columns of the weights, or of its rows. */
static bool maps_of(struct wg_arg *a, enum moe_form form)
{
    const struct moe_mm *g = &a->g;
    bool nt = form == MOE_NT;
    int64_t cols = nt ? g->k : g->n, rows = nt ? g->n : g->k;
    struct attn_box x = { g->a, g->k, 1, g->rows, g->lda, g->lda, 1, ROWS / 2 };
    struct attn_box w = { g->b, cols, rows, g->E, g->ldb, g->step ? g->step : rows * g->ldb,
        nt ? COLS / 2 : STEP, 1 };

    return (g->pair || cu_attn_map_of(&a->a, &x)) && cu_attn_map_of(&a->b, &w);
}

template <int FORM> static void run(struct cu_dev *d, const struct wg_arg *a)
{
    static int pairs;                   /* that run at the same time */
    int64_t pieces = (int64_t)moe_tiles(&a->g, PEERS * ROWS) * a->across;
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attr;

    if (!smem_want(d, wg_k<FORM>, SMEM))
        return;
    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = PEERS;
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)(d->sms / PEERS * PEERS));
    c.blockDim = dim3(BRING + MULTIPLY);
    c.dynamicSmemBytes = SMEM;
    c.stream = d->stream;
    c.attrs = &attr;
    c.numAttrs = 1;
    if (!pairs)
        CU_TRY(d, cudaOccupancyMaxActiveClusters(&pairs, wg_k<FORM>, &c));
    c.gridDim = dim3((unsigned)((pairs < 1 ? 1 : pairs < pieces ? pairs : pieces) * PEERS));
    CU_TRY(d, cudaLaunchKernelEx(&c, wg_k<FORM>, *a));
}

bool cu_moe_wg(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    const struct moe_tail *t = &g->tail;
    struct wg_arg a = { *g, (int)cu_div(g->n, COLS), t->r % 4 == 0 && t->ldh % 4 == 0 && t->step % 4 == 0 &&
        (uintptr_t)t->h % 16 == 0 && (uintptr_t)t->b % 16 == 0, {}, {} };

    if (!cu_moe_wg_fits(d, form, g) || !maps_of(&a, form))
        return false;
    if (form == MOE_NT)
        run<MOE_NT>(d, &a);
    else
        run<MOE_NN>(d, &a);
    return true;
}
