/* reward_sandbox.h - runs a program that nobody has looked at: in user, network, mount, process and
 * IPC namespaces of its own, as nobody where we are root, the file system read-only but for an empty
 * folder in memory, with limits of time, memory, output, files and processes. All of it dies with the
 * first process. Without these it is not run at all. */
#ifndef TW_REWARD_SANDBOX_H
#define TW_REWARD_SANDBOX_H
#include "base/buf.h"
#include "base/err.h"

struct tw_sandbox {
    const char *interpreter;    /* gets the program's file; found by PATH */
    double timeout;             /* seconds, of the clock and of the processor */
    int64_t memory;             /* MiB of each process */
    char *dir;                  /* where its folder is mounted; empty on the outside */
};

enum tw_run_end { TW_RAN, TW_RAN_LATE, TW_RAN_LOUD };   /* LOUD: more output than is kept */

struct tw_run_result {
    enum tw_run_end end;
    int status;                 /* exit status, 128 + signal */
    struct tw_buf out;          /* stdout; the caller frees */
    struct tw_buf mark;         /* what it wrote to descriptor 3 */
};

/* Makes the folder and tries an empty program. ERR says what this system does not allow. */
int tw_sandbox_open(struct tw_sandbox *s, struct tw_err *err);
/* Runs PROGRAM on INPUT. -1 and ERR only where it could not be started. */
int tw_sandbox_run(const struct tw_sandbox *s, struct tw_str program, struct tw_str input,
        struct tw_run_result *r, struct tw_err *err);
void tw_sandbox_close(struct tw_sandbox *s);

#endif
