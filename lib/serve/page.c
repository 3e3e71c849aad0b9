/* page.c - the page at /: files of share/www, what it shows, and the curves of runs. The server notes a
 * run's loss and gradient's norm at each step; clients may add values of their own, such as a reward. */
#include "records.h"
#include "base/io.h"
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_RUNS 200
#define MOST_POINTS 400                 /* of a curve; longer ones are thinned out */
#define MOST_NAMES 16                   /* values that one request may add */

static void send_file(struct tw_req *r, const char *name, const char *type)
{
    const char *share = tw_share_dir();
    char *path = share ? tw_arena_printf(&r->arena, "%s/www/%s", share, name) : NULL;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat st;

    if (fd < 0 || fstat(fd, &st)) {
        if (fd >= 0)
            close(fd);
        tw_reply_error(r, 404, "share/www/%s is not installed", name);
        return;
    }
    tw_reply_header(r, "Cache-Control", "no-cache");
    tw_reply_header(r, "Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'");
    tw_reply_header(r, "X-Content-Type-Options", "nosniff");
    tw_reply_header(r, "Referrer-Policy", "no-referrer");
    tw_reply_file(r, type, fd, (uint64_t)st.st_size);
}

static void index_html(struct tw_srv *s, struct tw_req *r)
{
    (void)s;
    send_file(r, "index.html", "text/html; charset=utf-8");
}

static void app_js(struct tw_srv *s, struct tw_req *r)
{
    (void)s;
    send_file(r, "app.js", "text/javascript; charset=utf-8");
}

static void style_css(struct tw_srv *s, struct tw_req *r)
{
    (void)s;
    send_file(r, "style.css", "text/css; charset=utf-8");
}

static void add_point(struct tw_op *o, const char *run, const char *name, int64_t step, double t, double v)
{
    tw_op_add(o, "INSERT OR REPLACE INTO point (run, name, step, time, value) VALUES (?, ?, ?, ?, ?)", "ttidd",
            run, name, step, t, v);
}

/* What divides the sum of a forward_backward, so that clients that scale their weights see the mean of a
 * token: the weights, or how many tokens have an advantage; 1 where the sum is a mean already. */
static double weight_of(const struct tw_fb_args *f)
{
    double sum = 0;

    if (f->nat && f->nat->mean)
        return 1;
    for (int64_t i = 0; i < f->n; i++) {
        const struct tw_datum_in *d = &f->d[i];

        for (int64_t k = 0; k < d->n * d->k; k++)
            sum += d->weight ? fabs((double)d->weight[k]) : d->adv ? d->adv[k / d->k] != 0 : 1;
    }
    return sum;
}

void tw_curve_note(struct tw_srv *s, struct tw_trun *run, const struct tw_work *w)
{
    struct tw_op *o;
    double t = tw_wall();

    if (w->result.category)
        return;
    if (w->verb == TW_FORWARD_BACKWARD && !w->fb.forward_only) {
        run->curve_loss += w->result.loss;
        run->curve_weight += weight_of(&w->fb);
    }
    if (w->verb != TW_OPTIM_STEP || (w->optim.nat && w->result.version == run->curve_step))
        return;                         /* the native API has steps that update nothing */
    o = tw_op_new(NULL, s);
    run->curve_step = w->result.version;
    run->last_loss = run->curve_weight > 0 ? run->curve_loss / run->curve_weight : NAN;
    if (w->optim.told)
        run->last_loss = w->optim.loss;
    if (isfinite(run->last_loss))
        add_point(o, run->id, "loss", w->result.version, t, run->last_loss);
    if (isfinite(w->result.loss))
        add_point(o, run->id, "grad_norm", w->result.version, t, w->result.loss);
    run->curve_loss = run->curve_weight = 0;
    tw_store_submit(s->store, o);
}

static int last_row(void *arg, const struct tw_row *row)
{
    struct tw_srv *s = arg;
    struct tw_trun *run = tw_map_get(&s->runs, tw_col_str(row, 0));

    if (run) {
        run->curve_step = tw_col_int(row, 1);
        run->last_loss = tw_col_num(row, 2);
    }
    return 0;
}

