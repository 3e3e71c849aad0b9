/* tok_priv.h - the inside of a tokenizer, shared by lib/data/tok*.c only.
 *
 * Text flows through views: bytes and, when spans are wanted, for each byte the range of the
 * caller's text it came from. tok.c finds the added tokens, tok_norm.c rewrites what lies between
 * them, tok_pre.c cuts it into words, tok_bpe.c or tok_unigram.c turns words into ids (tok_cache.c
 * remembers them), tok_decode.c goes back. tok_load.c and tok_parts.c read tokenizer.json, tok_spm.c
 * and tok_rank.c tokenizer.model, tok_conf.c the files beside them. */
#ifndef TW_TOK_PRIV_H
#define TW_TOK_PRIV_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/json.h"
#include "data/tok.h"
#include <pcre2.h>

/* ---- characters (tok_uni.c) ---- */

/* Classes of a code point: general categories L, N, M, P, S(ymbol), White_Space, CR or LF, and
 * whether NFC may change it or what stands before it. */
enum { TOK_L = 1, TOK_N = 2, TOK_S = 4, TOK_NL = 8, TOK_M = 16, TOK_P = 32, TOK_Y = 64,
    TOK_NFC = 128 };
#define TOK_UNI_N 0x40000               /* table of planes 0 to 3; above is computed */

struct tok_uni {
    uint8_t cls[TOK_UNI_N];
    uint8_t late[0x110000 >> 7];        /* a bit for 16 code points: PCRE2 may know one of them otherwise */
};
void tok_uni_init(struct tok_uni *u);
uint8_t tok_uni_high(uint32_t c);       /* class of a code point >= TOK_UNI_N */
/* As the reference's version of Unicode has it (tok_age.c). decompose: how many characters. */
bool tok_uni_mark(const struct tok_uni *u, uint32_t c);
int tok_uni_decompose(uint32_t c, int32_t d[32], int options);
uint32_t tok_uni_lower(uint32_t c);
bool tok_uni_word(uint32_t c);          /* \w as added tokens' single_word means it */

static inline uint8_t tok_cls(const struct tok_uni *u, uint32_t c)
{
    return c < TOK_UNI_N ? u->cls[c] : tok_uni_high(c);
}
/* Decodes the character at P of valid UTF-8; *N is its length. */
static inline uint32_t tok_char(const unsigned char *p, size_t *n)
{
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *n = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *n = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}
/* Start of the character that ends before P + I, I > 0. */
static inline size_t tok_char_before(const char *p, size_t i)
{
    do
        i--;
    while (i && ((unsigned char)p[i] & 0xC0) == 0x80);
    return i;
}
/* The first S in [p, p+n), or NULL; S is short and not empty. */
static inline const char *tok_search(const char *p, size_t n, struct tw_str s)
{
    const char *end = p + n;

    while (n >= s.n && (p = memchr(p, s.p[0], n - s.n + 1))) {
        if (!memcmp(p, s.p, s.n))
            return p;
        n = (size_t)(end - ++p);
    }
    return NULL;
}
int tok_byte_char(int byte);            /* code point that stands for a byte in byte-level models */
int tok_char_byte(uint32_t c);          /* and back; -1: none */
/* Lossy UTF-8: appends [p, p+n) with every maximal bad sequence as one U+FFFD. With END false an
 * incomplete character at the end is left alone. Returns how many bytes were used. */
size_t tok_utf8_lossy(struct tw_buf *out, const char *p, size_t n, bool end);

/* ---- tokens (tok_vocab.c) ---- */

#define TOK_MAX_ID (1 << 24)
#define TOK_NONE UINT32_MAX
#define TOK_MAX_FILE ((size_t)1 << 30)  /* so that offsets in it are 32-bit */

struct tok_entry {
    uint32_t off, n;                    /* n == TOK_NONE: no token has this id */
};
struct tok_vocab {
    struct tw_buf text;                 /* all token texts, one after another */
    struct tok_entry *of;               /* by id */
    int32_t n, cap;                     /* highest id + 1 */
    int64_t count;
    uint64_t *slot;                     /* hash >> 32 << 32 | id + 1; open addressing */
    uint32_t mask;
    bool again;                         /* a text may stand again: its last id is found */
};
/* The text of the new token is the last N bytes of v->text. 0; -1: the text or the id is taken.
 * _append leaves texts to tok_vocab_index(), which finds them all at once: the id of a text that
 * stands twice, or -1. Until then no text is found. */
