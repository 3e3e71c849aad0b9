/* nat_record.c - a trajectory as a record: what is absent is left out, tools that came as texts are objects */
#include "serve/nat.h"

static bool media(struct tw_str key)
{
    static const char *const names[] = { "images", "videos", "audios", "pixel_values", "image_grid_thw",
        "pixel_values_videos", "video_grid_thw", "input_features", "inputs_embeds" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tw_str_is(key, names[i]))
            return true;
    return false;
}

int tw_nat_no_media(const struct tw_json *t, struct tw_err *err)
{
    for (int64_t i = 0; i < t->n; i++)
        if (media(t->item[i].key) && t->item[i].type != TW_JNULL && t->item[i].n)
            return tw_fail(err, NULL, 0, "%.*s: this model reads texts", (int)t->item[i].key.n,
                    t->item[i].key.p);
    return 0;
}

static int put_messages(struct tw_jw *w, const struct tw_json *list, struct tw_err *err)
{
    tw_jw_arr(w);
    for (int64_t i = 0; i < list->n; i++) {
        const struct tw_json *m = &list->item[i];

        if (m->type != TW_JOBJ)
            return tw_fail(err, NULL, 0, "messages[%lld] is not an object", (long long)i);
        if (tw_nat_no_media(m, err))
            return -1;
        tw_jw_obj(w);
        for (int64_t k = 0; k < m->n; k++) {
            if (m->item[k].type == TW_JNULL || media(m->item[k].key) ||
                    (m->item[k].type == TW_JARR && !m->item[k].n && tw_str_is(m->item[k].key, "tool_calls")))
                continue;
            tw_jw_key_n(w, m->item[k].key);
            tw_jw_value(w, &m->item[k]);
        }
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
    return 0;
}

static int put_tools(struct tw_jw *w, struct tw_arena *a, const struct tw_json *list, struct tw_err *err)
{
    if (list->type != TW_JARR)
        return tw_fail(err, NULL, 0, "tools must be a list");
    tw_jw_arr(w);
    for (int64_t i = 0; i < list->n; i++) {
        const struct tw_json *t = &list->item[i];

        if (t->type == TW_JSTR && !(t = tw_json_parse(a, t->str, err)))
            return -1;
        tw_jw_value(w, t);
    }
    tw_jw_arr_end(w);
    return 0;
}

/* Plain text: the one user message. */
static int put_text(struct tw_jw *w, const struct tw_json *list, struct tw_err *err)
{
    const struct tw_json *m = list->n == 1 && list->item[0].type == TW_JOBJ ? &list->item[0] : NULL;
    const struct tw_json *role = m ? tw_json_get(m, "role") : NULL, *c = m ? tw_json_get(m, "content") : NULL;

    if (!role || !c || !tw_str_is(role->str, "user") || c->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "without a chat template a trajectory is one user message");
    tw_jw_key(w, "text");
    tw_jw_str(w, c->str);
    return 0;
}

struct tw_json *tw_nat_record(struct tw_arena *a, const struct tw_json *t, bool text, struct tw_err *err)
{
    const struct tw_json *list = t->type == TW_JOBJ ? tw_json_get(t, "messages") : NULL;
    const struct tw_json *tools = list ? tw_json_get(t, "tools") : NULL;
    const struct tw_json *user = list ? tw_json_get(t, "user_data") : NULL;
    struct tw_buf b = { 0 };
    struct tw_json *rec = NULL;
    struct tw_jw w;
    int bad = 0;

    if (!list || list->type != TW_JARR || !list->n) {
        tw_fail(err, NULL, 0, "inputs: neither input_ids nor messages in one of them");
        return NULL;
    }
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    if (text) {
        bad = put_text(&w, list, err);
    } else {
        tw_jw_key(&w, "messages");
        bad = put_messages(&w, list, err);
        if (!bad && tools && tools->n) {
            tw_jw_key(&w, "tools");
            bad = put_tools(&w, a, tools, err);
        }
        if (!bad && user && user->n) {
            tw_jw_key(&w, "user_data");
            tw_jw_value(&w, user);
        }
    }
    if (!bad && !tw_nat_no_media(t, err)) {
        tw_jw_obj_end(&w);
        rec = tw_json_parse(a, tw_arena_str(a, tw_buf_str(&b)), err);
    }
    tw_buf_free(&b);
    return rec;
}
