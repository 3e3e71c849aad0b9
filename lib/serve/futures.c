/* futures.c - one poll for all samples of a sampling session: what was done since the last time */
#include "records.h"

#define KEPT 8192 /* events of a session; older ones are read from the store */

struct tw_event {
    int64_t cursor, clone;
    char id[40];
    bool failed;
    int64_t bytes;
};

struct tw_watch { /* a poll that waits */
    struct tw_watch *next;
    struct tw_req *req;
    char *sampler;
    int64_t clone, cursor;
    double deadline;
};

struct asked { /* what R wants to know */
    struct tw_smp *p;
    int64_t clone, cursor;
    const struct tw_json *got; /* ids that the client has already */
    bool now;
};

static bool has(const struct tw_json *list, const char *id)
{
    for (int64_t i = 0; list && list->type == TW_JARR && i < list->n; i++)
        if (list->item[i].type == TW_JSTR && tw_str_is(list->item[i].str, id))
            return true;
    return false;
}

static void put(struct tw_jw *w, const char *id, bool failed, int64_t bytes)
{
    tw_jw_obj(w);
    tw_jw_key(w, "state");
    tw_jw_cstr(w, failed ? "failed" : "finished");
    tw_jw_key(w, "request_id");
    tw_jw_cstr(w, id);
    if (!failed) {
        tw_jw_key(w, "response_payload_uncompressed_size");
        tw_jw_int(w, bytes);
    }
    tw_jw_obj_end(w);
}

struct from_store {
    struct tw_jw *w;
    const struct asked *a;
    int64_t n;
};

static int row(void *arg, const struct tw_row *r)
{
    struct from_store *x = arg;
    char *id = tw_col_dup(r, 0);

    if (tw_col_int(r, 2) / 1000000000 == x->a->clone && !has(x->a->got, id)) {
        put(x->w, id, tw_col_int(r, 1) == TW_FUTURE_FAILED, tw_col_int(r, 3));
        x->n++;
    }
    free(id);
    return 0;
}

/* Whether there was something to tell. NOW: an empty list is an answer, too. */
static bool answer(struct tw_srv *s, struct tw_req *r, const struct asked *a, bool now)
{
    struct from_store x = { .a = a };
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    struct tw_jw w;
    int64_t last = a->cursor, n = 0;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "completions");
    tw_jw_arr(&w);
    x.w = &w;
    if (a->cursor < s->event_base || (a->p->nevent && a->cursor + 1 < a->p->event[0].cursor)) {
        if (tw_store_read(s->store,
                    "SELECT id, state, seq, coalesce(length(proto), length(json), 0) FROM request"
                    " WHERE target = ? AND kind = 10 AND state > 0",
                    row, &x, &err, "t", a->p->id))
            tw_alert(s, "store", err.msg);
        last = s->event_n;
        n = x.n;
    } else {
        for (int64_t i = 0; i < a->p->nevent; i++) {
            const struct tw_event *e = &a->p->event[i];

            if (e->cursor > a->cursor && e->clone == a->clone) {
                put(&w, e->id, e->failed, e->bytes);
                n++;
            }
        }
        last = n || now ? s->event_n : last;
    }
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "cursor");
    tw_jw_int(&w, last > s->event_base ? last : s->event_base);
    tw_jw_obj_end(&w);
    if (n || now)
        tw_reply_json(r, 200, &b);
    else
        tw_buf_free(&b);
    return n || now;
}

static void unlink_watch(struct tw_srv *s, struct tw_watch *p)
{
    struct tw_watch **at;

    for (at = &s->watches; *at != p; at = &(*at)->next)
        ;
    *at = p->next;
    p->req->gone = NULL;
    free(p->sampler);
    free(p);
}

static void gone(struct tw_req *r) { unlink_watch(r->arg, r->user); }

/* A sample is done and the store knows it. */
void tw_futures_event(struct tw_srv *s, const struct tw_future *f)
{
    struct tw_smp *p = tw_map_gets(&s->samplers, f->target);
    struct tw_event e = { .cursor = ++s->event_n,
        .clone = f->seq / 1000000000,
        .failed = f->state == TW_FUTURE_FAILED,
        .bytes = f->proto ? (int64_t)f->proto->n : 0 };
    struct tw_watch *w, *next;

    if (!p)
        return;
    snprintf(e.id, sizeof e.id, "%s", f->id);
    if (p->nevent == KEPT)
        memmove(p->event, p->event + KEPT / 2, (size_t)(p->nevent = KEPT / 2) * sizeof e);
    if (!(p->nevent & (p->nevent - 1)))
        p->event = tw_xreallocarray(p->event, p->nevent ? 2 * (size_t)p->nevent : 1, sizeof e);
    p->event[p->nevent++] = e;
    for (w = s->watches; w; w = next) {
        struct asked a = { p, w->clone, w->cursor, NULL, false };
        struct tw_req *r = w->req;

        next = w->next;
        if (!strcmp(w->sampler, p->id) && w->clone == e.clone) {
            unlink_watch(s, w);
            answer(s, r, &a, true);
        }
    }
}

void tw_futures_tick(struct tw_srv *s, double now)
{
    struct tw_watch *w, *next;

    for (w = s->watches; w; w = next) {
        struct asked a = { tw_map_gets(&s->samplers, w->sampler), w->clone, w->cursor, NULL, true };
        struct tw_req *r = w->req;

        next = w->next;
        if (a.p && now < w->deadline)
            continue;
        unlink_watch(s, w);
        if (a.p)
            answer(s, r, &a, true);
        else
            tw_reply_error(r, 404, "the sampling session is gone");
    }
}

static void retrieve(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r), *target = j ? tw_json_get(j, "target") : NULL;
    struct asked a = { 0 };
    struct tw_watch *w;
    struct tw_str id;
    double timeout = 1;

    if (!j)
        return;
    if (!target || target->type != TW_JOBJ) {
        tw_reply_error(r, 400, "target is missing");
        return;
    }
    if (tw_req_text(r, target, "sampling_session_id", true, &id) < 0 || !(a.p = tw_smp_of(s, r, id)))
        return;
    if (tw_json_get_int(target, "cloned_sampler_id", &a.clone, NULL) < 0 ||
            tw_json_get_int(j, "prev_cursor", &a.cursor, NULL) < 0 ||
            tw_json_get_num(j, "timeout", &timeout, NULL) < 0) {
        tw_reply_error(r, 400, "cloned_sampler_id, prev_cursor and timeout are numbers");
        return;
    }
    a.got = tw_json_get(j, "retrieved_request_ids");
    if (answer(s, r, &a, timeout <= 0 || s->stopping))
        return;
    w = tw_xcalloc(1, sizeof *w);
    w->req = r;
    w->sampler = tw_xstrdup(a.p->id);
    w->clone = a.clone;
    w->cursor = a.cursor > s->event_base ? a.cursor : s->event_base;
    w->deadline = tw_now() + s->o->poll_hold;
    w->next = s->watches;
    s->watches = w;
    r->user = w;
    r->gone = gone;
}

const struct tw_endpoint tw_routes_futures[] = {
    { "POST", "api/v1/retrieve_futures", TW_RIGHT_ANY, retrieve }, { 0 }
};
