/* delta_grad.cu - the gradients of a chunk of the delta rule from S at its start, dS behind it, and X:
 * see delta.cuh. With Y = K S, R = V - diag(a rk) Y, E = T diag(beta) R, k^ = rk k, q^ = rq q:
 *     W = dO S^T,  Z = X S^T,  N = E dS^T,  dA = -strictlower(X E^T),  dP = lower(dO E^T)
 *     dV = diag(beta) X
 *     dq^ = diag(a) W + (dP o Gij) k^
 *     dk^ = diag(e) N - diag(beta a) Z + (dP o Gij)^T q^ + B k^ + B^T k^,  Bij = beta_i Gij dA
 *     dbeta_i = X_i.R_i + sum_j dA Gij k^_i.k^_j
 *     dG_i = a rq Q_i.W_i - beta a rk X_i.Y_i + sum_j Fij - sum_j Fji - e rk K_i.N_i
 *     dG_end += sum_i e rk K_i.N_i + a_end <S, dS>,    F = dP o P + dA o A
 *     dg_i = sum of dG from i to the chunk's end
 * A block has a chunk and a q head, whose value heads it takes in turn: their sums stay in registers.
 *
 * At the shapes of delta_fwd.cu a chunk of a value head takes 17.8 MFLOP, 73 GFLOP a layer, and 0.75 GB
 * are moved; one block of 8 warps a multiprocessor, whose phases wait for each other: about 200 TFLOP/s.
 * Expected: 0.40 ms; with delta_bwd.cu 0.65 ms a layer. */
#include "delta.cuh"

enum { SUM_XR, SUM_XY, SUM_QW, SUM_AK, SUM_F, SUM_KN, SUMS };

template <typename E, int D> struct grad {
    using C = dl<E>;
    static constexpr int THREADS = C::low ? 512 : DL_THREADS;   /* twice as many: phases wait less */
    static constexpr int CH = C::CH, RG = C::RG, CG = THREADS / 32 / RG, LD = D + C::PAD, LC = CH + C::PAD;
    static constexpr int N = D / CG / 8, M = CH / CG / 8;
    static constexpr size_t SMEM = (size_t)((6 * CH + D) * LD + 5 * CH * LC) * sizeof(E) +
            (size_t)(DL_NUMS * CH + CG * SUMS * CH + RG * CH + 32) * 4;
    E *q, *k, *dout, *x, *e, *r, *s;    /* tiles; s: S, then dS */
    E *t, *p1, *p2, *b1, *b2;           /* dP Gij times rk_j, rq_i; B times rk_j, rk_i */
    float *num, *row, *col;             /* [CG][SUMS][CH] and [RG][CH]: sums of rows and of columns */
    float *dot;                         /* <S, dS> of each warp */

    __device__ __forceinline__ explicit grad(char *smem)
    {
        q = (E *)smem;
        k = q + CH * LD;
        dout = k + CH * LD;
        x = dout + CH * LD;
        e = x + CH * LD;
        r = e + CH * LD;
        s = r + CH * LD;
        t = s + D * LD;
        p1 = t + CH * LC;
        p2 = p1 + CH * LC;
        b1 = p2 + CH * LC;
        b2 = b1 + CH * LC;
        num = (float *)(b2 + CH * LC);
        row = num + DL_NUMS * CH;
        col = row + CG * SUMS * CH;
        dot = col + RG * CH;
    }
    __device__ __forceinline__ float nums(int kind, int i) const { return num[kind * CH + i]; }
    static __device__ __forceinline__ int r0() { return threadIdx.x / 32 % RG * 16; }
    static __device__ __forceinline__ int group() { return threadIdx.x / 32 / RG; }
    /* A lane's sums of its two rows, over the four lanes of a row and then kept for its warp. */
    __device__ __forceinline__ void keep(int kind, const float *sum) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = sum[h];

            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            if (threadIdx.x % 4 == 0)
                row[(group() * SUMS + kind) * CH + r0() + threadIdx.x % 32 / 4 + h * 8] = v;
        }
    }
    __device__ __forceinline__ float rows(int kind, int i) const
    {
        float v = 0;

#pragma unroll
        for (int g = 0; g < CG; g++)
            v += row[(g * SUMS + kind) * CH + i];
        return v;
    }
};

