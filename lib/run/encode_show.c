/* encode_show.c - samples for people: decoded text, the trained spans, lengths. */
#include "run/encode_priv.h"

#include <stdlib.h>

static void put_text(const struct tw_enc *e, struct tw_jw *w, const char *key,
        const struct tw_tokens *t)
{
    struct tw_buf text = {0};

    tw_tok_decode(tw_chat_tok(e->chat), t->token, t->n, false, &text);
    if (key)
        tw_jw_key(w, key);
    tw_jw_str(w, tw_buf_str(&text));
    tw_buf_free(&text);
}

static void pass_extra(struct tw_jw *w, struct tw_str extra, struct tw_arena *a)
{
    struct tw_err ignored = {0};
    struct tw_json *j = extra.n > 2 ? tw_json_parse(a, extra, &ignored) : NULL;

    for (int64_t i = 0; j && i < j->n; i++)
        if (!tw_str_is(j->item[i].key, "text")) {
            tw_jw_key_n(w, j->item[i].key);
            tw_jw_value(w, &j->item[i]);
        }
}

void tw_enc_decode(const struct tw_enc *e, struct tw_enc_slot *s, const struct tw_sample *x)
{
    bool pair = x->kind == TW_REC_PREFERENCE, group = x->kind == TW_REC_GROUP;

    for (int64_t i = 0; i < x->nseq; i += tw_enc_together(x)) {
        struct tw_jw w;

        tw_jw_init(&w, &s->out);
        tw_jw_obj(&w);
        put_text(e, &w, pair ? "chosen" : group ? "anchor" : "text", &x->seq[i]);
        if (pair || group)
            put_text(e, &w, pair ? "rejected" : "positive", &x->seq[i + 1]);
        if (group && x->nseq > 2) {
            tw_jw_key(&w, "negatives");
            tw_jw_arr(&w);
            for (int64_t k = 2; k < x->nseq; k++)
                put_text(e, &w, NULL, &x->seq[k]);
            tw_jw_arr_end(&w);
        }
        pass_extra(&w, s->extra, &s->a);
        tw_jw_obj_end(&w);
        tw_buf_putc(&s->out, '\n');
    }
}

void tw_enc_mask(const struct tw_enc *e, struct tw_enc_slot *s, const struct tw_sample *x)
{
    for (int64_t i = 0; i < x->nseq; i++) {
        const struct tw_tokens *t = &x->seq[i];

        for (int64_t a = 0, b; a < t->n; a = b) {
            bool on = (a || x->kind == TW_REC_GROUP) && t->weight[a] != 0;

            for (b = a + 1; b < t->n && (t->weight[b] != 0) == on; b++)
                ;
            if (on)
                tw_buf_puts(&s->out, e->colour ? "\033[30;42m" : "[");
            tw_tok_decode(tw_chat_tok(e->chat), t->token + a, b - a, false, &s->out);
            if (on)
                tw_buf_puts(&s->out, e->colour ? "\033[0m" : "]");
        }
        tw_buf_puts(&s->out, "\n\n");
    }
}

/* Lengths are counted one by one up to this, then by powers of two. */
enum { EXACT = 1 << 20 };

struct tw_enc_stats {
    int64_t *len;                   /* EXACT counts */
    int64_t big[64];
    int64_t n, tokens, supervised, min, max;
};

struct tw_enc_stats *tw_enc_stats_new(void)
{
    struct tw_enc_stats *st = tw_xcalloc(1, sizeof(*st));

    st->len = tw_xcalloc(EXACT, sizeof(*st->len));
    st->min = INT64_MAX;
    return st;
}

void tw_enc_stats_free(struct tw_enc_stats *st)
{
    if (!st)
        return;
    free(st->len);
    free(st);
}

