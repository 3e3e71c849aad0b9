/* shelf.h - bodies too long for rows: DIR/journal/N holds what row N of a request came with, written in one
 * go before the row is committed and gone after the row is. Belongs to the store's writer. */
#ifndef TW_SERVE_SHELF_H
#define TW_SERVE_SHELF_H
#include "base/buf.h"
#include "base/err.h"

#define TW_SHELF_MIN ((size_t)32 << 10)     /* bytes; shorter ones are faster in the database */

struct tw_shelf {
    char *dir;
    int64_t *gone;                  /* whose rows go with the transaction under way */
    size_t n, cap;
};

int tw_shelf_open(struct tw_shelf *s, const char *dir, struct tw_err *err);
int tw_shelf_put(struct tw_shelf *s, int64_t n, const void *p, size_t bytes, struct tw_err *err);
/* Row N is deleted by the transaction under way, after which comes tw_shelf_settle(). Who goes back to a
 * savepoint sets s->n back. */
void tw_shelf_drop(struct tw_shelf *s, int64_t n);
void tw_shelf_settle(struct tw_shelf *s, bool committed);
/* Files for whose number known() is false are removed. */
void tw_shelf_sweep(struct tw_shelf *s, bool (*known)(void *arg, int64_t n), void *arg);
void tw_shelf_close(struct tw_shelf *s);

/* What is in the file of row N of the store in DIR; any thread. It must be of BYTES. */
int tw_shelf_read(const char *dir, int64_t n, size_t bytes, struct tw_buf *out, struct tw_err *err);

#endif
