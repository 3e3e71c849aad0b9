/* chat_mask.c - the loss mask against the difference of renderings, for every template we have. */
#include "test.h"

#include "base/io.h"
#include "base/jsonl.h"
#include "data/chat_priv.h"
#include "data/jinja_priv.h"

#include <stdlib.h>
#include <unistd.h>

static struct tw_arena arena;
static const char *const names[] = { "chatglm3", "deepseek_r1", "deepseek_r1_distill", "deepseek_v3",
    "glm_4_6", "glm_5_1", "internlm2", "llama3", "llama3_1", "qwen2_5", "qwen2_5_vl", "qwen3",
    "qwen3_5", "smollm3" };

static struct tw_json *conversation(int i)
{
    static struct tw_json *all[64];
    char *path = "tests/data/templates/conversations.jsonl";
    struct tw_err err = {0};
    struct tw_jsonl *in;
    struct tw_rec rec;
    int n = 0;

    if (!all[0]) {
        in = tw_jsonl_open(&path, 1, &err);
        while (in && n < 64 && tw_jsonl_next(in, &rec, &err) > 0)
            all[n++] = tw_json_parse(&arena, tw_arena_str(&arena, rec.text), &err);
        tw_jsonl_close(in);
    }
    return i < 64 ? all[i] : NULL;
}

static struct tw_chat *open_template(const char *name, const struct tw_chat_opts *opts)
{
    static const char *const keys[] = { "bos_token", "eos_token" };
    char path[256], out[256], arg[2][256];
    const char *args[2];
    struct tw_chat_opts set = *opts, *o = &set;
    struct tw_err err = {0};
    struct tw_json *j;
    struct tw_chat *c;
    struct tw_str token;

    snprintf(path, sizeof(path), "tests/data/templates/%s.json", name);
    snprintf(out, sizeof(out), "/tmp/tw-unit-chat-%d.jinja", (int)getpid());
    j = tw_json_file(&arena, path, 0, &err);
    tw_write_file(out, tw_json_get(j, "chat_template")->str.p,
            tw_json_get(j, "chat_template")->str.n, &err);
    set.args = args;
    for (int i = 0; i < 2; i++)
        if (tw_json_get_str(j, keys[i], &token, NULL) > 0) {
            snprintf(arg[i], sizeof(arg[i]), "%s=%.*s", keys[i], (int)token.n, token.p);
            args[set.nargs++] = arg[i];
        }
    c = tw_chat_open("tests/data/templates", out, o, &err);
    if (!c)
        printf("# %s: %s\n", name, err.msg);
    remove(out);
    return c;
}

/* messages[:n] rendered; NULL when the template refuses them. */
static const struct tw_buf *rendered(const struct tw_chat *c, const struct tw_json *rec, int64_t n,
        bool prompt, struct tw_jinja_out *out)
{
    struct tw_chat_conv v;
    struct tw_err err = {0};

    if (tw_chat_conv(c, &arena, rec, NULL, &v, &err))
        return NULL;
    v.messages.n = n;
    return tw_chat_render_conv(c, &arena, &v, prompt, out, &err) ? NULL : &out->text;
}

static bool prefix(const struct tw_buf *a, const struct tw_buf *b)
{
    return a->n <= b->n && !memcmp(a->p, b->p, a->n);
}

static char *mask_text(const struct tw_chat_work *w)
{
    char *m = tw_arena_alloc(&arena, w->out.text.n + 1);

    memset(m, '.', w->out.text.n);
    for (int64_t i = 0; i < w->nseg; i++)
        memset(m + w->seg[i].begin, '#', w->seg[i].end - w->seg[i].begin);
    return m;
}

/* The bytes of B without a generation prompt at its end, which some templates always write. */
static size_t without_prompt(const struct tw_chat *c, const struct tw_buf *b)
{
    size_t n = b->n;

    for (int k = 0; k < c->nheader; k++)
        if (c->header[k].n < b->n && !memcmp(b->p + b->n - c->header[k].n, c->header[k].p, c->header[k].n)
                && b->n - c->header[k].n < n)
            n = b->n - c->header[k].n;
    return n;
}

/* Where render(messages[:i] + prompt) begins render(messages[:i + 1]), which begins the whole: what
 * the second adds is what must be masked. Returns how many replies were compared. */
