/* reward_words.c - rewards that count words and characters: f1, length, repetition, cot */
#include "reward_priv.h"
#include "base/rng.h"
#include <ctype.h>
#include <math.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

int tw_setup_f1(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    int code;
    PCRE2_SIZE at;
    struct tw_str p;

    if (tw_set_str(s, "pattern", &r->pattern) <= 0)
        return 0;
    p = r->pattern;
    if (p.n >= 2 && *p.p == '/' && p.p[p.n - 1] == '/')
        p = (struct tw_str){ p.p + 1, p.n - 2 };
    r->state = pcre2_compile((PCRE2_SPTR)p.p, p.n, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!r->state) {
        PCRE2_UCHAR why[160];

        pcre2_get_error_message(code, why, sizeof(why));
        return tw_fail_code(err, TW_EMISUSE, "f1", 0, "pattern=%.*s: %s at %zu", (int)p.n, p.p, (char *)why,
                (size_t)at);
    }
    return 0;
}

void tw_close_f1(struct tw_reward *r)
{
    pcre2_code_free(r->state);
}

/* The last match of the pattern: its first group, or all of it. */
static bool last_match(const struct tw_reward *r, struct tw_str s, struct tw_str *out)
{
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(r->state, NULL);
    pcre2_match_context *c = pcre2_match_context_create(NULL);
    PCRE2_SIZE *v = pcre2_get_ovector_pointer(m), at = 0;
    bool found = false;
    int n;

    pcre2_set_match_limit(c, 1000000);
    while (at <= s.n && (n = pcre2_match(r->state, (PCRE2_SPTR)s.p, s.n, at, 0, m, c)) > 0) {
        int k = n > 1 && v[2] != PCRE2_UNSET;

        *out = (struct tw_str){ s.p + v[2 * k], v[2 * k + 1] - v[2 * k] };
        found = true;
        at = v[1] > at ? v[1] : at + 1;
        while (at < s.n && (s.p[at] & 0xC0) == 0x80)
            at++;
    }
    pcre2_match_context_free(c);
    pcre2_match_data_free(m);
    return found;
}

struct words {
    struct tw_str *v;
    int64_t n, cap;
};

static bool article(struct tw_str w)
{
    return tw_str_is(w, "a") || tw_str_is(w, "an") || tw_str_is(w, "the");
}

static void word_end(struct tw_arena *a, struct words *w, struct tw_buf *b)
{
    char *p;
    size_t n = b->n;
    bool ascii = true;

    if (!n || article(tw_buf_str(b))) {
        tw_buf_clear(b);
        return;
    }
    p = tw_arena_dup(a, b->p, n);
    for (size_t i = 0; i < n; i++)
        ascii &= p[i] >= 'a' && p[i] <= 'z';
    if (ascii && n >= 4)
        n = tw_stem(p, n);
    if (w->n == w->cap)
        w->v = tw_xreallocarray(w->v, (size_t)(w->cap = 2 * w->cap + 16), sizeof(*w->v));
    w->v[w->n++] = (struct tw_str){ p, n };
    tw_buf_clear(b);
}

static int by_text(const void *x, const void *y)
{
    const struct tw_str *a = x, *b = y;
    int c = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);

    return c ? c : (a->n > b->n) - (a->n < b->n);
}

/* Lower case, without punctuation and articles, stemmed, sorted; each CJK character is a word. */
static struct words words(struct tw_arena *a, struct tw_str s)
{
    struct words w = { 0 };
    struct tw_buf b = { 0 };
    const char *p = s.p, *end = s.p + s.n;

