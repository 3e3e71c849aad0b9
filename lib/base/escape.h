/* escape.h - text from elsewhere (names of files, what records hold) in a line for people. */
#ifndef TW_ESCAPE_H
#define TW_ESCAPE_H
#include <string.h>

/* The character at S, of which NUL is not asked for, as it may be shown: control characters, which could
 * forge lines of a terminal or a log or command it, become \n, \r, \t or \xHH. Returns how many bytes it
 * took of S; OUT is terminated. */
static inline size_t tw_escape_next(char out[5], const char *s)
{
    static const char hex[] = "0123456789abcdef";
    unsigned char c = (unsigned char)*s;
    size_t took = 1;

    if (c == 0xC2 && ((unsigned char)s[1] & 0xE0) == 0x80) {    /* U+0080 to U+009F: U+009B is ESC [ */
        c = (unsigned char)s[1];
        took = 2;
    }
    out[0] = (char)c;
    out[1] = 0;
    if (took == 1 && (c == '\n' || c == '\t' || c == '\r')) {
        out[0] = '\\';
        out[1] = c == '\n' ? 'n' : c == '\t' ? 't' : 'r';
        out[2] = 0;
    } else if (c < 0x20 || c == 0x7F || took == 2) {
        memcpy(out, "\\x", 2);
        out[2] = hex[c >> 4];
        out[3] = hex[c & 15];
        out[4] = 0;
    }
    return took;
}

#endif
