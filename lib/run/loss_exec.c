/* loss_exec.c - the protocol of --loss-exec */
#include "run/loss_exec.h"
#include "base/log.h"
#include "run/coproc.h"
#include <inttypes.h>
#include <stdlib.h>

#define OPTION "--loss-exec"

struct tw_loss_exec {
    struct tw_coproc proc;
    double timeout;
    struct tw_buf line;
};

struct tw_loss_exec *tw_loss_exec_open(const char *cmd, double timeout, struct tw_err *err)
{
    struct tw_loss_exec *x = tw_xcalloc(1, sizeof *x);

    x->timeout = timeout;
    if (!tw_coproc_start(&x->proc, OPTION, cmd, 0, err))
        return x;
    free(x);
    return NULL;
}

void tw_loss_exec_close(struct tw_loss_exec *x)
{
    enum tw_answer how = TW_ANSWER_GONE;
    int status = 0;
    char text[32];

    if (!x)
        return;
    if (x->proc.pid) {
        how = tw_coproc_finish(&x->proc, 2);
        status = tw_coproc_stop(&x->proc, how == TW_ANSWER_LATE);
    }
    if (how == TW_ANSWER_MORE)
        tw_notice(OPTION ": \"%s\" said more than it was asked", x->proc.cmd);
    if (status)
        tw_notice(OPTION ": \"%s\" ended with %s", x->proc.cmd, tw_coproc_status(status, text));
    tw_buf_free(&x->line);
    free(x);
}

static bool trained(const struct tw_engine_sample *s, int64_t i)
{
    return i && s->weight[i] != 0;
}

/* The entries of V that belong to trained tokens. */
static void put_floats(struct tw_jw *w, const char *key, const struct tw_engine_sample *s, const float *v)
{
    tw_jw_key(w, key);
    tw_jw_arr(w);
    for (int64_t i = 0; i < s->n; i++)
        if (trained(s, i))
            tw_jw_num(w, (double)v[i]);   /* the very number, not the shortest float */
    tw_jw_arr_end(w);
}

static void put_tokens(struct tw_jw *w, const struct tw_engine_sample *s)
{
    tw_jw_key(w, "positions");
    tw_jw_arr(w);
    for (int64_t i = 0; i < s->n; i++)
        if (trained(s, i))
            tw_jw_int(w, i);
    tw_jw_arr_end(w);
    tw_jw_key(w, "tokens");
    tw_jw_arr(w);
    for (int64_t i = 0; i < s->n; i++)
        tw_jw_int(w, s->token[i]);
    tw_jw_arr_end(w);
}

static void put_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

static void put_sequence(struct tw_jw *w, const struct tw_loss_call *c, int64_t i)
{
    const struct tw_engine_sample *s = &c->s[i];

    tw_jw_obj(w);
    tw_jw_key(w, "id");
    tw_jw_int(w, c->id[i]);
    if (c->loss->pairs) {
        tw_jw_key(w, "side");
        tw_jw_cstr(w, s->tied ? "rejected" : "chosen");
    }
    put_tokens(w, s);
    put_floats(w, "logprobs", s, s->logp);
    put_floats(w, "weights", s, s->weight);
    if (s->old)
        put_floats(w, "old_logprobs", s, s->old);
    if (s->ref)
        put_floats(w, "ref_logprobs", s, s->ref);
    if (c->loss->policy)
        put_num(w, "advantage", s->adv);
    if (c->loss->label) {
        tw_jw_key(w, "label");
        tw_jw_bool(w, s->label);
    }
    tw_jw_key(w, "temperature");
    tw_jw_f32(w, s->temp);
    put_num(w, "scale", s->scale);
    if (c->loss->pairs)
        put_num(w, "nll_scale", s->nll_scale);
    tw_jw_obj_end(w);
}

static struct tw_str question(struct tw_loss_exec *x, const struct tw_loss_call *c)
{
    struct tw_jw w;

    tw_buf_clear(&x->line);
    tw_jw_init(&w, &x->line);
    tw_jw_obj(&w);
    tw_jw_key(&w, "step");
    tw_jw_int(&w, c->step);
    tw_jw_key(&w, "loss");
    tw_jw_cstr(&w, c->loss->name);
    tw_jw_key(&w, "supervised");
    tw_jw_int(&w, c->supervised);
    tw_jw_key(&w, "sequences");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < c->n; i++)
        put_sequence(&w, c, i);
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(&x->line, '\n');
    return tw_buf_str(&x->line);
}

static int bad(const struct tw_loss_exec *x, const struct tw_loss_call *c, const char *what,
        struct tw_err *err)
{
    return tw_fail(err, OPTION, 0, "\"%s\" answered step %" PRId64 " with %s", x->proc.cmd, c->step, what);
}

/* A number or null, which is NaN. */
static int number(const struct tw_json *j, double *v)
{
    if (j->type == TW_JNULL) {
        *v = NAN;
        return 0;
    }
    *v = j->d;
    return j->type == TW_JNUM && isfinite(j->d) ? 0 : -1;
}

