/* read_fast.c - forward_backward's JSON as clients write it, in one pass and without a tree: megabytes of
 * numbers go from the text into arrays. What is written in another way, and all that is wrong, is left to
 * the reader of trees (read_json.c), which knows what to say; what both read they read alike.
 * All functions here are true when they read what they are for. */
#include "serve/read_priv.h"
#include <stdlib.h>

#define MOST_TENSORS 8                  /* of a datum */


struct scan {
    const char *p, *from, *end;
    struct tw_arena arena;              /* for what is in the way to the data */
    struct tw_buf numbers, ends;        /* the list that is being read, and where in it each number ends */
};

static void space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

/* C comes next, and is taken. */
static bool take(struct scan *s, char c)
{
    space(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool word(struct scan *s, const char *w)
{
    size_t n = strlen(w);

    space(s);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n))
        return false;
    s->p += n;
    return true;
}

/* A text of plain characters. */
static bool text(struct scan *s, struct tw_str *out)
{
    if (!take(s, '"'))
        return false;
    for (out->p = s->p; s->p < s->end && *s->p >= ' ' && *s->p < 127 && *s->p != '"' && *s->p != '\\';)
        s->p++;
    out->n = (size_t)(s->p - out->p);
    return take(s, '"');
}

/* Of at most 18 digits. */
static bool integer(struct scan *s, int64_t *out)
{
    bool minus;
    const char *first;
    int64_t v = 0;

    space(s);
    minus = s->p < s->end && *s->p == '-';
    s->p += minus;
    for (first = s->p; s->p < s->end && *s->p >= '0' && *s->p <= '9' && s->p - first < 18; s->p++)
        v = v * 10 + (*s->p - '0');
    if (s->p == first || (*first == '0' && s->p > first + 1) || s->p == s->end ||
            (*s->p >= '0' && *s->p <= '9') || *s->p == '.' || (*s->p | 32) == 'e')
        return false;
    *out = minus ? -v : v;
    return true;
}

/* The numbers of a list into s->numbers, as I32 or F32, and how many; S is at its first character. */
static bool numbers(struct scan *s, bool is_int, size_t *n)
{
    const char *close;
    size_t most;
    uint32_t *at;
    void *out;

    if (!take(s, '[') || !(close = memchr(s->p, ']', (size_t)(s->end - s->p))) || s->end - close < 8 ||
            s->p - s->from < 24 || close - s->p > INT32_MAX)
        return false;
    tw_buf_clear(&s->numbers);
    tw_buf_clear(&s->ends);
    most = ((size_t)(close - s->p) / 2 + 1) * 4;
    at = tw_buf_grow(&s->ends, most * 2);       /* what is no list of numbers may be all commas */
    out = tw_buf_grow(&s->numbers, most * 2);
    *n = (size_t)tw_list_ends(s->p, close, s->end, at);
    if (!(is_int ? tw_list_integers(s->p, at, (int64_t)*n, out) : tw_list_floats(s->p, at, (int64_t)*n, out)))
        return false;
    s->numbers.n = *n * 4;
    s->p = close + 1;
    return true;
}

static bool skip_list(struct scan *s)
{
    const char *close;

    if (!take(s, '[') || !(close = memchr(s->p, ']', (size_t)(s->end - s->p))))
        return false;
    s->p = close + 1;
    return true;
}

/* The next key of an object, and which of the names it is; *SEEN says which there were. -1: the end; -2:
 * none of them, one that was there, or no key. FIRST is true at the object's first. */
static int key(struct scan *s, const char *const *name, unsigned *seen, bool first)
{
    struct tw_str k;

    if (take(s, '}'))
        return -1;
    if ((!first && !take(s, ',')) || !text(s, &k) || !take(s, ':'))
        return -2;
    for (int i = 0; name[i]; i++)
        if (tw_str_is(k, name[i]) && !(*seen >> i & 1)) {
            *seen |= 1u << i;
            return i;
        }
    return -2;
}

static bool tensor(struct scan *s, struct tw_arena *a, struct tw_tensor_in *t)
{
    static const char *const name[] = { "data", "dtype", "shape", NULL };
    struct tw_str type = TW_STR_LIT("float32");
    const char *data = NULL, *after;
    unsigned seen = 0;
    size_t n;
    int k;

    if (!take(s, '{'))
        return false;
    while ((k = key(s, name, &seen, !seen)) >= 0) {
        if (k == 0) {
            data = s->p;
            if (!skip_list(s))
                return false;
        } else if (k == 1 && !text(s, &type)) {
            return false;
        } else if (k == 2 && !word(s, "null")) {
            if (!numbers(s, true, &n) || n < 1 || n > 2)
                return false;
            for (t->ndim = 0; t->ndim < (int)n; t->ndim++)
                t->dim[t->ndim] = ((const int32_t *)s->numbers.p)[t->ndim];
        }
    }
    t->is_int = tw_str_is(type, "int64");
    if (k != -1 || !data || (!t->is_int && !tw_str_is(type, "float32")))
        return false;
    after = s->p;
    s->p = data;
    if (!numbers(s, t->is_int, &n))
        return false;
    s->p = after;
    t->data = tw_arena_dup(a, s->numbers.p, s->numbers.n);
    t->kept = true;
    return !tw_tensor_size(t, n * (t->is_int ? sizeof(int64_t) : sizeof(float)), "", NULL);
}

