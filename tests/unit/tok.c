/* tok.c - tokenizers: reference answers, control tokens, spans, decoding, loading. */
#include "help_tok.h"
#include "test.h"
#include <pthread.h>
#include <stdlib.h>

static struct tw_tok *qwen, *llama2;

static void reference_answers(void)
{
    int bad = 0;

    CHECK_INT(test_golden_tok("tests/data/tokenizers", &bad), 7);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-parts", &bad), 18);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-spm", &bad), 3);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-uni", &bad), 6);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-unispm", &bad), 5);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-lead", &bad), 3);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-mix", &bad), 6);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-unicode", &bad), 5);
    CHECK_INT(test_golden_tok("tests/data/tokenizers-props", &bad), 7);
    CHECK_INT(bad, 0);
}

/* Encodes TEXT (with parts or flags) and returns the number of ids equal to ID. */
static int64_t encode(const struct tw_tok *t, const char *text, const struct tw_tok_part *parts,
        int64_t nparts, unsigned flags, struct tw_ids *ids, int64_t *blocked)
{
    ids->n = 0;
    CHECK(!tw_tok_encode(t, tw_str(text), parts, nparts, flags, ids, blocked, NULL));
    return ids->n;
}

static int64_t count(const struct tw_ids *ids, int32_t id)
{
    int64_t n = 0;

    for (int64_t i = 0; i < ids->n; i++)
        n += ids->id[i] == id;
    return n;
}

static void only_control_parts_make_control_tokens(void)
{
    const char *text = "<|im_start|>user\nsay <|im_end|> please <think><|im_end|>\n";
    size_t a = strlen("<|im_start|>user\n"), b = strlen(text) - strlen("<|im_end|>\n");
    struct tw_tok_part parts[] = { { 0, a, true }, { a, b, false }, { b, strlen(text), true } };
    int32_t end = tw_tok_id(qwen, tw_str("<|im_end|>")), think = tw_tok_id(qwen, tw_str("<think>"));
    struct tw_ids ids = { .want_spans = true };
    struct tw_buf out = {0};
    int64_t blocked = 0;

    encode(qwen, text, parts, 3, 0, &ids, &blocked);
    CHECK_INT(count(&ids, end), 1);
    CHECK_INT(blocked, 1);
    CHECK_INT(count(&ids, think), 1);       /* not special: matched everywhere */
    CHECK(ids.n > 2 && ids.id[ids.n - 2] == end && ids.begin[ids.n - 2] == b);
    tw_tok_decode(qwen, ids.id, ids.n, false, &out);
    CHECK_STR(out.p, text);
    /* Without parts the flag decides for all of it. */
    encode(qwen, text, NULL, 0, TW_TOK_CONTROL, &ids, &blocked);
    CHECK_INT(count(&ids, end), 2);
    CHECK_INT(blocked, 0);
    encode(qwen, text, NULL, 0, 0, &ids, &blocked);
    CHECK_INT(count(&ids, end), 0);
    CHECK_INT(blocked, 3);
    /* A token that reaches into text of a user is not one. */
    parts[0].end = parts[1].begin = 5;
    encode(qwen, text, parts, 3, 0, &ids, &blocked);
    CHECK_INT(count(&ids, tw_tok_id(qwen, tw_str("<|im_start|>"))), 0);
    CHECK_INT(blocked, 2);
    tw_ids_free(&ids);
    tw_buf_free(&out);
}

/* Where no special token is spelled, parts change nothing: merges cross their borders. */
static void parts_do_not_cut_words(void)
{
    const char *text = "Hello world, hello";
    struct tw_ids whole = {0}, cut = {0};

    encode(qwen, text, NULL, 0, 0, &whole, NULL);
    for (size_t at = 0; at <= strlen(text); at++) {
        struct tw_tok_part parts[] = { { 0, at, true }, { at, strlen(text), false } };

        encode(qwen, text, parts, 2, 0, &cut, NULL);
        CHECK(cut.n == whole.n && !memcmp(cut.id, whole.id, (size_t)cut.n * 4));
    }
    tw_ids_free(&whole);
    tw_ids_free(&cut);
}

