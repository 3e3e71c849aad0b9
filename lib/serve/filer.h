/* filer.h - a thread that writes frozen adapters into their folders, so that the engine's need not: when
 * there are many, or when somebody waits for one; and that waits for the disk. What it holds is given by the
 * engine's thread and taken back by that alone. */
#ifndef TW_FILER_H
#define TW_FILER_H
#include "nn/adapter_out.h"

struct tw_filer;
struct tw_filing;

struct tw_filer *tw_filer_open(void);
/* OUT, which is taken over, is to go to DIR. Waits while too much is held. */
struct tw_filing *tw_filer_add(struct tw_filer *f, struct tw_adapter_out *out, const char *dir);
/* 0 under way; 1 DIR is whole and lasts; -1 it could not be written. WAIT: until it is not 0. */
int tw_filing_state(struct tw_filer *f, const struct tw_filing *g, bool wait);
/* All that is held is written from now on. */
void tw_filer_hurry(struct tw_filer *f);
const struct tw_adapter_out *tw_filing_out(const struct tw_filing *g);
const struct tw_err *tw_filing_error(const struct tw_filing *g);
/* OUT goes to DIR here and now: there it is whole, also when this process is killed, and nobody has waited for
 * the disk. The thread does, afterwards. */
int tw_filer_keep(struct tw_filer *f, const struct tw_adapter_out *out, const char *dir, struct tw_err *err);
/* What is not written yet never will be. */
void tw_filing_free(struct tw_filer *f, struct tw_filing *g);
void tw_filer_close(struct tw_filer *f);        /* nothing is held */

#endif
