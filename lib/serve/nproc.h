/* nproc.h - datasets, loaders, preprocessors, rewards and templates that clients of Twinkle's own
 * protocol keep on the server: /api/v1/processor/twinkle/create and /call. An object belongs to its
 * tenant, is named by an id that nobody can guess, and ends with its session or by age; after a start
 * of the server it is made again by the same calls. The loop's thread keeps the table and the order of
 * calls; two threads of their own do what is called, one what is long (reading, mapping, encoding), one
 * what is short, and one call of an object at a time. Rows are in unnamed files under the state, so
 * memory does not grow with the data. */
#ifndef TW_SERVE_NPROC_H
#define TW_SERVE_NPROC_H
#include "serve/srv_priv.h"
#include "data/chat.h"
#include "run/process.h"
#include "run/reward.h"
#include <stdatomic.h>

enum {
    TW_NP_OBJECTS = 20,   /* of a tenant */
    TW_NP_WAITING = 64,   /* calls of a tenant that are not answered yet */
    TW_NP_SOURCES = 16,   /* of a dataset */
    TW_NP_ROWS = 4 << 20, /* of a source */
    TW_NP_REFS = 4,       /* objects that one call names */
    TW_NP_AGE_S = 36000   /* without a call, until an object ends */
};
#define TW_NP_BYTES ((int64_t)4 << 30)   /* of a source */
#define TW_NP_ANSWER ((size_t)256 << 20) /* of one answer */

struct tw_np_job;

enum tw_np_type {
    TW_NP_DATASET,
    TW_NP_LOADER,
    TW_NP_PREPROCESSOR,
    TW_NP_PROCESSOR,
    TW_NP_REWARD,
    TW_NP_TEMPLATE
};

struct tw_np_obj {
    char id[40]; /* "pid:" and 32 digits */
    enum tw_np_type type;
    struct tw_tenant *tenant;
    char *session; /* NULL: it was made outside of one */
    double used;
    int refs;               /* the table's, those of calls and of loaders */
    bool gone;              /* dropped: no longer in the table */
    int64_t ncalls;         /* not answered yet */
    struct tw_np_obj *home; /* whose turns its calls take: a loader's is its dataset */
    struct tw_np_obj *uses; /* that dataset, referenced */
    struct tw_np_job *now, *first, **last; /* of a home: the call being done; those that wait */
    int64_t bytes;                         /* of its rows */
    bool kept;                             /* the store knows it */
    bool ended;                            /* before the start: here for those that it went into */
    char *where;                           /* after a start: the position to go to; NULL: none */
    void *impl;                            /* of the type, see below; NULL until it is made */
};

/* What the threads may know of the server; constant while they run. */
struct tw_np_env {
    const char *model_dir;
    const char *const *name; /* [nname] of the base model */
    int nname;
    const struct tw_list *data; /* --data */
    const char *tmp;            /* folder of unnamed files */
    const char *saved;          /* folder of what tenants save, one each */
    struct tw_np_base {         /* the model's template, opened when it is first needed */
        pthread_mutex_t lock;
        struct tw_chat *chat;
    } * base;
};

/* Arguments by name; `used` marks those that were asked for. */
struct tw_np_args {
    const struct tw_json *obj;
    uint64_t used;
    struct tw_arena *a;
    const char *what; /* for messages */
};

/* A call on its way. The thread that does it owns all but `req`. */
struct tw_np_job {
    struct tw_mail mail; /* first */
    struct tw_np_job *next;
    struct tw_np *np;
    struct tw_np_obj *obj, *ref[TW_NP_REFS];
    int nref;
    const struct tw_np_fn *fn;
    struct tw_req *req; /* NULL: the client went away */
    struct tw_tenant *tenant;
    const struct tw_np_env *env;
    char saved[17]; /* the tenant's part of env->saved */
    struct tw_arena arena;
    struct tw_str body;
    struct tw_np_args arg; /* the body's members but those that name object and function */
    int64_t room;          /* bytes of rows that the tenant may still have */
    struct tw_buf out;     /* the result, JSON */
    struct tw_err err;
    bool again;       /* what was done before the server's start is done again */
    bool exhausted;   /* 410 */
    atomic_bool stop; /* the object is gone, or the server ends */
};

struct tw_np_fn {
    enum tw_np_type type;
    const char *name; /* "create", or what is called */
    bool is_long;
    char keeps; /* c: done again after a start of the server; w: moves the position; 0: leaves no trace */
    int (*run)(struct tw_np_job *j, struct tw_err *err); /* on a lane */
};
extern const struct tw_np_fn tw_np_fns[]; /* ends with a NULL name */
void tw_np_impl_free(struct tw_np_obj *o);

