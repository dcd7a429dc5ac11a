#include "cli/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"

enum { OWN_VARIABLES = 15, OWN_SIZE = LS_HOST_CAPACITY + 32 };

typedef struct own_variables {
    char text[OWN_VARIABLES][OWN_SIZE];
    size_t count;
} own_variables;

static void set_text(own_variables *own, const char *name, const char *value) {
    snprintf(own->text[own->count++], OWN_SIZE, "%s=%s", name, value);
}

static void set_number(own_variables *own, const char *name, int value) {
    snprintf(own->text[own->count++], OWN_SIZE, "%s=%d", name, value);
}

static void fill(own_variables *own, const ls_rank_place *place) {
    set_number(own, "RANK", place->rank);
    set_number(own, "WORLD_SIZE", place->start->world);
    set_number(own, "LOCAL_RANK", place->local_rank);
    set_number(own, "LOCAL_WORLD_SIZE", place->local_ranks);
    set_text(own, "MASTER_ADDR", place->start->host);
    set_number(own, "MASTER_PORT", place->start->port);
    set_text(own, "LOCKSTEP_KEY", place->start->key);
    set_text(own, "LOCKSTEP_LAUNCH", place->mark);
    set_number(own, "LOCKSTEP_RESTART_COUNT", place->restarts);
    const char *interface = place->interface != NULL ? place->interface : place->start->interface;
    if (interface[0] != '\0') {
        set_text(own, "LOCKSTEP_INTERFACE", interface);
    }
    if (place->store_fd >= 0) {
        set_number(own, "LOCKSTEP_STORE_FD", place->store_fd);
    }
    struct stat socket;
    if (fstat(place->report_fd, &socket) == 0) {
        snprintf(own->text[own->count++], OWN_SIZE, "LOCKSTEP_REPORT=%d:%ju", place->report_fd,
                 (uintmax_t)socket.st_ino);
    }
    if (place->gpu != NULL) {
        set_text(own, "CUDA_VISIBLE_DEVICES", place->gpu);
    }
    if (ls_threads_from_environment() != LS_THREADS_SET) {
        set_number(own, "OMP_NUM_THREADS", place->threads);
        if (getenv("OPENBLAS_NUM_THREADS") == NULL) { /* otherwise OpenBLAS would follow the user's OMP_NUM_THREADS */
            set_number(own, "OPENBLAS_NUM_THREADS", place->threads);
        }
    }
}

static bool is_own(const own_variables *own, const char *variable) {
    /*
     * Variables of an outer job do not apply to this job. The second variable indicates that MASTER_PORT belongs to
     * torchrun.
     */
    static const char *const outer[] = {"LOCKSTEP_STORE_FD=", "TORCHELASTIC_USE_AGENT_STORE="};
    for (size_t i = 0; i < sizeof outer / sizeof outer[0]; i++) {
        if (strncmp(variable, outer[i], strlen(outer[i])) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < own->count; i++) {
        if (strncmp(variable, own->text[i], strcspn(own->text[i], "=") + 1) == 0) {
            return true;
        }
    }
    return false;
}

char **ls_environment_make(const ls_rank_place *place) {
    size_t inherited = 0;
    while (environ != NULL && environ[inherited] != NULL) {
        inherited++;
    }
    const size_t pointers = (inherited + OWN_VARIABLES + 1) * sizeof(char *);
    char **environment = ls_allocate(pointers + sizeof(own_variables));
    if (environment == NULL) {
        (void)ls_fail_memory("lockstep run", pointers + sizeof(own_variables));
        return NULL;
    }
    own_variables *own = (own_variables *)((char *)environment + pointers);
    own->count = 0;
    fill(own, place);
    size_t count = 0;
    for (size_t i = 0; i < inherited; i++) {
        if (!is_own(own, environ[i])) {
            environment[count++] = environ[i];
        }
    }
    for (size_t i = 0; i < own->count; i++) {
        environment[count++] = own->text[i];
    }
    environment[count] = NULL;
    return environment;
}
