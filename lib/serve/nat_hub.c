/* nat_hub.c - upload_to_hub: a checkpoint goes to a hub on a thread of its own, and clients ask how far it is.
 * The token is the client's, is kept in memory alone, and never told; a restart ends what was on its way. */
#include "serve/nat.h"
#include "data/hub_push.h"
#include <unistd.h>

#define AT_ONCE 4                       /* uploads of a tenant */
#define KEPT 256                        /* that are told of */

struct tw_nat_up {
    struct tw_mail mail;                /* when it is over */
    struct tw_nat_up *next;
    struct tw_srv *s;
    char id[40], *tenant, *dir, *uri, *token;
    const char *status;                 /* running, completed, failed */
    char *error;
    bool started;
    atomic_bool stop;
    struct tw_err err;
    bool failed;
};

static void store(struct tw_nat_up *u)
{
    struct tw_op *o = tw_op_new(NULL, u->s);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "tenant");
    tw_jw_cstr(&w, u->tenant);
    tw_jw_key(&w, "status");
    tw_jw_cstr(&w, u->status);
    tw_jw_key(&w, "error");
    if (u->error)
        tw_jw_cstr(&w, u->error);
    else
        tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_op_add(o, "INSERT OR REPLACE INTO native (run, name, value) VALUES (?, 'upload', ?)", "ts", u->id,
            tw_buf_str(&b));
    tw_store_submit(u->s->store, o);
    tw_buf_free(&b);
}

static void ended(void *arg, struct tw_mail *m)
{
    struct tw_nat_up *u = (struct tw_nat_up *)m;

    u->started = false;
    u->status = u->failed ? "failed" : "completed";
    if (u->failed)
        u->error = tw_xstrdup(u->err.msg);
    free(u->token);
    u->token = NULL;
    if (!u->s->closing)
        store(u);
}

/* A thread of its own. */
static void *push(void *arg)
{
    struct tw_nat_up *u = arg;
    struct tw_push_conf c = { .token = u->token, .stop = &u->stop };
    char *page = tw_hub_push(u->dir, u->uri, &c, &u->err);

    u->failed = !page;
    free(page);
    tw_mail_send(&u->s->box, &u->mail);
    return NULL;
}

static void free_up(struct tw_nat_up *u)
{
    free(u->tenant);
    free(u->dir);
    free(u->uri);
    free(u->token);
    free(u->error);
    free(u);
}

/* The server ends: what is on its way is told to stop. */
void tw_nat_hub_close(struct tw_srv *s)
{
    struct tw_nat_up *u;

    while ((u = s->nat_up)) {
        atomic_store(&u->stop, true);
        while (u->started && !tw_mail_run(&s->box))
            usleep(1000);               /* its thread sends one when it is over */
        if (u->started)
            continue;
        s->nat_up = u->next;
        free_up(u);
    }
}

/* The oldest of those that are over are forgotten. */
static void prune(struct tw_srv *s)
{
    struct tw_nat_up **at = &s->nat_up;
    int n = 0;

    while (*at) {
        struct tw_nat_up *u = *at;

        if (++n <= KEPT || u->started) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        free_up(u);
    }
}

