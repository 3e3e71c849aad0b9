/* reward_code.c - does the code of a reply pass the record's tests? */
#include "reward_priv.h"
#include "reward_sandbox.h"
#include <sys/random.h>

int tw_setup_code(struct tw_reward *r, struct tw_set *s, struct tw_err *err)
{
    struct tw_sandbox *box;
    bool share = false;

    r->interpreter = TW_STR_LIT("python3");
    r->timeout = 10;
    r->memory = 1024;
    tw_set_str(s, "interpreter", &r->interpreter);
    if (tw_set_num(s, "timeout", &r->timeout, 0.01, 86400, err) < 0
            || tw_set_int(s, "memory", &r->memory, 16, 1 << 20, err) < 0
            || tw_set_bool(s, "share", &share, err) < 0
            || tw_set_enum(s, "on-timeout", "unscored|fail", &r->on_timeout, err) < 0 || tw_set_done(s, err))
        return -1;
    r->partial = share;
    box = tw_xcalloc(1, sizeof(*box));
    box->interpreter = tw_xstrndup(r->interpreter.p, r->interpreter.n);
    box->timeout = r->timeout;
    box->memory = r->memory;
    r->state = box;
    return tw_sandbox_open(box, err);
}

void tw_close_code(struct tw_reward *r)
{
    struct tw_sandbox *box = r->state;

    if (!box)
        return;
    tw_sandbox_close(box);
    free((char *)box->interpreter);
    free(box);
}

/* The last fenced block that is closed, without its first line's language. */
static bool last_block(struct tw_str s, struct tw_str *out)
{
    bool inside = false, found = false;
    size_t from = 0;

    for (size_t at = 0; at < s.n;) {
        size_t end = tw_find(s, "\n", at);
        struct tw_str line = { s.p + at, (end == SIZE_MAX ? s.n : end) - at };

        if (tw_trim(line).n >= 3 && !memcmp(tw_trim(line).p, "```", 3)) {
            if (inside) {
                *out = (struct tw_str){ s.p + from, at - from };
                found = true;
            }
            inside = !inside;
            from = end == SIZE_MAX ? s.n : end + 1;
        }
        if (end == SIZE_MAX)
            break;
        at = end + 1;
    }
    return found;
}

/* The record's tests: code, a list of code, or a list of {input, output}. */
static const struct tw_json *find_tests(const struct tw_reward *r, struct tw_reward_in *in)
{
    static const char *const name[] = { "tests", "test", "test_list" };
    const struct tw_json *v;

    for (size_t i = 0; i < (r->key.n ? 0 : sizeof(name) / sizeof(*name)); i++)
        if ((v = tw_json_get(in->rec, name[i])))
            return v;
    return tw_reward_ref(r, in, 0);
}

static struct tw_str field(const struct tw_json *obj, const char *key, bool *ok)
{
    const struct tw_json *v = obj->type == TW_JOBJ ? tw_json_get(obj, key) : NULL;

    *ok &= v && v->type == TW_JSTR;
    return v && v->type == TW_JSTR ? v->str : (struct tw_str){ "", 0 };
}

static bool usable(const struct tw_json *t)
{
    bool ok = true;

    if (t->type == TW_JOBJ) {
        field(t, "input", &ok);
        field(t, "output", &ok);
        return ok;
    }
    return t->type == TW_JSTR && tw_trim(t->str).n;
}

/* Lines without blanks at their ends; those at the end of the text do not count. */
static bool same_output(struct tw_str a, struct tw_str b)
{
    while (a.n && strchr(" \t\r\n", a.p[a.n - 1]) && a.p[a.n - 1])
        a.n--;
    while (b.n && strchr(" \t\r\n", b.p[b.n - 1]) && b.p[b.n - 1])
        b.n--;
    for (;;) {
        size_t i = tw_find(a, "\n", 0), k = tw_find(b, "\n", 0);
        struct tw_str x = { a.p, i == SIZE_MAX ? a.n : i }, y = { b.p, k == SIZE_MAX ? b.n : k };

        while (x.n && (x.p[x.n - 1] == ' ' || x.p[x.n - 1] == '\r'))
            x.n--;
        while (y.n && (y.p[y.n - 1] == ' ' || y.p[y.n - 1] == '\r'))
            y.n--;
        if (!tw_str_eq(x, y) || (i == SIZE_MAX) != (k == SIZE_MAX))
            return false;
        if (i == SIZE_MAX)
            return true;
        a = (struct tw_str){ a.p + i + 1, a.n - i - 1 };
        b = (struct tw_str){ b.p + k + 1, b.n - k - 1 };
    }
}

