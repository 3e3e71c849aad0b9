/* sess.c - sessions: made, kept alive by heartbeats, finished or expired; what clients are configured with */
#include "records.h"

#define HEARTBEAT_SAVED_S 60.0 /* how much of a session's last sign of life a crash may forget */

static void add(struct tw_srv *s, struct tw_sess *e)
{
    if (!(s->nsess & (s->nsess - 1)))
        s->sess = tw_xreallocarray(s->sess, s->nsess ? (size_t)s->nsess * 2 : 1, sizeof *s->sess);
    s->sess[s->nsess++] = e;
    tw_map_put(&s->sessions, e->id, e);
    if (e->idem)
        tw_map_put(&s->idem, e->idem, e);
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    struct tw_sess *e = tw_xcalloc(1, sizeof *e);
    char *tenant = tw_col_dup(r, 1);

    e->id = tw_col_dup(r, 0);
    e->tenant = tw_keys_tenant(s->keys, tenant ? tenant : "");
    free(tenant);
    e->created = tw_col_num(r, 2);
    e->seen = tw_wall(); /* a restart is nobody's silence */
    e->finished = tw_col_dup(r, 3);
    e->detail = tw_col_dup(r, 4);
    e->ended = tw_col_num(r, 5);
    e->tags = tw_col_dup(r, 6);
    e->user_metadata = tw_col_dup(r, 7);
    e->display_name = tw_col_dup(r, 8);
    e->project = tw_col_dup(r, 9);
    e->sdk = tw_col_dup(r, 10);
    e->idem = tw_col_dup(r, 11);
    add(s, e);
    return 0;
}

int tw_sess_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store,
            "SELECT id, tenant, created, finished, detail, ended, tags, user_metadata,"
            " display_name, project, sdk, idem FROM session ORDER BY created",
            load_row, s, err, "");
}

void tw_sess_free(struct tw_srv *s)
{
    for (int64_t i = 0; i < s->nsess; i++) {
        struct tw_sess *e = s->sess[i];
        char *own[] = { e->id, e->idem, e->finished, e->detail, e->tags, e->user_metadata, e->display_name,
            e->project, e->sdk, e->nat_template };

        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            free(own[k]);
        free(e);
    }
    free(s->sess);
    tw_map_free(&s->sessions);
    tw_map_free(&s->idem);
}

/* Not there and somebody else's look the same. */
static struct tw_sess *mine(struct tw_srv *s, struct tw_req *r, struct tw_str id)
{
    struct tw_sess *e = tw_map_get(&s->sessions, id);

    return e && e->tenant == r->tenant ? e : NULL;
}

struct tw_sess *tw_sess_of(struct tw_srv *s, struct tw_req *r, struct tw_str id)
{
    struct tw_sess *e = mine(s, r, id);

    if (!e) {
        tw_reply_error(r, 403, "no such session");
        return NULL;
    }
    if (e->finished) {
        tw_reply_error(r, 410, "the session has ended (%s)", e->finished);
        return NULL;
    }
    e->seen = tw_wall();
    e->dirty = true;
    return e;
}

