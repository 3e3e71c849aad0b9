/* delta_step.cu - the delta rule token by token, for steps that bring few: a block has S of one head of
 * one sequence in registers, a warp every eighth row of it, a lane four columns. delta() in this form,
 * and a whole decode step in one: convolution, gates, rule and gated norm.
 *
 * Bound by memory: S comes and goes once, 128 KiB a head and sequence at Qwen3.5-4B; its 32 heads and 24
 * layers take 0.10 GB a token of a sequence, 0.035 ms of 2.8 ms for the weights at batch 1 (where 32 of
 * 132 multiprocessors work: 3 us a layer instead), and 2.2 ms at batch 64. */
#include "bar.cuh"
#include "delta.cuh"
#include "step.cuh"

#define ROWS (DL_MOST / 8)

struct step_arg {
    dl_arg a;
    const void *z, *ga, *gb;    /* decode: inputs of the norm and of the gates */
    const float *w, *alog, *dt, *gw;
    int64_t ldz, ldga, ldgb;
    float eps;
    struct step_view v;         /* of a decode step; pos NULL: sequences are in a.seq */
};

/* The sequence of row I, and its K-th mark. */
static __device__ __forceinline__ dl_seq seq_of(const step_arg &p, int i)
{
    if (!p.v.pos)
        return p.a.seq[i];
    return { i, 1, p.v.pos[i], 0, 0, 0, p.v.mark[i] != NULL, 0, p.v.rec[i] };
}
static __device__ __forceinline__ char *mark_of(const step_arg &p, const dl_seq &q, int k)
{
    return p.v.pos ? p.v.mark[q.t0] : p.a.mark[q.mark0 + k].state;
}

/* What a block's threads share. */
struct shared {
    float q[DL_MOST], k[DL_MOST], v[DL_MOST];
    float red[2][8][DL_MOST];
};

template <typename A> static __device__ __forceinline__ float rounded(float x)
{
    A y;

    st1(&y, x);
    return ld1(&y);
}

static __device__ __forceinline__ float *s_of(const dl_arg &a, char *state, int h)
{
    return (float *)(state + a.offset + a.s_at) + (int64_t)h * a.dk * a.dv;
}

static __device__ __forceinline__ void get_s(float (*s)[4], const dl_arg &a, const float *p)
{
    const int row = threadIdx.x / 32, col = threadIdx.x % 32 * 4;

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int i = row + r * 8;

#pragma unroll
        for (int c = 0; c < 4; c++)
            s[r][c] = 0;
        if (!p || i >= a.dk || col >= a.dv)
            continue;
        if (a.dv % 4 == 0) {
            float4 x = *(const float4 *)(p + (int64_t)i * a.dv + col);

            s[r][0] = x.x, s[r][1] = x.y, s[r][2] = x.z, s[r][3] = x.w;
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (col + c < a.dv)
                s[r][c] = p[(int64_t)i * a.dv + col + c];
    }
}

static __device__ __forceinline__ void put_s(const dl_arg &a, float *p, float (*s)[4])
{
    const int row = threadIdx.x / 32, col = threadIdx.x % 32 * 4;

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int i = row + r * 8;

        if (i >= a.dk || col >= a.dv)
            continue;
        if (a.dv % 4 == 0) {
            *(float4 *)(p + (int64_t)i * a.dv + col) = make_float4(s[r][0], s[r][1], s[r][2], s[r][3]);
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (col + c < a.dv)
                p[(int64_t)i * a.dv + col + c] = s[r][c];
    }
}

/* Warps 0 and 1 normalise q and k, which are in shared memory since the last barrier. */
static __device__ __forceinline__ void normalise(shared &m, int dk)
{
    const int lane = threadIdx.x % 32;
    float *x = threadIdx.x < 32 ? m.q : m.k, sum = 0;

    if (threadIdx.x >= 64)
        return;
    for (int i = lane; i < dk; i += 32)
        sum = fmaf(x[i], x[i], sum);
    sum = 1 / sqrtf(warp_sum(sum) + 1e-6f);
    if (threadIdx.x < 32)
        sum *= 1 / sqrtf((float)dk);
    for (int i = lane; i < dk; i += 32)
        x[i] *= sum;
}

