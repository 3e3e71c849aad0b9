/* tok_parts.c - reads normalizer, pre-tokenizer and post-processor of tokenizer.json. A part or a
 * setting we do not know is an error that names it. */
#include "tok_priv.h"

static int no_type(struct tw_tok *t, const char *what, struct tw_err *err)
{
    return tw_fail(err, t->name, 0, "%s: no type", what);
}

/* The list KEY of a Sequence, or NULL. */
static const struct tw_json *parts_of(const struct tw_json *v, const char *key)
{
    const struct tw_json *list = tw_json_get(v, key);

    return list && list->type == TW_JARR ? list : NULL;
}

/* ---- normalizers ---- */

static int norm_replace(struct tw_tok *t, struct tok_norm *m, const struct tw_json *v,
        struct tw_err *err)
{
    m->kind = TOK_REPLACE;
    if (tw_json_get_str(v, "content", &m->text, err) <= 0)
        return tw_fail(err, t->name, 0, "normalizer Replace: no content");
    m->text = tw_arena_str(&t->mem, m->text);
    return tok_find_json(&m->find, tw_json_get(v, "pattern"), &t->mem, err);
}

static int norm_charsmap(struct tw_tok *t, struct tok_norm *m, const struct tw_json *v,
        struct tw_err *err)
{
    struct tw_str map;
    struct tw_buf b = {0};
    int ret;

    if (tw_json_get_str(v, "precompiled_charsmap", &map, err) <= 0 || tw_buf_base64(&b, map)) {
        tw_buf_free(&b);
        return tw_fail(err, t->name, 0, "normalizer Precompiled: no precompiled_charsmap in base64");
    }
    ret = tok_charsmap_load(t, m, tw_buf_str(&b), err);
    tw_buf_free(&b);
    return ret;
}

static int norm_one(struct tw_tok *t, struct tok_norm *m, struct tw_str type,
        const struct tw_json *v, struct tw_err *err)
{
    static const char *const form[] = { "NFC", "NFD", "NFKC", "NFKD", "Lowercase" };

    for (int i = 0; i < 5; i++)
        if (tw_str_is(type, form[i])) {
            m->kind = (enum tok_norm_kind)i;
            return 0;
        }
    if (tw_str_is(type, "StripAccents") || tw_str_is(type, "ByteLevel")) {
        m->kind = *type.p == 'S' ? TOK_ACCENTS : TOK_BYTES;
        return 0;
    }
    if (tw_str_is(type, "Precompiled"))
        return norm_charsmap(t, m, v, err);
    if (tw_str_is(type, "Replace"))
        return norm_replace(t, m, v, err);
    if (tw_str_is(type, "Prepend")) {
        m->kind = TOK_PREPEND;
        if (tw_json_get_str(v, "prepend", &m->text, err) <= 0)
            return tw_fail(err, t->name, 0, "normalizer Prepend: no text");
        m->text = tw_arena_str(&t->mem, m->text);
        return 0;
    }
    if (tw_str_is(type, "Strip")) {
        m->kind = TOK_STRIP;
        if (tw_json_get_bool(v, "strip_left", &m->left, err) <= 0
                || tw_json_get_bool(v, "strip_right", &m->right, err) <= 0)
            return tw_fail(err, t->name, 0, "normalizer Strip: needs strip_left and strip_right");
        return 0;
    }
    return tw_fail(err, t->name, 0, "unsupported normalizer %.*s", (int)type.n, type.p);
}

static int load_norm(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    const struct tw_json *list;
    struct tw_str type;

    if (v->type != TW_JOBJ || tw_json_get_str(v, "type", &type, err) <= 0)
        return no_type(t, "normalizer", err);
    list = parts_of(v, "normalizers");
    if (tw_str_is(type, "Sequence") && list) {
        for (int64_t i = 0; i < list->n; i++)
            if (load_norm(t, &list->item[i], err))
                return -1;
        return 0;
    }
    if (t->nnorm == TOK_STAGES)
        return tw_fail(err, t->name, 0, "normalizer: more than %d parts", TOK_STAGES);
    return norm_one(t, &t->norm[t->nnorm++], type, v, err);
}

/* ---- pre-tokenizers ---- */

static int pre_split(struct tw_tok *t, struct tok_pre *s, const struct tw_json *v,
        struct tw_err *err)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious",
        "MergedWithNext", "Contiguous" };
    struct tw_str behavior = { "", 0 };
    int i;

    if (tw_json_get_str(v, "behavior", &behavior, err) < 0
            || tw_json_get_bool(v, "invert", &s->invert, err) < 0)
        return -1;
    for (i = 0; i < 5; i++)
        if (tw_str_is(behavior, name[i]))
            break;
    if (i == 5)
        return tw_fail(err, t->name, 0, "pre_tokenizer Split: unsupported behavior \"%.*s\"",
                (int)behavior.n, behavior.p);
    s->behavior = (enum tok_behavior)i;
    return tok_find_json(&s->find, tw_json_get(v, "pattern"), &t->mem, err);
}

