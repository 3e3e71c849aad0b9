/* nat_sample.c - /api/v1/sampler: samples, whole or line by line, and what else is asked of a sampler */
#include "nat_sample.h"

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
    tw_stream_write(c->q.r, b.p, b.n);
    tw_buf_free(&b);
}

static void piece(struct tw_asked *q, int64_t choice, struct tw_str more)
{
    line((struct tw_nat_call *)q, "delta", more, NULL);
}

static void answer(struct tw_asked *q)
{
    struct tw_nat_call *c = (struct tw_nat_call *)q;
    const struct tw_work *w = q->work[0];

    if (!q->stream) {
        tw_nat_call_answer(c);
        return;
    }
    if (w->result.category)
        line(c, "error", tw_buf_str(&w->result.error), NULL);
    else
        line(c, "delta", TW_STR_LIT(""), w->sample.out[0].length ? "length" : "stop");
    tw_stream_end(q->r);
}

static void sample(struct tw_srv *s, struct tw_req *r, bool stream)
{
    static const struct tw_asked_fns fns = { piece, NULL, answer, NULL };
    struct tw_sess *e = tw_nat_sess(s, r);
    struct tw_nat_call *c;
    struct tw_err err = { 0 };
    const struct tw_json *j;

    if (!e)
        return;
    c = tw_xcalloc(1, sizeof *c);
    tw_asked_init(&c->q, s, r, &fns, "nat");
    c->q.stream = stream;
    if (e->nat_template)
        c->template = tw_json_parse(&c->q.arena, tw_arena_str(&c->q.arena, tw_str(e->nat_template)), &err);
    j = tw_json_parse(&c->q.arena, tw_arena_str(&c->q.arena, r->body), &err);
    if (j && j->type != TW_JOBJ)
        tw_fail(&err, NULL, 0, "the body is no JSON object");
    if (err.code || tw_nat_call_read(c, j, &err) || (stream && (c->q.nprompt != 1 || c->q.n != 1) &&
            tw_fail(&err, NULL, 0, "a stream has one input and one sample"))) {
        tw_reply_error(r, 400, "sample: %s", err.msg);
        tw_asked_free(&c->q);
        return;
    }
    tw_asked_send(&c->q, "application/x-ndjson");
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
