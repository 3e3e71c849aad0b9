/* nat_fb.c - forward_backward, and its parts, as the engine's arguments: what a loss is told of each position,
 * and by what its sum is divided */
#include "serve/nat.h"
#include <math.h>

struct fb {
    struct tw_work *w;
    struct tw_nat_rows rows;
    struct tw_datum_in *d;
    struct tw_nat_datum *nd;
    int64_t tokens, chosen;             /* supervised, and of those the chosen ones of pairs */
};

static int64_t supervised(const struct tw_nat_row *r)
{
    int64_t n = 0;

    for (int64_t t = 0; t < r->n; t++)
        n += r->label[t] >= 0;
    return n;
}

static int number_at(const struct tw_json *v, const char *name, int64_t row, float *out, struct tw_err *err)
{
    if (v->type != TW_JNUM || !isfinite(v->d))
        return tw_fail(err, NULL, 0, "%s[%lld] holds what is no number", name, (long long)row);
    *out = (float)v->d;
    return 0;
}

/* V beside row I: one number for all its supervised positions, a number for each of them, or one for each
 * position at least. */
static int align(const struct fb *f, const struct tw_json *v, const char *name, int64_t i, float *out,
        struct tw_err *err)
{
    const struct tw_nat_row *r = &f->rows.v[i];
    int64_t own = supervised(r), k = 0;

    if (v->type == TW_JARR && v->n == 1 && own != 1)
        v = &v->item[0];                /* a column of one */
    if (v->type == TW_JARR && v->n != own && v->n < r->n)
        return tw_fail(err, NULL, 0, "%s[%lld]: %lld numbers fit neither the %lld supervised positions nor "
                "all %lld", name, (long long)i, (long long)v->n, (long long)own, (long long)r->n);
    for (int64_t t = 0; t < r->n; t++) {
        const struct tw_json *x = v->type != TW_JARR ? v : v->n == own ? &v->item[k] : &v->item[t];

        out[t] = 0;
        if (r->label[t] < 0)
            continue;
        if (number_at(x, name, i, &out[t], err))
            return -1;
        k++;
    }
    return 0;
}

/* A list with an entry for each row, or what is one row's where there is one. */
static const struct tw_json *entry(const struct fb *f, const struct tw_json *v, const char *name, int64_t i,
        int64_t rows, struct tw_err *err)
{
    bool list = v->type == TW_JARR;

    if (list && v->n == rows && (rows > 1 || v->item[0].type == TW_JARR || v->n == f->rows.v[0].n))
        return &v->item[i];
    if (rows == 1 && (list || v->type == TW_JNUM))
        return v;
    tw_fail(err, NULL, 0, "%s: an entry for each of %lld sequences is wanted", name, (long long)rows);
    return NULL;
}

/* *OUT of row I is NULL when there is none. */
static int beside(const struct fb *f, const struct tw_json *v, const char *name, int64_t i, const float **out,
        struct tw_err *err)
{
    const struct tw_json *e;
    float *x;

    *out = NULL;
    if (!v)
        return 0;
    if (!(e = entry(f, v, name, i, f->rows.n, err)))
        return -1;
    *out = x = tw_arena_alloc(&f->w->arena, (size_t)(f->rows.v[i].n + 1) * sizeof *x);
    return align(f, e, name, i, x, err);
}

/* Log-probabilities of the reference for a side of the pairs: a sum stands at its first position. */
static int beside_pair(const struct fb *f, const struct tw_json *kw, int64_t i, const float **out,
        struct tw_err *err)
{
    const char *name = i % 2 ? "ref_rejected_logps" : "ref_chosen_logps";
    const struct tw_json *v = tw_json_get(kw, name), *e;
    const struct tw_nat_row *r = &f->rows.v[i];
    float *x;

    *out = NULL;
    if (!v)
        return 0;
    if (v->type != TW_JARR || v->n != f->rows.n / 2)
        return tw_fail(err, NULL, 0, "%s: an entry for each pair is wanted", name);
    e = &v->item[i / 2];
    *out = x = tw_arena_alloc(&f->w->arena, (size_t)(r->n + 1) * sizeof *x);
    if (e->type == TW_JARR)
        return align(f, e, name, i, x, err);
    for (int64_t t = 0; t < r->n; t++)
        if (r->label[t] >= 0)
            return number_at(e, name, i, &x[t], err);
    return 0;
}

