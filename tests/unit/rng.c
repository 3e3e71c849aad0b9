/* Random numbers, permutations, the hash. */
#include "test.h"
#include "base/rng.h"
#include <stdbool.h>
#include <stdlib.h>

/* The known answers that Random123 publishes for philox4x32-10. */
static void philox_known_answers(void)
{
    static const uint32_t t[3][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
            0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
            0x94fdcceb, 0x5001e420, 0x24126ea1 },
    };

    for (int i = 0; i < 3; i++) {
        uint32_t out[4];

        tw_philox(out, t[i], t[i] + 4);
        CHECK(!memcmp(out, t[i] + 6, 16));
    }
    CHECK(tw_rand64(0, 0, 0) == 0xe169c58d6627e8d5u);
}

static void uniform_and_normal_moments(void)
{
    double sum = 0, sq = 0, n1 = 0, n2 = 0, n4 = 0;
    const int n = 200000;

    for (int i = 0; i < n; i++) {
        double u = tw_rand01(1, 2, (uint64_t)i), z = tw_rand_normal(1, 3, (uint64_t)i);

        CHECK(u >= 0 && u < 1 && isfinite(z));
        sum += u;
        sq += u * u;
        n1 += z;
        n2 += z * z;
        n4 += z * z * z * z;
    }
    CHECK_NEAR(sum / n, 0.5, 3e-3);
    CHECK_NEAR(sq / n, 1.0 / 3, 3e-3);
    CHECK_NEAR(n1 / n, 0, 1e-2);
    CHECK_NEAR(n2 / n, 1, 1e-2);
    CHECK_NEAR(n4 / n, 3, 3e-2);
}

static void below_is_in_range_and_even(void)
{
    int64_t count[7] = {0};

    for (uint64_t i = 0; i < 70000; i++)
        count[tw_rand_below(5, 0, i, 7)]++;
    for (int i = 0; i < 7; i++)
        CHECK(count[i] > 9600 && count[i] < 10400);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK(tw_rand_below(5, 0, i, 1) == 0);
        CHECK(tw_rand_below(5, 0, i, UINT64_MAX) < UINT64_MAX);
    }
}

static void permutations_are_permutations(void)
{
    static const uint64_t size[] = { 1, 2, 3, 7, 255, 256, 257, 1000, 4096, 4097, 65536, 100003 };

    for (size_t k = 0; k < sizeof(size) / sizeof(size[0]); k++) {
        uint64_t n = size[k], fixed = 0, again = 0;
        char *seen = calloc(n, 1);
        bool all = true;

        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = tw_permute(42, 1, i, n);

            all = all && p < n && !seen[p]++;
            fixed += p == i;
            again += p == tw_permute(42, 2, i, n);
        }
        CHECK(all);
        CHECK(n < 255 || (fixed < 10 && again < 10));       /* 1 each is expected */
        free(seen);
    }
    CHECK(tw_permute(1, 0, (uint64_t)1 << 62, ((uint64_t)1 << 62) + 5) <= ((uint64_t)1 << 62) + 4);
}

/* All orders of four items come up about equally often over seeds. */
static void small_permutations_are_even(void)
{
    int count[256] = {0}, kinds = 0;

    for (uint64_t seed = 0; seed < 24000; seed++) {
        unsigned code = 0;

        for (uint64_t i = 0; i < 4; i++)
            code = code << 2 | (unsigned)tw_permute(seed, 0, i, 4);
        count[code]++;
    }
    for (int i = 0; i < 256; i++) {
        kinds += count[i] > 0;
        CHECK(!count[i] || (count[i] > 850 && count[i] < 1150));
    }
    CHECK_INT(kinds, 24);
}

/* Where item 0 of 1,000 goes is even over seeds, and neighbours do not stay neighbours. */
static void large_permutations_mix(void)
{
    int bucket[10] = {0}, near = 0;

    for (uint64_t seed = 0; seed < 20000; seed++) {
        uint64_t a = tw_permute(seed, 0, 0, 1000), b = tw_permute(seed, 0, 1, 1000);

        bucket[a / 100]++;
        near += a + 1 == b;
    }
    for (int i = 0; i < 10; i++)
        CHECK(bucket[i] > 1800 && bucket[i] < 2200);
    CHECK(near < 60);
}

static void hash_is_stable_and_spreads(void)
{
    unsigned char s[16] = {0};
    uint64_t h = tw_hash64(s, 16, 0);

    CHECK(h == tw_hash64(s, 16, 0) && h != tw_hash64(s, 15, 0) && h != tw_hash64(s, 16, 1));
    for (int i = 0; i < 128; i++) {
        unsigned char t[16] = {0};

        t[i / 8] = (unsigned char)(1 << i % 8);
        int bits = __builtin_popcountll(h ^ tw_hash64(t, 16, 0));

        CHECK(bits > 10 && bits < 54);
    }
    CHECK(tw_hash64(NULL, 0, 7) == tw_hash64("", 0, 7));
}

int main(void)
{
    RUN(philox_known_answers);
    RUN(uniform_and_normal_moments);
    RUN(below_is_in_range_and_even);
    RUN(permutations_are_permutations);
    RUN(small_permutations_are_even);
    RUN(large_permutations_mix);
    RUN(hash_is_stable_and_spreads);
    return test_end();
}
