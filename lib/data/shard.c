/* shard.c - token shards read as a stream, and the decoding of records. */
#include "data/shard_priv.h"
#include "base/io.h"
#include <errno.h>
#include <stdlib.h>

#define READ_STEP (1u << 20)    /* memory grows with what has arrived, not with what is promised */

struct tw_shard {
    FILE *fp;
    char *name;
    struct tw_buf header, block, next_header;
    uint64_t hash;
    struct tail seen;           /* of the shard that is being read */
    int64_t nrec;               /* of all shards of the stream, for messages */
    struct block_head head;
    size_t at;                  /* in the block */
    uint32_t left;              /* records of the block still to come */
    struct tw_arena arena;
    bool ended;
};

static int header_hash(struct tw_str header, uint64_t *hash, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_json *j = tw_json_parse(&a, header, err);
    struct tw_str s = { 0 };
    char hex[17], *end;
    int ret = -1;

    if (!j)
        goto out;
    if (j->type != TW_JOBJ || tw_json_get_str(j, "tokenizer", &s, NULL) != 1 || s.n != 16) {
        tw_fail_code(err, TW_ECORRUPT, NULL, 0, "header without a tokenizer's hash");
        goto out;
    }
    memcpy(hex, s.p, 16);
    hex[16] = 0;
    *hash = strtoull(hex, &end, 16);
    ret = *end ? tw_fail_code(err, TW_ECORRUPT, NULL, 0, "header: bad tokenizer hash") : 0;
out:
    tw_arena_free(&a);
    return ret;
}

/* Moves the cursor over N items of SIZE bytes, if they are there. */
static const void *take(const unsigned char **p, size_t *left, uint64_t n, size_t size)
{
    const void *r = *p;

    if (n > *left / size)
        return NULL;
    *p += n * size;
    *left -= n * size;
    return r;
}

static const float *expand_runs(const struct weight_run *run, uint32_t runs, int64_t n,
        struct tw_arena *a)
{
    float *w = tw_arena_alloc(a, (size_t)n * sizeof *w);
    int64_t at = 0;

    for (uint32_t i = 0; i < runs; i++) {
        if (run[i].n > n - at)
            return NULL;
        for (uint32_t k = 0; k < run[i].n; k++)
            w[at++] = run[i].weight;
    }
    return at == n ? w : NULL;
}

/* One sequence: its tokens in place, its weights in place or expanded. False: malformed. */
static bool decode_seq(const struct seq_head *h, const unsigned char **p, size_t *left,
        const int32_t **token, const float **weight, struct tw_arena *a)
{
    const unsigned char *start = *p;
    const struct weight_run *run;

    if (h->n < 0 || !(*token = take(p, left, (uint64_t)h->n, sizeof **token)))
        return false;
    *weight = NULL;
    switch (h->form) {
    case WEIGHT_ONES:
        break;
    case WEIGHT_EACH:
        if (!(*weight = take(p, left, (uint64_t)h->n, sizeof **weight)))
            return false;
        break;
    case WEIGHT_RUNS:
        if (!(run = take(p, left, h->runs, sizeof *run)) ||
                !(*weight = expand_runs(run, h->runs, h->n, a)))
            return false;
        break;
    default:
        return false;
    }
    return take(p, left, pad8((size_t)(*p - start)) - (size_t)(*p - start), 1) != NULL;
}

bool tw_shard_decode(struct tw_shard_rec *r, const unsigned char *p, size_t n,
        struct tw_arena *a)
{
    const struct rec_head *h = take(&p, &n, 1, sizeof *h);
    const struct seq_head *seq;
    int64_t *len;

