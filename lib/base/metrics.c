/* metrics.c - the writer of metrics.jsonl. */
#include "log.h"
#include "json.h"
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

struct tw_metrics {
    int fd;
    char *path;
    struct tw_buf line;
    struct tw_jw w;
};

struct tw_metrics *tw_metrics_open(const char *path, bool append, struct tw_err *err)
{
    struct tw_metrics *m;
    int fd = 1;

    if (strcmp(path, "-"))
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0666);
    if (fd < 0) {
        tw_fail(err, path, 0, "cannot create: %s", strerror(errno));
        return NULL;
    }
    m = tw_xcalloc(1, sizeof(*m));
    m->fd = fd;
    m->path = tw_xstrdup(path);
    return m;
}

struct tw_jw *tw_metrics_begin(struct tw_metrics *m, const char *event, int64_t step)
{
    struct timespec t;

    if (!m)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &t);
    tw_buf_clear(&m->line);
    tw_jw_init(&m->w, &m->line);
    tw_jw_obj(&m->w);
    tw_jw_key(&m->w, "event");
    tw_jw_cstr(&m->w, event);
    tw_jw_key(&m->w, "step");
    tw_jw_int(&m->w, step);
    tw_jw_key(&m->w, "time");
    tw_jw_num(&m->w, (double)t.tv_sec + (double)(t.tv_nsec / 1000000) * 1e-3);
    return &m->w;
}

int tw_metrics_end(struct tw_metrics *m, struct tw_err *err)
{
    size_t at = 0;

    if (!m)
        return 0;
    tw_jw_obj_end(&m->w);
    tw_buf_putc(&m->line, '\n');
    while (at < m->line.n) {                /* one write a line: a reader never sees half of one */
        ssize_t n = write(m->fd, m->line.p + at, m->line.n - at);

        if (n < 0 && errno != EINTR)
            return tw_fail(err, m->path, 0, "cannot write: %s", strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

void tw_metrics_close(struct tw_metrics *m)
{
    if (!m)
        return;
    if (m->fd > 2)
        close(m->fd);
    tw_buf_free(&m->line);
    free(m->path);
    free(m);
}
