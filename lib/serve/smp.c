/* smp.c - sampling sessions, and what is sampled from them */
#include "records.h"
#include "base/io.h"

struct tw_smp *tw_smp_add(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_str session)
{
    struct tw_smp *p = tw_xcalloc(1, sizeof *p);

    p->id = tw_xstrdup(id);
    p->tenant = t;
    p->session = tw_str_dup(session);
    p->sess = tw_map_get(&s->sessions, session);
    tw_map_put(&s->samplers, p->id, p);
    tw_list_add(&s->sampler, p);
    return p;
}

void tw_smp_insert(struct tw_srv *s, struct tw_smp *p, struct tw_op *o)
{
    tw_op_add(o,
            "INSERT OR REPLACE INTO sampler (id, tenant, session, created, base, path, run, inflight, clones,"
            " n) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            "tttdtttiii", p->id, p->tenant->name, p->session, p->created, p->base, p->path, p->run,
            (int64_t)p->inflight, p->clones, p->n);
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    char *id = tw_col_dup(r, 0), *tenant = tw_col_dup(r, 1);
    struct tw_smp *p = tw_smp_add(s, id, tw_keys_tenant(s->keys, tenant), tw_col_str(r, 2));
    struct tw_trun *run;

    free(id);
    free(tenant);
    p->created = tw_col_num(r, 3);
    p->base = tw_col_dup(r, 4);
    p->path = tw_col_dup(r, 5);
    p->run = tw_col_dup(r, 6);
    p->inflight = tw_col_int(r, 7);
    p->clones = tw_col_int(r, 8);
    p->n = tw_col_int(r, 9);
    if (p->path || p->run) {
        p->key = tw_xasprintf("w%lld", (long long)p->n);
        p->dir = tw_state_dir(s, p->path ? "checkpoints" : "samplers", p->n, false);
    }
    s->next_n = p->n >= s->next_n ? p->n + 1 : s->next_n;
    run = p->inflight && p->run ? tw_map_gets(&s->runs, p->run) : NULL;
    if (run) { /* by age: the last is the newest */
        free(run->inflight_key);
        free(run->inflight_dir);
        run->inflight_key = tw_xstrdup(p->key);
        run->inflight_dir = tw_xstrdup(p->dir);
    }
    return 0;
}

int tw_smp_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store,
            "SELECT id, tenant, session, created, base, path, run, inflight, clones, n"
            " FROM sampler ORDER BY created",
            load_row, s, err, "");
}

static void free_sampling(struct tw_smp *p)
{
    char *own[] = { p->id, p->session, p->base, p->path, p->dir, p->key, p->run };

    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        free(own[k]);
    free(p->event);
    free(p);
}

/* The session is over: weights that only this sampler had go, in memory and as files. */
void tw_smp_end(struct tw_srv *s, struct tw_smp *p)
{
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_work *w;

    if (p->key && !p->path) {
        w = tw_work_new(TW_DROP_SAMPLER);
        w->sample.key = tw_arena_dup(&w->arena, p->key, strlen(p->key));
        w->sample.dir = tw_arena_dup(&w->arena, p->dir, strlen(p->dir));
        tw_glue_send(s, w);             /* its folder goes when nobody writes it any more */
    }
    tw_op_add(o, "DELETE FROM sampler WHERE id = ?", "t", p->id);
    tw_store_submit(s->store, o);
    tw_map_del(&s->samplers, p->id);
    tw_list_del(&s->sampler, p);
    free_sampling(p);
}

void tw_smp_free_all(struct tw_srv *s)
{
    for (int64_t i = 0; i < s->sampler.n; i++)
        free_sampling(s->sampler.v[i]);
    free(s->sampler.v);
    tw_map_free(&s->samplers);
}

struct tw_smp *tw_smp_of(struct tw_srv *s, struct tw_req *r, struct tw_str id)
{
    struct tw_smp *p = tw_map_get(&s->samplers, id);

    if (p && p->tenant == r->tenant)
        return p;
    tw_reply_error(r, 404, "no such sampling session");
    return NULL;
}

static void session_reply(struct tw_req *r, const char *id)
{
    struct tw_buf b = { 0 };

    tw_buf_printf(&b, "{\"type\": \"create_sampling_session\", \"sampling_session_id\": \"%s\"}", id);
    tw_reply_json(r, 200, &b);
}

