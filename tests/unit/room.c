/* room.c - room for adapters beside the weights, as the counting device of a GPU has it: who gets how much,
 * and what is planned for it */
#include <stdlib.h>
#include "nn/model.h"
#include "serve/worker_priv.h"
#include "test.h"

#define MODEL "tests/data/models/qwen3"

static struct tw_dev *dev;              /* takes adapters into products, or so it says */

static void wide(struct tw_dev *d, struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    abort();                            /* nothing is run here */
}

static void the_rule(void)
{
    static const int64_t want[][2] = { { 1, 64 }, { 8, 64 }, { 9, 128 }, { 16, 128 }, { 64, 128 }, { 512, 128 } };

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct tw_worker k = { .o.max_rank = want[i][0], .dtype = TW_BF16 };
        struct tw_model_opts o = tw_worker_base(&k);

        CHECK_INT(o.lora_room, want[i][1]);
        CHECK(o.dtype == TW_BF16 && !o.train);
    }
}

/* A pass over 96 tokens with an adapter of rank R, where the base has ROOM. */
static struct tw_plan plan(enum tw_dtype t, bool train, int64_t room, int64_t r)
{
    struct tw_err err = { 0 };
    struct tw_dev *d = tw_count_open(dev, &err);
    struct tw_model *m = tw_model_open(MODEL, d, &(struct tw_model_opts){ .dtype = t, .train = train,
            .lora_room = room }, &err);
    struct tw_adapter *a = tw_adapter_new(m, &(struct tw_lora_opts){ .r = r, .alpha = 32 }, 0, true, &err);
    struct tw_plan p = { 0 };

    CHECK(!tw_model_plan(m, a, 96, 1, 96, TW_BACKWARD, &p, &err));
    CHECK_STR(err.msg, "");
    tw_adapter_close(a);
    tw_model_close(m);
    tw_dev_close(d);
    return p;
}

static void room_is_counted(void)
{
    struct tw_plan none = plan(TW_BF16, false, 0, 8), some = plan(TW_BF16, false, 64, 8);
    struct tw_plan most = plan(TW_BF16, false, 128, 8);
    size_t up = ((64 + 384) * (32 + 384) - 64 * 32) * 2;    /* bytes of room of one such product */

    CHECK(some.weights > none.weights && most.weights > some.weights && most.weights > none.weights + 4 * up);
    CHECK(some.activations > none.activations && most.activations > some.activations);
    CHECK_INT(most.flops_step, none.flops_step);
    CHECK_INT(most.adapters, none.adapters);
    /* where it cannot be, or could not be used, there is none */
    CHECK_INT(plan(TW_BF16, false, 129, 8).weights, none.weights);
    CHECK_INT(plan(TW_F32, false, 128, 8).weights, plan(TW_F32, false, 0, 8).weights);
    CHECK_INT(plan(TW_BF16, true, 128, 8).weights, plan(TW_BF16, true, 0, 8).weights);
}

/* Other tenants may fill the room in a pass whose own adapter is small; one that is too large has none of it. */
static void a_pass_is_planned_with_all_of_it(void)
{
    size_t small = plan(TW_BF16, false, 128, 8).activations, large = plan(TW_BF16, false, 128, 64).activations;

    CHECK_INT(small, large);
    CHECK(plan(TW_BF16, false, 128, 65).activations < large);
    CHECK_INT(plan(TW_BF16, false, 128, 65).activations, plan(TW_BF16, false, 0, 65).activations);
}

int main(void)
{
    struct tw_err err = { 0 };
    struct tw_ops ops;

    dev = tw_cpu_open(1, "auto", &err);
    CHECK_STR(err.msg, "");
    ops = *tw_ops(dev);
    ops.lora_wide = wide;
    ops.low_act = true;
    ops.low_in = false;
    ((struct tw_dev_head *)dev)->ops = &ops;
    RUN(the_rule);
    RUN(room_is_counted);
    RUN(a_pass_is_planned_with_all_of_it);
    tw_dev_close(dev);
    return test_end();
}
