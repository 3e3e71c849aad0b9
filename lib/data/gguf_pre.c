/* gguf_pre.c - what a pre-tokenizer's name means: the normalizer and the splits of tokenizer.json. */
#include "data/gguf_priv.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Words with one other character before them, digits by DIGITS, punctuation with its line ends. */
#define WORDS(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                        \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GLUE "[^\\r\\n\\p{L}\\p{N}]?"

static const struct {
    const char *names;          /* separated and surrounded by spaces */
    const char *split[4];       /* each isolates its matches in the pieces of the one before */
    bool nfc, digits;           /* digits: every digit alone, before the splits */
    bool gpt2;                  /* ByteLevel splits, with GPT-2's own pattern */
    bool ignore_merges, bos;
} pres[] = {
    { " smollm starcoder refact command-r codeshell exaone minerva-7b ", { NULL },
      .digits = true, .gpt2 = true },
    { " gpt-2 phi-2 mpt olmo jais trillion ", { NULL }, .gpt2 = true },
    { " llama-bpe llama3 llama-v3 falcon3 pixtral ", { WORDS("\\p{N}{1,3}") },
      .ignore_merges = true, .bos = true },
    { " dbrx smaug-bpe chatglm-bpe ", { WORDS("\\p{N}{1,3}") }, .nfc = false },
    { " qwen2 deepseek-r1-qwen ", { WORDS("\\p{N}") }, .nfc = true },
    { " stablelm2 hunyuan solar-open ", { WORDS("\\p{N}") }, .nfc = false },
    { " qwen35 ", { CONTRACTIONS "|" GLUE "[\\p{L}\\p{M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES }, .nfc = true },
    { " deepseek-v3 ", { "\\p{N}{1,3}",
      "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
      "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES }, .nfc = false },
    { " tekken ", { GLUE UPPER "*" LOWER "+|" GLUE UPPER "+" LOWER "*|\\p{N}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES }, .ignore_merges = true, .bos = true },
    { " gpt-4o llama4 ", { GLUE UPPER "*" LOWER "+" CONTRACTIONS "?|" GLUE UPPER "+" LOWER "*"
      CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES }, .nfc = false },
};

static void write_type(struct tw_jw *w, const char *type)
{
    tw_jw_obj(w);
    tw_jw_key(w, "type");
    tw_jw_cstr(w, type);
}

static void write_bool(struct tw_jw *w, const char *key, bool v)
{
    tw_jw_key(w, key);
    tw_jw_bool(w, v);
}

static void write_split(struct tw_jw *w, const char *regex)
{
    write_type(w, "Split");
    tw_jw_key(w, "pattern");
    tw_jw_obj(w);
    tw_jw_key(w, "Regex");
    tw_jw_cstr(w, regex);
    tw_jw_obj_end(w);
    tw_jw_key(w, "behavior");
    tw_jw_cstr(w, "Isolated");
    write_bool(w, "invert", false);
    tw_jw_obj_end(w);
}

int tw_gguf_pre(struct tw_jw *w, struct tw_str name, bool *ignore_merges, bool *bos)
{
    char want[64];
    size_t i = 0, n = sizeof pres / sizeof *pres;

    if (!name.n || name.n > 40 || memchr(name.p, ' ', name.n) || memchr(name.p, 0, name.n))
        return -1;
    snprintf(want, sizeof want, " %.*s ", (int)name.n, name.p);
    while (i < n && !strstr(pres[i].names, want))
        i++;
    if (i == n)
        return -1;
    tw_jw_key(w, "normalizer");
    if (pres[i].nfc) {
        write_type(w, "NFC");
        tw_jw_obj_end(w);
    } else
        tw_jw_null(w);
    tw_jw_key(w, "pre_tokenizer");
    write_type(w, "Sequence");
    tw_jw_key(w, "pretokenizers");
    tw_jw_arr(w);
    if (pres[i].digits) {
        write_type(w, "Digits");
        write_bool(w, "individual_digits", true);
        tw_jw_obj_end(w);
    }
    for (int k = 0; k < 4 && pres[i].split[k]; k++)
        write_split(w, pres[i].split[k]);
    write_type(w, "ByteLevel");
    write_bool(w, "add_prefix_space", false);
    write_bool(w, "trim_offsets", true);
    write_bool(w, "use_regex", pres[i].gpt2);
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
    *ignore_merges = pres[i].ignore_merges;
    *bos = pres[i].bos;
    return 0;
}
