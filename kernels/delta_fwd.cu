/* delta_fwd.cu - the delta rule in chunks, forward: see delta.cuh.
 *
 * Qwen3.5-4B, 4 x 2048 tokens, 32 value heads of 128: 128 chunks x 32 heads. A chunk of a head takes
 * 9.4 MFLOP (KK^T 0.5, KS 2.1, T R 1.05, K^T E 2.1, QK^T 0.5, QS 2.1, PE 1.05), 38 GFLOP in all;
 * what is read and written is 0.80 GB: K thrice, V and Q once or twice, T 34 MB, E 67 MB and S 134 MB
 * both ways. On an H100 (mma.sync: about 400 TFLOP/s; 2.9 TB/s) that is 0.10 and 0.28 ms; the chain of
 * 32 chunks in 256 blocks, two a multiprocessor, about 1.5 us each, 0.05 ms. Expected: 0.35 ms a layer. */
#include "delta.cuh"

/* 1 / |q| sqrt(dk) and 1 / |k| of a chunk's rows; zero behind them. */
template <typename E>
static __device__ __forceinline__ void norms(const dl_arg &a, const dl_chunk &q, int kh, float *rq,
        float *rk)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float root = 1 / sqrtf((float)a.dk);

    for (int x = warp; x < 2 * dl<E>::CH; x += 8) {
        int i = x / 2, K = x % 2;
        const E *p = dl_qk<E>(a, q.t + i, kh, K);
        float s = 0;

        for (int c = lane; i < q.m && c < a.dk; c += 32)
            s = fmaf(ld1(p + c), ld1(p + c), s);
        s = i < q.m ? 1 / sqrtf(warp_sum(s) + 1e-6f) : 0;
        if (!lane)
            (K ? rk : rq)[i] = K ? s : s * root;
    }
}

/* The numbers of a chunk's rows for value head h, by one warp: G and beta stay here too. */
template <typename E>
static __device__ __forceinline__ void numbers(const dl_arg &a, const dl_chunk &q, int chunk, int h,
        const float *rq, const float *rk, float *G, float *beta)
{
    constexpr int CH = dl<E>::CH, P = CH / 32;
    const int lane = threadIdx.x;
    float *out = a.num + ((int64_t)chunk * a.hv + h) * DL_NUMS * CH;
    float x[P], sum = 0, before;

#pragma unroll
    for (int p = 0; p < P; p++) {
        int i = lane * P + p;

        sum += i < q.m ? a.g[(int64_t)(q.t + i) * a.ldg + h] : 0;
        x[p] = sum;
    }
    before = sum;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        float y = __shfl_up_sync(~0u, before, o);

        before += lane >= o ? y : 0;
    }
    float end = __shfl_sync(~0u, before, 31);
    before = __shfl_up_sync(~0u, before, 1);
#pragma unroll
    for (int p = 0; p < P; p++) {
        int i = lane * P + p;
        float g = lane ? before + x[p] : x[p];
        float b = i < q.m ? a.beta[(int64_t)(q.t + i) * a.ldb + h] : 0;

        G[i] = g;
        beta[i] = b;
        out[DL_G * CH + i] = g;
        out[DL_BETA * CH + i] = b;
        out[DL_RK * CH + i] = rk[i];
        out[DL_RQ * CH + i] = rq[i];
        out[DL_A * CH + i] = expf(g);
        out[DL_E * CH + i] = expf(end - g);
    }
}

/* Two neighbours H wide on the diagonal of T become one: T21 = -T22 (A21 T11). What is in between lies
 * above the diagonal of A. */
