/* nat_ckpt.c - save, load and resume_from_checkpoint: the checkpoints are those of the Tinker API */
#include "serve/nat.h"
#include <time.h>

/* What no name may hold becomes an underscore, as Twinkle has it; without a name it is the time. */
char *tw_nat_name(struct tw_arena *a, const struct tw_json *j, double now)
{
    struct tw_str s = { 0 };
    time_t t = (time_t)now;
    struct tm tm;
    char *out;

    tw_json_get_str(j, "name", &s, NULL);
    if (!s.n) {
        gmtime_r(&t, &tm);
        out = tw_arena_alloc(a, 40);
        strftime(out, 40, "%Y%m%d_%H%M%S", &tm);
        return out;
    }
    s.n = s.n < 128 ? s.n : 128;
    out = tw_arena_dup(a, s.p, s.n);
    for (size_t i = 0; i < s.n; i++) {
        char c = out[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                    c == '-' || (c == '.' && i)))
            out[i] = '_';
    }
    return out;
}

static int check_keys(const struct tw_json *j, const char *const *known, struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++) {
        bool ok = j->item[i].type == TW_JNULL || tw_nat_plain_key(j->item[i].key);

        for (const char *const *k = known; *k && !ok; k++)
            ok = tw_str_is(j->item[i].key, *k);
        if (!ok)
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(j->item[i].key.n < 64 ?
                    j->item[i].key.n : 64), j->item[i].key.p);
    }
    return 0;
}

static const char *optim_text(struct tw_arena *a, const struct tw_nat_conf *c)
{
    struct tw_str text = { 0 };

    if (c->optim)
        tw_json_get_str(c->optim, "text", &text, NULL);
    return text.p ? tw_arena_str(a, text).p : "";
}

/* The same as a save of the Tinker API, which may replace one of its name. */
static struct tw_work *decode_save(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_json *req, struct tw_err *err)
{
    static const char *const known[] = { "name", "model_id", "save_optimizer", "is_sampler",
        "consumed_train_samples", "merge_lora", "interval", NULL };
    const struct tw_json *merge = tw_json_get(req, "merge_lora");
    struct tw_arena a = { 0 };
    struct tw_nat_ckpt n = { 0 };
    struct tw_str name = { 0 }, model = { 0 };
    struct tw_work *w = NULL;
    struct tw_json *j;
    bool optimizer = false;

    if (merge && !(merge->type == TW_JBOOL && !merge->b)) {
        tw_fail(err, NULL, 0, "merge_lora: adapters are saved apart from the base");
    } else if (!check_keys(req, known, err) && tw_json_get_str(req, "name", &name, err) > 0 &&
            tw_json_get_str(req, "model_id", &model, err) > 0 &&
            tw_json_get_bool(req, "save_optimizer", &optimizer, err) >= 0 &&
            tw_json_get_int(req, "consumed_train_samples", &n.consumed, err) >= 0) {
        struct tw_str text = tw_str(tw_arena_printf(&a, "{\"model_id\": \"%.*s\", \"seq_id\": 0, \"path\": "
                "\"%.*s\", \"overwrite\": true, \"optimizer\": %s}", (int)model.n, model.p, (int)name.n, name.p,
                optimizer ? "true" : "false"));

        if ((j = tw_json_parse(&a, text, err)))
            w = tw_save_decode(s, kind, t, j, err);
    }
    if (w)
        w->save.nat = tw_arena_dup(&w->arena, &n, sizeof n);
    tw_arena_free(&a);
    return w;
}

static struct tw_work *decode_load(struct tw_srv *s, struct tw_tenant *t, const struct tw_nat_conf *c,
        bool resume, const struct tw_json *req, struct tw_err *err)
{
    static const char *const known[] = { "name", "load_optimizer", "resume_only_model", NULL };
    bool optimizer = false, only = false;
    struct tw_nat_ckpt n = { .resume = resume, .optim_n = c->optim_n, .sched_n = c->sched_n };
    struct tw_str path = { 0 };
    struct tw_work *w;
    struct tw_saved *k;
    char why[160] = "";

    if (check_keys(req, known, err) || tw_json_get_bool(req, "load_optimizer", &optimizer, err) < 0 ||
            tw_json_get_bool(req, "resume_only_model", &only, err) < 0)
        return NULL;
    if (tw_json_get_str(req, "name", &path, err) <= 0) {
        tw_fail(err, NULL, 0, "name is missing");
        return NULL;
    }
    w = tw_work_new(TW_LOAD);
    k = tw_saved_find(s, t, path, why);
    n.counts = resume && !only;
    w->load.optimizer = resume ? !only : optimizer;
    if (!memmem(path.p, path.n, "://", 3))
        tw_refuse(w, "name: checkpoints of this server are loaded, twinkle://RUN/weights/NAME");
    else if (!k)
        tw_refuse(w, "%s", why);
    else if (strcmp(k->kind, "weights"))
        tw_refuse(w, "%s is no training checkpoint", k->path);
    else if (w->load.optimizer && !k->optimizer)
        tw_refuse(w, "%s was saved without its optimizer: save_optimizer", k->path);
    if (w->refused)
        return w;
    n.optim = optim_text(&w->arena, c);
    w->load.from = tw_arena_dup(&w->arena, k->dir, strlen(k->dir));
    w->load.nat = tw_arena_dup(&w->arena, &n, sizeof n);
    return w;
}

struct tw_work *tw_nat_ckpt_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_nat_conf *c, const char *op, const struct tw_json *req, struct tw_err *err)
{
    if (req->type != TW_JOBJ) {
        tw_fail(err, NULL, 0, "the body is no JSON object");
        return NULL;
    }
    return kind == TW_KIND_LOAD_WEIGHTS
            ? decode_load(s, t, c, !strcmp(op, "resume_from_checkpoint"), req, err)
            : decode_save(s, kind, t, req, err);
}
