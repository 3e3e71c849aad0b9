/* shard.c - token shards: round trips through streams and maps, and damaged files. */
#include "base/io.h"
#include "data/shard.h"
#include "test.h"
#include <stdlib.h>
#include <unistd.h>

static char path[64];
static char *argv_[] = { "/usr/bin/tw-encode", "--max-length", "4" };

#define LONG 70000
static int32_t long_tok[LONG];
static float long_w[LONG];

static const int32_t tok0[] = { 1, 2, 3, 4, 5 }, tok1[] = { 7, 8, 9 };
static const float w0[] = { 0, 0, 0.5f, 1, -1 };
static const int64_t start[] = { 0, 2, 2, 5 };

/* Record K of five kinds. Lists live until the next call. */
static struct tw_shard_rec make(int k)
{
    static const int32_t *token[2];
    static const float *weight[2];
    static int64_t n[2];
    struct tw_shard_rec r = { .kind = k, .nseq = 1, .token = token, .weight = weight, .n = n };

    token[0] = tok0;
    token[1] = tok1;
    weight[0] = w0;
    weight[1] = NULL;
    n[0] = 5;
    n[1] = 3;
    switch (k) {
    case 1:
        r.nseq = 2;
        r.prompt_n = 2;
        r.extra = TW_STR_LIT("{\"id\":\"a\\u0000b\"}");
        break;
    case 2:
        r.start = start;
        r.nstart = 4;
        r.weight = NULL;
        break;
    case 3:
        token[0] = long_tok;
        weight[0] = long_w;
        n[0] = LONG;
        break;
    case 4:
        n[0] = 0;
        break;
    }
    return r;
}

static bool same(const struct tw_shard_rec *a, const struct tw_shard_rec *b)
{
    bool good = a->kind == b->kind && a->nseq == b->nseq && a->prompt_n == b->prompt_n &&
            a->nstart == b->nstart && tw_str_eq(a->extra, b->extra);

    for (int64_t i = 0; good && i < a->nstart; i++)
        good = a->start[i] == b->start[i];
    for (int64_t s = 0; good && s < a->nseq; s++) {
        const float *x = a->weight ? a->weight[s] : NULL, *y = b->weight ? b->weight[s] : NULL;

        good = a->n[s] == b->n[s] && !memcmp(a->token[s], b->token[s], (size_t)a->n[s] * 4);
        for (int64_t i = 0; good && i < a->n[s]; i++)
            good = (x ? x[i] : 1) == (y ? y[i] : 1);
    }
    return good;
}

static void write_shard(struct tw_buf *b, int nrec, uint64_t hash)
{
    struct tw_err err = { 0 };
    FILE *fp = fopen(path, "wb");
    struct tw_shard_out *o = tw_shard_create(fp, path, hash,
            TW_STR_LIT("{\"k\":[1, 2],\"chain\":[{\"prog\":\"first\"}]}"), 3, argv_, &err);

    CHECK(o != NULL);
    for (int i = 0; i < nrec; i++) {
        struct tw_shard_rec r = make(i % 5);

        CHECK(!tw_shard_put(o, &r, &err));
    }
    CHECK(!tw_shard_finish(o, &err));
    CHECK(!fclose(fp));
    CHECK(!tw_read_file(b, path, 0, &err));
    CHECK_STR(err.msg, "");
}

/* Reads the N bytes at P as a stream and as a map; returns the number of records, -1 an error
 * (both ways must agree) in ERR. */
static int64_t read_shard(const void *p, size_t n, struct tw_err *err)
{
    struct tw_err err2 = { 0 };
    struct tw_shard *s;
    struct tw_shard_map *m;
    struct tw_shard_rec r, want;
    struct tw_arena a = { 0 };
    int64_t count = 0;
    int got = -1;
    FILE *fp;

    tw_err_clear(err);
    CHECK(!tw_write_file(path, p, n, NULL));
    fp = fopen(path, "rb");
    if ((s = tw_shard_open(fp, path, false, err)))
        for (; (got = tw_shard_next(s, &r, err)) > 0; count++)
            if (n > 1000)
                CHECK((want = make(r.kind), same(&r, &want)));
    tw_shard_close(s);
    fclose(fp);
    m = tw_shard_map_open(path, &err2);
    CHECK((m != NULL) == (got == 0));
    for (int64_t i = 0; m && i < count; i++) {
        tw_arena_reset(&a);
        CHECK(!tw_shard_map_get(m, i, &a, &r, &err2));
        want = make(r.kind);
        CHECK(same(&r, &want));
    }
    if (m)
        CHECK_INT(tw_shard_map_count(m), count);
    else
        CHECK(err2.msg[0] != 0);
    tw_shard_map_close(m);
    tw_arena_free(&a);
    return got ? -1 : count;
}

static void records_come_back(void)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    int counts[] = { 0, 1, 5, 23 };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tw_buf_clear(&b);
        write_shard(&b, counts[i], 42);
        CHECK_INT(read_shard(b.p, b.n, &err), counts[i]);
        CHECK_STR(err.msg, "");
    }
    tw_buf_free(&b);
}

