/* The JSON reader and writer. */
#include "test.h"
#include "base/json.h"
#include <stdlib.h>

static struct tw_arena arena;
static struct tw_err err;

static struct tw_json *parse(const char *s)
{
    tw_err_clear(&err);
    return tw_json_parse(&arena, tw_str(s), &err);
}

/* S is refused, and the message is WANT. */
#define BAD(s, want)                                                                               \
    do {                                                                                           \
        CHECK(!parse(s));                                                                          \
        CHECK_STR(err.msg, want);                                                                  \
    } while (0)

static void values(void)
{
    struct tw_json *v = parse(" {\"a\": [1, -2.5, true, null, \"x\\u00e9\\n\"], \"b\": {}} \n");

    CHECK(v && v->type == TW_JOBJ && v->n == 2);
    if (!v)
        return;
    const struct tw_json *a = tw_json_get(v, "a");

    CHECK_INT(a->n, 5);
    CHECK(a->item[0].is_int && a->item[0].i == 1 && a->item[0].d == 1);
    CHECK(!a->item[1].is_int && a->item[1].d == -2.5);
    CHECK(a->item[2].type == TW_JBOOL && a->item[2].b);
    CHECK(a->item[3].type == TW_JNULL);
    CHECK(tw_str_is(a->item[4].str, "x\xC3\xA9\n"));
    CHECK(tw_str_is(a->item[4].raw, "\"x\\u00e9\\n\""));
    CHECK(tw_str_is(a->raw, "[1, -2.5, true, null, \"x\\u00e9\\n\"]"));
    CHECK(tw_str_is(a->key, "a"));
    CHECK(tw_json_get(v, "b")->type == TW_JOBJ && tw_json_get(v, "b")->n == 0);
    CHECK(!tw_json_get(v, "c"));
}

static void numbers(void)
{
    static const struct { const char *s; bool is_int; int64_t i; double d; } t[] = {
        { "0", true, 0, 0 }, { "-0", true, 0, -0.0 }, { "9223372036854775807", true, INT64_MAX,
                9223372036854775807.0 }, { "-9223372036854775808", true, INT64_MIN, -0x1p63 },
        { "9223372036854775808", false, 0, 0x1p63 }, { "1.0", false, 0, 1 },
        { "1e3", false, 0, 1000 }, { "9007199254740993", true, 9007199254740993, 0x1p53 },
        { "0.1", false, 0, 0.1 }, { "5e-324", false, 0, 5e-324 }, { "1E+2", false, 0, 100 },
        { "123456789012345678901234567890", false, 0, 123456789012345678901234567890.0 },
        { "1.7976931348623157e308", false, 0, 1.7976931348623157e308 },
        { "0.3e-5", false, 0, 0.3e-5 }, { "3.141592653589793238462643", false, 0, 3.141592653589793 },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct tw_json *v = parse(t[i].s);

        CHECK(v && v->type == TW_JNUM && v->is_int == t[i].is_int && v->d == t[i].d);
        CHECK(v && (!v->is_int || v->i == t[i].i));
    }
    CHECK(isinf(parse("1e999")->d));
    BAD("01", "bad number '01' at column 1");
    BAD("[1.]", "bad number '1.' at column 2");
    BAD("-", "bad number '-' at column 1");
    BAD("[.5]", "expected a value, not '.' at column 2");
    BAD("[1e]", "bad number '1e' at column 2");
    BAD("[+1]", "expected a value, not '+' at column 2");
    BAD("0x10", "bad number '0x10' at column 1");
    BAD("NaN", "bad value 'NaN' at column 1");
    BAD("[Infinity]", "expected a value, not 'I' at column 2");
    BAD("[nul]", "bad value 'nul' at column 2");
    BAD("[truex]", "bad value 'truex' at column 2");
}

static void strings(void)
{
    struct tw_json *v = parse("\"A\\u0000B\"");

    CHECK(v && v->str.n == 3 && !memcmp(v->str.p, "A\0B", 3));
    v = parse("\"\\ud83d\\ude00 \\\"\\\\\\/\\b\\f\\n\\r\\t\"");
    CHECK(v && tw_str_is(v->str, "\xF0\x9F\x98\x80 \"\\/\b\f\n\r\t"));
    v = parse("\"\xE2\x80\xA8\xC2\x85\x7F\"");
    CHECK(v && v->str.n == 6);
    v = parse("\"\xEF\xBF\xBD\"");              /* U+FFFD itself is text like any other */
    CHECK(v && v->str.n == 3);
    BAD("\"\\ud83d\"", "lone surrogate \\ud83d at column 2");
    BAD("\"\\ud83d\\u0041\"", "lone surrogate \\ud83d at column 2");
    BAD("\"ab\\ude00\"", "lone surrogate \\ude00 at column 4");
    BAD("\"\\ud83d\\ud83d\\ude00\"", "lone surrogate \\ud83d at column 2");
    BAD("\"\\x\"", "unknown escape in a string at column 2");
    BAD("\"\\u12G4\"", "\\u needs four hexadecimal digits at column 2");
    BAD("\"a\nb\"", "control character 0x0a in a string at column 3");
    BAD("\"abc", "unterminated string, opened at column 1");
    BAD("\"abc\\", "unterminated string at column 5");
    BAD("[\"\xC3\x28\"]", "not UTF-8: byte 0xc3 at column 3");
    BAD("\"\xED\xA0\x80\"", "not UTF-8: byte 0xed at column 2");
    BAD("\"\xF4\x90\x80\x80\"", "not UTF-8: byte 0xf4 at column 2");
    BAD("\"\xC0\x80\"", "not UTF-8: byte 0xc0 at column 2");
    BAD("\"0123456789abcdef\xFF\"", "not UTF-8: byte 0xff at column 18");
}

