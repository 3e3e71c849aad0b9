/* step_some.cu - products of 17 to 64 tokens of a decode step, on Hopper: bound by reading the weights, and
 * by the way from one kernel to the next. Weights depend on no kernel of the step, so a block has its own on
 * their way into shared memory before the kernel that makes its tokens has ended. So that tokens, which every
 * block wants, are not read too often, S blocks of a cluster share the sums: each has a part of k, all rows of
 * the tile, and all tokens; then each puts together, in order, a part of the tile's outputs.
 *
 * Tokens are the left side of wgmma (64 rows, of which those behind T are of no meaning), N rows of weights
 * its right side; with GLU the first half of them are gate's, the others up's. A warp has the copy engine
 * bring steps of 64 of k. There is one warpgroup a multiprocessor and everything happens once, so code that is
 * long, divides, or waits for a load in line costs what it cannot hide.
 *
 * Who waits for whom:
 *   FULL     a step's weights, or tokens, are there; by the asking lane and the copies
 *   FREE     the warps that multiply have read them
 *   cluster  all blocks have started, so that their memory may be written
 *   GOT      all other blocks' sums of this block's outputs are there; by what they send. Nobody leaves
 *            before */
#include "few.cuh"
#include "wgmma.cuh"

enum { STEP = 64, LINE = STEP * 2, MOST_STAGES = 16, WG = 128 };
/* Barriers: of steps of weights and of tokens. */
enum { FULL_W = 0, FREE_W = 8 * MOST_STAGES, FULL_X = 16 * MOST_STAGES, FREE_X = 24 * MOST_STAGES,
    GOT = 32 * MOST_STAGES, BARS = GOT + 16 };
/* Steps of tokens in memory; bytes a block takes where it has no more, so that the next kernel's come to lie
 * beside it, and where it has. */
enum { FEW_STEPS = 8, ROOM_FEW = 140 << 10, ROOM = 200 << 10 };

struct some_arg {
    few_arg a;
    tma_map w[FEW_W], x;
    int32_t tile0[FEW_W];       /* the first tile of a matrix */
    int32_t ks, rows;           /* a block's part of k; of tokens in memory */
    int32_t nw, nx;             /* steps in memory, of weights and of tokens */
    int32_t tokens, parts, bars;        /* where these begin in shared memory; weights come first */
};

#if TW_HOPPER
/* The matrix that a tile is of. */
template <int MODE> static __device__ __forceinline__ int matrix_of(const some_arg &p, int tile)
{
    int m = 0;

    if (MODE == PLAIN)
#pragma unroll
        for (int i = 1; i < FEW_W; i++)
            m += i < p.a.nm && p.tile0[i] <= tile;
    return m;
}

