/* dtype.c - element types of safetensors, and conversions between the floating-point ones. Full
 * blocks of a constant size are copied to aligned arrays first: the mapped data may be unaligned,
 * and a loop of known length is one that the compiler turns into vectors. */
#include "data/weights.h"
#include <math.h>

#define BLOCK 512

static const struct {
    const char *name;
    size_t size;
} types[TW_NDTYPE] = {
    [TW_F32] = { "F32", 4 }, [TW_BF16] = { "BF16", 2 }, [TW_F16] = { "F16", 2 },
    [TW_F64] = { "F64", 8 }, [TW_I8] = { "I8", 1 }, [TW_U8] = { "U8", 1 },
    [TW_I16] = { "I16", 2 }, [TW_U16] = { "U16", 2 }, [TW_I32] = { "I32", 4 },
    [TW_U32] = { "U32", 4 }, [TW_I64] = { "I64", 8 }, [TW_U64] = { "U64", 8 },
    [TW_BOOL] = { "BOOL", 1 }, [TW_F8_E4M3] = { "F8_E4M3", 1 }, [TW_F8_E5M2] = { "F8_E5M2", 1 },
};

size_t tw_dtype_size(enum tw_dtype t)
{
    return types[t].size;
}

const char *tw_dtype_name(enum tw_dtype t)
{
    return types[t].name;
}

int tw_dtype_parse(struct tw_str s)
{
    for (int i = 0; i < TW_NDTYPE; i++)
        if (tw_str_is(s, types[i].name))
            return i;
    return -1;
}

static inline float bits_float(uint32_t u)
{
    union { uint32_t u; float f; } v = { u };
    return v.f;
}

static inline uint32_t float_bits(float f)
{
    union { float f; uint32_t u; } v = { f };
    return v.u;
}

/* The exponent moves by one exact product, which also normalises subnormals. */
static inline float half_float(uint16_t h)
{
    uint32_t mag = float_bits(bits_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f);

    mag |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return bits_float(mag | (uint32_t)(h & 0x8000) << 16);
}

