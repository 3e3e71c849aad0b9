/* The record reader. */
#include "test.h"
#include "base/io.h"
#include "base/jsonl.h"
#include "base/log.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static char path[] = "/tmp/tw-jsonl-XXXXXX";
static struct tw_err err;
static struct tw_jsonl *in;
static struct tw_rec rec;

static void give(const void *p, size_t n)
{
    static char *paths[1] = { path };

    tw_jsonl_close(in);
    tw_err_clear(&err);
    if (tw_write_file(path, p, n, &err) || !(in = tw_jsonl_open(paths, 1, &err)))
        printf("# %s\n", err.msg);
}

static void give_text(const char *s)
{
    give(s, strlen(s));
}

/* The next record's "a", -1 the end, -2 an error. */
static int64_t next(void)
{
    int64_t v = -3;
    int got;

    tw_err_clear(&err);
    got = tw_jsonl_next(in, &rec, &err);
    if (got > 0)
        tw_json_get_int(rec.json, "a", &v, &err);
    return got > 0 ? v : got < 0 ? -2 : -1;
}

static void lines(void)
{
    give_text("{\"a\":1}\n\r\n  \t\n{\"a\":2}\r\n\n\n{\"a\":3}");
    CHECK_INT(next(), 1);
    CHECK(rec.line == 1 && rec.offset == 0 && tw_str_is(rec.text, "{\"a\":1}"));
    CHECK_INT(next(), 2);
    CHECK(rec.line == 4 && rec.offset == 14 && tw_str_is(rec.text, "{\"a\":2}"));
    CHECK_INT(next(), 3);
    CHECK(rec.line == 7);
    CHECK_INT(next(), -1);
    CHECK_INT(next(), -1);
    give_text("");
    CHECK_INT(next(), -1);
    give_text("\n\n\n");
    CHECK_INT(next(), -1);
}

/* D04: only byte 0x0A ends a record. */
static void unicode_separators_are_data(void)
{
    give_text("{\"a\":1,\"s\":\"x\xE2\x80\xA8y\xE2\x80\xA9z\xC2\x85w\"}\n{\"a\":2}\n");
    CHECK_INT(next(), 1);
    CHECK_INT(tw_json_get(rec.json, "s")->str.n, 12);
    CHECK_INT(next(), 2);
    give_text("{\"a\":1}\r{\"a\":2}\n");       /* a lone CR does not end a record */
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "expected nothing behind the value, not '{' at column 9");
}

/* D01: a byte order mark. */
static void byte_order_marks(void)
{
    tw_log_init("test", TW_QUIET, 0);
    give_text("\xEF\xBB\xBF{\"a\":1}\n\xEF\xBB\xBF{\"a\":2}\n");
    CHECK_INT(next(), 1);
    CHECK(rec.line == 1 && rec.offset == 3);
    CHECK_INT(next(), -2);                      /* elsewhere it is text, which JSON has no place for */
    give("\xFF\xFE{\0", 4);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "UTF-16 text: convert it to UTF-8 first");
    CHECK(!tw_jsonl_skippable(in));
    give("\xFE\xFF\0{", 4);
    CHECK_INT(next(), -2);
    give("\xFF\xFE\0\0{\0\0\0", 8);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "UTF-32 text: convert it to UTF-8 first");
    give_text("\xEF\xBB\xBF[{\"a\":1}]");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -1);
}

/* D05: NUL is data where JSON allows it, an error with a place where not. */
static void nul_is_data(void)
{
    const struct tw_json *s;

    give_text("{\"a\":1,\"s\":\"A\\u0000B\"}\n");
    CHECK_INT(next(), 1);
    s = tw_json_get(rec.json, "s");
    CHECK(s->str.n == 3 && !memcmp(s->str.p, "A\0B", 3));
    give("{\"a\":\"x\0\"}\n{\"a\":2}\n", 19);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "control character 0x00 in a string at column 8");
    CHECK_INT(err.line, 1);
    CHECK(tw_jsonl_skippable(in));
    CHECK_INT(next(), 2);
}

