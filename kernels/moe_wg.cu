/* moe_wg.cu - products of experts in BF16 by Hopper's own instructions. A pair of blocks makes 256 x 256 of c,
 * or as many rows as an expert has left, 128 each, in steps of 64 of the sum. Each brings half of the expert's
 * weights by the copy engine for both, and its own rows: by the copy engine where they lie one behind another,
 * by cp.async where they are tokens that lie anywhere. Of a block's three warpgroups one brings, up to four
 * steps ahead and on into the next piece of c, and two multiply 64 rows each. Blocks stay: as many pairs as
 * there is room for take pieces in turn.
 * An adapter of the experts is one more step: the sum goes on over its hidden state and its factor, and
 * what it adds costs no pass over c. */
#include "moe.cuh"
#include "wgmma.cuh"

#define ROWS 128
#define COLS 256
#define STEP 64
#define STAGES 4
#define PEERS 2
#define BOTH ((1 << PEERS) - 1)
#define EXPERTS 512                     /* at most */

enum { BRING = 128, MULTIPLY = 256 };   /* threads */
enum { A_BYTES = ROWS * STEP * 2, B_BYTES = COLS * STEP * 2, STAGE = A_BYTES + B_BYTES };

/* Shared memory: steps; barriers that a step is there, and that it was read; each expert's first piece. */
enum { M_FULL = STAGES * STAGE, M_FREE = M_FULL + STAGES * 8, M_FIRST = M_FREE + STAGES * 8,
    SMEM = M_FIRST + (EXPERTS + 1) * 4 };

struct wg_arg {
    moe_mm g;
    int across;                         /* pieces of c in a row of them */
    bool fours;                         /* h and its factor can be read by 16 bytes */
    tma_map b, a;
};

#if TW_HOPPER
/* A block's part of a piece: rows [m0, m1) of expert e, columns from n0. */
struct part {
    int e, m0, m1, n0;
};

/* How many pieces come before each expert's first: FIRST[E] is how many there are. By one warp. */
static __device__ __forceinline__ void count(const moe_mm &g, int *first)
{
    const int lane = threadIdx.x % 32, most = PEERS * ROWS;
    int before = 0;

    for (int i = lane; i - lane < g.E; i += 32) {
        int rows = i >= g.E ? 0 : g.lo ? g.hi[i] - g.lo[i] : g.rows, n = (rows + most - 1) / most, sum = n;

#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            int x = __shfl_up_sync(~0u, sum, o);

            sum += lane >= o ? x : 0;
        }
        if (i < g.E)
            first[i] = before + sum - n;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (!lane)
        first[g.E] = before;
}

/* Rows are halved by sixty-fours, so that a short piece keeps one warpgroup of each block at work. */
static __device__ __forceinline__ bool find(const wg_arg &a, const int *first, int piece, int rank, part &p)
{
    const moe_mm &g = a.g;
    int row = piece / a.across, end = g.E, r0, r1, half;

    if (row >= first[g.E])
        return false;
    p.e = 0;
    while (end - p.e > 1) {             /* first[e] <= row < first[end] */
        int mid = (p.e + end) / 2;

        if (first[mid] <= row)
            p.e = mid;
        else
            end = mid;
    }
    r0 = (g.lo ? g.lo[p.e] : 0) + (row - first[p.e]) * PEERS * ROWS;
    r1 = min(g.lo ? g.hi[p.e] : g.rows, r0 + PEERS * ROWS);
    half = (r1 - r0 + 127) / 128 * 64;
    p.m0 = min(r1, r0 + rank * half);
    p.m1 = min(r1, p.m0 + half);
    p.n0 = piece % a.across * COLS;
    return true;
}

/* What a thread puts into the step of an adapter for sixteen ranks: of h, and of its factor. */
struct tail_of {
    float h[16], b[32];
};

/* The numbers I to I + 3 of N, the first of which is at P + AT. FOURS: they come at once, all or none. */
template <bool FOURS>
static __device__ __forceinline__ void four(float *to, const float *p, int64_t at, int i, int n)
{
    if constexpr (FOURS) {
        float4 v = i < n ? *(const float4 *)(p + at) : make_float4(0, 0, 0, 0);

        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[k] = i + k < n ? p[at + k] : 0;
    }
}

template <int FORM, bool FOURS>
static __device__ __forceinline__ void tail_ask(tail_of &f, const moe_mm &g, const part &p, int x, int k0)
{
    const moe_tail &t = g.tail;
    const float *b = t.b + p.e * t.step;

#pragma unroll
    for (int k = 0; k < 16; k += 4)
        four<FOURS>(f.h + k, t.h, (p.m0 + x) * t.ldh + k0 + k, k0 + k, p.m0 + x < p.m1 ? t.r : 0);
#pragma unroll
    for (int i = 0; i < 32; i += 4)
        if (FORM == MOE_NT) {
            int n = p.n0 + x + i / 16 * 128, k = k0 + i % 16;

            four<FOURS>(f.b + i, b, (int64_t)n * t.r + k, k, n < g.n ? t.r : 0);
        } else {
            int n = p.n0 + x % 32 * 8 + i % 8, k = k0 + x / 32 + i / 8 * 4;

            four<FOURS>(f.b + i, b, (int64_t)k * g.n + n, n, k < t.r ? g.n : 0);
        }
}

static __device__ __forceinline__ void put8(char *to, const float *v)
{
    *(uint4 *)to = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
}

