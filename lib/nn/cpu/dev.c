/* dev.c - the CPU device: its memory, its instruction set, its op table. Ops run at once on the
 * caller and its pool; scratch only grows, so a steady state allocates nothing. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "base/mem.h"
#include "nn/cpu/moe_priv.h"

/* Memory of the op table begins 64 bytes behind its length, which is 0 for what malloc gave. Large
 * pieces come from the system, zero already: no page is touched before its use. */
#define MAP_MIN ((size_t)4 << 20)

static char *map_new(size_t bytes)
{
    char *p = mmap(NULL, bytes + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    *(size_t *)p = bytes + 64;
    return p;
}

static void *cpu_alloc(struct tw_dev *d, size_t bytes, struct tw_err *err)
{
    char *p = NULL;

    if (bytes >= MAP_MIN && bytes <= SIZE_MAX / 2) {
        p = map_new(bytes);
    } else if (bytes < MAP_MIN) {
        p = tw_large_alloc(bytes + 64);
        if (p)
            memset(p, 0, bytes + 64);
    }
    if (!p) {
        tw_fail(err, NULL, 0, "out of memory: %zu bytes for tensors", bytes);
        return NULL;
    }
    return p + 64;
}

static void cpu_free(struct tw_dev *d, void *p)
{
    char *at = p ? (char *)p - 64 : NULL;

    if (!at)
        return;
    tw_cpu_forget((struct tw_cpu *)d, p);
    if (*(size_t *)at)
        munmap(at, *(size_t *)at);
    else
        free(at);
}

static void cpu_copy(struct tw_dev *d, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memmove(dst, src, bytes);
}

static void cpu_zero(struct tw_dev *d, void *p, size_t bytes)
{
    if (bytes)
        memset(p, 0, bytes);
}

static int cpu_sync(struct tw_dev *dev, struct tw_err *err)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;

    if (!d->err.code)
        return 0;
    if (err && !err->code)
        *err = d->err;
    return -1;
}

/* Nothing is ever on its way. */
static void *cpu_pin(struct tw_dev *dev, size_t bytes)
{
    return malloc(bytes);
}

static void cpu_unpin(struct tw_dev *dev, void *p)
{
    free(p);
}

static int64_t cpu_mark(struct tw_dev *dev)
{
    return 0;
}

static int cpu_reach(struct tw_dev *dev, int64_t mark, struct tw_err *err)
{
    return cpu_sync(dev, err);
}

void *tw_cpu_scratch(struct tw_cpu *d, enum tw_slot s, size_t bytes)
{
    if (d->slot[s].n < bytes || !d->slot[s].p) {
        free(d->slot[s].p);
        d->slot[s].n = bytes;
        d->slot[s].p = tw_large_alloc(bytes);
        if (!d->slot[s].p) {
            d->slot[s].n = 0;
            tw_fail(&d->err, NULL, 0, "out of memory: %zu bytes of scratch", bytes);
        }
    }
    return d->slot[s].p;
}

void tw_cpu_run(struct tw_cpu *d, int64_t n, void (*fn)(void *arg, int64_t i, int thread),
        void *arg)
{
    if (n == 1)
        fn(arg, 0, 0);
    else if (n > 1)
        tw_pool_run(d->pool, n, fn, arg);
}

