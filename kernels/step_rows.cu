/* step_rows.cu - products of few tokens on Hopper, as step_ring.cu makes them, but with a row to a warp:
 * no sum goes from one warp to another, and no warp waits for another once the tokens are there. A
 * warp has an equal part of its block's rows, two at a time (with GLU one of gate, one of up), and a ring
 * of its own in shared memory, which it fills itself: copies are whole rows where these have room. The
 * tokens, normalised, are brought by all warps for all.
 *
 * A lane has eight elements of each 256 of a row, even and odd ones in two chains of fused multiply-adds,
 * and the lanes' sums are added in a tree. So a sum has one order, whatever the rows of the block, its
 * neighbours and the tokens beside it; it is another than few.cu's.
 *
 * Who waits for whom:
 *   full[warp][slot]  its copies are there; by the warp's first lane, and the copies. A slot is filled
 *                     again by the warp that has read it, behind a __syncwarp() of all that did
 *   squares           the ninth warp has left the sums of squares
 *   named 1           all eight warps' parts of the tokens are there */
#include "step_ring.cuh"

enum { MOST_T = 4, MOST_SLOTS = 16, EIGHT = WARPS * 32, CHUNK = 256, PIECE = 2048 };

struct rows_arg {
    few_arg a;
    int32_t rows;               /* of all matrices; with GLU of one */
    int32_t each, more;         /* rows of a block; how many blocks have one more */
    int32_t wide;               /* rows of weights in a slot, 1 or 2 */
    int32_t kc, pieces, slots;  /* elements of a row in a slot; pieces of a row; slots of a warp */
    /* Where parts of shared memory begin. */
    int32_t squares, norm, tokens, ring;
};

#if TW_SM90
/* Rows of this warp, and its ring. */
struct share {
    int first, n;
    char *ring;
    uint32_t full;
};

static __device__ __forceinline__ share share_of(const rows_arg &p, char *mem, int warp)
{
    int b = (int)blockIdx.x, n = p.each + (b < p.more), more = n % WARPS;

    return { b * p.each + min(b, p.more) + warp * (n / WARPS) + min(warp, more), n / WARPS + (warp < more),
        mem + p.ring + (int64_t)warp * p.slots * p.wide * p.kc * 2, bar_at(mem) + 8 * warp * MOST_SLOTS };
}

/* Where in its rows a warp is: at row i of its own, at piece c. */
struct walk {
    int i, c;
    place at;
};

template <int MODE> static __device__ __forceinline__ void go_on(walk &w, const rows_arg &p)
{
    w.at = after(w.at, p.slots);
    if (++w.c == p.pieces) {
        w.c = 0;
        w.i += MODE == GLU ? 1 : p.wide;
    }
}

/* Asks for the next slot, if there is one: a row a lane. */
template <int MODE>
static __device__ __forceinline__ void fill(walk &w, const rows_arg &p, const share &s, int lane)
{
    int n = min(p.kc, p.a.K - w.c * p.kc) * 2, k = MODE == GLU ? 2 : min(p.wide, s.n - w.i);

    if (w.i >= s.n)
        return;
    if (!lane)
        bar_expect(s.full + 8 * w.at.slot, (uint32_t)(n * k));
    __syncwarp();
    if (lane < k) {
        int row = s.first + w.i + (MODE == GLU ? 0 : lane), m = MODE == GLU ? lane : matrix_of<MODE>(p.a, row);
        const bf16 *from = p.a.m[m].w + (int64_t)(row - (MODE == GLU ? 0 : p.a.m[m].y0)) * p.a.m[m].ld;

        bar_copy(s.ring + (w.at.slot * p.wide + lane) * p.kc * 2, from + w.c * p.kc, (uint32_t)n,
                 s.full + 8 * w.at.slot);
    }
    go_on<MODE>(w, p);
}

/* The norm's weights of this thread's parts of the tokens: before they are there. */
static __device__ __forceinline__ void keep_norm(const rows_arg &p, char *mem)
{
    for (int i = threadIdx.x * 8; i < p.a.K; i += EIGHT * 8) {
        float v[8];

        ldv<8>(v, p.a.norm + i);
        stv<8>((float *)(mem + p.norm) + i, v);
    }
}

