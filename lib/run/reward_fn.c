/* reward_fn.c - one reward by name, without the command around it */
#include "reward_priv.h"

struct tw_reward_fn {
    struct tw_reward r;
};

struct tw_reward_fn *tw_reward_fn_open(const char *text, struct tw_err *err)
{
    struct tw_reward_fn *f = tw_xcalloc(1, sizeof(*f));

    if (!tw_reward_parse(&f->r, text, err))
        return f;
    tw_reward_fn_close(f);
    return NULL;
}

int tw_reward_fn_score(const struct tw_reward_fn *f, const struct tw_json *rec, struct tw_arena *a,
        double *x, char why[160], struct tw_err *err)
{
    struct tw_reward_in in = { .rec = rec, .a = a };
    int got = tw_reward_text(&in);

    if (!got)
        got = f->r.kind->score(&f->r, &in, x, err);
    if (got > 0)
        snprintf(why, 160, "%s", in.why);
    return got;
}

void tw_reward_fn_close(struct tw_reward_fn *f)
{
    if (!f)
        return;
    if (f->r.kind && f->r.kind->close)
        f->r.kind->close(&f->r);
    free(f->r.plain);
    free(f);
}
