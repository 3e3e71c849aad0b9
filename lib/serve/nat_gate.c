/* nat_gate.c - /api/v1/twinkle: what there is on the server, for twinkle_client */
#include "list.h"
#include "serve/nat.h"

static void health(struct tw_srv *s, struct tw_req *r) { tw_nat_reply_text(r, "{\"status\": \"ok\"}"); }

static void health_deep(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "healthy");
    tw_jw_bool(&w, true);
    tw_jw_key(&w, "models");
    tw_jw_obj(&w);
    for (int i = 0; i < s->nname; i++) {
        tw_jw_key(&w, s->name[i]);
        tw_jw_obj(&w);
        tw_jw_key(&w, "healthy");
        tw_jw_bool(&w, true);
        tw_jw_key(&w, "status_code");
        tw_jw_int(&w, 200);
        tw_jw_obj_end(&w);
    }
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void capabilities(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!tw_nat_head(r))
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "supported_models");
    tw_jw_arr(&w);
    for (int i = 0; i < s->nname; i++) {
        tw_jw_obj(&w);
        tw_jw_key(&w, "model_name");
        tw_jw_cstr(&w, s->name[i]);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

/* Of the adapters that this tenant may have; without a quota, of those that the pool holds at once. */
static void capacity(struct tw_srv *s, struct tw_req *r)
{
    int64_t used = r->tenant->nadapters, most = r->tenant->adapters ? r->tenant->adapters : s->o->max_adapters;
    struct tw_buf b = { 0 };

    if (!tw_nat_head(r))
        return;
    most = most > used ? most : used;
    tw_buf_printf(&b, "{\"max_loras\": %lld, \"used_loras\": %lld, \"free_loras\": %lld}", (long long)most,
            (long long)used, (long long)(most - used));
    tw_reply_json(r, 200, &b);
}

static void heartbeat(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_nat_head(r) ? tw_req_json(r) : NULL;
    struct tw_sess *e;
    struct tw_str id;

    if (!j || tw_req_text(r, j, "session_id", true, &id) < 0)
        return;
    e = tw_map_get(&s->sessions, id);
    if (!e || e->tenant != r->tenant || e->finished) {
        tw_reply_error(r, 404, "Unknown session");
        return;
    }
    e->seen = tw_wall();
    e->dirty = true;
    tw_nat_reply_text(r, "{}");
}

/* What a client reads and writes here; external copies are the Tinker API's alone. */
static bool ours(const struct tw_saved *c) { return *c->kind != 'e'; }

static void runs(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_page p;
    struct tw_jw w;

    if (!tw_nat_head(r) || tw_page_of(r, &p, 20))
        return;
    tw_page_begin(&w, &b, "training_runs");
    for (int64_t i = s->run.n; i--;) {
        const struct tw_trun *run = s->run.v[i];

        if (run->tenant == r->tenant && tw_page_has(&p))
            tw_list_run(s, &w, run, true);
    }
    tw_page_end(r, &w, &b, &p);
}

static struct tw_trun *run_of(struct tw_srv *s, struct tw_req *r, int seg)
{
    struct tw_trun *run = tw_nat_head(r) ? tw_map_get(&s->runs, r->seg[seg]) : NULL;

    if (run && run->tenant == r->tenant)
        return run;
    if (!tw_replied(r))
        tw_reply_error(r, 404, "Training run %.*s not found or access denied", (int)(r->seg[seg].n < 200 ?
                r->seg[seg].n : 200), r->seg[seg].p);
    return NULL;
}

static void one_run(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = run_of(s, r, 4);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!run)
        return;
    tw_jw_init(&w, &b);
    tw_list_run(s, &w, run, true);
    tw_reply_json(r, 200, &b);
}

static void ckpts(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = run_of(s, r, 4);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!run)
        return;
    tw_page_begin(&w, &b, "checkpoints");
    for (int64_t i = 0; i < s->ckpt.n; i++) {
        const struct tw_saved *c = s->ckpt.v[i];

        if (!strcmp(c->run, run->id) && ours(c))
            tw_list_ckpt(&w, c, true);
    }
    tw_page_end(r, &w, &b, NULL);
}

/* The checkpoint of the path's run and of the segments from SEG on; else an error was sent. */
static struct tw_saved *ckpt_of(struct tw_srv *s, struct tw_req *r, struct tw_trun *run, int seg)
{
    struct tw_saved *c;

    for (int i = seg; i < r->nseg; i++)
        if (!r->seg[i].n || r->seg[i].p[0] == '.' || r->seg[i].p[0] == '~' ||
                memchr(r->seg[i].p, '/', r->seg[i].n)) {
            tw_reply_error(r, 400, "Invalid checkpoint path: path traversal not allowed");
            return NULL;
        }
    c = r->nseg != seg + 2 ? NULL : tw_map_gets(&s->ckpts, tw_arena_printf(&r->arena, "%s/%.*s/%.*s", run->id,
            (int)r->seg[seg].n, r->seg[seg].p, (int)r->seg[seg + 1].n, r->seg[seg + 1].p));
    if (!c || c->tenant != r->tenant)
        tw_reply_error(r, 404, "Checkpoint not found or access denied");
    return c && c->tenant == r->tenant ? c : NULL;
}

