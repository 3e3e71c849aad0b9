/* tok_rank.c - reads tiktoken's rank files, for folders that have no tokenizer.json: a line for each
 * token, its bytes in base64 and its rank, which is its id. Two neighbours whose bytes together are a
 * token are joined, the lowest rank first; so every way to cut a token in two is a merge of its
 * rank. The file does not say how text is split: that is the model family's code. */
#include "tok_priv.h"
#include <stdlib.h>

/* "base64 SP number" of one line; the token's bytes are appended to OUT. */
static int read_line(struct tw_str line, struct tw_buf *out, int64_t *rank)
{
    const char *space = line.n ? memchr(line.p, ' ', line.n) : NULL;

    if (!space || tw_buf_base64(out, (struct tw_str){ line.p, (size_t)(space - line.p) }))
        return -1;
    *rank = 0;
    if (space + 1 == line.p + line.n)
        return -1;
    for (const char *p = space + 1; p < line.p + line.n; p++) {
        if (*p < '0' || *p > '9' || *rank > TOK_MAX_ID)
            return -1;
        *rank = *rank * 10 + (*p - '0');
    }
    return 0;
}

static bool next_line(struct tw_str *rest, struct tw_str *line)
{
    const char *nl;

    while (rest->n && (*rest->p == '\n' || *rest->p == '\r')) {
        rest->p++;
        rest->n--;
    }
    if (!rest->n)
        return false;
    nl = memchr(rest->p, '\n', rest->n);
    *line = (struct tw_str){ rest->p, nl ? (size_t)(nl - rest->p) : rest->n };
    rest->p += line->n;
    rest->n -= line->n;
    while (line->n && line->p[line->n - 1] == '\r')
        line->n--;
    return true;
}

bool tok_rank_is(struct tw_str file)
{
    struct tw_buf b = {0};
    struct tw_str line;
    int64_t rank;
    bool is = next_line(&file, &line) && line.n < 4096 && !read_line(line, &b, &rank);

    tw_buf_free(&b);
    return is;
}

static int read_tokens(struct tw_tok *t, struct tw_str file, struct tw_err *err)
{
    struct tok_vocab *v = &t->vocab;
    struct tw_buf b = {0};
    struct tw_str line;
    int64_t rank = 0, no = 0;
    int32_t twice;

    for (; next_line(&file, &line); no++) {
        size_t at = v->text.n;

        b.n = 0;
        if (read_line(line, &b, &rank) || !b.n || rank >= TOK_MAX_ID) {
            tw_buf_free(&b);
            return tw_fail(err, t->name, no + 1, "not a token in base64 and its rank");
        }
        for (size_t i = 0; i < b.n; i++)
            tw_buf_utf8(&v->text, (uint32_t)tok_byte_char((unsigned char)b.p[i]));
        if (tok_vocab_append(v, v->text.n - at, rank)) {
            tw_buf_free(&b);
            return tw_fail(err, t->name, no + 1, "the rank %lld stands twice", (long long)rank);
        }
    }
    tw_buf_free(&b);
    twice = tok_vocab_index(v);
    return twice < 0 ? 0 : tw_fail(err, t->name, 0, "the token of rank %d stands twice", (int)twice);
}

static void add_merges(struct tw_tok *t)
{
    tok_bpe_reserve(&t->bpe, (uint32_t)t->vocab.n);
    for (int32_t id = 0; id < t->vocab.n; id++) {
        struct tw_str s = tok_vocab_text(&t->vocab, id);

        for (size_t k = 1; k < s.n; k++) {
            int32_t l, r;

            if (((unsigned char)s.p[k] & 0xC0) == 0x80)
                continue;
            l = tok_vocab_find(&t->vocab, s.p, k);
            r = l < 0 ? -1 : tok_vocab_find(&t->vocab, s.p + k, s.n - k);
            if (r >= 0)
                tok_bpe_add(&t->bpe, (uint32_t)l, (uint32_t)r, (uint32_t)id, (uint32_t)id);
        }
    }
}

int tok_rank_load(struct tw_tok *t, struct tw_str file, struct tw_err *err)
{
    tok_uni_init(&t->uni);
    t->bpe.unk = -1;
    if (file.n > TOK_MAX_FILE)
        return tw_fail(err, t->name, 0, "larger than 1 GiB");
    if (read_tokens(t, file, err))
        return -1;
    add_merges(t);
    t->bpe.byte_level = t->bpe.ignore_merges = true;
    t->dec[t->ndec++] = (struct tok_dec){ .kind = TOK_DEC_BYTELEVEL };
    tok_bpe_finish(&t->bpe, &t->vocab);
    tok_fingerprint(t, TW_STR_LIT("ranks"));
    return 0;
}

void tok_rank_split(struct tw_tok *t, struct tw_str cls)
{
    bool qwen = tw_str_is(cls, "QWenTokenizer") || tw_str_is(cls, "Qwen2Tokenizer");
    struct tok_pre *s = &t->pre[t->npre++];

    if (qwen)
        t->norm[t->nnorm++] = (struct tok_norm){ .kind = TOK_FORM_C };
    *s = (struct tok_pre){ .kind = TOK_SPLIT, .behavior = TOK_ISOLATED,
        .find = { .kind = TOK_FIND_CL, .covers = true, .digits = qwen ? 1 : 3 } };
    t->hash += qwen;
}
