#include "comm/rendezvous.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm/algorithm.h"
#include "comm/channel/wire.h"

/* "pid:[4026531836]" */
static void read_space(const char *link, char space[24]) {
    const ssize_t got = readlink(link, space, 23);
    space[got > 0 ? got : 0] = '\0';
}

/*
 * Writes a name that is equal for processes that run under one kernel, see each other's PIDs, and reach each other
 * through abstract socket names, which belong to a network namespace. Backend shm requires this.
 */
static void name_machine(char *name, size_t capacity, const char *host) {
    char boot[40] = "", processes[24], network[24];
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        const ssize_t got = read(fd, boot, sizeof boot - 1);
        boot[got > 0 ? got : 0] = '\0';
        boot[strcspn(boot, "\n")] = '\0';
        close(fd);
    }
    read_space("/proc/self/ns/pid", processes);
    read_space("/proc/self/ns/net", network);
    snprintf(name, capacity, "%s %s %s", boot[0] != '\0' ? boot : host, processes, network);
}

static void fill_peer_info(ls_peer_info *peer_info, const char *backend) {
    *peer_info = (ls_peer_info){0};
    ls_build_write(peer_info->build);
    if (gethostname(peer_info->host, sizeof peer_info->host - 1) != 0) {
        snprintf(peer_info->host, sizeof peer_info->host, "an unnamed host");
    }
    name_machine(peer_info->machine, sizeof peer_info->machine, peer_info->host);
    snprintf(peer_info->process, sizeof peer_info->process, "%ld", (long)getpid());
    snprintf(peer_info->backend, sizeof peer_info->backend, "%s", backend != NULL ? backend : "");
}

/* Returns a number that identifies the machine. The numbers of two machines are equal with a probability of 2^-64. */
static uint64_t number_machine(const char *name) {
    return ls_hash(LS_HASH_START, name, strlen(name));
}

uint64_t ls_machine_number(void) {
    ls_peer_info peer_info;
    fill_peer_info(&peer_info, NULL);
    return number_machine(peer_info.machine);
}

static void find_local_place(const ls_job *job, const ls_roster *world, ls_rendezvous_result *meeting) {
    int before = 0, total = 0;
    for (int other = 0; other < world->size; other++) {
        if (strcmp(world->peer_infos[other].machine, world->peer_infos[job->rank].machine) == 0) {
            before += other < job->rank;
            total++;
        }
    }
    /* The environment takes precedence, unless its values evidently describe only a part of the machine. */
    const bool fits = meeting->store == NULL || job->local_size == 0 || job->local_size == total;
    meeting->local_rank = fits && job->local_rank >= 0 ? job->local_rank : before;
    meeting->local_size = fits && job->local_size > 0 ? job->local_size : total;
    meeting->machine = number_machine(world->peer_infos[job->rank].machine);
}

/* Returns the best backend for the ranks' locations. All ranks have the same information and choose the same
 * backend. */
static const char *name_best(const ls_job *job, const ls_roster *world) {
    return job->size == 1 ? "self" : ls_roster_can_share(world) ? "shm" : job->by_mpi ? "mpi" : "tcp";
}

/* Fails with LS_ERR_MISMATCH on all ranks if the ranks would not use the same backend: they would wait for each
 * other. */
static ls_status check_backends(const ls_job *job, const ls_roster *world) {
    const char *best = name_best(job, world), *first = NULL;
    for (int rank = 0; rank < world->size; rank++) {
        const char *name = world->peer_infos[rank].backend[0] != '\0' ? world->peer_infos[rank].backend : best;
        if (rank == 0) {
            first = name;
        } else if (strcmp(name, first) != 0) {
            return ls_fail(LS_ERR_MISMATCH,
                           "rank 0 selects backend \"%s\", but rank %d selects \"%s\": select the same backend on all "
                           "ranks, in LOCKSTEP_BACKEND or in the program, or select none on any rank",
                           first, rank, name);
        }
    }
    return LS_OK;
}

