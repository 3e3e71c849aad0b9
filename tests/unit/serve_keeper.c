/* serve_keeper.c - states of models on their way into their files */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/io.h"
#include "base/mem.h"
#include "serve/keeper.h"
#include "test.h"

static char dir[] = "/tmp/tw-keeper-XXXXXX";
static int64_t came[64];
static _Atomic int ncame;

static int done(void *arg, const char *model, int64_t seq, const char *path)
{
    CHECK_STR(model, "m");
    CHECK(arg == came && !access(path, F_OK));
    came[ncame] = seq;
    ncame++;
    return 0;
}

static char *path_of(int64_t seq)
{
    return tw_xasprintf("%s/%d.state", dir, (int)seq);
}

static struct tw_kept *send(struct tw_keeper *k, int64_t seq, size_t n)
{
    char *path = path_of(seq), *room = tw_keeper_room(k, n);
    struct tw_kept *e;

    CHECK(room != NULL);
    memset(room, (int)seq, n);
    e = tw_keeper_add(k, room, n, "m", seq, path);
    free(path);
    return e;
}

/* Files hold what was sent and its checksum, in the order in which they were sent. */
static void files_are_whole(void)
{
    enum { N = 20 };
    struct tw_keeper *k = tw_keeper_open(done, came);
    struct tw_kept *e[N];

    ncame = 0;
    for (int i = 0; i < N; i++)
        e[i] = send(k, i, (size_t)i * 1000 + 1);
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)i * 1000 + 1;
        char *path = path_of(i), *want = tw_xcalloc(n, 1);
        struct tw_buf got = { 0 };
        struct tw_err err = { 0 };
        uint32_t crc, was;

        CHECK(!tw_kept_busy(k, e[i], true));
        CHECK(ncame > i && came[i] == i);
        CHECK(!tw_read_file(&got, path, 1 << 20, &err) && got.n == n + sizeof crc);
        memset(want, i, n);
        crc = tw_crc32c(0, want, n);
        memcpy(&was, got.p + n, sizeof was);
        CHECK(!memcmp(got.p, want, n) && was == crc);
        tw_kept_free(k, e[i]);
        unlink(path);
        tw_buf_free(&got);
        free(path), free(want);
    }
    tw_keeper_close(k);
}

/* One that cannot be written is not told of, leaves nothing, and the next ones are. */
static void failures_end_there(void)
{
    struct tw_keeper *k = tw_keeper_open(done, came);
    char *room = tw_keeper_room(k, 10), *path;
    struct tw_kept *bad, *good;

    ncame = 0;
    memset(room, 0, 10);
    bad = tw_keeper_add(k, room, 10, "m", 7, "/tmp/there-is-no-such-folder/7.state");
    good = send(k, 8, 10);
    tw_kept_free(k, bad);
    tw_kept_free(k, good);
    CHECK(ncame == 1 && came[0] == 8);
    unlink(path = path_of(8));
    free(path);
    tw_keeper_close(k);
}

/* What is on its way is bounded; one state always finds room. */
static void memory_is_bounded(void)
{
    struct tw_keeper *k = tw_keeper_open(done, came);
    size_t large = (size_t)3 << 30, half = (size_t)1 << 30;
    char *path = path_of(1), *a = tw_keeper_room(k, large), *b = NULL;

    CHECK(a != NULL && !tw_keeper_room(k, 1));
    tw_kept_free(k, tw_keeper_add(k, a, 1, "m", 1, path));      /* its file is small */
    CHECK((a = tw_keeper_room(k, half)) && (b = tw_keeper_room(k, half)) && !tw_keeper_room(k, half));
    tw_kept_free(k, tw_keeper_add(k, a, 1, "m", 1, path));
    tw_kept_free(k, tw_keeper_add(k, b, 1, "m", 1, path));
    unlink(path);
    free(path);
    tw_keeper_close(k);
}

/* Of what is swapped out the bytes are there until the file has them: what is not written yet need not be,
 * and what cannot be stays. */
static void bytes_come_back(void)
{
    struct tw_keeper *k = tw_keeper_open(NULL, NULL);
    struct tw_kept *held, *next, *bad;
    char *path = path_of(1), *other = path_of(2), *fifo = tw_xasprintf("%s.tmp", path);
    const char *p;
    int fd;

    CHECK(!mkfifo(fifo, 0600));         /* whoever writes there waits for a reader */
    held = send(k, 1, 100);
    next = send(k, 2, 100);
    CHECK((p = tw_kept_take(k, next)) && p[0] == 2 && p[99] == 2);
    CHECK(!tw_kept_busy(k, next, false) && (p = tw_kept_take(k, next)) && p[99] == 2);
    tw_kept_free(k, next);
    CHECK((fd = open(fifo, O_RDONLY)) >= 0);
    CHECK(!tw_kept_take(k, held));
    tw_kept_free(k, held);
    close(fd);
    CHECK(access(other, F_OK) && !access(path, F_OK));
    unlink(path);
    CHECK(!mkdir(path, 0700));          /* and no file can be named so */
    bad = send(k, 1, 100);
    CHECK(!tw_kept_busy(k, bad, true) && (p = tw_kept_take(k, bad)) && p[0] == 1 && p[99] == 1);
    tw_kept_free(k, bad);
    rmdir(path);
    free(path), free(other), free(fifo);
    tw_keeper_close(k);
}

int main(void)
{
    CHECK(mkdtemp(dir) != NULL);
    RUN(files_are_whole);
    RUN(failures_end_there);
    RUN(memory_is_bounded);
    RUN(bytes_come_back);
    rmdir(dir);
    return test_end();
}
