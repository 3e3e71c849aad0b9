/* list.c - runs and checkpoints as both APIs list them */
#include "list.h"

void tw_list_time(struct tw_jw *w, double t)
{
    char iso[40];

    tw_list_text(w, t > 0 ? tw_iso(iso, t) : NULL);
}

void tw_list_text(struct tw_jw *w, const char *s)
{
    if (s)
        tw_jw_cstr(w, s);
    else
        tw_jw_null(w);
}

/* Tinker's clients insist on texts as values. */
static void texts(struct tw_jw *w, const char *json)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_parse(&a, tw_str(json), NULL);

    if (!j || j->type != TW_JOBJ) {
        tw_jw_null(w);
    } else {
        tw_jw_obj(w);
        for (int64_t i = 0; i < j->n; i++) {
            tw_jw_key_n(w, j->item[i].key);
            tw_jw_str(w, j->item[i].type == TW_JSTR ? j->item[i].str : j->item[i].raw);
        }
        tw_jw_obj_end(w);
    }
    tw_arena_free(&a);
}

void tw_list_meta(struct tw_jw *w, const char *json, bool native)
{
    if (!json)
        tw_jw_null(w);
    else if (native)
        tw_jw_raw(w, tw_str(json));
    else
        texts(w, json);
}

void tw_list_path(struct tw_jw *w, const struct tw_saved *c, bool native)
{
    struct tw_buf path = { 0 };

    tw_buf_printf(&path, "%s://%s", native ? "twinkle" : "tinker", c->path);
    tw_jw_key(w, native ? "twinkle_path" : "tinker_path");
    tw_jw_str(w, tw_buf_str(&path));
    tw_buf_free(&path);
}

void tw_list_flags(struct tw_jw *w, const char *lora)
{
    static const char *const flag[] = { "train_unembed", "train_mlp", "train_attn" };

    tw_jw_key(w, "is_lora");
    tw_jw_bool(w, lora != NULL);
    tw_jw_key(w, "lora_rank");
    if (lora)
        tw_jw_int(w, tw_lora_int(lora, "rank", 0));
    else
        tw_jw_null(w);
    for (int i = 0; i < 3; i++) {
        tw_jw_key(w, flag[i]);
        tw_jw_bool(w, !lora || tw_lora_int(lora, flag[i], 1));
    }
}

void tw_list_ckpt(struct tw_jw *w, const struct tw_saved *c, bool native)
{
    tw_jw_obj(w);
    tw_jw_key(w, "checkpoint_id");
    tw_jw_cstr(w, strchr(c->path, '/') + 1);
    tw_jw_key(w, "checkpoint_type");
    tw_jw_cstr(w, !strcmp(c->kind, "weights") ? "training" : !strcmp(c->kind, "sampler_weights") ? "sampler" :
            "external");
    tw_jw_key(w, "time");
    tw_list_time(w, c->created);
    tw_list_path(w, c, native);
    tw_jw_key(w, "size_bytes");
    tw_jw_int(w, c->bytes);
    tw_jw_key(w, "public");
    tw_jw_bool(w, c->public);
    tw_jw_key(w, native ? "base_model" : "expires_at");
    if (native) {
        tw_jw_cstr(w, c->base);
        tw_list_flags(w, c->lora);
    } else {
        tw_list_time(w, c->expires);
    }
    tw_jw_key(w, "user_metadata");
    tw_list_meta(w, c->user_metadata, native);
    tw_jw_obj_end(w);
}

/* The newest one of its kind, or null. */
static void last(struct tw_srv *s, struct tw_jw *w, const struct tw_trun *run, const char *kind, bool native)
{
    for (int64_t i = s->ckpt.n; i--;) {
        const struct tw_saved *c = s->ckpt.v[i];

        if (!strcmp(c->run, run->id) && !strcmp(c->kind, kind)) {
            tw_list_ckpt(w, c, native);
            return;
        }
    }
    tw_jw_null(w);
}

void tw_list_run(struct tw_srv *s, struct tw_jw *w, const struct tw_trun *run, bool native)
{
    tw_jw_obj(w);
    tw_jw_key(w, "training_run_id");
    tw_jw_cstr(w, run->id);
    tw_jw_key(w, "base_model");
    tw_jw_cstr(w, run->base);
    tw_jw_key(w, "model_owner");
    tw_jw_cstr(w, run->tenant->name);
    tw_jw_key(w, "corrupted");
    tw_jw_bool(w, !strcmp(run->state, "failed"));
    if (native) {
        tw_jw_key(w, "save_dir");
        tw_jw_null(w);
        tw_list_flags(w, run->lora);
    } else {
        tw_jw_key(w, "is_lora");
        tw_jw_bool(w, run->rank > 0);
        tw_jw_key(w, "lora_rank");
        tw_jw_int(w, run->rank);
    }
    tw_jw_key(w, "last_request_time");
    tw_list_time(w, run->used);
    tw_jw_key(w, "last_checkpoint");
    last(s, w, run, "weights", native);
    tw_jw_key(w, "last_sampler_checkpoint");
    last(s, w, run, "sampler_weights", native);
    tw_jw_key(w, "user_metadata");
    tw_list_meta(w, run->user_metadata, native);
    tw_jw_obj_end(w);
}

int tw_page_of(struct tw_req *r, struct tw_page *p, int64_t limit)
{
    *p = (struct tw_page){ .limit = limit };
    return tw_req_query_int(r, "limit", 0, 1000000, &p->limit) < 0 ||
            tw_req_query_int(r, "offset", 0, INT64_MAX / 2, &p->offset) < 0 ? -1 : 0;
}

bool tw_page_has(struct tw_page *p)
{
    int64_t i = p->total++;

    return i >= p->offset && i - p->offset < p->limit;
}

void tw_page_begin(struct tw_jw *w, struct tw_buf *b, const char *key)
{
    tw_jw_init(w, b);
    tw_jw_obj(w);
    tw_jw_key(w, key);
    tw_jw_arr(w);
}

void tw_page_end(struct tw_req *r, struct tw_jw *w, struct tw_buf *b, const struct tw_page *p)
{
    tw_jw_arr_end(w);
    tw_jw_key(w, "cursor");
    if (p) {
        tw_jw_obj(w);
        tw_jw_key(w, "offset");
        tw_jw_int(w, p->offset);
        tw_jw_key(w, "limit");
        tw_jw_int(w, p->limit);
        tw_jw_key(w, "total_count");
        tw_jw_int(w, p->total);
        tw_jw_obj_end(w);
    } else {
        tw_jw_null(w);
    }
    tw_jw_obj_end(w);
    tw_reply_json(r, 200, b);
}
