/* io.h - files: whole or not at all. */
#ifndef TW_IO_H
#define TW_IO_H
#include "buf.h"
#include "err.h"
#include <stdio.h>
#include <sys/types.h>

/* A file that appears by rename: written without a name, so that no signal leaves anything of it, where
 * the file system can (else beside its final name as ".NAME.tmp-PID"), fsynced, named, renamed, the
 * folder fsynced. tw_out_abort() (also after a failure) removes the temporary. PATH "-"
 * is stdout, and what is no regular file (a device, a pipe, /dev/stdout) is written as it is: no
 * rename, but the same error checks. */
struct tw_out {
    FILE *fp;
    char *path, *tmp;       /* tmp NULL: no rename */
    bool is_stdout, unnamed;
};
int tw_out_open(struct tw_out *o, const char *path, struct tw_err *err);
int tw_out_write(struct tw_out *o, const void *p, size_t n, struct tw_err *err);
int tw_out_commit(struct tw_out *o, struct tw_err *err);
void tw_out_abort(struct tw_out *o);
int tw_write_file(const char *path, const void *p, size_t n, struct tw_err *err); /* all of it */
/* Removes the files ".NAME.tmp-PID" that killed processes left in DIR and DEPTH levels of folders
 * below it. Nobody may be writing there: the caller holds the lock of DIR. */
void tw_out_sweep(const char *dir, int depth);
/* Removes the folders FINAL.tmp-PID whose processes do not live any more. */
void tw_tmp_sweep(const char *final);

/* Reads a whole file or stdin ("-") of at most MAX bytes (0: 1 GiB). B is appended to. */
int tw_read_file(struct tw_buf *b, const char *path, size_t max, struct tw_err *err);

/* A read-only mapping whose size was checked against the file; also takes empty files. */
struct tw_map {
    const unsigned char *p;
    size_t n;
};
int tw_map_open(struct tw_map *m, const char *path, struct tw_err *err);
void tw_map_close(struct tw_map *m);

/* Paths. tw_path_join allocates; tw_path_safe: a plain relative name without "..", leading '/',
 * backslash, NUL or empty component (archive members, shard names, hub file lists). */
char *tw_path_join(const char *dir, const char *name);
bool tw_path_safe(struct tw_str name);
bool tw_is_dir(const char *path);
bool tw_is_file(const char *path);
int tw_mkdirs(const char *path, struct tw_err *err);
int tw_rmtree(const char *path, struct tw_err *err);
int tw_fsync_dir(const char *path, struct tw_err *err);
/* Refuses binary output to a terminal. */
int tw_no_terminal(FILE *fp, const char *what, struct tw_err *err);

/* $TW_SHARE, or share/ beside the executable's folder, or the install prefix. Borrowed. NULL: none
 * found. tw_cache_dir: $TW_CACHE or ~/.cache/twinkle (created on use by the caller). */
const char *tw_share_dir(void);
const char *tw_cache_dir(void);

/* SHA-256 (FIPS 180-4), streamed. */
struct tw_sha256 {
    uint32_t h[8];
    uint64_t n;
    bool ni;                /* the processor does it */
    unsigned char block[64];
};
void tw_sha256_init(struct tw_sha256 *s);
void tw_sha256_add(struct tw_sha256 *s, const void *p, size_t n);
void tw_sha256_end(struct tw_sha256 *s, unsigned char out[32]);
void tw_hex(char *out, const unsigned char *p, size_t n);   /* 2n + 1 bytes */
uint32_t tw_crc32c(uint32_t crc, const void *p, size_t n);  /* Castagnoli; start with 0 */

#endif
