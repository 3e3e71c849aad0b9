/* tok.c - fuzzes tokenizers. An input that begins with '{' is a tokenizer.json, one that begins
 * with a newline (field 1 of protobuf) a tokenizer.model; it then encodes a fixed text. Any other is
 * text for the tokenizers of tests/data: its first byte picks the tokenizer, the second where the
 * parts are cut. Encoding must not depend on spans or on what the word cache holds, streaming must
 * equal decoding, and byte-level text must come back unchanged. */
#include "base/io.h"
#include "data/tok.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const dir[] = { "tests/data/tokenizers/qwen3", "tests/data/tokenizers/llama2",
    "tests/data/tokenizers-parts/gpt2", "tests/data/tokenizers-parts/meta_norm",
    "tests/data/tokenizers-parts/dsv2", "tests/data/tokenizers-parts/qwen35",
    "tests/data/tokenizers-parts/gemma", "tests/data/tokenizers-parts/o200k",
    "tests/data/tokenizers-parts/split_look", "tests/data/tokenizers-parts/meta_first_False",
    "tests/data/tokenizers-spm/user", "tests/data/tokenizers-spm/squeeze",
    "tests/data/tokenizers-unispm/uni_byte", "tests/data/tokenizers-unispm/uni_rules",
    "tests/data/tokenizers-unispm/uni_user", "tests/data/tokenizers-unispm/bpe_rules" };
#define TOKS (sizeof(dir) / sizeof(dir[0]))

static void must(bool ok)
{
    if (!ok)
        abort();
}

static struct tw_tok *opened(size_t i)
{
    static struct tw_tok *tok[TOKS];

    if (!tok[i])
        tok[i] = tw_tok_open(dir[i], NULL);
    must(tok[i]);
    return tok[i];
}

static void check(const struct tw_tok *t, struct tw_str text, size_t cut, bool lossless)
{
    struct tw_tok_part parts[] = { { 0, cut, true }, { cut, text.n, false } };
    struct tw_ids ids = {0}, spans = { .want_spans = true };
    struct tw_buf whole = {0}, pieces = {0};
    struct tw_tok_stream s;

    if (tw_tok_encode(t, text, parts, 2, TW_TOK_SPECIAL, &ids, NULL, NULL)) {
        tw_ids_free(&ids);              /* a pattern may give up */
        return;
    }
    must(!tw_tok_encode(t, text, parts, 2, TW_TOK_SPECIAL, &spans, NULL, NULL));
    must(ids.n == spans.n && (!ids.n || !memcmp(ids.id, spans.id, (size_t)ids.n * 4)));
    tw_tok_stream_start(&s, t, false);
    for (int64_t i = 0; i < ids.n; i++) {
        must(spans.begin[i] <= spans.end[i] && spans.end[i] <= text.n);
        tw_tok_stream_put(&s, ids.id[i], &pieces);
        must(tw_utf8_check(pieces.p, pieces.n) == pieces.n);
    }
    tw_tok_stream_end(&s, &pieces);
    tw_tok_stream_free(&s);
    tw_tok_decode(t, ids.id, ids.n, false, &whole);
    must(tw_str_eq(tw_buf_str(&whole), tw_buf_str(&pieces)));
    must(!lossless || tw_str_eq(tw_buf_str(&whole), text));
    tw_ids_free(&ids);
    tw_ids_free(&spans);
    tw_buf_free(&whole);
    tw_buf_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tw_str text = { (const char *)data, n };
    struct tw_tok *t;
    struct tw_buf b = {0};
    size_t which, cut;

    if (n && (data[0] == '{' || data[0] == '\n')) {
        t = (data[0] == '{' ? tw_tok_open_json : tw_tok_open_spm)(text, "fuzz", NULL);
        if (t)
            check(t, TW_STR_LIT("Hello <a>, wor\xE2\x96\x81ld e\xCC\x81 12\n \xF0\x9F\x98\x80"), 9,
                    false);
        tw_tok_close(t);
        return 0;
    }
    if (n < 2)
        return 0;
    which = data[0] % TOKS;
    for (const char *p = text.p + 2; p < text.p + n;)
        tw_buf_utf8(&b, tw_utf8_next(&p, text.p + n));
    cut = b.n ? data[1] % (b.n + 1) : 0;
    check(opened(which), tw_buf_str(&b), cut, which == 4 || which == 7);
    tw_buf_free(&b);
    return 0;
}
