/* help_tok.h - for tests: tokenizers from folders whose tokenizer.json may be zstd-compressed. */
#ifndef TW_HELP_TOK_H
#define TW_HELP_TOK_H
#include "base/io.h"
#include "base/json.h"
#include "data/tok.h"

int test_read_zst(struct tw_buf *out, const char *path, struct tw_err *err);
/* DIR/tokenizer.json or DIR/tokenizer.json.zst, and nothing beside it; or DIR/tokenizer.model. */
struct tw_tok *test_open_tok(const char *dir, struct tw_err *err);
/* Runs the cases of DIR (see golden-tokenizers.c), prints a line for each and returns how many there
 * are; adds those that are wrong to *BAD. */
int test_golden_tok(const char *dir, int *bad);

#endif
