/* jinja.c - the template engine: what must fail does so with a place, nothing hostile hangs, and
 * every byte of the output knows where it came from. The texts themselves are checked by
 * golden-jinja and golden-templates. */
#include "test.h"

#include "base/jsonl.h"
#include "base/log.h"
#include "data/jinja.h"
#include "help_jinja.h"

#include <stdlib.h>
#include <time.h>

static struct tw_arena arena;

static int render(struct tw_jinja_out *out, const char *text, const char *vars, struct tw_err *err)
{
    struct tw_jinja_var v[16];
    struct tw_json *json = tw_json_parse(&arena, tw_str(vars), err);
    int n = help_vars(v, 16, json), r = -1;
    struct tw_jinja *j = tw_jinja_compile(tw_str(text), "t", err);

    if (j && json)
        r = tw_jinja_render(j, v, n, 0, out, err);
    tw_jinja_free(j);
    return r;
}

/* Spans as text: "[begin,end msg.field] ", template text in <>, o: the owner. */
static const char *spans(const char *text, const char *vars)
{
    static struct tw_buf b;
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};

    tw_buf_clear(&b);
    if (render(&out, text, vars, &err))
        tw_buf_puts(&b, err.msg);
    for (int64_t i = 0; i < out.nspan; i++) {
        const struct tw_jinja_span *s = &out.span[i];

        tw_buf_printf(&b, "%s", s->generation ? "G" : "");
        if (s->msg >= 0)
            tw_buf_printf(&b, "%d.%.*s", s->msg, (int)s->field.n, s->field.p);
        else if (s->var >= 0)
            tw_buf_printf(&b, "v%d", s->var);
        if (s->owner >= 0)
            tw_buf_printf(&b, "@%d", s->owner);
        tw_buf_printf(&b, "<%.*s>", (int)(s->end - s->begin), out.text.p + s->begin);
    }
    tw_jinja_out_free(&out);
    tw_buf_putc(&b, 0);
    return b.p;
}

#define MS "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <b>\"},{\"role\":\"assistant\"," \
    "\"content\":\"<think>why</think> yes \",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"x\":1}}]}]," \
    "\"bos\":\"<s>\"}"

static void output_knows_its_origin(void)
{
    CHECK_STR(spans("a{{ bos }}b", MS), "<a>v1<<s>><b>");
    CHECK_STR(spans("{{ '[' + messages[0].content + ']' }}", MS), "<[>0.content<Hi <b>><]>");
    CHECK_STR(spans("{% for m in messages %}{{ '(' ~ m.role ~ ')' }}{% endfor %}", MS),
            "@0<(>0.role@0<user>@0<)>@1<(>1.role@1<assistant>@1<)>");
    CHECK_STR(spans("{% set m = messages[1] %}{{ m.content.split('</think>')[-1].strip() }}|"
            "{{ m.content.split('</think>')[0].split('<think>')[-1] }}", MS),
            "1.content<yes><|>1.content<why>");
    CHECK_STR(spans("{{ messages[1].tool_calls[0].arguments|tojson }}", MS),
            "1.tool_calls<{\"x\": 1}>");
    CHECK_STR(spans("{{ (messages[0].content + messages[1].tool_calls[0].name)|upper }}", MS),
            "0.content<HI <B>>1.tool_calls<F>");
    CHECK_STR(spans("{{ messages[0].content.replace('i', bos) }}", MS),
            "0.content<H>v1<<s>>0.content< <b>>");
    CHECK_STR(spans("{{ [bos, messages[0].role]|join('-') }}{{ '%s=%s' % (bos, 1) }}", MS),
            "v1<<s>><->0.role<user>v1<<s>><=1>");
    CHECK_STR(spans("{{ {'a': messages[0].role, 'b': bos}|tojson }}", MS),
            "<{\"a\": >0.role<\"user\"><, \"b\": >v1<\"<s>\"><}>");
    CHECK_STR(spans("{{ [messages[0].role, 1] }}", MS), "<[>0.role<'user'><, 1]>");
}

static void passes_and_generation_are_marked(void)
{
    CHECK_STR(spans("{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}!"
            "{% endgeneration %}{% endfor %}.", MS),
            "@0<<>0.role@0<user>@0<>>G0.content@0<Hi <b>>G@0<!>@1<<>1.role@1<assistant>@1<>>"
            "G1.content@1<<think>why</think> yes >G@1<!><.>");
    /* through a macro, a slice of the list and a second loop inside the pass */
    CHECK_STR(spans("{% macro f(m) %}{% for x in messages %}{{ loop.index }}{% endfor %}"
            "{{ m.role }}{% endmacro %}{% for m in messages[1:] %}{{ f(m) }}{% endfor %}", MS),
            "@1<12>1.role@1<assistant>");
    CHECK_STR(spans("{% set ns = namespace(o='') %}{% for m in messages %}{% set ns.o = ns.o + '|' "
            "+ m.role %}{% endfor %}{{ ns.o }}", MS), "@0<|>0.role@0<user>@1<|>1.role@1<assistant>");
}

static void nul_is_data(void)
{
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};

    CHECK(!render(&out, "{{ x }}|{{ x|tojson }}|{{ x|length }}", "{\"x\":\"A\\u0000B\"}", &err));
    CHECK(out.text.n == 3 + 1 + 10 + 1 + 1 && !memcmp(out.text.p, "A\0B|\"A\\u0000B\"|3", 16));
    tw_jinja_out_free(&out);
}

