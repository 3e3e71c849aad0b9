/* records.h - what the server knows of: futures, runs, checkpoints, samplers. Each is in the store, too,
 * and is read from there at the start. All of it belongs to the loop's thread. */
#ifndef TW_SERVE_RECORDS_H
#define TW_SERVE_RECORDS_H
#include "serve/srv_priv.h"
#include "serve/work.h"

struct tw_trun;

/* A request that was accepted, until some time after it is done; the store knows it longer. */
enum tw_future_state { TW_FUTURE_OPEN, TW_FUTURE_DONE, TW_FUTURE_FAILED };
struct tw_future {
    char *id, *dedup; /* dedup: names what may run once; NULL */
    enum tw_kind kind;
    struct tw_tenant *tenant;
    char *session, *target; /* target: run or sampling session */
    int64_t seq; /* -1: none */
    char *type; /* how the body is written: "json", "proto", "forward" */
    char *digest; /* of the body */
    char *reply; /* what the submit is answered with, JSON */
    enum tw_future_state state;
    bool accepted; /* the journal has it */
    bool settling; /* done; the store does not know yet */
    bool replay; /* done before; again for its effect on the model */
    struct tw_blob *json, *proto; /* the result; NULL again when only the store has it */
    double created, done;
    struct tw_poll *polls;
    struct tw_submit *submits; /* requests that wait for the journal */
    struct tw_trun *run; /* the model's, for what has a place in its order */
    struct tw_work *work; /* until the engine has it */
    struct tw_future *next; /* in the run's order */
    int64_t charged; /* tokens taken from the tenant's minute */
    bool ephemeral; /* a sampler that only memory may have */
    bool counted; /* among the tenant's unfinished */
    void *save; /* save.c's: what is registered when it went well */
    /* Whom to tell that it is done, or that the journal has no room for it (not accepted); NULL. */
    void (*hear)(struct tw_srv *s, struct tw_future *f);
    struct tw_req *heard;
};

struct tw_trun {
    char *id;
    struct tw_tenant *tenant;
    struct tw_sess *sess;
    char *session;
    double created, used;
    char *base, *lora, *user_metadata, *project; /* lora: JSON, see run.c; NULL: all weights */
    char *state; /* "new", "live", "failed", "ended", "copy" */
    int64_t n, rank;
    int64_t snap_seq;
    char *snap; /* the file; NULL */
    /* Order. */
    int64_t next_seq;
    struct tw_future *waiting; /* by seq, ascending */
    double gap_since; /* since when a later request waits for next_seq; 0: none does */
    bool held; /* a quota holds it */
    char *inflight_key, *inflight_dir;
    char *idem, *copied; /* of a copy: what it may be made once for, and its checkpoint */
    /* Of the native API: what was set, what the last forward was given and its loss; its last number. */
    char *conf, *nat_fwd, *nat_loss;
    int64_t nat_last;
    double metric_at;
    /* Its curves: the sums of the step under way, and the last step. */
    double curve_loss, curve_weight, last_loss;
    int64_t curve_step;
};

struct tw_saved {
    char *path; /* "RUN/KIND/NAME": the key of the map */
    char *run, *kind, *name;
    struct tw_tenant *tenant;
    char *dir, *key; /* key: what samples call these weights */
    double created, expires; /* expires 0: never */
    int64_t bytes, n;
    bool public, optimizer;
    char *user_metadata, *base, *lora;
};

struct tw_smp {
    char *id;
    struct tw_tenant *tenant;
    struct tw_sess *sess;
    char *session;
    double created;
    char *base, *path, *dir, *key, *run; /* path: of a checkpoint; key NULL: the base */
    bool inflight;
    int64_t clones, n;
    struct tw_event *event; /* futures.c's */
    int64_t nevent;
};

