/* process.c - the table of processors, and what they share */
#include "run/process.h"

struct tw_str tw_field(const struct tw_json *row, const char *key)
{
    const struct tw_json *v = tw_json_get(row, key);

    return v && v->type == TW_JSTR ? v->str : (struct tw_str){ "", 0 };
}

int tw_text(const struct tw_json *row, const char *key, struct tw_str *v, struct tw_err *err)
{
    *v = (struct tw_str){ "", 0 };
    return tw_json_get_str(row, key, v, err) < 0 ? -1 : 0;
}

int tw_need(const struct tw_json *row, const char *key, struct tw_str *v, struct tw_err *err)
{
    *v = (struct tw_str){ 0 };
    switch (tw_json_get_str(row, key, v, err)) {
    case 1:
        return 0;
    case 0:
        return tw_fail(err, NULL, 0, "no \"%s\"", key);
    default:
        return -1;
    }
}

void tw_put_message(struct tw_jw *w, const char *role, struct tw_str content)
{
    tw_jw_obj(w);
    tw_jw_key(w, "role");
    tw_jw_cstr(w, role);
    tw_jw_key(w, "content");
    tw_jw_str(w, content);
    tw_jw_obj_end(w);
}

void tw_put_rest(struct tw_jw *w, const struct tw_json *row, const char *const *used)
{
    for (int64_t i = 0; i < row->n; i++) {
        bool skip = false;

        for (int k = 0; used[k] && !skip; k++)
            skip = tw_str_is(row->item[i].key, used[k]);
        if (skip)
            continue;
        tw_jw_key_n(w, row->item[i].key);
        tw_jw_value(w, &row->item[i]);
    }
}

int tw_proc_parse(struct tw_proc *p, const char *text, struct tw_err *err)
{
    struct tw_set s;

    *p = (struct tw_proc){ 0 };
    if (tw_set_parse(&s, "processor", text, err))
        return -1;
    for (const struct tw_proc_kind *k = tw_proc_kinds; k->name; k++)
        if (tw_str_is(s.name, k->name))
            p->kind = k;
    if (!p->kind)
        return tw_fail_code(err, TW_EMISUSE, NULL, 0,
                "\"%s\" is neither a file nor a processor; --list shows the processors", text);
    p->has_system = tw_set_str(&s, "system", &p->system) > 0;
    if (p->kind->setup && p->kind->setup(p, &s, err))
        return -1;
    return tw_set_done(&s, err);
}

const struct tw_proc_kind *tw_proc_detect(const struct tw_json *row)
{
    for (const struct tw_proc_kind *k = tw_proc_kinds; k->name; k++)
        if (k->fits && k->fits(row))
            return k;
    return NULL;
}
