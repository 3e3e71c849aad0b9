/* nproc_more.c - preprocessors, rewards and templates as objects of their own */
#include "nproc.h"
#include <math.h>

static int class_of(struct tw_np_job *j, struct tw_str *name, struct tw_err *err)
{
    static const char *const quiet[] = {"device_mesh", "remote_group", NULL};

    tw_np_skip(&j->arg, quiet);
    return tw_np_text(&j->arg, "class_type", name, err) < 0 ? -1 : 0;
}

/* The argument KEY, a list; one object is a list of one. */
static int rows_of(struct tw_np_job *j, const char *key, const struct tw_json **item, int64_t *n,
        struct tw_err *err)
{
    const struct tw_json *v = tw_np_arg(&j->arg, key);

    if (v && v->type == TW_JSTR)
        v = tw_json_parse(&j->arena, v->str, err);
    if (err->code)
        return -1;
    if (!v || (v->type != TW_JARR && v->type != TW_JOBJ))
        return tw_fail(err, NULL, 0, "%s: %s must be a list of objects", j->arg.what, key);
    *item = v->type == TW_JARR ? v->item : v;
    *n = v->type == TW_JARR ? v->n : 1;
    return 0;
}

/* ---- preprocessors ---- */

int tw_np_preprocessor_create(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str name;

    if (class_of(j, &name, err))
        return -1;
    j->obj->impl = tw_np_proc_new(name, &j->arg, err);
    return j->obj->impl ? 0 : -1;
}

int tw_np_preprocessor_call(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_np_proc *p = j->obj->impl;
    const struct tw_json *row;
    struct tw_buf b = {0};
    int64_t n;

    if (rows_of(j, "rows", &row, &n, err) || tw_np_end(&j->arg, err))
        return -1;
    tw_buf_putc(&j->out, '[');
    for (int64_t i = 0; i < n && !err->code; i++) {
        struct tw_err bad = {0};
        struct tw_jw w;

        tw_buf_clear(&b);
        tw_jw_init(&w, &b);
        if (row[i].type != TW_JOBJ)
            tw_fail(&bad, NULL, 0, "a row must be an object");
        else
            p->p.kind->run(&p->p, &row[i], &w, &bad);
        if (bad.code)
            tw_fail(err, NULL, 0, "row %lld: %s", (long long)i, bad.msg);
        if (i)
            tw_buf_putc(&j->out, ',');
        tw_buf_adds(&j->out, tw_buf_str(&b));
    }
    tw_buf_putc(&j->out, ']');
    tw_buf_free(&b);
    return err->code ? -1 : 0;
}

/* ---- rewards ---- */

int tw_np_reward_create(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str name;

    if (class_of(j, &name, err))
        return -1;
    j->obj->impl = tw_np_reward_new(name, &j->arg, err);
    return j->obj->impl ? 0 : -1;
}

static const struct tw_json *last_content(const struct tw_json *rec)
{
    const struct tw_json *m = tw_json_get(rec, "messages");

    return m && m->type == TW_JARR && m->n ? tw_json_get(&m->item[m->n - 1], "content") : NULL;
}

/* What stands beside a trajectory: the truth's user_data, else its last message, else a value. */
static const struct tw_json *with_truth(
        struct tw_arena *a, const struct tw_json *rec, const struct tw_json *truth)
{
    struct tw_json *r = tw_arena_dup(a, rec, sizeof *r), v;
    const struct tw_json *found = truth;
    const char *key = "ground_truth";

    if (truth->type == TW_JOBJ) {
        found = tw_json_get(truth, "user_data");
        key = found ? "user_data" : "solution";
        found = found ? found : last_content(truth);
    }
    if (!found)
        return rec;
    v = *found;
    v.key = tw_str(key);
    r->item = tw_arena_alloc(a, (size_t)(rec->n + 1) * sizeof *r->item);
    r->n = 0;
    for (int64_t i = 0; i < rec->n; i++)
        if (!tw_str_is(rec->item[i].key, key))
            r->item[r->n++] = rec->item[i];
    r->item[r->n++] = v;
    return r;
}

