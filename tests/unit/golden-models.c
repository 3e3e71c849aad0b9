/* golden-models.c - usage: golden-models DIR.. [--device D] [--dtype f32|bf16] [--tolerance X]
 * DIR is a model folder with expected.json and expected.safetensors: logits, log-probabilities, loss
 * and gradients of its rows, the same with the LoRA in adapter/, losses and gradient norms of AdamW,
 * greedy tokens. Prints the worst relative error of each, max|a - b| / max|b|, in bf16, where single
 * numbers are noise, |a - b| / |b| as vectors, of the experts that f32 chooses (in all but logits, greedy
 * tokens and AdamW's steps); exits 1 when one is over the tolerance. Also that rows packed together and
 * alone give the same bits. */
#include "base/io.h"
#include "base/json.h"
#include "nn/model_priv.h"
#include "help_golden.h"
#include "help_grads.h"
#include "nn/optim.h"
#include <math.h>

struct golden {
    const char *dir;
    struct tw_dev *dev;
    enum tw_dtype dtype;
    double tol;
    struct tw_weights file;
    struct tw_json *json;
    struct tw_arena arena;
    int64_t B, N;               /* rows, tokens of each */
    const int32_t *ids, *labels;
    int32_t *experts;           /* [B, N, width] to be used; NULL: the model chooses */
    int64_t width;
    int bad, checks;
};

static void verdict(struct golden *g, const char *what, double worst, const char *where)
{
    bool ok = worst <= g->tol;

    g->checks++;
    g->bad += !ok;
    printf("  %-22s %.2e%s%s%s\n", what, worst, where ? " at " : "", where ? where : "",
            ok ? "" : "  OVER");
}

static void exact(struct golden *g, const char *what, bool ok)
{
    g->checks++;
    g->bad += !ok;
    printf("  %-22s %s\n", what, ok ? "same bits" : "DIFFERS");
}

static bool as_vectors;
static double rel(const float *a, const float *b, int64_t n)
{
    return help_rel(a, b, n, as_vectors);
}

/* Rows alone beside rows packed: the same bits; on a GPU, whose library may take another kernel for another
 * number of rows, the tolerance. */
static void alone(struct golden *g, const char *what, const float *a, const float *b, int64_t n)
{
    if (!memcmp(a, b, (size_t)n * sizeof *a) || !strcmp(tw_ops(g->dev)->name, "cpu"))
        exact(g, what, !memcmp(a, b, (size_t)n * sizeof *a));
    else
        verdict(g, what, rel(a, b, n), NULL);
}

static const float *tensor(struct golden *g, const char *name, int64_t *n)
{
    struct tw_wtensor *t = tw_weights_find(&g->file, tw_str(name));

    if (n)
        *n = t ? t->n : 0;
    return t ? t->data : NULL;
}

static int die(const struct tw_err *err)
{
    printf("  error: %s: %s\n", err->place, err->msg);
    return -1;
}

static struct tw_model *open_model(struct golden *g, bool train)
{
    struct tw_model_opts o = { .dtype = g->dtype, .train = train };
    struct tw_err err = { 0 };
    struct tw_model *m = tw_model_open(g->dir, g->dev, &o, &err);

    if (!m)
        die(&err);
    return m;
}

/* The experts of row S, from its first token on. */
static const int32_t *experts_of(const struct golden *g, int64_t s)
{
    return g->experts ? g->experts + s * g->N * g->width : NULL;
}

/* One row for every next token; coef makes the loss the mean over labels that are not -100. */
static struct tw_row *all_rows(struct golden *g, int64_t *n)
{
    struct tw_row *r = tw_xcalloc((size_t)(g->B * g->N), sizeof *r);
    int64_t count = 0;

