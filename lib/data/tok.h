/* tok.h - tokenizers, exactly as tokenizer.json says. A tokenizer is a chain of pluggable parts:
 * added tokens -> normalizer -> pre-tokenizer -> model -> post-processor, and a decoder back; a
 * part we do not know is an error that names it. Text is bytes with a length; NUL is data.
 * A loaded tokenizer is read-only and may be used by many threads at once. */
#ifndef TW_TOK_H
#define TW_TOK_H
#include "base/buf.h"
#include "base/err.h"

struct tw_tok;

/* DIR holds tokenizer.json (and tokenizer_config.json, special_tokens_map.json where they are).
 * Without it `tokenizer.model` is read, a SentencePiece model (BPE or Unigram) or ranks of tiktoken,
 * else `tiktoken.model` or the one file `*.tiktoken`. Where the configuration says whether a BOS or
 * EOS is added, that holds, as in the reference. */
struct tw_tok *tw_tok_open(const char *dir, struct tw_err *err);
bool tw_tok_in(const char *dir);    /* is there one of these files? */
struct tw_tok *tw_tok_open_json(struct tw_str json, const char *name, struct tw_err *err);
struct tw_tok *tw_tok_open_spm(struct tw_str model, const char *name, struct tw_err *err);
void tw_tok_close(struct tw_tok *t);

/* Growing arrays of ids, and for each id the byte range [begin, end) of the input it came from. */
struct tw_ids {
    int32_t *id;
    uint32_t *begin, *end;      /* filled when want_spans */
    int64_t n, cap;
    bool want_spans;
};
void tw_ids_free(struct tw_ids *ids);

/* A part of the text and where it came from: in [0, n) of the list the parts are ascending and
 * cover the text. In parts with `control` false no special token is ever matched (what a user typed
 * cannot become one); added tokens that are not special match everywhere. */
struct tw_tok_part {
    size_t begin, end;
    bool control;
};

enum tw_tok_flags {
    TW_TOK_SPECIAL = 1,         /* add what the post-processor adds (BOS, EOS) */
    TW_TOK_CONTROL = 2,         /* with no parts given: special tokens in the text are matched */
};

/* Appends the ids of TEXT. PARTS may be NULL (then TW_TOK_CONTROL decides for all of it). Merges
 * cross part borders as if the text were one. Linear or n log n in the length, always.
 * *blocked (may be NULL): how many special tokens were spelled where they were not allowed. */
int tw_tok_encode(const struct tw_tok *t, struct tw_str text, const struct tw_tok_part *parts,
        int64_t nparts, unsigned flags, struct tw_ids *out, int64_t *blocked, struct tw_err *err);

/* Appends the text of ids: skip_special leaves special tokens out. Ids without a token (padding rows
 * of the vocabulary) decode to nothing. */
void tw_tok_decode(const struct tw_tok *t, const int32_t *id, int64_t n, bool skip_special,
        struct tw_buf *out);

/* Streaming decode: feeds one id and appends only whole characters; the rest waits. _end emits a
 * dangling partial once as U+FFFD. The concatenation equals tw_tok_decode of all ids. */
#define TW_TOK_STAGES 16
struct tw_tok_stream {
    const struct tw_tok *t;
    bool skip_special;
    bool whole;                 /* the caller waits for the end: text may come as late as that */
    struct {                    /* of each part of the decoder: bytes that wait, a count */
        struct tw_buf hold;
        int64_t n;
    } stage[TW_TOK_STAGES];
};
void tw_tok_stream_start(struct tw_tok_stream *s, const struct tw_tok *t, bool skip_special);
void tw_tok_stream_put(struct tw_tok_stream *s, int32_t id, struct tw_buf *out);
void tw_tok_stream_end(struct tw_tok_stream *s, struct tw_buf *out);
void tw_tok_stream_free(struct tw_tok_stream *s);

int64_t tw_tok_size(const struct tw_tok *t);        /* highest id + 1, added tokens included */
bool tw_tok_has(const struct tw_tok *t, int64_t id);
int32_t tw_tok_id(const struct tw_tok *t, struct tw_str token);     /* -1: no such token */
struct tw_str tw_tok_text(const struct tw_tok *t, int32_t id);      /* as in the file; borrowed */
bool tw_tok_is_special(const struct tw_tok *t, int32_t id);
/* From tokenizer_config.json / special_tokens_map.json; -1 and empty when there is none. */
int32_t tw_tok_bos(const struct tw_tok *t);
int32_t tw_tok_eos(const struct tw_tok *t);
int32_t tw_tok_pad(const struct tw_tok *t);
bool tw_tok_adds_bos(const struct tw_tok *t);       /* would TW_TOK_SPECIAL put a BOS first? */
/* A 64-bit fingerprint of all that decides ids (written into shards). */
uint64_t tw_tok_hash(const struct tw_tok *t);

#endif
