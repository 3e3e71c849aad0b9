/* err.c - filling a struct tw_err. */
#include "err.h"
#include "escape.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Copies SRC to DST of SIZE bytes, always terminated and escaped; text that does not fit ends in "...". */
static void copy_escaped(char *dst, size_t size, const char *src)
{
    size_t n = 0;

    while (*src) {
        char out[5];

        src += tw_escape_next(out, src);
        size_t len = strlen(out);

        if (n + len + 4 > size) {               /* room for this, "..." and the NUL */
            while (n && ((unsigned char)dst[n - 1] & 0xC0) == 0x80)
                n--;                            /* not in the middle of a character */
            if (n && (unsigned char)dst[n - 1] >= 0xC0)
                n--;
            memcpy(dst + n, "...", 4);
            return;
        }
        memcpy(dst + n, out, len);
        n += len;
    }
    dst[n] = 0;
}

/* Behind "Too many open files" the limit, which is what the user can change. */
static void tell_limit(char *text, size_t size)
{
    const char *why = strerror(EMFILE);
    size_t n = strlen(text), k = strlen(why);
    struct rlimit r;

    if (n >= k && !strcmp(text + n - k, why) && !getrlimit(RLIMIT_NOFILE, &r))
        snprintf(text + n, size - n, "; the limit is %llu: raise it with ulimit -n",
                (unsigned long long)r.rlim_cur);
}

int tw_fail_at(struct tw_err *err, const char *src, int src_line, int code, const char *place,
        int64_t line, const char *fmt, ...)
{
    char text[4096];
    va_list ap;

    if (!err || err->code)
        return -1;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    tell_limit(text, sizeof(text));
    err->code = code ? code : TW_EFAIL;
    copy_escaped(err->msg, sizeof(err->msg), text);
    copy_escaped(err->place, sizeof(err->place), place ? place : "");
    err->line = line;
    err->src = src;
    err->src_line = src_line;
    return -1;
}

void tw_err_clear(struct tw_err *err)
{
    if (!err)
        return;
    err->code = 0;
    err->line = 0;
    err->place[0] = err->msg[0] = 0;
    err->src = NULL;
    err->src_line = 0;
}

void tw_err_place(struct tw_err *err, const char *place, int64_t line)
{
    if (!err || !err->code || err->place[0])
        return;
    copy_escaped(err->place, sizeof(err->place), place ? place : "");
    err->line = line;
}