/* D09: each bad byte is reported at its line and offset. */
static void bytes_that_are_not_utf8(void)
{
    static const struct { const char *s, *msg; } t[] = {
        { "\xC3\x28", "not UTF-8: byte 0xc3 at column 7, offset 14 of the file" },
        { "\xED\xA0\x80", "not UTF-8: byte 0xed at column 7, offset 14 of the file" },
        { "\xF4\x90\x80\x80", "not UTF-8: byte 0xf4 at column 7, offset 14 of the file" },
        { "\xC0\x80", "not UTF-8: byte 0xc0 at column 7, offset 14 of the file" },
    };
    char text[64];

    for (size_t i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "{\"a\":1}\n{\"s\":\"%s\"}\n{\"a\":3}\n", t[i].s);
        give_text(text);
        CHECK_INT(next(), 1);
        CHECK_INT(next(), -2);
        CHECK_STR(err.msg, t[i].msg);
        CHECK_INT(err.line, 2);
        CHECK_INT(next(), 3);
        give_text(text);
        tw_jsonl_replace(in, true);
        CHECK_INT(next(), 1);
        CHECK_INT(next(), -3);
        struct tw_str s = tw_json_get(rec.json, "s")->str;

        CHECK(tw_utf8_check(s.p, s.n) == s.n && !memcmp(s.p, "\xEF\xBF\xBD", 3));
    }
}

/* D10: duplicate keys; and records that are no objects, bad JSON. */
static void bad_records_name_their_line(void)
{
    int64_t line;
    const char *file;

    give_text("{\"a\":1}\n{\"a\":1,\"a\":2}\n[1]\n{\"a\":\n{\"a\":5}\n");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "duplicate key 'a', its second value at column 12");
    CHECK(err.line == 2 && !strcmp(err.place, path));
    CHECK(tw_str_is(tw_jsonl_line(in, &line, &file), "{\"a\":1,\"a\":2}") && line == 2);
    CHECK_STR(file, path);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "a record must be an object, not an array");
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "unterminated object, opened at column 1");
    CHECK_INT(err.line, 4);
    CHECK_INT(next(), 5);
    CHECK_INT(next(), -1);
}

/* D11, D12: a file that is one array, in one line or many; strings stay strings. */
static void arrays(void)
{
    give_text(" \n [ {\"a\":1,\"s\":\"]},\\\"{[\"} ,\n{\"a\":2,\n\"b\":[[],{}]}\n,{\"a\":3}]\n ");
    CHECK_INT(next(), 1);
    CHECK(rec.line == 2 && tw_str_is(rec.text, "{\"a\":1,\"s\":\"]},\\\"{[\"}"));
    CHECK_INT(rec.offset, 5);
    CHECK_INT(next(), 2);
    CHECK_INT(rec.line, 3);
    CHECK_INT(next(), 3);
    CHECK_INT(rec.line, 5);
    CHECK_INT(next(), -1);
    give_text("[]");
    CHECK_INT(next(), -1);
    give_text("[{\"a\":1},{\"a\":x},7,{\"a\":2}]");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -2);
    CHECK(tw_jsonl_skippable(in));
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "a record must be an object, not a number");
    CHECK_INT(next(), 2);
    CHECK_INT(next(), -1);
    give_text("[{\"a\":1},]");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -2);
    give_text("[{\"a\":1}");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "unterminated array");
    give_text("[{\"a\":1");
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "unterminated array element 1");
    give_text("[{\"a\":1}] x");
    CHECK_INT(next(), 1);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "text behind the end of the array");
    give_text("{\"a\":1,\"s\":\"007\",\"t\":\"action: string, datetime: timestamp[s]\"}\n");
    CHECK_INT(next(), 1);
    CHECK(tw_json_get(rec.json, "s")->type == TW_JSTR);
    CHECK(tw_str_is(tw_json_get(rec.json, "t")->raw, "\"action: string, datetime: timestamp[s]\""));
}

