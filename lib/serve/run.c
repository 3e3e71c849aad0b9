/* run.c - training runs: models made, described, let go */
#include "records.h"
#include "base/io.h"

bool tw_base_known(const struct tw_srv *s, struct tw_str name)
{
    for (int i = 0; i < s->nname; i++)
        if (tw_str_is(name, s->name[i]))
            return true;
    return false;
}

struct tw_trun *tw_trun_add(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_str session)
{
    struct tw_trun *run = tw_xcalloc(1, sizeof *run);

    run->id = tw_xstrdup(id);
    run->tenant = t;
    run->session = tw_str_dup(session);
    run->sess = session.p ? tw_map_get(&s->sessions, session) : NULL;
    run->next_seq = 1;
    tw_map_put(&s->runs, run->id, run);
    tw_list_add(&s->run, run);
    return run;
}

struct tw_trun *tw_trun_of(struct tw_srv *s, struct tw_req *r, struct tw_str id)
{
    struct tw_trun *run = tw_map_get(&s->runs, id);

    if (run && run->tenant == r->tenant)
        return run;
    tw_reply_error(r, 404, "no such model");
    return NULL;
}

static bool counts(const struct tw_trun *run)
{
    return !strcmp(run->state, "new") || !strcmp(run->state, "live");
}

bool tw_trun_full(const struct tw_srv *s, const struct tw_trun *but)
{
    for (int64_t i = 0; i < s->run.n; i++) {
        const struct tw_trun *run = s->run.v[i];

        if (run != but && !run->rank && counts(run))
            return true;
    }
    return false;
}

int64_t tw_lora_int(const char *lora, const char *key, int64_t def)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = lora ? tw_json_parse(&a, tw_str(lora), NULL) : NULL, *v = NULL;
    int64_t out = def;

    if (j)
        v = tw_json_get(j, key);
    if (v)
        out = v->type == TW_JBOOL ? v->b : v->is_int ? v->i : def;
    tw_arena_free(&a);
    return out;
}

/* What a run's adapter is, as a JSON object, and back. */
static char *lora_text(const struct tw_create_args *c)
{
    struct tw_buf b = { 0 };

    if (!c->rank)
        return NULL;
    tw_buf_printf(
            &b, "{\"rank\": %lld, \"seed\": %lld, \"alpha\": ", (long long)c->rank, (long long)c->seed);
    tw_json_number(&b, c->alpha);
    tw_buf_printf(&b, ", \"train_attn\": %s, \"train_mlp\": %s, \"train_unembed\": %s}",
            c->attn ? "true" : "false", c->mlp ? "true" : "false", c->unembed ? "true" : "false");
    if (c->targets) {
        b.n--;
        tw_buf_puts(&b, ", \"targets\": ");
        tw_json_quote(&b, tw_str(c->targets));
        tw_buf_printf(&b, ", \"rslora\": %s, \"dropout\": ", c->rslora ? "true" : "false");
        tw_json_number(&b, c->dropout);
        tw_buf_putc(&b, '}');
    }
    return b.p;
}

static void lora_args(const char *lora, struct tw_create_args *c, struct tw_arena *to)
{
    struct tw_str targets = { 0 };
    struct tw_arena a = { 0 };
    const struct tw_json *j = lora ? tw_json_parse(&a, tw_str(lora), NULL) : NULL;

    *c = (struct tw_create_args){ .alpha = 32 };
    if (j) {
        c->rank = tw_lora_int(lora, "rank", 32);
        c->seed = (uint64_t)tw_lora_int(lora, "seed", 42);
        c->attn = tw_lora_int(lora, "train_attn", 1);
        c->mlp = tw_lora_int(lora, "train_mlp", 1);
        c->unembed = tw_lora_int(lora, "train_unembed", 1);
        tw_json_get_num(j, "alpha", &c->alpha, NULL);
        tw_json_get_num(j, "dropout", &c->dropout, NULL);
        tw_json_get_bool(j, "rslora", &c->rslora, NULL);
        if (tw_json_get_str(j, "targets", &targets, NULL) > 0)
            c->targets = tw_arena_str(to, targets).p;
    }
    tw_arena_free(&a);
}

/* A work that makes RUN's model, from what the store knows of it. */
struct tw_work *tw_trun_work(struct tw_srv *s, struct tw_trun *run, enum tw_verb verb)
{
    struct tw_work *w = tw_work_new(verb);
    char *dir = tw_state_dir(s, "runs", run->n, true);

    w->model = tw_xstrdup(run->id);
    if (verb == TW_CREATE || verb == TW_CREATE_FROM || verb == TW_RESTORE) {
        lora_args(run->lora, &w->create, &w->arena);
        w->create.dir = tw_arena_dup(&w->arena, dir, strlen(dir));
        if (verb == TW_RESTORE)
            w->create.from = tw_arena_dup(&w->arena, run->snap, strlen(run->snap));
    }
    free(dir);
    return w;
}