    *n = 0;
    for (int64_t i = 0; i < g->B * g->N; i++)
        count += i % g->N && g->labels[i] != -100;
    for (int64_t s = 0; s < g->B; s++)
        for (int64_t at = 0; at + 1 < g->N; at++)
            r[(*n)++] = (struct tw_row){ .s = s, .at = at, .temp = 1,
                .target = g->ids[s * g->N + at + 1],
                .coef = g->labels[s * g->N + at + 1] != -100 ? -1.0f / (float)count : 0 };
    return r;
}

static void all_seqs(struct golden *g, struct tw_seq *seq, struct tw_adapter *a)
{
    for (int64_t s = 0; s < g->B; s++)
        seq[s] = (struct tw_seq){ .token = g->ids + s * g->N, .n = g->N, .adapter = a };
}

/* Log-probabilities into LOGP, gradients when FLAGS say so. Returns the loss, NaN after an error. */
static double run(struct golden *g, struct tw_model *m, struct tw_adapter *a, unsigned flags,
        float *logp)
{
    struct tw_seq seq[8];
    struct tw_err err = { 0 };
    int64_t n;
    struct tw_row *row = all_rows(g, &n);
    double loss = 0;

    all_seqs(g, seq, a);
    for (int64_t s = 0; s < g->B; s++)
        seq[s].experts = experts_of(g, s);
    if (tw_model_run(m, seq, g->B, row, n, flags, NULL, NULL, &err)) {
        die(&err);
        loss = NAN;
    }
    for (int64_t i = 0; i < n; i++) {
        if (logp)
            logp[i] = row[i].logp;
        loss += (double)row[i].logp * (double)row[i].coef;
    }
    free(row);
    return loss;
}

static void check_alone(struct golden *g, struct tw_model *m, const float *packed)
{
    struct tw_err err = { 0 };
    int64_t n, len = g->N - 1, cut = g->N < 70 ? g->N : 70;
    struct tw_row *row = all_rows(g, &n);
    const float *want = tensor(g, "logprobs_row1_first70", NULL);
    float *got = tw_xcalloc((size_t)(g->B * len + 70), sizeof *got);

    for (int64_t s = 0; s < g->B; s++) {
        struct tw_seq seq = { .token = g->ids + s * g->N, .n = g->N, .experts = experts_of(g, s) };

        for (int64_t i = 0; i < len; i++)
            row[i].s = 0;
        if (tw_model_run(m, &seq, 1, row, len, 0, NULL, NULL, &err))
            die(&err);
        for (int64_t i = 0; i < len; i++) {
            got[s * len + i] = row[i].logp;
            row[i].target = g->ids[(s + 1) % g->B * g->N + i + 1];
        }
    }
    alone(g, "rows alone", got, packed, g->B * len);
    if (g->B > 1 && want) {
        struct tw_seq seq = { .token = g->ids + g->N, .n = cut, .experts = experts_of(g, 1) };

        for (int64_t i = 0; i < cut - 1; i++)
            row[i] = (struct tw_row){ .at = i, .temp = 1, .target = g->ids[g->N + i + 1] };
        if (tw_model_run(m, &seq, 1, row, cut - 1, 0, NULL, NULL, &err))
            die(&err);
        for (int64_t i = 0; i < cut - 1; i++)
            got[i] = row[i].logp;
        alone(g, "first 70 alone", got, packed + len, cut - 1);
        verdict(g, "first 70", rel(got, want, cut - 1), NULL);
    }
    free(got);
    free(row);
}

/* What rounding makes of a choice is another model: in bf16 the experts that f32 chooses, ADAPTER (a folder)
 * included, are used. False: there is an error. */
static bool choose_experts(struct golden *g, const char *adapter)
{
    struct tw_err err = { 0 };

    free(g->experts);
    g->experts = NULL;
    if (as_vectors && help_experts(g->dev, g->dir, adapter, g->ids, g->B, g->N, &g->experts, &g->width, &err)) {
        g->bad += die(&err) != 0;
        return false;
    }
    return true;
}

