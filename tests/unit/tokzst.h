/* tokzst.h - for tests: a tokenizer from a folder whose tokenizer.json may be zstd-compressed. */
#ifndef TW_TOKZST_H
#define TW_TOKZST_H
#include "base/io.h"
#include "data/tok.h"
#include <stdlib.h>
#include <zstd.h>

static inline int read_zst(struct tw_buf *out, const char *path, struct tw_err *err)
{
    struct tw_buf packed = {0};
    unsigned long long n;
    size_t got = 0;

    if (tw_read_file(&packed, path, 0, err))
        return -1;
    n = ZSTD_getFrameContentSize(packed.p, packed.n);
    if (n < (unsigned long long)1 << 30)
        got = ZSTD_decompress(tw_buf_grow(out, n), n, packed.p, packed.n);
    tw_buf_free(&packed);
    if (n >= (unsigned long long)1 << 30 || ZSTD_isError(got) || got != n)
        return tw_fail(err, path, 0, "not a zstd file");
    out->n += n;
    return 0;
}

/* DIR/tokenizer.json, or DIR/tokenizer.json.zst; nothing beside it is read. */
static inline struct tw_tok *open_tok(const char *dir, struct tw_err *err)
{
    char *plain = tw_path_join(dir, "tokenizer.json");
    char *packed = tw_path_join(dir, "tokenizer.json.zst");
    bool is_plain = tw_is_file(plain);
    struct tw_buf b = {0};
    struct tw_tok *t = NULL;

    if (!(is_plain ? tw_read_file(&b, plain, 0, err) : read_zst(&b, packed, err)))
        t = tw_tok_open_json(tw_buf_str(&b), is_plain ? plain : packed, err);
    tw_buf_free(&b);
    free(plain);
    free(packed);
    return t;
}

#endif
