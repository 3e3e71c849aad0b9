/* train_run.c - the folder RUN: lock, checkpoints, metrics */
#include "run/train_priv.h"
#include "base/io.h"
#include "base/json.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* What open_records() spools: data-N.tws, data-eval-N.tws. */
static bool is_spool(const char *name)
{
    size_t n = strlen(name);

    return !strncmp(name, "data-", 5) && n > 4 && !strcmp(name + n - 4, ".tws");
}

/* Does RUN hold anything but what a run leaves that never began (its lock, spooled data)? */
static bool in_use(const char *run)
{
    DIR *d = opendir(run);
    struct dirent *e;
    bool yes = false;

    if (!d)
        return false;
    while (!yes && (e = readdir(d)))
        yes = e->d_name[0] != '.' && strcmp(e->d_name, "lock") && !is_spool(e->d_name);
    closedir(d);
    return yes;
}

/* Removes the data of a run that never began, which would stand for a stdin that has nothing to say. */
static void drop_spools(const char *run)
{
    DIR *d = opendir(run);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (is_spool(e->d_name)) {
            char *path = tw_path_join(run, e->d_name);

            unlink(path);
            free(path);
        }
    if (d)
        closedir(d);
}

/* A sampler that looks whether there is a trainer holds the lock for a moment, too: tried for a second. */
static int try_lock(int fd, int how)
{
    int tries = 40;

    while (flock(fd, how | LOCK_NB)) {
        if (errno != EWOULDBLOCK || !--tries)
            return -1;
        usleep(25000);
    }
    return 0;
}

/* A sampler that sees the lock held trusts policy.json: what a killed trainer left there goes before, under a
 * shared lock, with which no trainer holds the other one. */
static int lock_run(struct tw_trainer *t)
{
    if (try_lock(t->lock, LOCK_SH))
        return -1;
    if (tw_train_publishes(t))
        tw_run_unpublish(t);
    return try_lock(t->lock, LOCK_EX);
}

int tw_run_enter(struct tw_trainer *t, struct tw_err *err)
{
    const char *run = t->o->out;
    char *path;
    struct stat st;
    int ret = -1;

    if (!stat(run, &st) && !S_ISDIR(st.st_mode))
        return tw_fail(err, run, 0, "is not a folder: a run is one");
    if (!t->o->resume && in_use(run))
        return tw_fail(err, run, 0, "is there already: go on with it by --resume, or give another "
                "-o");
    if (tw_mkdirs(run, err))
        return -1;
    path = tw_path_join(run, "lock");
    t->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->lock < 0)
        tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
    else if (lock_run(t)) {
        tw_fail(err, run, 0, errno == EWOULDBLOCK ? "another tw-train is working in it" :
                "cannot lock: %s", strerror(errno));
        close(t->lock);
        t->lock = -1;           /* what is there is the other one's: tw_run_leave() lets it be */
    } else
        ret = tw_ckpt_clean(run, err);
    if (!ret) {
        tw_out_sweep(run, 0);
        if (!t->o->resume)
            drop_spools(run);
    }
    free(path);
    return ret;
}

/* A run that failed before it began leaves nothing that would be in the way of the next try. */
void tw_run_leave(struct tw_trainer *t)
{
    const char *run = t->o->out;
    char *lock;

    if (t->lock < 0)
        return;
    if (!in_use(run)) {
        tw_out_sweep(run, 0);
        drop_spools(run);
        lock = tw_path_join(run, "lock");
        unlink(lock);
        rmdir(run);
        free(lock);
    }
    close(t->lock);
    t->lock = -1;
}

int tw_run_newest(struct tw_trainer *t, char **dir, struct tw_err *err)
{
    int64_t *step, n;

    *dir = NULL;
    if (tw_ckpt_list(t->o->out, &step, &n, err))
        return -1;
    for (int64_t i = 0; i < n && !*dir; i++) {
        char *path = tw_xasprintf("%s/step-%" PRId64, t->o->out, step[i]);
        struct tw_err bad = { 0 };

        if (!tw_ckpt_verify(path, &bad)) {
            *dir = path;
            continue;
        }
        tw_notice("%s is skipped: %s: %s", path, bad.place, bad.msg);
        free(path);
    }
    free(step);
    if (n && !*dir)
        return tw_fail(err, t->o->out, 0, "none of its %" PRId64 " checkpoints is intact: begin "
                "anew with another -o", n);
    return 0;
}

