/* weights.c - safetensors: conversions, round trips, and every way a file can lie. */
#include "base/io.h"
#include "data/weights.h"
#include "test.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static const char *at(const char *name)
{
    static char path[2][256];
    static int i;

    i = !i;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static void write_raw(const char *name, const char *json, size_t data)
{
    struct tw_buf b = { 0 };
    uint64_t len = strlen(json);

    tw_buf_add(&b, &len, 8);
    tw_buf_puts(&b, json);
    for (size_t i = 0; i < data; i++)
        tw_buf_putc(&b, (char)i);
    CHECK(!tw_write_file(at(name), b.p, b.n, NULL));
    tw_buf_free(&b);
}

/* Opens a file of this header and this much data: its message, "" when it opens. */
static const char *try_raw(const char *json, size_t data)
{
    static struct tw_err err;
    struct tw_weights w;

    tw_err_clear(&err);
    write_raw("raw.safetensors", json, data);
    if (!tw_weights_open(&w, at("raw.safetensors"), &err))
        tw_weights_close(&w);
    else
        CHECK_STR(err.place, at("raw.safetensors"));
    return err.msg;
}

static void halves_convert_exactly(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        double want = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) :
                ldexp(m, -24);
        float got = tw_f16_to_f32((uint16_t)h);

        if (isnan(want)) {
            CHECK(isnan(got) && isnan(tw_f16_to_f32(tw_f32_to_f16(got))));
            continue;
        }
        if (h >> 15)
            want = -want;
        CHECK((double)got == want && !signbit(got) == !(h >> 15));
        CHECK_INT(tw_f32_to_f16(got), h);
    }
}

static void halves_round_to_even(void)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float lo = tw_f16_to_f32((uint16_t)h), hi = tw_f16_to_f32((uint16_t)(h + 1));
        float mid = (lo + hi) / 2;

        CHECK_INT(tw_f32_to_f16(mid), h + (h & 1));
        CHECK_INT(tw_f32_to_f16(nextafterf(mid, 0)), h);
        CHECK_INT(tw_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
    }
    CHECK_INT(tw_f32_to_f16(65519.996f), 0x7bff);
    CHECK_INT(tw_f32_to_f16(65520), 0x7c00);
    CHECK_INT(tw_f32_to_f16(-1e30f), 0xfc00);
}

static void bf16_rounds_once(void)
{
    double d[3] = { 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40, -(1 + 0x1p-8 + 0x1p-40) };
    float f[4] = { 1 + 0x1p-8f, 1 + 0x3p-8f, -3.3895314e38f, NAN };
    uint16_t b[4];

    CHECK(!tw_convert(b, TW_BF16, f, TW_F32, 4));
    CHECK(b[0] == 0x3f80 && b[1] == 0x3f82 && b[2] == 0xff7f && isnan(tw_bf16_to_f32(b[3])));
    CHECK(!tw_convert(b, TW_BF16, d, TW_F64, 3));
    CHECK(b[0] == 0x3f81 && b[1] == 0x3f80 && b[2] == 0xbf81);
}

static void fp8_values(void)
{
    unsigned char b[6] = { 0x7e, 0x01, 0xb8, 0x7f, 0x08, 0xff };
    float f[6];

    CHECK(!tw_convert(f, TW_F32, b, TW_F8_E4M3, 6));
    CHECK(f[0] == 448 && f[1] == 0x1p-9f && f[2] == -1 && isnan(f[3]) && f[4] == 0x1p-6f);
    b[0] = 0x7b;
    b[3] = 0x7c;
    CHECK(!tw_convert(f, TW_F32, b, TW_F8_E5M2, 4));
    CHECK(f[0] == 57344 && f[1] == 0x1p-16f && f[2] == -0.5f && isinf(f[3]));
    CHECK(tw_convert(f, TW_F32, b, TW_I32, 1) == -1);
}