static void forget(struct tw_req *r) { ((struct tw_op *)r->user)->user = NULL; }

static void created(void *arg, struct tw_op *o)
{
    if (!o->user) {
        free(o->user2);
        return;
    }
    ((struct tw_req *)o->user)->gone = NULL;
    if (o->err.code)
        tw_reply_error(o->user, 503, "the sampling session could not be recorded");
    else
        session_reply(o->user, o->user2);
    free(o->user2);
}

static void create_session(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_str sid, base = { 0 }, path = { 0 };
    struct tw_saved *c = NULL;
    struct tw_smp *p;
    struct tw_sess *e;
    struct tw_op *o;
    char why[160], *id;
    int64_t n = -1;

    if (!j || tw_req_text(r, j, "session_id", true, &sid) < 0 || !(e = tw_sess_of(s, r, sid)) ||
            tw_req_text(r, j, "base_model", false, &base) < 0 ||
            tw_req_text(r, j, "model_path", false, &path) < 0)
        return;
    if (tw_json_get_int(j, "sampling_session_seq_id", &n, NULL) <= 0 || n < 0) {
        tw_reply_error(r, 400, "sampling_session_seq_id must be an integer of at least 0");
        return;
    }
    id = tw_arena_printf(&r->arena, "%s:sample:%lld", e->id, (long long)n);
    if (tw_map_gets(&s->samplers, id)) {
        session_reply(r, id);
        return;
    }
    if (base.p && !tw_base_known(s, base)) {
        tw_reply_error(r, 400, "base_model is not served; it is %s", s->name[0]);
        return;
    }
    if (path.p && !(c = tw_saved_find(s, r->tenant, path, why))) {
        tw_reply_error(r, 404, "%s", why);
        return;
    }
    if (!base.p && !path.p) {
        tw_reply_error(r, 400, "base_model or model_path is missing");
        return;
    }
    p = tw_smp_add(s, id, r->tenant, sid);
    p->created = tw_wall();
    p->base = base.p ? tw_str_dup(base)
                     : tw_xstrdup(tw_base_known(s, tw_str(c->base)) ? c->base : s->name[0]);
    if (c) {
        p->path = tw_xasprintf("tinker://%s", c->path);
        p->dir = tw_xstrdup(c->dir);
        p->key = tw_xstrdup(c->key);
        p->n = c->n;
    }
    o = tw_op_new(created, s);
    tw_smp_insert(s, p, o);
    o->user = r;
    o->user2 = tw_xstrdup(id);
    r->user = o;
    r->gone = forget;
    tw_store_submit(s->store, o);
}

/* Which weights: of a sampler that follows its run, the newest. Without a seed of the client's, one that
 * a replay finds again. */
void tw_smp_prepare(struct tw_srv *s, struct tw_future *f)
{
    struct tw_smp *p = tw_map_gets(&s->samplers, f->target);
    struct tw_trun *run = p && p->inflight && p->run ? tw_map_gets(&s->runs, p->run) : NULL;
    struct tw_work *w = f->work;
    const char *key, *dir;

    if (!p) {
        tw_refuse(w, "the sampling session is gone");
        return;
    }
    key = run && run->inflight_key ? run->inflight_key : p->key;
    dir = run && run->inflight_dir ? run->inflight_dir : p->dir;
    w->sample.key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL;
    w->sample.dir = dir ? tw_arena_dup(&w->arena, dir, strlen(dir)) : NULL;
    if (!w->sample.seeded)
        w->sample.seed = strtoull(f->id + 4 + 16, NULL, 16);
}

bool tw_smp_throttled(struct tw_srv *s, struct tw_req *r, int64_t tokens)
{
    struct tw_tenant *t = r->tenant;
    double wait = 1;
    char after[32];

    if ((!t->concurrency || t->unfinished < t->concurrency) && tw_tenant_take(t, tokens, tw_now(), &wait))
        return false;
    snprintf(after, sizeof after, "%d", wait < 1 ? 1 : wait > 30 ? 30 : (int)wait);
    tw_reply_header(r, "Retry-After", after);
    tw_reply_error(r, 429, "a quota of this tenant is used up: it may go on in %s s", after);
    return true;
}

