/* step_ring.cu - products of few tokens on Hopper: few.cu's sums, bit for bit, with the weights on
 * their way long before the tokens are there. A block a multiprocessor has an equal part of the rows.
 * One of its warps asks the copy engine for them, piece by piece into a ring in shared memory, from
 * the first moment on; weights depend on no kernel of the step. The ring takes a multiprocessor for itself: of
 * half of it two blocks of a kernel that starts while the one before ends may come to lie on one that is
 * free early, and none on another, which costs more than reading on over a kernel's end gains. What asks for
 * 17 KB at a time has to be quick: a lane knows its rows' addresses for all pieces of a group, and a turn of
 * the warp asks for up to four slots.
 *
 * The others are few.cu's eight warps: warp w has the segments of k that are w modulo 8. Each brings
 * its part of the tokens into shared memory once, normalised, and keeps the sums of all rows of a
 * group at a time, so that nothing but copies is waited for on the way; then the eight are added in
 * order. A tenth warp adds up the squares for the norm, in few.cu's order too.
 *
 * Who waits for whom:
 *   full[slot]   its copies are there; by the asking lane, which says how many bytes, and the copies
 *   empty[slot]  the eight warps have read it; each lane says so itself, since racecheck does not see that one
 *                speaks for its warp
 *   squares      the tenth warp has left its sums
 *   named 1      the eight warps' sums are in their cells. Cells are used in turn: who writes those of
 *                group i + 2 has passed this barrier in group i + 1, where all came after reading i.
 * What a warp reads of tokens and of the norm's weights it has written itself. */
#include "step_ring.cuh"

enum { GROUP = 3, TILES = 2, COLS = GROUP * TILES * 8 };        /* units of a group; outputs of one */
enum { PIECE = 1024, DEPTH = PIECE / SEG / WARPS };     /* most of a row in a slot; a warp's segments */
enum { MOST_T = 256 / COLS, MOST_SLOTS = 32, EIGHT = WARPS * 32 };
enum { MOST_TURNS = GROUP * TILES / 2 };        /* in which a group's tiles are asked for */
enum { BESIDE = 27 << 10 };     /* shared memory that logits leave to what chooses, which starts early */
enum { REGS = 80 };             /* one of attention has room beside it on a multiprocessor */

struct ring_arg {
    few_arg a;
    int32_t rows;               /* of all matrices; with GLU of one */
    int32_t each, more;         /* rows of a block; how many blocks have one more */
    int32_t kc, pieces;         /* elements of a row in a slot; pieces of a row */
    int32_t pitch, slots;       /* bytes from one of a slot's 8 rows to the next */
    int32_t window, once;       /* slots on their way at most; asked for at once: 2 or 4 */
    /* Where parts of shared memory begin. */
    int32_t squares, cells, norm, tokens, ring;
};

#if TW_SM90
/* Rows of this block: so many from first on, in units of two tiles of 8; with GLU of gate and up. */
struct part {
    int first, n, units;
};

template <int MODE> static __device__ __forceinline__ part part_of(const ring_arg &p)
{
    int b = (int)blockIdx.x, n = p.each + (b < p.more), per = MODE == GLU ? 8 : 16;

    return { b * p.each + min(b, p.more), n, (n + per - 1) / per };
}

/* Whether unit U has a second tile. */
template <int MODE> static __device__ __forceinline__ bool two(const part &b, int u)
{
    return MODE == GLU || u * 16 + 8 < b.n;
}

/* Row I of the eight of tile T of those from unit G on; NULL: none. */
template <int MODE> static __device__ __forceinline__ const bf16 *row_of(const ring_arg &p, const part &b,
        int g, int t, int i)
{
    int m = t % 2;

    i += MODE == GLU ? (g + t / 2) * 8 : (g * 2 + t) * 8;
    if (i >= b.n)
        return NULL;
    i += b.first;
    if (MODE == GLU)
        return p.a.m[m].w + (int64_t)i * p.a.m[m].ld;
    m = matrix_of<MODE>(p.a, i);
    return p.a.m[m].w + (int64_t)(i - p.a.m[m].y0) * p.a.m[m].ld;
}