int tw_curve_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store, "SELECT run, max(step), value FROM point WHERE name = 'loss' GROUP BY run",
            last_row, s, err, "");
}

static void key_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

static void key_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

static void key_text(struct tw_jw *w, const char *key, const char *v)
{
    tw_jw_key(w, key);
    if (v)
        tw_jw_cstr(w, v);
    else
        tw_jw_null(w);
}

static void put_server(struct tw_srv *s, struct tw_jw *w)
{
    const struct tw_model_info *m = tw_worker_info(s->worker);
    struct tw_worker_stat t;

    tw_worker_stat(s->worker, &t);
    tw_jw_key(w, "server");
    tw_jw_obj(w);
    key_text(w, "model", s->name[0]);
    key_text(w, "family", m->family);
    key_int(w, "parameters", m->params);
    key_int(w, "window", s->window);
    key_num(w, "uptime", tw_wall() - s->started);
    key_int(w, "connections", tw_httpd_connections(s->http));
    key_int(w, "parked", tw_httpd_parked(s->http));
    key_int(w, "queued", t.queued);
    key_int(w, "running", t.running);
    key_int(w, "models", t.models);
    key_int(w, "resident", t.resident);
    key_int(w, "swapped", t.swapped);
    key_int(w, "snapshots", t.snapshots);
    key_int(w, "memory", (int64_t)t.memory);
    key_int(w, "tokens_trained", t.tokens_trained);
    key_int(w, "tokens_read", t.tokens_prompt);
    key_int(w, "tokens_sampled", t.tokens_sampled);
    key_int(w, "steps", t.steps);
    key_num(w, "busy_train", t.busy_train);
    key_num(w, "busy_sample", t.busy_sample);
    tw_jw_obj_end(w);
}

/* Everybody sees itself; who has the right of an administrator, by a keys file, sees all. */
static bool sees(const struct tw_srv *s, const struct tw_req *r, const struct tw_tenant *t)
{
    return t == r->tenant || (s->o->keys && r->rights & TW_RIGHT_ADMIN);
}

