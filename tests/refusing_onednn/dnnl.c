/*
 * A preloaded oneDNN whose sgemm refuses every product: OpenBLAS computes the products instead, and C may contain no
 * partial result. A process that never called this sgemm fails.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { UNIMPLEMENTED = 3 }; /* dnnl_unimplemented */

int dnnl_sgemm(void); /* declared without its arguments, which are not read here */

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
