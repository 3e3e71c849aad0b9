/* engine.c - packed passes over samples, updates, and what is saved of them */
#include "run/engine.h"
#include "base/io.h"
#include <stdlib.h>

enum { MOST_ROWS = 1 << 18 };       /* that are waited for together */

/* The rows of a pass and the sample that each belongs to. */
struct pass {
    struct pass *next;
    struct tw_engine_sample *s;
    int64_t n;
    struct tw_row *row;
    int64_t *slot;                  /* of each row in its sample's arrays */
    int64_t nrow, *first;           /* the first row of each sample, and one behind the last */
    struct tw_arena *arena;
};

/* Entries of the arrays that belong to predictions: one a token, or several with targets. */
static int64_t slots(const struct tw_engine_sample *s)
{
    return s->target ? s->n * s->ntarget : s->n;
}

static float weight_of(const struct tw_engine_sample *s, int64_t i)
{
    return s->weight ? s->weight[i] : 1;
}

/* Is slot I a prediction that counts? Nothing stands before the first token. */
static bool counts(const struct tw_engine_sample *s, int64_t i)
{
    return (s->target || i) && (weight_of(s, i) != 0 || (s->target && s->all));
}

static int64_t supervised(const struct tw_engine_sample *s)
{
    int64_t n = 0;

    for (int64_t i = 0; i < slots(s); i++)
        n += counts(s, i);
    return n;
}

int64_t tw_engine_cut(const struct tw_engine *e, const struct tw_engine_sample *s, int64_t n)
{
    int64_t i = 0, tokens = 0;

    while (i < n) {
        int64_t j = i, more = 0;

        do
            more += s[j++].n;
        while (j < n && s[j].tied);
        if (i && (tokens + more > e->micro_tokens || (s[i].adapter != s->adapter && tw_model_apart(e->model))))
            break;
        tokens += more;
        i = j;
    }
    return i;
}

static void fill(struct pass *p, struct tw_seq *seq, int64_t n)
{
    int64_t rows = 0, at = 0;

    for (int64_t i = 0; i < n; i++)
        rows += supervised(&p->s[i]);
    p->row = tw_arena_alloc(p->arena, (size_t)rows * sizeof *p->row);
    p->slot = tw_arena_alloc(p->arena, (size_t)rows * sizeof *p->slot);
    p->nrow = rows;
    p->first = tw_arena_alloc(p->arena, (size_t)(n + 1) * sizeof *p->first);
    for (int64_t i = 0; i < n; i++) {
        struct tw_engine_sample *s = &p->s[i];

        p->first[i] = at;
        seq[i] = (struct tw_seq){ .token = s->token, .n = s->n, .adapter = s->adapter,
            .key = s->key, .experts = s->experts, .aux = s->aux,
            .balance = s->aux != 0 ? &s->balance : NULL };
        for (int64_t t = 0; t < slots(s); t++) {
            struct tw_row *r = &p->row[at];

            if (!counts(s, t))
                continue;
            *r = (struct tw_row){ .s = i, .at = s->target ? t / s->ntarget : t - 1,
                .target = s->target ? s->target[t] : s->token[t], .temp = s->temp };
            if (s->temps)
                r->temp = s->temps[s->target ? r->at : t];
            tw_loss_token(s->loss, 0, weight_of(s, t), s->scale, &r->coef);
            tw_loss_smooth(s->loss, 0, weight_of(s, t), s->scale, &r->coef_mean);
            p->slot[at++] = t;
        }
    }
    p->first[n] = at;
}

/* The sample as its loss sees it: arrays over its rows. */
static struct tw_loss_seq view(struct pass *p, int64_t i)
{
    const struct tw_engine_sample *s = &p->s[i];
    const struct tw_row *row = p->row + p->first[i];
    const int64_t *slot = p->slot + p->first[i];
    int64_t n = p->first[i + 1] - p->first[i];
    const float *in[8] = { NULL, NULL, s->old, s->ref, s->advantage, s->ratio_mask, s->lo, s->hi };
    float *x = tw_arena_alloc(p->arena, (size_t)(9 * n + 1) * sizeof *x), *of[8];