/* Blocks and tails of the loops, from addresses that are not aligned. */
static void long_arrays_convert(void)
{
    enum { N = 1027 };
    unsigned char raw[2 * N + 1];
    float f[N];
    uint16_t back[N];

    for (int i = 0; i < N; i++) {
        uint16_t h = tw_f32_to_f16((float)(i - 500) * 0.37f);

        memcpy(raw + 1 + 2 * i, &h, 2);
    }
    CHECK(!tw_convert(f, TW_F32, raw + 1, TW_F16, N));
    CHECK(!tw_convert(back, TW_F16, f, TW_F32, N));
    CHECK(!memcmp(back, raw + 1, sizeof back));
    CHECK(!tw_convert(back, TW_BF16, raw + 1, TW_F16, N));
    for (int i = 0; i < N; i++)
        CHECK(back[i] == tw_f32_to_bf16(f[i]));
}

static const struct tw_wdecl decl[] = {
    { "b.weight", TW_BF16, 2, { 2, 3 } }, { "a.weight", TW_F32, 1, { 5 } },
    { "empty", TW_F32, 2, { 0, 7 } }, { "scalar", TW_I64, 0, { 0 } },
    { "z\xc3\xa9\"", TW_F16, 1, { 1 } },
};

static void fill(struct tw_wout *o)
{
    struct tw_err err = { 0 };
    const float f[] = { 1, -2.5f, 3, 4, 5, 6 };
    int64_t id = -7, i;

    while ((i = tw_wout_next(o)) >= 0) {
        if (decl[i].dtype == TW_I64) {
            CHECK(!tw_wout_put(o, &id, TW_I64, 1, &err));
            continue;
        }
        for (int64_t k = 0, n = i == 0 ? 6 : i == 1 ? 5 : 1; k < n; k++)
            CHECK(!tw_wout_put(o, f + k, TW_F32, 1, &err));
    }
    CHECK(!err.code);
}

static void check_written(const char *path)
{
    struct tw_weights w;
    struct tw_err err = { 0 };
    struct tw_wtensor *t;
    float f[6];
    uint16_t b[6];

    CHECK(!tw_weights_open(&w, path, &err));
    CHECK_STR(err.msg, "");
    CHECK_INT(w.n, 5);
    t = tw_weights_find(&w, tw_str("b.weight"));
    CHECK(t && t->ndim == 2 && t->dim[1] == 3 && t->n == 6 && t->dtype == TW_BF16);
    CHECK(!tw_weights_f32(t, 0, 6, f, &err) && f[1] == -2.5f && f[5] == 6);
    CHECK(!tw_weights_bf16(t, 1, 2, b, &err) && b[0] == 0xc020);
    t = tw_weights_find(&w, tw_str("scalar"));
    CHECK(t && t->ndim == 0 && t->n == 1 && *(const int64_t *)t->data == -7);
    CHECK(tw_weights_f32(t, 0, 1, f, &err) == -1 && strstr(err.msg, "I64"));
    t = tw_weights_find(&w, tw_str("empty"));
    CHECK(t && t->n == 0 && !tw_weights_f32(t, 0, 0, f, &err));
    tw_err_clear(&err);
    CHECK(tw_weights_f32(t, 0, 1, f, &err) == -1);
    CHECK(tw_weights_find(&w, tw_str("z\xc3\xa9\"")) && !tw_weights_find(&w, tw_str("b")));
    tw_weights_close(&w);
}

static void a_file_comes_back(void)
{
    struct tw_err err = { 0 };
    struct tw_wout *o = tw_wout_open(at("model.safetensors"), decl, 5, &err);

    CHECK(o && tw_wout_next(o) == 3);       /* I64, then F32, then the halves */
    CHECK(!tw_is_file(at("model.safetensors")));
    fill(o);
    CHECK(!tw_wout_commit(o, &err));
    check_written(at("model.safetensors"));
    check_written(dir);
}

static void tensors_are_aligned_and_the_header_padded(void)
{
    struct tw_buf b = { 0 };

    CHECK(!tw_read_file(&b, at("model.safetensors"), 0, NULL));
    CHECK(b.p[0] % 8 == 0 && !memcmp(b.p + 8, "{\"__metadata__\":{\"format\":\"pt\"}", 31));
    tw_buf_free(&b);
}

