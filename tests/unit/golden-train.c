/* golden-train.c - usage: golden-train MODEL CASE.json [--tolerance X] [--dtype f32|bf16]
 * CASE.json: `tokens`, `labels` (-100: not trained; not shifted), `logprobs` of each next token,
 * `loss`, `grad_norm`, `grads` {name: {norm, max, at, values}} and `adamw` {lr, betas, eps,
 * weight_decay, clip, losses, grad_norms}, as a reference implementation computed them for MODEL.
 * Prints the worst relative error of each and exits 1 when one is over the tolerance (1e-4). */
#include "base/json.h"
#include "base/log.h"
#include "nn/optim.h"
#include <math.h>

struct golden {
    struct tw_dev *dev;
    struct tw_model *m;
    const struct tw_json *json;
    struct tw_arena arena;
    double tol;
    int64_t nseq, nrow;
    struct tw_seq *seq;
    struct tw_row *row;
    int bad;
};

static void verdict(struct golden *g, const char *what, double worst, const char *where)
{
    bool ok = worst <= g->tol;

    g->bad += !ok;
    printf("  %-22s %.2e%s%s%s\n", what, worst, where ? " at " : "", where ? where : "",
            ok ? "" : "  OVER");
    fflush(stdout);
}

static int die(const struct tw_err *err)
{
    printf("error: %s: %s\n", err->place, err->msg);
    return 1;
}

static double rel1(double a, double b)
{
    return isfinite(a) ? fabs(a - b) / fabs(b) : INFINITY;
}

static void build(struct golden *g)
{
    const struct tw_json *tok = tw_json_get(g->json, "tokens"), *lab = tw_json_get(g->json, "labels");
    int64_t total = 0, count = 0;

    g->nseq = tok->n;
    g->seq = tw_arena_alloc(&g->arena, (size_t)tok->n * sizeof *g->seq);
    for (int64_t s = 0; s < tok->n; s++) {
        int32_t *ids = tw_arena_alloc(&g->arena, (size_t)tok->item[s].n * sizeof *ids);

        for (int64_t i = 0; i < tok->item[s].n; i++)
            ids[i] = (int32_t)tok->item[s].item[i].i;
        g->seq[s] = (struct tw_seq){ .token = ids, .n = tok->item[s].n };
        total += tok->item[s].n;
    }
    g->row = tw_arena_alloc(&g->arena, (size_t)total * sizeof *g->row);
    for (int64_t s = 0; s < tok->n; s++) {
        for (int64_t i = 1; i < tok->item[s].n; i++) {
            bool on = lab->item[s].item[i].i != -100;

            count += on;
            g->row[g->nrow++] = (struct tw_row){ .s = s, .at = i - 1, .temp = 1,
                .target = g->seq[s].token[i], .coef = on };
        }
    }
    for (int64_t i = 0; i < g->nrow; i++)
        g->row[i].coef /= -(float)count;
}

static double run(struct golden *g, unsigned flags)
{
    struct tw_err err = { 0 };
    double loss = 0, t = tw_now();

    if (tw_model_run(g->m, g->seq, g->nseq, g->row, g->nrow, flags, NULL, NULL, &err))
        return die(&err) ? NAN : 0;
    for (int64_t i = 0; i < g->nrow; i++)
        loss += (double)g->row[i].coef * (double)g->row[i].logp;
    printf("  # %s: %.2f s\n", flags & TW_BACKWARD ? "forward and backward" : "forward",
            tw_now() - t);
    return loss;
}

static void check_logprobs(struct golden *g, const char *what)
{
    const struct tw_json *want = tw_json_get(g->json, "logprobs");
    double d = 0, m = 0;

    for (int64_t i = 0; i < g->nrow; i++) {
        double w = want->item[g->row[i].s].item[g->row[i].at].d;

        d = fmax(d, fabs((double)g->row[i].logp - w));
        m = fmax(m, fabs(w));
    }
    verdict(g, what, d / m, NULL);
}

