/* tok_uni.c - characters: classes of code points, the byte alphabet, lossy UTF-8. */
#include "tok_priv.h"
#include <utf8proc.h>

/* Assigned after Unicode 15, which the utf8proc of a long-lived system may not know: first, last,
 * class. Reference tokenizers are at Unicode 16. */
static const struct {
    uint32_t first, last;
    uint8_t cls;
} newer[] = {
    { 0x897, 0x897, TOK_M }, { 0x1B4E, 0x1B4F, TOK_P }, { 0x1B7F, 0x1B7F, TOK_P },
    { 0x1C89, 0x1C8A, TOK_L }, { 0x2427, 0x2429, TOK_Y }, { 0x2FFC, 0x2FFF, TOK_Y },
    { 0x31E4, 0x31E5, TOK_Y }, { 0x31EF, 0x31EF, TOK_Y }, { 0xA7CB, 0xA7CD, TOK_L },
    { 0xA7DA, 0xA7DC, TOK_L }, { 0x105C0, 0x105F3, TOK_L }, { 0x10D40, 0x10D49, TOK_N },
    { 0x10D4A, 0x10D65, TOK_L }, { 0x10D69, 0x10D6D, TOK_M }, { 0x10D6E, 0x10D6E, TOK_P },
    { 0x10D6F, 0x10D85, TOK_L }, { 0x10D8E, 0x10D8F, TOK_Y }, { 0x10EC2, 0x10EC4, TOK_L },
    { 0x10EFC, 0x10EFC, TOK_M }, { 0x11380, 0x11389, TOK_L }, { 0x1138B, 0x1138B, TOK_L },
    { 0x1138E, 0x1138E, TOK_L }, { 0x11390, 0x113B5, TOK_L }, { 0x113B7, 0x113B7, TOK_L },
    { 0x113B8, 0x113C0, TOK_M }, { 0x113C2, 0x113C2, TOK_M }, { 0x113C5, 0x113C5, TOK_M },
    { 0x113C7, 0x113CA, TOK_M }, { 0x113CC, 0x113D0, TOK_M }, { 0x113D1, 0x113D1, TOK_L },
    { 0x113D2, 0x113D2, TOK_M }, { 0x113D3, 0x113D3, TOK_L }, { 0x113D4, 0x113D5, TOK_P },
    { 0x113D7, 0x113D8, TOK_P }, { 0x113E1, 0x113E2, TOK_M }, { 0x116D0, 0x116E3, TOK_N },
    { 0x11BC0, 0x11BE0, TOK_L }, { 0x11BE1, 0x11BE1, TOK_P }, { 0x11BF0, 0x11BF9, TOK_N },
    { 0x11F5A, 0x11F5A, TOK_M }, { 0x13460, 0x143FA, TOK_L }, { 0x16100, 0x1611D, TOK_L },
    { 0x1611E, 0x1612F, TOK_M }, { 0x16130, 0x16139, TOK_N }, { 0x16D40, 0x16D6C, TOK_L },
    { 0x16D6D, 0x16D6F, TOK_P }, { 0x16D70, 0x16D79, TOK_N }, { 0x18CFF, 0x18CFF, TOK_L },
    { 0x1CC00, 0x1CCEF, TOK_Y }, { 0x1CCF0, 0x1CCF9, TOK_N }, { 0x1CD00, 0x1CEB3, TOK_Y },
    { 0x1E5D0, 0x1E5ED, TOK_L }, { 0x1E5EE, 0x1E5EF, TOK_M }, { 0x1E5F0, 0x1E5F0, TOK_L },
    { 0x1E5F1, 0x1E5FA, TOK_N }, { 0x1E5FF, 0x1E5FF, TOK_P }, { 0x1F8B2, 0x1F8BB, TOK_Y },
    { 0x1F8C0, 0x1F8C1, TOK_Y }, { 0x1FA89, 0x1FA89, TOK_Y }, { 0x1FA8F, 0x1FA8F, TOK_Y },
    { 0x1FABE, 0x1FABE, TOK_Y }, { 0x1FAC6, 0x1FAC6, TOK_Y }, { 0x1FADC, 0x1FADC, TOK_Y },
    { 0x1FADF, 0x1FADF, TOK_Y }, { 0x1FAE9, 0x1FAE9, TOK_Y }, { 0x1FBCB, 0x1FBEF, TOK_Y },
    { 0x2EBF0, 0x2EE5D, TOK_L },
};

