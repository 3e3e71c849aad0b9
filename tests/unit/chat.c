/* chat.c - from records to tokens: control tokens, the one beginning-of-sequence token, truncation, preference pairs. */
#include "test.h"

#include "base/io.h"
#include "base/jsonl.h"
#include "data/chat_priv.h"
#include "data/jinja_priv.h"

#include <stdlib.h>
#include <unistd.h>

static struct tw_arena arena;
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

/* ---- with a tokenizer: tests/data/chat/plain and bos ---- */

static const struct tw_chat_opts plain = { .thinking = TW_AUTO, .control = TW_AUTO,
    .add_special = TW_AUTO };

static struct tw_chat *open_tok(const char *name, const char *template, struct tw_chat_opts o)
{
    char dir[256], out[256];
    struct tw_err err = {0};
    struct tw_chat *c;

    snprintf(dir, sizeof(dir), "tests/data/chat/%s", name);
    snprintf(out, sizeof(out), "/tmp/tw-unit-chat-%d.jinja", (int)getpid());
    if (template)
        tw_write_file(out, template, strlen(template), &err);
    c = tw_chat_open(dir, template ? out : NULL, &o, &err);
    if (!c)
        printf("# %s\n", err.msg);
    remove(out);
    return c;
}

/* The sequences of a record as text, trained spans in [], "|" between them; or the error. */
static const char *shown_by(const struct tw_chat *c, const char *json, struct tw_sample *s)
{
    static struct tw_buf b;
    struct tw_err err = {0};
    struct tw_json *j = tw_json_parse(&arena, tw_str(json), &err);

    tw_buf_clear(&b);
    if (!j || tw_chat_encode(c, &arena, j, s, &err)) {
        tw_buf_printf(&b, "%s", err.msg);
        return b.p;
    }
    if (!s->nseq)
        tw_buf_printf(&b, "dropped: %s", s->dropped);
    for (int64_t q = 0; q < s->nseq; q++) {
        const struct tw_tokens *t = &s->seq[q];
        bool in = false;
        int64_t n = 0;

        for (int64_t i = 0, k; i < t->n; i = k) {
            bool on = i && t->weight[i] != 0;

            for (k = i + 1; k < t->n && (t->weight[k] != 0) == on; k++)
                ;
            n += on ? k - i : 0;
            if (on != in)
                tw_buf_putc(&b, on ? '[' : ']');
            in = on;
            tw_tok_decode(tw_chat_tok(c), &t->token[i], k - i, false, &b);
        }
        CHECK_INT(t->supervised, n);
        tw_buf_puts(&b, in ? "]" : "");
        tw_buf_puts(&b, q + 1 < s->nseq ? "|" : "");
    }
    tw_buf_putc(&b, 0);
    return b.p;
}

static const char *shown(const char *name, const char *template, struct tw_chat_opts o,
        const char *json, struct tw_sample *s)
{
    struct tw_chat *c = open_tok(name, template, o);
    const char *r = shown_by(c, json, s);

    tw_chat_close(c);
    return r;
}

#define TURN(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define CHAT(a) "{\"messages\":[" a "]}"
static const char bare[] = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}";
static const char with_bos[] = "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}";

static void one_bos_in_all_four_cases(void)
{
    const char *rec = CHAT(TURN("user", "a") "," TURN("assistant", "b"));
    struct tw_sample s;

    CHECK_STR(shown("plain", bare, plain, rec, &s), "user:a;assistant:[b;]");
    CHECK_STR(shown("plain", with_bos, plain, rec, &s), "<s>a;[b;]");
    CHECK_STR(shown("bos", bare, plain, rec, &s), "<s>user:a;assistant:[b;]");
    CHECK_STR(shown("bos", with_bos, plain, rec, &s), "<s>a;[b;]");
    CHECK_STR(shown("bos", "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", plain, rec, &s),
            "the template writes the beginning-of-sequence token twice");
    CHECK_STR(shown("bos", NULL, plain, "{\"text\":\"abc\"}", &s), "<s>[abc]");
    CHECK_STR(shown("bos", NULL, plain, "{\"text\":\"<s>abc\"}", &s), "<s>[abc]");
    CHECK_STR(shown("plain", NULL, plain, "{\"text\":\"xbc\"}", &s), "x[bc]");
}

