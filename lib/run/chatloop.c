/* chatloop.c - tw-sample --chat: a conversation in a terminal. Ctrl-C stops the answer, not the program;
 * Ctrl-D ends it. The conversation so far is kept in the prefix cache, so a turn costs its own tokens. */
#include "base/io.h"
#include "run/sample.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* A Ctrl-C wakes who waits for a line by a pipe: whichever thread the signal reaches, and a moment before the
 * wait begins too, when nothing is there to be interrupted yet. */
static volatile sig_atomic_t interrupted;
static int wake[2] = { -1, -1 };

static void on_sigint(int sig)
{
    int saved = errno;
    ssize_t put;

    (void)sig;
    interrupted = 1;
    put = write(wake[1], "", 1);    /* a full pipe wakes as well */
    (void)put;
    errno = saved;
}

struct talk {
    FILE *out;
    struct tw_session *s;
    struct tw_buf messages;     /* the list's items, comma separated */
    bool tty, ended, cut;
    int64_t turn;
};

static void message_add(struct talk *t, const char *role, struct tw_str content)
{
    if (t->messages.n)
        tw_buf_putc(&t->messages, ',');
    tw_buf_printf(&t->messages, "{\"role\":\"%s\",\"content\":", role);
    tw_json_quote(&t->messages, content);
    tw_buf_putc(&t->messages, '}');
}

static void show(struct tw_gen *g, int64_t sample, struct tw_str more)
{
    struct talk *t = g->user;

    (void)sample;
    fwrite(more.p, 1, more.n, t->out);
    fflush(t->out);
}

static void ended(struct tw_gen *g)
{
    ((struct talk *)g->user)->ended = true;
}

/* One answer to the conversation; it becomes part of it. */
static int answer(struct talk *t, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_buf text = { 0 };
    struct tw_tokens prompt;
    const struct tw_json *rec;
    struct tw_gen g;
    int ret = -1, more = 1;

    tw_session_gen(t->s, &g);
    tw_buf_puts(&text, "{\"messages\":[");
    tw_buf_adds(&text, tw_buf_str(&t->messages));
    tw_buf_puts(&text, "]}");
    rec = tw_json_parse(&a, tw_buf_str(&text), err);
    if (!rec || tw_chat_prompt(t->s->chat, &a, rec, &prompt, err))
        goto out;
    g.prompt = prompt.token;
    g.nprompt = prompt.n;
    g.n = 1;
    g.top_logprobs = 0;
    g.stream = (uint64_t)t->turn++;
    g.user = t;
    g.text = show;
    g.done = ended;
    t->ended = false;
    t->s->source->add(t->s, &g, t->s->nadapter == 1 ? &t->s->adapter[0].from : &t->s->base);
    while (!t->ended && more >= 0) {
        if (interrupted)
            t->s->source->abort(t->s, &g);
        else
            more = t->s->source->step(t->s, err);
    }
    if (more < 0)
        goto out;
    if (*g.error) {
        tw_fail(err, NULL, 0, "%s; /reset begins a new conversation", g.error);
    } else {
        fprintf(t->out, "%s\n", interrupted ? " [stopped]" : "");
        message_add(t, "assistant", tw_buf_str(&g.out[0].text));
    }
    ret = *g.error ? -1 : 0;
out:
    tw_gen_free_out(&g);
    tw_buf_free(&text);
    tw_arena_free(&a);
    return ret;
}

/* What a terminal keeps of a line, its end not counted: what is pasted beyond that it drops without a word. */
#define TERMINAL_LINE 4095

/* Waits for input; 1 it is there, 0 Ctrl-C came before it. */
static int wait_input(void)
{
    struct pollfd p[2] = { { .fd = 0, .events = POLLIN }, { .fd = wake[0], .events = POLLIN } };

    while (!interrupted && poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    return !interrupted;
}

/* No Ctrl-C has come: what asks for the next line, or for its end, begins anew. */
static void calm(void)
{
    char c[64];

    interrupted = 0;
    while (read(wake[0], c, sizeof c) > 0)
        ;
}

/* 1 a line (without its end), 0 the end of input. Ctrl-C at the prompt gives an empty line. */
static int read_line(struct talk *t, struct tw_buf *line)
{
    char c;
    ssize_t got;

    tw_buf_clear(line);
    t->cut = false;
    calm();
    if (t->tty) {
        fputs("> ", t->out);
        fflush(t->out);
    }
    for (;;) {
        if (!wait_input()) {
            fputs("\n", t->out);
            tw_buf_clear(line);
            return 1;
        }
        got = read(0, &c, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return line->n > 0;
        if (c == '\n') {
            t->cut = t->tty && line->n >= TERMINAL_LINE;
            return 1;
        }
        tw_buf_putc(line, c);
    }
}

int tw_sample_chat(struct tw_session *s, FILE *out, struct tw_err *err)
{
    struct talk t = { .s = s, .out = out, .tty = isatty(0) && isatty(1) };
    struct sigaction sa = { .sa_handler = on_sigint }, old;
    struct tw_buf line = { 0 };
    int ret = 0;

    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK))
        return tw_fail(err, NULL, 0, "no pipe: %m");
    sigaction(SIGINT, &sa, &old);
    if (t.tty)
        fprintf(out, "%s. Ctrl-C stops an answer, /reset forgets the conversation, Ctrl-D ends.\n",
                s->o->model);
    while (!ret && read_line(&t, &line)) {
        struct tw_str text = tw_buf_str(&line);
        size_t bad = tw_utf8_check(text.p, text.n);
        size_t before = t.messages.n;

        if (!text.n)
            continue;
        if (tw_str_is(text, "/reset")) {
            tw_buf_clear(&t.messages);
            continue;
        }
        if (t.cut) {
            fprintf(stderr, "tw-sample: a terminal takes %d bytes a line and dropped the rest: it was "
                    "not sent; give long texts as records in a file\n", TERMINAL_LINE);
            continue;
        }
        if (bad < text.n) {
            fprintf(stderr, "tw-sample: byte %zu of the line is not UTF-8; it was not sent\n", bad + 1);
            continue;
        }
        message_add(&t, "user", text);
        ret = answer(&t, err);
        if (ret && t.tty && err->code) {    /* say why, go on without the line */
            fprintf(stderr, "tw-sample: %s\n", err->msg);
            tw_err_clear(err);
            t.messages.n = before;
            ret = 0;
        }
    }
    if (t.tty && !ret)
        fputs("\n", out);
    sigaction(SIGINT, &old, NULL);
    close(wake[0]);
    close(wake[1]);
    tw_buf_free(&line);
    tw_buf_free(&t.messages);
    return ret;
}
