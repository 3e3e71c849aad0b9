/* attn_simt.cu - attention in plain F32 arithmetic, any type and head size up to 256: what is right
 * for F32 activations and for shapes the tensor-core kernels do not take; and what all share, the
 * rowsums of the backward and the stores into decode states.
 *
 * A block is 8 warps of 4 rows (or keys) each and goes over tiles of 32 of the other side, in
 * shared memory as F32. For products over hd a lane is one of the 32, for products over the 32 a
 * lane is the columns lane, lane + 32, .. of hd. */
#include "attn.cuh"

#define N 32
#define W (N / 8)               /* rows of a warp */

/* Loads into x [N][ld] rows at() .. of which USED(i) exist. */
template <typename F, typename G>
static __device__ __forceinline__ void load(float *x, int ld, int hd, G used, F at)
{
    for (int i = threadIdx.x / 32; i < N; i += 8)
        for (int c = threadIdx.x % 32; c < hd; c += 32)
            x[i * ld + c] = used(i) ? ld1(at(i) + c) : 0;
}

/* s[r] = x[row + r] . y[lane] */
static __device__ __forceinline__ void dots(float *s, const float *x, int row, const float *y,
        int ld, int hd)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < W; r++)
        s[r] = 0;
    for (int c = 0; c < hd; c++)
#pragma unroll
        for (int r = 0; r < W; r++)
            s[r] = fmaf(x[(row + r) * ld + c], y[lane * ld + c], s[r]);
}

/* o[r][i] += sum over the 32 of p[r] (lane's own) y[..][lane + 32 i] */
static __device__ __forceinline__ void mix(float (*o)[8], const float *p, const float *y, int ld,
        int hd)
{
    int lane = threadIdx.x % 32;

    for (int k = 0; k < 32; k++) {
        float w[W];

#pragma unroll
        for (int r = 0; r < W; r++)
            w[r] = __shfl_sync(~0u, p[r], k);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i * 32 + lane < hd) {
                float x = y[k * ld + i * 32 + lane];

#pragma unroll
                for (int r = 0; r < W; r++)
                    o[r][i] = fmaf(w[r], x, o[r][i]);
            }
    }
}

static __device__ __forceinline__ bool seen(const attn_arg &a, int i, int j)
{
    return j <= i && (!a.window || i - j < a.window);
}

template <typename A, bool PAGED> static __global__ void fwd_k(const __grid_constant__ attn_arg a)
{
    extern __shared__ float smem[];
    int ld = a.hd | 1, lane = threadIdx.x % 32, row = threadIdx.x / 32 * W;
    float *q = smem, *k = q + N * ld, *v = k + N * ld;
    attn_tile t = a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int rows = min(s.nq * a.group, t.r0 + a.per), r0 = t.r0 + blockIdx.y * N;
    float o[W][8] = {}, max[W], sum[W] = {};

    if (s.packed == PAGED || r0 >= rows)
        return;
    int first = s.past + row_query(a, r0), last = s.past + row_query(a, min(r0 + N, rows) - 1);

#pragma unroll
    for (int r = 0; r < W; r++)
        max[r] = -INFINITY;
    load(q, ld, a.hd, [&](int i) { return r0 + i < rows; },
         [&](int i) { return (const A *)a.q + row_at(a, s, t.kvh, r0 + i, a.ldq); });
    for (int j = a.window ? ::max(0, first + 1 - a.window) : 0; j <= last; j += N) {
        float p[W];
        auto used = [&](int i) { return j + i <= last; };

        __syncthreads();
        load(k, ld, a.hd, used, [&](int i) { return key_at<A, 0, PAGED>(a, s, t.kvh, j + i); });
        load(v, ld, a.hd, used, [&](int i) { return key_at<A, 1, PAGED>(a, s, t.kvh, j + i); });
        __syncthreads();
        dots(p, q, row, k, ld, a.hd);
#pragma unroll
        for (int r = 0; r < W; r++) {
            int pos = s.past + row_query(a, min(r0 + row + r, rows - 1));
            float x = seen(a, pos, j + lane) ? p[r] * a.scale : -INFINITY;
            float top = fmaxf(max[r], warp_max(x)), fix = max[r] == top ? 1 : expf(max[r] - top);

            p[r] = x == -INFINITY ? 0 : expf(x - top);
            sum[r] = sum[r] * fix + warp_sum(p[r]);
            max[r] = top;
#pragma unroll
            for (int i = 0; i < 8; i++)
                o[r][i] *= fix;
        }
        mix(o, p, v, ld, a.hd);
    }
#pragma unroll
    for (int r = 0; r < W; r++) {
        int at = r0 + row + r;

        if (at >= rows)
            break;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i * 32 + lane < a.hd)
                st1((A *)a.o + row_at(a, s, t.kvh, at, a.ldo) + i * 32 + lane, o[r][i] / sum[r]);
        if (a.lse && !lane)
            a.lse[row_stat(a, s, t.kvh, at)] = max[r] + logf(sum[r]);
    }
}

