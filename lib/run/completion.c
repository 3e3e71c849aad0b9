/* completion.c - one sample of a request as it grows: its tokens, and where its text ends */
#include "run/completion.h"
#include <stdlib.h>

const char *tw_stop_name(enum tw_stop s)
{
    static const char *const name[] = { "none", "stop", "length", "abort", "error" };

    return name[s];
}

void tw_gen_free_out(struct tw_gen *g)
{
    for (int64_t i = 0; g->out && i < g->n; i++) {
        struct tw_completion *c = &g->out[i];

        free(c->token);
        free(c->logp);
        free(c->sampled_logp);
        free(c->top_id);
        free(c->top_logp);
        free(c->experts);
        tw_buf_free(&c->text);
    }
    free(g->out);
    g->out = NULL;
}

void tw_completion_room(struct tw_completion *c)
{
    if (c->n < c->cap)
        return;
    c->cap = c->cap ? 2 * c->cap : 32;
    c->token = tw_xreallocarray(c->token, c->cap, sizeof(*c->token));
    c->logp = tw_xreallocarray(c->logp, c->cap, sizeof(*c->logp));
    if (c->sampled_logp)
        c->sampled_logp = tw_xreallocarray(c->sampled_logp, c->cap, sizeof(float));
    if (c->top_n) {
        c->top_id = tw_xreallocarray(c->top_id, c->cap * c->top_n, sizeof(*c->top_id));
        c->top_logp = tw_xreallocarray(c->top_logp, c->cap * c->top_n, sizeof(float));
    }
}

/* The longest end of text that is a proper beginning of some stop text: it must not be shown yet. */
size_t tw_completion_held(const struct tw_gen *g, struct tw_str text)
{
    size_t hold = 0;

    for (int64_t k = 0; k < g->nstop; k++) {
        size_t len = strlen(g->stop[k]);

        for (size_t n = len - 1 < text.n ? len - 1 : text.n; n > hold; n--)
            if (!memcmp(text.p + text.n - n, g->stop[k], n)) {
                hold = n;
                break;
            }
    }
    return hold;
}

/* Looks for a stop text that ends in what was added behind FROM; cuts the text before the earliest. */
bool tw_completion_stop(struct tw_gen *g, struct tw_completion *c, size_t from)
{
    size_t best = SIZE_MAX;

    for (int64_t k = 0; k < g->nstop; k++) {
        size_t len = strlen(g->stop[k]), start = from >= len ? from - len + 1 : 0;
        const char *at = c->text.n > start
                ? memmem(c->text.p + start, c->text.n - start, g->stop[k], len) : NULL;

        if (at && (size_t)(at - c->text.p) < best) {
            best = at - c->text.p;
            c->stop_text = g->stop[k];
        }
    }
    if (best == SIZE_MAX)
        return false;
    c->text.n = best;
    c->text.p[best] = 0;
    return true;
}
