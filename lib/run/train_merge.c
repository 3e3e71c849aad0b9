/* train_merge.c - tw-train --merge: a model with an adapter's deltas added to its weights */
#include "run/train_priv.h"
#include "base/io.h"
#include "data/hub.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define PROBE 32                    /* tokens whose logits are compared before and after */

struct merge {
    char *model_dir, *adapter_dir, *out, *tmp;
    struct tw_dev *dev;
    enum tw_dtype dtype;
    int64_t n;                      /* probe tokens */
    float *logits[2];               /* [n, V]: base and adapter; merged */
};

static bool empty_or_missing(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    bool empty = true;

    if (!d)
        return errno == ENOENT;
    while (empty && (e = readdir(d)))
        empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return empty;
}

/* The type that most of a model's file is of. */
static int file_dtype(const char *dir, enum tw_dtype *dtype, struct tw_err *err)
{
    struct tw_weights w;
    int64_t most = 0;

    if (tw_weights_open(&w, dir, err))
        return -1;
    for (int64_t i = 0; i < w.n; i++)
        if (w.t[i].n > most) {
            most = w.t[i].n;
            *dtype = w.t[i].dtype;
        }
    tw_weights_close(&w);
    return 0;
}

/* The logits of a few fixed tokens. */
static int probe(struct merge *g, struct tw_model *m, struct tw_adapter *a, float **logits,
        struct tw_err *err)
{
    const struct tw_model_info *info = tw_model_info(m);
    int32_t token[PROBE];
    int64_t want[PROBE];
    struct tw_state *s = tw_state_new(m, err);
    struct tw_seq seq = { .token = token, .adapter = a, .state = s };
    int ret;

    g->n = info->max_positions > 0 && info->max_positions < PROBE ? info->max_positions : PROBE;
    for (int64_t i = 0; i < g->n; i++) {
        token[i] = (int32_t)(i * 7919 % info->V);
        want[i] = i;
    }
    seq.n = g->n;
    *logits = tw_xreallocarray(NULL, (size_t)(g->n * info->V), sizeof **logits);
    ret = s ? tw_model_decode(m, &seq, 1, want, g->n, *logits, err) : -1;
    if (s)
        tw_state_free(s);
    return ret;
}

static int write_merged(struct merge *g, const struct tw_train_opts *o, struct tw_err *err)
{
    struct tw_model_opts mo = { .dtype = TW_F32 };
    struct tw_model *m = tw_model_open(g->model_dir, g->dev, &mo, err);
    struct tw_adapter *a = m ? tw_adapter_open(m, g->adapter_dir, false, err) : NULL;
    int ret = -1;

    if (a && !probe(g, m, a, &g->logits[0], err) && !tw_mkdirs(g->tmp, err) &&
            !tw_model_save(m, a, g->dtype, g->tmp, err))
        ret = tw_ckpt_copy_side(g->model_dir, g->tmp, NULL, err);
    if (a)
        tw_adapter_close(a);
    if (m)
        tw_model_close(m);
    return ret;
}

/* Reads back what was written, and says how far rounding has moved the logits. */
static int compare(struct merge *g, struct tw_err *err)
{
    struct tw_model_opts mo = { .dtype = TW_F32 };
    struct tw_model *m = tw_model_open(g->tmp, g->dev, &mo, err);
    double worst = 0, sum = 0;
    int64_t n;
    int ret;

    if (!m)
        return -1;
    ret = probe(g, m, NULL, &g->logits[1], err);
    n = g->n * tw_model_info(m)->V;
    for (int64_t i = 0; !ret && i < n; i++) {
        double d = fabs((double)g->logits[0][i] - (double)g->logits[1][i]);

        sum += d;
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (!ret && !isfinite(sum))
        ret = tw_fail(err, g->adapter_dir, 0, "base and adapter give logits that are not finite: "
                "nothing is written");
    else if (!ret)
        tw_notice("merged as %s: logits of %lld probe tokens changed by %.3g at most, %.3g on "
                "average", tw_dtype_name(g->dtype), (long long)g->n, worst, sum / (double)n);
    tw_model_close(m);
    return ret;
}

static int appear(const struct merge *g, struct tw_err *err)
{
    if (tw_fsync_dir(g->tmp, err))
        return -1;
    rmdir(g->out);                  /* an empty folder may be there */
    if (rename(g->tmp, g->out))
        return tw_fail(err, g->out, 0, "cannot rename %s to this: %s", g->tmp, strerror(errno));
    return 0;
}

int tw_train_merge(const struct tw_train_opts *o, struct tw_err *err)
{
    struct merge g = { 0 };
    size_t n = o->out ? strlen(o->out) : 0;
    int ret = -1;

    if (!o->adapter || !n)
        return tw_fail_code(err, TW_EMISUSE, "--merge", 0, "needs --adapter DIR and -o DIR");
    if (!o->model)
        return tw_fail_code(err, TW_EMISUSE, "--model", 0, "MODEL is needed");
    if (!empty_or_missing(o->out))
        return tw_fail(err, o->out, 0, "is there already: give another -o");
    while (n > 1 && o->out[n - 1] == '/')
        n--;
    g.out = tw_xstrndup(o->out, n);
    g.tmp = tw_xasprintf("%s.tmp-%ld", g.out, (long)getpid());
    tw_tmp_sweep(g.out);
    if ((g.model_dir = tw_model_dir(o->model, err)) &&
            (g.adapter_dir = tw_adapter_dir(o->adapter, err)) &&
            !file_dtype(g.model_dir, &g.dtype, err) && !tw_train_device(o, &g.dev, err)) {
        if (o->dtype)
            g.dtype = o->dtype == 1 ? TW_BF16 : TW_F32;
        if (!write_merged(&g, o, err) && !compare(&g, err))
            ret = appear(&g, err);
    }
    if (ret && tw_is_dir(g.tmp))
        tw_rmtree(g.tmp, NULL);
    if (g.dev)
        tw_dev_close(g.dev);
    free(g.logits[0]);
    free(g.logits[1]);
    free(g.model_dir);
    free(g.adapter_dir);
    free(g.out);
    free(g.tmp);
    return ret;
}
