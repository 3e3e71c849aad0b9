/* filter.c - which records stay. Every filter looks at the finished record: its messages, or its text. */
#include "run/process.h"
#include "base/rng.h"
#include <stdlib.h>

/* The text of message I of role ROLE (NULL: any), or the record's own text for a text record. */
static struct tw_str message_text(const struct tw_json *rec, int64_t i)
{
    const struct tw_json *m = tw_json_get(rec, "messages");

    return m && i < m->n && m->item[i].type == TW_JOBJ ? tw_field(&m->item[i], "content")
            : (struct tw_str){ "", 0 };
}

static int64_t count_messages(const struct tw_json *rec)
{
    const struct tw_json *m = tw_json_get(rec, "messages");

    return m && m->type == TW_JARR ? m->n : 0;
}

static bool is_role(const struct tw_json *rec, int64_t i, const char *role)
{
    const struct tw_json *m = tw_json_get(rec, "messages");

    return m->item[i].type == TW_JOBJ && tw_str_is(tw_field(&m->item[i], "role"), role);
}

static int64_t characters(struct tw_str s)
{
    int64_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += (s.p[i] & 0xC0) != 0x80;
    return n;
}

static int range_setup(struct tw_filter *f, struct tw_set *s, struct tw_err *err)
{
    f->max = INT64_MAX;
    if (tw_set_int(s, "min", &f->min, 0, INT64_MAX, err) < 0
            || tw_set_int(s, "max", &f->max, 0, INT64_MAX, err) < 0)
        return -1;
    if (f->min > f->max)
        return tw_fail_code(err, TW_EMISUSE, "--filter", 0, "min is above max: nothing would stay");
    return 0;
}

static const char *length(const struct tw_filter *f, const struct tw_json *rec)
{
    int64_t n = characters(tw_field(rec, "text")) + characters(tw_field(rec, "prompt"));

    for (int64_t i = 0; i < count_messages(rec); i++)
        n += characters(message_text(rec, i));
    return n < f->min ? "length: too short" : n > f->max ? "length: too long" : NULL;
}

static const char *turns(const struct tw_filter *f, const struct tw_json *rec)
{
    int64_t n = 0;

    for (int64_t i = 0; i < count_messages(rec); i++)
        n += is_role(rec, i, "assistant");
    return n < f->min ? "turns: too few" : n > f->max ? "turns: too many" : NULL;
}

static int has_setup(struct tw_filter *f, struct tw_set *s, struct tw_err *err)
{
    if (tw_set_str(s, "key", &f->key) <= 0)
        return tw_fail_code(err, TW_EMISUSE, "--filter has", 0, "needs key=NAME");
    return 0;
}

static const char *has(const struct tw_filter *f, const struct tw_json *rec)
{
    for (int64_t i = 0; i < rec->n; i++) {
        const struct tw_json *v = &rec->item[i];

        if (tw_str_eq(v->key, f->key))
            return v->type == TW_JNULL || (v->type == TW_JSTR && !v->str.n)
                    || (v->type == TW_JARR && !v->n) ? "has: empty" : NULL;
    }
    return "has: missing";
}

/* A conversation that can be trained on: begins with system or user, user and assistant take turns,
 * tool results follow a call, ends with a reply that says something. */
static const char *sane(const struct tw_filter *f, const struct tw_json *rec)
{
    const struct tw_json *m = tw_json_get(rec, "messages");
    const char *last = "";

    if (!m || m->type != TW_JARR || !m->n)
        return "sane: no messages";
    for (int64_t i = 0; i < m->n; i++) {
        bool calls = tw_json_get(&m->item[i], "tool_calls") != NULL;

        if (is_role(rec, i, "system")) {
            if (i)
                return "sane: a system message that is not the first";
            continue;
        }
        if (is_role(rec, i, "user")) {
            if (!strcmp(last, "user"))
                return "sane: two user messages in a row";
            last = "user";
        } else if (is_role(rec, i, "tool")) {
            if (strcmp(last, "call") && strcmp(last, "tool"))
                return "sane: a tool result without a call";
            last = "tool";
        } else {
            if (strcmp(last, "user") && strcmp(last, "tool"))
                return "sane: a reply without a question";
            if (!calls && !message_text(rec, i).n)
                return "sane: an empty reply";
            last = calls ? "call" : "assistant";
        }
    }
    return strcmp(last, "assistant") ? "sane: does not end with a reply" : NULL;
}

static int refuse_setup(struct tw_filter *f, struct tw_set *s, struct tw_err *err)
{
    f->window = 600;
    return tw_set_int(s, "window", &f->window, 1, INT64_MAX, err) < 0 ? -1 : 0;
}

static bool contains(struct tw_str text, const char *what)
{
    size_t n = strlen(what);

    for (size_t i = 0; i + n <= text.n; i++)
        if (!strncasecmp(text.p + i, what, n))
            return true;
    return false;
}

/* Behind its thinking: the first reply's text. */
static struct tw_str visible(struct tw_str s)
{
    for (size_t i = 0; i + 8 <= s.n; i++)
        if (!memcmp(s.p + i, "</think>", 8))
            return (struct tw_str){ s.p + i + 8, s.n - i - 8 };
    return s;
}

static const char *refuse(const struct tw_filter *f, const struct tw_json *rec)
{
    static const char *const phrases[] = { "i can't help with", "i cannot help with", "i can't assist",
        "i cannot assist", "i'm sorry, but i can", "i am sorry, but i can", "i'm unable to", "i am unable to",
        "as an ai language model, i can", "i can't provide", "i cannot provide", "i won't be able to",
        "我无法", "我不能", "抱歉，我" };

    for (int64_t i = 0; i < count_messages(rec); i++) {
        struct tw_str t;

        if (!is_role(rec, i, "assistant"))
            continue;
        t = visible(message_text(rec, i));
        if ((int64_t)t.n > f->window)
            t.n = (size_t)f->window;
        for (size_t k = 0; k < sizeof(phrases) / sizeof(*phrases); k++)
            if (contains(t, phrases[k]))
                return "refuse: the first reply refuses";
        break;
    }
    return NULL;
}

