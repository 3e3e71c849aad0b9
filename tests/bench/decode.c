/* decode.c - tokens a second of the sampler. Prints a line per case: batch, adapters, what was
 * drawn, seconds of the median run, tokens/s, tokens/s of the decode steps alone (from when every sample has
 * its first token), a sum over what was drawn and its log-probabilities. Weights are random.
 * usage: decode DEVICE CONFIG.json PROMPT NEW RUNS BATCH[:ADAPTERS[:how]] ..
 * ADAPTERS (r 16, all modules) share the batch in turn; how: greedy (default), plain, top_p, top_k.
 * With WAYS=plain,ring,.. in the environment all cases run once for each value of TW_STEP, on a device opened
 * anew, in this one process; then once more in the same order. With EXACT=1 the model is opened to be exact. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/mem.h"
#include "base/rng.h"
#include "run/sampler.h"

enum { ADAPTERS = 8 };

struct bench {
    struct tw_model *m;
    struct tw_adapter *adapter[ADAPTERS];
    int64_t prompt, more, runs;
    int32_t *token;
    const char *way;
};

struct tally {
    int64_t n;
    uint64_t sum;               /* of all requests, in any order */
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

static uint64_t mix(uint64_t sum, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        sum = (sum ^ b[i]) * 0x100000001b3u;
    return sum;
}

static void done(struct tw_gen *g)
{
    struct tally *t = g->user;
    const struct tw_completion *o = &g->out[0];

    t->n += o->stop == TW_STOP_LENGTH ? o->n : 0;
    t->sum += mix(mix(g->stream, o->token, (size_t)o->n * sizeof *o->token), o->logp,
                  (size_t)o->n * sizeof *o->logp);
    if (*g->error)
        fprintf(stderr, "%s\n", g->error);
    tw_gen_free_out(g);
}

/* Tokens that N requests have so far; 0: some have none yet, or have ended. */
static int64_t drawn(const struct tw_gen *g, int64_t n)
{
    int64_t all = 0;

    for (int64_t i = 0; i < n; i++) {
        if (!g[i].out || !g[i].out[0].n)
            return 0;
        all += g[i].out[0].n;
    }
    return all;
}

/* Seconds of one run of BATCH requests; < 0: it failed. *STEPS: tokens a second once all prompts were run;
 * *SUM: of what was drawn. */
static double run(struct bench *b, int64_t batch, int adapters, const char *how, uint64_t seed,
        double *steps, uint64_t *sum)
{
    struct tw_sampler_opts o = { .max_batch = batch };
    struct tw_err err = { 0 };
    struct tw_sampler *s = tw_sampler_open(b->m, NULL, NULL, 0, &o, &err);
    struct tw_gen *g = tw_xcalloc((size_t)batch, sizeof *g);
    struct tally tally = { 0 };
    double t0 = now(), t1 = 0;
    int64_t first = 0;
    int more;

    for (int64_t i = 0; i < batch; i++) {
        g[i] = (struct tw_gen){ .prompt = b->token + i * b->prompt, .nprompt = b->prompt, .n = 1,
            .sampling = { .temperature = how[0] != 'g', .top_p = 1, .repetition = 1 },
            .seed = seed, .stream = (uint64_t)i, .max_tokens = b->more, .user = &tally,
            .done = done, .adapter = adapters ? b->adapter[i % adapters] : NULL };
        if (!strcmp(how, "top_p"))
            g[i].sampling.top_p = 0.9;
        if (!strcmp(how, "top_k"))
            g[i].sampling.top_k = 50;
        tw_sampler_add(s, &g[i]);
    }
    while ((more = tw_sampler_step(s, &err)) > 0)
        if (!first && (first = drawn(g, batch)))
            t1 = now();
    if (more < 0 || tally.n != batch * b->more) {
        fprintf(stderr, "decode: %s (%lld tokens)\n", err.msg, (long long)tally.n);
        return -1;
    }
    *steps = first ? (double)(tally.n - first) / (now() - t1) : 0;
    t0 = now() - t0;
    *sum = tally.sum;
    tw_sampler_close(s);
    free(g);
    return t0;
}