static void json_is_the_references(void)
{
    CHECK_STR(spans("{{ t|tojson }}", "{\"t\":{\"name\":\"\xe6\x9f\xa5\",\"d\":\"a<b & 'c'\"}}"),
            "v0<{\"name\": \"\xe6\x9f\xa5\", \"d\": \"a<b & 'c'\"}>");
    CHECK_STR(spans("{{ x|tojson }} {{ y }}", "{\"x\":[1.0,1e22,0.1,-5,18446744073709551616,true,null],"
            "\"y\":0.00001}"), "v0<[1.0, 1e+22, 0.1, -5, 18446744073709551616, true, >"
            "<null>v0<]>< >v1<1e-05>");
}

static void failures_have_a_place(void)
{
    char *path = "tests/data/jinja/errors.jsonl";
    struct tw_err err = {0};
    struct tw_jsonl *in = tw_jsonl_open(&path, 1, &err);
    struct tw_jinja_out out = {0};
    struct tw_rec rec;
    int n = 0;

    while (in && tw_jsonl_next(in, &rec, &err) > 0) {
        struct tw_jinja_var v[32];
        struct tw_err e = {0};
        struct tw_jinja *j = tw_jinja_compile(tw_json_get(rec.json, "template")->str, "t", &e);
        int r = j ? tw_jinja_render(j, v, help_vars(v, 32, tw_json_get(rec.json, "data")), 0, &out,
                &e) : -1;

        n++;
        if (!r || !e.msg[0] || e.line != 1)
            printf("# line %d: %s\n", n, r ? e.msg : "no error");
        CHECK(r && e.msg[0] && e.line == 1);
        tw_jinja_free(j);
    }
    CHECK(!err.code && n > 40);
    tw_jsonl_close(in);
    tw_jinja_out_free(&out);
    CHECK_STR(spans("a\n{{ messages|nofilter }}", MS),
            "template, column 13: no filter named 'nofilter', at 'nofilter'");
    CHECK_STR(spans("{{ raise_exception('roles must alternate') }}", MS), "roles must alternate");
}

static char *repeated(const char *a, int n)
{
    struct tw_buf t = {0};

    for (int i = 0; i < n; i++)
        tw_buf_puts(&t, a);
    tw_buf_putc(&t, 0);
    return t.p;
}

#ifdef __SANITIZE_ADDRESS__
enum { END_S = 20 };
#else
enum { END_S = 2 };
#endif

static double cpu_seconds(void)     /* others may be at work on the machine */
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void hostile(const char *name, const char *text)
{
    struct tw_jinja_out out = {0};
    struct tw_err err = {0};
    double t0 = cpu_seconds();
    int r = render(&out, text, MS, &err);

    if (r != -1 || cpu_seconds() - t0 > END_S)
        printf("# %s: %d %s after %.2f s\n", name, r, err.msg, cpu_seconds() - t0);
    CHECK(r == -1 && err.msg[0]);
    CHECK(cpu_seconds() - t0 < END_S);
    tw_jinja_out_free(&out);
}

static void hostile_templates_end(void)
{
    static const char *const texts[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('ab') }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(10**4) %}{% for j in range(10**4) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**4) %}{% for j in range(10**4) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}", "{{ 'a' * 10**9 }}", "{{ [1] * 10**12 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=1) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = {'a': ns} %}{% set m = namespace() %}"
        "{% set m.x = {'a': m} %}{{ [ns] == [m] }}{{ ns.x|tojson }}",
        "{% for i in [1,[2]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{{ 'x'.center(10**9) }}", "{{ '%1000000000d' % 1 }}", "{{ 'x'.zfill(10**12) }}",
        "{{ 2 ** 100000000000 }}", "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a,' * 1000000).split(',') | map('upper') | join('x' * 10000) }}",
        "{% for i in range(100000) %}{{ messages | tojson(indent=1000) }}{% endfor %}",
    };
    char *deep;

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        hostile(texts[i], texts[i]);
    for (int i = 0; i < 7; i++) {
        static const char *const open[] = { "{{ ((((((((((", "{{ [[[[[[[[[[", "{% if 1 %}",
            "{{ not not not ", "{{ - - - - -", "{% for i in [1] %}", "{{ 1 if 1 else " };

        deep = repeated(open[i] + (i == 2 || i == 5 ? 0 : 3), 1000);
        if (i != 2 && i != 5) {
            char *with = tw_xasprintf("{{ %s", deep);

            hostile(open[i], with);
            free(with);
        } else {
            hostile(open[i], deep);
        }
        free(deep);
    }
}

static void one_template_many_renderings(void)
{
    struct tw_err err = {0};
    struct tw_jinja *j = tw_jinja_compile(TW_STR_LIT("{% for m in messages %}{{ m.content }}{% endfor %}"
            "{{ x.y }}"), "t", &err);
    struct tw_json *good = tw_json_parse(&arena, TW_STR_LIT(MS), &err);
    struct tw_json *x = tw_json_parse(&arena, TW_STR_LIT("{\"x\":{\"y\":1}}"), &err);
    struct tw_jinja_out out = {0};

    for (int i = 0; i < 100; i++) {
        struct tw_jinja_var v[4];
        struct tw_err e = {0};
        int n = help_vars(v, 2, good), fails = i % 3 == 1, r;

        if (!fails)
            n += help_vars(v + n, 1, x);
        r = tw_jinja_render(j, v, n, 0, &out, &e);
        CHECK_INT(r, fails ? -1 : 0);
        if (!r)
            CHECK_STR(out.text.p, "Hi <b><think>why</think> yes 1");
    }
    tw_jinja_free(j);
    tw_jinja_out_free(&out);
}

int main(void)
{
    RUN(output_knows_its_origin);
    RUN(passes_and_generation_are_marked);
    RUN(nul_is_data);
    RUN(json_is_the_references);
    RUN(failures_have_a_place);
    RUN(hostile_templates_end);
    RUN(one_template_many_renderings);
    tw_arena_free(&arena);
    return test_end();
}
