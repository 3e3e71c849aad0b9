/* serve_fast.c - forward_backward's JSON is read without a tree, to the same bits as with one */
#include "base/rng.h"
#include "serve/read_priv.h"
#include "test.h"

static const struct tw_limits limits = { .V = 300, .window = 4096, .max_rank = 64, .max_samples = 16,
    .max_stop = 4 };
static const char key[] = "forward_backward_input";

/* Some number of a kind that somebody may write. */
static void put_number(struct tw_buf *b, uint64_t x)
{
    static const char *const odd[] = { "0", "-0", "-0.0", "1", "-7", "0.5", "1e3", "1E-7", "-2.5e+2", "1e22",
        "9007199254740993", "0.000001000000000000000021", "123456789012345678901234567890", "1e-300",
        "0.1e1", "3.4028235677973366e37", "0.0000000000000000000000000000000000000001", "1.5e-45", "00.5" };
    double d = (double)(int64_t)x * 0x1p-63;

    switch (x % 4) {
    case 0:
        tw_buf_puts(b, odd[(x >> 8) % (sizeof odd / sizeof *odd - 1)]);
        break;
    case 1:
        tw_buf_printf(b, "%.17g", d);
        break;
    case 2:
        tw_buf_printf(b, "%.9g", d * 1e-5);
        break;
    default:                            /* what Python writes of a float: 17 digits of a double */
        tw_buf_printf(b, "%.17g", (double)(float)d);
    }
}

static void put_body(struct tw_buf *b, uint64_t seed, int n, const char *more, const char *space)
{
    tw_buf_clear(b);
    tw_buf_printf(b, "{%s\"%s\":%s{\"data\":[{\"model_input\":{\"chunks\":[{\"tokens\":[", more, key, space);
    for (int i = 0; i < n; i++)
        tw_buf_printf(b, "%s%d", i ? "," : space, i % 300);
    tw_buf_puts(b, "],\"type\":\"encoded_text\"}]},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[");
    for (int i = 0; i < n; i++)
        tw_buf_printf(b, "%s%s%d", i ? "," : "", space, i * 7 % 300);
    tw_buf_printf(b, "%s],\"dtype\":\"int64\",\"shape\":[%d]},\"weights\":{\"shape\":null,\"data\":[", space, n);
    for (int i = 0; i < n; i++) {
        tw_buf_puts(b, i ? "," : "");
        put_number(b, tw_rand64(seed, 0, (uint64_t)i));
    }
    tw_buf_printf(b, "],\"dtype\":\"float32\"}}}],%s\"loss_fn\":\"cross_entropy\",\"loss_fn_config\":{}},"
            "\"model_id\":\"m\",\"seq_id\":12,\"type\":\"forward_backward\"}%s", space, space);
}

static struct tw_work *read_with(bool fast, const struct tw_buf *b)
{
    struct tw_work *w = tw_work_new(TW_FORWARD_BACKWARD);
    bool ok = tw_read_fb_fast(w, &limits, tw_buf_str(b), key);

    CHECK(ok == fast);
    tw_work_free(w);
    return tw_work_read(TW_FORWARD_BACKWARD, &limits, false, false, tw_buf_str(b), NULL);
}

static void the_same_numbers(void)
{
    struct tw_buf b = { 0 };

    for (uint64_t seed = 1; seed <= 40; seed++) {
        int n = (int)(seed * 53 % 2000) + 1;
        struct tw_work *w, *v;

        put_body(&b, seed, n, "", seed % 2 ? "" : " \n");
        w = read_with(true, &b);
        put_body(&b, seed, n, "\"unknown\":[{}],", "");
        v = read_with(false, &b);
        CHECK(w && v && !w->refused && !v->refused && w->seq == 12 && !strcmp(w->model, "m"));
        CHECK(w->fb.n == 1 && w->fb.tokens == n && v->fb.tokens == n && w->fb.d[0].k == v->fb.d[0].k);
        CHECK(!memcmp(w->fb.d[0].token, v->fb.d[0].token, (size_t)n * 4));
        CHECK(!memcmp(w->fb.d[0].target, v->fb.d[0].target, (size_t)n * 4));
        CHECK(!memcmp(w->fb.d[0].weight, v->fb.d[0].weight, (size_t)n * 4));
        tw_work_free(w);
        tw_work_free(v);
    }
    tw_buf_free(&b);
}

/* Cut anywhere, or with any byte changed, it is refused or read as the tree reads it. */
static void what_is_wrong_is_the_trees(void)
{
    struct tw_buf b = { 0 };

    for (int i = 0; i < 4000; i++) {
        struct tw_work *w = tw_work_new(TW_FORWARD_BACKWARD), *v = tw_work_new(TW_FORWARD_BACKWARD);
        struct tw_arena a = { 0 };
        struct tw_json *j;

        put_body(&b, 3, 6, "", i % 2 ? "" : " ");
        b.p[tw_rand64(5, 0, (uint64_t)i) % b.n] = "\"[]{},:0-. eE1\\n"[tw_rand64(5, 1, (uint64_t)i) % 15];
        if (i % 5 == 0)
            b.n = tw_rand64(5, 2, (uint64_t)i) % b.n;
        if (tw_read_fb_fast(w, &limits, tw_buf_str(&b), key)) {
            j = tw_json_parse(&a, tw_buf_str(&b), NULL);
            CHECK(j && !tw_read_fb_json(v, &limits, j, key, NULL) && !v->refused);
            CHECK(j && v->fb.tokens == w->fb.tokens && (v->fb.n == 0 || !memcmp(v->fb.d[0].weight,
                            w->fb.d[0].weight, (size_t)v->fb.d[0].n * 4)));
        }
        tw_work_free(w);
        tw_work_free(v);
        tw_arena_free(&a);
    }
    tw_buf_free(&b);
}

int main(void)
{
    RUN(the_same_numbers);
    RUN(what_is_wrong_is_the_trees);
    return test_end();
}
