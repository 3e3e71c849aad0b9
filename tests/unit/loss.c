/* loss.c - losses by name, and what a token adds */
#include "test.h"
#include "nn/loss_fn.h"

static void cross_entropy_is_the_negative_log_probability(void)
{
    struct tw_loss l;
    struct tw_err err = { 0 };
    float d;

    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy", &err) == 0);
    CHECK(!l.needs_logp && !l.pairs);
    CHECK_NEAR(tw_loss_token(&l, -2, 1, 0.25, &d), 0.5, 0);
    CHECK_NEAR(d, -0.25, 0);
    CHECK_NEAR(tw_loss_token(&l, -2, -0.5f, 1, &d), -1, 0);     /* any real weight */
    CHECK_NEAR(d, 0.5, 0);
}

static void unknown_names_and_keys_are_refused(void)
{
    struct tw_loss l;
    struct tw_err err = { 0 };

    CHECK(tw_loss_parse(&l, "--loss", "grpq,beta=1", &err) == -1);
    CHECK_STR(err.msg, "unknown loss 'grpq': known are cross_entropy, grpo, gspo, sapo, "
            "cispo, bnpo, dr_grpo, ppo, importance_sampling, dro, dpo, simpo, cpo, orpo, kto");
    CHECK_STR(err.place, "--loss");
    tw_err_clear(&err);
    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy,beta=1", &err) == -1);
    CHECK(strstr(err.msg, "beta") != NULL);
}

int main(void)
{
    RUN(cross_entropy_is_the_negative_log_probability);
    RUN(unknown_names_and_keys_are_refused);
    return test_end();
}