static void header_says_where_it_came_from(void)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    struct tw_arena a = { 0 };
    struct tw_shard_map *m;
    struct tw_json *j;
    const struct tw_json *chain;

    write_shard(&b, 5, 0xfedcba9876543210);
    CHECK((m = tw_shard_map_open(path, &err)));
    CHECK(tw_shard_map_tok_hash(m) == 0xfedcba9876543210);
    CHECK_INT(tw_shard_map_tokens(m), 5 + 8 + 5 + LONG);
    CHECK((j = tw_json_parse(&a, tw_shard_map_header(m), &err)));
    CHECK(tw_str_is(tw_json_get(j, "k")->raw, "[1, 2]"));
    CHECK((chain = tw_json_get(j, "chain")) && chain->n == 2);
    CHECK(tw_str_is(tw_json_get(&chain->item[1], "prog")->str, "tw-encode"));
    CHECK_INT(tw_json_get(&chain->item[1], "argv")->n, 2);
    tw_shard_map_close(m);
    tw_arena_free(&a);
    tw_buf_free(&b);
}

static void weights_are_stored_small(void)
{
    struct tw_buf b = { 0 };

    write_shard(&b, 4, 1);
    CHECK(b.n < LONG * sizeof(int32_t) + 2000);
    tw_buf_free(&b);
}

static void shards_follow_each_other(void)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    size_t n;

    write_shard(&b, 3, 7);
    n = b.n;
    write_shard(&b, 2, 7);
    CHECK_INT(read_shard(b.p, b.n, &err), 5);
    CHECK_INT(read_shard(b.p, b.n - 1, &err), -1);
    CHECK(strstr(err.msg, "cut off") && strstr(err.msg, "record 5"));
    CHECK_INT(read_shard(b.p, n + 4, &err), -1);
    tw_buf_clear(&b);
    write_shard(&b, 3, 7);
    write_shard(&b, 2, 8);
    CHECK_INT(read_shard(b.p, b.n, &err), -1);
    CHECK(strstr(err.msg, "different tokenizers") != NULL);
    tw_buf_free(&b);
}

static void every_cut_is_noticed(void)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };

    write_shard(&b, 3, 7);
    CHECK(b.n < 2000);
    for (size_t n = 0; n < b.n; n++) {
        CHECK_INT(read_shard(b.p, n, &err), -1);
        CHECK(err.msg[0] && !strcmp(err.place, path));
    }
    tw_buf_free(&b);
}

static void every_flipped_bit_is_noticed(void)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };

    write_shard(&b, 3, 7);
    for (size_t i = 0; i < b.n; i++) {
        b.p[i] ^= (char)(1 << i % 8);
        CHECK_INT(read_shard(b.p, b.n, &err), -1);
        b.p[i] ^= (char)(1 << i % 8);
    }
    tw_buf_free(&b);
}

static void a_killed_writer_is_noticed(void)
{
    struct tw_err err = { 0 };
    struct tw_buf b = { 0 };
    struct tw_shard_rec r = make(0);
    FILE *fp = fopen(path, "wb");
    struct tw_shard_out *o = tw_shard_create(fp, path, 1, (struct tw_str){ 0 }, 3, argv_, &err);

    CHECK(!tw_shard_put(o, &r, &err) && !tw_shard_flush(o, &err));
    tw_shard_drop(o);
    fclose(fp);
    CHECK(!tw_read_file(&b, path, 0, &err));
    CHECK_INT(read_shard(b.p, b.n, &err), -1);
    CHECK(strstr(err.msg, "cut off in the data after record 1") != NULL);
    tw_buf_free(&b);
}

static void a_full_disk_is_noticed(void)
{
    struct tw_err err = { 0 };
    FILE *fp = fopen("/dev/full", "wb");
    struct tw_shard_out *o = tw_shard_create(fp, "out", 1, (struct tw_str){ 0 }, 3, argv_, &err);
    struct tw_shard_rec r = make(0);

    if (o) {
        CHECK(!tw_shard_put(o, &r, &err));
        CHECK(tw_shard_finish(o, &err) == -1);
    }
    CHECK(strstr(err.msg, "No space left") != NULL);
    fclose(fp);
}

static void bad_records_are_refused(void)
{
    struct tw_err err = { 0 };
    FILE *fp = fopen(path, "wb");
    struct tw_shard_out *o = tw_shard_create(fp, path, 1, (struct tw_str){ 0 }, 3, argv_, &err);
    struct tw_shard_rec r = make(2);

    r.nstart = 4;
    r.n[0] = 4;             /* a start behind the end */
    CHECK(tw_shard_put(o, &r, &err) == -1 && strstr(err.msg, "not well formed"));
    tw_err_clear(&err);
    r = make(0);
    r.nseq = 0;
    CHECK(tw_shard_put(o, &r, &err) == -1);
    tw_err_clear(&err);
    CHECK(!tw_shard_finish(o, &err));
    CHECK(!tw_shard_create(fp, path, 1, TW_STR_LIT("[]"), 3, argv_, &err));
    CHECK(strstr(err.msg, "JSON object") != NULL);
    fclose(fp);
}

int main(void)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/tw-shard-XXXXXX");
    if ((fd = mkstemp(path)) < 0)
        return 1;
    close(fd);
    for (int i = 0; i < LONG; i++) {
        long_tok[i] = i * 7;
        long_w[i] = i > LONG / 2;
    }
    RUN(records_come_back);
    RUN(header_says_where_it_came_from);
    RUN(weights_are_stored_small);
    RUN(shards_follow_each_other);
    RUN(every_cut_is_noticed);
    RUN(every_flipped_bit_is_noticed);
    RUN(a_killed_writer_is_noticed);
    RUN(a_full_disk_is_noticed);
    RUN(bad_records_are_refused);
    unlink(path);
    return test_end();
}