/* One token: S moves on; o of column threadIdx.x (of the first 128 threads). */
static __device__ __forceinline__ float token(shared &m, float (*s)[4], float decay, float beta)
{
    const int row = threadIdx.x / 32, col = threadIdx.x % 32 * 4;
    float e[4], o[4] = {}, out = 0;

    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; c++)
        e[c] = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[r][c] *= decay;
            e[c] = fmaf(s[r][c], m.k[row + r * 8], e[c]);
        }
    *(float4 *)&m.red[0][row][col] = make_float4(e[0], e[1], e[2], e[3]);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float x = 0;

#pragma unroll
        for (int g = 0; g < 8; g++)
            x += m.red[0][g][col + c];
        e[c] = beta * (m.v[col + c] - x);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[r][c] = fmaf(m.k[row + r * 8], e[c], s[r][c]);
            o[c] = fmaf(s[r][c], m.q[row + r * 8], o[c]);
        }
    *(float4 *)&m.red[1][row][col] = make_float4(o[0], o[1], o[2], o[3]);
    __syncthreads();
#pragma unroll
    for (int g = 0; g < 8; g++)
        out += threadIdx.x < DL_MOST ? m.red[1][g][threadIdx.x] : 0;
    return out;
}

static __device__ __forceinline__ void wipe(shared &m)
{
    for (int i = threadIdx.x; i < DL_MOST; i += DL_THREADS)
        m.q[i] = m.k[i] = m.v[i] = 0;
}

template <typename A> static __global__ void __launch_bounds__(DL_THREADS)
tokens_k(const __grid_constant__ dl_arg a)
{
    __shared__ shared m;
    const dl_seq q = a.seq[blockIdx.x / a.hv];
    const int h = blockIdx.x % a.hv, kh = h / (a.hv / a.hk), x = threadIdx.x;
    float s[ROWS][4];
    int mark = 0;

    get_s(s, a, q.state && q.past > 0 ? s_of(a, q.state, h) : NULL);
    wipe(m);
    for (int t = 0; t < q.n; t++) {
        const int64_t row = q.t0 + t;

        __syncthreads();        /* the token before has been read */
        if (x < a.dk) {
            m.q[x] = ld1(dl_qk<A>(a, row, kh, 0) + x);
            m.k[x] = ld1(dl_qk<A>(a, row, kh, 1) + x);
        }
        if (x < a.dv)
            m.v[x] = ld1(dl_v<A>(a, row, h) + x);
        __syncthreads();
        normalise(m, a.dk);
        float o = token(m, s, expf(a.g[row * a.ldg + h]), a.beta[row * a.ldb + h]);

        if (x < a.dv)
            st1((A *)a.o + row * a.ldo + (int64_t)h * a.dv + x, o);
        if (mark < q.nmark && a.mark[q.mark0 + mark].at == t + 1)
            put_s(a, s_of(a, a.mark[q.mark0 + mark++].state, h), s);
    }
    if (q.state)
        put_s(a, s_of(a, q.state, h), s);
}

/* The convolution of column C, rounded as a pass does; the window moves on. Blocks that share a column
 * write the same into rows that none of them reads. */
template <typename A>
static __device__ __forceinline__ float conv(const step_arg &p, const dl_seq &q, int64_t c)
{
    const dl_arg &a = p.a;
    A *ring = (A *)(q.state + a.offset);
    const float own = ld1((const A *)a.qkv + (int64_t)q.t0 * a.ldx + c);
    float s = 0;

    for (int j = 1 - a.taps; j <= 0; j++) {
        int at = q.past + j;
        float x = !j ? own : at >= 0 ? ld1(ring + (int64_t)(at % a.taps) * a.C + c) : 0;

        s = fmaf(p.w[c * a.taps + a.taps - 1 + j], x, s);
        if (j > 1 - a.taps && at >= 0)
            for (int k = 0; k < q.nmark; k++)
                st1((A *)(mark_of(p, q, k) + a.offset) + (int64_t)(at % a.taps) * a.C + c, x);
    }
    st1(ring + (int64_t)(q.past % a.taps) * a.C + c, own);
    return rounded<A>(s / (1 + expf(-s)));
}

