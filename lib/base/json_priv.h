/* json_priv.h - what the files of the JSON module share. */
#ifndef TW_JSON_PRIV_H
#define TW_JSON_PRIV_H
#include "json.h"

/* First pass. Checks what jsmn does not: every string (UTF-8, control characters, escapes,
 * surrogates), the depth, and that brackets close; gives an upper bound of jsmn's tokens. */
int tw_json_scan(struct tw_str text, size_t *tokens, struct tw_err *err);

/* Number grammar of JSON over all of RAW; fills v->is_int, i, d. False: not a number. */
bool tw_json_scan_number(struct tw_str raw, struct tw_json *v);

/* Decodes the checked inside of a string that holds a backslash. OUT has room for S.n bytes; the
 * result is never longer. Returns its length. */
size_t tw_json_unescape(char *out, struct tw_str s);

/* First byte at or after I that is not JSON's white space. */
static inline size_t tw_json_skip_space(struct tw_str text, size_t i)
{
    while (i < text.n && (text.p[i] == ' ' || text.p[i] == '\n' || text.p[i] == '\r' ||
                                 text.p[i] == '\t'))
        i++;
    return i;
}
#endif
