/* keys.c - the keys file, tenants */
#include "keys.h"
#include "base/io.h"
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#define KEYS_MAX (16 << 20)

struct tw_keys {
    char *path;                     /* NULL: any key is right */
    struct tw_key *key;             /* [n]; without a file, as they come: each on its own */
    size_t n;
    struct tw_map_of by_digest, tenants;
    struct timespec mtime;
    off_t size;
    ino_t ino;
};

static void digest_of(char out[65], const char *key, size_t n)
{
    unsigned char sum[32];
    struct tw_sha256 s;

    tw_sha256_init(&s);
    tw_sha256_add(&s, key, n);
    tw_sha256_end(&s, sum);
    tw_hex(out, sum, 32);
}

struct tw_tenant *tw_keys_tenant(struct tw_keys *k, const char *name)
{
    struct tw_tenant *t = tw_map_gets(&k->tenants, name);

    if (t)
        return t;
    t = tw_xcalloc(1, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->tokens_at = -1;
    tw_map_put(&k->tenants, t->name, t);
    return t;
}

const struct tw_map_of *tw_keys_tenants(const struct tw_keys *k)
{
    return &k->tenants;
}

static bool plain_name(struct tw_str s)
{
    if (!s.n || s.n > 64 || s.p[0] == '.')
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-@", s.p[i]) || !s.p[i])
            return false;
    return true;
}

/* "12", and for sizes "12K", "12M", "12G", "12T". */
static int number(struct tw_str s, bool size, int64_t *out)
{
    char text[32], *end;
    unsigned long long v, unit = 1;
    const char *units = "KMGT", *u;

    if (!s.n || s.n >= sizeof text || s.p[0] < '0' || s.p[0] > '9')
        return -1;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (size && *end && (u = strchr(units, *end))) {
        for (; u >= units; u--)
            unit *= 1024;
        end++;
    }
    if (errno || *end || v > INT64_MAX / unit)
        return -1;
    *out = (int64_t)(v * unit);
    return *out > 0 ? 0 : -1;
}

static int rights_of(struct tw_str s, unsigned *out)
{
    static const char *const name[] = { "train", "sample", "admin" };
    unsigned got = 0;

    while (s.n) {
        const char *comma = memchr(s.p, ',', s.n);
        size_t n = comma ? (size_t)(comma - s.p) : s.n;
        unsigned bit = 0;

        for (int i = 0; i < 3; i++)
            if (tw_str_is((struct tw_str){ s.p, n }, name[i]))
                bit = 1u << i;
        if (!bit)
            return -1;
        got |= bit;
        n += comma != NULL;
        s.p += n;
        s.n -= n;
    }
    *out = got;
    return got ? 0 : -1;
}

struct line {                       /* a keys file's, taken apart */
    struct tw_str key, tenant;
    unsigned rights;
    int64_t quota[4];
};

static struct tw_str word(struct tw_str *s)
{
    size_t n = 0, skip = 0;
    struct tw_str w;

    while (skip < s->n && strchr(" \t\r", s->p[skip]))
        skip++;
    while (skip + n < s->n && !strchr(" \t\r", s->p[skip + n]))
        n++;
    w = (struct tw_str){ s->p + skip, n };
    s->p += skip + n;
    s->n -= skip + n;
    return w;
}

/* 1 a key, 0 nothing, -1 bad. */
static int parse_line(struct tw_str s, struct line *l, const char *path, int64_t at, struct tw_err *err)
{
    static const char *const quota[] = { "adapters", "tokens-per-minute", "disk", "concurrency" };
    struct tw_str w;

    *l = (struct line){ .rights = TW_RIGHT_TRAIN | TW_RIGHT_SAMPLE };
    l->key = word(&s);
    if (!l->key.n || l->key.p[0] == '#')
        return 0;
    l->tenant = word(&s);
    if (l->key.n > 512 || memchr(l->key.p, 0, l->key.n))
        return tw_fail(err, path, at, "a key has at most 512 characters");
    if (!plain_name(l->tenant))
        return tw_fail(err, path, at, "the tenant's name, 1 to 64 of A-Z a-z 0-9 . _ - @, comes after the key");
    while ((w = word(&s)).n) {
        const char *eq = memchr(w.p, '=', w.n);
        struct tw_str name = { w.p, eq ? (size_t)(eq - w.p) : w.n }, value = { eq ? eq + 1 : "", 0 };
        int bad = -1;

        if (w.p[0] == '#')
            break;
        value.n = eq ? w.n - name.n - 1 : 0;
        if (tw_str_is(name, "rights"))
            bad = rights_of(value, &l->rights);
        for (int i = 0; i < 4; i++)
            if (tw_str_is(name, quota[i]))
                bad = number(value, i == 2, &l->quota[i]);
        if (bad)
            return tw_fail(err, path, at, "%.*s is not rights=train,sample,admin, adapters=N, "
                    "tokens-per-minute=N, disk=SIZE or concurrency=N", (int)(w.n < 80 ? w.n : 80), w.p);
    }
    return 1;
}

static void set_quota(struct tw_tenant *t, const struct line *l)
{
    int64_t *q[] = { &t->adapters, &t->tokens_per_minute, &t->disk, &t->concurrency };

    for (int i = 0; i < 4; i++)
        if (!t->listed || (*q[i] && (!l->quota[i] || l->quota[i] > *q[i])))
            *q[i] = l->quota[i];
    t->listed = true;
}

/* All lines, or none: the keys in force change only when the whole file is good. */
static int load(struct tw_keys *k, struct tw_str text, struct tw_err *err)
{
    struct line *line = NULL;
    char (*digest)[65] = NULL;
    size_t n = 0, cap = 0, i = 0;
    struct tw_map_of seen = { 0 };
    struct tw_tenant *t;
    int64_t at = 0;
    int got = 0;

    while (text.n && got >= 0) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t len = nl ? (size_t)(nl - text.p) : text.n;

        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            line = tw_xreallocarray(line, cap, sizeof *line);
        }
        got = parse_line((struct tw_str){ text.p, len }, &line[n], k->path, ++at, err);
        n += got > 0;
        len += nl != NULL;
        text.p += len;
        text.n -= len;
    }
    digest = tw_xcalloc(n + 1, sizeof *digest);
    for (i = 0; i < n && got >= 0; i++) {
        digest_of(digest[i], line[i].key.p, line[i].key.n);
        if (tw_map_gets(&seen, digest[i]))
            got = tw_fail(err, k->path, 0, "the key of tenant %.*s is there twice", (int)line[i].tenant.n,
                    line[i].tenant.p);
        tw_map_put(&seen, digest[i], line);
    }
    tw_map_free(&seen);
    if (got >= 0) {
        tw_map_free(&k->by_digest);
        free(k->key);
        k->key = tw_xcalloc(n + 1, sizeof *k->key);
        k->n = n;
        for (size_t j = 0; (t = tw_map_next(&k->tenants, &j));)
            t->listed = false;
        for (i = 0; i < n; i++) {
            char name[72];

            snprintf(name, sizeof name, "%.*s", (int)line[i].tenant.n, line[i].tenant.p);
            memcpy(k->key[i].digest, digest[i], 65);
            k->key[i].tenant = tw_keys_tenant(k, name);
            k->key[i].rights = line[i].rights;
            set_quota(k->key[i].tenant, &line[i]);
            tw_map_put(&k->by_digest, k->key[i].digest, &k->key[i]);
        }
    }
    free(line);
    free(digest);
    return got < 0 ? -1 : 0;
}

