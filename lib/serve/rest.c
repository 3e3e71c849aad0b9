/* rest.c - what there is: runs, their checkpoints, sessions */
#include "list.h"

static bool sees(const struct tw_saved *c, const struct tw_tenant *t)
{
    return c->tenant == t || c->public;
}

/* Clients up to 0.25 cannot read a list that holds an external one. */
static bool old_client(struct tw_req *r)
{
    const char *agent = tw_req_header(r, "User-Agent"), *v = agent ? strstr(agent, "Python ") : NULL;
    long major, minor = 0;
    char *end;

    if (!v)
        return false;
    major = strtol(v + 7, &end, 10);
    if (*end == '.')
        minor = strtol(end + 1, NULL, 10);
    return major == 0 && minor <= 25;
}

static void list_runs(struct tw_srv *s, struct tw_req *r)
{
    const char *project = tw_req_query(r, "project_id");
    struct tw_buf b = { 0 };
    struct tw_page p;
    struct tw_jw w;

    if (tw_page_of(r, &p, 20))
        return;
    tw_page_begin(&w, &b, "training_runs");
    for (int64_t i = s->run.n; i--;) {
        const struct tw_trun *run = s->run.v[i];

        if (run->tenant != r->tenant || (project && (!run->project || strcmp(project, run->project))))
            continue;
        if (tw_page_has(&p))
            tw_list_run(s, &w, run, false);
    }
    tw_page_end(r, &w, &b, &p);
}

/* A run of the tenant's, or one with something published. */
static struct tw_trun *visible(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = tw_map_get(&s->runs, r->seg[3]);
    bool ok = run && run->tenant == r->tenant;

    for (int64_t i = 0; run && !ok && i < s->ckpt.n; i++) {
        const struct tw_saved *c = s->ckpt.v[i];

        ok = c->public && !strcmp(c->run, run->id);
    }
    if (ok)
        return run;
    tw_reply_error(r, 404, "no such training run");
    return NULL;
}

static void get_run(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = visible(s, r);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!run)
        return;
    tw_jw_init(&w, &b);
    tw_list_run(s, &w, run, false);
    tw_reply_json(r, 200, &b);
}

static void run_ckpts(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = visible(s, r);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!run)
        return;
    tw_page_begin(&w, &b, "checkpoints");
    for (int64_t i = 0; i < s->ckpt.n; i++) {
        const struct tw_saved *c = s->ckpt.v[i];

        if (!strcmp(c->run, run->id) && sees(c, r->tenant) && (*c->kind != 'e' || !old_client(r)))
            tw_list_ckpt(&w, c, false);
    }
    tw_page_end(r, &w, &b, NULL);
}

static void list_ckpts(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_page p;
    struct tw_jw w;

    if (tw_page_of(r, &p, 100))
        return;
    tw_page_begin(&w, &b, "checkpoints");
    for (int64_t i = s->ckpt.n; i--;) {
        const struct tw_saved *c = s->ckpt.v[i];

        if (c->tenant == r->tenant && (*c->kind != 'e' || !old_client(r)) && tw_page_has(&p))
            tw_list_ckpt(&w, c, false);
    }
    tw_page_end(r, &w, &b, &p);
}

static void weights_info(struct tw_srv *s, struct tw_req *r)
{
    static const char *const flag[] = { "train_unembed", "train_mlp", "train_attn" };
    const struct tw_json *j = tw_req_json(r);
    struct tw_saved *c;
    struct tw_buf b = { 0 };
    struct tw_str path;
    struct tw_jw w;
    char why[160];

    if (!j || tw_req_text(r, j, "tinker_path", true, &path) < 0)
        return;
    c = tw_saved_find(s, r->tenant, path, why);
    if (!c) {
        tw_reply_error(r, 404, "%s", why);
        return;
    }
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "base_model");
    tw_jw_cstr(&w, c->base);
    tw_jw_key(&w, "is_lora");
    tw_jw_bool(&w, c->lora != NULL);
    tw_jw_key(&w, "lora_rank");
    tw_jw_int(&w, tw_lora_int(c->lora, "rank", 0));
    for (int i = 0; i < 3; i++) {
        tw_jw_key(&w, flag[i]);
        tw_jw_bool(&w, tw_lora_int(c->lora, flag[i], 1));
    }
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void list_sessions(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_page p;
    struct tw_jw w;

    if (tw_page_of(r, &p, 20))
        return;
    tw_page_begin(&w, &b, "sessions");
    for (int64_t i = s->nsess; i--;)
        if (s->sess[i]->tenant == r->tenant && tw_page_has(&p))
            tw_jw_cstr(&w, s->sess[i]->id);
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static struct tw_sess *session_of(struct tw_srv *s, struct tw_req *r)
{
    struct tw_sess *e = tw_map_get(&s->sessions, r->seg[3]);

    if (e && e->tenant == r->tenant)
        return e;
    tw_reply_error(r, 404, "no such session");
    return NULL;
}

static void get_session(struct tw_srv *s, struct tw_req *r)
{
    struct tw_sess *e = session_of(s, r);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!e)
        return;
    tw_page_begin(&w, &b, "training_run_ids");
    for (int64_t i = 0; i < s->run.n; i++)
        if (((struct tw_trun *)s->run.v[i])->sess == e)
            tw_jw_cstr(&w, ((struct tw_trun *)s->run.v[i])->id);
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "sampler_ids");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < s->sampler.n; i++)
        if (((struct tw_smp *)s->sampler.v[i])->sess == e)
            tw_jw_cstr(&w, ((struct tw_smp *)s->sampler.v[i])->id);
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "user_metadata");
    tw_list_meta(&w, e->user_metadata, false);
    tw_jw_key(&w, "display_name");
    tw_list_text(&w, e->display_name);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void write_found(struct tw_srv *s, struct tw_jw *w, const struct tw_sess *e)
{
    int64_t n = 0;

    for (int64_t i = 0; i < s->ckpt.n; i++) {
        const char *run = ((struct tw_saved *)s->ckpt.v[i])->run;

        n += !strncmp(run, e->id, strlen(e->id)) && run[strlen(e->id)] == ':';
    }
    tw_jw_obj(w);
    tw_jw_key(w, "session_id");
    tw_jw_cstr(w, e->id);
    tw_jw_key(w, "created_at");
    tw_list_time(w, e->created);
    tw_jw_key(w, "owner");
    tw_jw_cstr(w, e->tenant->name);
    tw_jw_key(w, "project_id");
    tw_jw_cstr(w, e->project ? e->project : "");
    tw_jw_key(w, "checkpoints_count");
    tw_jw_int(w, n);
    tw_jw_key(w, "display_name");
    tw_list_text(w, e->display_name);
    tw_jw_key(w, "status");
    tw_jw_obj(w);
    tw_jw_key(w, "type");
    tw_jw_cstr(w,
            !e->finished                              ? "active"
                    : !strcmp(e->finished, "expired") ? "cancelled"
                                                      : "client_finished");
    if (e->finished && strcmp(e->finished, "expired")) {
        tw_jw_key(w, "reason");
        tw_jw_obj(w);
        tw_jw_key(w, "type");
        tw_jw_cstr(w, e->finished);
        tw_jw_obj_end(w);
    }
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
}

