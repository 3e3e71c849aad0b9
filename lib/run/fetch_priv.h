/* fetch_priv.h - between fetch.c (URIs), fetch_unpack.c (archives, GGUF), fetch_pick.c (which files
 * of a data set) and fetch_rows.c (their rows) */
#ifndef TW_FETCH_PRIV_H
#define TW_FETCH_PRIV_H
#include "run/fetch.h"

/* Something that lies here: PATH, and in the archive that it is MEMBER (NULL: all of it). */
struct local {
    char *path, *member;
};
/* A URI that is no hub's, brought here. */
int tw_local_get(struct local *l, const char *uri, const struct tw_fetch_conf *conf,
        struct tw_err *err);
void tw_local_free(struct local *l);

/* The folder (or file) that an archive or its member becomes, in the cache or conf->dir. With MODEL
 * a GGUF file that is the only model in it is converted. Allocated. */
char *tw_unpack(const struct local *l, bool model, const struct tw_fetch_conf *conf,
        enum tw_dtype dtype, struct tw_err *err);
/* The folder that a GGUF file becomes. Allocated. */
char *tw_import(const char *gguf, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err);

/* Marks in TAKE which of the N files are rows of the subset and split. FROM names the data set in
 * messages; README is the text of its README.md (empty: none), which may say which file is what. */
int tw_pick_files(const char *const *path, int64_t n, struct tw_str readme,
        const struct tw_fetch_pick *pick, const char *from, bool *take, struct tw_err *err);
/* Whether PATH has the name of a file of rows, packed or not; its kind without ".gz" and the like. */
const char *tw_row_kind(const char *path);

#endif
