/* rank.c - fuzzes folders whose tokenizer is a rank file of tiktoken: an input is the file, and after a
 * NUL the folder's tokenizer_config.json. What loads must encode a fixed text alike with spans and
 * without, and decode it alike in one go and streamed; each token's text must be found again. */
#include "base/io.h"
#include "data/tok.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char text[] = "Hello <a>, \xE4\xBD\xA0 ab  abc12\n \xF0\x9F\x98\x80<|im_end|>";

static void must(bool ok)
{
    if (!ok)
        abort();
}

static char dir[] = "/tmp/fuzz-rank-XXXXXX";

static void clean(void)
{
    for (const char *const *f = (const char *const[]){ "tiktoken.model", "tokenizer_config.json", NULL }; *f; f++) {
        char *path = tw_path_join(dir, *f);

        unlink(path);
        free(path);
    }
    rmdir(dir);
}

/* The folder all inputs are written to; made once. */
static const char *folder(void)
{
    static bool made;

    if (!made) {
        must(mkdtemp(dir) != NULL);
        atexit(clean);
    }
    made = true;
    return dir;
}

static void put(const char *name, const uint8_t *p, size_t n)
{
    char *path = tw_path_join(folder(), name);
    FILE *f = fopen(path, "wb");

    must(f && fwrite(p, 1, n, f) == n && !fclose(f));
    free(path);
}

static void check(const struct tw_tok *t)
{
    struct tw_ids ids = {0}, spans = { .want_spans = true };
    struct tw_str s = { text, sizeof(text) - 1 };
    struct tw_buf whole = {0}, pieces = {0};
    struct tw_tok_stream st;

    for (int32_t i = 0; i < tw_tok_size(t) && i < 300; i++)
        if (tw_tok_has(t, i) && !tw_tok_is_special(t, i))
            must(tw_tok_id(t, tw_tok_text(t, i)) >= 0);
    if (!tw_tok_encode(t, s, NULL, 0, TW_TOK_SPECIAL | TW_TOK_CONTROL, &ids, NULL, NULL)) {
        must(!tw_tok_encode(t, s, NULL, 0, TW_TOK_SPECIAL | TW_TOK_CONTROL, &spans, NULL, NULL));
        must(ids.n == spans.n && (!ids.n || !memcmp(ids.id, spans.id, (size_t)ids.n * 4)));
        tw_tok_stream_start(&st, t, false);
        for (int64_t i = 0; i < ids.n; i++) {
            must(tw_tok_has(t, ids.id[i]));
            must(spans.begin[i] <= spans.end[i] && spans.end[i] <= s.n);
            tw_tok_stream_put(&st, ids.id[i], &pieces);
            must(tw_utf8_check(pieces.p, pieces.n) == pieces.n);
        }
        tw_tok_stream_end(&st, &pieces);
        tw_tok_stream_free(&st);
        tw_tok_decode(t, ids.id, ids.n, false, &whole);
        must(tw_str_eq(tw_buf_str(&whole), tw_buf_str(&pieces)));
    }
    tw_ids_free(&ids);
    tw_ids_free(&spans);
    tw_buf_free(&whole);
    tw_buf_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t ranks = nul ? (size_t)(nul - data) : n;
    struct tw_err err = {0};
    struct tw_tok *t;

    put("tiktoken.model", data, ranks);
    put("tokenizer_config.json", nul ? nul + 1 : (const uint8_t *)"{}", nul ? n - ranks - 1 : 2);
    t = tw_tok_open(folder(), &err);
    if (t)
        check(t);
    else
        must(err.msg[0]);
    tw_err_clear(&err);
    tw_tok_close(t);
    return 0;
}
