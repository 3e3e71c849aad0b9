/* nat.c - Twinkle's native API: from a path with the model's name in it to what is asked */
#include "serve/nat.h"

bool tw_nat_head(struct tw_req *r)
{
    if (tw_req_header(r, "x-request-id"))
        return true;
    tw_reply_error(r, 400, "Missing x-request-id header, required for sticky session");
    return false;
}

bool tw_nat_plain_key(struct tw_str key)
{
    return tw_str_is(key, "adapter_name") || tw_str_is(key, "async_upload");
}

void tw_nat_reply_text(struct tw_req *r, const char *json)
{
    tw_reply(r, 200, "application/json", json, strlen(json));
}

struct after { /* a reply that waits for the disk */
    struct tw_req *r;
    struct tw_buf b;
};

static void forget(struct tw_req *r) { ((struct after *)r->user)->r = NULL; }

static void written(void *arg, struct tw_op *o)
{
    struct after *a = o->user;

    if (o->err.code)
        tw_alert(arg, "store", o->err.msg);
    if (a->r) {
        a->r->gone = NULL;
        if (o->err.code)
            tw_reply_error(a->r, 503, "the state could not be written");
        else
            tw_reply_json(a->r, 200, &a->b);
    }
    tw_buf_free(&a->b);
    free(a);
}

void tw_nat_hold(struct tw_srv *s, struct tw_req *r, struct tw_op *o, struct tw_buf *b)
{
    struct after *a = tw_xcalloc(1, sizeof *a);

    a->r = r;
    a->b = *b;
    *b = (struct tw_buf){ 0 };
    r->user = a;
    r->gone = forget;
    o->done = written;
    o->arg = s;
    o->user = a;
}

void tw_nat_after(struct tw_srv *s, struct tw_req *r, struct tw_op *o, struct tw_buf *b)
{
    tw_nat_hold(s, r, o, b);
    tw_store_submit(s->store, o);
}

/* The live session that the header names; 410 would end a client's loop without a word. */
struct tw_sess *tw_nat_sess(struct tw_srv *s, struct tw_req *r)
{
    const char *id = tw_req_header(r, "X-Twinkle-Session-Id");
    struct tw_sess *e = id ? tw_map_gets(&s->sessions, id) : NULL;

    if (!id || !*id)
        tw_reply_error(r, 400, "X-Twinkle-Session-Id is missing: create_session comes first");
    else if (!e || e->tenant != r->tenant)
        tw_reply_error(r, 404, "Unknown session");
    else if (e->finished)
        tw_reply_error(r, 404, "the session has ended (%s)", e->finished);
    else {
        e->seen = tw_wall();
        e->dirty = true;
        return e;
    }
    return NULL;
}

struct tw_trun *tw_nat_run(struct tw_srv *s, struct tw_req *r, const struct tw_json *j)
{
    struct tw_sess *e = tw_nat_sess(s, r);
    struct tw_trun *run;
    struct tw_str name;

    if (!e || tw_req_text(r, j, "adapter_name", true, &name) < 0)
        return NULL;
    run = tw_map_gets(&s->runs, tw_arena_printf(&r->arena, "%s-%.*s", e->id, (int)(name.n < 200 ? name.n :
            200), name.p));
    if (!run || run->tenant != r->tenant) {
        tw_reply_error(r, 404, "there is no adapter %.*s in this session: add_adapter_to_model comes first",
                (int)(name.n < 64 ? name.n : 64), name.p);
        return NULL;
    }
    if (strcmp(run->state, "new") && strcmp(run->state, "live")) {
        tw_reply_error(r, 404, "the adapter %.*s is gone (%s)", (int)name.n, name.p, run->state);
        return NULL;
    }
    return run;
}

/* The base model's name: the segments from 3 to END. Else a 404 was sent. */
static bool base_ok(struct tw_srv *s, struct tw_req *r, int end)
{
    struct tw_buf b = { 0 };
    bool ok;

    for (int i = 3; i < end; i++) {
        tw_buf_puts(&b, i > 3 ? "/" : "");
        tw_buf_adds(&b, r->seg[i]);
    }
    ok = tw_base_known(s, tw_buf_str(&b));
    if (!ok)
        tw_reply_error(r, 404, "model %.*s is not served; it is %s", (int)(b.n < 200 ? b.n : 200), b.p,
                s->name[0]);
    tw_buf_free(&b);
    return ok;
}

static void model(struct tw_srv *s, struct tw_req *r)
{
    const char *name = tw_arena_dup(&r->arena, r->seg[r->nseg - 1].p, r->seg[r->nseg - 1].n);
    const struct tw_json *j;
    struct tw_trun *run;

    if (!tw_nat_head(r) || !base_ok(s, r, r->nseg - 2))
        return;
    if (!strcmp(name, "create")) {
        tw_nat_reply_text(r, "{\"status\": \"ok\"}");
    } else if (!strcmp(name, "add_adapter_to_model")) {
        tw_nat_add(s, r);
    } else if (!strcmp(name, "upload_to_hub")) {
        tw_nat_upload(s, r);
    } else if (!strcmp(name, "get_train_configs")) {
        if ((j = tw_req_json(r)) && (run = tw_nat_run(s, r, j)))
            tw_nat_describe(r, run);
    } else if (!tw_nat_set(s, r, name) && !tw_nat_train(s, r, name)) {
        tw_reply_error(r, 404, "no such path");
    }
}

static void sampler(struct tw_srv *s, struct tw_req *r)
{
    const char *name = tw_arena_dup(&r->arena, r->seg[r->nseg - 1].p, r->seg[r->nseg - 1].n);

    if (tw_nat_head(r) && base_ok(s, r, r->nseg - 2) && !tw_nat_sampler(s, r, name))
        tw_reply_error(r, 404, "no such path");
}

static void model_health(struct tw_srv *s, struct tw_req *r)
{
    if (base_ok(s, r, r->nseg - 1))
        tw_nat_reply_text(r, "{\"healthy\": true, \"detail\": null}");
}

static void upload_status(struct tw_srv *s, struct tw_req *r)
{
    if (tw_nat_head(r) && base_ok(s, r, r->nseg - 3))
        tw_nat_upload_status(s, r, r->seg[r->nseg - 1]);
}

/* A model's name is up to four segments. */
#define AT(prefix, tail, method, right, f) \
    { method, prefix "*" tail, right, f }, { method, prefix "*/*" tail, right, f }, \
    { method, prefix "*/*/*" tail, right, f }, { method, prefix "*/*/*/*" tail, right, f }

const struct tw_endpoint tw_routes_nat[] = {
    AT("api/v1/model/", "/twinkle/*", "POST", TW_RIGHT_TRAIN, model),
    AT("api/v1/model/", "/healthz", "GET", TW_RIGHT_ANY, model_health),
    AT("api/v1/model/", "/twinkle/upload_status/*", "GET", TW_RIGHT_TRAIN, upload_status),
    AT("api/v1/sampler/", "/twinkle/*", "POST", TW_RIGHT_SAMPLE, sampler),
    AT("api/v1/sampler/", "/healthz", "GET", TW_RIGHT_ANY, model_health), { 0 }
};
