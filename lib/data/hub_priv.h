/* hub_priv.h - between hub.c (a repository's snapshot), hub_list.c (what it holds) and
 * hub_name.c (URIs, endpoints, tokens) */
#ifndef TW_HUB_PRIV_H
#define TW_HUB_PRIV_H
#include "data/download.h"
#include "data/snapshot.h"

/* A repository of a hub, and how to reach it. */
struct repo {
    bool ms;                /* ModelScope; else Hugging Face */
    bool dataset;
    char *uri;              /* as the user wrote it, for messages */
    char *id;               /* ORG/NAME */
    char *rev;              /* branch, tag or commit */
    bool pinned;            /* rev is a full commit: it never changes */
    char *endpoint;         /* https://host[/path], no slash at its end */
    char *secret[3];        /* header lines that carry the token; NULL-terminated */
};
int tw_repo_parse(struct repo *r, const char *uri, bool dataset, const char *revision,
        struct tw_err *err);
void tw_repo_free(struct repo *r);
/* The URL of a file of COMMIT (Hugging Face) or of the revision (ModelScope). Allocated. */
char *tw_repo_file_url(const struct repo *r, const char *commit, const char *path);
/* An answer that is no success, as an error that says what to do. */
int tw_repo_refused(const struct repo *r, const struct tw_http_res *res, const char *file,
        struct tw_err *err);

/* What a commit holds. */
struct manifest {
    struct tw_arena arena;
    char commit[65];
    struct tw_hub_file *file;
    int64_t n, cap;
};
int tw_manifest_add(struct manifest *m, struct tw_str path, struct tw_str sha256,
        struct tw_str blob, int64_t size, const struct repo *r, struct tw_err *err);
/* Asks the hub what REV is now and what it holds. QUICK: one try of at most 10 s. */
int tw_manifest_ask(struct manifest *m, const struct repo *r, struct tw_http *http, bool quick,
        struct tw_err *err);
int tw_manifest_read(struct manifest *m, const char *path, struct tw_err *err);
int tw_manifest_write(const struct manifest *m, const char *path, struct tw_err *err);
void tw_manifest_free(struct manifest *m);

#endif
