/* datum.c - the tensors of a datum, checked and brought into the form that losses read */
#include "serve/datum.h"
#include "data/tok.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t load_i64(const char *p)
{
    int64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static float load_f32(const char *p)
{
    float v;

    memcpy(&v, p, sizeof v);
    return v;
}

static int64_t integer(const struct tw_tensor_in *t, int64_t i)
{
    int32_t v;

    if (!t->kept)
        return load_i64(t->data + 8 * i);
    memcpy(&v, t->data + 4 * i, sizeof v);
    return v;
}

static size_t width(const struct tw_tensor_in *t)
{
    return t->is_int ? sizeof(int64_t) : sizeof(float);
}

int tw_tensor_size(struct tw_tensor_in *t, size_t bytes, const char *where, struct tw_err *err)
{
    uint64_t n = bytes / width(t);

    if (bytes % width(t))
        return tw_fail(err, NULL, 0, "%s.%.*s: %zu bytes are not whole numbers", where,
                (int)t->name.n, t->name.p, bytes);
    if (!t->ndim) {
        t->ndim = 1;
        t->dim[0] = (int64_t)n;
    }
    if (t->dim[0] < 0 || (t->ndim == 2 && t->dim[1] < 0) || (uint64_t)t->dim[0] > n ||
            (t->ndim == 2 && (uint64_t)t->dim[1] > n) ||
            (uint64_t)t->dim[0] * (t->ndim == 2 ? (uint64_t)t->dim[1] : 1) != n)
        return tw_fail(err, NULL, 0, "%s.%.*s: its shape does not fit its %" PRIu64 " numbers", where,
                (int)t->name.n, t->name.p, n);
    t->n = (int64_t)n;
    return 0;
}

int tw_tensor_dense(struct tw_arena *a, struct tw_tensor_in *t, struct tw_str values,
        struct tw_str row, struct tw_str col, const char *where, struct tw_err *err)
{
    const int64_t most = (int64_t)1 << 25;
    int64_t rows = t->dim[0], cols = t->dim[1], nnz = (int64_t)(col.n / 8), from, to;
    size_t w = width(t);
    char *out;

    if (t->ndim != 2 || rows < 0 || rows > most || cols < 0 || (cols && rows > most / cols) ||
            row.n != (size_t)(rows + 1) * 8 || col.n % 8 || values.n != (size_t)nnz * w)
        return tw_fail(err, NULL, 0, "%s.%.*s: the parts of the sparse tensor do not fit together",
                where, (int)t->name.n, t->name.p);
    t->n = rows * cols;
    t->data = out = tw_arena_alloc(a, (size_t)t->n * w + 1);
    for (int64_t r = 0; r < rows; r++) {
        from = load_i64(row.p + 8 * r);
        to = load_i64(row.p + 8 * r + 8);
        if (from < 0 || to < from || to > nnz)
            return tw_fail(err, NULL, 0, "%s.%.*s: row %" PRId64 " of the sparse tensor is not in it",
                    where, (int)t->name.n, t->name.p, r);
        for (int64_t k = from; k < to; k++) {
            int64_t c = load_i64(col.p + 8 * k);

            if (c < 0 || c >= cols)
                return tw_fail(err, NULL, 0, "%s.%.*s: column %" PRId64 " of the sparse tensor is "
                        "outside", where, (int)t->name.n, t->name.p, c);
            memcpy(out + (size_t)(r * cols + c) * w, values.p + (size_t)k * w, w);
        }
    }
    return 0;
}

/* What a request says beside the loss's own settings, which are left in REST: the temperature of the
 * log-probabilities, and whether the adapter is off (forward only: the reference of a policy). */
static int extras(struct tw_fb_args *f, struct tw_str settings, struct tw_buf *rest, struct tw_err *err)
{
    const char *p = settings.n ? settings.p : "", *end = p + settings.n;
    double v;

    f->temp = 1;
    f->base = false;
    while (p < end) {
        const char *next = memchr(p + 1, ',', (size_t)(end - p - 1));
        size_t n = (size_t)((next ? next : end) - p);

        if (n > 13 && !memcmp(p, ",temperature=", 13)) {
            v = strtod(p + 13, NULL);
            if (!(v >= 1e-3 && v <= 1000))
                return tw_fail(err, NULL, 0, "loss_fn_config: temperature must be in [0.001, 1000]");
            f->temp = (float)v;
        } else if (n > 14 && !memcmp(p, ",disable_lora=", 14)) {
            f->base = strtod(p + 14, NULL) != 0;
        } else {
            tw_buf_add(rest, p, n);
        }
        p += n;
    }
    return f->base && !f->forward_only ? tw_fail(err, NULL, 0, "loss_fn_config: disable_lora is for forward "
            "only, there would be nothing to train") : 0;
}

static int loss_of(struct tw_fb_args *f, struct tw_str name, struct tw_str settings,
        struct tw_err *err)
{
    static const char *const known[] = { "importance_sampling", "ppo", "cispo", "dro", "gspo",
        "stable_reinforce" };
    struct tw_err why = { 0 };
    char text[2048];
    bool found = tw_str_is(name, "cross_entropy");

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        found |= tw_str_is(name, known[i]);
    if (!found)
        return tw_fail(err, NULL, 0, "loss_fn '%.*s' is not known: there are cross_entropy, "
                "importance_sampling, ppo, cispo, dro, gspo, stable_reinforce", (int)(name.n < 64 ?
                name.n : 64), name.p);
    if (settings.n > sizeof text - 128)
        return tw_fail(err, NULL, 0, "loss_fn_config is too long");
    if (tw_str_is(name, "cross_entropy") && settings.n)
        return tw_fail(err, NULL, 0, "loss_fn_config: cross_entropy takes no settings");
    if (settings.n && (strstr(settings.p, ",norm=") || strstr(settings.p, ",form=")))
        return tw_fail(err, NULL, 0, "loss_fn_config: the loss is a plain sum, of Tinker's form");
    snprintf(text, sizeof text, "%.*s%s%.*s", (int)name.n, name.p,
            tw_str_is(name, "cross_entropy") ? "" : ",form=tinker", (int)settings.n,
            settings.n ? settings.p : "");
    if (tw_loss_parse(&f->loss, "loss_fn_config", text, &why))
        return tw_fail(err, NULL, 0, "loss_fn_config: %s", why.msg);
    f->type = !strcmp(f->loss.name, "stable_reinforce") ? "TwinkleStableReinforce" :
            "TorchLossReturn";
    return 0;
}

int tw_datum_loss(struct tw_fb_args *f, struct tw_str name, struct tw_str settings, struct tw_err *err)
{
    struct tw_buf rest = { 0 };
    int ret = extras(f, settings, &rest, err) || loss_of(f, name, tw_buf_str(&rest), err) ? -1 : 0;

    tw_buf_free(&rest);
    return ret;
}

static const struct tw_tensor_in *find(const struct tw_datum_raw *raw, const char *name)
{
    const struct tw_tensor_in *t = NULL;

    for (int64_t i = 0; i < raw->nt; i++)
        if (tw_str_is(raw->t[i].name, name))
            t = &raw->t[i];
    return t;
}

static bool all_finite(const float *x, int64_t n)
{
    uint32_t bad = 0, bits;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7F800000) == 0x7F800000;
    }
    return !bad;
}

