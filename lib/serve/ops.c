/* ops.c - health, capabilities, metrics */
#include "srv_priv.h"
#include <unistd.h>

static void healthz(struct tw_srv *s, struct tw_req *r)
{
    static const char text[] = "{\"status\": \"ok\"}";

    tw_reply(r, 200, "application/json", text, sizeof text - 1);
}

static void capabilities(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "supported_models");
    tw_jw_arr(&w);
    for (int i = 0; i < s->nname; i++) {
        tw_jw_obj(&w);
        tw_jw_key(&w, "model_name");
        tw_jw_cstr(&w, s->name[i]);
        tw_jw_key(&w, "max_context_length");
        tw_jw_int(&w, s->window);
        tw_jw_key(&w, "trainable");
        tw_jw_bool(&w, true);
        tw_jw_key(&w, "sampleable");
        tw_jw_bool(&w, true);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static int64_t resident(void)
{
    long pages = 0;
    FILE *fp = fopen("/proc/self/statm", "re");

    if (fp && fscanf(fp, "%*d %ld", &pages) != 1)
        pages = 0;
    if (fp)
        fclose(fp);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

static void metric(struct tw_buf *b, const char *name, const char *type, const char *help, double v)
{
    tw_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static void metrics(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_tenant *t;
    int64_t live = 0;

    for (int64_t i = 0; i < s->nsess; i++)
        live += !s->sess[i]->finished;
    metric(&b, "tw_up_seconds", "gauge", "Seconds since the start.", tw_wall() - s->started);
    metric(&b, "tw_resident_bytes", "gauge", "Memory of the process.", (double)resident());
    metric(&b, "tw_connections", "gauge", "Connections.", (double)tw_httpd_connections(s->http));
    metric(&b, "tw_parked_requests", "gauge", "Requests that wait for an answer.",
            (double)tw_httpd_parked(s->http));
    metric(&b, "tw_store_queue", "gauge", "Operations that wait for the store.",
            (double)tw_store_queued(s->store));
    metric(&b, "tw_sessions", "gauge", "Sessions that live.", (double)live);
    metric(&b, "tw_http_request_seconds_sum", "counter", "Seconds that requests took, waits included.",
            s->seconds_sum);
    tw_buf_puts(&b, "# HELP tw_http_requests_total Requests by class of status; 0: the client left.\n"
            "# TYPE tw_http_requests_total counter\n");
    for (int i = 0; i < 6; i++)
        tw_buf_printf(&b, "tw_http_requests_total{class=\"%d\"} %lld\n", i, (long long)s->by_status[i]);
    tw_buf_puts(&b, "# HELP tw_tenant_requests_total Requests of a tenant.\n"
            "# TYPE tw_tenant_requests_total counter\n");
    for (size_t i = 0; (t = tw_map_next(tw_keys_tenants(s->keys), &i));)
        tw_buf_printf(&b, "tw_tenant_requests_total{tenant=\"%s\"} %lld\n", t->name,
                (long long)t->requests_total);
    tw_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.p, b.n);
    tw_buf_free(&b);
}

const struct tw_endpoint tw_routes_ops[] = {
    { "GET", "healthz", 0, healthz },
    { "GET", "api/v1/healthz", 0, healthz },
    { "GET", "api/v1/get_server_capabilities", TW_RIGHT_ANY, capabilities },
    { "GET", "metrics", TW_RIGHT_ADMIN, metrics },
    { 0 }
};
