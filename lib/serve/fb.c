/* fb.c - forward_backward: one pass over data of many models at once. A request of many data takes
 * many passes, and others' data share each; the gradient of a model is a chain over its data in
 * their order, so that neither the passes nor the neighbours change a bit of it (on the CPU). */
#include "base/log.h"
#include "serve/result.h"
#include "serve/worker_priv.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

/* A request under way. */
struct tw_fb {
    int64_t next;               /* data that went through */
    int64_t loss_tokens;
    float **logp;               /* [n] */
    double sum, gap, gap_n, busy;
    void *before;               /* (dev) the gradient as it was; NULL: there was none */
};

static struct tw_engine_sample sample(const struct tw_pupil *p, const struct tw_fb_args *f, int64_t i)
{
    const struct tw_datum_in *d = &f->d[i];
    struct tw_engine_sample s = { .token = d->token, .n = d->n, .target = d->target,
        .ntarget = d->k, .weight = d->weight, .old = d->old, .advantage = d->adv,
        .ratio_mask = d->ratio_mask, .lo = d->lo, .hi = d->hi, .adapter = f->base ? NULL : p->a,
        .loss = &f->loss, .scale = 1, .temp = f->temp > 0 ? f->temp : 1, .temps = d->temp,
        .all = true, .logp = p->fb->logp[i], .key = (uint64_t)p->head->seq << 24 ^ (uint64_t)i };

    if (f->nat)
        tw_nat_sample(p->head, i, &s);
    return s;
}

/* P's gradient to SIDE (dev), or with BACK from there. Returns its bytes; SIDE NULL: only that. */
static size_t gradient(struct tw_worker *k, const struct tw_pupil *p, char *side, bool back)
{
    const struct tw_params *params = tw_pupil_params(p);
    const struct tw_ops *ops = tw_ops(k->dev);
    size_t at = 0;

    if (!p->own) {                      /* an adapter's lies in one piece */
        at = tw_adapter_bytes(p->a);
        if (side)
            ops->copy(k->dev, back ? (void *)params->p[0].g : side, back ? side : (void *)params->p[0].g, at);
        return at;
    }
    for (int64_t i = 0; i < params->n; i++)
        for (int second = 0; second < 2; second++) {
            float *g = second ? params->p[i].g2 : params->p[i].g;
            size_t bytes = g ? (size_t)params->p[i].n * sizeof *g : 0;

            if (side && bytes)
                ops->copy(k->dev, back ? (void *)g : side + at, back ? side + at : (void *)g, bytes);
            at += bytes;
        }
    return at;
}

/* The gradient that waits is put aside: if this request fails, it is as if it had never been. */
static int begin(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    const struct tw_ops *ops = tw_ops(k->dev);
    struct tw_work *w = p->head;
    struct tw_fb *b;

    for (int64_t i = 0; i < w->fb.n; i++)
        if (tw_plan_fits(k, w->fb.d[i].n, err))
            return -1;
    b = tw_xcalloc(1, sizeof *b);
    if (p->pending && !w->fb.forward_only) {
        if (!(b->before = ops->alloc(k->dev, gradient(k, p, NULL, false), err))) {
            free(b);
            return -1;
        }
        gradient(k, p, b->before, false);
    }
    b->logp = tw_arena_alloc(&w->arena, (size_t)(w->fb.n + 1) * sizeof *b->logp);
    for (int64_t i = 0; i < w->fb.n; i++)
        b->logp[i] = tw_arena_alloc(&w->arena, (size_t)(w->fb.d[i].n * w->fb.d[i].k) * sizeof(float));
    p->fb = b;
    return 0;
}

/* The head of P's queue leaves it. */
static struct tw_work *end(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_work *w = p->head;

    p->head = w->next;
    p->tail = p->head ? p->tail : NULL;
    p->seq = w->seq;
    w->result.version = p->version;
    if (p->fb) {
        w->result.busy = p->fb->busy;
        if (p->fb->before)
            tw_ops(k->dev)->free(k->dev, p->fb->before);
        free(p->fb);
    }
    p->fb = NULL;
    return w;
}