/* Writes a row of sums. */
template <typename A>
static __device__ __forceinline__ void write(A *to, const float *x, int hd)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i * 32 + (int)threadIdx.x % 32 < hd)
            st1(to + i * 32 + threadIdx.x % 32, x[i]);
}

/* As in attn_bwd.cu: KEYS says who owns. X the owner's N, Y what it goes over. */
template <typename A, bool KEYS> static __global__ void bwd_k(const __grid_constant__ attn_arg a)
{
    extern __shared__ float smem[];
    int ld = a.hd | 1, lane = threadIdx.x % 32, row = threadIdx.x / 32 * W;
    float *x1 = smem, *x2 = x1 + N * ld, *y1 = x2 + N * ld, *y2 = y1 + N * ld;
    attn_tile t = KEYS ? a.t.keys[blockIdx.x] : a.t.rows[blockIdx.x];
    attn_seq s = a.t.seq[t.seq];
    int rows = s.nq * a.group, own0 = t.r0 + blockIdx.y * N;
    int own_end = KEYS ? s.nq : min(rows, t.r0 + a.per);
    float out1[W][8] = {}, out2[W][8] = {};
    int seen0 = a.window ? max(0, row_query(a, own0) + 1 - a.window) : 0;
    int from = KEYS ? own0 * a.group : seen0;
    int end = !KEYS ? row_query(a, min(own0 + N, own_end) - 1) + 1
            : a.window ? min(s.nq, own0 + N - 1 + a.window) * a.group : rows;

    if (own0 >= own_end)
        return;
    auto key1 = [&](int j) { return key_at<A, 0, false>(a, s, t.kvh, j); };
    auto key2 = [&](int j) { return key_at<A, 1, false>(a, s, t.kvh, j); };
    auto row1 = [&](int r) { return (const A *)a.q + row_at(a, s, t.kvh, r, a.ldq); };
    auto row2 = [&](int r) { return (const A *)a.dout + row_at(a, s, t.kvh, r, a.lddo); };
    auto own = [&](int i) { return own0 + i < own_end; };

    load(x1, ld, a.hd, own, [&](int i) { return KEYS ? key1(own0 + i) : row1(own0 + i); });
    load(x2, ld, a.hd, own, [&](int i) { return KEYS ? key2(own0 + i) : row2(own0 + i); });
    for (int j = from; j < end; j += N) {
        float p[W], ds[W];
        auto used = [&](int i) { return j + i < end; };

        __syncthreads();
        load(y1, ld, a.hd, used, [&](int i) { return KEYS ? row1(j + i) : key1(j + i); });
        load(y2, ld, a.hd, used, [&](int i) { return KEYS ? row2(j + i) : key2(j + i); });
        __syncthreads();
        dots(p, x1, row, y1, ld, a.hd);
        dots(ds, x2, row, y2, ld, a.hd);
#pragma unroll
        for (int r = 0; r < W; r++) {
            int mine = min(own0 + row + r, own_end - 1), other = min(j + lane, end - 1);
            int qr = KEYS ? other : mine, key = KEYS ? mine : other;
            int64_t at = row_stat(a, s, t.kvh, qr);

            p[r] = j + lane < end && seen(a, row_query(a, qr), key)
                    ? expf(p[r] * a.scale - a.lse[at]) : 0;
            ds[r] = p[r] * (ds[r] - a.delta[at]) * a.scale;
        }
        mix(out1, ds, y1, ld, a.hd);
        if (KEYS)
            mix(out2, p, y2, ld, a.hd);
    }
#pragma unroll
    for (int r = 0; r < W && own0 + row + r < own_end; r++) {
        int at = own0 + row + r;
        int64_t kv = (int64_t)t.kvh * a.hd;

        if (KEYS) {
            write<A>((A *)a.dk + (s.q0 + at) * a.lddk + kv, out1[r], a.hd);
            write<A>((A *)a.dv + (s.q0 + at) * a.lddv + kv, out2[r], a.hd);
        } else {
            write<A>((A *)a.dq + row_at(a, s, t.kvh, at, a.lddq), out1[r], a.hd);
        }
    }
}