static int read_file(struct tw_keys *k, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct stat st;
    int ret;

    if (stat(k->path, &st))
        return tw_fail(err, k->path, 0, "cannot read the keys: %s", strerror(errno));
    k->mtime = st.st_mtim;
    k->size = st.st_size;
    k->ino = st.st_ino;
    if (st.st_mode & 077)
        return tw_fail(err, k->path, 0, "others may read it: its mode must be 0600");
    ret = tw_read_file(&b, k->path, KEYS_MAX, err);
    if (!ret)
        ret = load(k, tw_buf_str(&b), err);
    if (b.p)
        explicit_bzero(b.p, b.n);
    tw_buf_free(&b);
    return ret;
}

struct tw_keys *tw_keys_open(const char *path, struct tw_err *err)
{
    struct tw_keys *k = tw_xcalloc(1, sizeof *k);

    if (!path)
        return k;
    k->path = tw_xstrdup(path);
    if (!read_file(k, err))
        return k;
    tw_keys_close(k);
    return NULL;
}

int tw_keys_again(struct tw_keys *k, struct tw_err *err)
{
    struct stat st;

    if (!k->path || (!stat(k->path, &st) && st.st_mtim.tv_sec == k->mtime.tv_sec && st.st_ino == k->ino &&
            st.st_mtim.tv_nsec == k->mtime.tv_nsec && st.st_size == k->size))
        return 0;
    return read_file(k, err) ? -1 : 1;
}

const struct tw_key *tw_keys_find(struct tw_keys *k, const char *text)
{
    char digest[65], name[72];
    struct tw_key *key;

    if (!text || !*text)
        return NULL;
    digest_of(digest, text, strlen(text));
    key = tw_map_gets(&k->by_digest, digest);
    if (key || k->path)
        return key;
    key = tw_xcalloc(1, sizeof *key);
    memcpy(key->digest, digest, sizeof digest);
    snprintf(name, sizeof name, "key-%.16s", digest);
    key->tenant = tw_keys_tenant(k, name);
    key->rights = TW_RIGHT_ANY;
    tw_map_put(&k->by_digest, key->digest, key);
    return key;
}

bool tw_tenant_take(struct tw_tenant *t, int64_t n, double now, double *wait)
{
    double rate = (double)t->tokens_per_minute / 60, full = (double)t->tokens_per_minute;

    t->tokens_total += n;
    if (!t->tokens_per_minute)
        return true;
    t->tokens = t->tokens_at < 0 ? full : t->tokens + (now - t->tokens_at) * rate;
    t->tokens = t->tokens > full ? full : t->tokens;
    t->tokens_at = now;
    if (t->tokens >= (double)n || t->tokens >= full) {
        t->tokens -= (double)n;
        return true;
    }
    t->tokens_total -= n;
    *wait = (((double)n < full ? (double)n : full) - t->tokens) / rate;
    return false;
}

void tw_keys_close(struct tw_keys *k)
{
    void *v;

    if (!k)
        return;
    if (!k->path)
        for (size_t i = 0; (v = tw_map_next(&k->by_digest, &i));)
            free(v);
    for (size_t i = 0; (v = tw_map_next(&k->tenants, &i));)
        free(v);
    tw_map_free(&k->by_digest);
    tw_map_free(&k->tenants);
    free(k->key);
    free(k->path);
    free(k);
}