template <int CH, int H> static __device__ __forceinline__ void merge(float *A, float *T)
{
    constexpr int LD = CH + 4;

    for (int x = threadIdx.x; x < CH * H / 2; x += DL_THREADS) {
        int p = x / (H * H) * 2 * H, i = x / H % H, j = x % H;
        float s = 0;

#pragma unroll 8
        for (int l = 0; l < H; l++)
            s = fmaf(A[(p + H + i) * LD + p + l], T[(p + l) * LD + p + j], s);
        A[(p + i) * LD + p + H + j] = s;
    }
    __syncthreads();
    for (int x = threadIdx.x; x < CH * H / 2; x += DL_THREADS) {
        int p = x / (H * H) * 2 * H, i = x / H % H, j = x % H;
        float s = 0;

#pragma unroll 8
        for (int l = 0; l < H; l++)
            s = fmaf(T[(p + H + i) * LD + p + H + l], A[(p + l) * LD + p + H + j], s);
        T[(p + H + i) * LD + p + j] = -s;
    }
    __syncthreads();
}

/* T = (I + A)^-1, A strictly lower; T is zero above its blocks of 16 on the diagonal. These by forward
 * substitution, a thread a column; then neighbours are merged. */
template <int CH> static __device__ __forceinline__ void invert(float *A, float *T)
{
    constexpr int LD = CH + 4;
    const int p = threadIdx.x / 16 * 16, j = threadIdx.x % 16;

    if (threadIdx.x < CH) {
        float t[16];

#pragma unroll
        for (int i = 0; i < 16; i++) {
            float s = i == j ? 1 : 0;

#pragma unroll
            for (int l = 0; l < i; l++)
                s = fmaf(-A[(p + i) * LD + p + l], t[l], s);
            t[i] = s;
            T[(p + i) * LD + p + j] = s;
        }
    }
    __syncthreads();
    merge<CH, 16>(A, T);
    if constexpr (CH > 32)
        merge<CH, 32>(A, T);
}

template <typename E, int D> static __global__ void __launch_bounds__(DL_THREADS, 2)
inverse_k(const __grid_constant__ dl_arg a)
{
    using C = dl<E>;
    constexpr int CH = C::CH, LA = CH + 4, LD = D + C::PAD, N = CH / C::CG / 8;
    extern __shared__ __align__(128) char smem[];
    E *sk = (E *)smem;
    float *A = (float *)(sk + CH * LD), *T = A + CH * LA, *rq = T + CH * LA, *rk = rq + CH;
    float *G = rk + CH, *beta = G + CH, kk[N][4];
    const int c = blockIdx.x / a.hk, kh = blockIdx.x % a.hk, per = a.hv / a.hk;
    const int warp = threadIdx.x / 32, r0 = warp % C::RG * 16, n0 = warp / C::RG * (N * 8);
    const dl_chunk q = a.chunk[c];

    load<E, D>(sk, dl_qk<E>(a, q.t, kh, 1), a.ldx, CH, q.m, a.dk, a.vec);
    cp_commit();
    norms<E>(a, q, kh, rq, rk);
    for (int x = threadIdx.x; x < CH * LA; x += DL_THREADS)
        T[x] = 0;
    cp_wait<0>();
    __syncthreads();
    clear<N>(kk);
    mm<N, false, false>(kk, sk, LD, r0, sk, LD, n0, D);
    for (int h = kh * per; h < (kh + 1) * per; h++) {
        E *out = (E *)a.t + ((int64_t)c * a.hv + h) * CH * CH;

        if (warp == 0)
            numbers<E>(a, q, c, h, rq, rk, G, beta);
        __syncthreads();
        DL_PAIRS(N, kk, r0, n0, {
            float s = beta[i] * rk[i], d = G[i];

            A[i * LA + j] = j < i ? s * rk[j] * expf(d - G[j]) * u : 0;
            A[i * LA + j + 1] = j + 1 < i ? s * rk[j + 1] * expf(d - G[j + 1]) * w : 0;
        });
        __syncthreads();
        invert<CH>(A, T);
        for (int x = threadIdx.x * 2; x < CH * CH; x += DL_THREADS * 2)
            st2(out + x, T[x / CH * LA + x % CH], T[x / CH * LA + x % CH + 1]);
    }
}

