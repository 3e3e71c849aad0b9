/* mixed.c - LoRA steps of several adapters in one batch: tokens a second with one adapter and with K that
 * share the batch in turn, AdamW's step and clipping included, and how far each one's gradient is from that of
 * its sequences alone, max|a - b| / max|b|. Weights are random.
 * usage: mixed DEVICE CONFIG.json K SEQUENCES TOKENS RUNS */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/mem.h"
#include "base/rng.h"
#include "nn/model.h"
#include "nn/optim.h"

enum { MOST = 8 };

struct mixed {
    struct tw_dev *dev;
    struct tw_model *m;
    struct tw_adapter *a[MOST];
    struct tw_optim *o[MOST];
    int64_t n, T;
    struct tw_seq *seq;
    struct tw_row *row;
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void zero(struct mixed *b)
{
    for (int k = 0; k < MOST && b->a[k]; k++)
        tw_params_zero(b->dev, tw_adapter_params(b->a[k]));
}

/* AdamW's step of each of K adapters: as training has it, or serving. */
static int update(struct mixed *b, int k, struct tw_err *err)
{
    struct tw_optim_job j[MOST];
    struct tw_optim_report r;

    if (k == 1)
        return tw_optim_step(b->o[0], 1e-5, 1, &r, err);
    for (int i = 0; i < k; i++)
        j[i] = (struct tw_optim_job){ .o = b->o[i], .lr = 1e-5, .clip = 1 };
    return tw_optim_steps(j, k, err);
}

/* A forward and backward of the sequences whose number leaves WHICH of K (-1: all), each with
 * adapter number i % K, and their STEP. Seconds; infinity: it failed. */
static double run(struct mixed *b, int k, int which, bool step)
{
    struct tw_err err = { 0 };
    struct tw_seq *s = tw_xcalloc((size_t)b->n, sizeof *s);
    int64_t n = 0, rows = 0;
    double t0;

    for (int64_t i = 0; i < b->n; i++) {
        if (which >= 0 && i % k != which)
            continue;
        s[n] = b->seq[i];
        s[n].adapter = b->a[i % k];
        for (int64_t t = 0; t + 1 < b->T; t++)
            b->row[rows++] = (struct tw_row){ .s = n, .at = t, .temp = 1,
                .target = b->seq[i].token[t + 1], .coef = -1.0f / (float)(b->n * b->T) };
        n++;
    }
    t0 = now();
    if (tw_model_run(b->m, s, n, b->row, rows, TW_BACKWARD | TW_LATER, NULL, NULL, &err) ||
            (step && update(b, k, &err)) || tw_model_wait(b->m, &err) || tw_ops(b->dev)->sync(b->dev, &err)) {
        fprintf(stderr, "mixed: %s\n", err.msg);
        t0 = INFINITY;
    }
    free(s);
    return now() - t0;
}

static double rate(struct mixed *b, int k, int runs)
{
    double t[32];

    for (int i = -2; i < runs; i++) {
        double s = run(b, k, -1, true);

        if (i >= 0)
            t[i] = s;
    }
    qsort(t, (size_t)runs, sizeof *t, cmp);
    return (double)(b->n * b->T) / t[runs / 2];
}

/* All gradients of adapter K, one behind the other. */
static float *gradients(struct mixed *b, int k, int64_t *n)
{
    const struct tw_params *p = tw_adapter_params(b->a[k]);
    float *g;

    *n = 0;
    for (int64_t i = 0; i < p->n; i++)
        *n += p->p[i].n;
    g = tw_xcalloc((size_t)*n, sizeof *g);
    *n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        tw_ops(b->dev)->get(b->dev, g + *n, p->p[i].g, (size_t)p->p[i].n * sizeof *g);
        *n += p->p[i].n;
    }
    return g;
}

static double apart(struct mixed *b, int k)
{
    double worst = 0;

    for (int j = 0; j < k; j++) {
        double off = 0, most = 0;
        float *x, *y;
        int64_t n;

        zero(b);
        run(b, k, -1, false);
        x = gradients(b, j, &n);
        zero(b);
        run(b, k, j, false);
        y = gradients(b, j, &n);
        for (int64_t i = 0; i < n; i++) {
            off = fmax(off, fabs((double)x[i] - (double)y[i]));
            most = fmax(most, fabs((double)y[i]));
        }
        worst = fmax(worst, most > 0 ? off / most : INFINITY);
        free(x);
        free(y);
    }
    return worst;
}

