/* reward_answer.c - rewards that look for an answer and compare it with a reference */
#include "reward_priv.h"
#include <ctype.h>
#include <math.h>

/* The answer of a GSM8K reply or reference: in a box, or behind ####. */
static bool gsm8k_answer(struct tw_reward_in *in, struct tw_str s, struct tw_str *out)
{
    if (tw_box_last(in->a, s, out)) {
        *out = tw_without(in->a, *out, ", ");
        return true;
    }
    return tw_hashes(in->a, s, out);
}

static bool same_number(struct tw_str a, struct tw_str b)
{
    double x, y;

    if (tw_number(a, &x) && tw_number(b, &y))
        return fabs(x - y) < 1e-5;
    return tw_str_eq(a, b);
}

int tw_score_gsm8k(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_str *ref, truth, said;
    const struct tw_json *v;
    double number;

    for (int64_t i = 0; (v = tw_reward_ref(r, in, i)); i++) {
        if (tw_ref_texts(in, v, &ref) != 1)
            continue;
        if (gsm8k_answer(in, *ref, &truth))
            break;
        truth = tw_without(in->a, tw_trim(*ref), ", ");
        if (tw_number(truth, &number) || r->key.n)
            break;
    }
    if (!v)
        return tw_unscored(in, "no usable reference: a number, one in \\boxed{} or one behind ####");
    *x = gsm8k_answer(in, tw_tail(in->text, 500), &said) && same_number(tw_trim(said), tw_trim(truth));
    return TW_SCORED;
}

int tw_score_gsm8k_format(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_boxes b = tw_boxes(in->a, in->text);
    struct tw_str s;

    *x = tw_hashes(in->a, in->text, &s);
    for (int64_t i = 0; i < b.n; i++)
        if (tw_trim(b.v[i]).n)
            *x = 1;
    return TW_SCORED;
}

int tw_setup_math(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    r->tolerance = 0;
    return tw_set_num(s, "tolerance", &r->tolerance, 0, 1, err) < 0 ? -1 : 0;
}

/* What is compared: the last box, else what stands behind "# Answer", else all of it. */
static struct tw_str math_answer(struct tw_reward_in *in, struct tw_str s)
{
    size_t at = tw_find_last(s, "# Answer");
    struct tw_str box;

    if (at != SIZE_MAX)
        s = (struct tw_str){ s.p + at + 8, s.n - at - 8 };
    if (tw_box_last(in->a, s, &box))
        return box;
    if (tw_hashes(in->a, s, &box))
        return box;
    return tw_trim(s);
}

int tw_score_math(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_str *ref;
    int64_t n = tw_reward_refs(r, in, &ref);
    struct tw_str said = math_answer(in, in->text);

    if (!n)
        return tw_unscored(in, "no usable reference");
    *x = 0;
    for (int64_t i = 0; i < n && !*x; i++)
        *x = tw_math_equal(in->a, said, math_answer(in, ref[i]), r->tolerance);
    return TW_SCORED;
}

int tw_score_format(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    size_t think = tw_find(in->text, "<think>", 0), answer = tw_find(in->text, "<answer>", 0);

    *x = think != SIZE_MAX && tw_find(in->text, "</think>", think) != SIZE_MAX
            && answer != SIZE_MAX && tw_find(in->text, "</answer>", answer) != SIZE_MAX;
    return TW_SCORED;
}

enum { FROM_AUTO, FROM_TEXT, FROM_BOX, FROM_ANSWER, FROM_LINE };

int tw_setup_exact(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    bool exact_case = true;

    if (tw_set_enum(s, "from", "auto|text|box|answer|line", &r->from, err) < 0
            || tw_set_bool(s, "case", &exact_case, err) < 0)
        return -1;
    r->fold_case = !exact_case;
    return 0;
}

static struct tw_str last_line(struct tw_str s)
{
    size_t at;

    s = tw_trim(s);
    at = tw_find_last(s, "\n");
    return at == SIZE_MAX ? s : (struct tw_str){ s.p + at + 1, s.n - at - 1 };
}

static bool exact_answer(const struct tw_reward *r, struct tw_reward_in *in, struct tw_str *out)
{
    if (r->from == FROM_LINE)
        *out = last_line(in->text);
    else if (r->from == FROM_BOX)
        return tw_box_last(in->a, in->text, out);
    else if (r->from == FROM_ANSWER)
        return tw_tagged(in->text, "answer", out);
    else if (r->from == FROM_TEXT || (!tw_box_last(in->a, in->text, out)
                && !tw_tagged(in->text, "answer", out)))
        *out = in->text;
    return true;
}

static bool same_text(struct tw_str a, struct tw_str b, bool fold)
{
    a = tw_trim(a);
    b = tw_trim(b);
    if (a.n != b.n || !fold)
        return tw_str_eq(a, b);
    for (size_t i = 0; i < a.n; i++)
        if (tolower((unsigned char)a.p[i]) != tolower((unsigned char)b.p[i]))
            return false;
    return true;
}