static void parts_must_cover_the_text(void)
{
    struct tw_tok_part gap[] = { { 0, 2, true }, { 3, 5, true } }, shorter[] = { { 0, 4, true } };
    struct tw_ids ids = {0};
    struct tw_err err = {0};

    CHECK(tw_tok_encode(qwen, tw_str("hello"), gap, 2, 0, &ids, NULL, &err) == -1);
    CHECK(strstr(err.msg, "part 1"));
    tw_err_clear(&err);
    CHECK(tw_tok_encode(qwen, tw_str("hello"), shorter, 1, 0, &ids, NULL, &err) == -1);
    tw_err_clear(&err);
    CHECK(tw_tok_encode(qwen, tw_str("a\xFF"), NULL, 0, 0, &ids, NULL, &err) == -1);
    CHECK_STR(err.msg, "the text is not UTF-8 at byte 2");
    CHECK_INT(ids.n, 0);
    tw_ids_free(&ids);
}

static void spans_name_the_source(void)
{
    const char *text = "Hi e\xCC\x81\xCC\x81 <|im_end|> you";
    struct tw_ids ids = { .want_spans = true };
    size_t at = 0;

    encode(qwen, text, NULL, 0, TW_TOK_CONTROL, &ids, NULL);
    for (int64_t i = 0; i < ids.n; i++) {
        CHECK(ids.begin[i] <= at && ids.end[i] >= at);
        at = ids.end[i];
        if (ids.id[i] == tw_tok_id(qwen, tw_str("<|im_end|>")))
            CHECK(!memcmp(text + ids.begin[i], "<|im_end|>", 10) && ids.end[i] == ids.begin[i] + 10);
    }
    CHECK_INT(at, strlen(text));
    tw_ids_free(&ids);
    ids.want_spans = false;
    encode(llama2, "x", NULL, 0, 0, &ids, NULL);
    ids.want_spans = true;                  /* wanted only now */
    encode(llama2, "a b", NULL, 0, TW_TOK_SPECIAL, &ids, NULL);
    CHECK_INT(ids.n, 3);
    CHECK(ids.id[0] == 1 && ids.begin[0] == 0 && ids.end[0] == 0);
    CHECK(ids.begin[1] == 0 && ids.end[1] == 1);        /* the prefix has no width */
    CHECK(ids.begin[2] == 1 && ids.end[2] == 3);
    tw_ids_free(&ids);
}

static void composed_and_decomposed_are_the_same(void)
{
    struct tw_ids a = {0}, b = {0};

    encode(qwen, "caf\xC3\xA9 <|im_end|>\xCC\x81x", NULL, 0, TW_TOK_CONTROL, &a, NULL);
    encode(qwen, "cafe\xCC\x81 <|im_end|>\xCC\x81x", NULL, 0, TW_TOK_CONTROL, &b, NULL);
    CHECK(a.n == b.n && !memcmp(a.id, b.id, (size_t)a.n * 4));
    CHECK_INT(count(&a, tw_tok_id(qwen, tw_str("<|im_end|>"))), 1);
    tw_ids_free(&a);
    tw_ids_free(&b);
}

/* The stream's pieces add up to the decoded whole, and each is valid UTF-8. */
static void streaming(void)
{
    const char *text = "x \xF0\x9F\xA6\x96\xE4\xBD\xA0 y";
    struct tw_ids ids = {0};
    struct tw_tok_stream s;
    struct tw_buf out = {0}, whole = {0};
    size_t steps = 0;

    encode(qwen, text, NULL, 0, 0, &ids, NULL);
    tw_tok_stream_start(&s, qwen, false);
    for (int64_t i = 0; i < ids.n; i++) {
        size_t before = out.n;

        tw_tok_stream_put(&s, ids.id[i], &out);
        steps += out.n > before;
        CHECK(tw_utf8_check(out.p, out.n) == out.n);
    }
    CHECK((int64_t)steps < ids.n);          /* some tokens were only part of a character */
    tw_tok_stream_end(&s, &out);
    tw_tok_stream_free(&s);
    CHECK_STR(out.p, text);
    /* A dangling part comes out once, as one U+FFFD. */
    out.n = 0;
    tw_tok_stream_start(&s, qwen, false);
    tw_tok_stream_put(&s, tw_tok_id(qwen, tw_str("\xC3\xB0")), &out);       /* byte F0 */
    tw_tok_stream_put(&s, tw_tok_id(qwen, tw_str("\xC5\x81")), &out);       /* byte 9F */
    CHECK_INT(out.n, 0);
    tw_tok_stream_end(&s, &out);
    tw_tok_stream_free(&s);
    CHECK_STR(out.p, "\xEF\xBF\xBD");
    tw_ids_free(&ids);
    tw_buf_free(&out);
    tw_buf_free(&whole);
}

