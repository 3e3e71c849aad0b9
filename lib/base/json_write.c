/* json_write.c - the JSON writer. */
#include "json.h"
#include <inttypes.h>
#include <math.h>

void tw_jw_init(struct tw_jw *w, struct tw_buf *out)
{
    memset(w, 0, sizeof(*w));
    w->out = out;
}

/* A comma, if this is not the first in its container and not the value of a key. */
static void before(struct tw_jw *w)
{
    if (!w->after_key && w->comma[w->depth])
        tw_buf_putc(w->out, ',');
    w->comma[w->depth] = true;
    w->after_key = false;
}

static void open(struct tw_jw *w, char c)
{
    before(w);
    tw_buf_putc(w->out, c);
    if (w->depth < TW_JSON_DEPTH)
        w->depth++;
    else
        w->out->over = true;            /* what no reader would take is not written */
    w->comma[w->depth] = false;
}

static void close(struct tw_jw *w, char c)
{
    if (w->depth)
        w->depth--;
    tw_buf_putc(w->out, c);
}

void tw_jw_obj(struct tw_jw *w)
{
    open(w, '{');
}

void tw_jw_obj_end(struct tw_jw *w)
{
    close(w, '}');
}

void tw_jw_arr(struct tw_jw *w)
{
    open(w, '[');
}

void tw_jw_arr_end(struct tw_jw *w)
{
    close(w, ']');
}

void tw_jw_key_n(struct tw_jw *w, struct tw_str key)
{
    before(w);
    tw_json_quote(w->out, key);
    tw_buf_putc(w->out, ':');
    w->after_key = true;
}

void tw_jw_key(struct tw_jw *w, const char *key)
{
    tw_jw_key_n(w, tw_str(key));
}

void tw_jw_str(struct tw_jw *w, struct tw_str s)
{
    before(w);
    tw_json_quote(w->out, s);
}

void tw_jw_cstr(struct tw_jw *w, const char *s)
{
    tw_jw_str(w, tw_str(s));
}

void tw_jw_int(struct tw_jw *w, int64_t v)
{
    before(w);
    tw_buf_printf(w->out, "%" PRId64, v);
}

/* S, a number by %g, marked as one that is not an integer. */
static void put_real(struct tw_buf *out, const char *s)
{
    tw_buf_puts(out, s);
    if (!strpbrk(s, ".e"))
        tw_buf_puts(out, ".0");
}

void tw_json_number(struct tw_buf *out, double v)
{
    char s[40];

    if (!isfinite(v)) {
        tw_buf_puts(out, "null");
        return;
    }
    /* 15 digits survive text -> double -> text, so a shorter form shows up there without its zeros;
     * 17 always suffice */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    put_real(out, s);
}

void tw_jw_num(struct tw_jw *w, double v)
{
    before(w);
    tw_json_number(w->out, v);
}

void tw_jw_f32(struct tw_jw *w, float v)
{
    char s[40];

    before(w);
    if (!isfinite(v)) {
        tw_buf_puts(w->out, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, (double)v);
        if (strtof(s, NULL) == v)
            break;
    }
    put_real(w->out, s);
}

void tw_jw_bool(struct tw_jw *w, bool v)
{
    before(w);
    tw_buf_puts(w->out, v ? "true" : "false");
}

void tw_jw_null(struct tw_jw *w)
{
    before(w);
    tw_buf_puts(w->out, "null");
}

void tw_jw_raw(struct tw_jw *w, struct tw_str json)
{
    before(w);
    tw_buf_adds(w->out, json);
}

/* A string cannot hold a line feed, so text without one is on one line and stays as it is; else all
 * white space outside strings goes. */
void tw_jw_value(struct tw_jw *w, const struct tw_json *v)
{
    struct tw_str s = v->raw;
    size_t i = 0;

    if (!memchr(s.p, '\n', s.n) && !memchr(s.p, '\r', s.n)) {
        tw_jw_raw(w, s);
        return;
    }
    before(w);
    while (i < s.n) {
        size_t start = i;

        if (s.p[i] == '"') {
            for (i++; s.p[i] != '"'; i++)
                i += s.p[i] == '\\';
            i++;
        } else {
            while (i < s.n && s.p[i] != '"' && (unsigned char)s.p[i] > ' ')
                i++;
        }
        tw_buf_add(w->out, s.p + start, i - start);
        while (i < s.n && (unsigned char)s.p[i] <= ' ')
            i++;
    }
}

/* Appends the character C, which JSON does not let stand in a string. */
static void escape(struct tw_buf *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *f = c ? strchr(from, c) : NULL;

    if (f) {
        tw_buf_putc(out, '\\');
        tw_buf_putc(out, to[f - from]);
    } else {
        tw_buf_printf(out, "\\u%04x", c);
    }
}

void tw_json_quote(struct tw_buf *out, struct tw_str s)
{
    const char *p = s.p ? s.p : "", *end = p + s.n, *start = p;

    tw_buf_grow(out, s.n + 2);
    tw_buf_putc(out, '"');
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        const char *next = p + 1;

        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            p = next;
            continue;
        }
        if (c >= 0x80) {
            next = p;
            if (tw_utf8_next(&next, end) != 0xFFFD || next != p + 1) {
                p = next;
                continue;
            }
        }
        tw_buf_add(out, start, (size_t)(p - start));
        if (c >= 0x80)
            tw_buf_puts(out, "\xEF\xBF\xBD");
        else
            escape(out, c);
        start = p = next;
    }
    tw_buf_add(out, start, (size_t)(p - start));
    tw_buf_putc(out, '"');
}