static int reference(struct fb *f, const struct tw_json *kw, struct tw_err *err)
{
    const struct tw_json *out = tw_json_get(kw, "ref_outputs"), *v = tw_json_get(kw, "ref_logps");
    const char *name = v ? "ref_logps" : "ref_outputs.logps";

    if (!v && out && out->type == TW_JOBJ)
        v = tw_json_get(out, "logps");
    for (int64_t i = 0; i < f->rows.n; i++) {
        if (beside(f, v, name, i, &f->nd[i].ref, err) ||
                (!v && f->w->fb.loss.pairs && beside_pair(f, kw, i, &f->nd[i].ref, err)))
            return -1;
        if (f->w->fb.loss.reference && !f->nd[i].ref)
            return tw_fail(err, NULL, 0, "%s needs the reference's log-probabilities: ref_outputs (what "
                    "forward_only with disable_lora gave) or ref_logps", f->w->fb.loss.name);
    }
    return 0;
}

static int labels_of(struct fb *f, const struct tw_json *kw, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(kw, "label");

    if (!v || v->type != TW_JARR || v->n != f->rows.n)
        return tw_fail(err, NULL, 0, "%s needs label, a flag for each sequence", f->w->fb.loss.name);
    for (int64_t i = 0; i < v->n; i++)
        f->nd[i].label = v->item[i].type == TW_JBOOL ? v->item[i].b : v->item[i].d > 0;
    return 0;
}

static int scales(struct fb *f, const struct tw_json *kw, bool sum, struct tw_err *err)
{
    const struct tw_loss *l = &f->w->fb.loss;
    double rows = (double)f->rows.n, items = f->tokens > 0 ? (double)f->tokens : 1;

    if (tw_json_get_num(kw, "num_items_in_batch", &items, err) < 0 || !(items > 0))
        return tw_fail(err, NULL, 0, "num_items_in_batch must be above 0");
    for (int64_t i = 0; i < f->rows.n; i++) {
        struct tw_nat_datum *d = &f->nd[i];
        int64_t own = supervised(&f->rows.v[i]);

        d->scale = 1;
        if (l->pairs) {
            d->scale = 2 / rows;
            d->nll_scale = 1 / (double)(f->chosen > 0 ? f->chosen : 1);
            if (!own)
                return tw_fail(err, NULL, 0, "inputs[%lld]: one of a pair has nothing that is supervised",
                        (long long)i);
        } else if (l->label) {
            d->scale = 1 / rows;
        } else if (sum) {
            d->scale = 1;
        } else if (!l->policy || l->scale == TW_SCALE_TOKEN) {
            d->scale = 1 / items;
        } else if (l->scale == TW_SCALE_SEQUENCE) {
            d->scale = 1 / ((double)(own > 0 ? own : 1) * rows);
        } else if (l->scale == TW_SCALE_CONSTANT) {
            d->scale = 1 / (l->length * rows);
        }
    }
    return 0;
}

/* What the loss is told beside the tokens. */
static int loss_inputs(struct fb *f, const struct tw_json *kw, bool sum, struct tw_err *err)
{
    const struct tw_loss *l = &f->w->fb.loss;
    const struct tw_json *adv = tw_json_get(kw, "advantages"), *old = tw_json_get(kw, "old_logps");

    if (l->pairs && f->rows.n % 2)
        return tw_fail(err, NULL, 0, "%s takes pairs, chosen and rejected in turn: %lld sequences are no "
                "pairs", l->name, (long long)f->rows.n);
    if (l->policy && !adv)
        return tw_fail(err, NULL, 0, "%s needs advantages", l->name);
    for (int64_t i = 0; l->policy && i < f->rows.n; i++)
        if (beside(f, adv, "advantages", i, &f->d[i].adv, err) ||
                beside(f, old, "old_logps", i, &f->d[i].old, err))
            return -1;
    return reference(f, kw, err) || (l->label && labels_of(f, kw, err)) || scales(f, kw, sum, err) ? -1 : 0;
}