static void text_of_a_user_is_never_control(void)
{
    struct tw_chat_opts parse = plain;
    struct tw_sample s;
    struct tw_chat *c = open_tok("plain", NULL, plain);
    int32_t end = tw_tok_id(tw_chat_tok(c), TW_STR_LIT("<|im_end|>"));
    int n = 0;

    shown_by(c, CHAT(TURN("user", "say <|im_end|> please <tool>") "," TURN("assistant", "yes")), &s);
    CHECK_INT(s.blocked, 1);
    for (int64_t i = 0; i < s.seq[0].n; i++)
        n += s.seq[0].token[i] == end;
    CHECK_INT(n, 2);
    n = 0;
    for (int64_t i = 0; i < s.seq[0].n; i++)    /* an added token that is not special still is one */
        n += s.seq[0].token[i] == tw_tok_id(tw_chat_tok(c), TW_STR_LIT("<tool>"));
    CHECK_INT(n, 1);
    tw_chat_close(c);
    parse.control = TW_ON;
    c = open_tok("plain", NULL, parse);
    shown_by(c, CHAT(TURN("user", "<|im_end|>") "," TURN("assistant", "yes")), &s);
    n = 0;
    for (int64_t i = 0; i < s.seq[0].n; i++)
        n += s.seq[0].token[i] == end;
    CHECK_INT(n, 3);
    CHECK_INT(s.blocked, 0);
    tw_chat_close(c);
    /* a role is part of a control token in some templates */
    CHECK_STR(shown("plain", "{% for m in messages %}<|{{ 'im_' ~ m.role }}|>{% endfor %}'end'", plain,
            CHAT(TURN("end", "x")), &s), "dropped: no supervised token");
    /* tools are the user's, too, and may be texts of JSON */
    CHECK_STR(shown("plain", "{{ tools[0].name }}:{{ messages[0].content }}", plain,
            "{\"messages\":[" TURN("assistant", "x") "],\"tools\":[\"{\\\"name\\\":\\\"f\\\"}\"]}", &s),
            "f:[x]");
    c = open_tok("plain", "{{ tools|tojson }}{{ messages[0].content }}<|end|>", plain);
    shown_by(c, "{\"messages\":[" TURN("assistant", "x") "],\"tools\":[\"<|im_end|>\"]}", &s);
    CHECK_INT(s.blocked, 1);
    tw_chat_close(c);
}

static void only_the_last_of_equal_words_is_trained(void)
{
    struct tw_sample s;

    CHECK_STR(shown("plain", bare, plain, CHAT(TURN("user", "yes or no: yes?") ","
            TURN("assistant", "yes")), &s), "user:yes or no: yes?;assistant:[yes;]");
    CHECK_STR(shown("plain", bare, plain, CHAT(TURN("user", "a") "," TURN("assistant", " ")), &s),
            "user:a;assistant:[ ;]");
    CHECK_STR(shown("plain", bare, plain, CHAT(TURN("user", "a") "," TURN("assistant", "\xf0\x9f\x99\x82")),
            &s), "user:a;assistant:[\xf0\x9f\x99\x82;]");
}

static void nul_is_a_byte(void)
{
    struct tw_sample s;
    struct tw_chat *c = open_tok("plain", "{% for m in messages %}{{ m.content }}{% endfor %}", plain);

    shown_by(c, CHAT(TURN("user", "x") "," TURN("assistant", "A\\u0000B")), &s);
    CHECK_INT(s.seq[0].n, 4);
    CHECK(s.seq[0].token[1] == 'A' && s.seq[0].token[2] == 0 && s.seq[0].token[3] == 'B');
    tw_chat_close(c);
}

