/* store_priv.h - operations and rows, as the store's files share them */
#ifndef TW_STORE_PRIV_H
#define TW_STORE_PRIV_H
#include "store.h"
#include <sqlite3.h>

#define TW_VALUES 24                /* of a statement, at most */

struct tw_value {
    char type;
    struct tw_str s;
    int64_t i;
    double d;
    struct tw_blob *b;
};

struct tw_stmt_args {
    struct tw_stmt_args *next;
    const char *sql;
    int n;
    struct tw_value v[];
};

struct tw_row {
    sqlite3_stmt *stmt;
};

/* What AP has of TYPES (store.h); copied into A, or borrowed when that is NULL. How many. */
int tw_values_take(struct tw_value *v, struct tw_arena *a, const char *types, va_list ap);

#endif
