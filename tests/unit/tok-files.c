/* tok-files.c - what stands beside tokenizer.json, and what is read in its place. */
#include "help_tok.h"
#include "test.h"
#include <stdlib.h>

static void encode(const struct tw_tok *t, const char *text, unsigned flags, struct tw_ids *ids)
{
    ids->n = 0;
    CHECK(!tw_tok_encode(t, tw_str(text), NULL, 0, flags, ids, NULL, NULL));
}

/* A folder with a small tokenizer.json and CONF as tokenizer_config.json. */
static struct tw_tok *open_with(const char *conf, struct tw_err *err)
{
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3,"
            "\" a\":4,\"a b\":5},\"merges\":[[\"a\",\"b\"]]}}";
    char dir[] = "/tmp/tw-tok-XXXXXX";
    struct tw_tok *t = NULL;
    char *a, *b;

    tw_err_clear(err);
    CHECK(mkdtemp(dir));
    a = tw_path_join(dir, "tokenizer.json");
    b = tw_path_join(dir, "tokenizer_config.json");
    if (!tw_write_file(a, json, strlen(json), err) && !tw_write_file(b, conf, strlen(conf), err))
        t = tw_tok_open(dir, err);
    tw_rmtree(dir, NULL);
    free(a);
    free(b);
    return t;
}

static void config_adds_tokens(void)
{
    struct tw_err err = {0};
    struct tw_tok *t = open_with("{\"added_tokens_decoder\":{\"9\":{\"content\":\"<e>\",\"special\":"
            "true},\"3\":{\"content\":\"ab\",\"special\":false}},\"eos_token\":{\"content\":\"<e>\"},"
            "\"pad_token\":\"b\",\"bos_token\":null}", &err);
    struct tw_ids ids = {0};

    CHECK(t);
    if (!t)
        return;
    CHECK(tw_tok_eos(t) == 9 && tw_tok_pad(t) == 1 && tw_tok_bos(t) == -1 && tw_tok_size(t) == 10);
    CHECK(tw_tok_is_special(t, 9) && !tw_tok_is_special(t, 3) && !tw_tok_has(t, 8));
    encode(t, "aab<e>", TW_TOK_CONTROL, &ids);
    CHECK(ids.n == 3 && ids.id[0] == 0 && ids.id[1] == 3 && ids.id[2] == 9);
    tw_ids_free(&ids);
    tw_tok_close(t);
    CHECK(!open_with("{\"eos_token\":\"<none>\"}", &err));
    CHECK(strstr(err.msg, "eos_token \"<none>\" is not in the vocabulary"));
    CHECK(strstr(err.place, "tokenizer_config.json"));
    CHECK(!open_with("{\"added_tokens_decoder\":{\"x\":{\"content\":\"<e>\"}}}", &err));
    CHECK(strstr(err.msg, "added_tokens_decoder[\"x\"] is not a token"));
    CHECK(!open_with("{\"added_tokens_decoder\":{\"9\":{\"content\":\"<e>\"},\"x\":{}}}", &err));
    /* A text of the vocabulary keeps its id; a place-holder loses its text to the token that has its
     * id, and no merge makes it any more. */
    t = open_with("{\"added_tokens_decoder\":{\"7\":{\"content\":\"a\",\"special\":true},\"3\":{"
            "\"content\":\"<e>\",\"special\":true}},\"eos_token\":\"<e>\"}", &err);
    CHECK(t && tw_tok_eos(t) == 3 && tw_tok_is_special(t, 0) && !tw_tok_has(t, 7));
    CHECK(t && tw_tok_id(t, tw_str("ab")) == -1 && tw_str_is(tw_tok_text(t, 3), "<e>"));
    if (t) {
        encode(t, "bab<e>", TW_TOK_CONTROL, &ids);
        CHECK(ids.n == 4 && ids.id[0] == 1 && ids.id[1] == 0 && ids.id[2] == 1 && ids.id[3] == 3);
        encode(t, "<e>", 0, &ids);
        CHECK_INT(ids.n, 0);            /* plain text, of characters that are no tokens */
        tw_ids_free(&ids);
    }
    tw_tok_close(t);
    CHECK(!open_with("{\"added_tokens_decoder\":{\"8\":{\"content\":\"<e>\"},\"08\":{\"content\":\"<f>\"}}}",
            &err));
    CHECK(strstr(err.msg, "has id 8, which is that of the added token"));
    CHECK(!open_with("[]", &err));
}

