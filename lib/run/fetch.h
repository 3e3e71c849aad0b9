/* fetch.h - what tw-fetch does: sources to folders of models, and to rows of data. */
#ifndef TW_FETCH_H
#define TW_FETCH_H
#include "data/snapshot.h"
#include "data/weights.h"
#include "base/io.h"
#include "base/log.h"

/* Brings URI (hf://, ms://, https://, file://, a path; ARCHIVE!MEMBER) here and returns the folder
 * of the model in it, or the file when it is a single file of another kind. Archives are unpacked
 * and GGUF files converted (to DTYPE) in the cache, or in conf->dir, which then must not exist or
 * be empty. Allocated; NULL and ERR on failure. */
char *tw_fetch_model(const char *uri, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err);

/* Which rows of a data set. */
struct tw_fetch_pick {
    const char *subset, *split;     /* NULL: not said */
    int64_t from, to;               /* rows [from, to); to -1: the end */
    struct tw_str *column;          /* keys kept, in this order; ncolumn 0: the row as it is */
    int ncolumn;
};
/* "A:B", either may be left out; "a,b,c". The text is borrowed. */
int tw_fetch_slice(struct tw_fetch_pick *p, const char *text, struct tw_err *err);
int tw_fetch_columns(struct tw_fetch_pick *p, const char *text, struct tw_err *err);

/* Writes the rows of all URIS, one after another, to OUT as JSONL. */
int tw_fetch_rows(char *const *uris, int n, const struct tw_fetch_conf *conf,
        const struct tw_fetch_pick *pick, struct tw_out *out, struct tw_tally *tally,
        struct tw_err *err);

#endif
