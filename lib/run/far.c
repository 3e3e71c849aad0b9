/* far.c - a session with a server: which model it has, models in training, weights */
#include "run/far.h"
#include "base/io.h"
#include "base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#define BEAT_S 60

static char *text_of(struct tw_str s)
{
    return tw_xstrndup(s.p, s.n);
}

int tw_far_read(struct tw_far_path *p, const char *dir, struct tw_err *err)
{
    char *file = tw_path_join(dir, "trainer/server.json");
    struct tw_str server = TW_STR_LIT(""), path = { 0 };
    struct tw_arena a = { 0 };
    const struct tw_json *j;
    int ret = tw_is_file(file);

    *p = (struct tw_far_path){ 0 };
    if (ret && (!(j = tw_json_file(&a, file, 1 << 20, err)) || j->type != TW_JOBJ ||
            tw_json_get_str(j, "server", &server, err) < 0 || tw_json_get_str(j, "path", &path, err) < 1))
        ret = tw_fail(err, file, 0, "does not say where on a server the weights are");
    if (ret > 0) {
        p->server = text_of(server);
        p->path = text_of(path);
    }
    tw_arena_free(&a);
    free(file);
    return ret;
}

int tw_far_write(const char *dir, const char *server, const char *path, struct tw_err *err)
{
    char *folder = tw_path_join(dir, "trainer"), *file = tw_path_join(folder, "server.json");
    struct tw_buf b = { 0 };
    int ret;

    tw_buf_puts(&b, "{\"server\":");
    tw_json_quote(&b, tw_str(server));
    tw_buf_puts(&b, ",\"path\":");
    tw_json_quote(&b, tw_str(path));
    tw_buf_puts(&b, "}\n");
    ret = tw_mkdirs(folder, err) || tw_write_file(file, b.p, b.n, err) ? -1 : 0;
    tw_buf_free(&b);
    free(folder);
    free(file);
    return ret;
}

void tw_far_path_free(struct tw_far_path *p)
{
    free(p->server);
    free(p->path);
    *p = (struct tw_far_path){ 0 };
}

struct tw_call *tw_far_send(struct tw_far *f, const char *path, struct tw_buf *body, unsigned flags)
{
    struct tw_call *c = tw_rpc_send(f->rpc, "POST", path, tw_buf_str(body), flags);

    tw_buf_free(body);
    return c;
}

int tw_far_wait(struct tw_far *f, struct tw_call *c, const struct tw_json **out, struct tw_err *err)
{
    while (f->go_on && !tw_call_done(c)) {
        tw_rpc_turn(f->rpc, 200);
        if (f->go_on(f->arg, err))
            return -1;
    }
    return tw_call_wait(c, out, err);
}

/* The last part of a name: what is behind hf://, a folder's parents, an organisation. */
static struct tw_str last_part(struct tw_str s)
{
    size_t n = s.n, from;

    while (n > 1 && s.p[n - 1] == '/')
        n--;
    for (from = n; from && s.p[from - 1] != '/'; from--)
        ;
    return (struct tw_str){ s.p + from, n - from };
}

/* Is MODEL what the server calls NAME? A hub's model is its whole name, or its last part. */
static bool same_name(const char *model, struct tw_str name)
{
    bool hub = !strncmp(model, "hf://", 5) || !strncmp(model, "ms://", 5);
    const char *at = hub ? strchr(model + 5, '@') : NULL;
    struct tw_str own = { model, at ? (size_t)(at - model) : strlen(model) };

    return tw_str_eq(own, name) || tw_str_eq(last_part(own), last_part(name));
}

/* Another tokenizer would make other words of the same tokens. */
static int compare(const struct tw_json *m, const struct tw_tok *tok, const char *server, struct tw_err *err)
{
    struct tw_str theirs = { 0 };
    char mine[24];

    if (tw_json_get_str(m, "tokenizer_hash", &theirs, err) < 0)
        return -1;
    if (!tok || !theirs.n)
        return 0;
    snprintf(mine, sizeof mine, "%016" PRIx64, tw_tok_hash(tok));
    return tw_str_is(theirs, mine) ? 0 : tw_fail(err, server, 0, "the server's model has another tokenizer "
            "than MODEL: give the folder of the model that it serves");
}

static int find_model(struct tw_far *f, const char *model, const struct tw_tok *tok, const struct tw_json *j,
        struct tw_err *err)
{
    const struct tw_json *list = j && j->type == TW_JOBJ ? tw_json_get(j, "supported_models") : NULL;
    const char *server = tw_rpc_name(f->rpc);
    struct tw_buf names = { 0 };
    int ret = -1;