/* One input as floats of the shape of the targets. *OUT stays NULL when it may be absent and is. */
static int floats(const float **out, const struct tw_datum_raw *raw, const struct tw_datum_in *d,
        const char *name, bool needed, struct tw_arena *a, const char *where, struct tw_err *err)
{
    const struct tw_tensor_in *t = find(raw, name);
    int64_t bad = 0;
    float *x;

    if (!t)
        return needed ? tw_fail(err, NULL, 0, "%s.%s is missing", where, name) : 0;
    if (t->dim[0] != d->n || (t->ndim == 2 ? t->dim[1] : 1) != d->k)
        return tw_fail(err, NULL, 0, "%s.%s: %" PRId64 " numbers do not fit %" PRId64 " tokens of "
                "%" PRId64 " targets each", where, name, t->n, d->n, d->k);
    if (t->is_int) {
        x = tw_arena_alloc(a, (size_t)t->n * sizeof *x + 1);
        for (int64_t i = 0; i < t->n; i++)
            x[i] = (float)integer(t, i);
    } else {
        x = t->kept ? (float *)(uintptr_t)t->data : tw_arena_dup(a, t->data, (size_t)t->n * sizeof *x);
    }
    *out = x;
    if (all_finite(x, t->n))
        return 0;
    while (isfinite(x[bad]))
        bad++;
    return tw_fail(err, NULL, 0, "%s.%s[%" PRId64 "] is not finite (NonFiniteInTensor)", where, name, bad);
}

/* The first of N ids that is no token of the model; N: all are. */
static int64_t stranger(const struct tw_limits *l, const int32_t *id, int64_t n)
{
    int64_t i = 0;

    while (i < n && tw_is_token(l, id[i]))
        i++;
    return i;
}

/* Ids that came as I64 or F32 into X, up to the first that is no token: its number, or t->n. */
static int64_t narrow(const struct tw_limits *l, const struct tw_tensor_in *t, int32_t *x)
{
    int64_t i;

    for (i = 0; i < t->n; i++) {
        float f = t->is_int ? 0 : load_f32(t->data + 4 * i);
        int64_t id = t->is_int ? integer(t, i) : f >= 0 && f < 1e9F ? (int64_t)f : -1;

        if (!tw_is_token(l, id) || (!t->is_int && (float)id != f))
            break;
        x[i] = (int32_t)id;
    }
    return i;
}

static int no_token(const struct tw_tensor_in *t, int64_t i, const char *where, struct tw_err *err)
{
    char id[32];

    if (t->is_int)
        snprintf(id, sizeof id, "%" PRId64, integer(t, i));
    else
        snprintf(id, sizeof id, "%.9g", (double)load_f32(t->data + 4 * i));
    return tw_fail(err, NULL, 0, "%s.target_tokens[%" PRId64 "]: %s is not a token of this model", where,
            i, id);
}