/* The numbers of sequence I, one for each trained token. */
static int take_row(const struct tw_loss_exec *x, struct tw_loss_call *c, const struct tw_json *row,
        int64_t i, struct tw_arena *a, struct tw_err *err)
{
    const struct tw_engine_sample *s = &c->s[i];
    int64_t want = 0, k = 0;
    char what[160];

    for (int64_t t = 0; t < s->n; t++)
        want += trained(s, t);
    if (row->type != TW_JARR || row->n != want) {
        snprintf(what, sizeof what, "dlogp[%" PRId64 "] that is not a list of %" PRId64 " numbers, one a "
                "trained token", i, want);
        return bad(x, c, what, err);
    }
    c->dlogp[i] = tw_arena_alloc(a, (size_t)s->n * sizeof **c->dlogp);
    for (int64_t t = 0; t < s->n; t++) {
        double v = 0;

        if (trained(s, t) && number(&row->item[k++], &v)) {
            snprintf(what, sizeof what, "dlogp[%" PRId64 "][%" PRId64 "] that is neither a finite number "
                    "nor null", i, k - 1);
            return bad(x, c, what, err);
        }
        c->dlogp[i][t] = (float)v;
    }
    return 0;
}

static int take_metrics(const struct tw_loss_exec *x, struct tw_loss_call *c, const struct tw_json *m,
        struct tw_err *err)
{
    double v;

    if (m->type != TW_JOBJ)
        return bad(x, c, "\"metrics\" that are not an object", err);
    for (int64_t i = 0; i < m->n; i++)
        if (number(&m->item[i], &v))
            return bad(x, c, "\"metrics\" that are not all numbers", err);
    c->metrics = m;
    return 0;
}

static int answer(const struct tw_loss_exec *x, struct tw_loss_call *c, struct tw_str line,
        struct tw_arena *a, struct tw_err *err)
{
    struct tw_err why = { 0 };
    struct tw_json *j = tw_json_parse(a, tw_arena_str(a, line), &why);
    const struct tw_json *rows = NULL;
    bool value = false;
    char what[1700];

    if (!j || j->type != TW_JOBJ) {
        snprintf(what, sizeof what, "what is no JSON object%s%s: %.*s", j ? "" : ": ", j ? "" : why.msg,
                (int)(line.n < 60 ? line.n : 60), line.p);
        tw_err_clear(&why);
        return bad(x, c, what, err);
    }
    for (int64_t i = 0; i < j->n; i++) {
        const struct tw_json *v = &j->item[i];

        if (tw_str_is(v->key, "loss") && !number(v, &c->value)) {
            value = true;
        } else if (tw_str_is(v->key, "dlogp") && v->type == TW_JARR) {
            rows = v;
        } else if (tw_str_is(v->key, "metrics")) {
            if (take_metrics(x, c, v, err))
                return -1;
        } else {
            snprintf(what, sizeof what, "a \"%.*s\" that means nothing (loss: a number or null, dlogp: "
                    "lists, metrics: an object)", (int)(v->key.n < 60 ? v->key.n : 60), v->key.p);
            return bad(x, c, what, err);
        }
    }
    if (!value || !rows)
        return bad(x, c, value ? "no \"dlogp\"" : "no \"loss\"", err);
    if (rows->n != c->n) {
        snprintf(what, sizeof what, "%" PRId64 " lists in dlogp, for %" PRId64 " sequences", rows->n, c->n);
        return bad(x, c, what, err);
    }
    c->dlogp = tw_arena_alloc(a, (size_t)c->n * sizeof *c->dlogp);
    for (int64_t i = 0; i < c->n; i++)
        if (take_row(x, c, &rows->item[i], i, a, err))
            return -1;
    return 0;
}

/* It gave no answer: what became of it. */
static int lost(struct tw_loss_exec *x, const struct tw_loss_call *c, enum tw_answer how,
        struct tw_err *err)
{
    const char *cmd = x->proc.cmd;
    char text[32];

    if (how == TW_ANSWER_MORE || how == TW_ANSWER_LONG) {
        tw_coproc_stop(&x->proc, true);
        return how == TW_ANSWER_LONG ? bad(x, c, "a line that is far too long", err) :
                tw_fail(err, OPTION, 0, "\"%s\" answered step %" PRId64 " with more than one line", cmd,
                c->step - 1);
    }
    if (how == TW_ANSWER_LATE) {
        tw_coproc_stop(&x->proc, true);
        return tw_fail(err, OPTION, 0, "\"%s\" gave no answer to step %" PRId64 " in %g s: does it flush "
                "each line? (--loss-timeout)", cmd, c->step, x->timeout);
    }
    tw_coproc_status(tw_coproc_stop(&x->proc, false), text);
    return tw_fail(err, OPTION, 0, "\"%s\" ended with %s before it answered step %" PRId64, cmd, text,
            c->step);
}

int tw_loss_exec_call(struct tw_loss_exec *x, struct tw_loss_call *c, struct tw_arena *a,
        struct tw_err *err)
{
    size_t max = ((size_t)c->supervised + (size_t)c->n) * 64 + (1 << 20);
    struct tw_str line;
    enum tw_answer how;

    if ((how = tw_coproc_ask(&x->proc, question(x, c), max, x->timeout, &line)) != TW_ANSWERED)
        return lost(x, c, how, err);
    return answer(x, c, line, a, err);
}