/* What the asking warp has come to: the next slot, and the first of those on their way. */
struct asker {
    place at, old;
    int way;
};

/* Asks for what fills COUNT slots: N bytes of a row, by each lane that has one, eight lanes a slot. */
static __device__ __forceinline__ void fill(const ring_arg &p, char *mem, asker *q, const bf16 *row, int count,
        uint32_t n, int lane)
{
    unsigned who = __ballot_sync(~0u, row != NULL) >> (lane & 24) & 255;
    int slot = q->at.slot + lane / 8, round = q->at.round;
    uint32_t bar = bar_at(mem), full;

    for (; q->way && q->way + count > p.window; q->way--, q->old = after(q->old, p.slots))
        bar_wait(bar + 8 * q->old.slot, q->old.round & 1);
    if (slot >= p.slots)
        slot -= p.slots, round++;
    full = bar + 8 * slot;
    if (lane / 8 < count && round)
        bar_wait(full + 8 * MOST_SLOTS, (round - 1) & 1);
    if (lane / 8 < count && lane % 8 == 0)
        bar_expect(full, n * (uint32_t)__popc(who));
    __syncwarp();
    if (row)
        bar_copy(mem + p.ring + (slot * 8 + lane % 8) * p.pitch, row, n, full);
    q->way += count;
    q->at.slot += count;
    if (q->at.slot >= p.slots)
        q->at = { q->at.slot - p.slots, q->at.round + 1 };
}

/* The ninth warp: slots are filled in the order in which they are read, that is groups of units, their
 * pieces, their tiles, as many at once as have lanes and as leave others to be read meanwhile. */
template <int MODE>
static __device__ __forceinline__ void ask(const ring_arg &p, const part &b, char *mem, int lane)
{
    asker q = {};

    for (int g = 0; g < b.units; g += GROUP) {
        const int units = min(b.units - g, (int)GROUP), tiles = 2 * units - !two<MODE>(b, g + units - 1);
        const bf16 *row[MOST_TURNS];

#pragma unroll
        for (int k = 0; k < MOST_TURNS; k++) {
            int t = k * p.once + lane / 8;

            row[k] = lane / 8 < p.once && t < tiles ? row_of<MODE>(p, b, g, t, lane % 8) : NULL;
        }
        for (int c = 0; c < p.pieces; c++) {
            const uint32_t n = (uint32_t)min(p.kc, p.a.K - c * p.kc) * 2;

#pragma unroll
            for (int k = 0; k < MOST_TURNS; k++)
                if (k * p.once < tiles)
                    fill(p, mem, &q, row[k] ? row[k] + c * p.kc : NULL, min(tiles - k * p.once, p.once), n,
                         lane);
        }
    }
}

/* The norm's weights of this lane's parts of the tokens: before they are there. */
static __device__ __forceinline__ void keep_norm(const ring_arg &p, char *mem, int warp, int lane)
{
    float *k = (float *)(mem + p.norm);

    for (int i = lane; (i / 4 * WARPS + warp) * SEG < p.a.K; i += 32) {
        int at = (i / 4 * WARPS + warp) * SEG + i % 4 * 8;
        float v[8];

        ldv<8>(v, p.a.norm + at);
        stv<8>(k + at, v);
    }
}

