/* adapter_out.h - an adapter on its way into a folder: fetched from the device by the thread that owns that,
 * written by any. */
#ifndef TW_ADAPTER_OUT_H
#define TW_ADAPTER_OUT_H
#include "nn/model.h"

struct tw_adapter_out;
/* A's weights as they are now, and what adapter_config.json says. The model outlives it, A need not. */
struct tw_adapter_out *tw_adapter_fetch(const struct tw_adapter *a, const char *base, struct tw_err *err);
/* What tw_adapter_save() does; NOW false: without waiting for the disk. */
int tw_adapter_out_write(const struct tw_adapter_out *o, const char *dir, bool now, struct tw_err *err);
const void *tw_adapter_out_raw(const struct tw_adapter_out *o);     /* for tw_adapter_put() */
size_t tw_adapter_out_bytes(const struct tw_adapter_out *o);
void tw_adapter_out_free(struct tw_adapter_out *o);

#endif
