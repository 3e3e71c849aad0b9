/* hub.h - where models come from. */
#ifndef TW_HUB_H
#define TW_HUB_H
#include "base/err.h"

/* MODEL as users write it (a folder, a RUN with `latest`, hf://ORG/NAME[@REV], ms://ORG/NAME[@REV],
 * "tiny") to a folder that holds config.json or, for what needs no weights, a tokenizer. `latest`
 * is resolved once, so the answer stays the same folder while a trainer goes on. Downloads into
 * the cache when it must, showing progress on a terminal. Allocated; NULL and ERR on failure. */
char *tw_model_dir(const char *model, struct tw_err *err);
/* An adapter: a folder with adapter_config.json, or a RUN whose `latest` holds one. Allocated. */
char *tw_adapter_dir(const char *adapter, struct tw_err *err);

#endif
