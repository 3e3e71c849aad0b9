/* step_experts.cu - gate, up and down of the experts of a decode step of many tokens on Hopper, as
 * step_experts.cuh has them: up to 16 rows of an expert stay in registers while its weights go by, or up to 32
 * where experts have many; then the asking warp's registers go to the eight others. */
#include "step_experts.cuh"

enum { ONE = EIGHT + 32, TWO = EIGHT + 128 };   /* threads; registers are moved by fours of warps */
enum { HALF = 9, FULL = 20, SHORT = 1024 };     /* rows of an expert on average; of a sum of down */

template <int SIXTEENS> static __global__ void __launch_bounds__(SIXTEENS > 1 ? TWO : ONE, 1)
many_k(const __grid_constant__ stay_arg p)
{
#if TW_HOPPER
    extern __shared__ __align__(128) char mem[];
    const moe_arg &a = p.a;
    desk &d = *(desk *)mem;
    char *slots = mem + p.first;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
    place at = { 0, 0 };

    make_bars(p, d);
    __syncthreads();
    step_wait();
    const lists l = { a.active, a.start, a.pair, a.place, a.weight, a.xn, *a.nact };
    if (warp >= WARPS) {
        if (SIXTEENS > 1)
            regs_less<40>();
        if (warp > WARPS)
            return;
        at = ask<false>(p, d, slots, at, l, lane);
        ask<true>(p, d, slots, at, l, lane);
        return;
    }
    if (SIXTEENS > 1)
        regs_more<216>();
    at = consume<false, SIXTEENS>(p, d, slots, at, turn, l, warp, lane);
    consume<true, SIXTEENS>(p, d, slots, at, turn, l, warp, lane);
    leave(a, l.nact);
#endif
}

/* Where it was seen to be faster than blocks of a group each (BENCH.md): not where many experts have more
 * than 32 rows, which are then read again and again, nor of few tokens where rows of down are short. */
static bool worth(const struct moe_arg *a)
{
    return a->T * a->r.K <= FULL * a->r.E && (a->T > STEP_FEW || a->I > SHORT);
}

bool cu_step_experts(struct cu_dev *d, const struct moe_arg *a)
{
    struct stay_arg p;

    if (cu_step_way(d)->kind == STEP_PLAIN || !worth(a) || !lay_out(d, &p, a, 0))
        return false;
    if (a->T * a->r.K > HALF * a->r.E)
        stay(d, many_k<2>, TWO, &p);
    else
        stay(d, many_k<1>, ONE, &p);
    return true;
}
