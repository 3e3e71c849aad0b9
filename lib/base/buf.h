/* buf.h - a growing byte buffer. Zero-initialise; `max` (0: none) bounds it: a buffer that would
 * pass its maximum is marked `over` and stops growing, which the owner checks once at the end.
 * p is always NUL-terminated when n > 0 was ever appended, but the content may hold NUL itself. */
#ifndef TW_BUF_H
#define TW_BUF_H
#include "mem.h"
#include <stdarg.h>
#include <stdint.h>

struct tw_buf {
    char *p;
    size_t n, cap, max;
    bool over;
};

void tw_buf_add(struct tw_buf *b, const void *p, size_t n);
void tw_buf_puts(struct tw_buf *b, const char *s);
void tw_buf_putc(struct tw_buf *b, char c);
void tw_buf_adds(struct tw_buf *b, struct tw_str s);
void tw_buf_printf(struct tw_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *tw_buf_grow(struct tw_buf *b, size_t n);  /* room for n more bytes; does not change n */
void tw_buf_utf8(struct tw_buf *b, uint32_t codepoint);
void tw_buf_clear(struct tw_buf *b);            /* n = 0, memory kept */
void tw_buf_free(struct tw_buf *b);
struct tw_str tw_buf_str(const struct tw_buf *b);   /* borrowed view of the content */

/* Appends the bytes that S writes in base64, with or without padding; -1: it is none. */
int tw_buf_base64(struct tw_buf *b, struct tw_str s);
void tw_buf_to_base64(struct tw_buf *b, struct tw_str s);   /* the other way, with padding */

/* UTF-8. tw_utf8_check: offset of the first byte that is not valid UTF-8 (overlong forms,
 * surrogates and > U+10FFFF are not valid), or n when all of it is. tw_utf8_next decodes one
 * character at *p < end and moves past it; an invalid byte gives U+FFFD and moves by one. */
size_t tw_utf8_check(const char *p, size_t n);
uint32_t tw_utf8_next(const char **p, const char *end);
int tw_utf8_put(char out[4], uint32_t codepoint);   /* number of bytes, 1 to 4 */

#endif
