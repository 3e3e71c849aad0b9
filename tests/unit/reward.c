/* reward.c - the parts of tw-reward that are functions of their arguments */
#include "test.h"
#include "run/reward_priv.h"

static struct tw_arena arena;

static bool same(const char *a, const char *b)
{
    bool r = tw_math_equal(&arena, tw_str(a), tw_str(b), 0);

    if (r != tw_math_equal(&arena, tw_str(b), tw_str(a), 0)) {
        printf("# not symmetric: %s | %s\n", a, b);
        test_here_++;
    }
    tw_arena_reset(&arena);
    return r;
}

static void check_all(const char *const (*pair)[2], bool want)
{
    for (; (*pair)[0]; pair++)
        if (same((*pair)[0], (*pair)[1]) != want) {
            printf("# %s %s %s\n", (*pair)[0], want ? "!=" : "==", (*pair)[1]);
            test_here_++;
        }
}

static void equal_as_values(void)
{
    static const char *const pair[][2] = {
        { "\\frac{1}{2}", "0.5" }, { "\\dfrac12", "1/2" }, { "\\tfrac{2}{4}", "\\frac12" }, { "1,234", "1234" },
        { "1{,}234", "1234" }, { "1\\,234", "1234" }, { "50\\%", "0.5" }, { "12.5%", "1/8" }, { "5.0", "5" },
        { "$5$", "5" }, { "5.", "5" }, { "-\\frac{3}{4}", "\\frac{-3}{4}" }, { "2\\frac{1}{2}", "2.5" },
        { "1 1/2", "3/2" }, { "2^{10}", "1024" }, { "2^10", "1024" }, { "3 \\times 10^{5}", "300000" },
        { "3e5", "300000" }, { "1.5E-3", "0.0015" }, { "\\sqrt{16}", "4" }, { "\\sqrt[3]{-8}", "-2" },
        { "\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}" }, { "\\sqrt{\\frac{1}{4}}", "0.5" },
        { "2\\pi", "\\pi\\cdot 2" }, { "2\u03c0", "2\\pi" }, { "\\left(\\frac{1}{2}\\right)", "0.5" },
        { "0.\\overline{3}", "1/3" }, { "0.1\\overline{6}", "\\frac16" }, { "5!", "120" },
        { "\\binom{5}{2}", "10" }, { "|-3|", "3" }, { "\\sin\\frac{\\pi}{6}", "0.5" },
        { "\\sin(\\pi/6)", "1/2" }, { "\\cos^2 x + \\sin^2 x", "1" }, { "\\log_2 8", "3" }, { "\\log_{10} 100", "2" },
        { "\\ln e", "1" }, { "x^2+2x+1", "(x+1)^2" }, { "2(x+y)", "2x+2y" }, { "x = 5", "5" },
        { "y=2x+3", "2x+3" }, { "f(x) = x^2", "x^2" }, { "3, 4", "4,3" }, { "\\{1,2\\}", "\\{2,1\\}" },
        { "1 \\text{ or } 2", "1, 2" }, { "(1, 2)", "\\left( 1, 2 \\right)" }, { "[0,1)", "[0, 1)" },
        { "(-\\infty, 0)\\cup(1,\\infty)", "(1,\\infty) \\cup (-\\infty,0)" }, { "\\pm 2", "2\\pm 4-2-2+2 \\pm -2" },
        { "x = \\pm\\sqrt{4}", "\\pm 2" }, { "5 \\text{ cm}", "5" }, { "5\\text{ cm}", "0.05 m" },
        { "1 km", "1000 m" }, { "90^\\circ", "90" }, { "90^{\\circ}", "90\u00b0" }, { "10\\text{ cm}^2", "10 cm^2" },
        { "60 \\text{ km/h}", "60 \\text{ km/h}" }, { "\\$18", "18" }, { "18 dollars", "18" },
        { "\\text{Friday}", "friday" }, { "\\text{(C)}", "(C)" }, { "\\text{yes}", "\\text{ Yes }" },
        { "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\ \\frac{4}{2}\\end{pmatrix}" },
        { "3\\sqrt{2}", "\\sqrt{18}" }, { "2\u221a2", "\\sqrt{8}" }, { "\\mathrm{e}^{0}", "1" },
        { "123456789012345678901234567890123456789", "123456789012345678901234567890123456789" },
        { "x_1 + x_2", "x_2+x_1" }, { "2 \\cdot 3", "6" }, { "6 \\div 4", "1.5" }, { "-5", "\u22125" },
        { "\\frac{a}{b}", "a/b" }, { "007", "7" }, { ".5", "0.5" }, { "x \\in [0,1]", "[0,1]" },
        { "2x", "x \\times 2" }, { "a^{-1}", "\\frac1a" }, { "e^{i}", "e^i" }, { "5 apples", "5" },
        { "x>3", "x > 3" }, { NULL, NULL } };

    check_all(pair, true);
}

