/* store_op.c - what is to be written, and what is read, value by value */
#include "store_priv.h"
#include <stdio.h>

struct tw_op *tw_op_new(void (*done)(void *arg, struct tw_op *o), void *arg)
{
    struct tw_op *o = tw_xcalloc(1, sizeof *o);

    o->done = done;
    o->arg = arg;
    return o;
}

int tw_values_take(struct tw_value *v, struct tw_arena *a, const char *types, va_list ap)
{
    int n = 0;

    for (; types[n] && n < TW_VALUES; n++) {
        v[n] = (struct tw_value){ .type = types[n] };
        switch (types[n]) {
        case 't':
            v[n].s = tw_str(va_arg(ap, const char *));
            break;
        case 's':
            v[n].s = va_arg(ap, struct tw_str);
            break;
        case 'i':
            v[n].i = va_arg(ap, int64_t);
            break;
        case 'd':
            v[n].d = va_arg(ap, double);
            break;
        case 'b':
        case 'f':
            v[n].b = va_arg(ap, struct tw_blob *);
            break;
        default:
            break;
        }
        if (a && v[n].s.p)
            v[n].s = tw_arena_str(a, v[n].s);
        if (a && v[n].b)
            tw_blob_ref(v[n].b);
    }
    return n;
}

void tw_op_add(struct tw_op *o, const char *sql, const char *types, ...)
{
    struct tw_stmt_args *s = tw_arena_alloc(&o->arena, sizeof *s + strlen(types) * sizeof *s->v);
    va_list ap;

    s->sql = sql;
    va_start(ap, types);
    s->n = tw_values_take(s->v, &o->arena, types, ap);
    va_end(ap);
    if (o->last)
        o->last->next = s;
    else
        o->first = s;
    o->last = s;
}

void tw_op_free(struct tw_op *o)
{
    if (!o)
        return;
    for (struct tw_stmt_args *s = o->first; s; s = s->next)
        for (int i = 0; i < s->n; i++)
            tw_blob_unref(s->v[i].b);
    tw_arena_free(&o->arena);
    free(o);
}

int64_t tw_col_int(const struct tw_row *r, int i) { return sqlite3_column_int64(r->stmt, i); }
double tw_col_num(const struct tw_row *r, int i) { return sqlite3_column_double(r->stmt, i); }

struct tw_str tw_col_str(const struct tw_row *r, int i)
{
    const void *p = sqlite3_column_blob(r->stmt, i);
    size_t n = (size_t)sqlite3_column_bytes(r->stmt, i);

    if (sqlite3_column_type(r->stmt, i) == SQLITE_NULL)
        return (struct tw_str){ NULL, 0 };
    return (struct tw_str){ p ? p : "", n };
}

char *tw_col_dup(const struct tw_row *r, int i)
{
    struct tw_str s = tw_col_str(r, i);

    return s.p ? tw_xstrndup(s.p, s.n) : NULL;
}

struct tw_blob *tw_col_blob(const struct tw_row *r, int i)
{
    struct tw_str s = tw_col_str(r, i);

    return s.p ? tw_blob_new(s.p, s.n) : NULL;
}
