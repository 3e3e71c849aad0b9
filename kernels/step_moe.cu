/* step_moe.cu - experts of a decode step, in four kernels: the router's logits of normalised tokens, whose last
 * blocks choose, and list the experts that have rows; gate and up of those rows; down; and the weighted sum.
 * Products are those of few.cu, a block a group of outputs of one expert: its weights go through registers
 * once, whatever the number of rows. Nothing goes to the host, and grids are as large as any choice may
 * need. Hopper has other kernels where they pay (step_experts.cuh). */
#include "step_route.cuh"

/* Rows by expert, and the experts that have some. Where a row stands among its expert's does not
 * matter to what it becomes. */
static __device__ __forceinline__ void list(const moe_arg &a, int32_t *count, int32_t *at)
{
    const int E = (int)a.r.E, K = (int)a.r.K;

    for (int e = threadIdx.x; e < E; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < a.T * K; i += blockDim.x)
        if (a.pos[i / K] >= 0)
            atomicAdd(&count[__ldcg(a.choice + i)], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = threadIdx.x, rows = 0, n = 0;

        for (int first = 0; first < E; first += 32) {
            int e = first + lane, x = e < E ? count[e] : 0, sum = x;
            unsigned some = __ballot_sync(~0u, x > 0);

#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                int y = __shfl_up_sync(~0u, sum, o);

                sum += lane >= o ? y : 0;
            }
            if (x > 0) {
                int i = n + __popc(some & ((1u << lane) - 1));

                a.active[2 * i] = e;
                a.active[2 * i + 1] = x;
                a.start[i] = at[e] = rows + sum - x;
            }
            rows += __shfl_sync(~0u, sum, 31);
            n += __popc(some);
        }
        if (!lane)
            *a.nact = n;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.T * K; i += blockDim.x)
        if (a.pos[i / K] >= 0) {
            int p = atomicAdd(&at[__ldcg(a.choice + i)], 1);

            a.pair[p] = i;
            a.place[i] = p;
        }
}

/* Whether this block is the last of N that come here: then it sees what the others wrote. */
static __device__ __forceinline__ bool is_last(int32_t *ticket, unsigned n, int *last)
{
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) {
        *last = atomicAdd(ticket, 1) == (int)n - 1;
        if (*last)
            *ticket = 0;
        __threadfence();
    }
    __syncthreads();
    return *last;
}

/* Logits of 8 experts, one of a warp, for TOKENS tokens; the last block of these chooses, and the last of all
 * makes the lists. Shared memory:
 * the tokens, or 8 warps' scores, or counts. */
static __global__ void __launch_bounds__(256) router_k(const __grid_constant__ moe_arg a)
{
    extern __shared__ __align__(16) char smem[];
    __shared__ int last;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = (int)a.r.E;
    const int t0 = blockIdx.y * TOKENS, n = min((int)TOKENS, a.T - t0), e = blockIdx.x * 8 + warp;
    const float *row = a.router + min(e, E - 1) * a.ldr;
    bf16 *x = (bf16 *)smem;
    float w[EARLY][8];

#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (lane * 8 + i * 256 < a.D)
            ldv<8>(w[i], row + lane * 8 + i * 256);
    step_wait();
    if (warp < n)
        norm_row(a, x + warp * a.D, blockIdx.x ? NULL : a.xn + (int64_t)(t0 + warp) * a.D, t0 + warp);
    __syncthreads();
    if (e < E) {
        float acc[TOKENS] = {};

#pragma unroll
        for (int i = 0; i < EARLY; i++)
            if (lane * 8 + i * 256 < a.D)
                logits(acc, w[i], x + lane * 8 + i * 256, n, a.D);
        for (int k = lane * 8 + EARLY * 256; k < a.D; k += 256) {
            ldv<8>(w[0], row + k);
            logits(acc, w[0], x + k, n, a.D);
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float s = warp_sum(acc[t]);

            if (!lane && t < n)
                a.logits[(int64_t)(t0 + t) * E + e] = s;
        }
    }
    if (!is_last(a.ticket + 2 + blockIdx.y, gridDim.x, &last))
        return;
    float *p = (float *)smem + warp * 3 * E;

    if (warp < n)
        choose_any(a, p, t0 + warp, a.choice, a.weight);
    if (gridDim.y == 1)
        __syncthreads();
    else if (!is_last(a.ticket, gridDim.y, &last))
        return;
    list(a, (int32_t *)smem, (int32_t *)smem + E);
}

/* Where the warps of a block leave their sums. */
template <int R> struct sums {
    float x[WARPS][16][R * 8];
};

/* Products of the rows of one active expert with R tiles of 8 rows of its matrix: GLU, half of them
 * are of gate and half of up, and the unit is made; else z. U segments of a warp are in registers. */
