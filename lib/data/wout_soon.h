/* wout_soon.h - tw_wout_commit(); NOW false: without waiting for the disk (base/io_soon.h) */
#ifndef TW_WOUT_SOON_H
#define TW_WOUT_SOON_H
#include "data/weights.h"

int tw_wout_commit_when(struct tw_wout *o, bool now, struct tw_err *err);

#endif