void tw_trun_insert(struct tw_trun *run, struct tw_op *o)
{
    tw_op_add(o,
            "INSERT INTO run (id, tenant, session, created, used, base, lora, user_metadata, project,"
            " state, snap_seq, n) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            "tttddttttti",
            run->id, run->tenant->name, run->session, run->created, run->used, run->base, run->lora,
            run->user_metadata, run->project, run->state, run->n);
}

struct making { /* a model that is asked for */
    struct tw_sess *sess;
    char *id, *dedup;
    struct tw_str base, path;
    bool optimizer;
    const struct tw_json *j;
};

/* 1: go on; 0: answered. A request that is sent again gets its old answer. */
static int begin(struct tw_srv *s, struct tw_req *r, struct making *m)
{
    struct tw_str sid;
    struct tw_future *f;
    int64_t n = -1;

    m->j = tw_req_json(r);
    if (!m->j || tw_req_text(r, m->j, "session_id", true, &sid) < 0 || !(m->sess = tw_sess_of(s, r, sid)))
        return 0;
    if (tw_json_get_int(m->j, "model_seq_id", &n, NULL) <= 0 || n < 0) {
        tw_reply_error(r, 400, "model_seq_id must be an integer of at least 0");
        return 0;
    }
    m->id = tw_arena_printf(&r->arena, "%s:train:%lld", m->sess->id, (long long)n);
    m->dedup = tw_arena_printf(&r->arena, "c:%s", m->id);
    f = tw_future_dedup(s, m->dedup);
    if (!f)
        return 1;
    tw_future_answer(s, f, r);
    return 0;
}

struct tw_trun *tw_trun_make(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_sess *sess,
        struct tw_str base, struct tw_work *w)
{
    struct tw_trun *run = tw_trun_add(s, id, t, tw_str(sess->id));
    char *dir;

    run->created = run->used = tw_wall();
    run->base = tw_xstrndup(base.p, base.n);
    run->lora = lora_text(&w->create);
    run->rank = w->create.rank;
    run->project = sess->project ? tw_xstrdup(sess->project) : NULL;
    run->state = tw_xstrdup("new");
    run->n = s->next_n++;
    run->tenant->nadapters++;
    dir = tw_state_dir(s, "runs", run->n, true);
    w->create.dir = tw_arena_dup(&w->arena, dir, strlen(dir));
    free(dir);
    free(w->model);
    w->model = tw_xstrdup(run->id);
    return run;
}

static void submit(
        struct tw_srv *s, struct tw_req *r, struct making *m, enum tw_kind kind, struct tw_work *w)
{
    const struct tw_json *meta = tw_json_get(m->j, "user_metadata");
    struct tw_trun *run = tw_trun_make(s, m->id, r->tenant, m->sess, m->base, w);
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_future *f;

    run->user_metadata = meta && meta->type == TW_JOBJ ? tw_xstrndup(meta->raw.p, meta->raw.n) : NULL;
    if (run->tenant->adapters && run->tenant->nadapters > run->tenant->adapters)
        tw_refuse(w, "the tenant has its %lld adapters", (long long)run->tenant->adapters);
    if (!run->rank && s->o->full && tw_trun_full(s, run))
        tw_refuse(w, "full-parameter training takes one model at a time, and another has it");
    f = tw_future_new(s, kind, r->tenant, run->session, run->id, -1);
    f->run = run;
    f->work = w;
    f->dedup = tw_xstrdup(m->dedup);
    f->type = tw_xstrdup("json");
    tw_future_reply_text(f, run->id, NULL);
    tw_trun_insert(run, o);
    tw_audit(s, o, r->tenant, "create_model", run->id);
    tw_future_answer(s, f, r);
    tw_future_accept(s, f, r, o);
}

static void create_model(struct tw_srv *s, struct tw_req *r)
{
    struct making m = { 0 };
    struct tw_err err = { 0 };
    struct tw_work *w;

    if (!begin(s, r, &m) || tw_req_text(r, m.j, "base_model", true, &m.base) < 0)
        return;
    if (!tw_base_known(s, m.base)) {
        tw_reply_error(r, 400, "base_model %.*s is not served; it is %s",
                (int)(m.base.n < 200 ? m.base.n : 200), m.base.p, s->name[0]);
        return;
    }
    w = tw_decode(s, TW_KIND_CREATE_MODEL, "json", r->tenant, r->body, &err);
    if (w)
        submit(s, r, &m, TW_KIND_CREATE_MODEL, w);
    else
        tw_reply_error(r, 400, "%s", err.msg);
}