template <int R, bool GLU_, int U>
static __global__ void __launch_bounds__(WARPS * 32) experts_k(const __grid_constant__ moe_arg a)
{
    constexpr int TILES = GLU_ ? R / 2 : R, COLS = TILES * 8;
    __shared__ __align__(16) sums<R> cell;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int k_all = GLU_ ? a.D : a.I, n_all = GLU_ ? a.I : a.D, nseg = k_all / SEG;
    const int chunks = (nseg + WARPS * U - 1) / (WARPS * U);
    const bf16 *row[R];
    uint4 w[U][R];

    step_wait();
    if ((int)blockIdx.y >= *a.nact)
        return;
    const int e = a.active[2 * blockIdx.y], rows = a.active[2 * blockIdx.y + 1];
    const int first = a.start[blockIdx.y];

#pragma unroll
    for (int r = 0; r < R; r++) {
        int i = min((int)blockIdx.x * COLS + r % TILES * 8 + g, n_all - 1);

        row[r] = (GLU_ ? a.gate_up + e * a.step_gu + (int64_t)(r / TILES * a.I + i) * a.ldgu :
                  a.down + e * a.step_dn + i * a.lddn) + q * 8;
    }
    for (int m = 0; m < rows; m += 16) {
        float acc[R][4] = {};
        const bf16 *x[2] = { NULL, NULL };

#pragma unroll
        for (int h = 0; h < 2; h++)
            if (m + h * 8 + g < rows) {
                int p = first + m + h * 8 + g;

                x[h] = (GLU_ ? a.xn + (int64_t)(a.pair[p] / (int)a.r.K) * a.D : a.h + (int64_t)p * a.I) + q * 8;
            }
        for (int c = 0; c < chunks; c++) {
            if (!m || chunks > 1)
#pragma unroll
                for (int u = 0; u < U; u++)
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        int s = warp + (c * U + u) * WARPS;

                        w[u][r] = s < nseg ? ld_once(row[r] + s * SEG) : make_uint4(0, 0, 0, 0);
                    }
#pragma unroll
            for (int u = 0; u < U; u++) {
                int s = warp + (c * U + u) * WARPS;
                uint4 y[2] = {};

                if (s >= nseg)
                    break;
                if (x[0])
                    y[0] = *(const uint4 *)(x[0] + s * SEG);
                if (x[1])
                    y[1] = *(const uint4 *)(x[1] + s * SEG);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    few_mma(acc[r], y[0].x, y[1].x, y[0].y, y[1].y, w[u][r].x, w[u][r].y);
                    few_mma(acc[r], y[0].z, y[1].z, y[0].w, y[1].w, w[u][r].z, w[u][r].w);
                }
            }
        }
        __syncthreads();        /* the tile before has been added up */
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < R; r++)
                *(float2 *)&cell.x[warp][h * 8 + g][r * 8 + 2 * q] =
                    make_float2(acc[r][2 * h], acc[r][2 * h + 1]);
        __syncthreads();
        for (int i = threadIdx.x; i < min(16, rows - m) * COLS; i += WARPS * 32) {
            int t = i / COLS, c = i % COLS, out = blockIdx.x * COLS + c;
            float v = 0, up = 0;

#pragma unroll
            for (int k = 0; k < WARPS; k++) {
                v += cell.x[k][t][c];
                up += GLU_ ? cell.x[k][t][COLS % (R * 8) + c] : 0;
            }
            if (out >= n_all)
                continue;
            if (GLU_)
                a.h[(int64_t)(first + m + t) * a.I + out] = __float2bfloat16_rn(
                        gate_act(round_bf16(v), a.act) * round_bf16(up));
            else
                a.z[(int64_t)(first + m + t) * a.D + out] = __float2bfloat16_rn(v);
        }
    }
}

