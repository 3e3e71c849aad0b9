/* encode_priv.h - what the parts of tw-encode share. */
#ifndef TW_ENCODE_PRIV_H
#define TW_ENCODE_PRIV_H
#include "base/io.h"
#include "base/jsonl.h"
#include "base/pool.h"
#include "data/chat.h"
#include "data/shard.h"
#include "run/encode.h"

enum { TW_ENC_BATCH = 256 };            /* records at once, at most; and bytes of them: */
#define TW_ENC_BYTES ((size_t)8 << 20)

/* ---- where records come from (encode_source.c): files one after the other, shards and JSONL ---- */

struct tw_enc_source {
    char *const *path;
    int npath, at;
    const char *name;                   /* of the file being read */
    char *one;
    int fd;
    FILE *fp;
    struct tw_jsonl *jsonl;
    struct tw_shard *shard;
    int64_t line;
};
int tw_enc_source_open(struct tw_enc_source *s, char *const *path, int n, struct tw_err *err);
/* 1: a line of JSON in *text, or a record of a shard in *rec (text->p is NULL then); 0; -1. */
int tw_enc_source_next(struct tw_enc_source *s, struct tw_str *text, struct tw_shard_rec *rec,
        struct tw_err *err);
void tw_enc_source_close(struct tw_enc_source *s);

/* ---- one record on its way ---- */

struct tw_enc_slot {
    struct tw_arena a;
    const char *file;
    int64_t line;
    struct tw_str text;                 /* its source; p NULL: it came from a shard */
    struct tw_json *json;
    struct tw_sample *sample;           /* nsample: one, or one for each turn */
    int64_t nsample;
    const int64_t *start;               /* a packed row that came in: where its documents begin */
    int64_t nstart;
    struct tw_str extra;                /* keys that pass through, as an object; may be empty */
    struct tw_buf out;                  /* what is written for it */
    struct tw_err err;
    bool refused;                       /* by the template: counted, not fatal */
    int64_t check_turn, check_at;       /* --check: where a prompt differs; -1: nowhere */
    int32_t check_was, check_is;
};

struct tw_enc {
    const struct tw_encode_opts *o;
    struct tw_chat *chat;
    struct tw_chat_opts chat_opts;
    struct tw_pool *pool;
    struct tw_enc_source in;
    struct tw_enc_slot *slot;
    int64_t nslot;
    struct tw_out out;
    struct tw_shard_out *shard;
    struct tw_tally tally;
    struct tw_err refusal;              /* first three reasons, for a run that keeps nothing */
    struct tw_buf reasons;
    int nreasons;
    int64_t hidden, hidden_rows, blocked, blocked_rows, truncated, unsupervised, checked, differ;
    char hidden_first[600], blocked_first[600];
    struct tw_enc_pack *pack;
    struct tw_enc_stats *stats;
    bool colour, shown;
};

/* Encodes slot I of the batch (encode_work.c); errors stay in the slot. */
void tw_enc_work(void *enc, int64_t i, int thread);
int tw_enc_of_shard(struct tw_enc *e, struct tw_enc_slot *s, const struct tw_shard_rec *r,
        struct tw_err *err);

/* Writing (encode_out.c). They may be called by several threads for different slots. */
void tw_enc_line(struct tw_enc_slot *s, const struct tw_sample *x, int64_t seq);
void tw_enc_extra(struct tw_enc_slot *s, enum tw_rec_kind kind);
/* How many sequences of X stand in one record: both of a pair, all of a group, else one. */
int64_t tw_enc_together(const struct tw_sample *x);
int tw_enc_put_shard(struct tw_enc *e, const struct tw_enc_slot *s, const struct tw_sample *x,
        struct tw_err *err);
void tw_enc_tokens(struct tw_buf *out, const int32_t *token, const float *weight, int64_t n);

/* For people (encode_show.c). */
void tw_enc_decode(const struct tw_enc *e, struct tw_enc_slot *s, const struct tw_sample *x);
void tw_enc_mask(const struct tw_enc *e, struct tw_enc_slot *s, const struct tw_sample *x);
struct tw_enc_stats *tw_enc_stats_new(void);
void tw_enc_stats_add(struct tw_enc_stats *st, const struct tw_sample *x);
void tw_enc_stats_write(const struct tw_enc *e, struct tw_buf *out);
void tw_enc_stats_free(struct tw_enc_stats *st);

/* Packing (encode_pack.c): documents wait in a window; rows are filled first-fit decreasing. */
struct tw_enc_pack *tw_enc_pack_new(int64_t size);
int tw_enc_pack_add(struct tw_enc *e, const struct tw_tokens *t, struct tw_err *err);
int tw_enc_pack_end(struct tw_enc *e, struct tw_err *err);
void tw_enc_pack_free(struct tw_enc_pack *p);
/* Writes one packed row (encode_out.c). */
int tw_enc_put_row(struct tw_enc *e, const int32_t *token, const float *weight, int64_t n,
        const int64_t *start, int64_t nstart, struct tw_err *err);
#endif