int tok_vocab_add(struct tok_vocab *v, size_t n, int64_t id);
int tok_vocab_append(struct tok_vocab *v, size_t n, int64_t id);
int32_t tok_vocab_index(struct tok_vocab *v);
/* The token ID gets the last N bytes of v->text as its text; -1: there is no such id, or another
 * token has that text. */
int tok_vocab_rename(struct tok_vocab *v, size_t n, int64_t id);
int32_t tok_vocab_find(const struct tok_vocab *v, const char *p, size_t n);
int32_t tok_vocab_find_hash(const struct tok_vocab *v, const char *p, size_t n, uint64_t hash);
/* Steps 0, 1, 2 ask for the memory that finding HASH will touch; done for many texts in turn, the
 * waits overlap. */
void tok_vocab_warm(const struct tok_vocab *v, uint64_t hash, int step);
void tok_vocab_free(struct tok_vocab *v);
static inline struct tw_str tok_vocab_text(const struct tok_vocab *v, int64_t id)
{
    if (id < 0 || id >= v->n || v->of[id].n == TOK_NONE)
        return (struct tw_str){ NULL, 0 };
    return (struct tw_str){ v->text.p + v->of[id].off, v->of[id].n };
}
uint64_t tok_hash(const char *p, size_t n);

/* ---- the model (tok_bpe.c, tok_cache.c) ---- */

