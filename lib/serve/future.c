/* future.c - requests that are answered later: the journal before, the store after */
#include "records.h"
#include "base/io.h"
#include "serve/shelf.h"

#define PRUNE_S 60.0
#define KEPT_S 20.0 /* in memory after it is done and nobody asks */

struct tw_submit { /* a request whose answer waits for the journal */
    struct tw_submit *next;
    struct tw_req *req;
    struct tw_future *f;
};

/* The second half of a sample's id tells, when nothing is known of it any more, that its tenant once
 * had it: clients then ask again, where for an unknown id they give up. */
void tw_future_sign(struct tw_srv *s, const struct tw_tenant *t, char *hex)
{
    unsigned char sum[32];
    struct tw_sha256 h;

    tw_sha256_init(&h);
    tw_sha256_add(&h, s->secret, sizeof s->secret);
    tw_sha256_add(&h, hex, 16);
    tw_sha256_add(&h, t->name, strlen(t->name) + 1);
    tw_sha256_add(&h, s->secret, sizeof s->secret);
    tw_sha256_end(&h, sum);
    tw_hex(hex + 16, sum, 8);
}

struct tw_future *tw_future_new(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const char *session, const char *target, int64_t seq)
{
    struct tw_future *f = tw_xcalloc(1, sizeof *f);
    char hex[40];

    tw_random_hex(hex, 16);
    if (kind == TW_KIND_SAMPLE)
        tw_future_sign(s, t, hex);
    f->id = tw_xasprintf("req-%s", hex);
    f->kind = kind;
    f->tenant = t;
    f->session = session ? tw_xstrdup(session) : NULL;
    f->target = target ? tw_xstrdup(target) : NULL;
    f->seq = seq;
    f->created = tw_wall();
    f->next = NULL;
    tw_map_put(&s->futures, f->id, f);
    return f;
}

void tw_future_reply_text(struct tw_future *f, const char *model, const char *extra)
{
    struct tw_buf b = { 0 };

    tw_buf_printf(&b, "{\"request_id\": \"%s\", \"model_id\": ", f->id);
    if (model)
        tw_json_quote(&b, tw_str(model));
    else
        tw_buf_puts(&b, "null");
    tw_buf_puts(&b, extra ? extra : "");
    tw_buf_putc(&b, '}');
    free(f->reply);
    f->reply = tw_xstrndup(b.p, b.n);
    tw_buf_free(&b);
}

static void free_future(struct tw_srv *s, struct tw_future *f)
{
    tw_map_del(&s->futures, f->id);
    if (f->dedup && tw_map_gets(&s->dedup, f->dedup) == f)
        tw_map_del(&s->dedup, f->dedup);
    tw_blob_unref(f->json);
    tw_blob_unref(f->proto);
    tw_work_drop(f->work);
    tw_save_drop(f);
    free(f->id);
    free(f->dedup);
    free(f->session);
    free(f->target);
    free(f->type);
    free(f->digest);
    free(f->reply);
    free(f);
}

/* A row with TW_FUTURE_COLUMNS becomes a future in memory. */
struct tw_future *tw_future_row(struct tw_srv *s, const struct tw_row *r)
{
    struct tw_future *f = tw_xcalloc(1, sizeof *f);
    char *tenant = tw_col_dup(r, 1);

    f->id = tw_col_dup(r, 0);
    f->tenant = tw_keys_tenant(s->keys, tenant);
    free(tenant);
    f->kind = (enum tw_kind)tw_col_int(r, 2);
    f->session = tw_col_dup(r, 3);
    f->target = tw_col_dup(r, 4);
    f->seq = tw_col_int(r, 5);
    f->dedup = tw_col_dup(r, 6);
    f->type = tw_col_dup(r, 7);
    f->digest = tw_col_dup(r, 8);
    f->state = (enum tw_future_state)tw_col_int(r, 9);
    f->created = tw_col_num(r, 10);
    f->done = tw_col_num(r, 11);
    f->json = tw_col_blob(r, 12);
    f->proto = tw_col_blob(r, 13);
    f->reply = tw_col_dup(r, 14);
    f->accepted = true;
    tw_map_put(&s->futures, f->id, f);
    if (f->dedup)
        tw_map_put(&s->dedup, f->dedup, f);
    return f;
}

struct found {
    struct tw_srv *s;
    struct tw_future *f;
};

