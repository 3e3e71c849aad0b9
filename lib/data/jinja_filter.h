/* jinja_filter.h - the filters that the table of jinja_filter.c finds elsewhere, most in jinja_seq.c. */
#ifndef TW_JINJA_FILTER_H
#define TW_JINJA_FILTER_H
#include "jinja_priv.h"

#define TW_JFILTER(n) struct tw_jval n(struct tw_jrt *rt, const struct tw_jval *v, \
        struct tw_jargs *a)

TW_JFILTER(tw_jf_sort);
TW_JFILTER(tw_jf_dictsort);
TW_JFILTER(tw_jf_items);
TW_JFILTER(tw_jf_unique);
TW_JFILTER(tw_jf_min);
TW_JFILTER(tw_jf_max);
TW_JFILTER(tw_jf_sum);
TW_JFILTER(tw_jf_map);
TW_JFILTER(tw_jf_select);
TW_JFILTER(tw_jf_reject);
TW_JFILTER(tw_jf_selectattr);
TW_JFILTER(tw_jf_rejectattr);
TW_JFILTER(tw_jf_join);
TW_JFILTER(tw_jf_first);
TW_JFILTER(tw_jf_last);
TW_JFILTER(tw_jf_list);
TW_JFILTER(tw_jf_length);
TW_JFILTER(tw_jf_reverse);
TW_JFILTER(tw_jf_batch);
TW_JFILTER(tw_jf_groupby);
TW_JFILTER(tw_jf_slice);          /* in jinja_filter2.c */
TW_JFILTER(tw_jf_urlencode);
TW_JFILTER(tw_jf_wordcount);
TW_JFILTER(tw_jf_abs);            /* in jinja_number.c */
TW_JFILTER(tw_jf_int);
TW_JFILTER(tw_jf_float);
TW_JFILTER(tw_jf_round);
TW_JFILTER(tw_jf_filesize);
#endif
