/* delta_conv.cu - the causal convolution before the delta rule. A thread has V columns of 16 tokens and
 * keeps their last inputs in registers. The window of a state is a ring: the input of position p is in
 * row p % taps of [taps][C], in the type of the activations; so writers of new inputs and readers of
 * old ones do not meet.
 *
 * Bound by memory: x in and y out are 0.27 GB a layer at Qwen3.5-4B, 4 x 2048 (C 8192): 0.10 ms forward;
 * backward reads x and dy and writes dx, 0.40 GB: 0.15 ms. */
#include "delta.cuh"

#define SPAN 16                 /* tokens of a thread */
#define WIDE 128                /* threads of a block */
#define SPLITS 64               /* most shares of a weight's gradient */

size_t cu_delta_window(const struct tw_delta *s, enum tw_dtype act)
{
    return (size_t)cu_div(s->taps * tw_delta_cols(s) * (act == TW_BF16 ? 2 : 4), 256) * 256;
}

struct conv_arg {
    dl_arg a;
    const void *x, *dy;
    void *y;                    /* or dx */
    const float *w;
    float *part;                /* [splits][C][taps] */
    int64_t ldx, ldy, lddy;
    int32_t len, blocks, splits;        /* rows of a chunk; blocks over columns */
};

/* The input of token AT, counted from the call's first of sequence Q. */
template <typename A, int V>
static __device__ __forceinline__ void input(float (&v)[V], const conv_arg &p, const dl_seq &q, int at,
        int64_t c)
{
    if (at >= 0) {
        ldv<V>(v, (const A *)p.x + (int64_t)(q.t0 + at) * p.ldx + c);
        return;
    }
    if (q.past + at >= 0 && q.past > 0) {
        ldv<V>(v, (const A *)(q.state + p.a.offset) + (int64_t)((q.past + at) % p.a.taps) * p.a.C + c);
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = 0;
}

/* 1 / (1 + e^-x); quick where BF16 comes of it. */
template <typename A> static __device__ __forceinline__ float sigmoid(float x)
{
    return sizeof(A) == 2 ? __fdividef(1, 1 + __expf(-x)) : 1 / (1 + expf(-x));
}

/* What y changes by with what goes into it. */
template <typename A> static __device__ __forceinline__ float silu_slope(float x)
{
    float s = sigmoid<A>(x);

    return s * (1 + x * (1 - s));
}

/* The taps of V columns, and the inputs of one token's taps: four stay in registers, else (N the most)
 * they are read again for every token. */
template <typename A, int V, int N> struct taps {
    float w[N][V], x[N][V];

    __device__ __forceinline__ void open(const conv_arg &p, int64_t c)
    {
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < V; i++)
                w[j][i] = j < p.a.taps ? p.w[(c + i) * p.a.taps + j] : 0;
    }
    /* Before token AT: all but its own input. */
    __device__ __forceinline__ void start(const conv_arg &p, const dl_seq &q, int at, int64_t c)
    {
        if constexpr (N == 4) {
#pragma unroll
            for (int j = 0; j < N - 1; j++)
                input<A, V>(x[j + 1], p, q, at + j - 3, c);
        }
    }
    __device__ __forceinline__ void next(const conv_arg &p, const dl_seq &q, int at, int64_t c)
    {
        if constexpr (N == 4) {
#pragma unroll
            for (int j = 0; j < N - 1; j++)
#pragma unroll
                for (int i = 0; i < V; i++)
                    x[j][i] = x[j + 1][i];
            input<A, V>(x[N - 1], p, q, at, c);
        } else {
#pragma unroll
            for (int j = 0; j < N; j++)
                if (j < p.a.taps)
                    input<A, V>(x[j], p, q, at + j - p.a.taps + 1, c);
        }
    }
    /* The next token's own input is X0. */
    __device__ __forceinline__ void push(const float (&x0)[V])
    {
#pragma unroll
        for (int i = 0; i < V; i++) {
#pragma unroll
            for (int j = 0; j < N - 1; j++)
                x[j][i] = x[j + 1][i];
            x[N - 1][i] = x0[i];
        }
    }
    __device__ __forceinline__ float sum(const conv_arg &p, int i) const
    {
        float s = 0;

#pragma unroll
        for (int j = 0; j < N; j++)
            if (N == 4 || j < p.a.taps)
                s = fmaf(w[j][i], x[j][i], s);
        return s;
    }
};

/* A thread's work: its columns, and tokens at .. of chunk K that begin in sequence Q. False: none. */
template <int V>
static __device__ __forceinline__ bool mine(const conv_arg &p, dl_chunk &k, int &at, int64_t &c)
{
    const int per = (p.len + SPAN - 1) / SPAN, item = blockIdx.x / p.blocks;

    c = ((int64_t)(blockIdx.x % p.blocks) * WIDE + threadIdx.x) * V;
    k = p.a.chunk[item / per];
    at = item % per * SPAN;
    return c < p.a.C && at < k.m;
}

