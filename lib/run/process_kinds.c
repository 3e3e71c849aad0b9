/* process_kinds.c - the processors, one function each */
#include "run/process.h"

static const struct tw_str none = { "", 0 };

static struct tw_str system_or(const struct tw_proc *p, struct tw_str ours)
{
    return p->has_system ? p->system : ours;
}

static void begin_messages(struct tw_jw *w, struct tw_str system)
{
    tw_jw_obj(w);
    tw_jw_key(w, "messages");
    tw_jw_arr(w);
    if (system.n)
        tw_put_message(w, "system", system);
}

/* {{name}} and {{author}} in any case. */
static void fill_in(struct tw_buf *out, struct tw_str text, const struct tw_proc *p)
{
    for (size_t i = 0; i < text.n; i++) {
        if (text.n - i >= 8 && !strncasecmp(text.p + i, "{{name}}", 8)) {
            tw_buf_adds(out, p->name);
            i += 7;
        } else if (text.n - i >= 10 && !strncasecmp(text.p + i, "{{author}}", 10)) {
            tw_buf_adds(out, p->author);
            i += 9;
        } else {
            tw_buf_putc(out, text.p[i]);
        }
    }
}

static int cognition_setup(struct tw_proc *p, struct tw_set *s, struct tw_err *err)
{
    if (tw_set_str(s, "name", &p->name) <= 0 || tw_set_str(s, "author", &p->author) <= 0)
        return tw_fail_code(err, TW_EMISUSE, "self-cognition", 0, "needs name= and author=");
    return 0;
}

static int cognition(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    static const char *const used[] = { "query", "response", "instruction", "input", "output", NULL };
    bool alpaca = tw_json_get(row, "instruction") != NULL;
    struct tw_str q, a, input = none;
    struct tw_buf text = { 0 };

    if ((alpaca && tw_text(row, "input", &input, err))
            || tw_need(row, alpaca ? "instruction" : "query", &q, err)
            || tw_need(row, alpaca ? "output" : "response", &a, err))
        return -1;
    begin_messages(w, system_or(p, TW_STR_LIT("You are a helpful assistant.")));
    fill_in(&text, q, p);
    if (input.n) {
        tw_buf_putc(&text, '\n');
        fill_in(&text, input, p);
    }
    tw_put_message(w, "user", tw_buf_str(&text));
    tw_buf_clear(&text);
    fill_in(&text, a, p);
    tw_put_message(w, "assistant", tw_buf_str(&text));
    tw_jw_arr_end(w);
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    tw_buf_free(&text);
    return 0;
}

/* {{..}} placeholders tell self-cognition rows from plain ones, so it is never detected: without a
 * name there is nothing to put in. */
static bool alpaca_fits(const struct tw_json *row)
{
    return tw_json_get(row, "instruction") && tw_json_get(row, "output");
}

static int put_history(struct tw_jw *w, const struct tw_json *history, struct tw_err *err)
{
    for (int64_t i = 0; history && i < history->n; i++) {
        const struct tw_json *turn = &history->item[i];

        if (turn->type != TW_JARR || turn->n != 2 || turn->item[0].type != TW_JSTR
                || turn->item[1].type != TW_JSTR)
            return tw_fail(err, NULL, 0, "item %lld of \"history\" is no [question, answer] pair of texts",
                    (long long)i + 1);
        tw_put_message(w, "user", turn->item[0].str);
        tw_put_message(w, "assistant", turn->item[1].str);
    }
    return 0;
}