/* Queues what head h needs; early: what the head before has let go of when its tiles are made. */
template <typename E, int D>
static __device__ __forceinline__ void early(const grad<E, D> &b, const dl_arg &a, const dl_chunk &q,
        int c, int h)
{
    using W = grad<E, D>;
    constexpr int CH = W::CH;

    load<E, D, W::THREADS>(b.dout, (const E *)a.dout + q.t * a.lddo + (int64_t)h * a.dv, a.lddo, CH, q.m,
            a.dv, a.vec);
    load<E, D, W::THREADS>(b.x, (const E *)a.e + ((int64_t)q.t * a.hv + h) * D, (int64_t)a.hv * D, CH, q.m,
            D, true);
    load<E, CH, W::THREADS>(b.t, (const E *)a.t + ((int64_t)c * a.hv + h) * CH * CH, CH, CH, CH, CH, true);
}
template <typename E, int D>
static __device__ __forceinline__ void late(const grad<E, D> &b, const dl_arg &a, int c, int h)
{
    load<E, D, grad<E, D>::THREADS>(b.s, (const E *)a.s + ((int64_t)c * a.hv + h) * D * D, D, D, D, D, true);
    load_nums<E>(b.num, a, c, h);
    cp_commit();
    cp_wait<0>();
    __syncthreads();
}

/* E to its tile; sums of X.R and X.Y. */
template <typename E, int D>
static __device__ __forceinline__ void make_e(const grad<E, D> &b, const dl_arg &a, const dl_chunk &q,
        int h)
{
    using W = grad<E, D>;
    const int r0 = W::r0(), c0 = W::group() * W::N * 8;
    float y[W::N][4], xr[2] = {}, xy[2] = {};

    clear<W::N>(y);
    mm<W::N, false, true>(y, b.k, W::LD, r0, b.s, W::LD, c0, D);
    DL_PAIRS(W::N, y, r0, c0, {
        float f = b.nums(DL_RK, i), g = b.nums(DL_A, i), beta = b.nums(DL_BETA, i);
        float2 x = ld2(b.x + i * W::LD + j), v = make_float2(0, 0);

        if (i < q.m)
            v = get2(dl_v<E>(a, q.t + i, h), j, a.dv, a.vec);
        u *= f;
        w *= f;
        v.x -= g * u;
        v.y -= g * w;
        xr[h_] += x.x * v.x + x.y * v.y;
        xy[h_] += x.x * u + x.y * w;
        st2(b.r + i * W::LD + j, beta * v.x, beta * v.y);
    });
    b.keep(SUM_XR, xr);
    b.keep(SUM_XY, xy);
    __syncthreads();
    clear<W::N>(y);
    mm<W::N, false, true>(y, b.t, W::LC, r0, b.r, W::LD, c0, W::CH);
    DL_PAIRS(W::N, y, r0, c0, { st2(b.e + i * W::LD + j, u, w); });
}

/* What goes through S: W and Z. */
template <typename E, int D>
static __device__ __forceinline__ void through_s(const grad<E, D> &b, float (*dq)[4], float (*dk)[4])
{
    using W = grad<E, D>;
    const int r0 = W::r0(), c0 = W::group() * W::N * 8;
    float y[W::N][4], qw[2] = {};

    clear<W::N>(y);
    mm<W::N, false, false>(y, b.dout, W::LD, r0, b.s, W::LD, c0, D);
    DL_PAIRS(W::N, y, r0, c0, {
        float2 x = ld2(b.q + i * W::LD + j);
        float g = b.nums(DL_A, i);

        qw[h_] += x.x * u + x.y * w;
        dq[n_][h_ * 2] += g * u;
        dq[n_][h_ * 2 + 1] += g * w;
    });
    b.keep(SUM_QW, qw);
    clear<W::N>(y);
    mm<W::N, false, false>(y, b.x, W::LD, r0, b.s, W::LD, c0, D);
    DL_PAIRS(W::N, y, r0, c0, {
        float g = b.nums(DL_BETA, i) * b.nums(DL_A, i);

        dk[n_][h_ * 2] -= g * u;
        dk[n_][h_ * 2 + 1] -= g * w;
    });
}

