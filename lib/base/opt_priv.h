/* opt_priv.h - what the files of the option module share. */
#ifndef TW_OPT_PRIV_H
#define TW_OPT_PRIV_H
#include "opt.h"
#include "buf.h"

extern const struct tw_opt tw_opt_common[];     /* what every command has */

/* The option called NAME (N bytes) or by LETTER; NULL: none. */
const struct tw_opt *tw_opt_find(const struct tw_cmd *cmd, const char *name, size_t n);
const struct tw_opt *tw_opt_letter(const struct tw_cmd *cmd, char letter);
/* The option whose name is nearest to NAME, NULL when none is near. */
const struct tw_opt *tw_opt_nearest(const struct tw_cmd *cmd, const char *name, size_t n);
bool tw_opt_takes_value(const struct tw_opt *o);
/* What stands for the value in help: "N", "on|off". */
const char *tw_opt_meta(const struct tw_opt *o);

/* Reads VALUE into its field of OPTS. PLACE and LINE are for the error: an option, a variable or a
 * line of a file. A list grows by one. */
int tw_opt_set(const struct tw_opt *o, void *opts, const char *value, const char *place,
        int64_t line, struct tw_err *err);
/* The environment and the --config file. */
int tw_opt_env(const struct tw_cmd *cmd, void *opts, struct tw_err *err);
int tw_opt_config(const struct tw_cmd *cmd, void *opts, const char *path, struct tw_err *err);

/* The three forms of help. */
void tw_opt_help(const struct tw_cmd *cmd, struct tw_buf *out);
void tw_opt_words(const struct tw_cmd *cmd, struct tw_buf *out);
void tw_opt_man(const struct tw_cmd *cmd, struct tw_buf *out);

/* Runs VISIT over every option of CMD, groups included, the common ones last. */
#define TW_OPT_EACH(cmd, o)                                                                        \
    for (const struct tw_opt *t_[2] = { (cmd)->table, tw_opt_common }, **p_ = t_; p_ < t_ + 2;     \
            p_++)                                                                                  \
        for (const struct tw_opt *o = *p_; o && (o)->name; (o)++)
#endif
