/* jsonl.h - records, one JSON object a line. Lines end at byte 0x0A only, a 0x0D before it is
 * stripped; a BOM at offset 0 is dropped (UTF-16 and UTF-32 are an error that names them); empty
 * lines are skipped; NUL is data; input that is not UTF-8 is an error with line and byte offset.
 * Memory is bounded by the longest line (limit TW_JSONL_MAX unless the caller sets another). A file
 * whose first character is '[' is read as a JSON array of records, one element at a time. */
#ifndef TW_JSONL_H
#define TW_JSONL_H
#include "json.h"
#include <stdio.h>

#define TW_JSONL_MAX ((size_t)1 << 30)

struct tw_rec {
    struct tw_json *json;   /* an object; lives until the next tw_jsonl_next() */
    struct tw_str text;     /* its source text, one line or array element */
    const char *file;       /* borrowed from the reader; "-" is shown as "stdin" */
    int64_t line;           /* 1-based line it starts on */
    uint64_t offset;        /* bytes before it in this file */
};

struct tw_jsonl;

/* PATHS (n of them; n == 0 or "-" mean stdin) are read one after another. NULL and ERR when one
 * cannot be opened (all are checked before the first record). PATHS must outlive the reader. */
struct tw_jsonl *tw_jsonl_open(char *const *paths, int n, struct tw_err *err);
void tw_jsonl_limit(struct tw_jsonl *in, size_t max_line);
/* Bytes of the first file that were already read from its descriptor (a pipe whose kind was looked
 * at); before the first record. */
void tw_jsonl_feed(struct tw_jsonl *in, struct tw_str head);
/* The first file is FD, opened by the caller (a named pipe opens only once); closed with the reader
 * unless it is stdin. */
void tw_jsonl_fd(struct tw_jsonl *in, int fd);
/* Bytes that are not UTF-8 become U+FFFD instead of an error. */
void tw_jsonl_replace(struct tw_jsonl *in, bool on);
/* 1 a record, 0 the end, -1 an error naming file:line. After a bad *line* (not a failed read) the
 * reader stands behind it and may be called again: tw_jsonl_skippable() is then true. */
int tw_jsonl_next(struct tw_jsonl *in, struct tw_rec *rec, struct tw_err *err);
bool tw_jsonl_skippable(const struct tw_jsonl *in);
/* False where tw_jsonl_next() would wait for the writer of a pipe. */
bool tw_jsonl_ready(const struct tw_jsonl *in);
/* The same after at most MS milliseconds, or when a signal comes. */
bool tw_jsonl_wait(const struct tw_jsonl *in, int ms);
/* Has the writer of a pipe gone? What it wrote may still be there. */
bool tw_jsonl_hung_up(const struct tw_jsonl *in);
/* The raw text of the last line read, also of a bad one (for --rejects). */
struct tw_str tw_jsonl_line(const struct tw_jsonl *in, int64_t *line, const char **file);
void tw_jsonl_close(struct tw_jsonl *in);

#endif
