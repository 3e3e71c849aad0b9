/* tok_find.c - patterns of tokenizer.json: the well-known ones go to a matcher written by hand, the
 * others to PCRE2, rewritten (tok_regex.c). */
#include "tok_priv.h"
#include <stdlib.h>

#define CL_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"
#define CL_TAIL "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *pattern;
    struct tok_find find;
} known[] = {
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        { .kind = TOK_FIND_GPT2, .covers = true } },
    { CL_HEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" CL_TAIL,
        { .kind = TOK_FIND_CL, .covers = true, .digits = 3 } },
    { CL_HEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+" CL_TAIL,
        { .kind = TOK_FIND_CL, .covers = true, .digits = 1 } },
    { CL_HEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+" CL_TAIL,
        { .kind = TOK_FIND_CL, .covers = true, .digits = 1, .marks = true } },
    { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
      "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        { .kind = TOK_FIND_DSV3 } },
    { "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
        { .kind = TOK_FIND_CJK } },
    { "\\p{N}{1,3}", { .kind = TOK_FIND_DIGITS, .digits = 3 } },
    { "\\p{N}", { .kind = TOK_FIND_DIGITS, .digits = 1 } },
    { "\\p{N}+", { .kind = TOK_FIND_DIGITS } },
    { "\\s+$", { .kind = TOK_FIND_LINE_END } },
};

static pcre2_code *compile(struct tw_str text, struct tw_str pattern, struct tw_err *err)
{
    PCRE2_UCHAR msg[160];
    PCRE2_SIZE at;
    int code;
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    pcre2_code *re;

    if (ctx)
        pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    re = pcre2_compile((PCRE2_SPTR)(text.p ? text.p : ""), text.n,
            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK, &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!re) {
        pcre2_get_error_message(code, msg, sizeof(msg));
        tw_fail(err, NULL, 0, "bad pattern %.*s: %s", (int)pattern.n, pattern.p, (char *)msg);
        return NULL;
    }
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);      /* without it, matching is only slower */
    return re;
}

/* Two, if they differ: ranges of rare characters take half the speed. */
static int compile_both(struct tok_find *f, struct tw_str pattern, struct tw_err *err)
{
    struct tw_buf b[2] = {{0}};
    int r = -1;

    if (!tok_regex(&b[0], pattern, false, err) && !tok_regex(&b[1], pattern, true, err)
            && (f->re = compile(tw_buf_str(&b[0]), pattern, err)) != NULL) {
        if (!tw_str_eq(tw_buf_str(&b[0]), tw_buf_str(&b[1])))
            f->late = compile(tw_buf_str(&b[1]), pattern, err);
        r = tw_str_eq(tw_buf_str(&b[0]), tw_buf_str(&b[1])) || f->late ? 0 : -1;
    }
    if (r)
        tok_find_free(f);
    tw_buf_free(&b[0]);
    tw_buf_free(&b[1]);
    return r;
}

int tok_find_regex(struct tok_find *f, struct tw_str pattern, bool only_re, struct tw_err *err)
{
    for (size_t i = 0; !only_re && i < sizeof(known) / sizeof(known[0]); i++)
        if (tw_str_is(pattern, known[i].pattern)) {
            *f = known[i].find;
            return 0;
        }
    *f = (struct tok_find){ .kind = TOK_FIND_RE };
    return compile_both(f, pattern, err);
}

int tok_find_json(struct tok_find *f, const struct tw_json *v, struct tw_arena *mem,
        struct tw_err *err)
{
    struct tw_str s;
    int r;

    if (v && v->type == TW_JOBJ && v->n == 1) {
        if ((r = tw_json_get_str(v, "Regex", &s, err)) > 0)
            return tok_find_regex(f, s, false, err);
        if (!r && (r = tw_json_get_str(v, "String", &s, err)) > 0 && s.n) {
            *f = (struct tok_find){ .kind = TOK_FIND_LIT, .lit = tw_arena_str(mem, s) };
            return 0;
        }
        if (r < 0)
            return -1;
    }
    return tw_fail(err, NULL, 0, "a pattern must be {\"Regex\": ..} or {\"String\": ..}");
}

void tok_find_free(struct tok_find *f)
{
    pcre2_code_free(f->re);
    pcre2_code_free(f->late);
    f->re = f->late = NULL;
}

struct tok_find tok_find_for(const struct tok_find *f, const struct tok_uni *u, const char *p, size_t n)
{
    const unsigned char *q = (const unsigned char *)p;
    struct tok_find found = *f;
    bool late = false;
    size_t k;

