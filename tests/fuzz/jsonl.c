/* The record reader takes any file; after an error that it calls skippable it goes on, and it always
 * comes to an end. The first byte sets the limit of a line and whether bad bytes are replaced. */
#include "base/jsonl.h"
#include "base/log.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    char path[64], *paths[1] = { path };
    int fd = memfd_create("fuzz", 0), got;
    struct tw_err err = {0};
    struct tw_rec rec;
    struct tw_jsonl *in;

    tw_log_init("fuzz", TW_QUIET, 0);
    if (!n) {
        close(fd);
        return 0;
    }
    if (fd < 0 || write(fd, p + 1, n - 1) != (ssize_t)(n - 1))
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    in = tw_jsonl_open(paths, 1, &err);
    if (!in)
        abort();
    tw_jsonl_replace(in, p[0] & 1);
    if (p[0] & 2)
        tw_jsonl_limit(in, p[0]);
    for (size_t calls = 0;; calls++) {
        tw_err_clear(&err);
        got = tw_jsonl_next(in, &rec, &err);
        if (calls > n + 8 || (got < 0 && !err.code))
            abort();
        if (got > 0 && (rec.json->type != TW_JOBJ || rec.line < 1 || rec.offset > n))
            abort();
        if (got == 0 || (got < 0 && !tw_jsonl_skippable(in)))
            break;
    }
    tw_jsonl_close(in);
    close(fd);
    return 0;
}
