/* sha1.c - SHA-1, straight from the standard */
#include "data/sha1.h"
#include <string.h>

static uint32_t rol(uint32_t x, int k)
{
    return x << k | x >> (32 - k);
}

static void block(struct tw_sha1 *s, const unsigned char *p)
{
    uint32_t w[80], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
                (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f, k, t;

        if (i < 20) {
            f = (b & c) | (~b & d);
            k = 0x5a827999;
        } else if (i < 40) {
            f = b ^ c ^ d;
            k = 0x6ed9eba1;
        } else if (i < 60) {
            f = (b & c) | (b & d) | (c & d);
            k = 0x8f1bbcdc;
        } else {
            f = b ^ c ^ d;
            k = 0xca62c1d6;
        }
        t = rol(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = rol(b, 30);
        b = a;
        a = t;
    }
    s->h[0] += a;
    s->h[1] += b;
    s->h[2] += c;
    s->h[3] += d;
    s->h[4] += e;
}

void tw_sha1_init(struct tw_sha1 *s)
{
    *s = (struct tw_sha1){ { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 }, 0, {0} };
}

void tw_sha1_add(struct tw_sha1 *s, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t have = s->n % 64;

    s->n += n;
    if (have) {
        size_t k = 64 - have < n ? 64 - have : n;

        memcpy(s->block + have, p, k);
        if (have + k < 64)
            return;
        block(s, s->block);
        p += k;
        n -= k;
    }
    for (; n >= 64; p += 64, n -= 64)
        block(s, p);
    if (n)
        memcpy(s->block, p, n);
}

void tw_sha1_end(struct tw_sha1 *s, unsigned char out[20])
{
    static const unsigned char pad[64] = { 0x80 };
    uint64_t bits = s->n * 8;
    unsigned char len[8];

    for (int i = 0; i < 8; i++)
        len[i] = (unsigned char)(bits >> (56 - 8 * i));
    tw_sha1_add(s, pad, 1 + (119 - s->n % 64) % 64);
    tw_sha1_add(s, len, 8);
    for (int i = 0; i < 20; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
