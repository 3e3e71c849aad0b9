/* gguf_tok.c - tokenizer.json, tokenizer_config.json and generation_config.json out of the keys
 * tokenizer.ggml.*: byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). */
#include "data/gguf_priv.h"
#include <stdlib.h>

static void key_cstr(struct tw_jw *w, const char *key, const char *s)
{
    tw_jw_key(w, key);
    tw_jw_cstr(w, s);
}

static void key_str(struct tw_jw *w, const char *key, struct tw_str s)
{
    tw_jw_key(w, key);
    tw_jw_str(w, s);
}

static void key_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

static void key_bool(struct tw_jw *w, const char *key, bool v)
{
    tw_jw_key(w, key);
    tw_jw_bool(w, v);
}

static void key_null(struct tw_jw *w, const char *key)
{
    tw_jw_key(w, key);
    tw_jw_null(w);
}

/* Control tokens are special; what users defined is matched in the text but shown. */
static void write_added(struct tw_jw *w, const struct gguf_vocab *v)
{
    tw_jw_key(w, "added_tokens");
    tw_jw_arr(w);
    for (int64_t i = 0; i < v->n; i++) {
        if (v->type[i] != GGUF_CONTROL && v->type[i] != GGUF_USER && v->type[i] != GGUF_UNKNOWN)
            continue;
        tw_jw_obj(w);
        key_int(w, "id", i);
        key_str(w, "content", v->token[i]);
        key_bool(w, "single_word", false);
        key_bool(w, "lstrip", false);
        key_bool(w, "rstrip", false);
        key_bool(w, "normalized", false);
        key_bool(w, "special", v->type[i] != GGUF_USER);
        tw_jw_obj_end(w);
    }
    tw_jw_arr_end(w);
}

static void write_replace(struct tw_jw *w, const char *from, const char *to)
{
    tw_jw_obj(w);
    key_cstr(w, "type", "Replace");
    tw_jw_key(w, "pattern");
    tw_jw_obj(w);
    key_cstr(w, "String", from);
    tw_jw_obj_end(w);
    key_cstr(w, "content", to);
    tw_jw_obj_end(w);
}

static void write_sequence(struct tw_jw *w, const char *list)
{
    tw_jw_obj(w);
    key_cstr(w, "type", "Sequence");
    tw_jw_key(w, list);
    tw_jw_arr(w);
}

static void sequence_end(struct tw_jw *w)
{
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
}

#define SPACE_MARK "\xe2\x96\x81"

static void write_spm_normalizer(struct tw_jw *w, const struct gguf_vocab *v)
{
    tw_jw_key(w, "normalizer");
    write_sequence(w, "normalizers");
    if (v->prefix) {
        tw_jw_obj(w);
        key_cstr(w, "type", "Prepend");
        key_cstr(w, "prepend", SPACE_MARK);
        tw_jw_obj_end(w);
    }
    write_replace(w, " ", SPACE_MARK);
    sequence_end(w);
    key_null(w, "pre_tokenizer");
}

static void write_decoder(struct tw_jw *w, const struct gguf_vocab *v)
{
    tw_jw_key(w, "decoder");
    if (!v->spm) {
        tw_jw_obj(w);
        key_cstr(w, "type", "ByteLevel");
        key_bool(w, "add_prefix_space", true);
        key_bool(w, "trim_offsets", true);
        key_bool(w, "use_regex", true);
        tw_jw_obj_end(w);
        return;
    }
    write_sequence(w, "decoders");
    write_replace(w, SPACE_MARK, " ");
    tw_jw_obj(w);
    key_cstr(w, "type", "ByteFallback");
    tw_jw_obj_end(w);
    tw_jw_obj(w);
    key_cstr(w, "type", "Fuse");
    tw_jw_obj_end(w);
    if (v->prefix) {
        tw_jw_obj(w);
        key_cstr(w, "type", "Strip");
        key_cstr(w, "content", " ");
        key_int(w, "start", 1);
        key_int(w, "stop", 0);
        tw_jw_obj_end(w);
    }
    sequence_end(w);
}

static void write_template_token(struct tw_jw *w, const char *kind, struct tw_str id, int type_id)
{
    tw_jw_obj(w);
    tw_jw_key(w, kind);
    tw_jw_obj(w);
    key_str(w, "id", id);
    key_int(w, "type_id", type_id);
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
}

