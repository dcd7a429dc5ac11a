/*
 * Comparing properties that cannot be exchanged: the ranks of one machine have the same processor and libraries. A rank
 * whose string differs is reported on all ranks, with both strings. The communicator stays usable.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/processor.h"
#include "comm/same_text.h"
#include "parallel/hosts.h"
#include "tensor/device/cpu/libraries.h"

static ls_status one_differs(ls_comm *world, int different) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    char others[64];
    const ls_status status = ls_comm_check_same_text(world, "a test", "color", rank == different ? "blue" : "red");
    if (size == 1) {
        return status;
    }
    LS_CHECK(status == LS_ERR_MISMATCH);
    snprintf(others, sizeof others,
             different == 0 ? "a test: rank 0 has color blue, but rank" : "have color red, but rank %d has blue",
             different);
    if (different != 0 && size == 2) {
        snprintf(others, sizeof others, "a test: rank 0 has color red, but rank 1 has blue");
    }
    LS_EXPECT_MESSAGE(others);
    return LS_OK;
}

/* Only the first bytes are compared. */
static ls_status long_texts(ls_comm *world) {
    char text[2 * LS_SAME_TEXT_CAPACITY];
    memset(text, 'a', sizeof text);
    text[LS_SAME_TEXT_CAPACITY - 1 + ls_comm_rank(world)] = 'b';
    text[sizeof text - 1] = '\0';
    return ls_comm_check_same_text(world, "a test", "text", text);
}

ls_status rank_test(ls_comm *world) {
    char processor[LS_PROCESSOR_CAPACITY];
    const char *libraries = ls_cpu_libraries_describe();
    ls_processor_describe(processor);
    LS_CHECK(strlen(processor) > 5 && strlen(processor) < sizeof processor - 1);
    LS_CHECK(strstr(libraries, "oneDNN") != NULL && strstr(libraries, "OpenBLAS") != NULL);
    LS_CHECK(strstr(libraries, ", glibc 2.") != NULL);
    LS_CHECK(strncmp(libraries, "Lockstep ", 9) == 0 && strstr(libraries, ls_version()) == libraries + 9);
    LS_CHECK(strstr(libraries, ls_processor_level()) != NULL);
    LS_CHECK(strlen(libraries) < LS_SAME_TEXT_CAPACITY - 1); /* so all of it is compared */
    const ls_onednn *onednn = ls_onednn_open();
    LS_CHECK(onednn == NULL || strstr(libraries, onednn->isa) != NULL);
    LS_CHECK((strstr(libraries, "OpenBLAS threads: ") == NULL) == (onednn != NULL));
    LS_TRY(ls_hosts_check_alike(world, "a test"));
    for (int different = 0; different < ls_comm_size(world); different++) {
        LS_TRY(one_differs(world, different));
    }
    LS_TRY(long_texts(world));
    return ls_hosts_check_alike(world, "a test");
}
