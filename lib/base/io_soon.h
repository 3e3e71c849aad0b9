/* io_soon.h - files that are whole for everybody at once, also when the process is killed, and on the disk when
 * the system comes to it: for who makes sure of the disk later, or need not. */
#ifndef TW_IO_SOON_H
#define TW_IO_SOON_H
#include "base/io.h"

/* tw_out_commit(), tw_write_file(); NOW false: without waiting for the disk. */
int tw_out_commit_when(struct tw_out *o, bool now, struct tw_err *err);
int tw_write_file_when(const char *path, const void *p, size_t n, bool now, struct tw_err *err);

#endif
