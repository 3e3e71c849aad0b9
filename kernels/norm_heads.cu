/* norm_heads.cu - RMSNorm of heads of q and k and their rotation in one. L lanes have 8 components of H
 * heads of one token: the loads of all of them are on their way at once, and the token's angles are read
 * once for H heads. Bound by memory: a head is read once and written once. */
#include "norm.cuh"

/* Rotates a head whose component i goes with i + n/2: that lane's partner is L/2 away. */
template <int L> static __device__ __forceinline__ void rotate(float (&v)[8], const float (&c)[8],
        const float (&s)[8], float sign)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float other = __shfl_xor_sync(~0u, v[j], L / 2, L);

        v[j] = v[j] * c[j] + sign * other * s[j];
    }
}

/* Group u of H heads of a row. */
struct unit {
    bool there;
    int64_t row, group;         /* the first of its heads in rstd */
    int head;                   /* and in the row */
};

template <int H> static __device__ __forceinline__ struct unit unit_of(const struct norm_arg &q, unsigned u)
{
    unsigned per = q.gpr / H, row = u / per;
    bool there = u < q.groups / H;

    return { there, there ? row : 0, (int64_t)u * H, (int)(there ? u - row * per : 0) * H };
}

/* This lane's cosines and sines of the unit's token. */
template <int L> static __device__ __forceinline__ void angles(float (&c)[8], float (&s)[8],
        const struct norm_arg &q, const struct unit &u)
{
    int64_t at = (int64_t)q.pos[u.row] * (L * 4) + threadIdx.x % (L / 2) * 8;

    ldv<8>(c, q.cos + at);
    ldv<8>(s, q.sin + at);
}

template <class A, int L, int H, bool ROPE> static __global__ void __launch_bounds__(256)
heads_fwd(A *y, const A *x, const __grid_constant__ struct norm_arg q)
{
    struct unit u = unit_of<H>(q, blockIdx.x * (256 / L) + threadIdx.x / L);
    int lane = threadIdx.x % L, at = u.head * L * 8 + lane * 8;
    eight<A> in[H] = {};
    float w[8], c[8], s[8], v[8];

    cu_after();
#pragma unroll
    for (int h = 0; h < H; h++)
        if (u.there)
            in[h] = eight_at(x + u.row * q.ldx + at + h * L * 8);
    ldv<8>(w, q.w + lane * 8);
    if constexpr (ROPE)
        angles<L>(c, s, q, u);
#pragma unroll
    for (int h = 0; h < H; h++) {
        float sum = 0, r;

        ldv<8>(v, in[h].v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
        r = 1 / sqrtf(lanes_sum<L>(sum) / (float)(L * 8) + q.eps);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = v[j] * r * (w[j] + q.off);
        if constexpr (ROPE)
            rotate<L>(v, c, s, lane < L / 2 ? -1 : 1);
        if (!u.there)
            continue;
        if (!lane)
            q.rstd[u.group + h] = r;
        stv<8>(y + u.row * q.ldy + at + h * L * 8, v);
    }
}

/* dx = r (g - x r mean(g x r)), g = dy (w + off). Each block takes units with a stride, so that its lanes
 * can add up dw as they go; dx may be dy. */
template <class A, int L, int H, bool ROPE, bool DW> static __global__ void __launch_bounds__(256)
heads_bwd(A *dx, const A *dy, const A *x, const __grid_constant__ struct norm_arg q)
{
    enum { PER = 256 / L };
    __shared__ __align__(16) float shares[DW ? PER * L * 8 : 1];
    int lane = threadIdx.x % L;
    float dw[8] = {}, w[8];

    cu_after();
    ldv<8>(w, q.w + lane * 8);
    for (unsigned u0 = blockIdx.x * PER; u0 < q.groups / H; u0 += gridDim.x * PER) {
        struct unit u = unit_of<H>(q, u0 + threadIdx.x / L);
        int at = u.head * L * 8 + lane * 8;
        eight<A> xs[H] = {}, ds[H] = {};
        float c[8], s[8], r[H];

#pragma unroll
        for (int h = 0; h < H; h++) {
            r[h] = u.there ? q.rstd[u.group + h] : 0;
            if (u.there) {
                xs[h] = eight_at(x + u.row * q.ldx + at + h * L * 8);
                ds[h] = eight_at(dy + u.row * q.lddy + at + h * L * 8);
            }
        }
        if constexpr (ROPE)
            angles<L>(c, s, q, u);
#pragma unroll
        for (int h = 0; h < H; h++) {
            A *to = dx + u.row * q.lddx + at + h * L * 8;
            float v[8], d[8], more[8] = {}, sum = 0;

            ldv<8>(v, xs[h].v);
            ldv<8>(d, ds[h].v);
            if constexpr (ROPE)
                rotate<L>(d, c, s, lane < L / 2 ? 1 : -1);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] *= r[h];
                if (DW)
                    dw[j] = fmaf(d[j], v[j], dw[j]);
                d[j] *= w[j] + q.off;
                sum = fmaf(d[j], v[j], sum);
            }
            sum = lanes_sum<L>(sum) / (float)(L * 8);
            if (!u.there)
                continue;
            if (q.add)
                ldv<8>(more, to);
#pragma unroll
            for (int j = 0; j < 8; j++)
                d[j] = r[h] * (d[j] - v[j] * sum) + more[j];
            stv<8>(to, d);
        }
    }
    if constexpr (DW) {
        stv<8>(shares + threadIdx.x * 8, dw);
        norm_share(q, shares, PER);
    }
}

