/* plan.c - what fits: sizes by the counting device before anything is taken. At the start, how many
 * adapters of the largest rank have room beside a pass over the model; later, whether a sequence that is
 * longer than a pass has. */
#include "base/log.h"
#include "serve/worker_priv.h"
#include <stdlib.h>

static size_t available(const struct tw_worker *k)
{
    size_t have = tw_dev_free(k->dev), most = (size_t)k->o.memory;

    return most && most < have ? most : have;
}

struct tw_model_opts tw_worker_base(const struct tw_worker *k)
{
    return (struct tw_model_opts){ .dtype = k->dtype, .exact = k->o.exact,
        .lora_room = tw_model_room(k->o.max_rank) };
}

/* An adapter of rank R with gradients and moments, and a pass over N tokens. */
static int with_rank(struct tw_model *m, int64_t r, int64_t n, struct tw_plan *p, struct tw_err *err)
{
    char *targets = tw_model_targets(m, true, true);
    struct tw_lora_opts o = { .r = r, .alpha = 32, .init = "default", .targets = targets };
    struct tw_adapter *a = tw_adapter_new(m, &o, 0, true, err);
    int ret = a ? tw_model_plan(m, a, n, 1, n, TW_BACKWARD, p, err) : -1;

    tw_adapter_close(a);
    free(targets);
    return ret;
}

/* The largest adapter, and the pass that takes most; on the counting device. */
static int count(struct tw_worker *k, struct tw_plan *p, struct tw_err *err)
{
    struct tw_model_opts m = tw_worker_base(k);
    struct tw_dev *dev = tw_count_open(k->dev, err);
    struct tw_model *model = dev ? tw_model_open(k->dir, dev, &m, err) : NULL;
    int64_t n = k->engine.micro_tokens, window = k->limits.window;
    struct tw_plan room = { 0 };        /* a pass that has its adapters beside the weights */
    int ret = -1;

    n = window && window < n ? window : n;
    k->pass_tokens = n;
    if (model && !with_rank(model, k->o.max_rank, n, p, err))
        ret = k->o.max_rank > TW_BESIDE_RANK ? with_rank(model, TW_BESIDE_RANK, n, &room, err) : 0;
    if (room.activations > p->activations)
        p->activations = room.activations;
    tw_model_close(model);
    tw_dev_close(dev);
    return ret;
}

/* Bytes of the prefix cache, which takes at most half of ROOM: adapters need the rest. */
static size_t cached(struct tw_worker *k, size_t room)
{
    size_t bytes = k->o.cache_tokens ? tw_state_bytes(k->model, k->o.cache_tokens) : 0;
    int64_t fit;

    if (bytes <= room / 2)
        return bytes;
    fit = (int64_t)((double)k->o.cache_tokens * (double)(room / 2) / (double)bytes);
    tw_notice("the beginnings of %lld tokens of prompts have room, not %lld (--prefix-cache)", (long long)fit,
            (long long)k->o.cache_tokens);
    k->o.cache_tokens = fit;
    return room / 2;
}

int tw_worker_plan(struct tw_worker *k, struct tw_err *err)
{
    struct tw_plan p = { 0 };
    size_t have = available(k), one, cache;
    char a[32], b[32], c[32];
    int64_t fit;

    if (count(k, &p, err))
        return -1;
    k->stat.plan_pass = k->pass_bytes = p.activations + p.head;
    k->stat.plan_adapter = one = p.adapters + p.gradients + p.optimizer;
    if (have < k->pass_bytes + one)
        return tw_fail_code(err, TW_ENOMEM, "--max-rank", 0, "a pass over %lld tokens takes %s and an "
                "adapter of rank %lld %s, more than the %s that are free: give a smaller one",
                (long long)k->pass_tokens, tw_fmt_bytes(a, (double)k->pass_bytes),
                (long long)k->o.max_rank, tw_fmt_bytes(b, (double)one), tw_fmt_bytes(c, (double)have));
    cache = cached(k, have - k->pass_bytes - one);
    fit = (int64_t)((have - k->pass_bytes - cache) / one);
    if (fit >= k->o.max_adapters)
        return 0;
    tw_notice("memory has room for %lld of %lld adapters of rank %lld: more are swapped to disk",
            (long long)fit, (long long)k->o.max_adapters, (long long)k->o.max_rank);
    k->o.max_adapters = fit;
    return 0;
}

int tw_plan_fits(struct tw_worker *k, int64_t tokens, struct tw_err *err)
{
    size_t need = (size_t)((double)k->pass_bytes * (double)tokens / (double)k->pass_tokens);
    char a[32], b[32];

    if (tokens <= k->pass_tokens || need <= available(k))
        return 0;
    return tw_fail(err, NULL, 0, "a sequence of %lld tokens takes about %s, more than the %s that are free",
            (long long)tokens, tw_fmt_bytes(a, (double)need), tw_fmt_bytes(b, (double)available(k)));
}