/* A block of the state's way: NS columns of S of head h of sequence q. */
template <typename E, int D, int NS> struct way {
    using C = dl<E>;
    static constexpr int CH = C::CH, LK = D + C::PAD, LN = NS + C::PAD, LT = CH + C::PAD;
    static constexpr int MG = D / 16, NG = 8 / MG;      /* groups of warps over S */
    static constexpr int N = NS / NG / 8, M = NS / C::CG / 8;   /* tiles of S and of rows by columns */
    static constexpr size_t STAGE = (size_t)(CH * (LK + LN + LT)) * sizeof(E) + DL_NUMS * CH * 4;
    static constexpr size_t SMEM = 2 * STAGE + (size_t)((D + 2 * CH) * LN) * sizeof(E);
};

template <typename E, int D, int NS>
static __device__ __forceinline__ void stage(char *at, const dl_arg &a, int c, int h, int n0)
{
    using W = way<E, D, NS>;
    E *k = (E *)at, *v = k + W::CH * W::LK, *t = v + W::CH * W::LN;
    const dl_chunk q = a.chunk[c];

    load<E, D>(k, dl_qk<E>(a, q.t, h / (a.hv / a.hk), 1), a.ldx, W::CH, q.m, a.dk, a.vec);
    load<E, NS>(v, dl_v<E>(a, q.t, h) + n0, a.ldx, W::CH, q.m, a.dv - n0, a.vec);
    load<E, W::CH>(t, (const E *)a.t + ((int64_t)c * a.hv + h) * W::CH * W::CH, W::CH, W::CH, W::CH,
            W::CH, true);
    load_nums<E>((float *)(t + W::CH * W::LT), a, c, h);
}

/* S between registers and the F32 state. */
template <int N>
static __device__ __forceinline__ void from_state(float (*s)[4], const dl_arg &a, const char *state,
        int h, int r0, int n0)
{
    const float *p = (const float *)(state + a.offset + a.s_at) + (int64_t)h * a.dk * a.dv;

    DL_PAIRS(N, s, r0, n0, {
        u = i < a.dk && j < a.dv ? p[i * a.dv + j] : 0;
        w = i < a.dk && j + 1 < a.dv ? p[i * a.dv + j + 1] : 0;
    });
}
template <int N>
static __device__ __forceinline__ void to_state(float (*s)[4], const dl_arg &a, char *state, int h,
        int r0, int n0)
{
    float *p = (float *)(state + a.offset + a.s_at) + (int64_t)h * a.dk * a.dv;

    DL_PAIRS(N, s, r0, n0, {
        if (i < a.dk && j < a.dv)
            p[i * a.dv + j] = u;
        if (i < a.dk && j + 1 < a.dv)
            p[i * a.dv + j + 1] = w;
    });
}

/* E of a chunk from the stage AT and S (as sS): to memory, and times rk e to sE. */
template <typename E, int D, int NS>
static __device__ __forceinline__ void make_e(const dl_arg &a, const dl_chunk &q, char *at, const E *sS,
        E *sR, E *sE, int h, int n0)
{
    using W = way<E, D, NS>;
    using C = dl<E>;
    E *k = (E *)at, *val = k + W::CH * W::LK, *t = val + W::CH * W::LN;
    const float *num = (float *)(t + W::CH * W::LT);
    const int warp = threadIdx.x / 32, r0 = warp % C::RG * 16, c0 = warp / C::RG * (W::M * 8);
    float y[W::M][4];

    clear<W::M>(y);
    mm<W::M, false, true>(y, k, W::LK, r0, sS, W::LN, c0, D);
    DL_PAIRS(W::M, y, r0, c0, {
        float f = num[DL_A * W::CH + i] * num[DL_RK * W::CH + i], b = num[DL_BETA * W::CH + i];
        float2 x = ld2(val + i * W::LN + j);

        st2(sR + i * W::LN + j, b * (x.x - f * u), b * (x.y - f * w));
    });
    __syncthreads();
    clear<W::M>(y);
    mm<W::M, false, true>(y, t, W::LT, r0, sR, W::LN, c0, W::CH);
    DL_PAIRS(W::M, y, r0, c0, {
        float f = num[DL_RK * W::CH + i] * num[DL_E * W::CH + i];

        if (i < q.m)
            st2((E *)a.e + ((int64_t)(q.t + i) * a.hv + h) * D + n0 + j, u, w);
        st2(sE + i * W::LN + j, f * u, f * w);
    });
    __syncthreads();
}