static int make_rows(struct fb *f, bool loss, struct tw_err *err)
{
    struct tw_work *w = f->w;

    f->d = tw_arena_alloc(&w->arena, (size_t)f->rows.n * sizeof *f->d);
    f->nd = tw_arena_alloc(&w->arena, (size_t)f->rows.n * sizeof *f->nd);
    for (int64_t i = 0; i < f->rows.n; i++) {
        struct tw_nat_row *r = &f->rows.v[i];
        int32_t *target = tw_arena_alloc(&w->arena, (size_t)(r->n + 1) * sizeof *target);
        float *weight = tw_arena_alloc(&w->arena, (size_t)(r->n + 1) * sizeof *weight);

        if (loss && !r->labelled)
            return tw_fail(err, NULL, 0, "inputs: labels are missing");
        for (int64_t t = 0; t < r->n; t++) {
            if (!r->labelled && t + 1 < r->n)           /* scored: what came next */
                r->label[t] = r->token[t + 1];
            weight[t] = r->label[t] >= 0;
            target[t] = r->label[t] >= 0 ? r->label[t] : 0;
        }
        f->d[i] = (struct tw_datum_in){ .token = r->token, .n = r->n, .k = 1, .target = target,
            .weight = weight };
        f->nd[i].scale = 1;
        f->tokens += supervised(r);
        f->chosen += i % 2 ? 0 : supervised(r);
        w->fb.tokens += r->n;
    }
    w->fb.d = f->d;
    w->fb.n = f->rows.n;
    return 0;
}

/* Sequences of task "embedding", and where they begin a group: all of them say it, or there is no loss. */
static int make_embed(struct fb *f, struct tw_nat_fb *n, bool loss, struct tw_err *err)
{
    struct tw_work *w = f->w;
    bool known = f->rows.n > 0, *begins = tw_arena_alloc(&w->arena, (size_t)(f->rows.n + 1) * sizeof *begins);
    int64_t own = 2, least = loss && w->fb.loss.hard_negatives ? 3 : 2;

    n->embed = tw_arena_alloc(&w->arena, sizeof *n->embed);
    f->d = tw_arena_alloc(&w->arena, (size_t)f->rows.n * sizeof *f->d);
    f->nd = tw_arena_alloc(&w->arena, (size_t)f->rows.n * sizeof *f->nd);
    for (int64_t i = 0; i < f->rows.n; i++) {
        const struct tw_nat_row *r = &f->rows.v[i];

        f->d[i] = (struct tw_datum_in){ .token = r->token, .n = r->n, .k = 1,
            .target = tw_arena_alloc(&w->arena, (size_t)r->n * sizeof(int32_t)),
            .weight = tw_arena_alloc(&w->arena, (size_t)r->n * sizeof(float)) };
        w->fb.tokens += r->n;
        begins[i] = r->begins;
        known = known && r->labelled && (i || begins[i]);
        own = begins[i] ? 1 : own + 1;
        if ((i + 1 == f->rows.n || f->rows.v[i + 1].begins) && own < least) {
            if (loss && known)
                return tw_fail(err, NULL, 0, "inputs[%lld]: this group has no %s", (long long)i,
                        own < 2 ? "positive" : "negatives, which hard_negatives wants");
            known = false;
        }
    }
    if (loss && !known)
        return tw_fail(err, NULL, 0, "inputs: task embedding needs labels, one for each sequence: 1 at the "
                "anchor that begins a group, 0 at its positive and negatives");
    n->embed->begins = known ? begins : NULL;
    w->fb.d = f->d;
    w->fb.n = f->rows.n;
    return 0;
}

/* The task, and whether the loss is one for it. */
static int read_task(const struct tw_json *in, bool *embed, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(in, "task");

    *embed = v && tw_str_is(v->str, "embedding");
    if (v && !*embed && !tw_str_is(v->str, "causal_lm") && !tw_str_is(v->str, "fused_lm_ce"))
        return tw_fail(err, NULL, 0, "task: causal_lm and embedding are done here");
    return 0;
}