static int bench(struct bench *b, const char *spec)
{
    char *end;
    int64_t batch = strtoll(spec, &end, 10);
    int adapters = *end == ':' ? (int)strtol(end + 1, &end, 10) : 0;
    const char *how = *end == ':' ? end + 1 : "greedy";
    double t[32], steps[32];
    uint64_t sum = 0;
    int n = b->runs < 31 ? (int)b->runs : 31;

    b->token = tw_xreallocarray(b->token, (size_t)(batch * b->prompt), sizeof *b->token);
    for (int64_t i = 0; i < batch * b->prompt; i++)
        b->token[i] = (int32_t)(tw_rand64(1, 2, (uint64_t)i) % (uint64_t)tw_model_info(b->m)->V);
    for (int i = -1; i < n; i++) {
        double alone, s = run(b, batch, adapters, how, (uint64_t)i, &alone, &sum);

        if (s < 0)
            return 1;
        if (i >= 0)
            t[i] = s, steps[i] = alone;
    }
    qsort(t, (size_t)n, sizeof *t, cmp);
    qsort(steps, (size_t)n, sizeof *steps, cmp);
    printf("%s%sbatch %lld  adapters %d  %s  %.4f s  %.0f tok/s  steps %.0f tok/s  sum %016llx\n",
           b->way, *b->way ? "  " : "", (long long)batch, adapters, how, t[n / 2],
           (double)(batch * b->more) / t[n / 2], steps[n / 2], (unsigned long long)sum);
    fflush(stdout);
    return 0;
}

/* The cases on a device opened for them. */
static int all(int argc, char **argv, const char *way)
{
    struct tw_err err = { 0 };
    struct tw_lora_opts lo = { .r = 16, .alpha = 32, .init = "default" };
    struct bench b = { .way = way };
    struct tw_model_opts mo = { .dtype = TW_BF16, .init_random = true, .config_json = argv[2], .seed = 1,
        .exact = getenv("EXACT") != NULL };
    struct tw_dev *d;
    int ret = 0;

    if (*way)
        setenv("TW_STEP", way, 1);
    b.prompt = strtoll(argv[3], NULL, 10);
    b.more = strtoll(argv[4], NULL, 10);
    b.runs = strtoll(argv[5], NULL, 10);
    d = tw_dev_open(argv[1], 0, &err);
    b.m = d ? tw_model_open(NULL, d, &mo, &err) : NULL;
    for (int i = 0; b.m && i < ADAPTERS; i++)
        b.adapter[i] = tw_adapter_new(b.m, &lo, (uint64_t)i, false, &err);
    if (!b.m || err.code) {
        fprintf(stderr, "decode: %s\n", err.msg);
        return 1;
    }
    for (int i = 6; i < argc; i++)
        ret |= bench(&b, argv[i]);
    for (int i = 0; i < ADAPTERS; i++)
        tw_adapter_close(b.adapter[i]);
    tw_model_close(b.m);
    tw_dev_close(d);
    free(b.token);
    return ret;
}

int main(int argc, char **argv)
{
    const char *ways = getenv("WAYS");
    int ret = 0;

    if (argc < 7) {
        fprintf(stderr, "usage: decode DEVICE CONFIG.json PROMPT NEW RUNS BATCH[:ADAPTERS[:how]] ..\n");
        return 2;
    }
    if (!ways)
        return all(argc, argv, "");
    for (int turn = 0; turn < 2; turn++)
        for (const char *s = ways; *s;) {
            size_t n = strcspn(s, ",");
            char way[32];

            snprintf(way, sizeof way, "%.*s", (int)n, s);
            ret |= all(argc, argv, way);
            s += n + (s[n] == ',');
        }
    return ret;
}