/* Marks that are younger than Unicode 9, whose data the reference's normalizer has: to it they are
 * characters that stay where they are. U+11930 and U+11938, too. */
static const struct {
    uint32_t first, last;
} too_new[] = {
    { 0x7FD, 0x7FD }, { 0x898, 0x89F }, { 0x8CA, 0x8D3 }, { 0x9FE, 0x9FE }, { 0xC3C, 0xC3C },
    { 0xD3B, 0xD3C }, { 0xEBA, 0xEBA }, { 0x1715, 0x1715 }, { 0x1ABF, 0x1ACE },
    { 0x1DF6, 0x1DFA }, { 0xA82C, 0xA82C }, { 0x10D24, 0x10D27 }, { 0x10EAB, 0x10EAC },
    { 0x10EFD, 0x10EFF }, { 0x10F46, 0x10F50 }, { 0x10F82, 0x10F85 }, { 0x11070, 0x11070 },
    { 0x1133B, 0x1133B }, { 0x1145E, 0x1145E }, { 0x11839, 0x1183A }, { 0x11930, 0x11930 },
    { 0x11938, 0x11938 }, { 0x1193D, 0x1193E }, { 0x11943, 0x11943 }, { 0x119E0, 0x119E0 },
    { 0x11A34, 0x11A34 }, { 0x11A47, 0x11A47 }, { 0x11A99, 0x11A99 }, { 0x11D42, 0x11D42 },
    { 0x11D44, 0x11D45 }, { 0x11D97, 0x11D97 }, { 0x11F41, 0x11F42 }, { 0x16FF0, 0x16FF1 },
    { 0x1E08F, 0x1E08F }, { 0x1E130, 0x1E136 }, { 0x1E2AE, 0x1E2AE }, { 0x1E2EC, 0x1E2EF },
    { 0x1E4EC, 0x1E4EF },
};

static const uint8_t of_category[32] = {
    [UTF8PROC_CATEGORY_LU] = TOK_L, [UTF8PROC_CATEGORY_LL] = TOK_L,
    [UTF8PROC_CATEGORY_LT] = TOK_L, [UTF8PROC_CATEGORY_LM] = TOK_L,
    [UTF8PROC_CATEGORY_LO] = TOK_L, [UTF8PROC_CATEGORY_MN] = TOK_M,
    [UTF8PROC_CATEGORY_MC] = TOK_M, [UTF8PROC_CATEGORY_ME] = TOK_M,
    [UTF8PROC_CATEGORY_ND] = TOK_N, [UTF8PROC_CATEGORY_NL] = TOK_N,
    [UTF8PROC_CATEGORY_NO] = TOK_N, [UTF8PROC_CATEGORY_PC] = TOK_P,
    [UTF8PROC_CATEGORY_PD] = TOK_P, [UTF8PROC_CATEGORY_PS] = TOK_P,
    [UTF8PROC_CATEGORY_PE] = TOK_P, [UTF8PROC_CATEGORY_PI] = TOK_P,
    [UTF8PROC_CATEGORY_PF] = TOK_P, [UTF8PROC_CATEGORY_PO] = TOK_P,
    [UTF8PROC_CATEGORY_SM] = TOK_Y, [UTF8PROC_CATEGORY_SC] = TOK_Y,
    [UTF8PROC_CATEGORY_SK] = TOK_Y, [UTF8PROC_CATEGORY_SO] = TOK_Y,
};

/* A code point that canonically decomposes: NFC changes it unless it composes back, and its last
 * part is one that may join what stands before it. */
static void mark_nfc(struct tok_uni *u, uint32_t c)
{
    utf8proc_int32_t d[8];
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, d, 8,
            UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);

    if (n < 1 || n > 8)
        return;
    if (n > 1 && (uint32_t)d[n - 1] < TOK_UNI_N)
        u->cls[d[n - 1]] |= TOK_NFC;
    n = utf8proc_normalize_utf32(d, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n != 1 || (uint32_t)d[0] != c)
        u->cls[c] |= TOK_NFC;
}

