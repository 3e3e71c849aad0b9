/* step_hold.cu - products of up to 16 tokens on Hopper whose weights all lie in shared memory before the tokens
 * are there: few.cu's sums, bit for bit. A block a multiprocessor has an equal part of the rows, of at most
 * 48, which its first warp asks the copy engine for all at once.
 *
 * What is behind the wait for the kernel before decides how long a step takes, five waits a layer, and there
 * an instruction that is not in its cache and a kernel's argument that is read for the first time cost more
 * than all sums. So the warps know before it where everything is, and have some of their weights in
 * registers: behind it they take their segments of the tokens from memory as the tensor cores want them,
 * multiply, and leave their sums to be added.
 *
 * How kernels come to lie beside each other matters as much: a block's weights are on their way from when it
 * has room, and where two blocks of a kernel share a multiprocessor, all wait for them. Of the 512 registers
 * that a lane of each quarter of a multiprocessor has, the two warps of a block there take 144 to 192: there is
 * room for two products and attention, or for three products; and see padded(). */
#include "step_ring.cuh"

enum { EIGHT = WARPS * 32 };
/* Bytes of shared memory: a multiprocessor's, the driver's for a block, the most of a block, of a first one. */
enum { WHOLE = 228 << 10, OWN = 1 << 10, LARGEST = 136 << 10, FIRST = 148 << 10 };
enum { NEXT = WARPS * SEG };    /* from a warp's segment to its next */

struct hold_arg {
    few_arg a;
    int32_t rows;               /* of all matrices; with GLU of one */
    int32_t each, more;         /* rows of a block; how many blocks have one more */
};

/* What a kernel is made for: at most MOST tokens (eight a turn of the tensor cores), U units of TILES tiles
 * of 8 rows, S segments a warp, or at most S. */
template <int MODE_, bool NORM_, int MOST_, int U_, int TILES_, int S_, bool EXACT_> struct kind {
    static constexpr int MODE = MODE_, MOST = MOST_, U = U_, TILES = TILES_, S = S_;
    static constexpr bool NORM = NORM_, EXACT = EXACT_;
    static constexpr int COLS = U * TILES * 8, OUT = MODE == GLU ? COLS / 2 : COLS;     /* of a token */
    static constexpr int AT_ONCE = EIGHT / OUT, PASSES = (MOST + AT_ONCE - 1) / AT_ONCE; /* tokens written */
    static constexpr int FIT = (MODE == GLU ? 8 : S == 12 ? 2 : 4) / (U * TILES);
    static constexpr int HELD = FIT < 1 ? 1 : FIT < S ? FIT : S;        /* segments in registers early */
};

/* Shared memory. Two rows fall on different banks. */
template <class Q> struct shared {
    uint64_t there;             /* a barrier: the weights are */
    float squares[Q::MOST][WARPS];
    float cell[WARPS][Q::MOST][Q::COLS];
    alignas(128) char row[Q::COLS][Q::S * NEXT * 2 + 64];
    alignas(128) float norm[Q::S * NEXT];          /* only where there is a norm */
};

#if TW_SM90
/* This block's rows. */
struct part {
    int first, n;
};

static __device__ __forceinline__ part part_of(const hold_arg &p)
{
    int b = (int)blockIdx.x;

    return { b * p.each + min(b, p.more), p.each + (b < p.more) };
}

/* The first warp: lane i for rows i, i + 32, .. of this block; with GLU tiles of gate and up in turn. */
template <class Q>
static __device__ __forceinline__ void ask(const hold_arg &p, const part &b, shared<Q> *m, int lane)
{
    constexpr int MODE = Q::MODE;
    int n = MODE == GLU ? 2 * b.n : b.n;
    uint32_t bytes = (uint32_t)p.a.K * 2, bar = bar_at(&m->there);

    if (!lane) {
        bar_init(bar, 1);
        bar_made();
        bar_expect(bar, (uint32_t)n * bytes);
    }
    __syncwarp();
    for (int i = lane; i < n; i += 32) {
        int own = MODE == GLU ? i / 2 : i, row = b.first + own;
        int k = MODE == GLU ? i % 2 : matrix_of<MODE>(p.a, row);
        int at = MODE == GLU ? own / 8 * 16 + i % 2 * 8 + own % 8 : own;

        row -= MODE == GLU ? 0 : p.a.m[k].y0;
        bar_copy(m->row[at], p.a.m[k].w + (int64_t)row * p.a.m[k].ld, bytes, bar);
    }
}

