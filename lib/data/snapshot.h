/* snapshot.h - repositories of model hubs as folders. A revision is resolved to a commit, a commit
 * is a folder in the cache that never changes:
 *
 *     CACHE/hub/hf/models/ORG/NAME/COMMIT/     the files, each there only when whole and checked
 *                                 /refs/REV    the commit that REV was last seen as
 *                                 /manifests/COMMIT.json    paths, sizes, digests
 *                                 /parts/      partial files of runs that were killed
 *                                 /lock        flock while somebody downloads
 *
 * A full commit that is cached needs no request. A branch needs one, of at most 10 s; without an
 * answer the last commit seen is taken, with a notice. */
#ifndef TW_SNAPSHOT_H
#define TW_SNAPSHOT_H
#include "base/err.h"
#include "base/mem.h"
#include "base/opt.h"

/* How things are fetched, as tw-fetch's options say; zero-initialise for the defaults. */
struct tw_fetch_conf {
    const char *revision;       /* NULL: what the URI says, else the hub's default */
    const char *dir;            /* the files go here instead of the cache */
    struct tw_list include, exclude;    /* globs on paths; none: all, none */
    struct tw_list allow;       /* hosts that may be contacted; none: any */
    int64_t jobs;               /* files at once; 0: 4 */
    double max_wait;            /* seconds of pauses that servers may ask for; 0: 600 */
    bool offline;               /* also when HF_HUB_OFFLINE is 1 */
    bool verify;                /* read what is there and compare digests; download what differs */
};

struct tw_hub_file {
    const char *path;
    int64_t size;               /* -1: unknown */
    const char *sha256, *blob;  /* hex, or empty */
};

struct tw_hub;
bool tw_hub_is(const char *uri);    /* hf:// or ms:// */
/* Resolves the revision and learns what it holds. NULL and ERR on failure. */
struct tw_hub *tw_hub_open(const char *uri, bool dataset, const struct tw_fetch_conf *conf,
        struct tw_err *err);
const struct tw_hub_file *tw_hub_files(const struct tw_hub *h, int64_t *n);
/* Makes sure that the files with WANT[i] are there (NULL: those that include and exclude choose)
 * and returns their folder, borrowed. Waits for another process that downloads the same. */
const char *tw_hub_get(struct tw_hub *h, const bool *want, struct tw_err *err);
void tw_hub_close(struct tw_hub *h);

/* Whether include and exclude choose PATH; a glob without '/' matches the last part, too. */
bool tw_fetch_chosen(const struct tw_fetch_conf *conf, const char *path);
bool tw_fetch_offline(const struct tw_fetch_conf *conf);

/* A file of https://..., through the cache; "#sha256=HEX" behind URL names its digest. Returns its
 * path in the cache. Allocated. */
char *tw_url_get(const char *url, const struct tw_fetch_conf *conf, struct tw_err *err);

/* An flock that dies with its process. Says so when it has to wait for WHAT. -1 and ERR. */
int tw_lock(const char *path, const char *what, struct tw_err *err);
void tw_unlock(int fd);

#endif