static void init_classes(struct tok_uni *u)
{
    static const uint32_t space[] = { 0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F,
        0x3000 };

    for (uint32_t c = 0; c < TOK_UNI_N; c++)
        u->cls[c] = of_category[utf8proc_category((utf8proc_int32_t)c) & 31];
    for (size_t i = 0; i < sizeof(newer) / sizeof(newer[0]); i++)
        for (uint32_t c = newer[i].first; c <= newer[i].last; c++)
            u->cls[c] = newer[i].cls;
    for (uint32_t c = 0x9; c <= 0xD; c++)
        u->cls[c] |= TOK_S;
    for (uint32_t c = 0x2000; c <= 0x200A; c++)
        u->cls[c] |= TOK_S;
    for (size_t i = 0; i < sizeof(space) / sizeof(space[0]); i++)
        u->cls[space[i]] |= TOK_S;
    u->cls['\n'] |= TOK_NL;
    u->cls['\r'] |= TOK_NL;
}

void tok_uni_init(struct tok_uni *u)
{
    init_classes(u);
    tok_prop_late(u->late);
    for (uint32_t c = 0xC0; c < TOK_UNI_N; c++) {
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);

        if (p->combining_class)
            u->cls[c] |= TOK_NFC;
        if (p->decomp_seqindex != UINT16_MAX && !p->decomp_type)
            mark_nfc(u, c);
    }
    for (uint32_t c = 0x1161; c <= 0x1175; c++)     /* Hangul vowels and finals join, too */
        u->cls[c] |= TOK_NFC;
    for (uint32_t c = 0x11A8; c <= 0x11C2; c++)
        u->cls[c] |= TOK_NFC;
    for (size_t i = 0; i < sizeof(newer) / sizeof(newer[0]); i++)
        for (uint32_t c = newer[i].first; c <= newer[i].last; c++)
            u->cls[c] &= (uint8_t)~TOK_NFC;
    for (size_t i = 0; i < sizeof(too_new) / sizeof(too_new[0]); i++)
        for (uint32_t c = too_new[i].first; c <= too_new[i].last; c++)
            u->cls[c] &= (uint8_t)~TOK_NFC;
}

uint8_t tok_uni_high(uint32_t c)
{
    return of_category[utf8proc_category((utf8proc_int32_t)c) & 31];
}

bool tok_uni_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    if (k == UTF8PROC_CATEGORY_NO || (c >= 0x24B6 && c <= 0x24E9))
        return c >= 0x24B6 && c <= 0x24E9;          /* circled letters count as alphabetic */
    return (of_category[k & 31] & (TOK_L | TOK_M | TOK_N)) || k == UTF8PROC_CATEGORY_PC
            || c == 0x200C || c == 0x200D;
}

int tok_byte_char(int byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte <= 0xA0)                               /* 0x7F to 0xA0 follow the 33 controls */
        return 0x121 + byte - 0x7F;
    return 0x143;
}

int tok_char_byte(uint32_t c)
{
    if (c < 0x100)
        return tok_byte_char((int)c) == (int)c ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

/* How many bytes at P begin a character: *need is its full length, 0 when P cannot begin one. The
 * second byte's range excludes overlong forms, surrogates and code points past U+10FFFF. */
static size_t prefix(const unsigned char *p, size_t n, size_t *need)
{
    unsigned char lo = 0x80, hi = 0xBF, c = p[0];
    size_t i;

    *need = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (c == 0xE0)
        lo = 0xA0;
    else if (c == 0xED)
        hi = 0x9F;
    else if (c == 0xF0)
        lo = 0x90;
    else if (c == 0xF4)
        hi = 0x8F;
    for (i = 1; i < *need && i < n; i++) {
        if (p[i] < lo || p[i] > hi)
            break;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t tok_utf8_lossy(struct tw_buf *out, const char *text, size_t n, bool end)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0, good = 0, need;

    if (!n)
        return 0;
    while (i < n) {
        size_t k = prefix(p + i, n - i, &need);

        if (k == need) {
            i += k;
            continue;
        }
        tw_buf_add(out, text + good, i - good);
        good = i;
        if (need && i + k == n && !end)
            return i;
        tw_buf_add(out, "\xEF\xBF\xBD", 3);
        i += k;
        good = i;
    }
    tw_buf_add(out, text + good, i - good);
    return i;
}
