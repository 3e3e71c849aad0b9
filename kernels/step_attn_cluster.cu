/* step_attn_cluster.cu - attention of a decode step of few sequences on Hopper: step_attn.cu's sums,
 * bit for bit, but the 16 warps that share a split's keys there are spread over a cluster of 8 blocks,
 * so that a sequence's keys come by 8 times as many multiprocessors. A block's keys and values are on
 * their way into shared memory before its queries are there, all at once: runs of consecutive keys,
 * copied by the copy engine. Two warps of a block go through them; each of its four or six norms and
 * rotates a head. The warps' parts of the output are sent to the block that puts that piece of it together.
 *
 * Who waits for whom:
 *   keys          the copies are there; by the 32 lanes of the asking warp and the copies
 *   cluster       all blocks have started, so that their memory may be written; arrived at first,
 *                 waited for before the first part is sent
 *   parts         all parts of this block's piece have come, by those who send them. Nobody touches another's
 *                 memory behind it, so blocks may leave at different times
 * Several splits of a sequence are joined as there, by the last that ends, each piece for itself. */
#include "bar.cuh"
#include "step_attn.cuh"

enum { RANKS = 8, MINE = BIG / RANKS, MOST_T = 4 };
enum { WIDE = 256 };            /* threads of a block that is to be alone where a product waits: those that have
                                 * nothing to do leave, and their registers keep others of the kernel away */

template <int HD, int G> struct joint {
    static constexpr int KPW = 256 / HD, STRIDE = BIG * KPW, RUN = MINE * KPW, PIECE = G * HD / RANKS;
    static constexpr int NW = G + 2 > 4 ? G + 2 : 4;    /* warps: one for each head */
    float qs[G][HD], kn[HD], vn[HD];
    float mo[BIG][PIECE], ms[BIG][G][2];        /* of all warps: this block's piece; maxima and sums */
    uint64_t keys, parts;
    int last;
};

/* Keys and values behind the rest: [run][key, value][RUN][HD]. */
template <int HD, int G> static __device__ __forceinline__ bf16 *keys_of(joint<HD, G> *m)
{
    return (bf16 *)((char *)m + (sizeof *m + 127) / 128 * 128);
}

/* Asks for this block's keys of those from j0 to j1: lane i for run i. */
template <int HD, int G> static __device__ __forceinline__ void ask(const step_attn_arg &a, joint<HD, G> *m,
        char *const *blk, int kvh, int rank, int j0, int j1, int lane)
{
    using J = joint<HD, G>;
    int j = j0 + lane * J::STRIDE + rank * J::RUN, n = min(j1 - j, (int)J::RUN);
    uint32_t bytes = n > 0 ? (uint32_t)(n * HD * 2) : 0, bar = bar_at(&m->keys);
    bf16 *to = keys_of(m) + lane * 2 * J::RUN * HD;

    bar_expect(bar, 2 * bytes);
    if (!bytes)
        return;
    const bf16 *from = (const bf16 *)(blk[j / TW_KV_BLOCK] + a.offset) +
        ((int64_t)kvh * 2 * TW_KV_BLOCK + j % TW_KV_BLOCK) * HD;
    bar_copy_kept(to, from, bytes, bar);
    bar_copy_kept(to + J::RUN * HD, from + TW_KV_BLOCK * HD, bytes, bar);
}

