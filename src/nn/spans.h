/* Spans: parts of flat buffers (module.h) that hold whole parameters. All code that cuts flat buffers cuts them here.
 */
#ifndef LS_NN_SPANS_H
#define LS_NN_SPANS_H

#include "nn/module.h"

/* Adjacent parameters of one flat buffer, or their gradients. */
typedef struct ls_span {
    int flat;       /* index of the flat buffer */
    int64_t offset; /* of the first parameter, in elements */
    int64_t count;  /* elements, with the gap after the last parameter */
    int first;      /* index of the first parameter in the module's list */
    int last;       /* index of the last parameter; parameters in between may belong to other flat buffers */
} ls_span;

/* Where spans begin and end. Zero fields cut one span per flat buffer. */
typedef struct ls_span_rule {
    size_t bytes; /* a span with this number of bytes or more gets no further parameter; 0: no limit */
    bool (*includes)(const void *user, const ls_leaf *leaf); /* returns whether a span has the parameter; NULL: true */
    const void *user;
    const ls_span *within; /* cuts only this span; NULL: all flat buffers */
} ls_span_rule;

/* Returns the span of all parameters of a flat buffer. */
ls_span ls_span_of_flat(const ls_module *module, const ls_flat *flats, int index);

/*
 * Cuts the flat buffers of a module, whose lists are collected and whose gradients lie in the buffers. Starts from the
 * last parameter of each buffer, whose gradient the backward pass usually completes first. Stores the spans, at most
 * one per parameter: by flat buffer, then from the highest offset to the lowest. Returns the number of spans.
 */
int ls_spans_cut(const ls_module *module, const ls_flat *flats, int flat_count, const ls_span_rule *rule,
                 ls_span *spans);

#endif
