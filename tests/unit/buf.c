/* Buffers, UTF-8, the arena, errors. */
#include "test.h"
#include "base/buf.h"
#include "base/err.h"
#include <stdlib.h>

static void a_buffer_grows_and_keeps_nul(void)
{
    struct tw_buf b = {0};

    CHECK(tw_buf_str(&b).n == 0 && tw_buf_str(&b).p);
    for (int i = 0; i < 1000; i++)
        tw_buf_printf(&b, "%d,", i);
    CHECK_INT(b.n, 3890);
    CHECK(b.p[b.n] == 0);
    tw_buf_clear(&b);
    tw_buf_add(&b, "a\0b", 3);
    tw_buf_putc(&b, 'c');
    tw_buf_add(&b, NULL, 0);
    CHECK(b.n == 4 && !memcmp(b.p, "a\0bc", 5));
    tw_buf_free(&b);
}

static void a_buffer_stops_at_its_maximum(void)
{
    struct tw_buf b = { .max = 10 };

    tw_buf_puts(&b, "12345678");
    CHECK(!b.over);
    tw_buf_puts(&b, "901");
    CHECK(b.over && b.n == 8);
    tw_buf_putc(&b, 'x');
    tw_buf_printf(&b, "%d", 1);
    CHECK(b.n == 8 && !tw_buf_grow(&b, 1));
    tw_buf_clear(&b);
    tw_buf_puts(&b, "1234567890");
    CHECK(!b.over && b.n == 10);
    tw_buf_free(&b);
}

static void utf8_is_checked(void)
{
    static const struct { const char *s; size_t n, good; } t[] = {
        { "", 0, 0 }, { "abcdefghij", 10, 10 }, { "\xC3\xA9", 2, 2 }, { "\xE2\x82\xAC", 3, 3 },
        { "\xF0\x9F\x98\x80", 4, 4 }, { "a\0b", 3, 3 }, { "abcdefgh\xC3(", 10, 8 },
        { "\xC0\x80", 2, 0 }, { "\xC1\xBF", 2, 0 }, { "\xE0\x9F\xBF", 3, 0 },
        { "\xED\x9F\xBF", 3, 3 }, { "\xED\xA0\x80", 3, 0 }, { "\xEE\x80\x80", 3, 3 },
        { "\xF0\x8F\xBF\xBF", 4, 0 }, { "\xF4\x8F\xBF\xBF", 4, 4 }, { "\xF4\x90\x80\x80", 4, 0 },
        { "\xF5\x80\x80\x80", 4, 0 }, { "x\x80", 2, 1 }, { "\xE2\x82", 2, 0 }, { "\xFF", 1, 0 },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        CHECK_INT(tw_utf8_check(t[i].s, t[i].n), t[i].good);
}

static void utf8_goes_round(void)
{
    char c[4];

    for (uint32_t u = 0; u <= 0x10FFFF; u += u < 0x3000 ? 1 : 37) {
        const char *p = c;
        int n = tw_utf8_put(c, u);
        uint32_t got = tw_utf8_next(&p, c + n);

        CHECK(p == c + n && got == (u >= 0xD800 && u < 0xE000 ? 0xFFFD : u));
    }
    const char *bad = "\xE2(", *p = bad;

    CHECK(tw_utf8_next(&p, bad + 2) == 0xFFFD && p == bad + 1);
    CHECK_INT(tw_utf8_put(c, 0x110000), 3);
}

static void an_arena_grows_and_resets(void)
{
    struct tw_arena a = {0};

    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 2000; i++) {
            unsigned char *p = tw_arena_alloc(&a, i);

            CHECK((uintptr_t)p % 16 == 0);
            for (size_t k = 0; k < i; k++)
                if (p[k]) {
                    CHECK(!"memory is not zeroed");
                    break;
                }
            memset(p, 0xAA, i);
        }
        CHECK(a.used >= 1999 * 1000);
        tw_arena_reset(&a);
        CHECK(a.used == 0 && a.head);
    }
    CHECK_STR(tw_arena_printf(&a, "%s-%d", "x", 7), "x-7");
    CHECK_STR(tw_arena_dup(&a, "abc", 2), "ab");
    tw_arena_free(&a);
}

static void errors_are_escaped_and_the_first_wins(void)
{
    struct tw_err e = {0};
    char big[4000];

    CHECK(tw_fail(&e, "a\nb", 7, "bad %s", "x\x1B[31m\ty\x7F\xc2\x9b\xc2\xa0") == -1);
    CHECK_STR(e.msg, "bad x\\x1b[31m\\ty\\x7f\\x9b\xc2\xa0");
    CHECK_STR(e.place, "a\\nb");
    CHECK(e.line == 7 && e.code == TW_EFAIL);
    tw_fail_code(&e, TW_ENETWORK, "c", 1, "second");
    CHECK(e.line == 7 && e.code == TW_EFAIL);
    CHECK(tw_fail(NULL, NULL, 0, "lost") == -1);
    tw_err_clear(&e);
    tw_fail_code(&e, TW_ENETWORK, NULL, 0, "x");
    CHECK(e.code == TW_ENETWORK && !e.place[0]);
    tw_err_place(&e, "f", 3);
    tw_err_place(&e, "g", 4);
    CHECK(e.line == 3 && !strcmp(e.place, "f"));
    tw_err_clear(&e);
    memset(big, 'x', sizeof(big));
    for (size_t i = 0; i + 2 < sizeof(big); i += 2)
        memcpy(big + i, "\xC3\xA9", 2);
    big[sizeof(big) - 1] = 0;
    tw_fail(&e, NULL, 0, "y%s", big);
    CHECK(strlen(e.msg) < sizeof(e.msg) && tw_utf8_check(e.msg, strlen(e.msg)) == strlen(e.msg));
    CHECK(!strcmp(e.msg + strlen(e.msg) - 3, "..."));
}

int main(void)
{
    RUN(a_buffer_grows_and_keeps_nul);
    RUN(a_buffer_stops_at_its_maximum);
    RUN(utf8_is_checked);
    RUN(utf8_goes_round);
    RUN(an_arena_grows_and_resets);
    RUN(errors_are_escaped_and_the_first_wins);
    return test_end();
}