    for (int64_t k = 0; k < n; k++) {
        int64_t t = slot[k];

        x[k] = row[k].logp;
        x[n + k] = weight_of(s, t);
        for (int j = 2; j < 8; j++)
            x[j * n + k] = in[j] ? in[j][t] : 0;
    }
    for (int j = 0; j < 8; j++)
        of[j] = j < 2 || in[j] ? x + j * n : NULL;
    return (struct tw_loss_seq){ .n = n, .logp = of[0], .weight = of[1], .old = of[2], .ref = of[3],
        .advantage = of[4], .ratio_mask = of[5], .lo = of[6], .hi = of[7], .dlogp = x + 8 * n,
        .adv = s->adv, .scale = s->scale, .label = s->label };
}

static void put_coefs(struct pass *p, int64_t i, const struct tw_loss_seq *v)
{
    for (int64_t k = 0; k < v->n; k++)
        p->row[p->first[i] + k].coef = v->dlogp[k];
}

static double by_token(struct pass *p, int64_t i)
{
    const struct tw_engine_sample *s = &p->s[i];
    double sum = 0;

    for (int64_t k = p->first[i]; k < p->first[i + 1]; k++) {
        struct tw_row *r = &p->row[k];
        float w = weight_of(s, p->slot[k]);

        sum += tw_loss_token(s->loss, r->logp, w, s->scale, &r->coef);
        sum += tw_loss_smooth(s->loss, r->mean, w, s->scale, &r->coef_mean);
    }
    return sum;
}

/* Every sample's sum and its rows' coefficients, from the rows' log-probabilities. */
static void losses(struct pass *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        struct tw_engine_sample *s = &p->s[i];
        const struct tw_loss *l = s->loss;
        struct tw_loss_seq a, b;

        if (!l->policy && !l->pairs && !l->label) {
            s->sum = by_token(p, i);
            continue;
        }
        a = view(p, i);
        if (l->pairs && i + 1 < p->n && p->s[i + 1].tied) {
            b = view(p, i + 1);
            s->sum = tw_loss_pair(l, &a, &b, s->nll_scale);
            s[1].sum = 0;
            put_coefs(p, i, &a);
            put_coefs(p, ++i, &b);
            continue;
        }
        s->sum = l->policy ? tw_loss_policy(l, &a) : tw_loss_kto(l, &a);
        put_coefs(p, i, &a);
        s->stat = a;
    }
}

/* For losses whose gradient is a function of the log-probabilities. */
static int coefs(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err)
{
    losses(arg);
    return 0;
}

static void collect(struct pass *p)
{
    losses(p);
    for (int64_t i = 0; i < p->n; i++) {
        p->s[i].entropy = 0;
        if (p->s[i].logp)
            memset(p->s[i].logp, 0, (size_t)slots(&p->s[i]) * sizeof *p->s[i].logp);
    }
    for (int64_t i = 0; i < p->nrow; i++) {
        const struct tw_row *r = &p->row[i];
        struct tw_engine_sample *s = &p->s[r->s];

        s->entropy += (double)r->entropy;
        if (s->logp)
            s->logp[p->slot[i]] = r->logp;
    }
}

/* Runs pass P, or queues it: then it is one that the model waits for. */
static int start(struct tw_engine *e, struct pass *p, unsigned flags, struct tw_err *err)
{
    struct tw_seq *seq = tw_arena_alloc(p->arena, (size_t)p->n * sizeof *seq);
    bool late = false, mean = false;

    if (e->go_on && e->go_on(e->arg, err))
        return -1;
    fill(p, seq, p->n);
    for (int64_t i = 0; i < p->n; i++) {
        late |= p->s[i].loss->needs_logp;
        mean |= p->s[i].loss->uniform > 0;
    }
    return tw_model_run(e->model, seq, p->n, p->row, p->nrow, flags | (mean ? TW_MEAN : 0),
            late ? coefs : NULL, p, err);
}