void tw_enc_stats_add(struct tw_enc_stats *st, const struct tw_sample *x)
{
    for (int64_t i = 0; i < x->nseq; i++) {
        int64_t n = x->seq[i].n;

        if (n < EXACT)
            st->len[n]++;
        else
            st->big[63 - __builtin_clzll((unsigned long long)n)]++;
        st->n++;
        st->tokens += n;
        st->supervised += x->seq[i].supervised;
        st->min = n < st->min ? n : st->min;
        st->max = n > st->max ? n : st->max;
    }
}

static int64_t percentile(const struct tw_enc_stats *st, int p)
{
    int64_t rank = (st->n * p + 99) / 100, seen = 0;

    for (int64_t i = 0; i < EXACT; i++)
        if ((seen += st->len[i]) >= rank)
            return i;
    for (int i = 20; i < 63; i++)
        if ((seen += st->big[i]) >= rank)
            return (int64_t)2 << i;
    return st->max;
}

/* {"64": N, "128": N, ..}: how many sequences are no longer than that, and longer than the one before;
 * powers of two, those that there are. */
static void put_histogram(const struct tw_enc_stats *st, struct tw_jw *w)
{
    tw_jw_key(w, "histogram");
    tw_jw_obj(w);
    for (int k = 0; k < 62; k++) {
        int64_t n = 0, first = k ? ((int64_t)1 << (k - 1)) + 1 : 0, last = (int64_t)1 << k;
        char name[24];

        for (int64_t i = first; i <= last && i < EXACT; i++)
            n += st->len[i];
        n += k > 20 ? st->big[k - 1] : 0;       /* of these only the power is known */
        if (!n)
            continue;
        snprintf(name, sizeof(name), "%lld", (long long)last);
        tw_jw_key(w, name);
        tw_jw_int(w, n);
    }
    tw_jw_obj_end(w);
}

static void put_lengths(const struct tw_enc_stats *st, struct tw_jw *w)
{
    static const int at[] = { 10, 50, 90, 99 };

    tw_jw_key(w, "length");
    tw_jw_obj(w);
    tw_jw_key(w, "min");
    tw_jw_int(w, st->n ? st->min : 0);
    tw_jw_key(w, "mean");
    tw_jw_num(w, st->n ? (double)(st->tokens * 10 / st->n) / 10 : 0);
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
        char name[8];

        snprintf(name, sizeof(name), "p%d", at[i]);
        tw_jw_key(w, name);
        tw_jw_int(w, st->n ? percentile(st, at[i]) : 0);
    }
    tw_jw_key(w, "max");
    tw_jw_int(w, st->max);
    tw_jw_obj_end(w);
}

void tw_enc_stats_write(const struct tw_enc *e, struct tw_buf *out)
{
    const struct tw_enc_stats *st = e->stats;
    struct tw_jw w;

    tw_jw_init(&w, out);
    tw_jw_obj(&w);
    tw_jw_key(&w, "records");
    tw_jw_int(&w, e->tally.in);
    tw_jw_key(&w, "sequences");
    tw_jw_int(&w, st->n);
    tw_jw_key(&w, "tokens");
    tw_jw_int(&w, st->tokens);
    tw_jw_key(&w, "trained");
    tw_jw_int(&w, st->supervised);
    put_lengths(st, &w);
    put_histogram(st, &w);
    tw_jw_key(&w, "trained_share");
    tw_jw_num(&w, st->tokens ? (double)(st->supervised * 10000 / st->tokens) / 10000 : 0);
    tw_jw_key(&w, "truncated");
    tw_jw_int(&w, e->truncated);
    tw_jw_key(&w, "dropped");
    tw_jw_obj(&w);
    for (int i = 0; i < e->tally.nwhy; i++) {
        tw_jw_key(&w, e->tally.why[i].reason);
        tw_jw_int(&w, e->tally.why[i].n);
    }
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "hidden");
    tw_jw_int(&w, e->hidden);
    tw_jw_key(&w, "control_in_text");
    tw_jw_int(&w, e->blocked);
    tw_jw_obj_end(&w);
    tw_buf_putc(out, '\n');
}
