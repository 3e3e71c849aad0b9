/* tok_prop.c - \p{..} of the patterns: where PCRE2's tables are of another version of Unicode than
 * the reference's, which is 16, the difference is written out. */
#include "tok_priv.h"
#include <ctype.h>
#include <stdlib.h>

/* MORE: what PCRE2 of Unicode 14 does not count in; LESS: what it does, and should not. Newer tables
 * lose nothing by it. A script that is newer altogether has no name there. */
static const struct row {
    const char *names, *pcre, *more, *less;
} rows[] = {
    { "lu uppercaseletter", "Lu", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65", "" },
    { "ll lowercaseletter", "Ll", "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A", "" },
    { "lt titlecaseletter", "Lt", "", "" },
    { "lm modifierletter", "Lm", "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB", "" },
    { "lo otherletter", "Lo",
        "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E "
        "11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F "
        "13441-13446 13460-143FA 16100-1611D 16D43-16D6A 18CFF 1B132 1B155 1E4D0-1E4EA "
        "1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF", "" },
    { "mn nonspacingmark", "Mn",
        "897 ECE 10D69-10D6D 10EFC-10EFF 11241 113BB-113C0 113CE 113D0 113D2 113E1-113E2 "
        "11F00-11F01 11F36-11F3A 11F40 11F42 11F5A 13440 13447-13455 1611E-16129 1612D-1612F "
        "1E08F 1E4EC-1E4EF 1E5EE-1E5EF", "1171E" },
    { "mc spacingmark", "Mc",
        "CF3 113B8-113BA 113C2 113C5 113C7-113CA 113CC-113CD 113CF 1171E 11F03 11F34-11F35 "
        "11F3E-11F3F 11F41 1612A-1612C", "" },
    { "me enclosingmark", "Me", "", "" },
    { "nd decimalnumber digit", "Nd",
        "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 "
        "1E4F0-1E4F9 1E5F1-1E5FA", "" },
    { "nl letternumber", "Nl", "", "" },
    { "no othernumber", "No", "1D2C0-1D2D3", "" },
    { "pc connectorpunctuation", "Pc", "", "" },
    { "pd dashpunctuation", "Pd", "10D6E", "" },
    { "ps openpunctuation", "Ps", "", "" },
    { "pe closepunctuation", "Pe", "", "" },
    { "pi initialpunctuation", "Pi", "", "" },
    { "pf finalpunctuation", "Pf", "", "" },
    { "po otherpunctuation", "Po",
        "1B4E-1B4F 1B7F 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F 16D6D-16D6F "
        "1E5FF", "" },
    { "sm mathsymbol", "Sm", "10D8E-10D8F", "" },
    { "sc currencysymbol", "Sc", "", "" },
    { "sk modifiersymbol", "Sk", "", "" },
    { "so othersymbol", "So",
        "2427-2429 2FFC-2FFF 31E4-31E5 31EF 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 "
        "1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF "
        "1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF", "" },
    { "zs spaceseparator", "Zs", "", "" },
    { "zl lineseparator", "Zl", "", "" },
    { "zp paragraphseparator", "Zp", "", "" },
    { "cc control cntrl", "Cc", "", "" },
    { "cf format", "Cf", "13439-1343F", "" },
    { "cs surrogate", "Cs", "", "" },
    { "co privateuse", "Co", "", "" },
    { "alphabetic alpha", "Alphabetic",
        "363-36F 897 C04 CF3 F82-F83 1C89-1C8A 1DD3-1DE6 A7CB-A7CD A7DA-A7DC 105C0-105F3 "
        "10D4A-10D65 10D69 10D6F-10D85 10EC2-10EC4 10EFC 11080-11081 1123F-11241 11380-11389 "
        "1138B 1138E 11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA 113CC-113CD 113D1 113D3 "
        "11BC0-11BE0 11F00-11F10 11F12-11F3A 11F3E-11F40 1342F 13441-13446 13460-143FA "
        "16100-1612E 16D40-16D6C 18CFF 1B132 1B155 1DF25-1DF2A 1E030-1E06D 1E08F 1E4D0-1E4EB "
        "1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF", "" },
    { "uppercase upper", "Uppercase", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65", "" },
    { "lowercase lower", "Lowercase",
        "10FC 1C8A A7CD A7DB A7F2-A7F4 AB69 10D70-10D85 1DF25-1DF2A 1E030-1E06D 10FC A7F2-A7F4 "
        "AB69", "" },
    { "emoji", "Emoji",
        "1F6DC 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF "
        "1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8", "" },
    { "emojipresentation epres", "Emoji_Presentation",
        "1F6DC 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF "
        "1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8", "" },
    { "emojimodifierbase ebase", "Emoji_Modifier_Base", "1FAF7-1FAF8", "" },
    { "ideographic ideo", "Ideographic", "18CFF 2B739 2EBF0-2EE5D 31350-323AF", "" },
    { "unifiedideograph uideo", "Unified_Ideograph", "2B739 2EBF0-2EE5D 31350-323AF", "" },
    { "dash", "Dash", "10D6E", "" },
    { "math", "Math", "10D8E-10D8F", "" },
    { "arabic arab", "sc:Arabic", "897 10EC2-10EC4 10EFC-10EFF", "" },
    { "balinese bali", "sc:Balinese", "1B4E-1B4F 1B7F", "" },
    { "common zyyy", "sc:Common",
        "2427-2429 2FFC-2FFF 31E4-31E5 31EF 1CC00-1CCF9 1CD00-1CEB3 1D2C0-1D2D3 1F6DC "
        "1F774-1F776 1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F "
        "1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8 "
        "1FBCB-1FBEF", "" },
    { "cyrillic cyrl", "sc:Cyrillic", "1C89-1C8A 1E030-1E06D 1E08F", "" },
    { "devanagari deva", "sc:Devanagari", "11B00-11B09", "" },
    { "egyptianhieroglyphs egyp", "sc:Egyptian_Hieroglyphs", "1342F 13439-13455 13460-143FA", "" },
    { "han hani", "sc:Han", "2B739 2EBF0-2EE5D 31350-323AF", "" },
    { "extendedpictographic", "Extended_Pictographic", "", "" },
    { "hiragana hira", "sc:Hiragana", "1B132", "" },
    { "kannada knda", "sc:Kannada", "CF3", "" },
    { "katakana kana", "sc:Katakana", "1B155", "" },
    { "khitansmallscript kits", "sc:Khitan_Small_Script", "18CFF", "" },
    { "khojki khoj", "sc:Khojki", "1123F-11241", "" },
    { "lao laoo", "sc:Lao", "ECE", "" },
    { "latin latn", "sc:Latin", "A7CB-A7CD A7DA-A7DC 1DF25-1DF2A", "" },
    { "myanmar mymr", "sc:Myanmar", "116D0-116E3", "" },
    { "garay gara", "", "10D40-10D65 10D69-10D85 10D8E-10D8F", "" },
    { "todhri todr", "", "105C0-105F3", "" },
    { "sunuwar sunu", "", "11BC0-11BE1 11BF0-11BF9", "" },
    { "gurungkhema gukh", "", "16100-16139", "" },
    { "kiratrai krai", "", "16D40-16D79", "" },
    { "tulutigalari tutg", "",
        "11380-11389 1138B 1138E 11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D5 "
        "113D7-113D8 113E1-113E2", "" },
    { "olonal onao", "", "1E5D0-1E5FA 1E5FF", "" },
    { "nagmundari nagm", "", "1E4D0-1E4F9", "" },
    { "kawi kawi", "", "11F00-11F10 11F12-11F3A 11F3E-11F5A", "" },
    { "whitespace space wspace", "White_Space", "", "" },
    { "asciihexdigit ahex", "ASCII_Hex_Digit", "", "" },
    { "hexdigit hex", "Hex_Digit", "", "" },
    { "any", "Any", "", "" },
};

/* Unions of categories, and what is in none. */
static const struct {
    const char *names, *pcre, *more, *less;
} unions[] = {
    { "l letter", "L", "Lu Ll Lm Lo", "" },
    { "lc casedletter", "L&", "Lu Ll", "" },
    { "m mark combiningmark", "M", "Mn Mc", "" },
    { "n number", "N", "Nd No", "" },
    { "p punctuation", "P", "Pd Po", "" },
    { "s symbol", "S", "Sm So", "" },
    { "z separator", "Z", "", "" },
    { "c other", "C", "", "Lu Ll Lm Lo Mn Mc Nd No Pd Po Sm So" },
    { "cn unassigned", "Cn", "", "Lu Ll Lm Lo Mn Mc Nd No Pd Po Sm So Cf" },
};

/* KEY is one of the words of LIST. */
static bool among(const char *list, struct tw_str key)
{
    while (*list) {
        size_t n = strcspn(list, " ");

        if (n == key.n && !memcmp(list, key.p, n))
            return true;
        list += n + (list[n] == ' ');
    }
    return false;
}

/* "1C89 A7CB-A7CC" as a class has it. */
static void put_ranges(struct tw_buf *out, const char *list)
{
    if (!*list)
        return;
    tw_buf_puts(out, "\\x{");
    for (; *list; list++) {
        if (*list == ' ')
            tw_buf_puts(out, "}\\x{");
        else if (*list == '-')
            tw_buf_puts(out, "}-\\x{");
        else
            tw_buf_putc(out, *list);
    }
    tw_buf_putc(out, '}');
}

static void put_rows(struct tw_buf *out, const char *categories)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (among(categories, tw_str(rows[i].pcre)))
            put_ranges(out, rows[i].more);
}

/* Names are compared without case, spaces, '-' and '_'. */
static struct tw_str key_of(char *key, size_t room, struct tw_str name)
{
    size_t n = 0;

    for (size_t i = 0; i < name.n; i++)
        if (!strchr(" -_", name.p[i])) {
            if (n == room)
                return (struct tw_str){ key, 0 };
            key[n++] = (char)tolower((unsigned char)name.p[i]);
        }
    return (struct tw_str){ key, n };
}

/* To PCRE2 a script is also what several share, unless the script alone is asked for. */
static bool is_script(struct tw_str key)
{
    struct tw_buf b = {0};
    int code;
    PCRE2_SIZE at;
    pcre2_code *re;

    if (key.n < 3 || tw_str_is(key, "unknown") || tw_str_is(key, "zzzz"))
        return false;                   /* what is in no script: more or less, as versions go */
    tw_buf_printf(&b, "\\p{sc:%.*s}", (int)key.n, key.p);
    re = pcre2_compile((PCRE2_SPTR)b.p, b.n, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_code_free(re);
    tw_buf_free(&b);
    return re != NULL;
}

/* PCRE2's name, and its differences; false: not known. */
static bool look_up(struct tw_str key, bool late, struct tw_buf *pcre, struct tw_buf *more,
        struct tw_buf *less)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (among(rows[i].names, key)) {
            tw_buf_puts(pcre, rows[i].pcre);
            if (late || !pcre->n) {
                put_ranges(more, rows[i].more);
                put_ranges(less, rows[i].less);
            }
            return true;
        }
    for (size_t i = 0; i < sizeof(unions) / sizeof(unions[0]); i++)
        if (among(unions[i].names, key)) {
            tw_buf_puts(pcre, unions[i].pcre);
            if (late) {
                put_rows(more, unions[i].more);
                put_rows(less, unions[i].less);
            }
            return true;
        }
    if (!is_script(key))
        return false;
    tw_buf_printf(pcre, "sc:%.*s", (int)key.n, key.p);
    return true;
}

bool tok_prop(struct tw_buf *in, struct tw_buf *alt, bool late, bool negated, struct tw_str name)
{
    char room[40];
    struct tw_buf pcre = {0}, more = {0}, less = {0};
    struct tw_buf *add = &more, *cut = &less;
    bool known;

    if (name.n && *name.p == '^') {
        negated = !negated;
        name = (struct tw_str){ name.p + 1, name.n - 1 };
    }
    known = look_up(key_of(room, sizeof(room), name), late, &pcre, &more, &less);
    if (negated) {
        add = &less;
        cut = &more;
    }
    if (known && cut->n) {
        tw_buf_puts(alt, "|[^");
        if (pcre.n)
            tw_buf_printf(alt, "\\%c{%.*s}", negated ? 'p' : 'P', (int)pcre.n, pcre.p);
        tw_buf_add(alt, cut->p, cut->n);
        tw_buf_putc(alt, ']');
    } else if (known && pcre.n) {
        tw_buf_printf(in, "\\%c{%.*s}", negated ? 'P' : 'p', (int)pcre.n, pcre.p);
    }
    if (known && add->n)
        tw_buf_add(in, add->p, add->n);
    tw_buf_free(&pcre);
    tw_buf_free(&more);
    tw_buf_free(&less);
    return known;
}

static void mark(uint8_t *late, const char *list)
{
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 16), last = first;

        if (*end == '-')
            last = strtoul(end + 1, &end, 16);
        for (unsigned long k = first >> 4; k <= last >> 4; k++)
            late[k >> 3] |= (uint8_t)(1 << (k & 7));
        list = end + (*end == ' ');
    }
}

void tok_prop_late(uint8_t *late)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        mark(late, rows[i].more);
        mark(late, rows[i].less);
    }
}
