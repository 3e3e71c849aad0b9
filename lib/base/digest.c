/* digest.c - SHA-256, CRC-32C, hexadecimal, and where shared files and the cache are. */
#include "io.h"
#include "digest_priv.h"
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#ifndef TW_PREFIX
#define TW_PREFIX "/usr/local"
#endif

static uint32_t ror(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

const uint32_t tw_sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2
};

static void sha_block(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], v[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] +
               (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof(v));
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25)) +
                      ((v[4] & v[5]) ^ (~v[4] & v[6])) + tw_sha256_k[i] + w[i];
        uint32_t t2 = (ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22)) +
                      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

static void sha_blocks(struct tw_sha256 *s, const unsigned char *p, size_t n)
{
    if (s->ni)
        tw_sha256_ni(s->h, p, n);
    else
        for (; n; n--, p += 64)
            sha_block(s->h, p);
}

void tw_sha256_init(struct tw_sha256 *s)
{
    static const uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
        0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

    memcpy(s->h, h, sizeof(h));
    s->n = 0;
    s->ni = tw_sha256_has_ni();
}

void tw_sha256_add(struct tw_sha256 *s, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t have = s->n % 64;

    s->n += n;
    if (have && have + n >= 64) {
        memcpy(s->block + have, p, 64 - have);
        sha_blocks(s, s->block, 1);
        p += 64 - have;
        n -= 64 - have;
        have = 0;
    }
    if (n >= 64) {
        sha_blocks(s, p, n / 64);
        p += n / 64 * 64;
        n %= 64;
    }
    if (n)
        memcpy(s->block + have, p, n);
}

void tw_sha256_end(struct tw_sha256 *s, unsigned char out[32])
{
    uint64_t bits = s->n * 8;
    unsigned char pad[72] = { 0x80 };
    size_t n = 1 + (119 - s->n % 64) % 64;

    for (int i = 0; i < 8; i++)
        pad[n + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    tw_sha256_add(s, pad, n + 8);
    for (int i = 0; i < 32; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void tw_hex(char *out, const unsigned char *p, size_t n)
{
    static const char digit[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[p[i] >> 4];
        out[2 * i + 1] = digit[p[i] & 15];
    }
    out[2 * n] = 0;
}

static uint32_t crc_portable(uint32_t c, const unsigned char *p, size_t n)
{
    /* CRC of each half byte: small enough to need no table that is built at run time */
    static const uint32_t t[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362,
        0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab,
        0xe330a81a, 0xf36e6f75
    };

    for (; n; p++, n--) {
        c ^= *p;
        c = c >> 4 ^ t[c & 15];
        c = c >> 4 ^ t[c & 15];
    }
    return c;
}

#ifdef __x86_64__
/* The product of two polynomials modulo the CRC's; the highest bit is x^0. */
static uint32_t crc_times(uint32_t a, uint32_t b)
{
    uint32_t p = 0;

    for (; a; a <<= 1) {
        p ^= a >> 31 ? b : 0;
        b = b >> 1 ^ (b & 1 ? 0x82F63B78u : 0);
    }
    return p;
}

/* C as it is N bytes later: times x^8n. */
static uint32_t crc_later(uint32_t c, size_t n)
{
    for (uint32_t x = 1u << 23; n; n >>= 1, x = crc_times(x, x))
        c = n & 1 ? crc_times(x, c) : c;
    return c;
}

/* Thirds at once: each instruction waits for the one before it of its own third alone. */
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const unsigned char *p,
        size_t n)
{
    size_t third = n / 24 * 8;
    uint64_t a = crc, b = 0, c = 0, w[3];

    if (n >= 4096) {
        for (const unsigned char *end = p + third; p < end; p += 8) {
            memcpy(w, p, 8);
            memcpy(w + 1, p + third, 8);
            memcpy(w + 2, p + 2 * third, 8);
            a = __builtin_ia32_crc32di(a, w[0]);
            b = __builtin_ia32_crc32di(b, w[1]);
            c = __builtin_ia32_crc32di(c, w[2]);
        }
        a = crc_later(crc_later((uint32_t)a, third) ^ (uint32_t)b, third) ^ (uint32_t)c;
        p += 2 * third;
        n -= 3 * third;
    }
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(w, p, 8);
        a = __builtin_ia32_crc32di(a, w[0]);
    }
    return crc_portable((uint32_t)a, p, n);
}
#endif

uint32_t tw_crc32c(uint32_t crc, const void *p, size_t n)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_sse42(~crc, p, n);
#endif
    return ~crc_portable(~crc, p, n);
}

/* DIR is ours if it holds models/ or templates/ or presets/: /usr/share, which lies where a build
 * folder's share/ would, has none of them. */
static bool is_share(const char *dir)
{
    static const char *const part[] = { "models", "templates", "presets" };
    bool found = false;

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]) && !found; i++) {
        char *p = tw_path_join(dir, part[i]);

        found = tw_is_dir(p);
        free(p);
    }
    return found;
}

const char *tw_share_dir(void)
{
    static char dir[PATH_MAX];
    static const char *const from_bin[] = { "../share/twinkle", "../../share" };
    const char *env = getenv("TW_SHARE");
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (env && *env)
        return env;
    exe[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(exe, '/');

    if (slash) {
        *slash = 0;
        for (size_t i = 0; i < 2; i++) {
            char *p = tw_path_join(exe, from_bin[i]);
            bool found = is_share(p) && realpath(p, dir);

            free(p);
            if (found)
                return dir;
        }
    }
    return is_share(TW_PREFIX "/share/twinkle") ? TW_PREFIX "/share/twinkle" : NULL;
}

const char *tw_cache_dir(void)
{
    static char dir[PATH_MAX];
    const char *env = getenv("TW_CACHE"), *home = getenv("HOME");

    if (env && *env)
        return env;
    snprintf(dir, sizeof(dir), "%s/.cache/twinkle", home && *home ? home : "/tmp");
    return dir;
}
