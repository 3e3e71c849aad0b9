/* rows.c - data files as records */
#include "test.h"
#include "base/io.h"
#include "data/rows.h"
#include <stdlib.h>
#include <unistd.h>

static char top[] = "/tmp/tw-rows-XXXXXX";

/* Reads NAME with TEXT in it; appends each row's JSON and '\n', or "!LINE:message\n" for a bad one
 * that can be stepped over. Returns the last answer of the reader. */
static int read_text(const char *name, const char *text, size_t n, struct tw_buf *got)
{
    char *path = tw_path_join(top, name);
    struct tw_err err = {0};
    struct tw_rows *in;
    struct tw_rec rec;
    int k = -1;

    tw_buf_clear(got);
    CHECK(tw_write_file(path, text, n, &err) == 0);
    in = tw_rows_open(&path, 1, &err);
    while (in && (k = tw_rows_next(in, &rec, &err))) {
        if (k > 0) {
            tw_buf_printf(got, "%lld ", (long long)rec.line);
            tw_buf_adds(got, rec.text);
            tw_buf_putc(got, '\n');
        } else {
            tw_buf_printf(got, "!%lld:%s\n", (long long)err.line, err.msg);
            if (!tw_rows_skippable(in))
                break;
            tw_err_clear(&err);
        }
    }
    if (!in)
        tw_buf_printf(got, "!%s\n", err.msg);
    tw_rows_close(in);
    free(path);
    return k;
}

static void expect(const char *name, const char *text, const char *want)
{
    struct tw_buf got = {0};

    read_text(name, text, strlen(text), &got);
    CHECK_STR(got.n ? got.p : "", want);
    tw_buf_free(&got);
}

static void csv_plain(void)
{
    expect("a.csv", "a,b\n1,2\n3,4", "2 {\"a\":\"1\",\"b\":\"2\"}\n3 {\"a\":\"3\",\"b\":\"4\"}\n");
    expect("a.csv", "a,b\r\n1,\r\n\r\n,4\r\n", "2 {\"a\":\"1\",\"b\":\"\"}\n4 {\"a\":\"\",\"b\":\"4\"}\n");
    expect("a.tsv", "a\tb\n1,5\t2\n", "2 {\"a\":\"1,5\",\"b\":\"2\"}\n");
    expect("a.csv", "\xef\xbb\xbf" "a\n1\n", "2 {\"a\":\"1\"}\n");
    expect("a.csv", "", "");
    expect("a.csv", "a,b\n", "");
}

static void csv_text_is_not_typed(void)
{
    expect("a.csv", "a,b,c,d,e\n007,1e5,null,true,2024-01-01\n",
            "2 {\"a\":\"007\",\"b\":\"1e5\",\"c\":\"null\",\"d\":\"true\",\"e\":\"2024-01-01\"}\n");
}

static void csv_quotes(void)
{
    expect("a.csv", "a,b\n\"x, \"\"y\"\"\nz\",\"\"\n5,6\n",
            "2 {\"a\":\"x, \\\"y\\\"\\nz\",\"b\":\"\"}\n4 {\"a\":\"5\",\"b\":\"6\"}\n");
    expect("a.csv", "a,b\nsay \"hi\",2\n", "2 {\"a\":\"say \\\"hi\\\"\",\"b\":\"2\"}\n");
    expect("a.csv", "a\nx\ry\n", "2 {\"a\":\"x\\ry\"}\n");
}

static void csv_bad_rows(void)
{
    expect("a.csv", "a,b\n1\n2,3\n", "!2:1 fields where the header names 2 columns\n"
            "3 {\"a\":\"2\",\"b\":\"3\"}\n");
    expect("a.csv", "a,b\n\"1\"x,2\n2,3\n", "!2:text behind the closing quote of field 1\n"
            "3 {\"a\":\"2\",\"b\":\"3\"}\n");
    expect("a.csv", "a\n1\n\"2\n3\n", "2 {\"a\":\"1\"}\n!3:a quoted field is not closed\n");
    expect("a.csv", "a,a\n1,2\n", "!1:two columns have the name \"a\"\n");
    expect("a.csv", "a\n\xc3\x28\nok\n", "!2:not UTF-8 at byte 1 of the row\n3 {\"a\":\"ok\"}\n");
    expect("a.csv", "\xff\xfe" "a", "!1:is UTF-16 (little-endian): convert it to UTF-8\n");
}

static void csv_long(void)
{
    struct tw_buf text = {0};
    char *path = tw_path_join(top, "a.csv");
    struct tw_err err = {0};
    struct tw_rows *in;
    struct tw_rec rec;

    tw_buf_puts(&text, "a,b\n");
    for (int i = 0; i < 300000; i++)
        tw_buf_puts(&text, "abcdefg");
    tw_buf_puts(&text, ",z\nq,r\n");
    CHECK(tw_write_file(path, text.p, text.n, &err) == 0);
    in = tw_rows_open(&path, 1, &err);
    tw_rows_limit(in, 1000);
    CHECK(tw_rows_next(in, &rec, &err) == -1 && strstr(err.msg, "longer than 1000 bytes"));
    tw_rows_close(in);
    tw_buf_free(&text);
    free(path);
}

static void nul_is_data(void)
{
    struct tw_buf got = {0};

    read_text("a.csv", "a\nx\0y\n", 6, &got);
    CHECK_STR(got.p, "2 {\"a\":\"x\\u0000y\"}\n");
    tw_buf_free(&got);
}

static void json_kinds(void)
{
    expect("a.jsonl", "{\"a\": 1}\n\n{\"b\":null}\n", "1 {\"a\": 1}\n3 {\"b\":null}\n");
    expect("a.json", "[{\"a\":1},\n {\"a\":2}]", "1 {\"a\":1}\n2 {\"a\":2}\n");
    expect("a.parquet", "PAR1", "!Parquet and Arrow files are not read: give .jsonl, .json or .csv\n");
}

int main(void)
{
    struct tw_err err = {0};

    if (!mkdtemp(top))
        return 1;
    RUN(csv_plain);
    RUN(csv_text_is_not_typed);
    RUN(csv_quotes);
    RUN(csv_bad_rows);
    RUN(csv_long);
    RUN(nul_is_data);
    RUN(json_kinds);
    tw_rmtree(top, &err);
    return test_end();
}
