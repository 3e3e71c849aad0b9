/* nproc.c - objects of /api/v1/processor/twinkle: their table, whose turn it is, answers */
#include "nproc.h"
#include "base/io.h"
#include "serve/nat.h"
#include <stdlib.h>

const char *const tw_np_types[] = {
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
    free(o->where);
    free(o);
}

struct tw_np_obj *tw_np_obj_new(struct tw_np *np, struct tw_tenant *t, enum tw_np_type type,
        const char *session, const char *id)
{
    struct tw_np_obj *o = tw_xcalloc(1, sizeof *o);

    memcpy(o->id, "pid:", 4);
    if (id)
        snprintf(o->id, sizeof o->id, "%s", id);
    else
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
    tw_np_forget(np, o);
    tw_map_del(&np->objs, o->id);
    tw_list_del(&np->list, o);
    if (o->home->now && o->home->now->obj == o)
        atomic_store(&o->home->now->stop, true);
    for (struct tw_np_job *j = o->home->first; j; j = j->next)
        if (j->obj == o)
            atomic_store(&j->stop, true);
    unref(o);
}

void tw_np_use(const struct tw_np *np, const struct tw_tenant *t, int64_t *objects,
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
    tw_np_use(np, j->tenant, &objects, &calls, &bytes);
    j->room = TW_NP_BYTES;
    if (j->tenant->disk && j->tenant->disk - j->tenant->disk_used - bytes < j->room)
        j->room = j->tenant->disk - j->tenant->disk_used - bytes;
    tw_np_lane_put(np->lane[j->fn->is_long], j);
}

static void enqueue(struct tw_np *np, struct tw_np_job *j)
{
    struct tw_np_obj *home = j->obj->home;

    if (j->obj->gone)
        atomic_store(&j->stop, true);
    j->next = NULL;
    *home->last = j;
    home->last = &j->next;
    start(np, home);
}

static void reply(struct tw_np_job *j)
{
    if (j->req) {
        j->req->gone = NULL;
        answer(j);
    }
    job_free(j);
}

/* The store has what J did. */
static void kept(void *arg, struct tw_op *o)
{
    struct tw_srv *s = arg;
    struct tw_np_job *j = o->user;

    if (o->err.code) {
        tw_alert(s, "store", o->err.msg);
        if (j->req)
            tw_fail(&j->err, NULL, 0, "the call could not be written to the journal");
    }
    reply(j);
}

static void done(void *arg, struct tw_mail *m)
{
    struct tw_srv *s = arg;
    struct tw_np_job *j = (struct tw_np_job *)m;
    struct tw_np *np = j->np;
    struct tw_np_obj *o = j->obj, *home = o->home;
    bool create = !strcmp(j->fn->name, "create"), again = j->again;

    home->now = NULL;
    o->ncalls--;
    o->used = tw_now();
    if (o->type == TW_NP_DATASET && o->impl)
        o->bytes = tw_np_data_bytes(o->impl);
    home->refs++; /* until its next call has begun */
    if (again && j->err.code && !s->closing)
        tw_notice("%s: %s cannot be done again, the object is gone: %s", o->id, j->fn->name, j->err.msg);
    if (j->err.code ? create || again : create && !j->req && !again) /* nobody knows its name */
        drop(np, o);
    if (j->fn->keeps && !again && !j->err.code && !o->gone)
        tw_np_keep(np, j, kept);
    else
        reply(j);
    if (s->closing)
        while ((j = home->first)) {
            home->first = j->next;
            j->obj->ncalls--;
            job_free(j);
        }
    start(np, home);
    unref(home);
    if (again && !s->closing)
        tw_np_again_next(np);
}

static void gone(struct tw_req *r)
{
    struct tw_np_job *j = r->user;

    j->req = NULL;
    if (j != j->obj->home->now) /* what has begun is finished, what has not is not */
        atomic_store(&j->stop, true);
}

