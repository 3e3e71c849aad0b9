/* worker_priv.h - what the files of the engine thread share. Everything here but the inbox belongs to
 * that thread alone. */
#ifndef TW_WORKER_PRIV_H
#define TW_WORKER_PRIV_H
#include "run/engine.h"
#include "run/sampler.h"
#include "serve/filer.h"
#include "serve/keeper.h"
#include "serve/work.h"
#include <pthread.h>

/* Someone who is to be treated fairly: what the device spent on him, in seconds, in training and in
 * sampling. Who comes back after idle time starts where the least served of the others is. */
struct tw_who {
    struct tw_who *next;
    char *name;
    double spent[2];
    struct tw_work *head, *tail;        /* samples that have not begun */
    int64_t waiting;
};

/* A model: an adapter with its optimiser, or a copy of the weights, and what is asked of it. */
struct tw_pupil {
    struct tw_pupil *next;
    char *id, *dir;
    struct tw_who *who;
    struct tw_adapter *a;               /* NULL: all weights are trained, */
    struct tw_model *own;               /* these, */
    struct tw_engine engine;            /* by this; such a model is never parked */
    struct tw_optim *optim;             /* NULL while the adapter is parked */
    char *swap;                         /* file that holds it then; NULL: it is in memory */
    struct tw_kept *parked;             /* on its way there, of so many bytes; NULL: it is there */
    size_t image;
    int64_t updates;                    /* steps with a gradient, what bias corrections count */
    int64_t version;                    /* all changes of its weights */
    int64_t pending;                    /* forward_backwards whose gradient waits for a step */
    int64_t seq;                        /* of the last work that was done */
    int64_t snapped;                    /* version of the last snapshot */
    bool waits;                         /* the next one is due, and waited for files of frozen weights */
    struct tw_kept *kept;               /* the last one, on its way into its file; NULL */
    struct tw_nat_state nat;
    uint64_t used;                      /* for the choice of whom to park */
    struct tw_work *head, *tail;
    struct tw_fb *fb;                   /* head is under way */
};

/* Frozen weights. */
struct tw_snap {
    struct tw_snap *next;
    char *key, *dir;
    char *of;                           /* the model that they are of; NULL: not known any more */
    struct tw_adapter *a;               /* NULL: only in dir; parked: in filing */
    struct tw_filing *filing;           /* on its way into dir */
    bool full;                          /* a whole model in place of an adapter: */
    struct tw_model *model;             /* NULL: only in dir */
    struct tw_sampler *sampler;         /* on it */
    bool saved;                         /* dir holds them */
    bool gone;                          /* nobody may find it any more: freed with its last user */
    int64_t refs, version;
    uint64_t used;
    char *base;                         /* name of the base model, for the file */
};

enum { TW_TRAIN, TW_SAMPLING };         /* the two sides that share the device */

struct tw_worker {
    struct tw_worker_opts o;
    char *dir, *swap;
    struct tw_dev *dev;
    enum tw_dtype dtype;
    struct tw_model *model;
    struct tw_chat *chat;               /* owner of the tokenizer; NULL */
    const struct tw_tok *tok;
    uint8_t *allowed;                   /* [V] ids that are tokens; NULL: all */
    int32_t *end;
    int64_t nend;
    struct tw_limits limits;
    struct tw_engine engine;
    struct tw_sampler *sampler;
    struct tw_filer *filer;
    struct tw_keeper *keeper;           /* NULL: there are no snapshots */
    struct tw_keeper *swapper;
    double next_snapshot;               /* not before then, unless there is nothing else to do */
    int64_t max_batch, kept;            /* samples at once; and for those who have none */
    size_t pass_bytes;                  /* of the activations of a pass over pass_tokens */
    int64_t pass_tokens;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;               /* of these */
    pthread_cond_t more;
    struct tw_work *in, *in_tail;
    struct tw_work *cancelled;          /* works of no meaning but their ids */
    int stopping;                       /* 1: when all is done, 2: now */
    struct tw_worker_stat shown;

    struct tw_worker_stat stat;         /* as of now; shown as of the last turn */
    struct tw_who *who;
    struct tw_pupil *pupil;
    struct tw_snap *snap;
    struct tw_gen_job *job;             /* samples under way */
    double spent[2];
    uint64_t tick;
    int64_t files;                      /* names of swap files */
    struct tw_arena arena;              /* of one turn */
};

/* worker_open.c */
struct tw_sampler *tw_worker_sampler(struct tw_worker *k, struct tw_model *m, struct tw_err *err);

/* plan.c: how the base is opened, with room for adapters beside its weights; how many adapters fit, into
 * k->o.max_adapters; whether a sequence of so many tokens does. */
struct tw_model_opts tw_worker_base(const struct tw_worker *k);
int tw_worker_plan(struct tw_worker *k, struct tw_err *err);
int tw_plan_fits(struct tw_worker *k, int64_t tokens, struct tw_err *err);

/* worker.c */
void *tw_worker_thread(void *worker);
/* Hands W back with what is in its result. tw_work_fail() fills it from ERR first. */
void tw_work_done(struct tw_worker *k, struct tw_work *w);
void tw_work_fail(struct tw_worker *k, struct tw_work *w, const char *category,
        const struct tw_err *err);
struct tw_who *tw_who_get(struct tw_worker *k, const char *name);

