#include "cuda_runtime.h"
#include <sys/mman.h>
emu_fiber *emu_now; emu_idx gridDim, blockDim; emu_named emu_cluster; std::vector<emu_block> emu_blocks; unsigned emu_size;
std::function<void()> emu_reveal;
static std::vector<emu_fiber> fib; static std::vector<int> live; static void *main_sp; static uint64_t rnd = 88172645463325252ull; static long idle;
struct pend { char *to; const char *from; uint32_t n, bar; };
static std::vector<pend> copies; static const std::function<void()> *body_; std::vector<emu_cps> emu_async;
static uint64_t rng() { rnd ^= rnd << 13; rnd ^= rnd >> 7; rnd ^= rnd << 17; return rnd; }
void emu_seed(uint64_t s) { rnd = s * 0x9e3779b97f4a7c15ull + 1; }
extern "C" void emu_switch(void **from, void *to);
asm(".globl emu_switch\nemu_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
void emu_progress() { idle = 0; }
static void perform()
{
    size_t i = rng() % copies.size(); pend c = copies[i]; copies[i] = copies.back(); copies.pop_back();
    memcpy(c.to, c.from, c.n);
    emu_bar *b = emu_bar_of(c.bar); b->tx -= c.n; emu_check(b); idle = 0;
}
void emu_copy(void *to, const void *from, uint32_t n, uint32_t bar)
{
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || n % 16 || !n) { puts("a copy that is not in sixteens"); abort(); }
    if ((char *)to < emu_now->b->mem || (char *)to + n > emu_now->b->mem + (227 << 10)) { puts("a copy out of shared memory"); abort(); }
    memset(to, 0xff, n); copies.push_back({ (char *)to, (const char *)from, n, bar }); idle = 0;
}
static void next(void **from)
{
    while (!copies.empty() && (idle > 20000 || rng() % 64 == 0)) perform();
    if (++idle > 200000000) { puts("deadlock"); abort(); }
    if (live.empty()) { emu_switch(from, main_sp); return; }
    emu_fiber *f = &fib[live[rng() % live.size()]];
    if (f == emu_now && from == &f->sp) return;
    emu_now = f; emu_switch(from, f->sp);
}
void emu_yield() { emu_fiber *me = emu_now; next(&me->sp); }
static void entry()
{
    (*body_)();
    emu_now->done = true; idle = 0;
    for (size_t i = 0; i < live.size(); i++) if (&fib[live[i]] == emu_now) { live[i] = live.back(); live.pop_back(); break; }
    void *dead; next(&dead);
    abort();
}
static void cluster(unsigned threads, size_t smem, unsigned cl, unsigned bx, unsigned by, unsigned bz)
{
    static char *mem;
    if (!mem) mem = (char *)mmap(NULL, 8 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (smem > (227 << 10)) { puts("too much shared memory"); abort(); }
    emu_blocks.resize(cl); if (fib.size() < cl * threads) fib.resize(cl * threads); live.clear(); emu_size = cl; emu_cluster = {};
    for (unsigned i = 0; i < cl; i++) {
        emu_block &b = emu_blocks[i];
        b.id = { (int)(bx + i), (int)by, (int)bz }; b.rank = i; b.mem = mem + ((size_t)i << 18);
        memset(b.mem, 0xff, 1 << 18); b.warp.assign(threads / 32, emu_warp{}); memset(b.named, 0, sizeof b.named);
        for (unsigned t = 0; t < threads; t++) {
            emu_fiber &f = fib[i * threads + t];
            if (!f.stack) f.stack = (char *)mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            f.tid = { (int)t, 0, 0 }; f.b = &b; f.lane = t % 32; f.w = &b.warp[t / 32]; f.done = f.after = false;
            void **sp = (void **)(f.stack + (128 << 10) - 64);
            *--sp = NULL; *--sp = (void *)entry; for (int k = 0; k < 6; k++) *--sp = NULL;
            f.sp = sp; live.push_back(i * threads + t);
        }
    }
    emu_async.assign(cl * threads, emu_cps());
    idle = 0; emu_now = NULL; next(&main_sp);
    if (!copies.empty()) { puts("a block ended with copies on their way"); abort(); }
}
size_t emu_smem_last;
void emu_run(dim3 grid, unsigned threads, size_t smem, unsigned cl, const std::function<void()> &body)
{
    emu_smem_last = smem; gridDim = { (int)grid.x, (int)grid.y, (int)grid.z }; blockDim = { (int)threads, 1, 1 }; body_ = &body;
    for (unsigned z = 0; z < grid.z; z++) for (unsigned y = 0; y < grid.y; y++) for (unsigned x = 0; x < grid.x; x += cl)
        cluster(threads, smem, cl, x, y, z);
}
