/* tok_split.c - the splitting patterns of the well-known families, by hand. Each function is what
 * its pattern means, exactly (alternatives in order, with backtracking); tests/unit/tok-split.c
 * compares them with the regular expression on random text. Valid UTF-8 only. */
#include "tok_priv.h"

/* Class of the character at I; *k its length. */
static inline unsigned cls(const struct tok_uni *u, const unsigned char *p, size_t i, size_t *k)
{
    if (p[i] < 0x80) {
        *k = 1;
        return u->cls[p[i]];
    }
    return tok_cls(u, tok_char(p + i, k));
}

/* The end of the run of characters from I whose class has a bit of MASK (WANT) or none (!WANT). */
static inline size_t run(const struct tok_uni *u, const unsigned char *p, size_t i, size_t n,
        unsigned mask, bool want)
{
    size_t k;

    while (i < n && ((cls(u, p, i, &k) & mask) != 0) == want)
        i += k;
    return i;
}

/* White space from I on, by  \s*[\r\n]+  when LINES, then  \s+(?!\S)  and  \s+ . */
static size_t spaces(const struct tok_uni *u, const unsigned char *p, size_t i, size_t n,
        bool lines)
{
    size_t j = i, line = 0, last = i, k;
    unsigned c;

    while (j < n && (c = cls(u, p, j, &k)) & TOK_S) {
        last = j;
        j += k;
        if (c & TOK_NL)
            line = j;
    }
    if (lines && line)
        return line;
    return j < n && last > i ? last : j;
}

/* 's 't 're 've 'm 'll 'd at I: the length, or 0. FOLD: in any case, where s is also U+017F. */
static size_t contraction(const unsigned char *p, size_t i, size_t n, bool fold)
{
    unsigned char a, b, bit = fold ? 0x20 : 0;

    if (n - i < 2 || p[i] != '\'')
        return 0;
    a = p[i + 1] | bit;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (n - i < 3)
        return 0;
    b = p[i + 2] | bit;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return fold && p[i + 1] == 0xC5 && p[i + 2] == 0xBF ? 3 : 0;
}

size_t tok_split_gpt2(const struct tok_uni *u, const unsigned char *p, size_t i, size_t n)
{
    size_t k, j = i;
    unsigned c;

    if ((k = contraction(p, i, n, false)))
        return i + k;
    if (p[i] == ' ' && i + 1 < n)
        j++;
    c = cls(u, p, j, &k);
    if (c & TOK_L)
        return run(u, p, j + k, n, TOK_L, true);
    if (c & TOK_N)
        return run(u, p, j + k, n, TOK_N, true);
    if (!(c & TOK_S))
        return run(u, p, j + k, n, TOK_S | TOK_L | TOK_N, false);
    return spaces(u, p, i, n, false);
}

size_t tok_split_cl(const struct tok_uni *u, int digits, bool marks, const unsigned char *p,
        size_t i, size_t n)
{
    unsigned letter = marks ? TOK_L | TOK_M : TOK_L, c, d = TOK_S;
    size_t k, j, k2 = 0;

    if (p[i] == '\'' && (k = contraction(p, i, n, true)))
        return i + k;
    c = cls(u, p, i, &k);
    if (c & letter)
        return run(u, p, i + k, n, letter, true);
    if (c & TOK_N) {
        for (j = i + k; j < n && --digits > 0 && (cls(u, p, j, &k) & TOK_N); j += k)
            ;
        return j;
    }
    j = i + k;
    if (j < n)
        d = cls(u, p, j, &k2);
    if (!(c & TOK_NL) && (d & letter))
        return run(u, p, j + k2, n, letter, true);
    if (p[i] == ' ' && !(d & (TOK_S | TOK_N)))
        j += k2;                        /* not a letter either: a symbol */
    else if (c & TOK_S)
        return spaces(u, p, i, n, true);
    j = run(u, p, j, n, TOK_S | TOK_N | letter, false);
    while (j < n && (p[j] == '\r' || p[j] == '\n'))
        j++;
    return j;
}

static bool ascii_letter(unsigned char c)
{
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* The match of DeepSeek's third pattern at I, or 0: not every character begins one. */
static size_t dsv3_at(const struct tok_uni *u, const unsigned char *p, size_t i, size_t n)
{
    const unsigned letter = TOK_L | TOK_M, symbol = TOK_P | TOK_Y;
    unsigned c, d = 0;
    size_t k, j, k2 = 0;

    c = cls(u, p, i, &k);
    j = i + k;
    if (p[i] < 0x80 && (c & symbol) && j < n && ascii_letter(p[j])) {
        while (j < n && ascii_letter(p[j]))
            j++;
        return j;
    }
    if (c & letter)                     /* a mark may also be the character in front */
        return run(u, p, j, n, letter, true);
    if (j < n)
        d = cls(u, p, j, &k2);
    if (!(c & (TOK_NL | symbol)) && (d & letter))
        return run(u, p, j + k2, n, letter, true);
    if ((c & symbol) || (p[i] == ' ' && (d & symbol))) {
        j = run(u, p, j, n, symbol, true);
        while (j < n && (p[j] == '\r' || p[j] == '\n'))
            j++;
        return j;
    }
    return c & TOK_S ? spaces(u, p, i, n, true) : 0;
}

bool tok_split_dsv3(const struct tok_uni *u, const unsigned char *p, size_t n, size_t from,
        size_t *mb, size_t *me)
{
    size_t k;

    for (; from < n; from += k) {
        *me = dsv3_at(u, p, from, n);
        if (*me) {
            *mb = from;
            return true;
        }
        cls(u, p, from, &k);
    }
    return false;
}
