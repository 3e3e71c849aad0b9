/* gguf_quant.c - the values that blocks of quantised numbers stand for. Scales are halves; every
 * product and sum is one f32 operation, in the order that the reference programs have, so the values
 * equal theirs bit for bit. */
#include "data/gguf_priv.h"

static float half(const unsigned char *p)
{
    return tw_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void f32_blocks(float *out, const unsigned char *in, int64_t n)
{
    memcpy(out, in, (size_t)n * sizeof *out);
}

static void f16_blocks(float *out, const unsigned char *in, int64_t n)
{
    tw_convert(out, TW_F32, in, TW_F16, n);
}

static void bf16_blocks(float *out, const unsigned char *in, int64_t n)
{
    tw_convert(out, TW_F32, in, TW_BF16, n);
}

/* Low nibbles are elements 0 to 15, high nibbles 16 to 31. */
static void q4_0(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 18, out += 32) {
        float d = half(in);

        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((in[2 + j] & 15) - 8);
            out[j + 16] = d * (float)((in[2 + j] >> 4) - 8);
        }
    }
}

static void q4_1(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 20, out += 32) {
        float d = half(in), m = half(in + 2);

        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(in[4 + j] & 15) + m;
            out[j + 16] = d * (float)(in[4 + j] >> 4) + m;
        }
    }
}

/* The fifth bit of element j is bit j of the word before the nibbles. */
static int five(const unsigned char *high, const unsigned char *low, int j)
{
    int nibble = j < 16 ? low[j] & 15 : low[j - 16] >> 4;

    return nibble | (high[j / 8] >> j % 8 & 1) << 4;
}

static void q5_0(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 22, out += 32) {
        float d = half(in);

        for (int j = 0; j < 32; j++)
            out[j] = d * (float)(five(in + 2, in + 6, j) - 16);
    }
}

static void q5_1(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 24, out += 32) {
        float d = half(in), m = half(in + 2);

        for (int j = 0; j < 32; j++)
            out[j] = d * (float)five(in + 4, in + 8, j) + m;
    }
}

static void q8_0(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 34, out += 32) {
        float d = half(in);

        for (int j = 0; j < 32; j++)
            out[j] = d * (float)(int8_t)in[2 + j];
    }
}

/* Sixteen 6-bit numbers in 12 bytes: scale and minimum of sub-block j. */
static void scale_min(const unsigned char *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Sub-block j of 32: low nibbles of 32 bytes for even j, their high nibbles for odd j. HIGH, where
 * there is one, gives the fifth bit: bit j of byte l. */
static void k_blocks(float *out, const unsigned char *in, const unsigned char *high,
        const unsigned char *low)
{
    float d = half(in), dmin = half(in + 2);

    for (int j = 0; j < 8; j++) {
        int scale, min;
        float ds, dm;

        scale_min(in + 4, j, &scale, &min);
        ds = d * (float)scale;
        dm = dmin * (float)min;
        for (int l = 0; l < 32; l++) {
            int q = low[j / 2 * 32 + l] >> 4 * (j & 1) & 15;

            if (high)
                q |= (high[l] >> j & 1) << 4;
            out[j * 32 + l] = ds * (float)q - dm;
        }
    }
}

static void q4_k(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 144, out += 256)
        k_blocks(out, in, NULL, in + 16);
}

static void q5_k(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 176, out += 256)
        k_blocks(out, in, in + 16, in + 48);
}

/* scales[16], qs[64], d, dmin. A scale is a nibble with its minimum above; element l + 32 j of each
 * half of 128 is at bit 2 j of byte l. */
static void q2_k(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 84, out += 256) {
        float d = half(in + 80), dmin = half(in + 82);

        for (int i = 0; i < 256; i++) {
            int q = in[16 + i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;

            out[i] = d * (float)(in[i / 16] & 15) * (float)q - dmin * (float)(in[i / 16] >> 4);
        }
    }
}

/* hmask[32], qs[64], scales[12], d. Scale k has its low four bits in byte k % 8 and its high two in
 * byte 8 + k % 4; a bit that is not set in hmask takes 4 from the element. */
static void q3_k(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 110, out += 256) {
        const unsigned char *s = in + 96;
        float d = half(in + 108);

        for (int i = 0; i < 256; i++) {
            int k = i / 16, l = i % 32;
            int scale = (s[k % 8] >> 4 * (k / 8) & 15) | (s[8 + k % 4] >> 2 * (k / 4) & 3) << 4;
            int q = in[32 + i / 128 * 32 + l] >> 2 * (i / 32 % 4) & 3;

            q -= in[l] >> i / 32 & 1 ? 0 : 4;
            out[i] = d * (float)(scale - 32) * (float)q;
        }
    }
}

/* ql[128], qh[64], i8 scales[16], d. Two halves of 128; in each, element l + 32 k (k = 0 to 3) has
 * its low four bits in ql and its high two at bit 2 k of qh[l]. */
static void q6_k(float *out, const unsigned char *in, int64_t n)
{
    for (; n--; in += 210, out += 256) {
        float d = half(in + 208);

        for (int i = 0; i < 256; i++) {
            int h = i / 128, k = i / 32 % 4, l = i % 32;
            int low = in[h * 64 + l + 32 * (k & 1)] >> 4 * (k >> 1) & 15;
            int q = low | (in[128 + h * 32 + l] >> 2 * k & 3) << 4;

            out[i] = d * (float)(int8_t)in[192 + i / 16] * (float)(q - 32);
        }
    }
}

const struct ggml_type *tw_ggml_type(uint32_t type)
{
    static const struct ggml_type types[] = {
        [0] = { "F32", 1, 4, f32_blocks }, [1] = { "F16", 1, 2, f16_blocks },
        [2] = { "Q4_0", 32, 18, q4_0 }, [3] = { "Q4_1", 32, 20, q4_1 },
        [6] = { "Q5_0", 32, 22, q5_0 }, [7] = { "Q5_1", 32, 24, q5_1 },
        [8] = { "Q8_0", 32, 34, q8_0 }, [10] = { "Q2_K", 256, 84, q2_k },
        [11] = { "Q3_K", 256, 110, q3_k }, [12] = { "Q4_K", 256, 144, q4_k },
        [13] = { "Q5_K", 256, 176, q5_k }, [14] = { "Q6_K", 256, 210, q6_k },
        [30] = { "BF16", 1, 2, bf16_blocks },
    };

    return type < sizeof types / sizeof *types && types[type].name ? &types[type] : NULL;
}