    while (p < end) {
        uint32_t c = tw_utf8_next(&p, end);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

        if (c == ' ' || (c >= 9 && c <= 13) || k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL) {
            word_end(a, &w, &b);
        } else if ((k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO)
                || (c < 128 && ispunct((int)c))) {
            continue;
        } else if ((c >= 0x3040 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x9FFF)) {
            word_end(a, &w, &b);
            tw_buf_utf8(&b, c);
            word_end(a, &w, &b);
        } else {
            tw_buf_utf8(&b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        }
    }
    word_end(a, &w, &b);
    tw_buf_free(&b);
    if (w.n)
        qsort(w.v, (size_t)w.n, sizeof(*w.v), by_text);
    return w;
}

/* Words that change nothing: numbers, and those that only introduce. */
static bool filler(struct tw_str w)
{
    static const char *const fill[] = { "is", "ar", "are", "was", "it", "its", "be", "of", "in", "answer",
        "final", "about", "approximately", "approxim", "around", "so", "that", "thi", "this", "and", "or",
        "to", "for" };
    bool digits = w.n > 0;

    for (size_t i = 0; i < w.n; i++)
        digits &= isdigit((unsigned char)w.p[i]) != 0;
    for (size_t i = 0; i < sizeof(fill) / sizeof(*fill); i++)
        digits |= tw_str_is(w, fill[i]);
    return digits;
}

static double f1(const struct words *a, const struct words *b)
{
    int64_t i = 0, k = 0, both = 0, odd_a = 0, odd_b = 0;   /* only there, and no filler */

    while (i < a->n || k < b->n) {
        int c = i == a->n ? 1 : k == b->n ? -1 : by_text(&a->v[i], &b->v[k]);

        both += c == 0;
        odd_a += c < 0 && !filler(a->v[i]);
        odd_b += c > 0 && !filler(b->v[k]);
        i += c <= 0;
        k += c >= 0;
    }
    if (both && ((both == b->n && !odd_a) || (both == a->n && !odd_b)))
        return 1;
    return both ? 2.0 * (double)both / (double)(a->n + b->n) : 0;
}

int tw_score_f1(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_str *ref, said;
    int64_t n = tw_reward_refs(r, in, &ref);
    struct words w;

    if (!n)
        return tw_unscored(in, "no usable reference");
    *x = 0;
    if (!tw_box_last(in->a, in->text, &said)) {
        if (r->state && !last_match(r, in->text, &said))
            return TW_SCORED;
        if (!r->state && !tw_tagged(in->text, "answer", &said))
            said = in->text;
    }
    w = words(in->a, said);
    for (int64_t i = 0; i < n; i++) {
        struct words t = words(in->a, ref[i]);

        *x = fmax(*x, w.n || t.n ? f1(&w, &t) : 1);
        free(t.v);
    }
    free(w.v);
    return TW_SCORED;
}

enum { CHARS, WORDS, TOKENS };

int tw_setup_length(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    r->max = 200;
    r->span = 3000;
    if (tw_set_int(s, "min", &r->min, 0, INT64_MAX, err) < 0
            || tw_set_int(s, "max", &r->max, 0, INT64_MAX, err) < 0
            || tw_set_int(s, "span", &r->span, 0, INT64_MAX, err) < 0
            || tw_set_enum(s, "unit", "chars|words|tokens", &r->unit, err) < 0
            || tw_set_bool(s, "need-answer", &r->need_answer, err) < 0)
        return -1;
    return r->min > r->max ? tw_fail_code(err, TW_EMISUSE, "length", 0, "min is above max") : 0;
}

static int64_t count_words(struct tw_str s)
{
    int64_t n = 0;
    bool in = false;

    for (size_t i = 0; i < s.n; i++) {
        bool w = !isspace((unsigned char)s.p[i]);

        n += w && !in;
        in = w;
    }
    return n;
}

int tw_score_length(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    int64_t n = r->unit == TOKENS ? in->tokens : r->unit == WORDS ? count_words(in->text)
            : tw_chars(in->text);
    struct tw_str s;

    if (n < 0)
        return tw_unscored(in, "unit=tokens, and the record has no completion.tokens");
    if (r->need_answer && !tw_box_last(in->a, in->text, &s) && !tw_hashes(in->a, in->text, &s))
        *x = 0;
    else if (n < r->min)
        *x = (double)n / (double)r->min;
    else if (n <= r->max)
        *x = 1;
    else
        *x = r->span ? fmax(0, 1 - (double)(n - r->max) / (double)r->span) : 0;
    return TW_SCORED;
}

int tw_setup_repetition(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    r->n = 4;
    r->unit = WORDS;
    if (tw_set_int(s, "n", &r->n, 1, 1000, err) < 0)
        return -1;
    return tw_set_enum(s, "unit", "chars|words", &r->unit, err) < 0 ? -1 : 0;
}

/* Where the next unit at or behind *AT stands; false: there is none. */
static bool next_unit(struct tw_str s, bool word, size_t *at, struct tw_str *out)
{
    size_t i = *at, from;

    while (word && i < s.n && isspace((unsigned char)s.p[i]))
        i++;
    if ((from = i) == s.n)
        return false;
    if (word)
        while (i < s.n && !isspace((unsigned char)s.p[i]))
            i++;
    else
        for (i++; i < s.n && (s.p[i] & 0xC0) == 0x80; i++)
            ;
    *out = (struct tw_str){ s.p + from, i - from };
    *at = i;
    return true;
}

double tw_distinct(struct tw_str s, bool word, int64_t n, int64_t stride)
{
    uint64_t *ring = tw_xcalloc((size_t)n, sizeof(*ring));
    struct tw_hashset set = { 0 };
    struct tw_str u;
    int64_t seen = 0, all = 0;
    double share;

    for (size_t at = 0; next_unit(s, word, &at, &u); seen++) {
        ring[seen % n] = tw_hash64(u.p, u.n, 0);
        if (seen + 1 >= n && (seen + 1 - n) % stride == 0) {
            uint64_t key = 0;

            for (int64_t i = 0; i < n; i++)
                key = tw_hash64(&ring[(seen + 1 + i) % n], sizeof(*ring), key);
            tw_hashset_add(&set, key);
            all++;
        }
    }
    share = all ? (double)set.n / (double)all : 1;
    tw_hashset_free(&set);
    free(ring);
    return share;
}

int tw_score_repetition(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    *x = tw_distinct(in->text, r->unit == WORDS, r->n, 1);
    return TW_SCORED;
}

/* Lines "Step 3:" whose numbers differ. */
int tw_score_cot(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    struct tw_hashset set = { 0 };

    for (size_t at = 0; (at = tw_find(in->text, "Step ", at)) != SIZE_MAX;) {
        size_t from = at += 5;

        while (at < in->text.n && isdigit((unsigned char)in->text.p[at]))
            at++;
        if (at > from && at < in->text.n && in->text.p[at] == ':')
            tw_hashset_add(&set, tw_hash64(in->text.p + from, at - from, 0));
    }
    *x = !tw_contains(in->text, "\\boxed{") || set.n < 3 ? 0 : set.n <= 6 ? 0.3 : 0.1;
    tw_hashset_free(&set);
    return TW_SCORED;
}
