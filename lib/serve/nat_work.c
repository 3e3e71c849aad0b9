/* nat_work.c - Twinkle's native verbs on the engine thread: micro-batches counted, gradients divided, clipped
 * and stepped, schedulers moved on, and what of that checkpoints hold */
#include "base/io.h"
#include "serve/worker_priv.h"
#include <math.h>
#include <stdlib.h>

#define DICT_MOST (4 << 20)             /* weights that get_state_dict sends */

void tw_nat_sample(const struct tw_work *w, int64_t i, struct tw_engine_sample *s)
{
    const struct tw_nat_fb *f = w->fb.nat;
    const struct tw_nat_datum *d = &f->d[i];

    s->scale = d->scale;
    s->nll_scale = d->nll_scale;
    s->ref = d->ref;
    s->label = d->label;
    s->tied = w->fb.loss.pairs && i % 2;
    s->all = false;
}

/* Rows as long as the longest, as a client that makes a tensor of them needs it. */
static void put_logps(struct tw_jw *j, const struct tw_fb_args *f, float *const *logp)
{
    int64_t most = 0;

    for (int64_t i = 0; i < f->n; i++)
        most = f->d[i].n > most ? f->d[i].n : most;
    tw_jw_arr(j);
    for (int64_t i = 0; i < f->n; i++) {
        tw_jw_arr(j);
        for (int64_t t = 0; t < most; t++)
            tw_jw_f32(j, t < f->d[i].n ? logp[i][t] : 0);
        tw_jw_arr_end(j);
    }
    tw_jw_arr_end(j);
}

static int64_t supervised(const struct tw_fb_args *f)
{
    int64_t n = 0;

    for (int64_t i = 0; i < f->n; i++)
        for (int64_t t = 0; t < f->d[i].n; t++)
            n += f->d[i].weight[t] != 0;
    return n;
}

static void put_output(struct tw_work *w, float *const *logp, double sum, int64_t tokens)
{
    const struct tw_nat_fb *f = w->fb.nat;
    struct tw_jw j;

    tw_jw_init(&j, &w->result.json);
    tw_jw_obj(&j);
    tw_jw_key(&j, "result");
    if (!strcmp(f->result, "value")) {
        tw_jw_num(&j, sum);
        tw_jw_obj_end(&j);
        return;
    }
    tw_jw_obj(&j);
    tw_jw_key(&j, "logits");
    tw_jw_null(&j);
    if (f->embed) {
        tw_nat_embed_put(&j, w);
    } else {
        tw_jw_key(&j, "logps");
        put_logps(&j, &w->fb, logp);
    }
    if (f->loss) {
        tw_jw_key(&j, "loss");
        tw_jw_num(&j, sum);
    }
    tw_jw_key(&j, "num_tokens");
    tw_jw_int(&j, f->mean ? 0 : tokens);
    tw_jw_obj_end(&j);
    tw_jw_obj_end(&j);
}

void tw_nat_fb_done(struct tw_pupil *p, struct tw_work *w, float *const *logp, double sum)
{
    const struct tw_nat_fb *f = w->fb.nat;
    struct tw_nat_state *n = &p->nat;
    int64_t tokens = supervised(&w->fb);

    tokens = tokens ? tokens : 1;
    if (f->every)
        n->every = f->every;
    if (f->backward) {
        n->steps++;
        n->count += f->mean ? 1 : (double)tokens;
    }
    if (f->loss) {
        struct tw_nat_sums *m = &n->sum[f->eval];

        m->loss += sum;
        m->tokens += f->mean ? 0 : (double)tokens;
        m->calls++;
    }
    if (f->policy && f->embed)
        tw_nat_embed_sums(&n->sim[f->eval], &f->embed->sums);
    else if (f->policy)
        tw_nat_sums_add(&n->sum[f->eval], w, logp);
    if (!strcmp(f->result, "null"))
        tw_buf_puts(&w->result.json, "null");
    else
        put_output(w, logp, sum, tokens);
}

/* Whether an update is due: after each so many backwards. */
static bool due(const struct tw_nat_state *n)
{
    return n->every <= 1 || (n->steps > 0 && n->steps % n->every == 0);
}

static int reopen(struct tw_worker *k, struct tw_pupil *p, const char *optim, struct tw_err *err)
{
    struct tw_optim *old = p->optim;
    char was[sizeof p->nat.optim];

    memcpy(was, p->nat.optim, sizeof was);
    snprintf(p->nat.optim, sizeof p->nat.optim, "%s", optim);
    if (tw_pupil_optim(k, p, err)) {
        memcpy(p->nat.optim, was, sizeof was);
        p->optim = old;
        return -1;
    }
    tw_optim_close(old);
    p->updates = 0;
    return 0;
}

int tw_nat_tinker(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    return *p->nat.optim && strncmp(p->nat.optim, "adamw", 5) ? reopen(k, p, "", err) : 0;
}

/* What was set since the last step counts from now: another optimiser begins without moments, another
 * scheduler at its first step. */
