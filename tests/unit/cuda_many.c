/* cuda_many.c - updates of many optimisers in one launch: on the GPU they are, to the bit, those of a launch
 * each. Skipped where there is no GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "help_cuda.h"
#include "test.h"

enum { ITEMS = 7 };
static const int64_t size[ITEMS] = { 1, 5, 511, 513, 1024, 100003, 40 };

static bool same_there(const float *a, const float *b, int64_t n)
{
    float *x = tw_xcalloc((size_t)n, sizeof *x), *y = tw_xcalloc((size_t)n, sizeof *y);
    bool same;

    G(get, x, a, (size_t)n * sizeof *x), G(get, y, b, (size_t)n * sizeof *y);
    same = !memcmp(x, y, (size_t)n * sizeof *x);
    free(x), free(y);
    return same;
}

static float *copy_of(const float *x, int64_t n)
{
    return put(gpu, x, (size_t)n * sizeof *x);
}

static void many_are_each_alone(void)
{
    struct tw_adamw_item item[ITEMS];
    float *w[ITEMS], *m[ITEMS], *v[ITEMS], *zero = tw_xcalloc(100003, sizeof *zero);
    double *sum = tw_ops(gpu)->pin(gpu, ITEMS * sizeof *sum), one[ITEMS], *s = put(gpu, NULL, sizeof *s);
    float *sc = put(gpu, NULL, sizeof *sc);

    for (int i = 0; i < ITEMS; i++) {
        float *a = numbers(size[i], 1), *g = numbers(size[i], 0.5f);

        w[i] = copy_of(a, size[i]), m[i] = copy_of(zero, size[i]), v[i] = copy_of(zero, size[i]);
        item[i] = (struct tw_adamw_item){ .w = copy_of(a, size[i]), .g = copy_of(g, size[i]),
            .m = copy_of(zero, size[i]), .v = copy_of(zero, size[i]), .n = size[i], .sum = &sum[i], .max = i % 2 ? 0.25f : 0,
            .by = i == 3 ? 8 : 0, .p = { 1e-2f * (float)(i + 1), 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f } };
        free(a), free(g);
    }
    for (int i = 0; i < ITEMS; i++) {
        G(zero, s, sizeof *s);
        G(sumsq, s, item[i].g, size[i]);
        G(get, &one[i], s, sizeof *s);
        G(clip, sc, s, item[i].max, i == 3 ? 8 : 1);
        G(adamw, w[i], item[i].g, m[i], v[i], size[i], &item[i].p, sc);
    }
    tw_ops(gpu)->optim->adamw_many(gpu, item, ITEMS);
    healthy();
    for (int i = 0; i < ITEMS; i++) {
        float *g = copy_of(zero, size[i]);

        CHECK(one[i] == sum[i] && sum[i] > 0);
        CHECK(same_there(w[i], item[i].w, size[i]));
        CHECK(same_there(m[i], item[i].m, size[i]));
        CHECK(same_there(v[i], item[i].v, size[i]));
        CHECK(same_there(g, item[i].g, size[i]));
        G(free, g), G(free, w[i]), G(free, m[i]), G(free, v[i]);
        G(free, item[i].w), G(free, item[i].g), G(free, item[i].m), G(free, item[i].v);
    }
    G(free, s), G(free, sc), G(unpin, sum);
    free(zero);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    if (tw_ops(gpu)->optim && tw_ops(gpu)->optim->adamw_many)
        RUN(many_are_each_alone);
    help_cuda_close();
    return test_end();
}