static int loop_setup(struct tw_filter *f, struct tw_set *s, struct tw_err *err)
{
    f->ratio = 0.45;
    f->min = 30;
    if (tw_set_num(s, "ratio", &f->ratio, 0, 1, err) < 0)
        return -1;
    return tw_set_int(s, "min", &f->min, 8, INT64_MAX, err) < 0 ? -1 : 0;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* 1 - distinct / all of the runs of eight words of a text; 0 when it has fewer than MIN words. */
static double repetition(struct tw_str s, int64_t min)
{
    int64_t n = 0, cap = (int64_t)s.n / 2 + 2, distinct = 0;
    uint64_t *word = tw_xreallocarray(NULL, cap, sizeof(*word));
    size_t i = 0;

    while (i < s.n) {
        size_t from;

        while (i < s.n && (unsigned char)s.p[i] <= ' ')
            i++;
        for (from = i; i < s.n && (unsigned char)s.p[i] > ' '; i++)
            ;
        if (i > from)
            word[n++] = tw_hash64(s.p + from, i - from, 0);
    }
    if (n < min || n < 8) {
        free(word);
        return 0;
    }
    n -= 7;
    for (int64_t k = 0; k < n; k++)
        word[k] = tw_hash64(word + k, 8 * sizeof(*word), 1);
    qsort(word, n, sizeof(*word), compare_u64);
    for (int64_t k = 0; k < n; k++)
        distinct += !k || word[k] != word[k - 1];
    free(word);
    return 1 - (double)distinct / (double)n;
}

static const char *loop(const struct tw_filter *f, const struct tw_json *rec)
{
    if (repetition(tw_field(rec, "text"), f->min) > f->ratio)
        return "loop: the text repeats itself";
    for (int64_t i = 0; i < count_messages(rec); i++)
        if (is_role(rec, i, "assistant") && repetition(message_text(rec, i), f->min) > f->ratio)
            return "loop: a reply repeats itself";
    return NULL;
}

static int soup_setup(struct tw_filter *f, struct tw_set *s, struct tw_err *err)
{
    f->ratio = 0.02;
    return tw_set_num(s, "ratio", &f->ratio, 0, 1, err) < 0 ? -1 : 0;
}

/* Share of characters that no one writes: replacement, control and private-use ones. */
static double garbage(struct tw_str s)
{
    const char *p = s.p, *end = s.p + s.n;
    int64_t bad = 0, n = 0;

    for (; p < end; n++) {
        uint32_t c = tw_utf8_next(&p, end);

        bad += c == 0xFFFD || (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || (c >= 0x7F && c < 0xA0)
                || (c >= 0xE000 && c <= 0xF8FF);
    }
    return n ? (double)bad / (double)n : 0;
}

static const char *soup(const struct tw_filter *f, const struct tw_json *rec)
{
    if (garbage(tw_field(rec, "text")) > f->ratio)
        return "soup: garbage in the text";
    for (int64_t i = 0; i < count_messages(rec); i++)
        if (garbage(message_text(rec, i)) > f->ratio)
            return "soup: garbage in a message";
    return NULL;
}

/* What makes two records the same: all messages, or the text; other keys do not count. */
static uint64_t dedup_key(const struct tw_filter *f, const struct tw_json *rec)
{
    static const char *const keys[] = { "messages", "chosen", "rejected", "text", "prompt", "tokens" };
    uint64_t h = 0;
    bool any = false;

    for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
        const struct tw_json *v = tw_json_get(rec, keys[k]);

        if (v) {
            h = tw_hash64(v->raw.p, v->raw.n, h + k + 1);
            any = true;
        }
    }
    return any ? h : tw_hash64(rec->raw.p, rec->raw.n, 0);
}

const struct tw_filter_kind tw_filter_kinds[] = {
    { "length", "min=N,max=N", "characters of all messages, or of the text", range_setup, length, false,
        NULL },
    { "turns", "min=N,max=N", "replies in the conversation", range_setup, turns, false, NULL },
    { "has", "key=NAME", "the key is there and not empty", has_setup, has, false, NULL },
    { "sane", "", "roles in order, tool results after calls, a reply at the end", NULL, sane, false, NULL },
    { "refuse", "window=BYTES", "the first reply does not begin with a refusal", refuse_setup, refuse, false,
        NULL },
    { "loop", "ratio=X,min=WORDS", "no reply repeats its runs of eight words", loop_setup, loop, false,
        NULL },
    { "soup", "ratio=X", "no more than a share of control, private-use and replacement characters",
        soup_setup, soup, false, NULL },
    { "dedup", "", "the first of records with equal content", NULL, NULL, true, dedup_key },
    { 0 }
};

int tw_filter_parse(struct tw_filter *f, const char *text, struct tw_err *err)
{
    struct tw_set s;

    *f = (struct tw_filter){ 0 };
    if (tw_set_parse(&s, "--filter", text, err))
        return -1;
    for (const struct tw_filter_kind *k = tw_filter_kinds; k->name; k++)
        if (tw_str_is(s.name, k->name))
            f->kind = k;
    if (!f->kind)
        return tw_fail_code(err, TW_EMISUSE, "--filter", 0, "unknown filter \"%.*s\"; --list shows them",
                (int)s.name.n, s.name.p);
    if (f->kind->setup && f->kind->setup(f, &s, err))
        return -1;
    return tw_set_done(&s, err);
}
