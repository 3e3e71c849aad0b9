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

static struct tw_chat *open_template(const char *name, const struct tw_chat_opts *o)
{
    char path[256], out[256];
    struct tw_err err = {0};
    struct tw_json *j;
    struct tw_chat *c;

    snprintf(path, sizeof(path), "tests/data/templates/%s.json", name);
    snprintf(out, sizeof(out), "/tmp/tw-unit-chat-%d.jinja", (int)getpid());
    j = tw_json_file(&arena, path, 0, &err);
    tw_write_file(out, tw_json_get(j, "chat_template")->str.p,
            tw_json_get(j, "chat_template")->str.n, &err);
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
        size_t bad = 0;

        if (!tw_str_is(tw_json_get(&v.messages.item[i], "role")->str, "assistant") ||
                !(a = rendered(c, rec, i, true, &before)) ||
                !(b = rendered(c, rec, i + 1, false, &after)) || !prefix(a, b) ||
                !prefix(b, &w.out.text))
            continue;
        for (size_t x = a->n; x < b->n; x++)
            bad += m[x] != '#';
        if (a->n && m[a->n - 1] == '#' && i > 0)
            bad++;
        if (b->n < w.out.text.n && m[b->n] == '#')
            bad++;
        if (bad)
            printf("# %s %d message %d: %zu bytes differ\n# %.*s|%.*s\n# %s\n", name, k, (int)i, bad,
                    (int)a->n, w.out.text.p, (int)(b->n - a->n), w.out.text.p + a->n, m);
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
    tw_arena_free(&arena);
    return test_end();
}
