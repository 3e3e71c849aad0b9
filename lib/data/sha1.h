/* sha1.h - SHA-1 (FIPS 180-4), only because hubs name small files by their git blob id */
#ifndef TW_SHA1_H
#define TW_SHA1_H
#include <stddef.h>
#include <stdint.h>

struct tw_sha1 {
    uint32_t h[5];
    uint64_t n;
    unsigned char block[64];
};
void tw_sha1_init(struct tw_sha1 *s);
void tw_sha1_add(struct tw_sha1 *s, const void *p, size_t n);
void tw_sha1_end(struct tw_sha1 *s, unsigned char out[20]);

#endif
