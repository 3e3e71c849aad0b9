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
            "cispo, bnpo, dr_grpo, ppo, importance_sampling, stable_reinforce, dro, dpo, simpo, cpo, orpo, kto, infonce");
    CHECK_STR(err.place, "--loss");
    tw_err_clear(&err);
    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy,beta=1", &err) == -1);
    CHECK(strstr(err.msg, "beta") != NULL);
}

static void label_smoothing_shares_the_weight_with_the_vocabulary(void)
{
    struct tw_loss l;
    struct tw_err err = { 0 };
    float d, dm;

    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy,label_smoothing=0.25", &err) == 0);
    CHECK_NEAR(tw_loss_token(&l, -2, 1, 0.5, &d), 0.75, 0);
    CHECK_NEAR(tw_loss_smooth(&l, -8, 1, 0.5, &dm), 1, 0);
    CHECK(d == -0.375f && dm == -0.125f);
    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy,label_smoothing=0.1,dft=on", &err) == -1);
    CHECK(strstr(err.msg, "exclude each other") != NULL);
    tw_err_clear(&err);
    CHECK(tw_loss_parse(&l, "--loss", "cross_entropy,label_smoothing=1.5", &err) == -1);
    tw_err_clear(&err);
    CHECK(tw_loss_parse(&l, "--loss", "dpo,label_smoothing=0.25", &err) == 0);
    CHECK(l.smoothing == 0.25 && l.uniform == 0);
}

static void infonce_has_settings_that_need_each_other(void)
{
    static const char *const bad[][2] = {
        { "infonce,beta=1", "beta" },
        { "infonce,temperature=0", "temperature" },
        { "infonce,hard_negatives=0", "hard_negatives" },
        { "infonce,hard_negatives=1.5", "hard_negatives" },
        { "infonce,mask_fake_negative=on,fake_neg_margin=0", "fake_neg_margin" },
        { "infonce,use_batch=off,include_qq=on", "include_qq is about the other groups" },
        { "infonce,use_batch=off,include_dd=on", "include_dd is about the other groups" },
        { "infonce,use_batch=off,mask_fake_negative=on", "mask_fake_negative is about the other groups" },
        { "infonce,form=tinker", "has no form of that kind" },
    };
    struct tw_err err = { 0 };
    struct tw_loss l;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(tw_loss_parse(&l, "--loss", bad[i][0], &err) == -1);
        CHECK(err.code == TW_EMISUSE && strstr(err.msg, bad[i][1]) != NULL);
        tw_err_clear(&err);
    }
    CHECK(tw_loss_parse(&l, "--loss", "infonce", &err) == 0);
    CHECK(l.groups && l.use_batch && !l.needs_logp && l.temperature == 0.1 && l.hard_negatives == 0);
    CHECK(tw_loss_parse(&l, "--loss", "infonce,temperature=0.03,use_batch=on,hard_negatives=7,"
            "mask_fake_negative=on,fake_neg_margin=0.2,include_qq=on,include_dd=on", &err) == 0);
    CHECK(l.temperature == 0.03 && l.hard_negatives == 7 && l.mask_fake && l.margin == 0.2);
    CHECK(l.include_qq && l.include_dd);
}

int main(void)
{
    RUN(cross_entropy_is_the_negative_log_probability);
    RUN(label_smoothing_shares_the_weight_with_the_vocabulary);
    RUN(infonce_has_settings_that_need_each_other);
    RUN(unknown_names_and_keys_are_refused);
    return test_end();
}