static int take_row(void *arg, const struct tw_row *r)
{
    struct found *x = arg;

    x->f = tw_future_row(x->s, r);
    return 1;
}

static struct tw_future *read_one(struct tw_srv *s, const char *sql, struct tw_str key)
{
    struct found x = { s, NULL };
    struct tw_err err = { 0 };

    if (tw_store_read(s->store, sql, take_row, &x, &err, "s", key))
        tw_alert(s, "store", err.msg);
    return x.f;
}

struct tw_future *tw_future_get(struct tw_srv *s, struct tw_tenant *t, struct tw_str id)
{
    struct tw_future *f = tw_map_get(&s->futures, id);

    if (!f)
        f = read_one(s, "SELECT " TW_FUTURE_COLUMNS " FROM request WHERE id = ? AND state > 0", id);
    return f && f->tenant == t ? f : NULL;
}

struct tw_future *tw_future_dedup(struct tw_srv *s, const char *dedup)
{
    struct tw_future *f = tw_map_gets(&s->dedup, dedup);

    if (!f)
        f = read_one(s, "SELECT " TW_FUTURE_COLUMNS " FROM request WHERE dedup = ? AND state > 0",
                tw_str(dedup));
    return f;
}

static void reply_submit(struct tw_future *f, struct tw_req *r)
{
    tw_reply(r, 200, "application/json", f->reply, strlen(f->reply));
}

static void submit_gone(struct tw_req *r)
{
    struct tw_submit *w = r->user, **at;

    for (at = &w->f->submits; *at != w; at = &(*at)->next)
        ;
    *at = w->next;
    free(w);
}

void tw_future_answer(struct tw_srv *s, struct tw_future *f, struct tw_req *r)
{
    struct tw_submit *w;

    if (f->accepted) {
        reply_submit(f, r);
        return;
    }
    w = tw_xcalloc(1, sizeof *w);
    w->req = r;
    w->f = f;
    w->next = f->submits;
    f->submits = w;
    r->user = w;
    r->gone = submit_gone;
}

static void accepted(void *arg, struct tw_op *o)
{
    struct tw_srv *s = arg;
    struct tw_future *f = o->user;
    struct tw_submit *w;

    while ((w = f->submits)) {
        f->submits = w->next;
        w->req->gone = NULL;
        if (o->err.code)
            tw_reply_error(w->req, 503, "the request could not be written to the journal");
        else
            reply_submit(f, w->req);
        free(w);
    }
    if (o->err.code) {
        tw_alert(s, "store", o->err.msg);
        if (f->hear)
            f->hear(s, f);
        free_future(s, f);
        return;
    }
    f->accepted = true;
    tw_order_add(s, f);
}

static void accept(struct tw_srv *s, struct tw_future *f, struct tw_blob *b, bool coded, struct tw_op *o)
{
    bool file = b->n >= TW_SHELF_MIN;

    if (!o)
        o = tw_op_new(NULL, s);
    o->done = accepted;
    o->arg = s;
    o->user = f;
    if (f->dedup)
        tw_map_put(&s->dedup, f->dedup, f);
    tw_op_add(o,
            "INSERT INTO request (id, tenant, kind, session, target, seq, dedup, type, digest, state,"
            " created, reply) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
            "ttittitttdt", f->id, f->tenant->name, (int64_t)f->kind, f->session, f->target, f->seq,
            f->dedup, f->type, f->digest, f->created, f->reply);
    tw_op_add(o, "INSERT INTO body (n, coded, body) VALUES (last_insert_rowid(), ?, ?)", file ? "if" : "ib",
            (int64_t)coded + 2 * file, b);
    tw_blob_unref(b);
    tw_store_submit(s->store, o);
}

void tw_future_accept(struct tw_srv *s, struct tw_future *f, struct tw_req *r, struct tw_op *o)
{
    bool coded;
    struct tw_blob *b = tw_req_keep(r, &coded);

    accept(s, f, b, coded, o);
}

void tw_future_accept_text(struct tw_srv *s, struct tw_future *f, struct tw_str body, struct tw_op *o)
{
    accept(s, f, tw_blob_new(body.p, body.n), false, o);
}

bool tw_future_has_effect(const struct tw_future *f)
{
    return f->kind == TW_KIND_FORWARD_BACKWARD || f->kind == TW_KIND_OPTIM_STEP ||
            f->kind == TW_KIND_LOAD_WEIGHTS || f->kind == TW_KIND_CREATE_MODEL ||
            f->kind == TW_KIND_LOAD_CREATE || f->ephemeral;
}

