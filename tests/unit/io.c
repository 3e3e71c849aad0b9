/* Files, paths, digests. */
#include "test.h"
#include "base/io.h"
#include "base/rng.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/tw-io-XXXXXX";
static struct tw_err err;

static char *at(const char *name)
{
    static char path[4][256];
    static int i;

    i = (i + 1) % 4;
    snprintf(path[i], sizeof(path[i]), "%s/%s", dir, name);
    return path[i];
}

static int entries(void)
{
    char *cmd = tw_xasprintf("ls -A %s | wc -l", dir);
    FILE *fp = popen(cmd, "r");
    int n = -1;

    free(cmd);
    if (!fp || fscanf(fp, "%d", &n) != 1)
        n = -1;
    pclose(fp);
    return n;
}

static void a_file_appears_whole(void)
{
    struct tw_out o;
    struct tw_buf b = {0};

    CHECK(!tw_out_open(&o, at("a"), &err));
    CHECK(!tw_out_write(&o, "x\0y", 3, &err));
    CHECK(!tw_is_file(at("a")) && entries() <= 1);         /* none where a file needs no name */
    CHECK(!tw_out_commit(&o, &err));
    CHECK(tw_is_file(at("a")) && entries() == 1);
    CHECK(!tw_read_file(&b, at("a"), 0, &err) && b.n == 3 && !memcmp(b.p, "x\0y", 3));
    CHECK(!tw_out_open(&o, at("a"), &err));
    tw_out_write(&o, "new", 3, &err);
    tw_out_abort(&o);
    tw_buf_clear(&b);
    CHECK(entries() == 1 && !tw_read_file(&b, at("a"), 0, &err) && b.p[0] == 'x');
    CHECK(tw_out_open(&o, at("no/such"), &err) == -1);
    CHECK(strstr(err.msg, "cannot create: No such file"));
    tw_err_clear(&err);
    CHECK(tw_out_open(&o, dir, &err) == -1);
    CHECK_STR(err.msg, "cannot write: this is a folder");
    tw_err_clear(&err);
    CHECK(tw_read_file(&b, at("a"), 2, &err) == -1);
    CHECK_STR(err.msg, "larger than 2 bytes");
    tw_err_clear(&err);
    tw_buf_free(&b);
}

static void a_full_disk_is_an_error(void)
{
    struct tw_out o;

    if (tw_out_open(&o, at("full"), &err))
        return;
    fclose(o.fp);
    o.fp = fopen("/dev/full", "wb");            /* as if the disk were: the buffer fails late */
    CHECK(!tw_out_write(&o, "x", 1, &err));
    CHECK(tw_out_commit(&o, &err) == -1);
    CHECK(strstr(err.msg, "No space left"));
    CHECK(!tw_is_file(at("full")) && entries() == 1);
    tw_err_clear(&err);
}

static void mappings(void)
{
    struct tw_map m;

    CHECK(!tw_write_file(at("m"), "abc", 3, &err) && !tw_map_open(&m, at("m"), &err));
    CHECK(m.n == 3 && !memcmp(m.p, "abc", 3));
    tw_map_close(&m);
    CHECK(!tw_write_file(at("e"), "", 0, &err) && !tw_map_open(&m, at("e"), &err) && m.n == 0);
    tw_map_close(&m);
    CHECK(tw_map_open(&m, dir, &err) == -1);
    CHECK_STR(err.msg, "not a regular file");
    tw_err_clear(&err);
    CHECK(tw_map_open(&m, at("none"), &err) == -1);
    tw_err_clear(&err);
}

static void folders(void)
{
    CHECK(!tw_mkdirs(at("x/y/z"), &err) && tw_is_dir(at("x/y/z")));
    CHECK(!tw_mkdirs(at("x/y/z"), &err));
    CHECK(tw_mkdirs(at("m/y"), &err) == -1);
    CHECK(strstr(err.msg, "Not a directory"));
    tw_err_clear(&err);
    CHECK(!tw_write_file(at("x/y/f"), "1", 1, &err));
    CHECK(!symlink(at("m"), at("x/link")) && !symlink(dir, at("x/y/up")));
    CHECK(!tw_rmtree(at("x"), &err) && !tw_is_dir(at("x")) && tw_is_file(at("m")));
    CHECK(!tw_rmtree(at("x"), &err));
    CHECK(!tw_fsync_dir(dir, &err));
}

/* What a killed process left goes, whatever else is called or lies there stays. */
static void unfinished(void)
{
    static const char *const gone[] = { "u/.a.tmp-1", "u/v/.b.jsonl.tmp-4711", "u/..tmp-.tmp-2" },
        *const stay[] = { "u/a.tmp-1", "u/.a.tmp-", "u/.a.tmp-1x", "u/.tmp-1", "u/.a", "u/v/w/.c.tmp-3", "u/v/.a.tmp1" };

    CHECK(!tw_mkdirs(at("u/v/w"), &err) && !tw_mkdirs(at("u/.d.tmp-1"), &err));
    for (int i = 0; i < 3; i++)
        CHECK(!tw_write_file(at(gone[i]), "1", 1, &err));
    for (int i = 0; i < 7; i++)
        CHECK(!tw_write_file(at(stay[i]), "1", 1, &err));
    CHECK(!symlink(at("u/.a"), at("u/.l.tmp-1")));
    tw_out_sweep(at("none"), 1);
    tw_out_sweep(at("u"), 1);
    for (int i = 0; i < 3; i++)
        CHECK(!tw_is_file(at(gone[i])));
    for (int i = 0; i < 7; i++)
        CHECK(tw_is_file(at(stay[i])));
    CHECK(tw_is_dir(at("u/.d.tmp-1")) && tw_is_file(at("u/.l.tmp-1")));
    CHECK(!tw_rmtree(at("u"), &err));
}