size_t tw_run_ckpt_size(const struct tw_trainer *t)
{
    size_t elems = (size_t)t->params->elems, side = 0;
    size_t moments = tw_optim_file(&t->optim_opts, t->params);
    bool exact = t->use_lora || t->dtype == TW_F32;

    tw_ckpt_copy_side(t->model_dir, NULL, &side, NULL);
    return elems * (exact ? 4 : 2 + 4) + moments + side + (64 << 10);
}

static int check_space(const struct tw_trainer *t, struct tw_err *err)
{
    size_t need = tw_run_ckpt_size(t), have = tw_ckpt_free_space(t->o->out);
    char a[32], b[32];

    if (need <= have)
        return 0;
    return tw_fail(err, t->o->out, 0, "no space for a checkpoint: it takes %s (%zu bytes), and %s "
            "(%zu bytes) are free", tw_fmt_bytes(a, (double)need), need,
            tw_fmt_bytes(b, (double)have), have);
}

struct options {
    const struct tw_trainer *t;
    const struct tw_json *json;
};

/* Every option under its own name, with what its default came to. */
static void put_options(struct tw_jw *w, void *arg)
{
    const struct options *o = arg;

    for (int64_t i = 0; i < o->json->n; i++) {
        const struct tw_json *v = &o->json->item[i];

        tw_jw_key_n(w, v->key);
        if (tw_str_is(v->key, "lr"))
            tw_jw_num(w, o->t->schedule.lr);
        else if (tw_str_is(v->key, "dtype"))
            tw_jw_cstr(w, o->t->dtype == TW_BF16 ? "bf16" : "f32");
        else if (tw_str_is(v->key, "steps") && o->t->schedule.total)
            tw_jw_int(w, o->t->schedule.total);
        else if (tw_str_is(v->key, "micro-tokens"))
            tw_jw_int(w, o->t->engine.micro_tokens);
        else if (tw_str_is(v->key, "shuffle") && o->t->shuffle_auto)
            tw_jw_cstr(w, o->t->shuffle ? "42" : "off");
        else
            tw_jw_value(w, v);
    }
}

static int cut_metrics(struct tw_trainer *t, const char *path, struct tw_err *err)
{
    struct stat st;

    if (stat(path, &st) || st.st_size < t->metrics_bytes) {
        tw_notice("%s is shorter than at step %" PRId64 ": what is missing stays missing", path,
                t->step);
        return 0;
    }
    if (truncate(path, t->metrics_bytes))
        return tw_fail(err, path, 0, "cannot cut back to step %" PRId64 ": %s", t->step,
                strerror(errno));
    return 0;
}

int tw_run_start(struct tw_trainer *t, struct tw_err *err)
{
    char *config = tw_path_join(t->o->out, "config.json");
    char *metrics = tw_path_join(t->o->out, "metrics.jsonl");
    struct tw_arena a = { 0 };
    struct options o = { t, tw_json_parse(&a, t->options, err) };
    size_t kept = tw_run_ckpt_size(t) * (size_t)(t->o->keep + 1);
    struct tw_buf b = { 0 };
    struct tw_jw w;
    char text[32];
    int ret = -1;

    if (!o.json || check_space(t, err))
        goto out;
    if (t->o->keep && kept > tw_ckpt_free_space(t->o->out))
        tw_notice("%s: the %" PRId64 " checkpoints to keep, and one more while it is written, take "
                "%s, which is more than is free", t->o->out, t->o->keep,
                tw_fmt_bytes(text, (double)kept));
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_options(&w, &o);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    if (tw_write_file(config, b.p, b.n, err) ||
            (t->resuming && cut_metrics(t, metrics, err)))
        goto out;
    if (!(t->metrics = tw_metrics_open(metrics, t->resuming, err)))
        goto out;
    if (t->o->metrics && !(t->copy = tw_metrics_open(t->o->metrics, t->resuming, err)))
        goto out;
    ret = t->resuming ? 0 : tw_run_event(t, "start", put_options, &o, err);
out:
    tw_arena_free(&a);
    tw_buf_free(&b);
    free(config);
    free(metrics);
    return ret;
}