template <typename A, int V, int N> static __global__ void __launch_bounds__(WIDE)
conv_k(const __grid_constant__ conv_arg p)
{
    taps<A, V, N> w;
    dl_chunk k;
    int64_t c;
    int at;

    if (!mine<V>(p, k, at, c))
        return;
    const dl_seq q = p.a.seq[k.seq];
    const int end = min(at + SPAN, k.m);

    w.open(p, c);
    w.start(p, q, k.at + at, c);
    if constexpr (N == 4) {     /* the inputs of four tokens are on their way at once */
        const A *from = (const A *)p.x + (int64_t)(k.t + at) * p.ldx + c;

        for (; at + 4 <= end; at += 4, from += 4 * p.ldx) {
            float x[4][V], y[V];

#pragma unroll
            for (int t = 0; t < 4; t++)
                ldv<V>(x[t], from + t * p.ldx);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                w.push(x[t]);
#pragma unroll
                for (int i = 0; i < V; i++)
                    y[i] = w.sum(p, i), y[i] *= sigmoid<A>(y[i]);
                stv<V>((A *)p.y + (int64_t)(k.t + at + t) * p.ldy + c, y);
            }
        }
    }
    for (; at < end; at++) {
        float y[V];

        w.next(p, q, k.at + at, c);
#pragma unroll
        for (int i = 0; i < V; i++)
            y[i] = w.sum(p, i), y[i] *= sigmoid<A>(y[i]);
        stv<V>((A *)p.y + (int64_t)(k.t + at) * p.ldy + c, y);
    }
}

/* dp, the gradient before silu, of token AT; zero behind the sequence. */
template <typename A, int V, int N>
static __device__ __forceinline__ void before(float (&dp)[V], taps<A, V, N> &w, const conv_arg &p,
        const dl_seq &q, int at, int64_t c)
{
    float dy[V];

    if (at >= q.n) {
#pragma unroll
        for (int i = 0; i < V; i++)
            dp[i] = 0;
        return;
    }
    w.next(p, q, at, c);
    ldv<V>(dy, (const A *)p.dy + (int64_t)(q.t0 + at) * p.lddy + c);
#pragma unroll
    for (int i = 0; i < V; i++)
        dp[i] = dy[i] * silu_slope<A>(w.sum(p, i));
}

template <typename A, int V, int N> static __global__ void __launch_bounds__(WIDE)
dx_k(const __grid_constant__ conv_arg p)
{
    taps<A, V, N> w;
    dl_chunk k;
    int64_t c;
    int at;
    float dp[N][V];             /* of a token and those behind it */

    if (!mine<V>(p, k, at, c))
        return;
    const dl_seq q = p.a.seq[k.seq];
    const int end = min(at + SPAN, k.m), more = p.a.taps - 1;

    w.open(p, c);
    w.start(p, q, k.at + at, c);
#pragma unroll 4
    for (int x = at; x < end + more; x++) {
        float dx[V];

#pragma unroll
        for (int j = 0; j < N - 1; j++)
#pragma unroll
            for (int i = 0; i < V; i++)
                dp[j][i] = dp[j + 1][i];
        before<A, V, N>(dp[N - 1], w, p, q, k.at + x, c);
        if (x < at + more)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            dx[i] = 0;
#pragma unroll
            for (int j = 0; j < N; j++)
                if (j < p.a.taps)       /* token x - more + j, through tap more - j */
                    dx[i] = fmaf(dp[N - 1 - (N == 4 ? 3 : more) + j][i], w.w[(N == 4 ? 3 : more) - j][i],
                            dx[i]);
        }
        stv<V>((A *)p.y + (int64_t)(k.t + x - more) * p.ldy + c, dx);
    }
}

