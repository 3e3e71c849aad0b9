/* httpd_req.c - a request's parts, and its reply */
#include "httpd_priv.h"
#include "base/json.h"
#include "base/log.h"
#include <errno.h>
#include <unistd.h>

struct tw_blob *tw_blob_new(const void *p, size_t n)
{
    struct tw_blob *b = tw_xmalloc(sizeof *b + n + 1);

    *b = (struct tw_blob){ .refs = 1, .n = n };
    b->p = b->own;
    if (p)
        memcpy(b->p, p, n);
    else
        memset(b->p, 0, n);
    b->p[n] = 0;
    return b;
}

struct tw_blob *tw_blob_take(struct tw_buf *from)
{
    struct tw_blob *b = tw_xmalloc(sizeof *b);

    if (!from->p)
        tw_buf_add(from, "", 0);
    *b = (struct tw_blob){ .refs = 1, .n = from->n, .cap = from->cap, .p = from->p };
    *from = (struct tw_buf){ 0 };
    return b;
}

struct tw_blob *tw_blob_ref(struct tw_blob *b)
{
    if (b)
        __atomic_add_fetch(&b->refs, 1, __ATOMIC_RELAXED);
    return b;
}

void tw_blob_unref(struct tw_blob *b)
{
    if (!b || __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (b->home)
        tw_spare_give(b->home, &(struct tw_buf){ .p = b->p, .n = b->n, .cap = b->cap });
    else if (b->p != b->own)
        free(b->p);
    tw_spare_unref(b->home);
    free(b);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Percent-decodes S into the arena; false for a broken escape, a NUL or a text that is no UTF-8. */
static bool decode(struct tw_req *r, struct tw_str s, bool plus, struct tw_str *out)
{
    char *p = tw_arena_alloc(&r->arena, s.n + 1);
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];

        if (c == '%') {
            if (i + 2 >= s.n || hex(s.p[i + 1]) < 0 || hex(s.p[i + 2]) < 0)
                return false;
            c = (char)(hex(s.p[i + 1]) << 4 | hex(s.p[i + 2]));
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (!c)
            return false;
        p[n++] = c;
    }
    *out = (struct tw_str){ p, n };
    return tw_utf8_check(p, n) == n;
}

int tw_httpd_split(struct tw_req *r, const char *uri)
{
    size_t n = strcspn(uri, "?#");
    const char *p = uri, *end = uri + n, *slash;

    r->path = (struct tw_str){ uri, n };
    if (!n || *p != '/')
        return -1;
    for (p++; p <= end; p = slash + 1) {
        slash = memchr(p, '/', (size_t)(end - p));
        if (!slash)
            slash = end;
        if (r->nseg == TW_REQ_SEGS)
            return -1;
        if (!decode(r, (struct tw_str){ p, (size_t)(slash - p) }, false, &r->seg[r->nseg]))
            return -1;
        r->nseg++;
    }
    return 0;
}

static enum MHD_Result take_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    const char **want = arg;

    if (!strcasecmp(name, want[0]))
        want[1] = value ? value : "";
    return MHD_YES;
}

const char *tw_req_header(struct tw_req *r, const char *name)
{
    const char *want[2] = { name, NULL };

    MHD_get_connection_values(r->state->con, MHD_HEADER_KIND, take_header, want);
    return want[1];
}

const char *tw_req_query(struct tw_req *r, const char *name)
{
    const char *p = strchr(r->state->uri, '?');
    size_t len = strlen(name);
    struct tw_str out;

    for (p = p ? p + 1 : ""; *p; p += *p == '&') {
        size_t n = strcspn(p, "&#");

        if (n > len && !strncmp(p, name, len) && p[len] == '=')
            return decode(r, (struct tw_str){ p + len + 1, n - len - 1 }, true, &out) ? out.p : NULL;
        p += n;
        if (*p == '#')
            break;
    }
    return NULL;
}

int tw_req_query_int(struct tw_req *r, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
    const char *s = tw_req_query(r, name);
    char *end;
    long long v;

    if (!s)
        return 0;
    errno = 0;
    v = strtoll(s, &end, 10);
    if (!*s || *end || errno || v < lo || v > hi) {
        tw_reply_error(r, 400, "%s must be an integer from %lld to %lld", name, (long long)lo, (long long)hi);
        return -1;
    }
    *out = v;
    return 1;
}

