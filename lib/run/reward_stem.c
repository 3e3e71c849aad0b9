/* reward_stem.c - Porter's stemmer (M. F. Porter, "An algorithm for suffix stripping", 1980), as
 * published: the word is a run of consonants and vowels, its measure m the number of VC in it. */
#include "reward_priv.h"

struct word {
    char *b;
    size_t n;
};

static bool consonant(const struct word *w, size_t i)
{
    switch (w->b[i]) {
    case 'a': case 'e': case 'i': case 'o': case 'u':
        return false;
    case 'y':
        return i == 0 || !consonant(w, i - 1);
    default:
        return true;
    }
}

/* The measure of the first N letters. */
static int measure(const struct word *w, size_t n)
{
    size_t i = 0;
    int m = 0;

    while (i < n && consonant(w, i))
        i++;
    while (i < n) {
        while (i < n && !consonant(w, i))
            i++;
        if (i == n)
            break;
        while (i < n && consonant(w, i))
            i++;
        m++;
    }
    return m;
}

static bool has_vowel(const struct word *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!consonant(w, i))
            return true;
    return false;
}

static bool doubled(const struct word *w, size_t n)
{
    return n >= 2 && w->b[n - 1] == w->b[n - 2] && consonant(w, n - 1);
}

/* Consonant, vowel, consonant that is not w, x or y: "hop". */
static bool cvc(const struct word *w, size_t n)
{
    return n >= 3 && consonant(w, n - 1) && !consonant(w, n - 2) && consonant(w, n - 3)
            && w->b[n - 1] != 'w' && w->b[n - 1] != 'x' && w->b[n - 1] != 'y';
}

static bool ends(const struct word *w, const char *s, size_t *stem)
{
    size_t len = strlen(s);

    if (len > w->n || memcmp(w->b + w->n - len, s, len))
        return false;
    *stem = w->n - len;
    return true;
}

static void set(struct word *w, size_t stem, const char *s)
{
    size_t len = strlen(s);     /* never longer than what it replaces but for one letter */

    memcpy(w->b + stem, s, len);
    w->n = stem + len;
}

struct rule { const char *from, *to; };

/* The first rule whose ending is there, applied if the stem's measure is above MIN. */
static void replace(struct word *w, const struct rule *r, int min)
{
    size_t stem;

    for (; r->from; r++)
        if (ends(w, r->from, &stem)) {
            if (measure(w, stem) > min)
                set(w, stem, r->to);
            return;
        }
}

static void plurals(struct word *w)
{
    size_t stem;
    bool cut = false;

    if (ends(w, "sses", &stem) || ends(w, "ies", &stem))
        w->n -= 2;
    else if (w->n > 1 && w->b[w->n - 1] == 's' && w->b[w->n - 2] != 's')
        w->n--;
    if (ends(w, "eed", &stem)) {
        if (measure(w, stem) > 0)
            w->n--;
    } else if ((ends(w, "ed", &stem) || ends(w, "ing", &stem)) && has_vowel(w, stem)) {
        w->n = stem;
        cut = true;
    }
    if (cut && (ends(w, "at", &stem) || ends(w, "bl", &stem) || ends(w, "iz", &stem)))
        w->b[w->n++] = 'e';
    else if (cut && doubled(w, w->n) && !strchr("lsz", w->b[w->n - 1]))
        w->n--;
    else if (cut && measure(w, w->n) == 1 && cvc(w, w->n))
        w->b[w->n++] = 'e';
    if (ends(w, "y", &stem) && has_vowel(w, stem))
        w->b[w->n - 1] = 'i';
}

/* Endings that go where the measure is above 1; the longest first. */
static void strip(struct word *w)
{
    static const char *const end[] = { "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent",
        "ism", "ate", "iti", "ous", "ive", "ize", "ion", "al", "er", "ic", "ou" };
    size_t stem;

    for (size_t i = 0; i < sizeof(end) / sizeof(*end); i++)
        if (ends(w, end[i], &stem)) {
            bool ion = !strcmp(end[i], "ion");

            if (measure(w, stem) > 1 && (!ion || (stem && strchr("st", w->b[stem - 1]))))
                w->n = stem;
            return;
        }
}

size_t tw_stem(char *word, size_t n)
{
    static const struct rule second[] = { { "ational", "ate" }, { "tional", "tion" }, { "enci", "ence" },
        { "anci", "ance" }, { "izer", "ize" }, { "abli", "able" }, { "alli", "al" }, { "entli", "ent" },
        { "eli", "e" }, { "ousli", "ous" }, { "ization", "ize" }, { "ation", "ate" }, { "ator", "ate" },
        { "alism", "al" }, { "iveness", "ive" }, { "fulness", "ful" }, { "ousness", "ous" },
        { "aliti", "al" }, { "iviti", "ive" }, { "biliti", "ble" }, { NULL, NULL } };
    static const struct rule third[] = { { "icate", "ic" }, { "ative", "" }, { "alize", "al" },
        { "iciti", "ic" }, { "ical", "ic" }, { "ful", "" }, { "ness", "" }, { NULL, NULL } };
    struct word w = { word, n };

    if (n < 3)
        return n;
    plurals(&w);
    replace(&w, second, 0);
    replace(&w, third, 0);
    strip(&w);
    if (w.n && w.b[w.n - 1] == 'e') {
        int m = measure(&w, w.n - 1);

        if (m > 1 || (m == 1 && !cvc(&w, w.n - 1)))
            w.n--;
    }
    if (w.n && w.b[w.n - 1] == 'l' && doubled(&w, w.n) && measure(&w, w.n) > 1)
        w.n--;
    return w.n;
}
