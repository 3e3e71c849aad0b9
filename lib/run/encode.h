/* encode.h - tw-encode. Records come in batches, are rendered, encoded and masked by several
 * threads, and leave in order: as shards, JSON lines, packed rows, or for people to look at. */
#ifndef TW_ENCODE_H
#define TW_ENCODE_H
#include "base/log.h"
#include "base/opt.h"

struct tw_encode_opts {
    struct tw_common common;
    const char *model, *template_file, *system, *out;
    int64_t max_length, pack, threads;
    int truncation, train_on, thinking, control, format;
    bool generation_prompt, add_special, add_eos, render, decode, mask, stats, turns, check;
    struct tw_list template_arg;
};

/* FILES: N operands (none: stdin); ARGC, ARGV: the command line, for the shard's header. */
int tw_encode(const struct tw_encode_opts *o, char **files, int n, int argc, char **argv,
        struct tw_err *err);

#endif
