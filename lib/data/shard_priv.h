/* shard_priv.h - the layout of a token shard that its writer and its readers share. The format is
 * described in man/tw-shard.5. Numbers are little-endian, and so are the machines we run on. */
#ifndef TW_SHARD_PRIV_H
#define TW_SHARD_PRIV_H
#include "data/shard.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are read in place");

#define HEADER_MAX (16u << 20)
#define BLOCK_MAX (1u << 30)
#define BLOCK_DATA 0x41544144u      /* "DATA" */
#define BLOCK_TAIL 0x4c494154u      /* "TAIL" */

enum weight_form { WEIGHT_ONES, WEIGHT_EACH, WEIGHT_RUNS };

struct block_head {
    uint32_t type, bytes, nrec;
    uint32_t crc;                   /* CRC-32C of the 12 bytes before it, then of the payload */
};

struct tail {
    uint64_t nrec, tokens, blocks;
};

struct rec_head {
    uint32_t bytes;                 /* the whole record: a multiple of 8 */
    uint16_t kind, zero;
    uint32_t nseq, nstart;
    int64_t prompt_n;
    uint64_t extra;
};

struct seq_head {
    int64_t n;
    uint32_t form, runs;
};

struct weight_run {
    uint32_t n;
    float weight;
};

static inline size_t pad8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

uint32_t tw_shard_block_crc(const struct block_head *h, const void *payload);
/* TEXT is a header's JSON: checks its CRC (32 bits, written as 64), takes the tokenizer's hash. */
int tw_shard_check_header(struct tw_str text, uint64_t crc, uint64_t *hash, const char *name,
        struct tw_err *err);
/* The size of the record at P, of which LEFT bytes are there; 0: malformed. */
size_t tw_shard_rec_bytes(const unsigned char *p, size_t left);
/* The N bytes at P (8-aligned) as a record; lists and expanded weights come from A, the rest stays
 * in place. False: malformed. */
bool tw_shard_decode(struct tw_shard_rec *r, const unsigned char *p, size_t n,
        struct tw_arena *a);
int tw_shard_bad_rec(const char *name, int64_t after, struct tw_err *err);

#endif
