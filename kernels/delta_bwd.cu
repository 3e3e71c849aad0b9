/* delta_bwd.cu - the delta rule's way back through the chunks: dE0 of each, then dS and X from the last
 * to the first: see delta.cuh.
 *
 * At the shapes of delta_fwd.cu a chunk of a head takes 9.0 MFLOP here (QK^T 0.5, P^T dO 1.05; K dS 2.1,
 * T^T 1.05, Q^T dO 2.1, K^T X 2.1), 37 GFLOP a layer, and moves 0.73 GB: 0.10 and 0.25 ms. A chunk's
 * tiles are loaded when the one before has let go of them; two blocks share a multiprocessor so that
 * one works meanwhile. Expected: 0.15 ms for the chain of 32 chunks, 0.1 ms before it. */
#include "delta.cuh"

template <typename E, int D> struct des {
    using C = dl<E>;
    static constexpr int CH = C::CH, LD = D + C::PAD, LC = CH + C::PAD;
    static constexpr int N = D / C::CG / 8, M = CH / C::CG / 8;
    static constexpr size_t SMEM = (size_t)(3 * CH * LD + CH * LC) * sizeof(E) + DL_NUMS * CH * 4;
};

template <typename E, int D> static __global__ void __launch_bounds__(DL_THREADS, 2)
de_k(const __grid_constant__ dl_arg a)
{
    using W = des<E, D>;
    using C = dl<E>;
    constexpr int CH = W::CH, LD = W::LD;
    extern __shared__ __align__(128) char smem[];
    E *sq = (E *)smem, *sk = sq + CH * LD, *sd = sk + CH * LD, *sp = sd + CH * LD;
    float *num = (float *)(sp + CH * W::LC), qk[W::M][4];
    const int c = blockIdx.x / a.hk, kh = blockIdx.x % a.hk, per = a.hv / a.hk;
    const int warp = threadIdx.x / 32, r0 = warp % C::RG * 16, g = warp / C::RG;
    const dl_chunk q = a.chunk[c];

    load<E, D>(sq, dl_qk<E>(a, q.t, kh, 0), a.ldx, CH, q.m, a.dk, a.vec);
    load<E, D>(sk, dl_qk<E>(a, q.t, kh, 1), a.ldx, CH, q.m, a.dk, a.vec);
    for (int h = kh * per; h < (kh + 1) * per; h++) {
        float x[W::N][4];

        load<E, D>(sd, (const E *)a.dout + q.t * a.lddo + (int64_t)h * a.dv, a.lddo, CH, q.m, a.dv,
                a.vec);
        load_nums<E>(num, a, c, h);
        cp_commit();
        cp_wait<0>();
        __syncthreads();
        if (h == kh * per) {
            clear<W::M>(qk);
            mm<W::M, false, false>(qk, sq, LD, r0, sk, LD, g * W::M * 8, D);
        }
        probs<E, W::M, W::LC>(sp, qk, num, r0, g * W::M * 8);
        __syncthreads();
        clear<W::N>(x);
        mm<W::N, true, true>(x, sp, W::LC, r0, sd, LD, g * W::N * 8, CH);
        DL_PAIRS(W::N, x, r0, g * W::N * 8, {
            if (i < q.m)
                st2((E *)a.e + ((int64_t)(q.t + i) * a.hv + h) * D + j, u, w);
        });
        __syncthreads();        /* the next head's tiles take these places */
    }
}

/* A block of the way back: NS columns of dS of head h of sequence q. */
template <typename E, int D, int NS> struct back {
    using C = dl<E>;
    static constexpr int CH = C::CH, LK = D + C::PAD, LN = NS + C::PAD, LT = CH + C::PAD;
    static constexpr int MG = D / 16, NG = 8 / MG;
    static constexpr int N = NS / NG / 8, M = NS / C::CG / 8;
    static constexpr size_t SMEM = (size_t)(CH * (2 * LK + LT + 3 * LN) + D * LN) * sizeof(E) +
            DL_NUMS * CH * 4;
    E *q, *k, *t, *x, *dout, *y, *ds;       /* tiles; x: dE0, and then X times a number a row */
    float *num;

    __device__ __forceinline__ explicit back(char *smem)
    {
        q = (E *)smem;
        k = q + CH * LK;
        t = k + CH * LK;
        x = t + CH * LT;
        dout = x + CH * LN;
        y = dout + CH * LN;
        ds = y + CH * LN;
        num = (float *)(ds + D * LN);
    }
};

template <typename E, int D, int NS>
static __device__ __forceinline__ void take(const back<E, D, NS> &b, const dl_arg &a, int c, int h,
        int n0)
{
    using W = back<E, D, NS>;
    const dl_chunk q = a.chunk[c];
    const int kh = h / (a.hv / a.hk);

    load<E, D>(b.q, dl_qk<E>(a, q.t, kh, 0), a.ldx, W::CH, q.m, a.dk, a.vec);
    load<E, D>(b.k, dl_qk<E>(a, q.t, kh, 1), a.ldx, W::CH, q.m, a.dk, a.vec);
    load<E, W::CH>(b.t, (const E *)a.t + ((int64_t)c * a.hv + h) * W::CH * W::CH, W::CH, W::CH, W::CH,
            W::CH, true);
    load<E, NS>(b.x, (const E *)a.e + ((int64_t)q.t * a.hv + h) * D + n0, (int64_t)a.hv * D, W::CH, q.m,
            NS, true);
    load<E, NS>(b.dout, (const E *)a.dout + q.t * a.lddo + (int64_t)h * a.dv + n0, a.lddo, W::CH, q.m,
            a.dv - n0, a.vec);
    load_nums<E>(b.num, a, c, h);
    cp_commit();
    cp_wait<0>();
    __syncthreads();
}