static int catch_up(struct tw_worker *k, struct tw_pupil *p, const struct tw_nat_step *s, struct tw_err *err)
{
    struct tw_nat_state *n = &p->nat;

    if (s->every)
        n->every = s->every;
    if (s->optim_n != n->optim_n) {
        if (reopen(k, p, s->optim, err))
            return -1;
        n->optim_n = s->optim_n;
    }
    if (s->sched_n != n->sched_n)
        n->sched = 0;
    n->sched_n = s->sched_n;
    return 0;
}

/* The gradient over what was counted, cut to the norm MOST; its norm before the cut. On the host, which
 * clients that call this apart from the step can wait for. */
static int clip(struct tw_worker *k, struct tw_pupil *p, double most, struct tw_err *err)
{
    const struct tw_ops *ops = tw_ops(k->dev);
    const struct tw_params *all = tw_pupil_params(p);
    double by = p->nat.count > 0 ? p->nat.count : 1, sum = 0;
    size_t n = 0;
    float *g;

    for (int64_t i = 0; i < all->n; i++)
        n = (size_t)all->p[i].n > n ? (size_t)all->p[i].n : n;
    g = tw_xcalloc(n + 1, sizeof *g);
    tw_params_join(k->dev, all);
    for (int pass = 0; pass < 2; pass++) {
        double norm = sqrt(sum) / by, scale = (most > 0 && norm > most ? most / norm : 1) / by;

        if (pass && !isfinite(sum))
            break;
        for (int64_t i = 0; i < all->n; i++) {
            size_t bytes = (size_t)all->p[i].n * sizeof *g;

            ops->get(k->dev, g, all->p[i].g, bytes);
            for (int64_t t = 0; t < all->p[i].n; t++)
                if (pass)
                    g[t] = (float)((double)g[t] * scale);
                else
                    sum += (double)g[t] * (double)g[t];
            if (pass)
                ops->put(k->dev, all->p[i].g, g, bytes);
        }
    }
    free(g);
    if (!isfinite(sum))
        return tw_fail(err, NULL, 0, "the gradient is not finite; zero_grad drops it");
    p->nat.norm = sqrt(sum) / by;
    p->nat.count = 0;
    return 0;
}

/* The update that step S asks for, of the gradient that waits. */
static int prepare(struct tw_pupil *p, const struct tw_nat_step *s, struct tw_optim_job *j, struct tw_err *err)
{
    struct tw_optim_opts o = { .decay = s->decay };
    bool clips = s->op == TW_NAT_CLIP_STEP;

    if (tw_optim_parse(&o, "set_optimizer", s->optim, err))
        return -1;
    tw_optim_set(p->optim, &o);
    tw_optim_divide(p->optim, clips && p->nat.count > 0 ? p->nat.count : 1);
    *j = (struct tw_optim_job){ .o = p->optim, .lr = tw_nat_lr(&s->sched, s->lr, p->nat.sched),
        .clip = clips ? s->max_norm : 0 };
    return 0;
}

static void count_step(struct tw_pupil *p, struct tw_work *w)
{
    enum tw_nat_op op = w->optim.nat->op;

    p->nat.sched += op == TW_NAT_LR || op == TW_NAT_CLIP_STEP;
    w->result.loss = p->nat.norm;
}

int tw_nat_end(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, const struct tw_optim_report *r,
        struct tw_err *err)
{
    p->pending = 0;
    p->nat.count = 0;
    if (r->skipped)
        return tw_fail(err, NULL, 0, "the gradient is not finite%s%s: it was dropped and the weights "
                "are what they were", r->bad ? " in " : "", r->bad ? r->bad : "");
    p->updates = tw_optim_updates(p->optim);
    p->version++;
    k->stat.steps++;
    if (w->optim.nat->op == TW_NAT_CLIP_STEP)
        p->nat.norm = r->norm;
    count_step(p, w);
    return 0;
}

static void zero(struct tw_worker *k, struct tw_pupil *p)
{
    if (p->pending)
        tw_params_zero(k->dev, tw_pupil_params(p));
    p->pending = 0;
    p->nat.count = 0;
}

/* The adapter's weights by their names in files, as lists of rows. */
static int put_weights(struct tw_worker *k, struct tw_pupil *p, struct tw_buf *out, struct tw_err *err)
{
    const struct tw_params *all = tw_pupil_params(p);
    struct tw_jw j;

    if (p->own || all->elems > DICT_MOST)
        return tw_fail(err, NULL, 0, "%lld weights are too many for a reply: save gives them as a file",
                (long long)all->elems);
    tw_jw_init(&j, out);
    tw_jw_obj(&j);
    tw_jw_key(&j, "result");
    tw_jw_obj(&j);
    for (int64_t i = 0; i < all->n; i++) {
        const struct tw_param *q = &all->p[i];
        float *x = tw_xcalloc((size_t)q->n + 1, sizeof *x);

        tw_ops(k->dev)->get(k->dev, x, q->w.data, (size_t)q->n * sizeof *x);
        tw_jw_key(&j, q->name);
        tw_jw_arr(&j);
        for (int64_t r = 0; r < q->w.rows * (q->w.n ? q->w.n : 1); r++) {
            tw_jw_arr(&j);
            for (int64_t c = 0; c < q->w.cols; c++)
                tw_jw_f32(&j, x[r * q->w.cols + c]);
            tw_jw_arr_end(&j);
        }
        tw_jw_arr_end(&j);
        free(x);
    }
    tw_jw_obj_end(&j);
    tw_jw_obj_end(&j);
    return 0;
}