static void ids_without_a_token(void)
{
    int32_t hi = tw_tok_id(qwen, tw_str("Hello")), im_end = tw_tok_id(qwen, tw_str("<|im_end|>"));
    int32_t id[] = { hi, -1, 9999999, (int32_t)tw_tok_size(qwen), im_end, hi };
    struct tw_buf out = {0};

    tw_tok_decode(qwen, id, 6, true, &out);
    CHECK_STR(out.p, "HelloHello");
    out.n = 0;
    tw_tok_decode(qwen, id, 6, false, &out);
    CHECK_STR(out.p, "Hello<|im_end|>Hello");
    CHECK(!tw_tok_has(qwen, -1) && !tw_tok_has(qwen, tw_tok_size(qwen)) && tw_tok_has(qwen, im_end));
    CHECK(tw_tok_is_special(qwen, im_end) && !tw_tok_is_special(qwen, hi));
    CHECK(!tw_tok_is_special(qwen, -1) && !tw_tok_is_special(qwen, 1 << 30));
    CHECK(!tw_tok_text(qwen, 1 << 30).p && tw_str_is(tw_tok_text(qwen, hi), "Hello"));
    tw_buf_free(&out);
}

static void settings_beside_it(void)
{
    CHECK_INT(tw_tok_bos(qwen), -1);
    CHECK_INT(tw_tok_eos(qwen), 151645);
    CHECK_INT(tw_tok_pad(qwen), 151643);
    CHECK(!tw_tok_adds_bos(qwen));
    CHECK_INT(tw_tok_bos(llama2), 1);
    CHECK_INT(tw_tok_eos(llama2), 2);
    CHECK(tw_tok_adds_bos(llama2));
    CHECK_INT(tw_tok_size(qwen), 151669);
    /* The fingerprint stands in shards: it must not change. */
    CHECK(tw_tok_hash(qwen) == 0xb779e7ccc6e419b4u);
}

/* ---- small files ---- */

#define MODEL(vocab, merges) \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define MODEL_UNK(vocab, merges) \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"b\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define ABC "\"a\":0,\"b\":1,\" \":2,\"ab\":3,\" a\":4,\"a b\":5"

static struct tw_tok *open_text(const char *json, struct tw_err *err)
{
    tw_err_clear(err);
    return tw_tok_open_json(tw_str(json), "t.json", err);
}

static void both_forms_of_merges(void)
{
    struct tw_err err = {0};
    struct tw_tok *old = open_text("{" MODEL("\"a\":0,\"b\":1,\"ab\":2", "\"a b\"") "}", &err);
    struct tw_tok *new = open_text("{" MODEL("\"a\":0,\"b\":1,\"ab\":2", "[\"a\",\"b\"]") "}", &err);
    struct tw_tok *space = open_text("{" MODEL(ABC, "[\" \",\"a\"],[\"a\",\"b\"]") "}", &err);
    struct tw_ids ids = {0};

    CHECK(old && new && space);
    if (!old || !new || !space)
        return;
    encode(old, "abba", NULL, 0, 0, &ids, NULL);
    CHECK(ids.n == 3 && ids.id[0] == 2 && ids.id[1] == 1 && ids.id[2] == 0);
    CHECK(tw_tok_hash(old) == tw_tok_hash(new) && tw_tok_hash(old) != tw_tok_hash(space));
    encode(space, "ab ab", NULL, 0, 0, &ids, NULL);
    CHECK(ids.n == 3 && ids.id[0] == 3 && ids.id[1] == 4 && ids.id[2] == 1);
    tw_tok_close(old);
    tw_tok_close(new);
    tw_tok_close(space);
    tw_ids_free(&ids);
}

#define MARK "\xE2\x96\x81"
#define SPACES "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"},"
#define MARKS "\"a\":0,\"b\":1,\"" MARK "\":2,\"" MARK "b\":3,\"a" MARK "b\":4,\"" MARK MARK "\":5"

/* Text is cut before a space only where no merge joins across: a piece that spans a space is found,
 * whatever comes before. */
