/* emu.h - kernels as fibers: every thread of a block (of a cluster's blocks) is one; they change at
 * every point where threads may wait for one another, to a random other. Copies of the copy engine
 * are made at a random later time, what they will write is poisoned until then. */
#pragma once
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>
struct emu_idx { int x, y, z; };
struct emu_warp { unsigned gen; int arrived; uint32_t box[2][32][6]; };
struct emu_block;
struct emu_fiber { void *sp; char *stack; emu_idx tid; emu_block *b; int n, lane; emu_warp *w; bool done, after; };
struct emu_named { unsigned gen; int arrived; };
struct emu_block { emu_idx id; char *mem; std::vector<emu_fiber *> f; std::vector<emu_warp> warp; emu_named named[16]; int rank; };
extern emu_fiber *emu_now;
extern emu_idx gridDim, blockDim;
extern emu_named emu_cluster;
extern std::vector<emu_block> emu_blocks;
extern unsigned emu_size;
extern std::function<void()> emu_reveal;
void emu_yield();
void emu_progress();
void emu_run(dim3 grid, unsigned threads, size_t smem, unsigned cluster, const std::function<void()> &body);
void emu_copy(void *to, const void *from, uint32_t n, uint32_t bar);
#define threadIdx (emu_now->tid)
#define blockIdx (emu_now->b->id)


static inline char *emu_mem() { return emu_now->b->mem; }
template <class... P, class... Q> cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*k)(P...), Q... q)
{
    unsigned cl = 1;
    for (int i = 0; i < c->numAttrs; i++) if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) cl = c->attrs[i].val.clusterDim.x;
    emu_run(c->gridDim, c->blockDim.x, c->dynamicSmemBytes, cl, [=] { k(q...); });
    return 0;
}
/* All lanes of a warp leave N words and see those of all. */
static inline uint32_t (*emu_meet(const uint32_t *v, int n))[6]
{
    emu_warp *w = emu_now->w; unsigned g = w->gen;
    memcpy(w->box[g & 1][emu_now->lane], v, 4 * n);
    if (++w->arrived == 32) { w->arrived = 0; w->gen++; emu_progress(); }
    while (w->gen == g) emu_yield();
    return w->box[g & 1];
}
static inline void __syncwarp() { uint32_t v = 0; emu_meet(&v, 1); }
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int o)
{ uint32_t v; memcpy(&v, &x, 4); v = emu_meet(&v, 1)[emu_now->lane ^ o][0]; memcpy(&x, &v, 4); return x; }
template <class T> static inline T __shfl_xor_sync(unsigned m, T x, int o, int) { return __shfl_xor_sync(m, x, o); }
template <class T> static inline T __shfl_sync(unsigned, T x, int o)
{ uint32_t v; memcpy(&v, &x, 4); v = emu_meet(&v, 1)[o][0]; memcpy(&x, &v, 4); return x; }
static inline unsigned __ballot_sync(unsigned, bool p)
{ uint32_t v = p, r = 0; auto *b = emu_meet(&v, 1); for (int i = 0; i < 32; i++) r |= b[i][0] << i; return r; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline void emu_gather(emu_named *b, int n)
{ unsigned g = b->gen; if (++b->arrived == n) { b->arrived = 0; b->gen++; emu_progress(); } while (b->gen == g) emu_yield(); }
static inline void __syncthreads() { emu_gather(&emu_now->b->named[0], blockDim.x); }
static inline void bar_group(int id, int n) { emu_gather(&emu_now->b->named[id], n); }
static inline void __threadfence() {}
static inline int atomicAdd(int *p, int v) { int x = *p; *p += v; emu_yield(); return x; }
static inline float __ldcg(const float *p) { return *p; }
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
#define __expf expf
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float ex2(float x) { return exp2f(x); }
struct emu_bar { uint64_t phase : 1, init : 9, pending : 9, pad : 13; int64_t tx : 32; };
static inline emu_bar *emu_bar_of(uint32_t a) { return (emu_bar *)(uintptr_t)a; }
static inline void emu_check(emu_bar *b) { if (!b->pending && !b->tx) { b->phase ^= 1; b->pending = b->init; emu_progress(); } }
static inline uint32_t bar_at(const void *p) { return (uint32_t)(uintptr_t)p; }
static inline void bar_init(uint32_t a, int n) { emu_bar *b = emu_bar_of(a); memset(b, 0, 8); b->init = b->pending = n; }
static inline void bar_arrive(uint32_t a) { emu_bar *b = emu_bar_of(a); if (!b->pending) { puts("arrive on a full barrier"); abort(); } b->pending--; emu_check(b); emu_yield(); }
static inline void bar_expect(uint32_t a, uint32_t n) { emu_bar *b = emu_bar_of(a); b->tx += n; if (!b->pending) { puts("expect on a full barrier"); abort(); } b->pending--; emu_check(b); emu_yield(); }
static inline void bar_wait(uint32_t a, int parity) { while (emu_bar_of(a)->phase == (unsigned)parity) emu_yield(); }
static inline void bar_made() {}
static inline void bar_copy(void *to, const void *from, uint32_t n, uint32_t bar) { emu_copy(to, from, n, bar); }
static inline void bar_copy_kept(void *to, const void *from, uint32_t n, uint32_t bar) { emu_copy(to, from, n, bar); }
template <class T> static inline T *cluster_map(T *p, unsigned rank)
{ return (T *)((char *)p - emu_now->b->mem + emu_blocks[rank].mem); }
static inline void cluster_arrive() { emu_now->n = emu_cluster.gen; if (++emu_cluster.arrived == (int)(emu_size * blockDim.x)) { emu_cluster.arrived = 0; emu_cluster.gen++; emu_progress(); } emu_yield(); }
static inline void cluster_wait() { while ((int)emu_cluster.gen == emu_now->n) emu_yield(); }
static inline void step_next() {}
static inline void step_after() { if (emu_reveal) { emu_reveal(); } emu_now->after = true; emu_yield(); }
static inline void step_fetch(const void *) {}
static inline void few_mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    uint32_t v[6] = { a0, a1, a2, a3, b0, b1 };
    auto *m = emu_meet(v, 6);
    int g = emu_now->lane / 4, t = emu_now->lane % 4;
    for (int i = 0; i < 4; i++) {
        int col = 2 * t + i % 2, hi = i / 2;
        double sum = 0;
        for (int k = 0; k < 4; k++) for (int h = 0; h < 2; h++) {
            uint32_t a = m[g * 4 + k][h * 2 + hi], b = m[col * 4 + k][4 + h];
            sum += (double)__uint_as_float(a << 16) * __uint_as_float(b << 16) +
                (double)__uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
        }
        c[i] = (float)(c[i] + sum);
    }
}
static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{ few_mma(c, a[0], a[1], a[2], a[3], b0, b1); }

