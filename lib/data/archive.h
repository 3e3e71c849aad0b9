/* archive.h - tar, zip (wheels), and single files packed with gzip, zstd, xz or bzip2. What comes
 * out stays inside the folder it is unpacked to: a member with an unsafe name, a link or a device
 * is an error that names it, and so is a checksum that does not fit. */
#ifndef TW_ARCHIVE_H
#define TW_ARCHIVE_H
#include "base/err.h"
#include "base/mem.h"

/* Whether PATH has a name that is unpacked: .tar .tar.X .tgz .zip .whl .gz .zst .xz .bz2 */
bool tw_archive_is(const char *path);
/* "ARCHIVE!MEMBER": the length of ARCHIVE, and *MEMBER (borrowed); 0: TEXT names no member. */
size_t tw_archive_split(const char *text, const char **member);

struct tw_member {
    struct tw_str name;     /* clean relative path */
    int64_t size;           /* -1: not known before it is read */
    bool is_dir;
};

/* Unpacks PATH to DIR (which exists and is empty): every member, or those for which FN sets *TAKE
 * (initially true; FN may fail). Files are synced. After a failure (bad archives: TW_ECORRUPT) DIR
 * holds what came before it; the caller removes it. */
int tw_archive_unpack(const char *path, const char *dir,
        int (*fn)(void *arg, const struct tw_member *m, bool *take, struct tw_err *err), void *arg,
        struct tw_err *err);

#endif
