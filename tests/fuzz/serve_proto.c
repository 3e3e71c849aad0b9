/* Any bytes as the protobuf body of forward_backward: refused with a text, or within the limits; and as
 * a stored result: JSON, or an error. The first byte picks. */
#include "base/json.h"
#include "serve_check.h"

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static void result(enum tw_verb verb, struct tw_str body)
{
    struct tw_arena a = { 0 };
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    int64_t dups;

    if (tw_result_json(verb, body, &b, &err))
        must(err.code && *err.msg);
    else                                /* a map may name a metric twice */
        must(tw_json_parse_dups(&a, tw_buf_str(&b), &dups, NULL));
    tw_buf_free(&b);
    tw_arena_free(&a);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_limits l = { .V = 256, .window = 128, .max_rank = 64, .max_samples = 16, .max_stop = 4 };
    struct tw_str body = { (const char *)p + 1, n - 1 };
    struct tw_err err = { 0 };

    if (!n)
        return 0;
    l.max_tokens = p[0] & 4 ? 16 : 0;
    if (p[0] & 1)
        result(p[0] & 2 ? TW_SAMPLE : TW_FORWARD_BACKWARD, body);
    else
        check_work(tw_work_read(TW_FORWARD_BACKWARD, &l, true, false, body, &err), &l, &err);
    return 0;
}