/* One element of dA and dP at i, j, with the products qk and kk there: what it adds to sums (F, dA Gij
 * k^.k^), and its entries in the tiles. */
struct inner_out {
    float f, ak, p1, p2, b1, b2;
};
template <typename E, int D>
static __device__ __forceinline__ inner_out inner_at(const grad<E, D> &b, int i, int j, float da, float dp,
        float qk, float kk)
{
    inner_out o = { 0, 0, 0, 0, 0, 0 };

    if (j > i)
        return o;
    float gam = expf(b.nums(DL_G, i) - b.nums(DL_G, j)), ri = b.nums(DL_RK, i), rj = b.nums(DL_RK, j);
    float rq = b.nums(DL_RQ, i), beta = b.nums(DL_BETA, i), p = dp * gam;

    o.f = p * rq * rj * qk;
    o.p1 = p * rj;
    o.p2 = p * rq;
    if (j < i) {
        float d = -da * gam;

        o.ak = d * ri * rj * kk;
        o.f += beta * o.ak;
        o.b1 = beta * d * rj;
        o.b2 = beta * d * ri;
    }
    return o;
}

template <typename E, int D>
static __device__ __forceinline__ void inner(const grad<E, D> &b, float (*qk)[4], float (*kk)[4])
{
    using W = grad<E, D>;
    const int r0 = W::r0(), c0 = W::group() * W::M * 8;
    float da[W::M][4], dp[W::M][4], f[2] = {}, ak[2] = {}, col[W::M][2] = {};

    clear<W::M>(da);
    clear<W::M>(dp);
    mm<W::M, false, false>(da, b.x, W::LD, r0, b.e, W::LD, c0, D);
    mm<W::M, false, false>(dp, b.dout, W::LD, r0, b.e, W::LD, c0, D);
    DL_PAIRS(W::M, da, r0, c0, {
        const int z = h_ * 2, at = i * W::LC + j;
        inner_out l = inner_at(b, i, j, u, dp[n_][z], qk[n_][z], kk[n_][z]);
        inner_out r = inner_at(b, i, j + 1, w, dp[n_][z + 1], qk[n_][z + 1], kk[n_][z + 1]);

        st2(b.p1 + at, l.p1, r.p1);
        st2(b.p2 + at, l.p2, r.p2);
        st2(b.b1 + at, l.b1, r.b1);
        st2(b.b2 + at, l.b2, r.b2);
        f[h_] += l.f + r.f;
        ak[h_] += l.ak + r.ak;
        col[n_][0] += l.f;
        col[n_][1] += r.f;
    });
    b.keep(SUM_F, f);
    b.keep(SUM_AK, ak);
#pragma unroll
    for (int n = 0; n < W::M; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float v = col[n][k];

#pragma unroll
            for (int o = 4; o < 32; o *= 2)
                v += __shfl_xor_sync(~0u, v, o);
            if (threadIdx.x % 32 < 4)
                b.col[r0 / 16 * W::CH + c0 + n * 8 + threadIdx.x % 4 * 2 + k] = v;
        }
}

