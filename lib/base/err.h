/* err.h - errors are values. A library function returns 0 or -1 (readers: 1 a record, 0 the end,
 * -1 an error), fills the caller's struct tw_err, prints nothing and never exits. A command prints
 * the error once, as "tw-train: data.jsonl:17: message". The place named is the one the user can
 * fix (a file, an option, a URL), never our own source; TW_DEBUG=1 adds ours. */
#ifndef TW_ERR_H
#define TW_ERR_H
#include <stdarg.h>
#include <stdint.h>
#include <stddef.h>

/* What an error is called by exit status; tw-fetch alone tells 3 to 6 apart. */
enum tw_code {
    TW_EFAIL = 1,       /* anything else: bad input, bad configuration, a failed write */
    TW_EMISUSE = 2,     /* bad arguments */
    TW_ENETWORK = 3,
    TW_EDENIED = 4,
    TW_ENOTFOUND = 5,
    TW_ECORRUPT = 6,
    TW_ENOMEM = 7,      /* no memory for weights or activations: a command ends with 1 */
};

struct tw_err {
    int code;           /* 0: no error so far */
    char place[512];    /* file, option or URL; empty: none */
    int64_t line;       /* 0: none */
    char msg[1536];
    const char *src;    /* our own file and line, for TW_DEBUG=1 */
    int src_line;
};

/* Fills ERR (NULL is allowed: the text is lost) and returns -1. The first error wins: a filled ERR
 * is left as it is. PLACE may be NULL, LINE 0. Control characters in the text are escaped. */
int tw_fail_at(struct tw_err *err, const char *src, int src_line, int code, const char *place,
        int64_t line, const char *fmt, ...) __attribute__((format(printf, 7, 8)));
#define tw_fail(err, place, line, ...)                                                             \
    tw_fail_at((err), __FILE__, __LINE__, TW_EFAIL, (place), (line), __VA_ARGS__)
#define tw_fail_code(err, code, place, line, ...)                                                  \
    tw_fail_at((err), __FILE__, __LINE__, (code), (place), (line), __VA_ARGS__)

/* Empties ERR, so that it can be filled again. */
void tw_err_clear(struct tw_err *err);
/* Names the place of an error that has none yet (a parser that does not know its file). */
void tw_err_place(struct tw_err *err, const char *place, int64_t line);

#endif
