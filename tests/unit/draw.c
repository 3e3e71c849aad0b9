/* draw.c - tokens drawn on the GPU: the same as run/sampling.c draws from the same logits; and
 * decode steps of fused ops against packed passes, queued, recorded and replayed, and their kinds against each
 * other. Skipped without a GPU. */
#include <math.h>
#include <stdlib.h>
#include "base/rng.h"
#include "nn/model.h"
#include "run/sampling.h"
#include "test.h"

static struct tw_dev *dev;

static float *numbers(uint64_t seed, int64_t n, float scale)
{
    float *x = tw_xreallocarray(NULL, (size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)tw_rand_normal(seed, 5, (uint64_t)i) * scale;
    return x;
}

static void *put(const void *host, size_t n)
{
    struct tw_err err = { 0 };
    void *p = tw_ops(dev)->alloc(dev, n, &err);

    CHECK_STR(err.msg, "");
    tw_ops(dev)->put(dev, p, host, n);
    return p;
}

enum { D = 32, ROWS = 48, TOP = 5, SEEN = 30 };

static struct tw_sampling setting(int i)
{
    struct tw_sampling s = { .temperature = 1, .top_p = 1, .repetition = 1 };

    if (i % 2)
        s.temperature = 0.25 * (i % 7);
    if (i % 3 == 1)
        s.top_k = i % 5 == 0 ? 1 : 3 * i;
    if (i % 4 == 1)
        s.top_p = i % 8 == 1 ? 0.3 : 0.95;
    if (i % 5 == 2)
        s.min_p = 0.05;
    if (i % 6 == 3) {
        s.repetition = 1.3;
        s.presence = 0.5;
        s.frequency = 0.25;
    }
    return s;
}

/* Whether choice I is what the host makes of its logits Z. */
static bool same_draw(struct tw_draw *d, int i, const float *z, const uint8_t *allowed,
        const struct tw_counts *counts, const struct tw_choice *c)
{
    const struct tw_ops *ops = tw_ops(dev);
    struct tw_sampling s = setting(i);
    struct tw_drawn out;
    struct tw_err err = { 0 };
    int32_t want[TOP];
    float temp = s.temperature > 0 ? (float)s.temperature : 1;
    bool same;

    CHECK(!tw_sampling_draw(d, &s, z, allowed, counts, c->u, &out, &err));
    same = out.id == c->id && fabsf(out.sampled_logp - c->sampled_logp) <= 1e-4f &&
        fabsf(ops->pick(dev, z, d->V, temp, out.id) - c->logp) <= 1e-4f;
    if (!same)
        printf("# V %lld row %d: id %d, %d wanted; %g, %g wanted\n", (long long)d->V, i, c->id, out.id,
               c->sampled_logp, out.sampled_logp);
    if (c->top_n)
        CHECK_INT(tw_sampling_top(d, z, allowed, TOP, want), TOP);
    for (int64_t k = 0; k < c->top_n; k++)
        same &= want[k] == c->top_id[k] &&
            fabsf(ops->pick(dev, z, d->V, temp, want[k]) - c->top_logp[k]) <= 1e-4f;
    return same;
}

static void one_size(int64_t V, bool bars)
{
    const struct tw_ops *ops = tw_ops(dev);
    float *h = numbers(1, ROWS * D, 1), *w = numbers(2, V * D, 0.7f);
    float *z = tw_xreallocarray(NULL, (size_t)(ROWS * V), sizeof *z);
    struct tw_tensor ht = { put(h, ROWS * D * 4), TW_F32, ROWS, D, D, false };
    struct tw_mat wm = { .data = put(w, (size_t)(V * D) * 4), .dtype = TW_F32, .rows = V, .cols = D };
    uint8_t *allowed = tw_xcalloc((size_t)V, 1), *allowed_dev;
    struct tw_choice c[ROWS] = { 0 };
    struct tw_counts counts[ROWS] = { 0 };
    int32_t row[ROWS], top[ROWS][TOP], seen[ROWS][SEEN][2];
    float top_logp[ROWS][TOP];
    struct tw_draw d;
    int64_t bad = 0;
    int rows = test_quick() ? 7 : ROWS;

    for (int64_t i = 0; i < V; i++)
        allowed[i] = i % 3 != 1;
    allowed_dev = put(allowed, (size_t)V);
    for (int i = 0; i < rows; i++) {
        struct tw_sampling s = setting(i);

        row[i] = rows - 1 - i;
        c[i] = (struct tw_choice){ s.temperature, s.top_p, s.min_p, s.repetition, s.presence,
            s.frequency, tw_rand01(3, 4, (uint64_t)i), s.top_k, i % 2 ? TOP : 0, &seen[i][0][0], SEEN,
            .top_id = top[i], .top_logp = top_logp[i] };
        for (int k = 0; k < SEEN; k++) {
            seen[i][k][0] = (int32_t)((k * 7 + i) % V);
            seen[i][k][1] = 1 + k % 3;
            for (int n = 0; n < seen[i][k][1]; n++)
                tw_counts_add(&counts[i], seen[i][k][0]);
        }
    }
    ops->logits(dev, z, &ht, row, rows, &wm);
    ops->choose(dev, &ht, row, rows, &wm, c, bars ? allowed_dev : NULL);
    tw_draw_init(&d, V);
    for (int i = 0; i < rows; i++)
        bad += !same_draw(&d, i, z + i * V, bars ? allowed : NULL, &counts[i], &c[i]);
    CHECK_INT(bad, 0);
    tw_draw_free(&d);
    for (int i = 0; i < rows; i++)
        tw_counts_free(&counts[i]);
    ops->free(dev, ht.data);
    ops->free(dev, wm.data);
    ops->free(dev, allowed_dev);
    free(h);
    free(w);
    free(z);
    free(allowed);
}

static void draws_are_those_of_the_host(void)
{
    static const struct {
        int64_t V;
        bool bars;
    } size[] = { { 37, false }, { 500, true }, { 4096, false }, { 50000, true }, { 151936, false }, { 5000, true } };

    CASES(i, size, 1)
        one_size(size[i].V, size[i].bars);
}

static const char config[] = "{\"model_type\":\"qwen3\",\"vocab_size\":1024,\"hidden_size\":%d,"
    "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
    "\"num_key_value_heads\":2,\"head_dim\":%d,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,"
    "\"max_position_embeddings\":4096,\"tie_word_embeddings\":true,\"rope_theta\":10000.0}";

enum { MOST = 130, ADAPTERS = 3 };

struct world {
    struct tw_model *m;
    struct tw_adapter *a[ADAPTERS];
    struct tw_state *s[MOST];
};

/* Of D, I, heads and their size; with little only as many adapters as there have to be. */
static void open_world(struct world *w, const int *size, int adapters)
{
    struct tw_model_opts o = { .dtype = TW_BF16, .init_random = true, .seed = 3 };
    struct tw_lora_opts lo = { .r = 4, .alpha = 16, .init = "gaussian" };
    struct tw_err err = { 0 };
    char path[] = "/tmp/tw-draw-XXXXXX";
    int fd = mkstemp(path);
    FILE *fp = fdopen(fd, "w");

    fprintf(fp, config, size[0], size[1], test_quick() ? 1 : 3, size[2], size[3]);
    fclose(fp);
    o.config_json = path;
    *w = (struct world){ 0 };
    w->m = tw_model_open(NULL, dev, &o, &err);
    CHECK_STR(err.msg, "");
    remove(path);
    for (int k = 0; k < (test_quick() ? adapters : ADAPTERS); k++) {
        const struct tw_params *p;

        lo.r = 4 * (k + 1);
        w->a[k] = tw_adapter_new(w->m, &lo, (uint64_t)k, true, &err);
        p = tw_adapter_params(w->a[k]);
        for (int64_t j = 1; j < p->n; j += 2) {     /* B is zero at first */
            float *b = numbers((uint64_t)(k * 1000 + j), p->p[j].n, 0.02f);

            tw_ops(dev)->put(dev, p->p[j].w.data, b, (size_t)p->p[j].n * 4);
            free(b);
        }
    }
}

static void close_world(struct world *w)
{
    for (int k = 0; k < ADAPTERS; k++)
        tw_adapter_close(w->a[k]);
    tw_model_close(w->m);
}

/* The prompts of T sequences, each by itself; with little all at once. */
static void feed(struct world *w, const struct tw_seq *seq, int T)
{
    int each = test_quick() ? T : 1;
    struct tw_err err = { 0 };

    for (int i = 0; i < T; i += each)
        CHECK(!tw_model_decode(w->m, &seq[i], each, NULL, 0, NULL, &err));
    CHECK_STR(err.msg, "");
}

/* T sequences of different lengths, then four tokens each: drawn by steps, checked by a pass. */
static void compare(struct world *w, int T, int adapters, int longest)
{
    int64_t V = tw_model_info(w->m)->V, want[MOST];
    struct tw_seq seq[MOST];
    struct tw_choice c[MOST];
    int32_t *prompt = tw_xcalloc((size_t)longest, sizeof *prompt), last[MOST];
    float *z = tw_xreallocarray(NULL, (size_t)(T * V), sizeof *z), worst = 0;
    struct tw_err err = { 0 };

    for (int i = 0; i < longest; i++)
        prompt[i] = (int32_t)((i * 37 + i * i) % V);
    for (int i = 0; i < T; i++) {
        w->s[i] = tw_state_new(w->m, &err);
        seq[i] = (struct tw_seq){ .token = prompt, .n = 1 + (i * 53 + (T < 3 ? longest - 1 : 0)) % longest, .state = w->s[i],
            .adapter = adapters && i % (ADAPTERS + 1) ? w->a[i % (ADAPTERS + 1) - 1] : NULL };
        last[i] = (int32_t)(11 * i % V);
        want[i] = i;
    }
    feed(w, seq, T);
    for (int step = 0; step < (test_quick() ? 2 : 4); step++) {
        for (int i = 0; i < T; i++) {
            seq[i].token = &last[i];
            seq[i].n = 1;
            c[i] = (struct tw_choice){ .top_p = 1, .repetition = 1 };
        }
        CHECK(!tw_model_draw(w->m, seq, T, c, NULL, &err));
        if (test_quick())
            continue;
        for (int i = 0; i < T; i++)
            CHECK(!tw_state_truncate(w->s[i], tw_state_len(w->s[i]) - 1, &err));
        CHECK(!tw_model_decode(w->m, seq, T, want, T, z, &err));
        for (int i = 0; i < T; i++) {
            float logp = c[i].id >= 0 && c[i].id < V ?
                tw_ops(dev)->pick(dev, z + i * V, V, 1, c[i].id) : NAN;
            float off = fabsf(logp - c[i].logp);

            worst = off > worst || isnan(off) ? off : worst;
            last[i] = (int32_t)((last[i] * 31 + 7 + step) % V);
        }
    }
    if (!(worst < 0.06f))
        printf("# %d sequences, adapters %d, up to %d: off by %g\n", T, adapters, longest, worst);
    CHECK(worst < 0.06f);
    CHECK_STR(err.msg, "");
    for (int i = 0; i < T; i++)
        tw_state_free(w->s[i]);
    free(prompt);
    free(z);
}

enum { SHAPES = 8 };
static const int shape[SHAPES][4] = { { 64, 96, 4, 16 }, { 128, 256, 2, 64 }, { 256, 512, 16, 32 },
    { 256, 768, 8, 128 }, { 512, 320, 6, 64 }, { 1024, 3072, 4, 128 }, { 1152, 640, 16, 128 }, { 768, 2080, 16, 256 } };

/* With little each shape has a number of sequences of its own. */
static void passes(int adapters, int longest)
{
    static const int T[] = { 1, 2, 7, 16, 17, 33, 64, 65, 130 };
    struct world w;

    for (int k = 0; k < SHAPES; k++) {
        open_world(&w, shape[k], adapters);
        for (int i = 0; i < (int)(sizeof T / sizeof *T); i++)
            if (!test_quick() || i == SHAPES - 1 - k)
                compare(&w, T[i], adapters, longest);
        close_world(&w);
    }
}

static void steps_are_passes(void)
{
    passes(0, 100);
}

static void steps_with_adapters(void)
{
    passes(1, 50);
}

static void long_ones(void)
{
    struct world w;

    for (int k = test_quick(); k < SHAPES; k += 1 + test_quick()) {
        open_world(&w, shape[k], 0);
        compare(&w, 1, 0, 700);
        if (!test_quick()) {
            compare(&w, 2, 0, 4000);
            compare(&w, 3, 0, 1500);
            compare(&w, 40, 1, 900);
        }
        close_world(&w);
    }
}

/* Three times the same step: queued, recorded, replayed. With little the best token of each is taken: what is
 * drawn by chance is draws_are_those_of_the_host()'s. */
static void replays_are_equal(void)
{
    struct tw_err err = { 0 };
    struct tw_choice c[3][8];
    struct world w;

    open_world(&w, shape[1], 0);
    for (int k = 0; k < 8; k++) {
        w.s[k] = tw_state_new(w.m, &err);
        for (int n = 0; n < 3; n++)
            c[n][k] = (struct tw_choice){ .temperature = !test_quick(), .top_p = k % 2 ? 0.9 : 1,
                .repetition = 1, .u = 0.1 * k };
    }
    for (int n = 0; n < 3; n++) {
        struct tw_seq seq[8];
        int32_t last[8];

        for (int k = 0; k < 8; k++) {
            last[k] = 5 * k;
            seq[k] = (struct tw_seq){ .token = &last[k], .n = 1, .state = w.s[k] };
        }
        CHECK(!tw_model_draw(w.m, seq, 8, c[n], NULL, &err));
        for (int k = 0; k < 8; k++)
            CHECK(!tw_state_truncate(w.s[k], 0, &err));
    }
    for (int k = 0; k < 8; k++) {
        CHECK(c[0][k].id == c[1][k].id && c[0][k].id == c[2][k].id);
        CHECK(c[0][k].logp == c[1][k].logp && c[0][k].logp == c[2][k].logp);
        CHECK(c[0][k].sampled_logp == c[2][k].sampled_logp);
        tw_state_free(w.s[k]);
    }
    CHECK_STR(err.msg, "");
    close_world(&w);
}

enum { FEW = 13, NFEW = 6, STEPS = 5, WAYS = 3 };
static const int few[NFEW] = { 1, 2, 3, 4, 8, FEW };

/* Whether shape K goes with T sequences of length L: always, but with little. */
static bool taken(int k, int T, int l)
{
    return !test_quick() || (T == few[k + (k > 2)] && l == (k == 1));
}

/* Some tokens each of T sequences of different lengths, by steps; their choices in order. */
static void some_steps(struct world *w, int T, int longest, struct tw_choice *c)
{
    int64_t V = tw_model_info(w->m)->V;
    int32_t *prompt = tw_xcalloc((size_t)longest, sizeof *prompt), last[FEW];
    struct tw_seq seq[FEW];
    struct tw_err err = { 0 };

    for (int i = 0; i < longest; i++)
        prompt[i] = (int32_t)((i * 41 + i * i) % V);
    for (int i = 0; i < T; i++) {
        w->s[i] = tw_state_new(w->m, &err);
        seq[i] = (struct tw_seq){ .token = prompt, .n = longest - 31 * i % longest, .state = w->s[i],
            .adapter = i % 2 ? w->a[0] : NULL };
        last[i] = (int32_t)(11 * i % V);
    }
    feed(w, seq, T);
    for (int step = 0; step < (test_quick() ? 2 : STEPS); step++, c += T) {
        for (int i = 0; i < T; i++) {
            seq[i] = (struct tw_seq){ .token = &last[i], .n = 1, .state = w->s[i],
                .adapter = i % 2 ? w->a[0] : NULL };
            c[i] = (struct tw_choice){ .top_p = 1, .repetition = 1 };
        }
        CHECK(!tw_model_draw(w->m, seq, T, c, NULL, &err));
        for (int i = 0; i < T; i++)
            last[i] = c[i].id;
    }
    for (int i = 0; i < T; i++)
        tw_state_free(w->s[i]);
    CHECK_STR(err.msg, "");
    free(prompt);
}

static bool same(const struct tw_choice *a, const struct tw_choice *b, int n)
{
    bool ok = true;

    for (int i = 0; i < n; i++) {
        if (a[i].id != b[i].id || a[i].logp != b[i].logp)
            printf("# choice %d: %d %.9g, %d %.9g\n", i, a[i].id, a[i].logp, b[i].id, b[i].logp);
        CHECK(a[i].id == b[i].id && a[i].logp == b[i].logp);
        ok &= a[i].id == b[i].id && a[i].logp == b[i].logp;
    }
    return ok;
}

/* Few tokens by rings and clusters: the bits of the other kernels. */
static void one_way(const int *size, int k)
{
    static const int longest[] = { 3, 224, 1300 };
    /* Weights that a block holds whole, and rings of few slots, which come round with short rows, too. */
    static const char *const way[WAYS] = { "plain", "ring", "ring" }, *const slots[WAYS] = { NULL, NULL, "1" };
    static struct tw_choice c[WAYS][NFEW][3][STEPS * FEW];
    struct tw_err err = { 0 };

    for (int i = 0; i < WAYS; i++) {
        struct world w;

        tw_dev_close(dev);
        setenv("TW_STEP", way[i], 1);
        if (slots[i])
            setenv("TW_STEP_RING", slots[i], 1);
        else
            unsetenv("TW_STEP_RING");
        dev = tw_dev_open("cuda", 0, &err);
        open_world(&w, size, k % 4 > 0);
        for (int t = 0; t < NFEW; t++)
            for (int l = 0; l < 3; l++)
                if (taken(k, few[t], l))
                    some_steps(&w, few[t], longest[l], c[i][t][l]);
        close_world(&w);
    }
    for (int t = 0; t < NFEW; t++)
        for (int l = 0; l < 3; l++)
            for (int i = 1; i < WAYS && taken(k, few[t], l); i++) {
                int as = few[t] > 8 ? WAYS - i : 0;     /* attention of more has bits of its own */

                if (!same(c[as][t][l], c[i][t][l], (test_quick() ? 2 : STEPS) * few[t]))
                    printf("# %d numbers, %d sequences of %d, way %d\n", size[0], few[t], longest[l], i);
            }
}

static void ways_are_equal(void)
{
    static const int size[][4] = { { 64, 96, 4, 16 }, { 128, 256, 2, 64 }, { 1120, 352, 6, 64 } };

    for (int k = 0; k < 3; k++)
        one_way(size[k], k);
}

static void ways_of_long_rows(void)
{
    static const int size[][4] = { { 1024, 3072, 16, 128 }, { 2560, 9728, 8, 128 },
        { 128, 9728, 32, 64 }, { 128, 4096, 2, 64 }, { 2560, 96, 4, 64 } };

    CASES(k, size, 3)
        one_way(size[k], 2 + (int)k);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_dev_open("cuda", 0, &err);
    if (!dev || !tw_ops(dev)->choose) {
        printf("1..0 # SKIP %s\n", dev ? "the GPU draws no tokens" : err.msg);
        return 0;
    }
    RUN(draws_are_those_of_the_host);
    RUN(steps_are_passes);
    RUN(steps_with_adapters);
    RUN(long_ones);
    RUN(replays_are_equal);
    RUN(ways_are_equal);
    RUN(ways_of_long_rows);
    tw_dev_close(dev);
    return test_end();
}