/* What the tiles give, and what goes through dS, whose product with S is a sum too. */
template <typename E, int D>
static __device__ __forceinline__ void outer(const grad<E, D> &b, const E *s, float (*dq)[4],
        float (*dk)[4])
{
    using W = grad<E, D>;
    const int r0 = W::r0(), c0 = W::group() * W::N * 8;
    float y[W::N][4], kn[2] = {}, dot = 0;

    mm<W::N, false, true>(dq, b.p1, W::LC, r0, b.k, W::LD, c0, W::CH);
    mm<W::N, true, true>(dk, b.p2, W::LC, r0, b.q, W::LD, c0, W::CH);
    mm<W::N, false, true>(dk, b.b1, W::LC, r0, b.k, W::LD, c0, W::CH);
    mm<W::N, true, true>(dk, b.b2, W::LC, r0, b.k, W::LD, c0, W::CH);
    clear<W::N>(y);
    mm<W::N, false, false>(y, b.e, W::LD, r0, b.s, W::LD, c0, D);
    DL_PAIRS(W::N, y, r0, c0, {
        float2 x = ld2(b.k + i * W::LD + j);
        float g = b.nums(DL_E, i);

        kn[h_] += x.x * u + x.y * w;
        dk[n_][h_ * 2] += g * u;
        dk[n_][h_ * 2 + 1] += g * w;
    });
    b.keep(SUM_KN, kn);
    for (int x = threadIdx.x * 2; x < D * D; x += W::THREADS * 2) {
        float2 p = ld2(s + x), g = ld2(b.s + x / D * W::LD + x % D);

        dot = fmaf(p.x, g.x, fmaf(p.y, g.y, dot));
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0)
        b.dot[threadIdx.x / 32] = dot;
}

/* dg and dbeta, by one warp. */
template <typename E, int D>
static __device__ __forceinline__ void numbers(const grad<E, D> &b, const dl_arg &a, const dl_chunk &q,
        int h)
{
    using W = grad<E, D>;
    constexpr int P = W::CH / 32;
    const int lane = threadIdx.x;
    float x[P], sum = 0, after, kn = 0, dot = 0;

#pragma unroll
    for (int p = 0; p < P; p++) {
        int i = lane * P + p;
        float n = b.nums(DL_E, i) * b.nums(DL_RK, i) * b.rows(SUM_KN, i), col = 0;

#pragma unroll
        for (int g = 0; g < W::RG; g++)
            col += b.col[g * W::CH + i];
        x[p] = b.nums(DL_A, i) * (b.nums(DL_RQ, i) * b.rows(SUM_QW, i) -
                b.nums(DL_BETA, i) * b.rows(SUM_XY, i)) + b.rows(SUM_F, i) - col - n;
        kn += n;
        if (i < q.m)
            a.dbeta[(int64_t)(q.t + i) * a.lddb + h] = b.rows(SUM_XR, i) + b.rows(SUM_AK, i);
    }
#pragma unroll
    for (int g = 0; g < W::THREADS / 32; g++)
        dot += b.dot[g];
    kn = warp_sum(kn) + b.nums(DL_A, W::CH - 1) * dot;
#pragma unroll
    for (int p = P; p-- > 0;) {
        if (lane * P + p == q.m - 1)
            x[p] += kn;
        sum += x[p];
        x[p] = sum;
    }
    after = sum;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        float y = __shfl_down_sync(~0u, after, o);

        after += lane + o < 32 ? y : 0;
    }
    after = __shfl_down_sync(~0u, after, 1);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (lane * P + p < q.m)
            a.dg[(int64_t)(q.t + lane * P + p) * a.lddg + h] = x[p] + (lane < 31 ? after : 0);
}

template <typename E, int D>
static __device__ __forceinline__ void put_dv(const grad<E, D> &b, const dl_arg &a, const dl_chunk &q,
        int h)
{
    using W = grad<E, D>;

    for (int x = threadIdx.x * 2; x < W::CH * D; x += W::THREADS * 2) {
        int i = x / D, j = x % D;
        float2 v = ld2(b.x + i * W::LD + j);
        float beta = b.nums(DL_BETA, i);

        if (i < q.m)
            put2((E *)a.dqkv + (int64_t)(q.t + i) * a.lddx + (int64_t)2 * a.hk * a.dk + (int64_t)h * a.dv,
                 j, a.dv, a.pair, beta * v.x, beta * v.y);
    }
}

