#include "help_golden.h"
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"

double help_rel(const float *a, const float *b, int64_t n, bool vectors)
{
    double d = 0, m = 0, dd = 0, mm = 0;

    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]);

        d = e <= d ? d : isnan(e) ? INFINITY : e;
        m = fmax(m, fabs((double)b[i]));
        dd += e * e;
        mm += (double)b[i] * b[i];
    }
    return m == 0 ? d : vectors && isfinite(d) ? sqrt(dd / mm) : d / m;
}

double help_rel1(double a, double b)
{
    return isfinite(a) ? fabs(a - b) / fabs(b) : INFINITY;
}

float *help_grad(struct tw_dev *d, const struct tw_param *p)
{
    float *v = tw_xcalloc((size_t)tw_mat_size(&p->w), sizeof *v);
    struct tw_mat gm = p->w;

    gm.data = p->g;
    gm.dtype = TW_F32;
    gm.low = NULL;
    for (int64_t i = 0; p->matrix && i < tw_mat_count(&gm); i++) {
        tw_ops(d)->mat_get(d, v + i * gm.rows * gm.cols, &gm, 0, gm.rows);
        gm.data = (float *)gm.data + p->n / tw_mat_count(&gm);
    }
    if (!p->matrix)
        tw_ops(d)->get(d, v, p->g, (size_t)p->n * sizeof *v);
    return v;
}

/* Of M's decode states after all tokens. */
static int choices(struct tw_model *m, struct tw_adapter *a, const int32_t *ids, int64_t B, int64_t N,
        int32_t *experts, int64_t width, struct tw_err *err)
{
    struct tw_seq *seq = tw_xcalloc((size_t)B, sizeof *seq);
    float *z = tw_xcalloc((size_t)tw_model_info(m)->V, sizeof *z);
    int64_t at = 0;
    int ret = 0;

    tw_model_record_experts(m, true);
    for (int64_t s = 0; s < B; s++) {
        seq[s] = (struct tw_seq){ .token = ids + s * N, .n = N, .adapter = a, .state = tw_state_new(m, err) };
        ret |= seq[s].state ? 0 : -1;
    }
    ret = ret ? ret : tw_model_decode(m, seq, B, &at, 1, z, err);
    for (int64_t s = 0; s < B; s++) {
        if (!ret)
            memcpy(experts + s * N * width, tw_state_experts(seq[s].state),
                    (size_t)(N * width) * sizeof *experts);
        tw_state_free(seq[s].state);
    }
    free(seq);
    free(z);
    return ret;
}

int help_experts(struct tw_dev *d, const char *dir, const char *adapter, const int32_t *ids, int64_t B, int64_t N,
        int32_t **experts, int64_t *width, struct tw_err *err)
{
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_model *m = tw_model_open(dir, d, &o, err);
    struct tw_adapter *a = m && adapter ? tw_adapter_open(m, adapter, false, err) : NULL;
    const struct tw_model_info *info = m ? tw_model_info(m) : NULL;
    int ret = m && (!adapter || a) ? 0 : -1;

    *experts = NULL;
    *width = m ? info->routers * info->topk : 0;
    if (!ret && *width) {
        *experts = tw_xcalloc((size_t)(B * N * *width), sizeof **experts);
        ret = choices(m, a, ids, B, N, *experts, *width, err);
    }
    tw_adapter_close(a);
    tw_model_close(m);
    return ret;
}
