/* rows.h - rows of a data file as records: JSON lines, JSON arrays and CSV through one reader with
 * the manners of jsonl.h. A CSV file (.csv, .tsv; RFC 4180, first line names the columns) gives
 * objects whose values are all strings, byte for byte: nothing is guessed from what text looks like.
 * Fields may be quoted, quoted ones may hold separators, "" and line ends. */
#ifndef TW_ROWS_H
#define TW_ROWS_H
#include "base/jsonl.h"

struct tw_rows;

/* PATHS (n == 0 or "-": stdin, which is CSV when its first character is neither '{' nor '[') are
 * read one after another; all are checked before the first row. PATHS must outlive the reader.
 * NULL and ERR when one cannot be opened or is of a kind that is not read (.parquet, archives). */
struct tw_rows *tw_rows_open(char *const *paths, int n, struct tw_err *err);
void tw_rows_limit(struct tw_rows *in, size_t max_row);
/* Bytes that are not UTF-8 become U+FFFD instead of an error. */
void tw_rows_replace(struct tw_rows *in, bool on);
/* 1 a row, 0 the end, -1 an error naming file:line. As with tw_jsonl_next(), REC lives until the
 * next call, and after a bad row (tw_rows_skippable()) the reader may be called again. */
int tw_rows_next(struct tw_rows *in, struct tw_rec *rec, struct tw_err *err);
bool tw_rows_skippable(const struct tw_rows *in);
/* The source text of the last row read, also of a bad one. */
struct tw_str tw_rows_line(const struct tw_rows *in, int64_t *line, const char **file);
void tw_rows_close(struct tw_rows *in);

#endif
