/* csv.h - one CSV stream as records; what rows.h says of CSV is done here */
#ifndef TW_CSV_H
#define TW_CSV_H
#include "base/jsonl.h"

struct tw_csv;

/* FP is borrowed, FILE (for messages) too. SEP is ',' or '\t'. */
struct tw_csv *tw_csv_open(FILE *fp, const char *file, char sep, size_t max_row);
/* Bytes that were already read from FP, at most 64 KiB; before the first row. */
void tw_csv_feed(struct tw_csv *c, struct tw_str head);
void tw_csv_replace(struct tw_csv *c, bool on);
int tw_csv_next(struct tw_csv *c, struct tw_rec *rec, struct tw_err *err);
bool tw_csv_skippable(const struct tw_csv *c);
struct tw_str tw_csv_line(const struct tw_csv *c, int64_t *line);
void tw_csv_close(struct tw_csv *c);

#endif
