/* data_priv.h - what data.c and data_read.c share */
#ifndef TW_DATA_PRIV_H
#define TW_DATA_PRIV_H
#include "run/data.h"
#include "base/jsonl.h"
#include "data/shard.h"

/* One input, read from its beginning. */
struct reader {
    char *path[1];
    const char *name;               /* for messages */
    bool regular;                   /* its records can be found again */
    int fd;                         /* -1: stdin, or none */
    FILE *fp;
    struct tw_shard *shard;
    struct tw_jsonl *jsonl;
    int64_t n;                      /* records read */
    uint64_t offset;                /* of the last record, and its size: where it can be found */
    size_t bytes;
    struct tw_shard_rec rec;        /* the last record, until the next one is read */
    struct tw_json *json;
    int64_t line;
    bool peeked;                    /* it was read and not yet taken */
};

int tw_reader_open(struct reader *r, const char *path, struct tw_err *err);
void tw_reader_close(struct reader *r);
/* The kind of the first record, which stays to be read. 1, 0 no record, -1. */
int tw_reader_peek(struct reader *r, enum tw_rec_kind *kind, struct tw_err *err);
/* The next sample that has something to train on; what has not is counted in the tally. Its id is
 * the caller's to set. 1, 0 the end, -1. */
int tw_reader_next(struct reader *r, const struct tw_data_opts *o, struct tw_arena *a,
        struct tw_datum *out, struct tw_err *err);

/* One record to a sample: 1, 0 dropped for the reason *WHY (in A or static), -1 (no place set). */
int tw_datum_from_json(const struct tw_data_opts *o, struct tw_arena *a, const struct tw_json *j,
        struct tw_datum *out, const char **why, struct tw_err *err);
int tw_datum_from_shard(const struct tw_data_opts *o, struct tw_arena *a,
        const struct tw_shard_rec *r, struct tw_datum *out, const char **why, struct tw_err *err);
/* Refuses a shard whose ids are another tokenizer's. */
int tw_shard_fits(uint64_t hash, const char *name, const struct tw_chat *chat,
        struct tw_err *err);

#endif
