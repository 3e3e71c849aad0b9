/* What a command says: notices, tallies, progress, metrics. */
#include "test.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/tw-log-XXXXXX";
static char heard[256], metrics[256];
static struct tw_err err;

/* Sends stderr to a file; what_was_said() brings it back. */
static int listen_to_stderr(void)
{
    int keep = dup(2), fd = open(heard, O_RDWR | O_CREAT | O_TRUNC, 0600);

    dup2(fd, 2);
    close(fd);
    return keep;
}

static const char *what_was_said(int keep)
{
    static struct tw_buf b;

    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    tw_buf_clear(&b);
    tw_read_file(&b, heard, 0, NULL);
    return tw_buf_str(&b).p;
}

static void numbers_for_people(void)
{
    char s[32];

    CHECK_STR(tw_fmt_count(s, 0), "0");
    CHECK_STR(tw_fmt_count(s, 999), "999");
    CHECK_STR(tw_fmt_count(s, -1234567), "-1,234,567");
    CHECK_STR(tw_fmt_count(s, INT64_MIN), "-9,223,372,036,854,775,808");
    CHECK_STR(tw_fmt_bytes(s, 0), "0 B");
    CHECK_STR(tw_fmt_bytes(s, 1023), "1023 B");
    CHECK_STR(tw_fmt_bytes(s, 1.2 * (1 << 30)), "1.2 GiB");
    CHECK_STR(tw_fmt_bytes(s, 512e6), "488 MiB");
    CHECK_STR(tw_fmt_time(s, 0.25), "0.2 s");
    CHECK_STR(tw_fmt_time(s, 59.4), "59 s");
    CHECK_STR(tw_fmt_time(s, 200), "3 m 20 s");
    CHECK_STR(tw_fmt_time(s, 7260), "2 h 1 m");
    CHECK_STR(tw_fmt_time(s, 90000), "1 d 1 h");
    CHECK_STR(tw_fmt_time(s, INFINITY), "?");
}

static void levels(void)
{
    int keep = listen_to_stderr();

    tw_log_init("tw-x", TW_NORMAL, 0);
    tw_notice("a %d", 1);
    tw_info("b");
    tw_log_init("tw-x", TW_VERBOSE, 0);
    tw_info("c");
    tw_log_init("tw-x", TW_QUIET, 0);
    tw_notice("d");
    CHECK_STR(what_was_said(keep), "tw-x: a 1\ntw-x: c\n");
}

static void what_comes_from_elsewhere_stays_a_line(void)
{
    char text[3002];
    struct tw_tally t;
    int keep = listen_to_stderr();

    memset(text, 'x', 3000);
    memcpy(text + 3000, "y", 2);
    tw_log_init("tw-x", TW_VERBOSE, 0);
    tw_notice("a\nb\x1b[2J\xc2\x9b""0mé%s", "\r");
    tw_info("a\n\tb\x1b");
    tw_notice("%s", text);                      /* to its end */
    tw_tally_start(&t);
    t.in = 1;
    tw_tally_skip(&t, "a\nb", 1, "no \x1b[31m");
    tw_tally_skip(&t, "c", 2, "%091dé%s", 0, text);
    tw_tally_end(&t);
    static const char want[] = "tw-x: a\\nb\\x1b[2J\\x9b0mé\\r\ntw-x: a\n\tb\\x1b\ntw-x: xxx";
    const char *said = what_was_said(keep);

    CHECK(!strncmp(said, want, sizeof(want) - 1));
    CHECK(strstr(said, "xxxy\n"));
    CHECK(strstr(said, "(no \\x1b[31m: 1 (first a\\nb:1); "));
    CHECK(strstr(said, "000...: 1 (first c:2)), 0.0 s\n"));
}

