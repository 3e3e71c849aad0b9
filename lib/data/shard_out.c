/* shard_out.c - token shards written, to a pipe or a file, without seeking. */
#include "data/shard_priv.h"
#include "base/io.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#define BLOCK_FULL (256u << 10)     /* a block is written when it holds this much */

struct tw_shard_out {
    FILE *fp;
    char *name;
    struct tw_buf block;
    uint32_t block_n;
    struct tail total;
    bool failed;
};

uint32_t tw_shard_block_crc(const struct block_head *h, const void *payload)
{
    return tw_crc32c(tw_crc32c(0, h, offsetof(struct block_head, crc)), payload, h->bytes);
}

static int put(struct tw_shard_out *o, const void *p, size_t n, struct tw_err *err)
{
    if (!n || fwrite(p, 1, n, o->fp) == n)
        return 0;
    o->failed = true;
    return tw_fail(err, o->name, 0, "cannot write: %s", strerror(errno));
}

static int put_block(struct tw_shard_out *o, uint32_t type, const void *p, size_t n,
        uint32_t nrec, struct tw_err *err)
{
    struct block_head h = { .type = type, .bytes = (uint32_t)n, .nrec = nrec };

    h.crc = tw_shard_block_crc(&h, p);
    return put(o, &h, sizeof h, err) || put(o, p, n, err) ? -1 : 0;
}

/* The stages that META's "chain" names, then this program. */
static void chain_text(struct tw_jw *w, const struct tw_json *meta, int argc, char **argv)
{
    const struct tw_json *old = meta ? tw_json_get(meta, "chain") : NULL;
    const char *slash = argc ? strrchr(argv[0], '/') : NULL;

    tw_jw_key(w, "chain");
    tw_jw_arr(w);
    for (int64_t i = 0; old && i < old->n; i++)
        tw_jw_value(w, &old->item[i]);
    tw_jw_obj(w);
    tw_jw_key(w, "prog");
    tw_jw_cstr(w, slash ? slash + 1 : argc ? argv[0] : "");
    tw_jw_key(w, "version");
    tw_jw_cstr(w, TW_VERSION);
    tw_jw_key(w, "argv");
    tw_jw_arr(w);
    for (int i = 1; i < argc; i++)
        tw_jw_cstr(w, argv[i]);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
}

static int header_text(struct tw_buf *b, uint64_t tok_hash, struct tw_str meta, int argc,
        char **argv, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_json *m = meta.n ? tw_json_parse(&a, meta, err) : NULL;
    struct tw_jw w;
    char hex[17];
    int ret = -1;

    if (meta.n && !m)
        goto out;
    if (m && m->type != TW_JOBJ) {
        tw_fail(err, NULL, 0, "header keys must be a JSON object");
        goto out;
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)tok_hash);
    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "tokenizer");
    tw_jw_cstr(&w, hex);
    for (int64_t i = 0; m && i < m->n; i++) {
        if (tw_str_is(m->item[i].key, "chain") || tw_str_is(m->item[i].key, "tokenizer"))
            continue;
        tw_jw_key_n(&w, m->item[i].key);
        tw_jw_value(&w, &m->item[i]);
    }
    chain_text(&w, m, argc, argv);
    tw_jw_obj_end(&w);
    while (b->n % 8)
        tw_buf_putc(b, ' ');
    ret = b->n > HEADER_MAX ? tw_fail(err, NULL, 0, "header over %u bytes", HEADER_MAX) : 0;
out:
    tw_arena_free(&a);
    return ret;
}

struct tw_shard_out *tw_shard_create(FILE *fp, const char *name, uint64_t tok_hash,
        struct tw_str meta, int argc, char **argv, struct tw_err *err)
{
    struct tw_shard_out *o = tw_xcalloc(1, sizeof *o);
    struct tw_buf b = { 0 };
    uint64_t len, crc;

    o->fp = fp;
    o->name = tw_xstrdup(name);
    if (header_text(&b, tok_hash, meta, argc, argv, err)) {
        tw_err_place(err, name, 0);
        goto fail;
    }
    len = b.n;
    crc = tw_crc32c(tw_crc32c(0, &len, sizeof len), b.p, b.n);
    if (put(o, TW_SHARD_MAGIC, 8, err) || put(o, &len, sizeof len, err) ||
            put(o, b.p, b.n, err) || put(o, &crc, sizeof crc, err))
        goto fail;
    tw_buf_free(&b);
    return o;
fail:
    tw_buf_free(&b);
    tw_shard_drop(o);
    return NULL;
}

int tw_shard_flush(struct tw_shard_out *o, struct tw_err *err)
{
    if (o->failed)
        return tw_fail(err, o->name, 0, "an earlier write failed");
    if (o->block_n) {
        if (put_block(o, BLOCK_DATA, o->block.p, o->block.n, o->block_n, err))
            return -1;
        tw_buf_clear(&o->block);
        o->block_n = 0;
        o->total.blocks++;
    }
    if (fflush(o->fp)) {
        o->failed = true;
        return tw_fail(err, o->name, 0, "cannot write: %s", strerror(errno));
    }
    return 0;
}