static int pre_byte_level(struct tw_tok *t, struct tok_pre *s, const struct tw_json *v,
        struct tw_err *err)
{
    bool prefix = true;

    s->kind = TOK_BYTELEVEL;
    s->split = true;
    if (tw_json_get_bool(v, "use_regex", &s->split, err) < 0
            || tw_json_get_bool(v, "add_prefix_space", &prefix, err) < 0)
        return -1;
    s->prefix = prefix ? TOK_ALWAYS : TOK_NEVER;
    t->bpe.byte_level = true;
    return 0;
}

static int pre_metaspace(struct tw_tok *t, struct tok_pre *s, const struct tw_json *v,
        struct tw_err *err)
{
    struct tw_str scheme = TW_STR_LIT("always");
    bool legacy = true;

    s->kind = TOK_METASPACE;
    s->split = true;
    s->text = TW_STR_LIT("\xE2\x96\x81");
    if (tw_json_get_str(v, "replacement", &s->text, err) < 0
            || tw_json_get_str(v, "prepend_scheme", &scheme, err) < 0
            || tw_json_get_bool(v, "add_prefix_space", &legacy, err) < 0
            || tw_json_get_bool(v, "split", &s->split, err) < 0)
        return -1;
    if (!s->text.n || (!tw_str_is(scheme, "always") && !tw_str_is(scheme, "first")
                && !tw_str_is(scheme, "never")))
        return tw_fail(err, t->name, 0, "pre_tokenizer Metaspace: unsupported prepend_scheme");
    s->text = tw_arena_str(&t->mem, s->text);
    s->prefix = !legacy || tw_str_is(scheme, "never") ? TOK_NEVER
            : tw_str_is(scheme, "first")              ? TOK_FIRST
                                                      : TOK_ALWAYS;
    return 0;
}

/* The reference's punctuation is of Unicode 8. */
static const char punctuation[] =
    "(?![\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B7D}-\\x{1B7E}\\x{2E43}-\\x{2E4F}"
    "\\x{2E52}-\\x{2E5D}\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-\\x{10F89}"
    "\\x{1144B}-\\x{1144F}\\x{1145A}-\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}"
    "\\x{1183B}\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}"
    "\\x{11A9E}-\\x{11AA2}\\x{11C41}-\\x{11C45}\\x{11C70}-\\x{11C71}\\x{11EF7}-\\x{11EF8}"
    "\\x{11FFF}\\x{12FF1}-\\x{12FF2}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E95E}-\\x{1E95F}])"
    "[\\p{P}\\x{166D}\\x{111C9}$+<=>\\^`|~]";

/* Parts that are a Split under another name. */
static int pre_named(struct tw_tok *t, struct tok_pre *s, struct tw_str type,
        const struct tw_json *v, struct tw_err *err)
{
    const char *pattern = NULL;
    struct tw_str behavior = TW_STR_LIT("Isolated");
    bool each = false;

    s->behavior = TOK_ISOLATED;
    if (tw_str_is(type, "Digits")) {
        if (tw_json_get_bool(v, "individual_digits", &each, err) < 0)
            return -1;
        pattern = each ? "\\p{N}" : "\\p{N}+";
    } else if (tw_str_is(type, "Punctuation")) {
        if (tw_json_get_str(v, "behavior", &behavior, err) < 0)
            return -1;
        if (!tw_str_is(behavior, "Isolated"))
            return tw_fail(err, t->name, 0, "pre_tokenizer Punctuation: unsupported behavior");
        pattern = punctuation;
    } else if (tw_str_is(type, "WhitespaceSplit")) {
        pattern = "\\s+";
        s->behavior = TOK_REMOVED;
    }
    if (!pattern)
        return tw_fail(err, t->name, 0, "unsupported pre_tokenizer %.*s", (int)type.n, type.p);
    return tok_find_regex(&s->find, tw_str(pattern), false, err);
}

static int load_pre(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    const struct tw_json *list;
    struct tw_str type;
    struct tok_pre *s;

    if (v->type != TW_JOBJ || tw_json_get_str(v, "type", &type, err) <= 0)
        return no_type(t, "pre_tokenizer", err);
    list = parts_of(v, "pretokenizers");
    if (tw_str_is(type, "Sequence") && list) {
        for (int64_t i = 0; i < list->n; i++)
            if (load_pre(t, &list->item[i], err))
                return -1;
        return 0;
    }
    if (t->npre == TOK_STAGES)
        return tw_fail(err, t->name, 0, "pre_tokenizer: more than %d parts", TOK_STAGES);
    if (t->bpe.byte_level)
        return tw_fail(err, t->name, 0, "pre_tokenizer: %.*s after ByteLevel is unsupported",
                (int)type.n, type.p);
    s = &t->pre[t->npre++];
    if (tw_str_is(type, "Split"))
        return pre_split(t, s, v, err);
    if (tw_str_is(type, "ByteLevel"))
        return pre_byte_level(t, s, v, err);
    if (tw_str_is(type, "Metaspace"))
        return pre_metaspace(t, s, v, err);
    return pre_named(t, s, type, v, err);
}