/* c[64, N] = a[64, 16] b[N, 16]^T, or += when ADD, both in shared memory with k across. */
template <int N> static __device__ __forceinline__ void step16(float *c, uint64_t a, uint64_t b, int add)
{
#define SOME(n, list, at, x, y) "{\n.reg .pred p;\nsetp.ne.b32 p, %" at ", 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " list "}, %" x ", %" y                   \
        ", p, 1, 1, 0, 0;\n}\n"
    if constexpr (N == 32)
        asm volatile(SOME("32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "18", "16", "17")
                     : R16(c, 0) : "l"(a), "l"(b), "r"(add));
    else if constexpr (N == 64)
        asm volatile(SOME("64", L32, "34", "32", "33") : R16(c, 0), R16(c, 16) : "l"(a), "l"(b), "r"(add));
    else if constexpr (N == 96)
        asm volatile(SOME("96", L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47",
                          "50", "48", "49") : R16(c, 0), R16(c, 16), R16(c, 32) : "l"(a), "l"(b), "r"(add));
    else
        asm volatile(SOME("128", L64, "66", "64", "65") : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
                     : "l"(a), "l"(b), "r"(add));
}

/* The lane that asks. Slots are filled again in the order in which they are read. */
template <int MODE, int N>
static __device__ __forceinline__ void bring(const some_arg &p, uint32_t mem, int tile, int k0, int steps)
{
    constexpr int HALF = MODE == GLU ? N / 2 : N;
    const int m = matrix_of<MODE>(p, tile), row = (tile - p.tile0[m]) * HALF;
    const uint32_t bars = mem + p.bars, wide = (uint32_t)p.rows * LINE;
    slot_at w = { 0, 1 }, x = { 0, 1 };
    int iw = 0;
    auto weights = [&]() {
        uint32_t full = bars + FULL_W + w.i * 8, to = mem + w.i * N * LINE;

        bar_expect(full, N * LINE);
        tma(to, &p.w[m], full, k0 + iw * STEP, 0, row);
        if (MODE == GLU)
            tma(to + HALF * LINE, &p.w[1], full, k0 + iw * STEP, 0, row);
        iw++, advance(w, p.nw);
    };

    asm volatile("prefetch.tensormap [%0];" ::"l"(&p.x) : "memory");
    while (iw < min(steps, p.nw))
        weights();
    step_after();
    for (int i = 0; i < steps; i++, advance(x, p.nx)) {
        uint32_t full = bars + FULL_X + x.i * 8;

        if (i >= p.nx) {
            bar_wait(bars + FREE_X + x.i * 8, x.round);
            if (iw < steps) {
                bar_wait(bars + FREE_W + w.i * 8, w.round);
                weights();
            }
        }
        bar_expect(full, wide);
        tma(mem + p.tokens + x.i * wide, &p.x, full, k0 + i * STEP, 0, 0);
    }
    while (iw < steps) {
        bar_wait(bars + FREE_W + w.i * 8, w.round);
        weights();
    }
}

template <int N>
static __device__ __forceinline__ void multiply(const some_arg &p, uint32_t mem, float *c, int steps)
{
    const uint32_t bars = mem + p.bars, wide = (uint32_t)p.rows * LINE;
    slot_at w = { 0, 0 }, x = { 0, 0 };
    uint32_t old_w = 0, old_x = 0;

    for (int i = 0; i < steps; i++) {
        uint32_t a = mem + p.tokens + x.i * wide, b = mem + w.i * N * LINE;

        bar_wait(bars + FULL_W + w.i * 8, w.round);
        bar_wait(bars + FULL_X + x.i * 8, x.round);
        wg_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            step16<N>(c, wg_desc(a + k * 32, 0), wg_desc(b + k * 32, 0), i + k);
        wg_commit();
        wg_wait<1>();
        if (i && threadIdx.x % 32 == 0) {
            bar_arrive(bars + FREE_W + old_w);
            bar_arrive(bars + FREE_X + old_x);
        }
        old_w = w.i * 8, old_x = x.i * 8;
        advance(w, p.nw), advance(x, p.nx);
    }
    wg_wait<0>();
    wg_hold<N / 2>(c);
}

/* Outputs lie in groups of eight; a thread has two of each group for each of two tokens. A block of S has
 * these groups, with GLU as many more of up. */
template <int MODE, int N, int S> struct share_of {
    static constexpr int BOTH = MODE == GLU ? 2 : 1, GROUPS = N / 8 / BOTH, MINE = GROUPS / S;
};

/* c[i] of this block's groups = the sums of all parts, in order. */
template <int MODE, int N, int S>
static __device__ __forceinline__ void gather(const some_arg &p, char *smem, float *c, int rank)
{
    using O = share_of<MODE, N, S>;
    constexpr int ALL = O::MINE * O::BOTH;
    const uint32_t mem = smem_at(smem), got = mem + p.bars + GOT;
    float own[ALL * 4];

    cluster_wait();
    if ((int)threadIdx.x / 32 * 16 < p.rows)    /* else all of this warp's tokens are of no meaning */
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            const int to = n % O::GROUPS / O::MINE, at = n % O::GROUPS % O::MINE + n / O::GROUPS * O::MINE;

            if (to != rank) {
                cluster_send(mem + p.parts + (((rank - (rank > to)) * ALL + at) * WG + threadIdx.x) * 16,
                             c + 4 * n, got, to);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    own[at * 4 + i] = c[4 * n + i];
            }
        }
    bar_wait(got, 0);
#pragma unroll
    for (int n = 0; n < ALL; n++) {
        const float4 *from = (const float4 *)(smem + p.parts) + n * WG + threadIdx.x;
        float4 v = {};

#pragma unroll
        for (int s = 0; s < S; s++) {
            float4 u = s == rank ? make_float4(own[4 * n], own[4 * n + 1], own[4 * n + 2], own[4 * n + 3]) :
                from[(s - (s > rank)) * ALL * WG];

            v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
        }
        c[4 * n] = v.x, c[4 * n + 1] = v.y, c[4 * n + 2] = v.z, c[4 * n + 3] = v.w;
    }
}

static __device__ __forceinline__ float unit(float gate, float up)
{
    gate = round_bf16(gate);
    return __fdividef(gate, 1 + __expf(-gate)) * round_bf16(up);
}

static __device__ __noinline__ float other_unit(float gate, float up, int act)
{
    return gate_act(round_bf16(gate), act) * round_bf16(up);
}

/* Where this thread's outputs go: rows of ROW and the next, of group n at ROW + 8 n, of two tokens. */
struct place_of {
    int m, row, token;
};

