/* fetch_pick.c - which files of a data set hold the rows of a subset and split: by its README.md
 * where that says so, else by the hubs' conventions for names (data/train-00000-of-00001.jsonl,
 * SUBSET/test.csv, self_cognition.jsonl). */
#include "run/fetch_card.h"
#include "run/fetch_priv.h"
#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <strings.h>

static const char *const kinds[] = { "jsonl", "ndjson", "json", "csv", "tsv", "parquet", "arrow" };
enum { NKINDS = sizeof kinds / sizeof *kinds };

/* Words that name a split; those of a line mean the same. */
static const char *const words[][5] = {
    { "train", "training" },
    { "validation", "valid", "val", "dev" },
    { "test", "testing", "eval", "evaluation" },
};
enum { NSPLITS = sizeof words / sizeof *words };

static size_t without_packing(const char *path)
{
    static const char *const packed[] = { ".gz", ".zst", ".xz", ".bz2" };
    size_t n = strlen(path);

    for (int i = 0; i < 4; i++) {
        size_t k = strlen(packed[i]);

        if (n > k && !strcasecmp(path + n - k, packed[i]))
            return n - k;
    }
    return n;
}

const char *tw_row_kind(const char *path)
{
    size_t n = without_packing(path);

    for (int i = 0; i < NKINDS; i++) {
        size_t k = strlen(kinds[i]);

        if (n > k + 1 && path[n - k - 1] == '.' && !strncasecmp(path + n - k, kinds[i], k))
            return kinds[i];
    }
    return NULL;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Files that describe a data set and hold no rows. */
static bool is_meta(const char *path)
{
    static const char *const names[] = { "dataset_infos.json", "dataset_info.json", "state.json",
        "dataset_dict.json", "configuration.json", "config.json", "metadata.json" };
    const char *base = base_of(path);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(base, names[i]))
            return true;
    return *base == '.' || *path == '.';
}

/* Whether WORD stands in PATH with no letter or digit beside it. */
static bool has_word(const char *path, const char *word)
{
    size_t k = strlen(word);

    for (const char *p = path; *p; p++)
        if (!strncasecmp(p, word, k) && (p == path || !isalnum((unsigned char)p[-1])) &&
                !isalnum((unsigned char)p[k]))
            return true;
    return false;
}

static int split_of_word(const char *word)
{
    for (int i = 0; i < NSPLITS; i++)
        for (int k = 0; k < 5 && words[i][k]; k++)
            if (!strcasecmp(word, words[i][k]))
                return i;
    return -1;
}

/* The split that a path names: its last part decides, then the whole. -1: none. */
static int split_of(const char *path)
{
    const char *look[2] = { base_of(path), path };

    for (int j = 0; j < 2; j++)
        for (int i = 0; i < NSPLITS; i++)
            for (int k = 0; k < 5 && words[i][k]; k++)
                if (has_word(look[j], words[i][k]))
                    return i;
    return -1;
}

static bool in_subset(const char *path, const char *subset)
{
    size_t n = strlen(subset);
    const char *base = base_of(path);

    for (const char *p = path; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (!strncmp(p, subset, n) && p[n] == '/')
            return true;
    return !strncmp(base, subset, n) && strchr("-_.", base[n]) && base[n];
}

/* Appends NAME to a list of names for a message, once. */
static void mention(struct tw_buf *b, struct tw_str name)
{
    char *quoted = tw_xasprintf(" %.*s,", (int)name.n, name.p);

    if (b->n < 400 && (!b->n || !strstr(b->p, quoted)))
        tw_buf_puts(b, quoted);
    free(quoted);
}

static const char *mentioned(struct tw_buf *b)
{
    if (b->n)
        b->p[b->n - 1] = 0;
    return b->n ? b->p : " none";
}

/* ---- by README.md ---- */

/* The config to read; its name is empty when it must be said. */
static struct tw_str choose_config(const struct tw_card *c, const struct tw_fetch_pick *pick)
{
    struct tw_str found = {0};
    bool several = false;

    for (int64_t i = 0; i < c->n; i++) {
        const struct tw_card_file *f = &c->file[i];

        if (pick->subset ? tw_str_is(f->config, pick->subset) : f->is_default)
            return f->config;
        several = several || (found.n && !tw_str_eq(found, f->config));
        found = f->config;
    }
    for (int64_t i = 0; i < c->n && several && !pick->subset; i++)
        if (tw_str_is(c->file[i].config, "default"))
            return c->file[i].config;
    return several || pick->subset ? (struct tw_str){0} : found;
}

/* The split of that config: the one asked for, else "train", else the only one. */
static struct tw_str choose_split(const struct tw_card *c, struct tw_str config,
        const struct tw_fetch_pick *pick)
{
    struct tw_str found = {0};
    bool several = false;

    for (int64_t i = 0; i < c->n; i++) {
        const struct tw_card_file *f = &c->file[i];

        if (!tw_str_eq(f->config, config))
            continue;
        if (tw_str_is(f->split, pick->split ? pick->split : "train"))
            return f->split;
        several = several || (found.n && !tw_str_eq(found, f->split));
        found = f->split;
    }
    return several || pick->split ? (struct tw_str){0} : found;
}

static int by_card(const struct tw_card *c, const char *const *path, int64_t n,
        const struct tw_fetch_pick *pick, const char *from, bool *take, struct tw_err *err)
{
    struct tw_str config = choose_config(c, pick), split = choose_split(c, config, pick);
    struct tw_buf names = {0};
    int64_t hits = 0;

    for (int64_t i = 0; i < c->n; i++)
        if (!config.n)
            mention(&names, c->file[i].config);
        else if (!split.n && tw_str_eq(c->file[i].config, config))
            mention(&names, c->file[i].split);
    if (!config.n || !split.n) {
        const char *what = config.n ? "split" : "subset", *asked = config.n ? pick->split : pick->subset;

        tw_fail_code(err, asked ? TW_ENOTFOUND : TW_EMISUSE, from, 0, "%s%s%s%s: choose one with "
                "--%s:%s", asked ? "has no " : "has several ", what, asked ? " " : "s",
                asked ? asked : "", what, mentioned(&names));
        tw_buf_free(&names);
        return -1;
    }
    for (int64_t k = 0; k < c->n; k++) {
        const struct tw_card_file *f = &c->file[k];
        char *glob = tw_xstrndup(f->glob.p, f->glob.n);
        const char *g = strncmp(glob, "./", 2) ? glob : glob + 2;

        for (int64_t i = 0; i < n; i++)
            if (tw_str_eq(f->config, config) && tw_str_eq(f->split, split) &&
                    (!fnmatch(g, path[i], 0) || !strcmp(g, path[i])) && !take[i]) {
                take[i] = true;
                hits++;
            }
        free(glob);
    }
    if (!hits)
        return tw_fail_code(err, TW_ENOTFOUND, from, 0,
                "the files that its README.md names for %.*s are not there", (int)split.n, split.p);
    return 0;
}

/* ---- by names ---- */

/* One kind of file only, that of most: a stray .json among .csv files holds no rows. */
static void one_kind(const char *const *path, int64_t n, const char *from, bool *take)
{
    int64_t count[NKINDS] = {0}, out = 0;
    int best = 0;

    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < NKINDS; k++)
            count[k] += take[i] && tw_row_kind(path[i]) == kinds[k];
    for (int k = 1; k < NKINDS; k++)
        if (count[k] > count[best])
            best = k;
    for (int64_t i = 0; i < n; i++)
        if (take[i] && tw_row_kind(path[i]) != kinds[best]) {
            tw_info("%s: left out", path[i]);
            take[i] = false;
            out++;
        }
    if (out)
        tw_notice("%s: %lld files of other kinds are left out: rows are read from .%s", from,
                (long long)out, kinds[best]);
}

