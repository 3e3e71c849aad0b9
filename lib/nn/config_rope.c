/* config_rope.c - RoPE: settings, frequencies, tables of angles */
#include "nn/config.h"
#include "nn/family.h"
#include <math.h>
#include <stdlib.h>

#define PI 3.14159265358979323846

static const char *const dict_keys[] = { "rope_type", "type", "rope_theta", "factor",
    "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "low_freq_factor", "high_freq_factor", "truncate", "partial_rotary_factor",
    "mrope_section", "mrope_interleaved", "finetuned", "length", NULL };

static const struct {
    const char *name;
    enum tw_rope_type type;
} types[] = {
    { "default", TW_ROPE_DEFAULT }, { "mrope", TW_ROPE_DEFAULT }, { "linear", TW_ROPE_LINEAR },
    { "dynamic", TW_ROPE_DYNAMIC }, { "llama3", TW_ROPE_LLAMA3 }, { "yarn", TW_ROPE_YARN },
};

static int check_dict(const struct tw_config *c, const struct tw_json *dict, struct tw_err *err)
{
    if (dict->type != TW_JOBJ)
        return tw_fail(err, c->path, 0, "%.*s is not an object", (int)dict->key.n, dict->key.p);
    for (int64_t i = 0; i < dict->n; i++) {
        const char *const *k = dict_keys;

        while (*k && !tw_str_is(dict->item[i].key, *k))
            k++;
        if (!*k && dict->item[i].type == TW_JOBJ)
            return tw_fail(err, c->path, 0, "%.*s has one set of values for \"%.*s\": known are "
                    "one set for all, and one each for full_attention and sliding_attention",
                    (int)dict->key.n, dict->key.p, (int)dict->item[i].key.n, dict->item[i].key.p);
        if (!*k && dict->item[i].type != TW_JNULL)
            return tw_fail(err, c->path, 0, "%.*s.%.*s is not known", (int)dict->key.n,
                    dict->key.p, (int)dict->item[i].key.n, dict->item[i].key.p);
    }
    return 0;
}

/* A number from the dict, else from the top level, else what *out holds. */
static int number(const struct tw_config *c, const struct tw_json *dict, const char *key,
        double *out, struct tw_err *err)
{
    int got = dict ? tw_json_get_num(dict, key, out, err) : 0;

    if (!got)
        got = tw_json_get_num(c->text, key, out, err);
    return got;
}

static int rope_type(const struct tw_config *c, struct tw_rope_conf *r, const struct tw_json *dict,
        struct tw_err *err)
{
    struct tw_str s = TW_STR_LIT("default");

    if (!dict)
        return 0;
    if (tw_json_get_str(dict, "type", &s, err) < 0 ||
        tw_json_get_str(dict, "rope_type", &s, err) < 0)
        return -1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (tw_str_is(s, types[i].name)) {
            r->type = types[i].type;
            return 0;
        }
    }
    return tw_fail(err, c->path, 0, "rope_type \"%.*s\" is not known; known are default, linear, "
            "dynamic, llama3 and yarn", (int)s.n, s.p);
}

static int numbers(const struct tw_config *c, struct tw_rope_conf *r, const struct tw_json *dict,
        struct tw_err *err)
{
    double orig = (double)c->max_positions;
    int factor;

