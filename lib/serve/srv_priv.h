/* srv_priv.h - what the server's own files share. All of it belongs to the loop's thread. */
#ifndef TW_SERVE_SRV_PRIV_H
#define TW_SERVE_SRV_PRIV_H
#include "base/json.h"
#include "base/log.h"
#include "serve/httpd.h"
#include "serve/keys.h"
#include "serve/kind.h"
#include "serve/mail.h"
#include "serve/map.h"
#include "serve/srv.h"
#include "serve/store.h"
#include <stdio.h>

struct tw_sess {
    char *id, *idem;
    struct tw_tenant *tenant;
    double created, seen;           /* seconds since 1970 */
    bool dirty;                     /* seen is newer than the store's */
    char *finished, *detail;        /* NULL while it lives: success, errored, interrupted, expired */
    double ended;
    char *tags, *user_metadata;     /* JSON, or NULL */
    char *display_name, *project, *sdk;
    char *nat_template;             /* set_template of the native API's sampler; NULL */
};

struct tw_log_file {
    FILE *fp;
    const char *path;
    bool failing;       /* the last line was not written whole, which was said */
};

#define TW_SUBMIT_BUCKETS 10
extern const double tw_submit_bucket[TW_SUBMIT_BUCKETS];    /* upper ends; the last has none */

struct tw_list_of {
    void **v;
    int64_t n;
};

struct tw_srv {
    const struct tw_serve_opts *o;
    struct tw_httpd *http;
    struct tw_keys *keys;
    struct tw_store *store;
    struct tw_mailbox box;
    struct tw_map_of sessions, idem;    /* of struct tw_sess: by id; by "TENANT KEY" */
    struct tw_sess **sess;              /* [nsess] as they were made */
    int64_t nsess;
    struct tw_map_of futures, dedup;    /* of struct tw_future: by id; by what may run once */
    struct tw_map_of runs, ckpts, samplers;
    struct tw_list_of run, ckpt, sampler;   /* the same as they were made */
    struct tw_map_of taken;             /* taken.c's: what was recorded of sequences */
    size_t taken_bytes;
    double taken_swept;
    struct tw_map_of copies;            /* idempotency key to the path of the copy that it made */
    bool has_secret;
    unsigned char secret[32];           /* signs links */
    struct tw_watch *watches;
    int64_t event_n, event_base;        /* numbers of what was done; where this start's begin */
    int64_t nreplay;                    /* requests that are done again for their effect */
    struct tw_list_of early;            /* samples that wait until that is over */
    struct tw_poll *polls, *last_poll;  /* by deadline */
    int64_t npolls, nheld, nskipped, ndone[2];
    int64_t next_n;                     /* names the next folder */
    double next_evict, next_sweep;
    char *swap;
    const char *tokenizer;              /* what clients load the tokenizer from; NULL: the name */
    bool closing;
    int64_t tokens_trained, tokens_sampled;
    struct tw_worker *worker;
    const struct tw_limits *limits;
    struct tw_chat *chat[3];            /* of texts: as the template says, without and with thinking; NULL:
                                         * not yet opened */
    struct tw_nat_up *nat_up;           /* uploads to hubs; nat_hub.c's */
    struct tw_nat_open *nat_chat;       /* templates that clients of the native API set; nat_input.c's */
    const char **name;                  /* [nname] of the base model */
    int nname;
    int64_t window;                     /* of the model, in tokens */
    char *tmp;                          /* the state folder, when it is the server's own to remove */
    struct tw_log_file access;
    double next_tick, started, sess_saved, pruned;
    int64_t by_status[6], nrequests;
    double seconds_sum, submit_sum;
    int64_t submit[TW_SUBMIT_BUCKETS];  /* requests that are no polls, by how long they took */
    bool stopping;
    struct tw_np *np;                   /* nproc.c's */
};

struct tw_endpoint {
    const char *method, *pattern;       /* segments; * is any one */
    unsigned right;                     /* one of these; 0: open to all */
    void (*handle)(struct tw_srv *s, struct tw_req *r);
};

/* route.c */
void tw_route_begin(struct tw_req *r);
void tw_route_handle(struct tw_req *r);
void tw_route_done(struct tw_req *r, int status, size_t in, size_t out, double seconds);
extern const struct tw_endpoint tw_routes_session[], tw_routes_ops[], tw_routes_future[], tw_routes_futures[],
    tw_routes_run[], tw_routes_train[], tw_routes_smp[], tw_routes_oai[], tw_routes_page[],
    tw_routes_rest[], tw_routes_ckpt[], tw_routes_nat[], tw_routes_gate[],
    tw_routes_account[], tw_routes_nproc[];     /* each ends with method NULL */

/* util.c */
double tw_wall(void);                           /* seconds since 1970 */
const char *tw_iso(char out[40], double t);     /* 2026-08-08T03:35:23.070234Z */
void tw_uuid(char out[40]);
void tw_random_bytes(void *p, size_t n);
void tw_random_hex(char *out, int nbytes);      /* 2 * nbytes + 1 characters */
/* The body as a JSON object; NULL when it is none, and a 400 was sent. */
const struct tw_json *tw_req_json(struct tw_req *r);
/* A text field: 1 there, 0 absent and not NEEDED, -1 a 400 was sent. */
int tw_req_text(struct tw_req *r, const struct tw_json *j, const char *key, bool needed, struct tw_str *out);
char *tw_str_dup(struct tw_str s);              /* NULL for p NULL */
bool tw_id_ok(struct tw_str s);                 /* letters, digits and . _ - : @, 1 to 200 */
void tw_audit(struct tw_srv *s, struct tw_op *o, const struct tw_tenant *t, const char *event,
        const char *detail);
void tw_alert(struct tw_srv *s, const char *event, const char *text);

void tw_list_add(struct tw_list_of *l, void *v);
void tw_list_del(struct tw_list_of *l, const void *v);
/* STATE/KIND/N, which is made where MAKE, and its parent always. */
char *tw_state_dir(struct tw_srv *s, const char *kind, int64_t n, bool make);

/* sess.c */
/* A live session of the request's tenant; else a 403, or a 410 for one that ended, was sent. */
struct tw_sess *tw_sess_of(struct tw_srv *s, struct tw_req *r, struct tw_str id);
int tw_sess_load(struct tw_srv *s, struct tw_err *err);
void tw_sess_tick(struct tw_srv *s, double wall);
void tw_sess_free(struct tw_srv *s);

/* nproc.c */
int tw_np_open(struct tw_srv *s, struct tw_err *err);
void tw_np_tick(struct tw_srv *s, double now);
int64_t tw_np_count(const struct tw_srv *s);    /* objects */
void tw_np_stop(struct tw_srv *s);              /* its threads; what they did comes as mail */
void tw_np_free(struct tw_srv *s);

#endif