template <typename E, int D, int NS> static __global__ void __launch_bounds__(DL_THREADS, 2)
state_k(const __grid_constant__ dl_arg a)
{
    using W = way<E, D, NS>;
    extern __shared__ __align__(128) char smem[];
    E *sS = (E *)(smem + 2 * W::STAGE), *sR = sS + D * W::LN, *sE = sR + W::CH * W::LN;
    const int n0 = blockIdx.x % (D / NS) * NS, h = blockIdx.x / (D / NS) % a.hv;
    const dl_seq q = a.seq[blockIdx.x / (D / NS) / a.hv];
    const int warp = threadIdx.x / 32, r0 = warp % W::MG * 16, c0 = warp / W::MG * (W::N * 8);
    float s[W::N][4];
    int mark = 0;

    if (!q.nc)
        return;
    clear<W::N>(s);
    if (q.state && q.past > 0)
        from_state<W::N>(s, a, q.state, h, r0, n0 + c0);
    stage<E, D, NS>(smem, a, q.c0, h, n0);
    cp_commit();
    DL_PAIRS(W::N, s, r0, c0, { st2(sS + i * W::LN + j, u, w); });
    for (int x = 0; x < q.nc; x++) {
        const int c = q.c0 + x;
        const dl_chunk k = a.chunk[c];
        char *at = smem + x % 2 * W::STAGE;
        E *keep = (E *)a.s + ((int64_t)c * a.hv + h) * D * D + n0;

        cp_wait<0>();
        __syncthreads();
        if (x + 1 < q.nc)
            stage<E, D, NS>(smem + (x + 1) % 2 * W::STAGE, a, c + 1, h, n0);
        cp_commit();
        DL_PAIRS(W::N, s, r0, c0, { st2(keep + i * D + j, u, w); });
        make_e<E, D, NS>(a, k, at, sS, sR, sE, h, n0);
        const float *num = (const float *)((E *)at + W::CH * (W::LK + W::LN + W::LT));
        const float end = num[DL_A * W::CH + W::CH - 1];

        DL_PAIRS(W::N, s, r0, c0, { u *= end; w *= end; });
        mm<W::N, true, true>(s, (E *)at, W::LK, r0, sE, W::LN, c0, W::CH);
        DL_PAIRS(W::N, s, r0, c0, { st2(sS + i * W::LN + j, u, w); });
        if (mark < q.nmark && a.mark[q.mark0 + mark].at == k.at + k.m)
            to_state<W::N>(s, a, a.mark[q.mark0 + mark++].state, h, r0, n0 + c0);
    }
    if (q.state)
        to_state<W::N>(s, a, q.state, h, r0, n0 + c0);
}

template <typename E, int D> struct outs {
    using C = dl<E>;
    static constexpr int CH = C::CH, LD = D + C::PAD, LC = CH + C::PAD;
    static constexpr int N = D / C::CG / 8, M = CH / C::CG / 8;
    static constexpr size_t SMEM = (size_t)((3 * CH + D) * LD + CH * LC) * sizeof(E) + DL_NUMS * CH * 4;
};

