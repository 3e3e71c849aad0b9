/* loss.c - the presets of losses, by name */
#include "nn/loss.h"
#include "base/buf.h"
#include "base/opt.h"

static const struct tw_loss presets[] = {
    { .name = "cross_entropy", .form = TW_LOSS_CROSS_ENTROPY },
};

static int unknown(const char *option, struct tw_str name, struct tw_err *err)
{
    struct tw_buf known = { 0 };

    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        tw_buf_printf(&known, "%s%s", i ? ", " : "", presets[i].name);
    tw_fail_code(err, TW_EMISUSE, option, 0, "unknown loss '%.*s': known are %s", (int)name.n,
            name.p, known.p);
    tw_buf_free(&known);
    return -1;
}

int tw_loss_parse(struct tw_loss *l, const char *option, const char *text, struct tw_err *err)
{
    struct tw_set set;

    if (tw_set_parse(&set, option, text, err))
        return -1;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (tw_str_is(set.name, presets[i].name)) {
            *l = presets[i];
            return tw_set_done(&set, err);
        }
    return unknown(option, set.name, err);
}