static bool inputs(struct scan *s, struct tw_arena *a, struct tw_datum_raw *raw)
{
    raw->t = tw_arena_alloc(&s->arena, MOST_TENSORS * sizeof *raw->t);
    if (!take(s, '{'))
        return false;
    while (!take(s, '}')) {
        struct tw_tensor_in *t = &raw->t[raw->nt];

        if (raw->nt == MOST_TENSORS || (raw->nt && !take(s, ',')) || !text(s, &t->name) || !take(s, ':') ||
                !tensor(s, a, t))
            return false;
        for (int64_t i = 0; i < raw->nt; i++)
            if (tw_str_eq(raw->t[i].name, t->name))
                return false;
        raw->nt++;
    }
    return true;
}

/* {"chunks": [{"tokens": [..], "type": "encoded_text"}]}: one chunk; more are rare. */
static bool input(struct scan *s, struct tw_arena *a, struct tw_datum_raw *raw)
{
    static const char *const outer[] = { "chunks", "type", NULL }, *const inner[] = { "tokens", "type", NULL };
    struct tw_str type = TW_STR_LIT("encoded_text");
    unsigned seen = 0, in = 0;
    size_t n;
    int k, c = 0;

    if (!take(s, '{') || key(s, outer, &seen, true) != 0 || !take(s, '[') || !take(s, '{'))
        return false;
    while ((c = key(s, inner, &in, !in)) >= 0) {
        if (c == 1 ? !text(s, &type) : !numbers(s, true, &n))
            return false;
        if (c == 1)
            continue;
        raw->n = (int64_t)n;
        raw->token = tw_arena_dup(a, s->numbers.p, s->numbers.n);
    }
    if (c != -1 || !raw->token || !tw_str_is(type, "encoded_text") || !take(s, ']'))
        return false;
    k = key(s, outer, &seen, false);
    return k == -1 || (k == 1 && text(s, &type) && take(s, '}'));
}

static bool data(struct scan *s, struct tw_arena *a, struct tw_datum_raw **list, int64_t *count)
{
    static const char *const name[] = { "model_input", "loss_fn_inputs", NULL };
    int64_t cap = 0;

    if (!take(s, '['))
        return false;
    for (*count = 0; !take(s, ']'); ++*count) {
        struct tw_datum_raw *raw;
        unsigned seen = 0;
        int k;

        if ((*count && !take(s, ',')) || !take(s, '{'))
            return false;
        if (*count == cap) {
            cap = cap ? 2 * cap : 64;
            *list = tw_xreallocarray(*list, (size_t)cap, sizeof **list);
        }
        raw = *list + *count;
        *raw = (struct tw_datum_raw){ 0 };
        while ((k = key(s, name, &seen, !seen)) >= 0)
            if (k ? !inputs(s, a, raw) : !input(s, a, raw))
                return false;
        if (k != -1 || seen != 3)
            return false;
    }
    return true;
}

struct head {                           /* of a request */
    struct tw_str loss, model;
    struct tw_buf settings;
    struct tw_datum_raw *raw;
    int64_t n, seq;
};

static bool settings(struct scan *s, struct head *h)
{
    const char *from, *close;
    struct tw_json *j;

    if (word(s, "null"))
        return true;
    space(s);
    from = s->p;
    if (!take(s, '{') || !(close = memchr(from, '}', (size_t)(s->end - from))))
        return false;
    s->p = close + 1;
    j = tw_json_parse(&s->arena, (struct tw_str){ from, (size_t)(s->p - from) }, NULL);
    return j && !tw_read_settings(j, &h->settings, NULL);
}

static bool request(struct scan *s, struct tw_arena *a, const char *in, struct head *h)
{
    const char *const name[] = { in, "model_id", "seq_id", "type", NULL };
    static const char *const inner[] = { "data", "loss_fn", "loss_fn_config", NULL };
    struct tw_str type;
    unsigned seen = 0, had = 0;
    int k, i = -1;

    if (!take(s, '{'))
        return false;
    while ((k = key(s, name, &seen, !seen)) >= 0) {
        bool ok = k == 0 ? take(s, '{') : k == 1 ? text(s, &h->model) : k == 2 ? integer(s, &h->seq) :
                text(s, &type);

        if (!ok)
            return false;
        while (!k && (i = key(s, inner, &had, !had)) >= 0)
            if (i == 0 ? !data(s, a, &h->raw, &h->n) : i == 1 ? !text(s, &h->loss) : !settings(s, h))
                return false;
        if (!k && i != -1)
            return false;
    }
    space(s);
    return k == -1 && s->p == s->end && (seen & 7) == 7 && (had & 3) == 3;
}

bool tw_read_fb_fast(struct tw_work *w, const struct tw_limits *l, struct tw_str body, const char *in)
{
    struct scan s = { .p = body.p, .from = body.p, .end = body.p + body.n };
    struct head h = { .seq = 0 };
    bool ok = request(&s, &w->arena, in, &h) && !tw_datum_loss(&w->fb, h.loss, tw_buf_str(&h.settings), NULL);

    if (ok)
        w->fb.d = tw_arena_alloc(&w->arena, (size_t)(h.n + 1) * sizeof *w->fb.d);
    for (int64_t i = 0; ok && i < h.n; i++) {
        ok = !tw_datum_make(&w->fb.d[i], &w->fb, l, &w->arena, &h.raw[i], i, NULL);
        w->fb.tokens += h.raw[i].n;
    }
    if (ok) {
        w->fb.n = h.n;
        w->model = tw_xstrndup(h.model.p, h.model.n);
        w->seq = h.seq;
    } else {
        w->fb = (struct tw_fb_args){ .forward_only = w->fb.forward_only };
        tw_arena_free(&w->arena);
    }
    free(h.raw);
    tw_buf_free(&h.settings);
    tw_buf_free(&s.numbers);
    tw_buf_free(&s.ends);
    tw_arena_free(&s.arena);
    return ok;
}