static void shards_come_back(void)
{
    struct tw_err err = { 0 };
    struct tw_wout *o;
    struct tw_weights w;
    char *sub = tw_path_join(dir, "sharded"), *p;

    CHECK(!tw_mkdirs(sub, &err));
    o = tw_wout_open_dir(sub, decl, 5, 20, &err);
    CHECK(o != NULL);
    fill(o);
    CHECK(!tw_wout_commit(o, &err));
    CHECK(tw_is_file(at("sharded/model-00001-of-00003.safetensors")));
    check_written(sub);
    p = tw_path_join(sub, "model-00002-of-00003.safetensors");
    CHECK(!truncate(p, 20));
    CHECK(tw_weights_open(&w, sub, &err) == -1 && strstr(err.place, "00002"));
    tw_err_clear(&err);
    unlink(p);
    CHECK(tw_weights_open(&w, sub, &err) == -1 && strstr(err.msg, "no such file"));
    free(p);
    free(sub);
}

static void an_abandoned_file_leaves_nothing(void)
{
    struct tw_err err = { 0 };
    struct tw_wout *o = tw_wout_open(at("gone.safetensors"), decl, 5, &err);
    float f[9] = { 0 };

    CHECK(o && tw_wout_commit(o, &err) == -1 && strstr(err.msg, "scalar"));
    tw_err_clear(&err);
    CHECK(tw_wout_put(o, f, TW_F32, 1, &err) == -1 && strstr(err.msg, "cannot write F32 as I64"));
    tw_wout_abort(o);
    tw_err_clear(&err);
    o = tw_wout_open(at("gone.safetensors"), decl + 1, 1, &err);
    CHECK(tw_wout_put(o, f, TW_F32, 9, &err) == -1 && strstr(err.msg, "more data"));
    tw_err_clear(&err);
    CHECK(tw_wout_commit(o, &err) == -1);
    tw_wout_abort(o);
    CHECK(!tw_is_file(at("gone.safetensors")));
}

/* A limit on file sizes stands for a disk that is too full. */
static void a_full_disk_is_noticed_before_writing(void)
{
    struct tw_wdecl d = { "a", TW_F32, 1, { 1 << 20 } };
    struct tw_err err = { 0 };
    struct rlimit old, small;

    signal(SIGXFSZ, SIG_IGN);
    CHECK(!getrlimit(RLIMIT_FSIZE, &old));
    small = (struct rlimit){ 1 << 20, old.rlim_max };
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    CHECK(!tw_wout_open(at("full.safetensors"), &d, 1, &err));
    CHECK(!setrlimit(RLIMIT_FSIZE, &old));
    CHECK(strstr(err.msg, "cannot reserve 4") && strstr(err.place, "full.safetensors"));
    CHECK(!tw_is_file(at("full.safetensors")));
}

static void bad_declarations_are_refused(void)
{
    struct tw_err err = { 0 };
    struct tw_wdecl twice[2] = { { "a", TW_F32, 1, { 1 } }, { "a", TW_F32, 1, { 1 } } };
    struct tw_wdecl huge = { "a", TW_F32, 3, { 1 << 30, 1 << 30, 1 << 30 } };

    CHECK(!tw_wout_open(at("x"), twice, 2, &err) && strstr(err.msg, "twice"));
    tw_err_clear(&err);
    CHECK(!tw_wout_open(at("x"), &huge, 1, &err) && strstr(err.msg, "bad shape"));
}

static void truncated_files_are_refused(void)
{
    struct tw_buf b = { 0 };
    struct tw_weights w;

    CHECK(!tw_read_file(&b, at("model.safetensors"), 0, NULL));
    for (size_t n = 0; n < b.n; n++) {
        struct tw_err err = { 0 };

        CHECK(!tw_write_file(at("short.safetensors"), b.p, n, NULL));
        CHECK(tw_weights_open(&w, at("short.safetensors"), &err) == -1);
        CHECK_STR(err.place, at("short.safetensors"));
        CHECK(err.msg[0] && err.code == TW_ECORRUPT);
    }
    tw_buf_free(&b);
}