static void write_template(struct tw_jw *w, const char *key, const struct tw_str *bos,
        const struct tw_str *eos, int sequences)
{
    tw_jw_key(w, key);
    tw_jw_arr(w);
    for (int i = 0; i < sequences; i++) {
        if (bos)
            write_template_token(w, "SpecialToken", *bos, i);
        write_template_token(w, "Sequence", tw_str(i ? "B" : "A"), i);
        if (eos)
            write_template_token(w, "SpecialToken", *eos, i);
    }
    tw_jw_arr_end(w);
}

static void write_template_id(struct tw_jw *w, struct tw_str token, int64_t id)
{
    tw_jw_key_n(w, token);
    tw_jw_obj(w);
    key_str(w, "id", token);
    tw_jw_key(w, "ids");
    tw_jw_arr(w);
    tw_jw_int(w, id);
    tw_jw_arr_end(w);
    tw_jw_key(w, "tokens");
    tw_jw_arr(w);
    tw_jw_str(w, token);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
}

/* The token before or after every text, where the file asks for one. */
static int write_post(struct tw_jw *w, const struct gguf_vocab *v, struct tw_err *err)
{
    int64_t bos = -1, eos = -1;
    int got_bos = tw_gguf_special_id(v->g, KEY("bos_token_id"), v->n, &bos, err);
    int got_eos = tw_gguf_special_id(v->g, KEY("eos_token_id"), v->n, &eos, err);
    struct tw_str *b, *e;

    if (got_bos < 0 || got_eos < 0)
        return -1;
    if ((v->add_bos && v->add_bos_given && !got_bos) || (v->add_eos && !got_eos))
        return tw_fail_code(err, TW_ECORRUPT, v->g->path, 0,
                "a BOS or EOS is to be added, but the file does not say which token that is");
    b = v->add_bos && got_bos ? &v->token[bos] : NULL;
    e = v->add_eos ? &v->token[eos] : NULL;
    tw_jw_key(w, "post_processor");
    if (!b && !e) {
        tw_jw_null(w);
        return 0;
    }
    tw_jw_obj(w);
    key_cstr(w, "type", "TemplateProcessing");
    write_template(w, "single", b, e, 1);
    write_template(w, "pair", b, e, 2);
    tw_jw_key(w, "special_tokens");
    tw_jw_obj(w);
    if (b)
        write_template_id(w, *b, bos);
    if (e && !(b && bos == eos))
        write_template_id(w, *e, eos);
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
    return 0;
}

static int write_model(struct tw_jw *w, const struct gguf_vocab *v, bool ignore_merges,
        struct tw_err *err)
{
    int64_t unk = -1;
    int got = tw_gguf_special_id(v->g, KEY("unknown_token_id"), v->n, &unk, err);

    if (got < 0)
        return -1;
    tw_jw_key(w, "model");
    tw_jw_obj(w);
    key_cstr(w, "type", "BPE");
    key_null(w, "dropout");
    if (v->spm && got)
        key_str(w, "unk_token", v->token[unk]);
    else
        key_null(w, "unk_token");
    key_null(w, "continuing_subword_prefix");
    key_null(w, "end_of_word_suffix");
    key_bool(w, "fuse_unk", v->spm);
    key_bool(w, "byte_fallback", v->spm);
    key_bool(w, "ignore_merges", ignore_merges);
    tw_jw_key(w, "vocab");
    tw_jw_obj(w);
    for (int64_t i = 0; i < v->n; i++) {
        tw_jw_key_n(w, v->token[i]);
        tw_jw_int(w, i);
    }
    tw_jw_obj_end(w);
    tw_jw_key(w, "merges");
    if (v->spm)
        tw_gguf_merges(w, v->token, v->type, v->score, v->n);
    else {
        tw_jw_arr(w);
        for (int64_t i = 0; i < v->nmerges; i++)
            tw_jw_str(w, v->merge[i]);
        tw_jw_arr_end(w);
    }
    tw_jw_obj_end(w);
    return 0;
}

static int write_tokenizer(struct tw_buf *b, struct gguf_vocab *v, struct tw_err *err)
{
    struct tw_jw w;
    bool ignore_merges = false, bos = false;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    key_cstr(&w, "version", "1.0");
    key_null(&w, "truncation");
    key_null(&w, "padding");
    write_added(&w, v);
    if (v->spm)
        write_spm_normalizer(&w, v);
    else if (tw_gguf_pre(&w, v->pre, &ignore_merges, &bos))
        return tw_fail(err, v->g->path, 0,
                "pre-tokenizer \"%.*s\" (" KEY("pre") ") is not supported", (int)v->pre.n,
                v->pre.p);
    if (!v->add_bos_given && !v->spm)
        v->add_bos = bos;
    if (write_post(&w, v, err))
        return -1;
    write_decoder(&w, v);
    if (write_model(&w, v, ignore_merges, err))
        return -1;
    tw_jw_obj_end(&w);
    return 0;
}