int tw_run_event(struct tw_trainer *t, const char *event, void (*put)(struct tw_jw *w, void *arg),
        void *arg, struct tw_err *err)
{
    struct tw_metrics *sink[] = { t->metrics, t->copy };

    for (int i = 0; i < 2; i++) {
        struct tw_jw *w = tw_metrics_begin(sink[i], event, t->step);

        if (!w)
            continue;
        put(w, arg);
        if (tw_metrics_end(sink[i], err))
            return -1;
    }
    return 0;
}

/* The size of metrics.jsonl, which is on the disk afterwards. */
static int flush_metrics(struct tw_trainer *t, struct tw_err *err)
{
    char *path = tw_path_join(t->o->out, "metrics.jsonl");
    int fd = open(path, O_WRONLY | O_CLOEXEC), ret = 0;
    struct stat st;

    if (fd < 0 || fsync(fd) || fstat(fd, &st))
        ret = tw_fail(err, path, 0, "cannot flush to disk: %s", strerror(errno));
    else
        t->metrics_bytes = st.st_size;
    if (fd >= 0)
        close(fd);
    free(path);
    return ret;
}

/* What was saved, read back: every tensor is there, and training has left its mark in B. */
static int check_adapter(const struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "adapter_model.safetensors");
    struct tw_weights w;
    bool mark = false, open;
    int ret;

    ret = tw_weights_open(&w, path, err);
    open = !ret;
    if (open && w.n != tw_adapter_tensors(t->count_adapter))
        ret = tw_fail(err, path, 0, "holds %" PRId64 " tensors, and the adapter has %" PRId64, w.n,
                tw_adapter_tensors(t->count_adapter));
    for (int64_t i = 0; !ret && !mark && i < w.n; i++) {
        const struct tw_wtensor *x = &w.t[i];
        const unsigned char *p = x->data;
        size_t bytes = (size_t)x->n * tw_dtype_size(x->dtype);

        if (memmem(x->name.p, x->name.n, "lora_B", 6))
            for (size_t k = 0; k < bytes && !mark; k++)
                mark = p[k] != 0;
    }
    if (!ret && t->moved && !mark)
        ret = tw_fail(err, path, 0, "every B is zero after %" PRId64 " steps", t->step);
    if (open)
        tw_weights_close(&w);
    free(path);
    return ret;
}

static int write_ckpt(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    if (t->learner->save(t, dir, err) || (t->use_lora && check_adapter(t, dir, err)))
        return -1;
    return tw_ckpt_copy_side(t->model_dir, dir, NULL, err) || tw_state_write(t, dir, err) ? -1 : 0;
}

static int prune(struct tw_trainer *t, struct tw_err *err)
{
    int64_t *step, n, left = t->o->keep;
    int ret;

    if (!left)
        return 0;
    ret = tw_ckpt_list(t->o->out, &step, &n, err);
    for (int64_t i = 0; !ret && i < n; i++) {
        char name[32];

        if (left > 0 && step[i] <= t->step) {       /* later ones are damaged leftovers */
            left--;
            continue;
        }
        if (t->o->keep_best && step[i] == t->best_step)
            continue;
        snprintf(name, sizeof name, "step-%" PRId64, step[i]);
        t->learner->drop(t, t->o->out, name);
        ret = tw_ckpt_remove(t->o->out, name, err);
    }
    free(step);
    return ret;
}

int tw_run_save(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_ckpt c;
    char name[32];

    snprintf(name, sizeof name, "step-%" PRId64, t->step);
    if (flush_metrics(t, err) || check_space(t, err) || tw_ckpt_begin(&c, t->o->out, name, err))
        return -1;
    if (write_ckpt(t, c.tmp, err)) {
        tw_ckpt_abort(&c);
        return -1;
    }
    if (tw_ckpt_commit(&c, err) || tw_ckpt_link(t->o->out, "latest", name, err))
        return -1;
    t->saved = t->step;
    if (t->o->keep_best && t->best_step == t->step && tw_ckpt_link(t->o->out, "best", name, err))
        return -1;
    return prune(t, err);
}