/* state.c: a pupil's numbers as one file. What they were saved from must be what takes them back. */
size_t tw_pupil_bytes(const struct tw_pupil *p);
void tw_pupil_image(const struct tw_pupil *p, void *to);        /* what tw_state_file() is to write */
int tw_pupil_take(struct tw_pupil *p, const void *image, size_t n, struct tw_err *err);
int tw_pupil_write(const struct tw_pupil *p, const char *path, bool sync, struct tw_err *err);
int tw_pupil_read(struct tw_pupil *p, const char *path, struct tw_err *err);
/* First p->nat alone, which says what the moments are of. */
int tw_pupil_peek(struct tw_pupil *p, const char *path, struct tw_err *err);

/* pool.c */
struct tw_pupil *tw_pupil_find(struct tw_worker *k, const char *id);
/* In memory from now until the turn ends, at the expense of others if need be. */
int tw_pupil_wake(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err);
void tw_pupil_free(struct tw_worker *k, struct tw_pupil *p);
const struct tw_params *tw_pupil_params(const struct tw_pupil *p);
int tw_pupil_optim(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err);
/* Makes room for N of these in memory. */
enum { TW_ROOM_SNAP = 1, TW_ROOM_PUPIL = 4 };
void tw_pool_room(struct tw_worker *k, int64_t n);

/* snap.c */
struct tw_snap *tw_snap_find(struct tw_worker *k, const char *key);
/* The weights for a sample, in memory and held until tw_snap_release(). */
struct tw_snap *tw_snap_hold(struct tw_worker *k, const char *key, const char *dir,
        struct tw_err *err);
void tw_snap_release(struct tw_worker *k, struct tw_snap *s);
/* Takes over A; one of the same key is replaced. */
struct tw_snap *tw_snap_add(struct tw_worker *k, const char *key, const char *dir, const char *base,
        struct tw_adapter *a, int64_t version);
/* In its folder, for good, when this returns 0. */
int tw_snap_save(struct tw_worker *k, struct tw_snap *s, struct tw_err *err);
/* In its folder, whatever becomes of the process; the disk gets it soon. */
int tw_snap_keep(struct tw_worker *k, struct tw_snap *s, struct tw_err *err);
void tw_snap_drop(struct tw_worker *k, struct tw_snap *s);
/* Lets go of what has reached its folder. */
void tw_snap_settle(struct tw_worker *k);
bool tw_snap_resident(const struct tw_snap *s);
/* Out of the device's memory; its folder has it sooner or later. */
int tw_snap_leave(struct tw_worker *k, struct tw_snap *s, struct tw_err *err);
/* Sends into their folders what only memory holds of frozen weights of P. 1: all are there, as they are in
 * the end with WAIT; 0: not yet. */
int tw_snap_flush(struct tw_worker *k, const struct tw_pupil *p, bool wait, struct tw_err *err);

/* verbs.c: everything that is done in one go. */
void tw_verb_do(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w);
/* Work that makes its model: NULL when W was done (failed) at once. */
struct tw_pupil *tw_verb_pupil(struct tw_worker *k, struct tw_work *w);
/* W, which is no longer in P's queue, went well: it is handed back, and P snapshot where that cannot wait. */
void tw_verb_done(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w);
/* Where WAIT is false, it may be put off, and what is taken gets into its file later. */
int tw_pupil_snapshot(struct tw_worker *k, struct tw_pupil *p, bool wait, struct tw_err *err);

/* What DIR's trainer/ says of the optimiser, into P; and P's own, into DIR. */
int tw_verb_moments(struct tw_worker *k, struct tw_pupil *p, const char *dir, struct tw_err *err);
int tw_verb_state(const struct tw_pupil *p, const char *dir, struct tw_err *err);

/* full.c: models all of whose weights are trained. */
bool tw_full_dir(const char *dir);              /* holds a whole model, not an adapter */
int tw_full_make(struct tw_worker *k, struct tw_pupil *p, const char *from, struct tw_err *err);
int tw_full_save(struct tw_worker *k, struct tw_pupil *p, bool optimizer, const char *dir,
        struct tw_err *err);
int tw_full_load(struct tw_worker *k, struct tw_pupil *p, const struct tw_load_args *l, struct tw_err *err);
int tw_full_snapshot(struct tw_worker *k, struct tw_pupil *p, const char *path, struct tw_err *err);
int tw_full_restore(struct tw_worker *k, struct tw_pupil *p, const char *dir, struct tw_err *err);
/* S in memory, with a sampler of its own; another that nobody samples from makes room. */
int tw_full_enter(struct tw_worker *k, struct tw_snap *s, struct tw_err *err);
void tw_full_leave(struct tw_worker *k, struct tw_snap *s);
/* Whether a whole model other than KEY's is being sampled from. */
bool tw_full_busy(const struct tw_worker *k, const char *key);

/* fb.c: a pass over data of as many models as have some. CAND in the order of whose turn it is. */
void tw_fb_pass(struct tw_worker *k, struct tw_pupil **cand, int64_t n);
void tw_fb_abort(struct tw_worker *k, struct tw_pupil *p);

/* steps.c: the optim_steps that are at the heads of queues, as one. */
void tw_steps(struct tw_worker *k, struct tw_pupil **cand, int64_t n);

/* gen.c */
void tw_gen_submit(struct tw_worker *k, struct tw_work *w);
bool tw_gen_busy(const struct tw_worker *k);
void tw_gen_turn(struct tw_worker *k);
int64_t tw_gen_load(const struct tw_worker *k);         /* samples that run */
bool tw_gen_cancel(struct tw_worker *k, const char *id);
void tw_gen_fail_all(struct tw_worker *k);      /* TW_ENDING */

#endif
