/* few.cu - products of few tokens: bound by reading the weights once. Tensor cores take 16 tokens
 * by 8 outputs; the lanes of a warp read their part of a row of weights, and of tokens, as 16-byte
 * words straight into fragments: the order of k inside a segment of 32 is permuted, the same on both
 * sides, which a sum does not mind. The 8 warps of a block share the segments of k and are added in
 * order. A warp asks for all its weights before it waits for the kernel that makes its tokens.
 * RMSNorm costs nothing: its factor of a token is taken out of the sum and put on the end. */
#include "few.cuh"

/* The matrix that group G is of. */
template <int MODE> static __device__ __forceinline__ int matrix_of(const few_arg &a, int g)
{
    int m = 0;

    if (MODE == PLAIN)
        while (m + 1 < a.nm && a.m[m + 1].group0 <= g)
            m++;
    return m;
}

/* This lane's row of weights in each of the R tiles of 8 that group G stands for: with GLU the
 * first half of them are of the gate, the others of up. */
template <int R, int MODE>
static __device__ __forceinline__ void rows_of(const few_arg &a, int g, const bf16 *(&row)[R],
        int lane)
{
    constexpr int TILES = MODE == GLU ? R / 2 : R;
    int m = matrix_of<MODE>(a, g);

#pragma unroll
    for (int r = 0; r < R; r++) {
        const few_w &w = a.m[MODE == GLU ? r / TILES : m];
        int first = ((g - w.group0) * TILES + r % TILES) * 8;

        row[r] = w.w + (int64_t)min(first + lane / 4, w.rows - 1) * w.ld + lane % 4 * 8;
    }
}

template <int R, int U>
static __device__ __forceinline__ void load_w(uint4 (&w)[U][R], const bf16 *const (&row)[R],
        int seg, int nseg)
{
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int r = 0; r < R; r++)
            w[u][r] = seg + u * WARPS < nseg ? ld_once(row[r] + (seg + u * WARPS) * SEG) :
                make_uint4(0, 0, 0, 0);
}

/* One chunk of U segments of this warp: fragments of tokens, and products. */
template <int R, int U, bool NORM>
static __device__ __forceinline__ void chunk(const few_arg &a, float (&acc)[R][4], float (&sum)[2],
        const uint4 (&w)[U][R], int seg, int nseg, int lane)
{
    int g = lane / 4, t = lane % 4;
    bool one = g < a.T, two = g + 8 < a.T;
    const bf16 *x = a.x + g * a.ldx + t * 8, *y = x + 8 * a.ldx;

#pragma unroll
    for (int u = 0; u < U; u++) {
        int s = seg + u * WARPS;
        uint4 p = make_uint4(0, 0, 0, 0), q = p;
        float k[8];

        if (s >= nseg)
            break;
        if (one)
            p = *(const uint4 *)(x + s * SEG);
        if (two)
            q = *(const uint4 *)(y + s * SEG);
        if (NORM) {
            ldv<8>(k, a.norm + s * SEG + t * 8);
            p = normed(p, k, a.off, &sum[0]);
            q = normed(q, k, a.off, &sum[1]);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            few_mma(acc[r], p.x, q.x, p.y, q.y, w[u][r].x, w[u][r].y);
            few_mma(acc[r], p.z, q.z, p.w, q.w, w[u][r].z, w[u][r].w);
        }
    }
}

/* Where the warps of a block leave their sums. */
template <int R> struct cells {
    float sum[WARPS][16][R * 8], sq[WARPS][16];
};

template <int R, bool NORM>
static __device__ __forceinline__ void leave(cells<R> &to, const float (&acc)[R][4],
        float (&sum)[2], int warp, int lane)
{
    int g = lane / 4, t = lane % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < R; r++)
            *(float2 *)&to.sum[warp][h * 8 + g][r * 8 + 2 * t] =
                make_float2(acc[r][2 * h], acc[r][2 * h + 1]);
        if (NORM) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
            sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
            if (!t)
                to.sq[warp][h * 8 + g] = sum[h];
        }
    }
}

template <int R>
static __device__ __forceinline__ float add_up(const cells<R> &c, int token, int col)
{
    float x = 0;

#pragma unroll
    for (int k = 0; k < WARPS; k++)
        x += c.sum[k][token][col];
    return x;
}

/* The outputs of group G. */
template <int R, int MODE, bool NORM>
static __device__ __forceinline__ void write_out(const few_arg &a, int g, const cells<R> &cell)
{
    constexpr int COLS = MODE == GLU ? R * 4 : R * 8;
    int m = matrix_of<MODE>(a, g);
    const few_w &w = a.m[m];

    for (int i = threadIdx.x; i < a.T * COLS; i += WARPS * 32) {
        int token = i / COLS, c = i % COLS, row = (g - w.group0) * COLS + c;
        float r = 1, res = 0;

        if (row >= w.rows)
            continue;
        if (MODE == PLAIN && a.res)
            res = __bfloat162float(a.res[token * a.ldres + w.y0 + row]);
        if (NORM) {
            float sq = 0;

#pragma unroll
            for (int k = 0; k < WARPS; k++)
                sq += cell.sq[k][token];
            r = rsqrtf(sq / (float)a.K + a.eps);
        }
        put_sum<MODE>(a, token, m, row, add_up(cell, token, c),
                      MODE == GLU ? add_up(cell, token, COLS + c) : 0, r, res);
    }
}