/* Copies of single threads, in groups. */
#define __cvta_generic_to_shared(p) ((uintptr_t)(p))
struct emu_cp { void *to; const void *from; int n, z; };
struct emu_cps { std::vector<std::vector<emu_cp>> g; std::vector<emu_cp> open; };
extern std::vector<emu_cps> emu_async;  /* by thread of the cluster */
static inline void copy16(void *s, const void *g, bool there)
{ if ((uintptr_t)s % 16 || (there && (uintptr_t)g % 16)) { puts("copy16 not aligned"); abort(); } memset(s, 0xff, 16); emu_async[emu_now->b->rank * blockDim.x + emu_now->tid.x].open.push_back({ s, g, there ? 16 : 0, 16 }); }
static inline void copy4(void *s, const void *g, bool there)
{ memset(s, 0xff, 4); emu_async[emu_now->b->rank * blockDim.x + emu_now->tid.x].open.push_back({ s, g, there ? 4 : 0, 4 }); }
static inline void copy_done() { auto &a = emu_async[emu_now->b->rank * blockDim.x + emu_now->tid.x]; a.g.push_back(a.open); a.open.clear(); }
static inline void emu_cp_wait(int n)
{ auto &a = emu_async[emu_now->b->rank * blockDim.x + emu_now->tid.x]; while ((int)a.g.size() > n) { for (auto &c : a.g[0]) { memset(c.to, 0, c.z); memcpy(c.to, c.from, c.n); } a.g.erase(a.g.begin()); } }
static inline void emu_ldsm(uint32_t *r, uint32_t a, int n, bool trans)
{
    auto *m = emu_meet(&a, 1); uint32_t adr[32]; for (int i = 0; i < 32; i++) adr[i] = m[i][0];
    int l = emu_now->lane;
    for (int i = 0; i < n; i++) { uint16_t v[2];
        for (int h = 0; h < 2; h++) { int row = trans ? l % 4 * 2 + h : l / 4, col = trans ? l / 4 : l % 4 * 2 + h;
            if (adr[i * 8 + row] % 16) { puts("ldmatrix not aligned"); abort(); }
            v[h] = ((uint16_t *)(uintptr_t)adr[i * 8 + row])[col]; }
        r[i] = v[0] | (uint32_t)v[1] << 16; }
    emu_meet(&a, 1);
}
struct emu_go { dim3 g; unsigned t; size_t s; template <class F> void operator<<(const F &f) { emu_run(g, t, s, 1, f); } };
