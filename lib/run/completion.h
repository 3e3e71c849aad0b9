/* completion.h - what the sampler does to a struct tw_completion. */
#ifndef TW_COMPLETION_H
#define TW_COMPLETION_H
#include "run/sampler.h"

/* Room for one more token. */
void tw_completion_room(struct tw_completion *c);
/* How many bytes at the end of TEXT are a proper beginning of a stop text and must not be shown yet. */
size_t tw_completion_held(const struct tw_gen *g, struct tw_str text);
/* Looks for a stop text in what was added behind FROM and before it; cuts the text before the earliest. */
bool tw_completion_stop(struct tw_gen *g, struct tw_completion *c, size_t from);

#endif
