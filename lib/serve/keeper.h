/* keeper.h - a thread that puts the states of models into files and waits for the disk, so that the engine's
 * thread need not: with a large adapter that takes longer than many a step. */
#ifndef TW_KEEPER_H
#define TW_KEEPER_H
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tw_keeper;
struct tw_kept;                         /* a state on its way */

/* A state is in its file, for good; on the keeper's thread. */
typedef int tw_keeper_done(void *arg, const char *model, int64_t seq, const char *path);

/* DONE NULL: files for this process alone, which need not reach the disk; of those that cannot be written
 * the bytes stay until tw_kept_free(). */
struct tw_keeper *tw_keeper_open(tw_keeper_done *done, void *arg);
/* N bytes to put a state in; NULL: too much is on its way already, or there is no memory. */
void *tw_keeper_room(struct tw_keeper *k, size_t n);
/* The N bytes in ROOM, which is taken over, go to PATH with their checksum (tw_state_file()). */
struct tw_kept *tw_keeper_add(struct tw_keeper *k, void *room, size_t n, const char *model, int64_t seq,
        const char *path);
/* Whether it is still on its way; WAIT: until it is not. */
bool tw_kept_busy(struct tw_keeper *k, const struct tw_kept *e, bool wait);
/* With DONE NULL: its bytes, unless the file has them; if they are not on their way yet they stay here. */
const void *tw_kept_take(struct tw_keeper *k, struct tw_kept *e);
void tw_kept_free(struct tw_keeper *k, struct tw_kept *e);      /* waits for it */
void tw_keeper_close(struct tw_keeper *k);                      /* nothing is on its way */

/* N bytes and their CRC-32C into the file PATH, which is whole or what it was; SYNC: and lasts. */
int tw_state_file(const char *path, const void *p, size_t n, bool sync, struct tw_err *err);

#endif