/* One of the two warps that have keys: warp W of all 16. Its part goes to the blocks it is for. */
template <int HD, int G, int U> static __device__ __forceinline__ void attend(const step_attn_arg &a,
        joint<HD, G> *m, int w, int j0, int j1, bool own)
{
    using J = joint<HD, G>;
    constexpr int LPK = HD / 8;
    int lane = threadIdx.x % 32, sub = lane / LPK, l = lane % LPK, j = j0 + w * J::KPW + sub;
    const bf16 *at = keys_of(m) + (w % MINE * J::KPW + sub) * HD + l * 8;
    float acc[G][8] = {}, top[G], all[G] = {}, q[G][8];

    start<LPK, G>(acc, top, all, q, a, m->qs, m->kn, m->vn, own && !w);
    bar_wait(bar_at(&m->keys), 0);
    for (int base = j0; base < j1; base += U * J::STRIDE, j += U * J::STRIDE) {
        uint4 k[U], v[U];

#pragma unroll
        for (int u = 0; u < U; u++, at += 2 * J::RUN * HD) {
            k[u] = v[u] = make_uint4(0, 0, 0, 0);
            if (j + u * J::STRIDE < j1) {
                k[u] = *(const uint4 *)at;
                v[u] = *(const uint4 *)(at + J::RUN * HD);
            }
        }
        take<LPK, G, U>(acc, top, all, q, k, v, j, J::STRIDE, j1);
    }
    join_lanes<LPK, G>(acc, top, all);
    cluster_wait();
#pragma unroll
    for (int g = 0; g < G; g++) {
        int i = g * HD + l * 8;
        uint32_t to = bar_at(&m->mo[w][i % J::PIECE]), bar = bar_at(&m->parts);

        if (!sub) {
            cluster_send(to, acc[g], bar, i / J::PIECE);
            cluster_send(to + 16, acc[g] + 4, bar, i / J::PIECE);
        }
        if (lane < RANKS)
            cluster_send_pair(bar_at(&m->ms[w][g][0]), top[g], all[g], bar, lane);
    }
    __syncwarp();
}

/* The splits of this piece, in order, when this was the last to end. */
template <int HD, int G> static __device__ __forceinline__ void join(const step_attn_arg &a,
        joint<HD, G> *m, const float *part, int t, int kvh, int rank, int ns)
{
    constexpr int PIECE = joint<HD, G>::PIECE;
    int i = rank * PIECE + threadIdx.x, *n = &a.ticket[(t * a.nkv + kvh) * RANKS + rank];

    __threadfence();
    bar_group(1, joint<HD, G>::NW * 32);
    if (!threadIdx.x) {
        m->last = atomicAdd(n, 1) == ns - 1;
        if (m->last)
            *n = 0;
        __threadfence();
    }
    bar_group(1, joint<HD, G>::NW * 32);
    if (!m->last || (int)threadIdx.x >= PIECE || i / HD >= a.group)
        return;
    float top = -INFINITY, all = 0, y = 0;
    for (int x = 0; x < ns; x++)
        top = fmaxf(top, __ldcg(part + x * (PIECE + 2) + PIECE));
    for (int x = 0; x < ns; x++) {
        float w = ex2(__ldcg(part + x * (PIECE + 2) + PIECE) - top);

        all = fmaf(w, __ldcg(part + x * (PIECE + 2) + PIECE + 1), all);
        y = fmaf(w, __ldcg(part + x * (PIECE + 2) + threadIdx.x), y);
    }
    put_o<HD>(a, t, kvh * a.group + i / HD, i % HD, y / all);
}

/* The 16 warps' parts of this block's piece, in order, to the output or to this split's place. */
template <int HD, int G> static __device__ __forceinline__ void gather(const step_attn_arg &a,
        joint<HD, G> *m, int t, int kvh, int rank, int split, int ns)
{
    constexpr int PIECE = joint<HD, G>::PIECE;
    int i = rank * PIECE + threadIdx.x, g = i / HD;
    float *part = a.part + ((int64_t)(t * a.nkv + kvh) * RANKS + rank) * a.v.splits * (PIECE + 2);

    if ((int)threadIdx.x < PIECE && g < a.group) {
        float top = -INFINITY, all = 0, y = 0;

#pragma unroll
        for (int w = 0; w < BIG; w++)
            top = fmaxf(top, m->ms[w][g][0]);
#pragma unroll
        for (int w = 0; w < BIG; w++) {
            float f = top == -INFINITY ? 0 : ex2(m->ms[w][g][0] - top);

            all = fmaf(f, m->ms[w][g][1], all);
            y = fmaf(f, m->mo[w][threadIdx.x], y);
        }
        if (ns == 1) {
            put_o<HD>(a, t, kvh * a.group + g, i % HD, y / all);
        } else {
            float *p = part + split * (PIECE + 2);

            p[threadIdx.x] = y;
            if (!threadIdx.x) {
                p[PIECE] = top;
                p[PIECE + 1] = all;
            }
        }
    }
    if (ns > 1)
        join<HD, G>(a, m, part, t, kvh, rank, ns);
}

