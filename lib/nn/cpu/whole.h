/* whole.h - blocks of a product from their first step to what becomes of them, as kernels are told of them */
#ifndef TW_WHOLE_H
#define TW_WHOLE_H
#include "nn/ops.h"

/* What is read behind the blocks of a panel: each asks for N bytes of PANELS, which lie BP bytes apart. */
struct tw_next {
    const char *at;
    int64_t n, panels, bp;
};

static inline void tw_ask(struct tw_next *x)
{
    for (int64_t p = 0; p < x->panels; p++)
        for (int64_t i = 0; i < x->n; i += 64)
            __builtin_prefetch(x->at + p * x->bp + i, 0, 2);
    x->at += x->n;
}

/* Panels of f32 that are split while others are used: LEFT pairs of rows, LD numbers apart, of the panel at
 * SRC, then as many of further ones, SKIP numbers behind; mm32: of panels side by side. */
struct tw_split {
    const float *src;
    uint32_t *dst;
    int64_t ld, left, pairs, panels, skip;
    int64_t per, due;           /* how many behind each product of parts, TW_SPLIT_ONE for one; what is left
                                 * of that */
};
#define TW_SPLIT_ONE 65536

static inline int64_t tw_split_per(int64_t n, int64_t places)
{
    return (n * TW_SPLIT_ONE + places - 1) / places;
}

/* What becomes of a product, other than C: a gated unit, of which panels 0 and 1 of a block are 16 columns of
 * gate and up; heads of which they are 16 columns and those half a head further, rotated; or 32 columns. All
 * of it is rounded. */
enum tw_made { TW_MADE_C, TW_MADE_UNIT, TW_MADE_HEADS, TW_MADE_LOW };

/* Blocks of a product from their first step to C, mr rows each. The chain begins with FROM (NULL:
 * zero) and runs over the parts in order; A is packed, B lies in panels bp words apart. Then come
 * scale, bias and res, each rounded, and N columns are stored. */
#define TW_WHOLE_PARTS 6
#define TW_L1_WORDS 320         /* of a row, 32 of which stay in L1 */
struct tw_whole {
    const float *from;
    int64_t ldf;
    struct {
        const void *a, *b;
        int64_t bp, s;
    } part[TW_WHOLE_PARTS];
    int parts;
    float *c;
    int64_t ldc, n;
    float scale;
    const float *bias, *res;    /* NULL: none */
    int64_t ldres;
    int64_t blocks;
    struct tw_next next;        /* of the tile unit alone: */
    int64_t strips, bs;         /* a block of rows goes through as many strips of columns, those of B BS
                                 * words apart; 0: one. FROM is none then */
    enum tw_made made;          /* of low16 alone, in the place of c: */
    uint16_t *y;                /* YSTEP elements from a strip to the next, YBLOCK from a block of rows to
                                 * the next */
    int64_t ldy, ystep, yblock;
    int64_t at, group;          /* strips come in groups, in one of which the first is AT: behind the last
                                 * of one there are YSKIP elements of y and BSKIP words of B more */
    int64_t yskip, bskip;
    const float *cos, *sin;     /* of strip 0 of a group: HALF numbers for each position */
    const int32_t *pos;         /* of the rows */
    int64_t half;
    enum tw_act act;
    int64_t rows;               /* of whole32 alone, in the place of blocks: the last one may have fewer */
    struct tw_split split;
    bool follows;               /* the strip of the next columns will be next */
    bool ahead;                 /* ask for the lines that a block will finish before it is summed: that
                                 * takes longer, and stores would wait for each of them */
};

static inline void tw_whole_ahead(const struct tw_whole *w, int64_t rows)
{
    for (int64_t r = 0; w->ahead && r < rows; r++)
        for (int64_t c = 0; c < w->n; c += 16) {
            __builtin_prefetch(w->c + r * w->ldc + c, 1);
            if (w->res && w->res != w->c)
                __builtin_prefetch(w->res + r * w->ldres + c, 0);
        }
}

/* The next block, ROWS further. */
static inline void tw_whole_next(struct tw_whole *w, int64_t rows)
{
    for (int i = 0; i < w->parts; i++)
        w->part[i].a = (const float *)w->part[i].a + rows * w->part[i].s;
    w->from = w->from ? w->from + rows * w->ldf : NULL;
    w->res = w->res ? w->res + rows * w->ldres : NULL;
    w->c = w->c ? w->c + rows * w->ldc : NULL;
    w->y = w->y ? w->y + w->yblock : NULL;
    w->pos = w->pos ? w->pos + rows : NULL;
}

#endif
