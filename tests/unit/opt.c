/* Options and settings. Called with arguments this program is itself a command, for
 * tests/t0003-opt.sh: it prints its resolved options and its operands. */
#include "test.h"
#include "base/buf.h"
#include "base/opt.h"
#include <stdlib.h>

struct opts {
    struct tw_common common;
    const char *model;
    int64_t batch, seed;
    double lr;
    bool resume, publish;
    int schedule;
    struct tw_list stop;
    const char *server;
};

static const struct tw_opt table[] = {
    TW_GROUP("Input"),
    { "model", 'm', TW_OSTR(struct opts, model), "MODEL", TW_NEEDED, "start from MODEL" },
    TW_GROUP("Training"),
    { "batch-size", 'b', TW_OINT(struct opts, batch, 1, 1 << 20), "N", "16", "samples in a step" },
    { "seed", 0, TW_OINT(struct opts, seed, INT64_MIN, INT64_MAX), "N", "42", "the seed" },
    { "lr", 0, TW_ONUM(struct opts, lr, 0, 1), "X", "1e-4", "the rate" },
    { "resume", 'r', TW_OFLAG(struct opts, resume), NULL, NULL, "go on from the last step" },
    { "publish", 0, TW_OONOFF(struct opts, publish), NULL, "off", "write each step's weights" },
    { "schedule", 0, TW_OENUM(struct opts, schedule), "constant|linear|cosine", "linear",
        "how the rate changes - a text long enough that help has to wrap it over more than a line, "
        "twice" },
    { "stop", 0, TW_OLIST(struct opts, stop), "TEXT", NULL, "stop at TEXT" },
    { "server", 0, TW_OSTR(struct opts, server), "URL", NULL, "its variable is reserved" },
    { 0 }
};
static const struct tw_cmd cmd = { "tw-train", "fine-tune a model", "[FILE..]", table,
    "  tw-train -m tiny data.jsonl\n" };

static int as_command(int argc, char **argv)
{
    struct opts o = {0};
    struct tw_err err = {0};
    struct tw_buf b = {0};
    int n = tw_start(&cmd, &o, argc, argv), ret = 0;

    tw_opts_json(&cmd, &o, &b);
    puts(b.p);
    for (int i = 1; i <= n; i++)
        printf("operand %s\n", argv[i]);
    if (n && !strcmp(argv[1], "fail"))
        ret = tw_fail(&err, "data.jsonl", 17, "it is bad");
    if (n && !strcmp(argv[1], "lost"))
        ret = tw_fail_code(&err, TW_ENOTFOUND, "hf://a/b", 0, "not found");
    tw_buf_free(&b);
    return tw_finish(&cmd, ret, &err);
}

static void settings_are_read(void)
{
    struct tw_set s;
    struct tw_err err = {0};
    double x = 0;
    int64_t i = 0;
    bool b = false;
    int e = 0;
    struct tw_str t = {0};

    CHECK(!tw_set_parse(&s, "--schedule", "cosine,warmup=5,floor=0.1,on=off,re=/a,b/,q=\"x,y\",k=c",
            &err));
    CHECK(tw_str_is(s.name, "cosine") && s.n == 6);
    CHECK(tw_set_int(&s, "warmup", &i, 0, 10, &err) == 1 && i == 5);
    CHECK(tw_set_num(&s, "floor", &x, 0, 1, &err) == 1 && x == 0.1);
    CHECK(tw_set_bool(&s, "on", &b, &err) == 1 && !b);
    CHECK(tw_set_str(&s, "re", &t) == 1 && tw_str_is(t, "/a,b/"));
    CHECK(tw_set_str(&s, "q", &t) == 1 && tw_str_is(t, "x,y"));
    CHECK(tw_set_enum(&s, "k", "a|b|c", &e, &err) == 1 && e == 2);
    CHECK(tw_set_int(&s, "absent", &i, 0, 1, &err) == 0 && i == 5);
    CHECK(!tw_set_done(&s, &err));
    CHECK(!tw_set_parse(&s, "--lora", "r=8,path=/etc/x,name=y", &err));
    CHECK(!s.name.n && s.n == 3 && tw_str_is(s.kv[1].value, "/etc/x"));
    CHECK(!tw_set_parse(&s, "--loss", "grpo", &err) && tw_str_is(s.name, "grpo") && !s.n);
}

/* The message of parsing TEXT and asking for r (1 to 9), x (0 to 1), b and e. */
static const char *complaint(const char *text)
{
    static struct tw_err err;
    struct tw_set s;
    int64_t r;
    double x;
    bool b;
    int e;

    tw_err_clear(&err);
    if (!tw_set_parse(&s, "--lora", text, &err) && tw_set_int(&s, "r", &r, 1, 9, &err) >= 0 &&
            tw_set_num(&s, "x", &x, 0, 1, &err) >= 0 && tw_set_bool(&s, "b", &b, &err) >= 0 &&
            tw_set_enum(&s, "e", "p|q", &e, &err) >= 0)
        tw_set_done(&s, &err);
    return err.code && err.code != TW_EMISUSE ? "wrong code" : err.msg;
}

static void bad_settings_are_refused(void)
{
    CHECK_STR(complaint("r=3,x=1,b=on,e=q"), "");
    CHECK_STR(complaint(""), "an empty setting");
    CHECK_STR(complaint("a,b"), "expected key=value, not 'b'");
    CHECK_STR(complaint("r=1,"), "expected key=value, not ''");
    CHECK_STR(complaint("=1"), "expected key=value, not '=1'");
    CHECK_STR(complaint("r=1,r=2"), "'r' is given twice");
    CHECK_STR(complaint("r=x"), "r=x is not a whole number");
    CHECK_STR(complaint("r="), "r= is not a whole number");
    CHECK_STR(complaint("r= 1"), "r= 1 is not a whole number");
    CHECK_STR(complaint("r=10"), "r=10 is out of range: 1 to 9");
    CHECK_STR(complaint("r=99999999999999999999"), "r=99999999999999999999 is not a whole number");
    CHECK_STR(complaint("x=nan"), "x=nan is not a number");
    CHECK_STR(complaint("x=2"), "x=2 is out of range: 0 to 1");
    CHECK_STR(complaint("b=maybe"), "b=maybe is not on or off");
    CHECK_STR(complaint("e=z"), "e=z is not one of p|q");
    CHECK_STR(complaint("y=1"), "unknown key 'y'; known are: r, x, b, e");
    CHECK_STR(complaint("q=\"x"), "unterminated quote in 'q=\"x'");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return as_command(argc - (!strcmp(argv[1], "--as-command")),
                argv + !strcmp(argv[1], "--as-command"));
    RUN(settings_are_read);
    RUN(bad_settings_are_refused);
    return test_end();
}
