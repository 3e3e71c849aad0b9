/* Any text as a template, rendered with a conversation: it fails with a message, or its spans cover
 * what it wrote. A NUL in the input ends the template; what follows is the JSON of the variables. */
#include "data/jinja.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static const char usual[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
    "\"content\":\"h\xc3\xa9 <b>\"},{\"role\":\"assistant\",\"content\":\"<think>w</think> yes\","
    "\"reasoning_content\":\"r\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5,"
    "\"y\":[true,null]}}}]},{\"role\":\"tool\",\"content\":\"t\"}],\"tools\":[{\"name\":\"f\"}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

static void render(const struct tw_jinja *j, struct tw_str json, struct tw_jinja_out *out)
{
    struct tw_arena a = {0};
    struct tw_err err = {0};
    struct tw_json *o = tw_json_parse(&a, json, &err);
    struct tw_jinja_var v[16];
    int nv = 0;
    size_t at = 0;

    for (int64_t i = 0; o && o->type == TW_JOBJ && i < o->n && nv < 16; i++)
        v[nv++] = (struct tw_jinja_var){ .name = o->item[i].key, .json = &o->item[i] };
    if (o && tw_jinja_render(j, v, nv, 1700000000, out, &err) && !err.msg[0])
        abort();
    for (int64_t i = 0; o && !err.code && i < out->nspan; i++) {
        if (out->span[i].begin != at || out->span[i].end <= at)
            abort();
        at = out->span[i].end;
    }
    if (o && !err.code && at != out->text.n)
        abort();
    tw_arena_free(&a);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    const unsigned char *nul = n ? memchr(p, 0, n) : NULL;
    struct tw_str text = { (const char *)p, nul ? (size_t)(nul - p) : n };
    struct tw_str json = nul ? (struct tw_str){ (const char *)nul + 1, n - text.n - 1 } :
            TW_STR_LIT(usual);
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};
    struct tw_jinja *j = tw_jinja_compile(text, "t", &err);

    if (!j && !err.msg[0])
        abort();
    if (j)
        render(j, json, &out);
    tw_jinja_free(j);
    tw_jinja_out_free(&out);
    return 0;
}
