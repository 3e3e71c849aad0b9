/* infonce.c - the loss of embeddings against torch's numbers, against differences, and through a model */
#include "test.h"
#include "base/json.h"
#include "nn/infonce.h"
#include "run/engine.h"
#include <stdlib.h>

enum { ROWS = 32, D_MAX = 16 };

struct world {
    struct tw_loss l;
    int64_t n, D;
    bool begins[ROWS];
    float h[ROWS][D_MAX], dh[ROWS][D_MAX];
    double part[ROWS];
};
static struct tw_arena arena;

static void run(struct world *w, bool back, struct tw_embed_sums *out)
{
    const float *h[ROWS];
    float *dh[ROWS];
    struct tw_embeds in = { .n = w->n, .D = w->D, .h = h, .begins = w->begins, .dh = back ? dh : NULL,
        .loss = w->part };

    for (int64_t i = 0; i < w->n; i++) {
        h[i] = w->h[i];
        dh[i] = w->dh[i];
    }
    tw_infonce(&w->l, &in, out, &arena);
}

static void read_case(struct world *w, const struct tw_json *j)
{
    const struct tw_json *h = tw_json_get(j, "h"), *begins = tw_json_get(j, "begins");
    char *text = tw_xstrndup(tw_json_get(j, "text")->str.p, tw_json_get(j, "text")->str.n);
    struct tw_err err = { 0 };

    *w = (struct world){ .n = h->n, .D = h->item[0].n };
    CHECK(tw_loss_parse(&w->l, "--loss", text, &err) == 0);
    CHECK_STR(err.msg, "");
    for (int64_t i = 0; i < w->n; i++) {
        w->begins[i] = begins->item[i].i != 0;
        for (int64_t k = 0; k < w->D; k++)
            w->h[i][k] = (float)h->item[i].item[k].d;
    }
    free(text);
}

static const struct tw_json *all_cases(void)
{
    struct tw_err err = { 0 };
    const struct tw_json *j = tw_json_file(&arena, "tests/data/infonce/cases.json", 16 << 20, &err);

    CHECK_STR(err.msg, "");
    return j;
}

static void near_key(const struct tw_json *j, const char *key, double got)
{
    const struct tw_json *want = tw_json_get(j, key);

    if (want)
        CHECK_NEAR(got, want->d, 1e-9);
}

static void values_and_gradients_are_those_of_torch(void)
{
    const struct tw_json *cases = all_cases();

    CHECK(cases->n > 25);
    for (int64_t c = 0; c < cases->n; c++) {
        const struct tw_json *j = &cases->item[c], *dh = tw_json_get(j, "dh");
        struct tw_embed_sums s;
        struct world w;
        double sum = 0;

        read_case(&w, j);
        run(&w, true, &s);
        near_key(j, "loss", s.loss);
        near_key(j, "pos_sim", s.pos / (double)s.groups);
        near_key(j, "pos_sim_min", s.pos_min);
        near_key(j, "pos_sim_max", s.pos_max);
        near_key(j, "neg_sim", s.neg / (double)s.negs);
        near_key(j, "accuracy", (double)s.right / (double)s.groups);
        for (int64_t i = 0; i < w.n; i++) {
            sum += w.part[i];
            for (int64_t k = 0; k < w.D; k++)
                CHECK_NEAR((double)w.dh[i][k], dh->item[i].item[k].d, 2e-7);
        }
        CHECK_NEAR(sum, s.loss, 1e-12);
    }
}

/* What is masked has no gradient; none of these cases is so near a border that a step would cross it. */
static void the_gradient_is_that_of_differences(void)
{
    const struct tw_json *cases = all_cases();

    for (int64_t c = 0; c < cases->n; c += 3) {
        struct tw_embed_sums s, up, down;
        struct world w;

        read_case(&w, &cases->item[c]);
        run(&w, true, &s);
        for (int64_t i = 0; i < w.n * w.D; i++) {
            float *x = &w.h[i / w.D][i % w.D], was = *x, lo, hi;

            *x = hi = was + 1e-3f;
            run(&w, false, &up);
            *x = lo = was - 1e-3f;
            run(&w, false, &down);
            *x = was;
            CHECK_NEAR((up.loss - down.loss) / ((double)hi - (double)lo),
                    (double)w.dh[i / w.D][i % w.D], 1e-4);
        }
        tw_arena_reset(&arena);
        cases = all_cases();
    }
}

static void zeros_and_what_is_no_number_end_in_numbers_or_say_so(void)
{
    struct tw_err err = { 0 };
    struct tw_embed_sums s;
    struct world w = { .n = 4, .D = 8, .begins = { true, false, true, false } };

    CHECK(tw_loss_parse(&w.l, "--loss", "infonce", &err) == 0);
    w.h[1][0] = w.h[2][1] = w.h[3][1] = 1;
    run(&w, true, &s);                              /* the first anchor has no direction */
    CHECK(isfinite(s.loss) && isfinite(w.dh[0][0]) && isfinite(w.dh[1][0]));
    CHECK_INT(s.right, 1);
    w.h[0][3] = NAN;
    run(&w, true, &s);
    CHECK(!isfinite(s.loss) && !isfinite(w.dh[3][1]));
}

