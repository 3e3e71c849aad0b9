/* ckpt.c - folders that appear whole and prove it */
#include "test.h"
#include "base/io.h"
#include "nn/ckpt.h"
#include <stdlib.h>
#include <unistd.h>

static char top[] = "/tmp/tw-ckpt-XXXXXX";

static char *in(const char *dir, const char *name, const char *text)
{
    char *path = tw_path_join(dir, name);
    struct tw_err err = { 0 };

    if (text)
        CHECK(tw_write_file(path, text, strlen(text), &err) == 0);
    return path;
}

static void save(const char *name, const char *text)
{
    struct tw_ckpt c;
    struct tw_err err = { 0 };

    CHECK(tw_ckpt_begin(&c, top, name, &err) == 0);
    free(in(c.tmp, "weights", text));
    free(in(c.tmp, "trainer/state", "1"));
    CHECK(tw_ckpt_commit(&c, &err) == 0);
    CHECK_STR(err.msg, "");
}

static int verify(const char *name, struct tw_err *err)
{
    char *dir = tw_path_join(top, name);
    int ret;

    tw_err_clear(err);
    ret = tw_ckpt_verify(dir, err);
    free(dir);
    return ret;
}

static void a_committed_one_verifies(void)
{
    struct tw_err err = { 0 };

    save("step-1", "abc");
    CHECK(verify("step-1", &err) == 0);
}

static void damage_is_found(void)
{
    struct tw_err err = { 0 };
    char *path, *dir = tw_path_join(top, "step-1");

    free(in(dir, "weights", "abd"));
    CHECK(verify("step-1", &err) == -1);
    CHECK(strstr(err.msg, "SHA-256") && strstr(err.place, "weights"));
    free(in(dir, "weights", "ab"));
    CHECK(verify("step-1", &err) == -1);
    CHECK_STR(err.msg, "has 2 bytes, and the manifest says 3");
    path = in(dir, "weights", NULL);
    CHECK(unlink(path) == 0);
    free(path);
    CHECK(verify("step-1", &err) == -1);
    free(in(dir, "trainer/manifest.json", "{\"files\":{\"../x\":{\"size\":0,\"sha256\":\"\"}}}"));
    CHECK(verify("step-1", &err) == -1);
    CHECK(strstr(err.msg, "malformed") != NULL);
    free(in(dir, "trainer/manifest.json", "{}"));
    CHECK(verify("step-1", &err) == -1);
    free(dir);
}

static void a_damaged_one_is_replaced(void)
{
    struct tw_err err = { 0 };

    save("step-1", "again");
    CHECK(verify("step-1", &err) == 0);
}

static void the_list_descends(void)
{
    struct tw_err err = { 0 };
    int64_t *step, n;
    char *odd = tw_path_join(top, "step-007");

    save("step-20", "x");
    save("step-3", "y");
    CHECK(tw_mkdirs(odd, &err) == 0);
    CHECK(tw_ckpt_list(top, &step, &n, &err) == 0);
    CHECK_INT(n, 3);
    CHECK(n == 3 && step[0] == 20 && step[1] == 3 && step[2] == 1);
    free(step);
    free(odd);
}

static void links_move_in_one_step(void)
{
    struct tw_err err = { 0 };
    char to[64], *path = tw_path_join(top, "latest");
    ssize_t n;

    CHECK(tw_ckpt_link(top, "latest", "step-3", &err) == 0);
    CHECK(tw_ckpt_link(top, "latest", "step-20", &err) == 0);
    n = readlink(path, to, sizeof to - 1);
    to[n > 0 ? n : 0] = 0;
    CHECK_STR(to, "step-20");
    free(path);
}

static void leftovers_are_removed(void)
{
    struct tw_ckpt c;
    struct tw_err err = { 0 };
    char *tmp;

    CHECK(tw_ckpt_begin(&c, top, "step-4", &err) == 0);
    tmp = tw_xstrdup(c.tmp);
    CHECK(tw_is_dir(tmp));
    CHECK(tw_ckpt_clean(top, &err) == 0);
    CHECK(!tw_is_dir(tmp));
    CHECK(verify("step-20", &err) == 0);
    tw_ckpt_abort(&c);
    free(tmp);
    CHECK(tw_ckpt_remove(top, "step-20", &err) == 0);
    CHECK(verify("step-20", &err) == -1);
}

int main(void)
{
    struct tw_err err = { 0 };

    if (!mkdtemp(top))
        return 1;
    RUN(a_committed_one_verifies);
    RUN(damage_is_found);
    RUN(a_damaged_one_is_replaced);
    RUN(the_list_descends);
    RUN(links_move_in_one_step);
    RUN(leftovers_are_removed);
    tw_rmtree(top, &err);
    return test_end();
}