static void different_values(void)
{
    static const char *const pair[][2] = {
        { "0.333", "1/3" }, { "50", "50\\%" }, { "3.14", "\\pi" }, { "5 \\text{ cm}", "5 \\text{ m}" },
        { "123456789012", "123456789013" }, { "9007199254740993", "9007199254740992" },
        { "123456789012345678901234567890123456788", "123456789012345678901234567890123456789" },
        { "x+1", "x+2" }, { "(1,2)", "(2,1)" }, { "[0,1)", "[0,1]" }, { "(0,1)", "[0,1]" }, { "1,2", "1,2,3" },
        { "(1,2)", "1,2" }, { "\\text{Friday}", "\\text{Monday}" }, { "x", "y" }, { "x", "X" }, { "5", "-5" },
        { "", "" }, { "", "0" }, { "\\frac{1}{0}", "\\frac{2}{0}" }, { "1,1", "1,2" }, { "\\infty", "-\\infty" },
        { "9^{9^{9^9}}", "9^{9^{9^8}}" }, { "9^{9^{9^9}}", "\\infty" }, { "0/0", "0" }, { "x>3", "x<3" },
        { "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1 & 2\\end{pmatrix}" }, { "2^2", "2^3" },
        { "x\u00b2", "x\u00b3" }, { "\\sqrt{-1}", "1" }, { "5 kg", "5 m" }, { "\\pm 2", "2" }, { "12", "1" },
        { "4", "" }, { "1e400", "1e401" }, { NULL, NULL } };

    check_all(pair, false);
}

/* What a model may write must not take time, stack or memory. */
static void hostile_answers(void)
{
    static char big[10 << 20];
    struct tw_str out, s = { big, sizeof(big) };

    memset(big, '(', sizeof(big));
    CHECK(!same("9^(9^(9^9))", "1"));
    CHECK(!tw_math_equal(&arena, s, tw_str("1"), 0));
    s.n = 8000;
    CHECK(!tw_math_equal(&arena, s, tw_str("1"), 0));
    s.n = sizeof(big);
    for (size_t i = 0; i + 8 <= sizeof(big); i += 8)
        memcpy(big + i, "\\boxed{ ", 8);
    CHECK(!tw_box_last(&arena, s, &out));
    memset(big, '{', sizeof(big) / 2);
    memset(big + sizeof(big) / 2, '}', sizeof(big) / 2);
    CHECK(!tw_box_last(&arena, s, &out));
    memset(big, '7', sizeof(big));
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    s.n = 8000;
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    memset(big, '-', sizeof(big));
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    memset(big, '!', sizeof(big));
    big[0] = '3';
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    for (size_t i = 0; i + 2 <= 8000; i += 2)
        memcpy(big + i, "9^", 2);
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    for (size_t i = 0; i + 2 <= 8000; i += 2)
        memcpy(big + i, "x,", 2);
    CHECK(!tw_math_equal(&arena, s, tw_str("7"), 0));
    tw_arena_free(&arena);
}

static void boxes(void)
{
    struct tw_str s;

    CHECK(tw_box_last(&arena, TW_STR_LIT("a \\boxed{1} b \\boxed {\\frac{1}{2}} c"), &s));
    CHECK(tw_str_is(s, "\\frac{1}{2}"));
    CHECK(tw_box_last(&arena, TW_STR_LIT("\\boxed{\\boxed{5}}"), &s) && tw_str_is(s, "5"));
    CHECK(tw_box_last(&arena, TW_STR_LIT("\\boxed{3} \\boxed{4"), &s) && tw_str_is(s, "3"));
    CHECK(tw_box_last(&arena, TW_STR_LIT("\\boxed{\\{1\\}}"), &s) && tw_str_is(s, "\\{1\\}"));
    CHECK(tw_box_last(&arena, TW_STR_LIT("{ \\boxed{7}"), &s) && tw_str_is(s, "7"));
    CHECK(!tw_box_last(&arena, TW_STR_LIT("\\boxed 5"), &s));
    CHECK(!tw_box_last(&arena, TW_STR_LIT("\\boxed"), &s));
    CHECK(!tw_box_last(&arena, TW_STR_LIT(""), &s));
    CHECK(tw_hashes(&arena, TW_STR_LIT("#### 3\n#### -1, 234.5 dollars"), &s) && tw_str_is(s, "-1234.5"));
    CHECK(!tw_hashes(&arena, TW_STR_LIT("#### none"), &s));
    CHECK(tw_tagged(TW_STR_LIT("<answer>1</answer><answer>2</answer>"), "answer", &s) && tw_str_is(s, "2"));
    CHECK(!tw_tagged(TW_STR_LIT("</answer><answer>2"), "answer", &s));
    CHECK(tw_str_is(tw_tail(TW_STR_LIT("a\u00e9b"), 2), "\u00e9b"));
    tw_arena_free(&arena);
}

