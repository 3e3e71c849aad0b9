/* avail.h - how much memory this process may still take, and how many open files. */
#ifndef TW_AVAIL_H
#define TW_AVAIL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes left by the machine, by the control groups that hold the process (page cache that can be
 * given up counts as free), and by its own limit; the smallest. SIZE_MAX where nothing is known. */
size_t tw_memory_available(void);
/* Raises the limit of open files to the hard one, though not over 65536; the limit that holds then. */
int64_t tw_files_raise(void);
/* True, with errno set: no more can be opened now. */
bool tw_files_full(void);

#endif