static void fail(struct tw_worker *k, struct tw_pupil *p, const char *category, struct tw_err *err)
{
    if (p->fb && !p->head->fb.forward_only) {
        if (p->fb->before)
            gradient(k, p, p->fb->before, true);
        else
            tw_params_zero(k->dev, tw_pupil_params(p));
    }
    tw_work_fail(k, end(k, p), category, err);
}

void tw_fb_abort(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_err err = { 0 };
    int64_t seq = p->seq;

    tw_fail(&err, NULL, 0, "the server is ending");
    fail(k, p, TW_ENDING, &err);
    p->seq = seq;                       /* it is still to be done */
}

static void finish(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_work *w = p->head;
    struct tw_fb *b = p->fb;
    struct tw_metric m[8] = { { "loss:sum", b->sum }, { "num_tokens:sum", (double)w->fb.tokens },
        { "num_loss_tokens:sum", (double)b->loss_tokens } };
    int64_t nm = 3;

    if (b->gap_n > 0) {         /* how far the sampler's numbers are from these: 0 on its policy */
        m[nm++] = (struct tw_metric){ "sampler_kl:sum", b->gap };
        m[nm++] = (struct tw_metric){ "num_policy_tokens:sum", b->gap_n };
    }
    if (w->fb.loss.penalty > 0)
        m[nm++] = (struct tw_metric){ "twinkle_stable_reinforce:unique", 1 };
    if (w->fb.nat)
        tw_nat_fb_done(p, w, b->logp, b->sum);
    else
        tw_result_fb(&w->result.proto, &w->fb, b->logp, m, nm);
    w->result.loss = b->sum;
    w->result.tokens = w->fb.tokens;
    if (!w->fb.forward_only) {
        p->pending++;
        k->stat.tokens_trained += w->fb.tokens;
    }
    tw_work_done(k, end(k, p));
}

/* Takes in what came of a datum; -1 when it is not a number. */
static int take(struct tw_pupil *p, const struct tw_engine_sample *s, int64_t i, struct tw_err *err)
{
    const struct tw_datum_in *d = &p->head->fb.d[i];
    int64_t n = d->n * d->k;

    p->fb->sum += s->sum;
    for (int64_t t = 0; t < n; t++) {
        if (!isfinite(s->logp[t]))
            return tw_fail(err, NULL, 0, "data[%lld]: a log-probability is not finite: nothing of this "
                    "request was added to the gradient", (long long)i);
        p->fb->loss_tokens += d->adv ? d->adv[t] != 0 : d->weight[t] != 0;
        if (d->adv && d->old && d->adv[t] != 0) {
            p->fb->gap += (double)d->old[t] - (double)s->logp[t];
            p->fb->gap_n++;
        }
    }
    if (!(fabs(s->sum) <= (double)FLT_MAX))
        return tw_fail(err, NULL, 0, "data[%lld]: the loss is not finite: nothing of this request was "
                "added to the gradient", (long long)i);
    return 0;
}

/* Data of P from its next on, up to SHARE tokens; one at least when FIRST. */
static int64_t fits(const struct tw_pupil *p, int64_t from, int64_t share, bool first, int64_t *tokens)
{
    const struct tw_fb_args *f = &p->head->fb;
    int64_t n = 0, got = 0, unit = f->loss.pairs ? 2 : 1, more;

    for (int64_t i = from; i < f->n; i += unit, n += unit) {
        more = f->d[i].n + (unit > 1 ? f->d[i + 1].n : 0);      /* a pair goes in one pass */
        if (got + more > share && (!first || n))
            break;
        got += more;
    }
    *tokens += got;
    return n;
}

/* Equal parts for all, then what is left in the order of their turn. */
static void divide(struct tw_worker *k, struct tw_pupil **cand, int64_t n, int64_t *count,
        int64_t *tokens)
{
    int64_t room = k->engine.micro_tokens, share = room / n, used = 0;

    for (int64_t i = 0; i < n; i++) {
        count[i] = fits(cand[i], cand[i]->fb->next, share, !i, &tokens[i]);
        used += tokens[i];
    }
    for (int64_t i = 0; i < n && used < room; i++) {
        int64_t had = tokens[i];

        count[i] += fits(cand[i], cand[i]->fb->next + count[i], room - used, false, &tokens[i]);
        used += tokens[i] - had;
    }
}