static void check_grads(struct golden *g)
{
    const struct tw_params *ps = tw_model_params(g->m);
    const struct tw_json *grads = tw_json_get(g->json, "grads");
    double worst = 0, worst_norm = 0, sum = 0;
    const char *where = "", *where_norm = "";

    tw_params_join(g->dev, ps);
    for (int64_t i = 0; i < ps->n; i++) {
        const struct tw_param *p = &ps->p[i];
        const struct tw_json *want = tw_json_get(grads, p->name), *at, *val;
        int64_t n = tw_mat_size(&p->w);
        float *got = tw_xcalloc((size_t)n, sizeof *got);
        struct tw_mat gm = p->w;
        double sq = 0, max = tw_json_get(want, "max")->d, e;

        gm.data = p->g;
        gm.dtype = TW_F32;
        gm.low = NULL;
        if (p->matrix)
            tw_ops(g->dev)->mat_get(g->dev, got, &gm, 0, gm.rows);
        else
            tw_ops(g->dev)->get(g->dev, got, p->g, (size_t)n * sizeof *got);
        for (int64_t k = 0; k < n; k++)
            sq += (double)got[k] * (double)got[k];
        sum += sq;
        e = rel1(sqrt(sq), tw_json_get(want, "norm")->d);
        if (e > worst_norm) {
            worst_norm = e;
            where_norm = p->name;
        }
        at = tw_json_get(want, "at");
        val = tw_json_get(want, "values");
        for (int64_t k = 0; k < at->n; k++) {
            e = fabs((double)got[at->item[k].i] - val->item[k].d) / max;
            if (!(e <= worst)) {
                worst = e;
                where = p->name;
            }
        }
        free(got);
    }
    verdict(g, "gradient samples", worst, where);
    verdict(g, "norms of gradients", worst_norm, where_norm);
    verdict(g, "gradient norm", rel1(sqrt(sum), tw_json_get(g->json, "grad_norm")->d), NULL);
}

static void check_adamw(struct golden *g)
{
    const struct tw_json *j = tw_json_get(g->json, "adamw"), *loss = tw_json_get(j, "losses");
    const struct tw_json *norm = tw_json_get(j, "grad_norms");
    struct tw_optim_opts o = { .kind = TW_ADAMW, .decay_all = true,
        .beta1 = tw_json_get(j, "betas")->item[0].d, .beta2 = tw_json_get(j, "betas")->item[1].d,
        .eps = tw_json_get(j, "eps")->d, .decay = tw_json_get(j, "weight_decay")->d };
    struct tw_err err = { 0 };
    struct tw_optim *opt = tw_optim_open(g->dev, tw_model_params(g->m), false, &o, &err);
    struct tw_optim_report rep;
    double worst = 0, worst_norm = 0;

    for (int64_t i = 0; opt && i < loss->n; i++) {
        worst = fmax(worst, rel1(run(g, TW_BACKWARD | (i ? TW_RECOMPUTE : 0)), loss->item[i].d));
        if (tw_optim_step(opt, tw_json_get(j, "lr")->d, tw_json_get(j, "clip")->d, &rep, &err))
            g->bad += die(&err);
        worst_norm = fmax(worst_norm, rel1(rep.norm, norm->item[i].d));
    }
    tw_optim_close(opt);
    verdict(g, "AdamW losses", opt ? worst : INFINITY, NULL);
    verdict(g, "AdamW gradient norms", worst_norm, NULL);
}

static int check(struct golden *g, const char *dir, const char *path, enum tw_dtype dtype)
{
    struct tw_model_opts o = { .dtype = dtype, .train = true };
    struct tw_err err = { 0 };
    double t = tw_now();

    g->json = tw_json_file(&g->arena, path, 0, &err);
    g->m = g->json ? tw_model_open(dir, g->dev, &o, &err) : NULL;
    if (!g->m)
        return die(&err);
    printf("  # opened: %.2f s\n", tw_now() - t);
    build(g);
    tw_params_zero(g->dev, tw_model_params(g->m));
    verdict(g, "loss", rel1(run(g, 0), tw_json_get(g->json, "loss")->d), NULL);
    check_logprobs(g, "logprobs");
    run(g, TW_BACKWARD);
    check_grads(g);
    tw_params_zero(g->dev, tw_model_params(g->m));
    check_adamw(g);
    printf("%s: %d over %.0e\n", path, g->bad, g->tol);
    return g->bad != 0;
}

int main(int argc, char **argv)
{
    struct golden g = { .tol = 1e-4 };
    enum tw_dtype dtype = TW_F32;
    const char *device = "cpu";
    struct tw_err err = { 0 };
    int n = 0, ret;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tolerance") && i + 1 < argc)
            g.tol = strtod(argv[++i], NULL);
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            device = argv[++i];
        else if (!strcmp(argv[i], "--dtype") && i + 1 < argc)
            dtype = strcmp(argv[++i], "bf16") ? TW_F32 : TW_BF16;
        else
            argv[n++] = argv[i];
    }
    if (n != 2) {
        fprintf(stderr, "usage: golden-train MODEL CASE.json [--tolerance X] [--dtype f32|bf16] "
                "[--device D]\n");
        return 2;
    }
    g.dev = tw_dev_open(device, 0, &err);
    if (!g.dev)
        return die(&err);
    ret = check(&g, argv[0], argv[1], dtype);
    tw_model_close(g.m);
    tw_dev_close(g.dev);
    tw_arena_free(&g.arena);
    return ret;
}
