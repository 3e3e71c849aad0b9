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

/* A list in the middle of some text; how many numbers it has, -1 when it is left to the tree. */
static int64_t list(const char *text, int32_t *x, float *f)
{
    char all[4096];
    int n = snprintf(all, sizeof all, "%32s[%s]%12s", "", text, "");
    const char *p = all + 33, *close = p + strlen(text);
    uint32_t at[512];
    int64_t count = tw_list_ends(p, close, all + n, at);

    return (x ? tw_list_integers(p, at, count, x) : tw_list_floats(p, at, count, f)) ? count : -1;
}

static void lists_of_numbers(void)
{
    static const char *const bad[] = { "1,", ",1", ",", "01", "-", "+1", "1 2", "1.5", "1e3", "2147483648",
        "-2147483649", "12345678901", "1,,2", "\"1\"", "0x1", "1\0012", "9999999999", "- 1" };
    static const char *const odd[] = { "1,", "1.", ".5", "-.5", "1e", "1.2.3", "0.1 2", "nan", "01.5", "1.5x", "--1" };
    int32_t x[512];
    float f[512];

    for (uint64_t seed = 0; seed < 300; seed++) {
        static const int64_t ten[] = { 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000,
            2147483648 };
        struct tw_buf b = { 0 };
        int32_t want[200];
        int n = (int)(seed * 7 % 200);
        bool same = true;

        for (int i = 0; i < n; i++) {
            uint64_t r = tw_rand64(9, seed, (uint64_t)i);

            want[i] = (int32_t)((int64_t)(r >> 20) % ten[r % 10]) * (r >> 8 & 1 ? -1 : 1);
            tw_buf_printf(&b, "%s%s%d%s", i ? "," : "", r >> 9 & 3 ? "" : " \n", want[i], r >> 11 & 7 ? "" : "\t");
        }
        CHECK_INT(list(b.p ? b.p : " ", x, NULL), n);
        for (int i = 0; i < n; i++)
            same &= x[i] == want[i];
        CHECK(same);
        tw_buf_free(&b);
    }
    CHECK(list("-2147483648, 2147483647 ", x, NULL) == 2 && x[0] == INT32_MIN && x[1] == INT32_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_INT(list(bad[i], x, NULL), -1);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        CHECK_INT(list(odd[i], NULL, f), -1);
}

int main(void)
{
    RUN(lists_of_numbers);
    RUN(the_same_numbers);
    RUN(what_is_wrong_is_the_trees);
    return test_end();
}
