/* chat_mask.c - which bytes of a rendering are trained, from where each byte came from.
 *
 * A reply's bytes are those its message owns (written in the pass of the template's loop that stood
 * on it), but for the header: the text that the template also writes as a generation prompt. So the
 * span is what a sampler would have had to write: reasoning, content, tool calls with their
 * wrapping, the end of turn. Where the template has generation blocks, these decide. */
#include "chat_priv.h"

#include <stdlib.h>

static void add_seg(struct tw_chat_work *w, size_t begin, size_t end, float weight)
{
    struct tw_chat_seg *last = w->nseg ? &w->seg[w->nseg - 1] : NULL;

    if (begin >= end || weight == 0)
        return;
    if (last && last->end == begin && last->weight == weight) {
        last->end = end;
        return;
    }
    if (w->nseg == w->cap_seg) {
        w->cap_seg = w->cap_seg ? w->cap_seg * 2 : 16;
        w->seg = tw_xreallocarray(w->seg, (size_t)w->cap_seg, sizeof(*w->seg));
    }
    w->seg[w->nseg++] = (struct tw_chat_seg){ begin, end, weight };
}

static bool is_assistant(const struct tw_json *m)
{
    const struct tw_json *r = tw_json_get(m, "role");

    return r && r->type == TW_JSTR && tw_str_is(r->str, "assistant");
}

/* loss_weight, weight, or train of a message: 1 given, 0 none, -1 wrong. */
static int message_weight(const struct tw_json *m, double *out, struct tw_err *err)
{
    double a, b;
    bool t;
    int x = tw_json_get_num(m, "loss_weight", &a, err), y, z;

    y = tw_json_get_num(m, "weight", &b, err);
    z = tw_json_get_bool(m, "train", &t, err);
    if (x < 0 || y < 0 || z < 0)
        return -1;
    if (x + y + z > 1)
        return tw_fail(err, NULL, 0, "more than one of loss_weight, weight, train");
    *out = x ? a : y ? b : z ? (double)t : 0;
    if (!(*out > -1e30 && *out < 1e30))
        return tw_fail(err, NULL, 0, "loss_weight is not a finite number");
    return x + y + z;
}

/* The same of a conversation's, told with the list and place where the record has it. */
static int weight_of(const struct tw_chat_conv *v, int64_t i, double *out, struct tw_err *err)
{
    struct tw_err why = { 0 };
    int given = message_weight(&v->messages.item[i], out, &why);
    bool side = v->from && i >= v->from;

    return given < 0 ? tw_fail(err, NULL, 0, "%s[%lld]: %s", side ? v->side : "messages",
            (long long)(side ? i - v->from : i - v->added), why.msg) : given;
}

static bool is_round(const struct tw_json *rounds, int64_t i)
{
    for (int64_t k = 0; k < rounds->n; k++)
        if (rounds->item[k].i == i)
            return true;
    return false;
}

/* The weight of every message: what it says itself, else what --train-on says. */
static int weigh(const struct tw_chat *c, const struct tw_chat_conv *v, float *weight,
        struct tw_err *err)
{
    int64_t last = -1;

    for (int64_t i = 0; i < v->messages.n; i++)
        if (is_assistant(&v->messages.item[i]))
            last = i;
    for (int64_t i = 0; i < v->messages.n; i++) {
        bool reply = is_assistant(&v->messages.item[i]);
        double own = 0;
        int given = weight_of(v, i, &own, err);

        if (given < 0)
            return -1;
        switch (c->o.train_on) {
        case TW_ON_ASSISTANT:
            weight[i] = reply;
            break;
        case TW_ON_LAST:
            weight[i] = i == last;
            break;
        case TW_ON_ALL:
            weight[i] = 1;
            break;
        case TW_ON_PROMPT:
            weight[i] = !reply;
            break;
        }
        if (reply && v->rounds && !is_round(v->rounds, i - v->added))
            weight[i] = 0;
        if (given)
            weight[i] = (float)own;
        if (i < v->from)
            weight[i] = 0;
    }
    return 0;
}