static void accept_sample(
        struct tw_srv *s, struct tw_req *r, struct tw_smp *p, struct tw_work *w, bool numbered)
{
    struct tw_future *f =
            tw_future_new(s, TW_KIND_SAMPLE, r->tenant, p->session, p->id, numbered ? w->seq : -1);
    struct tw_buf b = { 0 };

    f->work = w;
    f->charged = w->sample.nprompt + w->sample.n * w->sample.max_tokens;
    f->type = tw_xstrdup("json");
    f->digest = tw_digest(r->body);
    f->dedup = numbered ? tw_xasprintf("s:%s:%lld", p->id, (long long)w->seq) : NULL;
    tw_buf_puts(&b, ", \"sample_sequence_ids\": [");
    for (int64_t i = 0; i < w->sample.n; i++) {
        char *name = tw_taken_name(f, i);

        tw_buf_printf(&b, "%s\"%s\"", i ? ", " : "", name);
        free(name);
    }
    tw_buf_putc(&b, ']');
    tw_future_reply_text(f, NULL, b.p);
    tw_buf_free(&b);
    tw_future_answer(s, f, r);
    tw_future_accept(s, f, r, NULL);
}

static void asample(struct tw_srv *s, struct tw_req *r)
{
    struct tw_err err = { 0 };
    struct tw_work *w = tw_decode(s, TW_KIND_SAMPLE, "json", r->tenant, r->body, &err);
    struct tw_smp *p;
    struct tw_future *f;
    bool numbered;

    if (!w) {
        tw_reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!w->session) {
        tw_reply_error(r, 400, "sampling_session_id is missing");
        tw_work_free(w);
        return;
    }
    p = tw_smp_of(s, r, tw_str(w->session));
    if (p && p->sess && p->sess->finished) {
        tw_reply_error(r, 410, "the session has ended (%s)", p->sess->finished);
        p = NULL;
    }
    numbered = w->seq >= 0;
    f = p && numbered
            ? tw_future_dedup(s, tw_arena_printf(&r->arena, "s:%s:%lld", p->id, (long long)w->seq))
            : NULL;
    if (f)
        tw_future_answer(s, f, r);
    if (!p || f || tw_smp_throttled(s, r, w->sample.nprompt + w->sample.n * w->sample.max_tokens)) {
        tw_work_free(w);
        return;
    }
    if (p->sess) {
        p->sess->seen = tw_wall();
        p->sess->dirty = true;
    }
    accept_sample(s, r, p, w, numbered);
}

static void get_sampler(struct tw_srv *s, struct tw_req *r)
{
    struct tw_smp *p = tw_smp_of(s, r, r->seg[3]);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    if (!p)
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "sampler_id");
    tw_jw_cstr(&w, p->id);
    tw_jw_key(&w, "base_model");
    tw_jw_cstr(&w, p->base);
    tw_jw_key(&w, "model_path");
    if (p->path)
        tw_jw_cstr(&w, p->path);
    else
        tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void join(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_smp *p;
    struct tw_str id;
    struct tw_buf b = { 0 };
    struct tw_op *o;

    if (!j || tw_req_text(r, j, "sampling_session_id", true, &id) < 0 || !(p = tw_smp_of(s, r, id)))
        return;
    p->clones++;
    o = tw_op_new(NULL, s);
    tw_op_add(o, "UPDATE sampler SET clones = ? WHERE id = ?", "it", p->clones, p->id);
    tw_store_submit(s->store, o);
    tw_buf_printf(
            &b, "{\"client_counter\": %lld, \"type\": \"join_sampling_session\"}", (long long)p->clones);
    tw_reply_json(r, 200, &b);
}

const struct tw_endpoint tw_routes_smp[] = { { "POST", "api/v1/create_sampling_session", TW_RIGHT_SAMPLE,
                                                     create_session },
    { "POST", "api/v1/asample", TW_RIGHT_SAMPLE, asample },
    { "POST", "api/v1/join_sampling_session", TW_RIGHT_SAMPLE, join },
    { "GET", "api/v1/samplers/*", TW_RIGHT_ANY, get_sampler }, { 0 } };
