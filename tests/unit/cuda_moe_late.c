/* cuda_moe_late.c - back through experts with the weights of their sum at the end, on the GPU, against the
 * CPU's way. Skipped where there is no GPU, and where it has no such way. */
#include <stdlib.h>
#include "help_moe.h"
#include "test.h"

/* Back through the sum, the last product and the gated unit with weights at the end, where the device has
 * that, against one after the other; how many. WITH: an adapter. */
static int late(const struct shape *q, bool with)
{
    int64_t n = q->T * q->K;
    struct sorted s = sort(q);
    struct both w = experts_of(q, act), gate = tensor(n, q->in, 0, false, 1);
    struct both up = tensor(n, q->in, 8, false, 1);
    struct both x = tensor(n, q->in, 0, true, 1), z = tensor(n, q->out, 0, true, 1);
    struct both dy = tensor(q->T, q->out, 8, false, 1), dz = tensor(n, q->out, 0, true, 1);
    struct both dx = tensor(n, q->in, 0, true, 1), dgate = tensor(n, q->in, 8, true, 1);
    struct both dup = tensor(n, q->in, 0, true, 1), dw = vector(n, true);
    struct both h = f32(n, q->r + 8, false), scratch = f32(n, q->r + 8, false);
    struct adapter a = adapter(q, 0, q->T);
    struct tw_lora_ctx c = { .run = &a.c, .nrun = with }, g = { .run = &a.g, .nrun = with };
    bool made;

    C(glu, &x.c, &gate.c, &up.c, TW_SILU), G(glu, &x.g, &gate.g, &up.g, TW_SILU);
    CM(experts, &z.c, &x.c, &w.mc, &s.c, false), GM(experts, &z.g, &x.g, &w.mg, &s.g, false);
    CM(lora, &z.c, &h.c, &x.c, &c, &s.c, false), GM(lora, &z.g, &h.g, &x.g, &g, &s.g, false);
    made = GM(experts_sum_dx, &dx.g, &scratch.g, &dy.g, &x.g, &h.g, &w.mg, &g, &s.g);
    if (made) {
        GM(glu_sum_bwd, &dgate.g, &dup.g, dw.g.data, &dx.g, &gate.g, &up.g, TW_SILU, &s.g);
        CM(combine_bwd, &dz.c, dw.c.data, NULL, NULL, &dy.c, &z.c, &s.c, NULL, NULL);
        CM(experts_dx, &dx.c, &dz.c, &w.mc, &s.c);
        CM(lora_bwd, &dx.c, &scratch.c, &dz.c, &x.c, &h.c, &c, &s.c, false);
        C(glu_bwd, &dgate.c, &dup.c, NULL, &dx.c, &gate.c, &up.c, TW_SILU);
        same(&dgate, "late dgate"), same(&dup, "late dup"), same(&dw, "late dweight");
        same(&a.da, "late da"), same(&a.db, "late db");
    }
    dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
    done(&a.a), done(&a.b), done(&a.da), done(&a.db);
    done(&w), done(&gate), done(&up), done(&x), done(&z), done(&dy), done(&dz), done(&dx), done(&dgate);
    done(&dup), done(&dw), done(&h), done(&scratch);
    return made;
}

static void weights_last(void)
{
    int made = 0;

    for (int with = 0; with < 2; with++) {
        CASES(i, moe_shapes, MOE_QUICK)
            made += late(&moe_shapes[i], with);
        CASES(i, moe_thin, THIN_QUICK)
            made += late(&moe_thin[i], with);
    }
    printf("# %d ways back with weights at the end\n", made);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    for (act = test_quick() ? TW_BF16 : TW_F32; act <= TW_BF16; act++)     /* F32 has no such way */
        if (tw_ops(gpu)->moe && tw_ops(gpu)->moe->experts_sum_dx)
            RUN(weights_last);
    help_cuda_close();
    return test_end();
}
