/* Any bytes as the JSON body of a request for the engine: refused with a text, or within the limits.
 * The first byte picks the verb and the limits. */
#include "data/chat.h"
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
    check_work(tw_work_read(verb[pick & 3], &l, false, pick & 16, (struct tw_str){ (const char *)p + 1,
                n - 1 }, &err), &l, &err);
    return 0;
}
