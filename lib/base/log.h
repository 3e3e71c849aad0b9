/* log.h - what a command says while it works: nothing, by default. Notices and progress go to
 * stderr, each line with the program's name. Set up by tw_start(). */
#ifndef TW_LOG_H
#define TW_LOG_H
#include "buf.h"
#include "err.h"

enum tw_level { TW_QUIET = -1, TW_NORMAL = 0, TW_VERBOSE = 1 };
void tw_log_init(const char *prog, enum tw_level level, double log_every);
const char *tw_prog(void);
bool tw_verbose(void);
void tw_notice(const char *fmt, ...) __attribute__((format(printf, 1, 2)));     /* not when -q */
void tw_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));       /* only with -v */

/* One progress line, "encode 1,234 of 5,000 (24 %) 310/s, 12 s left": on a terminal after 2 s and
 * then once a second, elsewhere every --log-every seconds. TOTAL 0: unknown (no percentage). EXTRA
 * is appended ("loss 1.23"), may be NULL. YIELDS, set after the start: a later stage of the pipe has
 * the line of the terminal. */
struct tw_progress {
    const char *what, *unit;
    int64_t done, total;
    double t0, last;
    bool shown, yields;
};
void tw_progress_start(struct tw_progress *p, const char *what, const char *unit, int64_t total);
void tw_progress_at(struct tw_progress *p, int64_t done, const char *extra);
void tw_progress_end(struct tw_progress *p);        /* clears the line */

/* Counts what a run skipped, by reason, remembers the first few places, prints one summary line at
 * the end of runs longer than a second (always when something was skipped). */
struct tw_tally {
    int64_t in, out, tokens, skipped;
    struct { char reason[96]; int64_t n; char first[256]; } why[16];
    int nwhy;
    double t0;
};
void tw_tally_start(struct tw_tally *t);
void tw_tally_skip(struct tw_tally *t, const char *file, int64_t line, const char *reason_fmt, ...)
        __attribute__((format(printf, 4, 5)));
void tw_tally_end(struct tw_tally *t);

/* metrics.jsonl: one object a line, flushed by the line; "event", "step", "time" first. A NULL
 * struct is a sink that writes nothing. tw_metrics_end() writes the line that was begun. */
struct tw_metrics;
struct tw_metrics *tw_metrics_open(const char *path, bool append, struct tw_err *err);
struct tw_jw *tw_metrics_begin(struct tw_metrics *m, const char *event, int64_t step);
int tw_metrics_end(struct tw_metrics *m, struct tw_err *err);
void tw_metrics_close(struct tw_metrics *m);

double tw_now(void);                /* monotonic seconds */
/* "1,234", "1.2 GiB", "3 m 20 s": for people. Return OUT. */
char *tw_fmt_count(char out[32], int64_t n);
char *tw_fmt_bytes(char out[32], double n);
char *tw_fmt_time(char out[32], double seconds);

#endif
