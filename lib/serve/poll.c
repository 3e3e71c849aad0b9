/* poll.c - long polls: held until the result is there, or for a while */
#include "records.h"

struct tw_poll {
    struct tw_poll *next, *prev; /* all polls, by deadline */
    struct tw_poll *more; /* of one future */
    struct tw_req *req;
    struct tw_future *f;
    double deadline;
};

static bool was_sample(struct tw_srv *s, const struct tw_tenant *t, struct tw_str id)
{
    char hex[33];

    if (id.n != 36 || memcmp(id.p, "req-", 4))
        return false;
    memcpy(hex, id.p + 4, 32);
    hex[32] = 0;
    tw_future_sign(s, t, hex);
    return !memcmp(hex, id.p + 4, 32);
}

/* The answer to a poll of what is done; false: only the store has it, and failed. */
static void reply_result(struct tw_srv *s, struct tw_future *f, struct tw_req *r)
{
    const char *accept = tw_req_header(r, "Accept");
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };

    if (f->proto && accept && strstr(accept, "application/x-protobuf")) {
        tw_reply_blob(r, 200, "application/x-protobuf", f->proto);
    } else if (f->json) {
        tw_reply_blob(r, 200, "application/json", f->json);
    } else if (f->proto) {
        struct tw_str p = { f->proto->p, f->proto->n };

        if (tw_result_json(f->kind == TW_KIND_SAMPLE ? TW_SAMPLE : TW_FORWARD_BACKWARD, p, &b, &err))
            tw_reply_error(r, 500, "the result has no JSON form: %s", err.msg);
        else
            tw_reply_json(r, 200, &b);
    } else {
        tw_reply_error(r, 410, "the result has expired");
    }
}

static void unlink_poll(struct tw_srv *s, struct tw_poll *p)
{
    struct tw_poll **at;

    for (at = &p->f->polls; *at != p; at = &(*at)->more)
        ;
    *at = p->more;
    *(p->prev ? &p->prev->next : &s->polls) = p->next;
    *(p->next ? &p->next->prev : &s->last_poll) = p->prev;
    p->req->gone = NULL;
    s->npolls--;
}

static void poll_gone(struct tw_req *r)
{
    struct tw_poll *p = r->user;

    unlink_poll(r->arg, p);
    free(p);
}

void tw_poll_wake(struct tw_srv *s, struct tw_future *f)
{
    struct tw_poll *p;

    while ((p = f->polls)) {
        unlink_poll(s, p);
        reply_result(s, f, p->req);
        free(p);
    }
}

static void try_again(struct tw_req *r, const struct tw_future *f)
{
    struct tw_buf b = { 0 };
    bool held = f->run && f->run->held;

    tw_buf_printf(&b,
            "{\"type\": \"try_again\", \"request_id\": \"%s\", \"queue_state\": \"%s\", "
            "\"queue_state_reason\": %s}",
            f->id, held ? "paused_rate_limit" : "active",
            held ? "\"a quota of this tenant is used up\"" : "null");
    tw_reply_json(r, 408, &b);
}

static void retrieve(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_future *f;
    struct tw_poll *p;
    struct tw_str id;

    if (!j || tw_req_text(r, j, "request_id", true, &id) < 0)
        return;
    f = tw_future_get(s, r->tenant, id);
    if (!f && was_sample(s, r->tenant, id)) {
        tw_reply_error(r, 410, "the sample has expired");
        return;
    }
    if (!f) {
        tw_reply_error(r, 404, "no such request");
        return;
    }
    if (f->state != TW_FUTURE_OPEN && !f->settling) {
        reply_result(s, f, r);
        return;
    }
    if (s->stopping) {
        try_again(r, f);
        return;
    }
    p = tw_xcalloc(1, sizeof *p);
    p->req = r;
    p->f = f;
    p->deadline = tw_now() + s->o->poll_hold;
    p->more = f->polls;
    f->polls = p;
    p->prev = s->last_poll;
    *(p->prev ? &p->prev->next : &s->polls) = p;
    s->last_poll = p;
    s->npolls++;
    r->user = p;
    r->gone = poll_gone;
}

static void cancel(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_future *f;
    struct tw_str id;

    if (!j || tw_req_text(r, j, "request_id", true, &id) < 0)
        return;
    f = tw_future_get(s, r->tenant, id);
    if (!f) {
        tw_reply_error(r, 404, "no such request");
        return;
    }
    if (f->kind == TW_KIND_SAMPLE && f->state == TW_FUTURE_OPEN)
        tw_worker_cancel(s->worker, f->id); /* training that was accepted is done */
    tw_reply(r, 204, NULL, NULL, 0);
}

void tw_poll_expire(struct tw_srv *s, double now)
{
    struct tw_poll *p;

    while ((p = s->polls) && p->deadline <= now) {
        unlink_poll(s, p);
        try_again(p->req, p->f);
        free(p);
    }
}

void tw_future_release(struct tw_srv *s)
{
    tw_poll_expire(s, 1e300);
    tw_futures_tick(s, 1e300);
}

const struct tw_endpoint tw_routes_future[] = { { "POST", "api/v1/retrieve_future", TW_RIGHT_ANY,
                                                        retrieve },
    { "POST", "api/v1/cancel_future", TW_RIGHT_ANY, cancel }, { 0 } };
