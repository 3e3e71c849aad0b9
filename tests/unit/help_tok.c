/* help_tok.c - see help_tok.h. */
#include "help_tok.h"
#include <dirent.h>
#include <stdlib.h>
#include <zstd.h>

int test_read_zst(struct tw_buf *out, const char *path, struct tw_err *err)
{
    struct tw_buf packed = {0};
    unsigned long long n;
    size_t got = 0;

    if (tw_read_file(&packed, path, 0, err))
        return -1;
    n = ZSTD_getFrameContentSize(packed.p, packed.n);
    if (n < (unsigned long long)1 << 30)
        got = ZSTD_decompress(tw_buf_grow(out, n), n, packed.p, packed.n);
    tw_buf_free(&packed);
    if (n >= (unsigned long long)1 << 30 || ZSTD_isError(got) || got != n)
        return tw_fail(err, path, 0, "not a zstd file");
    out->n += n;
    return 0;
}

struct tw_tok *test_open_tok(const char *dir, struct tw_err *err)
{
    char *plain = tw_path_join(dir, "tokenizer.json");
    char *packed = tw_path_join(dir, "tokenizer.json.zst");
    char *spm = tw_path_join(dir, "tokenizer.model");
    bool is_plain = tw_is_file(plain);
    struct tw_buf b = {0};
    struct tw_tok *t = NULL;

    if (tw_is_file(spm))
        t = tw_tok_open(dir, err);
    else if (!(is_plain ? tw_read_file(&b, plain, 0, err) : test_read_zst(&b, packed, err)))
        t = tw_tok_open_json(tw_buf_str(&b), is_plain ? plain : packed, err);
    tw_buf_free(&b);
    free(plain);
    free(packed);
    free(spm);
    return t;
}

struct count {
    int64_t lines, ids, special, decoded, stream, spans;
};

static bool same_ids(const struct tw_ids *got, const struct tw_json *want)
{
    if (!want || want->type != TW_JARR || want->n != got->n)
        return false;
    for (int64_t i = 0; i < want->n; i++)
        if (!want->item[i].is_int || want->item[i].i != got->id[i])
            return false;
    return true;
}

/* Spans ascend and stay inside the text. */
static bool spans_fit(const struct tw_ids *ids, size_t n)
{
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->begin[i] > ids->end[i] || ids->end[i] > n
                || (i && ids->begin[i] < ids->begin[i - 1]))
            return false;
    return true;
}

static void check_line(const struct tw_tok *t, struct tw_str text, const struct tw_json *want,
        struct count *bad)
{
    struct tw_ids ids = {0}, special = {0}, spans = { .want_spans = true };
    struct tw_buf text_out = {0}, stream_out = {0};
    const struct tw_json *with = tw_json_get(want, "special");
    struct tw_tok_stream s;
    struct tw_str decoded = { "", 0 };

    tw_tok_encode(t, text, NULL, 0, TW_TOK_CONTROL, &ids, NULL, NULL);
    tw_tok_encode(t, text, NULL, 0, TW_TOK_CONTROL | TW_TOK_SPECIAL, &special, NULL, NULL);
    tw_tok_encode(t, text, NULL, 0, TW_TOK_CONTROL, &spans, NULL, NULL);
    bad->ids += !same_ids(&ids, tw_json_get(want, "ids"));
    bad->special += !same_ids(&special, with ? with : tw_json_get(want, "ids"));
    bad->spans += spans.n != ids.n
            || (ids.n && memcmp(spans.id, ids.id, (size_t)ids.n * sizeof(*ids.id)))
            || !spans_fit(&spans, text.n);
    tw_json_get_str(want, "decoded", &decoded, NULL);
    tw_tok_decode(t, ids.id, ids.n, false, &text_out);
    bad->decoded += !tw_str_eq(tw_buf_str(&text_out), decoded);
    tw_tok_stream_start(&s, t, false);
    for (int64_t i = 0; i < ids.n; i++) {
        tw_tok_stream_put(&s, ids.id[i], &stream_out);
        if (tw_utf8_check(stream_out.p, stream_out.n) != stream_out.n)
            bad->stream++;
    }
    tw_tok_stream_end(&s, &stream_out);
    tw_tok_stream_free(&s);
    bad->stream += !tw_str_eq(tw_buf_str(&stream_out), tw_buf_str(&text_out));
    tw_ids_free(&ids);
    tw_ids_free(&special);
    tw_ids_free(&spans);
    tw_buf_free(&text_out);
    tw_buf_free(&stream_out);
}

static bool take_line(struct tw_str *rest, struct tw_str *line)
{
    const char *nl = rest->n ? memchr(rest->p, '\n', rest->n) : NULL;

    if (!nl)
        return false;
    *line = (struct tw_str){ rest->p, (size_t)(nl - rest->p) };
    rest->n -= line->n + 1;
    rest->p = nl + 1;
    return true;
}

/* One tokenizer; returns whether all is well. */
static bool run_case(const char *name, const char *dir, struct tw_str corpus)
{
    char *path = tw_path_join(dir, "expected.jsonl");
    struct tw_err err = {0};
    struct tw_buf b = {0};
    struct tw_arena mem = {0};
    struct count bad = {0};
    struct tw_tok *t = test_open_tok(dir, &err);
    struct tw_str rest, line, text_line;
    int64_t wrong;

    if (t && !tw_read_file(&b, path, 0, &err)) {
        rest = tw_buf_str(&b);
        while (take_line(&rest, &line) && !err.code) {
            const struct tw_json *text, *want = tw_json_parse(&mem, line, &err);

            text = take_line(&corpus, &text_line) ? tw_json_parse(&mem, text_line, &err) : NULL;
            if (!want || !text || text->type != TW_JSTR)
                tw_fail(&err, path, bad.lines + 1, "no such line in the corpus");
            else
                check_line(t, text->str, want, &bad);
            bad.lines++;
            tw_arena_reset(&mem);
        }
    }
    wrong = bad.ids + bad.special + bad.decoded + bad.stream + bad.spans;
    if (err.code)
        printf("%s: %s: %s\n", name, err.place, err.msg);
    else
        printf("%s: %lld lines; wrong: %lld ids, %lld special, %lld decoded, %lld streamed, "
               "%lld spans\n", name, (long long)bad.lines, (long long)bad.ids,
                (long long)bad.special, (long long)bad.decoded, (long long)bad.stream,
                (long long)bad.spans);
    tw_tok_close(t);
    tw_arena_free(&mem);
    tw_buf_free(&b);
    free(path);
    return !err.code && !wrong && bad.lines;
}

int test_golden_tok(const char *dir, int *bad)
{
    char *path = tw_path_join(dir, "corpus.jsonl");
    struct tw_err err = {0};
    struct tw_buf corpus = {0};
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort), cases = 0;

    if (n < 0 || tw_read_file(&corpus, path, 0, &err)) {
        printf("%s: cannot be read\n", path);
        ++*bad;
    }
    for (int i = 0; i < n; i++) {
        char *sub = tw_path_join(dir, list[i]->d_name);

        if (list[i]->d_name[0] != '.' && tw_is_dir(sub)) {
            cases++;
            *bad += !run_case(list[i]->d_name, sub, tw_buf_str(&corpus));
        }
        free(sub);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    tw_buf_free(&corpus);
    free(path);
    return cases;
}
