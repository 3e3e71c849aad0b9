/* golden-losses.c - usage: golden-losses FILE.. [--tolerance X]
 * FILE holds losses in Twinkle's form (cases over the same rows, pairs of rows) or Tinker's (sums over
 * unequal rows), with values and gradients in float64. Prints the worst error of each case, |a - b| over the
 * largest |b|, and a closing count; exits 1 when one is over the tolerance (1e-6). Several targets a
 * position go through the CPU's head, whose weights are the identity here, so that its hidden states are
 * the logits and their gradient. */
#include "base/json.h"
#include "nn/loss_fn.h"
#include "nn/loss_logits.h"
#include "nn/ops.h"
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLS = 256 };

struct rows {
    int64_t n, len[ROWS];
    float x[ROWS][COLS];
};

static struct tw_arena arena;
static double tolerance = 1e-6;
static int bad, checks;

static void die(const char *file, const char *msg)
{
    fprintf(stderr, "golden-losses: %s: %s\n", file, msg);
    exit(2);
}

/* A list of lists of numbers, or one list as one row. */
static struct rows *read_rows(const struct tw_json *j)
{
    struct rows *r = tw_arena_alloc(&arena, sizeof(*r));
    bool flat = j && j->n && j->item[0].type != TW_JARR;

    if (!j || j->n > ROWS)
        return NULL;
    r->n = flat ? 1 : j->n;
    for (int64_t i = 0; i < r->n; i++) {
        const struct tw_json *row = flat ? j : &j->item[i];

        r->len[i] = row->n;
        for (int64_t k = 0; k < row->n && k < COLS; k++)
            r->x[i][k] = (float)row->item[k].d;
    }
    return r;
}

/* A list of sums over a sequence, which are doubles: each as a row of two floats that add up to it. */
static struct rows *read_sums(const struct tw_json *j)
{
    struct rows *r = tw_arena_alloc(&arena, sizeof(*r));

    r->n = j->n;
    for (int64_t i = 0; i < j->n && i < ROWS; i++) {
        r->len[i] = 2;
        r->x[i][0] = (float)j->item[i].d;
        r->x[i][1] = (float)(j->item[i].d - (double)r->x[i][0]);
    }
    return r;
}

static void verdict(const char *name, const struct tw_json *params, double value, double want,
        double worst)
{
    double e = fabs(value - want) / fmax(fabs(want), 1e-12);
    bool ok = e <= tolerance && worst <= tolerance;

    checks++;
    bad += !ok;
    printf("  %-20s %.*s: value %.1e, gradient %.1e%s\n", name, params ? (int)params->raw.n : 0,
            params ? params->raw.p : "", e, worst, ok ? "" : "  OVER");
}

/* Worst |a - b| / max|b| over the rows of a gradient. */
static double worst_of(const struct tw_json *want, float (*got)[COLS])
{
    double d = 0, m = 0;

    for (int64_t i = 0; i < want->n; i++)
        for (int64_t k = 0; k < want->item[i].n; k++) {
            d = fmax(d, fabs((double)got[i][k] - want->item[i].item[k].d));
            m = fmax(m, fabs(want->item[i].item[k].d));
        }
    return m > 0 ? d / m : d;
}

/* The reference's names and spellings as a --loss setting. */
static bool setting(char *out, size_t size, const char *name, const struct tw_json *params, bool tinker)
{
    size_t n = (size_t)snprintf(out, size, "%.*s", (int)strcspn(name, "-"), name);

    if (!strcmp(out, "drgrpo"))
        n = (size_t)snprintf(out, size, "dr_grpo");
    if (tinker && strcmp(out, "cross_entropy"))
        n += (size_t)snprintf(out + n, size - n, ",form=tinker");
    for (int64_t i = 0; i < params->n; i++) {
        const struct tw_json *v = &params->item[i];
        struct tw_str text = v->type == TW_JSTR ? v->str : v->raw;

        if (tw_str_is(v->key, "reduction") || (!strncmp(name, "cispo", 5) && tw_str_is(v->key, "epsilon_high")))
            continue;           /* the first is a scale; the reference's cispo does not look at the second */
        if (v->type == TW_JBOOL)
            text = tw_str(v->b ? "on" : "off");
        n += (size_t)snprintf(out + n, size - n, ",%.*s=%.*s", (int)v->key.n, v->key.p, (int)text.n, text.p);
    }
    return n < size;
}

static const char *name_of(const struct tw_json *c)
{
    struct tw_str s = tw_json_get(c, "name")->str;

    return tw_arena_dup(&arena, s.p, s.n);
}