template <typename A> static __global__ void __launch_bounds__(DL_THREADS)
decode_k(const __grid_constant__ step_arg p)
{
    __shared__ shared m;
    const dl_arg &a = p.a;
    const dl_seq q = seq_of(p, blockIdx.x / a.hv);
    const int h = blockIdx.x % a.hv, kh = h / (a.hv / a.hk), x = threadIdx.x;
    const int64_t row = q.t0, head = (int64_t)h * a.dv;
    float s[ROWS][4];

    if (q.past < 0)
        return;
    get_s(s, a, q.past > 0 ? s_of(a, q.state, h) : NULL);
    wipe(m);
    if (p.v.pos)
        step_wait();
    __syncthreads();
    for (int c = x; c < 2 * a.dk + a.dv; c += DL_THREADS) {
        int K = c / a.dk;

        if (K < 2)
            (K ? m.k : m.q)[c - K * a.dk] = conv<A>(p, q, (int64_t)(K * a.hk + kh) * a.dk + c - K * a.dk);
        else
            m.v[c - 2 * a.dk] = conv<A>(p, q, (int64_t)2 * a.hk * a.dk + head + c - 2 * a.dk);
    }
    __syncthreads();
    normalise(m, a.dk);
    double u = (double)ld1((const A *)p.ga + row * p.ldga + h) + p.dt[h];
    float g = (float)(-exp((double)p.alog[h]) * (u > 30 ? u : log1p(exp(u))));
    float beta = 1 / (1 + expf(-ld1((const A *)p.gb + row * p.ldgb + h)));
    float o = rounded<A>(token(m, s, expf(g), beta));
    float r = block_sum(x < a.dv ? o * o : 0);

    if (x < a.dv) {
        float z = ld1((const A *)p.z + row * p.ldz + head + x);

        r = 1 / sqrtf(r / (float)a.dv + p.eps);
        st1((A *)a.o + row * a.ldo + head + x, o * r * p.gw[x] * z / (1 + expf(-z)));
    }
    put_s(a, s_of(a, q.state, h), s);
    for (int k = 0; k < q.nmark; k++)
        put_s(a, s_of(a, mark_of(p, q, k), h), s);
}

/* ---- a decode step on Hopper: the same sums, but S comes into shared memory and goes back by the copy
 * engine, a head in one piece, so that three heads are on their way on a multiprocessor and registers hold
 * none of them. ---- */

enum { PARTS = 4 };             /* of S on its way back */

struct flow {
    float s[DL_MOST][DL_MOST];
    shared m;
    float decay, beta;
    uint64_t full;
};

#if TW_SM90
/* Asks for S, or makes it zero where the sequence begins. */
static __device__ __forceinline__ void flow_in(flow &f, const float *from, bool some)
{
    if (!threadIdx.x) {
        bar_init(bar_at(&f.full), 1);
        bar_made();
        if (some) {
            bar_expect(bar_at(&f.full), sizeof f.s);
            bar_copy(f.s, from, sizeof f.s, bar_at(&f.full));
        }
    }
    for (int i = threadIdx.x; i < (some ? 0 : DL_MOST * DL_MOST / 4); i += DL_THREADS)
        ((float4 *)f.s)[i] = make_float4(0, 0, 0, 0);
}

/* Sends a part of the rows of S to where it was, and to where it is to be copied. By one thread. */
static __device__ __forceinline__ void flow_out(const flow &f, const step_arg &p, const dl_seq &q, int h,
        int part)
{
    constexpr int N = DL_MOST / PARTS;
    const float *from = f.s[part * N];
    const int at = part * N * DL_MOST;

    bar_store(s_of(p.a, q.state, h) + at, from, sizeof f.s / PARTS);
    for (int k = 0; k < q.nmark; k++)
        bar_store(s_of(p.a, mark_of(p, q, k), h) + at, from, sizeof f.s / PARTS);
}