/* The number of runs of equal weights (compared by bits). */
static int64_t count_runs(const float *w, int64_t n)
{
    int64_t runs = n > 0;

    for (int64_t i = 1; i < n; i++)
        runs += memcmp(&w[i], &w[i - 1], sizeof *w) != 0;
    return runs;
}

/* How a sequence's weights are stored: the smallest of the forms. */
static struct seq_head seq_form(const float *w, int64_t n)
{
    struct seq_head h = { .n = n, .form = WEIGHT_ONES };
    const float one = 1;
    int64_t runs;

    if (!w || !n)
        return h;
    runs = count_runs(w, n);
    if (runs == 1 && !memcmp(w, &one, sizeof one))
        return h;
    h.form = runs * 2 < n ? WEIGHT_RUNS : WEIGHT_EACH;
    h.runs = h.form == WEIGHT_RUNS ? (uint32_t)runs : 0;
    return h;
}

static size_t seq_bytes(const struct seq_head *h)
{
    size_t weights = h->form == WEIGHT_RUNS ? h->runs * sizeof(struct weight_run) :
            h->form == WEIGHT_EACH ? (size_t)h->n * sizeof(float) : 0;

    return pad8((size_t)h->n * sizeof(int32_t) + weights);
}

static void pad(struct tw_buf *b)
{
    tw_buf_add(b, "\0\0\0\0\0\0\0", pad8(b->n) - b->n);
}

static void add_seq(struct tw_buf *b, const struct seq_head *h, const int32_t *token,
        const float *w)
{
    tw_buf_add(b, token, (size_t)h->n * sizeof *token);
    if (h->form == WEIGHT_EACH)
        tw_buf_add(b, w, (size_t)h->n * sizeof *w);
    for (int64_t i = 0; h->form == WEIGHT_RUNS && i < h->n;) {
        struct weight_run r = { 0, w[i] };

        for (; i < h->n && !memcmp(&w[i], &r.weight, sizeof *w); i++)
            r.n++;
        tw_buf_add(b, &r, sizeof r);
    }
    pad(b);
}

static int check_rec(const struct tw_shard_rec *r, const char *name, struct tw_err *err)
{
    bool good = r->kind >= 0 && r->kind <= UINT16_MAX && r->nseq >= 1 && r->nseq < 1 << 20 &&
            r->nstart >= 0 && r->prompt_n >= 0 && (!r->nstart || (r->nseq == 1 && !r->start[0]));

    for (int64_t s = 0; good && s < r->nseq; s++)
        good = r->n[s] >= 0 && r->n[s] < INT32_MAX;
    for (int64_t i = 0; good && i < r->nstart; i++)
        good = r->start[i] <= r->n[0] && (!i || r->start[i] >= r->start[i - 1]);
    return good ? 0 : tw_fail(err, name, 0, "a record that is not well formed");
}

int tw_shard_put(struct tw_shard_out *o, const struct tw_shard_rec *r, struct tw_err *err)
{
    struct rec_head h = { .kind = (uint16_t)r->kind, .nseq = (uint32_t)r->nseq,
        .nstart = (uint32_t)r->nstart, .prompt_n = r->prompt_n, .extra = r->extra.n };
    struct tw_buf *b = &o->block;
    struct seq_head *seq;
    size_t bytes;

    if (check_rec(r, o->name, err))
        return -1;
    seq = tw_xcalloc((size_t)r->nseq, sizeof *seq);
    bytes = sizeof h + (size_t)r->nseq * sizeof *seq + (size_t)r->nstart * 8 + pad8(r->extra.n);
    for (int64_t s = 0; s < r->nseq; s++) {
        seq[s] = seq_form(r->weight ? r->weight[s] : NULL, r->n[s]);
        bytes += seq_bytes(&seq[s]);
    }
    if (bytes > BLOCK_MAX - BLOCK_FULL) {
        free(seq);
        return tw_fail(err, o->name, 0, "a record of %zu bytes; at most %u fit", bytes,
                BLOCK_MAX - BLOCK_FULL);
    }
    h.bytes = (uint32_t)bytes;
    tw_buf_add(b, &h, sizeof h);
    tw_buf_add(b, seq, (size_t)r->nseq * sizeof *seq);
    tw_buf_add(b, r->start, (size_t)r->nstart * sizeof *r->start);
    for (int64_t s = 0; s < r->nseq; s++) {
        add_seq(b, &seq[s], r->token[s], r->weight ? r->weight[s] : NULL);
        o->total.tokens += (uint64_t)r->n[s];
    }
    tw_buf_adds(b, r->extra);
    pad(b);
    free(seq);
    o->block_n++;
    o->total.nrec++;
    return b->n >= BLOCK_FULL ? tw_shard_flush(o, err) : 0;
}

int tw_shard_finish(struct tw_shard_out *o, struct tw_err *err)
{
    int ret = tw_shard_flush(o, err);

    if (!ret)
        ret = put_block(o, BLOCK_TAIL, &o->total, sizeof o->total, 0, err);
    if (!ret && fflush(o->fp))
        ret = tw_fail(err, o->name, 0, "cannot write: %s", strerror(errno));
    tw_shard_drop(o);
    return ret;
}

void tw_shard_drop(struct tw_shard_out *o)
{
    if (!o)
        return;
    tw_buf_free(&o->block);
    free(o->name);
    free(o);
}
