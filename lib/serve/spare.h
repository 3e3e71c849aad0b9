/* spare.h - buffers of long bodies that are used again: to find new pages for one takes longer than to fill
 * it. What nobody took for some seconds goes back to the system. */
#ifndef TW_SERVE_SPARE_H
#define TW_SERVE_SPARE_H
#include "base/buf.h"

struct tw_spare;
struct tw_spare *tw_spare_new(void);                    /* one reference */
struct tw_spare *tw_spare_ref(struct tw_spare *s);
void tw_spare_unref(struct tw_spare *s);
/* B, which is empty and has no memory yet, gets room for N bytes. Any thread, as all here. */
void tw_spare_take(struct tw_spare *s, struct tw_buf *b, size_t n);
/* B's memory, for the next one; B is empty then. */
void tw_spare_give(struct tw_spare *s, struct tw_buf *b);
void tw_spare_sweep(struct tw_spare *s, double now);    /* tw_now() */

#endif