static int alpaca(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    static const char *const used[] = { "instruction", "input", "output", "system", "history", NULL };
    struct tw_str ask, out, input, sys;
    const struct tw_json *history = tw_json_get(row, "history");
    struct tw_buf text = { 0 };

    if (tw_need(row, "instruction", &ask, err) || tw_need(row, "output", &out, err)
            || tw_text(row, "input", &input, err) || tw_text(row, "system", &sys, err))
        return -1;
    if (history && history->type != TW_JARR)
        return tw_fail(err, NULL, 0, "\"history\" must be a list of [question, answer] pairs");
    begin_messages(w, sys.n ? sys : system_or(p, none));
    if (put_history(w, history, err))
        return -1;
    tw_buf_adds(&text, ask);
    if (input.n) {
        tw_buf_putc(&text, '\n');
        tw_buf_adds(&text, input);
    }
    tw_put_message(w, "user", tw_buf_str(&text));
    tw_put_message(w, "assistant", out);
    tw_buf_free(&text);
    tw_jw_arr_end(w);
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

/* A side of a preference pair: text, a message, or a list of messages. */
static int put_side(struct tw_jw *w, const char *key, const struct tw_json *v, struct tw_err *err)
{
    struct tw_err why = { 0 };

    tw_jw_key(w, key);
    if (v->type == TW_JARR || v->type == TW_JOBJ) {
        if (v->type == TW_JARR ? tw_put_list(w, v, 0, &why) : tw_put_normal(w, v, &why))
            return tw_fail_code(err, why.code, NULL, 0, "%s: %s", key, why.msg);
        return 0;
    }
    if (v->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "\"%s\" must be text, a message or a list of messages", key);
    tw_put_message(w, "assistant", v->str);
    return 0;
}

/* conversations (from/value) or messages (role/content), with chosen and rejected where there are. */
static int conversation(const struct tw_proc *p, const struct tw_json *row, const char *key,
        struct tw_jw *w, struct tw_err *err)
{
    const char *const used[] = { key, "system", "tools", "chosen", "rejected", NULL };
    const struct tw_json *list = tw_json_get(row, key), *tools = tw_json_get(row, "tools");
    const struct tw_json *chosen = tw_json_get(row, "chosen"), *rejected = tw_json_get(row, "rejected");
    struct tw_str sys;

    if (!list)
        return tw_fail(err, NULL, 0, "no \"%s\"", key);
    if (tw_text(row, "system", &sys, err))
        return -1;
    if (!chosen != !rejected)
        return tw_fail(err, NULL, 0, "a pair needs both \"chosen\" and \"rejected\"");
    begin_messages(w, none);
    if (tw_put_messages(w, list, sys.n ? sys : system_or(p, none), err))
        return -1;
    tw_jw_arr_end(w);
    if (chosen && (put_side(w, "chosen", chosen, err) || put_side(w, "rejected", rejected, err)))
        return -1;
    if (tools && (tools->type != TW_JSTR || tools->str.n)) {
        struct tw_arena a = { 0 };
        struct tw_err why = { 0 };
        const struct tw_json *parsed = tools->type == TW_JSTR ? tw_json_parse(&a, tools->str, &why) : tools;

        tw_jw_key(w, "tools");
        if (parsed)
            tw_jw_value(w, parsed);
        tw_arena_free(&a);
        if (!parsed)
            return tw_fail(err, NULL, 0, "the text in \"tools\" is no JSON: %s", why.msg);
    }
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

static bool sharegpt_fits(const struct tw_json *row)
{
    return tw_json_get(row, "conversations") != NULL;
}

static int sharegpt(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    return conversation(p, row, "conversations", w, err);
}

static bool messages_fits(const struct tw_json *row)
{
    return tw_json_get(row, "messages") || tw_json_get(row, "chosen_messages");
}

/* Two whole conversations that begin alike: what they share is the prompt. */
static int pair_of_chats(const struct tw_json *row, struct tw_jw *w, struct tw_err *err)
{
    static const char *const used[] = { "chosen_messages", "rejected_messages", NULL };
    const struct tw_json *c = tw_json_get(row, "chosen_messages"), *r = tw_json_get(row, "rejected_messages");
    int64_t same = 0;

    if (!c || !r || c->type != TW_JARR || r->type != TW_JARR)
        return tw_fail(err, NULL, 0, "a pair needs both \"chosen_messages\" and \"rejected_messages\"");
    while (same < c->n && same < r->n && tw_str_eq(c->item[same].raw, r->item[same].raw))
        same++;
    if (!same || same == c->n || same == r->n)
        return tw_fail(err, NULL, 0, "the two conversations of a pair must share a prompt and then differ");
    begin_messages(w, none);
    if (tw_put_some(w, c, 0, same, err))
        return -1;
    tw_jw_arr_end(w);
    for (int side = 0; side < 2; side++) {
        const struct tw_json *list = side ? r : c;
        struct tw_err why = { 0 };

        tw_jw_key(w, side ? "rejected" : "chosen");
        if (tw_put_list(w, list, same, &why))
            return tw_fail_code(err, why.code, NULL, 0, "%s: %s", used[side], why.msg);
    }
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

static int messages(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    if (tw_json_get(row, "chosen_messages"))
        return pair_of_chats(row, w, err);
    return conversation(p, row, "messages", w, err);
}

static int dpo_setup(struct tw_proc *p, struct tw_set *s, struct tw_err *err)
{
    p->prompt = TW_STR_LIT("prompt");
    p->chosen = TW_STR_LIT("chosen");
    p->rejected = TW_STR_LIT("rejected");
    (void)err;
    tw_set_str(s, "prompt", &p->prompt);
    tw_set_str(s, "chosen", &p->chosen);
    tw_set_str(s, "rejected", &p->rejected);
    return 0;
}

static const struct tw_json *by_key(const struct tw_json *row, struct tw_str key)
{
    for (int64_t i = 0; i < row->n; i++)
        if (tw_str_eq(row->item[i].key, key) && row->item[i].type != TW_JNULL)
            return &row->item[i];
    return NULL;
}

static int dpo(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w, struct tw_err *err)
{
    const struct tw_json *prompt = by_key(row, p->prompt);
    const struct tw_json *side[2] = { by_key(row, p->chosen), by_key(row, p->rejected) };
    struct tw_str sys;

    if (!prompt || !side[0] || !side[1])
        return tw_fail(err, NULL, 0, "no \"%.*s\"",
                (int)(!prompt ? p->prompt : !side[0] ? p->chosen : p->rejected).n,
                (!prompt ? p->prompt : !side[0] ? p->chosen : p->rejected).p);
    if (tw_text(row, "system", &sys, err))
        return -1;
    begin_messages(w, prompt->type == TW_JSTR ? system_or(p, sys) : none);
    if (prompt->type == TW_JSTR)
        tw_put_message(w, "user", prompt->str);
    else if (tw_put_messages(w, prompt, system_or(p, sys), err))
        return -1;
    tw_jw_arr_end(w);
    if (put_side(w, "chosen", side[0], err) || put_side(w, "rejected", side[1], err))
        return -1;
    for (int64_t i = 0; i < row->n; i++) {
        const struct tw_json *v = &row->item[i];

        if (v == prompt || v == side[0] || v == side[1] || tw_str_is(v->key, "system"))
            continue;
        tw_jw_key_n(w, v->key);
        tw_jw_value(w, v);
    }
    tw_jw_obj_end(w);
    return 0;
}

static bool dpo_fits(const struct tw_json *row)
{
    return tw_json_get(row, "prompt") && tw_json_get(row, "chosen") && tw_json_get(row, "rejected");
}

static int answer_setup(struct tw_proc *p, struct tw_set *s, struct tw_err *err)
{
    return tw_set_bool(s, "assistant", &p->assistant, err) < 0 ? -1 : 0;
}

static void put_truth(struct tw_jw *w, const char *key, struct tw_str value)
{
    tw_jw_key(w, "user_data");
    tw_jw_arr(w);
    tw_jw_arr(w);
    tw_jw_cstr(w, key);
    tw_jw_str(w, value);
    tw_jw_arr_end(w);
    tw_jw_arr_end(w);
}

/* The number behind the last "####", commas removed. */
static struct tw_str gsm8k_truth(struct tw_str answer, char out[64])
{
    const char *at = NULL;
    size_t n = 0, i;

    for (i = 0; i + 4 <= answer.n; i++)
        if (!memcmp(answer.p + i, "####", 4))
            at = answer.p + i + 4;
    if (!at)
        return none;
    for (i = at - answer.p; i < answer.n && (answer.p[i] == ' ' || answer.p[i] == '\t'); i++)
        ;
    for (; i < answer.n && n < 63 && memchr("-0123456789,.", answer.p[i], 13); i++)
        if (answer.p[i] != ',')
            out[n++] = answer.p[i];
    if (n && out[n - 1] == '.')
        n--;
    return (struct tw_str){ out, n };
}

static int gsm8k(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w, struct tw_err *err)
{
    static const char *const used[] = { "question", "answer", "ground_truth", "user_data", NULL };
    struct tw_str q, a, truth;
    char number[64];

    if (tw_need(row, "question", &q, err) || tw_need(row, "answer", &a, err))
        return -1;
    truth = gsm8k_truth(a, number);
    if (!truth.n)
        return tw_fail(err, NULL, 0, "\"answer\" has no number behind ####");
    begin_messages(w, system_or(p, TW_STR_LIT("Solve the problem step by step and put the final answer "
                    "in \\boxed{}.")));
    tw_put_message(w, "user", q);
    if (p->assistant)
        tw_put_message(w, "assistant", a);
    tw_jw_arr_end(w);
    tw_jw_key(w, "ground_truth");
    tw_jw_str(w, truth);
    put_truth(w, "ground_truth", truth);
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

static bool gsm8k_fits(const struct tw_json *row)
{
    struct tw_str a = tw_field(row, "answer");
    char number[64];

    return tw_field(row, "question").n && gsm8k_truth(a, number).n;
}

static int math(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w, struct tw_err *err)
{
    static const char *const used[] = { "problem", "solution", NULL };
    struct tw_str q, a;

    if (tw_need(row, "problem", &q, err) || tw_need(row, "solution", &a, err))
        return -1;
    begin_messages(w, system_or(p, none));
    tw_put_message(w, "user", q);
    tw_put_message(w, "assistant", a);
    tw_jw_arr_end(w);
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

static bool math_fits(const struct tw_json *row)
{
    return tw_field(row, "problem").n && tw_field(row, "solution").n;
}

static int math_prompt(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    static const char *const used[] = { "problem", "user_data", NULL };
    struct tw_str q, a;

    if (tw_need(row, "problem", &q, err) || tw_need(row, "solution", &a, err))
        return -1;
    begin_messages(w, system_or(p, TW_STR_LIT("Answer with nothing but the final result in "
                    "\\boxed{}.")));
    tw_put_message(w, "user", q);
    tw_jw_arr_end(w);
    put_truth(w, "solution", a);
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    return 0;
}

static int countdown(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w,
        struct tw_err *err)
{
    static const char *const used[] = { "messages", "user_data", NULL };
    const struct tw_json *nums = tw_json_get(row, "nums"), *target = tw_json_get(row, "target");
    struct tw_buf ask = { 0 }, truth = { 0 };

    target = target ? target : tw_json_get(row, "response");
    if (!nums || nums->type != TW_JARR || !nums->n || !target || target->type != TW_JNUM)
        return tw_fail(err, NULL, 0, "needs \"nums\", a list of numbers, and \"target\", a number");
    tw_buf_puts(&ask, "Using the numbers [");
    for (int64_t i = 0; i < nums->n; i++) {
        if (nums->item[i].type != TW_JNUM) {
            tw_buf_free(&ask);
            return tw_fail(err, NULL, 0, "\"nums\" must hold numbers only");
        }
        tw_buf_printf(&ask, "%s%.*s", i ? ", " : "", (int)nums->item[i].raw.n, nums->item[i].raw.p);
    }
    tw_buf_printf(&ask, "], make an equation that equals %.*s. You may use +, -, * and /, and each number "
            "exactly once. Show your work in <think> </think> tags and give the final equation in "
            "<answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>.",
            (int)target->raw.n, target->raw.p);
    begin_messages(w, system_or(p, TW_STR_LIT("You are a helpful assistant. You first think about the "
                    "problem and then give the answer.")));
    tw_put_message(w, "user", tw_buf_str(&ask));
    tw_jw_arr_end(w);
    tw_buf_printf(&truth, "{\"target\": %.*s, \"nums\": %.*s}", (int)target->raw.n, target->raw.p,
            (int)nums->raw.n, nums->raw.p);
    put_truth(w, "ground_truth", tw_buf_str(&truth));
    tw_put_rest(w, row, used);
    tw_jw_obj_end(w);
    tw_buf_free(&ask);
    tw_buf_free(&truth);
    return 0;
}

static bool countdown_fits(const struct tw_json *row)
{
    return tw_json_get(row, "nums") && (tw_json_get(row, "target") || tw_json_get(row, "response"));
}

static int text_setup(struct tw_proc *p, struct tw_set *s, struct tw_err *err)
{
    (void)err;
    p->column = TW_STR_LIT("text");
    tw_set_str(s, "column", &p->column);
    return 0;
}

static int text(const struct tw_proc *p, const struct tw_json *row, struct tw_jw *w, struct tw_err *err)
{
    const struct tw_json *v = by_key(row, p->column);

    if (!v || v->type != TW_JSTR)
        return tw_fail(err, NULL, 0, "no text in \"%.*s\"", (int)p->column.n, p->column.p);
    tw_jw_obj(w);
    tw_jw_key(w, "text");
    tw_jw_str(w, v->str);
    for (int64_t i = 0; i < row->n; i++)
        if (&row->item[i] != v && !tw_str_is(row->item[i].key, "text")) {
            tw_jw_key_n(w, row->item[i].key);
            tw_jw_value(w, &row->item[i]);
        }
    tw_jw_obj_end(w);
    return 0;
}

static bool text_fits(const struct tw_json *row)
{
    const struct tw_json *v = tw_json_get(row, "text");

    return v && v->type == TW_JSTR;
}

const struct tw_proc_kind tw_proc_kinds[] = {
    { "messages", "system=TEXT", "messages of any spelling of roles, typed content parts, tool calls; "
        "chosen and rejected as messages, too", NULL, messages, messages_fits },
    { "dpo", "prompt=KEY,chosen=KEY,rejected=KEY,system=TEXT",
        "a prompt with a preferred and a rejected answer, as text or messages", dpo_setup, dpo, dpo_fits },
    { "sharegpt", "system=TEXT", "conversations of from and value, with function calls and tools", NULL,
        sharegpt, sharegpt_fits },
    { "alpaca", "system=TEXT", "instruction, input, output, with system and history", NULL, alpaca,
        alpaca_fits },
    { "gsm8k", "assistant=on|off,system=TEXT",
        "question and answer; the number behind #### becomes ground_truth", answer_setup, gsm8k,
        gsm8k_fits },
    { "competition-math", "system=TEXT", "problem and solution", NULL, math, math_fits },
    { "competition-math-grpo", "system=TEXT", "problem as a prompt, the solution kept for the reward", NULL,
        math_prompt, NULL },
    { "countdown", "system=TEXT", "nums and target: an equation to find", NULL, countdown,
        countdown_fits },
    { "self-cognition", "name=TEXT,author=TEXT,system=TEXT",
        "query and response (or alpaca columns) with {{NAME}} and {{AUTHOR}} filled in", cognition_setup,
        cognition, NULL },
    { "text", "column=KEY", "plain text for pre-training, taken from a column", text_setup, text,
        text_fits },
    { 0 }
};
