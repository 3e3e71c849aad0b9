/* sampling.c - one row of logits to one token */
#include "run/sampling.h"
#include "base/rng.h"
#include "test.h"

static const struct tw_sampling plain = { .temperature = 1, .top_p = 1, .repetition = 1 };

static struct tw_drawn draw(struct tw_sampling s, const float *z, int64_t n, const uint8_t *allowed,
        const struct tw_counts *c, double u)
{
    struct tw_draw d;
    struct tw_drawn out = { .id = -1 };
    struct tw_err err = { 0 };

    tw_draw_init(&d, n);
    CHECK(!tw_sampling_draw(&d, &s, z, allowed, c, u, &out, &err));
    tw_draw_free(&d);
    return out;
}

static void greedy_takes_the_lowest_of_equals(void)
{
    float z[5] = { 1, 3, 3, -INFINITY, NAN };
    struct tw_sampling s = plain;

    s.temperature = 0;
    CHECK_INT(draw(s, z, 5, NULL, NULL, 0.9).id, 1);
}

static void no_finite_logit_is_an_error(void)
{
    float z[2] = { NAN, -INFINITY };
    struct tw_draw d;
    struct tw_drawn out;
    struct tw_err err = { 0 };

    tw_draw_init(&d, 2);
    CHECK(tw_sampling_draw(&d, &plain, z, NULL, NULL, 0, &out, &err) == -1);
    CHECK_STR(err.msg, "the model gave no finite logit");
    tw_draw_free(&d);
}

/* logits [2, -1, 0.5], seen {0, 1}, penalty 1.5: [1.3333, -1.5, 0.5] */
static void repetition_lowers_negative_logits_too(void)
{
    float z[3] = { 2, -1, 0.5f };
    struct tw_sampling s = plain;
    struct tw_counts c = { 0 };
    double e0 = exp(2 / 1.5), e1 = exp(-1.5), e2 = exp(0.5), sum = e0 + e1 + e2;

    s.repetition = 1.5;
    tw_counts_add(&c, 0);
    tw_counts_add(&c, 1);
    CHECK_NEAR(draw(s, z, 3, NULL, &c, 0).sampled_logp, log(e0 / sum), 1e-6);
    CHECK_NEAR(draw(s, z, 3, NULL, &c, (e0 + e1 / 2) / sum).sampled_logp, log(e1 / sum), 1e-6);
    CHECK_NEAR(draw(s, z, 3, NULL, &c, 0.999).sampled_logp, log(e2 / sum), 1e-6);
    tw_counts_free(&c);
}

static void presence_once_frequency_each_time(void)
{
    float z[2] = { 5, 0 };
    struct tw_sampling s = plain;
    struct tw_counts c = { 0 };

    for (int i = 0; i < 100; i++)       /* the table grows on the way */
        tw_counts_add(&c, 0), tw_counts_add(&c, 1000 + i);
    s.presence = 1;
    s.frequency = 0.03;
    CHECK_NEAR(draw(s, z, 2, NULL, &c, 0).sampled_logp, log(exp(1) / (exp(1) + 1)), 1e-5);
    tw_counts_free(&c);
}

/* [2, 1, 0, -1] at top-p 0.8 keeps two tokens of mass 0.8808 */
static void top_p_keeps_the_token_that_reaches_it(void)
{
    float z[4] = { 2, 1, 0, -1 };
    struct tw_sampling s = plain;
    double sum = exp(2) + exp(1) + 1 + exp(-1);

    s.top_p = 0.8;
    CHECK_INT(draw(s, z, 4, NULL, NULL, 0.7).id, 0);
    CHECK_INT(draw(s, z, 4, NULL, NULL, 0.9999).id, 1);
    CHECK_NEAR(draw(s, z, 4, NULL, NULL, 0).sampled_logp, 2 - log(sum) - log(0.8808), 1e-4);
    s.top_p = 0;                        /* the best one always stays */
    CHECK_INT(draw(s, z, 4, NULL, NULL, 0.9999).id, 0);
}

