/* encode.c - conversations a second through template, tokenizer and mask, on one core:
 * bench/encode MODEL CHAT.jsonl [ROUNDS]. Prints a line a round: all of it, and the rendering alone. */
#include "base/jsonl.h"
#include "data/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Processor time: a neighbour that takes the core does not count. */
static double used(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double encode_all(const struct tw_chat *c, struct tw_json **rec, int64_t n, int64_t *tokens,
        struct tw_err *err)
{
    struct tw_arena a = {0};
    double t0 = used();

    *tokens = 0;
    for (int64_t i = 0; i < n; i++) {
        struct tw_sample s;

        tw_arena_reset(&a);
        if (tw_chat_encode(c, &a, rec[i], &s, err))
            break;
        for (int64_t k = 0; k < s.nseq; k++)
            *tokens += s.seq[k].n;
    }
    t0 = used() - t0;
    tw_arena_free(&a);
    return t0;
}

static double render_all(const struct tw_chat *c, struct tw_json **rec, int64_t n,
        struct tw_err *err)
{
    struct tw_jinja_out out = {0};
    struct tw_arena a = {0};
    double t0 = used();

    for (int64_t i = 0; i < n; i++) {
        tw_arena_reset(&a);
        if (tw_chat_render(c, &a, rec[i], &out, err))
            break;
    }
    t0 = used() - t0;
    tw_jinja_out_free(&out);
    tw_arena_free(&a);
    return t0;
}

int main(int argc, char **argv)
{
    struct tw_chat_opts o = { .thinking = TW_AUTO, .control = TW_AUTO, .add_special = TW_AUTO };
    struct tw_err err = {0};
    struct tw_arena keep = {0};
    struct tw_chat *c = argc > 2 ? tw_chat_open(argv[1], NULL, &o, &err) : NULL;
    struct tw_jsonl *in = c ? tw_jsonl_open(argv + 2, 1, &err) : NULL;
    struct tw_json **rec = NULL;
    struct tw_rec r;
    int64_t n = 0, tokens = 0;

    if (!in) {
        fprintf(stderr, "usage: encode MODEL CHAT.jsonl [ROUNDS]  %s\n", err.msg);
        return 2;
    }
    while (tw_jsonl_next(in, &r, &err) > 0) {
        rec = tw_xreallocarray(rec, (size_t)n + 1, sizeof(*rec));
        rec[n++] = tw_json_parse(&keep, tw_arena_str(&keep, r.text), &err);
    }
    tw_jsonl_close(in);
    for (long i = argc > 3 ? strtol(argv[3], NULL, 10) : 7; i > 0 && !err.code; i--) {
        double all = encode_all(c, rec, n, &tokens, &err), tpl = render_all(c, rec, n, &err);

        printf("%.0f conversations/s, %.1f M tokens/s; rendered alone %.0f/s\n", (double)n / all,
                (double)tokens / all / 1e6, (double)n / tpl);
    }
    if (err.code)
        fprintf(stderr, "%s\n", err.msg);
    free(rec);
    tw_arena_free(&keep);
    tw_chat_close(c);
    return err.code != 0;
}
