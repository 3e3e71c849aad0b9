/* reward_adv.c - advantages: a reward against the rewards of its group */
#include "run/reward.h"
#include <math.h>

double tw_reward_std(const double *r, int64_t n)
{
    double sum = 0, square = 0;
    int64_t m = 0;

    for (int64_t i = 0; i < n; i++)
        if (!isnan(r[i])) {
            sum += r[i];
            m++;
        }
    if (m < 2)
        return 1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(r[i]))
            square += (r[i] - sum / (double)m) * (r[i] - sum / (double)m);
    return sqrt(square / (double)(m - 1));
}

/* Nothing differs; with rounding a mean of equal numbers need not be that number, so it is asked
 * first. */
static bool uniform(const double *r, int64_t n)
{
    double first = NAN;

    for (int64_t i = 0; i < n; i++)
        if (isnan(first))
            first = r[i];
        else if (!isnan(r[i]) && r[i] != first)
            return false;
    return true;
}

bool tw_advantage(enum tw_adv kind, enum tw_adv_scale scale, const double *r, int64_t n, double *a)
{
    double sum = 0, std = 1;
    bool same = uniform(r, n);
    int64_t m = 0;

    for (int64_t i = 0; i < n; i++)
        if (!isnan(r[i])) {
            sum += r[i];
            m++;
        }
    if (scale == TW_SCALE_GROUP && !same)
        std = tw_reward_std(r, n) + 1e-8;
    for (int64_t i = 0; i < n; i++)
        if (isnan(r[i]))
            a[i] = NAN;
        else if (kind == TW_ADV_NONE)
            a[i] = r[i];
        else if (same)
            a[i] = 0;
        else if (kind == TW_ADV_RLOO)
            a[i] = (r[i] - (sum - r[i]) / (double)(m - 1)) / std;
        else
            a[i] = (r[i] - sum / (double)m) / std;
    return same;
}
