/* preprocess.h - tw-preprocess. The way of a row: source (slice) -> mix -> shuffle -> processors ->
 * filters -> --exec -> out. Rows are worked on in batches by several threads and leave in order. */
#ifndef TW_PREPROCESS_H
#define TW_PREPROCESS_H
#include "base/io.h"
#include "base/log.h"
#include "base/opt.h"
#include "data/rows.h"
#include "run/process.h"

struct tw_prep_opts {
    struct tw_common common;
    struct tw_list filter;
    const char *slice, *mix, *exec, *rejects, *out;
    int64_t max_rejects, seed, shuffle, threads;
    int utf8;
    bool list;
};

/* OPERANDS: processors first, then files. */
int tw_preprocess(const struct tw_prep_opts *o, char **operands, int n, struct tw_err *err);
void tw_preprocess_list(FILE *fp);

/* Sources (prep_source.c): rows of all files, sliced, mixed and shuffled. */
struct tw_source;
struct tw_source *tw_source_open(const struct tw_prep_opts *o, char *const *paths, int n,
        struct tw_err *err);
/* 1 a row: its text (valid until the next call) and place; 0 the end; -1. A bad row that may be skipped
 * leaves tw_source_skippable() true. FILE_NO counts the sources. */
struct tw_source_row {
    struct tw_str text;
    const char *file;
    int64_t line;
    int file_no;
};
int tw_source_next(struct tw_source *s, struct tw_source_row *row, struct tw_err *err);
bool tw_source_skippable(const struct tw_source *s, struct tw_source_row *row);
void tw_source_close(struct tw_source *s);

/* --exec (prep_exec.c): a command that answers one line for each record; "null" drops it. */
struct tw_exec;
struct tw_exec *tw_exec_open(const char *cmd, struct tw_err *err);
/* Gives LINE (with its newline) to the command; answers that have come are handed to DONE in order. */
int tw_exec_put(struct tw_exec *x, struct tw_str line,
        int (*done)(void *arg, struct tw_str line, struct tw_err *err), void *arg, struct tw_err *err);
/* Waits for the rest; the command must answer every record and exit with 0. Frees X. */
int tw_exec_end(struct tw_exec *x, int (*done)(void *arg, struct tw_str line, struct tw_err *err),
        void *arg, struct tw_err *err);
void tw_exec_kill(struct tw_exec *x);

#endif
