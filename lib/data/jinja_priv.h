/* jinja_priv.h - the inside of the template engine: a template is lexed into tokens, parsed into a
 * tree that lives in one arena, and the tree is walked for each rendering. While it works, the
 * engine leaves on an error by longjmp to its public function (nothing it holds then is owned by
 * a C frame: all memory is in the arena or in the scratch), which returns the error as a value. */
#ifndef TW_JINJA_PRIV_H
#define TW_JINJA_PRIV_H
#include "data/jinja.h"

#include <setjmp.h>

#define TW_J_NEST 200               /* nesting of the source text */
#define TW_J_DEPTH 1000             /* nesting of evaluation: macros in macros */
#define TW_J_DIGITS 4300            /* of an integer, as in Python */
#define TW_J_GEN 0x80000000u        /* in an origin: written inside a generation block */

/* Where bytes come from: origin 0 is the template, n is entry n - 1 of the rendering's table; owner
 * is the message whose pass of a loop wrote them, or -1. */
struct tw_jrun {
    size_t end;
    uint32_t origin;
    int32_t owner;
};

/* Text. nrun 0: all of it has `origin` and `owner`. */
struct tw_jstr {
    const char *p;
    size_t n;
    uint32_t origin;
    int32_t owner;
    const struct tw_jrun *run;
    size_t nrun;
    bool safe;                      /* Python's Markup: what is joined to it is escaped for HTML */
};

enum tw_jtype { TW_V_UNDEF, TW_V_NONE, TW_V_BOOL, TW_V_INT, TW_V_FLOAT, TW_V_BIG, TW_V_STR,
    TW_V_LIST, TW_V_DICT, TW_V_NS, TW_V_MACRO, TW_V_FUNC, TW_V_METHOD, TW_V_LOOP, TW_V_CYCLER,
    TW_V_JOINER };

struct tw_jval {
    uint8_t t;
    uint8_t missing;                /* a name that is not bound (only inside scopes) */
    uint16_t fn;                    /* TW_V_FUNC, TW_V_METHOD */
    uint32_t origin;                /* of numbers and booleans that came from outside */
    union {
        bool b;
        int64_t i;
        double d;
        const struct tw_jstr *s;    /* TW_V_STR; TW_V_BIG: its digits; TW_V_UNDEF: its name */
        struct tw_jlist *l;
        struct tw_jdict *m;         /* TW_V_DICT, TW_V_NS */
        struct tw_jmacro *macro;
        struct tw_jval *self;       /* TW_V_METHOD: what it is bound to */
        struct tw_jloop *loop;
        struct tw_jcycle *cycle;
    } u;
};

enum tw_jlist_kind { TW_L_LIST, TW_L_TUPLE, TW_L_RANGE, TW_L_GEN, TW_L_VIEW };
/* A generator gives its items once: iterating over it leaves it empty. */
struct tw_jlist {
    struct tw_jval *v;
    int64_t n, cap;
    enum tw_jlist_kind kind;
    uint32_t origin;
    bool group;                     /* a tuple of groupby: .grouper and .list */
    union {
        const char *view;           /* TW_L_VIEW: "items", .. */
        struct { int64_t start, stop, step; } range;
    } of;
};
/* cycler: its items and which is next. joiner: items is the separator, pos whether it was used. */
struct tw_jcycle {
    struct tw_jlist *items;
    int64_t pos;
};
struct tw_jent {
    struct tw_jval k, v;
};
struct tw_jdict {
    struct tw_jent *e;
    int64_t n, cap;
    uint32_t origin;
    int32_t msg;                    /* it is messages[msg]; -1: no message */
};

struct tw_jbind {
    int32_t sym;
    struct tw_jval v;
};
struct tw_jscope {
    struct tw_jscope *up;           /* NULL: the root, which keeps its values by symbol */
    struct tw_jbind *b;
    int32_t n, cap;
};
struct tw_jmacro {
    const struct tw_jnode *node;    /* N_MACRO or N_CALL */
    struct tw_jscope *scope;        /* where it was defined */
};
struct tw_jloop {
    struct tw_jlist *items;
    int64_t i;
    int64_t depth;
    const struct tw_jnode *node;    /* for recursive loops */
    struct tw_jscope *scope;
    struct tw_jlist *changed;
};

