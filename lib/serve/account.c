/* account.c - who a key is, what was used, what was done */
#include "records.h"

static void key_info(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };

    tw_buf_printf(&b,
            "{\"key_id\": 1, \"name\": \"%s\", \"note\": \"\", \"details\": {\"org_details\": {\"name\": "
            "\"%s\"}, "
            "\"user_details\": {\"email\": \"\"}}}",
            r->tenant->name, r->tenant->name);
    tw_reply_json(r, 200, &b);
}

static void key_forgotten(struct tw_srv *s, struct tw_req *r)
{
    tw_reply(r, 204, NULL, NULL, 0); /* keys end in the keys file, nowhere else */
}

struct audit {
    struct tw_jw w;
    struct tw_buf b;
};

static int audit_row(void *arg, const struct tw_row *r)
{
    struct audit *a = arg;
    char iso[40];

    tw_jw_obj(&a->w);
    tw_jw_key(&a->w, "timestamp");
    tw_jw_cstr(&a->w, tw_iso(iso, tw_col_num(r, 0)));
    tw_jw_key(&a->w, "event");
    tw_jw_str(&a->w, tw_col_str(r, 2));
    tw_jw_key(&a->w, "tenant");
    tw_jw_str(&a->w, tw_col_str(r, 1));
    tw_jw_key(&a->w, "detail");
    tw_jw_str(&a->w, tw_col_str(r, 3));
    tw_jw_obj_end(&a->w);
    return 0;
}

/* A tenant's own entries; everybody's for an administrator. The newest thousand. */
static void audit(struct tw_srv *s, struct tw_req *r)
{
    const char *all = "SELECT time, tenant, event, detail FROM audit ORDER BY n DESC LIMIT 1000";
    const char *own =
            "SELECT time, tenant, event, detail FROM audit WHERE tenant = ? ORDER BY n DESC LIMIT 1000";
    bool admin = s->o->keys && (r->rights & TW_RIGHT_ADMIN);
    struct audit a = { 0 };
    struct tw_err err = { 0 };
    int bad;

    tw_jw_init(&a.w, &a.b);
    tw_jw_obj(&a.w);
    tw_jw_key(&a.w, "entries");
    tw_jw_arr(&a.w);
    bad = admin ? tw_store_read(s->store, all, audit_row, &a, &err, "")
                : tw_store_read(s->store, own, audit_row, &a, &err, "t", r->tenant->name);
    tw_jw_arr_end(&a.w);
    tw_jw_obj_end(&a.w);
    if (bad) {
        tw_buf_free(&a.b);
        tw_reply_error(r, 500, "the log of events cannot be read");
        return;
    }
    tw_reply_json(r, 200, &a.b);
}

static void usage(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"data\": [], \"sessions\": {}}";

    tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

const struct tw_endpoint tw_routes_account[] = { { "GET", "api/v1/auth/apikey/me", TW_RIGHT_ANY, key_info },
    { "GET", "auth/apikey/me", TW_RIGHT_ANY, key_info },
    { "DELETE", "api/v1/auth/apikey/me", TW_RIGHT_ANY, key_forgotten },
    { "GET", "api/v1/audit", TW_RIGHT_ANY, audit },
    { "GET", "api/v1/billing/usage/events", TW_RIGHT_ANY, usage },
    { "GET", "api/v1/billing/usage/checkpoints/current", TW_RIGHT_ANY, usage }, { 0 } };