/* ORG/NAME of ModelScope, as Twinkle means it, or hf://ORG/NAME. */
static char *uri_of(struct tw_str id, struct tw_err *err)
{
    const char *scheme = "ms://";

    if (id.n > 5 && (!memcmp(id.p, "hf://", 5) || !memcmp(id.p, "ms://", 5))) {
        scheme = *id.p == 'h' ? "hf://" : "ms://";
        id = (struct tw_str){ id.p + 5, id.n - 5 };
    }
    for (size_t i = 0, slash = 0; i < id.n; i++) {
        char c = id.p[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                (i && strchr("._-", c)) || (c == '/' && i && !slash++);

        if (!ok || !c || (i + 1 == id.n && !slash)) {
            tw_fail(err, NULL, 0, "hub_model_id must be ORG/NAME, with hf:// or ms:// before it or not");
            return NULL;
        }
    }
    return id.n ? tw_xasprintf("%s%.*s", scheme, (int)id.n, id.p) : (tw_fail(err, NULL, 0, "hub_model_id is "
            "empty"), NULL);
}

static struct tw_nat_up *begin(struct tw_srv *s, struct tw_req *r, const struct tw_saved *c,
        struct tw_str token, char *uri)
{
    struct tw_nat_up *u = tw_xcalloc(1, sizeof *u);
    pthread_attr_t a;
    pthread_t thread;
    char hex[33];

    tw_random_hex(hex, 16);
    snprintf(u->id, sizeof u->id, "up-%s", hex);
    u->mail.run = ended;
    u->s = s;
    u->tenant = tw_xstrdup(r->tenant->name);
    u->dir = tw_xstrdup(c->dir);
    u->uri = uri;
    u->token = tw_str_dup(token);
    u->status = "running";
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    u->started = !pthread_create(&thread, &a, push, u);
    pthread_attr_destroy(&a);
    if (!u->started) {
        u->status = "failed";
        u->error = tw_xstrdup("there is no thread for it");
    }
    u->next = s->nat_up;
    s->nat_up = u;
    prune(s);
    return u;
}

void tw_nat_upload(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r), *v = j ? tw_json_get(j, "checkpoint_dir") : NULL;
    struct tw_str path = { 0 }, id, token;
    struct tw_err err = { 0 };
    struct tw_saved *c;
    struct tw_buf b = { 0 };
    char why[160] = "", *uri;
    int64_t n = 0;

    if (!j || tw_req_text(r, j, "hub_model_id", true, &id) < 0 ||
            tw_req_text(r, j, "hub_token", true, &token) < 0)
        return;
    if (v && v->type == TW_JOBJ)
        v = tw_json_get(v, "twinkle_path");
    path = v && v->type == TW_JSTR ? v->str : path;
    for (const struct tw_nat_up *u = s->nat_up; u; u = u->next)
        n += u->started && !strcmp(u->tenant, r->tenant->name);
    if (!path.n || !memmem(path.p, path.n, "://", 3)) {
        tw_reply_error(r, 400, "checkpoint_dir: a checkpoint of this server, twinkle://RUN/weights/NAME");
    } else if (!(c = tw_saved_find(s, r->tenant, path, why)) || c->tenant != r->tenant) {
        tw_reply_error(r, 404, "checkpoint_dir: %s", c ? "it is another tenant's" : why);
    } else if (n >= AT_ONCE) {
        tw_reply_error(r, 429, "%d uploads of this tenant are on their way", AT_ONCE);
    } else if (!(uri = uri_of(id, &err))) {
        tw_reply_error(r, 400, "%s", err.msg);
    } else {
        struct tw_nat_up *u = begin(s, r, c, token, uri);

        store(u);
        tw_buf_printf(&b, "{\"request_id\": \"%s\"}", u->id);
        tw_reply_json(r, 200, &b);
    }
}

static void reply_status(struct tw_req *r, struct tw_str id, const char *status, const char *error)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "request_id");
    tw_jw_str(&w, id);
    tw_jw_key(&w, "status");
    tw_jw_cstr(&w, status);
    tw_jw_key(&w, "error");
    if (error)
        tw_jw_cstr(&w, error);
    else
        tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static int take_text(void *arg, const struct tw_row *r)
{
    *(char **)arg = tw_col_dup(r, 0);
    return 1;
}

void tw_nat_upload_status(struct tw_srv *s, struct tw_req *r, struct tw_str id)
{
    const struct tw_nat_up *u = s->nat_up;
    struct tw_str tenant = { 0 }, status = { 0 }, error = { 0 };
    const struct tw_json *j;
    struct tw_err err = { 0 };
    char *text = NULL;

    while (u && !tw_str_is(id, u->id))
        u = u->next;
    if (u && !strcmp(u->tenant, r->tenant->name)) {
        reply_status(r, id, u->status, u->error);
        return;
    }
    if (!u && tw_store_read(s->store, "SELECT value FROM native WHERE run = ? AND name = 'upload'", take_text,
            &text, &err, "s", id))
        tw_alert(s, "store", err.msg);
    j = text ? tw_json_parse(&r->arena, tw_arena_str(&r->arena, tw_str(text)), NULL) : NULL;
    free(text);
    if (!j || tw_json_get_str(j, "tenant", &tenant, NULL) < 1 || !tw_str_is(tenant, r->tenant->name)) {
        tw_reply_error(r, 404, "Upload task not found");
        return;
    }
    tw_json_get_str(j, "status", &status, NULL);
    tw_json_get_str(j, "error", &error, NULL);
    if (tw_str_is(status, "running"))       /* the server that did it is gone */
        reply_status(r, id, "failed", "the server ended before the upload did: ask for it again");
    else
        reply_status(r, id, tw_arena_dup(&r->arena, status.p, status.n), error.p ?
                tw_arena_dup(&r->arena, error.p, error.n) : NULL);
}
