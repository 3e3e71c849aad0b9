/* coproc.h - a command that answers: a line in, a line out, as often as one likes. It is started once by
 * /bin/sh, in a session of its own (Ctrl-C is ours to deal with), and never outlives us. */
#ifndef TW_COPROC_H
#define TW_COPROC_H
#include "base/buf.h"
#include "base/err.h"
#include <stdbool.h>
#include <sys/types.h>

struct tw_coproc {
    const char *cmd;            /* borrowed */
    pid_t pid;                  /* 0: not running */
    int in, out;                /* its stdin and stdout; -1 */
    struct tw_buf got;          /* what it wrote, beginning with the last answer */
    size_t taken;               /* bytes of the last answer */
};

enum tw_answer {
    TW_ANSWERED,
    TW_ANSWER_LATE,             /* nothing in time */
    TW_ANSWER_GONE,             /* it ended, or closed its output */
    TW_ANSWER_LONG,             /* a line above the limit */
    TW_ANSWER_MORE,             /* it wrote a line that nobody had asked for */
};

/* OPTION is named in errors. MEMORY: MiB that each of its processes may have, 0: no limit. Ignores SIGPIPE
 * from here on: a command that does not read is an answer. */
int tw_coproc_start(struct tw_coproc *c, const char *option, const char *cmd, int64_t memory,
        struct tw_err *err);
/* Hands LINE over, its newline included, and waits for a line of at most MAX bytes in return, at most
 * SECONDS (0: for ever). *ANSWER is borrowed until the next call. */
enum tw_answer tw_coproc_ask(struct tw_coproc *c, struct tw_str line, size_t max, double seconds,
        struct tw_str *answer);
/* Ends its input and waits, at most SECONDS, for the end of its output: TW_ANSWER_GONE, or MORE where it
 * says something, or LATE. It is still to be stopped. */
enum tw_answer tw_coproc_finish(struct tw_coproc *c, double seconds);
/* Ends it: at the end of its input within two seconds, or at once; then whatever it left running. Returns
 * its status, as waitpid() does. */
int tw_coproc_stop(struct tw_coproc *c, bool at_once);
/* "status 3" or "signal 9", for people. */
const char *tw_coproc_status(int status, char out[32]);

#endif