int tw_np_reward_call(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_json *rec, *truth = NULL;
    struct tw_arena a = {0};
    int64_t n, ntruth = 0;
    char why[160];
    struct tw_jw w;

    if (rows_of(j, "trajectories", &rec, &n, err) ||
            (tw_np_arg(&j->arg, "ground_truths") &&
                    rows_of(j, "ground_truths", &truth, &ntruth, err)) ||
            tw_np_end(&j->arg, err))
        return -1;
    if (truth && ntruth != n)
        return tw_fail(err, NULL, 0, "%lld ground_truths for %lld trajectories", (long long)ntruth,
                (long long)n);
    tw_jw_init(&w, &j->out);
    tw_jw_arr(&w);
    for (int64_t i = 0; i < n && !err->code; i++) {
        double x = NAN;

        tw_arena_reset(&a);
        if (rec[i].type != TW_JOBJ)
            tw_fail(err, NULL, 0, "trajectory %lld is no object", (long long)i);
        else if (tw_reward_fn_score(j->obj->impl,
                         truth ? with_truth(&a, &rec[i], &truth[i]) : &rec[i], &a, &x, why,
                         err) > 0)
            x = NAN;
        tw_jw_num(&w, x); /* null where it could not be told */
    }
    tw_jw_arr_end(&w);
    tw_arena_free(&a);
    return err->code ? -1 : 0;
}

/* ---- templates ---- */

int tw_np_template_create(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str name;

    if (class_of(j, &name, err))
        return -1;
    j->obj->impl = tw_np_tmpl_new(j, name, err);
    if (!j->obj->impl)
        return -1;
    return tw_np_end(&j->arg, err);
}

static int put_comma(void *arg, struct tw_str row, struct tw_err *err)
{
    struct tw_buf *out = arg;

    if (out->n && out->p[out->n - 1] == '}')
        tw_buf_putc(out, ',');
    tw_buf_adds(out, row);
    return 0;
}

static int encode_list(struct tw_np_job *j, bool one, struct tw_err *err)
{
    const struct tw_json *row;
    struct tw_arena a = {0};
    bool prompt = false;
    int64_t n;

    if (rows_of(j, one ? "trajectory" : "trajectories", &row, &n, err) ||
            tw_np_bool(&j->arg, "add_generation_prompt", &prompt, err) < 0 ||
            tw_np_end(&j->arg, err))
        return -1;
    if (one && n != 1)
        return tw_fail(err, NULL, 0, "encode takes one trajectory");
    if (!one)
        tw_buf_putc(&j->out, '[');
    for (int64_t i = 0; i < n && !err->code; i++) {
        struct tw_err bad = {0};

        tw_arena_reset(&a);
        if (tw_np_encode(j->obj->impl, prompt, &row[i], &a, put_comma, &j->out, &bad))
            tw_fail(err, NULL, 0, "trajectory %lld: %s", (long long)i, bad.msg);
    }
    if (!one)
        tw_buf_putc(&j->out, ']');
    tw_arena_free(&a);
    return err->code ? -1 : 0;
}

int tw_np_template_encode(struct tw_np_job *j, struct tw_err *err)
{
    return encode_list(j, true, err);
}

int tw_np_template_batch(struct tw_np_job *j, struct tw_err *err)
{
    return encode_list(j, false, err);
}

static int ids_of(const struct tw_json *v, struct tw_arena *a, int32_t **ids, int64_t vocab,
        struct tw_err *err)
{
    if (v->type != TW_JARR)
        return tw_fail(err, NULL, 0, "token_ids must be a list of token ids");
    *ids = tw_arena_alloc(a, (size_t)v->n * sizeof **ids + 1);
    for (int64_t i = 0; i < v->n; i++) {
        if (!v->item[i].is_int || v->item[i].i < 0 || v->item[i].i >= vocab)
            return tw_fail(err, NULL, 0, "token_ids: number %lld is no token id", (long long)i);
        (*ids)[i] = (int32_t)v->item[i].i;
    }
    return 0;
}

int tw_np_template_decode(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_np_tmpl *t = j->obj->impl;
    const struct tw_tok *tok = tw_chat_tok(t->chat);
    const struct tw_json *v = NULL;
    struct tw_buf text = {0};
    bool skip = false;
    int32_t *ids = NULL;

    if (tw_np_list(&j->arg, "token_ids", &v, err) < 0 ||
            tw_np_bool(&j->arg, "skip_special_tokens", &skip, err) < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (!v || !tok)
        return tw_fail(
                err, NULL, 0, v ? "the model has no tokenizer" : "decode: token_ids is missing");
    if (ids_of(v, &j->arena, &ids, tw_tok_size(tok), err))
        return -1;
    tw_tok_decode(tok, ids, v->n, skip, &text);
    tw_json_quote(&j->out, tw_buf_str(&text));
    tw_buf_free(&text);
    return 0;
}
