/* store.h - the state folder: SQLite in WAL mode, written by one thread of its own, group after group:
 * what was queued while the last group was committed is the next one. What an operation's done()
 * hears is on disk as far as the system is concerned: killing the server does not lose it.
 *
 *     struct tw_op *o = tw_op_new(answered, req);
 *     tw_op_add(o, "INSERT INTO session (id, tenant) VALUES (?, ?)", "tt", id, tenant);
 *     tw_store_submit(store, o);              answered(arg, o) on the loop's thread, o->err filled or not
 *
 * DIR holds state.db, lock (an flock while a server uses it), journal/ (long bodies; shelf.h) and the
 * folders of models and checkpoints. The schema has a version; older ones are brought up to date when
 * they are opened, newer ones refused. */
#ifndef TW_SERVE_STORE_H
#define TW_SERVE_STORE_H
#include "base/buf.h"
#include "serve/httpd.h"
#include "serve/mail.h"

struct tw_store;
struct tw_stmt_args;

struct tw_op {
    struct tw_mail mail;
    void (*done)(void *arg, struct tw_op *o);   /* NULL: nobody waits; o is freed afterwards */
    void *arg;
    void *user, *user2;             /* the caller's */
    int64_t number;                 /* of the row that its last INSERT made */
    struct tw_err err;              /* err.code: it did not happen, none of it */
    struct tw_arena arena;
    struct tw_stmt_args *first, *last;
};

struct tw_op *tw_op_new(void (*done)(void *arg, struct tw_op *o), void *arg);
/* One statement more. SQL is a constant; TYPES has a letter for each value: t text (NULL is NULL),
 * s struct tw_str, i int64_t, d double, b struct tw_blob * (a reference is taken; NULL is NULL),
 * f a blob for the file of the row that was inserted before, bound as its length, n NULL. */
void tw_op_add(struct tw_op *o, const char *sql, const char *types, ...);
void tw_op_free(struct tw_op *o);

/* Opens and migrates DIR; a server that has it is an error. BOX gets the answers. The thread starts
 * with the first tw_store_submit(). */
struct tw_store *tw_store_open(const char *dir, struct tw_mailbox *box, struct tw_err *err);
void tw_store_submit(struct tw_store *s, struct tw_op *o);
int64_t tw_store_queued(struct tw_store *s);

/* Reads on the caller's thread, over a connection of its own. row() gets a cursor for tw_col_*(), valid
 * during the call; it returns other than 0 to stop. -1: the store failed. */
struct tw_row;
int tw_store_read(struct tw_store *s, const char *sql, int (*row)(void *arg, const struct tw_row *r), void *arg,
        struct tw_err *err, const char *types, ...);
int64_t tw_col_int(const struct tw_row *r, int i);
double tw_col_num(const struct tw_row *r, int i);
struct tw_str tw_col_str(const struct tw_row *r, int i);        /* borrowed; p NULL for NULL */
char *tw_col_dup(const struct tw_row *r, int i);                /* NULL for NULL */
struct tw_blob *tw_col_blob(const struct tw_row *r, int i);     /* NULL for NULL */

const char *tw_store_dir(const struct tw_store *s);
/* Commits what is queued and lets go of DIR; what was done is in the mailbox then. */
void tw_store_close(struct tw_store *s);

#endif