/* future.c */
struct tw_future *tw_future_new(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const char *session, const char *target, int64_t seq);
/* The one with that id, or that did what DEDUP names; read from the store if it must be. */
struct tw_future *tw_future_get(struct tw_srv *s, struct tw_tenant *t, struct tw_str id);
struct tw_future *tw_future_dedup(struct tw_srv *s, const char *dedup);
/* The submit R is answered with f->reply when the journal has F. */
void tw_future_answer(struct tw_srv *s, struct tw_future *f, struct tw_req *r);
/* Writes F and R's body to the journal with what else is in O (NULL: nothing), answers its submits, then
 * calls accepted(s, f). */
void tw_future_accept(struct tw_srv *s, struct tw_future *f, struct tw_req *r, struct tw_op *o);
/* The same with BODY in place of what came. */
void tw_future_accept_text(struct tw_srv *s, struct tw_future *f, struct tw_str body, struct tw_op *o);
/* Ends F. JSON and PROTO are taken over; O (NULL: nothing) goes into the same transaction. */
void tw_future_done(struct tw_srv *s, struct tw_future *f, struct tw_blob *json, struct tw_blob *proto,
        struct tw_op *o);
void tw_future_fail(struct tw_srv *s, struct tw_future *f, const char *category, const char *text);
void tw_future_tick(struct tw_srv *s, double now, double wall);
void tw_future_sign(
        struct tw_srv *s, const struct tw_tenant *t, char *hex); /* 16 digits, and 16 that prove them */
void tw_future_prune(struct tw_srv *s, double wall); /* what the store need not keep any more */
void tw_future_release(struct tw_srv *s); /* the server ends: every poll is answered */
void tw_future_free_all(struct tw_srv *s);
bool tw_future_has_effect(const struct tw_future *f); /* on its model: it is replayed */
struct tw_future *tw_future_row(struct tw_srv *s, const struct tw_row *r);
#define TW_FUTURE_COLUMNS                                                                                  \
    "id, tenant, kind, session, target, seq, dedup, type, digest, state, created, done,"                   \
    " json, proto, reply"
/* {"request_id": .., "model_id": ..} */
void tw_future_reply_text(struct tw_future *f, const char *model, const char *extra);

/* taken.c: what the sampler recorded of sequences. The name of sample I of request F; an operation that
 * keeps what W, which is done, sampled; the old policy of stable_reinforce's data, from there. */
char *tw_taken_name(const struct tw_future *f, int64_t i);
struct tw_op *tw_taken_keep(struct tw_srv *s, const struct tw_future *f, const struct tw_work *w);
void tw_taken_fill(struct tw_srv *s, struct tw_work *w);
int tw_taken_load(struct tw_srv *s, struct tw_err *err);
void tw_taken_tick(struct tw_srv *s, double wall);
void tw_taken_free_all(struct tw_srv *s);

/* poll.c */
void tw_poll_wake(struct tw_srv *s, struct tw_future *f); /* F is done */
void tw_poll_expire(struct tw_srv *s, double now);

/* futures.c */
void tw_futures_event(struct tw_srv *s, const struct tw_future *f);
void tw_futures_tick(struct tw_srv *s, double now);

/* order.c */
/* A run's request whose turn comes by its number; one without a number goes at once. */
void tw_order_add(struct tw_srv *s, struct tw_future *f);
void tw_order_advance(struct tw_srv *s, struct tw_trun *run);
void tw_order_replayed(struct tw_srv *s); /* one of s->nreplay */
void tw_order_tick(struct tw_srv *s, double now);
/* Hands F's work to the engine, or fails F with what is wrong with it. */
void tw_order_dispatch(struct tw_srv *s, struct tw_future *f);

/* run.c */
struct tw_trun *tw_trun_of(struct tw_srv *s, struct tw_req *r, struct tw_str id); /* else a 404 was sent */
struct tw_trun *tw_trun_add(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_str session);
void tw_trun_insert(struct tw_trun *run, struct tw_op *o);
/* One that W is to make, not yet in the store. */
struct tw_trun *tw_trun_make(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_sess *sess,
        struct tw_str base, struct tw_work *w);
