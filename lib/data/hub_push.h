/* hub_push.h - a folder to a hub: the repository is made when there is none, and the folder's files
 * become one commit in it. What the hub has already (by its digest) is not sent again. */
#ifndef TW_HUB_PUSH_H
#define TW_HUB_PUSH_H
#include "base/err.h"
#include <stdatomic.h>
#include <stdbool.h>

struct tw_push_at {
    int64_t files, sent;        /* files in all, and those that are there */
    int64_t size, bytes;        /* the same in bytes; grows while a file is on its way */
};
struct tw_push_conf {
    const char *token;          /* NULL: HF_TOKEN or MODELSCOPE_API_TOKEN. Never shown or logged */
    const char *message;        /* of the commit; NULL: one of ours */
    bool is_public;             /* a repository that is made here; else private */
    double max_wait;            /* seconds of pauses (status 429) that are obeyed in all; 0: 600 */
    const atomic_bool *stop;    /* set by another thread: the upload ends with an error; may be NULL */
    /* How far it is, called on this thread, often; may be NULL. */
    void (*progress)(void *arg, const struct tw_push_at *at);
    void *arg;
};

/* Uploads the plain files under DIR (names that begin with '.' are left out; a link or a device is
 * an error) to URI: hf://ORG/NAME[@BRANCH] or ms://ORG/NAME[@BRANCH], on HF_ENDPOINT or
 * MODELSCOPE_ENDPOINT. Returns the address of the repository's page, allocated; NULL and ERR on
 * failure, when nothing is committed: TW_EDENIED and TW_ENETWORK tell why. Blocks for as long as
 * it takes: call it on a thread that may wait. */
char *tw_hub_push(const char *dir, const char *uri, const struct tw_push_conf *conf,
        struct tw_err *err);

#endif
