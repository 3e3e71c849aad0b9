/* toolcall.c - replies taken apart: every form of call, and back; thinking; what is no call. */
#include "data/toolcall.h"
#include "test.h"
#include <stdlib.h>

static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"q\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}},{\"name\":\"now\"}]";

/* The message that TEXT is, as JSON. */
static const char *parsed(const char *text, bool thinking, const char *with, struct tw_buf *b)
{
    struct tw_arena a = {0};
    struct tw_reply r;
    struct tw_jw w;

    tw_reply_parse(&a, tw_str(text), thinking, with ? tw_json_parse(&a, tw_str(with), NULL) : NULL, &r);
    tw_buf_clear(b);
    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_reply_write(&w, &r, NULL, false);
    tw_jw_obj_end(&w);
    tw_buf_putc(b, 0);
    tw_arena_free(&a);
    return b->p;
}

#define CALL(name, args) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" args "}}"
#define MSG(text, calls) "{\"content\":\"" text "\",\"tool_calls\":[" calls "]}"
#define ONE MSG("", CALL("find", "{\"q\":\"a b\",\"n\":2}"))
#define SPACED MSG("", CALL("find", "{\"q\":\"12\",\"n\":2}"))

static void every_form(void)
{
    static const char *const t[][2] = {
        { "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\":\"a b\",\"n\":2}}\n</tool_call>", ONE },
        { "<tool_call>{\"tool_name\":\"find\",\"arguments\":\"{\\\"q\\\":\\\"a b\\\",\\\"n\\\":2}\"}", ONE },
        { "Sure.\n<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>\n<tool_call>\n{\"name\":\"now\"}"
            "\n</tool_call>", MSG("Sure.", CALL("now", "{}") "," CALL("now", "{}")) },
        { "<tool_call>\n<function=find>\n<parameter=q>\n12\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
            "</function>\n</tool_call>", SPACED },
        { "<function=find>{\"q\":\"a b\",\"n\":2}</function>", ONE },
        { "<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n<arg_value>"
            "2</arg_value>\n</tool_call>", SPACED },
        { "<tool_call>now</tool_call>", MSG("", CALL("now", "{}")) },
        { "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n{\"q\":\"a b\",\n\"n\":2}"
            "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", ONE },
        { "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>{\"q\":\"a b\",\"n\":2}<｜tool▁call▁end｜>\n"
            "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            MSG("x", CALL("find", "{\"q\":\"a b\",\"n\":2}") "," CALL("now", "{}")) },
        { "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter name=\"q\" string=\"true\">12"
            "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">2</｜DSML｜parameter>\n"
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>", SPACED },
        { "{\"name\": \"find\", \"parameters\": {\"q\":\"a b\",\"n\":2}}", ONE },
        { "<|python_tag|>{\"name\":\"now\",\"parameters\":{}}; {\"name\":\"now\",\"parameters\":{}}",
            MSG("", CALL("now", "{}") "," CALL("now", "{}")) },
        { "Let me see.<|action_start|><|plugin|>\n{\"name\":\"find\",\"parameters\":{\"q\":\"a b\",\"n\":2}}"
            "<|action_end|>\n", MSG("Let me see.", CALL("find", "{\"q\":\"a b\",\"n\":2}")) },
        { "[TOOL_CALLS][{\"name\":\"now\",\"arguments\":{}}]", MSG("", CALL("now", "{}")) },
        { "[TOOL_CALLS]find[ARGS]{\"q\":\"a b\",\"n\":2}", ONE },
        { "Thought: I look.\nAction: find\nAction Input: {\"q\":\"a b\",\"n\":2}\nObservation:",
            MSG("Thought: I look.", CALL("find", "{\"q\":\"a b\",\"n\":2}")) },
    };
    struct tw_buf b = {0};

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        CHECK_STR(parsed(t[i][0], false, tools, &b), t[i][1]);
    tw_buf_free(&b);
}

/* Text that only looks like a call stays as it is. */
static void no_call(void)
{
    static const char *const t[] = {
        "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\":\n</tool_call>", "<tool_call>{}</tool_call>",
        "<tool_call>\n{\"name\":\"f\",\"arguments\":[1]}\n</tool_call>", "<tool_call>", "{\"name\":\"unknown\","
        "\"parameters\":{}}", "{\"name\":\"find\",\"parameters\":{},\"more\":1}", "see {\"name\":\"now\",\"parameters\":{}}",
        "<function=now><parameter=x>1</function>", "<function=>{}</function>", "[TOOL_CALLS][]", "[TOOL_CALLS][{}]",
        "<|action_start|><|interpreter|>\nprint(1)<|action_end|>", "Do Action: find\nAction Input: {}",
        "Action: find\nAction Input: words", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>find<｜tool▁sep｜>{\"q\":1}", "<tool_call>what is this</tool_call>", "a < b [c] {d}",
        "<tool_call><function=find><parameter=q>1</parameter><parameter=q>2</parameter></function></tool_call>",
    };
    struct tw_arena a = {0};
    struct tw_json *with = tw_json_parse(&a, tw_str(tools), NULL);

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct tw_reply r;

        tw_reply_parse(&a, tw_str(t[i]), false, with, &r);
        CHECK_INT(r.ncall, 0);
        CHECK(tw_str_is(r.content, t[i]) && !r.reasoning.p);
    }
    tw_arena_free(&a);
}

