/* nat_sample.c - /api/v1/sampler: calls on their way to the engine and back. A sample changes nothing, so the
 * journal does not have it; who is answered is the one who waits. */
#include "nat_sample.h"

struct ticket {
    struct tw_mail mail;
    struct tw_nat_call *c;
};

struct piece {
    struct tw_mail mail;
    struct tw_nat_call *c;
    size_t n;
    char text[];
};

static void free_call(struct tw_nat_call *c)
{
    for (int64_t p = 0; c->work && p < c->nprompt; p++)
        tw_work_free(c->work[p]);
    tw_arena_free(&c->arena);
    free(c);
}

static void refund(struct tw_nat_call *c)
{
    int64_t back = c->charged;

    for (int64_t p = 0; p < c->nprompt; p++)
        back -= c->work[p]->result.tokens + c->work[p]->result.sampled;
    if (back < 0)
        return;
    c->tenant->tokens_total -= back;
    if (c->tenant->tokens_per_minute)
        c->tenant->tokens += (double)back;
}

static void line(struct tw_nat_call *c, const char *key, struct tw_str value, const char *finish)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, key);
    tw_jw_str(&w, value);
    if (!strcmp(key, "delta")) {
        tw_jw_key(&w, "finish_reason");
        if (finish)
            tw_jw_cstr(&w, finish);
        else
            tw_jw_null(&w);
    }
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    tw_stream_write(c->r, b.p, b.n);
    tw_buf_free(&b);
}

static void end_stream(struct tw_nat_call *c)
{
    const struct tw_work *w = c->work[0];

    if (w->result.category)
        line(c, "error", tw_buf_str(&w->result.error), NULL);
    else
        line(c, "delta", TW_STR_LIT(""), w->sample.out[0].length ? "length" : "stop");
    tw_stream_end(c->r);
}

static void done_mail(void *arg, struct tw_mail *m)
{
    struct ticket *t = (struct ticket *)m;
    struct tw_nat_call *c = t->c;
    struct tw_srv *s = arg;

    free(t);
    if (--c->left)
        return;
    for (int64_t p = 0; p < c->nprompt; p++) {
        const struct tw_result *x = &c->work[p]->result;

        s->tokens_sampled += x->sampled;
        if (x->category && !strcmp(x->category, "server") && !s->closing)
            tw_alert(s, "engine", x->error.p ? x->error.p : "?");
    }
    c->tenant->unfinished--;
    refund(c);
    if (!s->closing && c->r) {
        c->r->gone = NULL;
        if (c->stream)
            end_stream(c);
        else
            tw_nat_call_answer(c);
    }
    free_call(c);
}

static void piece_mail(void *arg, struct tw_mail *m)
{
    struct piece *x = (struct piece *)m;

    if (!((struct tw_srv *)arg)->closing && x->c->r)
        line(x->c, "delta", (struct tw_str){ x->text, x->n }, NULL);
    free(x);
}

/* On the engine's thread, both. */
static void on_done(struct tw_work *w)
{
    struct ticket *t = w->user;

    tw_mail_send(&t->c->s->box, &t->mail);
}

static void on_text(struct tw_work *w, int64_t sample, struct tw_str more)
{
    struct ticket *t = w->user;
    struct piece *x = tw_xcalloc(1, sizeof *x + more.n);

    x->mail.run = piece_mail;
    x->c = t->c;
    x->n = more.n;
    memcpy(x->text, more.p, more.n);
    tw_mail_send(&t->c->s->box, &x->mail);
}

static void gone(struct tw_req *r)
{
    struct tw_nat_call *c = r->user;

    c->r = NULL;
    for (int64_t p = 0; p < c->nprompt; p++)
        tw_worker_cancel(c->s->worker, c->work[p]->id);
}

static void submit(struct tw_nat_call *c)
{
    c->left = c->nprompt;
    c->tenant->unfinished++;
    for (int64_t p = 0; p < c->nprompt; p++) {
        struct ticket *t = tw_xcalloc(1, sizeof *t);
        struct tw_work *w = c->work[p];

        t->mail.run = done_mail;
        t->c = c;
        w->id = tw_xasprintf("%s-%lld", c->id, (long long)p);
        w->tenant = tw_xstrdup(c->tenant->name);
        w->user = t;
        w->done = on_done;
        w->sample.text = c->stream ? on_text : NULL;
        tw_worker_submit(c->s->worker, w);
    }
}

