/* engine.c - packed passes over samples, updates, and what is saved of them */
#include "run/engine.h"
#include "base/io.h"
#include <stdlib.h>

/* The rows of a pass and the sample that each belongs to. */
struct pass {
    struct tw_engine_sample *s;
    struct tw_row *row;
    int64_t nrow;
};

static float weight_of(const struct tw_engine_sample *s, int64_t i)
{
    return s->weight ? s->weight[i] : 1;
}

static int64_t supervised(const struct tw_engine_sample *s)
{
    int64_t n = 0;

    for (int64_t i = 1; i < s->n; i++)
        n += weight_of(s, i) != 0;
    return n;
}

/* How many samples from S on go into one pass. */
static int64_t cut(const struct tw_engine *e, const struct tw_engine_sample *s, int64_t n)
{
    int64_t i = 0, tokens = 0;

    while (i < n) {
        int64_t j = i, more = 0;

        do
            more += s[j++].n;
        while (j < n && s[j].tied);
        if (i && tokens + more > e->micro_tokens)
            break;
        tokens += more;
        i = j;
    }
    return i;
}

static void fill(struct tw_engine *e, struct pass *p, struct tw_seq *seq, int64_t n)
{
    int64_t rows = 0, at = 0;

    for (int64_t i = 0; i < n; i++)
        rows += supervised(&p->s[i]);
    p->row = tw_arena_alloc(&e->arena, (size_t)rows * sizeof *p->row);
    p->nrow = rows;
    for (int64_t i = 0; i < n; i++) {
        const struct tw_engine_sample *s = &p->s[i];

        seq[i] = (struct tw_seq){ .token = s->token, .n = s->n, .adapter = s->adapter,
            .key = s->key };
        for (int64_t t = 1; t < s->n; t++) {
            struct tw_row *r = &p->row[at];

            if (weight_of(s, t) == 0)
                continue;
            *r = (struct tw_row){ .s = i, .at = t - 1, .target = s->token[t], .temp = s->temp };
            tw_loss_token(s->loss, 0, weight_of(s, t), s->scale, &r->coef);
            at++;
        }
    }
}

/* For losses whose gradient is a function of the log-probabilities. */
static int coefs(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err)
{
    const struct pass *p = arg;

    for (int64_t i = 0; i < nrow; i++) {
        const struct tw_engine_sample *s = &p->s[row[i].s];

        tw_loss_token(s->loss, row[i].logp, weight_of(s, row[i].at + 1), s->scale, &row[i].coef);
    }
    return 0;
}

static void collect(struct pass *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        p->s[i].sum = 0;
        if (p->s[i].logp)
            memset(p->s[i].logp, 0, (size_t)p->s[i].n * sizeof *p->s[i].logp);
    }
    for (int64_t i = 0; i < p->nrow; i++) {
        const struct tw_row *r = &p->row[i];
        struct tw_engine_sample *s = &p->s[r->s];
        float coef;

        s->sum += tw_loss_token(s->loss, r->logp, weight_of(s, r->at + 1), s->scale, &coef);
        if (s->logp)
            s->logp[r->at + 1] = r->logp;
    }
}

static int run(struct tw_engine *e, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    while (n > 0) {
        int64_t k = cut(e, s, n);
        struct pass p = { .s = s };
        struct tw_seq *seq;
        bool late = false;

        tw_arena_reset(&e->arena);
        seq = tw_arena_alloc(&e->arena, (size_t)k * sizeof *seq);
        fill(e, &p, seq, k);
        for (int64_t i = 0; i < k; i++)
            late |= s[i].loss->needs_logp;
        if (tw_model_run(e->model, seq, k, p.row, p.nrow, flags, late ? coefs : NULL, &p, err))
            return -1;
        collect(&p, k);
        s += k;
        n -= k;
    }
    return 0;
}

int tw_engine_forward_backward(struct tw_engine *e, struct tw_engine_sample *s, int64_t n,
        unsigned flags, struct tw_err *err)
{
    return run(e, s, n, flags | TW_BACKWARD | (e->recompute ? TW_RECOMPUTE : 0), err);
}

int tw_engine_score(struct tw_engine *e, struct tw_engine_sample *s, int64_t n,
        struct tw_err *err)
{
    return run(e, s, n, 0, err);
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
