/* Any JSON as a record, through a model folder's tokenizer and template: an error has a text; else ids
 * exist, weights are finite and counted, and sequences keep to the maximum. The first byte picks the
 * folder and the options. */
#include "data/chat.h"
#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static const char *const dir[] = { "share/models/tiny", "tests/data/chat/plain" };

static void must(bool ok)
{
    if (!ok)
        abort();
}

static struct tw_chat *opened(unsigned pick)
{
    static struct tw_chat *all[64];
    struct tw_chat_opts o = { .max_length = pick & 2 ? 24 : 0,
        .truncation = (enum tw_trunc)(pick >> 2 & 3) + 1, .train_on = (enum tw_train_on)(pick >> 4 & 3),
        .thinking = TW_AUTO, .add_special = TW_AUTO, .control = TW_AUTO };

    pick &= 63;
    if (!all[pick])
        all[pick] = tw_chat_open(dir[pick & 1], NULL, &o, NULL);
    must(all[pick]);
    return all[pick];
}

static void check(const struct tw_chat *c, unsigned pick, const struct tw_sample *s)
{
    for (int64_t i = 0; i < s->nseq; i++) {
        const struct tw_tokens *t = &s->seq[i];
        int64_t trained = 0;

        must(t->n >= 0 && (!(pick & 2) || t->n <= 24 || s->kind == TW_REC_TOKENS));
        for (int64_t k = 0; k < t->n; k++) {
            must(t->token[k] >= 0 && isfinite(t->weight[k]));
            must(!tw_chat_tok(c) || tw_tok_has(tw_chat_tok(c), t->token[k]));
            trained += k && t->weight[k] != 0;
        }
        must(trained == t->supervised);
    }
    must(s->nseq || s->dropped);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_arena a = {0};
    struct tw_err err = {0};
    struct tw_sample s = {0};
    struct tw_tokens t = {0};
    struct tw_json *rec = n ? tw_json_parse(&a, (struct tw_str){ (const char *)p + 1, n - 1 }, NULL) : NULL;

    if (rec) {
        struct tw_chat *c = opened(p[0]);

        if (!tw_chat_encode(c, &a, rec, &s, &err))
            check(c, p[0], &s);
        else
            must(err.msg[0]);
        tw_err_clear(&err);
        if (tw_chat_prompt(c, &a, rec, &t, &err))
            must(err.msg[0]);
    }
    tw_arena_free(&a);
    return 0;
}