/* load_weights without a model: the model is made from the checkpoint, adapter and all. */
static void load_create(struct tw_srv *s, struct tw_req *r)
{
    struct tw_err err = { 0 };
    struct making m = { 0 };
    struct tw_saved *c;
    struct tw_work *w;
    char why[160];

    if (!begin(s, r, &m) || tw_req_text(r, m.j, "path", true, &m.path) < 0 ||
            tw_req_text(r, m.j, "base_model", false, &m.base) < 0)
        return;
    c = tw_saved_find(s, r->tenant, m.path, why);
    if (!m.base.p)
        m.base = tw_str(c && tw_base_known(s, tw_str(c->base)) ? c->base : s->name[0]);
    w = tw_decode(s, TW_KIND_LOAD_CREATE, "json", r->tenant, r->body, &err);
    if (!w)
        tw_reply_error(r, 400, "%s", err.msg);
    else
        submit(s, r, &m, TW_KIND_LOAD_CREATE, w);
}

/* The arguments of a work that makes a model from a checkpoint. */
void tw_trun_from(struct tw_work *w, const struct tw_saved *c, bool optimizer)
{
    lora_args(c->lora, &w->create, &w->arena);
    w->create.from = tw_arena_dup(&w->arena, c->dir, strlen(c->dir));
    w->create.optimizer = optimizer;
}

static void load_weights(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);

    if (!j)
        return;
    if (tw_json_get(j, "model_id"))
        tw_train_submit(s, r, TW_KIND_LOAD_WEIGHTS, "json");
    else
        load_create(s, r);
}

void tw_trun_failed(struct tw_srv *s, struct tw_trun *run)
{
    struct tw_op *o = tw_op_new(NULL, s);

    if (counts(run))
        run->tenant->nadapters--;
    free(run->state);
    run->state = tw_xstrdup("failed");
    tw_op_add(o, "UPDATE run SET state = 'failed' WHERE id = ?", "t", run->id);
    tw_store_submit(s->store, o);
}

static void result(struct tw_buf *b, const char *key, const char *value, const char *type)
{
    struct tw_jw w;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_jw_key(&w, key);
    tw_jw_cstr(&w, value);
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, type);
    tw_jw_obj_end(&w);
}

/* With the requests goes what could make its frozen weights again: not before those are in their folders. */
static void ended(const struct tw_trun *run, struct tw_op *o)
{
    tw_op_add(o, "UPDATE run SET state = 'ended' WHERE id = ?", "t", run->id);
    tw_op_add(o, "DELETE FROM native WHERE run = ?", "t", run->id);
    tw_op_add(o, "DELETE FROM body WHERE n IN (SELECT n FROM request WHERE target = ? AND state > 0)", "t",
            run->id);
}

void tw_trun_end(struct tw_srv *s, struct tw_trun *run, bool send)
{
    struct tw_op *o;
    struct tw_future *f;

    if (!counts(run))
        return;
    while ((f = run->waiting)) {
        run->waiting = f->next;
        f->next = NULL;
        tw_work_drop(f->work);
        f->work = NULL;
        tw_future_fail(s, f, "user", "the model was let go before its turn came");
    }
    s->nheld -= run->held;
    run->held = false;
    run->tenant->nadapters--;
    free(run->state);
    run->state = tw_xstrdup("ended");
    if (!send)
        return;
    o = tw_op_new(NULL, s);
    ended(run, o);
    tw_store_submit(s->store, o);
    tw_glue_send(s, tw_trun_work(s, run, TW_UNLOAD));
}

/* Creating, loading and unloading went well. */
void tw_trun_finish(struct tw_srv *s, struct tw_future *f, struct tw_work *w)
{
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_buf b = { 0 };

    if (f->kind == TW_KIND_CREATE_MODEL || f->kind == TW_KIND_LOAD_CREATE) {
        if (!f->replay) {
            free(f->run->state);
            f->run->state = tw_xstrdup("live");
        }
        tw_op_add(o, "UPDATE run SET state = 'live' WHERE id = ?", "t", f->run->id);
    }
    if (f->kind == TW_KIND_UNLOAD) {
        tw_trun_end(s, f->run, false);  /* after a start it lives again until then */
        ended(f->run, o);
    }
    if (w->result.json.n)               /* of the native API */
        tw_buf_adds(&b, tw_buf_str(&w->result.json));
    else if (f->kind == TW_KIND_CREATE_MODEL)
        result(&b, "model_id", f->target, "create_model");
    else if (f->kind == TW_KIND_UNLOAD)
        result(&b, "model_id", f->target, "unload_model");
    else
        tw_buf_printf(&b, "{\"model_id\": \"%s\", \"type\": \"load_weights\"}", f->target);
    tw_future_done(s, f, tw_blob_new(b.p, b.n), NULL, o);
    tw_buf_free(&b);
}