/* What came out of passes P. */
static int finish(struct tw_engine *e, struct pass *p, struct tw_err *err)
{
    int ret = tw_model_wait(e->model, err);

    for (; p && !ret; p = p->next)
        collect(p);
    return ret;
}

static int run(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    struct pass *first = NULL, **last = &first;
    struct tw_err none = { 0 };
    int64_t rows = 0;

    while (n > 0) {
        int64_t k = tw_engine_cut(e, s, n);
        struct pass *p;

        if (!first)
            tw_arena_reset(&e->arena);
        p = tw_arena_alloc(&e->arena, sizeof *p);
        *p = (struct pass){ .s = s, .n = k, .arena = &e->arena };
        if (start(e, p, flags, err)) {
            tw_model_wait(e->model, &none);
            return -1;
        }
        *last = p;
        last = &p->next;
        rows += p->nrow;
        s += k;
        n -= k;
        if (tw_model_waits(e->model) && rows < MOST_ROWS)
            continue;
        if (finish(e, first, err))
            return -1;
        first = NULL;
        last = &first;
        rows = 0;
    }
    return finish(e, first, err);
}

int tw_engine_forward_backward(struct tw_engine *e, struct tw_engine_sample *s, int64_t n,
        unsigned flags, struct tw_err *err)
{
    return run(e, s, n, flags | TW_BACKWARD | e->recompute, err);
}

int tw_engine_score(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    return run(e, s, n, flags & TW_ENTROPY, err);
}

void tw_engine_loss(struct tw_engine_sample *s, int64_t n, float **coef, struct tw_arena *a)
{
    struct pass p = { .s = s, .n = n, .arena = a };
    struct tw_seq *seq = tw_arena_alloc(a, (size_t)(n + 1) * sizeof *seq);

    fill(&p, seq, n);
    for (int64_t i = 0; i < p.nrow; i++)
        p.row[i].logp = s[p.row[i].s].logp ? s[p.row[i].s].logp[p.slot[i]] : 0;
    losses(&p);
    for (int64_t i = 0; i < n; i++)
        coef[i] = tw_arena_alloc(a, (size_t)(s[i].n + 1) * sizeof **coef);
    for (int64_t i = 0; i < p.nrow; i++)
        coef[p.row[i].s][p.slot[i]] = p.row[i].coef;
}

int tw_engine_optim_step(struct tw_engine *e, struct tw_optim *o, double lr, double clip,
        struct tw_optim_report *r, struct tw_err *err)
{
    return tw_optim_step(o, lr, clip, r, err);
}

int tw_engine_save(struct tw_engine *e, struct tw_adapter *adapter, struct tw_optim *o,
        enum tw_dtype dtype, const char *base, const char *dir, struct tw_err *err)
{
    char *moments = tw_path_join(dir, "trainer/optimizer.safetensors");
    char *weights = tw_path_join(dir, "trainer/weights.safetensors");
    int ret;

    ret = adapter ? tw_adapter_save(adapter, dir, base, err) :
            tw_model_save(e->model, NULL, dtype, dir, err);
    if (!ret && !adapter && dtype != TW_F32)
        ret = tw_optim_save_weights(o, weights, err);
    if (!ret)
        ret = tw_optim_save(o, moments, err);
    free(moments);
    free(weights);
    return ret;
}

int tw_engine_load(struct tw_engine *e, struct tw_optim *o, int64_t updates, const char *dir,
        struct tw_err *err)
{
    char *moments = tw_path_join(dir, "trainer/optimizer.safetensors");
    char *weights = tw_path_join(dir, "trainer/weights.safetensors");
    int ret = tw_optim_load(o, moments, updates, err);

    if (!ret && tw_is_file(weights))
        ret = tw_optim_load_weights(o, weights, err);
    free(moments);
    free(weights);
    return ret;
}

void tw_engine_close(struct tw_engine *e)
{
    tw_arena_free(&e->arena);
    *e = (struct tw_engine){ 0 };
}
