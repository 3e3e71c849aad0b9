/* http.c - the parts of the HTTP client that need no server */
#include "test.h"
#include "data/archive.h"
#include "data/http_priv.h"
#include "data/sha1.h"
#include "base/io.h"
#include <stdlib.h>

static void shown_urls_hide_secrets(void)
{
    static const char *const pair[][2] = {
        { "https://h/a/b?X-Amz-Signature=s#f", "https://h/a/b" },
        { "https://joe:pw@h:8/a", "https://h:8/a" },
        { "https://h/a@b", "https://h/a@b" },
        { "https://h", "https://h" },
        { "no url?x", "no url" },
        { "?https://a@b", "" },
    };

    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        char *got = tw_http_show(pair[i][0]);

        CHECK_STR(got, pair[i][1]);
        free(got);
    }
}

static void urls_are_checked(void)
{
    static const char *const good[] = { "https://h/x", "http://127.0.0.1:80/", "http://localhost/x",
        "http://127.9.9.9/x", "http://[::1]:5/x" };
    static const char *const bad[] = { "http://h/x", "http://128.0.0.1/", "ftp://h/", "h/x", "",
        "https://", "https://u@h/", "https://u:p@h/", "http://127.0.0.1.evil.com/", "file:///x",
        "http://localhost.evil.com/" };
    struct tw_err err = {0};

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(tw_http_check_url(good[i], "url", &err) == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tw_err_clear(&err);
        CHECK(tw_http_check_url(bad[i], "url", &err) == -1 && err.code);
    }
}

static void origins_differ_by_scheme_host_and_port(void)
{
    static const struct { const char *a, *b; bool same; } pair[] = {
        { "https://h/x", "https://H:443/y", true },
        { "https://127.0.0.1/x", "http://127.0.0.1/x", false },
        { "https://h/x", "https://h:444/x", false },
        { "https://h/x", "https://i/x", false },
        { "https://h/x", "https://h.i/x", false },
    };
    struct origin a, b;

    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        CHECK(!tw_origin_parse(&a, pair[i].a, NULL, NULL));
        CHECK(!tw_origin_parse(&b, pair[i].b, NULL, NULL));
        CHECK(tw_origin_same(&a, &b) == pair[i].same);
        tw_origin_free(&a);
        tw_origin_free(&b);
    }
}

static void answer(struct tw_http_res *res, const char *first, const char *last)
{
    tw_http_res_free(res);
    tw_buf_puts(&res->head, first);
    res->last = res->head.n;
    tw_buf_puts(&res->head, last);
}

static void headers(void)
{
    struct tw_http_res res = {0};
    struct tw_str v;

    answer(&res, "ETag: a\nX-Linked-Etag:  \"b\"\n", "etag: c\nLink:\n");
    CHECK(tw_http_header(&res, "ETag", false, &v) && tw_str_is(v, "c"));
    CHECK(tw_http_header(&res, "ETag", true, &v) && tw_str_is(v, "a"));
    CHECK(!tw_http_header(&res, "X-Linked-Etag", false, &v));
    CHECK(tw_http_header(&res, "x-linked-etag", true, &v) && tw_str_is(v, "\"b\""));
    CHECK(tw_http_header(&res, "Link", false, &v) && v.n == 0);
    CHECK(!tw_http_header(&res, "Lin", true, &v));
    tw_http_res_free(&res);
}

static void pauses(void)
{
    struct tw_http_res res = {0};

    answer(&res, "Retry-After: 9\n", "Retry-After: 7\n");
    CHECK_NEAR(tw_http_retry_after(&res), 7, 0);
    answer(&res, "", "RateLimit: \"api\";r=0;t=55\n");
    CHECK_NEAR(tw_http_retry_after(&res), 55, 0);
    answer(&res, "", "RateLimit: \"api\";r=3;t=55\n");
    CHECK_NEAR(tw_http_retry_after(&res), 0, 0);
    answer(&res, "", "RateLimit-Reset: 12\n");
    CHECK_NEAR(tw_http_retry_after(&res), 12, 0);
    answer(&res, "", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\n");
    CHECK_NEAR(tw_http_retry_after(&res), 0, 0);
    answer(&res, "", "Retry-After: soon\n");
    CHECK_NEAR(tw_http_retry_after(&res), 0, 0);
    answer(&res, "", "Retry-After: 1e30\n");
    CHECK_NEAR(tw_http_retry_after(&res), 0, 0);
    tw_http_res_free(&res);
}

static void quoting(void)
{
    struct tw_buf b = {0};

    tw_http_quote(&b, TW_STR_LIT("a/b c+\xc3\xa9~_.-%"), true);
    CHECK_STR(b.p, "a/b%20c%2B%C3%A9~_.-%25");
    tw_buf_clear(&b);
    tw_http_quote(&b, TW_STR_LIT("a/b\0"), false);
    CHECK_STR(b.p, "a%2Fb%00");
    tw_buf_free(&b);
}

static void sha1_of(const char *text, size_t n, const char *want)
{
    struct tw_sha1 s;
    unsigned char sum[20];
    char hex[41];

    for (size_t step = 1; step < 200; step += 37) {
        tw_sha1_init(&s);
        for (size_t at = 0; at < n; at += step)
            tw_sha1_add(&s, text + at, n - at < step ? n - at : step);
        tw_sha1_end(&s, sum);
        tw_hex(hex, sum, 20);
        CHECK_STR(hex, want);
    }
}

static void sha1(void)
{
    char many[1000];

    memset(many, 'a', sizeof many);
    sha1_of("", 0, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    sha1_of("abc", 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
    sha1_of(many, 55, "c1c8bbdc22796e28c0e15163d20899b65621d65a");
    sha1_of(many, 56, "c2db330f6083854c99d4b5bfb6e8f29f201be699");
    sha1_of(many, 64, "0098ba824b5c16427bd7a1122a5a442a25ec644d");
    sha1_of(many, 1000, "291e9a6c66994949b57ba5e650361e98fc36b1ba");
}

static void archive_names(void)
{
    const char *m = NULL;

    CHECK(tw_archive_is("a.tar.gz") && tw_archive_is("A.ZIP") && tw_archive_is("x/b.whl") &&
            tw_archive_is("r.jsonl.zst") && !tw_archive_is("a.jsonl") && !tw_archive_is(".gz"));
    CHECK_INT(tw_archive_split("a.tar!b/c", &m), 5);
    CHECK_STR(m, "b/c");
    CHECK_INT(tw_archive_split("x!y.zip!m!n", &m), 7);
    CHECK_STR(m, "m!n");
    CHECK_INT(tw_archive_split("a.txt!b", &m), 0);
    CHECK_INT(tw_archive_split("a.zip!", &m), 0);
    CHECK_INT(tw_archive_split("a.zip", &m), 0);
}

int main(void)
{
    RUN(shown_urls_hide_secrets);
    RUN(urls_are_checked);
    RUN(origins_differ_by_scheme_host_and_port);
    RUN(headers);
    RUN(pauses);
    RUN(quoting);
    RUN(sha1);
    RUN(archive_names);
    return test_end();
}