static int compare_one(const struct tw_chat *c, const char *name, int k, const struct tw_json *rec)
{
    struct tw_chat_work w = {0};
    struct tw_jinja_out before = {0}, after = {0};
    struct tw_chat_conv v;
    struct tw_err err = {0};
    int done = 0;

    if (tw_chat_conv(c, &arena, rec, NULL, &v, &err) ||
            tw_chat_render_conv(c, &arena, &v, false, &w.out, &err) ||
            tw_chat_segments(c, &w, &v, &err))
        goto out;
    for (int64_t i = 1; i < v.messages.n; i++) {
        const struct tw_buf *a, *b;
        char *m = mask_text(&w);
        size_t bad = 0, end;

        if (!tw_str_is(tw_json_get(&v.messages.item[i], "role")->str, "assistant") ||
                !(a = rendered(c, rec, i, true, &before)) ||
                !(b = rendered(c, rec, i + 1, false, &after)) || !prefix(a, b) ||
                (end = without_prompt(c, b)) < a->n || end > w.out.text.n || memcmp(b->p, w.out.text.p, end))
            continue;
        for (size_t x = a->n; x < end; x++)
            bad += m[x] != '#';
        if (a->n && m[a->n - 1] == '#' && i > 0)
            bad++;
        if (end < w.out.text.n && m[end] == '#')
            bad++;
        if (bad)
            printf("# %s %d message %d: %zu bytes differ\n# %.*s|%.*s|%.*s\n# %s\n", name, k, (int)i, bad,
                    (int)a->n, w.out.text.p, (int)(end - a->n), w.out.text.p + a->n,
                    (int)(w.out.text.n - end), w.out.text.p + end, m);
        CHECK(!bad);
        done++;
    }
out:
    tw_jinja_out_free(&w.out);
    tw_jinja_out_free(&before);
    tw_jinja_out_free(&after);
    free(w.seg);
    tw_arena_free(&w.arena);
    return done;
}

/* ---- conversations made up ---- */

static uint32_t pick_state;

static uint32_t pick(uint32_t n)
{
    pick_state = pick_state * 1664525u + 1013904223u;
    return (pick_state >> 8) % n;
}

/* A word that says whose it is, "A3q" for the reply 3, among others and marks that templates look for. */
static void put_words(struct tw_buf *b, char who, int i)
{
    static const char *const around[] = { "", "", "one ", "\\n", "  ", "\xE4\xB8\xAD ", "\\\"x\\\" ", "{{ y }} ",
        "<b>&amp;</b> ", "\\n\\n" };

    tw_buf_puts(b, around[pick(10)]);
    tw_buf_printf(b, "%c%dq", who, i);
    tw_buf_puts(b, around[pick(10)]);
}

static void put_reply(struct tw_buf *b, int i, bool calls)
{
    uint32_t how = pick(8);

    tw_buf_puts(b, ",{\"role\":\"assistant\",\"content\":\"");
    if (how < 2) {
        tw_buf_puts(b, "<think>\\n");
        put_words(b, 'R', i);
        tw_buf_puts(b, "\\n</think>\\n\\n");
    }
    if (!calls || pick(2))
        put_words(b, 'A', i);
    tw_buf_puts(b, "\"");
    if (how >= 6) {
        tw_buf_puts(b, ",\"reasoning_content\":\"");
        put_words(b, 'R', i);
        tw_buf_puts(b, "\"");
    }
    for (uint32_t k = 0, n = 1 + pick(2); calls && k < n; k++) {
        tw_buf_printf(b, "%s{\"id\":\"call%u\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"q\":\"",
                k ? "," : ",\"tool_calls\":[", k);
        put_words(b, 'C', i);
        tw_buf_printf(b, "\",\"n\":%u}}}%s", pick(100), k + 1 < n ? "" : "]");
    }
    tw_buf_puts(b, "}");
}

static void put_turn(struct tw_buf *b, char who, const char *role, int i)
{
    tw_buf_printf(b, "%s{\"role\":\"%s\",\"content\":\"", i ? "," : "", role);
    put_words(b, who, i);
    tw_buf_puts(b, "\"}");
}

static struct tw_json *made_up(uint32_t seed)
{
    struct tw_buf b = {0};
    struct tw_json *j;
    struct tw_err err = {0};
    bool tools;
    int i = 0;

