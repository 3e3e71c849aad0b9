/* train.c - requests that have a place in their model's order: read, known again when they are repeated,
 * journalled */
#include "nat.h"
#include "base/io.h"

void tw_refuse(struct tw_work *w, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (w->refused)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    w->refused = tw_xstrdup(line);
}

char *tw_digest(struct tw_str body)
{
    return tw_xasprintf("%zu-%08x", body.n, tw_crc32c(0, body.p, body.n));
}

/* load_weights: into a model, or from nothing (CREATE). */
static struct tw_work *decode_load(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_json *j, struct tw_err *err)
{
    bool create = kind == TW_KIND_LOAD_CREATE, optimizer = false;
    struct tw_str path = { 0 }, model = { 0 }, base = { 0 };
    struct tw_work *w;
    struct tw_saved *c;
    char why[160] = "";
    int64_t seq = 0;

    if (tw_json_get_bool(j, "optimizer", &optimizer, err) < 0 ||
            tw_json_get_str(j, "path", &path, err) < 0 || tw_json_get_str(j, "model_id", &model, err) < 0 ||
            tw_json_get_str(j, "base_model", &base, err) < 0 || tw_json_get_int(j, "seq_id", &seq, err) < 0)
        return NULL;
    w = tw_work_new(create ? TW_CREATE_FROM : TW_LOAD);
    w->model = tw_str_dup(model);
    w->seq = seq;
    c = tw_saved_find(s, t, path, why);
    if (!c)
        tw_refuse(w, "%s", why);
    else if (strcmp(c->kind, "weights"))
        tw_refuse(w, "%s is no training checkpoint", c->path);
    else if (optimizer && !c->optimizer)
        tw_refuse(w, "%s was saved without its optimizer", c->path);
    if (base.p && !tw_base_known(s, base))
        tw_refuse(w, "base_model is not served here");
    if (create && tw_json_get(j, "optimizer_config") && optimizer)
        tw_refuse(w, "optimizer_config goes with optimizer: false");
    if (w->refused)
        return w;
    if (create) {
        tw_trun_from(w, c, optimizer);
        return w;
    }
    w->load.from = tw_arena_dup(&w->arena, c->dir, strlen(c->dir));
    w->load.optimizer = optimizer;
    return w;
}

struct tw_work *tw_decode(struct tw_srv *s, enum tw_kind kind, const char *type, struct tw_tenant *t,
        struct tw_str body, struct tw_err *err)
{
    static const enum tw_verb verb[] = {
        [TW_KIND_CREATE_MODEL] = TW_CREATE,
        [TW_KIND_FORWARD_BACKWARD] = TW_FORWARD_BACKWARD,
        [TW_KIND_OPTIM_STEP] = TW_OPTIM_STEP,
        [TW_KIND_SAMPLE] = TW_SAMPLE,
    };
    struct tw_arena a = { 0 };
    struct tw_work *w = NULL;
    struct tw_json *j;

    if (!strcmp(type, "native"))
        return tw_nat_decode(s, kind, t, body, err);
    if (kind == TW_KIND_CREATE_MODEL || kind == TW_KIND_FORWARD_BACKWARD || kind == TW_KIND_OPTIM_STEP ||
            kind == TW_KIND_SAMPLE) {
        w = tw_work_read(
                verb[kind], s->limits, !strcmp(type, "proto"), !strcmp(type, "forward"), body, err);
        if (w && kind == TW_KIND_FORWARD_BACKWARD && !w->refused)
            tw_taken_fill(s, w);
        return w;
    }
    j = tw_json_parse(&a, body, err);
    if (j && j->type != TW_JOBJ)
        tw_fail(err, NULL, 0, "the body is no JSON object");
    else if (j && (kind == TW_KIND_LOAD_WEIGHTS || kind == TW_KIND_LOAD_CREATE))
        w = decode_load(s, kind, t, j, err);
    else if (j)
        w = tw_save_decode(s, kind, t, j, err);
    tw_arena_free(&a);
    return w;
}

/* A repeat gets the first answer; the same number with another body, a failed future. */
static bool repeated(
        struct tw_srv *s, struct tw_req *r, const char *dedup, const char *digest, struct tw_work *w)
{
    struct tw_future *f = tw_future_dedup(s, dedup);

