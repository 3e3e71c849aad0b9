/* step_attn.cu - attention of a decode step: one query a sequence. A block takes the query heads
 * that share one kv head over one split of the keys; it norms and rotates its queries itself, and the
 * block of the last split the new key, which it stores with its value. Lanes hold eight components
 * of a head, so a warp looks at 256 / hd keys at once, straight from registers. The last block of a
 * sequence to finish puts the splits together, in their order. */
#include "step_attn.cuh"

/* Pointers of a split; up to how many sequences have blocks of BIG warps. */
enum { PTRS = 20, SMALL = 8 };

/* Keys and values of U steps from j on; a step is STRIDE keys. */
template <int HD, int U> static __device__ __forceinline__ void load(uint4 (&k)[U], uint4 (&v)[U],
        char *const *ptr, int kvh, int j, int stride, int j0, int end, int l)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        int at = j + u * stride;

        k[u] = v[u] = make_uint4(0, 0, 0, 0);
        if (at < end) {
            const bf16 *p = (const bf16 *)ptr[at / TW_KV_BLOCK - j0 / TW_KV_BLOCK] +
                ((int64_t)kvh * 2 * TW_KV_BLOCK + at % TW_KV_BLOCK) * HD + l * 8;

            k[u] = *(const uint4 *)p;
            v[u] = *(const uint4 *)(p + TW_KV_BLOCK * HD);
        }
    }
}

template <int LPK, int G, int U, int WARPS>
static __global__ void __launch_bounds__(WARPS * 32) attn_k(const __grid_constant__ step_attn_arg a)
{
    constexpr int HD = LPK * 8, KPW = 32 / LPK, STRIDE = WARPS * KPW;
    __shared__ __align__(16) float qs[G][HD], kn[HD], vn[HD], mo[WARPS][G][HD], ms[WARPS][G][2];
    __shared__ char *ptr[PTRS];
    int kvh = blockIdx.x, t = blockIdx.y, pos = a.v.pos[t];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane / LPK, l = lane % LPK;
    int from = a.window ? max(0, pos + 1 - a.window) : 0, s0 = from / a.v.split_keys;
    int ns = pos / a.v.split_keys + 1 - s0, split = blockIdx.z;

    if (pos < 0 || split >= ns)
        return;
    int j0 = max(from, (s0 + split) * a.v.split_keys);
    int j1 = min(pos, (s0 + split + 1) * a.v.split_keys);
    bool own = split == ns - 1; /* of the new key */
    char *const *blk = a.v.blk + (int64_t)t * a.v.maxb;
    float acc[G][8] = {}, top[G], all[G] = {}, q[G][8];
    uint4 k[U], v[U];

    if (threadIdx.x < PTRS && j0 + (int)threadIdx.x * TW_KV_BLOCK < j1 + TW_KV_BLOCK)
        ptr[threadIdx.x] = a.offset +
            blk[min(j0 / TW_KV_BLOCK + (int)threadIdx.x, pos / TW_KV_BLOCK)];
    __syncthreads();
    int j = j0 + warp * KPW + sub;
    load<HD, U>(k, v, ptr, kvh, j, STRIDE, j0, j1, l);
    if (!warp)
        fetch<HD>(a, pos, lane);
    step_wait();
    prepare_all<HD, G, WARPS>(a, qs, kn, vn, blk, t, kvh, pos, own);
    __syncthreads();
    start<LPK, G>(acc, top, all, q, a, qs, kn, vn, own && !warp);
    for (int base = j0; base < j1; base += U * STRIDE, j += U * STRIDE) {
        uint4 k2[U], v2[U];

        load<HD, U>(k2, v2, ptr, kvh, j + U * STRIDE, STRIDE, j0, j1, l);
        take<LPK, G, U>(acc, top, all, q, k, v, j, STRIDE, j1);
#pragma unroll
        for (int u = 0; u < U; u++) {
            k[u] = k2[u];
            v[u] = v2[u];
        }
    }
    join_lanes<LPK, G>(acc, top, all);
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (!sub)
#pragma unroll
            for (int i = 0; i < 8; i++)
                mo[warp][g][l * 8 + i] = acc[g][i];
        if (!lane) {
            ms[warp][g][0] = top[g];
            ms[warp][g][1] = all[g];
        }
    }
    __syncthreads();
    finish<HD, G, WARPS>(a, mo, ms, t, kvh, split, ns);
}

