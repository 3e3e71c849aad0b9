/* sampler.c - a generation does not depend on what else is in flight: alone, in batches, with small and
 * large prompt chunks, with the prefix cache on and off, as one of n samples, its bits are the same */
#include <stdlib.h>
#include "run/sampler.h"
#include "test.h"

enum { PROMPTS = 9, N = 3, TOKENS = 24, LIKE = 12 };

static struct tw_dev *dev;
static struct tw_model *model;
static int32_t prompt[PROMPTS][80];
static const int64_t length[PROMPTS] = { 1, 31, 32, 33, 64, 65, 79, 40, 40 };
static const int32_t end[1] = { 7 };

struct result {
    int32_t token[N][TOKENS];
    float logp[N][TOKENS];
    int64_t n[N];
    enum tw_stop stop[N];
};

static void keep(struct tw_gen *g)
{
    struct result *r = g->user;

    for (int64_t i = 0; i < g->n; i++) {
        struct tw_completion *c = &g->out[i];

        r->n[i] = c->n;
        r->stop[i] = c->stop;
        if (c->n) {
            memcpy(r->token[i], c->token, c->n * sizeof(*c->token));
            memcpy(r->logp[i], c->logp, c->n * sizeof(*c->logp));
        }
    }
    tw_gen_free_out(g);
}

static struct tw_gen request(int i, struct result *r)
{
    return (struct tw_gen){ .prompt = prompt[i], .nprompt = length[i], .n = N, .seed = 3, .stream = i,
        .sampling = { .temperature = i % 2 ? 0.8 : 1.3, .top_p = i == 4 ? 0.9 : 1, .repetition = 1 },
        .max_tokens = TOKENS, .user = r, .done = keep };
}

static struct tw_sampler *open(int64_t max_batch, int64_t chunk, int64_t cache, int64_t window)
{
    struct tw_sampler_opts o = { max_batch, window, chunk, cache };
    struct tw_err err = { 0 };
    struct tw_sampler *s = tw_sampler_open(model, NULL, end, 1, &o, &err);

    if (!s)
        printf("# %s\n", err.msg);
    return s;
}

static void drain(struct tw_sampler *s)
{
    struct tw_err err = { 0 };
    int more;

    while ((more = tw_sampler_step(s, &err)) > 0)
        ;
    CHECK_INT(more, 0);
    CHECK_STR(err.msg, "");
    CHECK_INT(tw_sampler_load(s), 0);
}

static void all(struct result *out, int64_t max_batch, int64_t chunk, int64_t cache, bool at_once)
{
    struct tw_sampler *s = open(max_batch, chunk, cache, 0);
    struct tw_gen g[PROMPTS];

    memset(out, 0, PROMPTS * sizeof(*out));
    for (int i = 0; i < PROMPTS; i++) {
        g[i] = request(i, &out[i]);
        tw_sampler_add(s, &g[i]);
        if (!at_once)
            drain(s);
    }
    drain(s);
    tw_sampler_close(s);
}

static struct result alone[PROMPTS];

static void neighbours_change_nothing(void)
{
    static struct result other[PROMPTS];
    static const struct { int64_t batch, chunk, cache; bool at_once; } how[] = {
        { 1, 0, 0, false }, { 2, 7, 0, true }, { 64, 0, 0, true }, { 5, 33, 4096, true },
        { 64, 1000, 100, false }, { 3, 1, 4096, false },
    };

    all(alone, 1, 0, 0, true);
    for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
        all(other, how[i].batch, how[i].chunk, how[i].cache, how[i].at_once);
        CHECK(!memcmp(alone, other, sizeof(alone)));
    }
    for (int i = 0; i < PROMPTS; i++)
        CHECK(memcmp(&alone[i].token[0], &alone[i].token[1], sizeof(alone[i].token[0])));
}

static void fewer_samples_are_the_first_ones(void)
{
    struct tw_sampler *s = open(8, 0, 0, 0);
    static struct result one;
    struct tw_gen g = request(5, &one);

    g.n = 1;
    tw_sampler_add(s, &g);
    drain(s);
    CHECK(!memcmp(one.token[0], alone[5].token[0], sizeof(one.token[0])));
    CHECK(!memcmp(one.logp[0], alone[5].logp[0], sizeof(one.logp[0])));
    tw_sampler_close(s);
}

static void end_and_stop_tokens_are_kept_apart(void)
{
    struct tw_sampler *s = open(8, 0, 0, 0);
    static struct result free_run, stopped, passed;
    struct tw_gen g = request(3, &free_run);
    int32_t stop;

    g.n = 1;
    g.sampling = (struct tw_sampling){ .temperature = 0, .top_p = 1, .repetition = 1 };
    g.ignore_eos = true;
    tw_sampler_add(s, &g);
    drain(s);
    CHECK_INT(free_run.n[0], TOKENS);
    stop = free_run.token[0][0];
    g = request(3, &stopped);
    g.n = 1;
    g.sampling = (struct tw_sampling){ .temperature = 0, .top_p = 1, .repetition = 1 };
    g.ignore_eos = true;
    g.stop_token = &stop;
    g.nstop_token = 1;
    tw_sampler_add(s, &g);
    drain(s);
    CHECK_INT(stopped.n[0], 1);
    CHECK_INT(stopped.stop[0], TW_STOP_STOP);
    tw_sampler_close(s);
    struct tw_sampler_opts o = { 4, 0, 0, 0 };
    struct tw_err err = { 0 };
    s = tw_sampler_open(model, NULL, &stop, 1, &o, &err);
    g = request(3, &passed);            /* now the same token is an end token of the model */
    g.n = 1;
    g.sampling = (struct tw_sampling){ .temperature = 0, .top_p = 1, .repetition = 1 };
    tw_sampler_add(s, &g);
    drain(s);
    CHECK_INT(passed.n[0], 1);
    CHECK_INT(passed.stop[0], TW_STOP_STOP);
    tw_sampler_close(s);
}

