/* nat_train.c - requests that have a place in their adapter's order: numbered, journalled, and answered when
 * they are done */
#include "serve/nat.h"
#include "nn/optim.h"

static const struct op {
    const char *name;
    enum tw_kind kind;
    enum tw_nat_op step;
} ops[] = {
    { "forward", TW_KIND_FORWARD_BACKWARD, 0 }, { "forward_only", TW_KIND_FORWARD_BACKWARD, 0 },
    { "forward_backward", TW_KIND_FORWARD_BACKWARD, 0 }, { "calculate_loss", TW_KIND_FORWARD_BACKWARD, 0 },
    { "backward", TW_KIND_FORWARD_BACKWARD, 0 }, { "clip_grad_norm", TW_KIND_OPTIM_STEP, TW_NAT_CLIP },
    { "clip_grad_and_step", TW_KIND_OPTIM_STEP, TW_NAT_CLIP_STEP },
    { "step", TW_KIND_OPTIM_STEP, TW_NAT_STEP }, { "zero_grad", TW_KIND_OPTIM_STEP, TW_NAT_ZERO },
    { "lr_step", TW_KIND_OPTIM_STEP, TW_NAT_LR }, { "calculate_metric", TW_KIND_OPTIM_STEP, TW_NAT_METRIC },
    { "get_state_dict", TW_KIND_OPTIM_STEP, TW_NAT_DICT }, { "save", TW_KIND_SAVE_WEIGHTS, 0 },
    { "load", TW_KIND_LOAD_WEIGHTS, 0 }, { "resume_from_checkpoint", TW_KIND_LOAD_WEIGHTS, 0 },
};

static const struct op *find(struct tw_str name)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (tw_str_is(name, ops[i].name))
            return &ops[i];
    return NULL;
}

int64_t tw_nat_number(struct tw_trun *run)
{
    int64_t n = run->next_seq - 1;

    for (const struct tw_future *f = run->waiting; f; f = f->next)
        n = f->seq > n ? f->seq : n;
    run->nat_last = (run->nat_last > n ? run->nat_last : n) + 1;
    return run->nat_last;
}

/* What set_optimizer and set_lr_scheduler said. */
static int read_optim(struct tw_nat_step *st, struct tw_arena *a, const struct tw_nat_conf *c, bool needed,
        struct tw_err *err)
{
    struct tw_str text = { 0 }, cls = { 0 };

    st->optim = "";
    if (!c->optim && needed)
        return tw_fail(err, NULL, 0, "set_optimizer comes before a step");
    if (c->optim && (tw_json_get_str(c->optim, "text", &text, err) < 0 ||
            tw_json_get_num(c->optim, "lr", &st->lr, err) < 0 ||
            tw_json_get_num(c->optim, "decay", &st->decay, err) < 0))
        return -1;
    if (text.p)
        st->optim = tw_arena_str(a, text).p;
    st->optim_n = c->optim_n;
    st->sched_n = c->sched_n;
    if (!c->sched)
        return 0;
    return tw_json_get_str(c->sched, "scheduler_cls", &cls, err) < 0 ||
            tw_nat_sched_read(&st->sched, cls, c->sched, err) ? -1 : 0;
}

static int read_metric(struct tw_nat_step *st, const struct tw_nat_conf *c, const struct tw_json *req,
        struct tw_err *err)
{
    const struct tw_json *dpo = c->metrics ? tw_json_get(c->metrics, "dpo") : NULL;
    bool training = true;

    st->beta = 0.1;
    st->dpo = dpo != NULL;
    st->grpo = c->metrics && tw_json_get(c->metrics, "grpo");
    st->embed = c->metrics && tw_json_get(c->metrics, "embedding");
    if (tw_json_get_bool(req, "is_training", &training, err) < 0 ||
            (dpo && tw_json_get_num(dpo, "beta", &st->beta, err) < 0))
        return -1;
    st->eval = !training;
    return 0;
}

