/* model_window.c - blocks of layers with a window: a state holds those that the window sees and no more,
 * however long it gets, and its logits are the bits of one that kept all; forks, cuts and the prefix cache
 * find what they need or say that they cannot */
#include "base/rng.h"
#include "nn/state.h"
#include "run/sampler.h"
#include "test.h"

enum { VMAX = 200, LONG = 500, PROMPT = 200, TOKENS = 180 };

static const char *const dirs[] = { "tests/data/models/gemma3_text", "tests/data/models/qwen2-window" };
static struct tw_dev *dev;
static struct tw_err err;
static int32_t tok[LONG];

static struct tw_model *open_model(const char *dir, enum tw_dtype dtype)
{
    struct tw_model_opts o = { .dtype = dtype };
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);

    CHECK_STR(err.msg, "");
    for (int i = 0; m && i < LONG; i++)
        tok[i] = (int32_t)tw_rand_below(6, 0, (uint64_t)i, tw_model_info(m)->V);
    return m;
}

static void step(struct tw_model *m, struct tw_state *s, const int32_t *t, int64_t n, float *z)
{
    struct tw_seq seq = { .token = t, .n = n, .state = s };
    int64_t last = n - 1;

    CHECK(tw_model_decode(m, &seq, 1, &last, 1, z, &err) == 0);
}

static int64_t held(const struct tw_state *s, int kind)
{
    return s->page[kind].n - s->page[kind].first;
}

/* The most blocks that N tokens need: those the window meets, and one or two for a cut. */
static int64_t most(const struct tw_model *m)
{
    return (m->window + TW_KV_BLOCK + 2 * TW_KV_BLOCK - 2) / TW_KV_BLOCK;
}

static void long_states(struct tw_model *m)
{
    struct tw_state *s = tw_state_new(m, &err), *all = tw_state_new(m, &err);
    float z[VMAX] = { 0 }, want[VMAX] = { 0 };
    int64_t blocks = (LONG + TW_KV_BLOCK - 1) / TW_KV_BLOCK, cost;

    CHECK(m->kv[TW_KV_ALL].bytes && m->kv[TW_KV_WINDOW].bytes && m->window == m->cfg.window);
    for (int64_t at = 0, n; at < LONG; at += n) {       /* pieces, then single tokens */
        n = at < 100 ? 37 : at < 300 ? 20 : 1;
        n = at + n < LONG ? n : LONG - at;
        step(m, s, tok + at, n, z);
        CHECK(held(s, TW_KV_WINDOW) <= most(m));
    }
    CHECK_INT(held(s, TW_KV_ALL), blocks);
    CHECK_INT(s->page[TW_KV_WINDOW].first, (LONG + 1 - m->window - TW_KV_BLOCK) / TW_KV_BLOCK);
    CHECK(m->kv[TW_KV_WINDOW].n <= 2 * most(m) && m->kv[TW_KV_ALL].n >= blocks);
    tw_state_marks(all, true);
    for (int64_t at = 0; at < LONG; at += 50)
        step(m, all, tok + at, 50, want);
    CHECK(!memcmp(z, want, sizeof z));
    CHECK_INT(held(all, TW_KV_WINDOW), blocks);
    CHECK_INT(tw_state_cost(all), LONG);
    cost = tw_state_cost(s);
    CHECK(cost > LONG / 5 && cost < LONG);
    tw_state_marks(all, false);
    CHECK_INT(held(all, TW_KV_WINDOW), held(s, TW_KV_WINDOW));
    CHECK_INT(tw_state_cost(all), cost);
    tw_state_free(s);
    tw_state_free(all);
    for (int k = 0; k < TW_KV_KINDS; k++) {     /* nothing is lost */
        int64_t n = 0;

        for (struct tw_kv *b = m->kv[k].free; b; b = b->next)
            n++;
        CHECK_INT(n, m->kv[k].n);
    }
}