    for (int64_t i = 0; list && list->type == TW_JARR && i < list->n && !f->base; i++) {
        struct tw_str name = { 0 };

        if (list->item[i].type != TW_JOBJ || tw_json_get_str(&list->item[i], "model_name", &name, NULL) < 1)
            continue;
        tw_buf_printf(&names, "%s%.*s", names.n ? ", " : "", (int)name.n, name.p);
        if (!same_name(model, name))
            continue;
        f->base = text_of(name);
        tw_json_get_int(&list->item[i], "max_context_length", &f->window, NULL);
        ret = compare(&list->item[i], tok, server, err);
    }
    if (!f->base)
        tw_fail(err, server, 0, "the server has %s, and no %s", names.n ? names.p : "no model", model);
    tw_buf_free(&names);
    return ret;
}

struct tw_far *tw_far_open(const char *model, const struct tw_tok *tok, struct tw_err *err)
{
    struct tw_far *f = tw_xcalloc(1, sizeof *f);
    const struct tw_json *j;
    struct tw_call *c;
    int ret = -1;

    if ((f->rpc = tw_rpc_open(tw_rpc_server(), err))) {
        c = tw_rpc_send(f->rpc, "GET", "/api/v1/get_server_capabilities", (struct tw_str){ 0 }, 0);
        ret = tw_call_wait(c, &j, err) || find_model(f, model, tok, j, err) ? -1 : 0;
    }
    if (!ret)
        return f;
    tw_far_close(f, NULL);
    return NULL;
}

/* Best effort: a session that is not ended is in time. */
static void finish(struct tw_far *f, const char *session, const char *how)
{
    char *path = tw_xasprintf("/api/v1/sessions/%s/finish", session);
    char *body = tw_xasprintf("{\"reason\":{\"type\":\"%s\"},\"detail\":null}", how);
    struct tw_call *c = tw_rpc_send(f->rpc, "POST", path, tw_str(body), 0);
    double until = tw_now() + 3;

    while (!tw_call_done(c) && tw_now() < until)
        tw_rpc_turn(f->rpc, 100);
    tw_call_free(c);
    free(path);
    free(body);
}

static bool is_id(struct tw_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789abcdefABCDEF-", s.p[i]))
            return false;
    return s.n > 0 && s.n < 64;
}

/* One that a killed process left open would hold its adapters until the server misses its signs of life. */
static void finish_left(struct tw_far *f, const char *file)
{
    struct tw_buf b = { 0 };

    if (tw_is_file(file) && !tw_read_file(&b, file, 4096, NULL) && is_id(tw_buf_str(&b)))
        finish(f, b.p, "interrupted");
    tw_buf_free(&b);
}

int tw_far_begin(struct tw_far *f, const char *file, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    const struct tw_json *j;
    struct tw_str id = { 0 };
    struct tw_call *c;
    char *body;
    int ret;

    if (file)
        finish_left(f, file);
    tw_buf_printf(&b, "{\"tags\":[],\"sdk_version\":\"twinkle\",\"display_name\":\"%s\","
            "\"type\":\"create_session\"}", tw_prog());
    c = tw_far_send(f, "/api/v1/create_session", &b, 0);
    ret = tw_call_wait(c, &j, err);
    if (!ret && (!j || j->type != TW_JOBJ || tw_json_get_str(j, "session_id", &id, NULL) < 1 || !is_id(id)))
        ret = tw_fail(err, tw_rpc_name(f->rpc), 0, "the server gave no session");
    if (!ret) {
        f->session = text_of(id);
        body = tw_xasprintf("{\"session_id\":\"%s\",\"type\":\"session_heartbeat\"}", f->session);
        tw_rpc_beat(f->rpc, "/api/v1/session_heartbeat", body, BEAT_S);
        free(body);
        ret = file ? tw_write_file(file, f->session, strlen(f->session), err) : 0;
    }
    tw_call_free(c);
    return ret;
}

void tw_far_close(struct tw_far *f, const char *how)
{
    if (!f)
        return;
    if (f->session && how)
        finish(f, f->session, how);
    tw_rpc_close(f->rpc);
    free(f->session);
    free(f->base);
    free(f);
}

static void put_text(struct tw_jw *w, const char *key, const char *value)
{
    tw_jw_key(w, key);
    tw_jw_cstr(w, value);
}

