/* read_fast.c - forward_backward's JSON as clients write it, in one pass and without a tree: megabytes of
 * numbers go from the text into arrays. What is written in another way, and all that is wrong, is left to
 * the reader of trees (read_json.c), which knows what to say; what both read they read alike.
 * All functions here are true when they read what they are for. */
#include "serve/read_priv.h"
#include <float.h>
#include <stdlib.h>

#define MOST_TENSORS 8                  /* of a datum */

struct scan {
    const char *p, *end;
    struct tw_arena arena;              /* for what is in the way to the data */
    struct tw_buf numbers;              /* the list that is being read */
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

/* scaled(), for what a double does not hold exactly. */
static bool scaled_long(uint64_t m, int e, double *out)
{
#if LDBL_MANT_DIG == 64
    static const long double ten[] = { 1e0L, 1e1L, 1e2L, 1e3L, 1e4L, 1e5L, 1e6L, 1e7L, 1e8L, 1e9L, 1e10L,
        1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L,
        1e25L, 1e26L, 1e27L };
    long double x = (long double)m;
    uint64_t bits;

    if (e < -27 || e > 27)
        return false;
    x = e < 0 ? x / ten[-e] : x * ten[e];       /* both are exact: rounded once, to 64 bits */
    memcpy(&bits, &x, sizeof bits);
    *out = (double)x;
    return (bits & 0x7FF) != 0x400;             /* just between two doubles: the first rounding matters */
#else
    (void)m;
    (void)e;
    (void)out;
    return false;
#endif
}

/* M times ten to the E, rounded as strtod does; false when that takes more than one operation. */
static bool scaled(uint64_t m, int e, double *out)
{
    static const double exact[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
        1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

    if (m >> 53 || e < -22 || e > 22)
        return scaled_long(m, e, out);
    *out = e < 0 ? (double)m / exact[-e] : (double)m * exact[e];    /* both are exact: rounded once */
    return true;
}

static bool slowly(const char *from, const char *to, double *out)
{
    char copy[64];

    if (to - from >= (ptrdiff_t)sizeof copy)
        return false;
    memcpy(copy, from, (size_t)(to - from));
    copy[to - from] = 0;
    *out = strtod(copy, NULL);
    return true;
}

static uint64_t run_of_digits(const char **p, uint64_t m)
{
    for (; **p >= '0' && **p <= '9'; ++*p)
        m = m * 10 + (uint64_t)(**p - '0');
    return m;
}

/* A number; some character that cannot be of one, the list's ']', is behind it. */
static bool number(struct scan *s, double *out)
{
    const char *from = s->p, *p = from + (*from == '-'), *first = p, *dot;
    uint64_t m = run_of_digits(&p, 0);
    ptrdiff_t digits = m ? p - first : 0;       /* those that count; past 19 M is not them any more */
    int e = 0, x = 0;
    bool minus;

    if (p == first || (*first == '0' && p > first + 1))
        return false;
    if (*p == '.') {
        dot = ++p;
        while (!digits && *p == '0')
            p++;
        first = p;
        m = run_of_digits(&p, m);
        digits += p - first;
        if (p == dot || p - dot > 60)
            return false;
        e = (int)(dot - p);
    }
    if ((*p | 32) == 'e') {
        minus = *++p == '-';
        p += minus || *p == '+';
        for (first = p; *p >= '0' && *p <= '9' && p - first < 5; p++)
            x = x * 10 + (*p - '0');
        if (p == first)
            return false;
        e += minus ? -x : x;
    }
    s->p = p;
    if (digits > 19 || !scaled(m, e, out))
        return slowly(from, p, out);
    *out = *from == '-' ? -*out : *out;
    return true;
}

static const char *after_space(const char *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')
        p++;
    return p;
}

/* Integers of at most 18 digits, from P to the list's end, which is at CLOSE: how many; -1. */
static int64_t integers(const char *p, const char *close, char *out)
{
    int64_t n = 0;

    for (p = after_space(p); p < close; n++) {
        bool minus = *p == '-';
        const char *first = p += minus;
        unsigned digit = (unsigned)*p - '0';
        int64_t v = 0;

        for (; digit < 10; digit = (unsigned)*++p - '0')
            v = (int64_t)((uint64_t)v * 10 + digit);
        if (p == first || p - first > 18 || (*first == '0' && p > first + 1))
            return -1;
        v = minus ? -v : v;
        memcpy(out + 8 * n, &v, sizeof v);
        if (*p != ',' && *(p = after_space(p)) != ',')
            return p == close ? n + 1 : -1;
        p = after_space(p + 1);
        if (p == close)
            return -1;
    }
    return n;
}

static int64_t floats(struct scan *s, const char *close, char *out)
{
    int64_t n = 0;
    double d;
    float f;

    for (s->p = after_space(s->p); s->p < close; n++) {
        if (!number(s, &d))
            return -1;
        f = (float)d;
        memcpy(out + 4 * n, &f, sizeof f);
        s->p = after_space(s->p);
        if (*s->p != ',')
            return s->p == close ? n + 1 : -1;
        s->p = after_space(s->p + 1);
        if (s->p == close)
            return -1;
    }
    return n;
}

/* The numbers of a list into s->numbers, as I64 or F32, and how many; S is at its first character. */
static bool numbers(struct scan *s, bool is_int, size_t *n)
{
    const char *close;
    int64_t got;
    char *out;

    if (!take(s, '[') || !(close = memchr(s->p, ']', (size_t)(s->end - s->p))))
        return false;
    tw_buf_clear(&s->numbers);
    out = tw_buf_grow(&s->numbers, ((size_t)(close - s->p) / 2 + 1) * 8);
    got = is_int ? integers(s->p, close, out) : floats(s, close, out);
    if (got < 0)
        return false;
    *n = (size_t)got;
    s->numbers.n = *n * (is_int ? 8 : 4);
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

static bool tensor(struct scan *s, struct tw_tensor_in *t)
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
            memcpy(t->dim, s->numbers.p, n * sizeof *t->dim);
            t->ndim = (int)n;
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
    t->data = tw_arena_dup(&s->arena, s->numbers.p, s->numbers.n);
    return !tw_tensor_size(t, s->numbers.n, "", NULL);
}

static bool inputs(struct scan *s, struct tw_datum_raw *raw)
{
    raw->t = tw_arena_alloc(&s->arena, MOST_TENSORS * sizeof *raw->t);
    if (!take(s, '{'))
        return false;
    while (!take(s, '}')) {
        struct tw_tensor_in *t = &raw->t[raw->nt];

        if (raw->nt == MOST_TENSORS || (raw->nt && !take(s, ',')) || !text(s, &t->name) || !take(s, ':') ||
                !tensor(s, t))
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
    int64_t v;
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
        raw->token = tw_arena_alloc(a, n * sizeof *raw->token + 1);
        for (size_t i = 0; i < n; i++) {
            memcpy(&v, s->numbers.p + 8 * i, sizeof v);
            if (v != (int32_t)v)
                return false;
            raw->token[i] = (int32_t)v;
        }
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
            if (k ? !inputs(s, raw) : !input(s, a, raw))
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
    struct scan s = { .p = body.p, .end = body.p + body.n };
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
    tw_arena_free(&s.arena);
    return ok;
}