int tw_trun_load(struct tw_srv *s, struct tw_err *err);
void tw_trun_free_all(struct tw_srv *s);
void tw_trun_end(struct tw_srv *s, struct tw_trun *run, bool send); /* SEND: and frees its model */
void tw_trun_failed(struct tw_srv *s, struct tw_trun *run);
/* Whether a run other than BUT trains all weights: there may be one at a time. */
bool tw_trun_full(const struct tw_srv *s, const struct tw_trun *but);
void tw_trun_finish(struct tw_srv *s, struct tw_future *f, struct tw_work *w);
void tw_trun_from(struct tw_work *w, const struct tw_saved *c, bool optimizer);
struct tw_work *tw_trun_work(struct tw_srv *s, struct tw_trun *run, enum tw_verb verb);
bool tw_base_known(const struct tw_srv *s, struct tw_str name);
/* A text field of a run's lora object; numbers and flags of it. */
int64_t tw_lora_int(const char *lora, const char *key, int64_t def);

/* train.c */
/* The work that a journalled or fresh body asks for; names in it are looked up for tenant T. What is wrong
 * with its meaning is in the work's refused; NULL: a body that cannot be read, or must not be. */
struct tw_work *tw_decode(struct tw_srv *s, enum tw_kind kind, const char *type, struct tw_tenant *t,
        struct tw_str body, struct tw_err *err);
/* R asks for W of RUN as number SEQ: answered now or when the journal has it. */
void tw_train_submit(struct tw_srv *s, struct tw_req *r, enum tw_kind kind, const char *type);
void tw_refuse(struct tw_work *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *tw_digest(struct tw_str body);

/* save.c: checkpoints */
struct tw_work *tw_save_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_json *j, struct tw_err *err);
/* Before the engine gets it: folder, what is registered afterwards. */
void tw_save_prepare(struct tw_srv *s, struct tw_future *f);
void tw_save_finish(struct tw_srv *s, struct tw_future *f, struct tw_work *w);
void tw_save_drop(struct tw_future *f);
void tw_work_drop(struct tw_work *w); /* one that the engine never saw */
void tw_saved_insert(struct tw_saved *c, struct tw_op *o);
/* C once more, under RUN with the files in DIR. */
struct tw_saved *tw_saved_copy(
        struct tw_srv *s, const struct tw_saved *c, const char *run, const char *dir);
struct tw_saved *tw_saved_find(struct tw_srv *s, struct tw_tenant *t, struct tw_str path, char why[160]);
int tw_saved_load(struct tw_srv *s, struct tw_err *err);
void tw_saved_remove(struct tw_srv *s, struct tw_saved *c, struct tw_op *o);
void tw_saved_tick(struct tw_srv *s, double wall);
void tw_saved_free_all(struct tw_srv *s);
/* smp.c: samplers */
void tw_smp_prepare(struct tw_srv *s, struct tw_future *f); /* which weights, which seed */
struct tw_smp *tw_smp_of(struct tw_srv *s, struct tw_req *r, struct tw_str id); /* else a 404 was sent */
struct tw_smp *tw_smp_add(struct tw_srv *s, const char *id, struct tw_tenant *t, struct tw_str session);
void tw_smp_insert(struct tw_srv *s, struct tw_smp *p, struct tw_op *o);
/* More TOKENS than the tenant may have now: a 429 was sent. */
bool tw_smp_throttled(struct tw_srv *s, struct tw_req *r, int64_t tokens);
int tw_smp_load(struct tw_srv *s, struct tw_err *err);
void tw_smp_end(struct tw_srv *s, struct tw_smp *p);
void tw_smp_free_all(struct tw_srv *s);

/* page.c: what a work that is done adds to the curves of its run. */
int tw_curve_load(struct tw_srv *s, struct tw_err *err);      /* the last of each */
void tw_curve_note(struct tw_srv *s, struct tw_trun *run, const struct tw_work *w);

/* glue.c: between the engine's thread and this one. */
int tw_glue_open(struct tw_srv *s, struct tw_err *err);
void tw_glue_submit(struct tw_srv *s, struct tw_future *f, struct tw_work *w);
void tw_glue_send(struct tw_srv *s, struct tw_work *w); /* nobody waits for its result */
int tw_replay(struct tw_srv *s, struct tw_err *err); /* what the journal holds, into the engine */

#endif
