/* state.c - what a model in training holds, as one file: for swapping, and for what must survive the
 * process. Little-endian:
 *
 *     "TWPUPIL1"  int64 weights, moments (bytes), gradient (0 or 1), updates, version, pending, seq, native
 *     weights, the gradient where there is one, moments, struct tw_nat_state (as many bytes as native says);
 *     then CRC-32C of all before
 */
#include "base/io.h"
#include "serve/worker_priv.h"
#include <stdlib.h>

static const char magic[8] = "TWPUPIL1";

struct head {
    char magic[8];
    int64_t weights, moments, gradient, updates, version, pending, seq, native;
};

size_t tw_pupil_bytes(const struct tw_pupil *p)
{
    size_t nw = tw_adapter_bytes(p->a);

    return sizeof(struct head) + nw * (p->pending > 0 ? 2 : 1) + (p->updates ? tw_optim_bytes(p->optim) : 0) +
            sizeof p->nat;
}

void tw_pupil_image(const struct tw_pupil *p, void *to)
{
    size_t nw = tw_adapter_bytes(p->a), nm = p->updates ? tw_optim_bytes(p->optim) : 0;
    struct head h = { .weights = (int64_t)nw, .moments = (int64_t)nm, .gradient = p->pending > 0,
        .updates = p->updates, .version = p->version, .pending = p->pending, .seq = p->seq,
        .native = sizeof p->nat };
    char *at = to;

    memcpy(h.magic, magic, sizeof magic);
    memcpy(at, &h, sizeof h);
    tw_adapter_get(p->a, false, at += sizeof h);
    at += nw;
    if (h.gradient) {
        tw_adapter_get(p->a, true, at);
        at += nw;
    }
    if (nm)
        tw_optim_get(p->optim, at);
    memcpy(at + nm, &p->nat, sizeof p->nat);
}

int tw_pupil_write(const struct tw_pupil *p, const char *path, bool sync, struct tw_err *err)
{
    size_t n = tw_pupil_bytes(p);
    char *image = malloc(n);
    int ret;

    if (!image)
        return tw_fail(err, path, 0, "no memory for the state of a model");
    tw_pupil_image(p, image);
    ret = tw_state_file(path, image, n, sync, err);
    free(image);
    return ret;
}

/* Whether the parts of N bytes are where their head says they are. */
static bool parts(const void *p, size_t n, struct head *h)
{
    uint64_t rest = n - sizeof *h;

    if (n < sizeof *h)
        return false;
    memcpy(h, p, sizeof *h);
    return !memcmp(h->magic, magic, sizeof magic) && h->weights >= 0 && h->moments >= 0 && h->native >= 0 &&
           (uint64_t)h->weights <= rest && (uint64_t)h->moments <= rest &&
           (uint64_t)h->native <= sizeof(struct tw_nat_state) && (h->gradient == 0 || h->gradient == 1) &&
           rest == (uint64_t)h->weights * (uint64_t)(1 + h->gradient) + (uint64_t)h->moments +
                (uint64_t)h->native;
}

/* And those of a file, without its checksum. */
static bool whole(const struct tw_map *m, struct head *h)
{
    size_t n = m->n - sizeof(uint32_t);
    uint32_t crc;

    if (m->n < sizeof crc || !parts(m->p, n, h))
        return false;
    memcpy(&crc, m->p + n, sizeof crc);
    return crc == tw_crc32c(0, m->p, n);
}

/* The native part is the last before END. */
static void take_native(struct tw_pupil *p, const unsigned char *end, const struct head *h)
{
    p->nat = (struct tw_nat_state){ 0 };
    memcpy(&p->nat, end - h->native, (size_t)h->native);
    p->nat.optim[sizeof p->nat.optim - 1] = 0;
}

int tw_pupil_peek(struct tw_pupil *p, const char *path, struct tw_err *err)
{
    struct tw_map m;
    struct head h;
    bool ok;

    if (tw_is_dir(path))                    /* a whole model's */
        return tw_nat_read(p, path, err);
    if (tw_map_open(&m, path, err))
        return -1;
    if ((ok = whole(&m, &h)))
        take_native(p, m.p + m.n - sizeof(uint32_t), &h);
    tw_map_close(&m);
    return ok ? 0 : tw_fail(err, path, 0, "this is not the whole state of such a model");
}

int tw_pupil_take(struct tw_pupil *p, const void *image, size_t n, struct tw_err *err)
{
    size_t nw = tw_adapter_bytes(p->a);
    const unsigned char *at = image, *end = at + n;
    struct head h;

    if (!parts(image, n, &h) || h.weights != (int64_t)nw || (h.moments &&
            (size_t)h.moments != tw_optim_bytes(p->optim)))
        return tw_fail(err, NULL, 0, "this is not the whole state of such a model");
    at += sizeof h;
    tw_adapter_put(p->a, false, at);
    at += nw;
    if (h.gradient) {
        tw_adapter_put(p->a, true, at);
        at += nw;
    }
    if (h.moments)
        tw_optim_put(p->optim, at, h.updates);
    take_native(p, end, &h);
    p->updates = h.updates;
    p->version = h.version;
    p->pending = h.pending;
    p->seq = h.seq;
    return 0;
}

int tw_pupil_read(struct tw_pupil *p, const char *path, struct tw_err *err)
{
    struct tw_map m;
    struct head h;
    int ret;

    if (tw_map_open(&m, path, err))
        return -1;
    ret = whole(&m, &h) ? tw_pupil_take(p, m.p, m.n - sizeof(uint32_t), err) : -1;
    tw_map_close(&m);
    return ret ? tw_fail(err, path, 0, "this is not the whole state of such a model") : 0;
}