/* Arguments of the calls; what is not here is refused by its name. */
static int check_keys(const struct tw_json *kw, bool only, struct tw_err *err)
{
    static const char *const known[] = { "inputs", "temperature", "task", "return_logits", "advantages",
        "old_logps", "ref_logps", "ref_outputs", "ref_chosen_logps", "ref_rejected_logps",
        "num_items_in_batch", "label", "gradient_accumulation_steps", "micro_batch_size", NULL };
    const struct tw_json *v;

    for (int64_t i = 0; i < kw->n; i++) {
        bool ok = kw->item[i].type == TW_JNULL || tw_nat_plain_key(kw->item[i].key) ||
                (only && tw_str_is(kw->item[i].key, "disable_lora"));

        for (const char *const *k = known; *k && !ok; k++)
            ok = tw_str_is(kw->item[i].key, *k);
        if (!ok)
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(kw->item[i].key.n < 64 ?
                    kw->item[i].key.n : 64), kw->item[i].key.p);
    }
    v = tw_json_get(kw, "return_logits");
    if (v && !(v->type == TW_JBOOL && !v->b))
        return tw_fail(err, NULL, 0, "return_logits: logits are not sent; logps are");
    return 0;
}

static int read_common(struct tw_work *w, struct tw_nat_fb *n, const struct tw_nat_conf *c,
        const struct tw_json *in, const struct tw_json *kw, struct tw_err *err)
{
    const struct tw_json *m = c->metrics ? tw_json_get(c->metrics, "grpo") : NULL;
    double temp = 1, eps = 0.2, high;

    if (tw_json_get_num(in, "temperature", &temp, err) < 0 ||
            tw_json_get_bool(in, "disable_lora", &w->fb.base, err) < 0 ||
            tw_json_get_int(kw, "gradient_accumulation_steps", &n->every, err) < 0 ||
            (m && tw_json_get_num(m, "epsilon", &eps, err) < 0))
        return -1;
    high = eps;
    if (m && tw_json_get_num(m, "epsilon_high", &high, err) < 0)
        return -1;
    if (!(temp > 0 && temp < 1e6))
        return tw_fail(err, NULL, 0, "temperature must be above 0");
    if (n->every < 0 || n->every > 1000000)
        return tw_fail(err, NULL, 0, "gradient_accumulation_steps must be at least 1");
    n->every = n->every ? n->every : c->every;
    w->fb.temp = (float)temp;
    n->lo = 1 - eps;
    n->hi = 1 + high;
    return 0;
}

int tw_nat_fb_read(struct tw_srv *s, struct tw_work *w, const char *op, const struct tw_nat_conf *c,
        const struct tw_json *req, const struct tw_json *fwd, struct tw_err *err)
{
    struct tw_nat_fb *n = tw_arena_alloc(&w->arena, sizeof *n);
    const struct tw_json *in = fwd ? tw_json_get(fwd, "req") : req, *fop = fwd ? tw_json_get(fwd, "op") : NULL;
    struct fb f = { .w = w };
    bool only = !strcmp(op, "forward_only"), sum = true, embed, loss;

    n->eval = only || (fop && tw_str_is(fop->str, "forward_only"));
    n->backward = !strcmp(op, "forward_backward") || !strcmp(op, "backward");
    n->loss = !strcmp(op, "forward_backward") || !strcmp(op, "calculate_loss");
    n->policy = strcmp(op, "calculate_loss") && strcmp(op, "backward");
    n->result = !strcmp(op, "backward") ? "null" : !strcmp(op, "calculate_loss") ? "value" : "output";
    w->fb.forward_only = !n->backward;
    w->fb.type = "native";
    if (!in || in->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "the body is no JSON object");
    loss = n->backward || n->loss;
    if (check_keys(req, only, err) || read_common(w, n, c, in, req, err) || read_task(in, &embed, err) ||
            tw_nat_loss_read(&w->fb.loss, &sum, loss || embed ? c->loss : NULL, err) ||
            tw_nat_inputs(s, &w->arena, tw_json_get(in, "inputs"), c->template, embed, &f.rows, err))
        return -1;
    if (loss && embed != w->fb.loss.groups)
        return tw_fail(err, NULL, 0, embed ? "task embedding needs set_loss(\"InfonceLoss\")" :
                "InfonceLoss needs task=\"embedding\"");
    if (embed ? make_embed(&f, n, loss, err) :
            make_rows(&f, loss, err) || (loss && loss_inputs(&f, req, sum, err)))
        return -1;
    if (embed && !w->fb.loss.groups)            /* for the metrics of a forward */
        n->embed->begins = NULL;
    n->mean = embed || !sum;
    n->d = f.nd;
    w->fb.nat = n;
    return 0;
}
