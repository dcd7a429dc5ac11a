/*
 * Ranks that mpirun started, and the ranks of the program's own MPI communicator, reach each other through MPI. If all
 * of them share a machine, shared memory is faster and detects deaths itself. So the ranks first exchange their
 * locations over MPI. Then rank 0 opens a store for this job, on loopback and with a new key, unless the program
 * selects backend mpi.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/channel/auth.h"
#include "comm/comm.h"
#include "comm/rendezvous.h"

/* The store's address and key, which rank 0 broadcasts; the URL is empty if rank 0 could not listen. */
typedef struct meeting_point {
    char url[64];
    char key[LS_KEY_TEXT_SIZE];
} meeting_point;

/* Prepares the meeting point on rank 0. */
static void make_place(meeting_point *meeting_place, int *listener) {
    const ls_address anywhere = {.host = "127.0.0.1", .port = 0};
    if (ls_key_make(meeting_place->key) == LS_OK && ls_socket_listen(&anywhere, true, listener) == LS_OK) {
        snprintf(meeting_place->url, sizeof meeting_place->url, "tcp://127.0.0.1:%d", ls_socket_port(*listener));
    }
}

static ls_status meet_at_place(const ls_job *job, ls_comm *mpi, ls_roster *world, ls_store **store) {
    meeting_point where = {0};
    int listener = -1;
    if (job->rank == 0) {
        make_place(&where, &listener);
    }
    const ls_status status = ls_comm_broadcast(mpi, &where, sizeof where, LS_U8, 0, NULL);
    if (status == LS_OK && where.url[0] != '\0') {
        const ls_peer_info peer_info = world->peer_infos[job->rank];
        *store = ls_store_open_at(&(ls_store_place){.url = where.url,
                                                    .serve = job->rank == 0,
                                                    .timeout = job->timeout,
                                                    .key = where.key,
                                                    .listener = listener});
        return *store != NULL ? ls_store_join(*store, job->rank, job->size, &peer_info, world->peer_infos)
                              : ls_error_status();
    }
    if (listener >= 0) {
        close(listener);
    }
    return status != LS_OK || job->rank == 0
               ? ls_error_status()
               : ls_fail(LS_ERR_IO, "rank 0 could not listen on loopback for backend \"shm\"; its message says why");
}

/* Fails with LS_ERR_MISMATCH on all ranks if they run different builds of Lockstep. */
static ls_status check_builds(const ls_roster *world) {
    for (int rank = 1; rank < world->size; rank++) {
        LS_TRY(ls_peer_info_compare_builds(rank, &world->peer_infos[rank], 0, &world->peer_infos[0]));
    }
    return LS_OK;
}

static bool want_mpi(const ls_roster *world) {
    bool found = false;
    for (int rank = 0; rank < world->size; rank++) {
        found = found || strcmp(world->peer_infos[rank].backend, "mpi") == 0;
    }
    return found;
}

/* Opens MPI's world, which is needed at least until the ranks have met. Returns NULL and sets an error on failure. */
static ls_comm *open_world(const ls_job *job) {
    const ls_join_context join = {.rank = job->rank,
                                  .size = job->size,
                                  .local_rank = 0,
                                  .local_size = job->local_size > 0 ? job->local_size : 1,
                                  .prefix = "meeting/",
                                  .timeout = job->timeout};
    const ls_backend *backend = ls_backend_find("mpi");
    return backend != NULL ? ls_comm_open(backend, &join) : NULL;
}

ls_status ls_meet_by_mpi(const ls_job *job, ls_roster *world, ls_rendezvous_result *meeting) {
    ls_comm *mpi = job->mpi != NULL ? job->mpi : open_world(job);
    if (mpi == NULL) {
        return ls_error_status();
    }
    meeting->launcher = mpi;
    LS_TRY(ls_comm_allgather(mpi, &world->peer_infos[job->rank], world->peer_infos, sizeof *world->peer_infos, LS_U8,
                             NULL));
    LS_TRY(check_builds(world));
    return ls_roster_can_share(world) && !want_mpi(world) ? meet_at_place(job, mpi, world, &meeting->store) : LS_OK;
}
