/* mail.h - how other threads hand something to the thread of the loop: in order, by any thread. */
#ifndef TW_SERVE_MAIL_H
#define TW_SERVE_MAIL_H
#include "base/err.h"
#include <pthread.h>
#include <stdbool.h>

struct tw_mail {                    /* first member, or at least part, of what is sent */
    struct tw_mail *next;
    void (*run)(void *arg, struct tw_mail *m);  /* on the loop's thread; owns M */
};

struct tw_mailbox {
    pthread_mutex_t lock;
    struct tw_mail *first, **last;
    int fd;                         /* readable when there is mail */
    bool open;
    void *arg;
};

int tw_mailbox_open(struct tw_mailbox *b, void *arg, struct tw_err *err);
void tw_mail_send(struct tw_mailbox *b, struct tw_mail *m);
bool tw_mail_run(struct tw_mailbox *b);     /* delivers what is there; whether anything was */
void tw_mailbox_close(struct tw_mailbox *b);    /* B, also one of zeros, takes no mail and has none */

#endif
