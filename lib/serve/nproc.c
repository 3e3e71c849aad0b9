/* nproc.c - /api/v1/processor/twinkle: the table of objects, whose turn it is, answers */
#include "nproc.h"
#include "base/io.h"
#include "serve/nat.h"
#include <stdlib.h>

struct tw_np {
    struct tw_srv *s;
    struct tw_map_of objs;      /* by id */
    struct tw_list_of list;     /* the same as they were made */
    struct tw_np_lane *lane[2]; /* [1]: what is long */
    struct tw_np_env env;
    struct tw_np_base base;
    struct tw_list data; /* --data */
    char *saved;
};

static const char *const types[] = {
        "dataset", "dataloader", "preprocessor", "processor", "reward", "template"};

/* ---- objects ---- */

static void unref(struct tw_np_obj *o)
{
    if (--o->refs)
        return;
    tw_np_impl_free(o);
    if (o->uses)
        unref(o->uses);
    free(o->session);
    free(o);
}

static struct tw_np_obj *obj_new(
        struct tw_np *np, struct tw_tenant *t, enum tw_np_type type, const char *session)
{
    struct tw_np_obj *o = tw_xcalloc(1, sizeof *o);

    memcpy(o->id, "pid:", 4);
    tw_random_hex(o->id + 4, 16);
    o->type = type;
    o->tenant = t;
    o->session = session ? tw_xstrdup(session) : NULL;
    o->used = tw_now();
    o->refs = 1;
    o->home = o;
    o->last = &o->first;
    tw_map_put(&np->objs, o->id, o);
    tw_list_add(&np->list, o);
    return o;
}

static void drop(struct tw_np *np, struct tw_np_obj *o)
{
    if (o->gone)
        return;
    o->gone = true;
    tw_map_del(&np->objs, o->id);
    tw_list_del(&np->list, o);
    if (o->home->now && o->home->now->obj == o)
        atomic_store(&o->home->now->stop, true);
    for (struct tw_np_job *j = o->home->first; j; j = j->next)
        if (j->obj == o)
            atomic_store(&j->stop, true);
    unref(o);
}

/* What a tenant has: objects, calls that wait, bytes of rows. */
static void count(const struct tw_np *np, const struct tw_tenant *t, int64_t *objects,
        int64_t *calls, int64_t *bytes)
{
    *objects = *calls = *bytes = 0;
    for (int64_t i = 0; i < np->list.n; i++) {
        const struct tw_np_obj *o = np->list.v[i];

        if (o->tenant != t)
            continue;
        ++*objects;
        *calls += o->ncalls;
        *bytes += o->bytes;
    }
}

/* ---- calls ---- */

static void job_free(struct tw_np_job *j)
{
    for (int i = 0; i < j->nref; i++)
        unref(j->ref[i]);
    unref(j->obj);
    tw_buf_free(&j->out);
    tw_arena_free(&j->arena);
    free(j);
}

static void answer(struct tw_np_job *j)
{
    const struct tw_err *e = &j->err;
    struct tw_buf b = {0};
    int status = j->exhausted              ? 410
                 : e->code == TW_EDENIED   ? 403
                 : e->code == TW_ENOTFOUND ? 404
                 : e->code == TW_ENETWORK  ? 502
                                           : 400;

    if (e->code && e->line)
        tw_reply_error(j->req, status, "%s:%lld: %s", e->place, (long long)e->line, e->msg);
    else if (e->code)
        tw_reply_error(j->req, status, "%s%s%s", e->place, *e->place ? ": " : "", e->msg);
    if (e->code)
        return;
    if (!strcmp(j->fn->name, "create"))
        tw_buf_printf(&b, "{\"processor_id\": \"%s\"}", j->obj->id);
    else {
        tw_buf_puts(&b, "{\"result\": ");
        tw_buf_adds(&b, j->out.n ? tw_buf_str(&j->out) : TW_STR_LIT("null"));
        tw_buf_putc(&b, '}');
    }
    tw_reply_json(j->req, 200, &b);
}

