/* fetch_card.c - the `configs` of a data set's README.md: which file is which subset and split.
 * Only that part of YAML is read which hubs write there:
 *
 *     configs:
 *     - config_name: main
 *       data_files:
 *       - split: train
 *         path: main/train-*            (or a list of them)
 */
#include "run/fetch_card.h"
#include "base/buf.h"
#include <stdlib.h>

struct line {
    size_t indent;
    bool item;              /* begins with "- " */
    struct tw_str key, value;
};

static struct tw_str trim(struct tw_str s)
{
    while (s.n && (*s.p == ' ' || *s.p == '\t')) {
        s.p++;
        s.n--;
    }
    while (s.n && strchr(" \t\r", s.p[s.n - 1]) && s.p[s.n - 1])
        s.n--;
    return s;
}

/* A scalar without its quotes, or without the comment behind it. */
static struct tw_str unquote(struct tw_str s)
{
    const char *end;

    s = trim(s);
    if (s.n >= 2 && (*s.p == '"' || *s.p == '\'')) {
        end = memchr(s.p + 1, *s.p, s.n - 1);
        return end ? (struct tw_str){ s.p + 1, (size_t)(end - s.p - 1) } : s;
    }
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '#' && (!i || s.p[i - 1] == ' '))
            return trim((struct tw_str){ s.p, i });
    return s;
}

static struct line read_line(struct tw_str s)
{
    struct line l = {0};
    const char *colon;

    while (l.indent < s.n && s.p[l.indent] == ' ')
        l.indent++;
    s = trim(s);
    if (s.n && *s.p == '-' && (s.n == 1 || s.p[1] == ' ')) {
        l.item = true;
        s = trim((struct tw_str){ s.p + 1, s.n - 1 });
    }
    colon = s.n && *s.p != '"' && *s.p != '\'' ? memchr(s.p, ':', s.n) : NULL;
    while (colon && colon + 1 < s.p + s.n && colon[1] != ' ')
        colon = memchr(colon + 1, ':', (size_t)(s.p + s.n - colon - 1));
    if (colon) {
        l.key = trim((struct tw_str){ s.p, (size_t)(colon - s.p) });
        l.value = unquote((struct tw_str){ colon + 1, (size_t)(s.p + s.n - colon - 1) });
    } else {
        l.value = unquote(s);
    }
    return l;
}

static struct tw_card_file *add(struct tw_card *c)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 16;
        c->file = tw_xreallocarray(c->file, (size_t)c->cap, sizeof *c->file);
    }
    c->file[c->n] = (struct tw_card_file){0};
    return &c->file[c->n++];
}

/* A glob, or "[a, b]", for the split that is open. */
static void add_globs(struct tw_card *c, struct tw_str v, const struct tw_card_file *like)
{
    bool list = v.n >= 2 && v.p[0] == '[' && v.p[v.n - 1] == ']';

    if (list)
        v = (struct tw_str){ v.p + 1, v.n - 2 };
    while (v.n) {
        const char *comma = list ? memchr(v.p, ',', v.n) : NULL;
        size_t n = comma ? (size_t)(comma - v.p) : v.n;
        struct tw_str glob = unquote((struct tw_str){ v.p, n });
        struct tw_card_file *f;

        if (glob.n) {
            f = add(c);
            *f = *like;
            f->glob = glob;
            if (!f->split.n)
                f->split = TW_STR_LIT("train");
        }
        n += comma != NULL;
        v = (struct tw_str){ v.p + n, v.n - n };
    }
}

/* One line of `configs`. NOW is the entry that is open; *BASE the indent of the configs' dashes. */
static void take(struct tw_card *c, const struct line *l, struct tw_card_file *now, size_t *base)
{
    if (l->item && *base == (size_t)-1)
        *base = l->indent;
    if (l->item && l->indent == *base) {
        *now = (struct tw_card_file){0};
        now->config = TW_STR_LIT("default");
    }
    if (tw_str_is(l->key, "config_name")) {
        now->config = l->value;
    } else if (tw_str_is(l->key, "default") && tw_str_is(l->value, "true")) {
        now->is_default = true;
        for (int64_t i = 0; i < c->n; i++)      /* those that stand before the word */
            if (tw_str_eq(c->file[i].config, now->config))
                c->file[i].is_default = true;
    } else if (tw_str_is(l->key, "split")) {
        now->split = l->value;
    } else if (tw_str_is(l->key, "data_files")) {
        now->split = (struct tw_str){0};
        add_globs(c, l->value, now);
    } else if (tw_str_is(l->key, "path")) {
        add_globs(c, l->value, now);
    } else if (!l->key.n && l->item && l->indent > *base) {
        add_globs(c, l->value, now);
    }
}

void tw_card_read(struct tw_card *c, struct tw_str readme)
{
    struct tw_card_file now = {0};
    size_t base = (size_t)-1;
    bool inside = false;
    int64_t line = 0;

    for (size_t at = 0, n; at < readme.n; at += n + 1, line++) {
        const char *nl = memchr(readme.p + at, '\n', readme.n - at);
        struct tw_str text = { readme.p + at, nl ? (size_t)(nl - readme.p) - at : readme.n - at };
        struct tw_str t = trim(text);
        struct line l;

        n = text.n;
        if (tw_str_is(t, "---")) {
            if (line)
                break;
            continue;
        }
        if (!line)
            break;                      /* no front matter */
        if (!t.n || *t.p == '#')
            continue;
        l = read_line(text);
        if (!l.indent && !l.item) {
            inside = tw_str_is(l.key, "configs");
            continue;
        }
        if (inside)
            take(c, &l, &now, &base);
    }
}

void tw_card_free(struct tw_card *c)
{
    free(c->file);
    *c = (struct tw_card){0};
}