/* add_bos_token and add_eos_token replace what tokenizer.json's post-processor adds. */
static void config_says_what_is_added(void)
{
    struct tw_err err = {0};
    struct tw_tok *t = open_with("{\"bos_token\":\"a\",\"eos_token\":\"b\",\"add_bos_token\":true,"
            "\"add_eos_token\":true}", &err);
    struct tw_ids ids = {0};

    CHECK(t && tw_tok_adds_bos(t));
    if (t)
        encode(t, " ", TW_TOK_SPECIAL, &ids);
    CHECK(ids.n == 3 && ids.id[0] == 0 && ids.id[2] == 1);
    tw_tok_close(t);
    t = open_with("{\"bos_token\":\"a\",\"add_bos_token\":false}", &err);
    CHECK(t && !tw_tok_adds_bos(t));
    tw_tok_close(t);
    t = open_with("{\"add_bos_token\":true}", &err);         /* there is none to add */
    CHECK(t && !tw_tok_adds_bos(t));
    tw_tok_close(t);
    tw_ids_free(&ids);
}

static void sentencepiece_models(void)
{
    struct tw_buf b = {0};
    struct tw_err err = {0};
    struct tw_tok *t;

    CHECK(!tw_read_file(&b, "tests/data/tokenizers-spm/llama/tokenizer.model", 0, &err));
    t = tw_tok_open_spm(tw_buf_str(&b), "m", &err);
    CHECK(t && tw_tok_bos(t) == 1 && tw_tok_eos(t) == 2 && tw_tok_pad(t) == -1);
    CHECK(t && tw_tok_is_special(t, 1) && tw_tok_size(t) == 1400);
    tw_tok_close(t);
    for (size_t n = 0; n < b.n; n += 1 + n / 16) {      /* cut anywhere: an error, or fewer pieces */
        char *copy = tw_xmalloc(n + 1);

        memcpy(copy, b.p, n);
        tw_err_clear(&err);
        t = tw_tok_open_spm((struct tw_str){ copy, n }, "cut", &err);
        CHECK(!t && err.code);
        tw_tok_close(t);
        free(copy);
    }
    tw_buf_free(&b);
}

/* Opens a folder with FILE, which holds TEXT, and a configuration. */
static struct tw_tok *open_file(const char *file, struct tw_str text, const char *conf,
        struct tw_err *err)
{
    char dir[] = "/tmp/tw-tok-XXXXXX";
    struct tw_tok *t = NULL;
    char *a, *b;

    tw_err_clear(err);
    CHECK(mkdtemp(dir));
    a = tw_path_join(dir, file);
    b = tw_path_join(dir, "tokenizer_config.json");
    CHECK(!tw_tok_in(dir));
    if (!tw_write_file(a, text.p, text.n, err) && !tw_write_file(b, conf, strlen(conf), err)) {
        CHECK(tw_tok_in(dir));
        t = tw_tok_open(dir, err);
    }
    tw_rmtree(dir, NULL);
    free(a);
    free(b);
    return t;
}

static struct tw_tok *open_ranks(const char *file, const char *text, const char *conf,
        struct tw_err *err)
{
    return open_file(file, tw_str(text), conf, err);
}

/* A SentencePiece model of N pieces: unknown, a letter, and names that occur nowhere. */
static void put_pieces(struct tw_buf *b, int n)
{
    for (int i = 0; i < n; i++) {
        char text[16], head[3] = { 10, 0, 10 };
        int len = i ? snprintf(text, sizeof(text), i > 1 ? "_%d_" : "a", i)
                    : snprintf(text, sizeof(text), "<unk>");

        head[1] = (char)(len + (i ? 7 : 9));
        tw_buf_add(b, head, 3);
        tw_buf_putc(b, (char)len);
        tw_buf_add(b, text, (size_t)len);
        tw_buf_add(b, "\x15\0\0\0\xC0\x18\2", i ? 5 : 7);        /* its score; of type unknown */
    }
    tw_buf_add(b, "\x12\2\x18\2", 4);      /* trained as BPE; texts as they are */
    tw_buf_add(b, "\x1A\12\12\10identity", 12);
}

