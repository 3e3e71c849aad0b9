/* A config.json of any content is read or refused, and what is read has angles. */
#include "nn/config.h"
#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_config c;
    struct tw_err err = { 0 };
    int64_t half;
    float *t;

    if (tw_config_parse(&c, "fuzz", (struct tw_str){ (const char *)p, n }, &err))
        return err.code ? 0 : (abort(), 0);
    half = tw_rope_width(&c) / 2;
    if (half < 1 || c.hd < 2 * half || c.nh % c.nkv || c.L < 1)
        abort();
    t = malloc((size_t)half * 4 * sizeof *t);
    tw_rope_table(&c, 0, 1000, 2, t, t + 2 * half);
    free(t);
    tw_config_free(&c);
    return 0;
}