static void start(struct tw_np *np, struct tw_np_obj *home)
{
    struct tw_np_job *j = home->first;
    int64_t objects, calls, bytes;

    if (home->now || !j)
        return;
    home->first = j->next;
    if (!home->first)
        home->last = &home->first;
    home->now = j;
    count(np, j->tenant, &objects, &calls, &bytes);
    j->room = TW_NP_BYTES;
    if (j->tenant->disk && j->tenant->disk - j->tenant->disk_used - bytes < j->room)
        j->room = j->tenant->disk - j->tenant->disk_used - bytes;
    tw_np_lane_put(np->lane[j->fn->is_long], j);
}

static void done(void *arg, struct tw_mail *m)
{
    struct tw_srv *s = arg;
    struct tw_np_job *j = (struct tw_np_job *)m;
    struct tw_np *np = j->np;
    struct tw_np_obj *o = j->obj, *home = o->home;
    bool create = !strcmp(j->fn->name, "create");

    home->now = NULL;
    o->ncalls--;
    o->used = tw_now();
    if (o->type == TW_NP_DATASET && o->impl)
        o->bytes = tw_np_data_bytes(o->impl);
    home->refs++; /* until its next call has begun */
    if (j->req) {
        j->req->gone = NULL;
        answer(j);
    }
    if (create && (j->err.code || !j->req)) /* nobody knows its name */
        drop(np, o);
    job_free(j);
    if (s->closing)
        while ((j = home->first)) {
            home->first = j->next;
            j->obj->ncalls--;
            job_free(j);
        }
    start(np, home);
    unref(home);
}

static void gone(struct tw_req *r)
{
    struct tw_np_job *j = r->user;

    j->req = NULL;
    if (j != j->obj->home->now) /* what has begun is finished, what has not is not */
        atomic_store(&j->stop, true);
}

/* Objects of the tenant that the body's texts "pid:.." name. -1: a 404 was sent. */
static int find_refs(
        struct tw_np *np, struct tw_req *r, const struct tw_json *body, struct tw_np_job *j)
{
    for (int64_t i = 0; i < body->n; i++) {
        const struct tw_json *v = &body->item[i];
        struct tw_np_obj *o;

        if (v->type != TW_JSTR || v->str.n < 4 || memcmp(v->str.p, "pid:", 4) ||
                tw_str_is(v->key, "processor_id"))
            continue;
        o = tw_map_get(&np->objs, v->str);
        if (!o || o->tenant != r->tenant) {
            tw_reply_error(r, 404, "%.*s: there is no such object",
                    (int)(v->key.n < 100 ? v->key.n : 100), v->key.p);
            return -1;
        }
        if (j->nref == TW_NP_REFS) {
            tw_reply_error(r, 400, "more than %d objects in one call", TW_NP_REFS);
            return -1;
        }
        o->refs++;
        j->ref[j->nref++] = o;
    }
    return 0;
}

/* A loader's calls and its dataset's take turns, too. */
static void settle(struct tw_np_obj *o, const struct tw_np_job *j)
{
    for (int i = 0; o->type == TW_NP_LOADER && i < j->nref && !o->uses; i++)
        if (j->ref[i]->type == TW_NP_DATASET) {
            o->uses = o->home = j->ref[i];
            o->uses->refs++;
        }
}

static const struct tw_np_fn *fn_of(enum tw_np_type type, struct tw_str name)
{
    for (const struct tw_np_fn *f = tw_np_fns; f->name; f++)
        if (f->type == type && tw_str_is(name, f->name))
            return f;
    return NULL;
}

/* O NULL: one of TYPE is made. */
static void submit(struct tw_np *np, struct tw_req *r, const struct tw_json *body,
        const struct tw_np_fn *fn, struct tw_np_obj *o, const char *session)
{
    struct tw_np_job *j = tw_xcalloc(1, sizeof *j);
    unsigned char sum[32];
    struct tw_sha256 h;

    if (find_refs(np, r, body, j)) {
        for (int i = 0; i < j->nref; i++)
            unref(j->ref[i]);
        free(j);
        return;
    }
    if (!o) {
        o = obj_new(np, r->tenant, fn->type, session);
        settle(o, j);
    }
    o->refs++;
    o->ncalls++;
    j->mail.run = done;
    j->np = np;
    j->obj = o;
    j->fn = fn;
    j->tenant = r->tenant;
    j->env = &np->env;
    j->out.max = TW_NP_ANSWER;
    j->arg = (struct tw_np_args){
            .a = &j->arena, .what = !strcmp(fn->name, "create") ? types[fn->type] : fn->name};
    j->body = tw_arena_str(&j->arena, r->body);
    tw_sha256_init(&h);
    tw_sha256_add(&h, r->tenant->name, strlen(r->tenant->name));
    tw_sha256_end(&h, sum);
    tw_hex(j->saved, sum, 8);
    j->req = r;
    r->user = j;
    r->gone = gone;
    *o->home->last = j;
    o->home->last = &j->next;
    start(np, o->home);
}

