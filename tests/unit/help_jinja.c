/* help_jinja.c - what the programs that check templates share. */
#include "help_jinja.h"

#include <ctype.h>
#include <stdlib.h>
#include <time.h>

/* Templates print the day of the rendering; the day a reference answer was made on stands in it, as
 * "28 November 2026", and is taken from there. */
int64_t help_date(struct tw_str text)
{
    static const char *const names[] = { "January", "February", "March", "April", "May", "June",
        "July", "August", "September", "October", "November", "December" };

    for (size_t i = 0; i + 4 < text.n; i++)
        for (int m = 0; m < 12; m++) {
            size_t n = strlen(names[m]);
            const char *p = text.p + i;
            struct tm tm = { .tm_hour = 12 };

            if (text.n - i < n + 5 || memcmp(p, names[m], n) || p[n] != ' ' || i < 2 ||
                    p[-1] != ' ' || !isdigit((unsigned char)p[-2]))
                continue;
            tm.tm_mday = p[-2] - '0' + (i > 2 && isdigit((unsigned char)p[-3]) ? 10 * (p[-3] - '0') : 0);
            tm.tm_mon = m;
            tm.tm_year = (int)strtol(p + n + 1, NULL, 10) - 1900;
            return (int64_t)timegm(&tm);
        }
    return (int64_t)time(NULL);
}

int help_vars(struct tw_jinja_var *v, int max, const struct tw_json *obj)
{
    int n = 0;

    for (int64_t i = 0; obj && i < obj->n && n < max; i++)
        v[n++] = (struct tw_jinja_var){ .name = obj->item[i].key, .json = &obj->item[i] };
    return n;
}

void help_show(const char *what, struct tw_str s, size_t at)
{
    size_t from = at > 40 ? at - 40 : 0;

    printf("#   %s: ", what);
    for (size_t i = from; i < s.n && i < at + 60; i++)
        printf(s.p[i] == '\n' ? "\\n" : "%c", s.p[i]);
    printf("\n");
}

size_t help_differ(struct tw_str a, struct tw_str b)
{
    size_t i = 0;

    while (i < a.n && i < b.n && a.p[i] == b.p[i])
        i++;
    return i;
}
