/* ops.c - health, capabilities, metrics */
#include "records.h"
#include "data/tok.h"
#include <inttypes.h>
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
    char hash[24];

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
        if (s->limits->tok) {
            snprintf(hash, sizeof hash, "%016" PRIx64, tw_tok_hash(s->limits->tok));
            tw_jw_key(&w, "tokenizer_hash");    /* so that a client of ours knows that tokens mean the same */
            tw_jw_cstr(&w, hash);
        }
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

static void engine_metrics(struct tw_srv *s, struct tw_buf *b)
{
    struct tw_worker_stat w;

    tw_worker_stat(s->worker, &w);
    metric(b, "tw_engine_queued", "gauge", "Requests that wait for the engine.", (double)w.queued);
    metric(b, "tw_engine_running_samples", "gauge", "Samples that are being decoded.", (double)w.running);
    metric(b, "tw_adapters", "gauge", "Models with an adapter.", (double)w.models);
    metric(b, "tw_adapters_resident", "gauge", "Adapters and frozen weights in memory.", (double)w.resident);
    metric(b, "tw_adapters_swapped", "gauge", "Models that are swapped out.", (double)w.swapped);
    metric(b, "tw_snapshots", "gauge", "Frozen weights to sample from.", (double)w.snapshots);
    metric(b, "tw_tokens_trained_total", "counter", "Tokens of forward_backward.", (double)w.tokens_trained);
    metric(b, "tw_tokens_prompt_total", "counter", "Tokens of prompts.", (double)w.tokens_prompt);
    metric(b, "tw_tokens_prefilled_total", "counter", "Tokens of prompts that were run for sampling.",
            (double)w.tokens_prefilled);
    metric(b, "tw_prefix_cache_hits_total", "counter", "Requests that found the beginning of their prompt.",
            (double)w.cache_hits);
    metric(b, "tw_tokens_cached_total", "counter", "Tokens of prompts that were found.",
            (double)w.tokens_cached);
    metric(b, "tw_tokens_sampled_total", "counter", "Tokens sampled.", (double)w.tokens_sampled);
    metric(b, "tw_optimizer_steps_total", "counter", "Optimiser steps.", (double)w.steps);
    metric(b, "tw_optimizer_passes_total", "counter", "The same, those of many models at once as one.",
            (double)w.step_passes);
    metric(b, "tw_passes_total", "counter", "Passes over the model for training.", (double)w.passes);
    metric(b, "tw_merged_total", "counter", "Requests that shared a pass.", (double)w.merged);
    metric(b, "tw_train_seconds_total", "counter", "Seconds spent on training.", w.busy_train);
    metric(b, "tw_sample_seconds_total", "counter", "Seconds spent on sampling.", w.busy_sample);
    metric(b, "tw_plan_pass_bytes", "gauge", "What a pass takes, as planned.", (double)w.plan_pass);
    metric(b, "tw_plan_adapter_bytes", "gauge", "What training an adapter of the largest rank takes.",
            (double)w.plan_adapter);
    metric(b, "tw_device_bytes", "gauge", "Memory of the device.", (double)w.memory);
}

static void tenant_metrics(struct tw_srv *s, struct tw_buf *b)
{
    static const struct {
        const char *name, *type, *help;
        size_t at;
    } row[] = {
        { "tw_tenant_requests_total", "counter", "Requests of a tenant.",
            offsetof(struct tw_tenant, requests_total) },
        { "tw_tenant_tokens_total", "counter", "Tokens that a tenant used.",
            offsetof(struct tw_tenant, tokens_total) },
        { "tw_tenant_unfinished", "gauge", "Its requests in the engine.",
            offsetof(struct tw_tenant, unfinished) },
        { "tw_tenant_adapters", "gauge", "Its adapters.", offsetof(struct tw_tenant, nadapters) },
        { "tw_tenant_disk_bytes", "gauge", "Its checkpoints.", offsetof(struct tw_tenant, disk_used) },
    };
    struct tw_tenant *t;

    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        tw_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", row[k].name, row[k].help, row[k].name, row[k].type);
        for (size_t i = 0; (t = tw_map_next(tw_keys_tenants(s->keys), &i));)
            tw_buf_printf(b, "%s{tenant=\"%s\"} %lld\n", row[k].name, t->name,
                    (long long)*(const int64_t *)((const char *)t + row[k].at));
    }
}

static void submit_metrics(struct tw_srv *s, struct tw_buf *b)
{
    int64_t n = 0;

    tw_buf_puts(b, "# HELP tw_submit_seconds How long requests took that are not polls.\n"
            "# TYPE tw_submit_seconds histogram\n");
    for (int i = 0; i < TW_SUBMIT_BUCKETS; i++) {
        n += s->submit[i];
        if (i + 1 < TW_SUBMIT_BUCKETS)
            tw_buf_printf(b, "tw_submit_seconds_bucket{le=\"%g\"} %lld\n", tw_submit_bucket[i], (long long)n);
    }
    tw_buf_printf(b, "tw_submit_seconds_bucket{le=\"+Inf\"} %lld\ntw_submit_seconds_sum %.17g\n"
            "tw_submit_seconds_count %lld\n", (long long)n, s->submit_sum, (long long)n);
}

static void metrics(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
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
    metric(&b, "tw_requests_done_total", "counter", "Accepted requests that went well.", (double)s->ndone[0]);
    metric(&b, "tw_requests_failed_total", "counter", "Accepted requests that failed.", (double)s->ndone[1]);
    metric(&b, "tw_polls", "gauge", "Polls that wait for a result.", (double)s->npolls);
    metric(&b, "tw_runs_held", "gauge", "Models that a quota holds.", (double)s->nheld);
    metric(&b, "tw_sequence_skipped_total", "counter", "Numbers that never came.", (double)s->nskipped);
    submit_metrics(s, &b);
    engine_metrics(s, &b);
    tenant_metrics(s, &b);
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
