/* store.c - SQLite behind a queue */
#include "store.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/shelf.h"
#include "store_priv.h"
#include "store_schema.h"
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define GROUP_MAX 512               /* operations in one commit */
#define LOG_PAGES 4000              /* of the log before it is tidied; LOG_MAX: the writer waits for that */
#define LOG_MAX 60000

struct cached {                     /* a prepared statement; found by its text's address */
    const char *sql;
    sqlite3_stmt *stmt;
};

struct conn {
    sqlite3 *db;
    struct cached cache[64];
    int n;
};

struct tw_store {
    char *dir;
    int lock_fd;
    struct conn write, read;
    struct tw_shelf shelf;
    struct tw_mailbox *box;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct tw_mail *first, **last;
    int64_t queued;
    bool running, stop;
    sqlite3 *tidy;                  /* moves what is in the log into the database, beside the writer */
    pthread_t tidier;
    pthread_cond_t untidy;
    int64_t log_pages;
};

static int fail(struct conn *c, struct tw_err *err, const char *what)
{
    return tw_fail(err, NULL, 0, "the state store failed: %s (%s)", sqlite3_errmsg(c->db), what);
}

static sqlite3_stmt *prepare(struct conn *c, const char *sql, struct tw_err *err)
{
    int i;

    for (i = 0; i < c->n; i++)
        if (c->cache[i].sql == sql || !strcmp(c->cache[i].sql, sql))
            return c->cache[i].stmt;
    if (c->n == (int)(sizeof c->cache / sizeof *c->cache)) {
        sqlite3_finalize(c->cache[0].stmt);
        memmove(c->cache, c->cache + 1, (size_t)--c->n * sizeof *c->cache);
    }
    if (sqlite3_prepare_v3(c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &c->cache[c->n].stmt, NULL)) {
        fail(c, err, sql);
        return NULL;
    }
    c->cache[c->n].sql = sql;
    return c->cache[c->n++].stmt;
}

static void bind(sqlite3_stmt *st, const struct tw_value *v, int n)
{
    for (int i = 0; i < n; i++) {
        int at = i + 1;

        if (v[i].type == 'i')
            sqlite3_bind_int64(st, at, v[i].i);
        else if (v[i].type == 'f')
            sqlite3_bind_int64(st, at, (int64_t)v[i].b->n);
        else if (v[i].type == 'd')
            sqlite3_bind_double(st, at, v[i].d);
        else if (v[i].type == 'b' && v[i].b)
            sqlite3_bind_blob64(st, at, v[i].b->p, v[i].b->n, SQLITE_STATIC);
        else if ((v[i].type == 't' || v[i].type == 's') && v[i].s.p)
            sqlite3_bind_text64(st, at, v[i].s.p, v[i].s.n, SQLITE_STATIC, SQLITE_UTF8);
        else
            sqlite3_bind_null(st, at);
    }
}

static int step(struct conn *c, const char *sql, const struct tw_value *v, int n, struct tw_err *err)
{
    sqlite3_stmt *st = prepare(c, sql, err);
    int rc;

    if (!st)
        return -1;
    bind(st, v, n);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        ;
    if (rc != SQLITE_DONE)
        fail(c, err, sql);
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return rc == SQLITE_DONE ? 0 : -1;
}

/* What is for files of the row that was inserted last. */
static int put_files(struct tw_store *s, const struct tw_stmt_args *a, struct tw_err *err)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i].type == 'f' && tw_shelf_put(&s->shelf, sqlite3_last_insert_rowid(s->write.db), a->v[i].b->p,
                    a->v[i].b->n, err))
            return -1;
    return 0;
}

/* All of an operation, or nothing of it. */
static void apply(struct tw_store *s, struct tw_op *o)
{
    struct conn *c = &s->write;
    struct tw_stmt_args *a;
    size_t gone = s->shelf.n;

    if (step(c, "SAVEPOINT one", NULL, 0, &o->err))
        return;
    for (a = o->first; a; a = a->next)
        if (put_files(s, a, &o->err) || step(c, a->sql, a->v, a->n, &o->err)) {
            struct tw_err more = { 0 };

            step(c, "ROLLBACK TO one", NULL, 0, &more);
            s->shelf.n = gone;
            break;
        }
    o->number = sqlite3_last_insert_rowid(c->db);
    step(c, "RELEASE one", NULL, 0, &o->err);
}

static void finish(void *arg, struct tw_mail *m)
{
    struct tw_op *o = (struct tw_op *)m;

    if (o->done)
        o->done(o->arg, o);
    tw_op_free(o);
}