    if (!f)
        return false;
    if (f->digest && strcmp(f->digest, digest)) {
        tw_refuse(w, "this number was used by another request");
        return false;
    }
    tw_future_answer(s, f, r);
    return true;
}

static void submit(struct tw_srv *s, struct tw_req *r, enum tw_kind kind, const char *type,
        struct tw_trun *run, struct tw_work *w)
{
    char *dedup = tw_arena_printf(&r->arena, "m:%s:%lld", run->id, (long long)w->seq),
         *digest = tw_digest(r->body);
    struct tw_future *f;
    bool conflict;

    if (repeated(s, r, dedup, digest, w)) {
        free(digest);
        tw_work_drop(w);
        return;
    }
    conflict = tw_map_gets(&s->dedup, dedup) != NULL;
    if (!conflict && w->seq < run->next_seq)
        tw_refuse(w, "number %lld is past: it was skipped after it had not come for a while",
                (long long)w->seq);
    f = tw_future_new(s, kind, r->tenant, run->session, run->id, conflict ? -1 : w->seq);
    f->run = run;
    f->work = w;
    f->dedup = conflict ? NULL : tw_xstrdup(dedup);
    f->digest = digest;
    f->type = tw_xstrdup(type);
    tw_future_reply_text(f, run->id, NULL);
    if (kind == TW_KIND_SAVE_WEIGHTS || kind == TW_KIND_SAVE_SAMPLER || kind == TW_KIND_SAVE_EXTERNAL)
        tw_save_prepare(s, f);
    run->used = f->created;
    tw_future_answer(s, f, r);
    tw_future_accept(s, f, r, NULL);
}

void tw_train_submit(struct tw_srv *s, struct tw_req *r, enum tw_kind kind, const char *type)
{
    struct tw_err err = { 0 };
    struct tw_work *w = tw_decode(s, kind, type, r->tenant, r->body, &err);
    struct tw_trun *run;

    if (!w) {
        tw_reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!w->model || w->seq < 1) {
        tw_reply_error(r, 400, w->model ? "seq_id must be at least 1" : "model_id is missing");
        tw_work_drop(w);
        return;
    }
    run = tw_trun_of(s, r, tw_str(w->model));
    if (run && strcmp(run->state, "new") && strcmp(run->state, "live")) {
        tw_reply_error(r, 410, "the model is gone (%s)", run->state);
        run = NULL;
    }
    if (!run) {
        tw_work_drop(w);
        return;
    }
    if (run->sess && !run->sess->finished) {
        run->sess->seen = tw_wall();
        run->sess->dirty = true;
    }
    submit(s, r, kind, type, run, w);
}

static const char *type_of(struct tw_req *r)
{
    const char *type = tw_req_header(r, "Content-Type");

    return type && !strncasecmp(type, "application/x-protobuf", 22) ? "proto" : "json";
}

static void forward_backward(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_FORWARD_BACKWARD, type_of(r));
}

static void forward(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_FORWARD_BACKWARD, "forward");
}

static void optim_step(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_OPTIM_STEP, "json");
}

static void save_weights(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_SAVE_WEIGHTS, "json");
}

static void save_sampler(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_SAVE_SAMPLER, "json");
}

static void save_external(struct tw_srv *s, struct tw_req *r)
{
    tw_train_submit(s, r, TW_KIND_SAVE_EXTERNAL, "json");
}

const struct tw_endpoint tw_routes_train[] = { { "POST", "api/v1/forward_backward", TW_RIGHT_TRAIN,
                                                       forward_backward },
    { "POST", "api/v1/forward", TW_RIGHT_TRAIN, forward },
    { "POST", "api/v1/optim_step", TW_RIGHT_TRAIN, optim_step },
    { "POST", "api/v1/save_weights", TW_RIGHT_TRAIN, save_weights },
    { "POST", "api/v1/save_weights_for_sampler", TW_RIGHT_TRAIN, save_sampler },
    { "POST", "api/v1/save_weights_external", TW_RIGHT_TRAIN, save_external }, { 0 } };