/* A block a group; a warp has all its weights in flight at once. */
template <int R, int MODE, bool NORM, int U>
static __global__ void __launch_bounds__(WARPS * 32) few_k(const __grid_constant__ few_arg a)
{
    __shared__ __align__(16) cells<R> cell;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nseg = a.K / SEG;
    float acc[R][4] = {}, sum[2] = {};
    const bf16 *row[R];
    uint4 w[U][R];

    rows_of<R, MODE>(a, blockIdx.x, row, lane);
    load_w<R, U>(w, row, warp, nseg);
    if (NORM && lane < U && warp + lane * WARPS < nseg)
        step_fetch(a.norm + (warp + lane * WARPS) * SEG);
    step_wait();
    chunk<R, U, NORM>(a, acc, sum, w, warp, nseg, lane);
    leave<R, NORM>(cell, acc, sum, warp, lane);
    __syncthreads();
    write_out<R, MODE, NORM>(a, blockIdx.x, cell);
}

/* The same for long rows and for many groups: the weights of the next chunk are in flight while
 * those of this one are used. Groups take their cells in turn. */
template <int R, int MODE, bool NORM, int U>
static __global__ void __launch_bounds__(WARPS * 32, 2)
few_loop_k(const __grid_constant__ few_arg a)
{
    __shared__ __align__(16) cells<R> cell[MODE == LOGITS ? 2 : 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nseg = a.K / SEG, turn = 0;
    int chunks = (nseg + WARPS * U - 1) / (WARPS * U);
    const bf16 *row[R];
    uint4 w[U][R], next[U][R];

    rows_of<R, MODE>(a, blockIdx.x, row, lane);
    load_w<R, U>(w, row, warp, nseg);
    step_wait();
    for (int g = blockIdx.x; g < a.groups; g += gridDim.x) {
        float acc[R][4] = {}, sum[2] = {};

        for (int c = 0; c < chunks; c++) {
            int seg = warp + c * U * WARPS;

            if (c + 1 < chunks) {
                load_w<R, U>(next, row, seg + U * WARPS, nseg);
            } else if (g + (int)gridDim.x < a.groups) {
                rows_of<R, MODE>(a, g + gridDim.x, row, lane);
                load_w<R, U>(next, row, warp, nseg);
            }
            chunk<R, U, NORM>(a, acc, sum, w, seg, nseg, lane);
#pragma unroll
            for (int u = 0; u < U; u++)
#pragma unroll
                for (int r = 0; r < R; r++)
                    w[u][r] = next[u][r];
        }
        leave<R, NORM>(cell[turn], acc, sum, warp, lane);
        __syncthreads();
        write_out<R, MODE, NORM>(a, g, cell[turn]);
        turn ^= MODE == LOGITS;
    }
}

/* Numbers the groups of R tiles; returns how many there are. */
template <int R, int MODE> static unsigned number(struct few_arg *a)
{
    int per = MODE == GLU ? R * 4 : R * 8;

    a->groups = 0;
    for (int i = 0; i < (MODE == GLU ? 1 : a->nm); i++) {
        a->m[i].group0 = a->groups;
        a->groups += (int32_t)cu_div(a->m[i].rows, per);
    }
    if (MODE == GLU)
        a->m[1].group0 = 0;
    return (unsigned)a->groups;
}

template <int R, int MODE, bool NORM, int U> static void once(struct cu_dev *d, struct few_arg *a)
{
    unsigned n = number<R, MODE>(a);

    step_launch(d, few_k<R, MODE, NORM, U>, dim3(n), WARPS * 32, 0, 1, *a);
}

template <int R, int MODE, bool NORM, int U> static void loop(struct cu_dev *d, struct few_arg *a)
{
    unsigned n = number<R, MODE>(a), most = (unsigned)d->sms * 2;

    step_launch(d, few_loop_k<R, MODE, NORM, U>, dim3(MODE == LOGITS && n > most ? most : n),
                WARPS * 32, 0, 1, *a);
}

/* Segments of a warp decide: up to 16 of 8 outputs, or 4 of 16, are in flight at once. */
template <bool NORM> static void plain(struct cu_dev *d, struct few_arg *a)
{
    int64_t n = cu_div(a->K / SEG, WARPS), rows = 0;

    for (int i = 0; i < a->nm; i++)
        rows += a->m[i].rows;
    if (n <= 4 && rows >= d->sms * 16)
        once<2, PLAIN, NORM, 4>(d, a);
    else if (n <= 4)
        once<1, PLAIN, NORM, 4>(d, a);
    else if (n <= 8)
        once<1, PLAIN, NORM, 8>(d, a);
    else if (n <= 12)
        once<1, PLAIN, NORM, 12>(d, a);
    else if (n <= 16)
        once<1, PLAIN, NORM, 16>(d, a);
    else
        loop<1, PLAIN, NORM, 8>(d, a);
}

static void gated(struct cu_dev *d, struct few_arg *a)
{
    if (cu_div(a->K / SEG, WARPS) <= 4)
        once<2, GLU, true, 4>(d, a);
    else
        loop<2, GLU, true, 4>(d, a);
}

void cu_few(struct cu_dev *d, struct few_arg *a, enum few_mode mode)
{
    bool ring = cu_step_way(d)->kind == STEP_RING;

    if (ring && (cu_few_hold(d, a, mode) || cu_few_ring(d, a, mode)))
        ;
    else if (mode == GLU)
        gated(d, a);
    else if (mode == LOGITS)
        loop<4, LOGITS, true, 2>(d, a);
    else if (a->norm)
        plain<true>(d, a);
    else
        plain<false>(d, a);
    CU_DONE(d, "products of few tokens");
}