enum tw_jkind {
    N_TEXT, N_OUT, N_IF, N_FOR, N_SET, N_SETBLOCK, N_MACRO, N_CALL, N_FILTERBLOCK, N_WITH,
    N_GENERATION, N_BREAK, N_CONTINUE,
    E_CONST, E_NAME, E_LIST, E_TUPLE, E_DICT, E_ATTR, E_ITEM, E_SLICE, E_CALL, E_FILTER, E_TEST,
    E_NOT, E_NEG, E_POS, E_AND, E_OR, E_COND, E_BIN, E_CMP, E_CONCAT, E_NSREF,
    E_ARG, E_KWARG, E_STAR, E_STARSTAR
};

/* One node. What a, b, c, kid and body mean by kind:
 *   N_OUT a           N_IF a ? body : els         N_FOR a in b if c: body else els; op 1: recursive
 *   N_SET a = b       N_SETBLOCK a = body | kid (filters, E_FILTER without a)
 *   N_MACRO sym(kid: E_NAME with default a): body          N_CALL (kid): body, calls a (E_CALL)
 *   N_FILTERBLOCK body | a (innermost E_FILTER has a NULL)  N_WITH kid: N_SET; body
 *   E_LIST, E_TUPLE, E_CONCAT kid     E_DICT kid: key, value, key, value ..
 *   E_ATTR a.name     E_ITEM a[b]     E_SLICE a[kid0:kid1:kid2] (a const none where left out)
 *   E_CALL a(kid)     E_FILTER a|fn(kid)   E_TEST a is fn(kid)   E_COND a if b else c
 *   E_CMP a, then kid: op and a        E_NSREF sym.name         E_ARG.. a, name */
struct tw_jnode {
    uint8_t kind, op;
    uint16_t fn;
    int32_t line, col, sym;
    struct tw_jnode *a, *b, *c, *kid, *body, *els, *next;
    struct tw_jval val;             /* E_CONST, N_TEXT */
    struct tw_str name;
    bool varargs, kwargs, caller;   /* N_MACRO, N_CALL: names its body uses */
};

enum tw_jop { OP_ADD = 1, OP_SUB, OP_MUL, OP_DIV, OP_FLOOR, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT,
    OP_LE, OP_GT, OP_GE, OP_IN, OP_NOTIN };

struct tw_jinja {
    struct tw_arena arena;
    char *name;
    struct tw_jnode *body;
    struct tw_str *sym;             /* names used, by symbol */
    uint16_t *global;               /* the function a symbol names when nothing else does, or 0 */
    int32_t nsym;
    int32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
    bool has_generation;
    bool json_style;                /* tw_jinja_compile_json() */
};

/* ---- tokens ---- */

enum tw_jtok_type { TW_T_EOF, TW_T_DATA, TW_T_VAR, TW_T_VAR_END, TW_T_BLOCK, TW_T_BLOCK_END,
    TW_T_NAME, TW_T_STR, TW_T_INT, TW_T_FLOAT, TW_T_OP };
struct tw_jtok {
    enum tw_jtok_type t;
    int32_t line, col;
    struct tw_str s;                /* data, name, decoded string, operator as written */
    struct tw_jval num;             /* TW_T_INT, TW_T_FLOAT */
};
struct tw_jlex {
    struct tw_jinja *j;
    struct tw_str src;              /* newlines made '\n' */
    struct tw_jtok *tok;
    int64_t n, cap;
    jmp_buf *fail;
    struct tw_err *err;
};
void tw_jlex_all(struct tw_jlex *lx);
_Noreturn void tw_jlex_fail(struct tw_jlex *lx, int32_t line, int32_t col, const char *fmt, ...)
        __attribute__((format(printf, 4, 5)));

/* ---- rendering ---- */

