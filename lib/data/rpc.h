/* rpc.h - requests to a server that answers later, many in flight at once. A request goes out again,
 * word for word, when the connection is lost, when the server is away for a while, or when it asks to
 * be left alone (429, Retry-After); as every request of ours carries a number by which the server
 * knows a repeat, each is done once. A future's result is waited for by long polls, through a restart
 * of the server, too. One thread at a time.
 *
 *     struct tw_rpc *r = tw_rpc_open(tw_rpc_server(), &err);
 *     struct tw_call *c = tw_rpc_send(r, "POST", "/api/v1/optim_step", body, TW_RPC_FUTURE);
 *     if (!tw_call_wait(c, &result, &err))
 *         ..
 *     tw_call_free(c);
 */
#ifndef TW_RPC_H
#define TW_RPC_H
#include "base/json.h"
#include <stdio.h>

struct tw_rpc;          /* a server, and the connections to it */
struct tw_call;         /* one request */

/* $TW_SERVER: http://HOST:PORT, https://.., unix:PATH. NULL: it is not set. */
const char *tw_rpc_server(void);
/* Looks at the address, and takes the key from $TW_API_KEY; nothing is sent yet. */
struct tw_rpc *tw_rpc_open(const char *server, struct tw_err *err);
/* Calls that are left are freed with it. */
void tw_rpc_close(struct tw_rpc *r);
const char *tw_rpc_name(const struct tw_rpc *r);        /* the server, as the user wrote it */

enum { TW_RPC_FUTURE = 1 };     /* the reply names a future: its result is the answer */
/* BODY is copied; empty for none. */
struct tw_call *tw_rpc_send(struct tw_rpc *r, const char *method, const char *path, struct tw_str body,
        unsigned flags);
/* Sends what waits, takes what comes; sleeps up to MS milliseconds when nothing does. */
void tw_rpc_turn(struct tw_rpc *r, int ms);
bool tw_call_done(const struct tw_call *c);
/* Turns until C is answered. *OUT (may be NULL) lives as long as C; NULL for an empty answer. -1: what
 * was asked is wrong (TW_EFAIL), or the server refused for another reason, or was away for minutes. */
int tw_call_wait(struct tw_call *c, const struct tw_json **out, struct tw_err *err);
/* Its future is of no use any more: says so to the server, and does not wait. */
void tw_call_cancel(struct tw_call *c);
void tw_call_free(struct tw_call *c);
/* The bytes at PATH into FP, which is cut to what came. */
int tw_rpc_get(struct tw_rpc *r, const char *path, FILE *fp, struct tw_err *err);
/* From now on POSTs BODY to PATH every S seconds on a thread of its own, until tw_rpc_close(). */
void tw_rpc_beat(struct tw_rpc *r, const char *path, const char *body, double s);

#endif