/* A share of dw: chunks blockIdx.y, + splits, .. of one column. */
template <typename A, int N> static __global__ void __launch_bounds__(WIDE)
dw_k(const __grid_constant__ conv_arg p)
{
    int64_t c = (int64_t)blockIdx.x * WIDE + threadIdx.x;
    taps<A, 1, N> w;
    float dw[N] = {}, dp[1];

    if (c >= p.a.C)
        return;
    w.open(p, c);
    for (int x = blockIdx.y; x < p.a.nchunk; x += p.splits) {
        const dl_chunk k = p.a.chunk[x];
        const dl_seq q = p.a.seq[k.seq];

        w.start(p, q, k.at, c);
        for (int i = 0; i < k.m; i++) {
            before<A, 1, N>(dp, w, p, q, k.at + i, c);
#pragma unroll
            for (int j = 0; j < N; j++)
                dw[j] = fmaf(dp[0], N == 4 || j < p.a.taps ? w.x[j][0] : 0, dw[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < p.a.taps)
            p.part[((int64_t)blockIdx.y * p.a.C + c) * p.a.taps + j] = dw[j];
}

static __global__ void gather_k(float *dw, const float *part, int64_t n, int splits)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float s = 0;

    if (i >= n)
        return;
    for (int k = 0; k < splits; k++)
        s += part[k * n + i];
    dw[i] += s;
}

/* The windows behind the call; those at marks come first, they may need what the own one still has. */
template <typename A> static __global__ void __launch_bounds__(WIDE)
window_k(const __grid_constant__ conv_arg p)
{
    const dl_seq q = p.a.seq[blockIdx.x / p.blocks];
    const int64_t c = (int64_t)(blockIdx.x % p.blocks) * WIDE + threadIdx.x;
    float x[1];

    if (!q.state || c >= p.a.C)
        return;
    for (int k = 0; k < q.nmark; k++) {
        const dl_mark m = p.a.mark[q.mark0 + k];

        for (int at = m.at - p.a.taps + 1; at < m.at; at++) {
            if (q.past + at < 0)
                continue;
            input<A, 1>(x, p, q, at, c);
            st1((A *)(m.state + p.a.offset) + (int64_t)((q.past + at) % p.a.taps) * p.a.C + c, x[0]);
        }
    }
    for (int at = max(0, q.n - p.a.taps); at < q.n; at++) {
        input<A, 1>(x, p, q, at, c);
        st1((A *)(q.state + p.a.offset) + (int64_t)((q.past + at) % p.a.taps) * p.a.C + c, x[0]);
    }
}

static bool prepare(struct cu_dev *d, conv_arg *p, const struct tw_delta *s, const struct tw_tensor *x,
        const float *w)
{
    p->x = x->data;
    p->ldx = x->ld;
    p->w = w;
    p->len = x->dtype == TW_BF16 ? dl<bf16>::CH : dl<float>::CH;
    return cu_delta_tables(d, &p->a, s, x) && p->a.nchunk > 0;
}

/* Calls with N = 4 or the most taps. */
#define TAPS(n, ...)                                                                               \
    do {                                                                                           \
        if ((n) == 4) { constexpr int N = 4; __VA_ARGS__; }                                        \
        else { constexpr int N = TW_DELTA_TAPS; __VA_ARGS__; }                                     \
    } while (0)

static unsigned grid_of(conv_arg *p, int v)
{
    p->blocks = (int32_t)cu_div(p->a.C, WIDE * v);
    return (unsigned)(p->blocks * p->a.nchunk * cu_div(p->len, SPAN));
}

void cu_delta_conv(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x, const float *w,
        const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(x, x->cols) && cu_vec8(y, x->cols) && s->taps == 4, states = false;
    conv_arg p = {};

    if (!prepare(d, &p, s, x, w))
        return;
    p.y = y->data;
    p.ldy = y->ld;
    unsigned grid = grid_of(&p, eight ? 8 : 1);
    if (eight)
        CU_ACT(x->dtype, conv_k<A, 8, 4><<<grid, WIDE, 0, d->stream>>>(p));
    else
        CU_ACT(x->dtype, TAPS(s->taps, conv_k<A, 1, N><<<grid, WIDE, 0, d->stream>>>(p)));
    CU_DONE(d, "convolution");
    for (int64_t i = 0; i < s->nseq; i++)
        states |= s->seq[i].state != NULL;
    if (!states || s->taps < 2)
        return;
    p.blocks = (int32_t)cu_div(p.a.C, WIDE);
    CU_ACT(x->dtype, window_k<A><<<(unsigned)(p.blocks * p.a.nseq), WIDE, 0, d->stream>>>(p));
    CU_DONE(d, "windows of the convolution");
}

static void weights(struct cu_dev *d, conv_arg *p, float *dw, enum tw_dtype t)
{
    int64_t n = p->a.C * p->a.taps;

    p->splits = p->a.nchunk < SPLITS ? p->a.nchunk : SPLITS;
    p->part = (float *)cu_scratch(d, CU_S_PART, (size_t)(p->splits * n) * 4);
    if (!p->part)
        return;
    dim3 grid((unsigned)cu_div(p->a.C, WIDE), (unsigned)p->splits);
    CU_ACT(t, TAPS(p->a.taps, dw_k<A, N><<<grid, WIDE, 0, d->stream>>>(*p)));
    gather_k<<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>(dw, p->part, n, p->splits);
    CU_DONE(d, "gradients of the convolution's weights");
}

void cu_delta_conv_bwd(struct tw_dev *dev, struct tw_tensor *dx, float *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const float *w, const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(x, x->cols) && cu_vec8(dy, x->cols) && cu_vec8(dx, x->cols) && s->taps == 4;
    conv_arg p = {};

    if (!prepare(d, &p, s, x, w))
        return;
    p.dy = dy->data;
    p.lddy = dy->ld;
    p.y = dx->data;
    p.ldy = dx->ld;
    unsigned grid = grid_of(&p, eight ? 8 : 1);
    if (eight)
        CU_ACT(x->dtype, dx_k<A, 8, 4><<<grid, WIDE, 0, d->stream>>>(p));
    else
        CU_ACT(x->dtype, TAPS(s->taps, dx_k<A, 1, N><<<grid, WIDE, 0, d->stream>>>(p)));
    CU_DONE(d, "convolution, backward");
    if (dw)
        weights(d, &p, dw, x->dtype);
}
