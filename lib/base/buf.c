/* buf.c - the growing buffer, and UTF-8. */
#include "buf.h"
#include <stdio.h>
#include <stdlib.h>

void *tw_buf_grow(struct tw_buf *b, size_t n)
{
    size_t need;

    if (b->over)
        return NULL;
    if (n > SIZE_MAX - b->n - 1 || (b->max && n > b->max - b->n)) {
        b->over = true;
        return NULL;
    }
    need = b->n + n + 1;                /* the NUL that is always behind the content */
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap + b->cap / 2 : 64;

        b->cap = cap < need ? need : cap;
        b->p = tw_xrealloc(b->p, b->cap);
    }
    return b->p + b->n;
}

void tw_buf_add(struct tw_buf *b, const void *p, size_t n)
{
    char *q = tw_buf_grow(b, n);

    if (!q)
        return;
    if (n)
        memcpy(q, p, n);
    q[n] = 0;
    b->n += n;
}

void tw_buf_puts(struct tw_buf *b, const char *s)
{
    tw_buf_add(b, s, strlen(s));
}

void tw_buf_putc(struct tw_buf *b, char c)
{
    tw_buf_add(b, &c, 1);
}

void tw_buf_adds(struct tw_buf *b, struct tw_str s)
{
    tw_buf_add(b, s.p, s.n);
}

void tw_buf_printf(struct tw_buf *b, const char *fmt, ...)
{
    va_list ap;
    char *q;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !(q = tw_buf_grow(b, (size_t)n)))
        return;
    va_start(ap, fmt);
    vsnprintf(q, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

void tw_buf_utf8(struct tw_buf *b, uint32_t codepoint)
{
    char c[4];

    tw_buf_add(b, c, (size_t)tw_utf8_put(c, codepoint));
}

void tw_buf_clear(struct tw_buf *b)
{
    b->n = 0;
    b->over = false;
    if (b->p)
        b->p[0] = 0;
}

void tw_buf_free(struct tw_buf *b)
{
    free(b->p);
    b->p = NULL;
    b->n = b->cap = 0;
    b->over = false;
}

struct tw_str tw_buf_str(const struct tw_buf *b)
{
    return (struct tw_str){ b->p ? b->p : "", b->n };
}

/* Bytes of the valid character at P < END, 0 if it is not valid. */
static size_t utf8_len(const unsigned char *p, const unsigned char *end)
{
    size_t left = (size_t)(end - p);
    unsigned char c = p[0];

    if (c < 0x80)
        return 1;
    if (c < 0xC2 || c > 0xF4)
        return 0;
    if (c < 0xE0)
        return left >= 2 && (p[1] & 0xC0) == 0x80 ? 2 : 0;
    if (left < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80)
        return 0;
    if (c < 0xF0) {
        if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F))
            return 0;                   /* overlong; a surrogate */
        return 3;
    }
    if (left < 4 || (p[3] & 0xC0) != 0x80)
        return 0;
    if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F))
        return 0;                       /* overlong; past U+10FFFF */
    return 4;
}

size_t tw_utf8_check(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = n ? p + n : p;
    uint64_t w;

    while (p < end) {
        if (end - p >= 8) {             /* eight ASCII bytes at once */
            memcpy(&w, p, 8);
            if (!(w & 0x8080808080808080u)) {
                p += 8;
                continue;
            }
        }
        size_t len = utf8_len(p, end);

        if (!len)
            return (size_t)(p - (const unsigned char *)text);
        p += len;
    }
    return n;
}

uint32_t tw_utf8_next(const char **p, const char *end)
{
    const unsigned char *s = (const unsigned char *)*p;
    size_t len = utf8_len(s, (const unsigned char *)end);

    *p += len ? len : 1;
    switch (len) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    case 3:
        return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    case 4:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    default:
        return 0xFFFD;
    }
}

int tw_utf8_put(char out[4], uint32_t c)
{
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        c = 0xFFFD;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

int tw_buf_base64(struct tw_buf *out, struct tw_str s)
{
    uint32_t acc = 0;
    int bits = 0;

    while (s.n && s.p[s.n - 1] == '=')
        s.n--;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        int v = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26
                : c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;

        if (v < 0)
            return -1;
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            tw_buf_putc(out, (char)(acc >> bits));
        }
    }
    return bits < 6 && !(acc & ((1u << bits) - 1)) ? 0 : -1;
}

void tw_buf_to_base64(struct tw_buf *out, struct tw_str s)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)s.p;

    for (size_t i = 0; i < s.n; i += 3) {
        size_t n = s.n - i < 3 ? s.n - i : 3;
        uint32_t v = (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0);

        for (size_t k = 0; k < 4; k++)
            tw_buf_putc(out, k > n ? '=' : digit[v >> (18 - 6 * k) & 63]);
    }
}
