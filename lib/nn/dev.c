/* dev.c - what all devices share */
#include "nn/ops.h"

void tw_dev_close(struct tw_dev *d)
{
    if (d)
        tw_ops(d)->close(d);
}