static bool uses(const struct tw_json *c, const char *what)
{
    const struct tw_json *u = tw_json_get(c, "uses");

    for (int64_t i = 0; u && i < u->n; i++)
        if (u->item[i].str.n >= 3 && !memcmp(u->item[i].str.p, what, 3))
            return true;
    return false;
}

/* The scale that the name means, as a trainer would set it. */
static double scale_of(const struct tw_loss *l, const struct tw_json *params, int64_t count, int64_t total,
        int64_t rows)
{
    struct tw_str reduction = { 0 };
    struct tw_err err = { 0 };

    tw_json_get_str(params, "reduction", &reduction, &err);
    switch (l->scale) {
    case TW_SCALE_SEQUENCE:
        return 1.0 / (double)(rows * count);
    case TW_SCALE_CONSTANT:
        return 1.0 / ((double)rows * l->length);
    case TW_SCALE_SUM:
        return 1;
    default:
        return tw_str_is(reduction, "sum") ? 1 : 1.0 / (double)total;
    }
}

static double sequence(const struct tw_loss *l, struct tw_loss_seq *s)
{
    double total = 0;

    if (l->policy)
        return tw_loss_policy(l, s);
    if (l->label)
        return tw_loss_kto(l, s);
    for (int64_t i = 0; i < s->n; i++)
        total += tw_loss_token(l, s->logp[i], s->weight ? s->weight[i] : 1, s->scale, &s->dlogp[i]);
    return total;
}

/* Distillation: a mean over the rows that have a label. */
static void distillation(const struct tw_json *root, const struct tw_json *c)
{
    static float d[ROWS][COLS];
    struct rows *label = read_rows(tw_json_get(root, "labels"));
    const struct tw_json *params = tw_json_get(c, "params"), *want = tw_json_get(c, "grad_logits");
    struct tw_gkd o = { 0.5, 1, 0 };
    struct tw_err err = { 0 };
    double value = 0, worst = 0, total = 0;
    bool in[COLS];

    if (tw_json_get_num(params, "beta", &o.beta, &err) < 0
            || tw_json_get_num(params, "temperature", &o.temperature, &err) < 0
            || tw_json_get_int(params, "topk", &o.top, &err) < 0)
        die("gkd", err.msg);
    for (int64_t i = 0; i < label->n; i++)
        for (int64_t t = 0; t < label->len[i]; t++)
            total += label->x[i][t] != -100;
    for (int64_t i = 0; i < label->n; i++) {
        struct rows *z = read_rows(&tw_json_get(root, "logits")->item[i]);
        struct rows *teacher = read_rows(&tw_json_get(root, "teacher_logits")->item[i]);

        memset(d, 0, sizeof(d));
        for (int64_t t = 0; t < z->n; t++)
            if (label->x[i][t] != -100)
                value += tw_gkd_row(&o, z->x[t], teacher->x[t], z->len[t], 1 / total, d[t], in);
        worst = fmax(worst, worst_of(&want->item[i], d));
    }
    verdict("gkd", params, value, tw_json_get(c, "loss")->d, worst);
}

static void twinkle_case(const char *file, const struct tw_json *root, const struct tw_json *c)
{
    static float d[ROWS][COLS];
    struct rows *logp = read_rows(tw_json_get(root, "logps")), *old = read_rows(tw_json_get(root, "old_logps"));
    struct rows *ref = read_rows(tw_json_get(root, "ref_logps")), *label = read_rows(tw_json_get(root, "labels"));
    struct rows *adv = read_rows(tw_json_get(root, "advantages_in")), *mask = tw_arena_alloc(&arena, sizeof(*mask));
    const struct tw_json *params = tw_json_get(c, "params");
    struct tw_loss_seq s[ROWS];
    int64_t count[ROWS], total = 0, chosen = 0;
    const char *name = name_of(c);
    struct tw_loss l;
    struct tw_err err = { 0 };
    char text[256];
    double value = 0;

    if (!tw_json_get(c, "grad_logps")) {
        distillation(root, c);
        return;
    }
    if (!setting(text, sizeof(text), name, params, false) || tw_loss_parse(&l, file, text, &err))
        die(text, err.msg);
    for (int64_t i = 0; i < logp->n; i++) {
        count[i] = 0;
        for (int64_t k = 0; k < logp->len[i]; k++)
            count[i] += (mask->x[i][k] = label->x[i][k] != -100);
        total += count[i];
        chosen += i % 2 ? 0 : count[i];
        s[i] = (struct tw_loss_seq){ .n = logp->len[i], .logp = logp->x[i], .weight = mask->x[i],
            .old = uses(c, "old") ? old->x[i] : NULL, .ref = uses(c, "ref") ? ref->x[i] : NULL,
            .adv = adv->x[0][i], .dlogp = d[i] };
    }
    for (int64_t i = 0; i < logp->n; i++) {
        s[i].scale = l.pairs ? 2.0 / (double)logp->n : scale_of(&l, params, count[i], total, logp->n);
        if (!l.pairs)
            value += sequence(&l, &s[i]);
    }
    for (int64_t i = 0; l.pairs && i < logp->n; i += 2)
        value += tw_loss_pair(&l, &s[i], &s[i + 1], 1.0 / (double)chosen);
    verdict(name, params, value, tw_json_get(c, "loss")->d, worst_of(tw_json_get(c, "grad_logps"), d));
}