/* Word and stem, from the rules of the paper. */
static void stems(void)
{
    static const char *const pair[][2] = { { "caresses", "caress" }, { "ponies", "poni" }, { "ties", "ti" },
        { "cats", "cat" }, { "feed", "feed" }, { "agreed", "agre" }, { "plastered", "plaster" },
        { "bled", "bled" }, { "motoring", "motor" }, { "sing", "sing" }, { "conflated", "conflat" },
        { "troubled", "troubl" }, { "sized", "size" }, { "hopping", "hop" }, { "tanned", "tan" },
        { "falling", "fall" }, { "hissing", "hiss" }, { "fizzed", "fizz" }, { "failing", "fail" },
        { "filing", "file" }, { "happy", "happi" }, { "sky", "sky" }, { "relational", "relat" },
        { "conditional", "condit" }, { "rational", "ration" }, { "digitizer", "digit" },
        { "vietnamization", "vietnam" }, { "operator", "oper" }, { "hopefulness", "hope" },
        { "formaliti", "formal" }, { "sensibiliti", "sensibl" }, { "triplicate", "triplic" },
        { "electriciti", "electr" }, { "hopeful", "hope" }, { "goodness", "good" }, { "revival", "reviv" },
        { "allowance", "allow" }, { "adjustable", "adjust" }, { "irritant", "irrit" },
        { "replacement", "replac" }, { "adjustment", "adjust" }, { "dependent", "depend" },
        { "adoption", "adopt" }, { "communism", "commun" }, { "activate", "activ" }, { "effective", "effect" },
        { "probate", "probat" }, { "rate", "rate" }, { "cease", "ceas" }, { "controll", "control" },
        { "roll", "roll" }, { "generalizations", "gener" }, { "oscillators", "oscil" } };
    char w[32];

    for (size_t i = 0; i < sizeof(pair) / sizeof(*pair); i++) {
        snprintf(w, sizeof(w), "%s", pair[i][0]);
        w[tw_stem(w, strlen(w))] = 0;
        CHECK_STR(w, pair[i][1]);
    }
}

static void advantages(void)
{
    double r[4] = { 0.5, 0.25, 0, 2 }, a[8], same8[8];
    static const double group[4] = { -0.2086825007694951, -0.48692583512882187, -0.7651691694881487,
        1.4607775053864656 };
    static const double rloo[4] = { -0.25, -0.5833333333333334, -0.9166666666666666, 1.75 };

    CHECK(!tw_advantage(TW_ADV_GRPO, TW_SCALE_GROUP, r, 4, a));
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(a[i], group[i], 1e-15);
    CHECK(!tw_advantage(TW_ADV_RLOO, TW_SCALE_NONE, r, 4, a));
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(a[i], rloo[i], 1e-15);
    for (int i = 0; i < 8; i++)
        same8[i] = 0.1;
    for (int s = TW_SCALE_GROUP; s <= TW_SCALE_NONE; s++)
        for (int k = TW_ADV_GRPO; k <= TW_ADV_RLOO; k++) {
            CHECK(tw_advantage((enum tw_adv)k, (enum tw_adv_scale)s, same8, 8, a));
            for (int i = 0; i < 8; i++)
                CHECK(a[i] == 0);
        }
    r[1] = NAN;
    CHECK(!tw_advantage(TW_ADV_GRPO, TW_SCALE_NONE, r, 4, a));
    CHECK_NEAR(a[0], 0.5 - 2.5 / 3, 1e-15);
    CHECK(isnan(a[1]));
    r[0] = r[2] = NAN;
    CHECK(tw_advantage(TW_ADV_RLOO, TW_SCALE_GROUP, r, 4, a));
    CHECK(isnan(a[0]) && a[3] == 0);
    CHECK_NEAR(tw_reward_std(r, 4), 1, 0);
}

int main(void)
{
    RUN(equal_as_values);
    RUN(different_values);
    RUN(hostile_answers);
    RUN(boxes);
    RUN(stems);
    RUN(advantages);
    return test_end();
}