static ls_status choose_backend(const ls_job *job, const ls_roster *world, const ls_backend **backend) {
    const int away = ls_roster_find_elsewhere(world, job->rank);
    const char *name = job->backend != NULL ? job->backend : name_best(job, world);
    if (job->mpi != NULL && strcmp(name, ls_comm_backend(job->mpi)) == 0) {
        *backend = NULL;
        return LS_OK;
    }
    *backend = ls_backend_find(name);
    if (*backend == NULL) {
        return ls_error_status();
    }
    if (*backend == &ls_backend_self && job->size > 1) {
        return ls_fail(LS_ERR_ARGUMENT, "backend \"self\" supports one rank only, but this job has %d ranks",
                       job->size);
    }
    if (*backend == &ls_backend_shm && away >= 0) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "rank %d is on %s and rank %d on %s, which do not share memory (different machines or "
                       "containers), as backend \"shm\" requires",
                       job->rank, world->peer_infos[job->rank].host, away, world->peer_infos[away].host);
    }
    if (*backend == &ls_backend_tcp) { /* backends gloo and nccl also open tcp, but have more algorithms */
        const ls_algorithm_list algorithms = ls_engine_algorithms("tcp");
        ls_algorithm_setting settings[LS_OP_COUNT] = {{.excluded = 0}};
        return ls_algorithm_read(&algorithms, settings);
    }
    return LS_OK;
}

/* Runs check_backends. If it fails and the ranks met in a store, waits for the other ranks before leaving the store, so
 * that all ranks can read the requested backends. */
static ls_status agree_on_backend(const ls_job *job, const ls_roster *world, ls_store *store) {
    const ls_status status = check_backends(job, world);
    if (status != LS_OK && store != NULL) {
        ls_saved_error cause;
        ls_error_save(&cause);
        (void)ls_store_leave(store);
        (void)ls_error_put_back(&cause);
    }
    return status;
}

/* Rejects a LOCKSTEP_WIRE mode that would not protect the data. */
static ls_status check_wire(const ls_job *job, const ls_roster *world, const ls_backend *backend) {
    ls_wire_mode mode;
    LS_TRY(ls_wire_find_mode(&mode));
    const bool is_covered = backend != NULL && !backend->sends_by_library;
    if (mode == LS_WIRE_PLAIN || is_covered || ls_roster_find_elsewhere(world, job->rank) < 0) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "LOCKSTEP_WIRE=%s does not protect backend %s, whose library sends the data between machines: use "
                   "backend tcp, or unset LOCKSTEP_WIRE",
                   ls_wire_names[mode], backend != NULL ? backend->name : "mpi");
}

static ls_status meet(const ls_job *job, ls_roster *world, ls_rendezvous_result *meeting) {
    fill_peer_info(&world->peer_infos[job->rank], job->backend);
    if (job->size > 1 && job->url[0] != '\0') {
        const ls_store_place place = {.url = job->url,
                                      .serve = job->rank == 0,
                                      .timeout = job->timeout,
                                      .key = job->key,
                                      .listener = job->listener,
                                      .interface = job->interface};
        meeting->store = ls_store_open_at(&place);
        if (meeting->store == NULL) {
            return ls_error_status();
        }
        const ls_peer_info peer_info = world->peer_infos[job->rank];
        LS_TRY(ls_store_join(meeting->store, job->rank, job->size, &peer_info, world->peer_infos));
    }
    const bool wants_mpi = job->backend != NULL && strcmp(job->backend, "mpi") == 0;
    if (job->size > 1 && job->by_mpi && (job->mpi != NULL || !wants_mpi)) {
        LS_TRY(ls_meet_by_mpi(job, world, meeting));
    }
    if (meeting->store != NULL || meeting->launcher != NULL) {
        LS_TRY(agree_on_backend(job, world, meeting->store));
    }
    find_local_place(job, world, meeting);
    if (meeting->store != NULL &&
        ls_interface_address(job->interface, ls_store_connection(meeting->store),
                             ls_roster_find_elsewhere(world, job->rank) < 0, meeting->address) != LS_OK) {
        return job->interface != NULL ? ls_fail_in("LOCKSTEP_INTERFACE") : ls_error_status();
    }
    LS_TRY(choose_backend(job, world, &meeting->backend));
    LS_TRY(check_wire(job, world, meeting->backend));
    if (meeting->store == NULL && job->mpi == NULL) { /* MPI itself is the backend of the world */
        ls_comm_free(meeting->launcher);
        meeting->launcher = NULL;
    }
    return LS_OK;
}

ls_status ls_rendezvous(const ls_job *job, ls_rendezvous_result *meeting) {
    ls_roster world = {0};
    *meeting = (ls_rendezvous_result){.launcher = job->mpi};
    ls_status status = ls_roster_make(&world, job->size);
    if (status == LS_OK) {
        status = meet(job, &world, meeting);
        ls_roster_free(&world);
    }
    if (status != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_store_close(meeting->store);
        ls_comm_free(meeting->launcher);
        (void)ls_error_put_back(&cause);
    }
    return status;
}
