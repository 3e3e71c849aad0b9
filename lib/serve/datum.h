/* datum.h - from the tensors of a request to what losses read; the checks that both forms of a
 * request share. */
#ifndef TW_DATUM_H
#define TW_DATUM_H
#include "serve/work.h"

/* A tensor as it came: row-major little-endian F32 or I64, dense by now; possibly unaligned. */
struct tw_tensor_in {
    struct tw_str name;
    bool is_int;
    int ndim;                   /* 1 or 2 */
    int64_t dim[2], n;
    const char *data;
    bool kept;                  /* data lies in the work's arena already, as I32 or F32, aligned */
};
/* A compressed sparse row matrix in full. ROW [dim[0] + 1] and COL [nnz] are I64; *T has name, dim and
 * type, and gets data and n. WHERE is named in errors. */
int tw_tensor_dense(struct tw_arena *a, struct tw_tensor_in *t, struct tw_str values,
        struct tw_str row, struct tw_str col, const char *where, struct tw_err *err);
/* Gives T its n from dim, checked against the BYTES that there are. */
int tw_tensor_size(struct tw_tensor_in *t, size_t bytes, const char *where, struct tw_err *err);

struct tw_datum_raw {
    int32_t *token;
    int64_t n;
    struct tw_tensor_in *t;
    int64_t nt;
    bool spans;                 /* provenance was given: */
    uint8_t *sampled;           /* [n] 1: the target was sampled, as these say: */
    struct tw_span *span;
    int64_t nspan;
};

/* "NAME" with its settings (text "key=value,.."; empty) as Tinker's form of the loss. */
int tw_datum_loss(struct tw_fb_args *f, struct tw_str name, struct tw_str settings,
        struct tw_err *err);
/* Datum number I of a request for F's loss. */
int tw_datum_make(struct tw_datum_in *d, const struct tw_fb_args *f, const struct tw_limits *l,
        struct tw_arena *a, const struct tw_datum_raw *raw, int64_t i, struct tw_err *err);
/* Is ID a token of the model? */
static inline bool tw_is_token(const struct tw_limits *l, int64_t id)
{
    return id >= 0 && id < l->V && (!l->known || l->known[id]);
}

#endif