static void settled(void *arg, struct tw_op *o)
{
    struct tw_srv *s = arg;
    static const char lost[] = "{\"error\": \"the state could not be written\", \"category\": \"server\"}";
    struct tw_future *f = o->user;

    f->settling = false;
    if (o->err.code)
        tw_alert(s, "store", o->err.msg);
    if (o->err.code && f->save) { /* what it saved is not registered */
        f->state = TW_FUTURE_FAILED;
        tw_blob_unref(f->json);
        f->json = tw_blob_new(lost, sizeof lost - 1);
    }
    f->done = tw_wall();
    if (f->kind == TW_KIND_SAMPLE)
        tw_futures_event(s, f);
    tw_poll_wake(s, f);
    if (f->hear)
        f->hear(s, f);
}

void tw_future_done(
        struct tw_srv *s, struct tw_future *f, struct tw_blob *json, struct tw_blob *proto, struct tw_op *o)
{
    if (f->counted)
        f->tenant->unfinished--;
    f->counted = false;
    if (f->replay) { /* its result was there before */
        tw_blob_unref(json);
        tw_blob_unref(proto);
        tw_op_free(o);
        f->done = tw_wall();
        f->replay = false;
        tw_order_replayed(s);
        return;
    }
    if (f->state == TW_FUTURE_OPEN)
        f->state = TW_FUTURE_DONE;
    f->json = json;
    f->proto = proto;
    f->done = tw_wall();
    f->settling = true;
    s->ndone[f->state == TW_FUTURE_FAILED]++;
    if (!o)
        o = tw_op_new(NULL, s);
    o->done = settled;
    o->arg = s;
    o->user = f;
    tw_op_add(o, "UPDATE request SET state = ?, done = ?, json = ?, proto = ? WHERE id = ?", "idbbt",
            (int64_t)f->state, f->done, json, proto, f->id);
    if (f->state != TW_FUTURE_DONE || !tw_future_has_effect(f))
        tw_op_add(o, "DELETE FROM body WHERE n = (SELECT n FROM request WHERE id = ?)", "t", f->id);
    tw_store_submit(s->store, o);
}

void tw_future_fail(struct tw_srv *s, struct tw_future *f, const char *category, const char *text)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "error");
    tw_jw_cstr(&w, text);
    tw_jw_key(&w, "category");
    tw_jw_cstr(&w, category);
    tw_jw_obj_end(&w);
    f->state = f->replay ? f->state : TW_FUTURE_FAILED;
    tw_future_done(s, f, tw_blob_new(b.p, b.n), NULL, NULL);
    tw_buf_free(&b);
}

void tw_future_tick(struct tw_srv *s, double now, double wall)
{
    double kept = s->o->result_ttl < KEPT_S ? s->o->result_ttl : KEPT_S;
    struct tw_future *f;

    tw_poll_expire(s, now);
    tw_futures_tick(s, now);
    if (now < s->next_evict)
        return;
    s->next_evict = now + 2;
    for (size_t i = 0; (f = tw_map_next(&s->futures, &i));)
        if (f->accepted && f->state != TW_FUTURE_OPEN && !f->settling && !f->replay && !f->polls &&
                !f->work && wall - f->done > kept)
            free_future(s, f);
}

void tw_future_prune(struct tw_srv *s, double wall)
{
    struct tw_op *o;

    if (wall - s->pruned < PRUNE_S && wall - s->pruned < s->o->result_ttl)
        return;
    s->pruned = wall;
    o = tw_op_new(NULL, s);
    tw_op_add(o,
            "DELETE FROM request WHERE state > 0 AND session IN (SELECT id FROM session WHERE ended < ?)",
            "d", wall - s->o->result_ttl);
    tw_op_add(o,
            "DELETE FROM native WHERE name = 'sampler' AND run IN (SELECT id FROM session WHERE ended < ?)",
            "d", wall - s->o->result_ttl);
    tw_op_add(o, "DELETE FROM request WHERE state > 0 AND kind = 10 AND done < ?", "d",
            wall - s->o->result_ttl);
    tw_store_submit(s->store, o);
}

void tw_future_free_all(struct tw_srv *s)
{
    struct tw_future *f;

    for (size_t i = 0; (f = tw_map_next(&s->futures, &i));)
        free_future(s, f);
    tw_map_free(&s->futures);
    tw_map_free(&s->dedup);
}
