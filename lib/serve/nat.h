/* nat.h - Twinkle's native API, for the client twinkle_client: /api/v1/twinkle/.. (sessions, runs,
 * checkpoints), /api/v1/model/ID/twinkle/.. (training), /api/v1/sampler/ID/twinkle/.. An adapter is a run
 * like those of the Tinker API, SESSION-NAME, and what it is asked becomes the same works: numbered here,
 * journalled as
 *
 *     {"op": .., "conf": what was set by then, "req": the body, "fwd": the body of the forward before it}
 *
 * so that the journal alone says what is to be done; the reply is sent when the future is done. */
#ifndef TW_NAT_H
#define TW_NAT_H
#include "data/chat.h"
#include "serve/records.h"

/* nat.c */
/* The request has what all but health checks need; else a 400 was sent. */
bool tw_nat_head(struct tw_req *r);
/* The run of the body's adapter_name in the request's session; else an error was sent. */
struct tw_trun *tw_nat_run(struct tw_srv *s, struct tw_req *r, const struct tw_json *j);
/* Whether KEY is one that any request may have: adapter_name, and what makes no difference. */
bool tw_nat_plain_key(struct tw_str key);
/* R is answered with B's content when O is on disk; B is freed. */
void tw_nat_after(struct tw_srv *s, struct tw_req *r, struct tw_op *o, struct tw_buf *b);
void tw_nat_hold(struct tw_srv *s, struct tw_req *r, struct tw_op *o, struct tw_buf *b);  /* before */
/* The live session of the request's header; else an error was sent. */
struct tw_sess *tw_nat_sess(struct tw_srv *s, struct tw_req *r);
void tw_nat_reply_text(struct tw_req *r, const char *json);

/* nat_conf.c: what was set of a run, the JSON object run->conf. */
struct tw_nat_conf {
    const struct tw_json *loss, *optim, *sched, *template, *metrics; /* NULL: not set */
    int64_t every, optim_n, sched_n;
};
int tw_nat_conf_read(struct tw_nat_conf *c, const struct tw_json *j, struct tw_err *err);
/* The member KEY becomes VALUE (JSON); O writes it. */
void tw_nat_conf_put(struct tw_trun *run, const char *key, const char *value, struct tw_op *o);
/* set_loss and its like; false: NAME is none of them. */
bool tw_nat_set(struct tw_srv *s, struct tw_req *r, const char *name);
int tw_nat_check_patch(struct tw_str cls, struct tw_err *err);
int tw_nat_check_template(struct tw_str cls, const struct tw_json *j, struct tw_err *err);
int tw_nat_load_conf(struct tw_srv *s, struct tw_err *err);
/* A text that is kept beside the run: what the last forward was given. NULL: none any more. */
void tw_nat_keep(struct tw_trun *run, const char *name, const char *text, struct tw_op *o);

/* nat_loss.c: a loss by Twinkle's name and arguments as {"text": tw_loss_parse()'s, "sum": bool}. */
int tw_nat_loss_text(struct tw_str name, const struct tw_json *j, struct tw_buf *out, struct tw_err *err);
int tw_nat_loss_read(struct tw_loss *l, bool *sum, const struct tw_json *conf, struct tw_err *err);

/* nat_optim.c */
int tw_nat_set_optim(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err);
void tw_nat_describe(struct tw_req *r, const struct tw_trun *run);

/* nat_sched.c */
int tw_nat_sched_read(struct tw_nat_sched *s, struct tw_str name, const struct tw_json *j, struct tw_err *err);

/* nat_input.c */
struct tw_nat_row {
    int32_t *token, *label;             /* label -1: none */
    int64_t n;
    bool labelled;
    bool begins;                        /* of embeddings: an anchor; labelled says whether that is known */
};
struct tw_nat_rows {
    struct tw_nat_row *v;
    int64_t n;
};
int tw_nat_chat_opts(const struct tw_json *conf, struct tw_chat_opts *o, bool *text, struct tw_err *err);
/* The chat of those options, kept for the next time; of embeddings all of a trajectory counts. */
enum tw_nat_use { TW_NAT_LEARN, TW_NAT_PROMPT, TW_NAT_EMBED };
struct tw_chat *tw_nat_chat(struct tw_srv *s, const struct tw_json *template, enum tw_nat_use use,
        struct tw_err *err);
/* INPUTS as the client sends them: features, or trajectories that TEMPLATE encodes. EMBED: labels are one for
 * each sequence, 1 at an anchor; of others nothing is known. */
int tw_nat_inputs(struct tw_srv *s, struct tw_arena *a, const struct tw_json *inputs,
        const struct tw_json *template, bool embed, struct tw_nat_rows *out, struct tw_err *err);
/* One of them as a prompt to sample after. */
int tw_nat_prompt(struct tw_srv *s, struct tw_arena *a, const struct tw_json *input,
        const struct tw_json *template, struct tw_tokens *out, struct tw_err *err);
void tw_nat_free(struct tw_srv *s);
/* nat_record.c: a trajectory as a record that lib/data reads. */
struct tw_json *tw_nat_record(struct tw_arena *a, const struct tw_json *t, bool text, struct tw_err *err);
int tw_nat_no_media(const struct tw_json *t, struct tw_err *err); /* images and their like are refused */

/* nat_fb.c: a body of forward_backward and its kind as a work's arguments. */
int tw_nat_fb_read(struct tw_srv *s, struct tw_work *w, const char *op, const struct tw_nat_conf *c,
        const struct tw_json *req, const struct tw_json *fwd, struct tw_err *err);

/* nat_train.c */
struct tw_work *tw_nat_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t, struct tw_str body,
        struct tw_err *err);
bool tw_nat_train(struct tw_srv *s, struct tw_req *r, const char *name); /* false: no such verb */
/* R is answered when F is done. */
void tw_nat_wait(struct tw_srv *s, struct tw_future *f, struct tw_req *r);
/* The next number of RUN. */
int64_t tw_nat_number(struct tw_trun *run);

/* nat_lora.c */
void tw_nat_add(struct tw_srv *s, struct tw_req *r);
int tw_nat_lora_read(struct tw_create_args *c, struct tw_arena *a, const struct tw_limits *l,
        const struct tw_json *entry, struct tw_err *err);

/* nat_ckpt.c */
struct tw_work *tw_nat_ckpt_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_nat_conf *c, const char *op, const struct tw_json *req, struct tw_err *err);
/* "name", as a checkpoint may be called; NULL or empty: one of the time. */
char *tw_nat_name(struct tw_arena *a, const struct tw_json *j, double now);

/* nat_sample.c, nat_hub.c */
bool tw_nat_sampler(struct tw_srv *s, struct tw_req *r, const char *name); /* false: no such verb */
void tw_nat_upload(struct tw_srv *s, struct tw_req *r);
void tw_nat_hub_close(struct tw_srv *s);
void tw_nat_upload_status(struct tw_srv *s, struct tw_req *r, struct tw_str id);

#endif
