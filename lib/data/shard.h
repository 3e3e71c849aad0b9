/* shard.h - token shards (.tws, format in man/tw-shard.5): 8-byte magic with version, u64 header
 * length, JSON header (tokenizer fingerprint, a chain of {prog, version, argv} to which each stage
 * adds itself), blocks with length and CRC-32C, a trailer with counts. Written to a pipe or a file
 * without seeking; a reader of a cut stream knows. Shards of one tokenizer may follow each other
 * (cat a.tws b.tws). */
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
/* META: extra header keys as a JSON object text (may be empty); its "chain" is the stages before this
 * one. The writer does not own FP. Weights that are all 1 are read back as NULL. */
struct tw_shard_out *tw_shard_create(FILE *fp, const char *name, uint64_t tok_hash,
        struct tw_str meta, int argc, char **argv, struct tw_err *err);
int tw_shard_put(struct tw_shard_out *o, const struct tw_shard_rec *r, struct tw_err *err);
/* Writes out what is buffered (a block is written when 256 KiB have come together). */
int tw_shard_flush(struct tw_shard_out *o, struct tw_err *err);
int tw_shard_finish(struct tw_shard_out *o, struct tw_err *err);    /* trailer; always frees */
void tw_shard_drop(struct tw_shard_out *o);                         /* no trailer; frees */

struct tw_shard;
/* FP stands behind the magic when PEEKED (the caller has seen it), else before it. */
struct tw_shard *tw_shard_open(FILE *fp, const char *name, bool peeked, struct tw_err *err);
uint64_t tw_shard_tok_hash(const struct tw_shard *s);
struct tw_str tw_shard_header(const struct tw_shard *s);            /* JSON text */
/* 1 a record (borrowed until the next call), 0 the end (trailer seen and its counts right), -1. */
int tw_shard_next(struct tw_shard *s, struct tw_shard_rec *r, struct tw_err *err);
void tw_shard_close(struct tw_shard *s);

/* A shard that is a regular file, mapped, its records found by number: for shuffling and epochs.
 * Opening reads the file once to check every block, and fails where tw_shard_next() would. get()
 * takes lists from A (borrowed until A is reset or the map closed), needs 0 <= I < count, and may be
 * called by several threads at once. */
struct tw_shard_map;
struct tw_shard_map *tw_shard_map_open(const char *path, struct tw_err *err);
int64_t tw_shard_map_count(const struct tw_shard_map *m);
int64_t tw_shard_map_tokens(const struct tw_shard_map *m);
uint64_t tw_shard_map_tok_hash(const struct tw_shard_map *m);
struct tw_str tw_shard_map_header(const struct tw_shard_map *m);
int tw_shard_map_get(const struct tw_shard_map *m, int64_t i, struct tw_arena *a,
        struct tw_shard_rec *r, struct tw_err *err);
void tw_shard_map_close(struct tw_shard_map *m);

#endif