/* Objects of the tenant that the body's texts "pid:.." name. -1: ERR. */
static int find_refs(struct tw_np *np, struct tw_tenant *t, const struct tw_json *body,
        struct tw_np_job *j, struct tw_err *err)
{
    for (int64_t i = 0; i < body->n; i++) {
        const struct tw_json *v = &body->item[i];
        struct tw_np_obj *o;

        if (v->type != TW_JSTR || v->str.n < 4 || memcmp(v->str.p, "pid:", 4) ||
                tw_str_is(v->key, "processor_id"))
            continue;
        o = tw_map_get(&np->objs, v->str);
        if (!o || o->tenant != t)
            return tw_fail_code(err, TW_ENOTFOUND, NULL, 0, "%.*s: there is no such object",
                    (int)(v->key.n < 100 ? v->key.n : 100), v->key.p);
        if (j->nref == TW_NP_REFS)
            return tw_fail(err, NULL, 0, "more than %d objects in one call", TW_NP_REFS);
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

const struct tw_np_fn *tw_np_fn_of(enum tw_np_type type, struct tw_str name)
{
    for (const struct tw_np_fn *f = tw_np_fns; f->name; f++)
        if (f->type == type && tw_str_is(name, f->name))
            return f;
    return NULL;
}

/* What FN does to O, which may not be there yet: J's parts that come of T. */
static void fill(struct tw_np *np, struct tw_np_job *j, struct tw_np_obj *o, struct tw_tenant *t,
        const struct tw_np_fn *fn, struct tw_str body)
{
    unsigned char sum[32];
    struct tw_sha256 h;

    o->refs++;
    o->ncalls++;
    j->mail.run = done;
    j->np = np;
    j->obj = o;
    j->fn = fn;
    j->tenant = t;
    j->env = &np->env;
    j->out.max = TW_NP_ANSWER;
    j->arg = (struct tw_np_args){
            .a = &j->arena, .what = !strcmp(fn->name, "create") ? tw_np_types[fn->type] : fn->name};
    j->body = tw_arena_str(&j->arena, body);
    tw_sha256_init(&h);
    tw_sha256_add(&h, t->name, strlen(t->name));
    tw_sha256_end(&h, sum);
    tw_hex(j->saved, sum, 8);
}

void tw_np_submit(struct tw_np *np, struct tw_req *r, const struct tw_json *body,
        const struct tw_np_fn *fn, struct tw_np_obj *o, const char *session)
{
    struct tw_np_job *j = tw_xcalloc(1, sizeof *j);
    struct tw_err err = {0};

    if (find_refs(np, r->tenant, body, j, &err)) {
        tw_reply_error(r, err.code == TW_ENOTFOUND ? 404 : 400, "%s", err.msg);
        for (int i = 0; i < j->nref; i++)
            unref(j->ref[i]);
        free(j);
        return;
    }
    if (!o) {
        o = tw_np_obj_new(np, r->tenant, fn->type, session, NULL);
        settle(o, j);
    }
    fill(np, j, o, r->tenant, fn, r->body);
    j->req = r;
    r->user = j;
    r->gone = gone;
    if (np->recalling) {
        *np->held_last = j;
        np->held_last = &j->next;
    } else {
        enqueue(np, j);
    }
}

/* ---- calls of before the start ---- */

void tw_np_again(struct tw_np *np, struct tw_np_obj *o, struct tw_str fn, struct tw_str body)
{
    const struct tw_np_fn *f = tw_np_fn_of(o->type, fn);
    struct tw_np_job *j;

    if (!f)
        return;
    j = tw_xcalloc(1, sizeof *j);
    fill(np, j, o, o->tenant, f, body);
    j->again = true;
    *np->again_last = j;
    np->again_last = &j->next;
    np->recalling = true;
}

/* All are done: loops go on where they were, and clients get their turns. */
static void recalled(struct tw_np *np)
{
    struct tw_np_job *j;

    np->recalling = false;
    for (int64_t i = np->list.n; i--;) {
        struct tw_np_obj *o = np->list.v[i];

        if (o->ended || (!o->impl && !o->ncalls))
            drop(np, o); /* or its making is not in the store */
        else if (o->where && o->type == TW_NP_DATASET)
            tw_np_data_go(o->impl, o->where);
        else if (o->where && o->type == TW_NP_LOADER)
            tw_np_loader_go(o->impl, o->where);
    }
    while ((j = np->held)) {
        np->held = j->next;
        enqueue(np, j);
    }
    np->held_last = &np->held;
}

void tw_np_again_next(struct tw_np *np)
{
    struct tw_np_job *j;

    while ((j = np->again)) {
        struct tw_err err = {0};
        const struct tw_json *body = tw_json_parse(&j->arena, j->body, &err);

        np->again = j->next;
        if (!j->obj->gone && body && !find_refs(np, j->tenant, body, j, &err)) {
            if (!strcmp(j->fn->name, "create"))
                settle(j->obj, j);
            enqueue(np, j);
            return;
        }
        if (!j->obj->gone)
            tw_notice("%s: %s cannot be done again, the object is gone: %s", j->obj->id, j->fn->name,
                    err.msg);
        j->obj->ncalls--;
        drop(np, j->obj);
        job_free(j);
    }
    recalled(np);
}

/* ---- the server's start, life and end ---- */

int tw_np_open(struct tw_srv *s, struct tw_err *err)
{
    struct tw_np *np = tw_xcalloc(1, sizeof *np);

    s->np = np;
    np->s = s;
    pthread_mutex_init(&np->base.lock, NULL);
    np->again_last = &np->again;
    np->held_last = &np->held;
    np->saved = tw_path_join(tw_store_dir(s->store), "saved");
    tw_out_sweep(np->saved, 24);
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
    return tw_np_recall(np, err);
}

void tw_np_tick(struct tw_srv *s, double now)
{
    struct tw_np *np = s->np;

    if (np->recalling)
        return;
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
    if (s->np)
        s->np->ending = true;
    for (int i = 0; s->np && i < 2; i++)
        tw_np_lane_close(s->np->lane[i]);
}

static void free_list(struct tw_np_job *j)
{
    struct tw_np_job *next;

    for (; j; j = next) {
        next = j->next;
        if (j->req)
            j->req->gone = NULL;
        job_free(j);
    }
}

void tw_np_free(struct tw_srv *s)
{
    struct tw_np *np = s->np;

    if (!np)
        return;
    free_list(np->again);
    free_list(np->held);
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