static void a_tally_counts_reasons(void)
{
    struct tw_tally t;
    int keep = listen_to_stderr();

    tw_log_init("tw-x", TW_NORMAL, 0);
    tw_tally_start(&t);
    t.in = 5;
    t.out = 5;
    tw_tally_end(&t);                           /* short and nothing skipped: silence */
    tw_tally_start(&t);
    t.in = 1234;
    t.out = 1230;
    tw_tally_skip(&t, "a.jsonl", 3, "no %s", "reply");
    tw_tally_skip(&t, "a.jsonl", 4, "too long");
    tw_tally_skip(&t, "a.jsonl", 9, "no reply");
    tw_tally_end(&t);
    CHECK(t.skipped == 3);
    CHECK_STR(what_was_said(keep), "tw-x: 1,234 records in, 1,230 out, 3 skipped "
                                   "(no reply: 2 (first a.jsonl:3); too long: 1 (first a.jsonl:4)), "
                                   "0.0 s\n");
    tw_tally_start(&t);
    for (int i = 0; i < 100; i++)
        tw_tally_skip(&t, NULL, i, "reason %d", i);
    CHECK(t.nwhy == 16 && t.skipped == 100 && t.why[15].n == 85);
    CHECK_STR(t.why[15].reason, "other reasons");
}

static void progress_only_where_asked(void)
{
    struct tw_progress p;
    int keep = listen_to_stderr();

    tw_log_init("tw-x", TW_NORMAL, 0);
    tw_progress_start(&p, "encode", NULL, 10);
    p.last -= 100;
    tw_progress_at(&p, 5, NULL);                /* no terminal, no --log-every */
    CHECK(!p.shown);
    tw_log_init("tw-x", TW_NORMAL, 5);
    p.t0 = p.last = tw_now() - 10;
    tw_progress_at(&p, 500, "loss 1.2");
    p.total = 1000;
    tw_progress_at(&p, 501, NULL);              /* too early for the next line */
    p.last -= 5;
    tw_progress_at(&p, 600, NULL);
    tw_progress_end(&p);
    CHECK_STR(what_was_said(keep), "tw-x: encode 500 of 10 (5000 %) 50/s, loss 1.2\n"
                                   "tw-x: encode 600 of 1,000 (60 %) 60/s, 6.7 s left\n");
}

static void metrics_are_lines(void)
{
    struct tw_metrics *m = tw_metrics_open(metrics, false, &err);
    struct tw_arena a = {0};
    struct tw_buf b = {0};
    struct tw_jw *w;

    CHECK(m != NULL);
    for (int step = 0; step < 3; step++) {
        if (step == 2) {
            tw_metrics_close(m);
            m = tw_metrics_open(metrics, true, &err);
        }
        w = tw_metrics_begin(m, "step", step);
        tw_jw_key(w, "loss");
        tw_jw_num(w, step ? 1.5 : NAN);
        CHECK(!tw_metrics_end(m, &err));
        tw_buf_clear(&b);                       /* there at once, a whole line */
        tw_read_file(&b, metrics, 0, &err);
        CHECK(b.n && b.p[b.n - 1] == '\n');
    }
    tw_metrics_close(m);
    struct tw_json *v = tw_json_parse(&a, (struct tw_str){ b.p, strcspn(b.p, "\n") }, &err);

    CHECK(v && v->n == 4 && tw_str_is(v->item[0].key, "event") &&
          tw_str_is(v->item[1].key, "step") && tw_str_is(v->item[2].key, "time") &&
          v->item[2].d > 1.5e9 && v->item[3].type == TW_JNULL);
    int lines = 0;

    for (const char *p = b.p; *p; p++)
        lines += *p == '\n';
    CHECK_INT(lines, 3);
    CHECK(!tw_metrics_begin(NULL, "x", 0) && !tw_metrics_end(NULL, &err));
    CHECK(!tw_metrics_open("/no/such/folder/m", false, &err) && err.code);
    tw_err_clear(&err);
    m = tw_metrics_open("/dev/full", false, &err);
    tw_metrics_begin(m, "x", 0);
    CHECK(tw_metrics_end(m, &err) == -1 && strstr(err.msg, "No space left"));
    tw_metrics_close(m);
    tw_err_clear(&err);
    tw_buf_free(&b);
    tw_arena_free(&a);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    snprintf(heard, sizeof(heard), "%s/heard", dir);
    snprintf(metrics, sizeof(metrics), "%s/metrics", dir);
    RUN(numbers_for_people);
    RUN(levels);
    RUN(what_comes_from_elsewhere_stays_a_line);
    RUN(a_tally_counts_reasons);
    RUN(progress_only_where_asked);
    RUN(metrics_are_lines);
    tw_rmtree(dir, NULL);
    return test_end();
}
