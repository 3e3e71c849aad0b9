/* golden-templates.c - checks the template engine on real chat templates: golden-templates DIR
 * (none: tests/data/templates), a folder with NAME.json {chat_template, bos_token, eos_token},
 * conversations.jsonl and expected.jsonl {template, conv, add_generation_prompt, kwargs, text or
 * error}. The text must be the reference's byte for byte; where it failed, we must fail. */
#include "base/io.h"
#include "base/jsonl.h"
#include "help_jinja.h"

#include <stdlib.h>

static struct tw_arena keep;
static struct { struct tw_str name; struct tw_json *conf; struct tw_jinja *j; int64_t n, good; } tpl[256];
static int ntpl;
static struct tw_json **conv;
static int64_t nconv;

static int load_conversations(const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "conversations.jsonl");
    struct tw_jsonl *in = tw_jsonl_open(&path, 1, err);
    struct tw_rec rec;
    int got = -1;

    while (in && (got = tw_jsonl_next(in, &rec, err)) > 0) {
        conv = tw_xreallocarray(conv, (size_t)nconv + 1, sizeof(*conv));
        conv[nconv] = tw_json_parse(&keep, tw_arena_str(&keep, rec.text), err);
        if (!conv[nconv++])
            got = -1;
    }
    tw_jsonl_close(in);
    free(path);
    return got;
}

static int find_template(const char *dir, struct tw_str name, struct tw_err *err)
{
    const struct tw_json *text;
    char file[256], *path;

    for (int i = 0; i < ntpl; i++)
        if (tw_str_eq(tpl[i].name, name))
            return i;
    if (ntpl == 256)
        return tw_fail(err, dir, 0, "more than 256 templates");
    snprintf(file, sizeof(file), "%.*s.json", (int)name.n, name.p);
    path = tw_path_join(dir, file);
    tpl[ntpl].name = tw_arena_str(&keep, name);
    tpl[ntpl].conf = tw_json_file(&keep, path, 0, err);
    text = tpl[ntpl].conf ? tw_json_get(tpl[ntpl].conf, "chat_template") : NULL;
    if (text)
        tpl[ntpl].j = tw_jinja_compile(text->str, file, err);
    free(path);
    return ntpl++;
}

/* The reference passes every variable of apply_chat_template, `tools` and `documents` as none. */
static int variables(struct tw_jinja_var *v, const struct tw_json *rec, int t)
{
    static const struct tw_json none = { .type = TW_JNULL };
    const struct tw_json *c = conv[tw_json_get(rec, "conv")->i];
    const struct tw_json *tools = tw_json_get(c, "tools");
    int n = 0;

    v[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("messages"),
        .json = tw_json_get(c, "messages") };
    v[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("tools"), .json = tools ? tools : &none };
    v[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("documents"), .json = &none };
    v[n++] = (struct tw_jinja_var){ .name = TW_STR_LIT("add_generation_prompt"),
        .json = tw_json_get(rec, "add_generation_prompt") };
    for (const char *const *k = (const char *const[]){ "bos_token", "eos_token", NULL }; *k; k++)
        if (tw_json_get(tpl[t].conf, *k))
            v[n++] = (struct tw_jinja_var){ .name = tw_str(*k),
                .json = tw_json_get(tpl[t].conf, *k) };
    return n + help_vars(v + n, 32, tw_json_get(rec, "kwargs"));
}

static bool spans_cover(const struct tw_jinja_out *out)
{
    size_t at = 0;

    for (int64_t i = 0; i < out->nspan; i++) {
        if (out->span[i].begin != at || out->span[i].end <= at)
            return false;
        at = out->span[i].end;
    }
    return at == out->text.n;
}

static bool one(const struct tw_rec *rec, int t, struct tw_jinja_out *out)
{
    const struct tw_json *want = tw_json_get(rec->json, "text");
    struct tw_jinja_var v[64];
    struct tw_err err = {0};
    int r = -1;
    size_t at;

    if (tpl[t].j)
        r = tw_jinja_render(tpl[t].j, v, variables(v, rec->json, t),
                help_date(want ? want->str : (struct tw_str){ "", 0 }), out, &err);
    if (!want)
        return r && tpl[t].j;
    if (!r && tw_str_eq(tw_buf_str(&out->text), want->str) && spans_cover(out))
        return true;
    printf("# %s:%lld: %s\n", rec->file, (long long)rec->line, err.msg);
    at = help_differ(want->str, tw_buf_str(&out->text));
    help_show("want", want->str, at);
    help_show("got ", tw_buf_str(&out->text), at);
    return false;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "tests/data/templates";
    char *path = tw_path_join(dir, "expected.jsonl");
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};
    struct tw_jsonl *in = tw_jsonl_open(&path, 1, &err);
    struct tw_rec rec;
    int64_t total = 0, good = 0;
    int got = -1;

    setenv("TZ", "UTC", 1);
    if (in && !load_conversations(dir, &err))
        while ((got = tw_jsonl_next(in, &rec, &err)) > 0) {
            int t = find_template(dir, tw_json_get(rec.json, "template")->str, &err);
            bool ok = t >= 0 && one(&rec, t, &out);

            total++;
            good += ok;
            if (t >= 0) {
                tpl[t].n++;
                tpl[t].good += ok;
            }
        }
    for (int i = 0; i < ntpl; i++)
        printf("%sok %d - %.*s: %lld of %lld\n", tpl[i].good < tpl[i].n ? "not " : "", i + 1,
                (int)tpl[i].name.n, tpl[i].name.p, (long long)tpl[i].good, (long long)tpl[i].n);
    if (err.code)
        printf("# %s:%lld: %s\n", err.place, (long long)err.line, err.msg);
    printf("1..%d\n# %lld of %lld renderings as expected\n", ntpl, (long long)good,
            (long long)total);
    for (int i = 0; i < ntpl; i++)
        tw_jinja_free(tpl[i].j);
    tw_jinja_out_free(&out);
    tw_arena_free(&keep);
    tw_jsonl_close(in);
    free(conv);
    free(path);
    return got < 0 || err.code || good < total || !total;
}