static void malformed_beside_good(void)
{
    struct tw_buf b = {0};

    CHECK_STR(parsed("a <tool_call>{\"name\":</tool_call> b\n<tool_call>{\"name\":\"now\",\"arguments\":{}}"
                "</tool_call>\nc", false, tools, &b),
            MSG("a <tool_call>{\\\"name\\\":</tool_call> b\\nc", CALL("now", "{}")));
    tw_buf_free(&b);
}

static void thinking(void)
{
    static const struct {
        const char *text;
        bool on;
        const char *want;
    } t[] = {
        { "<think>\nhm\n</think>\n\nyes", false, "{\"content\":\"yes\",\"reasoning_content\":\"hm\"}" },
        { "hm\n</think>\n\nyes", true, "{\"content\":\"yes\",\"reasoning_content\":\"hm\"}" },
        { "hm</think>yes", false, "{\"content\":\"yes\",\"reasoning_content\":\"hm\"}" },
        { "<think>\n\n</think>\n\nyes", false, "{\"content\":\"yes\",\"reasoning_content\":\"\"}" },
        { "still going", true, "{\"content\":\"\",\"reasoning_content\":\"still going\"}" },
        { "<think>still", false, "{\"content\":\"\",\"reasoning_content\":\"still\"}" },
        { "say <think>x</think>", false, "{\"content\":\"say <think>x</think>\"}" },
        { "plain", false, "{\"content\":\"plain\"}" },
        { "", false, "{\"content\":\"\"}" },
        { "<think>a <tool_call>{\"name\":\"now\"}</tool_call></think><tool_call>{\"name\":\"now\"}</tool_call>",
            false, "{\"content\":\"\",\"reasoning_content\":\"a <tool_call>{\\\"name\\\":\\\"now\\\"}</tool_call>\","
            "\"tool_calls\":[" CALL("now", "{}") "]}" },
    };
    struct tw_buf b = {0};

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        CHECK_STR(parsed(t[i].text, t[i].on, NULL, &b), t[i].want);
    tw_buf_free(&b);
}

/* What is written in any form reads back to the same calls. */
static void there_and_back(void)
{
    struct tw_call calls[] = {
        { .name = TW_STR_LIT("find"), .arguments = TW_STR_LIT("{\"q\":\"12\",\"n\":-2.5e3}") },
        { .name = TW_STR_LIT("put-it.x"), .arguments = TW_STR_LIT(
            "{\"q\":\"a \\\"b\\\" 中\",\"z\":[1,{\"y\":null}],\"t\":true,\"e\":\"\"}") },
        { .name = TW_STR_LIT("now"), .arguments = TW_STR_LIT("{}") },
    };

    for (int form = 0; form < TW_CALL_FORMS; form++) {
        struct tw_arena a = {0};
        struct tw_reply r;
        struct tw_buf b = {0};

        tw_call_render(&b, (enum tw_call_form)form, calls, 3);
        tw_reply_parse(&a, tw_buf_str(&b), false, NULL, &r);
        CHECK_INT(r.ncall, 3);
        CHECK_INT(r.content.n, 0);
        for (int64_t i = 0; i < r.ncall && r.ncall == 3; i++) {
            struct tw_buf plain = {0};

            for (size_t k = 0; k < r.call[i].arguments.n; k++)      /* spaces may differ after : and , */
                if (r.call[i].arguments.p[k] != ' ' || !k || !strchr(":,", r.call[i].arguments.p[k - 1]))
                    tw_buf_putc(&plain, r.call[i].arguments.p[k]);
            CHECK(tw_str_eq(r.call[i].name, calls[i].name) && r.call[i].form == (enum tw_call_form)form);
            CHECK(tw_str_eq(tw_buf_str(&plain), calls[i].arguments));
            if (!tw_str_eq(tw_buf_str(&plain), calls[i].arguments))
                printf("# form %d: %.*s\n", form, (int)plain.n, plain.p);
            tw_buf_free(&plain);
        }
        tw_buf_free(&b);
        tw_arena_free(&a);
    }
}

/* A megabyte of beginnings takes no longer than one of text. */
static void beginnings_without_end(void)
{
    static const char *const t[] = { "<tool_call>", "<tool_call>{\"a\":", "<function=f><parameter=", "[TOOL_CALLS][",
        "Action: f\nAction Input: {\n", "<｜tool▁call▁begin｜>", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"", "{", "<think>" };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct tw_arena a = {0};
        struct tw_buf b = {0};
        struct tw_reply r;

        while (b.n < 1 << 20)
            tw_buf_puts(&b, t[i]);
        tw_reply_parse(&a, tw_buf_str(&b), false, NULL, &r);
        CHECK_INT(r.ncall, 0);
        tw_buf_free(&b);
        tw_arena_free(&a);
    }
}

int main(void)
{
    RUN(every_form);
    RUN(no_call);
    RUN(malformed_beside_good);
    RUN(thinking);
    RUN(there_and_back);
    RUN(beginnings_without_end);
    return test_end();
}
