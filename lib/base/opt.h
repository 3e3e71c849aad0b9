/* opt.h - one table of options drives parsing, range checks, --help, the man page's OPTIONS, shell
 * completion, --config files and TW_* variables. Precedence, weakest first: default, --config,
 * TW_X_Y, TW_TRAIN_X_Y (the command's own), argument. A field of the wrong C type does not compile.
 *
 *     static const struct tw_opt table[] = {
 *         TW_GROUP("Input"),
 *         { "model", 'm', TW_OSTR(struct opts, model), "MODEL", TW_NEEDED, "the model" },
 *         { "batch", 0, TW_OINT(struct opts, batch, 1, 1 << 20), "N", "16", "samples a step" },
 *         { "schedule", 0, TW_OSET(struct opts, schedule), "NAME,k=v", "constant", "..." },
 *         { 0 }
 *     };
 */
#ifndef TW_OPT_H
#define TW_OPT_H
#include "err.h"
#include "mem.h"

enum tw_opt_kind {
    TW_KGROUP = 1,
    TW_KSTR,
    TW_KINT,
    TW_KNUM,
    TW_KFLAG,
    TW_KONOFF,
    TW_KENUM,
    TW_KLIST
};

struct tw_list {                /* a repeatable option, in the order given */
    const char **v;
    int n;
};

struct tw_opt {
    const char *name;           /* long name without dashes; NULL ends the table */
    char letter;                /* short name or 0 */
    enum tw_opt_kind kind;
    size_t at;                  /* offset of the field in the command's struct */
    double min, max;            /* TW_KINT, TW_KNUM: inclusive range */
    const char *meta;           /* "FILE"; TW_KENUM: choices "a|b|c", the field gets the index */
    const char *def;            /* default as typed; NULL: none; TW_NEEDED: must be given */
    const char *help;           /* one sentence, lower case, no full stop */
};

extern const char TW_NEEDED[];

#define TW_OCHECK_(s, f, type) (0 * sizeof(char[_Generic(&((s *)0)->f, type *: 1, default: -1)]))
#define TW_OSTR(s, f) TW_KSTR, offsetof(s, f) + TW_OCHECK_(s, f, const char *), 0, 0
#define TW_OINT(s, f, lo, hi) TW_KINT, offsetof(s, f) + TW_OCHECK_(s, f, int64_t), (lo), (hi)
#define TW_ONUM(s, f, lo, hi) TW_KNUM, offsetof(s, f) + TW_OCHECK_(s, f, double), (lo), (hi)
#define TW_OFLAG(s, f) TW_KFLAG, offsetof(s, f) + TW_OCHECK_(s, f, bool), 0, 0
#define TW_OONOFF(s, f) TW_KONOFF, offsetof(s, f) + TW_OCHECK_(s, f, bool), 0, 0
#define TW_OENUM(s, f) TW_KENUM, offsetof(s, f) + TW_OCHECK_(s, f, int), 0, 0
#define TW_OLIST(s, f) TW_KLIST, offsetof(s, f) + TW_OCHECK_(s, f, struct tw_list), 0, 0
#define TW_GROUP(title) { "", 0, TW_KGROUP, 0, 0, 0, NULL, NULL, (title) }

/* What every command has; the command's options struct must begin with it. */
struct tw_common {
    bool verbose, quiet;
    const char *config;
    double log_every;           /* seconds; 0: no progress lines without a terminal */
};

struct tw_cmd {
    const char *name;           /* "tw-encode" */
    const char *summary;        /* one line */
    const char *operands;       /* "[FILE..]" */
    const struct tw_opt *table;
    const char *examples;       /* shown at the end of --help; lines "  command" */
};

/* Parses argv into OPTS, which begins with struct tw_common. Handles --help (also --help=words and
 * --help=man for completion and man pages), --version, --config and the environment; restores
 * SIGPIPE; exits 0 after help, 2 on misuse with one clear line that suggests the nearest name.
 * Options and operands may be mixed; `--` ends options. Returns the number of operands and moves
 * them to argv[1..]. What OPTS points to lives as long as the process. */
int tw_start(const struct tw_cmd *cmd, void *opts, int argc, char **argv);

/* Ends a command: closes and checks stdout, prints ERR if RET != 0, returns the exit status. */
int tw_finish(const struct tw_cmd *cmd, int ret, struct tw_err *err);

/* Appends "name = value" of every option that differs from its default, for provenance records,
 * and all resolved options as one JSON object. OPTS is what tw_start() filled. */
struct tw_buf;
void tw_opts_json(const struct tw_cmd *cmd, const void *opts, struct tw_buf *out);

/* A setting "name,key=value,key=value" or "key=value,..". Values run to the next comma; a value in
 * /slashes/ or "quotes" may hold commas. Unknown keys are the caller's to find: tw_set_done() fails
 * on the first key that no tw_set_*() asked for and lists those that were. tw_set_num() and its
 * like return 1 found, 0 missing (*v untouched), -1 a bad value. Values borrow TEXT. */
struct tw_set {
    const char *option;         /* "--schedule", for messages; borrowed */
    struct tw_str name;         /* text before the first ',' when it has no '='; else empty */
    struct { struct tw_str key, value; bool used; } kv[32];
    int n;
    const char *asked[48];
    int nasked;
};
int tw_set_parse(struct tw_set *s, const char *option, const char *text, struct tw_err *err);
int tw_set_num(struct tw_set *s, const char *key, double *v, double lo, double hi,
        struct tw_err *err);
int tw_set_int(struct tw_set *s, const char *key, int64_t *v, int64_t lo, int64_t hi,
        struct tw_err *err);
int tw_set_bool(struct tw_set *s, const char *key, bool *v, struct tw_err *err);   /* on|off */
int tw_set_str(struct tw_set *s, const char *key, struct tw_str *v);
int tw_set_enum(struct tw_set *s, const char *key, const char *choices, int *v,
        struct tw_err *err);                                                /* "a|b|c" -> index */
int tw_set_done(struct tw_set *s, struct tw_err *err);

#endif