bool tw_replied(const struct tw_req *r)
{
    return r->state->answered;
}

void tw_reply_header(struct tw_req *r, const char *name, const char *value)
{
    struct tw_httpd_state *s = r->state;

    if (s->nheader == (int)(sizeof s->header / sizeof *s->header))
        return;
    s->header[s->nheader].name = name;
    s->header[s->nheader++].value = tw_arena_dup(&r->arena, value, strlen(value));
}

static void answer(struct tw_req *r, int status, const char *type, struct MHD_Response *m, size_t n)
{
    struct tw_httpd_state *s = r->state;

    if (!m) {                                   /* no memory or no such file size: nobody gets a reply */
        s->answered = s->dead = true;
        tw_httpd_wake(r);
        return;
    }
    if (type)
        MHD_add_response_header(m, "Content-Type", type);
    for (int i = 0; i < s->nheader; i++)
        MHD_add_response_header(m, s->header[i].name, s->header[i].value);
    s->answered = true;
    s->status = status;
    s->response = m;
    s->out = n;
    tw_httpd_wake(r);
}

void tw_reply(struct tw_req *r, int status, const char *type, const void *p, size_t n)
{
    if (!r->state->answered)
        answer(r, status, type,
                MHD_create_response_from_buffer(n, (void *)(uintptr_t)p, MHD_RESPMEM_MUST_COPY), n);
}

static void drop_blob(void *b)
{
    tw_blob_unref(b);
}

void tw_reply_blob(struct tw_req *r, int status, const char *type, struct tw_blob *b)
{
    if (!r->state->answered)
        answer(r, status, type, MHD_create_response_from_buffer_with_free_callback_cls(b->n, b->p,
                    drop_blob, tw_blob_ref(b)), b->n);
}

void tw_reply_json(struct tw_req *r, int status, struct tw_buf *b)
{
    size_t n = b->n;

    if (!r->state->answered && b->p) {
        answer(r, status, "application/json", MHD_create_response_from_buffer(n, b->p, MHD_RESPMEM_MUST_FREE),
                n);
        *b = (struct tw_buf){ 0 };
    }
    tw_buf_free(b);
}

void tw_reply_file(struct tw_req *r, const char *type, int fd, uint64_t n)
{
    if (r->state->answered)
        close(fd);
    else
        answer(r, 200, type, MHD_create_response_from_fd64(n, fd), (size_t)n);
}

void tw_reply_error(struct tw_req *r, int status, const char *fmt, ...)
{
    struct tw_buf b = { 0 }, text = { 0 };
    struct tw_jw w;
    va_list ap;
    char line[1024];

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    tw_buf_puts(&text, line);
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "detail");
    tw_jw_str(&w, tw_buf_str(&text));
    tw_jw_obj_end(&w);
    tw_buf_free(&text);
    tw_reply_json(r, status, &b);
}

/* MHD asks for more of a stream: what is written, the end, or sleep until either is there. */
static ssize_t stream_read(void *arg, uint64_t pos, char *to, size_t max)
{
    struct tw_req *r = arg;
    struct tw_stream *s = r->state->stream;
    size_t n = s->buf.n - s->at;

    if (n) {
        n = n < max ? n : max;
        memcpy(to, s->buf.p + s->at, n);
        s->at += n;
        if (s->at == s->buf.n) {
            tw_buf_clear(&s->buf);
            s->at = 0;
        }
        r->state->out += n;
        return (ssize_t)n;
    }
    if (s->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    s->asleep = true;
    tw_httpd_park(r);
    return 0;
}

void tw_stream_start(struct tw_req *r, int status, const char *type)
{
    if (r->state->answered)
        return;
    r->state->stream = tw_xcalloc(1, sizeof *r->state->stream);
    answer(r, status, type,
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, stream_read, r, NULL), 0);
}

static void stream_wake(struct tw_req *r)
{
    if (r->state->stream->asleep) {
        r->state->stream->asleep = false;
        tw_httpd_wake(r);
    }
}

void tw_stream_write(struct tw_req *r, const void *p, size_t n)
{
    struct tw_stream *s = r->state->stream;

    if (!s || s->ended || !n)
        return;
    tw_buf_add(&s->buf, p, n);
    stream_wake(r);
}

void tw_stream_end(struct tw_req *r)
{
    struct tw_stream *s = r->state->stream;

    if (!s || s->ended)
        return;
    s->ended = true;
    stream_wake(r);
}