int tw_nat_begin(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, struct tw_optim_job *j,
        struct tw_err *err)
{
    const struct tw_nat_step *s = w->optim.nat;
    struct tw_nat_state *n = &p->nat;
    struct tw_buf *out = &w->result.json;
    bool now;

    if (catch_up(k, p, s, err))
        return -1;
    now = due(n);
    if (s->op == TW_NAT_METRIC) {
        tw_nat_metrics(n, s, out);
        return 0;
    }
    if (s->op == TW_NAT_DICT)
        return put_weights(k, p, out, err);
    if (s->op == TW_NAT_CLIP && now) {
        if (p->pending ? clip(k, p, s->max_norm, err) : (n->norm = 0, 0))
            return -1;
        tw_buf_puts(out, "{\"result\": \"");
        tw_json_number(out, n->norm);
        tw_buf_puts(out, "\"}");
        return 0;
    }
    if (s->op == TW_NAT_CLIP) {
        tw_buf_puts(out, "{\"result\": \"None\"}");
        return 0;
    }
    tw_buf_puts(out, "null");
    if (!now)
        return 0;
    if ((s->op == TW_NAT_CLIP_STEP || s->op == TW_NAT_STEP) && p->pending)
        return prepare(p, s, j, err) ? -1 : 1;
    if (s->op == TW_NAT_ZERO)
        zero(k, p);
    count_step(p, w);
    return 0;
}

int tw_nat_save(const struct tw_pupil *p, const struct tw_nat_ckpt *c, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer_state.json");
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "checkpoint_version");
    tw_jw_int(&w, 1);
    tw_jw_key(&w, "cur_step");
    tw_jw_int(&w, p->nat.steps);
    tw_jw_key(&w, "gradient_accumulation_steps");
    tw_jw_int(&w, p->nat.every > 1 ? p->nat.every : 1);
    tw_jw_key(&w, "consumed_train_samples");
    tw_jw_int(&w, c->consumed);
    tw_jw_key(&w, "scheduler_step");
    tw_jw_int(&w, p->nat.sched);
    tw_jw_key(&w, "optimizer");
    tw_jw_cstr(&w, p->nat.optim);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

int tw_nat_write(const struct tw_pupil *p, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer/native");
    int ret = tw_write_file(path, &p->nat, sizeof p->nat, err);

    free(path);
    return ret;
}

int tw_nat_read(struct tw_pupil *p, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer/native");
    struct tw_map m;
    int ret = 0;

    if (tw_is_file(path) && !(ret = tw_map_open(&m, path, err))) {
        if (m.n > sizeof p->nat)
            ret = tw_fail(err, path, 0, "a newer server wrote this");
        else
            memcpy(&p->nat, m.p, m.n);
        p->nat.optim[sizeof p->nat.optim - 1] = 0;
        tw_map_close(&m);
    }
    free(path);
    return ret;
}

/* {"result": {..}} of resume_from_checkpoint, or null of load. */
static void put_progress(const struct tw_nat_state *n, bool resume, struct tw_buf *b)
{
    if (!resume)
        tw_buf_puts(b, "null");
    else
        tw_buf_printf(b, "{\"result\": {\"cur_step\": %lld, \"consumed_train_samples\": %lld, "
                "\"gradient_accumulation_steps\": %lld}}", (long long)n->steps, (long long)n->consumed,
                (long long)(n->every > 1 ? n->every : 1));
}

int tw_nat_load(struct tw_pupil *p, const struct tw_nat_ckpt *c, const char *dir, struct tw_buf *json,
        struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer_state.json");
    struct tw_nat_state n = p->nat;
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_is_file(path) ? tw_json_file(&a, path, 1 << 20, err) : NULL;
    int ret = 0;

    n.consumed = 0;
    if (j && (tw_json_get_int(j, "cur_step", &n.steps, err) < 0 ||
            tw_json_get_int(j, "gradient_accumulation_steps", &n.every, err) < 0 ||
            tw_json_get_int(j, "consumed_train_samples", &n.consumed, err) < 0 ||
            tw_json_get_int(j, "scheduler_step", &n.sched, err) < 0))
        ret = -1;
    if (!j && tw_is_file(path))
        ret = -1;
    if (!j && !ret)                         /* one of the Tinker API's */
        n.steps = p->updates;
    tw_arena_free(&a);
    free(path);
    if (ret)
        return -1;
    if (c->counts) {
        n.sched_n = c->sched_n;
        p->nat = n;
    }
    put_progress(&n, c->resume, json);
    return 0;
}