static bool is_python(const struct tw_reward *r)
{
    return tw_contains(r->interpreter, "python");
}

/* The reply's code, the test behind it, and at the very end a mark that only a program which came so
 * far can make: sys.exit(0) is no way to pass. */
static void build(const struct tw_reward *r, struct tw_reward_in *in, struct tw_str code,
        const struct tw_json *test, const char *mark, struct tw_buf *b)
{
    const struct tw_json *entry = tw_json_get(in->rec, "entry_point");

    tw_buf_adds(b, code);
    tw_buf_putc(b, '\n');
    if (test->type != TW_JSTR)
        return;
    tw_buf_adds(b, test->str);
    tw_buf_putc(b, '\n');
    if (entry && entry->type == TW_JSTR && tw_contains(test->str, "def check(") && is_python(r))
        tw_buf_printf(b, "check(%.*s)\n", (int)entry->str.n, entry->str.p);
    if (is_python(r))
        tw_buf_printf(b, "__import__('os').write(3, b'%s')\n", mark);
}

static void new_mark(char out[33])
{
    unsigned char b[16] = { 0 };

    if (getrandom(b, sizeof(b), 0) < 0)
        memset(b, 7, sizeof(b));
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

/* 1 passed, 0 not, -1 the run ends; *late: it took too long. */
static int run_test(const struct tw_reward *r, struct tw_reward_in *in, struct tw_str code,
        const struct tw_json *test, bool *late, struct tw_err *err)
{
    struct tw_run_result res;
    struct tw_buf b = { 0 };
    char mark[33];
    bool ok = true, plain = test->type == TW_JSTR;
    struct tw_str input = { "", 0 }, want = { "", 0 };
    int ret;

    if (!plain) {
        input = field(test, "input", &ok);
        want = field(test, "output", &ok);
    }
    new_mark(mark);
    build(r, in, code, test, mark, &b);
    if (tw_sandbox_run(r->state, tw_buf_str(&b), input, &res, err)) {
        ret = -1;
    } else {
        *late = res.end == TW_RAN_LATE;
        ret = res.end == TW_RAN && res.status == 0;
        if (plain && is_python(r))
            ret = ret && tw_str_is(tw_buf_str(&res.mark), mark);
        else if (!plain)
            ret = ret && same_output(tw_buf_str(&res.out), want);
    }
    tw_buf_free(&res.out);
    tw_buf_free(&res.mark);
    tw_buf_free(&b);
    return ret;
}

int tw_score_code(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    const struct tw_json *tests = find_tests(r, in);
    int64_t n = tests && tests->type == TW_JARR ? tests->n : 1, passed = 0;
    struct tw_str code;

    for (int64_t i = 0; tests && i < n; i++)
        if (!usable(tests->type == TW_JARR ? &tests->item[i] : tests))
            tests = NULL;
    if (!tests || !n)
        return tw_unscored(in, "no usable tests: code, a list of code, or a list of {input, output}");
    *x = 0;
    if (!last_block(in->text, &code))
        return TW_SCORED;
    for (int64_t i = 0; i < n; i++) {
        bool late = false;
        int got = run_test(r, in, code, tests->type == TW_JARR ? &tests->item[i] : tests, &late, err);

        if (got < 0)
            return -1;
        if (late && !r->on_timeout)
            return tw_unscored(in, "timed out after %g s", r->timeout);
        passed += got;
        if (!got && !r->partial)
            return TW_SCORED;
    }
    *x = (double)passed / (double)n;
    return TW_SCORED;
}
