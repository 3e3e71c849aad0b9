/* tok_regex.c - patterns of tokenizer.json are written for Oniguruma (Ruby syntax, Unicode); where
 * PCRE2 reads the same text differently the pattern is rewritten, or refused by name. */
#include "tok_priv.h"

/* Escapes that mean the same to both engines; \s, \S, \w, \d, \D and \p get a spelling of their
 * own, because PCRE2's are other sets of characters. */
static const char same[] = "rntfeaAzZxk0123456789-[]{}()*+?.,\\/^$|#&~`'\"!%:;<=>@_ ";

/* Words to Oniguruma, but not in a class. */
#define LATIN_NUMBERS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* A class while it is read: IN is what stands inside; ALT is what does not fit there, each part after
 * a '|'. */
struct cls {
    struct tw_buf in, alt;
    bool open, negated, late;
};

static void class_end(struct tw_buf *out, struct cls *c)
{
    const char *alt = c->alt.p;
    size_t n = c->alt.n;

    if (!n) {
        tw_buf_puts(out, c->negated ? "[^" : "[");
        tw_buf_add(out, c->in.p, c->in.n);
        tw_buf_putc(out, ']');
    } else {
        tw_buf_puts(out, c->negated ? "(?:(?!" : "(?:");
        if (c->in.n) {
            tw_buf_putc(out, '[');
            tw_buf_add(out, c->in.p, c->in.n);
            tw_buf_putc(out, ']');
        } else {
            alt++;
            n--;
        }
        tw_buf_add(out, alt, n);
        tw_buf_puts(out, c->negated ? ")\\p{Any})" : ")");
    }
    c->in.n = c->alt.n = 0;
    c->open = c->negated = false;
}

static bool prop(struct cls *c, bool negated, const char *name)
{
    return tok_prop(&c->in, &c->alt, c->late, negated, tw_str(name));
}

/* A set of characters at P, into C; its length, 0: none that is known. */
static size_t set(struct cls *c, struct tw_str p)
{
    const char *end;

    switch (p.p[1]) {
    case 's':
    case 'S':
        prop(c, p.p[1] == 'S', "White_Space");
        return 2;
    case 'd':
    case 'D':
        prop(c, p.p[1] == 'D', "Nd");
        return 2;
    case 'w':
        prop(c, false, "Alphabetic");
        prop(c, false, "M");
        prop(c, false, "Nd");
        prop(c, false, "Pc");
        if (!c->open)
            tw_buf_puts(&c->in, LATIN_NUMBERS);
        return 2;
    default:
        end = p.n > 2 && p.p[2] == '{' ? memchr(p.p, '}', p.n) : NULL;
        if (end && tok_prop(&c->in, &c->alt, c->late, p.p[1] == 'P',
                (struct tw_str){ p.p + 3, (size_t)(end - p.p) - 3 }))
            return (size_t)(end - p.p) + 1;
        return 0;
    }
}

/* Writes the escape at P for PCRE2 and returns its length; 0: not supported. */
static size_t escape(struct tw_buf *out, struct cls *c, struct tw_str p)
{
    char e = p.p[1];
    const char *end = NULL;
    size_t n;

    if (e && strchr("sSdDwpP", e)) {
        n = set(c, p);
        if (n && !c->open)
            class_end(out, c);
        return n;
    }
    if (!e || !strchr(same, e))
        return 0;
    if (e == 'x' && p.n > 2 && p.p[2] == '{')
        end = memchr(p.p, '}', p.n);
    n = end ? (size_t)(end - p.p) + 1 : 2;
    tw_buf_add(c->open ? &c->in : out, p.p, n);
    return n;
}

/* How many characters at P (not an escape) are something the engines read differently: a class in a
 * class, {n,m}+ (possessive here, repeated there), options that reach over alternatives. */
static size_t differs(struct tw_str p, bool in_class, bool first)
{
    if (in_class)
        return p.n > 1 && (!memcmp(p.p, "&&", 2) || *p.p == '[') ? 2 : 0;
    if (p.n > 1 && !memcmp(p.p, "}+", 2))
        return 2;
    if (p.n < 4 || memcmp(p.p, "(?", 2) || strchr(":=!<>", p.p[2]))
        return 0;
    return p.p[2] == 'i' && (p.p[3] == ':' || (p.p[3] == ')' && first)) ? 0 : 3;
}

static void plain(struct tw_buf *out, struct cls *c, struct tw_str p, size_t *k)
{
    if (!c->open && *p.p == '[') {
        c->open = true;
        c->negated = p.n > 1 && p.p[1] == '^';
        *k = c->negated ? 2 : 1;
    } else if (c->open && *p.p == ']' && !c->in.n && !c->alt.n) {
        tw_buf_puts(&c->in, "\\]");     /* the first in a class is one of its characters */
    } else if (c->open && *p.p == ']') {
        class_end(out, c);
    } else {
        tw_buf_putc(c->open ? &c->in : out, *p.p);
    }
}

static int translate(struct tw_buf *out, struct cls *c, struct tw_str pat, struct tw_err *err)
{
    size_t k;

    for (size_t i = 0; i < pat.n; i += k) {
        struct tw_str rest = { pat.p + i, pat.n - i };

        k = 1;
        if (rest.n > 1 && *rest.p == '\\') {
            const char *end = strchr("pP", rest.p[1]) ? memchr(rest.p, '}', rest.n) : NULL;

            k = escape(out, c, rest);
            if (!k)
                return tw_fail(err, NULL, 0, "unsupported escape %.*s in the pattern %.*s",
                        end ? (int)(end - rest.p) + 1 : 2, rest.p, (int)pat.n, pat.p);
            continue;
        }
        if (differs(rest, c->open, !i))
            return tw_fail(err, NULL, 0, "unsupported \"%.*s\" in the pattern %.*s",
                    (int)differs(rest, c->open, !i), rest.p, (int)pat.n, pat.p);
        plain(out, c, rest, &k);
    }
    if (c->open)
        return tw_fail(err, NULL, 0, "a class without its ] in the pattern %.*s", (int)pat.n,
                pat.p);
    return 0;
}

int tok_regex(struct tw_buf *out, struct tw_str pattern, bool late, struct tw_err *err)
{
    struct cls c = { .late = late };
    int r = translate(out, &c, pattern, err);

    tw_buf_free(&c.in);
    tw_buf_free(&c.alt);
    return r;
}
