/* nat_teach.c - what GKD is told of a teacher: of each supervised position some tokens and the teacher's
 * log-probabilities, or logits, of them */
#include "serve/nat.h"
#include "serve/datum.h"
#include <math.h>

struct teach {
    struct tw_arena *a;
    const struct tw_limits *l;
    const struct tw_json *logp, *id;    /* [rows][positions][k] */
    int64_t k;
    bool all;                           /* logp has an entry for each token of the vocabulary: the k largest */
};

/* The entry of a list for the position T, which is the OWN-th supervised of COUNT, of N. */
static const struct tw_json *at(const struct tw_json *v, int64_t t, int64_t own, int64_t count, int64_t n)
{
    if (!v || v->type != TW_JARR || (v->n != count && v->n < n))
        return NULL;
    return &v->item[v->n == count ? own : t];
}

static int one(const struct teach *c, const struct tw_json *logp, const struct tw_json *id, int64_t i,
        float *x, int32_t *token, struct tw_err *err)
{
    const struct tw_json *v = &logp->item[i];
    int64_t named = id ? id->item[i].i : i;

    if (v->type != TW_JNUM || !isfinite(v->d) || !(fabs(v->d) < 1e30) || (id && !id->item[i].is_int))
        return tw_fail(err, NULL, 0, "what the teacher says holds what is no number");
    if (!tw_is_token(c->l, named))
        return tw_fail(err, NULL, 0, "teacher_topk_indices: %lld is not a token of this model",
                (long long)named);
    *x = (float)v->d;
    *token = (int32_t)named;
    return 0;
}

/* The k largest of all, the first of equals. */
static int largest(const struct teach *c, const struct tw_json *v, float *x, int32_t *token, struct tw_err *err)
{
    int64_t n = 0;

    for (int64_t i = 0; i < v->n && i < c->l->V; i++) {
        float f;
        int32_t id;
        int64_t to;

        if (c->l->known && !c->l->known[i])
            continue;
        if (one(c, v, NULL, i, &f, &id, err))
            return -1;
        if (n == c->k && !(f > x[n - 1]))
            continue;
        for (to = n < c->k ? n++ : n - 1; to && f > x[to - 1]; to--) {
            x[to] = x[to - 1];
            token[to] = token[to - 1];
        }
        x[to] = f;
        token[to] = id;
    }
    return n == c->k ? 0 : tw_fail(err, NULL, 0, "teacher_logits: %lld numbers are fewer than topk",
            (long long)v->n);
}

static int position(const struct teach *c, const struct tw_json *logp, const struct tw_json *id, float *x,
        int32_t *token, struct tw_err *err)
{
    if (!logp || logp->type != TW_JARR || (!c->all && (!id || id->type != TW_JARR || id->n != logp->n)) ||
            (!c->all && logp->n != c->k))
        return tw_fail(err, NULL, 0, "of each supervised position the teacher says as many log-probabilities "
                "as indices, and of all alike");
    if (c->all)
        return largest(c, logp, x, token, err);
    for (int64_t i = 0; i < c->k; i++)
        if (one(c, logp, id, i, &x[i], &token[i], err))
            return -1;
    return 0;
}

static int row(const struct teach *c, struct tw_datum_in *d, struct tw_nat_datum *nd, int64_t r,
        struct tw_err *err)
{
    const struct tw_json *logp = &c->logp->item[r], *id = c->id ? &c->id->item[r] : NULL;
    size_t n = (size_t)d->n * (size_t)c->k;
    int32_t *token = tw_arena_alloc(c->a, n * sizeof *token + 1);
    float *x = tw_arena_alloc(c->a, n * sizeof *x + 1), *w = tw_arena_alloc(c->a, n * sizeof *w + 1);
    int64_t count = 0, own = 0;

    for (int64_t t = 0; t < d->n; t++)
        count += d->weight[t] != 0;
    for (int64_t t = 0; t < d->n; t++) {
        if (d->weight[t] == 0)
            continue;
        if (position(c, at(logp, t, own, count, d->n), at(id, t, own, count, d->n), x + t * c->k,
                    token + t * c->k, err))
            return -1;
        for (int64_t i = 0; i < c->k; i++)
            w[t * c->k + i] = d->weight[t];
        own++;
    }
    d->target = token;
    d->weight = w;
    d->k = c->k;
    nd->ref = x;
    return 0;
}

/* The first position of V that is a list, for how many it holds. */
static int64_t width(const struct tw_json *v)
{
    for (int64_t r = 0; r < v->n; r++)
        for (int64_t t = 0; v->item[r].type == TW_JARR && t < v->item[r].n; t++)
            if (v->item[r].item[t].type == TW_JARR && v->item[r].item[t].n)
                return v->item[r].item[t].n;
    return 0;
}

int tw_nat_teach(struct tw_work *w, struct tw_datum_in *d, struct tw_nat_datum *nd, int64_t n,
        const struct tw_json *kw, const struct tw_limits *l, struct tw_err *err)
{
    struct teach c = { .a = &w->arena, .l = l, .logp = tw_json_get(kw, "teacher_topk_logprobs"),
        .id = tw_json_get(kw, "teacher_topk_indices") };

    if (!c.logp && (c.logp = tw_json_get(kw, "teacher_logits")))
        c.all = !c.id;
    if (!c.logp || c.logp->type != TW_JARR || c.logp->n != n || (!c.all && (!c.id || c.id->type != TW_JARR ||
                    c.id->n != n)))
        return tw_fail(err, NULL, 0, "GKDLoss needs a teacher: teacher_topk_logprobs and teacher_topk_indices, "
                "or teacher_logits, with an entry for each of %lld sequences", (long long)n);
    c.k = width(c.logp);
    if (tw_json_get_int(kw, "topk", &c.k, err) < 0)
        return -1;
    if (c.k < 1 || c.k > l->V || (!c.all && c.k != width(c.logp)))
        return tw_fail(err, NULL, 0, "topk does not fit what the teacher says");
    for (int64_t i = 0; i < n; i++)
        if (row(&c, &d[i], &nd[i], i, err))
            return -1;
    return 0;
}