/* token(), of S in shared memory, whose parts are sent as soon as they have moved on. */
static __device__ __forceinline__ float flow_token(flow &f, const step_arg &p, const dl_seq &to, int h)
{
    const bool some = to.past > 0;
    const int row = threadIdx.x / 32, col = threadIdx.x % 32 * 4;
    const float decay = f.decay;
    float e[4] = {}, o[4] = {}, out = 0;

    if (some)
        bar_wait(bar_at(&f.full), 0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float4 s = *(const float4 *)&f.s[row + r * 8][col];
        float k = f.m.k[row + r * 8];

        e[0] = fmaf(s.x * decay, k, e[0]);
        e[1] = fmaf(s.y * decay, k, e[1]);
        e[2] = fmaf(s.z * decay, k, e[2]);
        e[3] = fmaf(s.w * decay, k, e[3]);
    }
    *(float4 *)&f.m.red[0][row][col] = make_float4(e[0], e[1], e[2], e[3]);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float x = 0;

#pragma unroll
        for (int g = 0; g < 8; g++)
            x += f.m.red[0][g][col + c];
        e[c] = f.beta * (f.m.v[col + c] - x);
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int r = part * ROWS / PARTS; r < (part + 1) * ROWS / PARTS; r++) {
            float4 *at = (float4 *)&f.s[row + r * 8][col], s = *at;
            float k = f.m.k[row + r * 8], q = f.m.q[row + r * 8];

            s = make_float4(fmaf(k, e[0], s.x * decay), fmaf(k, e[1], s.y * decay),
                            fmaf(k, e[2], s.z * decay), fmaf(k, e[3], s.w * decay));
            o[0] = fmaf(s.x, q, o[0]);
            o[1] = fmaf(s.y, q, o[1]);
            o[2] = fmaf(s.z, q, o[2]);
            o[3] = fmaf(s.w, q, o[3]);
            *at = s;
        }
        bar_publish();
        __syncthreads();
        if (!threadIdx.x)
            flow_out(f, p, to, h, part);
    }
    *(float4 *)&f.m.red[1][row][col] = make_float4(o[0], o[1], o[2], o[3]);
    __syncthreads();
#pragma unroll
    for (int g = 0; g < 8; g++)
        out += threadIdx.x < DL_MOST ? f.m.red[1][g][threadIdx.x] : 0;
    return out;
}
#endif

static __global__ void __launch_bounds__(DL_THREADS, 3) flow_k(const __grid_constant__ step_arg p)
{
#if TW_SM90
    extern __shared__ __align__(128) char mem[];
    flow &f = *(flow *)mem;
    const dl_arg &a = p.a;
    const dl_seq q = seq_of(p, blockIdx.x / a.hv);
    const int h = blockIdx.x % a.hv, kh = h / (a.hv / a.hk), x = threadIdx.x, D = DL_MOST;
    const int64_t row = q.t0, head = (int64_t)h * D;

    if (q.past < 0)
        return;
    flow_in(f, s_of(a, q.state, h), q.past > 0);
    step_wait();
    for (int c = x; c < 3 * D; c += DL_THREADS)
        if (c < 2 * D)
            (c < D ? f.m.q : f.m.k)[c % D] = conv<bf16>(p, q, (int64_t)(c / D * a.hk + kh) * D + c % D);
        else
            f.m.v[c - 2 * D] = conv<bf16>(p, q, (int64_t)2 * a.hk * D + head + c - 2 * D);
    if (x == D) {
        double u = (double)ld1((const bf16 *)p.ga + row * p.ldga + h) + p.dt[h];

        f.decay = expf((float)(-exp((double)p.alog[h]) * (u > 30 ? u : log1p(exp(u)))));
        f.beta = 1 / (1 + expf(-ld1((const bf16 *)p.gb + row * p.ldgb + h)));
    }
    __syncthreads();
    normalise(f.m, D);
    __syncthreads();
    float o = rounded<bf16>(flow_token(f, p, q, h));
    float r = block_sum(x < D ? o * o : 0);

    if (x < D) {
        float z = ld1((const bf16 *)p.z + row * p.ldz + head + x);

        r = 1 / sqrtf(r / (float)D + p.eps);
        st1((bf16 *)a.o + row * a.ldo + head + x, o * r * p.gw[x] * z / (1 + expf(-z)));
    }
    if (!x)
        bar_stored();
#endif
}