static void tinker_case(const char *file, const struct tw_json *root, const struct tw_json *c)
{
    static float d[ROWS][COLS];
    struct rows *logp = read_rows(tw_json_get(root, "logps"));
    struct rows *old = read_rows(tw_json_get(root, "sampling_logps")), *adv = read_rows(tw_json_get(root, "advantages"));
    struct rows *weight = read_rows(tw_json_get(root, "weights"));
    struct rows *mask = read_rows(tw_json_get(root, "sequence_ratio_mask"));
    const struct tw_json *params = tw_json_get(c, "params");
    const char *name = name_of(c);
    struct tw_loss l;
    struct tw_err err = { 0 };
    char text[256];
    double value = 0;

    if (!setting(text, sizeof(text), name, params, true) || tw_loss_parse(&l, file, text, &err))
        die(text, err.msg);
    for (int64_t i = 0; i < logp->n; i++) {
        struct tw_loss_seq s = { .n = logp->len[i], .logp = logp->x[i], .scale = 1, .dlogp = d[i] };

        if (l.policy) {
            s.old = old->x[i];
            s.advantage = adv->x[i];
            s.ratio_mask = mask->x[i];
        } else {
            s.weight = weight->x[i];
        }
        value += sequence(&l, &s);
    }
    verdict(name, params, value, tw_json_get(c, "loss")->d, worst_of(tw_json_get(c, "grad_logps"), d));
}

/* Preference losses over sums of log-probabilities, a pair an entry. */
static void tinker_pairs(const char *file, const struct tw_json *p, const struct tw_json *c)
{
    struct rows *ch = read_sums(tw_json_get(p, "chosen")), *re = read_sums(tw_json_get(p, "rejected"));
    struct rows *rc = read_sums(tw_json_get(p, "ref_chosen")), *rr = read_sums(tw_json_get(p, "ref_rejected"));
    const struct tw_json *params = tw_json_get(c, "params"), *gc = tw_json_get(c, "grad_chosen");
    const struct tw_json *gr = tw_json_get(c, "grad_rejected");
    const char *name = name_of(c);
    struct tw_loss l;
    struct tw_err err = { 0 };
    char text[256];
    double value = 0, worst = 0, m = 0;
    float dc[2], dr[2];

    if (!setting(text, sizeof(text), name, params, false) || tw_loss_parse(&l, file, text, &err))
        die(text, err.msg);
    if (strstr(name, "robust"))
        l.kind = TW_DPO_ROBUST;
    for (int64_t i = 0; i < ch->n; i++) {
        struct tw_loss_seq a = { .n = 2, .logp = ch->x[i], .ref = rc->x[i], .dlogp = dc,
            .scale = 1.0 / (double)ch->n };
        struct tw_loss_seq b = { .n = 2, .logp = re->x[i], .ref = rr->x[i], .dlogp = dr };

        value += tw_loss_pair(&l, &a, &b, 0);
        worst = fmax(worst, fmax(fabs((double)dc[0] - gc->item[i].d), fabs((double)dr[0] - gr->item[i].d)));
        m = fmax(m, fmax(fabs(gc->item[i].d), fabs(gr->item[i].d)));
    }
    verdict(name, params, value, tw_json_get(c, "loss")->d, worst / m);
}

static void tinker_kto(const char *file, const struct tw_json *p, const struct tw_json *c)
{
    struct rows *logp = read_sums(tw_json_get(p, "logps")), *ref = read_sums(tw_json_get(p, "ref_logps"));
    struct rows *label = read_rows(tw_json_get(p, "label"));
    const struct tw_json *params = tw_json_get(c, "params"), *want = tw_json_get(c, "grad_logps");
    struct tw_loss l;
    struct tw_err err = { 0 };
    char text[256];
    double value = 0, worst = 0, m = 0;
    float d[2];

    if (!setting(text, sizeof(text), "kto", params, false) || tw_loss_parse(&l, file, text, &err))
        die(text, err.msg);
    for (int64_t i = 0; i < logp->n; i++) {
        struct tw_loss_seq s = { .n = 2, .logp = logp->x[i], .ref = ref->x[i], .dlogp = d,
            .label = label->x[0][i] != 0, .scale = 1.0 / (double)logp->n };

        value += tw_loss_kto(&l, &s);
        worst = fmax(worst, fabs((double)d[0] - want->item[i].d));
        m = fmax(m, fabs(want->item[i].d));
    }
    verdict("kto", params, value, tw_json_get(c, "loss")->d, worst / m);
}