/* Logits of all rows come from one packed prefill of decode states. */
static void check_logits(struct golden *g, struct tw_model *m)
{
    int64_t V = tw_model_info(m)->V, n = g->B * g->N, want_n, rows_n;
    const float *want = tensor(g, "logits", &want_n);
    const int32_t *rows = (const void *)tensor(g, "logits_rows", &rows_n);
    int64_t *at = tw_xcalloc((size_t)n, sizeof *at);
    struct tw_seq seq[8];
    struct tw_err err = { 0 };
    float *got;

    if (!want) {
        want = tensor(g, "logits_at_rows", &want_n);
        n = rows_n;
    }
    got = tw_xcalloc((size_t)(n * V), sizeof *got);
    for (int64_t i = 0; i < n; i++)
        at[i] = rows ? rows[i] : i;
    all_seqs(g, seq, NULL);
    for (int64_t s = 0; s < g->B; s++)
        seq[s].state = tw_state_new(m, &err);
    if (tw_model_decode(m, seq, g->B, at, n, got, &err))
        die(&err);
    verdict(g, "logits", want && want_n == n * V ? rel(got, want, n * V) : INFINITY, NULL);
    for (int64_t s = 0; s < g->B; s++)
        tw_state_free(seq[s].state);
    free(at);
    free(got);
}

static int32_t argmax(const float *z, int64_t n)
{
    int32_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (z[i] > z[best])
            best = (int32_t)i;
    return best;
}

static void check_greedy(struct golden *g, struct tw_model *m)
{
    const struct tw_json *prompt = tw_json_get(g->json, "greedy_prompt");
    const struct tw_json *tok = tw_json_get(g->json, "greedy_tokens");
    const struct tw_json *lp = tw_json_get(g->json, "greedy_logprobs");
    int64_t V = tw_model_info(m)->V, n = prompt ? prompt->n : 2000, hits = 0, last = n - 1;
    int32_t *ids = tw_xcalloc((size_t)n, sizeof *ids);
    float *z = tw_xcalloc((size_t)V, sizeof *z), *got = tw_xcalloc((size_t)tok->n, sizeof *got);
    float *want = tw_xcalloc((size_t)tok->n, sizeof *want);
    struct tw_err err = { 0 };
    struct tw_seq seq = { .token = ids, .n = n, .state = tw_state_new(m, &err) };

    for (int64_t i = 0; i < n; i++)
        ids[i] = prompt ? (int32_t)prompt->item[i].i : g->ids[i];
    for (int64_t i = 0; i < tok->n; i++) {
        if (tw_model_decode(m, &seq, 1, &last, 1, z, &err)) {
            die(&err);
            break;
        }
        ids[0] = argmax(z, V);
        hits += ids[0] == tok->item[i].i;
        got[i] = tw_ops(g->dev)->pick(g->dev, z, V, 1, (int32_t)tok->item[i].i);
        want[i] = (float)lp->item[i].d;
        ids[0] = (int32_t)tok->item[i].i;
        seq.n = 1;
        last = 0;
    }
    printf("  %-22s %lld of %lld tokens\n", "greedy", (long long)hits, (long long)tok->n);
    g->checks++;
    g->bad += g->dtype == TW_F32 && hits != tok->n;
    verdict(g, "greedy logprobs", rel(got, want, tok->n), NULL);
    tw_state_free(seq.state);
    free(ids);
    free(z);
    free(got);
    free(want);
}

/* An adapter's gradients by the names and in the order of its files. */
static void check_lora_grads(struct golden *g, const struct tw_adapter *a)
{
    double worst = 0;
    const char *where = "";
    int64_t n;
    struct tw_afile *f = tw_adapter_files(a, &n);

    for (int64_t i = 0; i < n; i++) {
        char *name = tw_xasprintf("lora_grad.%s", f[i].name);
        int64_t len = f[i].rows * f[i].cols, want_n;
        const float *want = tensor(g, name, &want_n);
        float *got = tw_xcalloc((size_t)len, sizeof *got);
        double e;

        tw_ops(g->dev)->get(g->dev, got, f[i].p->g + f[i].at, (size_t)len * sizeof *got);
        tw_afile_turn(&f[i], got, true);
        e = want && want_n == len ? rel(got, want, len) : INFINITY;
        if (!(e <= worst)) {
            worst = e;
            where = f[i].name;
        }
        free(got);
        free(name);
    }
    verdict(g, "LoRA gradients", worst, where);
    tw_adapter_files_free(f, n);
}