template <typename E, int D> static __global__ void __launch_bounds__(DL_THREADS, 2)
out_k(const __grid_constant__ dl_arg a)
{
    using W = outs<E, D>;
    using C = dl<E>;
    constexpr int CH = W::CH, LD = W::LD;
    extern __shared__ __align__(128) char smem[];
    E *sq = (E *)smem, *sk = sq + CH * LD, *se = sk + CH * LD, *ss = se + CH * LD, *sp = ss + D * LD;
    float *num = (float *)(sp + CH * W::LC), qk[W::M][4];
    const int c = blockIdx.x / a.hk, kh = blockIdx.x % a.hk, per = a.hv / a.hk;
    const int warp = threadIdx.x / 32, r0 = warp % C::RG * 16, g = warp / C::RG;
    const dl_chunk q = a.chunk[c];

    load<E, D>(sq, dl_qk<E>(a, q.t, kh, 0), a.ldx, CH, q.m, a.dk, a.vec);
    load<E, D>(sk, dl_qk<E>(a, q.t, kh, 1), a.ldx, CH, q.m, a.dk, a.vec);
    for (int h = kh * per; h < (kh + 1) * per; h++) {
        float o[W::N][4];

        load<E, D>(ss, (const E *)a.s + ((int64_t)c * a.hv + h) * D * D, D, D, D, D, true);
        load<E, D>(se, (const E *)a.e + ((int64_t)q.t * a.hv + h) * D, (int64_t)a.hv * D, CH, q.m, D,
                true);
        load_nums<E>(num, a, c, h);
        cp_commit();
        cp_wait<0>();
        __syncthreads();
        if (h == kh * per) {
            clear<W::M>(qk);
            mm<W::M, false, false>(qk, sq, LD, r0, sk, LD, g * W::M * 8, D);
        }
        probs<E, W::M, W::LC>(sp, qk, num, r0, g * W::M * 8);
        clear<W::N>(o);
        mm<W::N, false, true>(o, sq, LD, r0, ss, LD, g * W::N * 8, D);
        DL_PAIRS(W::N, o, r0, g * W::N * 8, {
            float f = num[DL_A * CH + i] * num[DL_RQ * CH + i];

            u *= f;
            w *= f;
        });
        __syncthreads();
        mm<W::N, false, true>(o, sp, W::LC, r0, se, LD, g * W::N * 8, CH);
        DL_PAIRS(W::N, o, r0, g * W::N * 8, {
            if (i < q.m)
                put2((E *)a.o + (int64_t)(q.t + i) * a.ldo + (int64_t)h * a.dv, j, a.dv, a.pair, u, w);
        });
        __syncthreads();        /* the next head's tiles take these places */
    }
}

bool cu_delta_inverse(struct cu_dev *d, const dl_arg *a, enum tw_dtype t)
{
    DL_BY(t, a, {
        constexpr int CH = dl<E>::CH;
        const size_t smem = (size_t)(CH * (D + dl<E>::PAD)) * sizeof(E) + (2 * (CH + 4) + 4) * CH * 4;

        if (!dl_smem(d, inverse_k<E, D>, smem))
            return false;
        inverse_k<E, D><<<(unsigned)(a->nchunk * a->hk), DL_THREADS, smem, d->stream>>>(*a);
    });
    CU_DONE(d, "inverses of the delta rule");
    return true;
}

/* Columns of a block: fewer when there would be idle multiprocessors. */
template <typename E, int D> static bool state(struct cu_dev *d, const dl_arg *a)
{
    const unsigned heads = (unsigned)(a->nseq * a->hv);

    if ((int64_t)heads * (D / 64) < d->sms) {
        if (!dl_smem(d, state_k<E, D, 32>, way<E, D, 32>::SMEM))
            return false;
        state_k<E, D, 32><<<heads * (D / 32), DL_THREADS, way<E, D, 32>::SMEM, d->stream>>>(*a);
    } else {
        if (!dl_smem(d, state_k<E, D, 64>, way<E, D, 64>::SMEM))
            return false;
        state_k<E, D, 64><<<heads * (D / 64), DL_THREADS, way<E, D, 64>::SMEM, d->stream>>>(*a);
    }
    CU_DONE(d, "states of the delta rule");
    return true;
}

bool cu_delta_forward(struct cu_dev *d, const dl_arg *a, enum tw_dtype t)
{
    if (!cu_delta_inverse(d, a, t))
        return false;
    DL_BY(t, a, {
        if (!state<E, D>(d, a) || !dl_smem(d, out_k<E, D>, outs<E, D>::SMEM))
            return false;
        out_k<E, D><<<(unsigned)(a->nchunk * a->hk), DL_THREADS, outs<E, D>::SMEM, d->stream>>>(*a);
    });
    CU_DONE(d, "outputs of the delta rule");
    return true;
}
