/* replay.c - after a start: what the journal holds goes to the engine again. Models come from their
 * snapshots, then from what was accepted after those; a request that was done before is done again for
 * its effect alone, one that was not gets its result. */
#include "records.h"
#include "base/io.h"
#include "serve/shelf.h"
#include <dirent.h>

#define BODY ", coded, body, n FROM request LEFT JOIN body USING (n)"

struct replay {
    struct tw_srv *s;
    int64_t n;
};

/* The work that a journalled body asks for. */
static struct tw_work *decode(struct tw_srv *s, struct tw_future *f, const struct tw_row *r, struct tw_err *err)
{
    int64_t coded = tw_col_int(r, 15);
    struct tw_buf plain = { 0 }, file = { 0 };
    struct tw_work *w = NULL;
    struct tw_str body;

    if (coded > 1)
        tw_shelf_read(tw_store_dir(s->store), tw_col_int(r, 17), (size_t)tw_col_int(r, 16), &file, err);
    body = coded > 1 ? tw_buf_str(&file) : tw_col_str(r, 16);
    if (!err->code && (coded & 1) && tw_body_inflate(&plain, body, SIZE_MAX))
        tw_fail(err, NULL, 0, "its body is not what was stored");
    if (!err->code)
        w = tw_decode(s, f->kind, f->type ? f->type : "json", f->tenant, plain.p ? tw_buf_str(&plain) : body,
                err);
    tw_buf_free(&plain);
    tw_buf_free(&file);
    return w;
}

static void again(struct tw_srv *s, struct tw_future *f, const struct tw_row *r)
{
    struct tw_err err = { 0 };

    f->run = f->kind == TW_KIND_SAMPLE ? NULL : tw_map_gets(&s->runs, f->target);
    if (f->kind == TW_KIND_UNLOAD)
        f->work = f->run ? tw_trun_work(s, f->run, TW_UNLOAD) : NULL;
    else
        f->work = decode(s, f, r, &err);
    if (!f->work) {
        f->work = tw_work_new(TW_UNLOAD);
        tw_refuse(f->work, "the request cannot be read any more: %s",
                err.code ? err.msg : "its model is gone");
    }
    if (f->kind == TW_KIND_CREATE_MODEL || f->kind == TW_KIND_LOAD_CREATE) {
        char *dir = tw_state_dir(s, "runs", f->run->n, true);

        free(f->work->model);
        f->work->model = tw_xstrdup(f->run->id);
        f->work->create.dir = tw_arena_dup(&f->work->arena, dir, strlen(dir));
        free(dir);
    }
    if (f->kind == TW_KIND_SAVE_WEIGHTS || f->kind == TW_KIND_SAVE_SAMPLER ||
            f->kind == TW_KIND_SAVE_EXTERNAL)
        tw_save_prepare(s, f);
    tw_order_add(s, f);
}

/* Done before: whether the model in the engine lacks it. */
static bool lacks(const struct tw_trun *run, const struct tw_future *f)
{
    if (!run || f->state != TW_FUTURE_DONE || strcmp(run->state, "live"))
        return false;
    return f->seq < 0 ? !run->snap : f->seq > run->snap_seq;
}

static int row(void *arg, const struct tw_row *r)
{
    struct replay *x = arg;
    struct tw_srv *s = x->s;
    struct tw_future *f = tw_future_row(s, r);

    if (f->state == TW_FUTURE_OPEN || lacks(tw_map_gets(&s->runs, f->target ? f->target : ""), f)) {
        f->replay = f->state != TW_FUTURE_OPEN;
        s->nreplay += f->replay;
        again(s, f, r);
        x->n++;
    }
    return 0;
}

/* What is done has had its turn, whatever came of it. */
static int turn(void *arg, const struct tw_row *r)
{
    struct replay *x = arg;
    struct tw_trun *run = tw_map_get(&x->s->runs, tw_col_str(r, 0));

    if (run && tw_col_int(r, 1) >= run->next_seq)
        run->next_seq = tw_col_int(r, 1) + 1;
    return 0;
}

static void restore_models(struct tw_srv *s)
{
    for (int64_t i = 0; i < s->run.n; i++) {
        struct tw_trun *run = s->run.v[i];

        if (run->snap && !strcmp(run->state, "live"))
            tw_glue_send(s, tw_trun_work(s, run, TW_RESTORE));
    }
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Folders that nothing in the store names are what a save left that never was registered; hidden ones
 * are what it was writing when it was killed. */
static void sweep(struct tw_srv *s, const char *kind)
{
    char *parent = tw_path_join(tw_store_dir(s->store), kind);
    DIR *d = opendir(parent);
    struct dirent *e;
    struct tw_err err = { 0 };

    while (d && (e = readdir(d))) {
        char *dir;
        bool known = is_dots(e->d_name);

        dir = tw_path_join(parent, e->d_name);
        for (int64_t i = 0; i < s->ckpt.n && !known; i++)
            known = !strcmp(((struct tw_saved *)s->ckpt.v[i])->dir, dir);
        for (int64_t i = 0; i < s->sampler.n && !known; i++) {
            struct tw_smp *p = s->sampler.v[i];

            known = p->dir && !strcmp(p->dir, dir);
        }
        if (!known)
            tw_rmtree(dir, &err);
        free(dir);
    }
    if (d)
        closedir(d);
    free(parent);
}

/* Of a model's folder only the snapshot that is registered is of use, of one that is gone nothing. */
static void sweep_runs(struct tw_srv *s)
{
    struct tw_err err = { 0 };

    for (int64_t i = 0; i < s->run.n; i++) {
        struct tw_trun *run = s->run.v[i];
        char *dir = tw_state_dir(s, "runs", run->n, false);
        bool lives = !strcmp(run->state, "live") || !strcmp(run->state, "new");
        DIR *d = lives ? opendir(dir) : NULL;
        struct dirent *e;

        if (!lives)
            tw_rmtree(dir, &err);
        while (d && (e = readdir(d))) {
            char *path = tw_path_join(dir, e->d_name);

            if (!is_dots(e->d_name) && (!run->snap || strcmp(path, run->snap)))
                tw_rmtree(path, &err);
            free(path);
        }
        if (d)
            closedir(d);
        free(dir);
    }
}

int tw_replay(struct tw_srv *s, struct tw_err *err)
{
    struct replay x = { s, 0 };

    sweep(s, "checkpoints");
    sweep(s, "samplers");
    sweep_runs(s);
    restore_models(s);
    s->nreplay = 1;                             /* nothing is over before all is read */
    if (tw_store_read(s->store,
                "SELECT target, max(seq) FROM request WHERE state > 0 AND seq > 0 AND kind < 10"
                " GROUP BY target",
                turn, &x, err, "") ||
            tw_store_read(s->store,
                    "SELECT " TW_FUTURE_COLUMNS BODY " WHERE (state = 0 OR body NOT NULL)"
                    " AND kind IN (1, 8) ORDER BY n",
                    row, &x, err, "") ||
            tw_store_read(s->store,
                    "SELECT " TW_FUTURE_COLUMNS BODY " WHERE (state = 0 OR body NOT NULL)"
                    " AND kind NOT IN (1, 8) ORDER BY kind = 9, target, seq, n",
                    row, &x, err, ""))
        return -1;
    tw_order_replayed(s);
    if (x.n)
        tw_notice("%lld requests of the journal are done again", (long long)x.n);
    return 0;
}