/* Calls with the lanes of a head of N and the heads that they take. */
#define CU_HEADS(n, gpr, ...)                                                                      \
    do {                                                                                           \
        if ((gpr) % 4 == 0) { constexpr int H = 4; CU_HEAD_LANES(n, __VA_ARGS__); }                \
        else { constexpr int H = 1; CU_HEAD_LANES(n, __VA_ARGS__); }                               \
    } while (0)
#define CU_HEAD_LANES(n, ...)                                                                      \
    do {                                                                                           \
        if ((n) == 64) { constexpr int L = 8; __VA_ARGS__; }                                       \
        else if ((n) == 128) { constexpr int L = 16; __VA_ARGS__; }                                \
        else { constexpr int L = 32; __VA_ARGS__; }                                                \
    } while (0)

template <class A> static void forward(struct cu_dev *d, A *y, const A *x, const struct norm_arg &q)
{
    CU_HEADS(q.n, q.gpr, {
        unsigned grid = (unsigned)cu_div(q.groups / H, 256 / L);

        if (q.cos)
            cu_start(d, heads_fwd<A, L, H, true>, grid, 256, 0, y, x, q);
        else
            cu_start(d, heads_fwd<A, L, H, false>, grid, 256, 0, y, x, q);
    });
}

template <class A, bool ROPE> static void backward(struct cu_dev *d, A *dx, const A *dy, const A *x,
        const struct norm_arg &q)
{
    CU_HEADS(q.n, q.gpr, {
        int64_t all = cu_div(q.groups / H, 256 / L);
        unsigned grid = (unsigned)(all < 8 * NORM_BLOCKS ? all : 8 * NORM_BLOCKS);

        if (q.part)
            cu_start(d, heads_bwd<A, L, H, ROPE, true>, NORM_BLOCKS, 256, 0, dx, dy, x, q);
        else
            cu_start(d, heads_bwd<A, L, H, ROPE, false>, grid, 256, 0, dx, dy, x, q);
    });
}

void cu_norm_heads(struct cu_dev *d, enum tw_dtype t, void *y, const void *x, const struct norm_arg *q)
{
    CU_ACT(t, forward<A>(d, (A *)y, (const A *)x, *q));
}

void cu_norm_heads_bwd(struct cu_dev *d, enum tw_dtype t, void *dx, const void *dy, const void *x,
        const struct norm_arg *q)
{
    if (q->cos)
        CU_ACT(t, backward<A, true>(d, (A *)dx, (const A *)dy, (const A *)x, *q));
    else
        CU_ACT(t, backward<A, false>(d, (A *)dx, (const A *)dy, (const A *)x, *q));
}