/* This thread's parts of the tokens, to [T][K]. */
template <bool NORM> static __device__ __forceinline__ void bring(const rows_arg &p, char *mem)
{
    for (int token = 0; token < p.a.T; token++) {
        const bf16 *x = p.a.x + token * p.a.ldx;

        for (int i0 = threadIdx.x * 8; i0 < p.a.K; i0 += EIGHT * 8 * 4) {
            uint4 v[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i0 + j * EIGHT * 8 < p.a.K)
                    v[j] = *(const uint4 *)(x + i0 + j * EIGHT * 8);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int i = i0 + j * EIGHT * 8;
                float k[8], none = 0;

                if (i >= p.a.K)
                    break;
                if (NORM) {
                    ldv<8>(k, (const float *)(mem + p.norm) + i);
                    v[j] = normed(v[j], k, p.a.off, &none);
                }
                *(uint4 *)((bf16 *)(mem + p.tokens) + (int64_t)token * p.a.K + i) = v[j];
            }
        }
    }
}

/* A piece of N elements of two rows W into the sums of T tokens. */
template <int T> static __device__ __forceinline__ void multiply(float (&acc)[2][T][2], const bf16 *w, int kc,
        const bf16 *x, int K, int last, int n, int lane)
{
#pragma unroll 4
    for (int e = lane * 8; e < n; e += CHUNK) {
        float u[2][8];

        ldv<8>(u[0], w + e);
        ldv<8>(u[1], w + kc + e);
#pragma unroll
        for (int t = 0; t < T; t++) {
            float v[8];

            ldv<8>(v, x + min(t, last) * K + e);
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    acc[r][t][i % 2] = fmaf(u[r][i], v[i], acc[r][t][i % 2]);
        }
    }
}

/* What this lane will write of rows I and I + 1; m -1: nothing. */
struct output {
    int token, m, row;
    float res;
};

template <int MODE, int T>
static __device__ __forceinline__ output output_of(const rows_arg &p, const share &s, int i, int lane)
{
    int at = s.first + i + lane / T;
    output o = { lane % T, -1, 0, 0 };

    if (lane >= (MODE == GLU ? 1 : p.wide) * T || i + lane / T >= s.n || o.token >= p.a.T)
        return o;
    o.m = matrix_of<MODE>(p.a, at);
    o.row = MODE == GLU ? at : at - p.a.m[o.m].y0;
    if (MODE == PLAIN && p.a.res)
        o.res = __bfloat162float(p.a.res[o.token * p.a.ldres + at]);
    return o;
}

/* A warp's rows, one or two at a time. R: the factor of token lane % T. */
template <int MODE, bool NORM, int T> static __device__ __forceinline__ void consume(const rows_arg &p,
        const share &s, char *mem, walk &ahead, int lane)
{
    walk w = { 0, 0, { 0, 0 } };
    float r = 0;

    while (w.i < s.n) {
        float acc[2][T][2] = {}, mine = 0, up = 0;
        output o = output_of<MODE, T>(p, s, w.i, lane);

        for (int c = 0; c < p.pieces; c++) {
            bar_wait(s.full + 8 * w.at.slot, w.at.round & 1);
            multiply<T>(acc, (const bf16 *)s.ring + w.at.slot * p.wide * p.kc, p.wide == 2 ? p.kc : 0,
                        (const bf16 *)(mem + p.tokens) + c * p.kc, p.a.K, p.a.T - 1,
                        min(p.kc, p.a.K - c * p.kc), lane);
            __syncwarp();
            fill<MODE>(ahead, p, s, lane);
            go_on<MODE>(w, p);
        }
#pragma unroll
        for (int k = 0; k < 2 * T; k++) {
            float sum = warp_sum(acc[k / T][k % T][0] + acc[k / T][k % T][1]);

            if (lane == k)
                mine = sum;
            if (MODE == GLU && lane + T == k)
                up = sum;
        }
        if (NORM && r == 0) {
            bar_wait(bar_at(mem) + 8 * WARPS * MOST_SLOTS, 0);
            r = factor(p.a, (const float *)(mem + p.squares), min(lane % T, p.a.T - 1));
        }
        if (o.m >= 0)
            put_sum<MODE>(p.a, o.token, o.m, o.row, mine, up, NORM ? r : 1, o.res);
    }
}
#endif

