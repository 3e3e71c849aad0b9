/* download.h - files over HTTP, whole or not at all: each arrives in a partial file, is checked
 * (size, and digest where one is known) and only then gets its name. What a killed run left is gone
 * on with when the server still has the same file. */
#ifndef TW_DOWNLOAD_H
#define TW_DOWNLOAD_H
#include "data/http.h"

struct tw_dl {
    const char *name;       /* for messages, and the key of its partial file */
    const char *url;
    const char *path;       /* where it ends up */
    int64_t size;           /* -1: not known beforehand; filled in */
    char sha256[65];        /* hex, or empty; filled in where a hub's headers name it */
    char blob[41];          /* git blob id (SHA-1), or empty */
    char version[256];      /* out: tw_dl_version() of the answer */
    bool done;              /* out */
};

struct tw_dl_conf {
    struct tw_http *http;
    const char *parts;              /* folder of partial files, exists; same file system as path */
    int jobs;                       /* files at once */
    const char *const *secrets;     /* headers for the URL's own host only; NULL-terminated or NULL */
    /* Turns an answer that is no success into an error; NULL: a plain text with the status. */
    int (*refused)(void *arg, const struct tw_dl *d, const struct tw_http_res *res,
            struct tw_err *err);
    void *arg;
};

/* Fetches all N files. A failed one does not stop the others, unless it says that nobody may (not
 * allowed, disk full). ERR lists what failed and why; -1 when anything did. */
int tw_download(const struct tw_dl_conf *conf, struct tw_dl *files, int64_t n, struct tw_err *err);

/* What the server calls this version of a file: its ETag, else Last-Modified, else empty. */
void tw_dl_version(const struct tw_http_res *res, char out[256]);

/* Checks the file at PATH against the size and digests of D, reading all of it. 1 fits, 0 does not
 * (WHY, at least 256 bytes, says what differs), -1 cannot be read. */
int tw_dl_check(const struct tw_dl *d, const char *path, char *why, struct tw_err *err);

#endif