static void delete_ckpt(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = run_of(s, r, 4);
    struct tw_saved *c = run ? ckpt_of(s, r, run, 6) : NULL;
    struct tw_buf b = { 0 };
    struct tw_op *o;

    if (!c)
        return;
    tw_buf_printf(&b, "{\"success\": true, \"message\": \"Checkpoint %s deleted successfully\"}",
            strchr(c->path, '/') + 1);
    o = tw_op_new(NULL, s);
    tw_nat_hold(s, r, o, &b);
    tw_saved_remove(s, c, o);
}

static void path_of(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *run = run_of(s, r, 4);
    struct tw_saved *c = run ? ckpt_of(s, r, run, 5) : NULL;
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!c)
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "path");
    tw_jw_cstr(&w, c->dir);
    tw_list_path(&w, c, true);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void weights_info(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_nat_head(r) ? tw_req_json(r) : NULL;
    struct tw_saved *c;
    struct tw_buf b = { 0 };
    struct tw_str path;
    struct tw_jw w;
    char why[160];

    if (!j || tw_req_text(r, j, "twinkle_path", true, &path) < 0)
        return;
    c = tw_saved_find(s, r->tenant, path, why);
    if (!c) {
        tw_reply_error(r, 404, "Weights at %.*s not found or access denied", (int)(path.n < 300 ? path.n : 300),
                path.p);
        return;
    }
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "training_run_id");
    tw_jw_cstr(&w, c->run);
    tw_jw_key(&w, "base_model");
    tw_jw_cstr(&w, c->base);
    tw_jw_key(&w, "model_owner");
    tw_jw_cstr(&w, c->tenant->name);
    tw_list_flags(&w, c->lora);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void status(struct tw_srv *s, struct tw_req *r)
{
    int64_t sessions = 0, models = 0, samplers = 0, futures = 0;
    struct tw_buf b = { 0 };
    struct tw_future *f;

    if (!tw_nat_head(r))
        return;
    for (int64_t i = 0; i < s->nsess; i++)
        sessions += s->sess[i]->tenant == r->tenant && !s->sess[i]->finished;
    for (int64_t i = 0; i < s->run.n; i++) {
        const struct tw_trun *run = s->run.v[i];

        models += run->tenant == r->tenant && !strcmp(run->state, "live");
    }
    for (int64_t i = 0; i < s->sampler.n; i++)
        samplers += ((struct tw_smp *)s->sampler.v[i])->tenant == r->tenant;
    for (size_t i = 0; (f = tw_map_next(&s->futures, &i));)
        futures += f->tenant == r->tenant;
    tw_buf_printf(&b, "{\"resources\": {\"sessions\": %lld, \"models\": %lld, \"sampling_sessions\": %lld, "
            "\"futures\": %lld}, \"cleanup\": {\"running\": true, \"expiration_timeout\": %lld}}",
            (long long)sessions, (long long)models, (long long)samplers, (long long)futures,
            (long long)s->o->session_timeout);
    tw_reply_json(r, 200, &b);
}

#define ONE "api/v1/twinkle/training_runs/*"

const struct tw_endpoint tw_routes_gate[] = {
    { "GET", "api/v1/twinkle/healthz", 0, health },
    { "GET", "api/v1/twinkle/healthz/deep", TW_RIGHT_ANY, health_deep },
    { "GET", "api/v1/twinkle/get_server_capabilities", TW_RIGHT_ANY, capabilities },
    { "GET", "api/v1/twinkle/capacity_info", TW_RIGHT_ANY, capacity },
    { "POST", "api/v1/twinkle/session_heartbeat", TW_RIGHT_ANY, heartbeat },
    { "GET", "api/v1/twinkle/training_runs", TW_RIGHT_ANY, runs },
    { "GET", ONE, TW_RIGHT_ANY, one_run },
    { "GET", ONE "/checkpoints", TW_RIGHT_ANY, ckpts },
    { "DELETE", ONE "/checkpoints/*", TW_RIGHT_TRAIN, delete_ckpt },
    { "DELETE", ONE "/checkpoints/*/*", TW_RIGHT_TRAIN, delete_ckpt },
    { "DELETE", ONE "/checkpoints/*/*/*", TW_RIGHT_TRAIN, delete_ckpt },
    { "POST", "api/v1/twinkle/weights_info", TW_RIGHT_ANY, weights_info },
    { "GET", "api/v1/twinkle/checkpoint_path/*/*", TW_RIGHT_ANY, path_of },
    { "GET", "api/v1/twinkle/checkpoint_path/*/*/*", TW_RIGHT_ANY, path_of },
    { "GET", "api/v1/twinkle/checkpoint_path/*/*/*/*", TW_RIGHT_ANY, path_of },
    { "GET", "api/v1/twinkle/status", TW_RIGHT_ANY, status }, { 0 }
};