struct tok_pair {
    uint32_t left, right, rank, id;     /* left == TOK_NONE: a free slot */
};
struct tok_bpe {
    struct tok_pair *pair;              /* open addressing over (left, right) */
    uint32_t mask, npairs, longest;     /* longest: bytes of the longest token */
    bool byte_level;                    /* words are bytes, spelled in the byte alphabet */
    bool ignore_merges, byte_fallback, fuse_unk;
    bool cut, keep[256];                /* a word may be cut before U+2581, but not after these
                                         * bytes; see tok_bpe.c */
    int32_t unk;                        /* -1: none */
    int32_t byte[256];                  /* byte_level: id of the byte's character; else ASCII's */
    int32_t fallback[256];              /* ids of <0x00> to <0xFF>; -1: none */
};
void tok_bpe_reserve(struct tok_bpe *m, uint32_t n);    /* grows for N more */
void tok_bpe_warm(const struct tok_bpe *m, uint32_t left, uint32_t right);
void tok_bpe_add(struct tok_bpe *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
void tok_bpe_free(struct tok_bpe *m);
void tok_bpe_finish(struct tok_bpe *m, const struct tok_vocab *v);
/* Takes away the merges that end in ID. */
void tok_bpe_unmake(struct tok_bpe *m, uint32_t id);

struct tok_cache;
struct tok_cache *tok_cache_open(void);
void tok_cache_close(struct tok_cache *c);
/* Ids of a word met before, *n of them; NULL: not known. */
const int32_t *tok_cache_find(const struct tok_cache *c, const char *p, size_t len, uint64_t hash,
        int64_t *n);
void tok_cache_put(struct tok_cache *c, const char *p, size_t len, uint64_t hash,
        const int32_t *id, int64_t n);
#define TOK_CACHE_WORD 128              /* longer words are not remembered */

/* ---- added tokens (tok_added.c) ---- */

struct tok_added {
    struct tw_str text, pattern;        /* as in the file; as searched for (else made from it) */
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    bool fresh;                         /* the model's vocabulary does not have it */
};
struct tok_node {
    uint32_t child, next;               /* 0: none */
    int32_t token;                      /* index of the added token that ends here; -1 */
    unsigned char byte;
};
struct tok_trie {
    struct tok_node *node;
    uint32_t n, cap;
    uint32_t root[256];
    int single;                         /* the only byte a token begins with; -1: several or none */
};
void tok_trie_add(struct tok_trie *t, struct tw_str s, int32_t token);
static inline uint32_t tok_trie_step(const struct tok_trie *t, uint32_t at, unsigned char byte)
{
    at = t->node[at].child;
    while (at && t->node[at].byte != byte)
        at = t->node[at].next;
    return at;
}

/* ---- the other model (tok_unigram.c) ---- */

/* Types of pieces, as SentencePiece numbers them. */
enum { TOK_PIECE_NORMAL = 1, TOK_PIECE_UNKNOWN, TOK_PIECE_CONTROL, TOK_PIECE_USER, TOK_PIECE_UNUSED,
    TOK_PIECE_BYTE };
struct tok_unigram {
    bool on;                            /* this is the model; byte tokens are in struct tok_bpe */
    bool native;                        /* SentencePiece's arithmetic, not that of tokenizer.json */
    int32_t pieces, unk;                /* ids below are the model's; unk -1: none */
    double *score;                      /* by id, n of them */
    int32_t n;
    unsigned char *type;                /* by id; NULL: all normal */
    double unknown_score;
    uint32_t longest;                   /* bytes of a piece */
    size_t ring;                        /* a power of two, more places than the longest piece */
    struct tok_trie trie;
};
void tok_unigram_score(struct tok_unigram *m, int32_t id, double score);
struct tok_scan;
int tok_unigram_load(struct tw_tok *t, struct tok_scan *s);     /* the list "vocab", after its '[' */
void tok_unigram_finish(struct tw_tok *t);
void tok_unigram_free(struct tok_unigram *m);

/* ---- matching (tok_find.c: which way; tok_split.c: by hand) ---- */

enum tok_find_kind { TOK_FIND_RE, TOK_FIND_LIT, TOK_FIND_GPT2, TOK_FIND_CL, TOK_FIND_DIGITS,
    TOK_FIND_LINE_END, TOK_FIND_CJK, TOK_FIND_DSV3 };
struct tok_find {
    enum tok_find_kind kind;
    bool covers;                        /* matches leave no gap, whatever the text */
    int digits;                         /* most numeric characters in a match; 0: no limit */
    bool marks;                         /* letters include marks */
    struct tw_str lit;
    pcre2_code *re, *late;              /* late: instead of re, for texts that tok_find_for() finds
                                         * to need it */
};
struct tok_enc;
/* The pattern as PCRE2 is to have it; what we do not support fails (tok_regex.c). LATE: also for texts with
 * characters that PCRE2 knows otherwise than the reference. */
int tok_regex(struct tw_buf *out, struct tw_str pattern, bool late, struct tw_err *err);
/* The set \p{NAME}, or \P{NAME}, for a class: IN gets what can stand inside, ALT further classes, a '|'
 * before each. False: a property that we do not know (tok_prop.c). */
bool tok_prop(struct tw_buf *in, struct tw_buf *alt, bool late, bool negated, struct tw_str name);
void tok_prop_late(uint8_t *late);      /* fills tok_uni's */
/* PATTERN in the syntax of tokenizer.json ({"Regex": ..}); what we do not support fails. ONLY_RE:
 * do not use a matcher written by hand (tests compare the two). */
int tok_find_regex(struct tok_find *f, struct tw_str pattern, bool only_re, struct tw_err *err);
int tok_find_json(struct tok_find *f, const struct tw_json *pattern, struct tw_arena *mem,
        struct tw_err *err);
void tok_find_free(struct tok_find *f);
/* What to look for in all of this text: its parts share what *F holds. */
struct tok_find tok_find_for(const struct tok_find *f, const struct tok_uni *u, const char *p, size_t n);
/* The next match in [0, n) at or after FROM: 1 and [*b, *e), 0 none, -1 an error in e. */
int tok_find_next(struct tok_enc *e, const struct tok_find *f, const char *p, size_t n, size_t from,
        size_t *mb, size_t *me);

size_t tok_split_gpt2(const struct tok_uni *u, const unsigned char *p, size_t i, size_t n);
size_t tok_split_cl(const struct tok_uni *u, int digits, bool marks, const unsigned char *p,
        size_t i, size_t n);
bool tok_split_dsv3(const struct tok_uni *u, const unsigned char *p, size_t n, size_t from,
        size_t *mb, size_t *me);

/* ---- the chain ---- */

enum tok_norm_kind { TOK_FORM_C, TOK_FORM_D, TOK_FORM_KC, TOK_FORM_KD, TOK_LOWER, TOK_STRIP,
    TOK_REPLACE, TOK_PREPEND, TOK_CHARSMAP, TOK_ACCENTS, TOK_BYTES };
struct tok_norm {
    enum tok_norm_kind kind;
    bool left, right;                   /* TOK_STRIP */
    struct tok_find find;               /* TOK_REPLACE */
    struct tw_str text;                 /* what is put in; TOK_CHARSMAP: all replacements */
    uint32_t *unit, nunit;              /* TOK_CHARSMAP (tok_charsmap.c) */
    bool longest;                       /* as SentencePiece reads it */
};
enum tok_pre_kind { TOK_SPLIT, TOK_BYTELEVEL, TOK_METASPACE };
enum tok_behavior { TOK_REMOVED, TOK_ISOLATED, TOK_MERGE_PREV, TOK_MERGE_NEXT, TOK_CONTIGUOUS };
struct tok_pre {
    enum tok_pre_kind kind;
    enum tok_behavior behavior;
    bool invert, split;
    enum { TOK_NEVER, TOK_FIRST, TOK_ALWAYS } prefix;
    struct tw_str text;                 /* TOK_METASPACE: what stands for a space */
    struct tok_find find;
};
enum tok_dec_kind { TOK_DEC_BYTELEVEL, TOK_DEC_REPLACE, TOK_DEC_FALLBACK, TOK_DEC_FUSE,
    TOK_DEC_STRIP, TOK_DEC_METASPACE, TOK_DEC_SPACES };
struct tok_dec {
    enum tok_dec_kind kind;
    bool prefix;                        /* TOK_DEC_METASPACE: the first token loses its spaces */
    bool fused;                         /* what comes in is one text, no longer tokens */
    struct tw_str from, to;
    int64_t start, stop;
};

#define TOK_STAGES TW_TOK_STAGES        /* most parts of one kind in a chain */

/* A special token; an added token that decodes to its pattern, not to its text; a token that the model
 * does not know and cannot make. */
enum { TOK_ID_SPECIAL = 1, TOK_ID_PATTERN = 2, TOK_ID_FRESH = 4 };

struct tw_tok {
    struct tw_arena mem;
    const char *name;                   /* for errors: the file */
    struct tok_vocab vocab;             /* added tokens included */
    uint8_t *flags;                     /* by id: TOK_ID_* */
    struct tok_bpe bpe;
    struct tok_unigram unigram;
    struct tok_cache *cache;            /* only speed depends on it; safe to share */
    struct tok_added *added;
    int nadded, added_cap;
    struct tok_trie raw, normal;        /* tokens looked for before and after normalization */
    struct tok_norm norm[TOK_STAGES];
    int nnorm;
    struct tok_pre pre[TOK_STAGES];
    int npre;
    struct tok_dec dec[TOK_STAGES];
    int ndec;
    int32_t before[TOK_STAGES], after[TOK_STAGES];  /* what the post-processor adds */
    int nbefore, nafter;
    int32_t bos, eos, pad;
    uint64_t hash;
    struct tok_uni uni;
};

/* Text being encoded: byte i came from [mb[i], me[i]) of the caller's text, or, without maps, from
 * origin + i. Rewritten text has the origin of what it was made from, maps or not. */
struct tok_view {
    const char *p;
    size_t n, origin;
    const uint32_t *mb, *me;
};
static inline size_t tok_view_begin(const struct tok_view *v, size_t i)
{
    return v->mb ? v->mb[i] : v->origin + i;
}
static inline size_t tok_view_end(const struct tok_view *v, size_t i)   /* i > 0: end of byte i-1 */
{
    return v->me ? v->me[i - 1] : v->origin + i;
}

/* A view's own storage, for the parts that rewrite text. */
struct tok_text {
    struct tw_buf b;
    uint32_t *mb, *me;
    size_t cap;
};
/* Appends bytes that came from [begin, end); MAPPED: fill the maps as well. */
void tok_text_add(struct tok_text *t, bool mapped, const char *p, size_t n, size_t begin,
        size_t end);
void tok_text_copy(struct tok_text *t, bool mapped, const struct tok_view *v, size_t b, size_t e);
struct tok_view tok_text_view(const struct tok_text *t, bool mapped);
void tok_text_free(struct tok_text *t);

/* One call of tw_tok_encode. */
struct tok_enc {
    const struct tw_tok *t;
    struct tw_ids *out;
    struct tw_err *err;
    int failed;
    bool mapped;                        /* views need maps */
    const struct tw_tok_part *parts;
    int64_t nparts;
    bool control;                       /* without parts */
    int64_t blocked;
    struct tok_text text[3];            /* two for normalizers, one for pre-tokenizers */
    pcre2_match_data *match;
    pcre2_match_context *mctx;
    pcre2_jit_stack *jit;
    struct tok_sym *sym;                /* a long word's symbols */
    uint64_t *heap;
    size_t nsym;                        /* room in sym; heap has three times that */
    uint32_t *edge;                     /* of a Unigram model's paths, and room for them */
    size_t nedge;
    double *sum;
};

void tok_enc_free(struct tok_enc *e);
/* Called for each stretch between added tokens, and for each added token (id >= 0). */
void tok_added_split(struct tok_enc *e, const struct tok_trie *trie, const struct tok_view *v,
        void (*piece)(struct tok_enc *e, const struct tok_view *v, size_t b, size_t n));
int tok_norm_run(struct tok_enc *e, const struct tok_view *in, struct tok_view *out);
void tok_pre_run(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end, int level);
void tok_bpe_word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end);
/* Returns whether the ids alone say how long each token is. */
bool tok_unigram_word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end);
void tok_charsmap_run(const struct tok_enc *e, const struct tok_norm *m, const struct tok_view *v,
        struct tok_text *out);