    if (!h || h->bytes != n + sizeof *h || h->zero || !h->nseq || h->prompt_n < 0 ||
            (h->nstart && h->nseq != 1))
        return false;
    *r = (struct tw_shard_rec){ .kind = h->kind, .nseq = h->nseq, .prompt_n = h->prompt_n,
        .nstart = h->nstart };
    if (!(seq = take(&p, &n, h->nseq, sizeof *seq)) ||
            !(r->start = take(&p, &n, h->nstart, sizeof *r->start)))
        return false;
    r->token = tw_arena_alloc(a, h->nseq * sizeof *r->token);
    r->weight = tw_arena_alloc(a, h->nseq * sizeof *r->weight);
    r->n = len = tw_arena_alloc(a, h->nseq * sizeof *len);
    for (uint32_t s = 0; s < h->nseq; s++) {
        if (!decode_seq(&seq[s], &p, &n, &r->token[s], &r->weight[s], a))
            return false;
        len[s] = seq[s].n;
    }
    for (uint32_t i = 0; i < h->nstart; i++)
        if (r->start[i] > len[0] || (i ? r->start[i] < r->start[i - 1] : r->start[0] != 0))
            return false;
    if (h->extra > n || pad8(h->extra) != n)
        return false;
    r->extra = (struct tw_str){ (const char *)p, h->extra };
    return true;
}

size_t tw_shard_rec_bytes(const unsigned char *p, size_t left)
{
    uint32_t bytes = 0;

    if (left >= sizeof(struct rec_head))
        memcpy(&bytes, p, sizeof bytes);
    return bytes < sizeof(struct rec_head) || bytes > left || bytes % 8 ? 0 : bytes;
}

int tw_shard_bad_rec(const char *name, int64_t after, struct tw_err *err)
{
    return tw_fail_code(err, TW_ECORRUPT, name, 0, "malformed record after record %lld",
            (long long)after);
}

static int cut(struct tw_shard *s, const char *what, struct tw_err *err)
{
    if (ferror(s->fp))
        return tw_fail(err, s->name, 0, "cannot read: %s", strerror(errno));
    return tw_fail_code(err, TW_ECORRUPT, s->name, 0,
            "cut off in %s after record %lld: the program that wrote it did not finish", what,
            (long long)s->nrec);
}

static int read_bytes(struct tw_shard *s, struct tw_buf *b, size_t n, const char *what,
        struct tw_err *err)
{
    tw_buf_clear(b);
    while (n) {
        size_t step = n < READ_STEP ? n : READ_STEP;
        void *p = tw_buf_grow(b, step);

        if (fread(p, 1, step, s->fp) != step)
            return cut(s, what, err);
        b->n += step;
        n -= step;
    }
    return 0;
}

int tw_shard_check_header(struct tw_str text, uint64_t crc, uint64_t *hash, const char *name,
        struct tw_err *err)
{
    uint64_t len = text.n;

    if (tw_crc32c(tw_crc32c(0, &len, sizeof len), text.p, text.n) != crc)
        return tw_fail_code(err, TW_ECORRUPT, name, 0, "damaged header (its CRC differs)");
    if (header_hash(text, hash, err)) {
        tw_err_place(err, name, 0);
        return -1;
    }
    return 0;
}

/* A header from behind its magic. */
static int read_header(struct tw_shard *s, struct tw_buf *b, uint64_t *hash, struct tw_err *err)
{
    uint64_t len, crc;

    if (fread(&len, 1, sizeof len, s->fp) != sizeof len)
        return cut(s, "the header", err);
    if (len < 2 || len > HEADER_MAX || len % 8)
        return tw_fail_code(err, TW_ECORRUPT, s->name, 0, "header of %llu bytes",
                (unsigned long long)len);
    if (read_bytes(s, b, len, "the header", err))
        return -1;
    if (fread(&crc, 1, sizeof crc, s->fp) != sizeof crc)
        return cut(s, "the header", err);
    return tw_shard_check_header(tw_buf_str(b), crc, hash, s->name, err);
}

struct tw_shard *tw_shard_open(FILE *fp, const char *name, bool peeked, struct tw_err *err)
{
    struct tw_shard *s = tw_xcalloc(1, sizeof *s);
    char magic[8];

    s->fp = fp;
    s->name = tw_xstrdup(name);
    if (!peeked && (fread(magic, 1, 8, fp) != 8 || memcmp(magic, TW_SHARD_MAGIC, 8)))
        tw_fail(err, name, 0, "not a token shard");
    else if (!read_header(s, &s->header, &s->hash, err))
        return s;
    tw_shard_close(s);
    return NULL;
}