static void unload(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_str id;
    struct tw_trun *run;
    struct tw_future *f;
    char *dedup;

    if (!j || tw_req_text(r, j, "model_id", true, &id) < 0 || !(run = tw_trun_of(s, r, id)))
        return;
    dedup = tw_arena_printf(&r->arena, "u:%s", run->id);
    f = tw_future_dedup(s, dedup);
    if (f) {
        tw_future_answer(s, f, r);
        return;
    }
    tw_trun_end(s, run, false);
    f = tw_future_new(s, TW_KIND_UNLOAD, r->tenant, run->session, run->id, -1);
    f->run = run;
    f->work = tw_trun_work(s, run, TW_UNLOAD);
    f->dedup = tw_xstrdup(dedup);
    f->type = tw_xstrdup("json");
    tw_future_reply_text(f, run->id, NULL);
    tw_future_answer(s, f, r);
    tw_future_accept(s, f, r, NULL);
}

static void get_info(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_buf b = { 0 };
    struct tw_str id;
    struct tw_trun *run;
    struct tw_jw w;

    if (!j || tw_req_text(r, j, "model_id", true, &id) < 0 || !(run = tw_trun_of(s, r, id)))
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, "get_info");
    tw_jw_key(&w, "model_data");
    tw_jw_obj(&w);
    tw_jw_key(&w, "arch");
    tw_jw_cstr(&w, tw_worker_info(s->worker)->family);
    tw_jw_key(&w, "model_name");
    tw_jw_cstr(&w, run->base);
    tw_jw_key(&w, "tokenizer_id");
    tw_jw_cstr(&w, s->tokenizer ? s->tokenizer : run->base);
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "model_id");
    tw_jw_cstr(&w, run->id);
    tw_jw_key(&w, "is_lora");
    tw_jw_bool(&w, run->rank > 0);
    tw_jw_key(&w, "lora_rank");
    tw_jw_int(&w, run->rank);
    tw_jw_key(&w, "model_name");
    tw_jw_cstr(&w, run->base);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    char *id = tw_col_dup(r, 0), *tenant = tw_col_dup(r, 1), *file;
    struct tw_trun *run = tw_trun_add(s, id, tw_keys_tenant(s->keys, tenant), tw_col_str(r, 2));

    free(id);
    free(tenant);
    run->created = tw_col_num(r, 3);
    run->used = tw_col_num(r, 4);
    run->base = tw_col_dup(r, 5);
    run->lora = tw_col_dup(r, 6);
    run->rank = tw_lora_int(run->lora, "rank", 0);
    run->user_metadata = tw_col_dup(r, 7);
    run->project = tw_col_dup(r, 8);
    run->state = tw_col_dup(r, 9);
    run->snap_seq = tw_col_int(r, 10);
    run->n = tw_col_int(r, 12);
    run->idem = tw_col_dup(r, 13);
    if (run->idem)
        tw_map_put(&s->copies, run->idem, run);
    file = tw_col_dup(r, 11);
    if (file) {
        char *dir = tw_state_dir(s, "runs", run->n, false);

        run->snap = tw_path_join(dir, file);
        free(dir);
        free(file);
    }
    run->next_seq = run->snap_seq + 1;
    s->next_n = run->n >= s->next_n ? run->n + 1 : s->next_n;
    if (counts(run))
        run->tenant->nadapters++;
    return 0;
}

int tw_trun_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store,
            "SELECT id, tenant, session, created, used, base, lora, user_metadata, project,"
            " state, snap_seq, snap, n, idem FROM run ORDER BY created, id",
            load_row, s, err, "");
}

void tw_trun_free_all(struct tw_srv *s)
{
    for (int64_t i = 0; i < s->run.n; i++) {
        struct tw_trun *run = s->run.v[i];
        char *own[] = { run->id, run->session, run->base, run->lora, run->user_metadata, run->project,
            run->state, run->snap, run->idem, run->copied, run->inflight_key, run->inflight_dir,
            run->conf, run->nat_fwd, run->nat_loss };

        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            free(own[k]);
        free(run);
    }
    free(s->run.v);
    tw_map_free(&s->runs);
}

const struct tw_endpoint tw_routes_run[] = { { "POST", "api/v1/create_model", TW_RIGHT_TRAIN,
                                                     create_model },
    { "POST", "api/v1/load_weights", TW_RIGHT_TRAIN, load_weights },
    { "POST", "api/v1/unload_model", TW_RIGHT_TRAIN, unload },
    { "POST", "api/v1/get_info", TW_RIGHT_ANY, get_info }, { 0 } };
