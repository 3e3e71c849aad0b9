/* httpd_body.c - bodies: as they come, their coding undone, and handed over to who keeps them */
#include "httpd_priv.h"
#include <zstd.h>

#define RESERVED (6u << 20)         /* at most, for a body before it came */

/* Room for what was announced, in reason: a body that grows is copied again and again. */
static void reserve(struct tw_req *r)
{
    const char *length = tw_req_header(r, "Content-Length");
    unsigned long long n = length ? strtoull(length, NULL, 10) : 0;

    tw_spare_take(r->state->http->spare, &r->state->body, n < RESERVED ? (size_t)n : RESERVED);
}

enum MHD_Result tw_httpd_body(struct tw_req *r, const char *data, size_t n)
{
    struct tw_httpd_state *s = r->state;
    size_t cap = s->body.cap;

    s->in += n;
    if (s->conn)
        s->conn->bytes += n;
    if (s->in > s->http->o.max_body) {
        s->too_big = true;
        return s->in > TW_SWALLOWED * s->http->o.max_body ? MHD_NO : MHD_YES;
    }
    if (s->answered)
        return MHD_YES;
    if (!s->body.p)
        reserve(r);
    tw_buf_add(&s->body, data, n);
    s->http->bodies += s->body.cap - cap;
    return MHD_YES;
}

/* What a frame says that it decodes to, in reason; there must be room for one byte more. */
static size_t announced(struct tw_str coded)
{
    unsigned long long size = ZSTD_getFrameContentSize(coded.p, coded.n);

    return size < RESERVED ? (size_t)size + 1 : 65536;
}

int tw_body_inflate(struct tw_buf *out, struct tw_str coded, size_t max)
{
    ZSTD_inBuffer in = { coded.p, coded.n, 0 };
    ZSTD_DStream *z = ZSTD_createDStream();
    size_t n;

    tw_buf_grow(out, announced(coded));
    do {
        size_t room = out->cap - out->n > 65536 ? out->cap - out->n - 1 : 65536;
        ZSTD_outBuffer o = { tw_buf_grow(out, room), room, 0 };

        n = ZSTD_decompressStream(z, &o, &in);
        out->n += o.pos;
        if (ZSTD_isError(n) || out->n > max)
            break;
        if (in.pos == in.size && o.pos < o.size)
            break;
    } while (1);
    ZSTD_freeDStream(z);
    return out->n > max ? 413 : ZSTD_isError(n) || n ? 400 : 0;
}

bool tw_httpd_inflate(struct tw_req *r)
{
    struct tw_httpd_state *s = r->state;
    const char *coding = tw_req_header(r, "Content-Encoding");
    size_t max = s->http->o.max_body;
    struct tw_buf out = { 0 };
    int status;

    if (!coding || !*coding || !strcasecmp(coding, "identity"))
        return true;
    tw_spare_take(s->http->spare, &out, announced(tw_buf_str(&s->body)));
    status = tw_body_inflate(&out, tw_buf_str(&s->body), max);
    if (status) {
        if (status == 413)
            tw_reply_error(r, 413, "the body is longer than %zu bytes when decompressed", max);
        else
            tw_reply_error(r, 400, "the body is no whole zstd frame");
        tw_spare_give(s->http->spare, &out);
        return false;
    }
    s->http->bodies += out.cap;
    s->coded = s->body;
    s->body = out;
    return true;
}

struct tw_blob *tw_req_keep(struct tw_req *r, bool *coded)
{
    struct tw_httpd_state *s = r->state;
    struct tw_buf *b = &s->body;
    struct tw_blob *kept;

    *coded = s->coded.n && s->coded.n < s->body.n;
    if (*coded)
        b = &s->coded;
    s->http->bodies -= b->cap;
    kept = tw_blob_take(b);
    kept->home = tw_spare_ref(s->http->spare);
    return kept;
}
