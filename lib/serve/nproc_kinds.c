/* nproc_kinds.c - classes by the names that Twinkle gives them, or that our own commands do */
#include "nproc.h"
#include <ctype.h>
#include <stdlib.h>

static int unknown(const char *what, struct tw_str name, const char *known, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "there is no %s %.*s here; there are %s", what,
            (int)(name.n < 100 ? name.n : 100), name.p, known);
}

/* ---- preprocessors ---- */

static int cognition(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err)
{
    p->name = TW_STR_LIT("twinkle robot");
    p->author = TW_STR_LIT("twinkle lab");
    return tw_np_text(g, "model_name", &p->name, err) < 0 ||
                           tw_np_text(g, "model_author", &p->author, err) < 0
                   ? -1
                   : 0;
}

static int plain(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err)
{
    return 0;
}

static int with_system(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err)
{
    int got = tw_np_text(g, "system", &p->system, err);

    p->has_system = got > 0;
    return got < 0 ? -1 : 0;
}

static int gsm8k(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err)
{
    return with_system(p, g, err) || tw_np_bool(g, "add_assistant", &p->assistant, err) < 0 ? -1
                                                                                            : 0;
}

static int emoji(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err)
{
    p->prompt = TW_STR_LIT("prompt");
    p->chosen = TW_STR_LIT("answer_zh");
    p->rejected = TW_STR_LIT("answer_en");
    return with_system(p, g, err) || tw_np_text(g, "prompt_key", &p->prompt, err) < 0 ||
                           tw_np_text(g, "chosen_key", &p->chosen, err) < 0 ||
                           tw_np_text(g, "rejected_key", &p->rejected, err) < 0
                   ? -1
                   : 0;
}

static const struct {
    const char *name, *ours;
    int (*setup)(struct tw_proc *p, struct tw_np_args *g, struct tw_err *err);
} procs[] = {
        {"SelfCognitionProcessor", "self-cognition", cognition},
        {"CompetitionMathProcessor", "competition-math", plain},
        {"CompetitionMathGRPOProcessor", "competition-math-grpo", plain},
        {"AlpacaProcessor", "alpaca", plain},
        {"CountdownProcessor", "countdown", plain},
        {"GSM8KProcessor", "gsm8k", gsm8k},
        {"EmojiDPOProcessor", "dpo", emoji},
        {"messages", "messages", with_system},
        {"sharegpt", "sharegpt", with_system},
};

/* The settings of our own kinds: name,key=value of what G holds. Only words, so nothing in a value
 * can pass for another setting. */
static char *settings(struct tw_np_args *g, const char *name, struct tw_err *err)
{
    struct tw_buf b = {0};
    char *text;

    tw_buf_puts(&b, name);
    for (int64_t i = 0; g->obj && i < g->obj->n; i++) {
        const struct tw_json *v = &g->obj->item[i];
        struct tw_str s = v->type == TW_JSTR ? v->str : v->raw;
        bool ok = s.n > 0 && v->type != TW_JARR && v->type != TW_JOBJ && v->key.n > 0;

        if (v->type == TW_JNULL)
            continue;
        for (size_t k = 0; k < v->key.n; k++)
            ok = ok &&
                 (islower((unsigned char)v->key.p[k]) || v->key.p[k] == '-' || v->key.p[k] == '_');
        for (size_t k = 0; k < s.n; k++)
            ok = ok && (isalnum((unsigned char)s.p[k]) || strchr("._-+", s.p[k])) && s.p[k];
        if (!ok) {
            tw_fail(err, NULL, 0, "%s: a setting must be a number or a word", g->what);
            break;
        }
        if (v->type == TW_JBOOL)
            s = tw_str(v->b ? "on" : "off");
        tw_buf_printf(&b, ",%.*s=%.*s", (int)v->key.n, v->key.p, (int)s.n, s.p);
        if (i < 64)
            g->used |= (uint64_t)1 << i;
    }
    text = tw_arena_dup(g->a, b.p, b.n);
    tw_buf_free(&b);
    return err->code ? NULL : text;
}

static struct tw_str keep(struct tw_np_proc *p, struct tw_str s)
{
    return s.n ? tw_arena_str(&p->arena, s) : s;
}

struct tw_np_proc *tw_np_proc_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err)
{
    struct tw_np_proc *p = tw_xcalloc(1, sizeof *p);
    struct tw_str *own[] = {&p->p.name, &p->p.author, &p->p.system, &p->p.prompt, &p->p.chosen,
            &p->p.rejected, &p->p.column};
    size_t i = 0;

