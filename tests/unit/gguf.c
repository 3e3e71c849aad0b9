/* gguf.c - GGUF files become Hugging Face folders: the fixtures of tests/data/make_gguf.py, and files
 * that are damaged or hold what a folder could not. */
#include "base/io.h"
#include "data/gguf.h"
#include "data/tok.h"
#include "test.h"
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[64];

static char *at(const char *name)
{
    static char path[2][256];
    static int i;

    i = !i;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static void slurp(struct tw_buf *b, const char *path)
{
    struct tw_err err = { 0 };

    tw_buf_clear(b);
    CHECK(!tw_read_file(b, path, 0, &err));
    CHECK_STR(err.msg, "");
}

/* Does the file PATH of DIR hold TEXT? */
static bool holds(const char *path, const char *text)
{
    struct tw_buf b = { 0 };
    bool found;

    slurp(&b, at(path));
    found = b.n && strstr(b.p, text);
    if (!found)
        printf("# %s: no %s in %.2000s\n", path, text, b.n ? b.p : "");
    tw_buf_free(&b);
    return found;
}

static void import_fixture(const char *name, enum tw_dtype dtype, const char *out)
{
    struct tw_err err = { 0 };
    char path[128];

    snprintf(path, sizeof path, "tests/data/gguf/%s.gguf", name);
    tw_rmtree(at(out), NULL);
    CHECK(!tw_gguf_import(path, at(out), dtype, &err));
    CHECK_STR(err.msg, "");
}

/* Is the SHA-256 of model.safetensors the one in tests/data/gguf/sums? */
static bool sum_is_right(const char *out, const char *name)
{
    struct tw_buf b = { 0 }, sums = { 0 };
    struct tw_sha256 s;
    unsigned char sum[32];
    char line[128];
    bool same;

    snprintf(line, sizeof line, "%s/model.safetensors", out);
    slurp(&b, at(line));
    slurp(&sums, "tests/data/gguf/sums");
    tw_sha256_init(&s);
    tw_sha256_add(&s, b.p, b.n);
    tw_sha256_end(&s, sum);
    tw_hex(line, sum, 32);
    snprintf(line + 64, sizeof line - 64, "  %s\n", name);
    same = strstr(sums.p, line) != NULL;
    tw_buf_free(&b);
    tw_buf_free(&sums);
    return same;
}

static void weights_equal_the_reference(void)
{
    import_fixture("blocks", TW_F32, "blocks");
    CHECK(sum_is_right("blocks", "blocks"));
    import_fixture("kblocks", TW_F32, "kblocks/");
    CHECK(sum_is_right("kblocks", "kblocks"));
}

static void bf16_is_the_rounded_f32(void)
{
    struct tw_err err = { 0 };
    struct tw_weights a, b;

    import_fixture("blocks", TW_BF16, "half");
    CHECK(!tw_weights_open(&a, at("blocks"), &err) && !tw_weights_open(&b, at("half"), &err));
    CHECK(a.n == b.n && a.n == 11);
    for (int64_t i = 0; i < a.n; i++) {
        uint16_t *x = tw_xcalloc((size_t)a.t[i].n, 2);

        CHECK(b.t[i].dtype == TW_BF16 && a.t[i].dtype == TW_F32);
        CHECK(!tw_weights_bf16(&a.t[i], 0, a.t[i].n, x, &err));
        CHECK(!memcmp(x, b.t[i].data, (size_t)a.t[i].n * 2));
        free(x);
    }
    tw_weights_close(&a);
    tw_weights_close(&b);
    CHECK(holds("half/config.json", "\"bfloat16\""));
}

static void config_says_what_the_keys_said(void)
{
    static const char *const want[] = { "\"LlamaForCausalLM\"", "\"float32\"",
        "\"num_key_value_heads\":2", "\"head_dim\":8", "\"rms_norm_eps\":1e-06",
        "\"rope_theta\":500000", "\"rope_type\":\"llama3\",\"factor\":32",
        "\"original_max_position_embeddings\":8192", "\"tie_word_embeddings\":true",
        "\"attention_bias\":false", "\"eos_token_id\":[1,2]", "\"bos_token_id\":0" };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK(holds("blocks/config.json", want[i]));
    CHECK(holds("kblocks/config.json", "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4"));
    CHECK(holds("kblocks/config.json", "\"attention_bias\":true,\"mlp_bias\":true,"
            "\"tie_word_embeddings\":false"));
    CHECK(holds("blocks/generation_config.json", "\"eos_token_id\":[1,2]"));
}

static void byte_level_tokenizer_is_whole(void)
{
    static const char *const want[] = { "\"normalizer\":null",
        "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|", "\"use_regex\":false",
        "{\"id\":2,\"content\":\"<|turn|>\",\"single_word\":false,\"lstrip\":false,"
        "\"rstrip\":false,\"normalized\":false,\"special\":true}",
        "\"content\":\"<tool>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":false", "\"ignore_merges\":true",
        "\"merges\":[\"h e\",\"l l\",\"he ll\"", "\"single\":[{\"SpecialToken\":{\"id\":"
        "\"<|begin|>\"", "\"decoder\":{\"type\":\"ByteLevel\"" };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK(holds("blocks/tokenizer.json", want[i]));
    CHECK(holds("blocks/tokenizer_config.json", "\"add_bos_token\":true"));
    CHECK(holds("blocks/tokenizer_config.json",
            "\"chat_template\":\"{{ messages[0]['content'] }}\xc3\xa9\\n\""));
}

static void sentencepiece_merges_follow_scores(void)
{
    CHECK(holds("kblocks/tokenizer.json", "\"merges\":[[\"a\",\"b\"],[\"\xe2\x96\x81\",\"a\"],"
            "[\"ab\",\"c\"],[\"\xe2\x96\x81\",\"abc\"]]"));
    CHECK(holds("kblocks/tokenizer.json", "\"Prepend\"") &&
            holds("kblocks/tokenizer.json", "\"Strip\"") &&
            holds("kblocks/tokenizer.json", "\"unk_token\":\"<unk>\"") &&
            holds("kblocks/tokenizer.json", "\"byte_fallback\":true"));
}

/* Ids of the reference tokenizer on the same folders. */
static void tokenizers_load(void)
{
    static const int32_t bpe[] = { 0, 264, 263, 82, 85, 79, 71, 2, 264, 3 };
    static const int32_t spm[] = { 1, 13, 6, 9, 11, 14, 3 };
    struct tw_err err = { 0 };
    struct tw_ids ids = { 0 };
    struct tw_tok *t = tw_tok_open(at("blocks"), &err);

    CHECK_STR(err.msg, "");
    CHECK(t && !tw_tok_encode(t, tw_str("hello world<|turn|>hello<tool>"), NULL, 0,
            TW_TOK_SPECIAL | TW_TOK_CONTROL, &ids, NULL, &err));
    CHECK(ids.n == 10 && !memcmp(ids.id, bpe, sizeof bpe));
    tw_tok_close(t);
    ids.n = 0;
    t = tw_tok_open(at("kblocks"), &err);
    CHECK_STR(err.msg, "");
    CHECK(t && !tw_tok_encode(t, tw_str("abc cab\xc3\xa9\n"), NULL, 0, TW_TOK_SPECIAL, &ids, NULL,
            &err));
    CHECK(ids.n == 7 && !memcmp(ids.id, spm, sizeof spm));
    tw_tok_close(t);
    tw_ids_free(&ids);
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = -2;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Imports the N bytes at P; its message ("" when it succeeds). Nothing may be left behind. */
static const char *try_import(const void *p, size_t n)
{
    static struct tw_err err;
    int before, ret;

    tw_err_clear(&err);
    CHECK(!tw_write_file(at("bad.gguf"), p, n, NULL));
    before = entries(dir);
    ret = tw_gguf_import(at("bad.gguf"), at("bad"), TW_F32, &err);
    CHECK((ret == 0) == !err.msg[0]);
    CHECK_INT(entries(dir), before + !ret);
    tw_rmtree(at("bad"), NULL);
    return err.msg;
}

/* The fixture NAME with FROM replaced by TO (of the same length) at its occurrence NTH. */
static const char *try_patched(const char *name, const void *from, const void *to, size_t n,
        int nth)
{
    struct tw_buf b = { 0 };
    char path[128], *p, *end;
    const char *msg;

    snprintf(path, sizeof path, "tests/data/gguf/%s.gguf", name);
    slurp(&b, path);
    end = b.p + b.n;
    for (p = b.p; (p = memmem(p, (size_t)(end - p), from, n)) && nth; p++)
        nth--;
    CHECK(p != NULL);
    if (p)
        memcpy(p, to, n);
    msg = try_import(b.p, b.n);
    tw_buf_free(&b);
    return msg;
}

static void what_a_folder_cannot_hold_is_refused(void)
{
    static const struct {
        const char *name, *from, *to, *msg;
        int nth;
    } c[] = {
        { "blocks", "llama-bpe", "llama-xyz", "pre-tokenizer \"llama-xyz\"", 0 },
        { "blocks", "llama", "gemma", "architecture gemma is not supported", 0 },
        { "blocks", "llama.rope.freq_base", "llama.rope.freq_bass", "llama.rope.freq_bass", 0 },
        { "blocks", "ffn_up.weight", "ffn_ux.weight", "ffn_up.weight is missing", 0 },
        { "blocks", "rope_freqs.weight", "rope_frets.weight", "rope_frets.weight is not", 0 },
        { "blocks", "tokenizer.ggml.model", "tokenizer.ggml.moddl", "no tokenizer", 0 },
        { "blocks", "tokenizer.ggml.merges", "tokenizer.ggml.mergez", "no tokenizer.ggml.merges",
          0 },
        { "kblocks", "tokenizer.ggml.scores", "tokenizer.ggml.scorez", "no tokenizer.ggml.scores",
          0 },
        { "kblocks", "linear", "lunear", "scaling.type lunear", 0 },
        { "kblocks", "abc", "<s>", "tokens 1 and 12 have the same text", 0 },
        { "kblocks", "attn_k.bias", "attn_z.bias", "attn_k.bias is missing", 0 },
        { "blocks", "llama.embedding_length", "llama.embedding_lengti", "key llama.embedding_lengti", 0 },
        { "blocks", "gpt2", "bert", "tokenizer model bert", 0 },
    };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *msg = try_patched(c[i].name, c[i].from, c[i].to, strlen(c[i].from), c[i].nth);

        if (!strstr(msg, c[i].msg)) {
            printf("# %s: \"%s\", want \"%s\"\n", c[i].from, msg, c[i].msg);
            CHECK(0);
        }
    }
}

static void put(struct tw_buf *b, uint64_t v, int size)
{
    tw_buf_add(b, &v, (size_t)size);
}

static void put_str(struct tw_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    tw_buf_puts(b, s);
}

static void start(struct tw_buf *b, uint32_t version, uint64_t nt, uint64_t nkv)
{
    tw_buf_clear(b);
    tw_buf_puts(b, "GGUF");
    put(b, version, 4);
    put(b, nt, 8);
    put(b, nkv, 8);
}

static void lying_containers_are_refused(void)
{
    struct tw_buf b = { 0 };

    CHECK(strstr(try_import("GGML", 4), "not a GGUF file"));
    CHECK(strstr(try_import("GGUF\3\0\0", 7), "truncated in the header"));
    start(&b, 1, 0, 0);
    CHECK(strstr(try_import(b.p, b.n), "version 1; only"));
    start(&b, 0x03000000, 0, 0);
    CHECK(strstr(try_import(b.p, b.n), "big-endian"));
    start(&b, 3, 0, UINT64_MAX);
    CHECK(strstr(try_import(b.p, b.n), "truncated in the metadata"));
    start(&b, 3, UINT64_MAX, 0);
    CHECK(strstr(try_import(b.p, b.n), "truncated in the table"));
    start(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_str(&b, "same");
        put(&b, 4, 4);
        put(&b, 1, 4);
    }
    CHECK(strstr(try_import(b.p, b.n), "key same comes twice"));
    start(&b, 3, 0, 1);
    put_str(&b, "k");
    put(&b, 9, 4);          /* a list of 2^61 numbers of 8 bytes */
    put(&b, 10, 4);
    put(&b, (uint64_t)1 << 61, 8);
    CHECK(strstr(try_import(b.p, b.n), "truncated in the metadata"));
    start(&b, 3, 0, 1);
    put_str(&b, "k");
    put(&b, 9, 4);          /* a list of lists */
    put(&b, 9, 4);
    put(&b, 1, 8);
    CHECK(strstr(try_import(b.p, b.n), "unknown type 9"));
    tw_buf_free(&b);
}

static void lying_tensors_are_refused(void)
{
    static const struct {
        uint64_t dim, type, at;
        const char *msg;
    } c[] = {
        { 4, 0, 0, "not supported; llama is" },         /* the container itself is good */
        { 5, 0, 0, "truncated: tensor t ends at byte 20 of the data, the file holds 16" },
        { 4, 0, 32, "truncated" }, { 4, 0, 8, "bad size or offset" },
        { 4, 2, 0, "do not fill blocks of Q4_0" }, { 4, 99, 0, "type 99 is not supported" },
        { (uint64_t)1 << 63, 0, 0, "bad shape" }, { (uint64_t)1 << 62, 0, 0, "bad size" },
        { 0, 0, UINT64_MAX - 31, "truncated" },
    };
    struct tw_buf b = { 0 };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *msg;

        start(&b, 2, 1, 0);
        put_str(&b, "t");
        put(&b, 1, 4);
        put(&b, c[i].dim, 8);
        put(&b, c[i].type, 4);
        put(&b, c[i].at, 8);
        while (b.n % 32)
            tw_buf_putc(&b, 0);
        put(&b, 0, 8);
        put(&b, 0, 8);
        msg = try_import(b.p, b.n);
        if (!strstr(msg, c[i].msg)) {
            printf("# case %zu: \"%s\", want \"%s\"\n", i, msg, c[i].msg);
            CHECK(0);
        }
    }
    tw_buf_free(&b);
}