static void structure(void)
{
    BAD("", "empty: expected a value");
    BAD(" \n", "empty: expected a value");
    BAD("{\"a\":1", "unterminated object, opened at column 1");
    BAD("{\"a\":[1", "unterminated array, opened at column 6");
    BAD("[1 2]", "expected ',' or ']', not '2' at column 4");
    BAD("[1 2 3 4 5 6 7 8 9]", "expected ',' or ']', not '2' at column 4");
    BAD("[1,]", "expected a value, not ']' at column 4");
    BAD("[,1]", "expected a value, not ',' at column 2");
    BAD("[1,,2]", "expected a value, not ',' at column 4");
    BAD("{\"a\" 1}", "expected ':' after a key, not '1' at column 6");
    BAD("{\"a\"}", "expected ':' after a key, not '}' at column 5");
    BAD("{\"a\":}", "expected a value, not '}' at column 6");
    BAD("{\"a\":1,}", "expected a key in quotes, not '}' at column 8");
    BAD("{1:2}", "expected a key in quotes, not '1' at column 2");
    BAD("{a:2}", "expected a key in quotes, not 'a' at column 2");
    BAD("{\"a\":1:2}", "bad number '1:2' at column 6");
    BAD("{\"a\":1 \"b\":2}", "expected ',' or '}', not '\"' at column 8");
    BAD("{[1]:2}", "expected a key in quotes, not '[' at column 2");
    BAD("[1}", "unexpected '}' at column 3");
    BAD("]", "unexpected ']' at column 1");
    BAD("[1]]", "unexpected ']' at column 4");
    BAD("[1] x", "expected nothing behind the value, not 'x' at column 5");
    BAD("{}{}", "expected nothing behind the value, not '{' at column 3");
    BAD("1 2", "expected nothing behind the value, not '2' at column 3");
    BAD("\"a\" \"b\"", "expected nothing behind the value, not '\"' at column 5");
    BAD("[1:2]", "bad number '1:2' at column 2");
    BAD("[\"a\":2]", "expected ',' or ']', not ':' at column 5");
    BAD("'a'", "bad value ''a'' at column 1");
    BAD("[1]\xC2\xA0", "expected nothing behind the value, not byte 0xc2 at column 4");
    tw_err_clear(&err);
    CHECK(!tw_json_parse(&arena, (struct tw_str){ "[1,\0 2]", 7 }, &err));
    CHECK_STR(err.msg, "expected a value, not byte 0x00 at column 4");
    tw_err_clear(&err);
    CHECK(!tw_json_parse(&arena, (struct tw_str){ "[1]\0", 4 }, &err));
    CHECK_STR(err.msg, "expected nothing behind the value, not byte 0x00 at column 4");
}

static void depth_is_bounded(void)
{
    char s[2 * (TW_JSON_DEPTH + 1) + 1];

    for (int d = TW_JSON_DEPTH; d <= TW_JSON_DEPTH + 1; d++) {
        memset(s, '[', (size_t)d);
        memset(s + d, ']', (size_t)d);
        s[2 * d] = 0;
        CHECK(!!parse(s) == (d == TW_JSON_DEPTH));
    }
    CHECK_STR(err.msg, "nested deeper than 512 at column 513");
}