struct tw_jorigin {
    int32_t msg, var;
    struct tw_str field;
};
/* A text being written, with its runs. Lives in the scratch and is used again. */
struct tw_jsink {
    char *p;
    size_t n, cap;
    struct tw_jrun *run;
    size_t nrun, cap_run;
    struct tw_jsink *next;
};
struct tw_jinja_scratch {
    struct tw_arena arena;
    struct tw_jsink *idle, *busy;
    struct tw_jorigin *origin;
    int64_t norigin, cap_origin;
    struct tw_jval *root;
    int32_t nroot;
};
struct tw_jrt {
    const struct tw_jinja *j;
    struct tw_jinja_scratch *s;
    struct tw_arena *a;
    struct tw_jsink *out;
    struct tw_jscope *scope;
    struct tw_jloop *loop;          /* innermost, for depth */
    const struct tw_jnode *at;      /* for errors */
    int64_t steps;                  /* what is left of the budget */
    size_t mem;                     /* likewise, bytes */
    int depth;
    int32_t owner;
    uint32_t gen;                   /* TW_J_GEN or 0 */
    bool json_style;
    int64_t now;
    jmp_buf fail;
    struct tw_err *err;
};

/* Arguments of a call, by position and by name. */
struct tw_jargs {
    struct tw_jval *v;
    int64_t n;
    struct tw_str *name;
    struct tw_jval *kw;
    int64_t nkw;
    uint64_t used;                  /* bit i: kw[i] was asked for */
    bool of_tuple;                  /* for %: not one value on its own */
};