    atomic_init(&p->refs, 1);
    while (i < sizeof procs / sizeof *procs && !tw_str_is(name, procs[i].name))
        i++;
    if (i == sizeof procs / sizeof *procs) {
        unknown("preprocessor", name,
                "SelfCognitionProcessor, CompetitionMathProcessor, "
                "CompetitionMathGRPOProcessor, AlpacaProcessor, CountdownProcessor, "
                "GSM8KProcessor, "
                "EmojiDPOProcessor, messages and sharegpt",
                err);
        goto fail;
    }
    for (p->p.kind = tw_proc_kinds; strcmp(p->p.kind->name, procs[i].ours); p->p.kind++)
        ;
    if (procs[i].setup(&p->p, g, err) || tw_np_end(g, err))
        goto fail;
    for (i = 0; i < sizeof own / sizeof *own; i++)
        *own[i] = keep(p, *own[i]);
    return p;
fail:
    tw_np_proc_unref(p);
    return NULL;
}

/* ---- filters ---- */

struct tw_np_proc *tw_np_filter_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err)
{
    static const char *const names[][2] = {{"DeadLoopFilter", "loop"}, {"DedupFilter", "dedup"},
            {"RefuseFilter", "refuse"}, {"TokenSoupFilter", "soup"},
            {"MessageSanityFilter", "sane"}};
    struct tw_np_proc *p = tw_xcalloc(1, sizeof *p);
    const char *ours = NULL;
    char *text;

    atomic_init(&p->refs, 1);
    p->drops = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tw_str_is(name, names[i][0]))
            ours = names[i][1];
    for (const struct tw_filter_kind *k = tw_filter_kinds; k->name; k++)
        if (tw_str_is(name, k->name))
            ours = k->name;
    if (!ours)
        unknown("filter", name,
                "DeadLoopFilter, DedupFilter, RefuseFilter, TokenSoupFilter, "
                "MessageSanityFilter, and those of tw-preprocess",
                err);
    text = ours ? settings(g, ours, err) : NULL;
    if (text && !tw_filter_parse(&p->f, tw_arena_dup(&p->arena, text, strlen(text)), err))
        return p;
    tw_np_proc_unref(p);
    return NULL;
}

void tw_np_proc_unref(struct tw_np_proc *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1)
        return;
    tw_arena_free(&p->arena);
    free(p);
}

/* ---- rewards ---- */

struct tw_reward_fn *tw_np_reward_new(struct tw_str name, struct tw_np_args *g, struct tw_err *err)
{
    /* Those that run a program or a pattern of the client's are not among them. */
    static const char *const names[][2] = {{"GSM8KAccuracyReward", "gsm8k-accuracy"},
            {"GSM8KFormatReward", "gsm8k-format"}, {"FormatReward", "format"},
            {"MathReward", "math"}, {"OlympiadBenchAccuracyReward", "olympiad-accuracy"},
            {"OlympiadBenchFormatReward", "olympiad-format"},
            {"OlympiadBenchQualityReward", "olympiad-quality"}, {"F1Reward", "f1"},
            {"CoTReward", "cot"}, {"CountdownReward", "countdown"}};
    struct tw_str key = {0};
    char *text;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool theirs = tw_str_is(name, names[i][0]);

        if (!theirs && !tw_str_is(name, names[i][1]))
            continue;
        if (theirs && !strcmp(names[i][1], "math") &&
                tw_np_text(g, "ground_truth_key", &key, err) < 0)
            return NULL;
        if (theirs && tw_np_end(g, err))
            return NULL;
        text = theirs ? tw_arena_printf(g->a, "%s", names[i][1]) : settings(g, names[i][1], err);
        for (size_t k = 0; k < key.n; k++)
            if (!isalnum((unsigned char)key.p[k]) && key.p[k] != '_' && key.p[k] != '-') {
                tw_fail(err, NULL, 0, "%s: ground_truth_key must be a word", g->what);
                return NULL;
            }
        if (key.n)
            text = tw_arena_printf(g->a, "%s,key=%.*s", text, (int)key.n, key.p);
        if (text && strstr(text, ",pattern=")) {
            tw_fail(err, NULL, 0, "%s: patterns are not taken from clients", g->what);
            return NULL;
        }
        return text ? tw_reward_fn_open(text, err) : NULL;
    }
    unknown("reward", name,
            "GSM8KAccuracyReward, GSM8KFormatReward, FormatReward, MathReward, "
            "OlympiadBenchAccuracyReward, OlympiadBenchFormatReward, OlympiadBenchQualityReward, "
            "F1Reward, "
            "CoTReward and CountdownReward",
            err);
    return NULL;
}
