/* schedule.c - the learning rate of a step */
#include "nn/optim.h"
#include "base/opt.h"
#include <math.h>

int tw_schedule_parse(struct tw_schedule *s, const char *option, const char *text,
        struct tw_err *err)
{
    static const char *const names[] = { "constant", "linear", "cosine" };
    struct tw_set set;

    if (tw_set_parse(&set, option, text, err))
        return -1;
    s->warmup = 0;
    for (int i = 0; i < 3; i++)
        if (tw_str_is(set.name, names[i])) {
            s->kind = (enum tw_schedule_kind)i;
            if (tw_set_int(&set, "warmup", &s->warmup, 0, INT64_C(1) << 40, err) < 0)
                return -1;
            return tw_set_done(&set, err);
        }
    return tw_fail_code(err, TW_EMISUSE, option, 0,
            "unknown schedule '%.*s': known are constant, linear, cosine", (int)set.name.n,
            set.name.p);
}

double tw_schedule_lr(const struct tw_schedule *s, int64_t step)
{
    double rest = (double)(s->total > s->warmup ? s->total - s->warmup : 1), f = 1;

    if (step < s->warmup)
        return s->lr * ((double)step / (double)s->warmup);
    switch (s->kind) {
    case TW_CONSTANT:
        break;
    case TW_LINEAR:
        f = (double)(s->total - step) / rest;
        break;
    case TW_COSINE:
        f = 0.5 * (1 + cos(3.14159265358979323846 * (double)(step - s->warmup) / rest));
        break;
    }
    return s->lr * (f > 0 ? f : 0);
}
