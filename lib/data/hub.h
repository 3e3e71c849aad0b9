/* hub.h - where models come from. */
#ifndef TW_HUB_H
#define TW_HUB_H
#include "base/err.h"

/* MODEL as users write it (a folder, a RUN with `latest`, hf://ORG/NAME[@REV], ms://ORG/NAME[@REV],
 * "tiny") to a folder that holds config.json. Downloads into the cache when it must. Allocated. */
char *tw_model_dir(const char *model, struct tw_err *err);
/* An adapter: a folder with adapter_config.json, or a RUN whose `latest` holds one. Allocated. */
char *tw_adapter_dir(const char *adapter, struct tw_err *err);

#endif
