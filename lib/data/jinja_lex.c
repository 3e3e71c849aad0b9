/* jinja_lex.c - template text to tokens, with Jinja2's rules of white space: trim_blocks (the first
 * newline after a block goes), lstrip_blocks (blanks before a block on its line go), '-' and '+'
 * signs, and the one newline at the end of the source that is dropped. */
#include "jinja_priv.h"

#include <ctype.h>
#include <stdlib.h>

struct cursor {
    struct tw_jlex *lx;
    const char *p, *end;
    const char *at_line;            /* up to here lines were counted */
    int32_t line;
    const char *line_start;
    bool line_starting;             /* what stood before ended a line */
};

static void where(struct cursor *c, const char *p, int32_t *line, int32_t *col)
{
    for (; c->at_line < p; c->at_line++)
        if (*c->at_line == '\n') {
            c->line++;
            c->line_start = c->at_line + 1;
        }
    *line = c->line;
    *col = (int32_t)(p - c->line_start) + 1;
}

_Noreturn static void fail(struct cursor *c, const char *p, const char *what)
{
    int32_t line, col;

    where(c, p, &line, &col);
    tw_jlex_fail(c->lx, line, col, "%s", what);
}

static struct tw_jtok *push(struct cursor *c, enum tw_jtok_type t, const char *p, size_t n)
{
    struct tw_jlex *lx = c->lx;
    struct tw_jtok *k;

    if (lx->n == lx->cap) {
        int64_t cap = lx->cap ? lx->cap * 2 : 256;
        struct tw_jtok *v = tw_arena_alloc(&lx->j->arena, (size_t)cap * sizeof(*v));

        if (lx->n)
            memcpy(v, lx->tok, (size_t)lx->n * sizeof(*v));
        lx->tok = v;
        lx->cap = cap;
    }
    k = &lx->tok[lx->n++];
    *k = (struct tw_jtok){ .t = t, .s = { p, n } };
    where(c, p, &k->line, &k->col);
    return k;
}

static bool space_at(const char *p, const char *end, const char **next)
{
    const char *q = p;

    if (p == end || !tw_jspace(tw_utf8_next(&q, end)))
        return false;
    *next = q;
    return true;
}

static const char *skip_space(const char *p, const char *end)
{
    while (space_at(p, end, &p))
        ;
    return p;
}

static const char *strip_right(const char *p, const char *end)
{
    while (end > p) {
        const char *q = end - 1, *next;

        while (q > p && ((unsigned char)*q & 0xc0) == 0x80)
            q--;
        if (!space_at(q, end, &next) || next != end)
            break;
        end = q;
    }
    return end;
}

/* The text before a tag whose sign is SIGN; blocks and comments take the blanks of their line. */
static void push_data(struct cursor *c, const char *from, const char *to, char sign, bool block)
{
    if (sign == '-') {
        to = strip_right(from, to);
    } else if (block && sign != '+') {
        const char *l = to;

        while (l > from && l[-1] != '\n')
            l--;
        if ((l > from || c->line_starting) && l < to && skip_space(l, to) == to)
            to = l;
    }
    if (to > from)
        push(c, TW_T_DATA, from, (size_t)(to - from));
}

/* Behind "%}" or "#}" that stands at P, preceded by SIGN: what white space it takes along. */
static void close_tag(struct cursor *c, const char *p, char sign, bool block)
{
    p += 2;
    if (sign == '-')
        p = skip_space(p, c->end);
    else if (block && sign != '+' && p < c->end && *p == '\n')
        p++;
    c->line_starting = p[-1] == '\n';
    c->p = p;
}

static int hex_digits(const char *p, const char *end, int n, uint32_t *out)
{
    uint32_t v = 0;

    if (end - p < n)
        return -1;
    for (int i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)p[i]))
            return -1;
        v = v * 16 + (uint32_t)(isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    *out = v;
    return 0;
}

/* One escape behind the backslash at P (Python's rules: an unknown one stays as it is). What it
 * stands for is never longer than the escape. */
