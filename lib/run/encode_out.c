/* encode_out.c - samples as JSON lines and as records of a shard. */
#include "run/encode_priv.h"

#include <math.h>
#include <stdlib.h>

static void put_int(struct tw_buf *b, int64_t v)
{
    char t[24], *p = t + sizeof(t);
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do {
        *--p = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0)
        *--p = '-';
    tw_buf_add(b, p, (size_t)(t + sizeof(t) - p));
}

static bool all_ones(const float *w, int64_t n)
{
    for (int64_t i = 1; w && i < n; i++)
        if (w[i] != 1)
            return false;
    return true;
}

/* "tokens":[..],"weights":[..] without braces; weights that are all 1 are left out. */
void tw_enc_tokens(struct tw_buf *b, const int32_t *token, const float *weight, int64_t n)
{
    tw_buf_puts(b, "\"tokens\":[");
    for (int64_t i = 0; i < n; i++) {
        if (i)
            tw_buf_putc(b, ',');
        put_int(b, token[i]);
    }
    tw_buf_putc(b, ']');
    if (all_ones(weight, n))
        return;
    tw_buf_puts(b, ",\"weights\":[");
    for (int64_t i = 0; i < n; i++) {
        if (i)
            tw_buf_putc(b, ',');
        if (weight[i] == truncf(weight[i]) && fabsf(weight[i]) < 1e6f)
            put_int(b, (int64_t)weight[i]);
        else
            tw_buf_printf(b, "%.9g", (double)weight[i]);
    }
    tw_buf_putc(b, ']');
}

static void put_extra(struct tw_buf *b, struct tw_str extra)
{
    if (extra.n > 2) {
        tw_buf_putc(b, ',');
        tw_buf_add(b, extra.p + 1, extra.n - 2);
    }
}

/* The keys that encoding uses up, by kind of record; all others pass through. */
static bool used_up(enum tw_rec_kind kind, struct tw_str key)
{
    static const char *const of[][8] = {
        [TW_REC_CHAT] = { "messages", "tools", "documents", "system" },
        [TW_REC_PREFERENCE] = { "messages", "tools", "documents", "system", "chosen", "rejected" },
        [TW_REC_TEXT] = { "text" },
        [TW_REC_PROMPT] = { "prompt", "completion" },
        [TW_REC_TOKENS] = { "tokens", "weights", "start" },
        [TW_REC_ROLLOUT] = { "tokens", "weights" },
        [TW_REC_GROUP] = { "anchor", "positive", "negative", "negatives", "system" },
    };

    for (int i = 0; i < 8 && of[kind][i]; i++)
        if (tw_str_is(key, of[kind][i]))
            return true;
    return false;
}

void tw_enc_extra(struct tw_enc_slot *s, enum tw_rec_kind kind)
{
    struct tw_buf b = {0};
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    for (int64_t i = 0; s->json && i < s->json->n; i++)
        if (!used_up(kind, s->json->item[i].key)) {
            tw_jw_key_n(&w, s->json->item[i].key);
            tw_jw_value(&w, &s->json->item[i]);
        }
    tw_jw_obj_end(&w);
    s->extra = tw_arena_str(&s->a, tw_buf_str(&b));
    tw_buf_free(&b);
}

int64_t tw_enc_together(const struct tw_sample *x)
{
    return x->kind == TW_REC_PREFERENCE ? 2 : x->kind == TW_REC_GROUP ? x->nseq : 1;
}

static void put_group(struct tw_buf *b, const struct tw_sample *x)
{
    for (int64_t i = 0; i < x->nseq; i++) {
        tw_buf_puts(b, !i ? "{\"anchor\":{" : i == 1 ? ",\"positive\":{" : i == 2 ? ",\"negatives\":[{" : ",{");
        tw_enc_tokens(b, x->seq[i].token, x->seq[i].weight, x->seq[i].n);
        tw_buf_putc(b, '}');
    }
    if (x->nseq > 2)
        tw_buf_putc(b, ']');
}

/* One line for sequence SEQ of X, and what stands together with it. */
void tw_enc_line(struct tw_enc_slot *s, const struct tw_sample *x, int64_t seq)
{
    struct tw_buf *b = &s->out;

    if (x->kind == TW_REC_PREFERENCE) {
        tw_buf_puts(b, "{\"chosen\":{");
        tw_enc_tokens(b, x->seq[0].token, x->seq[0].weight, x->seq[0].n);
        tw_buf_puts(b, "},\"rejected\":{");
        tw_enc_tokens(b, x->seq[1].token, x->seq[1].weight, x->seq[1].n);
        tw_buf_putc(b, '}');
    } else if (x->kind == TW_REC_GROUP) {
        put_group(b, x);
    } else if (x->kind == TW_REC_ROLLOUT && !x->truncated && s->extra.n > 2) {
        tw_buf_puts(b, "{");
        tw_buf_add(b, s->extra.p + 1, s->extra.n - 2);
        tw_buf_puts(b, "}\n");
        return;
    } else {
        tw_buf_putc(b, '{');
        tw_enc_tokens(b, x->seq[seq].token, x->seq[seq].weight, x->seq[seq].n);
    }
    put_extra(b, s->extra);
    tw_buf_puts(b, "}\n");
}

int tw_enc_put_shard(struct tw_enc *e, const struct tw_enc_slot *s, const struct tw_sample *x,
        struct tw_err *err)
{
    int64_t each = tw_enc_together(x);
    const int32_t **token = tw_xreallocarray(NULL, (size_t)each + 1, sizeof(*token));
    const float **weight = tw_xreallocarray(NULL, (size_t)each + 1, sizeof(*weight));
    int64_t *n = tw_xreallocarray(NULL, (size_t)each + 1, sizeof(*n));
    int ret = 0;

    for (int64_t i = 0; i < x->nseq && !ret; i += each) {
        struct tw_shard_rec r = { .kind = (int)x->kind, .nseq = each, .token = token,
            .weight = weight, .n = n, .prompt_n = x->prompt_n, .extra = s->extra };

        for (int64_t k = 0; k < r.nseq; k++) {
            const struct tw_tokens *t = &x->seq[i + k];

            token[k] = t->token;
            weight[k] = all_ones(t->weight, t->n) ? NULL : t->weight;
            n[k] = t->n;
        }
        if (r.prompt_n > n[0])
            r.prompt_n = n[0];
        ret = tw_shard_put(e->shard, &r, err);
    }
    free(token);
    free(weight);
    free(n);
    return ret;
}

int tw_enc_put_row(struct tw_enc *e, const int32_t *token, const float *weight, int64_t n,
        const int64_t *start, int64_t nstart, struct tw_err *err)
{
    struct tw_shard_rec r = { .kind = TW_REC_TOKENS, .nseq = 1, .token = &token, .weight = &weight,
        .n = &n, .start = start, .nstart = nstart };
    struct tw_buf b = {0};
    int ret;

    if (e->shard)
        return tw_shard_put(e->shard, &r, err);
    tw_buf_putc(&b, '{');
    tw_enc_tokens(&b, token, weight, n);
    tw_buf_puts(&b, ",\"start\":[");
    for (int64_t i = 0; i < nstart; i++) {
        if (i)
            tw_buf_putc(&b, ',');
        put_int(&b, start[i]);
    }
    tw_buf_puts(&b, "]}\n");
    ret = tw_out_write(&e->out, b.p, b.n, err);
    tw_buf_free(&b);
    return ret;
}
