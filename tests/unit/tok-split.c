/* tok-split.c - the matchers written by hand against the regular expressions they stand for, on
 * random text; and every behaviour of a Split. */
#include "help_tok.h"
#include "base/rng.h"
#include "data/tok_priv.h"
#include "test.h"
#include <stdlib.h>

static const char *const pattern[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    "\\p{N}{1,3}", "\\p{N}", "\\p{N}+", "\\s+$",
};
#define PATTERNS (sizeof(pattern) / sizeof(pattern[0]))

static uint64_t draws;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(tw_rand64(7, 1, draws++) >> 32) % n;
}

/* A character of some kind; kinds that decide the patterns are likelier than chance. */
static uint32_t any_char(void)
{
    static const uint16_t space[] = { 0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x180E,
        0x2003, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0xFEFF };
    static const char quote[] = "'''sStTrRevVEmMlLdD";
    static const uint16_t range[][2] = { { 0x20, 0x7F }, { 0x30, 0x3A }, { 0x300, 0x370 },
        { 0x4DF0, 0x4E10 }, { 0x9F90, 0x9FB0 }, { 0x3030, 0x3110 }, { 0x660, 0x670 },
        { 0x900, 0xA00 }, { 0x2000, 0x2500 }, { 0xA0, 0x250 } };
    uint32_t k = below(16);

    if (k < 3)
        return below(3) ? ' ' : '\n';
    if (k == 3)
        return space[below(18)];
    if (k == 4)
        return (unsigned char)quote[below(19)];
    if (k == 5)
        return below(2) ? 0x17F : 0x212A;           /* long s and the Kelvin sign fold to s and k */
    return k < 15 ? range[k - 6 < 10 ? k - 6 : 0][0]
                    + below((uint32_t)range[k - 6][1] - range[k - 6][0])
                  : below(0x30000);
}

/* Do PCRE2's data know the character as we do? They may be older. */
static bool agrees(struct tok_enc *e, const struct tok_find *cls, uint32_t c)
{
    char s[4];
    size_t n, b, end;
    unsigned got = 0;

    if (c >= 0xD800 && c < 0xE000)
        return false;
    n = (size_t)tw_utf8_put(s, c);
    for (int i = 0; i < 7; i++)
        if (tok_find_next(e, &cls[i], s, n, 0, &b, &end) > 0)
            got |= 1u << i;
    return got == ((unsigned)tok_cls(&e->t->uni, c) & 0x7F);
}

static void random_text(struct tok_enc *e, const struct tok_find *cls, struct tw_buf *b)
{
    uint32_t n = 1 + below(24);

    b->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = any_char(), times = below(4) ? 1 : 1 + below(4);

        while (!agrees(e, cls, c))
            c = any_char();
        while (times--)
            tw_buf_utf8(b, c);
    }
}

static bool same_matches(struct tok_enc *e, const struct tok_find *f, const struct tok_find *re,
        struct tw_str s)
{
    size_t from = 0, b1, e1, b2, e2;

    for (;;) {
        int r1 = tok_find_next(e, f, s.p, s.n, from, &b1, &e1);
        int r2 = tok_find_next(e, re, s.p, s.n, from, &b2, &e2);

        if (r1 != r2 || (r1 && (b1 != b2 || e1 != e2)))
            return false;
        if (!r1)
            return true;
        from = e1;
    }
}

static void by_hand_equals_the_pattern(void)
{
    static const char *const name[] = { "\\p{L}", "\\p{N}", "\\s", "[\\r\\n]", "\\p{M}", "\\p{P}",
        "\\p{S}" };
    struct tw_tok *t = tw_xcalloc(1, sizeof(*t));
    struct tok_enc e = { .t = t };
    struct tok_find hand[PATTERNS], re[PATTERNS], cls[7];
    struct tw_buf b = {0};

    t->name = "test";
    tok_uni_init(&t->uni);
    for (size_t i = 0; i < 7; i++)
        CHECK(!tok_find_regex(&cls[i], tw_str(name[i]), true, NULL));
    for (size_t i = 0; i < PATTERNS; i++) {
        CHECK(!tok_find_regex(&hand[i], tw_str(pattern[i]), false, NULL));
        CHECK(!tok_find_regex(&re[i], tw_str(pattern[i]), true, NULL));
        CHECK(hand[i].kind != TOK_FIND_RE && re[i].kind == TOK_FIND_RE);
    }
    for (int k = 0; k < 20000 && !test_here_; k++) {
        random_text(&e, cls, &b);
        for (size_t i = 0; i < PATTERNS; i++)
            if (!same_matches(&e, &hand[i], &re[i], tw_buf_str(&b))) {
                struct tw_buf q = {0};

                tw_json_quote(&q, tw_buf_str(&b));
                printf("# pattern %zu differs on %s\n", i, q.p);
                tw_buf_free(&q);
                test_here_++;
            }
    }
    for (size_t i = 0; i < 7; i++)
        tok_find_free(&cls[i]);
    for (size_t i = 0; i < PATTERNS; i++)
        tok_find_free(&re[i]);
    tok_enc_free(&e);
    tw_buf_free(&b);
    free(t);
}

