/* download_priv.h - between download.c (one file) and download_pool.c (all of them) */
#ifndef TW_DOWNLOAD_PRIV_H
#define TW_DOWNLOAD_PRIV_H
#include "data/download.h"
#include "data/sha1.h"
#include "base/io.h"

/* The digest that a file is checked by: its SHA-256, or its git blob id. */
struct tw_dlhash {
    bool blob;
    struct tw_sha256 sha256;
    struct tw_sha1 sha1;
};

/* A file on its way. */
struct fetch {
    struct tw_dl *d;
    const struct tw_dl_conf *conf;
    char *part, *meta;
    int fd;
    int64_t at;                 /* bytes of the part */
    char etag[256];             /* of the part */
    bool pieced;                /* the part comes from more than one answer */
    bool stale;                 /* the part is of another version: begin again */
    struct tw_dlhash hash;
    atomic_int_fast64_t *bytes; /* of all files, for the progress line */
    const atomic_bool *stop;
};

void tw_dlhash_start(struct tw_dlhash *h, const struct tw_dl *d);
void tw_dlhash_add(struct tw_dlhash *h, const void *p, size_t n);
bool tw_dlhash_fits(struct tw_dlhash *h, const struct tw_dl *d, char got[65]);
int tw_fetch_one(struct fetch *f, struct tw_http_conn *c, struct tw_err *err);

#endif
