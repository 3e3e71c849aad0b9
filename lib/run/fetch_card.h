/* fetch_card.h - what a data set's README.md says of its files */
#ifndef TW_FETCH_CARD_H
#define TW_FETCH_CARD_H
#include "base/mem.h"
#include <stdint.h>

struct tw_card_file {
    struct tw_str config, split, glob;  /* borrow the text */
    bool is_default;
};
struct tw_card {
    struct tw_card_file *file;
    int64_t n, cap;
};
/* Reads the front matter of README, if it has any; C starts empty. What is not understood is left
 * out: file names then decide. */
void tw_card_read(struct tw_card *c, struct tw_str readme);
void tw_card_free(struct tw_card *c);

#endif