static int read_step(struct tw_work *w, const struct op *op, const struct tw_nat_conf *c,
        const struct tw_json *req, struct tw_err *err)
{
    static const char *const known[] = { "max_grad_norm", "norm_type", "gradient_accumulation_steps",
        "is_training", NULL };
    struct tw_nat_step *st = tw_arena_alloc(&w->arena, sizeof *st);
    double type = 2;
    int64_t every = c->every;

    st->op = op->step;
    st->max_norm = 1;
    for (int64_t i = 0; i < req->n; i++) {
        bool ok = req->item[i].type == TW_JNULL || tw_nat_plain_key(req->item[i].key);

        for (const char *const *k = known; *k && !ok; k++)
            ok = tw_str_is(req->item[i].key, *k);
        if (!ok)
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(req->item[i].key.n < 64 ?
                    req->item[i].key.n : 64), req->item[i].key.p);
    }
    if (tw_json_get_num(req, "max_grad_norm", &st->max_norm, err) < 0 ||
            tw_json_get_num(req, "norm_type", &type, err) < 0 ||
            tw_json_get_int(req, "gradient_accumulation_steps", &every, err) < 0 ||
            read_optim(st, &w->arena, c, op->step == TW_NAT_STEP || op->step == TW_NAT_CLIP_STEP, err) ||
            read_metric(st, c, req, err))
        return -1;
    if (!(st->max_norm > 0) || type != 2)
        return tw_fail(err, NULL, 0, type != 2 ? "norm_type: only 2 is supported" :
                "max_grad_norm must be above 0");
    if (every < 0 || every > 1000000)
        return tw_fail(err, NULL, 0, "gradient_accumulation_steps must be at least 1");
    st->every = every;
    w->optim.nat = st;
    return 0;
}

/* The parts of a journal entry. */
struct entry {
    const struct op *op;
    struct tw_nat_conf conf;
    const struct tw_json *req, *fwd, *loss;
};

static struct tw_work *decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t, const struct entry *e,
        struct tw_err *err)
{
    bool backward = !strcmp(e->op->name, "backward");
    const struct tw_json *req;
    struct tw_work *w;

    if (e->op->kind == TW_KIND_SAVE_WEIGHTS || e->op->kind == TW_KIND_LOAD_WEIGHTS)
        return tw_nat_ckpt_decode(s, kind, t, &e->conf, e->op->name, e->req, err);
    w = tw_work_new(kind == TW_KIND_FORWARD_BACKWARD ? TW_FORWARD_BACKWARD : TW_OPTIM_STEP);
    req = backward && e->loss ? e->loss : e->req;
    if (kind == TW_KIND_FORWARD_BACKWARD ? tw_nat_fb_read(s, w, e->op->name, &e->conf, req, e->fwd, err) :
            read_step(w, e->op, &e->conf, e->req, err)) {
        tw_work_free(w);
        return NULL;
    }
    return w;
}

struct tw_work *tw_nat_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t, struct tw_str body,
        struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_parse(&a, body, err);
    struct entry e = { 0 };
    struct tw_work *w = NULL;
    struct tw_str op = { 0 }, model = { 0 };
    int64_t seq = 0;

    if (j && kind == TW_KIND_CREATE_MODEL) {
        w = tw_work_new(TW_CREATE);
        if (tw_nat_lora_read(&w->create, &w->arena, s->limits, j, err)) {
            tw_work_free(w);
            w = NULL;
        }
    } else if (j && tw_json_get_str(j, "op", &op, err) > 0 &&
            tw_json_get_str(j, "model_id", &model, err) > 0 &&
            tw_json_get_int(j, "seq_id", &seq, err) > 0 && (e.op = find(op)) &&
            !tw_nat_conf_read(&e.conf, tw_json_get(j, "conf"), err)) {
        e.req = tw_json_get(j, "req");
        e.fwd = tw_json_get(j, "fwd");
        e.loss = tw_json_get(j, "loss");
        w = e.req ? decode(s, kind, t, &e, err) : NULL;
    }
    if (w && model.p) {
        free(w->model);
        w->model = tw_str_dup(model);
        w->seq = seq;
    }
    tw_arena_free(&a);
    return w;
}

/* An error of the engine's, as the client is to see it. */
static void reply_failure(struct tw_req *r, const struct tw_json *j)
{
    struct tw_str text = TW_STR_LIT("it failed"), category = TW_STR_LIT("server");

    tw_json_get_str(j, "error", &text, NULL);
    tw_json_get_str(j, "category", &category, NULL);
    tw_reply_error(r, tw_str_is(category, "user") ? 400 : 500, "%.*s", (int)(text.n < 1000 ? text.n : 1000),
            text.p);
}