/* Two parts that rewrite the text would share one storage. */
static int check_pre(struct tw_tok *t, struct tw_err *err)
{
    int n = 0;

    for (int i = 0; i < t->npre; i++)
        n += t->pre[i].kind == TOK_METASPACE || t->pre[i].kind == TOK_BYTELEVEL;
    if (n > 1)
        return tw_fail(err, t->name, 0,
                "pre_tokenizer: Metaspace together with another one or ByteLevel is unsupported");
    return 0;
}

/* ---- post-processors ---- */

static int add_ids(struct tw_tok *t, int32_t *list, int *n, const struct tw_json *ids,
        struct tw_err *err)
{
    for (int64_t i = 0; i < ids->n; i++) {
        int64_t id = ids->item[i].is_int ? ids->item[i].i : -1;

        if (id < 0 || id >= t->vocab.n || *n == TOK_STAGES)
            return tw_fail(err, t->name, 0, "post_processor: bad list of ids");
        list[(*n)++] = (int32_t)id;
    }
    return 0;
}

static int template(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    const struct tw_json *single = parts_of(v, "single");
    const struct tw_json *special = tw_json_get(v, "special_tokens");
    int32_t before[TOK_STAGES], after[TOK_STAGES];
    int nb = 0, na = 0, sequences = 0;

    for (int64_t i = 0; single && i < single->n; i++) {
        const struct tw_json *piece = &single->item[i], *s, *ids = NULL;
        struct tw_str id = { "", 0 };

        if (piece->type != TW_JOBJ || piece->n != 1)
            return tw_fail(err, t->name, 0, "post_processor: bad template piece");
        if (tw_json_get(piece, "Sequence")) {
            sequences++;
            continue;
        }
        s = tw_json_get(piece, "SpecialToken");
        if (s && s->type == TW_JOBJ)
            tw_json_get_str(s, "id", &id, NULL);
        for (int64_t k = 0; special && k < special->n; k++)
            if (tw_str_eq(special->item[k].key, id) && special->item[k].type == TW_JOBJ)
                ids = parts_of(&special->item[k], "ids");
        if (!ids)
            return tw_fail(err, t->name, 0, "post_processor: no ids for the token \"%.*s\"",
                    (int)id.n, id.p);
        if (add_ids(t, sequences ? after : before, sequences ? &na : &nb, ids, err))
            return -1;
    }
    if (sequences != 1 || nb + t->nbefore > TOK_STAGES || na + t->nafter > TOK_STAGES)
        return tw_fail(err, t->name, 0, "post_processor: unsupported template");
    /* A later processor wraps what the earlier ones made. */
    memmove(t->before + nb, t->before, (size_t)t->nbefore * sizeof(*before));
    memcpy(t->before, before, (size_t)nb * sizeof(*before));
    memcpy(t->after + t->nafter, after, (size_t)na * sizeof(*after));
    t->nbefore += nb;
    t->nafter += na;
    return 0;
}

static int load_post(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    const struct tw_json *list;
    struct tw_str type;

    if (v->type != TW_JOBJ || tw_json_get_str(v, "type", &type, err) <= 0)
        return no_type(t, "post_processor", err);
    list = parts_of(v, "processors");
    if (tw_str_is(type, "Sequence") && list) {
        for (int64_t i = 0; i < list->n; i++)
            if (load_post(t, &list->item[i], err))
                return -1;
        return 0;
    }
    if (tw_str_is(type, "ByteLevel"))   /* moves offsets only */
        return 0;
    if (tw_str_is(type, "TemplateProcessing"))
        return template(t, v, err);
    return tw_fail(err, t->name, 0, "unsupported post_processor %.*s", (int)type.n, type.p);
}

int tok_load_parts(struct tw_tok *t, const struct tw_json *norm, const struct tw_json *pre,
        const struct tw_json *post, const struct tw_json *dec, struct tw_err *err)
{
    if ((norm && load_norm(t, norm, err)) || (pre && load_pre(t, pre, err)) || check_pre(t, err)
            || (post && load_post(t, post, err)) || tok_load_decoder(t, dec, err)) {
        tw_err_place(err, t->name, 0);
        return -1;
    }
    return 0;
}
