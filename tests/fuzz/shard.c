/* A token shard, as it is and with its checksums put right (a fuzzer cannot guess them): the stream
 * and the map must agree, and what they read must be there. */
#include "base/io.h"
#include "base/rng.h"
#include "data/shard_priv.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static uint64_t use(const struct tw_shard_rec *r)
{
    uint64_t sum = r->extra.n ? tw_hash64(r->extra.p, r->extra.n, 0) : 0;

    for (int64_t s = 0; s < r->nseq; s++) {
        sum += tw_hash64(r->token[s], (uint64_t)r->n[s] * 4, 1);
        if (r->weight[s])
            sum += tw_hash64(r->weight[s], (uint64_t)r->n[s] * 4, 2);
    }
    for (int64_t i = 0; i < r->nstart; i++)
        if (r->start[i] < 0 || r->start[i] > r->n[0])
            abort();
    return sum;
}

static void read_both(const unsigned char *p, size_t n)
{
    struct tw_err err = { 0 }, err2 = { 0 };
    struct tw_arena a = { 0 };
    struct tw_shard_rec r;
    struct tw_shard *s;
    struct tw_shard_map *m;
    uint64_t sum = 0;
    int64_t count = 0;
    int got = -1, fd = memfd_create("shard", 0);
    FILE *fp = fdopen(fd, "w+b");
    char path[64];

    if (!fp || (n && fwrite(p, 1, n, fp) != n) || fflush(fp))
        abort();
    rewind(fp);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if ((s = tw_shard_open(fp, "x", false, &err)))
        while ((got = tw_shard_next(s, &r, &err)) > 0) {
            sum += use(&r);
            count++;
        }
    tw_shard_close(s);
    m = tw_shard_map_open(path, &err2);
    if ((m != NULL) != (got == 0) || (m && tw_shard_map_count(m) != count))
        abort();
    for (int64_t i = 0; m && i < count; i++) {
        tw_arena_reset(&a);
        if (tw_shard_map_get(m, i, &a, &r, &err2))
            abort();
        sum -= use(&r);
    }
    if (m && sum)
        abort();
    tw_shard_map_close(m);
    tw_arena_free(&a);
    fclose(fp);
}

static void fix_sums(unsigned char *p, size_t n)
{
    struct block_head h;
    uint64_t len, crc;
    size_t at;

    if (n < 24)
        return;
    memcpy(&len, p + 8, 8);
    if (len > n - 24)
        return;
    crc = tw_crc32c(0, p + 8, 8 + len);
    memcpy(p + 16 + len, &crc, 8);
    for (at = 24 + len; n - at >= sizeof h; at += sizeof h + h.bytes) {
        memcpy(&h, p + at, sizeof h);
        if (h.bytes > n - at - sizeof h)
            return;
        h.crc = tw_shard_block_crc(&h, p + at + sizeof h);
        memcpy(p + at, &h, sizeof h);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    unsigned char *q = tw_xmalloc(n + 1);

    read_both(p, n);
    memcpy(q, p, n);
    fix_sums(q, n);
    read_both(q, n);
    free(q);
    return 0;
}