/* X of the chunk, to memory and, times -beta a rk, to its tile; dO times a rq to its own. */
template <typename E, int D, int NS>
static __device__ __forceinline__ void make_x(const back<E, D, NS> &b, const dl_arg &a,
        const dl_chunk &q, int h, int n0)
{
    using W = back<E, D, NS>;
    using C = dl<E>;
    constexpr int CH = W::CH, LN = W::LN;
    const int warp = threadIdx.x / 32, r0 = warp % C::RG * 16, c0 = warp / C::RG * (W::M * 8);
    const float *num = b.num;
    float y[W::M][4];

    clear<W::M>(y);
    mm<W::M, false, true>(y, b.k, W::LK, r0, b.ds, LN, c0, D);
    DL_PAIRS(W::M, y, r0, c0, {
        float f = num[DL_RK * CH + i] * num[DL_E * CH + i];
        float g = num[DL_RQ * CH + i] * num[DL_A * CH + i];
        float2 x = ld2(b.x + i * LN + j), o = ld2(b.dout + i * LN + j);

        st2(b.y + i * LN + j, x.x + f * u, x.y + f * w);
        st2(b.dout + i * LN + j, g * o.x, g * o.y);
    });
    __syncthreads();
    clear<W::M>(y);
    mm<W::M, true, true>(y, b.t, W::LT, r0, b.y, LN, c0, CH);
    DL_PAIRS(W::M, y, r0, c0, {
        float f = -num[DL_BETA * CH + i] * num[DL_A * CH + i] * num[DL_RK * CH + i];

        if (i < q.m)
            st2((E *)a.e + ((int64_t)(q.t + i) * a.hv + h) * D + n0 + j, u, w);
        st2(b.x + i * LN + j, f * u, f * w);
    });
    __syncthreads();
}

template <typename E, int D, int NS> static __global__ void __launch_bounds__(DL_THREADS, 2)
back_k(const __grid_constant__ dl_arg a)
{
    using W = back<E, D, NS>;
    extern __shared__ __align__(128) char smem[];
    const W b(smem);
    const int n0 = blockIdx.x % (D / NS) * NS, h = blockIdx.x / (D / NS) % a.hv;
    const dl_seq q = a.seq[blockIdx.x / (D / NS) / a.hv];
    const int warp = threadIdx.x / 32, r0 = warp % W::MG * 16, c0 = warp / W::MG * (W::N * 8);
    float s[W::N][4];

    clear<W::N>(s);
    for (int c = q.c0 + q.nc - 1; c >= q.c0; c--) {
        E *keep = (E *)a.ds + ((int64_t)c * a.hv + h) * D * D + n0;

        DL_PAIRS(W::N, s, r0, c0, {
            st2(b.ds + i * W::LN + j, u, w);
            st2(keep + i * D + j, u, w);
        });
        take<E, D, NS>(b, a, c, h, n0);
        make_x<E, D, NS>(b, a, a.chunk[c], h, n0);
        const float end = b.num[DL_A * W::CH + W::CH - 1];

        DL_PAIRS(W::N, s, r0, c0, { u *= end; w *= end; });
        mm<W::N, true, true>(s, b.q, W::LK, r0, b.dout, W::LN, c0, W::CH);
        mm<W::N, true, true>(s, b.k, W::LK, r0, b.x, W::LN, c0, W::CH);
        __syncthreads();        /* the chunk before takes these places */
    }
}

template <typename E, int D, int NS> static bool ways(struct cu_dev *d, const dl_arg *a)
{
    if (!dl_smem(d, back_k<E, D, NS>, back<E, D, NS>::SMEM))
        return false;
    back_k<E, D, NS><<<(unsigned)(a->nseq * a->hv * (D / NS)), DL_THREADS, back<E, D, NS>::SMEM,
            d->stream>>>(*a);
    CU_DONE(d, "states of the delta rule, backward");
    return true;
}

bool cu_delta_backward(struct cu_dev *d, const dl_arg *a, enum tw_dtype t)
{
    if (!cu_delta_inverse(d, a, t))
        return false;
    DL_BY(t, a, {
        if (!dl_smem(d, de_k<E, D>, des<E, D>::SMEM))
            return false;
        de_k<E, D><<<(unsigned)(a->nchunk * a->hk), DL_THREADS, des<E, D>::SMEM, d->stream>>>(*a);
        CU_DONE(d, "the delta rule, backward");
        if ((int64_t)a->nseq * a->hv * (D / 64) < d->sms ? !ways<E, D, 32>(d, a) : !ways<E, D, 64>(d, a))
            return false;
    });
    return cu_delta_grads(d, a, t);
}