static void top_k_and_min_p(void)
{
    float z[6] = { 0, 3, 1, 3, 2, -5 };
    struct tw_sampling s = plain;

    s.top_k = 2;
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.1).id, 1);
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.9).id, 3);
    s.top_k = 3;
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.9999).id, 4);
    s.top_k = 1;                        /* of equals the lower id */
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.9999).id, 1);
    s.top_k = 0;
    s.min_p = 0.9;
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.9999).id, 3);
    s.min_p = 0.3;                      /* e^-1 stays, e^-2 goes */
    CHECK_INT(draw(s, z, 6, NULL, NULL, 0.9999).id, 4);
}

static void ids_without_a_token_are_never_drawn(void)
{
    enum { N = 128 };
    float z[N];
    uint8_t allowed[N];
    struct tw_sampling s = plain;

    for (int i = 0; i < N; i++) {
        z[i] = i == 120 ? 50 : (float)tw_rand01(1, 2, i);
        allowed[i] = i < 100;
    }
    s.temperature = 2;
    for (int i = 0; i < 10000; i++)
        if (draw(s, z, N, allowed, NULL, tw_rand01(3, 4, i)).id >= 100) {
            CHECK(!"drew a padding row");
            break;
        }
    s.temperature = 0;
    CHECK(draw(s, z, N, allowed, NULL, 0).id < 100);
}

/* Chi-square over 8 equal-width classes of a 3,000-row distribution: 40,000 draws. */
static void draws_follow_the_probabilities(void)
{
    enum { N = 3000, DRAWS = 40000 };
    static float z[N];
    double p[8] = { 0 }, sum = 0, chi = 0;
    int seen[8] = { 0 };
    struct tw_draw d;
    struct tw_drawn out;
    struct tw_err err = { 0 };

    for (int i = 0; i < N; i++) {
        z[i] = (float)tw_rand_normal(5, 6, i) * 2;
        sum += exp(z[i] / 0.7);
    }
    for (int i = 0; i < N; i++)
        p[i * 8 / N] += exp(z[i] / 0.7) / sum;
    tw_draw_init(&d, N);
    struct tw_sampling s = plain;
    s.temperature = 0.7;
    for (int i = 0; i < DRAWS; i++) {
        CHECK(!tw_sampling_draw(&d, &s, z, NULL, NULL, tw_rand01(7, 8, i), &out, &err));
        seen[out.id * 8 / N]++;
    }
    for (int i = 0; i < 8; i++)
        chi += (seen[i] - DRAWS * p[i]) * (seen[i] - DRAWS * p[i]) / (DRAWS * p[i]);
    CHECK(chi < 24.3);                  /* 7 degrees of freedom: 0.1 % */
    tw_draw_free(&d);
}

static void the_best_come_in_order(void)
{
    float z[7] = { 1, 5, 2, 5, 9, 0, 7 };
    uint8_t allowed[7] = { 1, 1, 1, 1, 0, 1, 1 };
    int32_t id[7];
    struct tw_draw d;

    tw_draw_init(&d, 7);
    CHECK_INT(tw_sampling_top(&d, z, allowed, 4, id), 4);
    CHECK(id[0] == 6 && id[1] == 1 && id[2] == 3 && id[3] == 2);
    CHECK_INT(tw_sampling_top(&d, z, allowed, 7, id), 6);
    tw_draw_free(&d);
}

int main(void)
{
    RUN(greedy_takes_the_lowest_of_equals);
    RUN(no_finite_logit_is_an_error);
    RUN(repetition_lowers_negative_logits_too);
    RUN(presence_once_frequency_each_time);
    RUN(top_p_keeps_the_token_that_reaches_it);
    RUN(top_k_and_min_p);
    RUN(ids_without_a_token_are_never_drawn);
    RUN(draws_follow_the_probabilities);
    RUN(the_best_come_in_order);
    return test_end();
}