/* This warp's segments of the tokens, [segment][T][32], in the order that segments() wants. */
template <bool NORM>
static __device__ __forceinline__ void bring(const ring_arg &p, char *mem, int warp, int lane)
{
    const float *norm = (const float *)(mem + p.norm);
    uint4 *to = (uint4 *)(mem + p.tokens);

    for (int token = 0; token < p.a.T; token++) {
        const bf16 *x = p.a.x + token * p.a.ldx;

        for (int i0 = lane; (i0 / 4 * WARPS + warp) * SEG < p.a.K; i0 += 32 * 4) {
            uint4 v[4];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                int s = (i0 + j * 32) / 4 * WARPS + warp;

                if (s * SEG < p.a.K)
                    v[j] = *(const uint4 *)(x + s * SEG + i0 % 4 * 8);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int s = (i0 + j * 32) / 4 * WARPS + warp;
                float k[8], none = 0;

                if (s * SEG >= p.a.K)
                    break;
                if (NORM) {
                    ldv<8>(k, norm + s * SEG + i0 % 4 * 8);
                    v[j] = normed(v[j], k, p.a.off, &none);
                }
                to[(s * p.a.T + token) * 4 + i0 % 4] = make_uint4(v[j].x, v[j].z, v[j].y, v[j].w);
            }
        }
    }
    __syncwarp();
}

/* N segments of M tiles. Rows 8 to 15 of what the tensor cores take for tokens are the other half of the
 * segment: what comes of them is not looked at. */
template <int N, int M> static __device__ __forceinline__ void segments(float (&acc)[TILES][4],
        const uint4 *x, int step, const char *w0, const char *w1)
{
    uint4 q[N], v[N][M];

#pragma unroll
    for (int s = 0; s < N; s++) {
        q[s] = x[s * step];
        v[s][0] = *(const uint4 *)(w0 + s * WARPS * SEG * 2);
        if (M > 1)
            v[s][M - 1] = *(const uint4 *)(w1 + s * WARPS * SEG * 2);
    }
#pragma unroll
    for (int s = 0; s < N; s++) {
#pragma unroll
        for (int i = 0; i < M; i++)
            few_mma(acc[i], q[s].x, q[s].y, q[s].z, q[s].w, v[s][i].x, v[s][i].y);
#pragma unroll
        for (int i = 0; i < M; i++)
            few_mma(acc[i], q[s].y, q[s].y, q[s].w, q[s].w, v[s][i].z, v[s][i].w);
    }
}

/* A piece of M tiles by one warp, which has N segments of it. */
template <int M> static __device__ __forceinline__ void multiply(float (&acc)[TILES][4], const uint4 *x,
        int step, const char *w0, const char *w1, int n)
{
#pragma unroll
    for (int u = 0; u < DEPTH; u += 2) {
        const int at = u * WARPS * SEG * 2;

        if (u + 2 <= n)
            segments<2, M>(acc, x + u * step, step, w0 + at, w1 + at);
        else if (u < n)
            segments<1, M>(acc, x + u * step, step, w0 + at, w1 + at);
    }
}

/* What a thread will write of a group: one output. */
struct output {
    int token, m, row, col;     /* m -1: none; its column among the sums */
    float res;
};

template <int MODE>
static __device__ __forceinline__ output output_of(const ring_arg &p, const part &b, int g)
{
    int c = threadIdx.x % COLS, i = MODE == GLU ? g * 8 + c : g * 16 + c;
    output o = { (int)threadIdx.x / COLS, -1, 0, MODE == GLU ? c / 8 * 16 + c % 8 : c, 0 };

    if (o.token >= p.a.T || i >= b.n || (MODE == GLU && c >= COLS / 2))
        return o;
    i += b.first;
    o.m = matrix_of<MODE>(p.a, i);
    o.row = MODE == GLU ? i : i - p.a.m[o.m].y0;
    if (MODE == PLAIN && p.a.res)
        o.res = __bfloat162float(p.a.res[o.token * p.a.ldres + i]);
    return o;
}

/* The sum of the eight warps, in order. */
static __device__ __forceinline__ float add_up(const float *cell, const output &o, int T, int col)
{
    float x = 0;

#pragma unroll
    for (int k = 0; k < WARPS; k++)
        x += cell[(k * T + o.token) * COLS + col];
    return x;
}

