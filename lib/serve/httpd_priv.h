/* httpd_priv.h - what httpd.c, httpd_req.c and httpd_listen.c share. */
#ifndef TW_SERVE_HTTPD_PRIV_H
#define TW_SERVE_HTTPD_PRIV_H
#include "httpd.h"
#include <microhttpd.h>

enum tw_conn_phase { TW_CONN_IDLE, TW_CONN_HEAD, TW_CONN_BODY, TW_CONN_WORK, TW_CONN_REPLY };

struct tw_conn {
    struct tw_conn *prev, *next;
    int fd;
    enum tw_conn_phase phase;
    double since;                   /* the phase's start */
    size_t bytes;                   /* of the body so far, or of the reply */
    struct tw_req *req;             /* the one in progress */
};

struct tw_stream {
    struct tw_buf buf;
    size_t at;
    bool ended, asleep;
};

struct tw_httpd_state {
    struct tw_httpd *http;
    struct MHD_Connection *con;
    struct tw_conn *conn;
    struct MHD_Response *response;  /* set, not queued yet */
    int status;
    bool seen, refused, answered, queued, parked, watched, dead;
    bool too_big;
    size_t in, out;
    double t0;
    struct tw_buf body, coded;      /* coded: as it came, when that was another */
    struct { const char *name, *value; } header[6];
    int nheader;
    struct tw_stream *stream;
    const char *uri;                /* as sent */
};

struct tw_httpd {
    struct tw_httpd_opts o;
    struct MHD_Daemon *daemon;
    int listen_fd, epoll, mhd_epoll, watched;
    char *address, *unix_path, *cert, *key;
    struct tw_conn *conns;
    int64_t nconn, nparked, limit;
    size_t bodies;
    struct tw_spare *spare;         /* memory for them */
    double last_sweep;
    bool quiet, woke;               /* woke: a request left the bench since MHD last ran */
};

int tw_httpd_listen(struct tw_httpd *h, struct tw_err *err);
/* Takes the request off its bench: MHD asks for the answer. */
void tw_httpd_wake(struct tw_req *r);
void tw_httpd_park(struct tw_req *r);
int tw_httpd_split(struct tw_req *r, const char *uri);   /* path, segments; -1: not a path of ours */
enum MHD_Result tw_httpd_queue(struct tw_req *r);
#define TW_SWALLOWED 4              /* times the longest body is read of one that is refused */
enum MHD_Result tw_httpd_body(struct tw_req *r, const char *data, size_t n);    /* a piece of it */
bool tw_httpd_inflate(struct tw_req *r);        /* undoes its content coding; false: an error was sent */

#endif