static int write_token(struct tw_jw *w, const struct gguf_vocab *v, const char *name, const char *key,
        struct tw_err *err)
{
    int64_t id;
    int got = tw_gguf_special_id(v->g, key, v->n, &id, err);

    if (got > 0)
        key_str(w, name, v->token[id]);
    return got < 0 ? -1 : 0;
}

static int write_tok_config(struct tw_buf *b, const struct gguf_vocab *v, struct tw_err *err)
{
    struct tw_str template = { 0 };
    int64_t context = 0, id;
    struct tw_jw w;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    key_cstr(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    if (write_token(&w, v, "bos_token", KEY("bos_token_id"), err) ||
            write_token(&w, v, "eos_token", KEY("eos_token_id"), err) ||
            write_token(&w, v, "pad_token", KEY("padding_token_id"), err) ||
            write_token(&w, v, "unk_token", KEY("unknown_token_id"), err) ||
            tw_gguf_special_id(v->g, KEY("eot_token_id"), v->n, &id, err) < 0 ||
            tw_gguf_special_id(v->g, KEY("eom_token_id"), v->n, &id, err) < 0 ||
            tw_gguf_int(v->g, "llama.context_length", &context, err) < 0 ||
            tw_gguf_str(v->g, "tokenizer.chat_template", &template, err) < 0)
        return -1;
    if (context > 0)
        key_int(&w, "model_max_length", context);
    key_bool(&w, "clean_up_tokenization_spaces", false);
    key_bool(&w, "add_bos_token", v->add_bos);
    key_bool(&w, "add_eos_token", v->add_eos);
    if (template.n && tw_utf8_check(template.p, template.n) != template.n)
        return tw_fail_code(err, TW_ECORRUPT, v->g->path, 0,
                "key tokenizer.chat_template: not valid UTF-8");
    if (template.n)
        key_str(&w, "chat_template", template);
    tw_jw_obj_end(&w);
    return 0;
}

static bool has_id(const struct tw_gguf *g, const char *key, int64_t *id)
{
    return tw_gguf_int(g, key, id, NULL) > 0 && *id != UINT32_MAX;
}

/* Texts end with the end token, and where the file names them with the ends of a turn, too. */
void tw_gguf_write_ids(struct tw_jw *w, const struct tw_gguf *g)
{
    static const char *const ends[] = { KEY("eos_token_id"), KEY("eot_token_id"),
        KEY("eom_token_id") };
    int64_t id, eos[3], n = 0;

    if (has_id(g, KEY("bos_token_id"), &id))
        key_int(w, "bos_token_id", id);
    for (int i = 0; i < 3; i++) {
        bool seen = !has_id(g, ends[i], &id);

        for (int64_t k = 0; !seen && k < n; k++)
            seen = eos[k] == id;
        if (!seen)
            eos[n++] = id;
    }
    if (n == 1)
        key_int(w, "eos_token_id", eos[0]);
    if (n > 1) {
        tw_jw_key(w, "eos_token_id");
        tw_jw_arr(w);
        for (int64_t k = 0; k < n; k++)
            tw_jw_int(w, eos[k]);
        tw_jw_arr_end(w);
    }
    if (has_id(g, KEY("padding_token_id"), &id))
        key_int(w, "pad_token_id", id);
}

static int put_file(const char *dir, const char *name, struct tw_buf *b, struct tw_err *err)
{
    char *path = tw_path_join(dir, name);
    int ret;

    tw_buf_putc(b, '\n');
    ret = tw_write_file(path, b->p, b->n, err);
    tw_buf_clear(b);
    free(path);
    return ret;
}

int tw_gguf_tokenizer(const struct tw_gguf *g, const char *dir, int64_t vocab,
        struct tw_err *err)
{
    struct gguf_vocab v = { .g = g };
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret = -1;

    if (tw_gguf_vocab_load(&v, vocab, err) || write_tokenizer(&b, &v, err) ||
            put_file(dir, "tokenizer.json", &b, err) || write_tok_config(&b, &v, err) ||
            put_file(dir, "tokenizer_config.json", &b, err))
        goto out;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_gguf_write_ids(&w, g);
    tw_jw_obj_end(&w);
    ret = put_file(dir, "generation_config.json", &b, err);
out:
    tw_buf_free(&b);
    tw_arena_free(&v.arena);
    return ret;
}