/* What is added: two outputs each of two tokens, as they are: nobody waits for them yet. */
template <int MINE> static __device__ __forceinline__ void fetch_res(uint32_t *res, const some_arg &p,
        const place_of &o)
{
    const bf16 *x = p.a.res + o.token * p.a.ldres + p.a.m[o.m].y0 + o.row;

#pragma unroll
    for (int n = 0; n < MINE; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            res[2 * n + h] = o.token + 8 * h < p.a.T && o.row + 8 * n < p.a.m[o.m].rows ?
                *(const uint32_t *)(x + h * 8 * p.a.ldres + n * 8) : 0;
}

template <int MODE, int N, int S> static __device__ __forceinline__ void write_out(const some_arg &p,
        float *c, const uint32_t *res, const place_of &o)
{
    using O = share_of<MODE, N, S>;
    const few_w &w = p.a.m[o.m];
    bf16 *y = (bf16 *)p.a.y + o.token * p.a.ldy + w.y0 + o.row;

    if (w.bias || (MODE == GLU && p.a.m[1].bias))       /* seldom */
#pragma unroll
        for (int i = 0; i < O::MINE * 4 * O::BOTH; i++) {
            const int n = i / 4 % O::MINE, m = i / 4 / O::MINE ? 1 : o.m, row = o.row + n * 8 + i % 2;
            const float *bias = p.a.m[m].bias;

            if (bias && row < w.rows)
                c[i] += bias[row];
        }
    if (MODE == GLU && p.a.act == TW_SILU)
#pragma unroll
        for (int i = 0; i < O::MINE * 4; i++)
            c[i] = unit(c[i], c[O::MINE * 4 * (O::BOTH - 1) + i]);
    else if (MODE == GLU)
#pragma unroll
        for (int i = 0; i < O::MINE * 4; i++)
            c[i] = other_unit(c[i], c[O::MINE * 4 * (O::BOTH - 1) + i], p.a.act);
#pragma unroll
    for (int n = 0; n < O::MINE; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v[2];

#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = c[4 * n + 2 * h + i];

                v[i] = MODE == GLU ? x :
                    x + __uint_as_float(i ? res[2 * n + h] & 0xffff0000u : res[2 * n + h] << 16);
            }
            if (o.token + 8 * h < p.a.T && o.row + 8 * n < w.rows)
                *(uint32_t *)(y + h * 8 * p.a.ldy + n * 8) = pack2(v[0], v[1]);
        }
}
#endif

template <int MODE, int N, int S>
static __global__ void __launch_bounds__(WG + 32) some_k(const __grid_constant__ some_arg p)
{
#if TW_HOPPER
    using O = share_of<MODE, N, S>;
    extern __shared__ __align__(1024) char smem[];
    const int rank = blockIdx.x % S, tile = blockIdx.x / S, lane = threadIdx.x % 32;
    const int k0 = rank * p.ks, steps = (min(p.ks, p.a.K - k0) + STEP - 1) / STEP;
    const uint32_t mem = smem_at(smem), bars = mem + p.bars;

    step_next();
    if (!threadIdx.x) {
        for (int i = 0; i < MOST_STAGES; i++) {
            bar_init(bars + FULL_W + i * 8, 1), bar_init(bars + FREE_W + i * 8, WG / 32);
            bar_init(bars + FULL_X + i * 8, 1), bar_init(bars + FREE_X + i * 8, WG / 32);
        }
        bar_init(bars + GOT, 1);
        bar_made();
        bar_expect(bars + GOT, N * p.rows * 4 / S * (S - 1));
    }
    __syncthreads();
    if (S > 1)
        cluster_arrive();
    if (threadIdx.x >= WG) {
        if (!lane)
            bring<MODE, N>(p, mem, tile, k0, steps);
        __syncwarp();
        if (S > 1)
            cluster_wait();
        return;
    }
    const int m = matrix_of<MODE>(p, tile);
    const place_of o = { m, (tile - p.tile0[m]) * O::GROUPS * 8 + rank * O::MINE * 8 + lane % 4 * 2,
        (int)threadIdx.x / 32 * 16 + lane / 4 };
    uint32_t res[2 * O::MINE] = {};
    float c[N / 2];             /* the first product only writes it */

    step_after();
    if (MODE == PLAIN && p.a.res)
        fetch_res<O::MINE>(res, p, o);
    multiply<N>(p, mem, c, steps);
    if constexpr (S > 1)
        gather<MODE, N, S>(p, smem, c, rank);
    write_out<MODE, N, S>(p, c, res, o);
#endif
}

