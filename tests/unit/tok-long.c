/* tok-long.c - long words: ids equal the reference's, and time grows no faster than the text. */
#include "help_tok.h"
#include "test.h"
#include <stdlib.h>
#include <time.h>

/* Of 20,000 bytes of each kind: how many ids the reference (tokenizers 0.23) gives on the cut
 * tokenizers of tests/data, and h = h * 31 + id over them. */
static const struct {
    const char *tok, *kind;
    int64_t n;
    uint32_t hash;
} want[] = {
    { "qwen3", "a", 2500, 110415872u },
    { "qwen3", "letters", 16669, 2906843522u },
    { "qwen3", "newlines", 1250, 2668770560u },
    { "qwen3", "spaces", 313, 1380746770u },
    { "qwen3", "base64", 19148, 1216475418u },
    { "qwen3", "emoji", 5000, 2277948160u },
    { "qwen3", "cjk", 3333, 3853680299u },
    { "qwen3", "marks", 15001, 697468080u },
    { "qwen3", "mixed", 16243, 3830294021u },
    { "llama3", "a", 2500, 2415514368u },
    { "llama3", "letters", 16630, 2412248178u },
    { "llama3", "newlines", 1250, 2966264000u },
    { "llama3", "spaces", 313, 3074239128u },
    { "llama3", "base64", 18767, 1668854713u },
    { "llama3", "emoji", 10000, 690376336u },
    { "llama3", "cjk", 3333, 3293745819u },
    { "llama3", "marks", 15001, 3904414400u },
    { "llama3", "mixed", 15960, 1550941697u },
    { "llama2", "a", 2503, 1515091814u },
    { "llama2", "letters", 16761, 1489153033u },
    { "llama2", "newlines", 20001, 928556577u },
    { "llama2", "spaces", 1251, 1936784705u },
    { "llama2", "base64", 19183, 1013692849u },
    { "llama2", "emoji", 5001, 4088888993u },
    { "llama2", "cjk", 6667, 2262448333u },
    { "llama2", "marks", 15001, 913596296u },
    { "llama2", "mixed", 17326, 2622599881u },
    { "deepseek_v3", "a", 2500, 3226064768u },
    { "deepseek_v3", "letters", 16554, 1154687856u },
    { "deepseek_v3", "newlines", 1250, 858274240u },
    { "deepseek_v3", "spaces", 313, 1339248844u },
    { "deepseek_v3", "base64", 18681, 2923077724u },
    { "deepseek_v3", "emoji", 10000, 2632660752u },
    { "deepseek_v3", "cjk", 3333, 268185358u },
    { "deepseek_v3", "marks", 15001, 771224259u },
    { "deepseek_v3", "mixed", 15941, 3009449048u },
};

/* N bytes (about) of a kind; the random ones come from a fixed generator. */
static void make(struct tw_buf *b, const char *kind, size_t n)
{
    static const struct {
        const char *kind, *first, *unit, *any;
    } how[] = {
        { "a", "", "a", NULL }, { "newlines", "", "\n", NULL }, { "spaces", "", " ", NULL },
        { "emoji", "", "\xF0\x9F\x98\x80", NULL },
        { "cjk", "", "\xE4\xB8\xAD\xE6\x96\x87", NULL },
        { "marks", "a", "\xCC\x81\xCC\x96", NULL },
        { "letters", "", NULL, "abcdefghijklmnopqrstuvwxyz" },
        { "base64", "", NULL, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/" },
        { "mixed", "", NULL, "ab \n'.1Z" },
    };
    uint32_t x = 1;
    int k = 0;

    while (strcmp(how[k].kind, kind))
        k++;
    b->n = 0;
    tw_buf_puts(b, how[k].first);
    for (size_t i = 0; how[k].any && i < n; i++) {
        x = (x * 1103515245u + 12345u) & 0x7FFFFFFF;
        tw_buf_putc(b, how[k].any[(x >> 16) % strlen(how[k].any)]);
    }
    for (size_t i = 0; how[k].unit && i < n / strlen(how[k].unit); i++)
        tw_buf_puts(b, how[k].unit);
}

static struct tw_tok *open_named(const char *name)
{
    struct tw_err err = {0};
    char *dir = tw_path_join("tests/data/tokenizers", name);
    struct tw_tok *t = test_open_tok(dir, &err);

    if (!t)
        printf("# %s: %s\n", err.place, err.msg);
    free(dir);
    return t;
}

static void ids_are_the_references(void)
{
    struct tw_tok *t = NULL;
    const char *name = "";
    struct tw_buf b = {0};
    struct tw_ids ids = {0};

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        uint32_t h = 0;

        if (strcmp(name, want[i].tok)) {
            tw_tok_close(t);
            t = open_named(name = want[i].tok);
            CHECK(t);
        }
        make(&b, want[i].kind, 20000);
        ids.n = 0;
        CHECK(t && !tw_tok_encode(t, tw_buf_str(&b), NULL, 0, 0, &ids, NULL, NULL));
        for (int64_t k = 0; k < ids.n; k++)
            h = h * 31 + (uint32_t)ids.id[k];
        if (ids.n != want[i].n || h != want[i].hash)
            printf("# %s %s: %lld ids\n", want[i].tok, want[i].kind, (long long)ids.n);
        CHECK_INT(ids.n, want[i].n);
        CHECK(h == want[i].hash);
    }
    tw_tok_close(t);
    tw_ids_free(&ids);
    tw_buf_free(&b);
}

/* The faster of two, so that a busy machine does not fail us. */
static double seconds(const struct tw_tok *t, const char *kind, size_t n)
{
    struct tw_buf b = {0};
    struct tw_ids ids = {0};
    double best = 1e9;

    make(&b, kind, n);
    for (int i = 0; i < 2; i++) {
        clock_t t0 = clock();       /* others may be at work on the machine */

        ids.n = 0;
        CHECK(!tw_tok_encode(t, tw_buf_str(&b), NULL, 0, 0, &ids, NULL, NULL));
        best = fmin(best, (double)(clock() - t0) / CLOCKS_PER_SEC);
    }
    tw_ids_free(&ids);
    tw_buf_free(&b);
    return best;
}

#ifdef __SANITIZE_ADDRESS__
#define SIZE 32768
#else
#define SIZE 262144
#endif

static void time_is_almost_linear(void)
{
    static const char *const kinds[] = { "a", "letters", "newlines", "spaces", "base64", "emoji",
        "cjk", "marks", "mixed" };
    static const char *const toks[] = { "qwen3", "llama2", "deepseek_v3" };

    for (int i = 0; i < 3; i++) {
        struct tw_tok *t = open_named(toks[i]);

        for (int k = 0; t && k < 9; k++) {
            double half = seconds(t, kinds[k], SIZE), full = seconds(t, kinds[k], 2 * SIZE);

            if (full >= 3 * half + 0.25 || full >= 5)
                printf("# %s %s: %.3f s, twice as long %.3f s\n", toks[i], kinds[k], half, full);
            CHECK(full < 3 * half + 0.25);
            CHECK(full < 5);
        }
        CHECK(t);
        tw_tok_close(t);
    }
}

int main(void)
{
    RUN(ids_are_the_references);
    RUN(time_is_almost_linear);
    return test_end();
}