static void check_grads(struct golden *g, const struct tw_params *ps)
{
    double worst = 0, sum = 0;
    const char *where = "";

    tw_params_join(g->dev, ps);
    for (int64_t i = 0; i < ps->n; i++) {
        char *name = tw_xasprintf("grad.%s", ps->p[i].name);
        int64_t n = tw_mat_size(&ps->p[i].w), want_n;
        const float *want = tensor(g, name, &want_n);
        float *got = help_grad(g->dev, &ps->p[i]);
        double e = want && want_n == n ? rel(got, want, n) : INFINITY;

        if (!(e <= worst)) {
            worst = e;
            where = ps->p[i].name;
        }
        for (int64_t k = 0; k < n; k++)
            sum += (double)got[k] * (double)got[k];
        free(got);
        free(name);
    }
    verdict(g, "gradients", worst, where);
    verdict(g, "gradient norm", help_rel1(sqrt(sum), tw_json_get(g->json, "grad_norm")->d), NULL);
}

static void check_adamw(struct golden *g, struct tw_model *m, struct tw_adapter *a, const char *key)
{
    const struct tw_json *j = tw_json_get(g->json, key), *loss, *norm, *clip;
    const struct tw_params *ps = a ? tw_adapter_params(a) : tw_model_params(m);
    struct tw_optim_opts o = { .kind = TW_ADAMW, .eps = 1e-8, .decay_all = true };
    struct tw_optim_report rep;
    struct tw_optim *opt;
    struct tw_err err = { 0 };
    int32_t *experts = g->experts;
    double worst = 0, worst_norm = 0;

    if (!j)
        return;
    loss = tw_json_get(j, "losses");
    norm = tw_json_get(j, "grad_norms");
    clip = tw_json_get(j, "clip");
    o.beta1 = tw_json_get(j, "betas")->item[0].d;
    o.beta2 = tw_json_get(j, "betas")->item[1].d;
    tw_json_get_num(j, "eps", &o.eps, NULL);
    o.decay = tw_json_get(j, "weight_decay")->d;
    opt = tw_optim_open(g->dev, ps, a != NULL, &o, &err);
    help_zero_grads(g->dev, ps);
    g->experts = NULL;          /* they are others after a step */
    for (int64_t i = 0; i < loss->n; i++) {
        worst = fmax(worst, help_rel1(run(g, m, a, TW_BACKWARD, NULL), loss->item[i].d));
        if (tw_optim_step(opt, tw_json_get(j, "lr")->d, clip ? clip->d : 0, &rep, &err)) {
            die(&err);
            worst = INFINITY;
            break;
        }
        if (norm && i < norm->n)
            worst_norm = fmax(worst_norm, help_rel1(rep.norm, norm->item[i].d));
    }
    g->experts = experts;
    tw_optim_close(opt);
    verdict(g, a ? "LoRA AdamW losses" : "AdamW losses", worst, NULL);
    if (norm)
        verdict(g, "AdamW gradient norms", worst_norm, NULL);
}

static void check_infer(struct golden *g)
{
    struct tw_model *m = open_model(g, false);
    int64_t n = g->B * (g->N - 1);
    float *logp = tw_xcalloc((size_t)n, sizeof *logp);
    double loss;

    if (!m) {
        g->bad++;
        free(logp);
        return;
    }
    check_logits(g, m);
    loss = run(g, m, NULL, 0, logp);
    verdict(g, "logprobs", rel(logp, tensor(g, "logprobs", NULL), n), NULL);
    verdict(g, "loss", help_rel1(loss, tw_json_get(g->json, "loss")->d), NULL);
    check_alone(g, m, logp);
    check_greedy(g, m);
    tw_model_close(m);
    free(logp);
}

