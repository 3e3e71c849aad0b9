/* list.h - runs and checkpoints as both APIs list them; NATIVE: in the form that twinkle_client reads. */
#ifndef TW_SERVE_LIST_H
#define TW_SERVE_LIST_H
#include "records.h"

void tw_list_time(struct tw_jw *w, double t);           /* 0: null */
void tw_list_text(struct tw_jw *w, const char *s);      /* NULL: null */
void tw_list_meta(struct tw_jw *w, const char *json, bool native);      /* user_metadata's value */
void tw_list_path(struct tw_jw *w, const struct tw_saved *c, bool native);      /* its key, too */
/* is_lora, lora_rank and what is trained, of an adapter's settings; NULL: of a whole model. */
void tw_list_flags(struct tw_jw *w, const char *lora);
void tw_list_ckpt(struct tw_jw *w, const struct tw_saved *c, bool native);
void tw_list_run(struct tw_srv *s, struct tw_jw *w, const struct tw_trun *run, bool native);

/* A page of a list: limit and offset of the query. */
struct tw_page {
    int64_t limit, offset, total;
};
int tw_page_of(struct tw_req *r, struct tw_page *p, int64_t limit);     /* -1: an error was sent */
/* Counts one that is listed; whether it is on the page. */
bool tw_page_has(struct tw_page *p);
/* An object with a list that is open; the list's end, and where in all it is (P NULL: all), and the reply. */
void tw_page_begin(struct tw_jw *w, struct tw_buf *b, const char *key);
void tw_page_end(struct tw_req *r, struct tw_jw *w, struct tw_buf *b, const struct tw_page *p);

#endif
