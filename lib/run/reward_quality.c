/* reward_quality.c - olympiad-quality: does a solution look like reasoning, has it a sane length, and
 * does it repeat itself? */
#include "reward_priv.h"
#include <ctype.h>
#include <math.h>

static bool any(struct tw_str s, const char *const *list)
{
    for (; *list; list++)
        if (tw_contains(s, *list))
            return true;
    return false;
}

static int64_t occurrences(struct tw_str s, const char *what)
{
    int64_t n = 0;

    for (size_t at = 0; (at = tw_find(s, what, at)) != SIZE_MAX; at += strlen(what))
        n++;
    return n;
}

/* '=' that is not part of ==, <=, >= or !=. */
static int64_t equations(struct tw_str s)
{
    int64_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += s.p[i] == '=' && !(i && s.p[i - 1] && strchr("=<>!", s.p[i - 1]))
                && !(i + 1 < s.n && s.p[i + 1] == '=');
    return n;
}

/* A word of conclusion and a box behind it in the last 500 characters. */
static bool concludes(struct tw_str s)
{
    static const char *const word[] = { "therefore", "Therefore", "thus", "Thus", "hence", "Hence", "answer",
        "Answer", "conclu", "finally", "Finally", "\u56e0\u6b64", "\u6240\u4ee5", "\u7efc\u4e0a", "\u6545",
        "\u7b54\u6848", "\u6700\u7ec8" };
    struct tw_str tail = tw_tail(s, 500);
    size_t box = tw_find_last(tail, "\\boxed"), at;

    if (box == SIZE_MAX)
        return false;
    for (size_t i = 0; i < sizeof(word) / sizeof(*word); i++)
        if ((at = tw_find(tail, word[i], 0)) != SIZE_MAX && at < box)
            return true;
    return false;
}

static double reasoning(struct tw_str s)
{
    static const char *const step[] = { "step", "Step", "first", "First", "then", "Then", "therefore",
        "Therefore", "\u6b65\u9aa4", "\u9996\u5148", "\u7136\u540e", "\u56e0\u6b64", "\u6240\u4ee5",
        "\u7b2c\u4e00", NULL };
    int64_t ops = occurrences(s, "\\frac") + occurrences(s, "\\sqrt");

    for (size_t i = 0; i < s.n; i++)
        ops += s.p[i] && strchr("+-*/^", s.p[i]) != NULL;
    return 0.25 * ((equations(s) >= 3) + (ops >= 5) + any(s, step) + concludes(s));
}

static double length(double n)
{
    if (n < 100)
        return 0.3 * n / 100;
    if (n < 300)
        return 0.3 + 0.7 * (n - 100) / 200;
    if (n <= 1500)
        return 1;
    if (n <= 3000)
        return 0.5 + 0.5 * cos(acos(0) * (n - 1500) / 1500);
    return 0.5 * (1 - 0.5 * fmin((n - 3000) / 3000, 1));
}

int tw_score_olympiad_quality(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    int64_t n = tw_chars(in->text);
    double rep = n < 100 ? 1 : (tw_distinct(in->text, false, 50, 25) + tw_distinct(in->text, true, 4, 1)) / 2;

    *x = 0.4 * reasoning(in->text) + 0.3 * length((double)n) + 0.3 * rep;
    return TW_SCORED;
}