static void put_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

static void put_flag(struct tw_jw *w, const char *key, bool v)
{
    tw_jw_key(w, key);
    tw_jw_bool(w, v);
}

/* Sends what makes a model, and waits for it. */
static int make(struct tw_far_model *m, struct tw_far *f, const char *path, struct tw_buf *body,
        struct tw_err *err)
{
    struct tw_call *c = tw_far_send(f, path, body, TW_RPC_FUTURE);
    int ret = tw_far_wait(f, c, NULL, err);

    tw_call_free(c);
    *m = (struct tw_far_model){ .f = f };
    if (!ret)
        m->id = tw_xasprintf("%s:train:%" PRId64, f->session, f->nmodel);
    f->nmodel++;
    return ret;
}

int tw_far_create(struct tw_far_model *m, struct tw_far *f, const struct tw_lora_opts *o, bool attn, bool mlp,
        uint64_t seed, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_text(&w, "session_id", f->session);
    put_int(&w, "model_seq_id", f->nmodel);
    put_text(&w, "base_model", f->base);
    tw_jw_key(&w, "lora_config");
    if (!o) {
        tw_jw_null(&w);
    } else {
        tw_jw_obj(&w);
        put_int(&w, "rank", o->r);
        tw_jw_key(&w, "alpha");
        tw_jw_num(&w, o->alpha);
        put_int(&w, "seed", (int64_t)seed);
        put_flag(&w, "train_attn", attn);
        put_flag(&w, "train_mlp", mlp);
        put_flag(&w, "train_unembed", false);
        tw_jw_obj_end(&w);
    }
    put_text(&w, "type", "create_model");
    tw_jw_obj_end(&w);
    return make(m, f, "/api/v1/create_model", &b, err);
}

int tw_far_load(struct tw_far_model *m, struct tw_far *f, const char *path, bool optimizer, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_text(&w, "session_id", f->session);
    put_int(&w, "model_seq_id", f->nmodel);
    put_text(&w, "path", path);
    put_flag(&w, "optimizer", optimizer);
    put_text(&w, "type", "load_weights");
    tw_jw_obj_end(&w);
    return make(m, f, "/api/v1/load_weights", &b, err);
}

void tw_far_model_free(struct tw_far_model *m)
{
    free(m->id);
    *m = (struct tw_far_model){ 0 };
}

int tw_far_save(struct tw_far_model *m, const char *name, bool sampler, char **path, struct tw_err *err)
{
    const char *what = sampler ? "save_weights_for_sampler" : "save_weights";
    char *url = tw_xasprintf("/api/v1/%s", what);
    struct tw_buf b = { 0 };
    const struct tw_json *j;
    struct tw_str at = { 0 };
    struct tw_call *c;
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_text(&w, "model_id", m->id);
    put_int(&w, "seq_id", ++m->seq);
    put_text(&w, "path", name);
    put_flag(&w, "overwrite", true);
    put_text(&w, "type", what);
    tw_jw_obj_end(&w);
    c = tw_far_send(m->f, url, &b, TW_RPC_FUTURE);
    ret = tw_far_wait(m->f, c, &j, err);
    if (!ret && (!j || j->type != TW_JOBJ || tw_json_get_str(j, "path", &at, NULL) < 1))
        ret = tw_fail(err, tw_rpc_name(m->f->rpc), 0, "the server does not say where it saved the weights");
    *path = ret ? NULL : text_of(at);
    tw_call_free(c);
    free(url);
    return ret;
}

char *tw_far_sampler(struct tw_far *f, const char *path, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    const struct tw_json *j;
    struct tw_str id = { 0 };
    char *ret = NULL;
    struct tw_call *c;
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_text(&w, "session_id", f->session);
    put_int(&w, "sampling_session_seq_id", f->nsampler++);
    put_text(&w, path ? "model_path" : "base_model", path ? path : f->base);
    put_text(&w, "type", "create_sampling_session");
    tw_jw_obj_end(&w);
    c = tw_far_send(f, "/api/v1/create_sampling_session", &b, 0);
    if (!tw_far_wait(f, c, &j, err)) {
        if (j && j->type == TW_JOBJ && tw_json_get_str(j, "sampling_session_id", &id, NULL) > 0)
            ret = text_of(id);
        else
            tw_fail(err, tw_rpc_name(f->rpc), 0, "the server gave no sampling session");
    }
    tw_call_free(c);
    return ret;
}
