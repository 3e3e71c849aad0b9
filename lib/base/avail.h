/* avail.h - how much memory this process may still take. */
#ifndef TW_AVAIL_H
#define TW_AVAIL_H
#include <stddef.h>

/* Bytes left by the machine, by the control groups that hold the process (page cache that can be
 * given up counts as free), and by its own limit; the smallest. SIZE_MAX where nothing is known. */
size_t tw_memory_available(void);

#endif