/* More than a page is missing, as where an unchecked mapping would raise SIGBUS. */
static void a_missing_page_names_both_sizes(void)
{
    struct tw_wdecl d[2] = { { "a", TW_F32, 1, { 5000 } }, { "b", TW_F32, 1, { 5000 } } };
    struct tw_err err = { 0 };
    struct tw_wout *o = tw_wout_open(at("page.safetensors"), d, 2, &err);
    struct tw_weights w;
    float *f = tw_xcalloc(5000, sizeof *f);
    struct stat st;
    char want[128];

    while (tw_wout_next(o) >= 0)
        CHECK(!tw_wout_put(o, f, TW_F32, 5000, &err));
    CHECK(!tw_wout_commit(o, &err) && !stat(at("page.safetensors"), &st));
    CHECK(!truncate(at("page.safetensors"), st.st_size - 4));
    CHECK(tw_weights_open(&w, at("page.safetensors"), &err) == -1);
    snprintf(want, sizeof want, "truncated: the header describes %lld bytes, the file has %lld",
            (long long)st.st_size, (long long)st.st_size - 4);
    CHECK_STR(err.msg, want);
    tw_err_clear(&err);
    CHECK(!truncate(at("page.safetensors"), st.st_size - 8192));
    CHECK(tw_weights_open(&w, at("page.safetensors"), &err) == -1 && err.msg[0]);
    tw_err_clear(&err);
    CHECK(!truncate(at("page.safetensors"), st.st_size + 1));
    CHECK(tw_weights_open(&w, at("page.safetensors"), &err) == -1 && strstr(err.msg, "describes"));
    free(f);
}

static void lying_headers_are_refused(void)
{
    static const struct {
        const char *json;
        size_t data;
        const char *msg;
    } c[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "" },
        { "{\"__metadata__\":{\"k\":\"v\"}}  ", 0, "" },
        { "{\"__metadata__\":{\"k\":1}}", 0, "object of strings" },
        { "{}", 4, "describes 10 bytes, the file has 14" },
        { "[]", 0, "not a safetensors" },
        { " {}", 0, "not a safetensors" },
        { "{\"a\":3}", 0, "not an object" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "data_offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", 9, "fit" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "fit" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "fit" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "bad shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "bad shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],"
          "\"data_offsets\":[0,0]}}", 0, "bad shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
          "fit" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
          "9 dimensions" },
        { "{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "dtype C64" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "overlaps" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "a" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 4, "" },
    };

    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *msg = try_raw(c[i].json, c[i].data);

        if (c[i].msg[0] ? !strstr(msg, c[i].msg) : msg[0] != 0) {
            printf("# %s: \"%s\", want \"%s\"\n", c[i].json, msg, c[i].msg);
            CHECK(0);
        }
    }
}