/* ---- routes ---- */

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

    count(np, r->tenant, &objects, &calls, &bytes);
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
    while (i < sizeof types / sizeof *types && !tw_str_is(type, types[i]))
        i++;
    if (i == sizeof types / sizeof *types)
        tw_reply_error(r, 400,
                "Invalid processor type: it is dataset, dataloader, preprocessor, processor, "
                "reward "
                "or template");
    else
        submit(s->np, r, body, fn_of((enum tw_np_type)i, TW_STR_LIT("create")), NULL,
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
                "there is no such object: it ended with its session, by age or with the server");
        return;
    }
    fn = tw_str_is(name, "create") ? NULL : fn_of(o->type, name);
    if (!fn) {
        for (const struct tw_np_fn *f = tw_np_fns; f->name; f++)
            if (f->type == o->type && strcmp(f->name, "create"))
                tw_buf_printf(&known, " %s", f->name);
        tw_reply_error(r, 400, "a %s has no function %.*s; it has%s", types[o->type],
                (int)(name.n < 100 ? name.n : 100), name.p, known.n ? known.p : " none");
        tw_buf_free(&known);
        return;
    }
    if (!too_many(s->np, r, false))
        submit(s->np, r, body, fn, o, NULL);
}

const struct tw_endpoint tw_routes_nproc[] = {
        {"POST", "api/v1/processor/twinkle/create", TW_RIGHT_ANY, create},
        {"POST", "api/v1/processor/twinkle/call", TW_RIGHT_ANY, call}, {0}};

/* ---- the server's start, life and end ---- */

int tw_np_open(struct tw_srv *s, struct tw_err *err)
{
    struct tw_np *np = tw_xcalloc(1, sizeof *np);

    s->np = np;
    np->s = s;
    pthread_mutex_init(&np->base.lock, NULL);
    np->saved = tw_path_join(tw_store_dir(s->store), "saved");
    np->env = (struct tw_np_env){.model_dir = tw_worker_dir(s->worker),
            .name = s->name,
            .nname = s->nname,
            .data = &s->o->data,
            .tmp = s->swap,
            .saved = np->saved,
            .base = &np->base};
    for (int i = 0; i < s->o->data.n; i++) {
        const char *v = s->o->data.v[i];

        if (strncmp(v, "hf://", 5) && strncmp(v, "ms://", 5) && !tw_is_dir(v))
            return tw_fail(err, "--data", 0, "%s is neither a folder nor hf://.. or ms://..", v);
    }
    for (int i = 0; i < 2; i++)
        if (!(np->lane[i] = tw_np_lane_open(&s->box, err)))
            return -1;
    return 0;
}

void tw_np_tick(struct tw_srv *s, double now)
{
    struct tw_np *np = s->np;

    for (int64_t i = np->list.n; i--;) {
        struct tw_np_obj *o = np->list.v[i];
        const struct tw_sess *e = o->session ? tw_map_gets(&s->sessions, o->session) : NULL;

        if ((o->session && (!e || e->finished)) || (!o->ncalls && now - o->used > TW_NP_AGE_S))
            drop(np, o);
    }
}

int64_t tw_np_count(const struct tw_srv *s)
{
    return s->np ? s->np->list.n : 0;
}

void tw_np_stop(struct tw_srv *s)
{
    for (int i = 0; s->np && i < 2; i++)
        tw_np_lane_close(s->np->lane[i]);
}

void tw_np_free(struct tw_srv *s)
{
    struct tw_np *np = s->np;

    if (!np)
        return;
    while (np->list.n)
        drop(np, np->list.v[np->list.n - 1]);
    free(np->list.v);
    tw_map_free(&np->objs);
    tw_chat_close(np->base.chat);
    pthread_mutex_destroy(&np->base.lock);
    free(np->saved);
    free(np);
    s->np = NULL;
}
