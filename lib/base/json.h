/* json.h - JSON in and out. The reader sits on jsmn and is strict: bounded depth (TW_JSON_DEPTH),
 * exact 64-bit integers, surrogate pairs joined (a lone surrogate is an error), valid UTF-8 only,
 * duplicate keys and trailing garbage are errors that say where. Values keep the exact source text
 * (`raw`), so what a filter does not touch is written back byte for byte. */
#ifndef TW_JSON_H
#define TW_JSON_H
#include "buf.h"
#include "err.h"

#define TW_JSON_DEPTH 512

enum tw_json_type { TW_JNULL, TW_JBOOL, TW_JNUM, TW_JSTR, TW_JARR, TW_JOBJ };

struct tw_json {
    enum tw_json_type type;
    bool b;                 /* TW_JBOOL */
    bool is_int;            /* TW_JNUM written without '.', 'e' and within int64: `i` is exact */
    int64_t i;
    double d;               /* any TW_JNUM */
    struct tw_str str;      /* TW_JSTR: decoded text, may hold NUL */
    struct tw_str raw;      /* the value as it stands in the source */
    struct tw_str key;      /* decoded key, when a member of an object */
    struct tw_json *item;   /* TW_JARR, TW_JOBJ: n values in source order */
    int64_t n;
};

/* Parses one JSON value that must fill TEXT but for white space. Values live in A and borrow TEXT.
 * On failure ERR's message gives what and the byte column (1-based) "at column N"; place and line
 * are the caller's to add. */
struct tw_json *tw_json_parse(struct tw_arena *a, struct tw_str text, struct tw_err *err);

/* Lenient about duplicate keys (the last wins); *dups counts them. For files whose writers repeat
 * keys; records use tw_json_parse. */
struct tw_json *tw_json_parse_dups(struct tw_arena *a, struct tw_str text, int64_t *dups,
        struct tw_err *err);

/* Reads and parses a whole file of at most MAX bytes (0: 1 GiB). Errors carry the path. */
struct tw_json *tw_json_file(struct tw_arena *a, const char *path, size_t max, struct tw_err *err);

/* Look-ups. Missing and null both give NULL. */
const struct tw_json *tw_json_get(const struct tw_json *obj, const char *key);
bool tw_json_has(const struct tw_json *obj, const char *key);  /* true for null, too */

/* Typed fields: 1 found, 0 missing or null (*out untouched), -1 wrong type (ERR names the key). */
int tw_json_get_int(const struct tw_json *obj, const char *key, int64_t *out, struct tw_err *err);
int tw_json_get_num(const struct tw_json *obj, const char *key, double *out, struct tw_err *err);
int tw_json_get_bool(const struct tw_json *obj, const char *key, bool *out, struct tw_err *err);
int tw_json_get_str(const struct tw_json *obj, const char *key, struct tw_str *out,
        struct tw_err *err);
const char *tw_json_type_name(enum tw_json_type t);

/* The writer appends to a buffer and puts commas itself. Strings come out as valid UTF-8 (invalid
 * bytes as U+FFFD), escaped where JSON demands it and nowhere else. Numbers are the shortest text
 * that reads back equal; an integral double prints as "1.0" by _num, "1" by _int; a number that is
 * not finite is written as null. */
struct tw_jw {
    struct tw_buf *out;
    int depth;
    bool comma[TW_JSON_DEPTH + 1];
    bool after_key;
};
void tw_jw_init(struct tw_jw *w, struct tw_buf *out);
void tw_jw_obj(struct tw_jw *w);
void tw_jw_obj_end(struct tw_jw *w);
void tw_jw_arr(struct tw_jw *w);
void tw_jw_arr_end(struct tw_jw *w);
void tw_jw_key(struct tw_jw *w, const char *key);
void tw_jw_key_n(struct tw_jw *w, struct tw_str key);
void tw_jw_str(struct tw_jw *w, struct tw_str s);
void tw_jw_cstr(struct tw_jw *w, const char *s);
void tw_jw_int(struct tw_jw *w, int64_t v);
void tw_jw_num(struct tw_jw *w, double v);
void tw_jw_f32(struct tw_jw *w, float v);       /* shortest that reads back to the same float */
void tw_jw_bool(struct tw_jw *w, bool v);
void tw_jw_null(struct tw_jw *w);
void tw_jw_raw(struct tw_jw *w, struct tw_str json);    /* a value as it stands */
void tw_jw_value(struct tw_jw *w, const struct tw_json *v); /* v->raw, compacted to one line */

/* Appends S quoted and escaped; V as the shortest round-trip number. */
void tw_json_quote(struct tw_buf *out, struct tw_str s);
void tw_json_number(struct tw_buf *out, double v);

#endif