void tok_ids_grow(struct tw_ids *ids);
static inline void tok_emit(struct tok_enc *e, int32_t id, const struct tok_view *v, size_t b,
        size_t end)
{
    struct tw_ids *o = e->out;

    if (o->n == o->cap)
        tok_ids_grow(o);
    if (o->want_spans) {
        o->begin[o->n] = (uint32_t)tok_view_begin(v, b);
        o->end[o->n] = (uint32_t)tok_view_end(v, end);
    }
    o->id[o->n++] = id;
}

/* ---- loading ---- */

/* A pull reader for the two large members, which never become a tree. */
struct tok_scan {
    const char *p, *end, *begin;
    struct tw_err *err;
    const char *name;
};
bool tok_scan_take(struct tok_scan *s, char c);         /* skips white space; takes a C */
int tok_scan_need(struct tok_scan *s, char c);
int tok_scan_string(struct tok_scan *s, struct tw_buf *out);    /* appends the decoded text */
int tok_scan_int(struct tok_scan *s, int64_t *v);
int tok_scan_num(struct tok_scan *s, double *v);
int tok_scan_skip(struct tok_scan *s, struct tw_str *raw);      /* one value of any type */
int tok_scan_fail(struct tok_scan *s, const char *what);

int tok_charsmap_load(struct tw_tok *t, struct tok_norm *m, struct tw_str blob, struct tw_err *err);
int tok_load(struct tw_tok *t, struct tw_str json, struct tw_err *err);
int tok_spm_load(struct tw_tok *t, struct tw_str file, struct tw_err *err);
/* A rank file of tiktoken: is it one; its tokens; how text is split, by the class that reads it. */
bool tok_rank_is(struct tw_str file);
int tok_rank_load(struct tw_tok *t, struct tw_str file, struct tw_err *err);
void tok_rank_split(struct tw_tok *t, struct tw_str cls);
/* Sets t->hash from tokens, merges, settings and PARTS, a text that names the other parts. */
void tok_fingerprint(struct tw_tok *t, struct tw_str parts);
int tok_load_parts(struct tw_tok *t, const struct tw_json *norm, const struct tw_json *pre,
        const struct tw_json *post, const struct tw_json *dec, struct tw_err *err);
int tok_load_decoder(struct tw_tok *t, const struct tw_json *v, struct tw_err *err);
int tok_added_load(struct tw_tok *t, const struct tw_json *list, struct tw_err *err);
int tok_added_put(struct tw_tok *t, const struct tok_added *a, struct tw_err *err);
int tok_added_finish(struct tw_tok *t, struct tw_err *err);
/* FROM: which file T came from. The configuration also says what is added before and after. */
enum tok_source { TOK_FROM_JSON, TOK_FROM_SPM, TOK_FROM_RANKS };
int tok_conf_load(struct tw_tok *t, const char *dir, enum tok_source from, struct tw_err *err);

#endif
