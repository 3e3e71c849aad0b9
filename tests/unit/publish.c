/* publish.c - what a trainer of all weights publishes: who opens it has the bits of its passes. On the CPU, and
 * where there is a GPU there too. */
#include <stdlib.h>
#include <unistd.h>
#include "base/io.h"
#include "base/rng.h"
#include "nn/model.h"
#include "test.h"

static struct tw_dev *dev;

/* Masters full of numbers that BF16 has not, some of them in the middle of two that it has. */
static void scramble(struct tw_model *m)
{
    const struct tw_params *p = tw_model_params(m);

    for (int64_t i = 0; i < p->n; i++) {
        const struct tw_param *q = &p->p[i];
        float *x = tw_xreallocarray(NULL, (size_t)q->n, sizeof *x);
        uint16_t *hi = tw_xcalloc((size_t)q->n, 2), *low = tw_xcalloc((size_t)q->n, 2);

        for (int64_t k = 0; k < q->n; k++) {
            x[k] = 0.05f * (float)tw_rand_normal((uint64_t)i, 7, (uint64_t)k);
            hi[k] = tw_f32_to_bf16(x[k]);
            low[k] = (uint16_t)(k % 3 ? k * 31 : 0x8000);
        }
        if (q->w.dtype == TW_F32) {
            tw_ops(dev)->put(dev, q->w.data, x, (size_t)q->n * 4);
        } else {
            tw_ops(dev)->put(dev, q->w.data, hi, (size_t)q->n * 2);
            tw_ops(dev)->put(dev, q->w.low, low, (size_t)q->n * 2);
        }
        free(x);
        free(hi);
        free(low);
    }
    tw_params_updated(dev, p);
}

static void logps(struct tw_model *m, float *out)
{
    int32_t token[40];
    struct tw_seq s = { .token = token, .n = 40 };
    struct tw_row row[39];
    struct tw_err err = { 0 };

    for (int i = 0; i < 40; i++)
        token[i] = 3 + i * i % 60;
    for (int i = 0; i < 39; i++)
        row[i] = (struct tw_row){ .at = i, .target = token[i + 1], .temp = 1 };
    CHECK(!tw_model_run(m, &s, 1, row, 39, 0, NULL, NULL, &err));
    CHECK_STR(err.msg, "");
    for (int i = 0; i < 39; i++)
        out[i] = row[i].logp;
}

static void what_is_published_is_what_is_trained(void)
{
    struct tw_model_opts o = { .dtype = TW_BF16, .train = true };
    char dir[] = "/tmp/tw-publish-XXXXXX", *file;
    float a[39], b[39];
    struct tw_err err = { 0 };
    struct tw_model *m = tw_model_open("tests/data/models/qwen3", dev, &o, &err), *k;

    CHECK_STR(err.msg, "");
    scramble(m);
    logps(m, a);
    CHECK(mkdtemp(dir) != NULL);
    CHECK(!tw_model_publish(m, dir, &err));
    o.train = false;
    k = tw_model_open(dir, dev, &o, &err);
    CHECK_STR(err.msg, "");
    logps(k, b);
    CHECK(!memcmp(a, b, sizeof a));
    tw_model_close(m);
    tw_model_close(k);
    for (int i = 0; i < 2; i++) {
        file = tw_path_join(dir, i ? "config.json" : "model.safetensors");
        CHECK(!remove(file));
        free(file);
    }
    CHECK(!remove(dir));
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_dev_open("cpu", 0, &err);
    RUN(what_is_published_is_what_is_trained);
    tw_dev_close(dev);
    dev = tw_dev_open("cuda", 0, &err);
    if (dev)
        RUN(what_is_published_is_what_is_trained);
    tw_dev_close(dev);
    return test_end();
}