static void sample(struct tw_srv *s, struct tw_req *r, bool stream)
{
    struct tw_sess *e = tw_nat_sess(s, r);
    struct tw_nat_call *c;
    struct tw_err err = { 0 };
    const struct tw_json *j;
    char hex[33];

    if (!e)
        return;
    c = tw_xcalloc(1, sizeof *c);
    tw_random_hex(hex, 16);
    snprintf(c->id, sizeof c->id, "nat-%s", hex);
    c->s = s;
    c->r = r;
    c->tenant = r->tenant;
    c->stream = stream;
    if (e->nat_template)
        c->template = tw_json_parse(&c->arena, tw_arena_str(&c->arena, tw_str(e->nat_template)), &err);
    j = tw_json_parse(&c->arena, tw_arena_str(&c->arena, r->body), &err);
    if (j && j->type != TW_JOBJ)
        tw_fail(&err, NULL, 0, "the body is no JSON object");
    if (err.code || tw_nat_call_read(c, j, &err) || (stream && (c->nprompt != 1 || c->n != 1) &&
            tw_fail(&err, NULL, 0, "a stream has one input and one sample"))) {
        tw_reply_error(r, 400, "sample: %s", err.msg);
        free_call(c);
        return;
    }
    for (int64_t p = 0; p < c->nprompt; p++)
        c->charged += c->work[p]->sample.nprompt + c->n * c->work[p]->sample.max_tokens;
    if (tw_smp_throttled(s, r, c->charged)) {
        free_call(c);
        return;
    }
    r->user = c;
    r->gone = gone;
    if (stream)
        tw_stream_start(r, 200, "application/x-ndjson");
    submit(c);
}

static void set_template(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_sess *e = j ? tw_nat_sess(s, r) : NULL;
    struct tw_err err = { 0 };
    struct tw_buf b = { 0 };
    struct tw_str cls;
    struct tw_op *o;

    if (!e || tw_req_text(r, j, "template_cls", true, &cls) < 0)
        return;
    if (tw_nat_check_template(cls, j, &err)) {
        tw_reply_error(r, 400, "set_template: %s", err.msg);
        return;
    }
    free(e->nat_template);
    e->nat_template = tw_xstrndup(r->body.p, r->body.n);
    o = tw_op_new(NULL, s);
    tw_op_add(o, "INSERT OR REPLACE INTO native (run, name, value) VALUES (?, 'sampler', ?)", "tt", e->id,
            e->nat_template);
    tw_buf_puts(&b, "{\"status\": \"ok\"}");
    tw_nat_after(s, r, o, &b);
}

static void add_adapter(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_str name;
    struct tw_buf b = { 0 };

    if (!j || !tw_nat_sess(s, r) || tw_req_text(r, j, "adapter_name", true, &name) < 0)
        return;
    tw_buf_puts(&b, "{\"status\": \"ok\", \"adapter_name\": ");
    tw_json_quote(&b, name);
    tw_buf_putc(&b, '}');
    tw_reply_json(r, 200, &b);
}

bool tw_nat_sampler(struct tw_srv *s, struct tw_req *r, const char *name)
{
    const struct tw_json *j;
    struct tw_err err = { 0 };
    struct tw_str cls;

    if (!strcmp(name, "create")) {
        tw_nat_reply_text(r, "{\"status\": \"ok\"}");
    } else if (!strcmp(name, "set_template")) {
        set_template(s, r);
    } else if (!strcmp(name, "add_adapter_to_sampler")) {
        add_adapter(s, r);
    } else if (!strcmp(name, "sample") || !strcmp(name, "sample_stream")) {
        sample(s, r, name[6] != 0);
    } else if (!strcmp(name, "apply_patch")) {
        if (!(j = tw_req_json(r)) || tw_req_text(r, j, "patch_cls", true, &cls) < 0)
            return true;
        if (tw_nat_check_patch(cls, &err))
            tw_reply_error(r, 400, "apply_patch: %s", err.msg);
        else
            tw_nat_reply_text(r, "null");
    } else {
        return false;
    }
    return true;
}