/* Does a span hold what message I says (not its role or name)? */
static bool says(const struct tw_jinja_span *s, int64_t i)
{
    return s->msg == i && !tw_str_is(s->field, "role") && !tw_str_is(s->field, "name") &&
            !tw_str_is(s->field, "tool_call_id");
}

/* How much of the region the header takes: all of a generation prompt, or the part of one up to a
 * line's or a tag's end; where none fits, what stands before the message's first own byte. */
static size_t header_end(const struct tw_chat *c, struct tw_str region, size_t own)
{
    size_t best = 0, part = 0;

    for (int k = 0; k < c->nheader; k++) {
        struct tw_str h = c->header[k];
        size_t n = 0, cut = 0;

        while (n < h.n && n < region.n && h.p[n] == region.p[n]) {
            n++;
            if (h.p[n - 1] == '\n' || h.p[n - 1] == '>')
                cut = n;
        }
        if (n == h.n && n > best)
            best = n;
        if (cut > part)
            part = cut;
    }
    if (best)
        return best;
    if (part && part <= own)
        return part;
    return own;
}

/* A message that no pass of a loop wrote (the template goes by index, say): from its first own byte
 * to its last, and the tag that follows. */
static void region_by_origin(const struct tw_jinja_out *out, int64_t i, size_t *begin, size_t *end)
{
    const char *p;
    size_t n = 0;

    *begin = *end = SIZE_MAX;
    for (int64_t k = 0; k < out->nspan; k++) {
        if (!says(&out->span[k], i))
            continue;
        if (*begin == SIZE_MAX)
            *begin = out->span[k].begin;
        *end = out->span[k].end;
    }
    if (*begin == SIZE_MAX)
        return;
    p = out->text.p + *end;
    while (*end + n < out->text.n && (p[n] == '\n' || p[n] == ' '))
        n++;
    if (*end + n < out->text.n && p[n] == '<') {
        while (*end + n < out->text.n && p[n] != '>' && p[n] != '\n')
            n++;
        if (*end + n < out->text.n && p[n] == '>')
            *end += n + 1;
    }
}

static void one_message(const struct tw_chat *c, struct tw_chat_work *w, const struct tw_chat_conv *v,
        int64_t i, float weight)
{
    const struct tw_jinja_out *out = &w->out;
    size_t begin = out->msg_begin[i], end = out->msg_end[i], own;

    if (begin == SIZE_MAX) {
        region_by_origin(out, i, &begin, &end);
        if (begin != SIZE_MAX)
            add_seg(w, begin, end, weight);
        return;
    }
    own = end - begin;
    for (int64_t k = 0; k < out->nspan && out->span[k].begin < end; k++)
        if (out->span[k].begin >= begin && says(&out->span[k], i)) {
            own = out->span[k].begin - begin;
            break;
        }
    if (is_assistant(&v->messages.item[i])) {
        struct tw_str region = { out->text.p + begin, end - begin };

        own = header_end(c, region, own == end - begin ? 0 : own);
    }
    add_seg(w, begin + own, end, weight);
}

static void by_generation(const struct tw_chat *c, struct tw_chat_work *w, const float *weight,
        const struct tw_chat_conv *v)
{
    bool prompt = c->o.train_on == TW_ON_PROMPT;

    for (int64_t k = 0; k < w->out.nspan; k++) {
        const struct tw_jinja_span *s = &w->out.span[k];
        float x = s->owner >= 0 && s->owner < v->messages.n ? weight[s->owner] : 1;

        if (s->generation != prompt)
            add_seg(w, s->begin, s->end, prompt ? 1 : x);
    }
}

