/* Any bytes as the body of a request in OpenAI's form: refused, or works within the limits. The first
 * byte picks chat or completions, and a model folder. */
#include "serve/httpd_priv.h"
#include "serve/oai.h"
#include "serve_check.h"

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static struct tw_srv *server(int folder)
{
    static const char *const dir[] = { "share/models/tiny", "tests/data/chat/plain" };
    static struct tw_limits l = { .V = 256, .window = 128, .max_samples = 16, .max_stop = 4 };
    static const char *name[] = { "tiny", NULL };
    static struct tw_srv s[2];

    for (int i = 0; i < 3 && !s[folder].chat[i]; i++) {
        struct tw_chat_opts o = { .generation_prompt = true, .thinking = (enum tw_tri)(i - 1),
            .add_special = TW_AUTO, .control = TW_AUTO };

        s[folder].chat[i] = tw_chat_open(dir[folder], NULL, &o, NULL);
        must(s[folder].chat[i]);
    }
    s[folder].limits = &l;
    s[folder].name = name;
    s[folder].nname = 1;
    return &s[folder];
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_httpd_state state = { .answered = true };     /* nobody hears the reply */
    struct tw_tenant tenant = { .name = "t" };
    struct tw_req r = { .state = &state };
    struct tw_oai c = { 0 };

    if (!n)
        return 0;
    c.s = server(p[0] >> 1 & 1);
    c.r = &r;
    c.tenant = &tenant;
    c.chat = p[0] & 1;
    r.body = (struct tw_str){ (const char *)p + 1, n - 1 };
    if (!tw_oai_read(&c, &r)) {
        must(c.nprompt > 0 && c.n > 0 && c.n * c.nprompt <= c.s->limits->max_samples);
        for (int64_t i = 0; i < c.nprompt; i++)
            must(c.work[i]->sample.nprompt + c.work[i]->sample.max_tokens <= c.s->limits->window);
    }
    for (int64_t i = 0; i < c.nprompt; i++)
        tw_work_free(c.work[i]);
    tw_arena_free(&c.arena);
    tw_arena_free(&r.arena);
    return 0;
}
