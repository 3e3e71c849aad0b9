/* Any bytes as the JSON body of a request for the engine: refused with a text, or within the limits.
 * The first byte picks the verb and the limits. */
#include "data/chat.h"
#include "serve/read_priv.h"
#include "serve_check.h"

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static const struct tw_tok *tokenizer(void)
{
    static struct tw_chat *chat;
    struct tw_chat_opts o = { .thinking = TW_AUTO, .add_special = TW_AUTO, .control = TW_AUTO };

    if (!chat)
        chat = tw_chat_open("tests/data/chat/plain", NULL, &o, NULL);
    must(chat && tw_chat_tok(chat));
    return tw_chat_tok(chat);
}

/* What is read without a tree is what the tree gives. */
static void both(const struct tw_limits *l, struct tw_str body)
{
    static const char key[] = "forward_backward_input";
    struct tw_work *w = tw_work_new(TW_FORWARD_BACKWARD), *v = tw_work_new(TW_FORWARD_BACKWARD);
    struct tw_arena a = { 0 };
    struct tw_json *j;

    if (tw_read_fb_fast(w, l, body, key)) {
        j = tw_json_parse(&a, body, NULL);
        must(j && !tw_read_fb_json(v, l, j, key, NULL) && !v->refused && v->fb.n == w->fb.n);
        for (int64_t i = 0; i < v->fb.n; i++) {
            const struct tw_datum_in *x = &v->fb.d[i], *y = &w->fb.d[i];

            must(x->n == y->n && x->k == y->k && !memcmp(x->token, y->token, (size_t)x->n * 4));
            must(!memcmp(x->target, y->target, (size_t)(x->n * x->k) * 4) && !x->weight == !y->weight);
            must(!x->weight || !memcmp(x->weight, y->weight, (size_t)(x->n * x->k) * 4));
        }
    }
    tw_work_free(w);
    tw_work_free(v);
    tw_arena_free(&a);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    static const enum tw_verb verb[] = { TW_CREATE, TW_FORWARD_BACKWARD, TW_OPTIM_STEP, TW_SAMPLE };
    struct tw_limits l = { .V = 256, .window = 128, .max_rank = 64, .max_samples = 16, .max_stop = 4 };
    struct tw_err err = { 0 };
    unsigned pick;

    if (!n)
        return 0;
    pick = p[0];
    l.max_tokens = pick & 4 ? 16 : 0;
    l.tok = pick & 8 ? tokenizer() : NULL;
    if (verb[pick & 3] == TW_FORWARD_BACKWARD)
        both(&l, (struct tw_str){ (const char *)p + 1, n - 1 });
    check_work(tw_work_read(verb[pick & 3], &l, false, pick & 16, (struct tw_str){ (const char *)p + 1,
                n - 1 }, &err), &l, &err);
    return 0;
}