static void client_config(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"use_pyqwest_transport\": false, \"pjwt_auth_enabled\": false, "
                               "\"parallel_fwdbwd_chunks\": true, \"proto_compress_fwdbwd\": false, "
                               "\"proto_write_fwdbwd\": true, "
                               "\"fwd_via_fwdbwd\": true, \"create_model_via_load_weights\": true}";

    tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

static void dynamic_config(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"refresh_interval_sec\": 300, \"sample_cancel_enabled\": true, "
                               "\"sample_cancel_max_batch_size\": 64}";

    tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

static void reply_session(struct tw_req *r, const struct tw_sess *e)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, "create_session");
    tw_jw_key(&w, "session_id");
    tw_jw_cstr(&w, e->id);
    tw_jw_key(&w, "info_message");
    tw_jw_null(&w);
    tw_jw_key(&w, "warning_message");
    tw_jw_null(&w);
    tw_jw_key(&w, "error_message");
    tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void forget(struct tw_req *r) { ((struct tw_op *)r->user)->user = NULL; }

static void created(void *arg, struct tw_op *o)
{
    struct tw_srv *s = arg;
    struct tw_req *r = o->user;
    struct tw_sess *e = o->user2;

    if (o->err.code)
        tw_alert(s, "store", o->err.msg);
    if (!r)
        return;
    if (o->err.code)
        tw_reply_error(r, 503, "the session could not be recorded");
    else
        reply_session(r, e);
}

/* A field that is any JSON value, as text. */
static char *json_text(const struct tw_json *j, const char *key)
{
    const struct tw_json *v = tw_json_get(j, key);

    return v ? tw_xstrndup(v->raw.p, v->raw.n) : NULL;
}

static void create_session(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    const char *idem = tw_req_header(r, "X-Idempotency-Key");
    struct tw_str name = { 0 }, project = { 0 }, sdk = { 0 };
    char id[40], hex[40], *key = NULL;
    bool native = r->nseg == 4;                 /* api/v1/twinkle/.. */
    struct tw_sess *e;
    struct tw_op *o;

    if (!j || tw_req_text(r, j, "display_name", false, &name) < 0 ||
            tw_req_text(r, j, "project_id", false, &project) < 0 ||
            tw_req_text(r, j, "sdk_version", false, &sdk) < 0)
        return;
    if (idem && *idem && strlen(idem) < 200) {
        key = tw_xasprintf("%s %s", r->tenant->name, idem);
        e = tw_map_gets(&s->idem, key);
        if (e) {
            free(key);
            reply_session(r, e);
            return;
        }
    }
    e = tw_xcalloc(1, sizeof *e);
    tw_uuid(id);
    tw_random_hex(hex, 16);
    e->id = native ? tw_xasprintf("session_%s", hex) : tw_xstrdup(id);
    e->idem = key;
    e->tenant = r->tenant;
    e->created = e->seen = tw_wall();
    e->tags = json_text(j, "tags");
    e->user_metadata = json_text(j, native ? "metadata" : "user_metadata");
    e->display_name = tw_str_dup(name);
    e->project = tw_str_dup(project);
    e->sdk = tw_str_dup(sdk);
    add(s, e);
    o = tw_op_new(created, s);
    tw_op_add(o,
            "INSERT INTO session (id, tenant, created, seen, tags, user_metadata, display_name, project,"
            " sdk, idem) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            "ttddtttttt", e->id, e->tenant->name, e->created, e->seen, e->tags, e->user_metadata,
            e->display_name, e->project, e->sdk, e->idem);
    tw_audit(s, o, e->tenant, "create_session", e->id);
    o->user = r;
    o->user2 = e;
    r->user = o;
    r->gone = forget;
    tw_store_submit(s->store, o);
}

static void heartbeat(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"type\": \"session_heartbeat\"}";
    const struct tw_json *j = tw_req_json(r);
    struct tw_str id;

    if (!j || tw_req_text(r, j, "session_id", true, &id) < 0)
        return;
    if (tw_sess_of(s, r, id))
        tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

static void telemetry(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"status\": \"accepted\"}";

    tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

static void end_session(
        struct tw_srv *s, struct tw_sess *e, const char *reason, const char *detail, struct tw_op *o)
{
    e->finished = tw_xstrdup(reason);
    e->detail = detail ? tw_xstrdup(detail) : NULL;
    e->ended = tw_wall();
    e->dirty = false;
    tw_op_add(o, "UPDATE session SET finished = ?, detail = ?, ended = ?, seen = ? WHERE id = ?", "ttddt",
            e->finished, e->detail, e->ended, e->seen, e->id);
    tw_audit(s, o, e->tenant, "end_session", e->id);
    tw_store_submit(s->store, o);
    for (int64_t i = 0; i < s->run.n; i++)
        if (((struct tw_trun *)s->run.v[i])->sess == e)
            tw_trun_end(s, s->run.v[i], true);
    for (int64_t i = s->sampler.n; i--;)
        if (((struct tw_smp *)s->sampler.v[i])->sess == e)
            tw_smp_end(s, s->sampler.v[i]);
}

static void finished(void *arg, struct tw_op *o)
{
    if (!o->user)
        return;
    if (o->err.code)
        tw_reply_error(o->user, 503, "the end of the session could not be recorded");
    else
        tw_reply(o->user, 204, NULL, NULL, 0);
}

static void finish(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r), *reason;
    struct tw_sess *e = mine(s, r, r->seg[3]);
    struct tw_str type = TW_STR_LIT("success"), detail = { 0 };
    struct tw_op *o;

    if (!j)
        return;
    if (!e) {
        tw_reply_error(r, 403, "no such session");
        return;
    }
    reason = tw_json_get(j, "reason");
    if ((reason && reason->type == TW_JOBJ && tw_req_text(r, reason, "type", false, &type) < 0) ||
            tw_req_text(r, j, "detail", false, &detail) < 0)
        return;
    if (!tw_str_is(type, "success") && !tw_str_is(type, "errored") && !tw_str_is(type, "interrupted")) {
        tw_reply_error(r, 400, "reason.type is success, errored or interrupted");
        return;
    }
    if (e->finished) { /* the first reason wins */
        tw_reply(r, 204, NULL, NULL, 0);
        return;
    }
    o = tw_op_new(finished, s);
    o->user = r;
    r->user = o;
    r->gone = forget;
    end_session(s, e, tw_arena_dup(&r->arena, type.p, type.n),
            detail.p ? tw_arena_dup(&r->arena, detail.p, detail.n) : NULL, o);
}

void tw_sess_tick(struct tw_srv *s, double wall)
{
    struct tw_op *o = NULL;

    for (int64_t i = 0; i < s->nsess; i++) {
        struct tw_sess *e = s->sess[i];

        if (e->finished)
            continue;
        if (wall - e->seen > s->o->session_timeout) {
            end_session(s, e, "expired", "no heartbeat", tw_op_new(NULL, s));
        } else if (e->dirty && wall - s->sess_saved > HEARTBEAT_SAVED_S) {
            o = o ? o : tw_op_new(NULL, s);
            tw_op_add(o, "UPDATE session SET seen = ? WHERE id = ?", "dt", e->seen, e->id);
            e->dirty = false;
        }
    }
    if (wall - s->sess_saved > HEARTBEAT_SAVED_S)
        s->sess_saved = wall;
    if (o)
        tw_store_submit(s->store, o);
}

const struct tw_endpoint tw_routes_session[] = { { "POST", "api/v1/client/config", TW_RIGHT_ANY,
                                                         client_config },
    { "POST", "api/v1/client/dynamic_config", TW_RIGHT_ANY, dynamic_config },
    { "POST", "api/v1/create_session", TW_RIGHT_ANY, create_session },
    { "POST", "api/v1/twinkle/create_session", TW_RIGHT_ANY, create_session },
    { "POST", "api/v1/session_heartbeat", TW_RIGHT_ANY, heartbeat },
    { "POST", "api/v1/sessions/*/finish", TW_RIGHT_ANY, finish },
    { "POST", "api/v1/telemetry", TW_RIGHT_ANY, telemetry }, { 0 } };