static void train_on_says_what_is_trained(void)
{
    const char *rec = CHAT(TURN("user", "a") "," TURN("assistant", "b") "," TURN("user", "c") ","
            TURN("assistant", "d"));
    struct tw_chat_opts o = plain;
    struct tw_sample s;

    CHECK_STR(shown("plain", bare, o, rec, &s), "user:a;assistant:[b;]user:c;assistant:[d;]");
    o.train_on = TW_ON_LAST;
    CHECK_STR(shown("plain", bare, o, rec, &s), "user:a;assistant:b;user:c;assistant:[d;]");
    o.train_on = TW_ON_ALL;
    CHECK_STR(shown("plain", bare, o, rec, &s), "u[ser:a;assistant:b;user:c;assistant:d;]");
    o.train_on = TW_ON_PROMPT;
    CHECK_STR(shown("plain", bare, o, rec, &s), "u[ser:a;assistant:]b;[user:c;assistant:]d;");
    o = plain;
    o.generation_prompt = true;
    CHECK_STR(shown("plain", bare, o, rec, &s), "user:a;assistant:b;user:c;assistant:d;assistant:");
    /* by generation blocks, whatever stands in them */
    CHECK_STR(shown("plain", "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
            "{% generation %}<{{ m.content }}>{% endgeneration %}{% endif %}{% endfor %}", plain, rec,
            &s), "a[<b>]c[<d>]");
}

static void messages_have_weights(void)
{
    struct tw_chat_opts o = plain;
    struct tw_sample s;
    struct tw_chat *c = open_tok("plain", bare, plain);
    const char *rec = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
            "\"content\":\"b\",\"train\":false},{\"role\":\"user\",\"content\":\"c\",\"weight\":1},"
            "{\"role\":\"assistant\",\"content\":\"d\",\"loss_weight\":0.5}]}";

    CHECK_STR(shown_by(c, rec, &s), "user:a;assistant:b;user:[c;]assistant:[d;]");
    CHECK(s.seq[0].weight[s.seq[0].n - 1] == 0.5f);
    CHECK_STR(shown_by(c, "{\"messages\":[" TURN("assistant", "b") "," TURN("assistant", "c") "],"
            "\"user_data\":[[\"key_rounds\",\"[1]\"]]}", &s), "assistant:b;assistant:[c;]");
    CHECK_STR(shown_by(c, "{\"messages\":[" TURN("assistant", "b") "],\"user_data\":[[\"key_rounds\","
            "\"x\"]]}", &s), "user_data: key_rounds is not a list of numbers");
    CHECK_STR(shown_by(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\",\"train\":\"x\"}]}",
            &s), "messages[0]: 'train' must be true or false, not a string");
    CHECK_STR(shown_by(c, "{\"messages\":[" TURN("user", "a") "," TURN("assistant", "b") ",{\"role\":\"user\","
            "\"content\":\"c\",\"loss_weight\":\"x\"}]}", &s), "messages[2]: 'loss_weight' must be a number, "
            "not a string");
    CHECK_STR(shown_by(c, "{\"system\":\"s\",\"messages\":[" TURN("user", "a") "],\"chosen\":[" TURN("assistant",
            "b") ",{\"role\":\"assistant\",\"content\":\"c\",\"weight\":[]}],\"rejected\":\"d\"}", &s),
            "chosen[1]: 'weight' must be a number, not an array");
    CHECK_STR(shown_by(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\",\"train\":true,"
            "\"weight\":1}]}", &s), "messages[0]: more than one of loss_weight, weight, train");
    tw_chat_close(c);
    o.train_on = TW_ON_ALL;
    c = open_tok("plain", bare, o);
    CHECK_STR(shown_by(c, rec, &s), "u[ser:a;assistant:]b;[user:c;assistant:d;]");
    tw_chat_close(c);
}

static void system_text_of_the_record_comes_first(void)
{
    struct tw_chat_opts o = plain;
    struct tw_sample s;

    o.system = "F";
    CHECK_STR(shown("plain", bare, o, CHAT(TURN("user", "a") "," TURN("assistant", "b")), &s),
            "system:F;user:a;assistant:[b;]");
    CHECK_STR(shown("plain", bare, o, CHAT(TURN("system", "R") "," TURN("assistant", "b")), &s),
            "system:R;assistant:[b;]");
    CHECK_STR(shown("plain", bare, o, "{\"system\":\"K\",\"messages\":[" TURN("assistant", "b") "]}", &s),
            "system:K;assistant:[b;]");
    CHECK_STR(shown("plain", bare, o, "{\"system\":\"K\",\"messages\":[" TURN("system", "b") "]}", &s),
            "system: the record also has a system message");
}

