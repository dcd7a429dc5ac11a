/* Spans: ranges of flat buffers (module.h) that contain whole parameters. All code that splits flat buffers uses
   these functions. */
#ifndef LS_NN_SPANS_H
#define LS_NN_SPANS_H

#include "nn/module.h"

/* Adjacent parameters of one flat buffer, or their gradients. */
typedef struct ls_span {
    int flat;       /* index of the flat buffer */
    int64_t offset; /* offset of the first parameter, in elements */
    int64_t count;  /* number of elements, including the gap after the last parameter */
    int first;      /* index of the first parameter in the module's list */
    int last;       /* index of the last parameter; parameters between them may belong to other flat buffers */
} ls_span;

/* Defines the boundaries of spans. With all fields zero, each flat buffer is one span. */
typedef struct ls_span_rule {
    size_t bytes; /* a span that has reached this number of bytes gets no further parameter; 0 for no limit */
    bool (*includes)(const void *user, const ls_leaf *leaf); /* NULL includes all parameters */
    const void *user;
    const ls_span *within; /* splits only this span; NULL splits all flat buffers */
} ls_span_rule;

/* Returns the span of all parameters of a flat buffer. */
ls_span ls_span_of_flat(const ls_module *module, const ls_flat *flats, int index);

/*
 * Splits the flat buffers of a module, whose lists are collected and whose gradients lie in the buffers. Starts from
 * the last parameter of each buffer, because the backward pass usually completes its gradient first. Stores the spans,
 * at most one per parameter, ordered by flat buffer, then by descending offset. Returns the number of spans.
 */
int ls_spans_cut(const ls_module *module, const ls_flat *flats, int flat_count, const ls_span_rule *rule,
                 ls_span *spans);

#endif