struct tw_np {
    struct tw_srv *s;
    struct tw_map_of objs;      /* by id */
    struct tw_list_of list;     /* the same as they were made */
    struct tw_np_lane *lane[2]; /* [1]: what is long */
    struct tw_np_env env;
    struct tw_np_base base;
    struct tw_list data; /* --data */
    char *saved;
    struct tw_np_job *again, **again_last; /* calls of before the start, one after the other */
    struct tw_np_job *held, **held_last;   /* what clients ask in the meantime */
    bool recalling, ending;
};

/* nproc_keep.c: objects outlive the server by the calls that made them what they are. THEN hears when
 * the store has what J did; J is its op's user. */
void tw_np_keep(struct tw_np *np, struct tw_np_job *j, void (*then)(void *arg, struct tw_op *o));
void tw_np_forget(struct tw_np *np, struct tw_np_obj *o);
int tw_np_recall(struct tw_np *np, struct tw_err *err);

/* nproc.c */
extern const char *const tw_np_types[]; /* by enum tw_np_type */
const struct tw_np_fn *tw_np_fn_of(enum tw_np_type type, struct tw_str name); /* NULL: none */
/* What a tenant has: objects, calls that wait, bytes of rows. */
void tw_np_use(const struct tw_np *np, const struct tw_tenant *t, int64_t *objects, int64_t *calls,
        int64_t *bytes);
/* O NULL: one of FN's type is made. */
void tw_np_submit(struct tw_np *np, struct tw_req *r, const struct tw_json *body,
        const struct tw_np_fn *fn, struct tw_np_obj *o, const char *session);
struct tw_np_obj *tw_np_obj_new(struct tw_np *np, struct tw_tenant *t, enum tw_np_type type,
        const char *session, const char *id);
void tw_np_again(struct tw_np *np, struct tw_np_obj *o, struct tw_str fn, struct tw_str body);
void tw_np_again_next(struct tw_np *np);

/* nproc_lane.c: a thread and its queue. Tenants take turns. */
struct tw_np_lane;
struct tw_np_lane *tw_np_lane_open(struct tw_mailbox *box, struct tw_err *err);
void tw_np_lane_put(struct tw_np_lane *l, struct tw_np_job *j);
void tw_np_lane_close(struct tw_np_lane *l); /* what runs is finished, what waits is sent undone */

/* nproc_arg.c: named arguments. Text that reads as JSON is what it says, where no text is wanted;
 * null is absent. Each gives 1 there, 0 absent, -1 of another kind. */
const struct tw_json *tw_np_arg(
        struct tw_np_args *g, const char *key); /* as it was sent, or NULL */
int tw_np_text(struct tw_np_args *g, const char *key, struct tw_str *out, struct tw_err *err);
int tw_np_int(struct tw_np_args *g, const char *key, int64_t lo, int64_t hi, int64_t *out,
        struct tw_err *err);
int tw_np_num(struct tw_np_args *g, const char *key, double lo, double hi, double *out,
        struct tw_err *err);
int tw_np_bool(struct tw_np_args *g, const char *key, bool *out, struct tw_err *err);
int tw_np_list(
        struct tw_np_args *g, const char *key, const struct tw_json **out, struct tw_err *err);
/* An argument that is an object: its members are arguments, too. Absent: there are none. */
int tw_np_sub(struct tw_np_args *g, const char *key, struct tw_np_args *out, struct tw_err *err);
void tw_np_skip(
        struct tw_np_args *g, const char *const *keys); /* make no difference; ends with NULL */
int tw_np_end(const struct tw_np_args *g, struct tw_err *err); /* -1: one that nobody asked for */
/* The object that the argument names; 0: it is no "pid:" text. */
int tw_np_ref(struct tw_np_job *j, const char *key, enum tw_np_type type, struct tw_np_obj **out,
        struct tw_err *err);

/* nproc_rows.c: rows, each JSON of one line, in a file without a name. */
struct tw_np_rows {
    int fd;
    int64_t n, cap;
    int64_t *end;      /* [n] offsets behind each row */
    struct tw_buf buf; /* not yet written */
    int64_t room;
};
struct tw_np_rows *tw_np_rows_new(const struct tw_np_job *j, struct tw_err *err);
int tw_np_rows_add(struct tw_np_rows *r, struct tw_str row, struct tw_err *err);
int tw_np_rows_end(struct tw_np_rows *r, struct tw_err *err);
int tw_np_rows_get(const struct tw_np_rows *r, int64_t i, struct tw_buf *out,
        struct tw_err *err); /* appends */
/* Parsed, in A. */
const struct tw_json *tw_np_rows_json(
        const struct tw_np_rows *r, int64_t i, struct tw_arena *a, struct tw_err *err);
int64_t tw_np_rows_bytes(const struct tw_np_rows *r);
void tw_np_rows_free(struct tw_np_rows *r);