template <int MODE, int N, int S> static bool start(struct cu_dev *d, some_arg *p, int64_t tiles)
{
    const int64_t w = N * LINE, x = p->rows * LINE, parts = N * 64 * 4 / S * (S - 1);
    int64_t steps, room;

    p->ks = (int32_t)(cu_div(cu_div(p->a.K, STEP), S) * STEP);
    steps = p->ks / STEP;
    room = (steps <= FEW_STEPS ? ROOM_FEW : ROOM) - parts - BARS;
    p->nx = (int32_t)(steps < FEW_STEPS ? steps : FEW_STEPS);
    p->nw = (int32_t)((room - p->nx * x) / w);
    p->nw = p->nw < steps ? p->nw : (int32_t)steps;
    p->nw = p->nw < MOST_STAGES ? p->nw : MOST_STAGES;
    if (p->nw < 1 || (p->nw < 2 && p->nw < steps))
        return false;
    p->tokens = (int32_t)(p->nw * w);
    p->parts = (int32_t)(p->tokens + p->nx * x);
    if (p->parts < p->tokens + 64 * LINE)       /* products read 64 tokens, whatever T is */
        p->parts = p->tokens + 64 * LINE;
    p->bars = (int32_t)(p->parts + parts);
    step_room(d, (const void *)some_k<MODE, N, S>);
    step_launch(d, some_k<MODE, N, S>, dim3((unsigned)(tiles * S)), WG + 32, (size_t)(p->bars + BARS), S, *p);
    return true;
}

template <int MODE, int N> static bool split(struct cu_dev *d, some_arg *p, int64_t tiles, int S)
{
    constexpr int GROUPS = N / 8 / (MODE == GLU ? 2 : 1);

    if (S == 1)
        return start<MODE, N, 1>(d, p, tiles);
    if constexpr (GROUPS % 2 == 0)
        if (S == 2)
            return start<MODE, N, 2>(d, p, tiles);
    if constexpr (GROUPS % 4 == 0)
        if (S == 4)
            return start<MODE, N, 4>(d, p, tiles);
    if constexpr (GROUPS % 8 == 0)
        if (S == 8)
            return start<MODE, N, 8>(d, p, tiles);
    return false;
}

template <int MODE> static bool wide(struct cu_dev *d, some_arg *p, int64_t tiles, int N, int S)
{
    return N == 32 ? split<MODE, 32>(d, p, tiles, S) : N == 64 ? split<MODE, 64>(d, p, tiles, S) :
        N == 96 ? split<MODE, 96>(d, p, tiles, S) : split<MODE, 128>(d, p, tiles, S);
}

/* Of what a block a multiprocessor can do, that by which it reads and sends the fewest bytes: weights, tokens,
 * and sums, which cost twice. BOTH 2: of ROWS of gate, and as many of up. */
static bool choose(struct cu_dev *d, int64_t rows, int both, int64_t k, int *width, int *split)
{
    int64_t most = cu_div(k, STEP), best = INT64_MAX;

    for (int S = 1; S <= 8; S *= 2)
        for (int N = 32; N <= 128; N += 32) {
            int64_t steps = cu_div(most, S), sums = N * STEP_SOME * 4 / S * (S - 1);
            int64_t bytes = (N + STEP_SOME) * steps * LINE + 2 * sums;

            if (N / 8 / both % S || cu_div(rows * both, N) * S > d->sms || steps * (S - 1) >= most ||
                    bytes >= best)
                continue;
            best = bytes;
            *width = N, *split = S;
        }
    return best < INT64_MAX;
}

bool cu_some(struct cu_dev *d, const struct few_arg *a, enum few_mode mode)
{
    struct some_arg p = {};
    int64_t rows = 0, tiles = 0;
    int n = mode == GLU ? 1 : a->nm, both = mode == GLU ? 2 : 1, N = 0, S = 0;

    if (a->T > STEP_SOME || mode == LOGITS || d->whole || !cu_attn_wg_real())
        return false;
    p.a = *a;
    p.rows = a->T <= 32 ? 32 : 64;
    for (int i = 0; i < n; i++)
        rows += a->m[i].rows;
    if (!choose(d, rows, both, a->K, &N, &S))
        return false;
    for (int i = 0; i < a->nm; i++) {
        if (a->m[i].rows % 2 || a->m[i].y0 % 2 || a->ldy % 2 || a->ldres % 2 ||
                !cu_rows_map(&p.w[i], a->m[i].w, a->m[i].rows, a->K, a->m[i].ld, N / both))
            return false;
        if (i < n) {
            p.tile0[i] = (int32_t)tiles;
            tiles += cu_div(a->m[i].rows, N / both);
        }
    }
    if (!cu_rows_map(&p.x, a->x, a->T, a->K, a->ldx, p.rows))
        return false;
    bool done = mode == GLU ? wide<GLU>(d, &p, tiles, N, S) : wide<PLAIN>(d, &p, tiles, N, S);
    CU_DONE(d, "products of some tokens");
    return done;
}