static int narrow_subset(const char *const *path, int64_t n, const struct tw_fetch_pick *pick,
        const char *from, bool *take, struct tw_err *err)
{
    struct tw_buf names = {0};
    int64_t hits = 0;

    if (!pick->subset || !strcmp(pick->subset, "default"))
        return 0;
    for (int64_t i = 0; i < n; i++) {
        if (take[i])
            mention(&names, tw_str(path[i]));
        take[i] = take[i] && in_subset(path[i], pick->subset);
        hits += take[i];
    }
    if (!hits)
        tw_fail_code(err, TW_ENOTFOUND, from, 0, "has no subset %s; its files:%s", pick->subset,
                mentioned(&names));
    tw_buf_free(&names);
    return hits ? 0 : -1;
}

static int narrow_split(const char *const *path, int64_t n, const struct tw_fetch_pick *pick,
        const char *from, bool *take, struct tw_err *err)
{
    int64_t count[NSPLITS + 1] = {0}, hits = 0;     /* the last: no split in the name */
    int want = pick->split ? split_of_word(pick->split) : 0, splits = 0, only = 0;
    struct tw_buf names = {0};

    for (int64_t i = 0; i < n; i++)
        if (take[i])
            count[split_of(path[i]) < 0 ? NSPLITS : split_of(path[i])]++;
    for (int s = 0; s < NSPLITS; s++)
        if (count[s]) {
            splits++;
            only = s;
            mention(&names, tw_str(words[s][0]));
        }
    if (want == 0 && !count[0] && count[NSPLITS])
        want = NSPLITS;                 /* files that name no split are train */
    else if (!pick->split && !count[0] && splits == 1)
        want = only;
    for (int64_t i = 0; i < n; i++) {
        int s = split_of(path[i]);

        if (take[i])
            take[i] = want >= 0 ? (s < 0 ? NSPLITS : s) == want : has_word(path[i], pick->split);
        hits += take[i];
    }
    if (!hits)
        tw_fail_code(err, TW_ENOTFOUND, from, 0, "has no split %s; it has:%s",
                pick->split ? pick->split : "train", mentioned(&names));
    tw_buf_free(&names);
    return hits ? 0 : -1;
}

int tw_pick_files(const char *const *path, int64_t n, struct tw_str readme,
        const struct tw_fetch_pick *pick, const char *from, bool *take, struct tw_err *err)
{
    struct tw_card card = {0};
    int64_t hits = 0;
    int ret = 0;

    memset(take, 0, (size_t)n * sizeof *take);
    tw_card_read(&card, readme);
    if (card.n) {
        ret = by_card(&card, path, n, pick, from, take, err);
        tw_card_free(&card);
        return ret;
    }
    for (int64_t i = 0; i < n; i++) {
        take[i] = tw_row_kind(path[i]) && !is_meta(path[i]);
        hits += take[i];
    }
    if (!hits)
        return tw_fail_code(err, TW_ENOTFOUND, from, 0,
                "holds no files of rows (.jsonl, .json, .csv, .tsv)");
    if (narrow_subset(path, n, pick, from, take, err))
        return -1;
    one_kind(path, n, from, take);
    return narrow_split(path, n, pick, from, take, err);
}