static void reply_saved(struct tw_srv *s, struct tw_req *r, const struct tw_json *j)
{
    struct tw_str path = { 0 };
    struct tw_saved *c;
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_json_get_str(j, "path", &path, NULL);
    path = path.n > 9 ? (struct tw_str){ path.p + 9, path.n - 9 } : path;
    c = tw_map_get(&s->ckpts, path);
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "twinkle_path");
    tw_jw_cstr(&w, tw_arena_printf(&r->arena, "twinkle://%.*s", (int)path.n, path.p));
    tw_jw_key(&w, "checkpoint_dir");
    if (c)
        tw_jw_cstr(&w, c->dir);
    else
        tw_jw_null(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void heard(struct tw_srv *s, struct tw_future *f)
{
    struct tw_req *r = f->heard;
    const struct tw_json *j;
    struct tw_buf b = { 0 };

    f->hear = NULL;
    f->heard = NULL;
    if (!r)
        return;
    r->gone = NULL;
    if (!f->accepted) {
        tw_reply_error(r, 503, "the request could not be written to the journal");
        return;
    }
    j = f->json ? tw_json_parse(&r->arena, (struct tw_str){ f->json->p, f->json->n }, NULL) : NULL;
    if (!j)
        tw_reply_error(r, 500, "there is no result");
    else if (f->state == TW_FUTURE_FAILED)
        reply_failure(r, j);
    else if (f->kind == TW_KIND_SAVE_WEIGHTS || f->kind == TW_KIND_SAVE_SAMPLER)
        reply_saved(s, r, j);
    else if (f->kind == TW_KIND_CREATE_MODEL) {
        tw_buf_printf(&b, "{\"status\": \"ok\", \"adapter_name\": \"%s\"}", f->target);
        tw_reply_json(r, 200, &b);
    } else
        tw_reply_blob(r, 200, "application/json", f->json);
}

static void gone(struct tw_req *r) { ((struct tw_future *)r->user)->heard = NULL; }

void tw_nat_wait(struct tw_srv *s, struct tw_future *f, struct tw_req *r)
{
    f->hear = heard;
    f->heard = r;
    r->user = f;
    r->gone = gone;
}

/* The journal's entry; REQ is the body, or what it stands for. */
static void write_entry(struct tw_buf *b, const struct op *op, const struct tw_trun *run, int64_t seq,
        struct tw_str req)
{
    bool part = !strcmp(op->name, "calculate_loss") || !strcmp(op->name, "backward");

    tw_buf_printf(b, "{\"op\": \"%s\", \"model_id\": \"%s\", \"seq_id\": %lld, \"conf\": %s, \"req\": ",
            op->name, run->id, (long long)seq, run->conf ? run->conf : "{}");
    tw_buf_adds(b, req);
    if (part)
        tw_buf_printf(b, ", \"fwd\": %s", run->nat_fwd);
    if (!strcmp(op->name, "backward") && run->nat_loss)
        tw_buf_printf(b, ", \"loss\": %s", run->nat_loss);
    tw_buf_putc(b, '}');
}

/* What the parts of forward_backward hand on. */
static void keep(struct tw_trun *run, const struct op *op, struct tw_str req, struct tw_op *o)
{
    if (!strcmp(op->name, "forward") || !strcmp(op->name, "forward_only")) {
        char *text = tw_xasprintf("{\"op\": \"%s\", \"req\": %.*s}", op->name, (int)req.n, req.p);

        tw_nat_keep(run, "forward", text, o);
        tw_nat_keep(run, "loss", NULL, o);
        free(text);
    } else if (!strcmp(op->name, "calculate_loss")) {
        char *text = tw_xstrndup(req.p, req.n);

        tw_nat_keep(run, "loss", text, o);
        free(text);
    } else if (!strcmp(op->name, "backward")) {
        tw_nat_keep(run, "forward", NULL, o);
        tw_nat_keep(run, "loss", NULL, o);
    }
}

static void accept(struct tw_srv *s, struct tw_req *r, struct tw_trun *run, const struct op *op,
        enum tw_kind kind, struct tw_str req, struct tw_work *w)
{
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_buf b = { 0 };
    struct tw_future *f;

    w->seq = tw_nat_number(run);
    write_entry(&b, op, run, w->seq, req);
    free(w->model);
    w->model = tw_xstrdup(run->id);
    if (w->verb == TW_OPTIM_STEP) {
        struct tw_nat_step *st = (struct tw_nat_step *)(uintptr_t)w->optim.nat;

        st->age = tw_wall() - run->created;
        st->since = tw_wall() - (run->metric_at > 0 ? run->metric_at : run->created);
        if (st->op == TW_NAT_METRIC)
            run->metric_at = tw_wall();
    }
    f = tw_future_new(s, kind, r->tenant, run->session, run->id, w->seq);
    f->run = run;
    f->work = w;
    f->type = tw_xstrdup("native");
    tw_future_reply_text(f, run->id, NULL);
    if (kind == TW_KIND_SAVE_WEIGHTS || kind == TW_KIND_SAVE_SAMPLER)
        tw_save_prepare(s, f);
    run->used = f->created;
    keep(run, op, req, o);
    tw_nat_wait(s, f, r);
    tw_future_accept_text(s, f, tw_buf_str(&b), o);
    tw_buf_free(&b);
}

/* A save's body with what it leaves open: the name. */
static struct tw_str save_body(struct tw_req *r, const struct tw_json *j, const struct tw_trun *run)
{
    struct tw_buf b = { 0 };
    struct tw_str out;
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < j->n; i++)
        if (!tw_str_is(j->item[i].key, "name")) {
            tw_jw_key_n(&w, j->item[i].key);
            tw_jw_value(&w, &j->item[i]);
        }
    tw_jw_key(&w, "name");
    tw_jw_cstr(&w, tw_nat_name(&r->arena, j, tw_wall()));
    tw_jw_key(&w, "model_id");
    tw_jw_cstr(&w, run->id);
    tw_jw_obj_end(&w);
    out = tw_arena_str(&r->arena, tw_buf_str(&b));
    tw_buf_free(&b);
    return out;
}

