/* nproc_keep.c - objects of the processor API in the store: what made them, and where their loops are */
#include "nproc.h"
#include "serve/nat.h"
#include <stdlib.h>

static void where(const struct tw_np_obj *o, char out[160])
{
    *out = 0;
    if (o->impl && o->type == TW_NP_DATASET)
        tw_np_data_where(o->impl, out);
    else if (o->impl && o->type == TW_NP_LOADER)
        tw_np_loader_where(o->impl, out);
}

void tw_np_keep(struct tw_np *np, struct tw_np_job *j, void (*then)(void *arg, struct tw_op *o))
{
    struct tw_op *o = tw_op_new(then, np->s);
    struct tw_np_obj *obj = j->obj;
    struct tw_blob *body;
    char at[160];

    o->user = j;
    if (!obj->kept)
        tw_op_add(o, "INSERT INTO object (id, tenant, session, type) VALUES (?, ?, ?, ?)", "ttti", obj->id,
                obj->tenant->name, obj->session, (int64_t)obj->type);
    obj->kept = true;
    if (j->fn->keeps == 'c') {
        body = tw_blob_new(j->body.p, j->body.n);
        tw_op_add(o, "INSERT INTO object_call (object, fn, body) VALUES (?, ?, ?)", "ttb", obj->id,
                j->fn->name, body);
        tw_blob_unref(body);
    }
    where(obj, at);
    if (*at)
        tw_op_add(o, "UPDATE object SET at = ? WHERE id = ?", "tt", at, obj->id);
    tw_store_submit(np->s->store, o);
}

/* Ended, and in no call that makes an object which has not. */
static const char unused[] = "DELETE FROM object WHERE ended AND NOT EXISTS (SELECT 1 FROM object_call c"
        " WHERE c.object <> object.id AND c.object IN (SELECT id FROM object) AND instr(c.body, object.id))";

void tw_np_forget(struct tw_np *np, struct tw_np_obj *obj)
{
    struct tw_op *o;

    if (!obj->kept || np->ending)
        return;
    o = tw_op_new(NULL, np->s);
    tw_op_add(o, "UPDATE object SET ended = 1 WHERE id = ?", "t", obj->id);
    for (int i = 0; i < 2; i++)                 /* a loader lets go of its dataset */
        tw_op_add(o, unused, "");
    tw_op_add(o, "DELETE FROM object_call WHERE object NOT IN (SELECT id FROM object)", "");
    tw_store_submit(np->s->store, o);
}

static int load_object(void *arg, const struct tw_row *r)
{
    struct tw_np *np = arg;
    char *id = tw_col_dup(r, 0), *tenant = tw_col_dup(r, 1), *session = tw_col_dup(r, 2);
    int64_t type = tw_col_int(r, 3);
    struct tw_np_obj *o;

    if (type >= 0 && type <= TW_NP_TEMPLATE) {
        o = tw_np_obj_new(np, tw_keys_tenant(np->s->keys, tenant), (enum tw_np_type)type, session, id);
        o->kept = true;
        o->where = tw_col_dup(r, 4);
        o->ended = tw_col_int(r, 5);
    }
    free(id);
    free(tenant);
    free(session);
    return 0;
}

static int load_call(void *arg, const struct tw_row *r)
{
    struct tw_np *np = arg;
    struct tw_np_obj *o = tw_map_get(&np->objs, tw_col_str(r, 0));

    if (o)
        tw_np_again(np, o, tw_col_str(r, 1), tw_col_str(r, 2));
    return 0;
}

int tw_np_recall(struct tw_np *np, struct tw_err *err)
{
    if (tw_store_read(np->s->store, "SELECT id, tenant, session, type, at, ended FROM object ORDER BY n",
                load_object, np, err, "") ||
            tw_store_read(np->s->store, "SELECT object, fn, body FROM object_call ORDER BY n", load_call, np,
                    err, ""))
        return -1;
    tw_np_again_next(np);
    return 0;
}