    r->partial = r->partial != 0 ? r->partial : 1;      /* as the family has it */
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    if (number(c, dict, "rope_theta", &r->theta, err) < 0 ||
        number(c, dict, "partial_rotary_factor", &r->partial, err) < 0)
        return -1;
    if (!dict)
        return 0;
    factor = tw_json_get_num(dict, "factor", &r->factor, err);
    if (factor < 0 ||
        number(c, dict, "original_max_position_embeddings", &orig, err) < 0 ||
        tw_json_get_num(dict, "low_freq_factor", &r->low, err) < 0 ||
        tw_json_get_num(dict, "high_freq_factor", &r->high, err) < 0 ||
        tw_json_get_num(dict, "beta_fast", &r->beta_fast, err) < 0 ||
        tw_json_get_num(dict, "beta_slow", &r->beta_slow, err) < 0 ||
        tw_json_get_num(dict, "attention_factor", &r->attention_factor, err) < 0 ||
        tw_json_get_num(dict, "mscale", &r->mscale, err) < 0 ||
        tw_json_get_num(dict, "mscale_all_dim", &r->mscale_all_dim, err) < 0 ||
        tw_json_get_bool(dict, "truncate", &r->truncate, err) < 0 ||
        tw_json_get_int(dict, "length", &r->length, err) < 0)
        return -1;
    if (!(orig >= 1 && orig <= INT32_MAX))
        return tw_fail(err, c->path, 0, "original_max_position_embeddings is %g", orig);
    r->orig = (int64_t)orig;
    if (!factor && r->type == TW_ROPE_YARN)
        r->factor = (double)c->max_positions / orig;
    return 0;
}

int tw_config_rope_check(const struct tw_config *c, const struct tw_rope_conf *r,
        struct tw_err *err)
{
    if (!(r->theta > 0))
        return tw_fail(err, c->path, 0, "rope_theta is %g", r->theta);
    if (!(r->partial > 0 && r->partial <= 1) || tw_rope_width(c) < 2 || tw_rope_width(c) % 2)
        return tw_fail(err, c->path, 0, "partial_rotary_factor %g of head_dim %lld is not an even "
                "width", r->partial, (long long)c->hd);
    if (r->type != TW_ROPE_DEFAULT && !(r->factor > 0))
        return tw_fail(err, c->path, 0, "this rope_type needs a factor above 0");
    if (r->type == TW_ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low))
        return tw_fail(err, c->path, 0, "rope_type llama3 needs 0 < low_freq_factor < "
                "high_freq_factor");
    if (r->type == TW_ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast > 0 && r->theta > 1))
        return tw_fail(err, c->path, 0, "rope_type yarn needs beta_fast and beta_slow above 0");
    if (r->type == TW_ROPE_DYNAMIC && (r->length < 0 || tw_rope_width(c) < 4))
        return tw_fail(err, c->path, 0, "rope_type dynamic needs a length of at least 0 and four "
                "rotated numbers a head");
    return 0;
}

static int read_rope(struct tw_config *c, struct tw_rope_conf *r, const struct tw_json *dict,
        struct tw_err *err)
{
    if (dict && check_dict(c, dict, err))
        return -1;
    return rope_type(c, r, dict, err) || numbers(c, r, dict, err) ||
           tw_config_rope_check(c, r, err) ? -1 : 0;
}

/* Whether DICT has a set of values for each kind of attention, and nothing else. */
static bool by_kind(const struct tw_json *dict)
{
    return dict && dict->type == TW_JOBJ && dict->n == 2 &&
           tw_json_get(dict, "full_attention") && tw_json_get(dict, "sliding_attention");
}

int tw_config_rope(struct tw_config *c, struct tw_err *err)
{
    const struct tw_json *dict = tw_json_get(c->text, "rope_scaling");

    if (!dict || (dict->type == TW_JOBJ && !dict->n))
        dict = tw_json_get(c->text, "rope_parameters");
    c->nrope = 1;
    if (!by_kind(dict))
        return read_rope(c, &c->rope[0], dict, err);
    c->nrope = 2;
    if (c->rope[1].theta == 0)
        c->rope[1] = c->rope[0];
    for (int64_t i = 0; i < c->L; i++)
        c->layer[i].rope = c->layer[i].window ? 1 : 0;
    return read_rope(c, &c->rope[0], tw_json_get(dict, "full_attention"), err) ||
           read_rope(c, &c->rope[1], tw_json_get(dict, "sliding_attention"), err) ? -1 : 0;
}

int64_t tw_rope_width(const struct tw_config *c)
{
    return (int64_t)((double)c->hd * c->rope[0].partial);
}

/* yarn's frequency index at which R rotations fit into the original length. */
static double yarn_dim(const struct tw_rope_conf *r, double d, double rot)
{
    return d * log((double)r->orig / (rot * 2 * PI)) / (2 * log(r->theta));
}