static void truncated_files_are_refused(void)
{
    struct tw_buf b = { 0 };

    slurp(&b, "tests/data/gguf/blocks.gguf");
    for (size_t n = 0; n + 32 < b.n; n += n < 2000 ? 3 : 61)
        CHECK(try_import(b.p, n)[0] != 0);
    tw_buf_free(&b);
}

static void a_folder_in_use_is_not_touched(void)
{
    struct tw_err err = { 0 };

    CHECK(!tw_mkdirs(at("used"), NULL) && !tw_write_file(at("used/x"), "x", 1, NULL));
    CHECK(tw_gguf_import("tests/data/gguf/blocks.gguf", at("used"), TW_F32, &err) == -1);
    CHECK(strstr(err.msg, "not empty") && entries(at("used")) == 1);
    tw_err_clear(&err);
    CHECK(tw_gguf_import("tests/data/gguf/blocks.gguf", at("new"), TW_F16, &err) == -1);
    CHECK(strstr(err.msg, "f32 or bf16") && !tw_is_dir(at("new")));
    tw_err_clear(&err);
    CHECK(!tw_mkdirs(at("empty"), NULL));
    CHECK(!tw_gguf_import("tests/data/gguf/blocks.gguf", at("empty"), TW_F32, &err));
    CHECK(tw_is_file(at("empty/config.json")));
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/tw-gguf-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    RUN(weights_equal_the_reference);
    RUN(bf16_is_the_rounded_f32);
    RUN(config_says_what_the_keys_said);
    RUN(byte_level_tokenizer_is_whole);
    RUN(sentencepiece_merges_follow_scores);
    RUN(tokenizers_load);
    RUN(what_a_folder_cannot_hold_is_refused);
    RUN(lying_containers_are_refused);
    RUN(lying_tensors_are_refused);
    RUN(truncated_files_are_refused);
    RUN(a_folder_in_use_is_not_touched);
    tw_rmtree(dir, NULL);
    return test_end();
}