static void huge_header_lengths_are_refused(void)
{
    const unsigned char lie[2][16] = { { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{' },
        { 0, 0, 0, 1, 0, 0, 0, 0, '{' } };
    struct tw_weights w;

    for (int i = 0; i < 2; i++) {
        struct tw_err err = { 0 };

        CHECK(!tw_write_file(at("lie.safetensors"), lie[i], 16, NULL));
        CHECK(tw_weights_open(&w, at("lie.safetensors"), &err) == -1);
        CHECK(strstr(err.msg, i ? "truncated" : "a header of") != NULL);
    }
}

static const char *try_index(const char *file_a, const char *file_b)
{
    static struct tw_err err;
    struct tw_weights w;
    struct tw_buf b = { 0 };
    char *sub = tw_path_join(dir, "index");

    tw_err_clear(&err);
    tw_buf_printf(&b, "{\"weight_map\":{\"a\":\"%s\",\"b\":\"%s\"}}", file_a, file_b);
    CHECK(!tw_write_file(at("index/model.safetensors.index.json"), b.p, b.n, NULL));
    if (!tw_weights_open(&w, sub, &err)) {
        CHECK_INT(w.n, 2);
        tw_weights_close(&w);
    }
    tw_buf_free(&b);
    free(sub);
    return err.msg;
}

static void shard_names_stay_in_the_folder(void)
{
    static const char a[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    static const char b[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    static const char *const bad[] = { "../a.st", "/etc/passwd", "a/../../a.st", "x\\\\a.st", "",
        "a.st\\u0000", "./a.st" };

    CHECK(!tw_mkdirs(at("index/deep"), NULL));
    write_raw("a.st", a, 2);
    write_raw("index/a.st", a, 2);
    write_raw("index/b.st", b, 2);
    write_raw("index/deep/b.st", b, 2);
    CHECK_STR(try_index("a.st", "b.st"), "");
    CHECK_STR(try_index("a.st", "deep/b.st"), "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(strstr(try_index("b.st", bad[i]), "refused: shard name"));
    CHECK(!symlink("../a.st", at("index/link.st")) && !symlink("b.st", at("index/inner.st")));
    CHECK(strstr(try_index("link.st", "b.st"), "the link leads out"));
    CHECK_STR(try_index("a.st", "inner.st"), "");
    CHECK(strstr(try_index("b.st", "b.st"), "tensor a is not in b.st"));
    CHECK(strstr(try_index("none.st", "b.st"), "no such file"));
    write_raw("index/b.st", a, 2);
    CHECK(strstr(try_index("a.st", "b.st"), "comes twice"));
}

/* A Hugging Face cache: snapshots/REV/x is a link to ../../blobs/HASH. */
static void links_of_a_cache_are_followed(void)
{
    static const char a[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    static const char index[] = "{\"weight_map\":{\"a\":\"x.st\"}}";
    struct tw_err err = { 0 };
    struct tw_weights w;
    char *snap = tw_path_join(dir, "repo/snapshots/rev");

    CHECK(!tw_mkdirs(snap, NULL) && !tw_mkdirs(at("repo/blobs"), NULL));
    write_raw("repo/blobs/1234", a, 2);
    CHECK(!symlink("../../blobs/1234", at("repo/snapshots/rev/x.st")));
    CHECK(!tw_write_file(at("repo/snapshots/rev/model.safetensors.index.json"), index,
            sizeof index - 1, NULL));
    CHECK(!tw_weights_open(&w, snap, &err));
    CHECK_STR(err.msg, "");
    tw_weights_close(&w);
    free(snap);
}

static void an_empty_folder_says_what_is_missing(void)
{
    struct tw_err err = { 0 };
    struct tw_weights w;

    CHECK(!tw_mkdirs(at("nothing"), NULL));
    CHECK(tw_weights_open(&w, at("nothing"), &err) == -1 && strstr(err.msg, "no model.safetensors"));
    tw_err_clear(&err);
    CHECK(tw_weights_open(&w, at("nowhere.safetensors"), &err) == -1 && err.msg[0]);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/tw-weights-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    RUN(halves_convert_exactly);
    RUN(halves_round_to_even);
    RUN(bf16_rounds_once);
    RUN(fp8_values);
    RUN(long_arrays_convert);
    RUN(a_file_comes_back);
    RUN(tensors_are_aligned_and_the_header_padded);
    RUN(shards_come_back);
    RUN(an_abandoned_file_leaves_nothing);
    RUN(a_full_disk_is_noticed_before_writing);
    RUN(bad_declarations_are_refused);
    RUN(truncated_files_are_refused);
    RUN(a_missing_page_names_both_sizes);
    RUN(lying_headers_are_refused);
    RUN(huge_header_lengths_are_refused);
    RUN(shard_names_stay_in_the_folder);
    RUN(links_of_a_cache_are_followed);
    RUN(an_empty_folder_says_what_is_missing);
    tw_rmtree(dir, NULL);
    return test_end();
}
