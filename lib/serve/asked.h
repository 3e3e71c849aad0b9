/* asked.h - a request for samples that is answered when they are there, or piece by piece: a work for each of
 * its prompts, on their way to the engine and back. A sample changes nothing, so the journal does not have it.
 * What the engine's thread writes comes to the loop's thread by mail, in order, and so a request lives there
 * alone. */
#ifndef TW_ASKED_H
#define TW_ASKED_H
#include "serve/records.h"

struct tw_asked {                       /* first member of what a route makes of it */
    struct tw_srv *s;
    struct tw_req *r;                   /* NULL: the client went away */
    struct tw_tenant *tenant;
    struct tw_arena arena;
    char id[64];
    struct tw_work **work;              /* [nprompt]; it owns those that are done */
    int64_t nprompt, n;                 /* n samples of each */
    int64_t left, charged;
    bool stream;
    const struct tw_asked_fns *fn;
};

struct tw_asked_fns {
    void (*piece)(struct tw_asked *q, int64_t choice, struct tw_str more);  /* of a stream */
    void (*ended)(struct tw_asked *q, int64_t p);       /* of a stream: prompt P is done; NULL */
    void (*answer)(struct tw_asked *q);                 /* all are done */
    void (*drop)(struct tw_asked *q);   /* what is the route's; NULL */
};

void tw_asked_init(struct tw_asked *q, struct tw_srv *s, struct tw_req *r, const struct tw_asked_fns *fn,
        const char *prefix);
/* Charges and sends the works; TYPE is that of a stream. False: an error was sent, and Q is gone. */
bool tw_asked_send(struct tw_asked *q, const char *type);
void tw_asked_free(struct tw_asked *q);

#endif
