#include "tests/support/ranks.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The thread sanitizer sees the copies in OpenBLAS's kernels, but not the locks of OpenBLAS's buffer pool. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:libopenblas\n";
}

/*
 * Keeps freed memory in the process. Large buffers are allocated and freed often; with fresh pages each time, some
 * tests would take half as long again.
 */
static void keep_memory(void) {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
}

ls_status ranks_have_same_bytes(ls_comm *comm, const void *data, size_t bytes) {
    unsigned char *all = malloc(bytes * (size_t)ls_comm_size(comm) + 1);
    int differing = 0;
    LS_CHECK(all != NULL);
    const ls_status status = ls_comm_allgather(comm, data, all, bytes, LS_U8, NULL);
    for (int rank = 0; rank < ls_comm_size(comm) && status == LS_OK; rank++) {
        differing += memcmp(all + bytes * (size_t)rank, data, bytes) != 0;
    }
    free(all);
    LS_TRY(status);
    LS_CHECK(differing == 0);
    return LS_OK;
}

ls_status ranks_have_same_module(ls_comm *comm, const ls_module *module) {
    const uint64_t hash = ls_module_hash(module);
    LS_TRY(ranks_have_same_bytes(comm, &hash, sizeof hash));
    LS_CHECK(hash != 0);
    return LS_OK;
}

static ls_status run_test(ls_comm *world, void *argument) {
    (void)argument;
    ls_status status = getenv("LOCKSTEP_TEST_ANY_ORDER") != NULL ? ls_comm_set_any_order(world, true) : LS_OK;
    status = status == LS_OK ? rank_test(world) : status;
    if (status != LS_OK) {
        fprintf(stderr, "rank %d of %d: %s: %s\n", ls_comm_rank(world), ls_comm_size(world), ls_status_name(status),
                ls_error_message());
    }
    return status;
}

static int run_as_threads(char *counts) {
    for (char *count = strtok(counts, ","); count != NULL; count = strtok(NULL, ",")) {
        if (ls_run_threads(atoi(count), run_test, NULL) != LS_OK) {
            fprintf(stderr, "FAILED with %s threads: %s\n", count, ls_error_message());
            return 1;
        }
        printf("ok with %s threads\n", count);
    }
    return 0;
}

int main(int argc, char **argv) {
    keep_memory();
    if (argc == 3 && strcmp(argv[1], "--threads") == 0) {
        return run_as_threads(argv[2]);
    }
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        fprintf(stderr, "ls_init: %s\n", ls_error_message());
        return 1;
    }
    const ls_status status = run_test(world, NULL);
    return status == LS_OK && ls_finalize() == LS_OK ? 0 : 1;
}
