/* keys.h - who may do what. A keys file (mode 0600) has a line each:
 *
 *     KEY TENANT [rights=train,sample,admin] [adapters=N] [tokens-per-minute=N] [disk=SIZE] [concurrency=N]
 *
 * Several keys may name one tenant; a quota that they give differently is the largest of them, and
 * none at all where one of them gives none. Without a file any key is right, and a tenant of its own.
 * Keys are kept as digests only. */
#ifndef TW_SERVE_KEYS_H
#define TW_SERVE_KEYS_H
#include "base/err.h"
#include "serve/map.h"

enum { TW_RIGHT_TRAIN = 1, TW_RIGHT_SAMPLE = 2, TW_RIGHT_ADMIN = 4, TW_RIGHT_ANY = 7 };

struct tw_tenant {
    char name[72];
    int64_t adapters, tokens_per_minute, disk, concurrency;     /* quotas; 0: none */
    /* What it uses now. */
    int64_t nadapters, disk_used, unfinished, requests_open;
    int64_t tokens_total, requests_total;
    double tokens, tokens_at;       /* left in the bucket of tokens, when last seen */
    bool listed;                    /* by the keys file that is in force */
};

struct tw_key {
    char digest[65];                /* of the key, in hex */
    struct tw_tenant *tenant;
    unsigned rights;
};

struct tw_keys;
/* PATH NULL: no file. A bad or repeated line is an error that names it. */
struct tw_keys *tw_keys_open(const char *path, struct tw_err *err);
/* NULL: not a key. What it gives lives until the next tw_keys_again(). */
const struct tw_key *tw_keys_find(struct tw_keys *k, const char *key);
/* Reads the file again when it has changed: 1 then, 0 not, -1 when it is bad and the old keys stay. */
int tw_keys_again(struct tw_keys *k, struct tw_err *err);
/* The tenant of that name, made where there is none (state from before the keys changed). */
struct tw_tenant *tw_keys_tenant(struct tw_keys *k, const char *name);
const struct tw_map_of *tw_keys_tenants(const struct tw_keys *k);
/* Takes N tokens of the tenant's minute: false when there are none left; then nothing is taken and
 * *WAIT is how many seconds until there may be. A first request of any size is let through. */
bool tw_tenant_take(struct tw_tenant *t, int64_t n, double now, double *wait);
void tw_keys_close(struct tw_keys *k);

#endif