bool tw_nat_train(struct tw_srv *s, struct tw_req *r, const char *name)
{
    struct entry e = { .op = find(tw_str(name)) };
    struct tw_str body = r->body;
    struct tw_err err = { 0 };
    struct tw_arena *a = &r->arena;
    struct tw_trun *run;
    struct tw_work *w;
    enum tw_kind kind;
    bool sampler = false, part;

    if (!e.op)
        return false;
    if (!(e.req = tw_req_json(r)) || !(run = tw_nat_run(s, r, e.req)))
        return true;
    part = !strcmp(name, "calculate_loss") || !strcmp(name, "backward");
    kind = e.op->kind;
    if (kind == TW_KIND_SAVE_WEIGHTS) {
        if (tw_json_get_bool(e.req, "is_sampler", &sampler, &err) > 0 && sampler)
            kind = TW_KIND_SAVE_SAMPLER;
        body = save_body(r, e.req, run);
        e.req = tw_json_parse(a, body, &err);
    }
    if (part && !run->nat_fwd)
        tw_fail(&err, NULL, 0, "forward comes first");
    if (!strcmp(name, "backward") && run->nat_fwd && strstr(run->nat_fwd, "forward_only") ==
            run->nat_fwd + 8)
        tw_fail(&err, NULL, 0, "forward_only keeps nothing for backward: forward does");
    if (part && !err.code)
        e.fwd = tw_json_parse(a, tw_str(run->nat_fwd), &err);
    if (part && run->nat_loss && !err.code)
        e.loss = tw_json_parse(a, tw_str(run->nat_loss), &err);
    w = err.code || (run->conf && tw_nat_conf_read(&e.conf, tw_json_parse(a, tw_str(run->conf), &err), &err)) ?
            NULL : decode(s, kind, r->tenant, &e, &err);
    if (w && w->refused) {
        tw_fail(&err, NULL, 0, "%s", w->refused);
        tw_work_drop(w);
        w = NULL;
    }
    if (w)
        accept(s, r, run, e.op, kind, body.n ? body : TW_STR_LIT("{}"), w);
    else
        tw_reply_error(r, 400, "%s: %s", name, err.msg);
    return true;
}