template <int MODE, bool NORM>
static __device__ __forceinline__ void put(const ring_arg &p, char *mem, const float *cell, const output &o)
{
    float r = 1;

    if (NORM)
        bar_wait(bar_at(mem) + 16 * MOST_SLOTS, 0);
    if (o.m < 0)
        return;
    if (NORM)
        r = factor(p.a, (const float *)(mem + p.squares), o.token);
    put_sum<MODE>(p.a, o.token, o.m, o.row, add_up(cell, o, p.a.T, o.col),
                  MODE == GLU ? add_up(cell, o, p.a.T, o.col + 8) : 0, r, o.res);
}

/* One of the eight warps. */
template <int MODE, bool NORM>
static __device__ __forceinline__ void consume(const ring_arg &p, const part &b, char *mem, int warp, int lane)
{
    uint32_t full = bar_at(mem), empty = full + 8 * MOST_SLOTS;
    const uint4 *token = (const uint4 *)(mem + p.tokens) + min(lane / 4, p.a.T - 1) * 4 + lane % 4;
    const char *mine = mem + p.ring + lane / 4 * p.pitch + (warp * SEG + lane % 4 * 8) * 2;
    place at = { 0, 0 };
    const int step = WARPS * p.a.T * 4;
    int turn = 0;

    for (int g = 0; g < b.units; g += GROUP, turn ^= 1) {
        float acc[GROUP][TILES][4] = {};
        float *cell = (float *)(mem + p.cells) + turn * WARPS * p.a.T * COLS;
        output o = output_of<MODE>(p, b, g);

        for (int c = 0; c < p.pieces; c++) {
            int s0 = c * p.kc / SEG + warp, n = (min(p.kc, p.a.K - c * p.kc) / SEG - warp + WARPS - 1) / WARPS;
            const uint4 *x = token + s0 * p.a.T * 4;

#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (g + i >= b.units)
                    break;
                bool both = two<MODE>(b, g + i);
                place next = both ? after(at, p.slots) : at;

                bar_wait(full + 8 * at.slot, at.round & 1);
                if (both)
                    bar_wait(full + 8 * next.slot, next.round & 1);
                const char *w0 = mine + at.slot * 8 * p.pitch, *w1 = mine + next.slot * 8 * p.pitch;
                if (both)
                    multiply<2>(acc[i], x, step, w0, w1, n);
                else
                    multiply<1>(acc[i], x, step, w0, w1, n);
                bar_arrive(empty + 8 * at.slot);
                if (both)
                    bar_arrive(empty + 8 * next.slot);
                at = after(next, p.slots);
            }
        }
#pragma unroll
        for (int i = 0; i < GROUP * TILES; i++)
            if (lane / 4 < p.a.T)
                *(float2 *)&cell[(warp * p.a.T + lane / 4) * COLS + i * 8 + lane % 4 * 2] =
                    make_float2(acc[i / TILES][i % TILES][0], acc[i / TILES][i % TILES][1]);
        bar_group(1, EIGHT);
        put<MODE, NORM>(p, mem, cell, o);
    }
}
#endif

