/* nat_hub.c - upload_to_hub: a checkpoint goes to a hub in the background, and clients ask how far it is */
#include "serve/nat.h"

void tw_nat_upload(struct tw_srv *s, struct tw_req *r) { tw_reply_error(r, 400, "upload_to_hub: not yet"); }
void tw_nat_upload_status(struct tw_srv *s, struct tw_req *r, struct tw_str id) { tw_reply_error(r, 404, "x"); }
