/* process.h - processors turn the rows of known data sets into chat, preference or text records, and
 * filters say which records stay. Both are entries of a table; a processor's settings come from
 * "NAME,key=value". What a processor does not consume passes through unchanged. */
#ifndef TW_PROCESS_H
#define TW_PROCESS_H
#include "base/json.h"
#include "base/opt.h"

/* The settings of all processors; each reads its own. Borrowed from the command line. */
struct tw_proc {
    const struct tw_proc_kind *kind;
    struct tw_str name, author, system, prompt, chosen, rejected, column;
    bool assistant;             /* gsm8k, countdown: the answer becomes a reply */
    bool has_system;            /* system= was given; empty means none */
};

struct tw_proc_kind {
    const char *name, *settings, *help;
    int (*setup)(struct tw_proc *p, struct tw_set *s, struct tw_err *err);
    /* Writes the record that ROW becomes. An error is a bad row: its message is one of few. */
    int (*run)(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *out,
            struct tw_err *err);
    /* Does a data set whose rows look like ROW want this processor? NULL: only by name. */
    bool (*fits)(const struct tw_json *row);
};
extern const struct tw_proc_kind tw_proc_kinds[];   /* ends with a NULL name */

int tw_proc_parse(struct tw_proc *p, const char *text, struct tw_err *err);
/* The processor for a layout of columns; NULL: none is known. */
const struct tw_proc_kind *tw_proc_detect(const struct tw_json *row);

/* Shared by processors (process_*.c). */
struct tw_str tw_field(const struct tw_json *row, const char *key);     /* text; empty if none */
/* The same where it is used up: one that is there and no text would be lost, so it is an error. */
int tw_text(const struct tw_json *row, const char *key, struct tw_str *v, struct tw_err *err);
int tw_need(const struct tw_json *row, const char *key, struct tw_str *v, struct tw_err *err);
void tw_put_message(struct tw_jw *w, const char *role, struct tw_str content);
/* Every member of ROW but those in USED (ends with NULL). */
void tw_put_rest(struct tw_jw *w, const struct tw_json *row, const char *const *used);
/* One message of any known spelling as ours: roles, from/value, typed content parts, tool calls. */
int tw_put_normal(struct tw_jw *w, const struct tw_json *msg, struct tw_err *err);
/* Those of LIST from FROM to before TO; what is wrong with one is told with its number, from 1. */
int tw_put_some(struct tw_jw *w, const struct tw_json *list, int64_t from, int64_t to, struct tw_err *err);
/* The array of those from FROM on, one at least. */
int tw_put_list(struct tw_jw *w, const struct tw_json *list, int64_t from, struct tw_err *err);
int tw_put_messages(struct tw_jw *w, const struct tw_json *list, struct tw_str system,
        struct tw_err *err);

/* Filters. */
struct tw_filter {
    const struct tw_filter_kind *kind;
    int64_t min, max, window;
    double ratio;
    struct tw_str key;
};
struct tw_filter_kind {
    const char *name, *settings, *help;
    int (*setup)(struct tw_filter *f, struct tw_set *s, struct tw_err *err);
    /* NULL: stays; else the reason why it goes. */
    const char *(*drop)(const struct tw_filter *f, const struct tw_json *rec);
    bool once;                  /* needs to see all records: keeps the first of equal keys */
    uint64_t (*key)(const struct tw_filter *f, const struct tw_json *rec);
};
extern const struct tw_filter_kind tw_filter_kinds[];
int tw_filter_parse(struct tw_filter *f, const char *text, struct tw_err *err);

#endif