static void pieces_that_span_a_space(void)
{
    struct tw_err err = {0};
    struct tw_tok *spans = open_text("{" SPACES MODEL(MARKS, "[\"" MARK "\",\"b\"],[\"a\",\"" MARK
            "b\"],[\"" MARK "\",\"" MARK "\"]") "}", &err);
    struct tw_tok *cut = open_text("{" SPACES MODEL(MARKS, "[\"" MARK "\",\"b\"],[\"" MARK "\",\""
            MARK "\"]") "}", &err);
    /* U+2581 is joined to an a before it, and to nothing else: there the text is not cut. */
    struct tw_tok *some = open_text("{" SPACES MODEL_UNK(MARKS ",\"a" MARK "\":6", "[\"" MARK "\",\"b\"],[\"a\",\""
            MARK "\"],[\"" MARK "\",\"" MARK "\"]") "}", &err);
    static const int32_t three[] = { 1, 0, 3, 5, 6, 0, 1, 2, 6, 6 };
    static const int32_t one[] = { 1, 4, 0, 2, 3, 4, 4 }, two[] = { 1, 0, 3, 0, 2, 3, 0, 3, 0, 3 };
    struct tw_ids ids = {0};

    CHECK(spans && cut && some);
    if (!spans || !cut || !some)
        return;
    encode(some, "ba b  a ab a a ", NULL, 0, 0, &ids, NULL);
    CHECK(ids.n == 10 && !memcmp(ids.id, three, sizeof(three)));
    tw_tok_close(some);
    encode(spans, "ba ba  ba ba b", NULL, 0, 0, &ids, NULL);
    CHECK(ids.n == 7 && !memcmp(ids.id, one, sizeof(one)));
    encode(cut, "ba ba  ba ba b", NULL, 0, 0, &ids, NULL);
    CHECK(ids.n == 10 && !memcmp(ids.id, two, sizeof(two)));
    tw_tok_close(spans);
    tw_tok_close(cut);
    tw_ids_free(&ids);
}

#define SPLIT(regex) "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"}," \
        "\"behavior\":\"Isolated\",\"invert\":false}," MODEL(ABC, "") "}"

/* What a bad file is refused with. */
static void refused(void)
{
    static const char *const bad[][2] = {
        { "{" MODEL(ABC, "\"a b\",\"  a\"") "}", "model.merges[1]: \"  a\" must have exactly one" },
        { "{" MODEL(ABC, "\"ab\"") "}", "model.merges[0]" },
        { "{" MODEL(ABC, "\"a x\"") "}", "model.merges[0]: \"a\" + \"x\": not in the vocabulary" },
        { "{" MODEL(ABC, "\"b a\"") "}", "model.merges[0]: \"b\" + \"a\"" },
        { "{" MODEL("\"a\":0,\"a\":1", "") "}", "model.vocab[\"a\"]: the token or its id 1 stands" },
        { "{" MODEL("\"a\":0,\"b\":0", "") "}", "model.vocab[\"b\"]" },
        { "{" MODEL("\"a\":-1", "") "}", "the id -1 is out of range" },
        { "{" MODEL("\"a\":99999999999", "") "}", "out of range" },
        { "{" MODEL("\"a\":0", ""), "expected ','" },
        { "{" MODEL("\"a\":0", "") "} x", "text after the end" },
        { "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}}", "unsupported model \"Wo" },
        { "{\"model\":{\"type\":\"WordLevel\",\"vocab\":[]}}", "unsupported model \"WordLevel\"" },
        { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", "model.unk_id 1 is" },
        { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"x\"]]}}", "expected a number" },
        { "{\"model\":{\"vocab\":{},\"merges\":[],\"dropout\":0.1}}", "unsupported model.dropout" },
        { "{\"model\":{\"vocab\":{},\"merges\":[],\"speed\":1}}", "unsupported key \"model.speed\"" },
        { "{\"model\":{\"vocab\":{}}}", "model: no merges" },
        { "{}", "model: no vocab" },
        { "{\"colour\":1}", "unsupported key \"colour\"" },
        { "{\"normalizer\":{\"type\":\"Nmt\"}," MODEL(ABC, "") "}", "unsupported normalizer Nmt" },
        { "{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL(ABC, "") "}",
            "unsupported pre_tokenizer UnicodeScripts" },
        { "{\"post_processor\":{\"type\":\"BertProcessing\"}," MODEL(ABC, "") "}",
            "unsupported post_processor BertProcessing" },
        { "{\"decoder\":{\"type\":\"CTC\"}," MODEL(ABC, "") "}", "unsupported decoder CTC" },
        { "{\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]," MODEL(ABC, "") "}",
            "added token \"a\" has id 7, which contradicts the vocabulary" },
        { SPLIT("a\\\\p{Grapheme_Base}+"), "unsupported escape \\p{Grapheme_Base} in the pattern" },
        { SPLIT("\\\\P{Unknown}"), "unsupported escape \\P{Unknown} in" },
        { SPLIT("\\\\pL"), "unsupported escape \\p in" },
        { SPLIT("\\\\W"), "unsupported escape \\W in" },
        { SPLIT("[a"), "a class without its ] in the pattern [a" },
        { "[]", "expected '{'" },
        { "", "expected '{'" },
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tw_err err = {0};
        struct tw_tok *t = open_text(bad[i][0], &err);

        CHECK(!t);
        CHECK_STR(err.place, "t.json");
        if (!strstr(err.msg, bad[i][1]))
            CHECK_STR(err.msg, bad[i][1]);
        tw_tok_close(t);
    }
}