/* Nearest even. Below 2^-14 the sum with 0.5 makes the hardware round to the 2^-24 grid. */
static inline uint16_t float_half(float f)
{
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    uint32_t small = float_bits(bits_float(mag) + 0.5f) - 0x3f000000u;
    uint32_t normal = (mag + 0xfff + (mag >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t r = mag < 0x38800000u ? small : normal;

    r = mag >= 0x477ff000u ? 0x7c00u : r;               /* 65520 and more: infinity */
    r = mag > 0x7f800000u ? 0x7e00u | (mag >> 13 & 0x3ff) : r;
    return (uint16_t)(sign | r);
}

float tw_f16_to_f32(uint16_t h)
{
    return half_float(h);
}

uint16_t tw_f32_to_f16(float f)
{
    return float_half(f);
}

/* E5M2 is the upper half of a half; E4M3 has no infinities, S.1111.111 is its NaN. */
static inline float e5m2_float(uint8_t b)
{
    return half_float((uint16_t)(b << 8));
}

static inline float e4m3_float(uint8_t b)
{
    uint32_t mag = float_bits(bits_float((uint32_t)(b & 0x7f) << 20) * 0x1p120f);

    mag = (b & 0x7f) == 0x7f ? 0x7fc00000u : mag;
    return bits_float(mag | (uint32_t)(b & 0x80) << 24);
}

#define CONVERT(name, from, to, expr)                                                              \
    static void name(to *out, const unsigned char *in, int64_t n)                                  \
    {                                                                                              \
        from a[BLOCK];                                                                             \
        to r[BLOCK];                                                                               \
        int64_t i = 0;                                                                             \
                                                                                                   \
        for (; n - i >= BLOCK; i += BLOCK) {                                                       \
            memcpy(a, in + (size_t)i * sizeof *a, sizeof a);                                       \
            for (int k = 0; k < BLOCK; k++) {                                                      \
                from x = a[k];                                                                     \
                r[k] = (expr);                                                                     \
            }                                                                                      \
            memcpy(out + i, r, sizeof r);                                                          \
        }                                                                                          \
        for (; i < n; i++) {                                                                       \
            from x;                                                                                \
            memcpy(&x, in + (size_t)i * sizeof x, sizeof x);                                       \
            out[i] = (expr);                                                                       \
        }                                                                                          \
    }
CONVERT(bf16_f32, uint16_t, float, tw_bf16_to_f32(x))
CONVERT(f16_f32, uint16_t, float, half_float(x))
CONVERT(f64_f32, double, float, (float)x)
CONVERT(e4m3_f32, uint8_t, float, e4m3_float(x))
CONVERT(e5m2_f32, uint8_t, float, e5m2_float(x))
CONVERT(f32_bf16, float, uint16_t, tw_f32_to_bf16(x))
CONVERT(f32_f16, float, uint16_t, float_half(x))

bool tw_dtype_float(enum tw_dtype t)
{
    return t == TW_F32 || t == TW_BF16 || t == TW_F16 || t == TW_F64 || t == TW_F8_E4M3 ||
            t == TW_F8_E5M2;
}

static void to_f32(float *out, const void *in, enum tw_dtype from, int64_t n)
{
    switch (from) {
    case TW_BF16:
        bf16_f32(out, in, n);
        break;
    case TW_F16:
        f16_f32(out, in, n);
        break;
    case TW_F64:
        f64_f32(out, in, n);
        break;
    case TW_F8_E4M3:
        e4m3_f32(out, in, n);
        break;
    case TW_F8_E5M2:
        e5m2_f32(out, in, n);
        break;
    default:
        memcpy(out, in, (size_t)n * sizeof *out);
    }
}

/* Rounds to odd, so that the rounding to 16 bits that follows is the only one that counts. */
static void f64_odd(float *out, const unsigned char *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x;
        float f;
        uint32_t u;

        memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
        f = (float)x;
        u = float_bits(f);
        if ((double)f != x && x == x && (u & 1) == 0)   /* the odd neighbour on the side of x */
            u += fabs((double)f) < fabs(x) ? 1 : -1u;
        out[i] = bits_float(u);
    }
}

int tw_convert(void *out, enum tw_dtype to, const void *in, enum tw_dtype from, int64_t n)
{
    float tmp[BLOCK];

    if (!n)
        return 0;
    if (to == from) {
        memcpy(out, in, (size_t)n * tw_dtype_size(to));
        return 0;
    }
    if (!tw_dtype_float(from) || (to != TW_F32 && to != TW_BF16 && to != TW_F16))
        return -1;
    if (to == TW_F32) {
        to_f32(out, in, from, n);
        return 0;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        uint16_t *o = (uint16_t *)out + i;

        if (from == TW_F64)
            f64_odd(tmp, (const unsigned char *)in + (size_t)i * 8, m);
        else
            to_f32(tmp, (const char *)in + (size_t)i * tw_dtype_size(from), from, m);
        if (to == TW_BF16)
            f32_bf16(o, (const unsigned char *)tmp, m);
        else
            f32_f16(o, (const unsigned char *)tmp, m);
    }
    return 0;
}

static int check_range(const struct tw_wtensor *t, int64_t first, int64_t count,
        struct tw_err *err)
{
    if (first < 0 || count < 0 || first > t->n || count > t->n - first)
        return tw_fail(err, NULL, 0, "tensor %.*s: elements %lld to %lld of %lld", (int)t->name.n,
                t->name.p, (long long)first, (long long)(first + count), (long long)t->n);
    if (!tw_dtype_float(t->dtype))
        return tw_fail(err, NULL, 0, "tensor %.*s: %s where floating-point numbers are needed",
                (int)t->name.n, t->name.p, tw_dtype_name(t->dtype));
    return 0;
}

int tw_weights_f32(const struct tw_wtensor *t, int64_t first, int64_t count, float *out,
        struct tw_err *err)
{
    if (check_range(t, first, count, err))
        return -1;
    return tw_convert(out, TW_F32,
            (const char *)t->data + (size_t)first * tw_dtype_size(t->dtype), t->dtype, count);
}

int tw_weights_bf16(const struct tw_wtensor *t, int64_t first, int64_t count, uint16_t *out,
        struct tw_err *err)
{
    if (check_range(t, first, count, err))
        return -1;
    return tw_convert(out, TW_BF16,
            (const char *)t->data + (size_t)first * tw_dtype_size(t->dtype), t->dtype, count);
}