/* ChatGLM's vocabulary has 64,789 pieces; what its code adds has these ids in every model of it. */
static void chatglm_ids(void)
{
    static const char *const text[] = { "[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>",
        "<|user|>", "<|assistant|>", "<|observation|>" };
    static const char listed[] = "{\"tokenizer_class\":\"ChatGLMTokenizer\",\"added_tokens_decoder\":{"
        "\"64790\":{\"content\":\"[gMASK]\"},\"64792\":{\"content\":\"sop\"},"
        "\"64795\":{\"content\":\"<|user|>\"},\"64796\":{\"content\":\"<|assistant|>\"}}}";
    struct tw_buf b = {0};
    struct tw_err err = {0};
    struct tw_ids ids = {0};

    put_pieces(&b, 64789);
    for (int k = 0; k < 2; k++) {
        struct tw_tok *t = open_file("tokenizer.model", tw_buf_str(&b),
                k ? listed : "{\"tokenizer_class\":\"ChatGLMTokenizer\"}", &err);

        CHECK_STR(err.msg, "");
        CHECK(t != NULL);
        for (int i = 0; t && i < 9; i++)
            CHECK_INT(tw_tok_id(t, tw_str(text[i])), i == 4 ? -1 : 64789 + i);
        if (t)
            encode(t, "<|system|>aeop<|observation|>", TW_TOK_CONTROL | TW_TOK_SPECIAL, &ids);
        CHECK(ids.n > 4 && ids.id[0] == 64790 && ids.id[1] == 64792 && ids.id[2] == 64794);
        CHECK(ids.n > 4 && ids.id[ids.n - 1] == 64797);
        if (t)
            encode(t, "<|system|>", 0, &ids);
        for (int64_t i = 0; i < ids.n; i++)
            CHECK(ids.id[i] < 64789);
        tw_tok_close(t);
    }
    tw_ids_free(&ids);
    tw_buf_free(&b);
}

/* a b c, space, ab, bc, abc, and the byte FF. */
static void rank_files(void)
{
    static const char ranks[] = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYWI= 5\nYmM= 4\nYWJj 6\n/w== 7\n";
    static const char conf[] = "{\"tokenizer_class\":\"ChatGLM4Tokenizer\",\"added_tokens_decoder\":{\"9\":{"
        "\"content\":\"[gMASK]\",\"special\":true},\"10\":{\"content\":\"<sop>\",\"special\":true}}}";
    static const int32_t want[] = { 9, 10, 6, 2, 3, 6, 9 };
    struct tw_err err = {0};
    struct tw_ids ids = {0};
    struct tw_buf text = {0};
    struct tw_tok *t = open_ranks("tokenizer.model", ranks, conf, &err);

    CHECK(t && tw_tok_size(t) == 11);
    if (t) {
        encode(t, "abcc abc[gMASK]", TW_TOK_CONTROL | TW_TOK_SPECIAL, &ids);
        CHECK(ids.n == 7 && !memcmp(ids.id, want, sizeof(want)));
        tw_tok_decode(t, want + 2, 4, false, &text);
        CHECK_STR(text.p, "abcc abc");
    }
    tw_tok_close(t);
    t = open_ranks("qwen.tiktoken", ranks, "{\"tokenizer_class\":\"QWenTokenizer\"}", &err);
    CHECK(t && tw_tok_size(t) == 8);
    tw_tok_close(t);
    CHECK(!open_ranks("tiktoken.model", "YQ== 0\nYg== x\n", "{}", &err));
    CHECK(strstr(err.msg, "not a token in base64 and its rank") && err.line == 2);
    CHECK(!open_ranks("tiktoken.model", "YQ== 0\nYg== 0\n", "{}", &err));
    CHECK(!open_ranks("tiktoken.model", "YQ== 0\nYQ== 1\n", "{}", &err));
    tw_ids_free(&ids);
    tw_buf_free(&text);
}

int main(void)
{
    RUN(config_adds_tokens);
    RUN(config_says_what_is_added);
    RUN(sentencepiece_models);
    RUN(rank_files);
    RUN(chatglm_ids);
    return test_end();
}