    if (!f->late)
        return found;
    for (size_t i = 0; i < n && !late; i += k) {
        k = q[i] < 0x80 ? 1 : 2;
        if (q[i] >= 0xCC) {             /* none is below U+0300 */
            uint32_t c = tok_char(q + i, &k);

            late = u->late[c >> 7] >> (c >> 4 & 7) & 1;
        }
    }
    if (late)
        found.re = f->late;
    return found;
}

/* The stack of compiled patterns grows to this when the machine's own does not suffice. */
#define JIT_STACK ((size_t)64 << 20)

static int find_re(struct tok_enc *e, const struct tok_find *f, const char *p, size_t n,
        size_t from, size_t *mb, size_t *me)
{
    int r;

    if (!e->match) {
        e->match = pcre2_match_data_create(1, NULL);
        e->mctx = pcre2_match_context_create(NULL);
        if (!e->match || !e->mctx)
            return tw_fail(e->err, e->t->name, 0, "out of memory");
    }
    r = pcre2_match(f->re, (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK, e->match, e->mctx);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT && !e->jit) {
        e->jit = pcre2_jit_stack_create(32768, JIT_STACK, NULL);
        if (e->jit) {
            pcre2_jit_stack_assign(e->mctx, NULL, e->jit);
            r = pcre2_match(f->re, (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK, e->match, e->mctx);
        }
    }
    if (r >= 0) {
        PCRE2_SIZE *ov = pcre2_get_ovector_pointer(e->match);

        *mb = ov[0];
        *me = ov[1] < ov[0] ? ov[0] : ov[1];
        return 1;
    }
    if (r == PCRE2_ERROR_NOMATCH)
        return 0;
    e->failed = -1;
    return tw_fail(e->err, e->t->name, 0, "the splitting pattern gives up on this text (PCRE2 %d)",
            r);
}

static bool find_digits(const struct tok_uni *u, int most, const unsigned char *p, size_t n,
        size_t from, size_t *mb, size_t *me)
{
    size_t k;
    int left = most - 1;

    for (; from < n; from += k)
        if (tok_cls(u, tok_char(p + from, &k)) & TOK_N)
            break;
    if (from >= n)
        return false;
    *mb = from;
    for (from += k; from < n && (!most || left-- > 0); from += k)
        if (!(tok_cls(u, tok_char(p + from, &k)) & TOK_N))
            break;
    *me = from;
    return true;
}

/* \s+$ : a backtracking engine is quadratic on a long run that does not end a line. */
static bool find_line_end(const struct tok_uni *u, const unsigned char *p, size_t n, size_t from,
        size_t *mb, size_t *me)
{
    size_t k, i = from;

    while (i < n) {
        size_t b = i, end = 0;

        for (; i < n && (tok_cls(u, tok_char(p + i, &k)) & TOK_S); i += k)
            if (p[i] == '\n' && i > b)
                end = i;
        if (i == n && i > b)
            end = n;
        if (end) {
            *mb = b;
            *me = end;
            return true;
        }
        if (i < n)
            i += k;
    }
    return false;
}

static bool is_cjk(const unsigned char *p, size_t *k)
{
    uint32_t c = tok_char(p, k);

    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

static bool find_cjk(const unsigned char *p, size_t n, size_t from, size_t *mb, size_t *me)
{
    size_t k;

    for (; from < n; from += k) {
        k = 1;
        if (p[from] >= 0xE3 && is_cjk(p + from, &k))
            break;
    }
    if (from >= n)
        return false;
    for (*mb = from; from < n && is_cjk(p + from, &k); from += k)
        ;
    *me = from;
    return true;
}

int tok_find_next(struct tok_enc *e, const struct tok_find *f, const char *p, size_t n, size_t from,
        size_t *mb, size_t *me)
{
    const struct tok_uni *u = &e->t->uni;
    const unsigned char *q = (const unsigned char *)p;
    const char *hit;

    *mb = from;
    switch (f->kind) {
    case TOK_FIND_RE:
        return find_re(e, f, p, n, from, mb, me);
    case TOK_FIND_LIT:
        hit = from < n ? tok_search(p + from, n - from, f->lit) : NULL;
        *mb = hit ? (size_t)(hit - p) : n;
        *me = *mb + f->lit.n;
        return hit != NULL;
    case TOK_FIND_DIGITS:
        return find_digits(u, f->digits, q, n, from, mb, me);
    case TOK_FIND_LINE_END:
        return find_line_end(u, q, n, from, mb, me);
    case TOK_FIND_CJK:
        return find_cjk(q, n, from, mb, me);
    case TOK_FIND_DSV3:
        return tok_split_dsv3(u, q, n, from, mb, me);
    default:
        break;
    }
    if (from >= n)
        return 0;
    *me = f->kind == TOK_FIND_GPT2 ? tok_split_gpt2(u, q, from, n)
            : tok_split_cl(u, f->digits, f->marks, q, from, n);
    return 1;
}
