/* The JSON reader takes anything: what it accepts it must write back so that it reads the same. */
#include "base/json.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static void write_value(struct tw_jw *w, const struct tw_json *v)
{
    switch (v->type) {
    case TW_JSTR:
        tw_jw_str(w, v->str);
        break;
    case TW_JARR:
        tw_jw_arr(w);
        for (int64_t i = 0; i < v->n; i++)
            write_value(w, &v->item[i]);
        tw_jw_arr_end(w);
        break;
    case TW_JOBJ:
        tw_jw_obj(w);
        for (int64_t i = 0; i < v->n; i++) {
            tw_jw_key_n(w, v->item[i].key);
            write_value(w, &v->item[i]);
        }
        tw_jw_obj_end(w);
        break;
    default:
        tw_jw_value(w, v);
    }
}

static void same(const struct tw_json *a, const struct tw_json *b)
{
    if (a->type != b->type || a->n != b->n || a->is_int != b->is_int || a->i != b->i ||
            !tw_str_eq(a->str, b->str) || !tw_str_eq(a->key, b->key))
        abort();
    for (int64_t i = 0; i < a->n; i++)
        same(&a->item[i], &b->item[i]);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_arena a = {0};
    struct tw_err err = {0};
    struct tw_buf b = {0};
    struct tw_jw w;
    struct tw_str text = { n ? (const char *)p : "", n };
    struct tw_json *v = tw_json_parse(&a, text, &err), *again;
    int64_t dups, i = 0;
    double d = 0;
    struct tw_str s;

    if (v) {
        tw_jw_init(&w, &b);
        write_value(&w, v);
        again = tw_json_parse(&a, tw_buf_str(&b), &err);
        if (!again)
            abort();
        same(v, again);
        tw_buf_clear(&b);
        tw_jw_init(&w, &b);
        tw_jw_value(&w, v);
        again = tw_json_parse(&a, tw_buf_str(&b), &err);
        if (!again || memchr(b.p, '\n', b.n))
            abort();
        same(v, again);
        tw_json_get_int(v, "a", &i, &err);
        tw_json_get_num(v, "b", &d, &err);
        tw_json_get_str(v, "c", &s, &err);
    } else if (!err.code) {
        abort();
    }
    tw_err_clear(&err);
    if (!tw_json_parse_dups(&a, text, &dups, &err) && v)
        abort();
    tw_buf_free(&b);
    tw_arena_free(&a);
    return 0;
}