/* The words that the pre-tokenizer PRE (JSON) makes of TEXT, joined by "|". A model that knows no
 * character gives one unknown token a word, and its span is the word. */
static const char *words(const char *pre, const char *text)
{
    static char out[256];
    struct tw_buf json = {0};
    struct tw_ids ids = { .want_spans = true };
    struct tw_err err = {0};
    struct tw_tok *t;
    size_t n = 0;

    tw_buf_printf(&json, "{\"added_tokens\":[],\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\","
            "\"vocab\":{\"<unk>\":0},\"merges\":[],\"unk_token\":\"<unk>\",\"fuse_unk\":true}}", pre);
    t = tw_tok_open_json(tw_buf_str(&json), "test", &err);
    out[0] = 0;
    if (!t || tw_tok_encode(t, tw_str(text), NULL, 0, 0, &ids, NULL, &err))
        n = (size_t)snprintf(out, sizeof(out), "%s", err.msg);
    for (int64_t i = 0; i < ids.n && n < sizeof(out); i++)
        n += (size_t)snprintf(out + n, sizeof(out) - n, "%s%.*s", i ? "|" : "",
                (int)(ids.end[i] - ids.begin[i]), text + ids.begin[i]);
    tw_ids_free(&ids);
    tw_tok_close(t);
    tw_buf_free(&json);
    return out;
}

#define SPLIT(pat, how, inv)                                                                       \
    "{\"type\":\"Split\",\"pattern\":{" pat "},\"behavior\":\"" how "\",\"invert\":" inv "}"
#define DASH "\"String\":\"-\""

static void split_behaviours(void)
{
    CHECK_STR(words(SPLIT(DASH, "Removed", "false"), "a-b--c"), "a|b|c");
    CHECK_STR(words(SPLIT(DASH, "Isolated", "false"), "a-b--c"), "a|-|b|-|-|c");
    CHECK_STR(words(SPLIT(DASH, "MergedWithPrevious", "false"), "a-b--c"), "a-|b-|-|c");
    CHECK_STR(words(SPLIT(DASH, "MergedWithNext", "false"), "a-b--c"), "a|-b|-|-c");
    CHECK_STR(words(SPLIT(DASH, "Contiguous", "false"), "a-b--c"), "a|-|b|--|c");
    CHECK_STR(words(SPLIT(DASH, "Removed", "true"), "a-b--c"), "-|-|-");
    CHECK_STR(words(SPLIT("\"Regex\":\"[a-z]+\"", "Removed", "true"), "a-b--c"), "a|b|c");
    CHECK_STR(words(SPLIT("\"Regex\":\"(?=[A-Z])\"", "Isolated", "false"), "aBcD"), "a|Bc|D");
    CHECK_STR(words(SPLIT("\"Regex\":\"\\\\s+$\"", "Isolated", "false"), "a  \n b \n"),
            "a|  |\n b| \n");
}

static void other_splitters(void)
{
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
    CHECK_STR(words("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b"), "a|1|2|b");
    CHECK_STR(words("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b"), "a|12|b");
    CHECK_STR(words("{\"type\":\"Punctuation\"}", "a,b!!"), "a|,|b|!|!");
    CHECK_STR(words("{\"type\":\"WhitespaceSplit\"}", " a  b\n"), "a|b");
    CHECK_STR(words(BYTES, "don't  stop 12"), "don|'t| | stop| 12");
    CHECK_STR(words("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                    "\"individual_digits\":true}," BYTES "]}", "x = 12, y"),
            "x| =| |1|2|,| y");
    CHECK_STR(words("{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}", "a b  c"),
            "a| b| | c");
}

/* A pattern that we might read differently from the reference is refused, by name. */
static void unsupported_patterns(void)
{
    CHECK_STR(words(SPLIT("\"Regex\":\"\\\\h\"", "Removed", "false"), "a"),
            "unsupported escape \\h in the pattern \\h");
    CHECK_STR(words(SPLIT("\"Regex\":\"[a&&b]\"", "Removed", "false"), "a"),
            "unsupported \"&&\" in the pattern [a&&b]");
    CHECK_STR(words(SPLIT("\"Regex\":\"\\\\p{N}{1,3}+\"", "Removed", "false"), "a"),
            "unsupported \"}+\" in the pattern \\p{N}{1,3}+");
    CHECK_STR(words(SPLIT("\"Regex\":\"a(?i)b|c\"", "Removed", "false"), "a"),
            "unsupported \"(?i\" in the pattern a(?i)b|c");
    CHECK_STR(words(SPLIT("\"Regex\":\"(?i)b\"", "Removed", "false"), "aBc"), "a|c");
    CHECK_STR(words(SPLIT("\"Regex\":\"[[a]]\"", "Removed", "false"), "a"),
            "unsupported \"[a\" in the pattern [[a]]");
    CHECK(strstr(words(SPLIT("\"Regex\":\"(\"", "Removed", "false"), "a"), "bad pattern (: "));
    CHECK(strstr(words(SPLIT(DASH, "Sideways", "false"), "a"), "unsupported behavior \"Sideways\""));
}

int main(void)
{
    RUN(by_hand_equals_the_pattern);
    RUN(split_behaviours);
    RUN(other_splitters);
    RUN(unsupported_patterns);
    return test_end();
}