uint64_t tw_shard_tok_hash(const struct tw_shard *s)
{
    return s->hash;
}

struct tw_str tw_shard_header(const struct tw_shard *s)
{
    return tw_buf_str(&s->header);
}

/* Shards may stand one after another (cat): 1 when another begins, 0 at the end of the stream. */
static int next_shard(struct tw_shard *s, struct tw_err *err)
{
    char magic[8];
    size_t n = fread(magic, 1, 8, s->fp);
    uint64_t hash;

    if (!n && !ferror(s->fp))
        return 0;
    if (n != 8)
        return cut(s, "what follows the trailer", err);
    if (memcmp(magic, TW_SHARD_MAGIC, 8))
        return tw_fail_code(err, TW_ECORRUPT, s->name, 0, "garbage after the trailer");
    if (read_header(s, &s->next_header, &hash, err))
        return -1;
    if (hash != s->hash)
        return tw_fail(err, s->name, 0,
                "shards of different tokenizers in one stream (after record %lld)",
                (long long)s->nrec);
    s->seen = (struct tail){ 0 };
    return 1;
}

/* Reads the next block and checks it: 1 data, 0 the trailer. */
static int next_block(struct tw_shard *s, struct tw_err *err)
{
    struct block_head h;
    struct tail t;

    if (fread(&h, 1, sizeof h, s->fp) != sizeof h)
        return cut(s, "the data", err);
    if ((h.type != BLOCK_DATA && h.type != BLOCK_TAIL) || h.bytes > BLOCK_MAX || h.bytes % 8 ||
            h.nrec > h.bytes / sizeof(struct rec_head))
        return tw_fail_code(err, TW_ECORRUPT, s->name, 0, "damaged block after record %lld",
                (long long)s->nrec);
    if (read_bytes(s, &s->block, h.bytes, "a block", err))
        return -1;
    if (tw_shard_block_crc(&h, s->block.p) != h.crc)
        return tw_fail_code(err, TW_ECORRUPT, s->name, 0,
                "damaged block after record %lld (its CRC differs)", (long long)s->nrec);
    s->at = h.type == BLOCK_DATA ? 0 : h.bytes;
    s->left = h.nrec;
    s->seen.blocks += h.type == BLOCK_DATA;
    if (h.type == BLOCK_DATA)
        return 1;
    if (h.bytes != sizeof t || h.nrec || memcmp(s->block.p, &s->seen, sizeof t))
        return tw_fail_code(err, TW_ECORRUPT, s->name, 0,
                "the trailer's counts differ from the %lld records read", (long long)s->nrec);
    return 0;
}

int tw_shard_next(struct tw_shard *s, struct tw_shard_rec *r, struct tw_err *err)
{
    const unsigned char *p;
    size_t bytes;

    while (!s->left && !s->ended) {
        int got;

        if (s->block.n > s->at)
            return tw_fail_code(err, TW_ECORRUPT, s->name, 0, "bytes left in a block");
        if ((got = next_block(s, err)) < 0)
            return -1;
        if (!got && (got = next_shard(s, err)) <= 0) {
            s->ended = !got;
            return got;
        }
    }
    if (s->ended)
        return 0;
    tw_arena_reset(&s->arena);
    p = (const unsigned char *)s->block.p + s->at;
    bytes = tw_shard_rec_bytes(p, s->block.n - s->at);
    if (!tw_shard_decode(r, p, bytes, &s->arena))
        return tw_shard_bad_rec(s->name, s->nrec, err);
    s->at += bytes;
    for (int64_t i = 0; i < r->nseq; i++)
        s->seen.tokens += (uint64_t)r->n[i];
    s->seen.nrec++;
    s->nrec++;
    s->left--;
    return 1;
}

void tw_shard_close(struct tw_shard *s)
{
    if (!s)
        return;
    tw_buf_free(&s->header);
    tw_buf_free(&s->next_header);
    tw_buf_free(&s->block);
    tw_arena_free(&s->arena);
    free(s->name);
    free(s);
}