/* Whether each member of WANT is in the session's metadata. */
static bool meta_has(const char *json, const struct tw_json *want)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = json ? tw_json_parse(&a, tw_str(json), NULL) : NULL;
    bool ok = true;

    for (int64_t i = 0; want && want->type == TW_JOBJ && ok && i < want->n; i++) {
        const struct tw_json *v = NULL;

        for (int64_t k = 0; j && j->type == TW_JOBJ && k < j->n && !v; k++)
            v = tw_str_eq(j->item[k].key, want->item[i].key) ? &j->item[k] : NULL;
        ok = v && tw_str_eq(v->raw, want->item[i].raw);
    }
    tw_arena_free(&a);
    return ok;
}

static bool any_of(const struct tw_json *list, const char *text)
{
    for (int64_t i = 0; list && list->type == TW_JARR && i < list->n; i++)
        if (text && list->item[i].type == TW_JSTR && tw_str_is(list->item[i].str, text))
            return true;
    return !list;
}

static void search_sessions(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r), *meta, *projects;
    struct tw_str id = { 0 }, name = { 0 };
    struct tw_page p = { .limit = 50 };
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!j || tw_req_text(r, j, "session_id", false, &id) < 0 ||
            tw_req_text(r, j, "display_name", false, &name) < 0)
        return;
    tw_json_get_int(j, "limit", &p.limit, NULL);
    meta = tw_json_get(j, "user_metadata");
    projects = tw_json_get(j, "project_ids");
    tw_page_begin(&w, &b, "sessions");
    for (int64_t i = s->nsess; i--;) {
        const struct tw_sess *e = s->sess[i];

        if (e->tenant == r->tenant && (!id.p || tw_str_is(id, e->id)) &&
                (!name.p || (e->display_name && tw_str_is(name, e->display_name))) &&
                any_of(projects, e->project) && meta_has(e->user_metadata, meta) && tw_page_has(&p))
            write_found(s, &w, e);
    }
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "next_cursor");
    tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void set_project(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_sess *e = j ? session_of(s, r) : NULL;
    struct tw_str project;
    struct tw_op *o;

    if (!e || tw_req_text(r, j, "project_id", true, &project) < 0)
        return;
    free(e->project);
    e->project = tw_str_dup(project);
    o = tw_op_new(NULL, s);
    tw_op_add(o, "UPDATE session SET project = ? WHERE id = ?", "tt", e->project, e->id);
    tw_store_submit(s->store, o);
    tw_reply(r, 204, NULL, NULL, 0);
}

static void trace_export(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"status\": \"failed\", \"error\": \"this server keeps no traces\"}";

    if (session_of(s, r))
        tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

const struct tw_endpoint tw_routes_rest[] = { { "GET", "api/v1/training_runs", TW_RIGHT_ANY, list_runs },
    { "GET", "api/v1/training_runs/*", TW_RIGHT_ANY, get_run },
    { "GET", "api/v1/training_runs/*/checkpoints", TW_RIGHT_ANY, run_ckpts },
    { "GET", "api/v1/checkpoints", TW_RIGHT_ANY, list_ckpts },
    { "POST", "api/v1/weights_info", TW_RIGHT_ANY, weights_info },
    { "GET", "api/v1/sessions", TW_RIGHT_ANY, list_sessions },
    { "POST", "api/v1/sessions/search", TW_RIGHT_ANY, search_sessions },
    { "GET", "api/v1/sessions/*", TW_RIGHT_ANY, get_session },
    { "PUT", "api/v1/sessions/*/project", TW_RIGHT_ANY, set_project },
    { "GET", "api/v1/sessions/*/trace_export", TW_RIGHT_ANY, trace_export }, { 0 } };
