/* shard.h - token shards (.tws, format in man/tw-shard.5): 8-byte magic with version, u64 header
 * length, JSON header (tokenizer fingerprint, a chain of {prog, version, argv} to which each stage
 * adds itself), blocks with length and CRC-32C, a trailer with counts. Written to a pipe or a file
 * without seeking; a reader of a cut stream knows. */
#ifndef TW_SHARD_H
#define TW_SHARD_H
#include "base/err.h"
#include "base/json.h"
#include <stdio.h>

#define TW_SHARD_MAGIC "TWSHARD1"

/* One sample of a shard: its sequences (1; 2 for a preference pair) and their weights; `pack`:
 * boundaries of the documents a packed row holds. */
struct tw_shard_rec {
    int kind;                       /* enum tw_rec_kind */
    int64_t nseq;
    const int32_t **token;          /* token[s][n[s]] */
    const float **weight;           /* NULL entry: all ones */
    int64_t *n;
    int64_t prompt_n;
    const int64_t *start;           /* packed row: nstart starts of its documents, start[0] == 0 */
    int64_t nstart;                 /* 0: not packed */
    struct tw_str extra;            /* other keys of the record as a JSON object, may be empty */
};

struct tw_shard_out;
/* META: extra header keys as a JSON object text (may be empty). The writer does not own FP. */
struct tw_shard_out *tw_shard_create(FILE *fp, const char *name, uint64_t tok_hash,
        struct tw_str meta, int argc, char **argv, struct tw_err *err);
int tw_shard_put(struct tw_shard_out *o, const struct tw_shard_rec *r, struct tw_err *err);
int tw_shard_finish(struct tw_shard_out *o, struct tw_err *err);    /* trailer; frees */
void tw_shard_drop(struct tw_shard_out *o);                         /* no trailer; frees */

struct tw_shard;
/* FP stands behind the magic when PEEKED (the caller has seen it), else before it. */
struct tw_shard *tw_shard_open(FILE *fp, const char *name, bool peeked, struct tw_err *err);
uint64_t tw_shard_tok_hash(const struct tw_shard *s);
struct tw_str tw_shard_header(const struct tw_shard *s);            /* JSON text */
/* 1 a record (borrowed until the next call), 0 the end (trailer seen and its counts right), -1. */
int tw_shard_next(struct tw_shard *s, struct tw_shard_rec *r, struct tw_err *err);
void tw_shard_close(struct tw_shard *s);

#endif
