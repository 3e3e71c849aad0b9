/* serve.c - the server's start, loop and end */
#include "nat.h"
#include "data/chat.h"
#include "base/avail.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define FEWEST_FILES 64 /* the store, the engine and logs take about 25; as many are for connections */
#define TICK_S 0.5
#define SWEEP_S 1.0 /* between looks for what has expired */
#define DRAIN_S 5.0 /* after SIGTERM, for replies to get out */

#define MARK "temporary"    /* a file in the folder of a server without --state, so that no other is taken for one */

/* Removes what servers without --state that were killed left in TMP: folders of this user's with the mark
 * whose lock nobody holds; one that starts now is younger than a minute. */
static void sweep_tmp(const char *tmp)
{
    DIR *d = opendir(tmp);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char *dir = tw_xasprintf("%s/%s", tmp, e->d_name), *lock = tw_path_join(dir, "lock");
        char *mark = tw_path_join(dir, MARK);
        int fd = strncmp(e->d_name, "tw-serve-", 9) || strlen(e->d_name) != 15 ? -1 :
                open(lock, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;

        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                time(NULL) - st.st_mtime > 60 && tw_is_file(mark) && !flock(fd, LOCK_EX | LOCK_NB))
            tw_rmtree(dir, NULL);
        if (fd >= 0)
            close(fd);
        free(dir);
        free(lock);
        free(mark);
    }
    if (d)
        closedir(d);
}

static int open_state(struct tw_srv *s, struct tw_err *err)
{
    const char *dir = s->o->state, *tmp = getenv("TMPDIR");
    char *mark;

    if (!dir) {
        tmp = tmp && *tmp ? tmp : "/tmp";
        sweep_tmp(tmp);
        s->tmp = tw_xasprintf("%s/tw-serve-XXXXXX", tmp);
        if (!mkdtemp(s->tmp)) {
            tw_fail(err, s->tmp, 0, "cannot be made: %s", strerror(errno));
            free(s->tmp);
            s->tmp = NULL;
            return -1;
        }
        dir = s->tmp;
        tw_notice("without --state all state ends with this server");
    }
    if (!(s->store = tw_store_open(dir, &s->box, err)))
        return -1;
    mark = tw_path_join(dir, MARK);
    if (s->tmp ? tw_write_file(mark, "", 0, NULL) : unlink(mark) && errno != ENOENT)
        tw_notice("%s: %s", mark, strerror(errno));
    free(mark);
    return 0;
}

static int open_log(struct tw_log_file *l, const char *path, struct tw_err *err)
{
    l->path = path;
    if (!path)
        return 0;
    l->fp = fopen(path, "ae");
    if (!l->fp)
        return tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
    setvbuf(l->fp, NULL, _IOLBF, 1 << 16);
    return 0;
}

/* A log that was moved away is made anew. */
static void reopen_log(struct tw_log_file *l)
{
    FILE *fp = l->fp ? fopen(l->path, "ae") : NULL;

    if (!fp)
        return;
    fclose(l->fp);
    l->fp = fp;
    setvbuf(fp, NULL, _IOLBF, 1 << 16);
}

static int open_http(struct tw_srv *s, struct tw_err *err)
{
    struct tw_httpd_opts h = {
        .listen = s->o->listen,
        .cert = s->o->tls_cert,
        .key = s->o->tls_key,
        .max_body = (size_t)s->o->max_body << 20,
        .max_bodies = (size_t)s->o->max_body << 24,
        .head_s = 30,
        .body_s = 60,
        .idle_s = 75,
        .arg = s,
        .begin = tw_route_begin,
        .handle = tw_route_handle,
        .done = tw_route_done,
    };

    s->http = tw_httpd_open(&h, err);
    return s->http ? tw_httpd_watch(s->http, s->box.fd, err) : -1;
}

/* The names that clients ask the base model by: --name, else the last part of where it is. */
static void name_model(struct tw_srv *s)
{
    const char *m = s->o->model;
    size_t n = strlen(m);

    s->nname = s->o->name.n ? s->o->name.n : 1;
    s->name = tw_xcalloc((size_t)s->nname, sizeof *s->name);
    for (int i = 0; i < s->o->name.n; i++)
        s->name[i] = tw_xstrdup(s->o->name.v[i]);
    if (s->o->name.n)
        return;
    if (!strncmp(m, "hf://", 5) || !strncmp(m, "ms://", 5)) {
        s->name[0] = tw_xstrndup(m + 5, strcspn(m + 5, "@"));
        return;
    }
    while (n > 1 && m[n - 1] == '/')
        n--;
    m = tw_xstrndup(m, n);
    s->name[0] = tw_xstrdup(strrchr(m, '/') && strrchr(m, '/')[1] ? strrchr(m, '/') + 1 : m);
    free((void *)(uintptr_t)m);
}

