/* plan.c - what a batch would take, by running it on the counting device */
#include "nn/pass.h"
#include <stdlib.h>

/* NSEQ sequences that add up to TOKENS, none longer than LONGEST, the first ones longest: the
 * attention of a batch costs most that way. */
static int fake_batch(const struct tw_model *m, struct tw_adapter *a, int64_t tokens, int64_t nseq,
        int64_t longest, struct tw_seq *seq, struct tw_arena *arena, struct tw_err *err)
{
    int64_t left = tokens;
    int32_t *zeros = tw_arena_alloc(arena, (size_t)longest * sizeof *zeros);

    for (int64_t i = 0; i < nseq; i++) {
        int64_t n = left - (nseq - 1 - i);      /* each of the others needs one */

        n = n < longest ? n : longest;
        seq[i] = (struct tw_seq){ .token = zeros, .n = n, .adapter = a };
        left -= n;
    }
    if (left)
        return tw_fail(err, NULL, 0, "%lld tokens do not fit into %lld sequences of at most %lld",
                (long long)tokens, (long long)nseq, (long long)longest);
    return 0;
}

static void fake_rows(struct tw_pass *p, int64_t n, unsigned flags)
{
    struct tw_rows *r = &p->rows;
    size_t bytes = (size_t)n * sizeof(float);

    r->n = n;
    r->row = tw_arena_alloc(&p->arena, bytes);
    r->target = tw_arena_alloc(&p->arena, bytes);
    r->temp = tw_arena_alloc(&p->arena, bytes);
    r->coef = tw_arena_alloc(&p->arena, bytes);
    r->logp = tw_arena_alloc(&p->arena, bytes);
    if (flags & TW_ENTROPY)
        r->entropy = tw_arena_alloc(&p->arena, bytes);
    if (flags & TW_MEAN)
        r->mean = r->coef_mean = tw_arena_alloc(&p->arena, bytes);
    for (int64_t i = 0; i < n; i++)
        r->row[i] = (int32_t)i;
}

/* Bytes of two moments of each parameter. */
static size_t moments(const struct tw_params *p)
{
    size_t n = 0;

    for (int64_t i = 0; p && i < p->n; i++)
        n += 2 * sizeof(float) * (size_t)p->p[i].n;
    return n;
}

static double count_flops(struct tw_pass *p, unsigned flags, size_t *peak)
{
    struct tw_dev_head *d = (struct tw_dev_head *)p->m->count;

    p->flags = flags;
    d->flops = 0;
    *peak = tw_pass_count(p);
    return d->flops;
}

/* What recurrent layers take beside activations, once for all of them. */
static size_t recurrent(const struct tw_pass *p)
{
    const struct tw_model *m = p->m;
    struct tw_delta s = tw_delta_conf(&m->cfg);

    if (!m->rec.bytes)
        return 0;
    s.seq = p->b.delta;
    s.nseq = p->b.nseq;
    return m->ops->delta->scratch_bytes(m->dev, &s, p->b.T, m->act);
}

/* And what attention over latents does. */
static size_t latents(const struct tw_pass *p, bool bwd)
{
    const struct tw_config *c = &p->m->cfg;
    const struct tw_mla_ops *ops = p->m->ops->mla;
    const struct tw_mla a = { .nh = c->nh, .dn = c->mla.dn, .dr = c->mla.dr, .dv = c->mla.dv,
        .rkv = c->mla.rkv };

    return a.rkv && ops && ops->scratch_bytes ? ops->scratch_bytes(p->m->dev, &a, p->b.T, p->m->act, bwd) :
            0;
}

double tw_model_flops(struct tw_model *m)
{
    struct tw_dev_head *d = (struct tw_dev_head *)m->count;
    double n = d->flops;

    d->flops = 0;
    return n;
}

int tw_model_plan(struct tw_model *m, struct tw_adapter *a, int64_t tokens, int64_t nseq,
        int64_t longest, unsigned flags, struct tw_plan *out, struct tw_err *err)
{
    struct tw_pass p = { .m = m };
    struct tw_seq *seq;
    size_t peak;
    int ret = -1;

    if (tokens < 1 || nseq < 1 || nseq > tokens || longest < 1 || longest > tokens)
        return tw_fail(err, NULL, 0, "%lld tokens in %lld sequences of at most %lld is no batch",
                (long long)tokens, (long long)nseq, (long long)longest);
    *out = (struct tw_plan){ .params = m->info.params, .weights = m->mem.n,
        .gradients = m->grads.n + (a ? a->grads.n : 0), .adapters = a ? a->mem.n : 0 };
    seq = tw_arena_alloc(&p.arena, (size_t)nseq * sizeof *seq);
    if (fake_batch(m, a, tokens, nseq, longest, seq, &p.arena, err) ||
        tw_batch_pack(&p.b, m, seq, nseq, flags, &p.arena, err))
        goto out;
    if (p.b.ranks)                      /* other adapters of a batch may take the rest of the room */
        p.b.ranks = tw_lora_cols(m->opts.lora_room);
    if (!(flags & TW_EMBED))
        fake_rows(&p, tokens, flags);
    out->trainable = (m->opts.train ? m->params.elems : 0) +
                     (a && a->train ? a->params.elems : 0);
    out->optimizer = moments(m->opts.train ? &m->params : NULL) +
                     moments(a && a->train ? &a->params : NULL);
    out->head = flags & TW_EMBED ? 0 : m->ops->head_scratch(m->dev, tokens, m->cfg.V, m->cfg.D,
            !(flags & TW_BACKWARD) ? 0 : m->opts.train ? 2 : 1);
    out->recurrent = recurrent(&p);
    out->latents = latents(&p, flags & TW_BACKWARD);
    out->flops_forward = count_flops(&p, flags & TW_EMBED, &peak);
    out->flops_step = count_flops(&p, flags, &out->activations);
    out->total = out->weights + out->adapters + out->gradients + out->activations + out->head +
                 out->recurrent + out->latents;
    if (flags & TW_BACKWARD)
        out->total += out->optimizer;
    ret = 0;
out:
    tw_arena_free(&p.arena);
    return ret;
}
