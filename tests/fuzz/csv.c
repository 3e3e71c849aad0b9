/* The CSV reader takes any bytes: every row it gives is an object of the header's columns, whose
 * values are strings; after an error that it calls skippable it goes on, and it comes to an end. The
 * first byte sets the separator, the limit of a row and whether bad bytes are replaced. */
#include "data/csv.h"
#include "base/log.h"
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_err err = {0};
    struct tw_csv *c;
    struct tw_rec rec;
    int64_t columns = -1, line = 0;
    FILE *fp;
    int got;

    tw_log_init("fuzz", TW_QUIET, 0);
    if (n < 2)
        return 0;
    fp = fmemopen((void *)(p + 1), n - 1, "rb");
    if (!fp)
        abort();
    c = tw_csv_open(fp, "fuzz", p[0] & 1 ? ',' : '\t', p[0] & 2 ? p[0] : TW_JSONL_MAX);
    tw_csv_replace(c, p[0] & 4);
    if (p[0] & 8) {
        size_t k = n - 1 < 3 ? n - 1 : 3;

        tw_csv_feed(c, (struct tw_str){ (const char *)p + 1, k });
        fseek(fp, (long)k, SEEK_SET);
    }
    for (size_t calls = 0;; calls++) {
        tw_err_clear(&err);
        got = tw_csv_next(c, &rec, &err);
        if (calls > n + 8 || (got < 0 && !err.code))
            abort();
        tw_csv_line(c, &line);
        if (line < 1 && got)
            abort();
        if (got > 0) {
            if (rec.json->type != TW_JOBJ || (columns >= 0 && rec.json->n != columns))
                abort();
            columns = rec.json->n;
            for (int64_t i = 0; i < columns; i++)
                if (rec.json->item[i].type != TW_JSTR)
                    abort();
        }
        if (got == 0 || (got < 0 && !tw_csv_skippable(c)))
            break;
    }
    tw_csv_close(c);
    fclose(fp);
    return 0;
}