static void on_keys(struct tw_srv *s)
{
    struct tw_err err = { 0 };
    int got = tw_keys_again(s->keys, &err);

    if (got > 0)
        tw_notice("the keys were read again");
    else if (got < 0)
        tw_notice("the old keys stay: %s:%lld: %s", err.place, (long long)err.line, err.msg);
}

static void tick(struct tw_srv *s)
{
    double now = tw_now();

    if (now < s->next_tick)
        return;
    s->next_tick = now + TICK_S;
    if (!s->stopping)
        on_keys(s);
    tw_sess_tick(s, tw_wall());
    tw_order_tick(s, now);
    tw_future_tick(s, now, tw_wall());
    if (now < s->next_sweep)
        return;
    s->next_sweep = now + SWEEP_S;
    tw_saved_tick(s, tw_wall());
    tw_np_tick(s, now);
    tw_future_prune(s, tw_wall());
    tw_taken_tick(s, tw_wall());
}

static int signals(sigset_t *set, struct tw_err *err)
{
    int fd;

    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN); /* alert commands need no burial */
    fd = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        tw_fail(err, NULL, 0, "no signalfd: %s", strerror(errno));
    return fd;
}

/* False when it is time to go. */
static bool take_signals(struct tw_srv *s, int fd)
{
    struct signalfd_siginfo i;

    while (read(fd, &i, sizeof i) == sizeof i) {
        if (i.ssi_signo != SIGHUP)
            return false;
        reopen_log(&s->access);
        on_keys(s);
    }
    return true;
}

static int announce(struct tw_srv *s, struct tw_err *err)
{
    const char *a = tw_httpd_address(s->http);
    char line[512];
    int n = snprintf(line, sizeof line, "listening on %s\n", a);

    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        return tw_fail(err, "stdout", 0, "cannot write: %s", strerror(errno));
    return 0;
}

static int loop(struct tw_srv *s, int sigfd, struct tw_err *err)
{
    double deadline = 0;

    while (!deadline || (tw_now() < deadline && tw_httpd_connections(s->http))) {
        if (tw_httpd_poll(s->http, deadline ? 50 : (int)(TICK_S * 1000), err))
            return -1;
        while (tw_mail_run(&s->box))
            ;
        tick(s);
        if (!deadline && !take_signals(s, sigfd)) {
            s->stopping = true;
            tw_httpd_quiesce(s->http);
            tw_future_release(s);
            deadline = tw_now() + DRAIN_S;
        }
    }
    return 0;
}

static void close_all(struct tw_srv *s)
{
    struct tw_err err = { 0 };

    tw_httpd_close(s->http);
    s->closing = true;
    tw_np_stop(s);
    if (s->worker)
        tw_worker_close(s->worker, false);
    while (tw_mail_run(&s->box))
        ;
    tw_nat_hub_close(s);
    tw_store_close(s->store);
    while (tw_mail_run(&s->box))
        ;
    tw_np_free(s);
    tw_future_free_all(s);
    tw_trun_free_all(s);
    tw_saved_free_all(s);
    tw_smp_free_all(s);
    tw_taken_free_all(s);
    tw_sess_free(s);
    tw_nat_free(s);
    for (size_t i = 0; i < sizeof s->chat / sizeof *s->chat; i++)
        tw_chat_close(s->chat[i]);
    tw_keys_close(s->keys);
    tw_mailbox_close(&s->box);
    if (s->access.fp)
        fclose(s->access.fp);
    for (int i = 0; i < s->nname; i++)
        free((void *)(uintptr_t)s->name[i]);
    free(s->name);
    free(s->swap);
    free(s->early.v);
    if (s->tmp)
        tw_rmtree(s->tmp, &err);
    free(s->tmp);
}

static int take_secret(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    struct tw_str v = tw_col_str(r, 0);

    s->has_secret = v.n == sizeof s->secret;
    if (s->has_secret)
        memcpy(s->secret, v.p, v.n);
    return 1;
}