static void fill(struct mixed *b)
{
    int64_t V = tw_model_info(b->m)->V;
    int32_t *token = tw_xcalloc((size_t)(b->n * b->T), sizeof *token);

    b->seq = tw_xcalloc((size_t)b->n, sizeof *b->seq);
    b->row = tw_xcalloc((size_t)(b->n * b->T), sizeof *b->row);
    for (int64_t i = 0; i < b->n * b->T; i++)
        token[i] = (int32_t)(tw_rand64(1, 2, (uint64_t)i) % (uint64_t)V);
    for (int64_t i = 0; i < b->n; i++)
        b->seq[i] = (struct tw_seq){ .token = token + i * b->T, .n = b->T, .key = (uint64_t)i };
}

/* An adapter whose B is not zero: else A has no gradient. */
static struct tw_adapter *adapter(struct mixed *b, int k, struct tw_err *err)
{
    struct tw_lora_opts lo = { .r = 16, .alpha = 32, .init = "gaussian",
        .targets = tw_model_info(b->m)->routers ? "all-linear+experts.gate_up_proj+experts.down_proj" :
            "all-linear" };
    struct tw_adapter *a = tw_adapter_new(b->m, &lo, (uint64_t)k, true, err);
    const struct tw_params *p = a ? tw_adapter_params(a) : NULL;

    for (int64_t i = 1; p && i < p->n; i += 2) {
        float *w = tw_xcalloc((size_t)p->p[i].n, sizeof *w);

        for (int64_t j = 0; j < p->p[i].n; j++)
            w[j] = 0.01f * (float)tw_rand_normal(7, (uint64_t)(k * 1000 + i), (uint64_t)j);
        tw_ops(b->dev)->put(b->dev, p->p[i].w.data, w, (size_t)p->p[i].n * sizeof *w);
        free(w);
    }
    return a;
}

int main(int argc, char **argv)
{
    struct tw_err err = { 0 };
    struct mixed b = { 0 };
    double one, many, off;

    if (argc != 7) {
        fprintf(stderr, "usage: mixed DEVICE CONFIG.json K SEQUENCES TOKENS RUNS\n");
        return 2;
    }
    struct tw_model_opts mo = { .dtype = TW_BF16, .init_random = true,
        .config_json = argv[2], .seed = 1 };
    struct tw_optim_opts oo = { 0 };
    int k = (int)strtol(argv[3], NULL, 10), runs = (int)strtol(argv[6], NULL, 10);
    k = k < 1 ? 1 : k > MOST ? MOST : k;
    runs = runs < 1 ? 1 : runs > 32 ? 32 : runs;
    b.n = strtoll(argv[4], NULL, 10);
    b.T = strtoll(argv[5], NULL, 10);
    mo.lora_room = 16 * k;      /* as tw-train has it */
    b.dev = tw_dev_open(argv[1], 0, &err);
    b.m = b.dev ? tw_model_open(NULL, b.dev, &mo, &err) : NULL;
    tw_optim_parse(&oo, "--optimizer", "adamw", &err);
    for (int i = 0; b.m && i < k; i++) {
        b.a[i] = adapter(&b, i, &err);
        b.o[i] = b.a[i] ? tw_optim_open(b.dev, tw_adapter_params(b.a[i]), true, &oo, &err) : NULL;
    }
    if (!b.m || err.code) {
        fprintf(stderr, "mixed: %s\n", err.msg);
        return 1;
    }
    fill(&b);
    one = rate(&b, 1, runs);
    many = rate(&b, k, runs);
    printf("one adapter %.0f tok/s, %d mixed %.0f tok/s (%.3f); one again %.0f\n", one, k, many,
           many / one, rate(&b, 1, runs));
    off = apart(&b, k);
    printf("gradients beside each adapter's alone: %.1e\n", off);
    for (int i = 0; i < k; i++) {
        tw_optim_close(b.o[i]);
        tw_adapter_close(b.a[i]);
    }
    tw_model_close(b.m);
    tw_dev_close(b.dev);
    free((void *)b.seq[0].token);
    free(b.seq);
    free(b.row);
    return off > 1e-3;
}