static void truncation_cuts_all_together(void)
{
    const char *rec = CHAT(TURN("user", "a") "," TURN("assistant", "0123456789"));
    struct tw_chat_opts o = plain;
    struct tw_sample s;

    o.max_length = 22;      /* of 28 */
    CHECK_STR(shown("plain", bare, o, rec, &s), "28 tokens, more than --max-length 22 (--truncation left, "
            "right, split or drop decides what to do with it)");
    o.truncation = TW_TRUNC_RIGHT;
    CHECK_STR(shown("plain", bare, o, rec, &s), "user:a;assistant:[01234]");
    CHECK_INT(s.truncated, 1);
    o.truncation = TW_TRUNC_LEFT;
    CHECK_STR(shown("plain", bare, o, rec, &s), ";assistant:[0123456789;]");
    o.truncation = TW_TRUNC_DROP;
    CHECK_STR(shown("plain", bare, o, rec, &s), "dropped: too long");
    o.truncation = TW_TRUNC_SPLIT;
    o.max_length = 10;
    CHECK_STR(shown("plain", bare, o, rec, &s), "istant:[012]|3[456789;]");
    CHECK_INT(s.unsupervised, 1);
    o.truncation = TW_TRUNC_RIGHT;
    CHECK_STR(shown("plain", bare, o, rec, &s), "dropped: no supervised token after truncation");
    o.max_length = 28;
    o.truncation = TW_TRUNC_RAISE;
    CHECK_STR(shown("plain", bare, o, rec, &s), "user:a;assistant:[0123456789;]");
}

static void pairs_share_their_prompt(void)
{
    struct tw_chat_opts o = plain;
    struct tw_sample s;
    const char *rec = "{\"messages\":[" TURN("user", "q") "," TURN("assistant", "old") ","
            TURN("user", "r") "],\"chosen\":\"yes\",\"rejected\":[" TURN("assistant", "nope") "]}";

    CHECK_STR(shown("plain", bare, o, rec, &s), "user:q;assistant:old;user:r;assistant:[yes;]|"
            "user:q;assistant:old;user:r;assistant:[nope;]");
    CHECK_INT(s.kind, TW_REC_PREFERENCE);
    CHECK_INT(s.prompt_n, 38);
    o.max_length = 20;
    o.truncation = TW_TRUNC_LEFT;
    CHECK_STR(shown("plain", bare, o, rec, &s), "er:r;assistant:[yes;]|er:r;assistant:[nope;]");
    CHECK_INT(s.prompt_n, 15);
    o.max_length = 40;
    o.truncation = TW_TRUNC_RIGHT;
    CHECK_STR(shown("plain", bare, o, rec, &s), "user:q;assistant:old;user:r;assistant:[yes;]|"
            "user:q;assistant:old;user:r;assistant:[no]");
    o.max_length = 38;
    CHECK_STR(shown("plain", bare, o, rec, &s),
            "dropped: a side of the pair has no answer token left");
    o.truncation = TW_TRUNC_SPLIT;
    CHECK(strstr(shown("plain", bare, o, rec, &s), "cannot be split") != NULL);
    CHECK_STR(shown("plain", bare, plain, "{\"chosen\":{\"tokens\":[1,2,3]},\"rejected\":"
            "{\"tokens\":[1,4],\"weights\":[0,1]}}", &s), "\x01[\x02\x03]|\x01[\x04]");
    CHECK_INT(s.prompt_n, 1);
}

static void prompt_and_completion_do_not_merge(void)
{
    struct tw_chat *c = open_tok("plain", NULL, plain);
    struct tw_sample s;
    struct tw_tokens p;
    struct tw_err err = {0};
    struct tw_json *j = tw_json_parse(&arena, TW_STR_LIT("{\"prompt\":\"ab\"}"), &err);

    CHECK_STR(shown_by(c, "{\"prompt\":\"ab\",\"completion\":\"cd\"}", &s), "ab[cd]");
    CHECK_INT(s.seq[0].n, 4);
    CHECK_INT(s.prompt_n, 2);
    CHECK(!tw_chat_prompt(c, &arena, j, &p, &err) && p.n == 2 &&
            !memcmp(p.token, s.seq[0].token, 2 * sizeof(*p.token)));
    CHECK_STR(shown_by(c, "{\"prompt\":\"abc\"}", &s), "abc");
    CHECK_INT(s.kind, TW_REC_PROMPT);
    tw_chat_close(c);
}