static void put_tenants(struct tw_srv *s, struct tw_req *r, struct tw_jw *w)
{
    struct tw_tenant *t;

    tw_jw_key(w, "tenants");
    tw_jw_arr(w);
    for (size_t i = 0; (t = tw_map_next(tw_keys_tenants(s->keys), &i));) {
        if (!sees(s, r, t))
            continue;
        tw_jw_obj(w);
        key_text(w, "name", t->name);
        key_int(w, "adapters", t->nadapters);
        key_int(w, "unfinished", t->unfinished);
        key_int(w, "disk", t->disk_used);
        key_int(w, "tokens", t->tokens_total);
        key_int(w, "requests", t->requests_total);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
}

static void put_runs(struct tw_srv *s, struct tw_req *r, struct tw_jw *w)
{
    int64_t n = 0;

    tw_jw_key(w, "runs");
    tw_jw_arr(w);
    for (int64_t i = s->run.n; i-- && n < MOST_RUNS;) {
        const struct tw_trun *t = s->run.v[i];

        if (!sees(s, r, t->tenant) || !strcmp(t->state, "copy"))
            continue;
        n++;
        tw_jw_obj(w);
        key_text(w, "id", t->id);
        key_text(w, "tenant", t->tenant->name);
        key_text(w, "name", t->sess ? t->sess->display_name : NULL);
        key_text(w, "state", t->state);
        key_int(w, "rank", t->rank);
        key_num(w, "created", t->created);
        key_num(w, "used", t->used);
        key_int(w, "step", t->curve_step);
        tw_jw_key(w, "loss");
        tw_jw_num(w, t->curve_step ? t->last_loss : NAN);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
}

static void overview(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_server(s, &w);
    put_tenants(s, r, &w);
    put_runs(s, r, &w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static struct tw_trun *seen_run(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *t = tw_map_get(&s->runs, r->seg[3]);

    if (t && sees(s, r, t->tenant))
        return t;
    tw_reply_error(r, 404, "no such run");
    return NULL;
}

struct curves {
    struct tw_jw w;
    char name[68];
    bool open;
};

static int put_point(void *arg, const struct tw_row *row)
{
    struct curves *c = arg;
    struct tw_str name = tw_col_str(row, 0);

    if (!c->open || !tw_str_is(name, c->name)) {
        if (c->open)
            tw_jw_arr_end(&c->w);
        snprintf(c->name, sizeof c->name, "%.*s", (int)name.n, name.p);
        tw_jw_key(&c->w, c->name);
        tw_jw_arr(&c->w);
        c->open = true;
    }
    tw_jw_arr(&c->w);
    tw_jw_int(&c->w, tw_col_int(row, 1));
    tw_jw_num(&c->w, tw_col_num(row, 2));
    tw_jw_num(&c->w, tw_col_num(row, 3));
    tw_jw_arr_end(&c->w);
    return 0;
}

/* {NAME: [[step, value, time], ..], ..} */
static void get_points(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *t = seen_run(s, r);
    struct tw_buf b = { 0 };
    struct curves c = { 0 };
    struct tw_err err = { 0 };

    if (!t)
        return;
    tw_jw_init(&c.w, &b);
    tw_jw_obj(&c.w);
    if (tw_store_read(s->store,
                "SELECT name, step, value, time FROM (SELECT name, step, value, time,"
                " row_number() OVER (PARTITION BY name ORDER BY step) AS k,"
                " count(*) OVER (PARTITION BY name) AS n"
                " FROM point WHERE run = ?) WHERE k % (1 + n / ?) = 0 OR k = n ORDER BY name, step",
                put_point, &c, &err, "ti", t->id, (int64_t)MOST_POINTS)) {
        tw_buf_free(&b);
        tw_reply_error(r, 503, "the curves could not be read");
        return;
    }
    if (c.open)
        tw_jw_arr_end(&c.w);
    tw_jw_obj_end(&c.w);
    tw_reply_json(r, 200, &b);
}

/* {"step": N, "values": {"reward": X, ..}} */
static void post_points(struct tw_srv *s, struct tw_req *r)
{
    struct tw_trun *t = seen_run(s, r);
    const struct tw_json *j = t ? tw_req_json(r) : NULL, *v = j ? tw_json_get(j, "values") : NULL;
    int64_t step = 0;
    struct tw_op *o;

    if (!j)
        return;
    if (t->tenant != r->tenant) {
        tw_reply_error(r, 403, "the run is another tenant's");
        return;
    }
    if (tw_json_get_int(j, "step", &step, NULL) <= 0 || step < 0 || !v || v->type != TW_JOBJ || !v->n ||
            v->n > MOST_NAMES) {
        tw_reply_error(r, 400, "step must be an integer of at least 0, values an object of 1 to %d numbers",
                MOST_NAMES);
        return;
    }
    for (int64_t i = 0; i < v->n; i++)
        if (v->item[i].type != TW_JNUM || !tw_id_ok(v->item[i].key) || v->item[i].key.n > 64) {
            tw_reply_error(r, 400, "values: names have 1 to 64 of a-z A-Z 0-9 . _ - : @, values are numbers");
            return;
        }
    o = tw_op_new(NULL, s);
    for (int64_t i = 0; i < v->n; i++)
        add_point(o, t->id, tw_arena_str(&o->arena, v->item[i].key).p, step, tw_wall(), v->item[i].d);
    tw_store_submit(s->store, o);
    tw_reply(r, 204, NULL, NULL, 0);
}

const struct tw_endpoint tw_routes_page[] = {
    { "GET", "", TW_RIGHT_ANY, index_html },
    { "GET", "app.js", TW_RIGHT_ANY, app_js },
    { "GET", "style.css", TW_RIGHT_ANY, style_css },
    { "GET", "api/v1/overview", TW_RIGHT_ANY, overview },
    { "GET", "api/v1/runs/*/points", TW_RIGHT_ANY, get_points },
    { "POST", "api/v1/runs/*/points", TW_RIGHT_TRAIN, post_points },
    { 0 }
};
