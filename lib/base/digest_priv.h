/* digest_priv.h - between digest.c and digest_x86.c */
#ifndef TW_DIGEST_PRIV_H
#define TW_DIGEST_PRIV_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const uint32_t tw_sha256_k[64];
bool tw_sha256_has_ni(void);
/* Only where tw_sha256_has_ni(). */
void tw_sha256_ni(uint32_t h[8], const unsigned char *p, size_t blocks);

#endif