static char refusal[PROMPTS][256];

static void keep_error(struct tw_gen *g)
{
    memcpy(refusal[g->stream], g->error, sizeof(g->error));
    keep(g);
}

static void bad_prompts_end_alone(void)
{
    struct tw_sampler *s = open(4, 0, 0, 64);
    static struct result r[5];
    int32_t wrong[2] = { 5, 1000000 };
    struct tw_gen g[5];

    for (int i = 0; i < 5; i++) {
        g[i] = request(i < 3 ? 1 : 6, &r[i]);
        g[i].stream = i;
        g[i].done = keep_error;
    }
    g[1].nprompt = 0;
    g[2].prompt = wrong;
    g[2].nprompt = 2;
    g[4].nprompt = 64;                  /* fits exactly: nothing can follow */
    for (int i = 0; i < 5; i++)
        tw_sampler_add(s, &g[i]);
    drain(s);
    CHECK(r[0].n[0] > 0 && r[0].stop[0] != TW_STOP_ERROR);
    CHECK(r[1].stop[0] == TW_STOP_ERROR && r[1].stop[2] == TW_STOP_ERROR);
    CHECK_STR(refusal[1], "the prompt is empty");
    CHECK_STR(refusal[2], "prompt token 1000000 at position 1 is not in the vocabulary");
    CHECK_STR(refusal[3], "the prompt has 79 tokens, the model's window is 64");
    CHECK(r[4].n[0] == 0 && r[4].stop[0] == TW_STOP_LENGTH);
    tw_sampler_close(s);
}

/* Prompts that begin alike, all at once: what they share is run once for each owner, and no bit changes. */
static void what_prompts_share_is_run_once(void)
{
    static struct result r[2][LIKE];
    int32_t like[LIKE][72];
    int64_t run[2];

    for (int cached = 0; cached < 2; cached++) {
        struct tw_sampler *s = open(64, 16, cached ? 4096 : 0, 0);
        struct tw_gen g[LIKE];

        for (int i = 0; i < LIKE; i++) {
            memcpy(like[i], prompt[5], sizeof like[i]);
            like[i][71] = i / 2 + 5;
            g[i] = request(5, &r[cached][i]);
            g[i].prompt = like[i];
            g[i].nprompt = 72;
            g[i].owner = i % 2 ? s : NULL;
            tw_sampler_add(s, &g[i]);
        }
        drain(s);
        run[cached] = tw_sampler_prefilled(s);
        for (int i = 2; cached && i < LIKE; i++)
            CHECK(g[i].cached >= 32 && g[i].cached <= 71);
        CHECK(!cached || (!g[0].cached && !g[1].cached));
        tw_sampler_close(s);
    }
    CHECK(!memcmp(r[0], r[1], sizeof r[0]));
    CHECK_INT(run[0], LIKE * 72);
    CHECK(run[1] >= 2 * 72 && run[1] <= 2 * 72 + (LIKE - 2) * 40);
}

static int aborted;

static void count_aborts(struct tw_gen *g)
{
    for (int64_t i = 0; i < g->n; i++)
        aborted += g->out[i].stop == TW_STOP_ABORT;
    tw_gen_free_out(g);
}

static void an_abort_frees_the_others(void)
{
    struct tw_sampler *s = open(4, 0, 0, 0);
    static struct result r[2];
    struct tw_err err = { 0 };
    struct tw_gen g[3] = { request(6, &r[0]), request(5, &r[1]), request(4, NULL) };

    for (int when = 0; when < 3; when++) {      /* waiting, with its prompt under way, running */
        g[0].done = count_aborts;
        g[0].ignore_eos = true;
        g[1].n = N;
        aborted = 0;
        memset(r, 0, sizeof r);
        tw_sampler_add(s, &g[0]);
        tw_sampler_add(s, &g[1]);
        for (int i = 0; i < 2 * when; i++)
            CHECK(tw_sampler_step(s, &err) > 0);
        tw_sampler_abort(s, &g[0]);
        CHECK_INT(aborted, N);
        drain(s);
        CHECK(!memcmp(r[1].token, alone[5].token, sizeof(r[1].token)));
    }
    tw_sampler_close(s);
}

/* Keys and values alone, and with recurrent layers. */
static void on(const char *dir)
{
    struct tw_model_opts mo = { .dtype = TW_F32 };
    struct tw_err err = { 0 };

    dev = tw_cpu_open(2, "auto", &err);
    model = dev ? tw_model_open(dir, dev, &mo, &err) : NULL;
    if (!model) {
        printf("Bail out! %s: %s\n", err.place, err.msg);
        exit(1);
    }
    for (int i = 0; i < PROMPTS; i++)
        for (int k = 0; k < length[i]; k++)
            prompt[i][k] = (int32_t)((10 + (i == 8 ? 7 : i) * (k < 20) + (k * k * 7 +
                    (i == 8 && k > 30)) % 180) % tw_model_info(model)->V);
    RUN(neighbours_change_nothing);
    RUN(fewer_samples_are_the_first_ones);
    RUN(end_and_stop_tokens_are_kept_apart);
    RUN(bad_prompts_end_alone);
    RUN(what_prompts_share_is_run_once);
    RUN(an_abort_frees_the_others);
    tw_model_close(model);
    tw_dev_close(dev);
}

int main(void)
{
    on("tests/data/models/qwen3");
    on("tests/data/models/qwen3_5");
    return test_end();
}