static int targets(struct tw_datum_in *d, const struct tw_limits *l, const struct tw_datum_raw *raw,
        bool many, struct tw_arena *a, const char *where, struct tw_err *err)
{
    const struct tw_tensor_in *t = find(raw, "target_tokens");
    int64_t bad;
    int32_t *x;

    if (!t)
        return tw_fail(err, NULL, 0, "%s.target_tokens is missing", where);
    d->k = t->ndim == 2 ? t->dim[1] : 1;
    if (t->dim[0] != d->n)
        return tw_fail(err, NULL, 0, "%s.target_tokens: %" PRId64 " rows for %" PRId64 " tokens",
                where, t->dim[0], d->n);
    if (!d->k || (t->ndim == 2 && !many))
        return tw_fail(err, NULL, 0, "%s.target_tokens: this loss takes one target a position",
                where);
    if (t->is_int && t->kept) {
        d->target = (const int32_t *)(uintptr_t)t->data;
        bad = stranger(l, d->target, t->n);
    } else {
        d->target = x = tw_arena_alloc(a, (size_t)t->n * sizeof *x + 1);
        bad = narrow(l, t, x);
    }
    return bad < t->n ? no_token(t, bad, where, err) : 0;
}

/* The one who sent it learns of an input that nobody reads. */
static int unread(const struct tw_datum_raw *raw, const struct tw_loss *l, const char *where,
        struct tw_err *err)
{
    for (int64_t i = 0; i < raw->nt; i++) {
        struct tw_str s = raw->t[i].name;
        bool known = tw_str_is(s, "target_tokens");

        if (!l->policy)
            known |= tw_str_is(s, "weights");
        else
            known |= tw_str_is(s, "logprobs") || tw_str_is(s, "advantages") ||
                    (l->form != TW_LOSS_DRO && (tw_str_is(s, "clip_low_threshold") ||
                            tw_str_is(s, "clip_high_threshold"))) ||
                    (l->per_sequence && tw_str_is(s, "sequence_ratio_mask"));
        if (!known)
            return tw_fail(err, NULL, 0, "%s.%.*s: %s does not read such an input", where,
                    (int)(s.n < 64 ? s.n : 64), s.p, l->name);
    }
    return 0;
}

/* stable_reinforce: its terms are those of sampled tokens alone. */
static int spans(struct tw_datum_in *d, const struct tw_datum_raw *raw, struct tw_arena *a,
        const char *where, struct tw_err *err)
{
    float *w = tw_arena_alloc(a, (size_t)d->n * sizeof *w);

    if (!raw->spans)
        return tw_fail(err, NULL, 0, "%s: stable_reinforce needs the provenance of every token "
                "(Datum.with_provenance)", where);
    for (int64_t i = 0; i < d->n; i++) {
        w[i] = raw->sampled[i];
        if (!raw->sampled[i] && d->adv[i] != 0)
            return tw_fail(err, NULL, 0, "%s.advantages[%" PRId64 "]: an advantage on a token that "
                    "was not sampled", where, i);
    }
    d->weight = w;
    d->span = raw->span;
    d->nspan = raw->nspan;
    return 0;
}

int tw_datum_make(struct tw_datum_in *d, const struct tw_fb_args *f, const struct tw_limits *l,
        struct tw_arena *a, const struct tw_datum_raw *raw, int64_t i, struct tw_err *err)
{
    bool policy = f->loss.policy;
    char at[64], where[96];
    int64_t bad;

    snprintf(at, sizeof at, "data[%" PRId64 "]", i);
    snprintf(where, sizeof where, "%s.loss_fn_inputs", at);
    *d = (struct tw_datum_in){ .token = raw->token, .n = raw->n };
    if (!d->n)
        return tw_fail(err, NULL, 0, "%s.model_input is empty", at);
    if (l->window && d->n > l->window)
        return tw_fail(err, NULL, 0, "%s.model_input: %" PRId64 " tokens are more than the model's "
                "context window of %" PRId64, at, d->n, l->window);
    if ((bad = stranger(l, raw->token, d->n)) < d->n)
        return tw_fail(err, NULL, 0, "%s.model_input: token %" PRId32 " at position %" PRId64
                " is not one of this model", at, raw->token[bad], bad);
    if (unread(raw, &f->loss, where, err) || targets(d, l, raw, !policy, a, where, err))
        return -1;
    if (!policy)
        return floats(&d->weight, raw, d, "weights", true, a, where, err);
    if (floats(&d->old, raw, d, "logprobs", true, a, where, err) ||
            floats(&d->adv, raw, d, "advantages", true, a, where, err) ||
            floats(&d->lo, raw, d, "clip_low_threshold", false, a, where, err) ||
            floats(&d->hi, raw, d, "clip_high_threshold", false, a, where, err) ||
            floats(&d->ratio_mask, raw, d, "sequence_ratio_mask", f->loss.per_sequence, a, where, err))
        return -1;
    return strcmp(f->loss.name, "stable_reinforce") ? 0 : spans(d, raw, a, where, err);
}