static void check_full(struct golden *g)
{
    struct tw_model *m = open_model(g, true);

    if (!m) {
        g->bad++;
        return;
    }
    run(g, m, NULL, TW_BACKWARD, NULL);
    check_grads(g, tw_model_params(m));
    check_adamw(g, m, NULL, "adamw");
    tw_model_close(m);
}

static void check_lora(struct golden *g)
{
    char *dir = tw_path_join(g->dir, "adapter");
    struct tw_model *m = tw_is_dir(dir) ? open_model(g, false) : NULL;
    struct tw_err err = { 0 };
    struct tw_adapter *a = m ? tw_adapter_open(m, dir, true, &err) : NULL;
    int64_t n = g->B * (g->N - 1);
    float *logp = tw_xcalloc((size_t)n, sizeof *logp);
    double loss;

    if (m && !a)
        g->bad += die(&err) != 0;
    if (a && choose_experts(g, dir)) {
        loss = run(g, m, a, TW_BACKWARD, logp);
        verdict(g, "LoRA logprobs", rel(logp, tensor(g, "lora.logprobs", NULL), n), NULL);
        verdict(g, "LoRA loss", help_rel1(loss, tw_json_get(g->json, "lora_loss")->d), NULL);
        check_lora_grads(g, a);
        check_adamw(g, m, a, "lora_adamw");
    }
    tw_adapter_close(a);
    tw_model_close(m);
    free(logp);
    free(dir);
}

static int check_dir(struct golden *g)
{
    char *path = tw_path_join(g->dir, "expected.safetensors");
    char *json = tw_path_join(g->dir, "expected.json");
    struct tw_err err = { 0 };
    struct tw_wtensor *t;

    printf("%s\n", g->dir);
    g->json = tw_json_file(&g->arena, json, 0, &err);
    if (!g->json || tw_weights_open(&g->file, path, &err)) {
        g->bad += die(&err) != 0;
    } else {
        t = tw_weights_find(&g->file, TW_STR_LIT("input_ids"));
        g->B = t->dim[0];
        g->N = t->dim[1];
        g->ids = t->data;
        g->labels = (const void *)tensor(g, "labels", NULL);
        if (choose_experts(g, NULL)) {
            check_infer(g);
            check_full(g);
        }
        check_lora(g);
    }
    free(g->experts);
    tw_weights_close(&g->file);
    tw_arena_free(&g->arena);
    free(path);
    free(json);
    fflush(stdout);
    return g->bad != 0;
}

int main(int argc, char **argv)
{
    struct golden g = { .dtype = TW_F32 };
    struct tw_err err = { 0 };
    const char *device = "cpu";
    int bad = 0, ndir = 0;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;

        if (!strcmp(argv[i], "--device") && more)
            device = argv[++i];
        else if (!strcmp(argv[i], "--dtype") && more)
            g.dtype = strcmp(argv[++i], "bf16") ? TW_F32 : TW_BF16;
        else if (!strcmp(argv[i], "--tolerance") && more)
            g.tol = strtod(argv[++i], NULL);
        else
            argv[ndir++] = argv[i];
    }
    if (!ndir) {
        fprintf(stderr, "usage: golden-models DIR.. [--device D] [--dtype f32|bf16] [--tolerance X]\n");
        return 2;
    }
    as_vectors = g.dtype == TW_BF16;
    g.tol = g.tol > 0 ? g.tol : as_vectors ? 2e-2 : 1e-4;
    g.dev = tw_dev_open(device, 0, &err);
    if (!g.dev)
        return die(&err) != 0;
    for (int i = 0; i < ndir; i++) {
        struct golden one = g;

        one.dir = argv[i];
        bad += check_dir(&one);
    }
    tw_dev_close(g.dev);
    printf("%d of %d models within %.0e\n", ndir - bad, ndir, g.tol);
    return bad != 0;
}