static void paths(void)
{
    static const char *const good[] = { "a", "a/b", "a.b/..c", "...", "a b" };
    static const char *const bad[] = { "", "/a", "..", "../a", "a/../b", "a//b", "a/", ".", "a/.",
        "a\\b" };
    char *p = tw_path_join("a/", "b");

    CHECK_STR(p, "a/b");
    free(p);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK(tw_path_safe(tw_str(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(!tw_path_safe(tw_str(bad[i])));
    CHECK(!tw_path_safe((struct tw_str){ "a\0b", 3 }));
}

static void digests(void)
{
    static const struct { const char *s; int64_t times; const char *hex; } t[] = {
        { "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct tw_sha256 s;
        unsigned char out[32];
        char hex[65];

        tw_sha256_init(&s);
        for (int64_t k = 0; k < t[i].times; k++)
            tw_sha256_add(&s, t[i].s, strlen(t[i].s));
        tw_sha256_end(&s, out);
        tw_hex(hex, out, 32);
        CHECK_STR(hex, t[i].hex);
    }
    unsigned char zero[32] = {0}, up[32];

    for (int i = 0; i < 32; i++)
        up[i] = (unsigned char)i;
    CHECK_INT(tw_crc32c(0, "123456789", 9), 0xE3069283u);       /* vectors of RFC 3720 */
    CHECK_INT(tw_crc32c(0, zero, 32), 0x8A9136AAu);
    CHECK_INT(tw_crc32c(0, up, 32), 0x46DD794Eu);
    CHECK_INT(tw_crc32c(tw_crc32c(0, up, 5), up + 5, 27), 0x46DD794Eu);
}

/* What is long is summed in thirds: to the same as byte after byte. */
static void long_crc(void)
{
    enum { N = 70001 };
    static unsigned char x[N];
    uint32_t crc = 7;

    for (int i = 0; i < N; i++)
        x[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int n = 1; n <= N; n++) {
        crc = tw_crc32c(crc, x + n - 1, 1);
        if ((n > 4090 && n < 4130) || n % 7919 == 0 || n == N)
            CHECK_INT(tw_crc32c(7, x, (size_t)n), crc);
    }
}

static void share_and_cache(void)
{
    setenv("TW_SHARE", "/x/share", 1);
    setenv("TW_CACHE", "/x/cache", 1);
    CHECK_STR(tw_share_dir(), "/x/share");
    CHECK_STR(tw_cache_dir(), "/x/cache");
    unsetenv("TW_CACHE");
    setenv("HOME", "/x/home", 1);
    CHECK_STR(tw_cache_dir(), "/x/home/.cache/twinkle");
}

/* As a command, for tests/t0004-whole.sh: writes 300 kB to PATH in pieces. */
static int write_as_command(const char *path)
{
    struct tw_out o;
    char piece[1000];
    int ret = tw_out_open(&o, path, &err);

    memset(piece, 'n', sizeof(piece));
    for (int i = 0; i < 300 && !ret; i++)
        ret = tw_out_write(&o, piece, sizeof(piece), &err);
    if (err.code && err.msg[0] && o.path)
        tw_out_abort(&o);
    else if (!ret)
        ret = tw_out_commit(&o, &err);
    if (ret)
        fprintf(stderr, "%s: %s\n", err.place, err.msg);
    return ret != 0;
}

/* With and without the processor's instructions, in pieces of any size. */
static void sha256_both_ways(void)
{
    unsigned char text[1000], a[32], b[32];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (unsigned char)tw_rand64(1, 2, i);
    for (size_t n = 0; n < sizeof(text); n += 13) {
        struct tw_sha256 s, r;

        tw_sha256_init(&s);
        tw_sha256_init(&r);
        r.ni = false;
        tw_sha256_add(&r, text, n);
        for (size_t at = 0, k = 1; at < n; at += k, k = 1 + (at * 7) % 150)
            tw_sha256_add(&s, text + at, k < n - at ? k : n - at);
        tw_sha256_end(&s, a);
        tw_sha256_end(&r, b);
        CHECK(!memcmp(a, b, 32));
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return write_as_command(argv[1]);
    if (!mkdtemp(dir))
        return 1;
    RUN(a_file_appears_whole);
    RUN(a_full_disk_is_an_error);
    RUN(mappings);
    RUN(folders);
    RUN(unfinished);
    RUN(paths);
    RUN(digests);
    RUN(long_crc);
    RUN(sha256_both_ways);
    RUN(share_and_cache);
    tw_rmtree(dir, NULL);
    return test_end();
}