static void yarn_range(const struct tw_rope_conf *r, double d, double *low, double *high)
{
    *low = yarn_dim(r, d, r->beta_fast);
    *high = yarn_dim(r, d, r->beta_slow);
    if (r->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0);
    *high = fmin(*high, d - 1);
    if (*low == *high)
        *high += 0.001;
}

/* The dynamic variant raises the base with the length of a text. A base that followed each text's
 * length would make a token's numbers depend on what comes after it, and those of a decode on when
 * it was made; so one base is chosen for the longest text there is to be, which the config names
 * (tw_rope_longest()), and none is raised where that is not more than the model was
 * made for. */
static double base(const struct tw_config *c, const struct tw_rope_conf *r)
{
    double d = (double)tw_rope_width(c), M = (double)c->max_positions, n = (double)r->length;

    if (r->type != TW_ROPE_DYNAMIC || n <= M)
        return r->theta;
    return r->theta * pow(r->factor * n / M - (r->factor - 1), d / (d - 2));
}

int64_t tw_rope_longest(const struct tw_config *c, bool *hard)
{
    int64_t most = c->max_positions;

    *hard = false;
    for (int i = 0; i < c->nrope; i++) {
        *hard |= c->rope[i].type == TW_ROPE_DYNAMIC;
        if (c->rope[i].type == TW_ROPE_DYNAMIC && c->rope[i].length > most)
            most = c->rope[i].length;
    }
    return most;
}

/* Frequencies are computed in f32 as the reference does: at position 10,000 one f32 rounding of a
 * frequency is 1e-3 of an angle, so a better number would be a different model. */
static float frequency(const struct tw_config *c, const struct tw_rope_conf *r, int64_t i)
{
    double d = (double)tw_rope_width(c), low, high, ramp, wave, m;
    float f = 1.0f / (float)pow(base(c, r), (float)(2 * i) / (float)d);

    switch (r->type) {
    case TW_ROPE_DEFAULT:
    case TW_ROPE_DYNAMIC:
        return f;
    case TW_ROPE_LINEAR:
        return f / (float)r->factor;
    case TW_ROPE_LLAMA3:
        wave = 2 * PI / f;
        if (wave < (double)r->orig / r->high)
            return f;
        if (wave > (double)r->orig / r->low)
            return f / (float)r->factor;
        m = ((double)r->orig / wave - r->low) / (r->high - r->low);
        return (float)((1 - m) * f / r->factor + m * f);
    case TW_ROPE_YARN:
        yarn_range(r, d, &low, &high);
        ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        return (float)(f / r->factor * ramp + f * (1 - ramp));
    }
    return f;
}

static double gain(double x, double m)
{
    return x <= 1 ? 1 : 0.1 * m * log(x) + 1;
}

double tw_rope_score_gain(const struct tw_rope_conf *r)
{
    double m;

    if (r->type != TW_ROPE_YARN || r->mscale_all_dim == 0)
        return 1;
    m = gain(r->factor, r->mscale_all_dim);
    return m * m;
}

static double attention_factor(const struct tw_rope_conf *r)
{
    if (r->type != TW_ROPE_YARN)
        return 1;
    if (r->attention_factor != 0)
        return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return gain(r->factor, r->mscale) / gain(r->factor, r->mscale_all_dim);
    return gain(r->factor, 1);
}

void tw_rope_table(const struct tw_config *c, int r, int64_t p0, int64_t n, float *cos_,
        float *sin_)
{
    int64_t half = tw_rope_width(c) / 2;
    float *f = tw_xcalloc((size_t)half, sizeof *f), s = (float)attention_factor(&c->rope[r]);

    for (int64_t i = 0; i < half; i++)
        f[i] = frequency(c, &c->rope[r], i);
    for (int64_t p = 0; p < n; p++) {
        for (int64_t i = 0; i < half; i++) {
            double a = (float)(p0 + p) * f[i];

            cos_[p * half + i] = (float)cos(a) * s;
            sin_[p * half + i] = (float)sin(a) * s;
        }
    }
    free(f);
}
