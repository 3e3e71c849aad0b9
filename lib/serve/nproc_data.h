/* nproc_data.h - what the files of datasets share: nproc_data.c (sources, rows by number),
 * nproc_work.c (what changes rows), nproc_pack.c (packed rows), nproc_save.c (files of rows) */
#ifndef TW_SERVE_NPROC_DATA_H
#define TW_SERVE_NPROC_DATA_H
#include "nproc.h"
#include <stdio.h>

struct tw_np_source {
    char *key; /* of its DatasetMeta */
    struct tw_np_rows *rows;
};

struct tw_np_data {
    struct tw_np_source source[TW_NP_SOURCES];
    int nsource;
    struct tw_np_rows *mix; /* all of them, after mix_dataset */
    struct tw_np_tmpl *tmpl;
    bool encoded, streams, packs, cyclic;
    struct tw_np_pack *pack; /* NULL: pack_dataset was not called */
    int64_t at;              /* of the iterator; -1: it was not started */
    struct tw_np_save *save; /* what is served is written to it */
};

/* The rows that are worked on: all, or those of the source that the argument dataset_meta names. */
struct tw_np_rows **tw_np_data_rows(struct tw_np_job *j, bool named, struct tw_err *err);

/* nproc_pack.c */
int tw_np_pack(struct tw_np_job *j, struct tw_np_data *d, struct tw_err *err);
int64_t tw_np_pack_count(const struct tw_np_pack *p);
int tw_np_pack_get(const struct tw_np_pack *p, const struct tw_np_rows *rows, int64_t i,
        struct tw_buf *out, struct tw_err *err);
void tw_np_pack_free(struct tw_np_pack *p);

/* nproc_save.c */
int tw_np_save_put(struct tw_np_save *s, struct tw_str row, struct tw_err *err);
void tw_np_save_drop(struct tw_np_save *s); /* what was not flushed is gone */

#endif
