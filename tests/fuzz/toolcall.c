/* Any text as a model's reply: taken apart it is JSON, no more than the text went in, and its calls,
 * written in each form, read back. The first byte says whether it begins in a think block. */
#include "data/toolcall.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static const char list[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"q\":{\"type\":\"string\"}}}}]";

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check(struct tw_arena *a, const struct tw_reply *r)
{
    struct tw_buf b = {0};
    struct tw_jw w;
    struct tw_reply back;
    struct tw_json *v;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_reply_write(&w, r, "c", false);
    tw_jw_obj_end(&w);
    v = tw_json_parse(a, tw_buf_str(&b), NULL);
    must(v && v->type == TW_JOBJ && !memchr(b.p, '\n', b.n));
    tw_buf_clear(&b);
    tw_call_render(&b, TW_CALL_HERMES, r->call, r->ncall);
    tw_reply_parse(a, tw_buf_str(&b), false, NULL, &back);
    must(back.ncall == r->ncall);
    tw_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_arena a = {0};
    struct tw_buf b = {0};
    const struct tw_json *tools = tw_json_parse(&a, TW_STR_LIT(list), NULL);
    struct tw_reply r;

    for (const char *q = (const char *)p + 1, *end = (const char *)p + n; n && q < end;)
        tw_buf_utf8(&b, tw_utf8_next(&q, end));
    for (int i = 0; n && i < 2; i++) {
        tw_reply_parse(&a, tw_buf_str(&b), p[0] & 1, i ? tools : NULL, &r);
        must(r.content.n <= b.n && r.reasoning.n <= b.n);
        check(&a, &r);
    }
    tw_buf_free(&b);
    tw_arena_free(&a);
    return 0;
}