static void commit_group(struct tw_store *s, struct tw_mail *list)
{
    struct tw_err err = { 0 };
    struct tw_mail *m, *next;
    bool open = !step(&s->write, "BEGIN IMMEDIATE", NULL, 0, &err);

    for (m = list; m && open; m = m->next)
        apply(s, (struct tw_op *)m);
    if (open && step(&s->write, "COMMIT", NULL, 0, &err)) {
        struct tw_err more = { 0 };

        step(&s->write, "ROLLBACK", NULL, 0, &more);
    }
    tw_shelf_settle(&s->shelf, !err.code);
    for (m = list; m; m = next) {
        next = m->next;
        if (err.code && !((struct tw_op *)m)->err.code)
            ((struct tw_op *)m)->err = err;
        m->run = finish;
        if (!((struct tw_op *)m)->done)
            tw_op_free((struct tw_op *)m);
        else
            tw_mail_send(s->box, m);
    }
}

static void *writer(void *arg)
{
    struct tw_store *s = arg;
    struct tw_mail *list, **end;
    int n;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->stop)
            pthread_cond_wait(&s->more, &s->lock);
        if (!s->first)
            break;
        list = s->first;
        for (n = 1, end = &list->next; *end && n < GROUP_MAX; n++)
            end = &(*end)->next;
        s->first = *end;
        *end = NULL;
        if (!s->first)
            s->last = &s->first;
        s->queued -= n;
        pthread_mutex_unlock(&s->lock);
        commit_group(s, list);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The log is of N pages after a commit. */
static int on_commit(void *arg, sqlite3 *db, const char *name, int n)
{
    struct tw_store *s = arg;

    if (n > LOG_MAX)
        sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    pthread_mutex_lock(&s->lock);
    s->log_pages = n;
    if (n > LOG_PAGES)
        pthread_cond_signal(&s->untidy);
    pthread_mutex_unlock(&s->lock);
    return SQLITE_OK;
}

