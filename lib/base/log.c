/* log.c - notices, progress, tallies. The one state of the process that is kept here is who speaks
 * and how loudly; tw_start() sets it before any thread exists. */
#include "log.h"
#include "escape.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *prog;
    enum tw_level level;
    double log_every;
    bool terminal;
} talk = { "twinkle", TW_NORMAL, 0, false };

void tw_log_init(const char *prog, enum tw_level level, double log_every)
{
    talk.prog = prog;
    talk.level = level;
    talk.log_every = log_every;
    talk.terminal = isatty(2);
    setvbuf(stderr, NULL, _IOLBF, 0);       /* whole lines, also when stages of a pipe share it */
}

const char *tw_prog(void)
{
    return talk.prog;
}

bool tw_verbose(void)
{
    return talk.level >= TW_VERBOSE;
}

/* A line of TEXT, which may hold what files are called and records say: escaped. With MANY its own line
 * feeds and tabs stay. */
static void put_line(const char *text, bool many)
{
    struct tw_buf line = {0};
    char out[5];

    tw_buf_printf(&line, "%s%s: ", talk.terminal ? "\r\033[K" : "", talk.prog);
    for (const char *p = text; *p;) {
        char c = *p;

        p += tw_escape_next(out, p);
        if (many && (c == '\n' || c == '\t'))
            tw_buf_putc(&line, c);
        else
            tw_buf_puts(&line, out);
    }
    tw_buf_putc(&line, '\n');
    fwrite(line.p, 1, line.n, stderr);
    tw_buf_free(&line);
}

static void say(const char *fmt, va_list ap, bool many)
{
    char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0)
        return;
    put_line(text, many);
    free(text);
}

void tw_notice(const char *fmt, ...)
{
    va_list ap;

    if (talk.level < TW_NORMAL)
        return;
    va_start(ap, fmt);
    say(fmt, ap, false);
    va_end(ap);
}

void tw_info(const char *fmt, ...)
{
    va_list ap;

    if (talk.level < TW_VERBOSE)
        return;
    va_start(ap, fmt);
    say(fmt, ap, true);
    va_end(ap);
}

double tw_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