/* Rounded to BF16; zeros are behind the last rank. */
template <int FORM>
static __device__ __forceinline__ void tail_put(char *to, const tail_of &f, int x, int k0)
{
#pragma unroll
    for (int c = 0; c < 2; c++)
        put8(to + wg_chunk<ROWS>(x, k0 / 8 + c), f.h + c * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
        put8(to + A_BYTES + (FORM == MOE_NT ? wg_chunk<COLS>(x + i / 2 * 128, k0 / 8 + i % 2) :
                        wg_chunk<STEP>(k0 + x / 32 + i * 4, x % 32)), f.b + i * 8);
}

/* Sixteens of ranks that are multiplied: one, two or four. */
static __device__ __forceinline__ int tail_sixteens(const moe_mm &g)
{
    return g.tail.r <= 16 ? 1 : g.tail.r <= 32 ? 2 : STEP / 16;
}

template <int FORM>
static __device__ __forceinline__ void tail_step(char *to, const wg_arg &a, const part &p, int x)
{
    for (int i = 0; i < tail_sixteens(a.g); i++) {
        tail_of f;

        if (a.fours)
            tail_ask<FORM, true>(f, a.g, p, x, i * 16);
        else
            tail_ask<FORM, false>(f, a.g, p, x, i * 16);
        tail_put<FORM>(to, f, x, i * 16);
    }
}

/* The copy engine's part of a step: half of the weights for both blocks, and this one's rows, if they can be
 * had so. By one thread. */
template <int FORM>
static __device__ __forceinline__ void bring(uint32_t to, uint32_t full, const wg_arg &a, const part &p,
        int k, int rank)
{
    const uint32_t b = to + A_BYTES;

    bar_expect(full, B_BYTES + (a.g.pair ? 0 : A_BYTES));
    if (FORM == MOE_NT)
        tma_many(b + rank * (B_BYTES / 2), &a.b, full, k, p.n0 + rank * (COLS / 2), p.e, BOTH);
    else
#pragma unroll
        for (int i = rank * 2; i < rank * 2 + 2; i++)
            tma_many(b + i * STEP * 128, &a.b, full, p.n0 + i * 64, k, p.e, BOTH);
    if (!a.g.pair)
        tma(to, &a.a, full, k, 0, p.m0);
}

/* Of rows that lie anywhere, those that this thread brings an eighth of each step of. */
static __device__ __forceinline__ void rows_of(int *row, const moe_mm &g, const part &p, int x)
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
    part p, next;
    bool more = find(a, first, piece, rank, next);

    if (more)
        rows_of(then, g, next, x);
    while (more) {
        p = next;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++)
            row[i] = then[i];
        piece += gridDim.x / PEERS;
        for (int s = 0; s < steps; s++, it++) {
            uint32_t to = mem + it % STAGES * STAGE, full = mem + M_FULL + it % STAGES * 8;

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
                rows_of(then, g, next, x);
        }
        if (g.tail.h) {
            bar_wait(mem + M_FREE + it % STAGES * 8, (it / STAGES & 1) ^ 1);
            tail_step<FORM>(smem + it % STAGES * STAGE, a, p, x);
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

                u[j] = pack2(v[0] * g.alpha, v[1] * g.alpha);
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
            if (r < p.m1 && p.n0 + n * 32 + q * 8 < g.n)
                *(uint4 *)(to + n * 32) = make_uint4(u[0], u[1], u[2], u[3]);
        }
    }
}

/* The step at AT was read by this warp: both blocks may write there again. */
static __device__ __forceinline__ void release(uint32_t mem, int at)
{
    if (threadIdx.x % 32 < PEERS)
        bar_arrive_at(mem + M_FREE + at * 8, threadIdx.x % 32);
}

/* c += the products of N sixteens of the step at TILE. */
template <int FORM, int N>
static __device__ __forceinline__ void multiply(float *c, uint32_t tile, int wg)
{
    const uint32_t b = tile + A_BYTES;

    wg_hold<128>(c);
    wg_fence();
#pragma unroll
    for (int k = 0; k < N; k++)
        wg_wide<FORM == MOE_NN>(c, wg_desc(tile + wg * 64 * 128 + k * 32, 0),
                FORM == MOE_NN ? wg_desc(b + k * 16 * 128, STEP * 128) : wg_desc(b + k * 32, 0));
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
    int it = 0;
    part p;

    for (int piece = blockIdx.x / PEERS; find(a, first, piece, rank, p); piece += gridDim.x / PEERS) {
        float c[128];

        if (p.m0 + wg * 64 >= p.m1) {
            skip(mem, it, steps + (tail > 0));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 128; i++)
            c[i] = 0;
        for (int s = 0; s < steps; s++, it++) {
            bar_wait(mem + M_FULL + it % STAGES * 8, it / STAGES & 1);
            if (g.pair)
                wg_publish();
            multiply<FORM, STEP / 16>(c, mem + it % STAGES * STAGE, wg);
            wg_wait<1>();
            wg_hold<128>(c);
            if (s)
                release(mem, (it - 1) % STAGES);
        }
        wg_wait<0>();
        wg_hold<128>(c);
        release(mem, (it - 1) % STAGES);
        if (tail) {
            uint32_t tile = mem + it % STAGES * STAGE;

            bar_wait(mem + M_FULL + it % STAGES * 8, it / STAGES & 1);
            if (tail == 1)
                multiply<FORM, 1>(c, tile, wg);
            else if (tail == 2)
                multiply<FORM, 2>(c, tile, wg);
            else
                multiply<FORM, 4>(c, tile, wg);
            wg_wait<0>();
            wg_hold<128>(c);
            release(mem, it++ % STAGES);
        }
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
        count(a.g, (int *)(smem + M_FIRST));
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
    struct attn_box x = { g->a, g->k, 1, g->rows, g->lda, g->lda, 1, ROWS };
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
