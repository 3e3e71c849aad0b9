/* The head of a README.md takes any bytes; every name and glob it gives lies in the text. */
#include "run/fetch_card.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_card c = {0};
    size_t sum = 0;

    tw_card_read(&c, (struct tw_str){ (const char *)p, n });
    for (int64_t i = 0; i < c.n; i++) {
        const struct tw_card_file *f = &c.file[i];

        if (f->glob.p < (const char *)p || f->glob.p + f->glob.n > (const char *)p + n || !f->glob.n)
            abort();
        for (size_t k = 0; k < f->config.n; k++)
            sum += (unsigned char)f->config.p[k];
        for (size_t k = 0; k < f->split.n; k++)
            sum += (unsigned char)f->split.p[k];
    }
    tw_card_free(&c);
    return sum == (size_t)-1;
}
