/* gguf_priv.h - what the parts of the GGUF import share: the parsed file and its types. */
#ifndef TW_GGUF_PRIV_H
#define TW_GGUF_PRIV_H
#include "base/io.h"
#include "data/gguf.h"

enum gguf_type { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
    GGUF_STR, GGUF_ARR, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_NTYPES };

struct gguf_kv {
    struct tw_str key;
    uint32_t type;              /* GGUF_ARR: N elements of type ELEM */
    uint32_t elem;
    uint64_t n;
    const unsigned char *p;     /* the value: checked, unaligned */
};

struct gguf_tensor {
    struct tw_str name;
    uint32_t type;
    int ndim;
    int64_t dim[4];             /* innermost first */
    int64_t n;
    const unsigned char *p;
    size_t bytes;
    bool used;
};

struct tw_gguf {
    struct tw_map map;
    const char *path;           /* borrowed */
    struct gguf_kv *kv;         /* sorted by key */
    struct gguf_tensor *t;      /* sorted by name */
    int64_t nkv, nt;
};

/* Maps and checks PATH: every length and offset lies in the file. On failure G is closed. */
int tw_gguf_open(struct tw_gguf *g, const char *path, struct tw_err *err);
void tw_gguf_close(struct tw_gguf *g);
const struct gguf_kv *tw_gguf_kv(const struct tw_gguf *g, const char *key);
struct gguf_tensor *tw_gguf_tensor(const struct tw_gguf *g, const char *name);

/* Typed look-ups: 1 found, 0 missing (*out untouched), -1 of another type (ERR names the key).
 * Integers of any width are integers; a list needs as many elements as *n when that is not 0. */
int tw_gguf_int(const struct tw_gguf *g, const char *key, int64_t *out, struct tw_err *err);
int tw_gguf_num(const struct tw_gguf *g, const char *key, double *out, struct tw_err *err);
int tw_gguf_bool(const struct tw_gguf *g, const char *key, bool *out, struct tw_err *err);
int tw_gguf_str(const struct tw_gguf *g, const char *key, struct tw_str *out, struct tw_err *err);
int tw_gguf_strs(const struct tw_gguf *g, const char *key, struct tw_arena *a,
        struct tw_str **out, int64_t *n, struct tw_err *err);
int tw_gguf_ints(const struct tw_gguf *g, const char *key, struct tw_arena *a, int64_t **out,
        int64_t *n, struct tw_err *err);
int tw_gguf_nums(const struct tw_gguf *g, const char *key, struct tw_arena *a, double **out,
        int64_t *n, struct tw_err *err);

/* Element types of tensors: blocks of BLOCK elements in BYTES bytes. NULL: not supported. */
struct ggml_type {
    const char *name;
    int64_t block;
    size_t bytes;
    void (*f32)(float *out, const unsigned char *in, int64_t nblocks);
};
const struct ggml_type *tw_ggml_type(uint32_t type);

/* A llama model: H, I, L, V and heads as config.json has them. */
struct gguf_model {
    struct tw_gguf g;
    int64_t H, I, L, nh, nkv, hd, V, context;
    double eps, theta;
    bool tied, attn_bias, mlp_bias;
    struct {
        const char *type;       /* NULL: none */
        double factor, low, high;
        int64_t original;
    } rope;
};

/* Reads the keys of M->g, which is open. A key of the model that is not known is an error. */
int tw_gguf_load(struct gguf_model *m, struct tw_err *err);
int tw_gguf_write_config(const struct gguf_model *m, const char *dir, enum tw_dtype dtype,
        struct tw_err *err);

#define KEY(name) "tokenizer.ggml." name

enum gguf_token { GGUF_NORMAL = 1, GGUF_UNKNOWN, GGUF_CONTROL, GGUF_USER, GGUF_UNUSED, GGUF_BYTE };

struct gguf_vocab {
    const struct tw_gguf *g;
    struct tw_arena arena;
    bool spm;
    struct tw_str model, pre;
    struct tw_str *token;
    int64_t n, *type;
    double *score;
    struct tw_str *merge;
    int64_t nmerges;
    bool prefix;                /* a space comes before the text */
    bool add_bos, add_eos, add_bos_given;
};

/* Reads and checks V->g's tokenizer; ROWS of the embedding bound it. The caller frees V->arena. */
int tw_gguf_vocab_load(struct gguf_vocab *v, int64_t rows, struct tw_err *err);
/* A special token's id: 1 found, 0 none, -1 outside the vocabulary of N. */
int tw_gguf_special_id(const struct tw_gguf *g, const char *key, int64_t n, int64_t *id,
        struct tw_err *err);

/* Writes DIR/tokenizer.json, tokenizer_config.json and generation_config.json. VOCAB: rows of the
 * embedding. */
int tw_gguf_tokenizer(const struct tw_gguf *g, const char *dir, int64_t vocab,
        struct tw_err *err);
/* Writes "normalizer" and "pre_tokenizer" of the pre-tokenizer NAME and tells whether whole words of
 * the vocabulary skip the merges and whether a BOS is the default. -1: unknown NAME. */
int tw_gguf_pre(struct tw_jw *w, struct tw_str name, bool *ignore_merges, bool *bos);
/* "merges" of a SentencePiece vocabulary: every way to put a piece together from two others, best
 * score first. TYPE[i] == 1 marks the pieces that take part. */
void tw_gguf_merges(struct tw_jw *w, const struct tw_str *piece, const int64_t *type,
        const double *score, int64_t n);
/* bos_token_id, eos_token_id, pad_token_id as members of the object that is being written. */
void tw_gguf_write_ids(struct tw_jw *w, const struct tw_gguf *g);

#endif