static void duplicate_keys(void)
{
    struct tw_buf b = {0};
    int64_t dups;
    struct tw_json *v;

    BAD("{\"a\":1,\"\\u0061\":2}", "duplicate key 'a', its second value at column 17");
    tw_err_clear(&err);
    v = tw_json_parse_dups(&arena, tw_str("{\"a\":1,\"b\":2,\"a\":{\"x\":0,\"x\":1}}"), &dups, &err);
    CHECK(v && v->n == 2 && dups == 2);
    CHECK(v && tw_str_is(v->item[0].raw, "{\"x\":0,\"x\":1}") && v->item[0].n == 1);
    for (int i = 0; i < 5000; i++)
        tw_buf_printf(&b, "%c\"k%d\":%d", i ? ',' : '{', i % 4000, i);
    tw_buf_putc(&b, '}');
    CHECK(!tw_json_parse(&arena, tw_buf_str(&b), &err));
    tw_err_clear(&err);
    v = tw_json_parse_dups(&arena, tw_buf_str(&b), &dups, &err);
    CHECK(v && v->n == 4000 && dups == 1000 && v->item[999].i == 4999 && v->item[1000].i == 1000);
    tw_buf_free(&b);
}

static void typed_fields(void)
{
    struct tw_json *v = parse("{\"i\":3,\"f\":2.0,\"g\":2.5,\"s\":\"x\",\"n\":null,\"b\":false,"
                              "\"big\":1e400}");
    int64_t i = 7;
    double d = 7;
    bool b = true;
    struct tw_str s;

    CHECK(tw_json_get_int(v, "i", &i, &err) == 1 && i == 3);
    CHECK(tw_json_get_int(v, "f", &i, &err) == 1 && i == 2);
    CHECK(tw_json_get_int(v, "n", &i, &err) == 0 && i == 2);
    CHECK(tw_json_get_num(v, "g", &d, &err) == 1 && d == 2.5);
    CHECK(tw_json_get_bool(v, "b", &b, &err) == 1 && !b);
    CHECK(tw_json_get_str(v, "s", &s, &err) == 1 && tw_str_is(s, "x"));
    CHECK(tw_json_has(v, "n") && !tw_json_has(v, "m"));
    CHECK(tw_json_get_int(v, "g", &i, &err) == -1);
    CHECK_STR(err.msg, "'g' must be a whole number of 64 bits, not 2.5");
    tw_err_clear(&err);
    CHECK(tw_json_get_num(v, "s", &d, &err) == -1);
    CHECK_STR(err.msg, "'s' must be a number, not a string");
    tw_err_clear(&err);
    CHECK(tw_json_get_num(v, "big", &d, &err) == -1);
}

static void writer(void)
{
    struct tw_buf b = {0};
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "a\"");
    tw_jw_arr(&w);
    tw_jw_int(&w, INT64_MIN);
    tw_jw_num(&w, 1);
    tw_jw_num(&w, 0.1);
    tw_jw_num(&w, -1e300);
    tw_jw_num(&w, NAN);
    tw_jw_f32(&w, 0.1f);
    tw_jw_bool(&w, true);
    tw_jw_null(&w);
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "s");
    tw_jw_str(&w, (struct tw_str){ "\0\n\x1F\x7F\xC3\xA9\xC3(\xED\xA0\x80<&", 13 });
    tw_jw_key(&w, "v");
    tw_jw_value(&w, parse("{ \"x\" : [ 1.50,\n \"a \\\" b\" ] }"));
    tw_jw_key(&w, "w");
    tw_jw_value(&w, parse("{ \"x\" : 1.50 }"));
    tw_jw_obj_end(&w);
    CHECK_STR(b.p, "{\"a\\\"\":[-9223372036854775808,1.0,0.1,-1e+300,null,0.1,true,null],"
                   "\"s\":\"\\u0000\\n\\u001f\x7F\xC3\xA9\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD<&\","
                   "\"v\":{\"x\":[1.50,\"a \\\" b\"]},\"w\":{ \"x\" : 1.50 }}");
    CHECK(parse(b.p));
    tw_buf_free(&b);
}

/* Every double and float read back equal. */
static void numbers_round_trip(void)
{
    uint64_t x = 88172645463325252u;

    for (int i = 0; i < 20000; i++) {
        struct tw_buf b = {0};
        struct tw_jw w;
        double d;
        float f;
        uint32_t half;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        half = (uint32_t)x;
        memcpy(&d, &x, 8);
        memcpy(&f, &half, 4);
        if (!isfinite(d) || !isfinite(f))
            continue;
        tw_jw_init(&w, &b);
        tw_jw_arr(&w);
        tw_jw_num(&w, d);
        tw_jw_f32(&w, f);
        tw_jw_arr_end(&w);
        struct tw_json *v = parse(b.p);

        if (!v || v->item[0].d != d || (float)v->item[1].d != f) {
            CHECK(!"a number did not come back");
            printf("# %s\n", b.p);
        }
        tw_arena_reset(&arena);
        tw_buf_free(&b);
    }
}

int main(void)
{
    RUN(values);
    RUN(numbers);
    RUN(strings);
    RUN(structure);
    RUN(depth_is_bounded);
    RUN(duplicate_keys);
    RUN(typed_fields);
    RUN(writer);
    RUN(numbers_round_trip);
    tw_arena_free(&arena);
    return test_end();
}