int tw_score_exact(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_str *ref, said;
    int64_t n = tw_reward_refs(r, in, &ref);

    if (!n)
        return tw_unscored(in, "no usable reference");
    *x = 0;
    if (exact_answer(r, in, &said))
        for (int64_t i = 0; i < n && !*x; i++)
            *x = same_text(said, ref[i], r->fold_case);
    return TW_SCORED;
}

static bool letter_at(struct tw_str s, size_t i)
{
    return i < s.n && isalpha((unsigned char)s.p[i]) && (i + 1 >= s.n
            || (!isalnum((unsigned char)s.p[i + 1]) && s.p[i + 1] != '_' && s.p[i + 1] != '\''));
}

/* "B", "(b)", "B.", "\text{B}", "B) because": the letter such a text begins with; 0: none. */
static char leading_letter(struct tw_str s)
{
    size_t i = 0;

    if (s.n > 6 && !memcmp(s.p, "\\text{", 6))
        i = 6;
    while (i < s.n && s.p[i] && strchr(" \t\n*_([{:$\"'", s.p[i]))
        i++;
    if (!letter_at(s, i))
        return 0;
    for (size_t k = i + 1; k < s.n && (s.p[k] == ' ' || s.p[k] == '\n'); k++)
        if (k + 1 < s.n && islower((unsigned char)s.p[k + 1]) && (s.p[i] == 'A' || s.p[i] == 'a'
                    || s.p[i] == 'I' || s.p[i] == 'i'))
            return 0;           /* "a dog", "I think" */
    return (char)toupper((unsigned char)s.p[i]);
}

/* The letter behind the last "answer is", "answer:" and the like. */
static char stated_letter(struct tw_str s)
{
    char found = 0;

    for (size_t at = 0; at + 6 <= s.n; at++) {
        struct tw_str rest;

        if ((s.p[at] != 'a' && s.p[at] != 'A') || strncasecmp(s.p + at, "answer", 6))
            continue;
        rest = (struct tw_str){ s.p + at + 6, s.n - at - 6 };
        for (size_t i = 0; i < 3; i++) {
            static const char *const skip[] = { " is", ":", " option", " choice", " =" };

            while (rest.n && (*rest.p == '*' || *rest.p == ':')) {
                rest.p++;
                rest.n--;
            }
            for (size_t k = 0; k < sizeof(skip) / sizeof(*skip); k++)
                if (rest.n > strlen(skip[k]) && !memcmp(rest.p, skip[k], strlen(skip[k]))) {
                    rest.p += strlen(skip[k]);
                    rest.n -= strlen(skip[k]);
                }
        }
        if (leading_letter(rest))
            found = leading_letter(rest);
    }
    return found;
}

static char bracketed_letter(struct tw_str s)
{
    char found = 0;

    for (size_t i = 0; i + 2 < s.n; i++)
        if (s.p[i] == '(' && isupper((unsigned char)s.p[i + 1]) && s.p[i + 2] == ')')
            found = s.p[i + 1];
    return found;
}

static char chosen(struct tw_reward_in *in)
{
    struct tw_str s;
    char c = 0;

    if (tw_box_last(in->a, in->text, &s) || tw_tagged(in->text, "answer", &s))
        return leading_letter(s);
    if (!(c = stated_letter(in->text)) && !(c = bracketed_letter(in->text))) {
        s = last_line(in->text);
        c = s.n <= 4 || (s.n > 1 && s.p[1] && strchr(".):", s.p[1])) ? leading_letter(s) : 0;
    }
    return c;
}

/* The reference is a letter, a number of `choices` (from 0), or the text of one of them. */
static char right_choice(const struct tw_reward *r, struct tw_reward_in *in)
{
    const struct tw_json *v, *list = tw_json_get(in->rec, "choices");
    struct tw_str *ref;

    for (int64_t i = 0; (v = tw_reward_ref(r, in, i)); i++) {
        if (v->type == TW_JNUM && v->is_int && v->i >= 0 && v->i < 26)
            return (char)('A' + v->i);
        if (tw_ref_texts(in, v, &ref) != 1)
            continue;
        for (int64_t k = 0; list && list->type == TW_JARR && k < list->n && k < 26; k++)
            if (list->item[k].type == TW_JSTR && same_text(list->item[k].str, *ref, false))
                return (char)('A' + k);
        if (tw_trim(*ref).n <= 3 && leading_letter(tw_trim(*ref)))
            return leading_letter(tw_trim(*ref));
    }
    return 0;
}

int tw_score_choice(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    char right = right_choice(r, in);

    if (!right)
        return tw_unscored(in, "no usable reference: a letter, a number from 0, or the text of one of choices");
    *x = chosen(in) == right;
    return TW_SCORED;
}