/* Forks of a long state go on as it does, while others slide away from what they share. */
static void forks(struct tw_model *m)
{
    enum { N = 4, MORE = 150 };
    struct tw_state *s = tw_state_new(m, &err), *f[N];
    float z[N][VMAX] = { { 0 } }, want[VMAX] = { 0 };
    int64_t before;

    step(m, s, tok, 300, want);
    before = m->kv[TW_KV_WINDOW].n;
    for (int i = 0; i < N; i++)
        f[i] = tw_state_fork(s, &err);
    for (int64_t at = 0; at < MORE; at++)
        for (int i = 0; i < N; i++)
            step(m, f[i], tok + 300 + at, 1, z[i]);
    for (int64_t at = 0; at < MORE; at += 50)
        step(m, s, tok + 300 + at, 50, want);
    for (int i = 0; i < N; i++) {
        CHECK(!memcmp(z[i], want, sizeof want));
        CHECK(held(f[i], TW_KV_WINDOW) <= most(m));
        tw_state_free(f[i]);
    }
    CHECK(m->kv[TW_KV_WINDOW].n <= before + N * (most(m) + 1) * 3 / 2);
    tw_state_free(s);
}

/* What has kept its blocks can be cut anywhere; what has not, near its end. */
static void cuts(struct tw_model *m)
{
    struct tw_state *s = tw_state_new(m, &err), *f;
    float z[VMAX] = { 0 }, want[VMAX] = { 0 };
    int64_t nearest = LONG;

    tw_state_marks(s, true);
    step(m, s, tok, LONG, want);
    for (int64_t n = 1; n < LONG; n += 83) {
        f = tw_state_fork(s, &err);
        CHECK_INT(tw_state_cut(f, n), n);
        CHECK(!tw_state_truncate(f, n, &err));
        step(m, f, tok + n, LONG - n, z);
        CHECK(!memcmp(z, want, sizeof z));
        tw_state_free(f);
    }
    tw_state_marks(s, false);
    for (int64_t n = LONG; n >= 0; n--) {
        CHECK(tw_state_cut(s, n) == n || tw_state_cut(s, n) == 0);
        nearest = tw_state_cut(s, n) == n && n ? n : nearest;
    }
    CHECK(nearest <= LONG - TW_KV_BLOCK && nearest > LONG - 2 * TW_KV_BLOCK);
    CHECK(tw_state_truncate(s, nearest - 1, &err) == -1 && strstr(err.msg, "cannot be cut to"));
    err = (struct tw_err){ 0 };
    CHECK(!tw_state_truncate(s, nearest, &err));
    step(m, s, tok + nearest, LONG - nearest, z);
    CHECK(!memcmp(z, want, sizeof z));
    CHECK(!tw_state_truncate(s, 0, &err));
    CHECK(!held(s, TW_KV_ALL) && !held(s, TW_KV_WINDOW) && !s->page[TW_KV_WINDOW].first);
    step(m, s, tok, LONG, z);
    CHECK(!memcmp(z, want, sizeof z));
    tw_state_free(s);
}

static void states(void)
{
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        for (int k = 0; k < 6; k++) {           /* a model each: pools are measured */
            struct tw_model *m = open_model(dirs[i], k < 3 ? TW_F32 : TW_BF16);

            if (m)
                (k % 3 == 0 ? long_states : k % 3 == 1 ? forks : cuts)(m);
            tw_model_close(m);
        }
}

struct result {
    int32_t token[TOKENS];
    float logp[TOKENS];
    int64_t n;
};

static void keep(struct tw_gen *g)
{
    struct result *r = g->user;
    struct tw_completion *c = &g->out[0];

    r->n = c->n;
    memcpy(r->token, c->token, (size_t)c->n * sizeof *c->token);
    memcpy(r->logp, c->logp, (size_t)c->n * sizeof *c->logp);
    for (int64_t i = 1; i < g->n; i++)
        CHECK(g->out[i].n == c->n && !memcmp(g->out[i].token, c->token, (size_t)c->n * sizeof *c->token));
    tw_gen_free_out(g);
}

