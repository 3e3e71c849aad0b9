/* proto.h - protobuf's wire format, as much of it as the messages here need: reading field by field
 * without copies (unknown fields are the caller's to skip), writing by appending. A body of megabytes
 * is mostly arrays of numbers, which stay where they are. */
#ifndef TW_PROTO_H
#define TW_PROTO_H
#include "base/buf.h"

enum tw_pb_wire { TW_PB_VARINT, TW_PB_I64, TW_PB_LEN, TW_PB_I32 = 5 };

struct tw_pb {                  /* a message; borrowed */
    const unsigned char *p, *end;
};
struct tw_pb_field {
    uint64_t no;
    enum tw_pb_wire wire;
    uint64_t v;                 /* VARINT, I64, I32: the bits */
    struct tw_str s;            /* LEN */
};
static inline struct tw_pb tw_pb(struct tw_str s)
{
    const unsigned char *p = (const unsigned char *)(s.p ? s.p : "");

    return (struct tw_pb){ p, p + s.n };
}
/* The next field: 1, 0 at the end, -1 malformed (groups are, too). */
int tw_pb_next(struct tw_pb *m, struct tw_pb_field *f);
/* A varint: 1, -1 malformed. */
int tw_pb_varint(struct tw_pb *m, uint64_t *v);
double tw_pb_double(uint64_t bits);

void tw_pb_put_varint(struct tw_buf *b, uint64_t no, uint64_t v);      /* nothing when V is 0 */
void tw_pb_put_double(struct tw_buf *b, uint64_t no, double v);
void tw_pb_put_bytes(struct tw_buf *b, uint64_t no, const void *p, size_t n);
/* The head of a field of N bytes, which are appended next. */
void tw_pb_put_head(struct tw_buf *b, uint64_t no, size_t n);

#endif