static const char *escape(struct cursor *c, const char *p, const char *end, char **out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *hit = *p ? strchr(from, *p) : NULL;
    uint32_t v = 0;
    int n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;

    if (hit) {
        *(*out)++ = to[hit - from];
        return p + 1;
    }
    if (*p == '\n')
        return p + 1;
    if (n) {
        if (hex_digits(p + 1, end, n, &v) || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
            fail(c, p, "a malformed escape in a string");
        *out += tw_utf8_put(*out, v);
        return p + 1 + n;
    }
    if (*p >= '0' && *p <= '7') {
        for (n = 0; n < 3 && p < end && *p >= '0' && *p <= '7'; n++)
            v = v * 8 + (uint32_t)(*p++ - '0');
        *out += tw_utf8_put(*out, v);
        return p;
    }
    if (*p == 'N')
        fail(c, p, "characters by name (\\N) are not supported");
    *(*out)++ = '\\';
    return p;
}

static void lex_string(struct cursor *c)
{
    const char *start = c->p, *p = start + 1, *q = p;
    struct tw_str s;

    while (q < c->end && *q != *start)
        q += *q == '\\' && q + 1 < c->end ? 2 : 1;
    if (q >= c->end)
        fail(c, start, "a string that is not closed");
    if (!memchr(p, '\\', (size_t)(q - p))) {
        s = (struct tw_str){ p, (size_t)(q - p) };
    } else {
        char *text = tw_arena_alloc(&c->lx->j->arena, (size_t)(q - p) + 1), *out = text;

        while (p < q)
            if (*p == '\\')
                p = escape(c, p + 1, q, &out);
            else
                *out++ = *p++;
        s = (struct tw_str){ text, (size_t)(out - text) };
    }
    push(c, TW_T_STR, start, 1)->s = s;
    c->p = q + 1;
}

/* Digits with single underscores between them; returns the end. */
static const char *digits(const char *p, const char *end, int base)
{
    while (p < end) {
        const char *q = p + (*p == '_');

        if (q == end || !isxdigit((unsigned char)*q) || (base <= 10 && *q >= '0' + base))
            break;
        p = q + 1;
    }
    return p;
}

static void lex_number(struct cursor *c)
{
    const char *p = c->p, *q = p, *e = c->end;
    bool after_dot = p > c->lx->src.p && p[-1] == '.', is_float = false;
    char text[TW_J_DIGITS + 2];
    size_t n = 0;
    int base = 10;
    bool fits = true;
    struct tw_jtok *k;

    if (*p == '0' && e - p > 2 && strchr("xXoObB", p[1])) {
        base = (p[1] | 32) == 'x' ? 16 : (p[1] | 32) == 'o' ? 8 : 2;
        q = digits(p + 2, e, base);
    } else {
        q = digits(p, e, 10);
        if (!after_dot && e - q > 1 && *q == '.' && isdigit((unsigned char)q[1])) {
            q = digits(q + 1, e, 10);
            is_float = true;
        }
        if (!after_dot && e - q > 1 && (*q | 32) == 'e') {
            const char *x = q + 1 + (q[1] == '+' || q[1] == '-');

            if (x < e && isdigit((unsigned char)*x)) {
                q = digits(x, e, 10);
                is_float = true;
            }
        }
    }
    for (const char *x = base == 10 ? p : p + 2; x < q && n < sizeof(text) - 1; x++)
        if (*x != '_')
            text[n++] = *x;
    text[n] = 0;
    k = push(c, is_float ? TW_T_FLOAT : TW_T_INT, p, (size_t)(q - p));
    k->num = tw_jfloat(0);
    if (is_float)
        k->num.u.d = strtod(text, NULL);
    else
        fits = tw_jbig_read(&c->lx->j->arena, text, n, base, &k->num);
    if (n == sizeof(text) - 1 || n == 0 || !fits)
        fail(c, p, "a number out of range");
    c->p = q;
}

static bool lex_operator(struct cursor *c, char *open, int *depth)
{
    static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%",
        "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";" };
    size_t left = (size_t)(c->end - c->p);

    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        size_t n = strlen(ops[i]);
        char ch = ops[i][0];

        if (n > left || memcmp(c->p, ops[i], n))
            continue;
        if (strchr("([{", ch)) {
            if (*depth == TW_J_NEST)
                fail(c, c->p, "brackets nested too deeply");
            open[(*depth)++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
        } else if (strchr(")]}", ch)) {
            if (!*depth || open[*depth - 1] != ch)
                fail(c, c->p, "a closing bracket that matches no open one");
            --*depth;
        }
        push(c, TW_T_OP, c->p, n)->s = tw_str(ops[i]);
        c->p += n;
        return true;
    }
    return false;
}

/* The inside of {{ }} or {% %}, up to and with its end. */
static void lex_code(struct cursor *c, bool block)
{
    char open[TW_J_NEST];
    const char *start = c->p;
    int depth = 0;

    for (;;) {
        unsigned char ch;

        c->p = skip_space(c->p, c->end);
        if (c->p == c->end)
            fail(c, start, block ? "a block tag that is not closed" : "a {{ that is not closed");
        ch = (unsigned char)*c->p;
        if (!depth) {
            char sign = (ch == '-' || (ch == '+' && block)) ? (char)ch : 0;
            const char *q = c->p + (sign != 0);

            if (c->end - q >= 2 && q[0] == (block ? '%' : '}') && q[1] == '}') {
                push(c, block ? TW_T_BLOCK_END : TW_T_VAR_END, c->p, 1);
                close_tag(c, q, sign, block);
                return;
            }
        }
        if (ch == '"' || ch == '\'') {
            lex_string(c);
        } else if (isdigit(ch)) {
            lex_number(c);
        } else if (isalpha(ch) || ch == '_' || ch >= 0x80) {
            const char *q = c->p;

            while (q < c->end && (isalnum((unsigned char)*q) || *q == '_' || *q & 0x80))
                q++;
            push(c, TW_T_NAME, c->p, (size_t)(q - c->p));
            c->p = q;
        } else if (!lex_operator(c, open, &depth)) {
            fail(c, c->p, "an unexpected character");
        }
    }
}

static void lex_comment(struct cursor *c)
{
    const char *p = c->p + 2;

    for (; c->end - p >= 2; p++)
        if (p[0] == '#' && p[1] == '}') {
            char sign = p > c->p + 2 && (p[-1] == '-' || p[-1] == '+') ? p[-1] : 0;

            close_tag(c, p, sign, true);
            return;
        }
    fail(c, c->p, "a comment that is not closed");
}

/* P stands on "{%": behind the tag when it is the tag NAME; *sign as it opens, *shut as it closes. */
static const char *tag_named(const char *p, const char *end, const char *name, char *sign, char *shut)
{
    size_t n = strlen(name);

    p += 2;
    *sign = p < end && (*p == '-' || *p == '+') ? *p++ : 0;
    p = skip_space(p, end);
    if ((size_t)(end - p) < n || memcmp(p, name, n))
        return NULL;
    p = skip_space(p + n, end);
    *shut = p < end && (*p == '-' || *p == '+') ? *p++ : 0;
    return end - p >= 2 && p[0] == '%' && p[1] == '}' ? p : NULL;
}

static bool lex_raw(struct cursor *c, const char *text)
{
    char sign, shut;
    const char *start = c->p, *p = tag_named(start, c->end, "raw", &sign, &shut), *q;

    if (!p || shut == '+')
        return false;
    push_data(c, text, start, sign, true);
    p += 2;
    if (shut == '-')
        p = skip_space(p, c->end);
    c->line_starting = p[-1] == '\n';
    for (q = p; c->end - q >= 2; q++) {
        const char *after = q[0] == '{' && q[1] == '%' ?
                tag_named(q, c->end, "endraw", &sign, &shut) : NULL;

        if (after) {
            push_data(c, p, q, sign, true);
            close_tag(c, after, shut, true);
            return true;
        }
    }
    fail(c, start, "a raw block that is not closed");
}

static struct tw_str normalise(struct tw_jlex *lx)
{
    char *out = tw_arena_alloc(&lx->j->arena, lx->src.n + 1);
    size_t n = 0;

    for (size_t i = 0; i < lx->src.n; i++) {
        char ch = lx->src.p[i];

        if (ch == '\r') {
            if (i + 1 < lx->src.n && lx->src.p[i + 1] == '\n')
                i++;
            ch = '\n';
        }
        out[n++] = ch;
    }
    if (n && out[n - 1] == '\n')
        n--;
    out[n] = 0;
    return (struct tw_str){ out, n };
}

void tw_jlex_all(struct tw_jlex *lx)
{
    struct cursor c = { .lx = lx, .line = 1, .line_starting = true };
    const char *text;

    lx->src = normalise(lx);
    text = c.p = c.at_line = c.line_start = lx->src.p;
    c.end = c.p + lx->src.n;
    while (c.p < c.end) {
        const char *b = memchr(c.p, '{', (size_t)(c.end - c.p));
        char kind, sign;

        if (!b || b + 1 == c.end)
            break;
        kind = b[1];
        c.p = b;
        if (kind != '{' && kind != '%' && kind != '#') {
            c.p = b + 1;
            continue;
        }
        if (kind != '%' || !lex_raw(&c, text)) {
            sign = b + 2 < c.end && (b[2] == '-' || b[2] == '+') ? b[2] : 0;
            push_data(&c, text, b, sign, kind != '{');
            if (kind == '#') {
                lex_comment(&c);
            } else {
                push(&c, kind == '%' ? TW_T_BLOCK : TW_T_VAR, b, 2);
                c.p = b + 2 + (sign != 0);
                lex_code(&c, kind == '%');
            }
        }
        text = c.p;
    }
    if (text < c.end)
        push(&c, TW_T_DATA, text, (size_t)(c.end - text));
    push(&c, TW_T_EOF, c.end, 0);
}