static const struct tw_ops cpu_ops = {
    .name = "cpu", .alone = true, .sets = true, .low_in = true, .in_place = true, .close = tw_cpu_close,
    .alloc = cpu_alloc, .free = cpu_free, .put = cpu_copy, .get = cpu_copy, .copy = cpu_copy,
    .zero = cpu_zero, .often = tw_cpu_often, .fresh = tw_cpu_fresh, .sync = cpu_sync,
    .pin = cpu_pin, .unpin = cpu_unpin, .get_later = cpu_copy, .mark = cpu_mark, .reach = cpu_reach,
    .mat_elems = tw_cpu_mat_elems, .mat_put = tw_cpu_mat_put, .mat_get = tw_cpu_mat_get,
    .mat_cast = tw_cpu_mat_cast, .embed = tw_cpu_embed, .embed_bwd = tw_cpu_embed_bwd,
    .rmsnorm = tw_cpu_rmsnorm, .rmsnorm_bwd = tw_cpu_rmsnorm_bwd,
    .linear = tw_cpu_linear, .linear_dx = tw_cpu_linear_dx, .linear_dw = tw_cpu_linear_dw,
    .lora = tw_cpu_lora, .lora_bwd = tw_cpu_lora_bwd, .lora_linear = tw_cpu_lora_linear,
    .lora_linear_bwd = tw_cpu_lora_linear_bwd, .lora_group = tw_cpu_lora_group, .group_bare = true,
    .lora_group_bwd = tw_cpu_lora_group_bwd, .begin = tw_cpu_begin, .rope = tw_cpu_rope,
    .attn = tw_cpu_attn, .attn_bwd = tw_cpu_attn_bwd, .kv_bytes = tw_cpu_kv_bytes,
    .kv_put = tw_cpu_kv_put, .mla = &tw_cpu_mla, .moe = &tw_cpu_moe,
    .glu = tw_cpu_glu, .glu_bwd = tw_cpu_glu_bwd, .packs = tw_cpu_packs,
    .gated_fits = tw_cpu_gated_fits, .gated = tw_cpu_gated,
    .heads_fit = tw_cpu_heads_fit, .heads = tw_cpu_turned,
    .cols = tw_cpu_cols, .delta = &tw_cpu_delta_ops,
    .head = tw_cpu_head, .head_scratch = tw_cpu_head_scratch, .logits = tw_cpu_logits,
    .pick = tw_cpu_pick, .add = tw_cpu_add, .scale = tw_cpu_scale, .axpy = tw_cpu_axpy,
    .sumsq = tw_cpu_sumsq, .clip = tw_cpu_clip, .adamw = tw_cpu_adamw, .sgd = tw_cpu_sgd,
    .optim = &tw_cpu_optim,
};

/* The best table this processor runs, among those of the name asked for. */
static const struct tw_kern *choose(struct tw_cpu *d, const char *isa)
{
    bool any = !strcmp(isa, "auto");

#if defined(__x86_64__)
    bool v2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool v4 = v2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool low = v4 && __builtin_cpu_supports("avx512bf16");

    if (low && __builtin_cpu_supports("avx512vbmi") && (any || !strcmp(isa, "amx")) && tw_amx_enable()) {
        d->amx = tw_kern_avx512bf16;
        d->amx.name = "amx";
        d->amx.mm16 = tw_amx_mm16;
        d->amx.whole16 = tw_amx_whole16;
        d->amx.low16 = tw_amx_low16;
        d->amx.att16 = tw_amx_att16;
        d->amx.few16 = tw_amx_few16;
        d->amx.pack16 = tw_amx_pack16;
        d->amx.pairs_a = tw_amx_pairs;
        d->amx.packw = tw_amx_packw;
        d->amx.pairsw_a = tw_amx_pairsw;
        d->amx.unit16 = 16;
        d->amx.mr16 = 32;
        d->amx.pr16 = 2;
        d->amx.kc16 = 1024;
        d->amx.mc16 = 512;
        tw_amx_f32(&d->amx);
        return &d->amx;
    }
    if (v4 && (any || !strcmp(isa, "avx512")))
        return low ? &tw_kern_avx512bf16 : &tw_kern_avx512;
    if (v2 && (any || !strcmp(isa, "avx2")))
        return &tw_kern_avx2;
#endif
    return any || !strcmp(isa, "c") ? &tw_kern_c : NULL;
}

struct tw_dev *tw_cpu_open(int threads, const char *isa, struct tw_err *err)
{
    struct tw_cpu *d = tw_xcalloc(1, sizeof *d);

    d->head.ops = &cpu_ops;
    d->k = choose(d, isa);
    if (!d->k) {
        tw_fail(err, NULL, 0, "instruction set %s: not one that this processor has", isa);
        free(d);
        return NULL;
    }
    d->pool = tw_pool_open(threads);
    d->threads = tw_pool_threads(d->pool);
    d->own = tw_large_alloc((size_t)d->threads * TW_OWN_WORDS * 4);
    if (!d->own) {
        tw_fail(err, NULL, 0, "out of memory: scratch of %d threads", d->threads);
        tw_cpu_close((struct tw_dev *)d);
        return NULL;
    }
    return (struct tw_dev *)d;
}

const char *tw_cpu_isa(const struct tw_dev *d)
{
    return ((const struct tw_cpu *)d)->k->name;
}

void tw_cpu_close(struct tw_dev *dev)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;

    tw_pool_close(d->pool);
    for (int i = 0; i < TW_NSLOT; i++)
        free(d->slot[i].p);
    free(d->own);
    free(d);
}
