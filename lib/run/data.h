/* data.h - the samples that training reads: shards and JSONL, files and pipes. What is needed in
 * another order, or more than once, is found by number: files are read in place, a pipe is spooled
 * into a shard. Only where each record lies is kept, so memory does not grow with the data. */
#ifndef TW_DATA_H
#define TW_DATA_H
#include "base/log.h"
#include "data/chat.h"

struct tw_data_opts {
    char *const *path;              /* npath of them; none, or "-": stdin */
    int npath;
    const struct tw_chat *chat;
    int64_t vocab, max_len;         /* ids are below vocab; longer sequences are an error */
    bool again;                     /* by number; else a pipe may be read as it comes */
    bool again_if_sft;              /* the same unless the first record of a pipe is a rollout */
    const char *spool;              /* prefix of files that hold what came through a pipe; NULL: a
                                     * pipe is only counted, its samples cannot be read again */
    bool pairs;                     /* preference records are of use */
    bool policy;                    /* wants rollouts with advantages, and nothing else */
    bool label;                     /* wants conversations with a boolean label */
    bool groups;                    /* wants anchors with their positives, and nothing else; */
    int64_t hard_negatives;         /* not 0: with a negative at least */
    int64_t routers, experts, topk; /* routers not 0: rollouts must say which experts they used */
    struct tw_tally *tally;         /* what is dropped is counted here */
};

struct tw_datum {
    enum tw_rec_kind kind;
    struct tw_tokens *seq;          /* nseq of them, in the arena that was passed */
    int64_t nseq, prompt_n;
    double temp;                    /* at which a rollout was sampled; else 1 */
    int64_t id;                     /* its number in the data, from 0; dropped records have none */
    int64_t tokens, supervised;     /* of all its sequences */
    double adv, reward;             /* of a rollout */
    struct tw_datum_part {
        struct tw_str name;
        double v;
    } *part;                        /* [npart] its rewards by name, but unscored ones */
    int64_t npart;
    bool put_aside;                 /* a rollout of no use: no advantage, or dropped */
    int64_t group_size;
    int32_t *experts;               /* [n, routers, topk] of a rollout; the first of a token that is
                                     * not known is -1; NULL: not asked for */
    float *old;                     /* [n] log-probabilities when it was sampled; NULL: not known */
    bool label;
};

struct tw_data;
/* Reads all of the data once, but for a pipe that is read as it comes: a bad record is an error
 * here, before any training. */
struct tw_data *tw_data_open(const struct tw_data_opts *o, struct tw_err *err);
void tw_data_close(struct tw_data *d);

bool tw_data_streams(const struct tw_data *d);
int64_t tw_data_count(const struct tw_data *d);         /* samples; of a stream: read so far */
int64_t tw_data_tokens(const struct tw_data *d);
int64_t tw_data_longest(const struct tw_data *d);       /* sequence */
int64_t tw_data_sample_tokens(const struct tw_data *d, int64_t i);
/* A fingerprint of all tokens and weights read so far, in order. */
uint64_t tw_data_hash(const struct tw_data *d);

/* Sample I of [0, count), not of a stream. */
int tw_data_get(struct tw_data *d, int64_t i, struct tw_arena *a, struct tw_datum *out,
        struct tw_err *err);
/* Is the next record of a stream there, or its end? Waits for that MS milliseconds at most, or until a
 * signal comes. */
bool tw_data_wait(const struct tw_data *d, int ms);
/* Has the writer of a stream gone? */
bool tw_data_hung_up(const struct tw_data *d);
/* The next one of a stream: 1, 0 the end, -1. */
int tw_data_next(struct tw_data *d, struct tw_arena *a, struct tw_datum *out, struct tw_err *err);
/* "data.jsonl:17" of sample I, for people. */
void tw_data_where(struct tw_data *d, int64_t i, char out[600]);

#endif