static int by_begin(const void *a, const void *b)
{
    const struct tw_chat_seg *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Everything has weight 1 but for the segments, which have their own: for --train-on all, where a
 * message's weight replaces it, and prompt, where replies have 0. Segments come in as found. */
static void fill_rest(struct tw_chat_work *w, struct tw_chat_seg *s, int64_t n)
{
    size_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        if (s[i].begin > at)
            add_seg(w, at, s[i].begin, 1);
        if (s[i].end > at)
            add_seg(w, s[i].begin > at ? s[i].begin : at, s[i].end, s[i].weight);
        at = s[i].end > at ? s[i].end : at;
    }
    add_seg(w, at, w->out.text.n, 1);
}

int tw_chat_segments(const struct tw_chat *c, struct tw_chat_work *w, const struct tw_chat_conv *v,
        struct tw_err *err)
{
    float *weight = tw_arena_alloc(&w->arena, (size_t)v->messages.n * sizeof(*weight));
    bool rest = c->o.train_on == TW_ON_ALL || c->o.train_on == TW_ON_PROMPT;
    struct tw_chat_seg *own;
    int64_t n = 0;

    w->nseg = 0;
    if (weigh(c, v, weight, err))
        return -1;
    if (w->out.has_generation && c->o.train_on != TW_ON_ALL) {
        by_generation(c, w, weight, v);
        return 0;
    }
    if (!rest || v->from) {
        for (int64_t i = 0; i < v->messages.n; i++)
            if (weight[i] != 0)
                one_message(c, w, v, i, weight[i]);
        if (w->nseg > 1)
            qsort(w->seg, (size_t)w->nseg, sizeof(*w->seg), by_begin);
        return 0;
    }
    own = tw_arena_alloc(&w->arena, (size_t)v->messages.n * sizeof(*own));
    for (int64_t i = 0; i < v->messages.n; i++) {
        if (weight[i] == 1)
            continue;
        one_message(c, w, v, i, 2);         /* any weight but 0: the place is what counts */
        if (w->nseg)
            own[n++] = (struct tw_chat_seg){ w->seg[0].begin, w->seg[0].end, weight[i] };
        w->nseg = 0;
    }
    if (n > 1)
        qsort(own, (size_t)n, sizeof(*own), by_begin);
    fill_rest(w, own, n);
    return 0;
}

/* ---- texts that were left out ---- */

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int64_t solid(const char *p, size_t n)
{
    int64_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += !blank(p[i]);
    return k;
}

/* Non-blank bytes of a text, without the think tags that templates take off and write themselves. */
static int64_t solid_text(struct tw_str s)
{
    static const char *const tags[] = { "<think>", "</think>" };
    int64_t k = solid(s.p, s.n);

    for (int i = 0; i < 2; i++)
        for (const char *p = s.p, *end = s.p + s.n; s.n &&
                (p = memmem(p, (size_t)(end - p), tags[i], strlen(tags[i]))) != NULL; p++)
            k -= (int64_t)strlen(tags[i]);
    return k;
}

static int64_t shown(const struct tw_jinja_out *out, int64_t msg, const char *field, bool all)
{
    int64_t n = 0;

    for (int64_t k = 0; k < out->nspan; k++) {
        const struct tw_jinja_span *s = &out->span[k];

        if (s->msg == msg && tw_str_is(s->field, field))
            n += all ? (int64_t)(s->end - s->begin) : solid(out->text.p + s->begin, s->end - s->begin);
    }
    return n;
}

int64_t tw_chat_hidden(const struct tw_jinja_out *out, const struct tw_chat_conv *v)
{
    static const char *const fields[] = { "content", "reasoning_content" };
    int64_t hidden = 0;

    for (int64_t i = 0; i < v->messages.n; i++)
        for (int f = 0; f < 2; f++) {
            const struct tw_json *x = tw_json_get(&v->messages.item[i], fields[f]);

            if (!x || x->type != TW_JSTR || !x->str.n)
                continue;
            if (shown(out, i, fields[f], true) >= (int64_t)x->str.n)
                continue;
            hidden += shown(out, i, fields[f], false) < solid_text(x->str);
        }
    return hidden;
}