bool cu_step_attn_fits(const struct tw_step_attn *a)
{
    bool hd = a->hd == 16 || a->hd == 32 || a->hd == 64 || a->hd == 128 || a->hd == 256;

    return hd && a->nh % a->nkv == 0 && a->nh / a->nkv <= 8 && a->rot <= a->hd;
}

template <int LPK, int G, int U> static void warps(struct cu_dev *d, const struct step_attn_arg *a,
        dim3 grid)
{
    if constexpr ((LPK == 8 || LPK == 16) && G <= 4)
        if (grid.y <= SMALL) {
            step_launch(d, attn_k<LPK, G, G == 4 ? 2 : U, BIG>, grid, BIG * 32, 0, 1, *a);
            return;
        }
    step_launch(d, attn_k<LPK, G, U, 4>, grid, 128, 0, 1, *a);
}

template <int LPK> static void heads(struct cu_dev *d, const struct step_attn_arg *a, dim3 grid)
{
    if (a->group == 1)
        warps<LPK, 1, 4>(d, a, grid);
    else if (a->group == 2)
        warps<LPK, 2, 4>(d, a, grid);
    else if (a->group <= 4)
        warps<LPK, 4, 4>(d, a, grid);
    else
        warps<LPK, 8, 2>(d, a, grid);
}

void cu_step_attn(struct tw_dev *dev, struct tw_tensor *o, const struct tw_tensor *qkv,
        const struct tw_step_attn *g)
{
    struct cu_dev *d = cu(dev);
    struct step_attn_arg a = {};
    size_t parts = (size_t)(o->rows * g->nh * (g->hd + 2)) * 4;

    a.v = *cu_step_view(d);
    if (g->window)
        a.v.blk = a.v.near;
    a.qkv = (const bf16 *)qkv->data;
    a.ldq = qkv->ld;
    a.o = (bf16 *)o->data;
    a.ldo = o->ld;
    a.qnorm = g->qnorm;
    a.knorm = g->knorm;
    a.eps = g->eps;
    a.cos = g->cos;
    a.sin = g->sin;
    a.rot = (int32_t)g->rot;
    a.pairs = g->interleaved;
    a.gated = g->gated;
    a.offset = g->offset;
    a.scale = g->scale;
    a.nh = (int32_t)g->nh;
    a.nkv = (int32_t)g->nkv;
    a.group = (int32_t)(g->nh / g->nkv);
    a.window = g->window < INT32_MAX ? (int32_t)g->window : 0;
    if (cu_step_way(d)->kind != STEP_PLAIN && cu_step_attn_cluster(d, &a, o->rows, g->hd)) {
        CU_DONE(d, "attention of a step");
        return;
    }
    if (a.v.splits > 1) {
        a.part = (float *)cu_step_buf(d, STEP_PART, parts * (size_t)a.v.splits);
        if (!a.part)
            return;
    }
    a.ticket = (int32_t *)cu_step_buf(d, STEP_TICKET, (size_t)(STEP_MAX * g->nkv) * 4);
    dim3 grid((unsigned)g->nkv, (unsigned)o->rows, (unsigned)a.v.splits);
    if (o->rows > SMALL && cu_step_way(d)->kind != STEP_PLAIN && cu_step_attn_ring(d, &a, grid, g->hd)) {
        CU_DONE(d, "attention of a step");
        return;
    }
    if (g->hd == 16)
        heads<2>(d, &a, grid);
    else if (g->hd == 32)
        heads<4>(d, &a, grid);
    else if (g->hd == 64)
        heads<8>(d, &a, grid);
    else if (g->hd == 128)
        heads<16>(d, &a, grid);
    else
        heads<32>(d, &a, grid);
    CU_DONE(d, "attention of a step");
}