char *tw_fmt_count(char out[32], int64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRId64, n), at = 0;
    int sign = n < 0;

    for (int i = 0; i < len; i++) {
        if (i > sign && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

char *tw_fmt_bytes(char out[32], double n)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int u = 0;

    while (fabs(n) >= 1024 && u < 5) {
        n /= 1024;
        u++;
    }
    snprintf(out, 32, u && fabs(n) < 100 ? "%.1f %s" : "%.0f %s", n, unit[u]);
    return out;
}

char *tw_fmt_time(char out[32], double seconds)
{
    if (!(seconds < 1e15)) {
        snprintf(out, 32, "?");
    } else if (seconds < 9.95) {
        snprintf(out, 32, "%.1f s", seconds < 0 ? 0 : seconds);
    } else {
        int64_t s = (int64_t)(seconds + 0.5);

        if (s < 60)
            snprintf(out, 32, "%" PRId64 " s", s);
        else if (s < 3600)
            snprintf(out, 32, "%" PRId64 " m %" PRId64 " s", s / 60, s % 60);
        else if (s < 86400)
            snprintf(out, 32, "%" PRId64 " h %" PRId64 " m", s / 3600, s / 60 % 60);
        else
            snprintf(out, 32, "%" PRId64 " d %" PRId64 " h", s / 86400, s / 3600 % 24);
    }
    return out;
}

void tw_progress_start(struct tw_progress *p, const char *what, const char *unit, int64_t total)
{
    memset(p, 0, sizeof(*p));
    p->what = what;
    p->unit = unit;
    p->total = total;
    p->t0 = p->last = tw_now();
}

/* What fits in a line of the terminal after the program's name: a longer one would wrap, and \r goes back
 * to the last row only. */
static int room(void)
{
    struct winsize w = {0};
    int cols = ioctl(2, TIOCGWINSZ, &w) || !w.ws_col ? 80 : w.ws_col;
    int left = cols - 3 - (int)strlen(talk.prog);

    return left > 0 ? left : 0;
}

static void progress_print(struct tw_progress *p, double now, const char *extra)
{
    char a[32];
    double took = now - p->t0, rate = took > 0 ? (double)p->done / took : 0;
    struct tw_buf line = {0};

    tw_buf_printf(&line, "%s %s", p->what, tw_fmt_count(a, p->done));
    if (p->total > 0)
        tw_buf_printf(&line, " of %s", tw_fmt_count(a, p->total));
    if (p->unit)
        tw_buf_printf(&line, " %s", p->unit);
    if (p->total > 0)
        tw_buf_printf(&line, " (%d %%)", (int)(100.0 * (double)p->done / (double)p->total));
    tw_buf_printf(&line, rate < 10 ? " %.2f/s" : " %.0f/s", rate);
    if (p->total > p->done && rate > 0)
        tw_buf_printf(&line, ", %s left", tw_fmt_time(a, (double)(p->total - p->done) / rate));
    if (extra)
        tw_buf_printf(&line, ", %s", extra);
    if (talk.terminal)
        fprintf(stderr, "\r\033[K%s: %.*s", talk.prog, room(), line.p);
    else
        fprintf(stderr, "%s: %s\n", talk.prog, line.p);
    fflush(stderr);
    tw_buf_free(&line);
    p->shown = true;
    p->last = now;
}

void tw_progress_at(struct tw_progress *p, int64_t done, const char *extra)
{
    double now, wait;

    p->done = done;
    if (talk.level < TW_NORMAL || (talk.terminal ? p->yields : talk.log_every <= 0))
        return;
    now = tw_now();
    wait = !talk.terminal ? talk.log_every : p->shown ? 1 : 2;
    if (now - p->last >= wait)
        progress_print(p, now, extra);
}

void tw_progress_end(struct tw_progress *p)
{
    if (p->shown && talk.terminal) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->shown = false;
}

void tw_tally_start(struct tw_tally *t)
{
    memset(t, 0, sizeof(*t));
    t->t0 = tw_now();
}

/* TEXT fills its SIZE bytes: it ends in "...", and not in the middle of a character. */
static void shorten(char *text, size_t size)
{
    size_t n = size - 4;

    while (n && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    memcpy(text + n, "...", 4);
}

void tw_tally_skip(struct tw_tally *t, const char *file, int64_t line, const char *fmt, ...)
{
    const int max = (int)(sizeof(t->why) / sizeof(t->why[0]));
    char reason[sizeof(t->why[0].reason)];
    va_list ap;
    int i;

    va_start(ap, fmt);
    if (vsnprintf(reason, sizeof(reason), fmt, ap) >= (int)sizeof(reason))
        shorten(reason, sizeof(reason));
    va_end(ap);
    t->skipped++;
    for (i = 0; i < t->nwhy && strcmp(t->why[i].reason, reason); i++)
        ;
    if (i == max) {                         /* the last entry gathers whatever else there is */
        i = max - 1;
        snprintf(t->why[i].reason, sizeof(reason), "other reasons");
    }
    if (i == t->nwhy) {
        t->nwhy++;
        t->why[i].n = 0;
        memcpy(t->why[i].reason, reason, sizeof(reason));
        snprintf(t->why[i].first, sizeof(t->why[i].first), "%s:%" PRId64, file ? file : "stdin",
                line);
    }
    t->why[i].n++;
}

void tw_tally_end(struct tw_tally *t)
{
    double took = tw_now() - t->t0;
    char a[32], b[32];
    struct tw_buf line = {0};

    if (talk.level < TW_NORMAL || (took <= 1 && !t->skipped))
        return;
    tw_buf_printf(&line, "%s records in, %s out", tw_fmt_count(a, t->in), tw_fmt_count(b, t->out));
    if (t->tokens)
        tw_buf_printf(&line, ", %s tokens", tw_fmt_count(a, t->tokens));
    if (t->skipped)
        tw_buf_printf(&line, ", %s skipped", tw_fmt_count(a, t->skipped));
    for (int i = 0; i < t->nwhy; i++)
        tw_buf_printf(&line, "%s%s: %s (first %s)", i ? "; " : " (", t->why[i].reason,
                tw_fmt_count(a, t->why[i].n), t->why[i].first);
    if (t->nwhy)
        tw_buf_putc(&line, ')');
    tw_buf_printf(&line, ", %s", tw_fmt_time(a, took));
    put_line(line.p, false);
    tw_buf_free(&line);
}