static bool flow_fits(struct cu_dev *d, const step_arg *p)
{
    return cu_step_way(d)->kind != STEP_PLAIN && d->major >= 9 && p->a.dk == DL_MOST && p->a.dv == DL_MOST &&
            (p->a.offset + p->a.s_at) % 16 == 0 && sizeof(struct flow) <= d->smem_max;
}

void cu_delta_tokens(struct cu_dev *d, const dl_arg *a, enum tw_dtype t)
{
    CU_ACT(t, tokens_k<A><<<(unsigned)(a->nseq * a->hv), DL_THREADS, 0, d->stream>>>(*a));
    CU_DONE(d, "the delta rule by tokens");
}

static void inputs(step_arg *p, const struct tw_tensor *y, const struct tw_delta_step *in)
{
    p->a.qkv = in->qkv->data, p->a.ldx = in->qkv->ld;
    p->a.o = y->data, p->a.ldo = y->ld;
    p->z = in->z->data, p->ldz = in->z->ld;
    p->ga = in->a->data, p->ldga = in->a->ld;
    p->gb = in->b->data, p->ldgb = in->b->ld;
    p->w = in->w, p->alog = in->alog, p->dt = in->dt, p->gw = in->norm, p->eps = in->eps;
}

bool cu_step_delta_fits(const struct tw_delta *s)
{
    return s->dk <= DL_MOST && s->dv <= DL_MOST;
}

void cu_step_delta(struct tw_dev *dev, struct tw_tensor *y, const struct tw_delta_step *in,
        const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    step_arg p = {};

    p.a.hk = (int32_t)s->hk, p.a.hv = (int32_t)s->hv, p.a.dk = (int32_t)s->dk, p.a.dv = (int32_t)s->dv;
    p.a.taps = (int32_t)s->taps, p.a.C = tw_delta_cols(s), p.a.offset = (int64_t)s->offset;
    p.a.s_at = (int64_t)cu_delta_window(s, in->qkv->dtype);
    p.v = *cu_step_view(d);
    inputs(&p, y, in);
    dim3 blocks((unsigned)(y->rows * s->hv));

    if (flow_fits(d, &p)) {
        CU_TRY(d, cudaFuncSetAttribute((const void *)flow_k, cudaFuncAttributeMaxDynamicSharedMemorySize,
                    (int)sizeof(struct flow)));
        CU_TRY(d, cudaFuncSetAttribute((const void *)flow_k, cudaFuncAttributePreferredSharedMemoryCarveout,
                    cudaSharedmemCarveoutMaxShared));
        step_launch(d, flow_k, blocks, DL_THREADS, sizeof(struct flow), 1, p);
    } else {
        step_launch(d, decode_k<bf16>, blocks, DL_THREADS, 0, 1, p);
    }
    CU_DONE(d, "a step of the delta rule");
}

void cu_delta_decode(struct tw_dev *dev, struct tw_tensor *y, const struct tw_delta_step *in,
        const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    const struct tw_tensor *x = in->qkv;
    step_arg p = {};

    if (!cu_delta_tables(d, &p.a, s, x) || !p.a.nchunk)
        return;
    inputs(&p, y, in);
    CU_ACT(x->dtype, decode_k<A><<<(unsigned)(p.a.nseq * p.a.hv), DL_THREADS, 0, d->stream>>>(p));
    CU_DONE(d, "a step of the delta rule");
}