/* What came of the pass: each request goes on, is through, or fails alone. */
static void settle(struct tw_worker *k, struct tw_pupil *p, const struct tw_engine_sample *s,
        int64_t count)
{
    struct tw_err err = { 0 };

    for (int64_t i = 0; i < count; i++)
        if (take(p, &s[i], p->fb->next + i, &err)) {
            fail(k, p, "user", &err);
            return;
        }
    p->fb->next += count;
    if (p->fb->next == p->head->fb.n)
        finish(k, p);
}

/* The whole of P's request of embeddings. */
static void embed(struct tw_worker *k, struct tw_pupil *p, struct tw_engine *e)
{
    struct tw_err err = { 0 };
    double t0 = tw_now();
    int ret = tw_nat_embed(k, e, p, &p->fb->sum, &err);

    p->fb->busy = tw_now() - t0;
    p->who->spent[TW_TRAIN] += p->fb->busy;
    k->stat.passes++;
    if (ret)
        fail(k, p, err.code == TW_EMISUSE ? "user" : "server", &err);
    else
        finish(k, p);
}

/* What P's passes go over: the base that all share, or a copy of its own. */
static struct tw_engine *engine_of(struct tw_worker *k, struct tw_pupil *p)
{
    return p->own && !p->head->fb.base ? &p->engine : &k->engine;
}

static void run(struct tw_worker *k, struct tw_pupil **cand, int64_t n)
{
    int64_t *count = tw_arena_alloc(&k->arena, (size_t)n * sizeof *count), total = 0, all = 0, with = 0;
    int64_t *tokens = tw_arena_alloc(&k->arena, (size_t)n * sizeof *tokens), at = 0;
    bool score = cand[0]->head->fb.forward_only;
    struct tw_engine_sample *s;
    struct tw_err err = { 0 };
    double t0 = tw_now(), dt;
    int ret;

    divide(k, cand, n, count, tokens);
    for (int64_t i = 0; i < n; i++)
        total += count[i];
    s = tw_arena_alloc(&k->arena, (size_t)(total + 1) * sizeof *s);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < count[i]; j++)
            s[at++] = sample(cand[i], &cand[i]->head->fb, cand[i]->fb->next + j);
        all += tokens[i];
        with += count[i] > 0;
    }
    ret = !total ? 0 : score ? tw_engine_score(engine_of(k, cand[0]), s, total, 0, &err) :
            tw_engine_forward_backward(engine_of(k, cand[0]), s, total, TW_DROPOUT, &err);
    dt = tw_now() - t0;
    k->stat.passes++;
    k->stat.merged += with > 1;
    at = 0;
    for (int64_t i = 0; i < n; i++) {
        double part = all ? dt * (double)tokens[i] / (double)all : 0;

        cand[i]->who->spent[TW_TRAIN] += part;
        cand[i]->fb->busy += part;
        if (ret && count[i])
            fail(k, cand[i], "server", &err);
        else if (count[i] || !cand[i]->head->fb.n)
            settle(k, cand[i], s + at, count[i]);
        at += count[i];
    }
}

static bool embeds(const struct tw_pupil *p)
{
    return p->head->verb == TW_FORWARD_BACKWARD && p->head->fb.nat && p->head->fb.nat->embed;
}

void tw_fb_pass(struct tw_worker *k, struct tw_pupil **cand, int64_t n)
{
    struct tw_pupil **in = tw_arena_alloc(&k->arena, (size_t)n * sizeof *in);
    bool score = cand[0]->head->fb.forward_only;
    const struct tw_engine *e = engine_of(k, cand[0]);
    int64_t m = 0;

    for (int64_t i = 0; i < n && m < k->o.max_adapters; i++) {
        struct tw_pupil *p = cand[i];
        struct tw_err err = { 0 };

        if (m && (embeds(p) || embeds(in[0])))     /* those have the device for themselves */
            continue;
        if (p->head->verb != TW_FORWARD_BACKWARD || p->head->refused ||
                p->head->fb.forward_only != score || engine_of(k, p) != e)
            continue;
        if (tw_pupil_wake(k, p, &err) || (!p->fb && begin(k, p, &err)))
            fail(k, p, "server", &err);
        else
            in[m++] = p;
    }
    if (m && embeds(in[0]))
        embed(k, in[0], engine_of(k, in[0]));
    else if (m)
        run(k, in, m);
}