/* Through the normalisation: dx = r s (dy - x (x . dy) r^2), r s being what x was multiplied with. */
template <typename E, int D>
static __device__ __forceinline__ void put_dqk(const grad<E, D> &b, const dl_arg &a, const dl_chunk &q,
        int kh, int K, float (*dy)[4])
{
    using W = grad<E, D>;
    const int r0 = W::r0(), c0 = W::group() * W::N * 8;
    const E *tile = K ? b.k : b.q;
    const float inv = K ? 1 : (float)a.dk;      /* s^-2 */
    float sum[2] = {};

    DL_PAIRS(W::N, dy, r0, c0, {
        float2 x = ld2(tile + i * W::LD + j);

        sum[h_] += x.x * u + x.y * w;
    });
    b.keep(K, sum);
    __syncthreads();
    DL_PAIRS(W::N, dy, r0, c0, {
        float2 x = ld2(tile + i * W::LD + j);
        float r = b.nums(K ? DL_RK : DL_RQ, i), c = b.rows(K, i) * r * r * inv;

        if (i < q.m)
            put2((E *)a.dqkv + (int64_t)(q.t + i) * a.lddx + (int64_t)(K * a.hk + kh) * a.dk, j, a.dk,
                 a.pair, r * (u - c * x.x), r * (w - c * x.y));
    });
}

template <typename E, int D> static __global__ void __launch_bounds__(grad<E, D>::THREADS, 1)
grad_k(const __grid_constant__ dl_arg a)
{
    using W = grad<E, D>;
    constexpr int CH = W::CH, LD = W::LD;
    extern __shared__ __align__(128) char smem[];
    const W b(smem);
    const int c = blockIdx.x / a.hk, kh = blockIdx.x % a.hk, per = a.hv / a.hk;
    const dl_chunk q = a.chunk[c];
    float dq[W::N][4], dk[W::N][4], qk[W::M][4], kk[W::M][4];

    clear<W::N>(dq), clear<W::N>(dk), clear<W::M>(qk), clear<W::M>(kk);
    load<E, D, grad<E, D>::THREADS>(b.q, dl_qk<E>(a, q.t, kh, 0), a.ldx, CH, q.m, a.dk, a.vec);
    load<E, D, grad<E, D>::THREADS>(b.k, dl_qk<E>(a, q.t, kh, 1), a.ldx, CH, q.m, a.dk, a.vec);
    early<E, D>(b, a, q, c, kh * per);
    for (int h = kh * per; h < (kh + 1) * per; h++) {
        const int64_t at = ((int64_t)c * a.hv + h) * D * D;

        late<E, D>(b, a, c, h);
        if (h == kh * per) {
            mm<W::M, false, false>(qk, b.q, LD, W::r0(), b.k, LD, W::group() * W::M * 8, D);
            mm<W::M, false, false>(kk, b.k, LD, W::r0(), b.k, LD, W::group() * W::M * 8, D);
        }
        make_e<E, D>(b, a, q, h);
        through_s<E, D>(b, dq, dk);
        __syncthreads();        /* E is there; S has been read */
        load<E, D, grad<E, D>::THREADS>(b.s, (const E *)a.ds + at, D, D, D, D, true);
        cp_commit();
        inner<E, D>(b, qk, kk);
        put_dv<E, D>(b, a, q, h);
        cp_wait<0>();
        __syncthreads();
        if (h + 1 < (kh + 1) * per)
            early<E, D>(b, a, q, c, h + 1);
        cp_commit();
        outer<E, D>(b, (const E *)a.s + at, dq, dk);
        __syncthreads();
        if (threadIdx.x < 32)
            numbers<E, D>(b, a, q, h);
        __syncthreads();        /* the next head's tiles take these places */
    }
    put_dqk<E, D>(b, a, q, kh, 0, dq);
    put_dqk<E, D>(b, a, q, kh, 1, dk);
}

bool cu_delta_grads(struct cu_dev *d, const dl_arg *a, enum tw_dtype t)
{
    DL_BY(t, a, {
        if (!dl_smem(d, grad_k<E, D>, grad<E, D>::SMEM))
            return false;
        grad_k<E, D><<<(unsigned)(a->nchunk * a->hk), grad<E, D>::THREADS, grad<E, D>::SMEM, d->stream>>>(*a);
    });
    CU_DONE(d, "gradients of the delta rule");
    return true;
}