/* A segment of a warp: U units of TILES tiles of 8 rows. */
template <int U, int TILES> struct weights {
    uint4 v[U][TILES];
};

template <int U, int TILES>
static __device__ __forceinline__ void load(weights<U, TILES> *w, const char *at, int pitch)
{
#pragma unroll
    for (int i = 0; i < U; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
            w->v[i][j] = *(const uint4 *)(at + (i * TILES + j) * 8 * pitch);
}

/* The weights are what the tensor cores take for 16 rows. */
template <int U, int TILES>
static __device__ __forceinline__ void multiply(float (&acc)[U][4], const weights<U, TILES> &w, uint4 x)
{
#pragma unroll
    for (int i = 0; i < U; i++)
        few_mma(acc[i], w.v[i][0].x, w.v[i][TILES - 1].x, w.v[i][0].y, w.v[i][TILES - 1].y, x.x, x.y);
#pragma unroll
    for (int i = 0; i < U; i++)
        few_mma(acc[i], w.v[i][0].z, w.v[i][TILES - 1].z, w.v[i][0].w, w.v[i][TILES - 1].w, x.z, x.w);
}

/* Eight elements of a token by the norm's weights; their squares are added to *SUM. */
static __device__ __forceinline__ uint4 scaled(uint4 u, const float (&k)[8], float *sum)
{
    uint32_t w[4] = { u.x, u.y, u.z, u.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float lo = __uint_as_float(w[i] << 16), hi = __uint_as_float(w[i] & 0xffff0000u);

        *sum = fmaf(lo, lo, *sum);
        *sum = fmaf(hi, hi, *sum);
        w[i] = pack2(lo * k[2 * i], hi * k[2 * i + 1]);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A warp's sums: its tensor cores' lanes have two tokens each. */
template <int U, int COLS>
static __device__ __forceinline__ void leave(float (*cell)[COLS], const float (&acc)[U][4], int T, int lane)
{
#pragma unroll
    for (int i = 0; i < U; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int token = lane % 4 * 2 + k % 2, col = i * 16 + k / 2 * 8 + lane / 4;

            if (token < T && i * 16 + k / 2 * 8 < COLS)
                cell[token][col] = acc[i][k];
        }
}

/* The sum of the eight warps, in order. */
static __device__ __forceinline__ float add_up(const float *v, int next)
{
    float x = 0;

#pragma unroll
    for (int k = 0; k < WARPS; k++)
        x += v[k * next];
    return x;
}

/* What a thread will write: one output of some tokens, or none. */
struct output {
    bool there;
    int token, c, m, row;       /* the first; a row of matrix m, the c-th of this block */
    float bias, up;             /* with GLU up's bias, too */
    bf16 *y;
    const bf16 *res;            /* NULL: none */
};

template <class Q> static __device__ __forceinline__ output output_of(const hold_arg &p, const part &b)
{
    int token = threadIdx.x / Q::OUT, c = threadIdx.x % Q::OUT, i = b.first + c, m = 0;
    output o = { token < Q::AT_ONCE && token < p.a.T && c < b.n, token, c, 0, i, 0, 0, NULL, NULL };

    if (!o.there)
        return o;
    if (Q::MODE == PLAIN)
        o.m = m = matrix_of<PLAIN>(p.a, i);
    o.row = i - (Q::MODE == GLU ? 0 : p.a.m[m].y0);
    o.bias = p.a.m[m].bias ? p.a.m[m].bias[o.row] : 0;
    o.up = Q::MODE == GLU && p.a.m[1].bias ? p.a.m[1].bias[o.row] : 0;
    o.y = (bf16 *)p.a.y + token * p.a.ldy + i;
    o.res = Q::MODE == PLAIN && p.a.res ? p.a.res + token * p.a.ldres + i : NULL;
    return o;
}

/* A warp's part of the sums of eight tokens from T0 on, whose N segments are X. */
template <class Q> static __device__ __forceinline__ void eight(const hold_arg &p, shared<Q> *m,
        const weights<Q::U, Q::TILES> (&held)[Q::HELD], const uint4 (&x)[Q::S], int t0, int n, int warp,
        int lane)
{
    const int at = warp * SEG + lane % 4 * 8;
    const char *w = m->row[lane / 4] + at * 2;
    weights<Q::U, Q::TILES> next;
    float acc[Q::U][4] = {}, k[8], sum = 0;

#pragma unroll
    for (int s = 0; s < Q::S; s++) {
        uint4 v = x[s];

        if (s >= n)
            break;
        if (s >= Q::HELD)
            load(&next, w + s * NEXT * 2, sizeof m->row[0]);
        if (Q::NORM) {
            ldv<8>(k, &m->norm[at + s * NEXT]);
            v = scaled(v, k, &sum);
        }
        multiply(acc, s < Q::HELD ? held[s] : next, v);
    }
    leave(&m->cell[warp][t0], acc, p.a.T - t0, lane);
    if (!Q::NORM)
        return;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0 && t0 + lane / 4 < p.a.T)
        m->squares[t0 + lane / 4][warp] = sum;
}

/* Output O of its token TOKEN, with RES. */
template <class Q> static __device__ __forceinline__ void put(const hold_arg &p, const shared<Q> *m,
        const output &o, int token, bf16 *y, float res, float K, float eps, int act, bool adapters)
{
    const float *cell = &m->cell[0][token][Q::MODE == GLU ? o.c / 8 * 16 + o.c % 8 : o.c];
    float r = 1, sum, up = 0;

    if (Q::NORM)
        r = rsqrtf(add_up(m->squares[token], 1) / K + eps);
    sum = add_up(cell, Q::MOST * Q::COLS) * r + o.bias;
    if (Q::MODE == GLU)
        up = add_up(cell + 8, Q::MOST * Q::COLS) * r + o.up;
    if (adapters) {
        sum += adapted(p.a, token, o.m, o.row);
        if (Q::MODE == GLU)
            up += adapted(p.a, token, 1, o.row);
    }
    if (Q::MODE == GLU)
        sum = gate_act(round_bf16(sum), act) * round_bf16(up);
    *y = __float2bfloat16_rn(sum + res);
}

template <class Q>
static __device__ __forceinline__ void consume(const hold_arg &p, const part &b, shared<Q> *m, int warp,
        int lane)
{
    const int n = Q::EXACT ? Q::S : (p.a.K / SEG - warp + WARPS - 1) / WARPS, at = warp * SEG + lane % 4 * 8;
    const bf16 *x = p.a.x + min(lane / 4, p.a.T - 1) * p.a.ldx + at;
    const bool adapters = p.a.h;
    const float eps = p.a.eps, K = (float)p.a.K;
    const int act = p.a.act;
    const int64_t next_y = Q::AT_ONCE * p.a.ldy, next_res = Q::AT_ONCE * p.a.ldres;
    output o = output_of<Q>(p, b);
    weights<Q::U, Q::TILES> held[Q::HELD];
    float res[Q::PASSES] = {};
    uint4 v[Q::S];

    if (Q::NORM && lane < 4)
#pragma unroll
        for (int s = 0; s < Q::S; s++)
            if (s < n) {
                float k[8];

                ldv<8>(k, p.a.norm + at + s * NEXT);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    k[i] += p.a.off;
                stv<8>(&m->norm[at + s * NEXT], k);
            }
    __syncthreads();            /* the norm's weights of this warp, and the barrier, are there */
    bar_wait(bar_at(&m->there), 0);
#pragma unroll
    for (int s = 0; s < Q::HELD; s++)
        if (s < n)
            load(&held[s], m->row[lane / 4] + (at + s * NEXT) * 2, sizeof m->row[0]);
    step_after();
#pragma unroll
    for (int s = 0; s < Q::S; s++)
        if (s < n)
            v[s] = *(const uint4 *)(x + s * NEXT);
    if (Q::MODE == PLAIN && o.res)
#pragma unroll
        for (int i = 0; i < Q::PASSES; i++)
            if (o.token + i * Q::AT_ONCE < p.a.T)
                res[i] = __bfloat162float(o.res[i * next_res]);
    eight<Q>(p, m, held, v, 0, n, warp, lane);
    if (Q::MOST > 8) {
        x = p.a.x + min(8 + lane / 4, p.a.T - 1) * p.a.ldx + at;
#pragma unroll
        for (int s = 0; s < Q::S; s++)
            if (s < n)
                v[s] = *(const uint4 *)(x + s * NEXT);
        eight<Q>(p, m, held, v, 8, n, warp, lane);
    }
    __syncthreads();
    if (!o.there)
        return;
#pragma unroll
    for (int i = 0; i < Q::PASSES; i++)
        if (!i || o.token + i * Q::AT_ONCE < p.a.T)
            put<Q>(p, m, o, o.token + i * Q::AT_ONCE, o.y + i * next_y, res[i], K, eps, act, adapters);
}
#endif

template <class Q> static __global__ void
__launch_bounds__(EIGHT) __maxnreg__(Q::MODE == GLU ? 96 : Q::NORM || Q::S == 12 ? 88 : 72)
hold_k(const __grid_constant__ hold_arg p)
{
#if TW_SM90
    extern __shared__ __align__(128) char mem[];
    auto *m = (shared<Q> *)mem;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    part b = part_of(p);

    step_next();
    if (!warp)
        ask<Q>(p, b, m, lane);
    consume<Q>(p, b, m, warp, lane);
#endif
}

/* What a block takes of shared memory, used or not, so that one of the next kernel has room beside it, and no
 * two. The first product of a layer leaves room for attention and for one of the product behind that; gate and
 * up take what they need; and the others so much that two of them do not fit where the one before them lies. */
static size_t padded(struct cu_dev *d, size_t need, bool norm, bool glu)
{
    size_t *last = &cu_step_way(d)->took, least = 0;

    if (!norm && *last < WHOLE)
        least = (WHOLE - *last) / 2 + 128 - OWN;
    else if (norm && !glu)
        least = FIRST;
    least = least < d->smem_max ? least : d->smem_max;
    need = need > least ? need : least;
    *last = need + OWN;
    return need;
}

template <class Q> static bool queue(struct cu_dev *d, struct hold_arg *p)
{
    using M = shared<Q>;
    size_t smem = Q::NORM ? sizeof(M) : offsetof(M, norm);

    if (smem > LARGEST)
        return false;
    smem = padded(d, smem, Q::NORM, Q::MODE == GLU);
    step_room(d, (const void *)hold_k<Q>);
    step_launch(d, hold_k<Q>, dim3((unsigned)d->sms), EIGHT, smem, 1, *p);
    return true;
}

template <int MODE, bool NORM, int U, int TILES, int S>
static bool exactly(struct cu_dev *d, struct hold_arg *p)
{
    bool exact = p->a.K == S * NEXT;

    if (p->a.T > 8)
        return exact ? queue<kind<MODE, NORM, 16, U, TILES, S, true>>(d, p)
            : queue<kind<MODE, NORM, 16, U, TILES, S, false>>(d, p);
    return exact ? queue<kind<MODE, NORM, 8, U, TILES, S, true>>(d, p)
        : queue<kind<MODE, NORM, 8, U, TILES, S, false>>(d, p);
}

/* As many segments a warp as fit into registers beside so many tiles. */
template <int MODE, bool NORM, int U, int TILES>
static bool by_segments(struct cu_dev *d, struct hold_arg *p, int64_t s)
{
    if (s <= 4)
        return exactly<MODE, NORM, U, TILES, 4>(d, p);
    if constexpr (U == 1) {
        if (s <= 8)
            return exactly<MODE, NORM, U, TILES, 8>(d, p);
        if (s <= 12)
            return exactly<MODE, NORM, U, TILES, 12>(d, p);
    }
    return false;
}

template <int MODE, bool NORM> static bool by_rows(struct cu_dev *d, struct hold_arg *p)
{
    int64_t s = cu_div(p->a.K / SEG, WARPS), most = cu_div(p->rows, d->sms);

    if (MODE != GLU && most <= 8)
        return by_segments<MODE, NORM, 1, 1>(d, p, s);
    most *= MODE == GLU ? 2 : 1;
    if (most <= 16)
        return by_segments<MODE, NORM, 1, 2>(d, p, s);
    if (most <= 32)
        return by_segments<MODE, NORM, 2, 2>(d, p, s);
    return most <= 48 && by_segments<MODE, NORM, 3, 2>(d, p, s);
}

bool cu_few_hold(struct cu_dev *d, const struct few_arg *a, enum few_mode mode)
{
    struct hold_arg p = {};

    if ( mode == LOGITS || !cu_step_way(d)->hold)
        return false;
    p.a = *a;
    for (int i = 0; i < (mode == GLU ? 1 : a->nm); i++)
        p.rows += a->m[i].rows;
    p.each = p.rows / d->sms;
    p.more = p.rows % d->sms;
    if (mode == GLU)
        return by_rows<GLU, true>(d, &p);
    return a->norm ? by_rows<PLAIN, true>(d, &p) : by_rows<PLAIN, false>(d, &p);
}