/* Every prefix of a file is an error, and none is read past its end. */
static void truncated_files(void)
{
    struct tw_buf b = {0};
    struct tw_err err = {0};

    CHECK(!tw_read_file(&b, "tests/data/tokenizers-parts/gpt2/tokenizer.json", 0, &err));
    while (b.n && b.p[b.n - 1] != '}')
        b.n--;
    for (size_t n = 0; n < b.n; n += 1 + n / 64) {
        char *copy = tw_xmalloc(n + 1);
        struct tw_tok *t;

        memcpy(copy, b.p, n);
        tw_err_clear(&err);
        t = tw_tok_open_json((struct tw_str){ copy, n }, "cut", &err);
        CHECK(!t && err.code);
        tw_tok_close(t);
        free(copy);
    }
    tw_buf_free(&b);
}

/* ---- threads ---- */

struct job {
    struct tw_str text;
    struct tw_ids ids;
};

static void *encode_lines(void *arg)
{
    struct job *j = arg;
    struct tw_str rest = j->text;
    const char *nl;

    while (rest.n && (nl = memchr(rest.p, '\n', rest.n))) {
        struct tw_str line = { rest.p, (size_t)(nl - rest.p) };

        if (tw_tok_encode(qwen, line, NULL, 0, 0, &j->ids, NULL, NULL))
            break;
        rest = (struct tw_str){ nl + 1, rest.n - line.n - 1 };
    }
    return NULL;
}

static void threads_share_a_tokenizer(void)
{
    struct tw_buf b = {0};
    struct job job[4];
    pthread_t thread[4];

    CHECK(!tw_read_file(&b, "tests/data/tokenizers/corpus.jsonl", 0, NULL));
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){ .text = tw_buf_str(&b) };
        CHECK(!pthread_create(&thread[i], NULL, encode_lines, &job[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(job[i].ids.n > 1000 && job[i].ids.n == job[0].ids.n);
        CHECK(!memcmp(job[i].ids.id, job[0].ids.id, (size_t)job[0].ids.n * 4));
    }
    for (int i = 0; i < 4; i++)
        tw_ids_free(&job[i].ids);
    tw_buf_free(&b);
}

int main(void)
{
    struct tw_err err = {0};

    qwen = tw_tok_open("tests/data/tokenizers/qwen3", &err);
    llama2 = tw_tok_open("tests/data/tokenizers/llama2", &err);
    if (!qwen || !llama2) {
        printf("Bail out! %s: %s\n", err.place, err.msg);
        return 1;
    }
    RUN(threads_share_a_tokenizer);
    RUN(reference_answers);
    RUN(only_control_parts_make_control_tokens);
    RUN(parts_do_not_cut_words);
    RUN(parts_must_cover_the_text);
    RUN(spans_name_the_source);
    RUN(composed_and_decomposed_are_the_same);
    RUN(streaming);
    RUN(ids_without_a_token);
    RUN(settings_beside_it);
    RUN(both_forms_of_merges);
    RUN(pieces_that_span_a_space);
    RUN(refused);
    RUN(truncated_files);
    tw_tok_close(qwen);
    tw_tok_close(llama2);
    return test_end();
}