template <int MODE, bool NORM> static __global__ void __maxnreg__(REGS)
ring_k(const __grid_constant__ ring_arg p)
{
#if TW_SM90
    extern __shared__ __align__(128) char mem[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    part b = part_of<MODE>(p);

    step_next();
    if (warp == WARPS) {
        bar_init(bar_at(mem) + 8 * lane, 1);
        bar_init(bar_at(mem) + 8 * (MOST_SLOTS + lane), EIGHT);
        if (!lane)
            bar_init(bar_at(mem) + 16 * MOST_SLOTS, 1);
        bar_made();
    }
    __syncthreads();
    if (warp == WARPS) {
        ask<MODE>(p, b, mem, lane);
        return;
    }
    if (NORM && warp < WARPS)
        keep_norm(p, mem, warp, lane);
    step_after();
    if (warp > WARPS) {
        squares(p.a, (float *)(mem + p.squares), bar_at(mem) + 16 * MOST_SLOTS, lane);
        return;
    }
    bring<NORM>(p, mem, warp, lane);
    consume<MODE, NORM>(p, b, mem, warp, lane);
#endif
}

/* Lays out shared memory; returns its size, 0: there is not enough. */
static size_t lay_out(struct cu_dev *d, struct ring_arg *p, enum few_mode mode, unsigned blocks)
{
    const struct step_way *way = cu_step_way(d);
    const struct few_arg *a = &p->a;
    int64_t rows = cu_div(p->rows, blocks), tiles = cu_div(rows, 8) * (mode == GLU ? 2 : 1), all, slot;
    size_t end, most = d->smem_max - (mode == LOGITS ? BESIDE : 0);

    p->each = (int32_t)(p->rows / blocks);
    p->more = (int32_t)(p->rows % blocks);
    p->pieces = (int32_t)cu_div(a->K, PIECE);
    p->kc = (int32_t)cu_div(a->K, (int64_t)p->pieces * WARPS * SEG) * WARPS * SEG;
    p->pieces = (int32_t)cu_div(a->K, p->kc);
    p->pitch = p->kc * 2 + 64;  /* two rows fall on different banks */
    p->squares = up((2 * MOST_SLOTS + 1) * 8);
    p->cells = p->squares + up(a->T * WARPS * 4);
    p->norm = p->cells + (tiles > GROUP * TILES ? 2 : 1) * up((int64_t)WARPS * a->T * COLS * 4);
    p->tokens = p->norm + (a->norm ? up((int64_t)a->K * 4) : 0);
    p->ring = p->tokens + up((int64_t)a->T * a->K * 2);
    slot = 8 * (int64_t)p->pitch;
    all = tiles * p->pieces;
    end = (size_t)(p->ring + slot * 4);
    end = way->ring > end ? way->ring : end;
    end = end < most ? end : most;
    p->slots = end > (size_t)p->ring ? (int32_t)((int64_t)(end - (size_t)p->ring) / slot) : 0;
    p->slots = p->slots < all ? p->slots : (int32_t)all;
    p->slots = p->slots < MOST_SLOTS ? p->slots : MOST_SLOTS;
    p->window = (int32_t)((int64_t)way->window / slot);
    p->window = p->window < 1 ? 1 : p->window < p->slots ? p->window : p->slots;
    p->once = p->slots < 8 ? 2 : 4;
    return p->slots < 4 && p->slots < all ? 0 : (size_t)p->ring + (size_t)(p->slots * slot);
}

template <int MODE, bool NORM> static bool queue(struct cu_dev *d, struct ring_arg *p)
{
    unsigned blocks = (unsigned)(p->rows < d->sms ? p->rows : d->sms);
    size_t smem = lay_out(d, p, (enum few_mode)MODE, blocks);

    if (!smem)
        return false;
    step_room(d, (const void *)ring_k<MODE, NORM>);
    step_launch(d, ring_k<MODE, NORM>, dim3(blocks), EIGHT + 32 + 32 * NORM, smem, 1, *p);
    return true;
}

bool cu_few_ring(struct cu_dev *d, const struct few_arg *a, enum few_mode mode)
{
    struct ring_arg p = {};

    if (a->T > MOST_T)
        return false;
    p.a = *a;
    for (int i = 0; i < (mode == GLU ? 1 : a->nm); i++)
        p.rows += a->m[i].rows;
    if (mode == GLU)
        return queue<GLU, true>(d, &p);
    if (mode == LOGITS)
        return queue<LOGITS, true>(d, &p);
    return a->norm ? queue<PLAIN, true>(d, &p) : queue<PLAIN, false>(d, &p);
}