/* delta[t, h] = dO . O, a warp each. */
template <typename A>
static __global__ void delta_k(float *delta, const __grid_constant__ attn_arg a, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;

    if (i >= n)
        return;
    int64_t t = i / a.nh, h = i % a.nh;
    const A *x = (const A *)a.dout + t * a.lddo + h * a.hd;
    const A *y = (const A *)a.out + t * a.ldo + h * a.hd;
    float sum = 0;

    for (int c = threadIdx.x % 32; c < a.hd; c += 32)
        sum = fmaf(ld1(x + c), ld1(y + c), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        delta[i] = sum;
}

/* The same for BF16 in whole 16-byte words: L lanes each. */
template <int L>
static __global__ void delta8_k(float *delta, const __grid_constant__ attn_arg a, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / L;
    int c = threadIdx.x % L * 8;
    float sum = 0;

    if (i < n && c < a.hd) {
        int64_t t = i / a.nh, h = i % a.nh;
        uint4 x = *(const uint4 *)((const bf16 *)a.dout + t * a.lddo + h * a.hd + c);
        uint4 y = *(const uint4 *)((const bf16 *)a.out + t * a.ldo + h * a.hd + c);
        const bf16 *px = (const bf16 *)&x, *py = (const bf16 *)&y;

#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(ld1(px + e), ld1(py + e), sum);
    }
#pragma unroll
    for (int o = L / 2; o; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (i < n && !c)
        delta[i] = sum;
}

/* Stores new keys and values at their positions: blocks of grid row y do sequence y. */
template <typename A> static __global__ void put_k(const __grid_constant__ attn_arg a)
{
    attn_seq s = a.t.seq[blockIdx.y];
    int64_t w = (int64_t)a.nkv * a.hd, n = s.tab < 0 ? 0 : s.nq * w;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
            i += (int64_t)gridDim.x * blockDim.x) {
        int j = (int)(i / w), c = (int)(i % w), pos = s.past + j, kvh = c / a.hd;
        A *to = (A *)key_at<A, 0, true>(a, s, kvh, pos) + c - kvh * a.hd;

        to[0] = ((const A *)a.k)[(s.q0 + j) * a.ldk + c];
        to[BLK * a.hd] = ((const A *)a.v)[(s.q0 + j) * a.ldv + c];
    }
}

void cu_attn_simt(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        enum tw_dtype t)
{
    size_t smem = 3 * (size_t)N * (size_t)(a->hd | 1) * sizeof(float);
    dim3 grid((unsigned)n->rows, ITEM / N);

    if (!n->rows)
        return;
    CU_ACT(t, {
        if (n->packed) {
            if (!smem_want(d, fwd_k<A, false>, smem))
                return;
            fwd_k<A, false><<<grid, 256, smem, d->stream>>>(*a);
            CU_DONE(d, "attention (plain)");
        }
        if (n->paged) {
            if (!smem_want(d, fwd_k<A, true>, smem))
                return;
            fwd_k<A, true><<<grid, 256, smem, d->stream>>>(*a);
            CU_DONE(d, "attention over blocks (plain)");
        }
    });
}

void cu_attn_simt_bwd(struct cu_dev *d, const struct attn_arg *a, const struct attn_count *n,
        enum tw_dtype t)
{
    size_t smem = 4 * (size_t)N * (size_t)(a->hd | 1) * sizeof(float);

    if (!n->keys)
        return;
    CU_ACT(t, {
        if (!smem_want(d, bwd_k<A, true>, smem))
            return;
        bwd_k<A, true><<<dim3((unsigned)n->keys, ITEM / N), 256, smem, d->stream>>>(*a);
        CU_DONE(d, "attention's backward by keys (plain)");
        if (!smem_want(d, bwd_k<A, false>, smem))
            return;
        bwd_k<A, false><<<dim3((unsigned)n->rows, ITEM / N), 256, smem, d->stream>>>(*a);
        CU_DONE(d, "attention's backward by rows (plain)");
    });
}

void cu_attn_delta(struct cu_dev *d, const struct attn_arg *a, float *delta, int64_t T,
        enum tw_dtype t, bool fast)
{
    int64_t n = T * a->nh;

    if (!n)
        return;
    if (fast && a->hd <= 64)
        delta8_k<8><<<(unsigned)cu_div(n, 32), 256, 0, d->stream>>>(delta, *a, n);
    else if (fast && a->hd <= 128)
        delta8_k<16><<<(unsigned)cu_div(n, 16), 256, 0, d->stream>>>(delta, *a, n);
    else if (fast)
        delta8_k<32><<<(unsigned)cu_div(n, 8), 256, 0, d->stream>>>(delta, *a, n);
    else
        CU_ACT(t, delta_k<A><<<(unsigned)cu_div(n, 8), 256, 0, d->stream>>>(delta, *a, n));
    CU_DONE(d, "attention's rowsums");
}

void cu_kv_put(struct cu_dev *d, const struct attn_arg *a, int64_t nseq, int64_t longest,
        enum tw_dtype t)
{
    int64_t x = cu_div(longest * a->nkv * a->hd, 256);
    dim3 grid((unsigned)(x < 1024 ? x : 1024), (unsigned)nseq);

    if (!longest || !nseq)
        return;
    CU_ACT(t, put_k<A><<<grid, 256, 0, d->stream>>>(*a));
    CU_DONE(d, "store of keys");
}