static __global__ void __launch_bounds__(64) sum_k(const __grid_constant__ moe_arg a)
{
    const int t = blockIdx.y, c = (blockIdx.x * 64 + threadIdx.x) * 8, K = (int)a.r.K;
    float sum[8] = {}, v[8];

    step_wait();
    if (c >= a.D || a.pos[t] < 0)
        return;
    for (int k = 0; k < K; k++) {
        float w = a.weight[t * K + k];

        ldv<8>(v, a.z + (int64_t)a.place[t * K + k] * a.D + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = fmaf(w, v[i], sum[i]);
    }
    if (a.shared) {
        float g = a.gate ? 1 / (1 + expf(-__bfloat162float(a.gate[t * a.ldg]))) : 1;

        ldv<8>(v, a.shared + t * a.lds + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = fmaf(g, v[i], sum[i]);
    }
    ldv<8>(v, a.x + t * a.ldx + c);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] += sum[i];
    stv<8>(a.to + t * a.ldx + c, v);
}

/* Cuts one buffer into what the kernels hand on. False: no memory. */
static bool cut(struct cu_dev *d, struct moe_arg *a)
{
    size_t T = (size_t)a->T, n = T * (size_t)a->r.K, E = (size_t)a->r.E;
    size_t ints = 64 + MOST_E + 2 * E + E + 3 * n;
    size_t bytes = (ints + n + T * E + 64) * 4 + (T * (size_t)a->D + n * (size_t)(a->I + a->D)) * 2 + 1024;
    char *p = (char *)cu_step_buf(d, STEP_MOE, bytes);

    if (!p)
        return false;
    a->ticket = (int32_t *)p;   /* these and done[] are 0 when the buffer is new, and after every use */
    a->nact = a->ticket + 1;
    a->front = a->ticket + 60;
    a->leave = a->ticket + 61;
    a->done = a->ticket + 64;
    a->active = a->done + MOST_E;
    a->start = a->active + 2 * E;
    a->choice = a->start + E;
    a->pair = a->choice + n;
    a->place = a->pair + n;
    a->weight = (float *)(a->place + n);
    a->logits = a->weight + n;
    a->xn = (bf16 *)(p + ((ints + n + T * E) * 4 + 255) / 256 * 256);
    a->h = a->xn + T * (size_t)a->D;
    a->z = a->h + n * (size_t)a->I;
    return true;
}

template <bool GLU_> static void products(struct cu_dev *d, const struct moe_arg *a, unsigned most)
{
    int64_t n = cu_div((GLU_ ? a->D : a->I) / SEG, WARPS), cols = GLU_ ? a->I : a->D;

    if (n <= 4)
        step_launch(d, experts_k<4, GLU_, 4>, dim3((unsigned)cu_div(cols, GLU_ ? 16 : 32), most),
                WARPS * 32, 0, 1, *a);
    else
        step_launch(d, experts_k<2, GLU_, 8>, dim3((unsigned)cu_div(cols, GLU_ ? 8 : 16), most),
                WARPS * 32, 0, 1, *a);
}

bool cu_step_moe_fits(const struct tw_step_moe *m)
{
    return m->r.E <= MOST_E && m->r.K <= MOST_K && m->router->dtype == TW_F32 &&
            m->gate_up->dtype == TW_BF16 && m->gate_up->cols <= 8192;
}

void cu_step_moe(struct tw_dev *dev, struct tw_tensor *x, const float *norm, float eps,
        const struct tw_step_moe *m, const struct tw_tensor *shared, const struct tw_tensor *gate)
{
    struct cu_dev *d = cu(dev);
    struct moe_arg a = {};
    size_t smem;

    a.r = m->r;
    a.x = a.to = (bf16 *)x->data, a.ldx = x->ld;
    a.norm = norm, a.eps = eps, a.off = cu_step_view(d)->norm_off;
    a.pos = cu_step_view(d)->pos;
    a.T = (int32_t)x->rows, a.D = (int32_t)x->cols, a.I = (int32_t)m->down->cols, a.act = m->act;
    a.router = (const float *)m->router->data, a.ldr = cu_ld(m->router);
    a.gate_up = (const bf16 *)m->gate_up->data, a.ldgu = cu_ld(m->gate_up);
    a.step_gu = (m->gate_up->rows + m->gate_up->ext) * a.ldgu;
    a.down = (const bf16 *)m->down->data, a.lddn = cu_ld(m->down);
    a.step_dn = (m->down->rows + m->down->ext) * a.lddn;
    if (shared)
        a.shared = (const bf16 *)shared->data, a.lds = shared->ld;
    if (gate)
        a.gate = (const bf16 *)gate->data, a.ldg = gate->ld;
    if (!cut(d, &a))
        return;
    smem = (size_t)TOKENS * (size_t)a.D * 2;
    smem = smem > 8 * 3 * (size_t)a.r.E * 4 ? smem : 8 * 3 * (size_t)a.r.E * 4;
    if (cu_step_experts_few(d, &a)) {
        CU_DONE(d, "experts of a step");
        return;
    }
    CU_TRY(d, cudaFuncSetAttribute((const void *)router_k, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)smem));
    step_launch(d, router_k, dim3((unsigned)cu_div(a.r.E, 8), (unsigned)cu_div(a.T, TOKENS)), 256, smem, 1,
            a);
    unsigned rows = (unsigned)(a.T * a.r.K), most = a.r.E < rows ? (unsigned)a.r.E : rows;

    if (!cu_step_experts(d, &a)) {
        products<true>(d, &a, most);
        products<false>(d, &a, most);
    }
    step_launch(d, sum_k, dim3((unsigned)cu_div(a.D, 512), (unsigned)a.T), 64, 0, 1, a);
    CU_DONE(d, "experts of a step");
}