/* nproc_load.c: a DatasetMeta. */
struct tw_np_meta {
    struct tw_str id, subset, split;
    const struct tw_json *data, *slice; /* NULL: none */
    char *key;                          /* names the source; in the job's arena */
};
int tw_np_meta(struct tw_np_job *j, const char *key, struct tw_np_meta *m,
        struct tw_err *err); /* 1, 0, -1 */
struct tw_np_rows *tw_np_load(struct tw_np_job *j, const struct tw_np_meta *m, struct tw_err *err);
/* The file or folder that a tenant means by ID: in its own saved files, or under --data. Allocated.
 */
char *tw_np_local(struct tw_np_job *j, struct tw_str id, struct tw_err *err);

/* nproc_tmpl.c: how conversations become features. */
struct tw_np_tmpl {
    atomic_int refs;
    struct tw_chat *chat, *prompt; /* prompt: with the generation prompt */
    bool plain;                    /* no chat template: the one user message is the text */
    int64_t max_length;            /* 0: none */
};
struct tw_np_tmpl *tw_np_tmpl_new(struct tw_np_job *j, struct tw_str name, struct tw_err *err);
void tw_np_tmpl_unref(struct tw_np_tmpl *t);
/* FN gets each row that ROW becomes: its other members, and the features of a sequence. A row may
 * become none (nothing to learn from, or cut away) or several (split). A is where it works. */
int tw_np_encode(const struct tw_np_tmpl *t, bool prompt, const struct tw_json *row,
        struct tw_arena *a, int (*fn)(void *arg, struct tw_str row, struct tw_err *err), void *arg,
        struct tw_err *err);

/* nproc_kinds.c: Twinkle's names of classes, with settings from G. */
struct tw_np_proc {
    atomic_int refs;
    bool drops; /* a filter: F, else P */
    struct tw_proc p;
    struct tw_filter f;
    struct tw_arena arena;
};
struct tw_np_proc *tw_np_proc_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err);
struct tw_np_proc *tw_np_filter_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err);
void tw_np_proc_unref(struct tw_np_proc *p);
struct tw_reward_fn *tw_np_reward_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err);

/* nproc_collate.c: InputProcessor. */
struct tw_np_collate;
struct tw_np_collate *tw_np_collate_of(struct tw_np_job *j, const char *key, struct tw_err *err);
int tw_np_collate_text(
        const struct tw_np_collate *c, struct tw_str rows, struct tw_buf *out, struct tw_err *err);
void tw_np_collate_unref(struct tw_np_collate *c);

/* nproc_data.c */
struct tw_np_data;
struct tw_np_loader;
bool tw_np_data_streams(const struct tw_np_data *d); /* has neither length nor numbers */
int64_t tw_np_data_count(const struct tw_np_data *d, struct tw_err *err); /* -1, ERR */
int tw_np_data_get(
        struct tw_np_data *d, int64_t i, struct tw_buf *out, struct tw_err *err); /* appends */
int64_t tw_np_data_bytes(const struct tw_np_data *d);
void tw_np_data_free(struct tw_np_data *d);
void tw_np_loader_free(struct tw_np_loader *l);
/* The position in rows, as numbers of a line of text. */
void tw_np_data_where(const struct tw_np_data *d, char out[160]);
void tw_np_data_go(struct tw_np_data *d, const char *where);
void tw_np_loader_where(const struct tw_np_loader *l, char out[160]);
void tw_np_loader_go(struct tw_np_loader *l, const char *where);

/* The functions of the table, by file. */
typedef int tw_np_call(struct tw_np_job *j, struct tw_err *err);
tw_np_call tw_np_data_create, tw_np_data_add, tw_np_data_mix, tw_np_data_item, tw_np_data_len,
        tw_np_data_iter;
tw_np_call tw_np_data_next;
tw_np_call tw_np_data_template, tw_np_data_map, tw_np_data_filter,
        tw_np_data_encode; /* nproc_work.c */
tw_np_call tw_np_data_check, tw_np_data_cast;
tw_np_call tw_np_data_pack;                   /* nproc_pack.c */
tw_np_call tw_np_data_save, tw_np_data_flush; /* nproc_save.c */
tw_np_call tw_np_loader_create, tw_np_loader_processor, tw_np_loader_skip, tw_np_loader_state;
tw_np_call tw_np_loader_len, tw_np_loader_iter, tw_np_loader_next; /* nproc_loader.c */
tw_np_call tw_np_processor_create, tw_np_processor_call;           /* nproc_collate.c */
tw_np_call tw_np_preprocessor_create, tw_np_preprocessor_call, tw_np_reward_create,
        tw_np_reward_call;
tw_np_call tw_np_template_create, tw_np_template_encode, tw_np_template_batch,
        tw_np_template_decode;

#endif
