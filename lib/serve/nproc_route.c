/* nproc_route.c - /api/v1/processor/twinkle: what is asked of which object */
#include "nproc.h"
#include "serve/nat.h"

/* The session that the request is made in, "" none; NULL: a 404 was sent. */
static const char *session_of(struct tw_srv *s, struct tw_req *r)
{
    const char *id = tw_req_header(r, "X-Twinkle-Session-Id");
    const struct tw_sess *e = id && *id ? tw_map_gets(&s->sessions, id) : NULL;

    if (!id || !*id)
        return "";
    if (e && e->tenant == r->tenant && !e->finished)
        return e->id;
    tw_reply_error(r, 404, "X-Twinkle-Session-Id: there is no such session, or it has ended");
    return NULL;
}

static bool too_many(struct tw_np *np, struct tw_req *r, bool create)
{
    int64_t objects, calls, bytes;

    tw_np_use(np, r->tenant, &objects, &calls, &bytes);
    if (create && objects >= TW_NP_OBJECTS)
        tw_reply_error(r, 400,
                "Processor limit exceeded: %lld of %d objects; they end with their session",
                (long long)objects, TW_NP_OBJECTS);
    else if (calls >= TW_NP_WAITING) {
        tw_reply_header(r, "Retry-After", "1");
        tw_reply_error(r, 429, "this tenant has too many calls that wait");
    } else
        return false;
    return true;
}

static void create(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *body = tw_nat_head(r) ? tw_req_json(r) : NULL;
    const char *session;
    struct tw_str type, kind;
    size_t i = 0;

    if (!body || tw_req_text(r, body, "processor_type", true, &type) < 0 ||
            tw_req_text(r, body, "class_type", true, &kind) < 0 || !(session = session_of(s, r)) ||
            too_many(s->np, r, true))
        return;
    while (i < TW_NP_TEMPLATE + 1 && !tw_str_is(type, tw_np_types[i]))
        i++;
    if (i == TW_NP_TEMPLATE + 1)
        tw_reply_error(r, 400,
                "Invalid processor type: it is dataset, dataloader, preprocessor, processor, "
                "reward "
                "or template");
    else
        tw_np_submit(s->np, r, body, tw_np_fn_of((enum tw_np_type)i, TW_STR_LIT("create")), NULL,
                *session ? session : NULL);
}

static void call(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *body = tw_nat_head(r) ? tw_req_json(r) : NULL;
    const struct tw_np_fn *fn;
    struct tw_np_obj *o;
    struct tw_str id, name;
    struct tw_buf known = {0};

    if (!body || tw_req_text(r, body, "processor_id", true, &id) < 0 ||
            tw_req_text(r, body, "function", true, &name) < 0)
        return;
    o = tw_map_get(&s->np->objs, id);
    if (!o || o->tenant != r->tenant) { /* not there and somebody else's look the same */
        tw_reply_error(r, 404,
                "there is no such object: it ended with its session or by age");
        return;
    }
    fn = tw_str_is(name, "create") ? NULL : tw_np_fn_of(o->type, name);
    if (!fn) {
        for (const struct tw_np_fn *f = tw_np_fns; f->name; f++)
            if (f->type == o->type && strcmp(f->name, "create"))
                tw_buf_printf(&known, " %s", f->name);
        tw_reply_error(r, 400, "a %s has no function %.*s; it has%s", tw_np_types[o->type],
                (int)(name.n < 100 ? name.n : 100), name.p, known.n ? known.p : " none");
        tw_buf_free(&known);
        return;
    }
    if (!too_many(s->np, r, false))
        tw_np_submit(s->np, r, body, fn, o, NULL);
}

const struct tw_endpoint tw_routes_nproc[] = {
        {"POST", "api/v1/processor/twinkle/create", TW_RIGHT_ANY, create},
        {"POST", "api/v1/processor/twinkle/call", TW_RIGHT_ANY, call}, {0}};
