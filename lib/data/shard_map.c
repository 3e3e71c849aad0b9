/* shard_map.c - a shard file mapped, its records found by number. */
#include "data/shard_priv.h"
#include "base/io.h"
#include <stdlib.h>

struct tw_shard_map {
    struct tw_map map;
    char *name;
    struct tw_str header;       /* of the first shard */
    uint64_t hash;
    uint64_t *at;               /* offset of each record */
    int64_t n, cap, tokens;
};

static int bad(const struct tw_shard_map *m, const char *what, struct tw_err *err)
{
    return tw_fail_code(err, TW_ECORRUPT, m->name, 0, "%s after record %lld", what,
            (long long)m->n);
}

/* Every record is decoded once, so that get() cannot fail on a file that was opened. */
static int index_block(struct tw_shard_map *m, const struct block_head *h,
        const unsigned char *p, struct tail *seen, struct tw_arena *a, struct tw_err *err)
{
    const unsigned char *end = p + h->bytes;
    struct tw_shard_rec r;

    for (uint32_t i = 0; i < h->nrec; i++) {
        size_t bytes = tw_shard_rec_bytes(p, (size_t)(end - p));

        tw_arena_reset(a);
        if (!tw_shard_decode(&r, p, bytes, a))
            return tw_shard_bad_rec(m->name, m->n, err);
        if (m->n == m->cap) {
            m->cap = m->cap ? 2 * m->cap : 1024;
            m->at = tw_xreallocarray(m->at, (size_t)m->cap, sizeof *m->at);
        }
        m->at[m->n++] = (uint64_t)(p - m->map.p);
        for (int64_t s = 0; s < r.nseq; s++)
            seen->tokens += (uint64_t)r.n[s];
        p += bytes;
    }
    if (p != end)
        return bad(m, "bytes left in a block", err);
    seen->nrec += h->nrec;
    seen->blocks++;
    return 0;
}

/* The blocks of one shard from offset *AT; leaves *AT behind its trailer. */
static int index_blocks(struct tw_shard_map *m, size_t *at, struct tw_arena *a,
        struct tw_err *err)
{
    struct tail seen = { 0 };
    const struct block_head *h;
    const unsigned char *p;

    do {
        if (m->map.n - *at < sizeof *h)
            return bad(m, "cut off", err);
        h = (const struct block_head *)(m->map.p + *at);
        p = (const unsigned char *)(h + 1);
        if ((h->type != BLOCK_DATA && h->type != BLOCK_TAIL) || h->bytes > BLOCK_MAX ||
                h->bytes % 8)
            return bad(m, "damaged block", err);
        if (h->bytes > m->map.n - *at - sizeof *h)
            return bad(m, "cut off", err);
        if (tw_shard_block_crc(h, p) != h->crc)
            return bad(m, "damaged block (its CRC differs)", err);
        *at += sizeof *h + h->bytes;
        if (h->type == BLOCK_DATA && index_block(m, h, p, &seen, a, err))
            return -1;
    } while (h->type == BLOCK_DATA);
    if (h->bytes != sizeof seen || h->nrec || memcmp(p, &seen, sizeof seen))
        return bad(m, "the trailer's counts are wrong", err);
    m->tokens += (int64_t)seen.tokens;
    return 0;
}

/* The header at *AT; leaves *AT at the first block. */
static int index_header(struct tw_shard_map *m, size_t *at, struct tw_err *err)
{
    const unsigned char *p = m->map.p + *at;
    size_t left = m->map.n - *at;
    struct tw_str text;
    uint64_t len, crc, hash;

    if (left < 8 || memcmp(p, TW_SHARD_MAGIC, 8))
        return *at ? bad(m, "garbage behind the trailer", err) :
                tw_fail(err, m->name, 0, "not a token shard");
    if (left < 16)
        return bad(m, "cut off", err);
    memcpy(&len, p + 8, 8);
    if (len < 2 || len > HEADER_MAX || len % 8)
        return bad(m, "bad header", err);
    if (len > left - 16 || left - 16 - len < 8)
        return bad(m, "cut off in the header", err);
    text = (struct tw_str){ (const char *)p + 16, len };
    memcpy(&crc, p + 16 + len, sizeof crc);
    if (tw_shard_check_header(text, crc, &hash, m->name, err))
        return -1;
    if (*at && hash != m->hash)
        return bad(m, "a shard of another tokenizer", err);
    if (!*at)
        m->header = text;
    m->hash = hash;
    *at += 24 + len;
    return 0;
}

struct tw_shard_map *tw_shard_map_open(const char *path, struct tw_err *err)
{
    struct tw_shard_map *m = tw_xcalloc(1, sizeof *m);
    struct tw_arena a = { 0 };
    size_t at = 0;
    int ret = 0;

    m->name = tw_xstrdup(path);
    if (tw_map_open(&m->map, path, err)) {
        free(m->name);
        free(m);
        return NULL;
    }
    do
        ret = index_header(m, &at, err) || index_blocks(m, &at, &a, err) ? -1 : 0;
    while (!ret && at < m->map.n);
    tw_arena_free(&a);
    if (!ret)
        return m;
    tw_shard_map_close(m);
    return NULL;
}

int64_t tw_shard_map_count(const struct tw_shard_map *m)
{
    return m->n;
}

int64_t tw_shard_map_tokens(const struct tw_shard_map *m)
{
    return m->tokens;
}

uint64_t tw_shard_map_tok_hash(const struct tw_shard_map *m)
{
    return m->hash;
}

struct tw_str tw_shard_map_header(const struct tw_shard_map *m)
{
    return m->header;
}

int tw_shard_map_get(const struct tw_shard_map *m, int64_t i, struct tw_arena *a,
        struct tw_shard_rec *r, struct tw_err *err)
{
    const unsigned char *p = m->map.p + m->at[i];

    if (!tw_shard_decode(r, p, tw_shard_rec_bytes(p, m->map.n - m->at[i]), a))
        return tw_shard_bad_rec(m->name, i, err);
    return 0;
}

void tw_shard_map_close(struct tw_shard_map *m)
{
    if (!m)
        return;
    tw_map_close(&m->map);
    free(m->at);
    free(m->name);
    free(m);
}
