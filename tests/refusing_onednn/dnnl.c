/*
 * A oneDNN whose sgemm refuses every product, preloaded: OpenBLAS makes them then, and the bits of no part may be left
 * in C. A process in which nobody called it fails.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { UNIMPLEMENTED = 3 }; /* dnnl_unimplemented */

int dnnl_sgemm(void); /* its arguments, which nobody reads here, lie where the caller puts them */

static atomic_int calls;

__attribute__((visibility("default"))) int dnnl_sgemm(void) {
    calls++;
    return UNIMPLEMENTED;
}

__attribute__((destructor)) static void check(void) {
    if (calls == 0) {
        fprintf(stderr, "dnnl_sgemm was never called\n");
        _exit(1);
    }
}