static void *tidy(void *arg)
{
    struct tw_store *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        while (!s->stop && s->log_pages <= LOG_PAGES)
            pthread_cond_wait(&s->untidy, &s->lock);
        s->log_pages = 0;                       /* until the next commit says */
        pthread_mutex_unlock(&s->lock);
        sqlite3_wal_checkpoint_v2(s->tidy, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void tw_store_submit(struct tw_store *s, struct tw_op *o)
{
    o->mail.next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->last = &o->mail;
    s->last = &o->mail.next;
    s->queued++;
    if (!s->running) {
        s->running = !pthread_create(&s->thread, NULL, writer, s);
        if (pthread_create(&s->tidier, NULL, tidy, s)) {
            sqlite3_close(s->tidy);             /* then the writer does it, when it must */
            s->tidy = NULL;
        }
    }
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

int64_t tw_store_queued(struct tw_store *s)
{
    int64_t n;

    pthread_mutex_lock(&s->lock);
    n = s->queued;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int tw_store_read(struct tw_store *s, const char *sql, int (*row)(void *arg, const struct tw_row *r), void *arg,
        struct tw_err *err, const char *types, ...)
{
    sqlite3_stmt *st = prepare(&s->read, sql, err);
    struct tw_row r = { st };
    struct tw_value v[TW_VALUES];
    va_list ap;
    int rc, n, ret = 0;

    if (!st)
        return -1;
    va_start(ap, types);
    n = tw_values_take(v, NULL, types, ap);
    va_end(ap);
    bind(st, v, n);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW && !(ret = row(arg, &r)))
        ;
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        ret = fail(&s->read, err, sql);
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return ret < 0 ? -1 : 0;
}

static int first_int(void *arg, const struct tw_row *r)
{
    *(int64_t *)arg = tw_col_int(r, 0);
    return 1;
}

static int migrate(struct tw_store *s, const char *path, struct tw_err *err)
{
    int64_t version = 0;
    char line[64], *text = NULL;

    if (tw_store_read(s, "PRAGMA user_version", first_int, &version, err, ""))
        return -1;
    if (version > TW_STORE_VERSION)
        return tw_fail(err, path, 0, "is of version %lld, made by a newer tw-serve; this one knows up to %d",
                (long long)version, TW_STORE_VERSION);
    for (; version < TW_STORE_VERSION; version++) {
        snprintf(line, sizeof line, "; PRAGMA user_version = %lld; COMMIT", (long long)version + 1);
        if (sqlite3_exec(s->write.db, "BEGIN EXCLUSIVE", NULL, NULL, &text) != SQLITE_OK ||
                sqlite3_exec(s->write.db, tw_store_step[version], NULL, NULL, &text) != SQLITE_OK ||
                sqlite3_exec(s->write.db, line, NULL, NULL, &text) != SQLITE_OK) {
            tw_fail(err, path, 0, "cannot be made a store of version %lld: %s", (long long)version + 1,
                    text ? text : "?");
            sqlite3_free(text);
            return -1;
        }
    }
    return 0;
}

/* SQL's body_gone(n): the row of a body that is in a file goes. */
static void body_gone(sqlite3_context *c, int n, sqlite3_value **v)
{
    tw_shelf_drop(sqlite3_user_data(c), n ? sqlite3_value_int64(v[0]) : 0);
}

static bool in_file(void *arg, int64_t n)
{
    struct tw_err err = { 0 };
    int64_t found = 0;

    return tw_store_read(arg, "SELECT 1 FROM body WHERE n = ? AND coded > 1", first_int, &found, &err, "i",
                   n) || found;
}

static int open_conn(struct conn *c, const char *path, const char *pragmas, struct tw_err *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;

    if (sqlite3_open_v2(path, &c->db, flags, NULL) != SQLITE_OK ||
            sqlite3_exec(c->db, pragmas, NULL, NULL, NULL) != SQLITE_OK)
        return tw_fail(err, path, 0, "cannot open: %s", c->db ? sqlite3_errmsg(c->db) : "no memory");
    return sqlite3_busy_timeout(c->db, 10000) == SQLITE_OK ? 0 : -1;
}

static int lock_dir(struct tw_store *s, struct tw_err *err)
{
    char *path = tw_path_join(s->dir, "lock");
    int tries;

    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(path);
    if (s->lock_fd < 0)
        return tw_fail(err, s->dir, 0, "cannot write: %s", strerror(errno));
    for (tries = 0; flock(s->lock_fd, LOCK_EX | LOCK_NB) && tries < 20; tries++)
        usleep(50000);                          /* one that was killed a moment ago */
    if (tries == 20)
        return tw_fail(err, s->dir, 0, "another server uses this state");
    return 0;
}

struct tw_store *tw_store_open(const char *dir, struct tw_mailbox *box, struct tw_err *err)
{
    struct tw_store *s = tw_xcalloc(1, sizeof *s);
    char *path = tw_path_join(dir, "state.db");
    struct conn log = { 0 };

    s->dir = tw_mkdirs(dir, err) ? NULL : realpath(dir, NULL);
    if (!s->dir)
        s->dir = tw_xstrdup(dir);
    s->box = box;
    s->last = &s->first;
    s->lock_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->untidy, NULL);
    if (err->code || lock_dir(s, err) || tw_shelf_open(&s->shelf, s->dir, err) ||
            open_conn(&s->write, path, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
                " PRAGMA journal_size_limit = 67108864;"
                " PRAGMA cache_size = -16384; PRAGMA foreign_keys = OFF", err) ||
            open_conn(&s->read, path, "PRAGMA cache_size = -8192", err) || migrate(s, path, err) ||
            open_conn(&log, path, "PRAGMA cache_size = -2048", err)) {
        free(path);
        tw_store_close(s);
        return NULL;
    }
    sqlite3_create_function(s->write.db, "body_gone", 1, SQLITE_UTF8 | SQLITE_INNOCUOUS, &s->shelf, body_gone,
            NULL, NULL);
    tw_shelf_sweep(&s->shelf, in_file, s);
    s->tidy = log.db;
    sqlite3_wal_hook(s->write.db, on_commit, s);
    free(path);
    return s;
}

const char *tw_store_dir(const struct tw_store *s) { return s->dir; }

static void close_conn(struct conn *c)
{
    for (int i = 0; i < c->n; i++)
        sqlite3_finalize(c->cache[i].stmt);
    sqlite3_close(c->db);
}

void tw_store_close(struct tw_store *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    if (s->running) {
        pthread_join(s->thread, NULL);
        pthread_cond_signal(&s->untidy);
        if (s->tidy)
            pthread_join(s->tidier, NULL);
    }
    sqlite3_close(s->tidy);
    close_conn(&s->read);
    close_conn(&s->write);
    tw_shelf_close(&s->shelf);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    pthread_cond_destroy(&s->untidy);
    free(s->dir);
    free(s);
}