/* Several targets with weights at each position: through the head of the device. */
static void tinker_targets(const char *file, const struct tw_json *c)
{
    static float d[ROWS][COLS];
    static const struct tw_loss ce = { .form = TW_LOSS_CROSS_ENTROPY };
    struct rows *z = read_rows(tw_json_get(c, "logits")), *weight = read_rows(tw_json_get(c, "weights"));
    const struct tw_json *target = tw_json_get(c, "target_tokens");
    int64_t V = z->len[0], n = z->n, k = weight->len[0];
    int32_t row[ROWS], id[ROWS];
    float coef[ROWS], logp[ROWS], one[COLS] = { 0 };
    struct tw_err err = { 0 };
    struct tw_dev *dev = tw_cpu_open(1, "auto", &err);
    const struct tw_ops *ops = dev ? tw_ops(dev) : NULL;
    struct tw_tensor h = { z->x, TW_F32, n, V, COLS, false }, dh = { d, TW_F32, n, V, COLS, false };
    struct tw_mat w = { .rows = V, .cols = V, .dtype = TW_F32 };
    struct tw_head q = { .h = &h, .w = &w, .n = n * k, .row = row, .target = id, .logp = logp, .coef = coef,
        .dh = &dh };
    double value = 0;

    if (!dev || n * k > ROWS || V > COLS
            || !(w.data = ops->alloc(dev, 4 * (size_t)ops->mat_elems(dev, V, V, TW_F32), &err)))
        die(file, dev ? "the targets are too many" : err.msg);
    for (int64_t v = 0; v < V; v++) {
        one[v] = 1;
        ops->mat_put(dev, &w, one, TW_F32, v, 1);
        one[v] = 0;
    }
    for (int64_t i = 0; i < n * k; i++) {
        row[i] = (int32_t)(i / k);
        id[i] = (int32_t)target->item[i / k].item[i % k].i;
        tw_loss_token(&ce, 0, weight->x[i / k][i % k], 1, &coef[i]);
    }
    ops->head(dev, &q);
    if (ops->sync(dev, &err))
        die(file, err.msg);
    for (int64_t i = 0; i < n * k; i++)
        value += tw_loss_token(&ce, logp[i], weight->x[i / k][i % k], 1, &coef[i]);
    verdict("multi_target", NULL, value, tw_json_get(c, "loss")->d, worst_of(tw_json_get(c, "grad_logits"), d));
    ops->free(dev, w.data);
    tw_dev_close(dev);
}

static void each(const char *file, const struct tw_json *root, const struct tw_json *list,
        void (*f)(const char *, const struct tw_json *, const struct tw_json *))
{
    const struct tw_json *cases = list ? tw_json_get(list, "cases") : NULL;

    for (int64_t i = 0; cases && i < cases->n; i++)
        f(file, root, &cases->item[i]);
}

int main(int argc, char **argv)
{
    struct tw_err err = { 0 };

    for (int i = 1; i < argc; i++) {
        struct tw_json *root;

        if (!strcmp(argv[i], "--tolerance") && i + 1 < argc) {
            tolerance = strtod(argv[++i], NULL);
            continue;
        }
        if (!(root = tw_json_file(&arena, argv[i], 0, &err)))
            die(argv[i], err.msg);
        printf("%s\n", argv[i]);
        if (tw_json_get(root, "sampling_logps")) {
            each(argv[i], root, root, tinker_case);
            each(argv[i], tw_json_get(root, "pairs"), tw_json_get(root, "pairs"), tinker_pairs);
            each(argv[i], tw_json_get(root, "kto"), tw_json_get(root, "kto"), tinker_kto);
            if (tw_json_get(root, "multi_target"))
                tinker_targets(argv[i], tw_json_get(root, "multi_target"));
        } else {
            each(argv[i], root, root, twinkle_case);
        }
    }
    printf("%d of %d losses within %.0e", checks - bad, checks, tolerance);
    printf("\n");
    tw_arena_free(&arena);
    return bad || !checks;
}
