/* pick.c - which files of a data set are meant */
#include "test.h"
#include "run/fetch_card.h"
#include "run/fetch_priv.h"

/* Picks from FILES (separated by spaces); WANT is what is taken, or a piece of the error. */
static void pick(const char *files, const char *readme, const char *subset, const char *split,
        const char *want)
{
    struct tw_fetch_pick p = { .subset = subset, .split = split };
    struct tw_err err = {0};
    char text[1000], got[1000] = "";
    const char *path[32];
    bool take[32];
    int n = 0;

    CHECK(strlen(files) < sizeof text);
    memcpy(text, files, strlen(files) + 1);
    for (char *s = text; *s && n < 32; n++) {
        path[n] = s;
        s += strcspn(s, " ");
        if (*s)
            *s++ = 0;
    }
    if (tw_pick_files(path, n, tw_str(readme), &p, "data", take, &err)) {
        CHECK(strstr(err.msg, want));
        if (!strstr(err.msg, want))
            printf("# %s\n", err.msg);
        return;
    }
    for (int i = 0; i < n; i++)
        if (take[i])
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", *got ? " " : "", path[i]);
    CHECK_STR(got, want);
}

static void by_names(void)
{
    const char *hub = "README.md data/train-00000-of-00001.jsonl data/test-00000-of-00001.jsonl "
            "data/validation.jsonl dataset_infos.json";

    pick(hub, "", NULL, NULL, "data/train-00000-of-00001.jsonl");
    pick(hub, "", NULL, "test", "data/test-00000-of-00001.jsonl");
    pick(hub, "", NULL, "dev", "data/validation.jsonl");
    pick(hub, "", NULL, "zz", "has no split zz; it has: train, validation, test");
    pick("a.jsonl b.jsonl", "", NULL, NULL, "a.jsonl b.jsonl");
    pick("constrained.jsonl latest.jsonl", "", NULL, NULL, "constrained.jsonl latest.jsonl");
    pick("rows.jsonl test.jsonl", "", NULL, NULL, "rows.jsonl");
    pick("test/a.jsonl train/a.jsonl", "", NULL, "train", "train/a.jsonl");
    pick("test.jsonl valid.jsonl", "", NULL, NULL, "has no split train; it has: validation, test");
    pick("train.csv x.txt", "", NULL, NULL, "train.csv");
    pick("x.txt", "", NULL, NULL, "holds no files of rows");
    pick("a.jsonl.gz", "", NULL, NULL, "a.jsonl.gz");
}

static void subsets(void)
{
    const char *files = "en/train.jsonl zh/train.jsonl mixed-train.jsonl";

    pick(files, "", "en", NULL, "en/train.jsonl");
    pick(files, "", "mixed", NULL, "mixed-train.jsonl");
    pick(files, "", "default", NULL, files);
    pick(files, "", "z", NULL, "has no subset z");
}

static void one_kind(void)
{
    pick("a.json train-1.csv train-2.csv", "", NULL, NULL, "train-1.csv train-2.csv");
    pick("a.parquet b.parquet x.json", "", NULL, NULL, "a.parquet b.parquet");
}

static void by_card(void)
{
    const char *card = "---\nlicense: mit\nconfigs:\n- config_name: \"one\"\n  data_files:\n"
            "  - split: train\n    path: 'a/*.jsonl'\n  - split: test # the last\n"
            "    path: [b.jsonl, \"c.jsonl\"]\n- config_name: two\n  data_files:\n"
            "    - split: train\n      path:\n        - ./d.jsonl\n        - e.jsonl\n"
            "  default: true\n- config_name: three\n  data_files: \"f.jsonl\"\nother: x\n---\nconfigs: no\n";
    const char *files = "a/1.jsonl a/2.jsonl b.jsonl c.jsonl d.jsonl e.jsonl f.jsonl";

    pick(files, card, NULL, NULL, "d.jsonl e.jsonl");
    pick(files, card, "one", NULL, "a/1.jsonl a/2.jsonl");
    pick(files, card, "one", "test", "b.jsonl c.jsonl");
    pick(files, card, "three", NULL, "f.jsonl");
    pick(files, card, "one", "dev", "has no split dev: choose one with --split: train, test");
    pick(files, card, "zz", NULL, "has no subset zz: choose one with --subset: one, two, three");
    pick("x.jsonl", card, "one", NULL, "that its README.md names for train are not there");
    pick("x.jsonl", "# no front matter\nconfigs:\n- config_name: a\n", NULL, NULL, "x.jsonl");
    pick("x.jsonl", "---\nconfigs: []\n---\n", NULL, NULL, "x.jsonl");
    pick("x.jsonl", "---\r\nconfigs:\r\n- config_name: a\r\n  data_files: x.jsonl\r\n---\r\n", NULL, NULL,
            "x.jsonl");
}

int main(void)
{
    RUN(by_names);
    RUN(subsets);
    RUN(one_kind);
    RUN(by_card);
    return test_end();
}