static void make_secret(struct tw_srv *s)
{
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_blob *b = tw_blob_new(NULL, sizeof s->secret);

    tw_random_bytes(s->secret, sizeof s->secret);
    memcpy(b->p, s->secret, b->n);
    tw_op_add(o, "INSERT OR REPLACE INTO secret (name, value) VALUES ('links', ?)", "b", b);
    tw_blob_unref(b);
    tw_store_submit(s->store, o);
}

static int load_state(struct tw_srv *s, struct tw_err *err)
{
    s->event_n = s->event_base = (int64_t)(s->started * 1e3) << 12;
    if (!strchr(s->name[0], '/')) /* no name that clients could ask a hub for */
        s->tokenizer = tw_worker_dir(s->worker);
    if (tw_store_read(s->store, "SELECT value FROM secret WHERE name = 'links'", take_secret, s, err, ""))
        return -1;
    if (!s->has_secret)
        make_secret(s);
    return tw_sess_load(s, err) || tw_trun_load(s, err) || tw_saved_load(s, err) || tw_smp_load(s, err) ||
                    tw_curve_load(s, err) || tw_taken_load(s, err) || tw_nat_load_conf(s, err) ||
                    tw_replay(s, err)
            ? -1
            : 0;
}

/* Adapters, bodies and results come and go for months: what is large goes back to the system when it is
 * freed, and is not kept in holes between what is small. The room of what is small is kept: new pages cost
 * more than what a request's arrays are filled with. */
static void tame_malloc(void)
{
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

/* What is asked for of more devices than one is refused, rather than forgotten. */
static int one_device(const struct tw_serve_opts *o, struct tw_err *err)
{
    static const char *const axis[] = { "dp", "fsdp", "tp", "pp", "cp", "ep" };
    char *text = tw_xasprintf("mesh,%s", o->mesh ? o->mesh : "dp=1");
    struct tw_set set;
    int64_t n = o->nproc;
    int ret = tw_set_parse(&set, "--mesh", text, err);

    for (size_t i = 0; i < sizeof axis / sizeof *axis && !ret; i++) {
        int64_t v = 1;

        ret = tw_set_int(&set, axis[i], &v, 1, 1 << 20, err) < 0;
        n = v > n ? v : n;
    }
    if (!ret)
        ret = tw_set_done(&set, err);
    free(text);
    if (!ret && n > 1)
        return tw_fail_code(err, TW_EMISUSE, o->nproc > 1 ? "--nproc" : "--mesh", 0,
                "this build serves from one device: leave it out, or give 1");
    return ret ? -1 : 0;
}

/* What can be told of --listen before anything is made. */
static int may_listen(const struct tw_serve_opts *o, struct tw_err *err)
{
    bool local;

    if (!o->tls_cert != !o->tls_key)
        return tw_fail_code(err, TW_EMISUSE, "--tls-cert", 0, "goes with --tls-key");
    if (tw_listen_local(o->listen, &local, err))
        return -1;
    if (!o->keys && !local)
        return tw_fail_code(err, TW_EMISUSE, "--listen", 0, "%s is open to others: that needs --keys",
                o->listen);
    return 0;
}

static int enough_files(struct tw_err *err)
{
    int64_t n = tw_files_raise();

    return n >= FEWEST_FILES ? 0 : tw_fail(err, NULL, 0, "the limit of open files is %" PRId64 ", and a server "
            "needs %d at least: raise it with ulimit -n", n, FEWEST_FILES);
}

int tw_serve(const struct tw_serve_opts *o, struct tw_err *err)
{
    struct tw_srv s = { .o = o, .started = tw_wall() };
    sigset_t set;
    mode_t mask;
    int sigfd, ret = -1;

    if (one_device(o, err) || may_listen(o, err) || enough_files(err))
        return -1;
    mask = umask(077);                          /* the state is nobody else's to read */
    sigfd = signals(&set, err);

    tame_malloc();
    name_model(&s);
    if (sigfd >= 0 && !tw_mailbox_open(&s.box, &s, err) && (s.keys = tw_keys_open(o->keys, err)) &&
            !open_log(&s.access, o->access_log, err) && !open_state(&s, err) && !tw_glue_open(&s, err) &&
            !tw_np_open(&s, err) && !load_state(&s, err) && !open_http(&s, err) &&
            !tw_httpd_watch(s.http, sigfd, err) && !announce(&s, err))
        ret = loop(&s, sigfd, err);
    close_all(&s);
    if (sigfd >= 0)
        close(sigfd);
    umask(mask);
    return ret;
}