template <int HD, int G, int U> static __global__ void
__launch_bounds__(WIDE) __maxnreg__(G == 4 ? 168 : 96) cluster_k(const __grid_constant__ step_attn_arg a)
{
#if TW_SM90
    extern __shared__ __align__(128) char mem[];
    constexpr int NW = joint<HD, G>::NW;
    joint<HD, G> *m = (joint<HD, G> *)mem;
    int kvh = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, t = blockIdx.y, split = blockIdx.z;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pos = a.v.pos[t];
    int ns = pos / a.v.split_keys + 1, j0 = split * a.v.split_keys, j1 = min(pos, j0 + a.v.split_keys);
    char *const *blk = a.v.blk + (int64_t)t * a.v.maxb;
    bool own = split == ns - 1; /* of the new key */

    step_next();
    if (pos < 0 || split >= ns)         /* the whole cluster */
        return;
    if (!threadIdx.x) {
        bar_init(bar_at(&m->keys), 32);
        bar_init(bar_at(&m->parts), 1);
        bar_made();
        bar_expect(bar_at(&m->parts), sizeof m->mo + sizeof m->ms);
    }
    __syncthreads();
    if (warp >= NW)
        return;
    cluster_arrive();
    if (warp == NW - 1)
        ask<HD, G>(a, m, blk, kvh, rank, j0, j1, lane);
    task<HD> k = task_of<HD, G>(a, blk, warp, t, kvh, pos, lane, own && !rank);
    step_after();
    if (warp < G + 2)
        do_task<HD>(a, k, warp < G ? m->qs[warp] : warp == G ? m->kn : m->vn, lane);
    bar_group(1, NW * 32);
    if (warp < MINE)
        attend<HD, G, U>(a, m, rank * MINE + warp, j0, j1, own);
    else
        cluster_wait();
    bar_wait(bar_at(&m->parts), 0);
    gather<HD, G>(a, m, t, kvh, rank, split, ns);
#endif
}

template <int HD, int G> static bool queue(struct cu_dev *d, struct step_attn_arg *a, int64_t rows)
{
    using J = joint<HD, G>;
    int64_t keys = (int64_t)a->v.maxb * TW_KV_BLOCK, parts = rows * a->nkv * RANKS * a->v.splits;

    keys = keys < a->v.split_keys ? keys : a->v.split_keys;
    if (a->v.split_keys % J::STRIDE || a->v.split_keys / J::STRIDE > 32 || J::STRIDE % TW_KV_BLOCK)
        return false;
    a->ticket = (int32_t *)cu_step_buf(d, STEP_TICKET, (size_t)(MOST_T * a->nkv * RANKS) * 4);
    a->part = (float *)cu_step_buf(d, STEP_PART, (size_t)(parts * (J::PIECE + 2)) * 4);
    if (!a->ticket || !a->part)
        return true;
    bool alone = rows * a->nkv * RANKS * a->v.splits <= d->sms;
    size_t smem = (sizeof(J) + 127) / 128 * 128 + (size_t)(cu_div(keys, J::STRIDE) * 2 * J::RUN * HD) * 2;
    step_room(d, (const void *)cluster_k<HD, G, G == 4 ? 2 : 4>);
    step_launch(d, cluster_k<HD, G, G == 4 ? 2 : 4>, dim3((unsigned)a->nkv * RANKS, (unsigned)rows,
                    (unsigned)a->v.splits), alone ? WIDE : J::NW * 32, smem, RANKS, *a);
    return true;
}

template <int HD> static bool heads(struct cu_dev *d, struct step_attn_arg *a, int64_t rows)
{
    if (a->group == 1)
        return queue<HD, 1>(d, a, rows);
    if (a->group == 2)
        return queue<HD, 2>(d, a, rows);
    return queue<HD, 4>(d, a, rows);
}

bool cu_step_attn_cluster(struct cu_dev *d, struct step_attn_arg *a, int64_t rows, int64_t hd)
{
    if (rows > MOST_T || a->group > 4 || a->window)
        return false;
    return hd == 128 ? heads<128>(d, a, rows) : hd == 64 ? heads<64>(d, a, rows) : false;
}
