/* Any bytes as a keys file: an error with a text, or keys whose quotas are above 0 and which are found.
 * The first line is tried as a key; the file is read a second time with its first byte gone. */
#include "serve/keys.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void put(int fd, const unsigned char *p, size_t n)
{
    must(!ftruncate(fd, 0) && pwrite(fd, p, n, 0) == (ssize_t)n);
}

static void check(struct tw_keys *k, const unsigned char *p, size_t n)
{
    const struct tw_tenant *t;
    const struct tw_key *key;
    char text[64] = "";
    double wait;

    for (size_t i = 0; i < n && i + 1 < sizeof text && p[i] > ' '; i++)
        text[i] = (char)p[i];
    key = tw_keys_find(k, text);
    must(!key || (key->tenant && key->rights));
    if (key)
        tw_tenant_take(key->tenant, 100, 1, &wait);
    for (size_t i = 0; (t = tw_map_next(tw_keys_tenants(k), &i));)
        must(*t->name && t->adapters >= 0 && t->disk >= 0 && t->concurrency >= 0 &&
                t->tokens_per_minute >= 0);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    static int fd = -1;
    struct tw_err err = { 0 };
    struct tw_keys *k;
    char path[64];

    if (fd < 0) {
        fd = memfd_create("keys", 0);
        must(fd >= 0 && !fchmod(fd, 0600));
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    put(fd, p, n);
    k = tw_keys_open(path, &err);
    must(k ? !err.code : err.code && *err.msg);
    if (!k)
        return 0;
    check(k, p, n);
    if (n > 1) {
        put(fd, p + 1, n - 1);
        must(tw_keys_again(k, &err) || true);
        check(k, p + 1, n - 1);
    }
    tw_keys_close(k);
    return 0;
}
