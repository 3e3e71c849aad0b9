/* mail.c - a list under a lock, and an eventfd */
#include "mail.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

int tw_mailbox_open(struct tw_mailbox *b, void *arg, struct tw_err *err)
{
    *b = (struct tw_mailbox){ .arg = arg };
    b->last = &b->first;
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->fd < 0)
        return tw_fail(err, NULL, 0, "no eventfd: %s", strerror(errno));
    pthread_mutex_init(&b->lock, NULL);
    b->open = true;
    return 0;
}

void tw_mail_send(struct tw_mailbox *b, struct tw_mail *m)
{
    uint64_t one = 1;
    bool was_empty;

    m->next = NULL;
    pthread_mutex_lock(&b->lock);
    was_empty = !b->first;
    *b->last = m;
    b->last = &m->next;
    pthread_mutex_unlock(&b->lock);
    if (was_empty && write(b->fd, &one, sizeof one) < 0)
        return;                                 /* full counter: it is readable anyhow */
}

bool tw_mail_run(struct tw_mailbox *b)
{
    struct tw_mail *m, *next;
    uint64_t n;

    if (!b->open || (read(b->fd, &n, sizeof n) < 0 && errno != EAGAIN))
        return false;
    pthread_mutex_lock(&b->lock);
    m = b->first;
    b->first = NULL;
    b->last = &b->first;
    pthread_mutex_unlock(&b->lock);
    if (!m)
        return false;
    for (; m; m = next) {
        next = m->next;
        m->run(b->arg, m);
    }
    return true;
}

void tw_mailbox_close(struct tw_mailbox *b)
{
    if (!b->open)
        return;
    close(b->fd);
    pthread_mutex_destroy(&b->lock);
    b->open = false;
}
