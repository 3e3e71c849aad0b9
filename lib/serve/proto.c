/* proto.c - protobuf's wire format */
#include "serve/proto.h"

int tw_pb_varint(struct tw_pb *m, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        unsigned char c = *m->p++;

        if (shift == 63 && c > 1)
            return -1;
        *v |= (uint64_t)(c & 127) << shift;
        if (!(c & 128))
            return 1;
    }
    return -1;
}

static int fixed(struct tw_pb *m, int n, uint64_t *v)
{
    if (m->end - m->p < n)
        return -1;
    *v = 0;
    for (int i = 0; i < n; i++)
        *v |= (uint64_t)m->p[i] << (8 * i);
    m->p += n;
    return 1;
}

int tw_pb_next(struct tw_pb *m, struct tw_pb_field *f)
{
    uint64_t tag;

    if (m->p == m->end)
        return 0;
    *f = (struct tw_pb_field){ 0 };
    if (tw_pb_varint(m, &tag) < 0 || !(tag >> 3) || tag >> 32)
        return -1;
    f->no = tag >> 3;
    f->wire = (enum tw_pb_wire)(tag & 7);
    switch (f->wire) {
    case TW_PB_VARINT:
        return tw_pb_varint(m, &f->v);
    case TW_PB_I64:
        return fixed(m, 8, &f->v);
    case TW_PB_I32:
        return fixed(m, 4, &f->v);
    case TW_PB_LEN:
        if (tw_pb_varint(m, &f->v) < 0 || f->v > (uint64_t)(m->end - m->p))
            return -1;
        f->s = (struct tw_str){ (const char *)m->p, (size_t)f->v };
        m->p += f->v;
        return 1;
    }
    return -1;
}

double tw_pb_double(uint64_t bits)
{
    double d;

    memcpy(&d, &bits, sizeof d);
    return d;
}

static void varint(struct tw_buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        tw_buf_putc(b, (char)(v | 128));
    tw_buf_putc(b, (char)v);
}

void tw_pb_put_varint(struct tw_buf *b, uint64_t no, uint64_t v)
{
    if (!v)
        return;
    varint(b, no << 3 | TW_PB_VARINT);
    varint(b, v);
}

void tw_pb_put_double(struct tw_buf *b, uint64_t no, double v)
{
    varint(b, no << 3 | TW_PB_I64);
    tw_buf_add(b, &v, sizeof v);
}

void tw_pb_put_head(struct tw_buf *b, uint64_t no, size_t n)
{
    varint(b, no << 3 | TW_PB_LEN);
    varint(b, n);
}

void tw_pb_put_bytes(struct tw_buf *b, uint64_t no, const void *p, size_t n)
{
    tw_pb_put_head(b, no, n);
    tw_buf_add(b, p, n);
}