    pick_state = seed * 7919 + 17;
    tools = pick(2);
    tw_buf_puts(&b, "{\"messages\":[");
    if (pick(2))
        put_turn(&b, 'S', "system", i++);
    for (int turn = 0, n = 1 + (int)pick(4); turn < n; turn++) {
        bool calls = tools && pick(2);

        put_turn(&b, 'U', "user", i++);
        put_reply(&b, i++, calls);
        for (int deep = 0; calls && deep < 2; deep++) {
            put_turn(&b, 'T', "tool", i++);
            calls = pick(3) == 0;
            put_reply(&b, i++, calls);
        }
    }
    tw_buf_puts(&b, "]");
    if (tools)
        tw_buf_puts(&b, ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"D0q\","
                "\"parameters\":{\"type\":\"object\",\"properties\":{\"q\":{\"type\":\"string\"}}}}}]");
    tw_buf_puts(&b, "}");
    j = tw_json_parse(&arena, tw_arena_str(&arena, tw_buf_str(&b)), &err);
    CHECK(j != NULL);
    tw_buf_free(&b);
    return j;
}

/* Every word that stands in the text is masked exactly when a reply said it, wherever the template has
 * put it: also where earlier turns are rewritten. Returns how many words there were. */
static int compare_words(const struct tw_chat *c, const char *name, uint32_t seed, const struct tw_json *rec)
{
    struct tw_chat_work w = {0};
    struct tw_chat_conv v;
    struct tw_err err = {0};
    int words = 0;

    if (!tw_chat_conv(c, &arena, rec, NULL, &v, &err) && !tw_chat_render_conv(c, &arena, &v, false, &w.out, &err)
            && !tw_chat_segments(c, &w, &v, &err)) {
        const char *t = w.out.text.p, *m = mask_text(&w);

        for (size_t i = 0, k; i + 2 < w.out.text.n; i = k) {
            bool reply = strchr("ARC", t[i]) && t[i], bad = false;

            k = i + 1;
            if (!t[i] || !strchr("ARCSUTD", t[i]) || t[k] < '0' || t[k] > '9')
                continue;
            while (k < w.out.text.n && t[k] >= '0' && t[k] <= '9')
                k++;
            if (k == w.out.text.n || t[k] != 'q')
                continue;
            for (size_t x = i; x <= k; x++)
                bad |= (m[x] == '#') != reply;
            if (bad)
                printf("# %s %u: %.*s\n# %.*s\n# %s\n", name, seed, (int)(k + 1 - i), t + i, (int)w.out.text.n, t, m);
            CHECK(!bad);
            words++;
        }
    }
    tw_jinja_out_free(&w.out);
    free(w.seg);
    tw_arena_free(&w.arena);
    return words;
}

/* For each template and setting of thinking: words of made-up conversations; and each reply of these
 * against the difference of renderings, where the template lets one ask. */
static void mask_of_made_up_conversations(void)
{
    int words = 0, replies = 0, least = INT32_MAX;

    for (size_t t = 0; t < sizeof(names) / sizeof(*names); t++) {
        int of_this = 0;

        for (int thinking = -1; thinking <= 1; thinking++) {
            struct tw_chat_opts o = { .thinking = thinking, .control = TW_AUTO, .add_special = TW_AUTO };
            struct tw_chat *c = open_template(names[t], &o);

            CHECK(c != NULL);
            for (uint32_t seed = 0; c && seed < 60; seed++) {
                const struct tw_json *rec = made_up(seed);

                if (!c->tpl->has_generation)
                    replies += compare_one(c, names[t], (int)seed, rec);
                of_this += compare_words(c, names[t], seed, rec);
            }
            tw_chat_close(c);
        }
        words += of_this;
        least = of_this < least ? of_this : least;
    }
    printf("# %d words, at least %d of a template; %d replies compared\n", words, least, replies);
    CHECK(least > 300 && replies > 1000);
}

static void mask_is_the_difference_of_renderings(void)
{
    int total = 0;

    for (size_t t = 0; t < sizeof(names) / sizeof(*names); t++)
        for (int thinking = -1; thinking <= 1; thinking++) {
            struct tw_chat_opts o = { .thinking = thinking, .control = TW_AUTO,
                .add_special = TW_AUTO };
            struct tw_chat *c = open_template(names[t], &o);
            int n = 0;

            CHECK(c != NULL);
            for (int k = 0; c && !c->tpl->has_generation && conversation(k); k++)
                n += compare_one(c, names[t], k, conversation(k));
            total += n;
            tw_chat_close(c);
        }
    printf("# %d replies compared\n", total);
    CHECK(total > 200);
}

int main(void)
{
    RUN(mask_is_the_difference_of_renderings);
    RUN(mask_of_made_up_conversations);
    tw_arena_free(&arena);
    return test_end();
}