static void token_records_are_checked(void)
{
    struct tw_chat *c = open_tok("plain", NULL, plain);
    struct tw_sample s;

    CHECK_STR(shown_by(c, "{\"tokens\":[65,66,67],\"weights\":[1,0,0.5]}", &s), "AB[C]");
    CHECK_STR(shown_by(c, "{\"tokens\":[65,66,67,68],\"start\":[0,2]}", &s), "A[B]|C[D]");
    CHECK_STR(shown_by(c, "{\"tokens\":[65,999]}", &s), "tokens[1]: the tokenizer has no token 999");
    CHECK_STR(shown_by(c, "{\"tokens\":[65,-1]}", &s), "tokens[1]: expected a token id");
    CHECK_STR(shown_by(c, "{\"tokens\":[65],\"weights\":[1,1]}", &s),
            "weights: expected a list of 1 numbers, as many as tokens");
    CHECK_STR(shown_by(c, "{\"tokens\":[65,66],\"weights\":[0,0]}", &s),
            "dropped: no supervised token");
    CHECK_STR(shown_by(c, "{\"tokens\":\"x\"}", &s), "tokens: expected a list of token ids, got a string");
    CHECK_STR(shown_by(c, "{\"prompt_tokens\":[65,66],\"completion\":{\"tokens\":[67,68],"
            "\"weights\":[1,0]}}", &s), "AB[C]D");
    CHECK_INT(s.prompt_n, 2);
    CHECK_INT(s.kind, TW_REC_ROLLOUT);
    CHECK_STR(shown_by(c, "{\"x\":1}", &s), "no record that can be encoded: expected one of the keys "
            "messages, chosen and rejected, anchor and positive, text, prompt, tokens, or prompt_tokens with "
            "completion");
    CHECK_STR(shown_by(c, "{\"messages\":[]}", &s), "messages: the list is empty");
    CHECK_STR(shown_by(c, CHAT(TURN("gpt2", "a")), &s), "messages[0].role: unknown role 'gpt2' (system, "
            "user, assistant, tool, or one that the template names)");
    CHECK_STR(shown_by(c, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", &s),
            "messages[0].content: expected a text or a list of parts, got a number");
    tw_chat_close(c);
}

static void hidden_and_refused_are_told(void)
{
    struct tw_sample s;
    struct tw_err err = {0};
    struct tw_chat *c = open_template("qwen3", &plain);
    struct tw_jinja_out out = {0};
    struct tw_chat_conv v;

    CHECK(!tw_chat_conv(c, &arena, conversation(4), NULL, &v, &err) &&
            !tw_chat_render_conv(c, &arena, &v, false, &out, &err));
    CHECK_INT(tw_chat_hidden(&out, &v), 1);
    CHECK(!tw_chat_conv(c, &arena, conversation(3), NULL, &v, &err) &&
            !tw_chat_render_conv(c, &arena, &v, false, &out, &err));
    CHECK_INT(tw_chat_hidden(&out, &v), 0);
    tw_jinja_out_free(&out);
    tw_chat_close(c);
    CHECK_STR(shown("plain", "{{ raise_exception('roles must alternate') }}", plain,
            CHAT(TURN("user", "a")), &s), "chat template, line 1: roles must alternate");
    CHECK(s.refused);
    /* a broken template is an error with its place, never replaced */
    CHECK(!tw_chat_open("tests/data/chat/plain", "tests/data/jinja/unit.jsonl", &plain, &err));
    CHECK(err.line > 0 && strstr(err.msg, "column"));
}

int main(void)
{
    RUN(one_bos_in_all_four_cases);
    RUN(text_of_a_user_is_never_control);
    RUN(only_the_last_of_equal_words_is_trained);
    RUN(nul_is_a_byte);
    RUN(train_on_says_what_is_trained);
    RUN(messages_have_weights);
    RUN(system_text_of_the_record_comes_first);
    RUN(truncation_cuts_all_together);
    RUN(pairs_share_their_prompt);
    RUN(prompt_and_completion_do_not_merge);
    RUN(token_records_are_checked);
    RUN(hidden_and_refused_are_told);
    tw_arena_free(&arena);
    return test_end();
}