static void several_files(void)
{
    char *two[2] = { path, path }, *none[2] = { path, "/tmp/tw-no-such-file" };
    char *folder[1] = { "/tmp" };

    give_text("{\"a\":1}\n{\"a\":2}");
    tw_jsonl_close(in);
    in = tw_jsonl_open(two, 2, &err);
    CHECK(next() == 1 && next() == 2 && next() == 1 && rec.line == 1 && next() == 2);
    CHECK_INT(next(), -1);
    tw_err_clear(&err);
    CHECK(!tw_jsonl_open(none, 2, &err));
    CHECK_STR(err.msg, "cannot open: No such file or directory");
    tw_err_clear(&err);
    CHECK(!tw_jsonl_open(folder, 1, &err));
    CHECK_STR(err.msg, "cannot read records: this is a folder");
}

static void long_lines(void)
{
    const size_t n = (size_t)100 << 20;
    char *big = malloc(n + 64);

    memset(big, 'x', n);
    memcpy(big, "{\"a\":7,\"s\":\"", 12);
    memcpy(big + n, "\"}\n{\"a\":8}\n", 11);
    give(big, n + 11);
    CHECK_INT(next(), 7);
    CHECK_INT(rec.text.n, n + 2);
    CHECK_INT(next(), 8);
    CHECK_INT(rec.line, 2);
    give(big, n + 11);
    tw_jsonl_limit(in, 1 << 20);
    CHECK_INT(next(), -2);
    CHECK_STR(err.msg, "a line of 104857602 bytes is over the limit of 1048576");
    CHECK(err.line == 1 && tw_jsonl_skippable(in));
    CHECK_INT(next(), 8);
    CHECK_INT(next(), -1);
    free(big);
}

static void a_million_empty_lines(void)
{
    char *s = malloc(1000000);
    clock_t t = clock();

    memset(s, '\n', 1000000);
    memcpy(s + 999990, "{\"a\":1}", 7);
    give(s, 1000000);
    CHECK_INT(next(), 1);
    CHECK_INT(rec.line, 999991);
    CHECK((double)(clock() - t) < 10.0 * CLOCKS_PER_SEC);
    free(s);
}

/* A record in a pipe is delivered before the writer sends the next one. */
static void pipes_do_not_wait(void)
{
    int p[2], keep = dup(0);
    char *paths[1] = { "-" };

    if (pipe(p) || keep < 0 || dup2(p[0], 0) < 0) {
        CHECK(!"no pipe");
        return;
    }
    tw_jsonl_close(in);
    in = tw_jsonl_open(paths, 1, &err);
    CHECK_INT(write(p[1], "{}\n", 3), 3);
    CHECK_INT(next(), -3);
    CHECK_STR(rec.file, "stdin");
    CHECK_INT(write(p[1], "{\"a\":2}\n{\"a\"", 12), 12);
    CHECK_INT(next(), 2);
    CHECK_INT(write(p[1], ":3}", 3), 3);
    close(p[1]);
    CHECK_INT(next(), 3);
    CHECK_INT(next(), -1);
    dup2(keep, 0);
    close(keep);
    close(p[0]);
}

int main(void)
{
    int fd = mkstemp(path);

    if (fd < 0)
        return 1;
    close(fd);
    RUN(lines);
    RUN(unicode_separators_are_data);
    RUN(byte_order_marks);
    RUN(nul_is_data);
    RUN(bytes_that_are_not_utf8);
    RUN(bad_records_name_their_line);
    RUN(arrays);
    RUN(several_files);
    RUN(long_lines);
    RUN(a_million_empty_lines);
    RUN(pipes_do_not_wait);
    tw_jsonl_close(in);
    unlink(path);
    return test_end();
}
