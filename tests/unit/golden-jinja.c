/* golden-jinja.c - checks the template engine on files of cases {name, template, data, target}, a
 * line each: golden-jinja FILE.. (none: those in tests/data). A case may be written for Python's
 * engine or for those that print values as JSON: either dialect will do, and it is said which. With
 * `error` for `target` Python's engine fails, and so must ours. A line of `data` alone is the data of the
 * cases after it that have none. */
#include "base/io.h"
#include "base/jsonl.h"
#include "help_jinja.h"

#include <stdlib.h>

static int64_t total, good, json_style;
static struct tw_arena keep;
static const struct tw_json *shared;

static bool try(const struct tw_json *c, bool json, struct tw_jinja_out *out, struct tw_err *err)
{
    const struct tw_json *target = tw_json_get(c, "target"), *data = tw_json_get(c, "data");
    struct tw_str text = tw_json_get(c, "template")->str, want = target ? target->str : TW_STR_LIT("");
    struct tw_jinja_var v[64];
    int n = help_vars(v, 64, data ? data : shared);
    struct tw_jinja *j = json ? tw_jinja_compile_json(text, "template", err) :
            tw_jinja_compile(text, "template", err);
    int r = j ? tw_jinja_render(j, v, n, help_date(want), out, err) : -1;

    tw_jinja_free(j);
    return target ? !r && tw_str_eq(tw_buf_str(&out->text), want) : r && err->msg[0];
}

static void one(const struct tw_rec *rec, struct tw_jinja_out *out)
{
    const struct tw_json *name = tw_json_get(rec->json, "name");
    const struct tw_json *target = tw_json_get(rec->json, "target");
    struct tw_err err = {0}, err2 = {0};
    bool ok, json = false;

    if (!tw_json_get(rec->json, "template") && tw_json_get(rec->json, "data")) {
        shared = tw_json_get(tw_json_parse(&keep, tw_arena_str(&keep, rec->text), NULL), "data");
        return;
    }
    if (!tw_json_get(rec->json, "template") || (!target && !tw_json_get(rec->json, "error"))) {
        printf("not ok - %s:%lld: no template or no target\n", rec->file, (long long)rec->line);
        total++;
        return;
    }
    total++;
    ok = try(rec->json, false, out, &err);
    if (!ok && target)
        ok = json = try(rec->json, true, out, &err2);
    good += ok;
    json_style += json;
    printf("%sok %lld - %.*s%s\n", ok ? "" : "not ", (long long)total,
            name ? (int)name->str.n : 1, name ? name->str.p : "?", json ? " (JSON dialect)" : "");
    if (!ok) {
        struct tw_str want = target ? target->str : TW_STR_LIT("an error"), got = tw_buf_str(&out->text);
        size_t at = help_differ(want, got);

        printf("#   error %s line %lld; JSON dialect: %s\n", err.msg, (long long)err.line, err2.msg);
        help_show("want", want, at);
        help_show("got ", got, at);
    }
}

int main(int argc, char **argv)
{
    char *own[] = { "tests/data/jinja/chat.jsonl", "tests/data/jinja/unit.jsonl", "tests/data/jinja/builtin.jsonl" };
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};
    struct tw_jsonl *in = argc > 1 ? tw_jsonl_open(argv + 1, argc - 1, &err) :
            tw_jsonl_open(own, 3, &err);
    struct tw_rec rec;
    int got = -1;

    setenv("TZ", "UTC", 1);
    while (in && (got = tw_jsonl_next(in, &rec, &err)) > 0)
        one(&rec, &out);
    if (got < 0)
        printf("# %s:%lld: %s\n", err.place, (long long)err.line, err.msg);
    printf("1..%lld\n# %lld of %lld cases as expected, %lld of them in the JSON dialect\n",
            (long long)total, (long long)good, (long long)total, (long long)json_style);
    tw_jsonl_close(in);
    tw_jinja_out_free(&out);
    tw_arena_free(&keep);
    return got < 0 || good < total || !total;
}