template <int MODE, bool NORM, int T>
static __global__ void __maxnreg__(80) rows_k(const __grid_constant__ rows_arg p)
{
#if TW_SM90
    extern __shared__ __align__(128) char mem[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t last = bar_at(mem) + 8 * WARPS * MOST_SLOTS;

    step_next();
    if (warp == WARPS) {
        if (!lane) {
            bar_init(last, 1);
            bar_made();
        }
        __syncthreads();
        if (!NORM)
            return;
        step_after();
        squares(p.a, (float *)(mem + p.squares), last, lane);
        return;
    }
    share s = share_of(p, mem, warp);
    walk ahead = { 0, 0, { 0, 0 } };
    if (!lane) {
        for (int i = 0; i < p.slots; i++)
            bar_init(s.full + 8 * i, 1);
        bar_made();
    }
    __syncwarp();
    for (int i = 0; i < p.slots; i++)
        fill<MODE>(ahead, p, s, lane);
    if (NORM)
        keep_norm(p, mem);
    __syncthreads();
    step_after();
    bring<NORM>(p, mem);
    bar_group(1, EIGHT);
    consume<MODE, NORM, T>(p, s, mem, ahead, lane);
#endif
}

/* Lays out shared memory; returns its size, 0: there is not enough. */
static size_t lay_out(struct cu_dev *d, struct rows_arg *p, enum few_mode mode, unsigned blocks)
{
    const struct few_arg *a = &p->a;
    int64_t most = cu_div(cu_div(p->rows, blocks), WARPS), all, slot, room;
    size_t end = cu_step_way(d)->ring;

    p->each = (int32_t)(p->rows / blocks);
    p->more = (int32_t)(p->rows % blocks);
    p->wide = mode == GLU || most > 1 ? 2 : 1;
    p->squares = up((WARPS * MOST_SLOTS + 1) * 8);
    p->norm = p->squares + up(a->T * WARPS * 4);
    p->tokens = p->norm + (a->norm ? up((int64_t)a->K * 4) : 0);
    p->ring = p->tokens + up((int64_t)a->T * a->K * 2);
    end = end < d->smem_max ? end : d->smem_max;
    room = (int64_t)end - p->ring;
    if (room < 32 << 10)        /* tokens take much */
        room = (int64_t)d->smem_max - p->ring;
    room /= WARPS;
    /* Pieces of a row as long as three slots of them have room, or all there are. */
    p->pieces = (int32_t)cu_div(a->K, PIECE);
    do {
        p->kc = (int32_t)cu_div(a->K, (int64_t)p->pieces * CHUNK) * CHUNK;
        slot = (int64_t)p->wide * p->kc * 2;
        all = cu_div(most, mode == GLU ? 1 : p->wide) * cu_div(a->K, p->kc);
        p->slots = (int32_t)(room > 0 ? room / slot : 0);
    } while (p->slots < 3 && p->slots < all && p->kc > CHUNK && p->pieces++ < 64);
    p->pieces = (int32_t)cu_div(a->K, p->kc);
    p->slots = p->slots < all ? p->slots : (int32_t)all;
    p->slots = p->slots < MOST_SLOTS ? p->slots : MOST_SLOTS;
    return p->slots < 2 && p->slots < all ? 0 : (size_t)(p->ring + WARPS * p->slots * slot);
}

template <int MODE, bool NORM, int T> static bool queue(struct cu_dev *d, struct rows_arg *p)
{
    unsigned blocks = (unsigned)(p->rows < d->sms ? p->rows : d->sms);
    size_t smem = lay_out(d, p, (enum few_mode)MODE, blocks);

    if (!smem)
        return false;
    step_room(d, (const void *)rows_k<MODE, NORM, T>);
    step_launch(d, rows_k<MODE, NORM, T>, dim3(blocks), EIGHT + 32, smem, 1, *p);
    return true;
}

template <int T> static bool tokens(struct cu_dev *d, struct rows_arg *p, enum few_mode mode)
{
    if (mode == GLU)
        return queue<GLU, true, T>(d, p);
    if (mode == LOGITS)
        return queue<LOGITS, true, T>(d, p);
    return p->a.norm ? queue<PLAIN, true, T>(d, p) : queue<PLAIN, false, T>(d, p);
}

bool cu_few_rows(struct cu_dev *d, const struct few_arg *a, enum few_mode mode)
{
    struct rows_arg p = {};

    p.a = *a;
    for (int i = 0; i < (mode == GLU ? 1 : a->nm); i++)
        p.rows += a->m[i].rows;
    return a->T == 1 ? tokens<1>(d, &p, mode) : a->T == 2 ? tokens<2>(d, &p, mode) :
        a->T <= MOST_T ? tokens<4>(d, &p, mode) : false;
}