static void sums_of_two_batches_are_one(void)
{
    struct tw_embed_sums a = { 0 }, b = { .loss = 1, .pos = 2, .pos_min = 0.5, .pos_max = 1.5,
        .neg = 3, .groups = 2, .negs = 2, .right = 1 };

    tw_embed_sums_add(&a, &b);
    CHECK(!memcmp(&a, &b, sizeof a));
    b = (struct tw_embed_sums){ .loss = 4, .pos = -1, .pos_min = -1, .pos_max = -1, .groups = 1 };
    tw_embed_sums_add(&a, &b);
    CHECK_NEAR(a.loss, 2, 0);
    CHECK(a.groups == 3 && a.negs == 2 && a.right == 1 && a.pos == 1 && a.pos_min == -1 && a.pos_max == 1.5);
}

struct toy {
    struct tw_engine_sample s[3];
    float state[3][64], grad[3][64];
    int calls;
};

/* L = the sum of each state's first numbers, times one more each. */
static int toy_loss(void *arg, struct tw_err *err)
{
    struct toy *t = arg;

    t->calls++;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 64; k++)
            t->grad[i][k] = k < 4 ? (float)(k + 1) : 0;
    return 0;
}

static int refuse(void *arg, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "no");
}

static double toy_value(const struct toy *t)
{
    double sum = 0;

    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            sum += (k + 1) * (double)t->state[i][k];
    return sum;
}

/* Differences of one number of B against its gradient, and the same bits in one pass and in three. */
static void states_go_out_of_a_model_and_gradients_in(void)
{
    static const int32_t token[3][5] = { { 5, 9, 80, 3, 7 }, { 11, 12 }, { 60 } };
    static const int64_t length[3] = { 5, 2, 1 };
    struct tw_lora_opts lo = { .r = 4, .alpha = 8, .targets = "all-linear", .init = "default" };
    struct tw_model_opts mo = { .dtype = TW_F32 };
    struct tw_err err = { 0 };
    struct tw_dev *dev = tw_cpu_open(2, "auto", &err);
    struct tw_engine e = { .model = tw_model_open("tests/data/models/qwen3", dev, &mo, &err) };
    struct tw_adapter *a = tw_adapter_new(e.model, &lo, 1, true, &err);
    const struct tw_params *p = tw_adapter_params(a);
    struct toy t = { 0 };
    float *first = NULL;

    for (int i = 0; i < 3; i++)
        t.s[i] = (struct tw_engine_sample){ .token = token[i], .n = length[i], .adapter = a,
            .key = (uint64_t)i, .state = t.state[i], .dstate = t.grad[i] };
    for (int pass = 0; pass < 3; pass++) {
        const struct tw_param *b = &p->p[p->n - 1];
        size_t bytes = (size_t)b->n * sizeof(float);

        e.micro_tokens = pass ? 2 : 64;
        e.recompute = pass == 2 ? TW_RECOMPUTE : 0;
        tw_params_zero(dev, p);
        CHECK(tw_engine_embed(&e, t.s, 3, 0, toy_loss, &t, &err) == 0);
        CHECK_INT(t.calls, pass + 1);
        if (!first)
            first = tw_arena_dup(&arena, b->g, bytes);
        CHECK(!memcmp(first, b->g, bytes));
        for (int64_t k = 0; !pass && k < 3; k++) {
            float *x = (float *)b->w.data + k, was = *x;
            double up, down;

            *x = was + 0.02f;
            CHECK(tw_engine_embed(&e, t.s, 3, 0, NULL, NULL, &err) == 0);
            up = toy_value(&t);
            *x = was - 0.02f;
            CHECK(tw_engine_embed(&e, t.s, 3, 0, NULL, NULL, &err) == 0);
            down = toy_value(&t);
            *x = was;
            CHECK_NEAR((up - down) / 0.04, (double)b->g[k], 1e-3);
            CHECK(fabsf(b->g[k]) > 0.03f);
        }
    }
    CHECK_STR(err.msg, "");
    CHECK(tw_engine_embed(&e, t.s, 3, 0, refuse, NULL, &err) == -1);
    CHECK_STR(err.msg, "no");
    tw_adapter_close(a);
    tw_model_close(e.model);
    tw_engine_close(&e);
    tw_dev_close(dev);
}

int main(void)
{
    RUN(values_and_gradients_are_those_of_torch);
    RUN(the_gradient_is_that_of_differences);
    RUN(zeros_and_what_is_no_number_end_in_numbers_or_say_so);
    RUN(sums_of_two_batches_are_one);
    RUN(states_go_out_of_a_model_and_gradients_in);
    tw_arena_free(&arena);
    return test_end();
}
