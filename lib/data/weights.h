/* weights.h - safetensors in and out, single or sharded. Every size is checked against the file
 * before use: a short file is an error, never a SIGBUS; shard names stay inside the folder.
 *
 *     struct tw_weights w;
 *     struct tw_wtensor *t;
 *
 *     if (tw_weights_open(&w, "model/", err))
 *         return -1;
 *     if ((t = tw_weights_find(&w, tw_str("model.norm.weight"))) && !tw_weights_f32(t, 0, t->n, x, err))
 *         t->used = true;
 *     tw_weights_close(&w);
 */
#ifndef TW_WEIGHTS_H
#define TW_WEIGHTS_H
#include "base/err.h"
#include "base/json.h"

enum tw_dtype { TW_F32, TW_BF16, TW_F16, TW_F64, TW_I8, TW_U8, TW_I16, TW_U16, TW_I32, TW_U32,
    TW_I64, TW_U64, TW_BOOL, TW_F8_E4M3, TW_F8_E5M2, TW_NDTYPE };
size_t tw_dtype_size(enum tw_dtype t);              /* bytes an element */
const char *tw_dtype_name(enum tw_dtype t);         /* "F32": the safetensors spelling */
int tw_dtype_parse(struct tw_str s);                /* -1: unknown */

static inline float tw_bf16_to_f32(uint16_t b)
{
    union { uint32_t u; float f; } v = { (uint32_t)b << 16 };
    return v.f;
}
static inline uint16_t tw_f32_to_bf16(float f)      /* round to nearest even; NaN stays NaN */
{
    union { float f; uint32_t u; } v = { f };
    if ((v.u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(v.u >> 16 | 0x40);
    return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}
float tw_f16_to_f32(uint16_t h);
uint16_t tw_f32_to_f16(float f);                    /* round to nearest even */

/* N elements from one type to another: any type to itself, any floating-point type to F32, BF16 or
 * F16 with one rounding; -1 for other pairs. IN may be unaligned; OUT is aligned to its type. */
bool tw_dtype_float(enum tw_dtype t);
int tw_convert(void *out, enum tw_dtype to, const void *in, enum tw_dtype from, int64_t n);

#define TW_WDIMS 8

struct tw_wtensor {
    struct tw_str name;
    enum tw_dtype dtype;
    int ndim;
    int64_t dim[TW_WDIMS];
    int64_t n;                  /* elements */
    const void *data;           /* in the mapping; may be unaligned */
    bool used;                  /* set by the loader, to find what nobody claimed */
    int file;                   /* index of the mapping it lies in */
};

struct tw_weights {
    struct tw_wtensor *t;       /* sorted by name */
    int64_t n;
    struct tw_arena arena;
    struct tw_map *map;
    int nmap;
    char *path;
};

/* DIR/model.safetensors, or DIR/model.safetensors.index.json and its shards; or a single file. The
 * whole header is checked, no data is read. A dtype that is not in enum tw_dtype is an error. On
 * failure W is closed. tw_weights_find: NULL when there is none of that name. */
int tw_weights_open(struct tw_weights *w, const char *dir_or_file, struct tw_err *err);
struct tw_wtensor *tw_weights_find(struct tw_weights *w, struct tw_str name);
/* Elements [first, first + count) as f32 (exact from bf16 and f16), or as bf16 (rounded once). */
int tw_weights_f32(const struct tw_wtensor *t, int64_t first, int64_t count, float *out,
        struct tw_err *err);
int tw_weights_bf16(const struct tw_wtensor *t, int64_t first, int64_t count, uint16_t *out,
        struct tw_err *err);
void tw_weights_close(struct tw_weights *w);

/* Writing: declare all tensors, then give their data in the order that _next() tells (any
 * chunking), then commit: the files appear by rename. Inside a file tensors are sorted by dtype
 * size (largest first), then name. The disk's space is reserved at the start where the file system
 * can. OPEN copies DECL. A failure of _put() or _commit() still needs _abort(). */
struct tw_wout;
struct tw_wdecl {
    const char *name;
    enum tw_dtype dtype;
    int ndim;
    int64_t dim[TW_WDIMS];
};
struct tw_wout *tw_wout_open(const char *path, const struct tw_wdecl *decl, int64_t n,
        struct tw_err *err);
/* DIR/model.safetensors, or where that would pass MAX_BYTES (0: never) of data
 * DIR/model-0000k-of-0000n.safetensors of at most MAX_BYTES each (a larger tensor stands alone), in
 * the order of DECL, and model.safetensors.index.json, which appears last. */
struct tw_wout *tw_wout_open_dir(const char *dir, const struct tw_wdecl *decl, int64_t n,
        int64_t max_bytes, struct tw_err *err);
/* The index into DECL of the tensor whose data comes next; -1: all given. */
int64_t tw_wout_next(const struct tw_wout *o);
/* N elements of the current tensor, converted from FROM to its dtype. */
int tw_wout_put(struct tw_wout *o, const void *data, enum tw_dtype from, int64_t n,
        struct tw_err *err);
int tw_wout_commit(struct tw_wout *o, struct tw_err *err);      /* frees when it returns 0 */
void tw_wout_abort(struct tw_wout *o);      /* removes the temporaries; frees; NULL is allowed */

#endif