_Noreturn void tw_jfail(struct tw_jrt *rt, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
_Noreturn void tw_jfail_undefined(struct tw_jrt *rt, const struct tw_jval *v);
void *tw_jalloc(struct tw_jrt *rt, size_t n);
void *tw_jarray(struct tw_jrt *rt, int64_t n, size_t size);     /* overflow-checked */
static inline void tw_jstep(struct tw_jrt *rt, int64_t n)
{
    if ((rt->steps -= n) < 0)
        tw_jfail(rt, "the template does not come to an end (its budget of steps is used up)");
}

/* Sinks: begin gives an empty one, take turns it into a text and gives it back. */
struct tw_jsink *tw_jsink_begin(struct tw_jrt *rt);
void tw_jsink_add(struct tw_jrt *rt, struct tw_jsink *k, const char *p, size_t n, uint32_t origin,
        int32_t owner);
void tw_jsink_lit(struct tw_jrt *rt, struct tw_jsink *k, const char *s);
void tw_jsink_str(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s);
struct tw_jval tw_jsink_take(struct tw_jrt *rt, struct tw_jsink *k);

/* Values. */
static inline struct tw_jval tw_jnone(void) { return (struct tw_jval){ .t = TW_V_NONE }; }
static inline struct tw_jval tw_jbool(bool b) { return (struct tw_jval){ .t = TW_V_BOOL, .u.b = b }; }
static inline struct tw_jval tw_jint(int64_t i) { return (struct tw_jval){ .t = TW_V_INT, .u.i = i }; }
static inline struct tw_jval tw_jfloat(double d)
{
    return (struct tw_jval){ .t = TW_V_FLOAT, .u.d = d };
}
struct tw_jval tw_jundef(struct tw_jrt *rt, struct tw_str name);
struct tw_jval tw_jtext(struct tw_jrt *rt, const char *p, size_t n, uint32_t origin);
struct tw_jval tw_jlit(struct tw_jrt *rt, const char *s);           /* borrows s */
struct tw_jval tw_jsub(struct tw_jrt *rt, const struct tw_jstr *s, size_t begin, size_t end);
struct tw_jval tw_jlist_new(struct tw_jrt *rt, int64_t cap, enum tw_jlist_kind kind);
void tw_jlist_add(struct tw_jrt *rt, struct tw_jlist *l, struct tw_jval v);
struct tw_jval tw_jdict_new(struct tw_jrt *rt, int64_t cap);
void tw_jdict_set(struct tw_jrt *rt, struct tw_jdict *m, struct tw_jval k, struct tw_jval v);
const struct tw_jval *tw_jdict_get(struct tw_jrt *rt, const struct tw_jdict *m,
        const struct tw_jval *k);
const struct tw_jval *tw_jdict_gets(struct tw_jrt *rt, const struct tw_jdict *m, struct tw_str k);
struct tw_jval tw_jval_json(struct tw_jrt *rt, const struct tw_json *j, uint32_t origin);
const char *tw_jtype_name(const struct tw_jval *v);                 /* as Python calls it */
bool tw_jtruth(struct tw_jrt *rt, const struct tw_jval *v);
bool tw_jequal(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b);
int tw_jcompare(struct tw_jrt *rt, const struct tw_jval *a, const struct tw_jval *b);
bool tw_jcontains(struct tw_jrt *rt, const struct tw_jval *in, const struct tw_jval *x);
struct tw_jlist *tw_jiter(struct tw_jrt *rt, const struct tw_jval *v);  /* items to loop over */
void tw_jconsume(struct tw_jrt *rt, struct tw_jlist *l, int64_t n);     /* of a generator */
int64_t tw_jlen(struct tw_jrt *rt, const struct tw_jval *v);
static inline bool tw_jis_str(const struct tw_jval *v) { return v->t == TW_V_STR; }
static inline bool tw_jis_num(const struct tw_jval *v)
{
    return v->t >= TW_V_BOOL && v->t <= TW_V_BIG;
}
static inline bool tw_jis_int(const struct tw_jval *v)     /* booleans included, as in Python */
{
    return tw_jis_num(v) && v->t != TW_V_FLOAT;
}
double tw_jbig_double(const struct tw_jval *v);             /* infinite beyond the largest float */
static inline double tw_jnum(const struct tw_jval *v)
{
    return v->t == TW_V_FLOAT ? v->u.d : v->t == TW_V_BOOL ? (double)v->u.b :
            v->t == TW_V_BIG ? tw_jbig_double(v) : (double)v->u.i;
}

/* Text. str(): what {{ x }} prints; repr(): inside of lists. JSON as json.dumps writes it. */
void tw_jprint(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v);
struct tw_jval tw_jstring(struct tw_jrt *rt, const struct tw_jval *v);
void tw_jrepr(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v);
struct tw_jjson {
    bool ascii, sort;
    struct tw_str indent, item, key;    /* indent.p NULL: on one line */
};
void tw_jdump(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v,
        const struct tw_jjson *o, int level);
void tw_jfloat_text(char out[40], double d);
bool tw_jspace(uint32_t c);
/* The first place of X in the N bytes at P, or NULL. */
const char *tw_jfind(struct tw_jrt *rt, const char *p, size_t n, const struct tw_jstr *x);
size_t tw_jchars(const struct tw_jstr *s);              /* characters */
bool tw_jascii(const struct tw_jstr *s);
struct tw_jval tw_jchar_sub(struct tw_jrt *rt, const struct tw_jstr *s, int64_t a, int64_t b);
struct tw_jval tw_jstrip(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *set,
        int sides);                                     /* 1 left, 2 right */
struct tw_jval tw_jreplace(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *old,
        const struct tw_jstr *with, int64_t count);
enum tw_jcase { TW_C_UPPER, TW_C_LOWER, TW_C_CAPITAL, TW_C_TITLE, TW_C_TITLE_FILTER, TW_C_SWAP };
struct tw_jval tw_jcase(struct tw_jrt *rt, const struct tw_jstr *s, enum tw_jcase how);
struct tw_jval tw_jmark(struct tw_jrt *rt, const struct tw_jval *text, bool safe);
struct tw_jval tw_jescape(struct tw_jrt *rt, const struct tw_jval *v);      /* safe texts stay as they are */
struct tw_jval tw_jcasefold(struct tw_jrt *rt, const struct tw_jstr *s);
/* Python's isalpha() and so on; is: all characters of a text. */
enum tw_jclass { TW_K_ALPHA, TW_K_DECIMAL, TW_K_DIGIT, TW_K_NUMERIC, TW_K_ALNUM, TW_K_SPACE, TW_K_ASCII,
    TW_K_PRINTABLE };
bool tw_jchar_is(uint32_t c, enum tw_jclass k);
bool tw_jprintable(uint32_t c);
bool tw_jstr_is(const struct tw_jstr *s, enum tw_jclass k);
bool tw_jstr_case(const struct tw_jstr *s, bool upper);
bool tw_jstr_title(const struct tw_jstr *s);
/* "%s and %d" % values, also by name: "%(a)s" % {"a": 1}; "{} and {a:>5}".format(values). */
struct tw_jval tw_jpercent(struct tw_jrt *rt, const struct tw_jstr *fmt, struct tw_jargs *args);
struct tw_jval tw_jpercent_safe(struct tw_jrt *rt, const struct tw_jstr *fmt, struct tw_jargs *args);
struct tw_jval tw_jformat(struct tw_jrt *rt, const struct tw_jstr *fmt, struct tw_jargs *args);

/* Integers beyond 64 bits (jinja_big.c). A result that fits 64 bits is TW_V_INT. read: digits of a base up
 * to 36 behind an optional '-'; false when they are too many. base: the size of a number, written so. */
struct tw_jval tw_jbig_op(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *x,
        const struct tw_jval *y);
int tw_jbig_compare(const struct tw_jval *x, const struct tw_jval *y);
bool tw_jbig_read(struct tw_arena *mem, const char *p, size_t n, int base, struct tw_jval *v);
struct tw_jval tw_jbig_trunc(struct tw_jrt *rt, double d);
struct tw_jval tw_jbig_base(struct tw_jrt *rt, const struct tw_jval *v, int base);

/* Arguments: the I-th or NAME; NULL where neither was given. args_done: fails when some were left. */
const struct tw_jval *tw_jarg(struct tw_jargs *a, int64_t i, const char *name);
const struct tw_jstr *tw_jarg_str(struct tw_jrt *rt, struct tw_jargs *a, int64_t i,
        const char *name);
int64_t tw_jarg_int(struct tw_jrt *rt, struct tw_jargs *a, int64_t i, const char *name,
        int64_t def);
bool tw_jarg_bool(struct tw_jrt *rt, struct tw_jargs *a, int64_t i, const char *name, bool def);
void tw_jargs_done(struct tw_jrt *rt, struct tw_jargs *a, int64_t max, const char *what);

/* Evaluation. */
struct tw_jval tw_jeval(struct tw_jrt *rt, const struct tw_jnode *n);
struct tw_jval tw_jcall(struct tw_jrt *rt, const struct tw_jval *f, struct tw_jargs *args);
struct tw_jval tw_jcall_macro(struct tw_jrt *rt, struct tw_jmacro *m, struct tw_jargs *args);
struct tw_jval tw_jloop_again(struct tw_jrt *rt, struct tw_jloop *l, const struct tw_jval *items);
void tw_jargs_eval(struct tw_jrt *rt, const struct tw_jnode *kid, struct tw_jargs *out);
struct tw_jval tw_jattr(struct tw_jrt *rt, const struct tw_jval *v, struct tw_str name);
struct tw_jval tw_jitem(struct tw_jrt *rt, const struct tw_jval *v, const struct tw_jval *key);
struct tw_jval tw_jbinary(struct tw_jrt *rt, enum tw_jop op, const struct tw_jval *a,
        const struct tw_jval *b);
int tw_jexec(struct tw_jrt *rt, const struct tw_jnode *n);  /* 0, or N_BREAK, N_CONTINUE */
void tw_jemit(struct tw_jrt *rt, const struct tw_jval *v);
void tw_jbind_name(struct tw_jrt *rt, int32_t sym, struct tw_jval v);
struct tw_jscope *tw_jscope_push(struct tw_jrt *rt, struct tw_jscope *up);

/* Tables: the number of a name (0: there is none), and the call by number. */
uint16_t tw_jfilter_find(struct tw_str name);
bool tw_jfilter_refused(struct tw_str name);    /* Jinja has it, we do not: for the error */
struct tw_jval tw_jfilter(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *v,
        struct tw_jargs *args);
uint16_t tw_jtest_find(struct tw_str name);
bool tw_jtest(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *v, struct tw_jargs *args);
uint16_t tw_jmethod_find(const struct tw_jval *v, struct tw_str name);
struct tw_jval tw_jmethod(struct tw_jrt *rt, uint16_t fn, const struct tw_jval *self,
        struct tw_jargs *args);
uint16_t tw_jfunc_find(struct tw_str name);
struct tw_jval tw_jfunc(struct tw_jrt *rt, uint16_t fn, struct tw_jargs *args);
#endif