/* Greedy, N samples; *cached: of the prompt. */
static void ask(struct tw_sampler *s, const int32_t *prompt, int64_t len, int64_t n, struct result *r,
        int64_t *cached)
{
    struct tw_gen g = { .prompt = prompt, .nprompt = len, .n = n, .max_tokens = TOKENS, .user = r,
        .done = keep, .ignore_eos = true, .sampling = { .top_p = 1, .repetition = 1 } };
    int more;

    *r = (struct result){ 0 };
    tw_sampler_add(s, &g);
    while ((more = tw_sampler_step(s, &err)) > 0)
        ;
    CHECK_INT(more, 0);
    CHECK_STR(err.msg, "");
    CHECK_INT(r->n, len + TOKENS < 512 ? TOKENS : 512 - len);
    *cached = g.cached;
}

static void same(const struct result *a, const struct result *b)
{
    CHECK(!memcmp(a->token, b->token, sizeof a->token) && !memcmp(a->logp, b->logp, sizeof a->logp));
}

/* A prompt longer than the window is found whole, in part, and as the beginning of what was said; a
 * prompt that was not kept is run in pieces, behind which blocks go. */
static void prefixes(const char *dir)
{
    struct tw_model *m = open_model(dir, TW_F32);
    struct tw_sampler_opts with = { 8, 0, 64, 2000 }, without = { 8, 0, 64, 0 };
    struct tw_sampler *s = m ? tw_sampler_open(m, NULL, NULL, 0, &without, &err) : NULL;
    static struct result want[4], got;
    int32_t half[PROMPT], on[PROMPT + TOKENS + 10];
    int64_t cached, blocks;

    if (!s)
        return;
    memcpy(half, tok, sizeof half);
    for (int i = PROMPT / 2; i < PROMPT; i++)
        half[i] = tok[PROMPT + i];
    ask(s, tok, PROMPT, 1, &want[0], &cached);
    blocks = m->kv[TW_KV_WINDOW].n;
    CHECK(blocks <= most(m) + 64 / TW_KV_BLOCK + 4);    /* of PROMPT + TOKENS = 380 tokens: 12 */
    ask(s, half, PROMPT, 1, &want[1], &cached);
    ask(s, tok, PROMPT, 8, &want[2], &cached);
    memcpy(on, tok, PROMPT * sizeof *on);
    memcpy(on + PROMPT, want[0].token, TOKENS * sizeof *on);
    for (int i = 0; i < 10; i++)
        on[PROMPT + TOKENS - 3 + i] = tok[i];           /* the last three tokens are said otherwise */
    ask(s, on, PROMPT + TOKENS, 1, &want[3], &cached);
    CHECK_INT(cached, 0);
    tw_sampler_close(s);
    s = tw_sampler_open(m, NULL, NULL, 0, &with, &err);
    ask(s, tok, PROMPT, 1, &got, &cached);
    CHECK_INT(cached, 0);
    same(&got, &want[0]);
    ask(s, on, PROMPT + TOKENS, 1, &got, &cached);
    CHECK_INT(cached, PROMPT + TOKENS - 3);
    same(&got, &want[3]);
    ask(s, half, PROMPT, 1, &got, &cached);
    CHECK_INT(cached, PROMPT / 2);
    same(&got, &want[1]);
    ask(s, tok, PROMPT, 8, &got, &cached);
    CHECK_INT(cached, PROMPT - 1);
    same(&got, &want[2]);
    tw_sampler_close(s);
    tw_model_close(m);
}

static void hits(void)
{
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        prefixes(dirs[i]);
}

int main(void)
{
    dev = tw_cpu_open(2, "auto", &err);
    if (!dev) {
        printf("Bail out! %s\n", err.msg);
        return 1;
    }
    RUN(states);
    RUN(hits);
    tw_dev_close(dev);
    return test_end();
}
