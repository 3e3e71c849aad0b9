/* archive.c - unpacking on libarchive */
#include "data/archive.h"
#include "base/io.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static const char *const exts[] = { ".tar", ".tgz", ".zip", ".whl", ".gz", ".zst", ".xz", ".bz2" };

static const char *packed_ext(const char *path, size_t n)
{
    for (size_t i = 0; i < sizeof exts / sizeof *exts; i++) {
        size_t k = strlen(exts[i]);

        if (n > k && !strncasecmp(path + n - k, exts[i], k))
            return exts[i];
    }
    return NULL;
}

bool tw_archive_is(const char *path)
{
    return packed_ext(path, strlen(path));
}

size_t tw_archive_split(const char *text, const char **member)
{
    for (const char *p = strchr(text, '!'); p; p = strchr(p + 1, '!'))
        if (p[1] && packed_ext(text, (size_t)(p - text))) {
            *member = p + 1;
            return (size_t)(p - text);
        }
    return 0;
}

/* What a failure of the archive library means: a bad archive, unless reading failed. */
static int fail(struct archive *a, const char *path, const char *member, struct tw_err *err)
{
    const char *why = archive_error_string(a);
    size_t n = why ? strcspn(why, "\n") : 0;       /* some texts end their line */
    int e = archive_errno(a), code = e == EIO || e == ENOMEM ? TW_EFAIL : TW_ECORRUPT;

    if (e == EMFILE || e == ENFILE)
        return tw_fail(err, path, 0, "cannot open: %s", strerror(e));
    return tw_fail_code(err, code, path, 0, "%s%sbad archive: %.*s", member ? member : "",
            member ? ": " : "", (int)(n ? n : 14), n ? why : "unknown reason");
}

/* A name without "./" before and '/' behind it. */
static struct tw_str clean(const char *name)
{
    size_t n;

    while (name[0] == '.' && name[1] == '/')
        name += 2;
    n = strlen(name);
    while (n && name[n - 1] == '/')
        n--;
    if (n == 1 && *name == '.')
        n = 0;
    return (struct tw_str){ name, n };
}

static int write_file(struct archive *a, const char *archive, const char *path, struct tw_err *err)
{
    size_t cap = 256 * 1024;
    char *buf = NULL;
    la_ssize_t n;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644), ret = -1;

    if (fd < 0)
        return tw_fail(err, path, 0, "cannot create: %s", errno == EEXIST ?
                "the archive holds it twice" : strerror(errno));
    buf = tw_xmalloc(cap);
    while ((n = archive_read_data(a, buf, cap)) > 0)
        for (la_ssize_t at = 0, k; at < n; at += k)
            if ((k = write(fd, buf + at, (size_t)(n - at))) < 0) {
                tw_fail(err, path, 0, "cannot write: %s", strerror(errno));
                goto out;
            }
    if (n < 0)
        fail(a, archive, path, err);
    else if (fsync(fd))
        tw_fail(err, path, 0, "cannot write: %s", strerror(errno));
    else
        ret = 0;
out:
    if (close(fd) && !ret)
        ret = tw_fail(err, path, 0, "cannot write: %s", strerror(errno));
    free(buf);
    return ret;
}

static int take_member(struct archive *a, const char *archive, const char *dir,
        const struct tw_member *m, struct tw_err *err)
{
    char *name = tw_xstrndup(m->name.p, m->name.n), *path = tw_path_join(dir, name), *slash;
    int ret = 0;

    if (m->is_dir) {
        ret = tw_mkdirs(path, err);
    } else {
        slash = strrchr(path, '/');
        *slash = 0;
        ret = tw_mkdirs(path, err);
        *slash = '/';
        if (!ret)
            ret = write_file(a, archive, path, err);
    }
    free(name);
    free(path);
    return ret;
}

/* The file that a .gz holds is named like it. */
static char *raw_name(const char *path)
{
    const char *base = strrchr(path, '/');
    const char *ext;

    base = base ? base + 1 : path;
    ext = packed_ext(base, strlen(base));
    return tw_xstrndup(base, strlen(base) - (ext ? strlen(ext) : 0));
}

static int visit(struct archive *a, struct archive_entry *e, const char *path, const char *dir,
        int (*fn)(void *, const struct tw_member *, bool *, struct tw_err *), void *arg,
        struct tw_err *err)
{
    bool raw = archive_format(a) == ARCHIVE_FORMAT_RAW, take = true;
    char *own = raw ? raw_name(path) : NULL;
    const char *name = raw ? own : archive_entry_pathname_utf8(e);
    struct tw_member m = {0};
    int ret = -1;

    if (!name)
        name = archive_entry_pathname(e);
    if (!name) {
        tw_fail_code(err, TW_ECORRUPT, path, 0, "a member has no readable name");
        goto out;
    }
    m.name = clean(name);
    m.size = archive_entry_size_is_set(e) ? archive_entry_size(e) : -1;
    m.is_dir = archive_entry_filetype(e) == AE_IFDIR;
    if (!m.name.n && m.is_dir) {
        ret = 0;
        goto out;
    }
    if (!tw_path_safe(m.name)) {
        tw_fail_code(err, TW_ECORRUPT, path, 0, "the member %s would land outside the folder", name);
        goto out;
    }
    if (!raw && (archive_entry_hardlink(e) || (!m.is_dir && archive_entry_filetype(e) != AE_IFREG))) {
        tw_fail_code(err, TW_ECORRUPT, path, 0, "the member %s is a link or device, not a file",
                name);
        goto out;
    }
    if (fn && fn(arg, &m, &take, err))
        goto out;
    ret = take ? take_member(a, path, dir, &m, err) : 0;
out:
    free(own);
    return ret;
}

int tw_archive_unpack(const char *path, const char *dir,
        int (*fn)(void *arg, const struct tw_member *m, bool *take, struct tw_err *err), void *arg,
        struct tw_err *err)
{
    /* Names are UTF-8 whatever the user's locale; this thread only. */
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    locale_t was = utf8 ? uselocale(utf8) : (locale_t)0;
    struct archive *a = archive_read_new();
    struct archive_entry *e;
    int ret = -1, got;

    archive_read_support_filter_gzip(a);
    archive_read_support_filter_zstd(a);
    archive_read_support_filter_xz(a);
    archive_read_support_filter_bzip2(a);
    archive_read_support_format_tar(a);
    /* Not the reader of unseekable zips: it takes a cut file for a whole one. */
    archive_read_support_format_zip_seekable(a);
    archive_read_support_format_raw(a);
    archive_read_support_format_empty(a);
    if (archive_read_open_filename(a, path, 256 * 1024) != ARCHIVE_OK) {
        fail(a, path, NULL, err);
        goto out;
    }
    while ((got = archive_read_next_header(a, &e)) == ARCHIVE_OK || got == ARCHIVE_WARN) {
        if (archive_format(a) == ARCHIVE_FORMAT_RAW && archive_filter_count(a) < 2) {
            tw_fail_code(err, TW_ECORRUPT, path, 0, "not an archive, or a damaged one");
            goto out;
        }
        if (visit(a, e, path, dir, fn, arg, err))
            goto out;
    }
    if (got != ARCHIVE_EOF)
        fail(a, path, NULL, err);
    else if (archive_format(a) == ARCHIVE_FORMAT_EMPTY)
        tw_fail_code(err, TW_ECORRUPT, path, 0, "an empty file is no archive");
    else
        ret = 0;
out:
    archive_read_free(a);
    if (utf8) {
        uselocale(was);
        freelocale(utf8);
    }
    return ret;
}
